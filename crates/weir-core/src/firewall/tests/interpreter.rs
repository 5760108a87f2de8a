//! nf_tables for one packet: registers, rules and jumps as the kernel runs them, over a model's rules.

use super::super::{Path, Protocol, RuleSet};
use crate::random::SplitMix64;
use crate::wire::nftables::{
    Element, Expression, Family, Hook, Key, REGISTER_BYTES, Register, Rule, Truth, Verdict,
};

/// A packet with everything that rules of the model can ask.
pub struct Packet {
    pub v6: bool,
    pub protocol: u8,
    pub input: (String, u32),
    pub output: (String, u32),
    pub ct_state: u32,
    pub ct_status: u32,
    pub network: [u8; 40],
    pub transport: [u8; 20],
}

impl Packet {
    /// One of an established flow of this path, as weir would forward it.
    pub fn established(path: &Path, random: &mut SplitMix64) -> Packet {
        let mut network: [u8; 40] = std::array::from_fn(|_| random.next_u64() as u8);
        let mut transport: [u8; 20] = std::array::from_fn(|_| random.next_u64() as u8);
        let protocol = if path.protocol == Protocol::Tcp { 6 } else { 17 };
        network[if path.v6 { 6 } else { 9 }] = protocol;
        if !path.v6 {
            (network[6], network[7]) = (network[6] & 0xc0, 0);
        }
        if protocol == 6 {
            transport[13] &= !7;
        }
        let names = ["lan", "wan", "dmz"];
        let mut device = |wanted: &Option<super::super::Interface>| match wanted {
            Some(interface) => (interface.name.clone(), interface.index),
            None => {
                let n = random.below(3) as u32;
                (names[n as usize].to_owned(), n + 1)
            }
        };
        let (input, output) = (device(&path.input), device(&path.output));
        let ct_status = 0b1010 | random.next_u64() as u32;
        Packet { v6: path.v6, protocol, input, output, ct_state: 2, ct_status, network, transport }
    }
}

/// What became of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    Dropped,
    /// Something was done to it, or counted, beyond the counters of rules that decide.
    Touched(String),
}

pub struct Interpreter<'a> {
    pub rules: &'a RuleSet,
    pub random: &'a mut SplitMix64,
    /// Rules whose counters counted.
    pub counted: Vec<u64>,
}

enum Step {
    Next,
    Ended(Outcome),
    Left,
}

impl Interpreter<'_> {
    /// Every base chain on the way of a forwarded packet, in an order that does not matter to acceptance.
    pub fn forward(&mut self, packet: &Packet) -> Outcome {
        let rules = self.rules;
        for chain in &rules.chains {
            let Some(base) = &chain.base else { continue };
            let family = match chain.family {
                Family::Inet => true,
                Family::Ip => !packet.v6,
                Family::Ip6 => packet.v6,
                _ => false,
            };
            let dormant =
                rules.tables.iter().any(|t| t.family == chain.family && t.name == chain.table && t.dormant);
            let hooked = matches!(base.hook, Hook::Prerouting | Hook::Forward | Hook::Postrouting);
            if !family || dormant || !hooked || base.kind == "nat" {
                continue;
            }
            let tracked = base.hook != Hook::Prerouting || base.priority > -200;
            match self.chain(chain.family, &chain.table, &chain.name, packet, (base.hook, tracked)) {
                Step::Ended(Outcome::Accepted) => {}
                Step::Ended(other) => return other,
                Step::Next | Step::Left if base.drops => return Outcome::Dropped,
                Step::Next | Step::Left => {}
            }
        }
        Outcome::Accepted
    }

    fn chain(&mut self, family: Family, table: &str, name: &str, packet: &Packet, at: (Hook, bool)) -> Step {
        let of = |r: &&Rule| (r.family, r.table.as_str(), r.chain.as_str()) == (family, table, name);
        let rules = self.rules;
        for rule in rules.rules.iter().filter(of) {
            let mut registers: [u8; REGISTER_BYTES] = std::array::from_fn(|_| self.random.next_u64() as u8);
            match self.rule(rule, &mut registers, packet, at) {
                Step::Next => {}
                other => return other,
            }
        }
        Step::Left
    }

    fn rule(
        &mut self,
        rule: &Rule,
        regs: &mut [u8; REGISTER_BYTES],
        packet: &Packet,
        at: (Hook, bool),
    ) -> Step {
        for expression in &rule.expressions {
            let goes_on = match expression {
                Expression::Load { key, to } => match self.value(*key, packet, at) {
                    Some(value) => {
                        regs[to.0..to.0 + value.len()].copy_from_slice(&value);
                        true
                    }
                    None => false,
                },
                Expression::Immediate { to, value } => {
                    regs[to.0..to.0 + value.len()].copy_from_slice(value);
                    true
                }
                Expression::Verdict(verdict) => return self.verdict(verdict, rule, packet, at),
                Expression::Bitwise { from, to, mask, xor } => {
                    let bytes: Vec<u8> =
                        (0..mask.len()).map(|n| regs[from.0 + n] & mask[n] ^ xor[n]).collect();
                    regs[to.0..to.0 + bytes.len()].copy_from_slice(&bytes);
                    true
                }
                Expression::Computed { to } => {
                    regs[to.0..to.0 + 4].fill(self.random.next_u64() as u8);
                    true
                }
                Expression::Equal { from, value, not } => {
                    (regs[from.0..from.0 + value.len()] == value[..]) != *not
                }
                Expression::Match { truth, .. } => match truth {
                    Truth::Always => true,
                    Truth::Never => false,
                    Truth::Unknown => self.random.below(2) == 0,
                },
                Expression::CtState(wanted) => {
                    let state = if at.1 { packet.ct_state } else { 1 };
                    let held = wanted.states & state != 0 || wanted.translated && self.random.below(2) == 0;
                    held != wanted.not && (!wanted.more || self.random.below(2) == 0)
                }
                Expression::Lookup { set, from, to, not } => {
                    let found = self.find(rule, set, *from, regs);
                    if *to == Some(Register::VERDICT) {
                        match found.and_then(|e| e.verdict.clone()) {
                            Some(verdict) => return self.verdict(&verdict, rule, packet, at),
                            None => return Step::Next,
                        }
                    }
                    found.is_some() != *not
                }
                Expression::Counter => {
                    self.counted.push(rule.handle);
                    let decides = rule.expressions.iter().any(|e| match e {
                        Expression::Verdict(verdict) => *verdict != Verdict::Continue,
                        Expression::Lookup { to: Some(Register::VERDICT), .. } => true,
                        _ => false,
                    });
                    if !decides {
                        return Step::Ended(Outcome::Touched("counter".into()));
                    }
                    true
                }
                Expression::FirstPacketOnly(_) => true,
                Expression::Statement(what) => return Step::Ended(Outcome::Touched(what.clone())),
            };
            if !goes_on {
                return Step::Next;
            }
        }
        Step::Next
    }

    fn verdict(&mut self, verdict: &Verdict, rule: &Rule, packet: &Packet, at: (Hook, bool)) -> Step {
        match verdict {
            Verdict::Accept => Step::Ended(Outcome::Accepted),
            Verdict::Drop | Verdict::Queue => Step::Ended(Outcome::Dropped),
            Verdict::Continue => Step::Next,
            Verdict::Return => Step::Left,
            Verdict::Jump(to) => match self.chain(rule.family, &rule.table, to, packet, at) {
                Step::Left => Step::Next,
                other => other,
            },
            Verdict::Goto(to) => self.chain(rule.family, &rule.table, to, packet, at),
        }
    }

    fn find(&mut self, rule: &Rule, set: &str, from: Register, regs: &[u8]) -> Option<&Element> {
        let of = |family, table: &str, name: &str| (family, table, name) == (rule.family, &rule.table, set);
        let set = self.rules.sets.iter().find(|s| of(s.family, &s.table, &s.name))?;
        let elements: Vec<&Element> = self
            .rules
            .elements
            .iter()
            .filter(|e| of(e.family, &e.table, &e.set))
            .flat_map(|e| &e.elements)
            .collect();
        if set.interval || set.changes {
            // Which range it is in is left to chance.
            let n = self.random.below(elements.len() as u64 + 1) as usize;
            return elements.get(n).copied();
        }
        let key = |e: &&&Element| e.key.as_deref() == Some(&regs[from.0..from.0 + set.key_length]);
        let found = elements.iter().find(key);
        found.or_else(|| elements.iter().find(|e| e.key.is_none())).copied()
    }

    fn value(&mut self, key: Key, packet: &Packet, (hook, tracked): (Hook, bool)) -> Option<Vec<u8>> {
        let name = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(16, 0);
            bytes
        };
        let slice = |bytes: &[u8], offset: usize, length: usize| {
            bytes.get(offset..offset + length).map(<[u8]>::to_vec)
        };
        let (has_input, has_output) = match hook {
            Hook::Prerouting => (true, false),
            Hook::Forward => (true, true),
            // Kernels differ in whether they say the input device here.
            _ => (self.random.below(2) == 0, true),
        };
        match key {
            // In front of conntrack a packet has no flow, and is called invalid.
            Key::CtState => Some((if tracked { packet.ct_state } else { 1 }).to_ne_bytes().to_vec()),
            Key::CtStatus => tracked.then(|| packet.ct_status.to_ne_bytes().to_vec()),
            Key::InputName => has_input.then(|| name(&packet.input.0)),
            Key::OutputName => has_output.then(|| name(&packet.output.0)),
            Key::InputIndex => has_input.then(|| packet.input.1.to_ne_bytes().to_vec()),
            Key::OutputIndex => has_output.then(|| packet.output.1.to_ne_bytes().to_vec()),
            Key::Family => Some(vec![if packet.v6 { 10 } else { 2 }]),
            Key::EtherType => Some(if packet.v6 { vec![0x86, 0xdd] } else { vec![8, 0] }),
            Key::Protocol => Some(vec![packet.protocol]),
            Key::Network { offset, length } => slice(&packet.network, offset, length),
            Key::Transport { offset, length } => slice(&packet.transport, offset, length),
            Key::Other => {
                let length = 1 + self.random.below(16) as usize;
                (self.random.below(4) != 0)
                    .then(|| (0..length).map(|_| self.random.next_u64() as u8).collect())
            }
        }
    }
}
