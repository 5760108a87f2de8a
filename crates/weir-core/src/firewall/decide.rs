//! Which rule decides about the first packet of a flow.
//!
//! Promises: where a rule's answer depends on what is not known here (a set that changes, a limit, a mark, a route), the rule
//! is named and nothing is said beyond it. Refuses: to follow address translation: where there is any, the addresses
//! and ports that it may change are not known behind it.

use std::ops::Range;

use super::packet::Registers;
use super::sets::{Found, inverted};
use super::{Interface, RuleLocation, RuleSet};
use crate::wire::nftables::{Base, Chain, Expression, Family, Hook, Key, Register, Rule, Truth, Verdict};

/// Jumps below each other (`NFT_JUMP_STACK_SIZE`).
const JUMPS: usize = 16;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const NEW: u32 = 8;
/// `NF_IP_PRI_CONNTRACK`, `_NAT_DST` and `_NAT_SRC`.
const CONNTRACK: i32 = -200;
const NAT_DST: i32 = -100;
const NAT_SRC: i32 = 100;

/// The first packet of a flow, forwarded from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstPacket<'a> {
    pub v6: bool,
    pub protocol: u8,
    pub input: Interface,
    /// None: it is not known where it goes.
    pub output: Option<Interface>,
    /// The packet from the IP header on.
    pub network: &'a [u8],
    /// The packet from the header behind it on.
    pub transport: &'a [u8],
}

/// What the rules do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Accepted by the rule that did so at forward, or the policy there; none where no chain is at forward.
    Accepted {
        by: Option<RuleLocation>,
    },
    Dropped {
        by: RuleLocation,
        what: String,
    },
    /// It depends on what this rule finds.
    Open {
        at: RuleLocation,
        what: String,
    },
}

/// Follows a packet through every chain of its way.
pub fn decide(rules: &RuleSet, packet: &FirstPacket<'_>) -> Decision {
    let mut bases: Vec<(&Chain, &Base)> = rules
        .chains
        .iter()
        .filter_map(|c| Some((c, c.base.as_ref()?)))
        .filter(|(c, b)| crosses(rules, c, b, packet))
        .collect();
    bases.sort_by_key(|(_, base)| (base.hook, base.priority));
    let mut accepted = None;
    for (chain, base) in bases {
        let asked = Asked { rules, packet, base, chain };
        match asked.chain(&chain.name, 0) {
            Step::Decided(Decision::Accepted { by }) if base.hook == Hook::Forward => accepted = by,
            Step::Decided(Decision::Accepted { .. }) => {}
            Step::Decided(other) => return other,
            Step::Next | Step::Leaves if base.drops => {
                return Decision::Dropped { by: asked.place(None, &chain.name), what: "policy drop".into() };
            }
            Step::Next | Step::Leaves if base.hook == Hook::Forward => {
                accepted = accepted.or_else(|| Some(asked.place(None, &chain.name)));
            }
            Step::Next | Step::Leaves => {}
        }
    }
    Decision::Accepted { by: accepted }
}

fn crosses(rules: &RuleSet, chain: &Chain, base: &Base, packet: &FirstPacket<'_>) -> bool {
    let family = match chain.family {
        Family::Inet | Family::Netdev => true,
        Family::Ip => !packet.v6,
        Family::Ip6 => packet.v6,
        Family::Arp | Family::Bridge => false,
    };
    let on = |interface: Option<&Interface>| {
        interface.is_none_or(|i| {
            base.devices.is_empty() || base.devices.iter().any(|d| *d == i.name || i.lower.contains(d))
        })
    };
    let hook = match base.hook {
        Hook::Prerouting | Hook::Forward | Hook::Postrouting => true,
        Hook::Ingress => on(Some(&packet.input)),
        Hook::Egress => on(packet.output.as_ref()),
        Hook::Input | Hook::Output => false,
    };
    family && hook && base.kind != "nat" && !rules.is_dormant(chain)
}

enum Step {
    Next,
    /// The end of the chain, as `return` comes to it.
    Leaves,
    Decided(Decision),
}

/// A base chain that is asked.
struct Asked<'a> {
    rules: &'a RuleSet,
    packet: &'a FirstPacket<'a>,
    base: &'a Base,
    chain: &'a Chain,
}

impl Asked<'_> {
    fn place(&self, handle: Option<u64>, chain: &str) -> RuleLocation {
        RuleLocation {
            family: self.chain.family,
            table: self.chain.table.clone(),
            chain: chain.to_owned(),
            handle,
        }
    }

    fn open(&self, rule: &Rule, what: String) -> Step {
        Step::Decided(Decision::Open { at: self.place(Some(rule.handle), &rule.chain), what })
    }

    fn chain(&self, name: &str, depth: usize) -> Step {
        let of = |r: &&Rule| r.family == self.chain.family && r.table == self.chain.table && r.chain == name;
        for rule in self.rules.rules.iter().filter(of) {
            match self.rule(rule, depth) {
                Step::Next => {}
                other => return other,
            }
        }
        Step::Leaves
    }

    fn rule(&self, rule: &Rule, depth: usize) -> Step {
        let mut registers = Registers::default();
        // A match that may fail is no matter where the rule decides nothing.
        let mut unsure = None;
        for expression in &rule.expressions {
            let truth = match expression {
                Expression::Load { key, to } => self.load(*key, *to, &mut registers),
                Expression::Verdict(verdict) => return self.verdict(verdict, rule, unsure, depth),
                Expression::Statement(what) if ends(what) => return self.dropped(rule, what, unsure),
                Expression::Statement(what) if limits(what) => {
                    unsure.get_or_insert_with(|| what.clone());
                    Truth::Always
                }
                Expression::Statement(_) | Expression::Counter | Expression::FirstPacketOnly(_) => {
                    Truth::Always
                }
                Expression::Lookup { set, from, to, not } => {
                    let found = self.search(rule, set, *from, &registers);
                    if *to == Some(Register::VERDICT) {
                        return match (found.truth, found.verdicts.as_slice()) {
                            (Truth::Never, _) => Step::Next,
                            (Truth::Always, [verdict]) => self.verdict(verdict, rule, unsure, depth),
                            _ => self.open(rule, format!("what set {set} has for it")),
                        };
                    }
                    to.iter().for_each(|to| registers.forget(*to));
                    inverted(found.truth, *not)
                }
                // What is never so inside a connection may be so at its begin.
                Expression::Match { truth: Truth::Never, .. } => Truth::Unknown,
                other => registers.compare(other, self.ct_state()),
            };
            match truth {
                Truth::Always => {}
                Truth::Never => return Step::Next,
                Truth::Unknown => {
                    unsure.get_or_insert_with(|| expression.to_string());
                }
            }
        }
        Step::Next
    }

    fn search(&self, rule: &Rule, set: &str, from: Register, registers: &Registers) -> Found {
        let unknown = Found { truth: Truth::Unknown, verdicts: Vec::new() };
        let Some(set) = self.rules.set(rule.family, &rule.table, set).filter(|set| !set.changes) else {
            return unknown;
        };
        self.rules.elements_of(set).map_or(unknown, |elements| Found::among(set, &elements, from, registers))
    }

    fn dropped(&self, rule: &Rule, what: &str, unsure: Option<String>) -> Step {
        match unsure {
            Some(unsure) => self.open(rule, unsure),
            None => {
                let by = self.place(Some(rule.handle), &rule.chain);
                Step::Decided(Decision::Dropped { by, what: what.to_owned() })
            }
        }
    }

    fn verdict(&self, verdict: &Verdict, rule: &Rule, unsure: Option<String>, depth: usize) -> Step {
        if let (Some(unsure), false) = (&unsure, matches!(verdict, Verdict::Continue)) {
            return self.open(rule, unsure.clone());
        }
        match verdict {
            Verdict::Accept => {
                let by = Some(self.place(Some(rule.handle), &rule.chain));
                Step::Decided(Decision::Accepted { by })
            }
            Verdict::Drop | Verdict::Queue => self.dropped(rule, &verdict.to_string(), None),
            Verdict::Continue => Step::Next,
            Verdict::Return => Step::Leaves,
            Verdict::Jump(_) | Verdict::Goto(_) if depth >= JUMPS => self.open(rule, verdict.to_string()),
            Verdict::Jump(to) => match self.chain(to, depth + 1) {
                Step::Leaves => Step::Next,
                other => other,
            },
            Verdict::Goto(to) => self.chain(to, depth + 1),
        }
    }

    fn load(&self, key: Key, to: Register, registers: &mut Registers) -> Truth {
        match self.value(key) {
            Some(value) => {
                registers.set(to, &value);
                Truth::Always
            }
            None => {
                registers.forget(to);
                // The packet may lack it, and the rule end here.
                Truth::Unknown
            }
        }
    }

    fn ct_state(&self) -> Option<u32> {
        let tracked = match self.base.hook {
            Hook::Prerouting => self.base.priority > CONNTRACK,
            Hook::Forward | Hook::Postrouting => true,
            _ => false,
        };
        tracked.then_some(NEW)
    }

    fn value(&self, key: Key) -> Option<Vec<u8>> {
        let packet = self.packet;
        let routed = matches!(self.base.hook, Hook::Prerouting | Hook::Forward | Hook::Postrouting);
        let has_input = matches!(self.base.hook, Hook::Prerouting | Hook::Forward);
        let has_output = matches!(self.base.hook, Hook::Forward | Hook::Postrouting);
        let input = Some(&packet.input).filter(|_| has_input);
        let output = packet.output.as_ref().filter(|_| has_output);
        let name = |interface: &Interface| {
            let mut bytes = interface.name.clone().into_bytes();
            bytes.resize(16, 0);
            bytes
        };
        match key {
            Key::CtState => self.ct_state().map(|state| state.to_ne_bytes().to_vec()),
            Key::InputName => input.map(name),
            Key::OutputName => output.map(name),
            Key::InputIndex => input.map(|i| i.index.to_ne_bytes().to_vec()),
            Key::OutputIndex => output.map(|i| i.index.to_ne_bytes().to_vec()),
            Key::Family => routed.then(|| vec![if packet.v6 { 10 } else { 2 }]),
            Key::EtherType => Some(if packet.v6 { vec![0x86, 0xdd] } else { vec![8, 0] }),
            Key::Protocol => Some(vec![packet.protocol]),
            Key::Network { offset, length } => {
                let range = offset..offset.checked_add(length)?;
                let [source, destination] = if packet.v6 { [8..24, 24..40] } else { [12..16, 16..20] };
                self.known(&range, &source, &destination)?;
                packet.network.get(range).map(<[u8]>::to_vec)
            }
            Key::Transport { offset, length } => {
                let range = offset..offset.checked_add(length)?;
                self.known(&range, &(0..2), &(2..4))?;
                packet.transport.get(range).map(<[u8]>::to_vec)
            }
            Key::CtStatus | Key::Other => None,
        }
    }

    /// None: translation may have changed what stands there.
    fn known(&self, range: &Range<usize>, source: &Range<usize>, destination: &Range<usize>) -> Option<()> {
        let meets = |other: &Range<usize>| range.start < other.end && other.start < range.end;
        let at = (self.base.hook, self.base.priority);
        let behind = |hook, priority| at > (hook, priority) && self.translates(hook);
        let changed = (meets(destination) && behind(Hook::Prerouting, NAT_DST))
            || (meets(source) && behind(Hook::Postrouting, NAT_SRC));
        (!changed).then_some(())
    }

    fn translates(&self, hook: Hook) -> bool {
        let nat = |c: &&Chain| c.base.as_ref().is_some_and(|b| b.kind == "nat" && b.hook == hook);
        let has_rules = |c: &Chain| {
            self.rules.rules.iter().any(|r| (r.family, &r.table, &r.chain) == (c.family, &c.table, &c.name))
        };
        self.rules.chains.iter().filter(nat).any(has_rules)
    }
}

/// Statements after which there is no packet.
fn ends(statement: &str) -> bool {
    ["reject", "queue", "synproxy", "target REJECT", "target NFQUEUE"].contains(&statement)
}

/// Statements that may keep a rule from going on, and those nobody knows.
fn limits(statement: &str) -> bool {
    let go_on =
        ["log", "notrack", "an update of a set", "target LOG", "target NFLOG", "target TCPMSS", "target CT"];
    let changes = [" set", "a change of ", "target MARK", "target CONNMARK"];
    !go_on.contains(&statement) && !changes.iter().any(|c| statement.contains(c))
}
