//! Whether wished-for tunnels and SPDs can be built; `sa.rs` beside it looks at their SAs.
//!
//! Promises: what passes has names that are unique where they are used, SAs that exist, go the right way
//! and have the right mode, ports with one SPD at most, and policies that can match something.
//! Refuses what would only look like protection: PROTECT without an SA for a direction it applies to, an
//! SA beside a policy that uses none, a policy hidden by one above it, an SA nobody uses.

use std::collections::{HashMap, HashSet};

use super::super::problem::ipsec::{IpsecElement, LookupProblem, PolicyProblem, SpdProblem, TunnelProblem};
use super::super::{Element, PolicySpec, PortProblem, Problem, SpdSpec, TunnelSpec, nearest};
use super::sa::{By, Uses};
use super::{Check, MTU_MIN_V4, MTU_MIN_V6, PORTS_MAX, is_name, policy, shadow};
use crate::ipsec::flow_cache::{BUCKETS_MAX, FlowCache};
use crate::ipsec::spd::{Action, LookupSpec, Way};
use crate::ipsec::{Direction, FlowCaches, Mode};

/// Policies of one SPD: ten times a large firewall's rules.
pub const POLICIES_MAX: usize = 1 << 17;

/// Rules they come to in one direction, one for each pair of ranges: [`RULE_MEMORY`] each, 5.3 GiB at worst.
pub const RULES_MAX: usize = 1 << 20;

/// Bytes a rule may take: in two directions and two snapshots that take turns, each the eight entries of 144 B
/// and twice the place of 105 B of [`crate::ipsec::spd::RuleSet::memory`], where all are IPv6. Rule sets shaped like real
/// ones take about an eighth.
pub(in crate::state) const RULE_MEMORY: u64 = 4 * (8 * 144 + 2 * 105);

/// Flow caches in all: 256 million flows at a quarter full, more than the peers of one gateway have.
pub const CACHE_MEMORY_MAX: u64 = 64 << 30;

impl<'a> Check<'a> {
    pub(super) fn ipsec(&mut self) {
        let (ports, ipsec) = (self.desired.ports.len(), &self.desired.ipsec);
        let all = ports + ipsec.tunnels.len() + ipsec.spds.len();
        if all > PORTS_MAX && ports <= PORTS_MAX {
            self.wrong(Element::Ports, Problem::TooManyPorts(all));
        }
        let mut uses = Uses::default();
        for (i, tunnel) in ipsec.tunnels.iter().enumerate() {
            self.tunnel(i, tunnel, &mut uses);
        }
        let mut enforced = HashMap::new();
        for (i, spd) in ipsec.spds.iter().enumerate() {
            self.spd(i, spd, &mut enforced);
            let mut names = HashSet::new();
            let mut sound = true;
            for (p, policy) in spd.policies.iter().enumerate() {
                let at = IpsecElement::Policy { spd: i, policy: p };
                self.name(at, &policy.name, names.insert(&policy.name));
                sound &= self.policy(at, policy);
                self.policy_sas(at, (&spd.name, policy), &mut uses);
            }
            // What a broken range would hide says nothing.
            if sound && !self.known.iter().any(|k| k.name == spd.name && k.policies == spd.policies) {
                self.rules(i, spd);
            }
        }
        self.sas(&uses);
        self.lookup(&ipsec.lookup);
    }

    fn lookup(&mut self, spec: &LookupSpec) {
        let ways = Way::ALL.into_iter().filter_map(|way| Some((way, spec.buckets(way)?)));
        let mut sound = true;
        for (way, buckets) in ways.clone().filter(|(_, n)| !(1..=BUCKETS_MAX).contains(n)) {
            let bytes = FlowCache::bytes(way, 1) * u64::from(buckets).next_power_of_two();
            self.at(IpsecElement::Lookup(way), LookupProblem::Buckets { buckets, bytes });
            sound = false;
        }
        let memory = FlowCaches::memory(spec);
        if let Some((largest, _)) = ways.max_by_key(|&(way, n)| FlowCache::bytes(way, n))
            && sound
            && memory > CACHE_MEMORY_MAX
        {
            self.at(IpsecElement::Lookup(largest), LookupProblem::Memory(memory));
        }
    }

    pub(super) fn at(&mut self, place: IpsecElement, problem: impl Into<Problem>) {
        self.wrong(Element::Ipsec(place), problem);
    }

    pub(super) fn name(&mut self, at: IpsecElement, name: &str, fresh: bool) {
        if !is_name(name) {
            self.at(at, PortProblem::BadName(name.to_string()));
        }
        if !fresh {
            self.at(at, PortProblem::Duplicate);
        }
    }

    fn tunnel(&mut self, i: usize, tunnel: &'a TunnelSpec, uses: &mut Uses<'a>) {
        let at = IpsecElement::Tunnel(i);
        let fresh = self.names.insert(&tunnel.name);
        self.name(at, &tunnel.name, fresh);
        if tunnel.out.is_empty() && tunnel.inbound.is_empty() {
            self.at(at, TunnelProblem::NoSas);
        }
        let least =
            if tunnel.addresses.iter().any(|a| a.address.is_ipv6()) { MTU_MIN_V6 } else { MTU_MIN_V4 };
        if let Some(mtu) = tunnel.mtu.filter(|&mtu| mtu < least) {
            self.at(at, PortProblem::Mtu { mtu, least });
        }
        self.addresses(&tunnel.name, &tunnel.addresses, |address| {
            Element::Ipsec(IpsecElement::TunnelAddress { tunnel: i, address })
        });
        for (names, direction) in [(&tunnel.out, Direction::Out), (&tunnel.inbound, Direction::In)] {
            for (sa, params) in self.uses_of(at, names, direction, By::Tunnel(&tunnel.name), uses) {
                if params.mode == Mode::Transport {
                    self.at(at, TunnelProblem::Transport { sa: sa.to_string() });
                }
            }
        }
    }

    fn spd(&mut self, i: usize, spd: &'a SpdSpec, enforced: &mut HashMap<&'a str, &'a str>) {
        let at = IpsecElement::Spd(i);
        let (desired, ipsec) = (self.desired, &self.desired.ipsec);
        // Not one of `names`: no route of a file leads to it.
        let fresh = !self.names.contains(&*spd.name) && !ipsec.spds[..i].iter().any(|s| s.name == spd.name);
        self.name(at, &spd.name, fresh);
        if spd.ports.is_empty() && spd.route_mode.is_none() {
            self.at(at, SpdProblem::NoPorts);
        }
        if spd.default == Action::Protect {
            self.at(at, SpdProblem::Default);
        }
        if spd.policies.len() > POLICIES_MAX {
            self.at(at, SpdProblem::TooManyPolicies(spd.policies.len()));
        }
        for port in &spd.ports {
            if self.is_tunnel(port) {
                self.at(at, SpdProblem::GuardsTunnel(port.clone()));
            } else if !desired.ports.iter().any(|p| p.name == *port) {
                let nearest = nearest(port, desired.ports.iter().map(|p| p.name.as_str()));
                let nearest = nearest.map(str::to_string);
                self.at(at, Problem::UnknownPort { name: port.clone(), nearest });
            } else if let Some(other) = enforced.insert(port, &spd.name) {
                self.at(at, SpdProblem::Guarded { port: port.clone(), other: other.to_string() });
            }
        }
    }

    /// `false` when its ranges are none.
    fn policy(&mut self, at: IpsecElement, policy: &PolicySpec) -> bool {
        policy::selectors(policy, &mut |problem| self.at(at, problem))
    }

    fn policy_sas(
        &mut self,
        at: IpsecElement,
        (spd, policy): (&'a str, &'a PolicySpec),
        uses: &mut Uses<'a>,
    ) {
        for (names, direction) in [(&policy.out, Direction::Out), (&policy.inbound, Direction::In)] {
            let found = self.uses_of(at, names, direction, By::Spd(spd), uses);
            policy::protection(policy, direction, &found, &mut |problem| self.at(at, problem));
        }
    }

    /// Numbers of rules, and policies that can never match.
    fn rules(&mut self, i: usize, spd: &SpdSpec) {
        // Pairs of ranges are counted before they are made.
        let pairs = |p: &PolicySpec| p.local.len().max(1).saturating_mul(p.remote.len().max(1));
        let rules = spd.policies.iter().map(pairs).fold(0, usize::saturating_add);
        if rules > RULES_MAX {
            self.at(IpsecElement::Spd(i), SpdProblem::TooManyRules(rules));
            return;
        }
        for (policy, by) in shadow::hidden(&spd.policies).into_iter().enumerate() {
            if let Some(by) = by {
                let by = spd.policies[by].name.clone();
                self.at(IpsecElement::Policy { spd: i, policy }, PolicyProblem::Hidden { by });
            }
        }
    }
}
