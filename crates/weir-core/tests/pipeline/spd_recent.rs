//! Flows that no change concerns stay in the cache: what the cache says across changes is what the list says now.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::prelude::*;
use weir_core::ipsec::Direction::{self, In, Out};
use weir_core::ipsec::spd::table::{Rules, Search, SpdTable};
use weir_core::ipsec::spd::{
    Action, AddressRange, Cached, Layer, Lookup, LookupSpec, Policy, PortRange, Question, Selector,
    WayCounters,
};
use weir_core::ipsec::{Flow, FlowCaches, Spd, SpdId};
use weir_core::wire::build::Frame;

/// What a record holds: see `spd/recent.rs`.
const STEPS: u8 = 32;
const RULES: u8 = 32;

fn host(six: bool, n: u8) -> IpAddr {
    if six { Ipv6Addr::from(u128::from(n) << 8 | 1).into() } else { Ipv4Addr::new(10, 0, 0, n).into() }
}

/// Selects what goes to hosts `first`…`last` and ports of UDP.
fn to(six: bool, first: u8, last: u8, ports: PortRange) -> Selector {
    let any = if six { AddressRange::ANY_V6 } else { AddressRange::ANY_V4 };
    Selector {
        destination: AddressRange { first: host(six, first), last: host(six, last) },
        protocol: Some(17),
        destination_ports: ports,
        ..Selector::within(any)
    }
}

fn packet(six: bool, n: u8) -> Vec<u8> {
    let frame = Frame::ip(host(six, 200), host(six, n)).expect("of one family");
    frame.packet().udp(1000, u16::from(n % 4), b"x")
}

fn policy(name: &str, action: Action) -> Policy {
    let (out, inbound) = (Vec::new(), Vec::new());
    Policy { name: name.into(), action, out, inbound, counters: Arc::default() }
}

fn both(selectors: Vec<Selector>) -> Rules {
    Rules { outbound: selectors.clone(), inbound: selectors }
}

fn caches(buckets: u32) -> FlowCaches {
    FlowCaches::new(&LookupSpec { caches: [Some(buckets); 4], ..LookupSpec::default() }, 3)
}

/// One SPD whose changes are published one by one.
struct Border {
    table: SpdTable,
    caches: FlowCaches,
    lookup: Lookup,
    six: bool,
}

impl Border {
    fn new(six: bool) -> Border {
        let table = SpdTable::new("border", Action::Discard, Search::default());
        Border { table, caches: caches(1 << 10), lookup: Lookup::default(), six }
    }

    fn both_families() -> [Border; 2] {
        [false, true].map(Border::new)
    }

    fn insert(&mut self, at: usize, name: &str, first: u8, last: u8) {
        let rules = both(vec![to(self.six, first, last, PortRange::ANY)]);
        self.table.insert(at, policy(name, Action::Bypass), rules);
    }

    /// The policy of a packet to a host; `None` where none is.
    fn ask(&mut self, n: u8) -> Option<String> {
        let spd = self.table.publish(&self.caches);
        let question =
            Question { spd: &spd, id: SpdId(0), direction: Out, caches: &self.caches, oracle: false };
        let (packet, mut found) = (packet(self.six, n), Vec::new());
        let explained = Lookup::explain(question, &packet).expect("an IP packet");
        self.lookup.find(question, [packet.as_slice()].into_iter(), &mut found);
        let found = found[0].expect("an IP packet");
        assert_eq!((found, found), (explained.scanned, explained.answer()));
        found.map(|index| spd.policies[index.0 as usize].name.clone())
    }

    /// Whether the cache answers a packet to a host, which is what it says now.
    fn hits(&mut self, n: u8) -> bool {
        let before = self.counters();
        self.ask(n);
        self.counters().hit > before.hit
    }

    fn counters(&self) -> WayCounters {
        let [out4, _, out6, _] = self.lookup.counters().ways;
        if self.six { out6 } else { out4 }
    }
}

fn some(name: &str) -> Option<String> {
    Some(name.into())
}

#[test]
fn flow_that_a_new_rule_does_not_match_is_still_answered_by_the_cache() {
    for mut border in Border::both_families() {
        border.insert(0, "five", 5, 5);
        assert_eq!(border.ask(5), some("five"));
        border.insert(0, "seven", 7, 7);
        assert_eq!(
            (border.ask(5), border.ask(5), border.ask(7)),
            (some("five"), some("five"), some("seven"))
        );
        let counters = WayCounters { hit: 2, miss: 2, scanned: 2, ..WayCounters::default() };
        assert_eq!(border.counters(), counters);
    }
}

#[test]
fn flow_that_a_new_rule_matches_is_asked_about_anew() {
    for mut border in Border::both_families() {
        border.insert(0, "few", 0, 9);
        border.ask(5);
        border.insert(0, "five", 5, 5);
        assert_eq!((border.ask(5), border.counters().stale), (some("five"), 1));
    }
}

#[test]
fn flow_of_a_policy_that_went_is_asked_about_anew_and_one_behind_another_is_not() {
    for mut border in Border::both_families() {
        border.insert(0, "five", 5, 5);
        border.insert(1, "few", 0, 9);
        border.insert(2, "more", 0, 99);
        assert_eq!((border.ask(5), border.ask(6)), (some("five"), some("few")));
        border.table.remove("more");
        assert!(border.hits(5) && border.hits(6));
        border.table.remove("few");
        assert_eq!((border.hits(5), border.ask(6)), (true, None));
        border.table.remove("five");
        assert_eq!((border.ask(5), border.counters().stale), (None, 2));
    }
}

#[test]
fn policy_in_the_slot_of_one_that_went_does_not_get_its_flows() {
    for mut border in Border::both_families() {
        border.insert(0, "five", 5, 5);
        border.ask(5);
        border.table.remove("five");
        border.table.publish(&border.caches);
        border.insert(0, "other", 7, 7);
        assert_eq!((border.ask(5), border.ask(7)), (None, some("other")));
    }
}

#[test]
fn answer_that_no_policy_matches_lasts_until_one_does() {
    for mut border in Border::both_families() {
        assert_eq!(border.ask(5), None);
        border.insert(0, "seven", 7, 7);
        assert!(border.hits(5));
        border.insert(0, "five", 5, 5);
        assert_eq!(border.ask(5), some("five"));
    }
}

#[test]
fn flow_is_forgotten_when_there_were_more_changes_than_are_kept() {
    for mut border in Border::both_families() {
        for changes in [STEPS, STEPS + 1] {
            border.ask(5);
            let stale = border.counters().stale;
            for n in 0..changes {
                border.insert(0, &format!("{changes}-{n}"), 50, 60);
                border.table.publish(&border.caches);
            }
            assert_eq!(border.hits(5), changes == STEPS, "after {changes} changes");
            assert_eq!(border.counters().stale - stale, u64::from(changes > STEPS));
        }
    }
}

#[test]
fn change_of_more_rules_than_are_kept_ends_the_record_and_the_next_begins_one() {
    for mut border in Border::both_families() {
        border.insert(0, "five", 5, 5);
        border.ask(5);
        let many: Vec<Selector> =
            (0..=RULES).map(|n| to(border.six, 50 + n, 50 + n, PortRange::ANY)).collect();
        border.table.insert(0, policy("many", Action::Bypass), both(many));
        assert!(!border.hits(5));
        border.insert(0, "seven", 7, 7);
        assert!(border.hits(5));
        // The other family's are of no concern, but for their number.
        let other: Vec<Selector> =
            (0..RULES).map(|n| to(!border.six, 50 + n, 50 + n, PortRange::ANY)).collect();
        border.table.insert(0, policy("others", Action::Bypass), both(other));
        assert!(border.hits(5));
    }
}

#[test]
fn other_order_default_or_caches_make_every_flow_be_asked_about_anew() {
    for mut border in Border::both_families() {
        border.insert(0, "five", 5, 5);
        border.insert(1, "few", 0, 9);
        assert_eq!((border.ask(5), border.ask(6)), (some("five"), some("few")));
        border.table.reorder(["few", "five"]);
        assert_eq!((border.ask(5), border.hits(6)), (some("few"), false));
        border.table.set_default(Action::Bypass);
        assert!(!border.hits(5));
        // A change among others follows no record.
        border.table.set_default(Action::Discard);
        border.insert(0, "seven", 7, 7);
        assert!(!border.hits(5));
        // Nor does one of epochs that were counted otherwise.
        border.caches = border.caches.renewed();
        border.table.begin_again();
        border.insert(0, "eight", 8, 8);
        assert!(!border.hits(5) && border.hits(5));
    }
}

#[test]
fn no_answer_is_followed_beyond_the_last_epoch() {
    for mut border in Border::both_families() {
        border.caches = caches(1 << 10).after_epoch(u64::MAX - 3);
        border.insert(0, "five", 5, 5);
        border.ask(5);
        border.insert(0, "seven", 7, 7);
        // Both directions took one, and there is one left for the first of them.
        for n in 10..20 {
            border.insert(0, &format!("{n}"), n, n);
            assert_eq!(border.ask(5), some("five"));
            border.table.remove("five");
            assert_eq!(border.ask(5), None);
            border.insert(0, "five", 5, 5);
        }
    }
}

#[test]
fn record_takes_no_more_memory_after_many_changes() {
    for mut border in Border::both_families() {
        let mut memory = |changes: u32| {
            for n in 0..changes {
                border.insert(0, "one", 5, (5 + n % 9) as u8);
                border.table.publish(&border.caches);
            }
            border.table.publish(&border.caches).outbound.memory()
        };
        assert_eq!(memory(100), memory(1000));
    }
}

#[test]
fn explanation_says_of_a_flow_no_change_concerns_that_the_cache_has_it() {
    let mut border = Border::new(false);
    border.insert(0, "five", 5, 5);
    border.ask(5);
    border.insert(0, "seven", 7, 7);
    border.table.remove("five");
    for (n, stale) in [(5, true), (7, false)] {
        let spd = border.table.publish(&border.caches);
        let question =
            Question { spd: &spd, id: SpdId(0), direction: Out, caches: &border.caches, oracle: false };
        let explained = Lookup::explain(question, &packet(false, n)).expect("an IP packet");
        assert_eq!(matches!(explained.cached, Cached::Stale(_)), stale, "{explained:?}");
    }
}

/// A policy as a list has it.
#[derive(Clone, Debug)]
struct Item {
    name: String,
    selectors: Vec<Selector>,
}

#[derive(Clone, Debug)]
enum Step {
    Insert(usize, Vec<Selector>),
    Remove(usize),
    Replace(usize, Vec<Selector>),
    Move(usize, usize),
    Default(bool),
    Search(bool),
    All,
}

fn selectors() -> impl Strategy<Value = Vec<Selector>> {
    let ports = (0u16..4, 0u16..4).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) });
    let one = (any::<bool>(), 0u8..12, 0u8..12, prop_oneof![Just(PortRange::ANY), ports]);
    let one = one.prop_map(|(six, a, b, ports)| to(six, a.min(b), a.max(b), ports));
    prop::collection::vec(one, 0..3)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..20, selectors()).prop_map(|(at, rules)| Step::Insert(at, rules)),
        6 => (0usize..20).prop_map(Step::Remove),
        4 => (0usize..20, selectors()).prop_map(|(at, rules)| Step::Replace(at, rules)),
        1 => (0usize..20, 0usize..20).prop_map(|(from, to)| Step::Move(from, to)),
        1 => any::<bool>().prop_map(Step::Default),
        1 => any::<bool>().prop_map(Step::Search),
        1 => Just(Step::All),
    ]
}

fn take(table: &mut SpdTable, list: &mut Vec<Item>, step: Step, number: usize) {
    let len = list.len();
    let as_policy = |item: &Item| (policy(&item.name, Action::Bypass), both(item.selectors.clone()));
    match step {
        Step::Insert(at, selectors) => {
            let item = Item { name: number.to_string(), selectors };
            let (policy, rules) = as_policy(&item);
            table.insert(at % (len + 1), policy, rules);
            list.insert(at % (len + 1), item);
        }
        Step::Remove(at) if len > 0 => {
            let at = at % len;
            assert_eq!(table.remove(&list.remove(at).name), Some(at));
        }
        Step::Replace(at, selectors) if len > 0 => {
            list[at % len].selectors = selectors;
            let (policy, rules) = as_policy(&list[at % len]);
            assert!(table.replace(policy, rules));
        }
        Step::Move(from, to) if len > 0 => {
            let item = list.remove(from % len);
            list.insert(to % len, item);
            table.reorder(list.iter().map(|item| item.name.as_str()));
        }
        Step::Default(drop) => table.set_default(if drop { Action::Discard } else { Action::Bypass }),
        Step::Search(scan) => {
            let layer = if scan { Layer::Scan } else { Layer::Classifier };
            table.set_search(Search { layer, secret: 1 });
        }
        Step::All => table.set_all(list.iter().map(as_policy)),
        _ => {}
    }
}

/// A worker and the snapshot it has: two SPDs, by their numbers, and what they were made of.
struct CachedLookup {
    lookup: Lookup,
    caches: Arc<FlowCaches>,
    spds: [Arc<Spd>; 2],
    lists: [Vec<Item>; 2],
}

impl CachedLookup {
    fn check(&mut self, packets: &[Vec<u8>]) -> Result<(), TestCaseError> {
        for (id, (spd, list)) in self.spds.iter().zip(&self.lists).enumerate() {
            for direction in [In, Out] {
                let expected: Vec<Option<&str>> = packets.iter().map(|p| first(list, p)).collect();
                let answers = ask(&mut self.lookup, &self.caches, (spd, id), direction, packets);
                prop_assert_eq!(answers, expected, "{:?} of {}", direction, id);
            }
        }
        Ok(())
    }
}

/// The name of the first policy of a list that matches.
fn first<'a>(list: &'a [Item], packet: &[u8]) -> Option<&'a str> {
    let flow = Flow::of(packet).expect("an IP packet");
    list.iter().find(|item| item.selectors.iter().any(|s| s.matches(&flow))).map(|item| item.name.as_str())
}

fn ask<'a>(
    lookup: &mut Lookup,
    caches: &FlowCaches,
    (spd, id): (&'a Spd, usize),
    direction: Direction,
    packets: &[Vec<u8>],
) -> Vec<Option<&'a str>> {
    let question = Question { spd, id: SpdId(id as u16), direction, caches, oracle: false };
    let mut found = Vec::new();
    lookup.find(question, packets.iter().map(Vec::as_slice), &mut found);
    let name = |index: weir_core::ipsec::spd::PolicyIndex| spd.policies[index.0 as usize].name.as_str();
    found.into_iter().map(|found| found.expect("an IP packet").map(name)).collect()
}

proptest! {
    /// Three workers, each of which takes new snapshots when it likes, share caches; two SPDs change, change
    /// places, and now and then epochs begin anew.
    #[test]
    fn cache_answers_as_the_list_whatever_changed_and_whoever_taught_it(
        steps in prop::collection::vec((step(), 0usize..2, 0usize..4, 0u8..40), 1..50),
        hosts in prop::collection::vec((any::<bool>(), 0u8..12), 1..7),
        buckets in prop_oneof![Just(2u32), Just(1 << 10)],
    ) {
        let packets: Vec<Vec<u8>> = hosts.into_iter().map(|(six, n)| packet(six, n)).collect();
        let mut shared = Arc::new(caches(buckets));
        let mut tables = ["a", "b"].map(|name| SpdTable::new(name, Action::Discard, Search::default()));
        let mut lists = [Vec::new(), Vec::new()];
        let mut swapped = false;
        let mut workers: [Option<CachedLookup>; 3] = Default::default();
        for (number, (step, which, worker, what)) in steps.into_iter().enumerate() {
            take(&mut tables[which], &mut lists[which], step, number);
            match what {
                0 => {
                    shared = Arc::new(shared.renewed());
                    tables.iter_mut().for_each(SpdTable::begin_again);
                }
                1 | 2 => swapped = !swapped,
                _ => {}
            }
            if let Some(has) = workers.get_mut(worker) {
                let mut spds = tables.each_mut().map(|table| table.publish(&shared));
                let mut lists = lists.clone();
                if swapped {
                    spds.reverse();
                    lists.reverse();
                }
                let lookup = has.take().map_or_else(Lookup::default, |worker| worker.lookup);
                *has = Some(CachedLookup { lookup, caches: shared.clone(), spds, lists });
            }
            for worker in workers.iter_mut().flatten() {
                worker.check(&packets)?;
            }
        }
    }
}
