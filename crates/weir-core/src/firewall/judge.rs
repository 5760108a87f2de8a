//! Walks the chains of a path with every packet of an established flow at once.
//!
//! Promises: what is not known of a packet is taken both ways, and both must end in acceptance. A chain is walked once for
//! each base chain that leads there, so that jumps cannot multiply. Refuses: statements, once any such packet can come to them.

use std::collections::HashMap;

use super::packet::{Packet, Registers};
use super::refusal::{Refusal, Why, remedy};
use super::sets::{Found, inverted};
use super::{Interface, Judgement, Path, RuleLocation, RuleSet};
use crate::wire::nftables::{Base, Chain, Expression, Family, Hook, Register, Rule, Truth, Verdict};

/// Jumps below each other (`NFT_JUMP_STACK_SIZE`).
const JUMPS: usize = 16;

/// Whether each packet of every established flow of this path is accepted, and nothing else done to it.
pub fn judge(rules: &RuleSet, path: &Path) -> Judgement {
    if let Some(older) = rules.older.iter().find(|older| older.v6 == path.v6) {
        let why = Why::Older(older.clone());
        return Judgement::Refused(Box::new(Refusal { place: None, base: None, why, remedy: None }));
    }
    let mut counters = Vec::new();
    for chain in &rules.chains {
        let Some(base) = chain.base.as_ref().filter(|base| crosses(rules, chain, base, path)) else {
            continue;
        };
        let mut walk = Walk::new(rules, chain, base, path);
        match walk.base() {
            Ok(()) => counters.append(&mut walk.counters),
            Err(refusal) => return Judgement::Refused(refusal),
        }
    }
    counters.sort();
    counters.dedup();
    Judgement::EstablishedAccepted { counters }
}

/// Whether packets of established flows of this path are shown to a base chain.
fn crosses(rules: &RuleSet, chain: &Chain, base: &Base, path: &Path) -> bool {
    if base.kind == "nat" || rules.is_dormant(chain) {
        return false;
    }
    match chain.family {
        Family::Ip if path.v6 => return false,
        Family::Ip6 if !path.v6 => return false,
        // Ports in a bridge are the kernel's, and ARP is no flow.
        Family::Arp | Family::Bridge => return false,
        Family::Inet | Family::Ip | Family::Ip6 | Family::Netdev => {}
    }
    match base.hook {
        Hook::Prerouting | Hook::Forward | Hook::Postrouting => true,
        Hook::Ingress => on(path.input.as_ref(), &base.devices),
        Hook::Egress => on(path.output.as_ref(), &base.devices),
        Hook::Input | Hook::Output => false,
    }
}

/// Whether frames of an interface pass one of these devices; without a name it may be any.
fn on(interface: Option<&Interface>, devices: &[String]) -> bool {
    let Some(interface) = interface else { return true };
    devices.is_empty() || devices.iter().any(|d| *d == interface.name || interface.lower.contains(d))
}

/// What a rule may end in beside acceptance.
#[derive(Default)]
struct Ends {
    /// Some packet goes on with the next rule.
    next: bool,
    /// Some packet leaves the chain as by its end.
    leaves: bool,
}

type Walked<T> = Result<T, Box<Refusal>>;

/// One base chain and what it leads to.
struct Walk<'a> {
    rules: &'a RuleSet,
    base: RuleLocation,
    packet: Packet<'a>,
    drops: bool,
    by_chain: HashMap<&'a str, Vec<&'a Rule>>,
    /// Whether some packet comes to the end of a chain; none while it is walked.
    walked: HashMap<String, Option<bool>>,
    counters: Vec<RuleLocation>,
}

impl<'a> Walk<'a> {
    fn new(rules: &'a RuleSet, chain: &'a Chain, base: &Base, path: &'a Path) -> Walk<'a> {
        let (family, table) = (chain.family, chain.table.as_str());
        let mut by_chain: HashMap<&str, Vec<&Rule>> = HashMap::new();
        for chain in rules.chains.iter().filter(|c| c.family == family && c.table == table) {
            by_chain.insert(&chain.name, Vec::new());
        }
        for rule in rules.rules.iter().filter(|r| r.family == family && r.table == table) {
            by_chain.entry(&rule.chain).or_default().push(rule);
        }
        Walk {
            rules,
            base: RuleLocation { family, table: table.to_owned(), chain: chain.name.clone(), handle: None },
            packet: Packet { path, hook: base.hook, priority: base.priority },
            drops: base.drops,
            by_chain,
            walked: HashMap::new(),
            counters: Vec::new(),
        }
    }

    fn base(&mut self) -> Walked<()> {
        let base = self.base.clone();
        let comes_to_policy = self.chain(&base.chain, &base, 0)?;
        if comes_to_policy && self.drops { Err(self.refusal(&base, Why::Policy)) } else { Ok(()) }
    }

    fn refusal(&self, place: &RuleLocation, why: Why) -> Box<Refusal> {
        let (base, hook) = (self.base.clone(), self.packet.hook);
        let remedy = remedy(&base, hook, self.packet.is_tracked());
        Box::new(Refusal { place: Some(place.clone()), base: Some((base, hook)), why, remedy })
    }

    /// Whether some packet comes to the chain's end.
    fn chain(&mut self, name: &str, from: &RuleLocation, depth: usize) -> Walked<bool> {
        if depth > JUMPS {
            return Err(self.refusal(from, Why::Depth));
        }
        match self.walked.get(name) {
            Some(Some(leaves)) => return Ok(*leaves),
            Some(None) => return Err(self.refusal(from, Why::Chain(name.to_owned()))),
            None => {}
        }
        let Some(rules) = self.by_chain.get(name).cloned() else {
            return Err(self.refusal(from, Why::Chain(name.to_owned())));
        };
        self.walked.insert(name.to_owned(), None);
        let (mut goes_on, mut leaves) = (true, false);
        for rule in rules {
            let ends = self.rule(rule, depth)?;
            (goes_on, leaves) = (ends.next, leaves || ends.leaves);
            if !goes_on {
                break;
            }
        }
        self.walked.insert(name.to_owned(), Some(leaves || goes_on));
        Ok(leaves || goes_on)
    }

    fn rule(&mut self, rule: &Rule, depth: usize) -> Walked<Ends> {
        let place =
            RuleLocation { chain: rule.chain.clone(), handle: Some(rule.handle), ..self.base.clone() };
        let mut registers = Registers::default();
        let mut ends = Ends::default();
        for expression in &rule.expressions {
            let truth = match expression {
                Expression::Verdict(verdict) => {
                    self.verdict(verdict, &place, depth, &mut ends)?;
                    return Ok(ends);
                }
                Expression::Lookup { set, from, to, not } => {
                    let found = self.search(rule, set, *from, &registers);
                    let found = found.map_err(|why| self.refusal(&place, why))?;
                    if *to == Some(Register::VERDICT) {
                        for verdict in &found.verdicts {
                            self.verdict(verdict, &place, depth, &mut ends)?;
                        }
                        // What is found ends the rule; where nothing is, it does not match.
                        ends.next |= found.truth != Truth::Always;
                        return Ok(ends);
                    }
                    to.iter().for_each(|to| registers.forget(*to));
                    inverted(found.truth, *not)
                }
                Expression::Counter if decides(&rule.expressions) => {
                    self.counters.push(place.clone());
                    Truth::Always
                }
                Expression::Counter => return Err(self.refusal(&place, counts(&rule.expressions))),
                Expression::Statement(what) => return Err(self.refusal(&place, statement(what))),
                Expression::Load { key, to } => registers.load(*key, *to, &self.packet),
                other => registers.compare(other, self.packet.ct_state()),
            };
            match truth {
                Truth::Always => {}
                Truth::Never => return Ok(Ends { next: true, ..ends }),
                Truth::Unknown => ends.next = true,
            }
        }
        Ok(Ends { next: true, ..ends })
    }

    /// Adds what a verdict leads to.
    fn verdict(
        &mut self,
        verdict: &Verdict,
        place: &RuleLocation,
        depth: usize,
        ends: &mut Ends,
    ) -> Walked<()> {
        match verdict {
            Verdict::Accept => {}
            Verdict::Drop | Verdict::Queue => {
                return Err(self.refusal(place, Why::Drops(verdict.to_string())));
            }
            Verdict::Continue => ends.next = true,
            Verdict::Return => ends.leaves = true,
            Verdict::Jump(to) => ends.next |= self.chain(to, place, depth + 1)?,
            Verdict::Goto(to) => ends.leaves |= self.chain(to, place, depth + 1)?,
        }
        Ok(())
    }

    fn search(&self, rule: &Rule, set: &str, from: Register, registers: &Registers) -> Result<Found, Why> {
        let unknown = || Why::Set(set.to_owned());
        let set = self.rules.set(rule.family, &rule.table, set).ok_or_else(unknown)?;
        let elements = self.rules.elements_of(set);
        let mut all = elements.iter().flatten();
        if set.has_statements || all.any(|e| e.has_statements) {
            return Err(Why::Statement(format!("a set with statements, {}", set.name)));
        }
        match elements {
            Some(elements) if !set.changes => Ok(Found::among(set, &elements, from, registers)),
            // Verdicts that come and go without a word cannot be judged.
            _ if set.verdicts => Err(unknown()),
            _ => Ok(Found { truth: Truth::Unknown, verdicts: Vec::new() }),
        }
    }
}

/// Whether a rule has a decision, so that its counter says how often it was taken.
fn decides(expressions: &[Expression]) -> bool {
    expressions.iter().any(|e| match e {
        Expression::Verdict(verdict) => *verdict != Verdict::Continue,
        Expression::Lookup { to, .. } => *to == Some(Register::VERDICT),
        _ => false,
    })
}

/// A rule that counts and does not decide is named after what else it does.
fn counts(expressions: &[Expression]) -> Why {
    let done = expressions.iter().find_map(|e| match e {
        Expression::Statement(what) => Some(statement(what)),
        _ => None,
    });
    done.unwrap_or(Why::Counts)
}

/// Statements that end a packet are said as such.
fn statement(what: &str) -> Why {
    let ends = ["reject", "queue", "target REJECT", "target NFQUEUE"];
    if ends.contains(&what) { Why::Drops(what.to_owned()) } else { Why::Statement(what.to_owned()) }
}
