//! The table `relay` of a configuration, and the configurations it stands for.
//!
//! ```toml
//! relay = { tls = ["off", "user"], load = "closed-loop", workers = [1, 2], under_way = [1, 32] }
//! ```

use serde::Deserialize;

use super::expand::{Partial, chosen, over};
use super::file::{Axis, Many, Shape, UnderWay, Workers};
use crate::model::relay::{Load, RelayScenario, Tls, UNDER_WAY};
use crate::model::{Keys, kebab};

/// Values or lists of them.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayShape {
    pub tls: Option<Many<Tls>>,
    pub load: Option<Many<Load>>,
    pub workers: Option<Many<Workers>>,
    pub under_way: Option<Many<UnderWay>>,
    pub stalled: Option<Many<u32>>,
}

/// Every configuration so far with each combination of the table's values; those of the topology have it
/// without being told.
pub fn spread(all: Vec<Partial>, shape: &Shape, defaults: &Shape) -> Vec<Partial> {
    let (s, d) = match (&shape.relay, &defaults.relay) {
        (None, None) if !all.iter().any(Partial::is_relay) => return all,
        (s, d) => (s.clone().unwrap_or_default(), d.clone().unwrap_or_default()),
    };
    let tls = chosen(&s.tls, &d.tls, None, Tls::Off);
    let all = over(all, Axis::Tls, tls, kebab, |p, tls| {
        p.draft.relay = Some(RelayScenario { tls, ..RelayScenario::default() });
    });
    let load = chosen(&s.load, &d.load, None, Load::ClosedLoop);
    let all = over(all, Axis::Load, load, kebab, |p, v| set(&mut p.draft, &|r| r.load = v));
    let workers = chosen(&s.workers, &d.workers, None, Workers(1));
    let all = over(
        all,
        Axis::Workers,
        workers,
        |n| n.0.to_string(),
        |p, v| set(&mut p.draft, &|r| r.workers = v.0),
    );
    let under_way = chosen(&s.under_way, &d.under_way, None, UnderWay(UNDER_WAY));
    let all = over(
        all,
        Axis::UnderWay,
        under_way,
        |n| n.0.to_string(),
        |p, v| set(&mut p.draft, &|r| r.under_way = v.0),
    );
    let stalled = chosen(&s.stalled, &d.stalled, None, 0);
    over(all, Axis::Stalled, stalled, u32::to_string, |p, v| set(&mut p.draft, &|r| r.stalled = v))
}

fn set(c: &mut Keys, change: &dyn Fn(&mut RelayScenario)) {
    if let Some(relay) = &mut c.relay {
        change(relay);
    }
}

#[cfg(test)]
mod tests;
