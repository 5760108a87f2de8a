//! Changing policies of an SPD one by one, while it is in use.
//!
//! Promises: what [`Control::apply`] would do with a wish that differs in that much, and all of it or
//! nothing; SPDs, policies and SAs are found by name; time for the policies that change and not for those
//! that stay, but for the first call after other changes, which looks at all. Refuses what
//! [`crate::state::check`] refuses, except a policy hidden by others: who asks for that looks at all of them.

use std::collections::{BTreeMap, HashMap};

use super::Control;
use super::gateway::Kept;
use super::spds::{insert, replace};
use crate::ipsec::spd::table::SpdTable;
use crate::state::{
    Element, Error, IpsecElement, IpsecSpec, POLICIES_MAX, PolicySpec, PortProblem, Problem, RULES_MAX,
    SaProblem, SpdProblem, SpdSpec, UseProblem, check_policy, nearest,
};

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

/// Who names each SA, and how large each SPD is: what a change is held against.
#[derive(Debug, Default)]
pub(super) struct Uses {
    sas: HashMap<String, Use>,
    /// Pairs of ranges, by SPD.
    pairs: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Use {
    /// `tunnel east`, `spd border`.
    by: String,
    /// Policies, or 1.
    times: usize,
}

impl Control {
    /// Changes policies of an SPD, one after the other. On errors nothing changed.
    pub fn change_policies(&mut self, spd: &str, changes: Vec<PolicyChange>) -> Result<(), Vec<Error>> {
        let spds = &self.desired.ipsec.spds;
        let Some(at) = spds.iter().position(|s| s.name == spd) else {
            let nearest = nearest(spd, spds.iter().map(|s| s.name.as_str())).map(str::to_string);
            let problem = SpdProblem::Unknown { name: spd.to_string(), nearest }.into();
            let at = Element::Ipsec(IpsecElement::All);
            return Err(vec![Error { at, subject: "ipsec".into(), problem }]);
        };
        let uses = self.uses.get_or_insert_with(|| Uses::of(&self.desired.ipsec));
        let Some(table) = self.gateway.spds.table(spd) else { return Ok(()) };
        let pairs = uses.pairs.get(spd).copied().unwrap_or(0);
        let (ipsec, spec) = (&self.desired.ipsec, &spds[at]);
        let mut check = ChangeCheck {
            ipsec,
            spec,
            at,
            table,
            kept: &self.gateway.kept,
            uses,
            len: spec.policies.len(),
            pairs,
            more: false,
            seen: HashMap::new(),
            named: HashMap::new(),
            errors: Vec::new(),
        };
        for (number, change) in (1..).zip(&changes) {
            check.more = number < changes.len();
            check.change(change);
        }
        check.whole();
        if !check.errors.is_empty() {
            return Err(check.errors);
        }
        let (pairs, named) = (check.pairs, check.named.into_iter().map(|(sa, n)| (sa.to_string(), n)));
        let named: Vec<(String, isize)> = named.collect();
        match uses.pairs.get_mut(spd) {
            Some(of) => *of = pairs,
            None => _ = uses.pairs.insert(spd.to_string(), pairs),
        }
        for (sa, times) in named {
            let by = || Use { by: format!("spd {spd}"), times: 0 };
            let of = uses.sas.entry(sa).or_insert_with(by);
            of.times = of.times.saturating_add_signed(times);
        }
        let spec = &mut self.desired.ipsec.spds[at];
        self.gateway.change_spd(spd, |table, sas| {
            for change in changes {
                match change {
                    PolicyChange::Insert { at, policy } => {
                        insert(table, spd, at, &policy, sas);
                        spec.policies.insert(at, policy);
                    }
                    PolicyChange::Remove { name } => {
                        table.remove(&name).map(|at| spec.policies.remove(at));
                    }
                    PolicyChange::Replace { policy } => {
                        replace(table, spd, &policy, sas);
                        table.position(&policy.name).map(|at| spec.policies.replace(at, policy));
                    }
                }
            }
        });
        self.gateway.end_drains(&self.desired.ipsec);
        Ok(())
    }
}

/// Looks at changes in their order, as if those before had been made.
struct ChangeCheck<'a> {
    ipsec: &'a IpsecSpec,
    spec: &'a SpdSpec,
    at: usize,
    table: &'a SpdTable,
    kept: &'a HashMap<String, Kept>,
    uses: &'a Uses,
    len: usize,
    pairs: usize,
    /// Whether there are changes after the one that is looked at.
    more: bool,
    /// Policies that changed before: what they are, `None` where they left.
    seen: HashMap<&'a str, Option<&'a PolicySpec>>,
    /// How many policies more name each SA.
    named: HashMap<&'a str, isize>,
    errors: Vec<Error>,
}

impl<'a> ChangeCheck<'a> {
    fn wrong(&mut self, policy: Option<&str>, problem: impl Into<Problem>) {
        let spd = &self.spec.name;
        let subject = policy.map_or(format!("spd {spd}"), |policy| format!("spd {spd}: policy {policy}"));
        let at = Element::Ipsec(IpsecElement::Spd(self.at));
        self.errors.push(Error { at, subject, problem: problem.into() });
    }

    /// The policy of a name as it would be.
    fn find(&self, name: &str) -> Option<&'a PolicySpec> {
        match self.seen.get(name) {
            Some(policy) => *policy,
            None => self.table.position(name).and_then(|at| self.spec.policies.get(at)),
        }
    }

    /// Notes what a policy would be, for the changes that follow.
    fn see(&mut self, name: &'a str, policy: Option<&'a PolicySpec>) {
        if self.more {
            self.seen.insert(name, policy);
        }
    }

    fn change(&mut self, change: &'a PolicyChange) {
        match change {
            PolicyChange::Insert { at, policy } => {
                if *at > self.len {
                    self.wrong(None, SpdProblem::NoPlace { at: *at, policies: self.len });
                }
                if self.find(&policy.name).is_some() {
                    self.wrong(Some(&policy.name), PortProblem::Duplicate);
                }
                self.come(policy);
                self.len += 1;
            }
            PolicyChange::Remove { name } => {
                self.go(name);
                self.see(name, None);
                self.len = self.len.saturating_sub(1);
            }
            PolicyChange::Replace { policy } => {
                self.go(&policy.name);
                self.come(policy);
            }
        }
    }

    fn come(&mut self, policy: &'a PolicySpec) {
        let (kept, sas) = (self.kept, &self.ipsec.sas);
        let known = |name: &str| {
            let near = || nearest(name, sas.iter().map(|sa| sa.name.as_str())).map(str::to_string);
            kept.get(name).map(|k| &k.spec.params).ok_or_else(near)
        };
        for problem in check_policy(policy, &known) {
            self.wrong(Some(&policy.name), problem);
        }
        let mine = |by: &str| by.strip_prefix("spd ") == Some(&self.spec.name);
        for sa in policy.out.iter().chain(&policy.inbound) {
            if let Some(of) = self.uses.sas.get(sa).filter(|of| of.times > 0 && !mine(&of.by)) {
                let (sa, other) = (sa.clone(), of.by.clone());
                self.wrong(Some(&policy.name), UseProblem::Elsewhere { sa, other });
            }
        }
        self.count(policy, 1);
        self.pairs = self.pairs.saturating_add(pairs(policy));
        self.see(&policy.name, Some(policy));
    }

    fn go(&mut self, name: &str) {
        let Some(policy) = self.find(name) else {
            let all = self.spec.policies.iter().map(|p| p.name.as_str());
            let nearest = nearest(name, all).map(str::to_string);
            return self.wrong(None, SpdProblem::NoPolicy { name: name.to_string(), nearest });
        };
        self.count(policy, -1);
        self.pairs = self.pairs.saturating_sub(pairs(policy));
    }

    fn count(&mut self, policy: &'a PolicySpec, by: isize) {
        for sa in policy.out.iter().chain(&policy.inbound) {
            *self.named.entry(sa).or_default() += by;
        }
    }

    /// What is wrong once all changes are made.
    fn whole(&mut self) {
        if self.len > POLICIES_MAX {
            self.wrong(None, SpdProblem::TooManyPolicies(self.len));
        }
        if self.pairs > RULES_MAX {
            self.wrong(None, SpdProblem::TooManyRules(self.pairs));
        }
        let left = |(sa, by): (&&'a str, &isize)| {
            let times = self.uses.sas.get(*sa)?.times;
            (times.checked_add_signed(*by) == Some(0)).then_some(*sa)
        };
        let mut unused: Vec<&str> = self.named.iter().filter_map(left).collect();
        unused.sort_unstable();
        for sa in unused {
            let at = Element::Ipsec(IpsecElement::Spd(self.at));
            self.errors.push(Error { at, subject: format!("sa {sa}"), problem: SaProblem::Unused.into() });
        }
    }
}

impl Uses {
    fn of(spec: &IpsecSpec) -> Uses {
        let mut uses = Uses::default();
        for tunnel in &spec.tunnels {
            for sa in tunnel.out.iter().chain(&tunnel.inbound) {
                uses.sas.insert(sa.clone(), Use { by: format!("tunnel {}", tunnel.name), times: 1 });
            }
        }
        for spd in &spec.spds {
            for sa in spd.policies.iter().flat_map(|p| p.out.iter().chain(&p.inbound)) {
                let by = || Use { by: format!("spd {}", spd.name), times: 0 };
                uses.sas.entry(sa.clone()).or_insert_with(by).times += 1;
            }
            uses.pairs.insert(spd.name.clone(), spd.policies.iter().map(pairs).sum());
        }
        uses
    }
}

/// Pairs of ranges, each a rule a direction.
fn pairs(policy: &PolicySpec) -> usize {
    policy.local.len().max(1).saturating_mul(policy.remote.len().max(1))
}
