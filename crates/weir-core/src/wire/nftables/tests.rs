//! Dumps of a kernel are read as what was written with `nft` and `iptables-nft`, and nothing else is.

use super::super::netlink::messages;
use super::*;

/// Written so: see each test. A name and a message a line.
const CAPTURED: &str = include_str!("../../../../../testdata/nftables.txt");

fn captured(name: &str) -> Vec<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).expect("hex") as u8;
    let lines = CAPTURED.lines().filter_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    lines.map(|hex| hex.as_bytes().chunks(2).map(|b| digit(b[0]) << 4 | digit(b[1])).collect()).collect()
}

fn read(bytes: &[u8]) -> Result<News, Malformed> {
    parse(&messages(bytes).next().expect("one").expect("whole"))
}

fn rules(name: &str, chain: &str) -> Vec<Rule> {
    let all = captured(name).into_iter().map(|bytes| match read(&bytes) {
        Ok(News::Rule(rule)) => rule,
        other => panic!("no rule: {other:?}"),
    });
    all.filter(|rule| rule.chain == chain).collect()
}

const R1: Register = Register(16);

#[test]
fn tables_and_chains_are_read_with_hooks_priorities_and_policies() {
    let tables: Vec<_> = captured("table").iter().map(|bytes| read(bytes)).collect();
    let table = |family, name: &str| Ok(News::Table(Table { family, name: name.into(), dormant: false }));
    assert_eq!(
        tables,
        [table(Family::Inet, "filter"), table(Family::Ip, "nat"), table(Family::Netdev, "early")]
    );
    let chains: Vec<_> = captured("chain")
        .iter()
        .map(|bytes| match read(bytes) {
            Ok(News::Chain(chain)) => chain,
            other => panic!("no chain: {other:?}"),
        })
        .collect();
    assert_eq!(chains[0].base, None);
    let base = |n: usize| chains[n].base.clone().expect("a base chain");
    let forward =
        Base { hook: Hook::Forward, priority: 0, kind: "filter".into(), drops: true, devices: Vec::new() };
    assert_eq!(base(1), forward);
    assert_eq!((base(2).hook, base(2).kind.as_str(), base(2).priority), (Hook::Postrouting, "nat", 100));
    assert_eq!((base(3).hook, base(3).priority, base(3).drops), (Hook::Ingress, -500, false));
    assert!(base(3).devices.iter().all(|d| d == "lo") && !base(3).devices.is_empty(), "{:?}", base(3));
    let generation = read(&captured("generation")[0]);
    assert_eq!(generation, Ok(News::Generation(2)));
}

/// `ct state established,related counter accept`
#[test]
fn a_rule_for_established_flows_is_read_by_its_registers() {
    let forward = rules("rule", "forward");
    let mask = 6u32.to_ne_bytes().to_vec();
    let accepts = forward.iter().find(|r| {
        r.expressions.contains(&Expression::Counter)
            && r.expressions.contains(&Expression::Verdict(Verdict::Accept))
    });
    assert_eq!(
        accepts.expect("the rule").expressions,
        [
            Expression::Load { key: Key::CtState, to: R1 },
            Expression::Bitwise { from: R1, to: R1, mask, xor: vec![0; 4] },
            Expression::Equal { from: R1, value: vec![0; 4], not: true },
            Expression::Counter,
            Expression::Verdict(Verdict::Accept),
        ]
    );
}

/// `tcp flags syn tcp option maxseg size set rt mtu`, `ip saddr @allow limit rate 10/second accept`,
/// `meta mark set ct mark` and `jump sub`
#[test]
fn statements_keep_their_names() {
    let forward = rules("rule", "forward");
    let statements: Vec<_> = forward
        .iter()
        .flat_map(|r| &r.expressions)
        .filter_map(|e| match e {
            Expression::Statement(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(statements, ["a change of an option", "limit", "meta mark set"]);
    let last = forward.last().expect("a rule").expressions.last();
    assert_eq!(last, Some(&Expression::Verdict(Verdict::Jump("sub".into()))));
    let flags = Expression::Load { key: Key::Transport { offset: 13, length: 1 }, to: R1 };
    assert!(forward[0].expressions.contains(&flags), "{:?}", forward[0]);
    let sub = rules("rule", "sub");
    assert_eq!(sub[1].expressions, [Expression::Statement("log".into())]);
}

/// `ct state vmap { established : accept, related : accept, invalid : drop }`
#[test]
fn verdict_maps_are_read_with_their_elements() {
    let sets: Vec<_> = captured("set").iter().map(|bytes| read(bytes).expect("whole")).collect();
    let maps: Vec<_> = sets
        .iter()
        .filter_map(|news| match news {
            News::Set(set) if set.verdicts => Some(set),
            _ => None,
        })
        .collect();
    let [map] = maps.as_slice() else { panic!("one verdict map: {maps:?}") };
    assert!(map.anonymous && !map.interval && !map.has_statements && !map.changes, "{map:?}");
    assert_eq!(map.key_length, 4);
    let elements: Vec<_> = captured("elements")
        .iter()
        .filter_map(|bytes| match read(bytes) {
            Ok(News::Elements(elements)) if elements.set == map.name => Some(elements.elements),
            _ => None,
        })
        .flatten()
        .map(|e| (u32::from_ne_bytes(e.key.expect("a key").try_into().expect("4 bytes")), e.verdict))
        .collect();
    for wanted in [(2, Verdict::Accept), (4, Verdict::Accept), (1, Verdict::Drop)] {
        assert!(elements.contains(&(wanted.0, Some(wanted.1.clone()))), "{wanted:?} in {elements:?}");
    }
    assert_eq!(elements.len(), 3);
}

/// `iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT` and others
#[test]
fn matches_of_iptables_say_what_they_are_of_an_established_flow() {
    let forward = rules("iptables-rule", "FORWARD");
    let states = |states| CtStates { states, translated: false, not: false, more: false };
    assert!(forward[0].expressions.contains(&Expression::CtState(states(2 | 4))), "{:?}", forward[0]);
    assert!(forward[2].expressions.contains(&Expression::CtState(states(8))), "{:?}", forward[2]);
    let comment = Expression::Match { name: "match comment".into(), truth: Truth::Always };
    assert!(forward[3].expressions.contains(&comment), "{:?}", forward[3]);
    assert!(forward[1].expressions.contains(&Expression::Statement("target TCPMSS".into())));
}

#[test]
fn a_state_is_held_where_it_is_known_and_nothing_else_is_asked_for() {
    let established = |translated, not, more| CtStates { states: 2, translated, not, more };
    let (est, new) = (Some(2), Some(8));
    for (wanted, state, truth) in [
        (established(false, false, false), est, Truth::Always),
        (established(false, false, false), new, Truth::Never),
        (established(false, true, false), est, Truth::Never),
        (established(false, true, false), new, Truth::Always),
        (established(false, false, true), est, Truth::Unknown),
        (established(false, false, true), new, Truth::Never),
        (established(true, false, false), new, Truth::Unknown),
        (established(true, true, false), est, Truth::Never),
        (established(false, false, false), None, Truth::Unknown),
    ] {
        assert_eq!(wanted.holds(state), truth, "{wanted:?} of {state:?}");
    }
}

#[test]
fn a_message_that_is_cut_is_malformed_and_never_half_a_rule() {
    for name in ["table", "chain", "rule", "set", "elements"] {
        for bytes in captured(name) {
            let whole = read(&bytes).expect("whole");
            for cut in 20..bytes.len() {
                let mut short = bytes[..cut].to_vec();
                short[..4].copy_from_slice(&(cut as u32).to_ne_bytes());
                fuzz_nftables(&short);
                let message = messages(&short).next().expect("one").expect("a length that fits");
                // What is missing is an attribute that may be missing, never a part of one.
                if let Ok(News::Rule(rule)) = parse(&message) {
                    assert_eq!(News::Rule(rule), whole);
                }
            }
        }
    }
}

#[test]
fn verdicts_and_registers_that_do_not_exist_are_malformed() {
    let nest = |kind: u16, value: &[u8]| {
        super::super::netlink::request(0, 0, &[], &[(kind, value)]).split_off(super::super::netlink::HEADER)
    };
    assert_eq!(expression::verdict(&nest(1, &2u32.to_be_bytes())), Err(Malformed));
    assert_eq!(expression::verdict(&nest(1, &(-3i32).to_be_bytes())), Err(Malformed));
    assert_eq!(expression::verdict(&nest(1, &0x0007_0003u32.to_be_bytes())), Ok(Verdict::Queue));
    let counter = [nest(1, b"counter\0"), nest(2, &[])].concat();
    assert_eq!(expression::parse(&counter), Ok(Expression::Counter));
    let data = [nest(2, &0u32.to_be_bytes()), nest(1, &7u32.to_be_bytes())].concat();
    assert_eq!(expression::parse(&[nest(1, b"ct\0"), nest(2, &data)].concat()), Err(Malformed));
    let unknown = expression::parse(&nest(1, b"teleport\0"));
    assert_eq!(unknown, Ok(Expression::Statement("teleport".into())));
}
