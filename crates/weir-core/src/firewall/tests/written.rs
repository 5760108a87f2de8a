//! Rule sets as people write them, the line that is printed, and marks.

use super::super::{
    CtMark, CtMarkError, Interface, Judgement, Older, Path, Protocol, Refusal, RuleSet, judge,
};
use super::any;
use crate::wire::netlink::messages;
use crate::wire::nftables::{
    Base, Chain, Expression, Family, Hook, Key, Register, Rule, Table, Verdict, parse,
};

const R1: Register = Register(16);

/// Table `filter` of `inet` with a chain at forward.
fn table(hook: Hook, priority: i32, drops: bool, rules: &[Vec<Expression>]) -> RuleSet {
    let (family, table) = (Family::Inet, "filter".to_owned());
    let base = Base { hook, priority, kind: "filter".into(), drops, devices: Vec::new() };
    let name = hook.to_string();
    let rules = rules.iter().enumerate().map(|(n, expressions)| Rule {
        family,
        table: table.clone(),
        chain: name.clone(),
        handle: n as u64 + 1,
        expressions: expressions.clone(),
    });
    RuleSet {
        rules: rules.collect(),
        tables: vec![Table { family, name: table.clone(), dormant: false }],
        chains: vec![Chain { family, table: table.clone(), name: name.clone(), base: Some(base) }],
        ..RuleSet::default()
    }
}

fn established(verdict: Verdict) -> Vec<Expression> {
    vec![
        Expression::Load { key: Key::CtState, to: R1 },
        Expression::Bitwise { from: R1, to: R1, mask: 6u32.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Expression::Equal { from: R1, value: vec![0; 4], not: true },
        Expression::Verdict(verdict),
    ]
}

fn statement(name: &str) -> Vec<Expression> {
    vec![Expression::Statement(name.into())]
}

fn from(device: &str, then: Verdict) -> Vec<Expression> {
    let mut value = device.as_bytes().to_vec();
    value.resize(16, 0);
    vec![
        Expression::Load { key: Key::InputName, to: R1 },
        Expression::Equal { from: R1, value, not: false },
        Expression::Verdict(then),
    ]
}

fn refused(rules: &RuleSet, path: &Path) -> Refusal {
    match judge(rules, path) {
        Judgement::Refused(refusal) => *refusal,
        accepted => panic!("must be refused: {accepted:?}\n{rules:#?}"),
    }
}

fn accepted(rules: &RuleSet, path: &Path) {
    let judgement = judge(rules, path);
    assert!(matches!(judgement, Judgement::EstablishedAccepted { .. }), "{judgement:?}\n{rules:#?}");
}

fn tcp() -> Path {
    any(false, Protocol::Tcp)
}

#[test]
fn established_first_is_accepted_whatever_comes_behind() {
    let rules = table(Hook::Forward, 0, true, &[established(Verdict::Accept), statement("limit")]);
    for v6 in [false, true] {
        accepted(&rules, &any(v6, Protocol::Tcp));
        accepted(&rules, &any(v6, Protocol::Udp));
    }
    accepted(&RuleSet::default(), &tcp());
}

#[test]
fn a_statement_in_front_is_refused_with_its_rule_and_the_line_to_write() {
    for name in [
        "limit",
        "quota",
        "log",
        "meta mark set",
        "flow add",
        "notrack",
        "an update of a set",
        "never heard of",
    ] {
        let rules = table(Hook::Forward, 0, true, &[statement(name), established(Verdict::Accept)]);
        let refusal = refused(&rules, &tcp());
        assert_eq!(
            refusal.to_string(),
            format!(
                "chain inet filter forward, rule with handle 1 (at forward): `{name}` meets packets of established \
                 flows, and is no decision about the flow"
            )
        );
        assert_eq!(
            refusal.remedy.as_deref(),
            Some("nft insert rule inet filter forward ct state established,related accept")
        );
    }
}

#[test]
fn a_policy_of_drop_without_a_rule_for_established_flows_is_refused() {
    let refusal = refused(&table(Hook::Forward, 0, true, &[]), &tcp());
    assert_eq!(
        refusal.to_string(),
        "chain inet filter forward (at forward): no rule accepts every packet of established flows, and the policy is drop"
    );
    accepted(&table(Hook::Forward, 0, false, &[]), &tcp());
    refused(&table(Hook::Forward, 0, true, &[established(Verdict::Return)]), &tcp());
    refused(&table(Hook::Forward, 0, false, &[established(Verdict::Drop)]), &tcp());
}

#[test]
fn what_stands_in_front_of_conntrack_knows_no_established_flow_and_has_no_line() {
    let rules = table(Hook::Prerouting, -300, false, &[established(Verdict::Accept), statement("notrack")]);
    let refusal = refused(&rules, &tcp());
    assert_eq!(refusal.remedy, None);
    let rules = table(Hook::Prerouting, -150, false, &[established(Verdict::Accept), statement("notrack")]);
    accepted(&rules, &tcp());
}

#[test]
fn rules_by_device_are_judged_by_path() {
    let rules = table(Hook::Forward, 0, true, &[from("lan", Verdict::Accept), statement("log")]);
    refused(&rules, &tcp());
    let device = |name: &str| Some(Interface { name: name.into(), index: 1, lower: Vec::new() });
    accepted(&rules, &Path { input: device("lan"), ..tcp() });
    refused(&rules, &Path { input: device("lan2"), ..tcp() });
}

#[test]
fn chains_of_devices_count_where_frames_pass_them() {
    let mut rules = table(Hook::Ingress, 0, true, &[]);
    if let Some(base) = &mut rules.chains[0].base {
        base.devices = vec!["eth0".into()];
    }
    let device = |name: &str, lower: &[&str]| {
        let lower = lower.iter().map(|l| (*l).to_owned()).collect();
        Some(Interface { name: name.into(), index: 1, lower })
    };
    refused(&rules, &tcp());
    refused(&rules, &Path { input: device("eth0", &[]), ..tcp() });
    refused(&rules, &Path { input: device("eth0.5", &["eth0"]), ..tcp() });
    accepted(&rules, &Path { input: device("eth1", &[]), ..tcp() });
}

#[test]
fn translation_dormant_tables_and_other_hooks_do_not_count() {
    let mut rules = table(Hook::Forward, 0, true, &[statement("limit")]);
    rules.tables[0].dormant = true;
    accepted(&rules, &tcp());
    accepted(&table(Hook::Input, 0, true, &[statement("limit")]), &tcp());
    let mut rules = table(Hook::Postrouting, 100, true, &[statement("masq")]);
    if let Some(base) = &mut rules.chains[0].base {
        base.kind = "nat".into();
    }
    accepted(&rules, &tcp());
}

#[test]
fn counters_of_rules_that_decide_are_named_and_a_rule_that_only_counts_is_refused() {
    let mut rule = established(Verdict::Accept);
    rule.insert(3, Expression::Counter);
    let Judgement::EstablishedAccepted { counters } =
        judge(&table(Hook::Forward, 0, true, &[rule.clone()]), &tcp())
    else {
        panic!("accepted")
    };
    assert_eq!(counters[0].to_string(), "chain inet filter forward, rule with handle 1");
    rule.pop();
    let refusal = refused(&table(Hook::Forward, 0, false, &[rule]), &tcp());
    assert!(
        refusal.to_string().ends_with("a rule that only counts meets packets of established flows"),
        "{refusal}"
    );
}

#[test]
fn jumps_in_a_circle_and_to_nowhere_are_refused() {
    let jump = |to: &str| vec![Expression::Verdict(Verdict::Jump(to.into()))];
    let refusal = refused(&table(Hook::Forward, 0, false, &[jump("nowhere")]), &tcp());
    assert!(refusal.to_string().contains("the jump to chain nowhere"), "{refusal}");
    refused(&table(Hook::Forward, 0, false, &[jump("forward")]), &tcp());
}

#[test]
fn the_older_iptables_is_refused_by_family() {
    let older = vec![Older { v6: false, table: "filter".into(), chain: "FORWARD".into() }];
    let rules = RuleSet { older, ..RuleSet::default() };
    let refusal = refused(&rules, &tcp());
    assert_eq!(
        refusal.to_string(),
        "iptables (legacy), table filter, chain FORWARD: it has rules, which are not read"
    );
    accepted(&rules, &any(true, Protocol::Tcp));
}

/// What a kernel dumped, as it was written, from `testdata/`.
fn captured(prefix: &str) -> RuleSet {
    let mut rules = RuleSet::default();
    let digit = |b: u8| char::from(b).to_digit(16).expect("hex") as u8;
    for line in include_str!("../../../../../testdata/nftables.txt").lines().filter(|l| !l.starts_with('#')) {
        let (name, hex) = line.split_once(' ').expect("a name and a message");
        if name.starts_with("iptables-") == (prefix == "iptables-") {
            let bytes: Vec<u8> = hex.as_bytes().chunks(2).map(|b| digit(b[0]) << 4 | digit(b[1])).collect();
            let message = messages(&bytes).next().expect("one").expect("whole");
            rules.take(parse(&message).expect("well formed"));
        }
    }
    rules
}

#[test]
fn a_kernels_dump_is_judged_as_its_rules_read() {
    let mut rules = captured("");
    // `ip dscp cs1 drop` at the ingress of `lo`.
    let lo = |v6| Path {
        input: Some(Interface { name: "lo".into(), index: 1, lower: vec![] }),
        ..any(v6, Protocol::Tcp)
    };
    let refusal = refused(&rules, &lo(false));
    assert!(
        refusal.to_string().starts_with("chain netdev early in, rule with handle 2 (at ingress): `drop`"),
        "{refusal}"
    );
    // Elsewhere the segment size of SYN, SYN alone, fragments, then a verdict map for established flows.
    let lan = |v6, protocol| Path {
        input: Some(Interface { name: "lan".into(), index: 2, lower: vec![] }),
        ..any(v6, protocol)
    };
    for v6 in [false, true] {
        accepted(&rules, &lan(v6, Protocol::Tcp));
        accepted(&rules, &lan(v6, Protocol::Udp));
    }
    // Without what accepts them, `tcp dport 22` from lan to wan is not enough, and the limit is met.
    let accepts = |r: &Rule| r.chain == "forward" && (8..=15).contains(&r.handle) && r.handle != 8;
    rules.rules.retain(|r| !accepts(r));
    let refusal = refused(&rules, &lan(false, Protocol::Tcp));
    assert!(refusal.to_string().contains("`limit`"), "{refusal}");
}

#[test]
fn what_iptables_nft_writes_is_judged_and_answered_in_its_words() {
    let mut rules = captured("iptables-");
    accepted(&rules, &tcp());
    rules.rules.remove(0);
    let refusal = refused(&rules, &tcp());
    assert_eq!(
        refusal.remedy.as_deref(),
        Some("iptables -I FORWARD 1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
    );
    assert!(refusal.to_string().contains("`target LOG`"), "{refusal}");
}

#[test]
fn a_mark_is_read_with_its_mask_and_never_matches_unmarked_flows() {
    let mark: CtMark = "0x100/0x100".parse().expect("a mark");
    assert_eq!(mark, CtMark { value: 0x100, mask: 0x100 });
    assert!(mark.matches(0x1ff) && !mark.matches(0) && !mark.matches(0x2ff));
    assert_eq!("7".parse(), Ok(CtMark { value: 7, mask: u32::MAX }));
    assert_eq!(mark.to_string().parse(), Ok(mark));
    for (text, error) in [
        ("0/0", CtMarkError::MatchesUnmarked),
        ("0x0/0xff", CtMarkError::MatchesUnmarked),
        ("0x200/0x100", CtMarkError::OutsideMask),
        ("0x1ffffffff", CtMarkError::NotNumbers),
        ("one", CtMarkError::NotNumbers),
        ("+1", CtMarkError::NotNumbers),
        ("", CtMarkError::NotNumbers),
    ] {
        assert_eq!(text.parse::<CtMark>(), Err(error), "{text}");
    }
}
