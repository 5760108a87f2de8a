//! Changing policies of an SPD one by one, while it is in use.
//!
//! Promises: what [`Control::apply`] would do with a wish that differs in that much, and all of it or
//! nothing; SPDs, policies and SAs are found by name.

use super::Control;
use crate::state::{Error, IpsecPlace, Place, PolicySpec, Problem, SpdProblem, nearest};
use crate::time::Nanos;

/// What becomes of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyChange {
    /// Comes before what is number `at` now, from 0; at the end of the list, last.
    Insert {
        at: usize,
        policy: PolicySpec,
    },
    Remove {
        name: String,
    },
    /// Takes the place of the policy of its name, and goes on counting where that one stopped.
    Replace {
        policy: PolicySpec,
    },
}

impl Control {
    /// Changes policies of an SPD, one after the other. On errors nothing changed.
    pub fn change_policies(
        &mut self,
        now: Nanos,
        spd: &str,
        changes: Vec<PolicyChange>,
    ) -> Result<(), Vec<Error>> {
        let mut next = self.desired.clone();
        let spds = &mut next.ipsec.spds;
        let Some(at) = spds.iter().position(|s| s.name == spd) else {
            let near = nearest(spd, spds.iter().map(|s| s.name.as_str())).map(str::to_string);
            let problem = SpdProblem::Unknown { name: spd.to_string(), nearest: near };
            return Err(vec![error("ipsec".into(), IpsecPlace::All, problem)]);
        };
        let policies = &mut spds[at].policies;
        for change in changes {
            let find = |name: &str| policies.iter().position(|p| p.name == name);
            let not_there = |name: String| {
                let near = nearest(&name, policies.iter().map(|p| p.name.as_str())).map(str::to_string);
                let problem = SpdProblem::NoPolicy { name, nearest: near };
                vec![error(format!("spd {spd}"), IpsecPlace::Spd(at), problem)]
            };
            match change {
                PolicyChange::Insert { at: place, policy } if place <= policies.len() => {
                    policies.insert(place, policy);
                }
                PolicyChange::Insert { at: place, .. } => {
                    let problem = SpdProblem::NoPlace { at: place, policies: policies.len() };
                    return Err(vec![error(format!("spd {spd}"), IpsecPlace::Spd(at), problem)]);
                }
                PolicyChange::Remove { name } => match find(&name) {
                    Some(place) => _ = policies.remove(place),
                    None => return Err(not_there(name)),
                },
                PolicyChange::Replace { policy } => match find(&policy.name) {
                    Some(place) => _ = policies.replace(place, policy),
                    None => return Err(not_there(policy.name)),
                },
            }
        }
        self.apply(now, next).map(|_| ())
    }
}

fn error(subject: String, at: IpsecPlace, problem: impl Into<Problem>) -> Error {
    Error { at: Place::Ipsec(at), subject, problem: problem.into() }
}
