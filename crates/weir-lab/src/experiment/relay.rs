//! The table `relay` of a configuration, and the configurations it stands for.
//!
//! ```toml
//! relay = { tls = ["off", "user"], load = "closed-loop", workers = [1, 2] }
//! ```

use serde::Deserialize;

use super::error::RelayError;
use super::expand::{Partial, chosen, kebab, over};
use super::file::{Axis, Many, Shape, Workers};
use crate::model::relay::{IDLE_MAX, Load, Relay, Tls};
use crate::model::{Configuration, Subject, Topology};
use weir_stats::search::Rate;

/// Pairs of a run: two clients each.
const PAIRS_MAX: u32 = IDLE_MAX / 2;

/// Values or lists of them.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayShape {
    pub tls: Option<Many<Tls>>,
    pub load: Option<Many<Load>>,
    pub workers: Option<Many<Workers>>,
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
        p.configuration.relay = Some(Relay { tls, load: Load::ClosedLoop, workers: 1, stalled: 0 });
    });
    let load = chosen(&s.load, &d.load, None, Load::ClosedLoop);
    let all = over(all, Axis::Load, load, kebab, |p, v| set(&mut p.configuration, &|r| r.load = v));
    let workers = chosen(&s.workers, &d.workers, None, Workers(1));
    let all = over(
        all,
        Axis::Workers,
        workers,
        |n| n.0.to_string(),
        |p, v| set(&mut p.configuration, &|r| r.workers = v.0),
    );
    let stalled = chosen(&s.stalled, &d.stalled, None, 0);
    over(all, Axis::Stalled, stalled, u32::to_string, |p, v| set(&mut p.configuration, &|r| r.stalled = v))
}

fn set(c: &mut Configuration, change: &dyn Fn(&mut Relay)) {
    if let Some(relay) = &mut c.relay {
        change(relay);
    }
}

/// What means nothing together.
pub fn refuse(c: &Configuration) -> Result<(), RelayError> {
    let Some(relay) = &c.relay else {
        return match c.subject {
            Subject::Derper | Subject::HyperDerp => Err(RelayError::IsRelay(c.subject)),
            _ => Ok(()),
        };
    };
    if c.topology != Topology::Relay {
        return Err(RelayError::Elsewhere);
    }
    let (flows, most) = (c.workload.flows, if relay.load.has_pairs() { PAIRS_MAX } else { IDLE_MAX });
    if relay.stalled > 0 && !relay.load.has_pairs() {
        return Err(RelayError::StalledWithoutSenders(relay.load));
    }
    if flows.saturating_add(relay.stalled) > most {
        return Err(RelayError::Clients { flows, stalled: relay.stalled, most });
    }
    if !relay.load.has_pairs() && c.workload.rate != Rate::FlatOut {
        return Err(RelayError::RateWithoutPackets(relay.load));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
