//! Neighbours as they are met, believed, doubted and given up, on a virtual clock.

use crate::testbed::control as testbed;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use testbed::{desired, port, route, up};
use weir_core::control::Control;
use weir_core::id::{AdjacencyId, Mac, PortId};
use weir_core::neighbor::{HOLD_DOWN, NEIGHBORS_MAX, Neighbors, State, UNRESOLVED_MAX};
use weir_core::packet::DeviceId;
use weir_core::router::Event;
use weir_core::tables::{Owner, Port, PortAddress, PortKind, ReversePath, Target};
use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_core::wire::{Arp, Ethernet, Ipv6, arp::Operation, build, ethernet, icmpv6, ndp, protocol};

const US: Mac = [2, 0, 0, 0, 0, 0xaa];
const THEM: Mac = [2, 0, 0, 0, 0, 0xbb];
const OTHER: Mac = [2, 0, 0, 0, 0, 0xcc];
const HERE: PortId = PortId(0);
const US4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THEM4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

fn us6() -> Ipv6Addr {
    "fe80::1".parse().expect("address")
}

fn them6() -> Ipv6Addr {
    "fe80::9".parse().expect("address")
}

fn lan(owner: Owner) -> Port {
    let own =
        |text: &str, prefix_len| PortAddress { address: text.parse().expect("address"), prefix_len, owner };
    Port {
        name: "lan".into(),
        kind: PortKind::Device,
        device: DeviceId(0),
        egress: DeviceId(0),
        vlan: None,
        mac: US,
        mtu: 1500,
        point_to_point: false,
        up: true,
        reverse_path: ReversePath::Off,
        addresses: vec![own("192.0.2.1", 24), own("fe80::1", 64), own("2001:db8::1", 64)],
    }
}

/// A neighbour table on one port and what it says.
struct Testbed {
    port: Port,
    all: Neighbors,
    now: Nanos,
}

impl Testbed {
    fn new() -> Self {
        Testbed { port: lan(Owner::Weir), all: Neighbors::default(), now: SECOND }
    }

    fn observe(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.all.handle(self.now, HERE, &self.port, frame);
        self.said()
    }

    fn resolve(&mut self, address: impl Into<IpAddr>) -> Vec<Vec<u8>> {
        self.all.resolve(self.now, HERE, &self.port, address.into());
        self.said()
    }

    /// Runs to the next timer.
    fn step(&mut self) -> Vec<Vec<u8>> {
        let due = self.all.poll_at().expect("a timer");
        assert!(due > self.now, "time stands still");
        self.now = due;
        self.all.tick(self.now, std::slice::from_ref(&self.port));
        self.said()
    }

    fn said(&mut self) -> Vec<Vec<u8>> {
        self.all.take_transmits().into_iter().map(|(_, frame)| frame).collect()
    }

    fn state(&self, address: impl Into<IpAddr>) -> Option<(State, Option<Mac>)> {
        self.all.get((HERE, address.into())).map(|n| (n.state, n.mac))
    }
}

fn reply(from: Mac) -> Vec<u8> {
    build::arp_reply((from, THEM4), (US, US4), None)
}

fn advertisement(from: Mac, solicited: bool, overrides: bool, target_mac: Option<Mac>) -> Vec<u8> {
    let mut frame = build::neighbor_solicitation_unicast((from, them6()), (US, us6()), None)[..14].to_vec();
    let na = ndp::NeighborAdvertisement { target: them6(), router: false, solicited, overrides, target_mac };
    let mut packet = [0; 100];
    let dst = if solicited { us6() } else { "ff02::1".parse().expect("address") };
    let len = ndp::write_advertisement(&mut packet, them6(), dst, &na).expect("fits");
    frame.extend_from_slice(&packet[..len]);
    frame
}

fn dst_mac(frame: &[u8]) -> Mac {
    Ethernet::parse(frame).expect("ethernet").dst()
}

#[test]
fn silent_next_hop_is_asked_three_times_and_then_rests() {
    for address in [IpAddr::V4(THEM4), IpAddr::V6(them6())] {
        let mut testbed = Testbed::new();
        let mut asked = vec![(testbed.now, testbed.resolve(address).len())];
        while testbed.state(address).is_some_and(|(s, _)| s == State::Incomplete) {
            let n = testbed.step().len();
            asked.push((testbed.now, n));
        }
        let at = |n: u64, frames| (SECOND + n * SECOND, frames);
        assert_eq!(asked, [at(0, 1), at(1, 1), at(2, 1), at(3, 0)]);
        assert_eq!(testbed.state(address), Some((State::Failed, None)));
        for _ in 0..100 {
            assert_eq!(testbed.resolve(address), [[0u8; 0]; 0], "held down");
        }
        assert_eq!(testbed.all.counters().held_down, 100);
        assert_eq!(testbed.step(), [[0u8; 0]; 0]);
        assert_eq!((testbed.now, testbed.state(address)), (4 * SECOND + HOLD_DOWN, None));
        assert_eq!(testbed.resolve(address).len(), 1, "and may be asked again");
    }
}

#[test]
fn request_goes_to_everyone_and_probe_to_one() {
    let mut testbed = Testbed::new();
    let asked = testbed.resolve(THEM4);
    assert_eq!(dst_mac(&asked[0]), ethernet::BROADCAST);
    let arp = asked[0][14..].to_vec();
    let arp = Arp::parse(&arp).expect("arp");
    assert_eq!((arp.operation(), arp.sender_ip(), arp.target_ip()), (Operation::Request, US4, THEM4));
    testbed.observe(&reply(THEM));
    assert_eq!(testbed.state(THEM4), Some((State::Reachable, Some(THEM))));
    let confirmed = testbed.now;
    let probe = testbed.step();
    let after = testbed.now - confirmed;
    assert!((15 * SECOND..45 * SECOND).contains(&after), "RFC 4861 6.3.2: {after}");
    assert_eq!((dst_mac(&probe[0]), testbed.state(THEM4)), (THEM, Some((State::Probe, Some(THEM)))));
    testbed.observe(&reply(THEM));
    assert_eq!(testbed.state(THEM4), Some((State::Reachable, Some(THEM))));

    let asked = testbed.resolve(them6());
    assert_eq!(dst_mac(&asked[0]), [0x33, 0x33, 0xff, 0, 0, 9]);
    let packet = Ipv6::parse(&asked[0][14..]).expect("ipv6");
    assert_eq!((packet.src(), packet.hop_limit()), (us6(), 255));
    assert_eq!(
        ndp::parse(&packet),
        Ok(ndp::Message::NeighborSolicitation { target: them6(), source_mac: Some(US) })
    );
}

#[test]
fn neighbor_that_left_is_looked_for_elsewhere() {
    let mut testbed = Testbed::new();
    testbed.resolve(THEM4);
    testbed.observe(&reply(THEM));
    testbed.all.take_changes();
    let mut probes = 0;
    while testbed.state(THEM4).expect("known").0 != State::Incomplete {
        let said = testbed.step();
        probes += said.iter().filter(|f| dst_mac(f) == THEM).count();
    }
    assert_eq!(probes, 3);
    assert_eq!(testbed.all.take_changes(), [(HERE, THEM4.into())]);
    testbed.observe(&reply(OTHER));
    assert_eq!(testbed.state(THEM4), Some((State::Reachable, Some(OTHER))));
}

#[test]
fn only_what_we_know_or_who_asks_us_is_learned() {
    let mut testbed = Testbed::new();
    // An announcement about nobody we know, an answer nobody asked for, a question to someone else.
    testbed.observe(&build::arp_request((THEM, THEM4), THEM4, None));
    testbed.observe(&reply(THEM));
    testbed.observe(&build::arp_request((THEM, THEM4), Ipv4Addr::new(192, 0, 2, 77), None));
    testbed.observe(&advertisement(THEM, false, true, Some(THEM)));
    assert_eq!((testbed.all.iter().count(), testbed.all.counters().ignored), (0, 4));
    // Someone beyond the link cannot ask by ARP.
    testbed.observe(&build::arp_request((THEM, Ipv4Addr::new(203, 0, 113, 9)), US4, None));
    assert_eq!(testbed.all.iter().count(), 0);
    testbed.observe(&build::arp_request((THEM, THEM4), US4, None));
    testbed.observe(&build::neighbor_solicitation((THEM, them6()), us6(), None));
    assert_eq!(testbed.state(THEM4), Some((State::Stale, Some(THEM))));
    assert_eq!(testbed.state(them6()), Some((State::Stale, Some(THEM))));
}

#[test]
fn announcement_of_a_known_neighbor_is_used_at_once_and_verified() {
    let mut testbed = Testbed::new();
    testbed.resolve(THEM4);
    testbed.observe(&reply(THEM));
    testbed.observe(&build::arp_request((OTHER, THEM4), THEM4, None));
    assert_eq!(testbed.state(THEM4), Some((State::Stale, Some(OTHER))));
    assert_eq!(testbed.all.counters().mac_changes, 1);
    let probe = testbed.step();
    assert_eq!((dst_mac(&probe[0]), testbed.state(THEM4)), (OTHER, Some((State::Probe, Some(OTHER)))));
}

#[test]
fn impossible_macs_and_addresses_teach_nothing() {
    let mut testbed = Testbed::new();
    testbed.resolve(THEM4);
    for mac in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1], US] {
        assert_eq!(testbed.observe(&reply(mac)), [[0u8; 0]; 0]);
        assert_eq!(
            testbed.observe(&build::arp_request((mac, THEM4), US4, None)),
            [[0u8; 0]; 0],
            "nor is answered"
        );
        testbed.resolve(them6());
        testbed.observe(&advertisement(THEM, true, true, Some(mac)));
    }
    testbed.observe(&build::arp_request((THEM, Ipv4Addr::BROADCAST), US4, None));
    assert_eq!(testbed.state(THEM4), Some((State::Incomplete, None)));
    assert_eq!(testbed.state(them6()), Some((State::Incomplete, None)));
    assert_eq!(testbed.all.counters().insane, 13);
}

#[test]
fn our_own_addresses_are_answered_for_unless_the_kernel_does() {
    let asked = build::arp_request((THEM, THEM4), US4, None);
    let solicited = build::neighbor_solicitation((THEM, them6()), us6(), None);
    let mut testbed = Testbed::new();
    let said = testbed.observe(&asked);
    let arp = Arp::parse(&said[0][14..]).expect("arp");
    assert_eq!((arp.operation(), arp.sender_mac(), arp.sender_ip()), (Operation::Reply, US, US4));
    assert_eq!((dst_mac(&said[0]), arp.target_ip()), (THEM, THEM4));
    let said = testbed.observe(&solicited);
    let packet = Ipv6::parse(&said[0][14..]).expect("ipv6");
    assert_eq!((dst_mac(&said[0]), packet.dst()), (THEM, them6()));
    let Ok(ndp::Message::NeighborAdvertisement(na)) = ndp::parse(&packet) else { panic!("not one") };
    assert_eq!((na.target, na.target_mac), (us6(), Some(US)));
    assert!(na.router && na.solicited && na.overrides);

    let mut testbed = Testbed { port: lan(Owner::Kernel), ..Testbed::new() };
    assert_eq!((testbed.observe(&asked), testbed.observe(&solicited)), (Vec::new(), Vec::new()));
    assert_eq!(testbed.state(THEM4), Some((State::Stale, Some(THEM))), "but who asks is still met");
}

#[test]
fn search_for_a_free_address_is_told_that_ours_is_not_and_teaches_nothing() {
    let mut testbed = Testbed::new();
    let said = testbed.observe(&build::arp_request((THEM, Ipv4Addr::UNSPECIFIED), US4, None));
    assert_eq!(Arp::parse(&said[0][14..]).expect("arp").sender_ip(), US4);
    let said = testbed.observe(&build::neighbor_solicitation((THEM, Ipv6Addr::UNSPECIFIED), us6(), None));
    let packet = Ipv6::parse(&said[0][14..]).expect("ipv6");
    assert_eq!(packet.dst(), "ff02::1".parse::<Ipv6Addr>().expect("address"));
    let Ok(ndp::Message::NeighborAdvertisement(na)) = ndp::parse(&packet) else { panic!("not one") };
    assert!(!na.solicited && na.overrides);
    assert_eq!(testbed.all.iter().count(), 0);
}

#[test]
fn address_conflict_is_counted_and_answered_once_in_ten_seconds() {
    let mut testbed = Testbed::new();
    let mut defences = 0;
    for second in 0..25 {
        testbed.now = second * SECOND;
        for frame in testbed.observe(&build::arp_request((THEM, US4), US4, None)) {
            let arp = Arp::parse(&frame[14..]).expect("arp");
            assert!(arp.is_announcement() && arp.sender_mac() == US);
            defences += 1;
        }
    }
    assert_eq!((defences, testbed.all.counters().conflicts), (3, 25));
    let claim = {
        let mut frame = advertisement(THEM, false, true, Some(THEM))[..14].to_vec();
        frame.extend_from_slice(&build::neighbor_advertisement((THEM, us6()), (US, us6()), true, None)[14..]);
        frame
    };
    assert_eq!(testbed.observe(&claim), [[0u8; 0]; 0]);
    assert_eq!((testbed.all.iter().count(), testbed.all.counters().conflicts), (0, 26));
}

#[test]
fn override_flag_decides_what_replaces_what() {
    // RFC 4861 7.2.5, row by row: what was known, what is heard, what is known then.
    let rows = [
        (State::Incomplete, None, true, false, OTHER, State::Reachable, OTHER),
        (State::Incomplete, None, false, false, OTHER, State::Stale, OTHER),
        (State::Reachable, Some(THEM), false, false, OTHER, State::Stale, THEM),
        (State::Reachable, Some(THEM), false, true, OTHER, State::Stale, OTHER),
        (State::Reachable, Some(THEM), false, true, THEM, State::Reachable, THEM),
        (State::Stale, Some(THEM), false, false, OTHER, State::Stale, THEM),
        (State::Probe, Some(THEM), true, true, OTHER, State::Reachable, OTHER),
        (State::Probe, Some(THEM), true, false, THEM, State::Reachable, THEM),
        (State::Probe, Some(THEM), true, false, OTHER, State::Probe, THEM),
    ];
    for (before, known, solicited, overrides, heard, after, then) in rows {
        let mut testbed = Testbed::new();
        testbed.resolve(them6());
        match before {
            State::Reachable => _ = testbed.observe(&advertisement(THEM, true, true, Some(THEM))),
            State::Stale => _ = testbed.observe(&advertisement(THEM, false, true, Some(THEM))),
            State::Probe => {
                testbed.observe(&advertisement(THEM, false, true, Some(THEM)));
                testbed.step();
            }
            _ => {}
        }
        assert_eq!(testbed.state(them6()), Some((before, known)));
        testbed.observe(&advertisement(THEM, solicited, overrides, Some(heard)));
        let row = format!("{before:?} S={solicited} O={overrides} {heard:?}");
        assert_eq!(testbed.state(them6()), Some((after, Some(then))), "{row}");
    }
}

#[test]
fn advertisement_without_a_mac_confirms_only_who_was_asked() {
    let mut testbed = Testbed::new();
    testbed.resolve(them6());
    testbed.observe(&advertisement(THEM, true, true, None));
    assert_eq!(testbed.state(them6()), Some((State::Incomplete, None)), "7.2.5: needed on this link");
    testbed.observe(&advertisement(THEM, false, true, Some(THEM)));
    testbed.observe(&advertisement(THEM, true, true, None));
    assert_eq!(testbed.state(them6()), Some((State::Stale, Some(THEM))), "nobody asked");
    testbed.step();
    testbed.observe(&advertisement(THEM, true, true, None));
    assert_eq!(testbed.state(them6()), Some((State::Reachable, Some(THEM))));
}

#[test]
fn message_from_beyond_the_link_is_bad() {
    let mut testbed = Testbed::new();
    testbed.resolve(them6());
    let mut routed = advertisement(THEM, true, true, Some(THEM));
    routed[14 + 7] = 254;
    testbed.observe(&routed);
    let mut corrupt = advertisement(THEM, true, true, Some(THEM));
    corrupt[60] ^= 1;
    testbed.observe(&corrupt);
    testbed.observe(&[0; 10]);
    testbed.observe(&reply(THEM)[..30]);
    assert_eq!((testbed.all.counters().bad, testbed.state(them6())), (4, Some((State::Incomplete, None))));
}

#[test]
fn frames_carry_the_tag_of_the_port_and_may_come_with_or_without() {
    let mut testbed = Testbed::new();
    testbed.port.vlan = Some(7);
    for vlan in [None, Some(7)] {
        let said = testbed.observe(&build::arp_request((THEM, THEM4), US4, vlan));
        assert_eq!(Ethernet::parse(&said[0]).expect("ethernet").vlan(), Some(7));
    }
    let asked = testbed.resolve(them6());
    assert_eq!(Ethernet::parse(&asked[0]).expect("ethernet").vlan(), Some(7));
}

#[test]
fn static_neighbor_neither_ages_nor_changes() {
    let mut testbed = Testbed::new();
    testbed.all.set_static(testbed.now, (HERE, THEM4.into()), THEM);
    assert_eq!(testbed.all.poll_at(), None);
    assert_eq!(testbed.resolve(THEM4), [[0u8; 0]; 0]);
    testbed.observe(&reply(OTHER));
    testbed.observe(&build::arp_request((OTHER, THEM4), US4, None));
    assert_eq!(testbed.state(THEM4), Some((State::Static, Some(THEM))));
}

#[test]
fn gateway_is_asked_for_again_for_as_long_as_routes_lead_there() {
    let mut testbed = Testbed::new();
    testbed.all.add_gateway(testbed.now, HERE, &testbed.port, THEM4.into());
    let mut asked = testbed.said().len();
    while testbed.all.poll_at().is_some_and(|due| due <= 60 * SECOND) {
        asked += testbed.step().len();
    }
    // Three requests, a second of waiting each, and the hold-down: eight times from second 1 on.
    assert_eq!(asked as u64, (60 * SECOND).div_ceil(3 * SECOND + HOLD_DOWN) * 3);
    testbed.all.remove_gateway(HERE, THEM4.into());
    assert_eq!((testbed.all.poll_at(), testbed.all.iter().count()), (None, 0));
}

#[test]
fn nobody_asks_for_what_cannot_answer() {
    let mut testbed = Testbed::new();
    for address in ["192.0.2.1", "192.0.2.255", "224.0.0.1", "127.0.0.1", "0.0.0.0", "ff02::1", "fe80::1"] {
        assert_eq!(testbed.resolve(address.parse::<IpAddr>().expect("address")), [[0u8; 0]; 0], "{address}");
    }
    testbed.port.up = false;
    assert_eq!(testbed.resolve(THEM4), [[0u8; 0]; 0]);
    assert_eq!((testbed.all.counters().unresolvable, testbed.all.iter().count()), (8, 0));
    testbed.port.up = true;
    testbed.port.addresses.retain(|a| a.address.is_ipv6());
    assert_eq!(testbed.resolve(THEM4), [[0u8; 0]; 0]);
    assert_eq!(testbed.all.counters().no_source, 1);
}

#[test]
fn scan_of_a_network_does_not_push_out_who_answered() {
    let mut testbed = Testbed::new();
    testbed.resolve(THEM4);
    testbed.observe(&reply(THEM));
    let far = |n: u32| {
        Ipv6Addr::from(u128::from("2001:db8::".parse::<Ipv6Addr>().expect("address")) + 9 + u128::from(n))
    };
    for n in 0..2 * UNRESOLVED_MAX as u32 {
        testbed.resolve(far(n));
    }
    assert_eq!(testbed.all.iter().count(), 1 + UNRESOLVED_MAX);
    assert_eq!(testbed.all.counters().table_full as usize, UNRESOLVED_MAX);
    assert_eq!(testbed.state(THEM4), Some((State::Reachable, Some(THEM))));
    while testbed.all.iter().count() > 1 {
        testbed.step();
        testbed.observe(&reply(THEM));
    }
    assert_eq!(testbed.resolve(far(0)).len(), 1, "the room came back");
}

#[test]
fn full_table_lets_the_oldest_stale_neighbor_go() {
    let mut testbed = Testbed::new();
    testbed.port.addresses[0].prefix_len = 16;
    let host = |n: u32| Ipv4Addr::from(u32::from(Ipv4Addr::new(192, 0, 4, 0)) + n);
    let mac = |n: u32| [2, 1, (n >> 24) as u8, (n >> 16) as u8, (n >> 8) as u8, n as u8];
    for n in 0..NEIGHBORS_MAX as u32 {
        testbed.now += MILLISECOND / 10;
        testbed.observe(&build::arp_request((mac(n), host(n)), US4, None));
    }
    assert_eq!((testbed.all.iter().count(), testbed.all.counters().evicted), (NEIGHBORS_MAX, 0));
    testbed.observe(&build::arp_request((THEM, THEM4), US4, None));
    assert_eq!((testbed.all.iter().count(), testbed.all.counters().evicted), (NEIGHBORS_MAX, 1));
    assert_eq!((testbed.state(host(0)), testbed.state(THEM4)), (None, Some((State::Stale, Some(THEM)))));
}

/// A frame from THEM whose ICMPv6 message is `message`, its checksum filled in.
fn icmpv6_from_them(mut message: Vec<u8>) -> Vec<u8> {
    let (src, dst) = (them6(), us6());
    icmpv6::fill_checksum(&mut message, src, dst);
    build::Frame::ipv6(src, dst).macs(US, THEM).ttl(255).raw(protocol::ICMPV6, &message)
}

#[test]
fn redirects_are_not_obeyed_and_routers_are_believed_only_about_themselves() {
    let mut testbed = Testbed::new();
    let target = |kind, to: Ipv6Addr| [&[kind, 0, 0, 0, 0, 0, 0, 0], &to.octets()[..]].concat();
    let destination: Ipv6Addr = "2001:db8:7::7".parse().expect("address");
    let mac_option = |kind| [&[kind, 1][..], &OTHER].concat();
    let redirect = [target(137, them6()), destination.octets().to_vec(), mac_option(2)].concat();
    testbed.resolve(them6());
    testbed.observe(&icmpv6_from_them(redirect));
    assert_eq!(testbed.state(them6()), Some((State::Incomplete, None)));
    assert_eq!((testbed.all.iter().count(), testbed.all.counters().ignored), (1, 1));
    let advertisement = [vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0], mac_option(1)].concat();
    testbed.observe(&icmpv6_from_them(advertisement.clone()));
    assert_eq!(testbed.state(them6()), Some((State::Stale, Some(OTHER))));
    let mut stranger = Testbed::new();
    stranger.observe(&icmpv6_from_them(advertisement));
    assert_eq!((stranger.all.iter().count(), stranger.all.counters().ignored), (0, 1));
}

/// Two control sides on one link that loses frames.
struct Pair {
    sides: [Control; 2],
    wire: VecDeque<(Nanos, usize, Vec<u8>)>,
    now: Nanos,
    sent: u64,
    /// Loses a frame when the bit of its number is set, over and over.
    loss: u64,
}

const LATENCY: Nanos = MILLISECOND;

impl Pair {
    fn new(loss: u64) -> Pair {
        let side = |n: u8, other: u8| {
            let mut wish = desired(&[port(
                "p",
                &format!("eth{n}"),
                &[&format!("192.0.2.{n}/24"), &format!("fe80::{n}/64")],
            )]);
            wish.routes = vec![
                route("10.0.0.0/8", &[&format!("192.0.2.{other}")]),
                route("2001:db8::/32", &[&format!("fe80::{other}@p")]),
            ];
            Control::new(wish, [up(&format!("eth{n}"))], 0).expect("valid")
        };
        Pair { sides: [side(1, 2), side(2, 1)], wire: VecDeque::new(), now: 0, sent: 0, loss }
    }

    fn run_until(&mut self, end: Nanos) {
        loop {
            for (i, side) in self.sides.iter_mut().enumerate() {
                for (_, frame) in side.take_transmits() {
                    let lost = self.loss >> (self.sent % 64) & 1 != 0;
                    self.sent += 1;
                    if !lost {
                        self.wire.push_back((self.now + LATENCY, 1 - i, frame));
                    }
                }
            }
            let timers = self.sides.iter().filter_map(Control::poll_at);
            let next = timers.chain(self.wire.front().map(|w| w.0)).min();
            match next {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => return self.now = end,
            }
            while self.wire.front().is_some_and(|w| w.0 <= self.now) {
                let (_, to, frame) = self.wire.pop_front().expect("one is there");
                self.sides[to].handle_punt(self.now, PortId(0), &frame);
            }
            for side in &mut self.sides {
                side.tick(self.now);
            }
        }
    }

    fn ready(&mut self, side: usize, to: &str) -> bool {
        let control = &mut self.sides[side];
        control.take_snapshot();
        let tables = control.tables();
        let Target::Adjacent(AdjacencyId(id)) = testbed::lookup(tables, to) else { panic!("no gateway") };
        tables.adjacencies[id as usize].ready
    }
}

#[test]
fn two_sides_find_each_other_and_stay_found() {
    let mut pair = Pair::new(0);
    pair.run_until(2 * LATENCY);
    for side in 0..2 {
        assert!(pair.ready(side, "10.0.0.1") && pair.ready(side, "2001:db8::1"));
    }
    let sent = pair.sent;
    for minute in 1..10 {
        pair.run_until(minute * 60 * SECOND);
        assert!(pair.ready(0, "10.0.0.1") && pair.ready(1, "2001:db8::1"));
    }
    let asked: u64 = pair.sides.iter().map(|s| s.neighbor_counters().failed).sum();
    assert_eq!(asked, 0);
    // Four neighbours, each probed and answered at most every 15 s.
    assert!(pair.sent - sent <= 4 * 2 * 9 * 60 / 15, "{}", pair.sent - sent);
}

#[test]
fn lost_frames_only_delay_the_meeting() {
    // Every second frame, and bursts of eight in sixteen.
    for loss in [0x5555_5555_5555_5555, 0x00ff_00ff_00ff_00ff] {
        let mut pair = Pair::new(loss);
        pair.run_until(60 * SECOND);
        for side in 0..2 {
            assert!(pair.ready(side, "10.0.0.1"), "loss {loss:x}");
        }
    }
    let mut pair = Pair::new(u64::MAX);
    pair.run_until(60 * SECOND);
    assert!(!pair.ready(0, "10.0.0.1"));
    pair.loss = 0;
    pair.run_until(60 * SECOND + 3 * SECOND + HOLD_DOWN + 2 * LATENCY);
    assert!(pair.ready(0, "10.0.0.1") && pair.ready(1, "10.0.0.1"), "found when the link heals");
}

#[test]
fn link_that_went_and_came_is_learned_anew() {
    let mut pair = Pair::new(0);
    pair.run_until(SECOND);
    let down = weir_core::state::Link { up: false, ..up("eth1") };
    pair.sides[0].link_changed(pair.now, down);
    pair.sides[0].take_snapshot();
    assert_eq!(testbed::lookup(pair.sides[0].tables(), "10.0.0.1"), Target::NoRoute);
    assert!(pair.sides[0].neighbors(pair.now).iter().all(|n| n.mac.is_none()));
    pair.run_until(30 * SECOND);
    // The other side was replaced meanwhile.
    let new_card = weir_core::state::Link { mac: OTHER, ..up("eth2") };
    pair.sides[1].link_changed(pair.now, new_card);
    pair.sides[0].link_changed(pair.now, up("eth1"));
    pair.run_until(pair.now + 2 * LATENCY);
    assert!(pair.ready(0, "10.0.0.1"));
    assert!(pair.sides[0].neighbors(pair.now).iter().all(|n| n.mac == Some(OTHER)));
}

#[test]
fn host_on_a_connected_network_is_resolved_on_demand() {
    let mut pair = Pair::new(0);
    pair.run_until(SECOND);
    let mut third = desired(&[port("p", "eth3", &["192.0.2.3/24"])]);
    third.routes = Vec::new();
    let far = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3));
    pair.sides[1] = Control::new(third, [up("eth3")], pair.now).expect("valid");
    pair.sides[0].handle_event(pair.now, Event::Resolve { port: PortId(0), next_hop: far });
    pair.sides[0].take_snapshot();
    let id = pair.sides[0].tables().neighbors[&(PortId(0), far)];
    assert!(!pair.sides[0].tables().adjacencies[id.0 as usize].ready, "frames wait under an id");
    pair.run_until(pair.now + 2 * LATENCY);
    let tables = pair.sides[0].take_snapshot().expect("an answer");
    assert_eq!(tables.neighbors[&(PortId(0), far)], id, "the id stays");
    let adjacency = &tables.adjacencies[id.0 as usize];
    assert!(adjacency.ready);
    assert_eq!(adjacency.header, [2, 0, 0, 0, 0, 0xe3, 2, 0, 0, 0, 0, 0xe1]);
}
