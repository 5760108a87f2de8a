//! `weir_steer_tracked` against `weir_core::conntrack::translate`: the same bytes, or the frame as it came.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::conntrack::{Direction, NotTranslated, Rewrite, translate};
use weir_core::packet::DeviceId;
use weir_core::random::SplitMix64;
use weir_core::time::SECOND;
use weir_core::wire::build::Frame;
use weir_core::wire::ctnetlink::Tuple;
use weir_core::wire::protocol;
use weir_xdp::{Action, Counters, Loaded};

use super::model::INGRESS;
use super::{FAR, OURS, local, mutated};
use crate::clock;
use crate::steer::flow_offload::{FlowOffload, OffloadCounters};
use crate::steer::tracked::{DirectionWay, MAX_TRACKED, Passed, Tracked};
use crate::steer::{Cause, LocalAddresses, load};

const GENERATION: u64 = 9;
const MTU: u16 = 300;
const OUT_MACS: [u8; 12] = [2, 0, 0, 0, 0, 0x0d, 2, 0, 0, 0, 0, 0x0c];

struct Rig {
    program: Loaded,
    counters: Counters<1>,
    offload: FlowOffload,
    tracked: Tracked,
    flows: Vec<[DirectionWay; 2]>,
    _local: LocalAddresses,
}

fn tuple(random: &mut SplitMix64, v4: bool, protocol: u8) -> Tuple {
    let mut address = || {
        let bits = random.next_u128();
        match v4 {
            true => IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | bits as u32 & 0xff_ffff)),
            false => IpAddr::V6(Ipv6Addr::from(0x2001_0db8 << 96 | bits >> 32)),
        }
    };
    let (source, destination) = (address(), address());
    Tuple {
        source,
        destination,
        protocol,
        source_port: random.next_u64() as u16,
        destination_port: random.next_u64() as u16,
    }
}

/// The VLANs a flow's packets come in and leave by: neither, one, the other, both.
const VLANS: [(Option<u16>, Option<u16>); 4] =
    [(None, None), (Some(7), None), (None, Some(4094)), (Some(7), Some(9))];

/// Flows of both families and protocols: translated on both sides, on one, in ports alone, and not at all; between VLANs.
fn flows(random: &mut SplitMix64) -> Vec<[DirectionWay; 2]> {
    let way = |direction, (from, to): (u16, u16), (in_vlan, out_vlan)| DirectionWay {
        rewrite: Rewrite::new(direction),
        in_ifindex: INGRESS,
        in_device: DeviceId(from),
        in_vlan,
        in_mac: OURS,
        out_ifindex: 1,
        out_device: DeviceId(to),
        out_vlan,
        mtu: MTU,
        out_macs: OUT_MACS,
    };
    let mut flows = Vec::new();
    for n in 0..64 {
        let protocol = if n & 1 == 0 { protocol::TCP } else { protocol::UDP };
        let (original, other) = (tuple(random, n & 2 == 0, protocol), tuple(random, n & 2 == 0, protocol));
        let reply = match n / 4 % 4 {
            0 => original.reversed(),
            1 => Tuple { destination: other.destination, ..original.reversed() },
            2 => Tuple { source_port: other.source_port, ..original.reversed() },
            _ => other,
        };
        let [there, back] = Direction::both(&original, &reply);
        let (from, to) = VLANS[n / 16];
        flows.push([way(there, (0, 1), (from, to)), way(back, (1, 0), (to, from))]);
    }
    flows
}

fn rig(test: &str, random: &mut SplitMix64) -> Option<Rig> {
    let local = local(test)?;
    let offload = FlowOffload::new().expect("maps");
    let mut tracked = Tracked::new().expect("maps");
    let mut program = load(&local, Some(&offload), Some(&tracked)).expect("loaded");
    let counters = program.maps.counters("weir_counters").expect("there");
    offload.set_generation(GENERATION);
    tracked.follow_until(u64::MAX);
    let flows = flows(random);
    for (n, both) in (0..).zip(&flows) {
        tracked.install(n, both).expect("room");
        tracked.set_in_force(n, GENERATION);
    }
    Some(Rig { program, counters, offload, tracked, flows, _local: local })
}

/// A frame of a direction as its sender makes it.
fn frame(way: &DirectionWay, payload: &[u8], flags: u8) -> Vec<u8> {
    let tuple = &way.rewrite.direction.arrives;
    let frame = Frame::ip(tuple.source, tuple.destination).expect("one family").macs(OURS, FAR);
    let frame = way.in_vlan.map_or(frame.clone(), |vlan| frame.vlan(vlan));
    match tuple.protocol {
        protocol::UDP => frame.udp(tuple.source_port, tuple.destination_port, payload),
        _ => {
            let mut segment =
                [tuple.source_port.to_be_bytes(), tuple.destination_port.to_be_bytes()].concat();
            // Its checksum is left to be anything: what is wrong stays wrong.
            segment.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x50, flags, 9, 9, 0xab, 0xcd, 0, 0]);
            segment.extend_from_slice(payload);
            frame.raw(protocol::TCP, &segment)
        }
    }
}

/// RSTs that are not plain packets, and what may turn out to be one.
fn odd_resets(way: &DirectionWay) -> Vec<Vec<u8>> {
    let tuple = &way.rewrite.direction.arrives;
    let to = |macs| Frame::ip(tuple.source, tuple.destination).expect("one family").macs(macs, FAR);
    let tagged = |frame: Frame| way.in_vlan.map_or(frame.clone(), |vlan| frame.vlan(vlan));
    let plain = tagged(to(OURS));
    let segment = |flags: u8| {
        let mut segment = [tuple.source_port.to_be_bytes(), tuple.destination_port.to_be_bytes()].concat();
        segment.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x50, flags, 9, 9, 0xab, 0xcd, 0, 0]);
        segment
    };
    let mut shapes = vec![
        plain.clone().ttl(1),
        tagged(to([0xff; 6])),
        plain.clone().fragment(0, true),
        plain.clone().fragment(8, true),
    ];
    match tuple.source {
        IpAddr::V4(_) => shapes.extend([plain.clone().options(&[1; 3]), plain.clone().options(&[1; 40])]),
        IpAddr::V6(_) => {
            let padding = |kind, length: u8| {
                (kind, [&[length, 1, 4][..], &vec![0; 4 + 8 * usize::from(length)]].concat())
            };
            let headers = [padding(0, 0), padding(60, 3), padding(43, 2), padding(60, 0), padding(60, 0)];
            shapes.extend((1..=headers.len()).map(|n| {
                headers[..n].iter().fold(plain.clone(), |frame, (kind, body)| frame.extension(*kind, body))
            }));
            shapes.push(
                headers[..2]
                    .iter()
                    .fold(plain.clone(), |f, (kind, body)| f.extension(*kind, body))
                    .fragment(0, true),
            );
        }
    }
    let mut frames: Vec<Vec<u8>> = shapes
        .iter()
        .flat_map(|frame| [0x04, 0x14, 0x10].map(|f| frame.raw(tuple.protocol, &segment(f))))
        .collect();
    // Its flags come later.
    frames.push(plain.clone().fragment(0, true).raw(tuple.protocol, &segment(0x14)[..8]));
    if way.in_vlan.is_none() {
        // A priority without a VLAN is no tag to the kernel.
        let mut priority = plain.vlan(0).raw(tuple.protocol, &segment(0x04));
        priority[14] |= 0xe0;
        frames.push(priority);
    }
    frames
}

impl Rig {
    /// What is to become of a frame, and whose it is.
    fn expected(&self, frame: &[u8], in_force: bool) -> (Action, Vec<u8>, Option<(usize, usize)>) {
        let pass = (Action::Pass, frame.to_vec(), None);
        let tag = match frame.get(12..16) {
            Some(&[0x81, 0, upper, lower]) => Some(u16::from_be_bytes([upper & 0x0f, lower])),
            _ => None,
        };
        let network = if tag.is_some() { 18 } else { 14 };
        let family = frame.get(network - 2..network + 1).map(|b| (b[0], b[1], b[2] >> 4));
        let is_ip = matches!(family, Some((8, 0, 4) | (0x86, 0xdd, 6)));
        if !is_ip || tag == Some(0) || frame[..6] != OURS || !in_force {
            return pass;
        }
        for (n, both) in self.flows.iter().enumerate() {
            for (direction, way) in both.iter().enumerate() {
                if way.in_vlan != tag {
                    continue;
                }
                let mut packet = frame[network..].to_vec();
                match translate(&mut packet, &way.rewrite, MTU.into()) {
                    Ok(()) => {}
                    Err(NotTranslated::Other) => continue,
                    Err(_) => return pass,
                }
                let length = match packet[0] >> 4 {
                    4 => usize::from(u16::from_be_bytes([packet[2], packet[3]])),
                    _ => 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]])),
                };
                let tag = way.out_vlan.map_or(Vec::new(), |v| [[0x81, 0], v.to_be_bytes()].concat());
                let kind = &frame[network - 2..network];
                let out = [&OUT_MACS[..], &tag, kind, &packet[..length]].concat();
                return (Action::Redirect, out, Some((n, direction)));
            }
        }
        pass
    }

    /// The flow that the kernel may find this frame to be a RST of.
    fn reset(&self, frame: &[u8]) -> Option<usize> {
        let tagged = frame.get(12..14)? == [0x81, 0];
        let tag = if tagged { u16::from_be_bytes([*frame.get(14)?, *frame.get(15)?]) & 0x0fff } else { 0 };
        let packet = frame.get(if tagged { 18 } else { 14 }..)?;
        let word = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
        let (v4, at, fragment) = match frame[if tagged { 16 } else { 12 }..][..2] {
            [8, 0] => {
                packet.get(..20)?;
                let piece = word(6)?;
                if packet[9] != protocol::TCP || piece & 0x1fff != 0 {
                    return None;
                }
                (true, usize::from(packet[0] & 15) * 4, piece & 0x2000 != 0)
            }
            [0x86, 0xdd] => {
                packet.get(..40)?;
                let (mut next, mut at, mut fragment, mut passed) = (packet[6], 40, false, 0);
                while next != protocol::TCP {
                    let header = packet.get(at..at + 8)?;
                    passed += 1;
                    at += match next {
                        44 if word(at + 2)? & 0xfff8 == 0 => 8,
                        0 | 43 | 60 => 8 + 8 * usize::from(header[1]),
                        _ => return None,
                    };
                    fragment |= next == 44;
                    next = header[0];
                }
                if passed > 4 {
                    return None;
                }
                (false, at, fragment)
            }
            _ => return None,
        };
        packet.get(at..at + 4)?;
        if !fragment && packet.get(at..at + 20)?[13] & 4 == 0 {
            return None;
        }
        let address = |at: usize| match v4 {
            true => IpAddr::from(*packet[at..].first_chunk::<4>().expect("looked at")),
            false => IpAddr::from(*packet[at..].first_chunk::<16>().expect("looked at")),
        };
        let (source, destination) = if v4 { (12, 16) } else { (8, 24) };
        let arrives = Tuple {
            source: address(source),
            destination: address(destination),
            protocol: protocol::TCP,
            source_port: word(at)?,
            destination_port: word(at + 2)?,
        };
        let way =
            |way: &DirectionWay| way.rewrite.direction.arrives == arrives && way.in_vlan.unwrap_or(0) == tag;
        self.flows.iter().position(|both| both.iter().any(way))
    }

    fn compare(&self, what: &str, frame: &[u8], in_force: bool) -> Option<(usize, usize)> {
        let (action, out, whose) = self.expected(frame, in_force);
        let run = self.program.run(frame, 1).expect("runs");
        assert_eq!((run.action, run.frame), (action, out), "{what}: {frame:02x?}");
        whose
    }
}

#[test]
fn tracked_flows_are_translated_to_the_byte_and_all_else_is_left_as_it_came() {
    let mut random = SplitMix64::new(0x27);
    let test = "tracked_flows_are_translated_to_the_byte_and_all_else_is_left_as_it_came";
    let Some(rig) = rig(test, &mut random) else { return };
    let mut corpus = Vec::new();
    for way in rig.flows.iter().flatten() {
        corpus.push(frame(way, b"", 0x10));
        corpus.push(frame(way, b"payload", 0x18));
        corpus.push([&frame(way, b"padded", 0x10)[..], &[0xa5; 19]].concat());
        corpus.push(frame(way, &[7; 400], 0x10));
        corpus.extend([0x11, 0x12, 0x14, 0x00].map(|flags| frame(way, b"x", flags)));
        let arrives = way.rewrite.direction.arrives;
        let other = Direction {
            arrives: Tuple { source_port: arrives.source_port ^ 1, ..arrives },
            ..way.rewrite.direction
        };
        corpus.push(frame(&DirectionWay { rewrite: Rewrite::new(other), ..*way }, b"other", 0x10));
        // Another VLAN, none, and a priority without one.
        for in_vlan in [None, Some(7), Some(8), Some(9)] {
            corpus.push(frame(&DirectionWay { in_vlan, ..*way }, b"where", 0x10));
        }
        if way.in_vlan.is_some() {
            let mut priority = frame(way, b"priority", 0x10);
            priority[14] |= 0xe0;
            corpus.push(priority.clone());
            (priority[14], priority[15]) = (0xe0, 0);
            corpus.push(priority);
        }
    }
    corpus.extend(rig.flows.iter().flatten().flat_map(odd_resets));
    let mut passed = vec![[Passed::default(); 2]; rig.flows.len()];
    let mut resets = vec![0; rig.flows.len()];
    let (mut forwarded, mut kernel, mut rx_bytes, mut tx_bytes) = (0_u64, 0_u64, 0, 0);
    for n in 0..90_000 {
        let frame = if n < corpus.len() { corpus[n].clone() } else { mutated(&corpus, &mut random) };
        match rig.compare(&format!("frame {n}"), &frame, true) {
            Some((flow, direction)) => {
                let (_, out, _) = rig.expected(&frame, true);
                passed[flow][direction].packets += 1;
                let tag = if rig.flows[flow][direction].out_vlan.is_some() { 4 } else { 0 };
                passed[flow][direction].bytes += out.len() as u64 - 14 - tag;
                forwarded += 1;
                rx_bytes += frame.len() as u64;
                tx_bytes += out.len() as u64;
            }
            None => {
                kernel += 1;
                rig.reset(&frame).into_iter().for_each(|flow| resets[flow] += 1);
            }
        }
    }
    for (n, expected) in (0..).zip(&passed) {
        assert_eq!(rig.tracked.passed(n), *expected, "flow {n}");
        assert_eq!(rig.tracked.resets(n), resets[n as usize], "RSTs of flow {n}");
        rig.tracked.clear(n);
        assert_eq!((rig.tracked.passed(n), rig.tracked.resets(n)), ([Passed::default(); 2], 0));
    }
    // Of UDP nothing ends a flow; of TCP each has some of every shape.
    let tcp = |n: usize| rig.flows[n][0].rewrite.direction.arrives.protocol == protocol::TCP;
    assert!((0..resets.len()).all(|n| if tcp(n) { resets[n] >= 14 } else { resets[n] == 0 }), "{resets:?}");
    let counted = [0, 1].map(|device| rig.offload.counters(DeviceId(device)).expect("readable"));
    let sum = |of: fn(&OffloadCounters) -> u64| counted.iter().map(of).sum::<u64>();
    assert_eq!((sum(|c| c.rx_packets), sum(|c| c.tx_packets)), (forwarded, forwarded));
    assert_eq!((sum(|c| c.rx_bytes), sum(|c| c.tx_bytes)), (rx_bytes, tx_bytes), "with their tags");
    let causes: u64 = Cause::ALL.iter().map(|&c| rig.counters.sum(c as u32).expect("readable")[0]).sum();
    assert_eq!(causes, kernel);
    assert!(rig.counters.sum(Cause::Conntrack as u32).expect("readable")[0] > 0);
    let (instructions, stack) = rig.program.size().expect("known");
    let _ = writeln!(
        std::io::stderr(),
        "weir_steer_tracked: {instructions} instructions, {stack} bytes of stack; {forwarded} frames forwarded, \
         {kernel} left to the kernel"
    );
    assert!(forwarded > 5000 && kernel > 5000 && stack <= 256);
}

#[test]
fn a_flow_is_forwarded_under_its_generation_until_it_is_suspended_or_removed() {
    let mut random = SplitMix64::new(0x28);
    let test = "a_flow_is_forwarded_under_its_generation_until_it_is_suspended_or_removed";
    let Some(mut rig) = rig(test, &mut random) else { return };
    let frames: Vec<Vec<u8>> = rig.flows.iter().map(|both| frame(&both[0], b"x", 0x10)).collect();
    let all = |rig: &Rig, in_force: bool| {
        frames.iter().for_each(|frame| _ = rig.compare("in force", frame, in_force));
    };
    all(&rig, true);
    rig.offload.set_generation(GENERATION + 1);
    all(&rig, false);
    (0..rig.flows.len()).for_each(|n| rig.tracked.set_in_force(n as u32, GENERATION + 1));
    all(&rig, true);
    (0..rig.flows.len()).for_each(|n| rig.tracked.suspend(n as u32));
    all(&rig, false);
    (0..rig.flows.len()).for_each(|n| rig.tracked.set_in_force(n as u32, GENERATION + 1));
    all(&rig, true);
    rig.offload.disable();
    all(&rig, false);
    rig.offload.set_generation(GENERATION + 1);
    for (n, both) in (0..).zip(rig.flows.clone()) {
        rig.tracked.remove(n, &both).expect("removed");
        rig.tracked.set_in_force(n, GENERATION + 1);
    }
    all(&rig, false);
}

/// Nobody who hangs can take flows out of force: time does.
#[test]
fn flows_hold_only_as_long_as_they_are_followed() {
    let mut random = SplitMix64::new(0x2a);
    let Some(rig) = rig("flows_hold_only_as_long_as_they_are_followed", &mut random) else { return };
    for (until, in_force) in
        [(0, false), (clock::now() + 3600 * SECOND, true), (clock::now() - SECOND, false)]
    {
        rig.tracked.follow_until(until);
        for both in &rig.flows {
            rig.compare("followed", &frame(&both[0], b"x", 0x10), in_force);
        }
    }
}

/// Answers may come in by two uplinks: there is room for as many flows as without.
#[test]
fn every_flow_has_room_for_a_third_place_where_its_packets_come_in() {
    let mut random = SplitMix64::new(0x2b);
    let test = "every_flow_has_room_for_a_third_place_where_its_packets_come_in";
    let Some(mut rig) = rig(test, &mut random) else { return };
    let both = rig.flows[0];
    rig.flows.clone().iter().zip(0..).for_each(|(both, n)| rig.tracked.remove(n, both).expect("removed"));
    for n in 0..MAX_TRACKED {
        let of = |way: &DirectionWay, in_ifindex| {
            let mut way = DirectionWay { in_ifindex, ..*way };
            way.rewrite.direction.arrives.source = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n));
            way
        };
        rig.tracked.install(n, &[of(&both[0], 1), of(&both[1], 1)]).expect("room");
        rig.tracked.add(n, true, &of(&both[1], 2)).expect("room");
    }
}
