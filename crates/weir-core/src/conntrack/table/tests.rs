//! What is taken, when it is released, and what is asked.

use std::net::Ipv4Addr;

use super::*;
use crate::conntrack::Mark;
use crate::random::SplitMix64;
use crate::wire::ctnetlink::{KernelOnly, STATUS_OFFLOADED, TCP_ESTABLISHED};
use crate::wire::protocol;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const ROUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

fn tuple(source: IpAddr, source_port: u16, destination: IpAddr, destination_port: u16) -> Tuple {
    Tuple { source, destination, protocol: protocol::TCP, source_port, destination_port }
}

/// A masqueraded connection to a server, established.
fn masqueraded(port: u16) -> Entry {
    Entry {
        original: tuple(CLIENT, port, SERVER, 443),
        reply: tuple(SERVER, 443, ROUTER, 1024 + port),
        status: Some(0x18e),
        tcp_state: Some(TCP_ESTABLISHED),
        timeout_s: Some(432_000),
        mark: Some(0x100),
        labels: None,
        kernel_only: None,
        zone: 0,
        created: false,
    }
}

fn admitting(admission: Admission) -> FlowTable {
    let mut table = FlowTable::new(64);
    table.set_admission(admission);
    table.set_local(HashSet::from([ROUTER]));
    table
}

fn way(table: &FlowTable) -> Way {
    let mut ways = table.flows().map(|(_, flow)| flow.way());
    let way = ways.next().expect("a flow");
    assert!(ways.next().is_none(), "one flow");
    way
}

#[test]
fn an_established_masqueraded_connection_is_taken_with_both_translations() {
    let mut table = admitting(Admission::Established);
    table.observe(&Event::Present(masqueraded(5)), Source::Event);
    let [Change::Take { id }] = table.take_changes()[..] else { panic!("taken") };
    let [out, back] = table.flow(id).expect("there").directions();
    assert_eq!(out.leaves, tuple(ROUTER, 1029, SERVER, 443));
    assert_eq!(back.arrives, tuple(SERVER, 443, ROUTER, 1029));
    assert_eq!(back.leaves, tuple(SERVER, 443, CLIENT, 5));
    assert!(out.is_translated() && back.is_translated());
}

#[test]
fn a_connection_is_taken_when_it_is_established_and_released_when_it_ends() {
    let mut table = admitting(Admission::Established);
    let (unsaid, told) = (None, Source::Event);
    let created =
        Entry { status: Some(0x188), tcp_state: Some(1), mark: unsaid, created: true, ..masqueraded(5) };
    for (entry, expected, changes) in [
        (created, Reason::Unanswered, 0),
        (Entry { status: Some(0x18a), tcp_state: Some(2), ..masqueraded(5) }, Reason::NotEstablished, 0),
        (Entry { status: Some(0x18a), ..masqueraded(5) }, Reason::Young, 0),
        (masqueraded(5), Reason::Waiting, 1),
        // A refresh says nothing of the state.
        (Entry { tcp_state: None, mark: unsaid, ..masqueraded(5) }, Reason::Waiting, 0),
        (Entry { tcp_state: Some(4), ..masqueraded(5) }, Reason::NotEstablished, 1),
    ] {
        table.observe(&Event::Present(entry), told);
        assert_eq!(way(&table), Way::Kernel(expected));
        assert_eq!(table.take_changes().len(), changes, "{expected}");
    }
    table.observe(&Event::Gone(masqueraded(5)), told);
    assert!(table.is_empty() && table.take_changes().is_empty());
}

#[test]
fn each_reason_that_an_entry_can_give_is_given() {
    let redirected = Entry { reply: tuple(ROUTER, 8080, CLIENT, 5), ..masqueraded(5) };
    let of_host = Entry { original: tuple(ROUTER, 9, SERVER, 443), ..masqueraded(5) };
    let group = IpAddr::V4(Ipv4Addr::new(239, 0, 0, 1));
    for (entry, expected) in [
        (Entry { zone: 7, ..masqueraded(5) }, Reason::Zone),
        (Entry { kernel_only: Some(KernelOnly::Helper), ..masqueraded(5) }, Reason::Helper),
        (Entry { kernel_only: Some(KernelOnly::Synproxy), ..masqueraded(5) }, Reason::Synproxy),
        (
            Entry { kernel_only: Some(KernelOnly::SequenceAdjustment), ..masqueraded(5) },
            Reason::SequenceAdjustment,
        ),
        (Entry { status: Some(0x418e), ..masqueraded(5) }, Reason::Flowtable),
        (Entry { original: tuple(CLIENT, 5, group, 443), ..masqueraded(5) }, Reason::Address),
        (Entry { reply: tuple(SERVER, 443, ROUTER, 0), ..masqueraded(5) }, Reason::Translation),
        (redirected, Reason::Local),
        (of_host, Reason::Local),
        (Entry { status: Some(0x38e), ..masqueraded(5) }, Reason::NotEstablished),
        (Entry { tcp_state: None, ..masqueraded(5) }, Reason::NotEstablished),
        (Entry { status: None, ..masqueraded(5) }, Reason::Unanswered),
    ] {
        let mut table = admitting(Admission::Established);
        table.observe(&Event::Present(entry), Source::Answer);
        assert_eq!(way(&table), Way::Kernel(expected));
        assert!(table.take_changes().is_empty(), "{expected}");
    }
    let mut table = admitting(Admission::Nothing);
    table.observe(&Event::Present(masqueraded(5)), Source::Answer);
    assert_eq!(way(&table), Way::Kernel(Reason::Rules));
}

#[test]
fn a_flow_the_kernel_tells_nothing_of_is_asked_about_once_a_dump_and_not_taken() {
    let mut table = admitting(Admission::Established);
    for _ in 0..2 {
        table.begin_resync();
        table.observe(&Event::Present(masqueraded(5)), Source::Answer);
        assert_eq!(table.end_resync(), 0);
        table.set_local(HashSet::new());
        assert_eq!(way(&table), Way::Kernel(Reason::Unheard));
        assert!(table.has_touches());
        assert_eq!(table.take_touches(1), [masqueraded(5).original]);
        assert!(!table.has_touches());
    }
    assert!(table.take_changes().is_empty());
    table.observe(&Event::Present(masqueraded(5)), Source::Event);
    assert!(matches!(table.take_changes()[..], [Change::Take { .. }]));
}

#[test]
fn flows_the_kernel_tells_nothing_of_are_asked_about_some_at_a_time_and_each_once() {
    let mut table = admitting(Admission::Established);
    let dump = |table: &mut FlowTable| {
        table.begin_resync();
        (1..=10).for_each(|n| table.observe(&Event::Present(masqueraded(n)), Source::Answer));
        table.end_resync();
    };
    dump(&mut table);
    let first = table.take_touches(4);
    // Those that wait do not wait twice; one that is gone or heard of is not asked about.
    dump(&mut table);
    table.observe(&Event::Gone(masqueraded(9)), Source::Event);
    table.observe(&Event::Present(masqueraded(10)), Source::Event);
    let rest = table.take_touches(usize::MAX);
    let asked = |n: usize| rest.iter().filter(|&&tuple| tuple == masqueraded(n as u16).original).count();
    assert_eq!((1..=10).map(asked).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(first, [1, 2, 3, 4].map(|n| masqueraded(n).original));
}

#[test]
fn a_mark_admits_and_its_loss_is_asked_about_or_heard() {
    let mark = Mark::new(0x100, 0x300).expect("a mark");
    assert_eq!((Mark::new(0, 0xff), Mark::new(0x100, 0xff)), (None, None));
    let mut table = admitting(Admission::Marked(mark));
    table.observe(&Event::Present(Entry { mark: None, ..masqueraded(5) }), Source::Event);
    assert_eq!(way(&table), Way::Kernel(Reason::Mark), "what was never told is no mark");
    table.observe(&Event::Present(Entry { mark: Some(0x2100), ..masqueraded(5) }), Source::Event);
    assert_eq!((way(&table), table.take_changes().len()), (Way::Kernel(Reason::Waiting), 1));
    table.observe(&Event::Present(Entry { mark: None, ..masqueraded(5) }), Source::Event);
    assert_eq!(table.take_questions(), [masqueraded(5).original]);
    assert!(table.take_changes().is_empty(), "it is asked first");
    table.observe(&Event::Present(Entry { mark: None, ..masqueraded(5) }), Source::Answer);
    assert_eq!((way(&table), table.take_changes().len()), (Way::Kernel(Reason::Mark), 1));
    table.observe(&Event::Present(masqueraded(5)), Source::Event);
    table.observe(&Event::Present(Entry { mark: Some(0x300), ..masqueraded(5) }), Source::Event);
    assert_eq!(way(&table), Way::Kernel(Reason::Mark));
    assert!(table.take_questions().is_empty());
}

#[test]
fn a_label_admits_and_every_event_that_does_not_say_it_is_asked_about() {
    let mut table = admitting(Admission::Labelled(70));
    let with = |labels| Entry { labels, ..masqueraded(5) };
    let labels = |bit: u8| crate::wire::ctnetlink::Labels::of(bit);
    table.observe(&Event::Present(with(None)), Source::Event);
    assert_eq!(way(&table), Way::Kernel(Reason::Mark), "what was never told is no label");
    table.observe(&Event::Present(with(Some(labels(71)))), Source::Event);
    assert_eq!(way(&table), Way::Kernel(Reason::Mark), "it is another one");
    table.observe(&Event::Present(with(Some(labels(70)))), Source::Event);
    assert_eq!((way(&table), table.take_changes().len()), (Way::Kernel(Reason::Waiting), 1));
    table.observe(&Event::Present(with(None)), Source::Event);
    assert_eq!(table.take_questions(), [masqueraded(5).original]);
    table.observe(&Event::Present(with(Some(labels(70)))), Source::Answer);
    assert!(table.take_changes().is_empty() && table.take_questions().is_empty(), "it has it still");
    table.observe(&Event::Present(with(None)), Source::Answer);
    assert_eq!((way(&table), table.take_changes().len()), (Way::Kernel(Reason::Mark), 1));
}

#[test]
fn a_flow_of_a_zone_keeps_one_with_the_same_tuple_from_being_taken() {
    let mut table = admitting(Admission::Established);
    let zoned = Entry { zone: 1, ..masqueraded(5) };
    table.observe(&Event::Present(masqueraded(5)), Source::Event);
    assert_eq!(table.take_changes().len(), 1);
    table.observe(&Event::Present(zoned), Source::Event);
    assert!(matches!(table.take_changes()[..], [Change::Release { .. }]));
    table.observe(&Event::Gone(zoned), Source::Event);
    assert!(matches!(table.take_changes()[..], [Change::Take { .. }]));
}

#[test]
fn a_full_table_leaves_flows_to_the_kernel_and_counts_them() {
    let mut table = FlowTable::new(2);
    table.set_admission(Admission::Established);
    (1..=5).for_each(|port| table.observe(&Event::Present(masqueraded(port)), Source::Event));
    assert_eq!((table.len(), table.overflowed(), table.take_changes().len()), (2, 3, 2));
    table.observe(&Event::Gone(masqueraded(1)), Source::Event);
    table.observe(&Event::Present(masqueraded(4)), Source::Event);
    assert_eq!((table.len(), table.take_changes().len()), (2, 2));
}

#[test]
fn a_flow_that_is_released_cannot_be_said_to_be_forwarded_here() {
    let mut table = admitting(Admission::Established);
    table.observe(&Event::Present(masqueraded(5)), Source::Event);
    let [Change::Take { id }] = table.take_changes()[..] else { panic!("taken") };
    table.set_way(id, Way::Xdp);
    assert_eq!((way(&table), table.xdp()), (Way::Xdp, 1));
    table.set_admission(Admission::Nothing);
    table.set_way(id, Way::Xdp);
    assert_eq!((way(&table), table.xdp()), (Way::Kernel(Reason::Rules), 0));
}

#[test]
fn another_translation_of_a_tuple_is_another_flow() {
    let mut table = admitting(Admission::Established);
    table.observe(&Event::Present(masqueraded(5)), Source::Event);
    let other = Entry { reply: tuple(SERVER, 443, ROUTER, 4000), ..masqueraded(5) };
    table.take_changes();
    table.observe(&Event::Present(other), Source::Event);
    let [Change::Release { .. }, Change::Take { id }] = table.take_changes()[..] else {
        panic!("released, and taken again")
    };
    let [out, _] = table.flow(id).expect("there").directions();
    assert_eq!(out.leaves.source_port, 4000);
}

#[test]
fn random_histories_take_what_a_plain_list_takes() {
    let mut random = SplitMix64::new(0x5eed);
    for _ in 0..800 {
        let bytes: Vec<u8> = (0..400).map(|_| random.next_u64() as u8).collect();
        fuzz::fuzz_conntrack(&bytes);
    }
}

/// docs/firewall.md says so.
const _: () = assert!(FLOW_BYTES <= 640);

#[test]
fn entries_of_one_reason_are_looked_at_again_in_turns_until_it_no_longer_holds() {
    let mut table = admitting(Admission::Established);
    let offloaded = |port| Entry { status: Some(0x18e | STATUS_OFFLOADED), ..masqueraded(port) };
    for port in 0..10 {
        let entry = if port % 2 == 0 { offloaded(port) } else { masqueraded(port) };
        table.observe(&Event::Present(entry), Source::Event);
    }
    let counts =
        |table: &FlowTable, wanted| table.kernel().find(|(reason, _)| *reason == wanted).map(|r| r.1);
    assert_eq!(counts(&table, Reason::Flowtable), Some(5));
    let ports = |found: Vec<Tuple>| {
        let mut ports: Vec<u16> = found.iter().map(|tuple| tuple.source_port).collect();
        ports.sort_unstable();
        ports
    };
    assert_eq!(ports(table.look_again(Reason::Flowtable, 100, 100)), [0, 2, 4, 6, 8]);
    let mut turns: Vec<Tuple> = Vec::new();
    (0..5).for_each(|_| turns.extend(table.look_again(Reason::Flowtable, 100, 1)));
    assert_eq!(ports(turns), [0, 2, 4, 6, 8], "one after another");
    let mut turns: Vec<Tuple> = Vec::new();
    (0..5).for_each(|_| turns.extend(table.look_again(Reason::Flowtable, 2, 100)));
    assert_eq!(ports(turns), [0, 2, 4, 6, 8], "two places each time");
    table.take_changes();
    table.observe(&Event::Present(masqueraded(4)), Source::Answer);
    assert!(matches!(table.take_changes()[..], [Change::Take { .. }]), "the flow table has it no longer");
    assert_eq!(ports(table.look_again(Reason::Flowtable, 100, 100)), [0, 2, 6, 8]);
    assert_eq!(table.look_again(Reason::Helper, 100, 100), []);
}
