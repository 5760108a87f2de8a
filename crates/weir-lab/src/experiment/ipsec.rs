//! The table `ipsec` of a configuration, and the configurations it stands for.
//!
//! ```toml
//! ipsec = { mode = ["route", "policy"], direction = "out", cipher = "aes-gcm-128" }
//! ```

use serde::Deserialize;

use super::expand::{Partial, chosen, kebab, over};
use super::file::{Axis, Cipher, Many, Policies, Shape, Window};
use crate::model::ipsec::{Backend, Direction, Mode, Protection, WINDOW};
use crate::model::{Configuration, Family, Subject, Topology};

/// Values or lists of them; all but mode, direction and cipher have a value where nothing is said.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpsecShape {
    pub mode: Option<Many<Mode>>,
    pub direction: Option<Many<Direction>>,
    pub cipher: Option<Many<Cipher>>,
    pub backend: Option<Many<Backend>>,
    pub esn: Option<bool>,
    pub replay_window: Option<Window>,
    pub policies: Option<Many<Policies>>,
    pub outer: Option<Many<Family>>,
}

/// Every configuration so far with each combination of the table's values.
pub fn spread(all: Vec<Partial>, shape: &Shape, defaults: &Shape) -> Result<Vec<Partial>, String> {
    let (s, d) = match (&shape.ipsec, &defaults.ipsec) {
        (None, None) => return Ok(all),
        (s, d) => (s.clone().unwrap_or_default(), d.clone().unwrap_or_default()),
    };
    let needed = |key: &str, values: &str| format!("configuration: ipsec has no `{key}`: name {values}");
    let mode = s.mode.or(d.mode).ok_or_else(|| needed("mode", "\"route\" or \"policy\""))?;
    let direction =
        s.direction.or(d.direction).ok_or_else(|| needed("direction", "\"out\", \"in\" or \"beside\""))?;
    let cipher = s.cipher.or(d.cipher).ok_or_else(|| needed("cipher", "one, such as \"aes-gcm-128\""))?;
    let policies = s.policies.or(d.policies);
    if policies.is_some() && !mode.values().contains(&Mode::Policy) {
        return Err("configuration: ipsec has `policies`, which tunnels of mode \"route\" have none of: \
                    remove it, or use mode = \"policy\""
            .into());
    }
    let esn = s.esn.or(d.esn).unwrap_or(false);
    let window = s.replay_window.or(d.replay_window).map_or(WINDOW, |w| w.0);
    let all = over(all, Axis::Mode, mode, kebab, |p, mode| {
        p.configuration.ipsec = Some(Protection {
            mode,
            direction: Direction::Out,
            cipher: Cipher::default().0,
            backend: Backend::Auto,
            esn,
            replay_window: window,
            policies: 1,
            outer: p.configuration.workload.family,
        });
    });
    let set = |c: &mut Configuration, change: &dyn Fn(&mut Protection)| {
        if let Some(ipsec) = &mut c.ipsec {
            change(ipsec);
        }
    };
    let all = over(all, Axis::Direction, direction, kebab, |p, v| {
        set(&mut p.configuration, &|i| i.direction = v);
    });
    let all = over(
        all,
        Axis::Cipher,
        cipher,
        |c| c.0.to_string(),
        |p, v| {
            set(&mut p.configuration, &|i| i.cipher = v.0);
        },
    );
    let backend = chosen(&s.backend, &d.backend, None, Backend::Auto);
    let all = over(all, Axis::Backend, backend, kebab, |p, v| {
        set(&mut p.configuration, &|i| i.backend = v);
    });
    let policies = policies.unwrap_or(Many::One(Policies(1)));
    let all = over(
        all,
        Axis::Policies,
        policies,
        |n| n.0.to_string(),
        |p, v| {
            set(&mut p.configuration, &|i| i.policies = v.0);
        },
    );
    Ok(match s.outer.or(d.outer) {
        None => all,
        Some(outer) => over(all, Axis::Outer, outer, kebab, |p, v| {
            set(&mut p.configuration, &|i| i.outer = v);
        }),
    })
}

/// Where `ipsec` and `build` mean nothing.
pub fn refuse(c: &Configuration) -> Result<(), String> {
    let in_memory = c.topology == Topology::Memory && c.subject == Subject::Weir;
    let refused = |key: &str| {
        Err(format!(
            "configuration {}: `{key}` is of weir in memory: use topology = \"memory\" and subject = \"weir\", or \
             remove it",
            c.name
        ))
    };
    match (in_memory, &c.ipsec, &c.build) {
        (false, Some(_), _) => refused("ipsec"),
        (false, None, Some(_)) => refused("build"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
