//! Which decisions last behind policy enforcement points: what is taught to a device that forwards by itself is what policies let pass, and
//! which of them count it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::site::*;
use weir_core::id::PortId;
use weir_core::ipsec::spd::{AddressRange, PortRange, Selector};
use weir_core::ipsec::{Action, Direction};
use weir_core::random::SplitMix64;
use weir_core::router::lasting::Lasting;
use weir_core::wire::flow::FlowKey;
use weir_core::wire::{Ipv4, Ipv6};

/// ICMP, TCP, UDP, DCCP, GRE, ESP, SCTP, UDP-Lite.
const PROTOCOLS: [u8; 8] = [1, 6, 17, 33, 47, 50, 132, 136];
/// What packets carry behind their IP header: two ports, or too little.
const HEADS: [&[u8]; 5] =
    [&[0; 20], &[3, 232, 7, 208, 0, 0], &[3, 232, 7, 209], &[0, 7, 7, 208, 9, 9], &[0, 0]];

fn pick<T: Copy>(rng: &mut SplitMix64, of: &[T]) -> T {
    of[rng.next_u64() as usize % of.len()]
}

fn selector(rng: &mut SplitMix64) -> Selector {
    let six = pick(rng, &[0, 1]);
    let all = [any(), any6()][six].source;
    let other = [range("10.77.0.0", "10.77.255.255"), range("2001:db8:77::", "2001:db8:77::ffff")][six];
    let of = |host: &str| AddressRange { first: addr(host), last: addr(host) };
    let ports = [
        PortRange::ANY,
        PortRange::ANY,
        PortRange { first: 1, last: 1000 },
        PortRange { first: 2000, last: 2000 },
    ];
    let protocol = pick(rng, &[None, Some(6), Some(17), Some(17), Some(1), Some(33)]);
    let unreachable = PortRange { first: 0x0300, last: 0x03ff };
    Selector {
        source: pick(rng, &[all, of(NEAR[six]), other, other]),
        destination: pick(rng, &[all, of(FAR[six]), other, other]),
        protocol,
        icmp: if protocol == Some(1) { unreachable } else { PortRange::ANY },
        source_ports: pick(rng, &ports),
        destination_ports: pick(rng, &ports),
    }
}

/// Protocol and ports as the XDP program tells flows apart.
fn flow_of(packet: &[u8]) -> (u8, u32) {
    let (protocol, at) = match packet[0] >> 4 {
        4 => (Ipv4::new_unchecked(packet).protocol(), 20),
        _ => (Ipv6::new_unchecked(packet).next_header(), 40),
    };
    let head = packet.get(at..at + 4).and_then(|head| head.try_into().ok()).map_or(0, u32::from_be_bytes);
    (protocol, if matches!(protocol, 6 | 17 | 132) { head } else { 0 })
}

/// Frames between one pair of hosts, in one direction.
fn of_pair(port: PortId, source: &str, destination: &str) -> Vec<Vec<u8>> {
    let all = PROTOCOLS.iter().flat_map(|&protocol| HEADS.iter().map(move |head| (protocol, *head)));
    all.map(|(protocol, head)| frame(port, source, destination).raw(protocol, head)).collect()
}

/// Packets and bytes that each policy counted inward and outward.
fn counts(policies: &[Rule]) -> Vec<[(u64, u64); 2]> {
    let of = |rule: &Rule| {
        [Direction::In, Direction::Out].map(|direction| {
            let (packets, bytes) = rule.counters.of(direction);
            (packets.load(Relaxed), bytes.load(Relaxed))
        })
    };
    policies.iter().map(of).collect()
}

#[test]
fn what_lasts_is_what_policies_let_pass_and_who_counts_is_known() {
    let mut rng = SplitMix64::new(0x1a57);
    let (mut pairs, mut flows, mut counted, mut refused) = (0, 0, 0, 0);
    for round in 0..120 {
        let mut site = Site::policy_mode(gcm());
        site.default = if round % 8 == 0 { Action::Discard } else { Action::Bypass };
        let some = |rng: &mut SplitMix64, site: &Site| match pick(rng, &[0, 1, 2]) {
            0 => Rule::protect(selector(rng), &site.out, &site.back),
            1 => Rule::new(Action::Discard, selector(rng)),
            _ => Rule::new(Action::Bypass, selector(rng)),
        };
        let count = rng.next_u64() % 5;
        site.policies = (0..count).map(|_| some(&mut rng, &site)).collect();
        if round % 2 == 0 {
            site.policies.extend([any(), any6()].map(|all| Rule::new(Action::Bypass, all)));
        }
        site.publish();
        let mut lasting = Lasting::new(FlowKey::new(0));
        for six in [0, 1] {
            for (port, source, destination) in [(LAN, NEAR[six], FAR[six]), (WAN, FAR[six], NEAR[six])] {
                let frames = of_pair(port, source, destination);
                for asked in &frames {
                    let tables = site.w.tables.clone();
                    let device = tables.ports[port.index()].device;
                    let Some(way) = lasting.way(&tables, device, asked) else {
                        refused += 1;
                        continue;
                    };
                    *(if way.flow.is_some() { &mut flows } else { &mut pairs }) += 1;
                    let same = |frame: &&Vec<u8>| {
                        let flow = flow_of(&frame[14..]);
                        (six == 0 || matches!(flow.0, 6 | 17 | 50)) && way.flow.is_none_or(|of| of == flow)
                    };
                    let out = tables.ports[way.next.port.index()].device;
                    let by = way.policies.expect("an enforced port");
                    counted += usize::from(by.iter().any(Option::is_some));
                    let expected = |before: &[[(u64, u64); 2]], bytes: u64| -> Vec<[(u64, u64); 2]> {
                        let mut counts = before.to_vec();
                        for (rule, counts) in site.policies.iter().zip(&mut counts) {
                            for (by, (packets, sum)) in by.iter().zip(counts) {
                                if by.is_some_and(|by| Arc::ptr_eq(by, &rule.counters)) {
                                    *packets += 1;
                                    *sum += bytes;
                                }
                            }
                        }
                        counts
                    };
                    for other in frames.iter().filter(same) {
                        let after = expected(&counts(&site.policies), other.len() as u64 - 14);
                        let seen = site.w.send(port, other);
                        assert_eq!((seen.forwarded, seen.sent[0].0), (1, out), "{way:?}: {other:02x?}");
                        assert_eq!(seen.one()[14..], forwarded(&other[14..]), "{way:?}");
                        assert_eq!(counts(&site.policies), after, "{way:?}: {other:02x?}");
                    }
                }
            }
        }
    }
    let of = format!("{pairs} pairs, {flows} flows, {counted} of them by policies, {refused} refused");
    assert!(pairs > 1000 && flows > 300 && counted > 500 && refused > 5000, "{of}");
}

/// An entry holds for the snapshot it was made by, so a policy that comes is asked about the next packet.
#[test]
fn a_policy_that_comes_ends_what_lasted() {
    let mut site = Site::policy_mode(gcm());
    site.default = Action::Bypass;
    site.policies.clear();
    site.publish();
    let frame = site.lan_frame(0, b"in clear");
    let mut lasting = Lasting::new(FlowKey::new(0));
    let before = site.w.tables.clone();
    let device = before.ports[LAN.index()].device;
    assert!(lasting.way(&before, device, &frame).is_some_and(|way| way.flow.is_none()));
    site.policies = vec![Rule::protect(any(), &site.out, &site.back)];
    site.publish_policies();
    let after = site.w.tables.clone();
    assert!(after.generation > before.generation);
    assert!(lasting.way(&after, device, &frame).is_none());
}
