//! An SPD that is a port, as an xfrm device of the kernel: routes lead to it, nothing passes it as cleartext, and this host's own
//! packets pass by it both ways.

use crate::common::site::*;
use weir_core::ipsec::{Action, Direction};
use weir_core::tables::Target;
use weir_core::verdict::Reason;
use weir_core::wire::build;

#[test]
fn what_is_routed_to_it_is_sealed_by_its_policies_and_counted_on_its_port() {
    for six in [0, 1] {
        let mut site = Site::device_mode(gcm());
        let (port, _) = site.device.expect("a device");
        let frame = site.lan_frame(six, b"out");
        let seen = site.w.send(LAN, &frame);
        let opened = site.opened(seen.one());
        assert_eq!(opened, forwarded(&frame[14..]), "only its TTL is lower");
        let counted = site.w.router.port_counters()[port.index()];
        assert_eq!((counted.tx_packets, counted.rx_packets), (1, 0));
        let back = site.far_packet(six, b"back");
        let sealed = site.sealed(&back);
        let seen = site.w.send(WAN, &sealed);
        assert!(seen.one().ends_with(b"back"), "{}", seen.text());
        assert_eq!(site.w.router.port_counters()[port.index()].rx_packets, 1);
    }
}

#[test]
fn nothing_passes_it_as_cleartext() {
    let cases = [
        (Some(Action::Bypass), Reason::NoOutboundSa),
        (Some(Action::Discard), Reason::PolicyDiscard),
        (None, Reason::PolicyNone),
    ];
    for (action, reason) in cases {
        for default in [Action::Discard, Action::Bypass] {
            let mut site = Site::device_mode(gcm());
            site.policies = action.into_iter().map(|action| Rule::new(action, any())).collect();
            site.default = default;
            site.publish();
            let reason = match (action, default) {
                (None, Action::Bypass) => Reason::NoOutboundSa,
                _ => reason,
            };
            let frame = site.lan_frame(0, b"out");
            site.w.send(LAN, &frame).dropped_silently(reason);
        }
    }
    let mut site = Site::device_mode(gcm());
    site.policies.iter_mut().for_each(|rule| rule.sas_out.clear());
    site.publish();
    let frame = site.lan_frame(0, b"out");
    site.w.send(LAN, &frame).dropped_silently(Reason::NoOutboundSa);
}

#[test]
fn what_its_sa_carried_must_be_what_a_policy_lets_it_carry() {
    let mut site = Site::device_mode(gcm());
    site.policies.iter_mut().for_each(|rule| rule.sas_in.clear());
    site.publish();
    let sealed = site.sealed(&site.far_packet(0, b"back"));
    site.w.send(WAN, &sealed).dropped_silently(Reason::PolicyMismatch);
}

#[test]
fn the_hosts_own_packets_are_sealed_as_they_are_and_nothing_else_of_its_is() {
    let mut site = Site::device_mode(gcm());
    let (_, host) = site.device.expect("a device");
    let packet = build::Frame::ip(addr("10.0.0.1"), addr(FAR[0])).expect("one family").packet();
    let packet = packet.udp(179, 179, b"its own");
    let frame = on_wan(&packet);
    let seen = site.w.send(host, &frame);
    assert_eq!(site.opened(seen.one()), packet, "its TTL too");
    // Wherever routes lead: the kernel has routed it.
    let elsewhere = build::Frame::ip(addr("10.0.0.1"), addr("203.0.113.9")).expect("one family").packet();
    let elsewhere = elsewhere.udp(1, 2, b"its own");
    let seen = site.w.send(host, &on_wan(&elsewhere));
    assert_eq!(site.opened(seen.one()), elsewhere);
    let cut = &frame[..frame.len() - 3];
    assert_eq!(site.w.send(host, cut).drops.len(), 1);
    assert_eq!(site.w.send(host, &[0; 14]).drops.len(), 1);
}

#[test]
fn what_was_opened_for_the_host_or_for_its_routes_reaches_it() {
    let mut site = Site::device_mode(gcm());
    let (_, host) = site.device.expect("a device");
    site.w.net.route("198.18.0.0/15".parse().expect("a prefix"), Target::Discard(Reason::LeftToKernel));
    site.publish();
    let device = site.w.tables.ports[host.index()].device;
    for destination in ["192.0.2.1", "198.18.7.7"] {
        let packet = build::Frame::ip(addr(FAR[0]), addr(destination)).expect("one family").packet();
        let sealed = site.sealed(&packet.udp(1, 2, b"for the kernel"));
        let seen = site.w.send(WAN, &sealed);
        assert_eq!(seen.sent.len(), 1, "{seen:?}");
        assert_eq!((seen.sent[0].0, seen.drops.len()), (device, 0));
        assert!(seen.sent[0].1.ends_with(b"for the kernel"));
    }
    // Of others' packets it gets none.
    let frame = frame(LAN, NEAR[0], "198.18.7.7").udp(1, 2, b"transit");
    assert_eq!(site.w.send(LAN, &frame).drops, [(Reason::LeftToKernel, 1)]);
    assert_eq!(Site::failures(&site.back.here, Reason::PolicyMismatch), 0);
    assert_eq!(site.back.here.params.direction, Direction::In);
}
