//! The table `ipsec` of a configuration, and the configurations it stands for.
//!
//! ```toml
//! ipsec = { mode = ["route", "policy"], direction = "out", cipher = "aes-gcm-128" }
//! ```

use serde::Deserialize;

use super::expand::{Partial, chosen, over};
use super::file::{Axis, Buckets, Churn, Cipher, Many, Policies, Rules, Shape, Window};
use crate::model::invalid::{IpsecError, NeededKey};
use crate::model::ipsec::{Backend, Direction, Mode, Protection, WINDOW};
use crate::model::spd::{Action, LookupBy};
use crate::model::{Family, Keys, kebab};

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
    pub shared_sa: Option<bool>,
    pub policies: Option<Many<Policies>>,
    pub outer: Option<Many<Family>>,
    pub lookup: Option<Many<LookupBy>>,
    pub buckets: Option<Many<Buckets>>,
    #[serde(rename = "match")]
    pub matching: Option<Many<Policies>>,
    pub rules: Option<Many<Rules>>,
    pub action: Option<Many<Action>>,
    pub churn: Option<Many<Churn>>,
}

/// Every configuration so far with each combination of the table's values.
pub fn spread(
    all: Vec<Partial>,
    shape: &Shape,
    defaults: &Shape,
    quick: Option<&IpsecShape>,
) -> Result<Vec<Partial>, IpsecError> {
    let (s, d) = match (&shape.ipsec, &defaults.ipsec) {
        (None, None) => return Ok(all),
        (s, d) => (s.clone().unwrap_or_default(), d.clone().unwrap_or_default()),
    };
    let mode = s.mode.clone().or(d.mode.clone()).ok_or(IpsecError::NoKey(NeededKey::Mode))?;
    let direction =
        s.direction.clone().or(d.direction.clone()).ok_or(IpsecError::NoKey(NeededKey::Direction))?;
    let cipher = s.cipher.clone().or(d.cipher.clone()).ok_or(IpsecError::NoKey(NeededKey::Cipher))?;
    if !mode.values().contains(&Mode::Policy)
        && let Some(key) = of_policies(&s).or(of_policies(&d))
    {
        return Err(IpsecError::OfPolicies { key });
    }
    let esn = s.esn.or(d.esn).unwrap_or(false);
    let window = s.replay_window.clone().or(d.replay_window.clone()).map_or(WINDOW, |w| w.0);
    let shared_sa = s.shared_sa.or(d.shared_sa).unwrap_or(false);
    let all = over(all, Axis::Mode, mode, kebab, |p, mode| {
        p.draft.ipsec = Some(Protection {
            esn,
            replay_window: window,
            shared_sa,
            outer: p.draft.workload.family,
            ..Protection::new(mode, Direction::Out, Cipher::default().0)
        });
    });
    let all = over(all, Axis::Direction, direction, kebab, |p, v| {
        set(&mut p.draft, &|i| i.direction = v);
    });
    let all = over(
        all,
        Axis::Cipher,
        cipher,
        |c| c.0.to_string(),
        |p, v| {
            set(&mut p.draft, &|i| i.cipher = v.0);
        },
    );
    let backend = chosen(&s.backend, &d.backend, None, Backend::Auto);
    let all = over(all, Axis::Backend, backend, kebab, |p, v| {
        set(&mut p.draft, &|i| i.backend = v);
    });
    let all = match s.outer.clone().or(d.outer.clone()) {
        None => all,
        Some(outer) => over(all, Axis::Outer, outer, kebab, |p, v| {
            set(&mut p.draft, &|i| i.outer = v);
        }),
    };
    Ok(asked(all, &s, &d, quick.unwrap_or(&IpsecShape::default())))
}

fn set(c: &mut Keys, change: &dyn Fn(&mut Protection)) {
    if let Some(ipsec) = &mut c.ipsec {
        change(ipsec);
    }
}

/// The key a table has that only policies can follow.
fn of_policies(s: &IpsecShape) -> Option<&'static str> {
    let keys = [
        ("policies", s.policies.is_some()),
        ("lookup", s.lookup.is_some()),
        ("buckets", s.buckets.is_some()),
        ("match", s.matching.is_some()),
        ("rules", s.rules.is_some()),
        ("action", s.action.is_some()),
        ("churn", s.churn.is_some()),
    ];
    keys.into_iter().find(|(_, is_there)| *is_there).map(|(key, _)| key)
}

/// Expands by each SPD and each way to look it up.
fn asked(all: Vec<Partial>, s: &IpsecShape, d: &IpsecShape, q: &IpsecShape) -> Vec<Partial> {
    let all = match s.matching.is_some() || d.matching.is_some() {
        // as long as the match is deep, unless both are given
        true if s.policies.is_none() && d.policies.is_none() => all,
        _ => {
            let policies = chosen(&s.policies, &d.policies, q.policies.as_ref(), Policies(1));
            over(
                all,
                Axis::Policies,
                policies,
                |n| n.0.to_string(),
                |p, v| {
                    set(&mut p.draft, &|i| i.policies = v.0);
                },
            )
        }
    };
    let own = s.policies.is_some() || d.policies.is_some();
    let all = optional(
        all,
        Axis::Match,
        (&s.matching, &d.matching, &q.matching),
        |n| n.0.to_string(),
        |i, v| {
            i.spd.matching = Some(v.0);
            i.policies = if own { i.policies } else { v.0 };
        },
    );
    let all = optional(
        all,
        Axis::Rules,
        (&s.rules, &d.rules, &q.rules),
        |r| r.0.to_string(),
        |i, v| {
            i.spd.rules = Some(v.0);
            i.policies = v.0.count;
        },
    );
    let all = optional(all, Axis::Action, (&s.action, &d.action, &None), kebab, |i, v| i.spd.action = v);
    let all = optional(all, Axis::Lookup, (&s.lookup, &d.lookup, &None), kebab, |i, v| i.spd.lookup = v);
    let all = optional(
        all,
        Axis::Buckets,
        (&s.buckets, &d.buckets, &q.buckets),
        |n| n.0.to_string(),
        |i, v| {
            i.spd.buckets = v.0;
        },
    );
    optional(all, Axis::Churn, (&s.churn, &d.churn, &q.churn), |n| n.0.to_string(), |i, v| i.spd.churn = v.0)
}

/// What a table says of a key.
type Written<'a, T> = &'a Option<Many<T>>;

/// Expands over each value of a key, where the configuration or the defaults have it.
fn optional<T: Clone>(
    all: Vec<Partial>,
    axis: Axis,
    (own, defaults, quick): (Written<'_, T>, Written<'_, T>, Written<'_, T>),
    label: impl Fn(&T) -> String,
    change: impl Fn(&mut Protection, T),
) -> Vec<Partial> {
    let Some(value) = own.clone().or_else(|| defaults.clone()) else { return all };
    let first = value.values().swap_remove(0);
    let values = chosen(&Some(value), &None, quick.as_ref(), first);
    over(all, axis, values, label, |p, v| set(&mut p.draft, &|i| change(i, v.clone())))
}

#[cfg(test)]
mod tests;
