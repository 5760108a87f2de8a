//! One SPD and what happens to it: whatever comes, goes, changes or moves, it answers as a list built anew.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::prelude::*;
use weir_core::ipsec::Direction::{self, In, Out};
use weir_core::ipsec::flow_cache::FlowCaches;
use weir_core::ipsec::spd::table::{Rules, Search, SpdTable};
use weir_core::ipsec::spd::{
    Action, AddressRange, Flow, Layer, Policy, PolicyIndex, PortRange, Selector, Spd, Transport, first_match,
};

/// A policy as a list has it.
#[derive(Clone, Debug, PartialEq)]
struct Item {
    name: String,
    action: Action,
    rules: Rules,
}

fn policy(item: &Item) -> Policy {
    let (out, inbound) = (Vec::new(), Vec::new());
    Policy { name: item.name.clone(), action: item.action, out, inbound, counters: Arc::default() }
}

/// Sixteen addresses of a family.
fn address(six: bool, n: u8) -> IpAddr {
    if six { Ipv6Addr::from(u128::from(n) << 96).into() } else { Ipv4Addr::new(10, 0, 0, n).into() }
}

fn range(six: bool) -> impl Strategy<Value = AddressRange> {
    (0u8..16, 0u8..16)
        .prop_map(move |(a, b)| AddressRange { first: address(six, a.min(b)), last: address(six, a.max(b)) })
}

fn selector() -> impl Strategy<Value = Selector> {
    let ports = (0u16..4, 0u16..4).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) });
    let ports = prop_oneof![Just(PortRange::ANY), ports];
    any::<bool>().prop_flat_map(move |six| {
        (range(six), range(six), prop::option::of(Just(17)), ports.clone()).prop_map(
            |(source, destination, protocol, ports)| Selector {
                source,
                destination,
                protocol,
                source_ports: PortRange::ANY,
                destination_ports: if protocol.is_some() { ports } else { PortRange::ANY },
                icmp: PortRange::ANY,
            },
        )
    })
}

fn rules() -> impl Strategy<Value = Rules> {
    let some = || prop::collection::vec(selector(), 0..3);
    (some(), some()).prop_map(|(outbound, inbound)| Rules { outbound, inbound })
}

fn flow() -> impl Strategy<Value = Flow> {
    (any::<bool>(), 0u8..16, 0u8..16, any::<bool>(), 0u16..4).prop_map(|(six, from, to, udp, port)| Flow {
        source: address(six, from),
        destination: address(six, to),
        protocol: if udp { 17 } else { 47 },
        transport: if udp { Transport::Ports { source: 9, destination: port } } else { Transport::None },
    })
}

#[derive(Clone, Debug)]
enum Step {
    Insert(usize, Rules),
    Remove(usize),
    Replace(usize, Rules),
    /// Another action, the same rules.
    Act(usize, bool),
    /// One goes to another place.
    Move(usize, usize),
    Turn,
    All(Vec<Rules>),
    Default(bool),
    Search(bool),
    Nothing,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..20, rules()).prop_map(|(at, rules)| Step::Insert(at, rules)),
        2 => (0usize..20).prop_map(Step::Remove),
        2 => (0usize..20, rules()).prop_map(|(at, rules)| Step::Replace(at, rules)),
        1 => (0usize..20, any::<bool>()).prop_map(|(at, drop)| Step::Act(at, drop)),
        2 => (0usize..20, 0usize..20).prop_map(|(from, to)| Step::Move(from, to)),
        1 => Just(Step::Turn),
        1 => prop::collection::vec(rules(), 0..12).prop_map(Step::All),
        1 => any::<bool>().prop_map(Step::Default),
        1 => any::<bool>().prop_map(Step::Search),
        1 => Just(Step::Nothing),
    ]
}

/// Takes a step with the table and with the list.
fn take(table: &mut SpdTable, list: &mut Vec<Item>, default: &mut Action, step: Step, number: usize) {
    let item = |n: usize, rules| Item { name: format!("p{number}-{n}"), action: Action::Bypass, rules };
    let len = list.len();
    match step {
        Step::Insert(at, rules) => {
            let item = item(0, rules);
            table.insert(at % (len + 1), policy(&item), item.rules.clone());
            list.insert(at % (len + 1), item);
        }
        Step::All(all) => {
            // Half of those that are there stay.
            let kept = list.iter().step_by(2).cloned();
            *list = kept.chain(all.into_iter().enumerate().map(|(n, rules)| item(n, rules))).collect();
            table.set_all(list.iter().map(|item| (policy(item), item.rules.clone())));
        }
        Step::Default(drop) => {
            *default = if drop { Action::Discard } else { Action::Bypass };
            table.set_default(*default);
        }
        Step::Search(scan) => {
            let layer = if scan { Layer::Scan } else { Layer::Auto };
            table.set_search(Search { layer, secret: 1 });
        }
        Step::Remove(at) if len > 0 => {
            let at = at % len;
            assert_eq!(table.remove(&list.remove(at).name), Some(at));
        }
        Step::Replace(at, rules) if len > 0 => {
            let item = &mut list[at % len];
            item.rules = rules;
            assert!(table.replace(policy(item), item.rules.clone()));
        }
        Step::Act(at, drop) if len > 0 => {
            let item = &mut list[at % len];
            item.action = if drop { Action::Discard } else { Action::Bypass };
            assert!(table.set_policy(policy(item)));
        }
        Step::Move(from, to) if len > 0 => {
            let item = list.remove(from % len);
            list.insert(to % len, item);
            table.reorder(list.iter().map(|item| item.name.as_str()));
        }
        Step::Turn => {
            list.reverse();
            table.reorder(list.iter().map(|item| item.name.as_str()));
        }
        _ => {}
    }
}

fn in_order(list: &[Item], direction: Direction) -> Vec<(Selector, PolicyIndex)> {
    let all = list.iter().enumerate();
    all.flat_map(|(i, item)| item.rules.of(direction).iter().map(move |s| (*s, PolicyIndex(i as u32))))
        .collect()
}

fn agrees(spd: &Spd, list: &[Item], flows: &[Flow]) -> Result<(), TestCaseError> {
    for direction in [In, Out] {
        let rules = in_order(list, direction);
        for flow in flows {
            let expected = first_match(&rules, flow).map(|i| &list[i.0 as usize]);
            let found = spd.find(direction, flow);
            let told = |name: &str, action| format!("{name} {action}");
            prop_assert_eq!(
                found.map(|p| told(&p.name, p.action)),
                expected.map(|item| told(&item.name, item.action))
            );
        }
    }
    Ok(())
}

/// What makes two sets of rules the same to a cache.
type Meaning = (Direction, Action, Vec<(String, Vec<Selector>)>);

fn meaning(list: &[Item], default: Action, direction: Direction) -> Meaning {
    let of = |item: &Item| (item.name.clone(), item.rules.of(direction).to_vec());
    (direction, default, list.iter().map(of).filter(|(_, rules)| !rules.is_empty()).collect())
}

proptest! {
    #[test]
    fn every_snapshot_answers_as_the_list_it_was_made_of(
        steps in prop::collection::vec((step(), 0usize..4, any::<bool>()), 1..60),
        flows in prop::collection::vec(flow(), 1..30),
    ) {
        let caches = FlowCaches::default();
        let mut table = SpdTable::new("border", Action::Discard, Search::default());
        let (mut list, mut default) = (Vec::new(), Action::Discard);
        // What workers have, one each.
        let mut held: [Option<(Arc<Spd>, Vec<Item>)>; 4] = Default::default();
        for (number, (step, worker, publish)) in steps.into_iter().enumerate() {
            take(&mut table, &mut list, &mut default, step, number);
            prop_assert_eq!(table.len(), list.len());
            for (at, item) in list.iter().enumerate() {
                prop_assert_eq!(table.position(&item.name), Some(at));
            }
            if publish {
                let spd = table.publish(&caches);
                prop_assert!(table.is_published());
                prop_assert_eq!(spd.default, default);
                held[worker] = Some((spd, list.clone()));
            }
            for (spd, list) in held.iter().flatten() {
                agrees(spd, list, &flows)?;
            }
        }
    }

    #[test]
    fn epoch_ends_when_what_it_stands_for_does_and_no_sooner(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let caches = FlowCaches::default();
        let mut table = SpdTable::new("border", Action::Discard, Search::default());
        let (mut list, mut default) = (Vec::new(), Action::Discard);
        let mut last: Option<(Arc<Spd>, [Meaning; 2])> = None;
        let mut seen: HashMap<u64, Meaning> = HashMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            take(&mut table, &mut list, &mut default, step, number);
            let spd = table.publish(&caches);
            let is = [In, Out].map(|d| meaning(&list, default, d));
            for (direction, is) in [In, Out].into_iter().zip(&is) {
                let epoch = spd.epoch(direction);
                let was = seen.entry(epoch).or_insert_with(|| is.clone());
                prop_assert_eq!(&*was, is, "an epoch stands for one set of rules");
                if let Some((before, meant)) = &last
                    && meant[direction as usize] == *is
                {
                    prop_assert_eq!(before.epoch(direction), epoch, "nothing changed");
                }
            }
            last = Some((spd, is));
        }
    }
}

fn one(n: u8) -> Item {
    let host = AddressRange { first: address(false, n), last: address(false, n) };
    let selector = Selector {
        source: AddressRange::ANY_V4,
        destination: host,
        protocol: None,
        source_ports: PortRange::ANY,
        destination_ports: PortRange::ANY,
        icmp: PortRange::ANY,
    };
    let rules = Rules { outbound: vec![selector], inbound: Vec::new() };
    Item { name: format!("to-{n}"), action: Action::Bypass, rules }
}

fn table_of(count: u8) -> SpdTable {
    let mut table = SpdTable::new("border", Action::Discard, Search::default());
    table.set_all((0..count).map(|n| (policy(&one(n)), one(n).rules)));
    table
}

#[test]
fn other_sas_or_actions_leave_rules_and_epochs_as_they_were() {
    let (mut table, caches) = (table_of(9), FlowCaches::default());
    let before = table.publish(&caches);
    table.set_policy(Policy { action: Action::Discard, ..policy(&one(3)) });
    table.replace(Policy { action: Action::Discard, ..policy(&one(4)) }, one(4).rules);
    let after = table.publish(&caches);
    assert!(Arc::ptr_eq(&before.outbound, &after.outbound) && Arc::ptr_eq(&before.inbound, &after.inbound));
    assert_eq!(before.epochs, after.epochs);
    let discards = |spd: &Spd| spd.policies.iter().filter(|p| p.action == Action::Discard).count();
    assert_eq!((discards(&before), discards(&after)), (0, 2));
}

#[test]
fn a_direction_without_a_change_is_shared() {
    let (mut table, caches) = (table_of(9), FlowCaches::default());
    let before = table.publish(&caches);
    assert!(table.remove("to-5").is_some());
    let after = table.publish(&caches);
    assert!(Arc::ptr_eq(&before.inbound, &after.inbound) && !Arc::ptr_eq(&before.outbound, &after.outbound));
    assert_eq!(before.epoch(In), after.epoch(In));
    assert_ne!(before.epoch(Out), after.epoch(Out));
}

#[test]
fn two_snapshots_take_turns_where_nobody_holds_the_older() {
    let (mut table, caches) = (table_of(99), FlowCaches::default());
    table.publish(&caches);
    let mut places = Vec::new();
    for n in 100..140 {
        table.insert(7, policy(&one(n)), one(n).rules);
        let spd = table.publish(&caches);
        places.push((Arc::as_ptr(&spd.outbound), spd.policies.as_ptr()));
    }
    // The first few grow.
    let of = |at: usize| places[places.len() - 1 - at].0;
    assert_eq!((of(0), of(1)), (of(2), of(3)));
    assert_ne!(of(0), of(1));
}
