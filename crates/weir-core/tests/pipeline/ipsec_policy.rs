//! Policy mode: an SPD before a port decides packet by packet (RFC 4301 4.4.1, 5).

use crate::common::sas;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::site::*;
use weir_core::ipsec::spd::{PortRange, Selector};
use weir_core::ipsec::{Action, SaId};
use weir_core::packet::DeviceId;
use weir_core::verdict::Reason;
use weir_core::wire::{Ethernet, build};

fn combinations() -> impl Iterator<Item = (weir_core::ipsec::Params, usize)> {
    [gcm(), outside6(gcm())].into_iter().flat_map(|params| [0, 1].map(|inner| (params.clone(), inner)))
}

/// A site with these rules and no other.
fn with_rules(rules: Vec<Rule>) -> Site {
    let mut site = Site::policy_mode(gcm());
    site.policies = rules;
    site.publish();
    site
}

fn port_2000() -> Selector {
    Selector { protocol: Some(17), destination_ports: PortRange { first: 2000, last: 2000 }, ..any() }
}

#[test]
fn protected_packet_leaves_sealed_and_its_port_counts_the_outer_packet() {
    for (params, six) in combinations() {
        let mut site = Site::policy_mode(params);
        let sent = site.lan_frame(six, b"protect me");
        let seen = site.w.send(LAN, &sent);
        assert_eq!((seen.forwarded, seen.sent.len()), (1, 1), "{seen:?}");
        assert_eq!(seen.sent[0].0, DeviceId(1));
        assert_eq!(site.opened(seen.one()), forwarded(&sent[14..]));
        assert_eq!(Ethernet::parse(seen.one()).expect("a frame").dst(), neighbor_mac(WAN, 2));
        let wan = site.w.router.port_counters()[WAN.index()];
        assert_eq!((wan.tx_packets, wan.tx_bytes), (1, seen.one().len() as u64));
    }
}

#[test]
fn opened_packet_its_policy_allows_is_routed() {
    for (params, six) in combinations() {
        let mut site = Site::policy_mode(params);
        let packet = site.far_packet(six, b"protected");
        let sealed = site.sealed(&packet);
        let seen = site.w.send(WAN, &sealed);
        assert_eq!((seen.forwarded, &seen.drops[..]), (1, &[][..]));
        assert_eq!(seen.one()[14..], forwarded(&packet));
    }
}

#[test]
fn bypass_lets_a_packet_out_and_in_as_it_is() {
    let mut site = with_rules(vec![Rule::new(Action::Bypass, any())]);
    let sent = site.lan_frame(0, b"in clear");
    let seen = site.w.send(LAN, &sent);
    assert_eq!(seen.one()[14..], forwarded(&sent[14..]));
    assert_eq!(seen.sent[0].0, DeviceId(1));
    let packet = site.far_packet(0, b"in clear");
    assert_eq!(site.w.send(WAN, &on_wan(&packet)).one()[14..], forwarded(&packet));
    let counters = &site.w.net.ipsec.as_ref().expect("set").spds[0].policies[0].counters;
    assert_eq!((counters.out_packets.load(Relaxed), counters.in_packets.load(Relaxed)), (1, 1));
    assert_eq!(counters.out_bytes.load(Relaxed), sent.len() as u64 - 14);
    assert_eq!(counters.in_bytes.load(Relaxed), packet.len() as u64);
}

#[test]
fn discard_drops_in_both_directions() {
    let mut site = with_rules(vec![Rule::new(Action::Discard, any())]);
    let sent = site.lan_frame(0, b"out");
    site.w.send(LAN, &sent).dropped_silently(Reason::PolicyDiscard);
    let packet = site.far_packet(0, b"in");
    site.w.send(WAN, &on_wan(&packet)).dropped_silently(Reason::PolicyDiscard);
    assert_eq!(site.w.router.port_counters()[WAN.index()].tx_packets, 0);
}

#[test]
fn default_drop_holds_in_both_directions() {
    let mut site = with_rules(vec![]);
    let sent = site.lan_frame(0, b"out");
    site.w.send(LAN, &sent).dropped_silently(Reason::PolicyNone);
    let packet = site.far_packet(0, b"in");
    site.w.send(WAN, &on_wan(&packet)).dropped_silently(Reason::PolicyNone);
    site.default = Action::Bypass;
    site.publish();
    assert_eq!(site.w.send(LAN, &sent).forwarded, 1);
    assert_eq!(site.w.send(WAN, &on_wan(&packet)).forwarded, 1);
}

#[test]
fn transit_whose_extension_headers_lead_nowhere_passes_no_policy_enforcement_point() {
    // Bypass by default, too: no policy can be asked about what cannot be read (RFC 4301 4.4.1.1).
    let mut site = with_rules(vec![]);
    site.default = Action::Bypass;
    site.publish();
    for (next, rest) in [(51, &[17u8, 90, 0, 0, 0, 0, 0, 1][..]), (43, &[17, 2, 0, 1, 0, 0, 0, 0].repeat(3))]
    {
        let out = frame(LAN, NEAR[1], FAR[1]).raw(next, rest);
        site.w.send(LAN, &out).dropped_silently(Reason::PolicyNone);
        let back = frame(WAN, FAR[1], NEAR[1]).raw(next, rest);
        site.w.send(WAN, &back).dropped_silently(Reason::PolicyNone);
    }
}

#[test]
fn packet_in_clear_where_protection_is_asked_for_is_dropped() {
    for six in [0, 1] {
        let mut site = Site::policy_mode(gcm());
        let packet = site.far_packet(six, b"who says so?");
        site.w.send(WAN, &on_wan(&packet)).dropped_silently(Reason::PolicyUnprotected);
        // The slow path judges alike.
        let tagged = frame(WAN, FAR[six], NEAR[six]).vlan(0).udp(2000, 1000, b"with a priority tag");
        site.w.send(WAN, &tagged).dropped_silently(Reason::PolicyUnprotected);
        let dying = frame(WAN, FAR[six], NEAR[six]).ttl(1).udp(2000, 1000, b"TTL 1");
        site.w.send(WAN, &dying).dropped_silently(Reason::PolicyUnprotected);
    }
}

#[test]
fn packet_by_the_wrong_sa_is_dropped() {
    let mut site = Site::policy_mode(gcm());
    site.policies[0].sas_in = vec![SaId(77)];
    site.publish();
    let sealed = site.sealed(&site.far_packet(0, b"sealed by another's key"));
    site.w.send(WAN, &sealed).dropped_silently(Reason::PolicyMismatch);
    assert_eq!(Site::failures(&site.back.here, Reason::PolicyMismatch), 1);
}

#[test]
fn sealed_packet_of_a_flow_that_is_to_be_discarded_or_bypassed_is_dropped() {
    for action in [Action::Discard, Action::Bypass] {
        let mut site = Site::policy_mode(gcm());
        site.policies.insert(0, Rule::new(action, any()));
        site.publish();
        let sealed = site.sealed(&site.far_packet(0, b"not by this way"));
        site.w.send(WAN, &sealed).dropped_silently(Reason::PolicyMismatch);
    }
}

#[test]
fn first_rule_that_matches_decides() {
    let mut site =
        with_rules(vec![Rule::new(Action::Discard, port_2000()), Rule::new(Action::Bypass, any())]);
    let to = |port| frame(LAN, NEAR[0], FAR[0]).udp(1000, port, b"x");
    site.w.send(LAN, &to(2000)).dropped_silently(Reason::PolicyDiscard);
    assert_eq!(site.w.send(LAN, &to(2001)).forwarded, 1);
    site.policies.reverse();
    site.publish();
    assert_eq!(site.w.send(LAN, &to(2000)).forwarded, 1);
}

#[test]
fn ranges_of_addresses_and_ports_end_where_they_say() {
    let selector = Selector {
        destination: range("10.30.0.5", "10.30.0.7"),
        protocol: Some(17),
        destination_ports: PortRange { first: 100, last: 200 },
        ..any()
    };
    let mut site = with_rules(vec![Rule::new(Action::Bypass, selector)]);
    for (dst, port, passes) in [
        ("10.30.0.4", 150, 0),
        ("10.30.0.5", 100, 1),
        ("10.30.0.7", 200, 1),
        ("10.30.0.8", 150, 0),
        ("10.30.0.6", 99, 0),
        ("10.30.0.6", 201, 0),
    ] {
        let seen = site.w.send(LAN, &frame(LAN, NEAR[0], dst).udp(1000, port, b"x"));
        assert_eq!(seen.forwarded, passes, "{dst} port {port}");
    }
}

#[test]
fn icmp_is_told_apart_by_type() {
    let echo = Selector { protocol: Some(1), icmp: PortRange { first: 8 << 8, last: 8 << 8 | 255 }, ..any() };
    let mut site = with_rules(vec![Rule::new(Action::Bypass, echo)]);
    assert_eq!(site.w.send(LAN, &frame(LAN, NEAR[0], FAR[0]).echo_request(1, 1, b"x")).forwarded, 1);
    site.w
        .send(LAN, &frame(LAN, NEAR[0], FAR[0]).echo_reply(1, 1, b"x"))
        .dropped_silently(Reason::PolicyNone);
}

#[test]
fn policies_of_one_batch_each_get_theirs_and_flows_keep_their_order() {
    let mut site = Site::policy_mode(gcm());
    let rules = [
        Rule::new(
            Action::Discard,
            Selector { destination_ports: PortRange { first: 1, last: 1 }, ..port_2000() },
        ),
        Rule::new(
            Action::Bypass,
            Selector { destination_ports: PortRange { first: 2, last: 2 }, ..port_2000() },
        ),
    ];
    site.policies.splice(0..0, rules);
    let other = outbound(5, 0x5005, &gcm());
    site.more_out.push(other.here.clone());
    let mut third = Rule::new(
        Action::Protect,
        Selector { destination_ports: PortRange { first: 3, last: 3 }, ..port_2000() },
    );
    third.sas_out = vec![other.here.clone()];
    site.policies.insert(2, third);
    site.publish();
    let batch: Vec<_> = (0..64u16)
        .map(|n| (DeviceId(0), frame(LAN, NEAR[0], FAR[0]).udp(1000, 1 + n % 4, &n.to_be_bytes())))
        .collect();
    let seen = site.w.send_all(&batch);
    assert_eq!((seen.forwarded, &seen.drops[..]), (48, &[(Reason::PolicyDiscard, 16)][..]));
    let last = |bytes: &[u8]| u16::from_be_bytes([bytes[bytes.len() - 2], bytes[bytes.len() - 1]]);
    let mut by_way = [Vec::new(), Vec::new(), Vec::new()];
    for (_, bytes) in &seen.sent {
        if ipv4(bytes).protocol() == 17 {
            by_way[0].push(last(bytes));
        } else if let Ok(inner) = sas::open(&other.there, &bytes[14..]) {
            by_way[1].push(last(&inner));
        } else {
            by_way[2].push(last(&site.opened(bytes)));
        }
    }
    for (way, first) in by_way.iter().zip(1..) {
        let expected: Vec<u16> = (first..64).step_by(4).collect();
        assert_eq!(*way, expected);
    }
}

#[test]
fn errors_of_our_own_go_by_the_policy_too() {
    let mut site = Site::policy_mode(gcm());
    // A packet whose TTL runs out behind the SA: the answer goes back sealed.
    let dying = build::Frame::ip(addr(FAR[0]), addr(NEAR[0])).expect("one family").packet().ttl(1);
    let sealed = site.sealed(&dying.udp(2000, 1000, b"too far"));
    let seen = site.w.send(WAN, &sealed);
    assert_eq!(seen.drops, [(Reason::TtlExpired, 1)]);
    assert_eq!(seen.originated, 1);
    let answer = site.opened(seen.one());
    assert_eq!((answer[9], answer[20]), (1, 11), "ICMP time exceeded");
    assert_eq!(answer[16..20], [10, 30, 0, 9]);
}

#[test]
fn arp_and_discovery_pass_the_guard() {
    let mut site = with_rules(vec![]);
    let arp = build::arp_request((neighbor_mac(WAN, 2), [192, 0, 2, 2].into()), [192, 0, 2, 1].into(), None);
    assert_eq!(site.w.send(WAN, &arp).punted.len(), 1);
    let ask = build::neighbor_solicitation(
        (neighbor_mac(WAN, 2), "2001:db8:1::2".parse().expect("an address")),
        "2001:db8:1::1".parse().expect("an address"),
        None,
    );
    assert_eq!(site.w.send(WAN, &ask).punted.len(), 1);
}

#[test]
fn kernel_hears_what_is_for_its_own_address_in_clear() {
    let mut site = with_rules(vec![]);
    let ike = frame(WAN, "192.0.2.2", "192.0.2.1").udp(500, 500, &[1; 28]);
    assert_eq!(site.w.send(WAN, &ike).local, 1);
    let esp = frame(WAN, "192.0.2.2", "192.0.2.1").raw(50, &[9; 40]);
    assert_eq!(site.w.send(WAN, &esp).local, 1);
}

#[test]
fn decrypted_packet_for_the_kernel_is_a_counted_drop() {
    let mut site = Site::policy_mode(gcm());
    let packet = build::Frame::ip(addr(FAR[0]), addr("192.0.2.1")).expect("one family").packet();
    let sealed = site.sealed(&packet.udp(1, 2, b"for the kernel"));
    site.w.send(WAN, &sealed).dropped_silently(Reason::DecryptedForKernel);
}
