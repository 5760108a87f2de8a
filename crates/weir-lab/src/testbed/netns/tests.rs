//! The testbed against faults of our own making, seen from inside.

use crate::model::Keys;
use crate::model::configuration::PlacementKeys;
use crate::model::ipsec::{CipherName, Direction, Mode, Protection};
use crate::model::spd::{Action, LookupBy, Spd};
use std::io::Write as _;
use std::time::Duration;

use weir_core::wire::build::Frame;
use weir_io::packet_socket::PacketSocket;

use super::*;
use crate::model::{Family, FrameSize, NicModes, Topology, Workload};
use crate::receiver::{Tally, WINDOW};
use crate::workload::splitmix;

fn trial() -> Trial {
    Trial { rate: Rate::Pps(20_000), warm_up: Duration::from_millis(20), window: WINDOW_TIME, seed: 1 }
}

const WINDOW_TIME: Duration = Duration::from_millis(200);
const FLOWS: u32 = 100;
const ROUTES: u32 = 20;

fn workload(family: Family, flows: u32) -> Workload {
    Workload { family, frame: FrameSize::Fixed(64), flows, rate: Rate::Pps(20_000) }
}

fn deployed(test: &str, sut: Sut, family: Family, flows: u32) -> Option<Deployed> {
    deployed_on(test, sut, family, flows, PlacementKeys::default())
}

fn deployed_on(
    test: &str,
    sut: Sut,
    family: Family,
    flows: u32,
    placement: PlacementKeys,
) -> Option<Deployed> {
    deployed_as(keys(test, sut, family, flows, placement))
}

fn keys(test: &str, sut: Sut, family: Family, flows: u32, placement: PlacementKeys) -> Keys {
    Keys {
        firewall: None,
        connection_packets: None,
        name: test.into(),
        sut,
        topology: Topology::Netns,
        workload: workload(family, flows),
        routes: ROUTES,
        placement,
        ipsec: None,
        build: None,
        relay: None,
    }
}

fn deployed_as(keys: Keys) -> Option<Deployed> {
    let configuration = Configuration::try_from(keys).expect("valid");
    if let Some(missing) = NetnsTestbed::default().missing(&configuration) {
        writeln!(std::io::stderr(), "SKIP {}: {missing}", configuration.name).expect("stderr is open");
        return None;
    }
    Some(Deployed::new(&configuration, None, Vec::new()).expect("the testbed is deployed"))
}

#[test]
fn packets_without_a_route_are_found_by_name_to_the_last() {
    for family in [Family::Inet, Family::Inet6] {
        let name = "packets_without_a_route_are_found_by_name_to_the_last";
        let Some(mut deployed) = deployed(name, Sut::Kernel, family, FLOWS) else { return };
        let device = deployed.device.as_ref().expect("a SUT");
        let (network, len) = crate::workload::address::prefix(family, 3);
        device.namespace.ip(&format!("route del {network}/{len}")).expect("it was installed");
        let sample = deployed.run(&trial()).expect("the run ends");
        let ledger = &sample.ledger;
        let lost = ledger.sent - ledger.delivered;
        assert_eq!(ledger.unaccounted(), 0, "{sample:#?}");
        assert!(ledger.drops["kernel.no_route"] > 0, "{sample:#?}");
        // One prefix of twenty takes five flows of a hundred: of each whole round of 100, 5.
        let rounds = ledger.offered / u64::from(FLOWS);
        let by_ring: u64 = ledger.drops.iter().filter(|(k, _)| *k != "kernel.no_route").map(|(_, v)| v).sum();
        assert!(lost >= 5 * rounds && lost <= 5 * (rounds + 1) + by_ring, "{lost} of {rounds}: {sample:#?}");
    }
}

/// Frames of a run in which the wire drops, repeats and delays.
fn mishandled(traffic: &Traffic, run: u8, seed: u64) -> Vec<Vec<u8>> {
    let (mut stream, mut state) = (traffic.stream(seed), seed);
    let mut frames = Vec::new();
    for _ in 0..4000 {
        let packet = stream.advance();
        let frame = traffic.frame(packet, run, weir_io::clock::now());
        match splitmix(&mut state) % 10 {
            0 => {}
            1 => frames.extend([frame.clone(), frame]),
            2 => {
                // Delayed by up to four times what a flow remembers.
                let back = splitmix(&mut state) as usize % (WINDOW as usize * 4 * traffic.flows() as usize);
                frames.insert(frames.len().saturating_sub(back), frame);
            }
            _ => frames.push(frame),
        }
    }
    frames
}

#[test]
fn kernel_side_and_user_side_judge_a_bad_wire_alike() {
    for (family, seed) in [(Family::Inet, 1), (Family::Inet6, 2), (Family::Inet, 3)] {
        let name = "kernel_side_and_user_side_judge_a_bad_wire_alike";
        // As many flows as make the user side remember one word each, like the kernel side.
        let Some(mut deployed) = deployed(name, Sut::Baseline, family, 2048) else { return };
        if !deployed.collector.in_kernel() {
            writeln!(std::io::stderr(), "SKIP {name}: {}", deployed.notes.join("; "))
                .expect("stderr is open");
            return;
        }
        let workload = workload(family, 3);
        let link = Link { source: deployed.near.1.mac, destination: deployed.far.1.mac };
        let traffic = Traffic::new(&workload, ROUTES, link).expect("a valid workload");
        let frames = mishandled(&traffic, 9, seed);
        let mut expected = Tally::new(9, 2048);
        frames.iter().for_each(|frame| expected.frame(frame, weir_io::clock::now()));

        deployed.collector.start(9).expect("the program is attached");
        let port = deployed.near.1.name.clone();
        let mut socket =
            deployed.near.0.run(move || PacketSocket::sender(&port)).expect("runs").expect("a socket");
        for frame in &frames {
            let fill = |to: &mut [u8]| {
                to[..frame.len()].copy_from_slice(frame);
                frame.len()
            };
            while socket.send(1, fill).expect("the veth is up") == 0 {
                std::thread::yield_now();
            }
        }
        let mut tally = Tally::new(9, 2048);
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while tally.delivered + tally.duplicated < frames.len() as u64 {
            assert!(std::time::Instant::now() < until, "{} of {}", tally.delivered, frames.len());
            std::thread::sleep(Duration::from_millis(5));
            deployed.collector.update(&mut tally).expect("the program is attached");
        }
        deployed.collector.finish(&mut tally).expect("the program is attached");
        let counts = |t: &Tally| (t.delivered, t.duplicated, t.reordered, t.beyond_memory, t.foreign);
        assert_eq!(counts(&tally), counts(&expected));
        assert!(expected.duplicated > 0 && expected.reordered > 0 && expected.beyond_memory > 0);
        assert_eq!(tally.latency.len(), tally.delivered);
    }
}

#[test]
fn a_wire_too_short_for_its_ring_is_in_the_ledger() {
    let Some(mut deployed) = deployed("a_wire_too_short", Sut::Kernel, Family::Inet, FLOWS) else {
        return;
    };
    let sample = deployed.run(&Trial { rate: Rate::FlatOut, ..trial() }).expect("the run ends");
    assert_eq!(sample.ledger.unaccounted(), 0, "{sample:#?}");
    assert_eq!((sample.reordered, sample.duplicated), (0, 0));
}

#[test]
fn frames_spread_over_queues_are_all_accounted_for() {
    for sut in [Sut::Kernel, Sut::Weir] {
        let name = "frames_spread_over_queues_are_all_accounted_for";
        let placement = PlacementKeys {
            nic_modes: NicModes { queues: 2, ..NicModes::default() },
            ..PlacementKeys::default()
        };
        let Some(mut deployed) = deployed_on(name, sut, Family::Inet, FLOWS, placement) else { return };
        let device = deployed.device.as_ref().expect("a SUT");
        let folder = format!("/sys/class/net/{}/queues", device.input.name);
        let queues = device.namespace.run(move || std::fs::read_dir(folder).map(Iterator::count));
        assert_eq!(queues.expect("runs").expect("sysfs"), 4, "two each way");
        let sample = deployed.run(&trial()).expect("the run ends");
        assert!(sample.ledger.delivered > 0, "{sample:#?}");
        assert_eq!(sample.ledger.unaccounted(), 0, "{sample:#?}");
    }
}

#[test]
fn weir_forwards_however_its_workers_wake_up() {
    for wake_up in ["interrupt", "busy-poll"] {
        let name = "weir_forwards_however_its_workers_wake_up";
        let placement = PlacementKeys {
            nic_modes: NicModes { wake_up: wake_up.into(), ..NicModes::default() },
            ..PlacementKeys::default()
        };
        let Some(mut deployed) = deployed_on(name, Sut::Weir, Family::Inet6, FLOWS, placement) else {
            return;
        };
        assert!(!deployed.notes.iter().any(|note| note.contains("XDP flow offload")), "{:?}", deployed.notes);
        let sample = deployed.run(&trial()).expect("the run ends");
        assert!(sample.ledger.delivered > 0, "{wake_up}: {sample:#?}");
        assert_eq!(sample.ledger.unaccounted(), 0, "{wake_up}: {sample:#?}");
    }
}

/// Frames of every kind that a forwarder meets, to the device under test.
fn odd_frames(family: Family, device: [u8; 6]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for route in 0..4 {
        let ends = crate::workload::address::ends(family, route, 4, ROUTES);
        let frame = || {
            let frame = Frame::ip(ends.source, ends.destination).expect("one family");
            frame.macs(device, [2, 0, 0, 0, 0, 9])
        };
        frames.push(frame().udp(1000, 2000, b"plain"));
        frames.push(frame().ttl(2).tos(0x2e << 2).udp(1000, 2000, &[7; 700]));
        // a sum that carries when the TTL falls, whichever of them it is
        frames.extend((0..64u32).map(|ident| frame().ident(ident * 1021).udp(1000, 2000, b"carry")));
    }
    frames
}

/// What comes out at the receiver's end when these go in.
fn forwarded(sut: Sut, family: Family, test: &str) -> Option<(Vec<Vec<u8>>, Counters)> {
    let Deployed { mut device, near, far, collector, .. } = deployed(test, sut, family, FLOWS)?;
    drop(collector);
    let device = device.as_mut().expect("a SUT");
    let frames = odd_frames(family, device.input.mac);
    let (from, to) = (near.1.name.clone(), far.1.name.clone());
    let mut receiver = far.0.run(move || PacketSocket::receiver(&to)).expect("runs").expect("a socket");
    let mut sender = near.0.run(move || PacketSocket::sender(&from)).expect("runs").expect("a socket");
    let (mut heard, until) = (Vec::new(), std::time::Instant::now() + Duration::from_secs(10));
    for frame in &frames {
        let fill = |to: &mut [u8]| {
            to[..frame.len()].copy_from_slice(frame);
            frame.len()
        };
        while sender.send(1, fill).expect("the veth is up") == 0 {
            std::thread::yield_now();
        }
    }
    while heard.len() < frames.len() && std::time::Instant::now() < until {
        let ours = |frame: &[u8]| frame.windows(4).any(|ports| ports == [0x03, 0xe8, 0x07, 0xd0]);
        receiver.receive(|frame| heard.extend(ours(frame).then(|| frame.to_vec()))).expect("the veth is up");
    }
    Some((heard, device.running.drops(&device.namespace).expect("readable")))
}

#[test]
fn xdp_fib_sends_the_bytes_that_the_kernel_sends() {
    for family in [Family::Inet, Family::Inet6] {
        let name = "xdp_fib_sends_the_bytes_that_the_kernel_sends";
        let Some((kernel, _)) = forwarded(Sut::Kernel, family, name) else { return };
        let Some((fib, drops)) = forwarded(Sut::XdpFib, family, name) else { return };
        assert_eq!(kernel.len(), 4 * 66, "nothing of so little is lost");
        assert_eq!(fib, kernel, "{family:?}");
        assert_eq!(drops.values().sum::<u64>(), 0, "{drops:?}");
    }
}

#[test]
fn xdp_fib_does_as_routes_say_and_leaves_the_rest_to_the_kernel() {
    for family in [Family::Inet, Family::Inet6] {
        let name = "xdp_fib_does_as_routes_say_and_leaves_the_rest_to_the_kernel";
        let Some(mut deployed) = deployed(name, Sut::XdpFib, family, FLOWS) else { return };
        let device = deployed.device.as_ref().expect("a SUT");
        let route = |what: &str, n: u32| {
            let (network, len) = crate::workload::address::prefix(family, n);
            device.namespace.ip(&format!("route {what} {network}/{len}")).expect("it was installed");
        };
        route("del", 3);
        // each kind of an end once; IPv6 has the routes of an end beside the other, unless it goes first
        for (kind, n) in [("blackhole", 4), ("unreachable", 5), ("prohibit", 6)] {
            route("del", n);
            route(&format!("add {kind}"), n);
        }
        let sample = deployed.run(&trial()).expect("the run ends");
        let ledger = &sample.ledger;
        assert_eq!(ledger.unaccounted(), 0, "{sample:#?}");
        assert_eq!((sample.reordered, sample.duplicated), (0, 0), "{sample:#?}");
        let rounds = ledger.offered / u64::from(FLOWS);
        let by_ring: u64 = ledger.drops.iter().filter(|(k, _)| k.starts_with("d")).map(|(_, v)| v).sum();
        for reason in ["kernel.no_route", "xdp-fib.blackhole", "xdp-fib.unreachable", "xdp-fib.prohibit"] {
            // a prefix of twenty takes five flows of a hundred
            let lost = ledger.drops[reason];
            let least = (5 * rounds).saturating_sub(by_ring);
            assert!(lost >= least.max(1) && lost <= 5 * (rounds + 1), "{reason}: {lost}: {sample:#?}");
        }
    }
}

#[test]
fn what_xdp_fib_forwards_the_kernels_stack_never_sees() {
    let name = "what_xdp_fib_forwards_the_kernels_stack_never_sees";
    let seen = |sut| {
        let mut deployed = deployed(name, sut, Family::Inet, FLOWS)?;
        let sample = deployed.run(&trial()).expect("the run ends");
        let device = deployed.device.as_ref().expect("a SUT");
        let snmp = device.namespace.read("/proc/thread-self/net/snmp").expect("readable");
        let forwarded: Vec<&str> = snmp.lines().filter(|l| l.starts_with("Ip: ")).collect();
        let at = forwarded[0].split(' ').position(|name| name == "ForwDatagrams").expect("there");
        let stack: u64 = forwarded[1].split(' ').nth(at).expect("there").parse().expect("a number");
        Some((sample.ledger.delivered, stack))
    };
    let Some((delivered, stack)) = seen(Sut::Kernel) else { return };
    assert!(stack >= delivered && delivered > 0, "{stack} of {delivered}");
    let Some((delivered, stack)) = seen(Sut::XdpFib) else { return };
    assert!(stack == 0 && delivered > 0, "{stack} of {delivered}");
}

/// A SUT whose policies packets leave by.
fn deployed_with_policies(test: &str, sut: Sut, family: Family, ipsec: Protection) -> Option<Deployed> {
    deployed_as(Keys { ipsec: Some(ipsec), ..keys(test, sut, family, FLOWS, PlacementKeys::default()) })
}

fn policies(direction: Direction, policies: u32, matching: Option<u32>, lookup: LookupBy) -> Protection {
    let spd = Spd { lookup, matching, action: Action::Bypass, ..Spd::default() };
    let cipher = CipherName::named("null").expect("there");
    Protection { policies, spd, ..Protection::new(Mode::Policy, direction, cipher) }
}

#[test]
fn packets_pass_policies_that_match_none_of_them() {
    let name = "packets_pass_policies_that_match_none_of_them";
    for sut in [Sut::KernelXfrm, Sut::Weir] {
        for (family, lookup) in [(Family::Inet, LookupBy::Gateway), (Family::Inet6, LookupBy::Linear)] {
            let beside = policies(Direction::Beside, 50, None, lookup);
            let Some(mut deployed) = deployed_with_policies(name, sut, family, beside) else { return };
            let sample = deployed.run(&trial()).expect("the run ends");
            assert!(sample.ledger.delivered > 0, "{sut:?}: {sample:#?}");
            assert_eq!(sample.ledger.unaccounted(), 0, "{sut:?}: {sample:#?}");
            let notes = deployed.notes.join("\n");
            assert!(notes.contains("packets match none of 50 policies"), "{notes}");
        }
    }
}

#[test]
fn the_kernel_asks_the_policy_at_its_index_and_none_behind_it() {
    let name = "the_kernel_asks_the_policy_at_its_index_and_none_behind_it";
    for (family, lookup) in [(Family::Inet, LookupBy::Gateway), (Family::Inet6, LookupBy::Linear)] {
        let asked = policies(Direction::Out, 30, Some(20), lookup);
        let Some(mut deployed) = deployed_with_policies(name, Sut::KernelXfrm, family, asked) else { return };
        let any = if family == Family::Inet { "0.0.0.0/0" } else { "::/0" };
        let mut blocked_at = |priority: u32| {
            let selector = format!("src {any} dst {any} proto udp dir out");
            let device = deployed.device.as_ref().expect("a SUT");
            let add = format!("xfrm policy add {selector} priority {priority} action block");
            device.namespace.ip(&add).expect("taken");
            let sample = deployed.run(&trial());
            let device = deployed.device.as_ref().expect("a SUT");
            device.namespace.ip(&format!("xfrm policy delete {selector}")).expect("it was there");
            sample
        };
        let behind = blocked_at(21).expect("the policy at 20 lets packets pass");
        assert_eq!(behind.ledger.unaccounted(), 0, "{behind:#?}");
        assert_eq!(behind.ledger.drops.get("kernel.XfrmOutPolBlock"), None, "{behind:#?}");
        let before = blocked_at(19).expect_err("nothing gets past the policy at 19");
        assert!(before.said.contains("\"kernel.XfrmOutPolBlock\": "), "{before}");
    }
}

#[test]
fn weir_lets_pass_what_the_policy_at_its_index_matches_and_drops_without_it() {
    let name = "weir_lets_pass_what_the_policy_at_its_index_matches_and_drops_without_it";
    for lookup in [LookupBy::Gateway, LookupBy::Linear, LookupBy::Classifier, LookupBy::Cache] {
        let mut asked = policies(Direction::Out, 30, Some(20), lookup);
        asked.spd.buckets = 4096;
        for family in [Family::Inet, Family::Inet6] {
            let Some(mut deployed) = deployed_with_policies(name, Sut::Weir, family, asked) else { return };
            let sample = deployed.run(&trial()).expect("the run ends");
            assert!(sample.ledger.delivered > 0, "{lookup:?}: {sample:#?}");
            assert_eq!(sample.ledger.unaccounted(), 0, "{lookup:?}: {sample:#?}");
        }
        let configuration = Configuration::try_from(Keys {
            ipsec: Some(asked),
            ..keys(name, Sut::Weir, Family::Inet, FLOWS, PlacementKeys::default())
        });
        let text = crate::sut::weir::spd::tables(&configuration.expect("valid"));
        let everything =
            "name = \"policy-20\"\ndirection = \"out\"\nlocal = \"10.128.0.0/10\"\naction = \"bypass\"";
        assert!(text.contains(everything) && text.contains("default = \"drop\""), "{text}");
        assert_eq!(text.matches("[[policy]]").count(), 30);
    }
}

#[test]
fn what_policies_of_namespaces_cannot_show_is_refused_by_name() {
    let name = "what_policies_of_namespaces_cannot_show_is_refused_by_name";
    let good = policies(Direction::Out, 5, None, LookupBy::Gateway);
    let protect = Spd { action: Action::Protect, ..good.spd };
    let churn = Spd { churn: 3, ..good.spd };
    for (ipsec, expected) in [
        (Protection { mode: Mode::Route, ..good }, "use mode = \"policy\""),
        (Protection { direction: Direction::In, ..good }, "use direction = \"out\""),
        (Protection { spd: protect, ..good }, "use action = \"bypass\""),
        (Protection { spd: churn, ..good }, "remove `rules` and `churn`"),
    ] {
        for sut in [Sut::Weir, Sut::KernelXfrm] {
            let keys =
                Keys { ipsec: Some(ipsec), ..keys(name, sut, Family::Inet, FLOWS, PlacementKeys::default()) };
            let said = crate::sut::missing(&Configuration::try_from(keys).expect("valid"));
            assert!(said.as_deref().is_some_and(|s| s.contains(expected)), "{said:?}, expected {expected}");
        }
    }
    let cache = Protection { spd: Spd { lookup: LookupBy::Cache, ..good.spd }, ..good };
    let keys = Keys {
        ipsec: Some(cache),
        ..keys(name, Sut::KernelXfrm, Family::Inet, FLOWS, PlacementKeys::default())
    };
    let said = crate::sut::missing(&Configuration::try_from(keys).expect("valid"));
    assert!(said.is_some_and(|s| s.contains("remembers no answers")));
}
