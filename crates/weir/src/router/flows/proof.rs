//! What the kernel's rules and IPsec policies say of a flow between two devices, as they are now.
//!
//! Promises: an answer is by the newest reading; a change is heard before the next flow is looked at, and voids every answer; what
//! cannot be read admits nothing. Refuses: to remember a flow.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use weir_core::conntrack::{Direction, Reason};
use weir_core::firewall::{Interface, Path, Protocol};
use weir_core::time::Nanos;
use weir_core::wire::ctnetlink::Tuple;
use weir_core::wire::protocol;
use weir_core::wire::xfrm::{News, PolicyDirection, Selector};
use weir_io::netlink::{self, LinkInfo, xfrm};

use crate::router::firewall::established::{EstablishedRules, interfaces};

/// Selectors that are compared with a flow one by one; with more of them nothing is known.
const SELECTORS_MAX: usize = 1024;

/// Family, protocol, and the interfaces a direction comes in and leaves by.
type Between = (bool, u8, u32, u32);

/// What decides about established flows besides their own entries.
pub(super) struct Proof {
    /// Absent where the administrator tells by a mark which flows may pass the rules by.
    rules: Option<EstablishedRules>,
    policies: Policies,
    links: HashMap<u32, Option<Interface>>,
    answers: HashMap<Between, bool>,
}

impl Proof {
    /// Follows policies, and rules too where nothing else admits flows.
    pub fn open(rules: bool, now: Nanos) -> io::Result<Proof> {
        let rules = if rules { Some(EstablishedRules::open(now)?) } else { None };
        let (links, answers) = (HashMap::new(), HashMap::new());
        Ok(Proof { rules, policies: Policies::open()?, links, answers })
    }

    /// Whether rules or policies changed: what was answered before is void, until [`read`](Proof::read).
    pub fn changed(&mut self, now: Nanos) -> bool {
        let policies = self.policies.heard();
        self.rules.as_mut().is_some_and(|rules| rules.changed(now)) || policies
    }

    /// Reads what changed.
    pub fn read(&mut self) {
        self.policies.read();
        if let Some(rules) = &mut self.rules {
            rules.read();
        }
        self.answers.clear();
    }

    /// Devices may have other names or masters.
    pub fn forget_devices(&mut self) {
        self.links.clear();
        self.answers.clear();
    }

    /// Whether a direction may be forwarded past the kernel, between interfaces of these indices.
    pub fn admits(&mut self, direction: &Direction, from: u32, to: u32) -> Result<(), Reason> {
        if looked_up_by(direction).iter().any(|tuple| self.policies.concern(tuple)) {
            return Err(Reason::Policy);
        }
        let Some(rules) = &mut self.rules else { return Ok(()) };
        let (v6, protocol) = (direction.arrives.source.is_ipv6(), direction.arrives.protocol);
        // Without a chain that translates the kernel would send it as it came.
        let translates = |rules: &EstablishedRules| rules.rules().is_ok_and(|rules| rules.translates(v6));
        if direction.is_translated() && !translates(rules) {
            return Err(Reason::Rules);
        }
        let between = (v6, protocol, from, to);
        let answer = match self.answers.get(&between) {
            Some(answer) => *answer,
            None => {
                if self.links.is_empty() {
                    self.links = named(&netlink::links().unwrap_or_default());
                }
                let interface = |index| self.links.get(&index).cloned().flatten();
                let protocol = if protocol == protocol::TCP { Protocol::Tcp } else { Protocol::Udp };
                let (input, output) = (interface(from), interface(to));
                let answer = rules.accepts(&Path { v6, protocol, input, output });
                self.answers.insert(between, answer);
                answer
            }
        };
        if answer { Ok(()) } else { Err(Reason::Rules) }
    }

    /// Readable when something changed.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        let policies = self.policies.monitor.as_ref().map(AsRawFd::as_raw_fd);
        self.rules.as_ref().map(AsRawFd::as_raw_fd).into_iter().chain(policies)
    }
}

/// Interfaces as rules name them; without a name where rules may meet another's.
fn named(links: &[LinkInfo]) -> HashMap<u32, Option<Interface>> {
    links.iter().map(|link| (link.index, interfaces(&[&link.name], links).pop())).collect()
}

/// What the kernel looks up policies by: packets as they came, behind the translation of their destination (with their route), and
/// behind that of their source (once more, before they leave).
fn looked_up_by(direction: &Direction) -> [Tuple; 3] {
    let Direction { arrives, leaves } = *direction;
    [arrives, Tuple { source: arrives.source, source_port: arrives.source_port, ..leaves }, leaves]
}

/// IPsec policies of the kernel that transit may meet.
struct Policies {
    /// Absent where the kernel has no IPsec.
    monitor: Option<xfrm::KeyMonitor>,
    /// None: they are not known, or too many, or what none of them is about is blocked.
    selectors: Option<Vec<Selector>>,
}

impl Policies {
    fn open() -> io::Result<Policies> {
        let mut policies =
            Policies { monitor: xfrm::KeyMonitor::of_policies()?, selectors: Some(Vec::new()) };
        policies.read();
        Ok(policies)
    }

    fn heard(&mut self) -> bool {
        let Some(monitor) = &mut self.monitor else { return false };
        let mut changed = false;
        loop {
            match monitor.observe(|_| changed = true) {
                Ok(heard) => {
                    changed |= heard.lost || heard.malformed > 0;
                    if !heard.more {
                        return changed;
                    }
                }
                Err(_) => return true,
            }
        }
    }

    fn read(&mut self) {
        if self.monitor.is_none() {
            return;
        }
        // Then what passes does so by its policies alone, which none here asks.
        if xfrm::defaults().map_or(true, |defaults| defaults.blocks_forward || defaults.blocks_out) {
            self.selectors = None;
            return;
        }
        let mut selectors = Vec::new();
        let dumped = xfrm::dump_policies(|news| {
            if let News::Policy(policy) = news {
                let transit = policy.direction != PolicyDirection::In && policy.if_id == 0;
                // A policy that lets packets be.
                let lets = policy.allowed && policy.templates.is_empty();
                selectors.extend((transit && !lets).then_some(policy.selector));
            }
        });
        let whole = dumped.is_ok_and(|dumped| !dumped.interrupted && dumped.malformed == 0);
        self.selectors = Some(selectors).filter(|all| whole && all.len() <= SELECTORS_MAX);
    }

    fn concern(&self, tuple: &Tuple) -> bool {
        let Some(selectors) = &self.selectors else { return true };
        selectors.iter().any(|selector| {
            selector.source.contains(tuple.source)
                && selector.destination.contains(tuple.destination)
                && (selector.protocol == 0 || selector.protocol == tuple.protocol)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::route::Prefix;

    #[test]
    fn policies_are_looked_up_before_behind_and_between_both_translations() {
        let tuple = |source: &str, destination: &str| Tuple {
            source: source.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
            protocol: protocol::UDP,
            source_port: 1,
            destination_port: 2,
        };
        let arrives = tuple("10.1.0.2", "192.0.2.1");
        let leaves = tuple("10.1.0.1", "10.1.0.3");
        let between = tuple("10.1.0.2", "10.1.0.3");
        assert_eq!(looked_up_by(&Direction { arrives, leaves }), [arrives, between, leaves]);
    }

    #[test]
    fn a_policy_concerns_flows_between_its_addresses_of_its_protocol() {
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let selector = Selector {
            source: prefix("10.1.0.0/16"),
            destination: prefix("0.0.0.0/0"),
            protocol: protocol::UDP,
            source_port: (0, 0),
            destination_port: (0, 0),
            link: 0,
            user: 0,
        };
        let tuple = |source: &str, protocol| Tuple {
            source: source.parse().expect("an address"),
            destination: "192.0.2.1".parse().expect("an address"),
            protocol,
            source_port: 1,
            destination_port: 2,
        };
        let known = |selectors| Policies { monitor: None, selectors };
        let policies = known(Some(vec![selector]));
        assert!(policies.concern(&tuple("10.1.2.3", protocol::UDP)));
        assert!(!policies.concern(&tuple("10.1.2.3", protocol::TCP)));
        assert!(!policies.concern(&tuple("10.2.2.3", protocol::UDP)));
        assert!(known(None).concern(&tuple("10.2.2.3", protocol::UDP)), "what is not known may concern it");
    }
}
