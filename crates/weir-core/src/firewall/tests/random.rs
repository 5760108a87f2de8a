//! Random rule sets: what is judged accepted holds for every packet that is tried.

use super::super::{
    Decision, FirstPacket, Interface, Judgement, Path, Protocol, RuleLocation, RuleSet, decide, judge,
};
use super::interpreter::{Interpreter, Outcome, Packet};
use crate::random::SplitMix64;
use crate::wire::nftables::{
    Base, Chain, CtStates, Element, Elements, Expression, Family, Hook, Key, Register, Rule, Set, Table,
    Truth, Verdict,
};

const R1: Register = Register(16);
const R2: Register = Register(32);
const DEVICES: [(&str, u32); 3] = [("lan", 1), ("wan", 2), ("dmz", 3)];

struct Draw(SplitMix64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize].clone()
    }

    /// A load and a comparison, as `nft` writes matches.
    fn matching(&mut self, sets: &[String]) -> Vec<Expression> {
        let load = |key| Expression::Load { key, to: R1 };
        let not = self.one_in(3);
        let equal = |value: Vec<u8>| Expression::Equal { from: R1, value, not };
        let masked = |mask: Vec<u8>| {
            let xor = vec![0; mask.len()];
            Expression::Bitwise { from: R1, to: R1, mask, xor }
        };
        let name = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(16, 0);
            bytes
        };
        match self.below(13) {
            12 => {
                let (translated, not, more) = (self.one_in(4), self.one_in(4), self.one_in(4));
                let states = self.of(&[2u32, 6, 8, 1]);
                vec![Expression::CtState(CtStates { states, translated, not, more })]
            }
            0..=2 => {
                let mask = self.of(&[2u32, 6, 4, 8, 1, 0x40]).to_ne_bytes().to_vec();
                let not = Expression::Equal { from: R1, value: vec![0; 4], not: !self.one_in(8) };
                vec![load(Key::CtState), masked(mask), not]
            }
            3 => {
                let device = self.of(&DEVICES);
                match self.below(4) {
                    0 => vec![load(Key::InputName), equal(name(device.0))],
                    1 => vec![load(Key::OutputName), equal(name(device.0))],
                    2 => vec![load(Key::InputIndex), equal(device.1.to_ne_bytes().to_vec())],
                    // A prefix of names, as iptables writes one with `+`.
                    _ => vec![load(Key::InputName), equal(device.0.as_bytes()[..2].to_vec())],
                }
            }
            4 => vec![load(Key::Protocol), equal(vec![self.of(&[6, 17, 1])])],
            5 => vec![load(Key::Family), equal(vec![self.of(&[2, 10])])],
            6 => {
                let mask = vec![self.of(&[2u8, 6, 0x10, 0x12, 0xff])];
                let value = Expression::Equal { from: R1, value: vec![self.of(&[0u8, 2, 0x10])], not };
                vec![load(Key::Transport { offset: 13, length: 1 }), masked(mask), value]
            }
            7 => {
                let mask = vec![0x1f, 0xff];
                vec![load(Key::Network { offset: 6, length: 2 }), masked(mask), equal(vec![0, 0])]
            }
            8 => vec![load(Key::Network { offset: self.below(20) as usize, length: 1 }), equal(vec![6])],
            9 => vec![Expression::Match {
                name: "m".into(),
                truth: self.of(&[Truth::Always, Truth::Never, Truth::Unknown]),
            }],
            10 => {
                let computed = self.of(&[
                    Expression::Computed { to: R1 },
                    load(Key::Other),
                    Expression::Immediate { to: R1, value: vec![2, 0, 0, 0] },
                ]);
                vec![computed, equal(vec![self.of(&[0u8, 2]), 0, 0, 0])]
            }
            _ => {
                let key = self.of(&[Key::CtState, Key::CtStatus, Key::InputIndex, Key::Other]);
                let from = self.of(&[R1, R1, R1, R2]);
                vec![load(key), Expression::Lookup { set: self.of(sets), from, to: None, not }]
            }
        }
    }

    fn verdict(&mut self, deeper: &[String]) -> Verdict {
        match self.below(12) {
            0..=5 => Verdict::Accept,
            6 => Verdict::Drop,
            7 => Verdict::Return,
            8 => Verdict::Continue,
            _ if deeper.is_empty() => Verdict::Accept,
            9 => Verdict::Goto(self.of(deeper)),
            _ => Verdict::Jump(self.of(deeper)),
        }
    }

    fn rule(&mut self, sets: &[String], maps: &[String], deeper: &[String]) -> Vec<Expression> {
        let mut expressions = Vec::new();
        for _ in 0..self.below(3) {
            expressions.extend(self.matching(sets));
        }
        match self.below(24) {
            0 => expressions.push(Expression::Statement("limit".into())),
            1 => expressions.push(Expression::FirstPacketOnly("ct helper set".into())),
            2..=4 => expressions.push(Expression::Counter),
            _ => {}
        }
        match self.below(5) {
            0 => {}
            1 => {
                expressions.push(Expression::Load { key: self.of(&[Key::CtState, Key::InputIndex]), to: R1 });
                let set = self.of(maps);
                expressions.push(Expression::Lookup {
                    set,
                    from: R1,
                    to: Some(Register::VERDICT),
                    not: false,
                });
            }
            _ => expressions.push(Expression::Verdict(self.verdict(deeper))),
        }
        expressions
    }
}

/// A rule set of two tables whose chains jump only to later ones, so that there are no circles.
fn rule_set(draw: &mut Draw) -> RuleSet {
    let mut rules = RuleSet::default();
    for (n, family) in [Family::Inet, draw.of(&[Family::Ip, Family::Ip6])].into_iter().enumerate() {
        let table = format!("t{n}");
        rules.tables.push(Table { family, name: table.clone(), dormant: draw.one_in(10) });
        let users: Vec<String> = (0..draw.below(4)).map(|n| format!("u{n}")).collect();
        let (sets, maps) = (vec!["s0".to_owned(), "s1".to_owned()], vec!["m0".to_owned(), "m1".to_owned()]);
        for name in sets.iter().chain(&maps) {
            let verdicts = name.starts_with('m');
            let (interval, changes) = (draw.one_in(5), draw.one_in(5) && !verdicts);
            let (family, table) = (family, table.clone());
            rules.sets.push(Set {
                family,
                table: table.clone(),
                name: name.clone(),
                anonymous: true,
                interval,
                changes,
                key_length: 4,
                verdicts,
                has_statements: draw.one_in(30),
            });
            let mut values = vec![1u32, 2, 3, 4, 8];
            draw.0.shuffle(&mut values);
            values.truncate(draw.below(5) as usize);
            let mut keys: Vec<_> = values.into_iter().map(|v| Some(v.to_ne_bytes().to_vec())).collect();
            if draw.one_in(4) {
                keys.push(None);
            }
            let elements = keys
                .into_iter()
                .map(|key| Element {
                    key,
                    verdict: verdicts.then(|| draw.verdict(&users)),
                    has_statements: false,
                })
                .collect();
            rules.elements.push(Elements { family, table, set: name.clone(), elements });
        }
        // A map's verdict may jump anywhere, so user chains do not use maps.
        let mut handle = 0;
        let mut fill =
            |draw: &mut Draw, rules: &mut RuleSet, chain: &str, deeper: &[String], maps: &[String]| {
                for _ in 0..draw.below(5) {
                    handle += 1;
                    let expressions = draw.rule(&sets, maps, deeper);
                    let has_map =
                        |e: &Expression| matches!(e, Expression::Lookup { to: Some(Register::VERDICT), .. });
                    if maps.len() == 1 && expressions.iter().any(has_map) {
                        continue;
                    }
                    rules.rules.push(Rule {
                        family,
                        table: table.clone(),
                        chain: chain.into(),
                        handle,
                        expressions,
                    });
                }
            };
        for (n, user) in users.iter().enumerate() {
            rules.chains.push(Chain { family, table: table.clone(), name: user.clone(), base: None });
            fill(draw, &mut rules, user, &users[n + 1..], &maps[..1]);
        }
        for (hook, priority) in
            [(Hook::Prerouting, draw.of(&[-300, -150])), (Hook::Forward, 0), (Hook::Postrouting, 0)]
        {
            if draw.one_in(2) {
                continue;
            }
            let kind = if draw.one_in(6) { "nat" } else { "filter" }.to_owned();
            let base = Base { hook, priority, kind, drops: draw.one_in(2), devices: Vec::new() };
            rules.chains.push(Chain {
                family,
                table: table.clone(),
                name: hook.to_string(),
                base: Some(base),
            });
            fill(draw, &mut rules, &hook.to_string(), &users, &maps);
        }
    }
    rules
}

fn path(draw: &mut Draw) -> Path {
    let device = |draw: &mut Draw| {
        let (name, index) = draw.of(&DEVICES);
        (!draw.one_in(3)).then(|| Interface { name: name.into(), index, lower: Vec::new() })
    };
    let (input, output) = (device(draw), device(draw));
    Path { v6: draw.one_in(2), protocol: draw.of(&[Protocol::Tcp, Protocol::Udp]), input, output }
}

#[test]
fn what_is_judged_accepted_is_accepted_for_every_packet() {
    let mut draw = Draw(SplitMix64::new(27));
    let (mut accepted, mut refused, mut agreed) = (0, 0, 0);
    for _ in 0..10_000 {
        let rules = rule_set(&mut draw);
        let path = path(&mut draw);
        let judgement = judge(&rules, &path);
        let mut touched = false;
        for _ in 0..12 {
            let packet = Packet::established(&path, &mut draw.0);
            let mut interpreter = Interpreter { rules: &rules, random: &mut draw.0, counted: Vec::new() };
            let outcome = interpreter.forward(&packet);
            let counted = interpreter.counted;
            touched |= outcome != Outcome::Accepted;
            if let Judgement::EstablishedAccepted { counters } = &judgement {
                assert_eq!(outcome, Outcome::Accepted, "{path:?}\n{rules:#?}");
                let named = |handle: &u64| counters.iter().any(|p: &RuleLocation| p.handle == Some(*handle));
                assert!(counted.iter().all(named), "{counted:?} of {counters:?}\n{rules:#?}");
            }
        }
        match judgement {
            Judgement::EstablishedAccepted { .. } if rules.rules.is_empty() => {}
            Judgement::EstablishedAccepted { .. } => accepted += 1,
            Judgement::Refused(_) => {
                refused += 1;
                agreed += u32::from(touched);
            }
        }
    }
    // Neither answer is the only one, and most refusals are for something that does happen.
    assert!(accepted > 1_000 && refused > 1_000, "{accepted} accepted, {refused} refused");
    assert!(agreed * 2 > refused, "{agreed} of {refused} refusals were seen");
}

/// A packet that begins a flow, as the model of single packets and as the bytes that are followed.
#[test]
fn what_is_said_of_a_first_packet_is_what_becomes_of_it() {
    let mut draw = Draw(SplitMix64::new(72));
    let (mut accepted, mut dropped) = (0, 0);
    for _ in 0..4_000 {
        let rules = rule_set(&mut draw);
        let device = |(name, index): (&str, u32)| Interface { name: name.into(), index, lower: Vec::new() };
        let (input, output) = (device(draw.of(&DEVICES)), device(draw.of(&DEVICES)));
        let mut path = path(&mut draw);
        (path.input, path.output) = (Some(input.clone()), Some(output.clone()));
        let mut packet = Packet::established(&path, &mut draw.0);
        packet.ct_state = 8;
        let first = FirstPacket {
            v6: path.v6,
            protocol: packet.protocol,
            input,
            output: Some(output),
            network: if path.v6 { &packet.network } else { &packet.network[..20] },
            transport: &packet.transport,
        };
        let decision = decide(&rules, &first);
        for _ in 0..8 {
            let mut interpreter = Interpreter { rules: &rules, random: &mut draw.0, counted: Vec::new() };
            match (interpreter.forward(&packet), &decision) {
                // It ends at what is done to a packet; that is not what is decided.
                (Outcome::Touched(_), _) | (_, Decision::Open { .. }) => {}
                (Outcome::Accepted, Decision::Accepted { .. }) => accepted += 1,
                (Outcome::Dropped, Decision::Dropped { .. }) => dropped += 1,
                (outcome, said) => panic!("{outcome:?}, said {said:?}\n{rules:#?}"),
            }
        }
    }
    assert!(accepted > 1_000 && dropped > 1_000, "{accepted} accepted, {dropped} dropped");
}
