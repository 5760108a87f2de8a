//! Behaviours the field's ESP tests name: lost, corrupted, replayed, handed to another worker, keepalive,
//! nesting, both modes at once.

use crate::common::sas;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::site::*;
use weir_core::ipsec::{Action, Params};
use weir_core::packet::{Batch, DeviceId, Frame};
use weir_core::router::sampler::Link;
use weir_core::router::{Output, Router};
use weir_core::tables::Owner;
use weir_core::verdict::Reason;
use weir_core::wire::build;
use weir_core::wire::ethernet::HEADER_LEN as ETHERNET;

fn families() -> [(Params, usize); 2] {
    [(gcm(), 0), (outside6(gcm()), 1)]
}

/// The outer addresses are weir's alone.
fn without_kernel(mut site: Site) -> Site {
    site.w.net.ports[WAN.index()].addresses.iter_mut().for_each(|a| a.owner = Owner::Weir);
    site.publish();
    site
}

#[test]
fn lost_packets_leave_a_gap_the_window_does_not_mind() {
    for (params, six) in families() {
        let mut site = Site::route_mode(params);
        let sealed: Vec<_> = (0..130u8).map(|n| site.sealed(&site.far_packet(six, &[n]))).collect();
        // Two of three are lost on the way.
        let mut forwarded = 0;
        for frame in sealed.iter().step_by(3) {
            forwarded += site.w.send(WAN, frame).forwarded;
        }
        assert_eq!(forwarded, 44);
    }
}

#[test]
fn corrupted_footer_is_dropped_and_counted_on_the_sa() {
    for (params, six) in families() {
        let mut site = Site::route_mode(params);
        let mut sealed = site.sealed(&site.far_packet(six, b"corrupted"));
        let last = sealed.len() - 1;
        sealed[last] ^= 1;
        let seen = site.w.send(WAN, &sealed);
        seen.dropped_silently(Reason::IntegrityFailed);
        // Its headers can be looked at, what the cipher made of its payload cannot.
        let copy = &seen.copies[0];
        assert_eq!((copy.link, copy.len), (Link::Ip, sealed.len() - ETHERNET));
        assert_eq!(*copy.data, sealed[ETHERNET..ETHERNET + copy.data.len()]);
        assert!(copy.data.len() < sealed.len() - ETHERNET - b"corrupted".len(), "{copy:?}");
        assert_eq!(Site::failures(&site.back.here, Reason::IntegrityFailed), 1);
        // Its number is not used up.
        sealed[last] ^= 1;
        assert_eq!(site.w.send(WAN, &sealed).forwarded, 1);
    }
}

#[test]
fn replayed_packet_is_dropped_in_the_same_batch_and_in_the_next() {
    for (params, six) in families() {
        let mut site = Site::route_mode(params);
        let sealed = site.sealed(&site.far_packet(six, b"once"));
        let twice = [(DeviceId(1), sealed.clone()), (DeviceId(1), sealed.clone())];
        let seen = site.w.send_all(&twice);
        assert_eq!((seen.forwarded, &seen.drops[..]), (1, &[(Reason::Replayed, 1)][..]));
        site.w.send(WAN, &sealed).dropped_silently(Reason::Replayed);
        for n in 0..64u8 {
            let next = site.sealed(&site.far_packet(six, &[n]));
            site.w.send(WAN, &next);
        }
        site.w.send(WAN, &sealed).dropped_silently(Reason::ReplayTooOld);
    }
}

#[test]
fn two_workers_share_an_sa_without_sharing_a_number_and_one_window() {
    let mut site = Site::route_mode(gcm());
    let mut other = Router::new().with_worker(1);
    let mut numbers = BTreeSet::new();
    let mut number = |frame: &[u8]| {
        assert!(numbers.insert(frame[14 + 24..14 + 28].to_vec()), "a sequence number twice");
    };
    let sent = site.lan_frame(0, b"by two workers");
    for _ in 0..10 {
        number(site.w.send(LAN, &sent).one());
        number(by(&mut other, &mut site, 0, &sent).first().expect("sent"));
    }
    // What one worker has accepted, the other does not.
    let sealed = site.sealed(&site.far_packet(0, b"handed over"));
    assert_eq!(by(&mut other, &mut site, 1, &sealed).len(), 1);
    site.w.send(WAN, &sealed).dropped_silently(Reason::Replayed);
}

/// What another worker of the same gateway sends on receiving a frame.
fn by(worker: &mut Router<Box<[u8]>>, site: &mut Site, device: u16, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    let buffer = site.w.pool.take().expect("a buffer");
    batch.push(Frame::from_bytes(buffer, bytes, DeviceId(device)).expect("fits")).expect("room");
    let mut out = Output::new(site.w.tables.devices.len());
    worker.forward(site.w.now, &site.w.tables, &mut batch, &mut site.w.pool, &mut out);
    worker.taken(&site.w.tables, &out);
    assert_eq!(worker.ledger().balance(), 0);
    let frames: Vec<_> = out.tx.into_iter().flatten().collect();
    let sent = frames.iter().map(|frame| frame.data().to_vec()).collect();
    frames.into_iter().for_each(|frame| site.w.pool.put(frame.into_buffer()));
    sent
}

#[test]
fn each_worker_sends_by_its_own_sa_where_there_is_one_for_each() {
    let mut site = Site::route_mode(gcm());
    let second = outbound(7, 0x7007, &gcm());
    site.more_out.push(second.here.clone());
    site.publish();
    let sent = site.lan_frame(0, b"by my own SA");
    let first = site.w.send(LAN, &sent);
    assert_eq!(site.opened(first.one()), forwarded(&sent[14..]));
    let mut other = Router::new().with_worker(1);
    let frames = by(&mut other, &mut site, 0, &sent);
    assert_eq!(sas::open(&second.there, &frames[0][14..]), Ok(forwarded(&sent[14..])));
}

#[test]
fn esp_in_udp_goes_both_ways() {
    for (params, six) in families() {
        let mut site = Site::route_mode(in_udp(params));
        let sent = site.lan_frame(six, b"through a NAT");
        let seen = site.w.send(LAN, &sent);
        assert_eq!(site.opened(seen.one()), forwarded(&sent[14..]));
        let packet = site.far_packet(six, b"and back");
        let sealed = site.sealed(&packet);
        assert_eq!(site.w.send(WAN, &sealed).one()[14..], forwarded(&packet));
    }
}

#[test]
fn keepalive_is_heard_and_ike_is_not_taken_for_esp() {
    for six in [0, 1] {
        let mut site = without_kernel(Site::route_mode(in_udp(gcm())));
        let keepalive = frame(WAN, THERE[six], HERE[six]).udp(4500, 4500, &[0xff]);
        let seen = site.w.send(WAN, &keepalive);
        assert_eq!((seen.local, &seen.drops[..]), (1, &[][..]));
        let ike = frame(WAN, THERE[six], HERE[six]).udp(4500, 4500, &[0; 32]);
        let seen = site.w.send(WAN, &ike);
        assert_eq!(seen.drops, [(Reason::LocalNotServed, 1)]);
    }
}

#[test]
fn drop_without_an_sa_on_an_address_of_our_own() {
    for (params, six) in families() {
        let mut site = without_kernel(Site::route_mode(params.clone()));
        let stranger = inbound(9, 0x9999, &params);
        let packet = site.far_packet(six, b"who are you?");
        let sealed = on_wan(&sas::seal(&stranger.there, &packet).expect("sealed"));
        site.w.send(WAN, &sealed).dropped_silently(Reason::NoSa);
        let in_udp = frame(WAN, THERE[six], HERE[six]).udp(4500, 4500, &[7; 64]);
        site.w.send(WAN, &in_udp).dropped_silently(Reason::NoSa);
    }
}

#[test]
fn sealed_packet_is_opened_whatever_its_ttl_tag_or_options() {
    let mut site = Site::route_mode(gcm());
    let packet = site.far_packet(0, b"the slow way in");
    let esp = |site: &Site| site.sealed(&packet)[14 + 20..].to_vec();
    let outer = || frame(WAN, THERE[0], HERE[0]);
    for bytes in [
        outer().ttl(1).raw(50, &esp(&site)),
        outer().vlan(0).raw(50, &esp(&site)),
        outer().options(&[1, 1, 1, 1]).raw(50, &esp(&site)),
    ] {
        let seen = site.w.send(WAN, &bytes);
        assert_eq!(seen.one()[14..], forwarded(&packet), "{seen:?}");
    }
}

#[test]
fn link_padding_behind_a_sealed_packet_is_no_part_of_it() {
    let mut site = Site::route_mode(gcm());
    let packet = site.far_packet(0, b"");
    let mut sealed = site.sealed(&packet);
    sealed.extend([0xaa; 6]);
    assert_eq!(site.w.send(WAN, &sealed).one()[14..], forwarded(&packet));
    let mut sent = site.lan_frame(0, b"");
    let plain = sent[14..].to_vec();
    sent.resize(60, 0xaa);
    let seen = site.w.send(LAN, &sent);
    assert_eq!(site.opened(seen.one()), forwarded(&plain));
}

#[test]
fn error_inside_the_tunnel_goes_back_through_it() {
    for six in [0, 1] {
        let mut site = Site::route_mode(gcm());
        let dying = build::Frame::ip(addr(FAR[six]), addr(NEAR[six])).expect("one family").packet().ttl(1);
        let sealed = site.sealed(&dying.udp(2000, 1000, b"too far"));
        let seen = site.w.send(WAN, &sealed);
        assert_eq!((&seen.drops[..], seen.originated), (&[(Reason::TtlExpired, 1)][..], 1));
        let answer = site.opened(seen.one());
        assert_eq!(answer[0] >> 4, if six == 0 { 4 } else { 6 });
        let kind = if six == 0 { (answer[9], answer[20]) } else { (answer[6], answer[40]) };
        assert_eq!(kind, if six == 0 { (1, 11) } else { (58, 3) });
    }
}

#[test]
fn echo_to_the_tunnels_own_address_is_answered_through_it() {
    let mut site = Site::route_mode(gcm());
    let ask = build::Frame::ip(addr(FAR[0]), addr("10.8.0.1")).expect("one family").packet();
    let sealed = site.sealed(&ask.echo_request(1, 1, b"are you there?"));
    let seen = site.w.send(WAN, &sealed);
    assert_eq!((seen.local, seen.originated), (1, 1));
    let answer = site.opened(seen.one());
    assert_eq!((answer[9], answer[20]), (1, 0), "an echo reply");
}

#[test]
fn both_modes_at_once_each_take_theirs_and_no_guard_asks_about_sealed_packets() {
    let mut site = Site::route_mode(gcm());
    site.add_spd();
    site.route_by(site.tunnel.expect("a tunnel"), &["10.31.0.0/16"]);
    let other = outbound(5, 0x5005, &gcm());
    let mut rule = Rule::new(Action::Protect, any());
    rule.sas_out = vec![other.here.clone()];
    site.policies = vec![rule];
    site.publish();
    // By policy: 10.30 leads to the enforced WAN port now.
    let sent = site.lan_frame(0, b"by policy");
    let seen = site.w.send(LAN, &sent);
    assert_eq!(sas::open(&other.there, &seen.one()[14..]), Ok(forwarded(&sent[14..])));
    // By route: sealed once, by the tunnel.
    let sent = frame(LAN, NEAR[0], "10.31.0.9").udp(1, 2, b"by route");
    let seen = site.w.send(LAN, &sent);
    assert_eq!(site.opened(seen.one()), forwarded(&sent[14..]));
    // And in: what the tunnel's SA carries asks no SPD.
    let packet = site.far_packet(0, b"by the tunnel");
    let sealed = site.sealed(&packet);
    assert_eq!(site.w.send(WAN, &sealed).one()[14..], forwarded(&packet));
}

#[test]
fn tunnel_whose_far_end_is_behind_itself_ends_in_a_counted_drop() {
    let mut site = Site::route_mode(gcm());
    site.route_by(site.tunnel.expect("a tunnel"), &["192.0.2.2/32"]);
    site.publish();
    let sent = site.lan_frame(0, b"round and round");
    let seen = site.w.send(LAN, &sent);
    assert!([Reason::TunnelNesting, Reason::FrameTooLarge].contains(&seen.drops[0].0), "{seen:?}");
    assert_eq!(seen.forwarded, 0);
}

#[test]
fn packets_sealed_too_often_are_opened_four_times_and_no_more() {
    let mut site = Site::route_mode(gcm());
    let seal = |site: &Site, packet: &[u8]| site.sealed(packet)[14..].to_vec();
    let packet = site.far_packet(0, b"matryoshka");
    let mut nested = packet.clone();
    for _ in 0..4 {
        nested = seal(&site, &nested);
    }
    let seen = site.w.send(WAN, &on_wan(&nested));
    assert_eq!(seen.one()[14..], forwarded(&packet), "{seen:?}");
    let mut deep = packet;
    for _ in 0..5 {
        deep = seal(&site, &deep);
    }
    site.w.send(WAN, &on_wan(&deep)).dropped_silently(Reason::TunnelNesting);
}

#[test]
fn slow_path_does_what_the_fast_path_does() {
    for (params, six) in families() {
        let mut fast = Site::policy_mode(params.clone());
        let mut slow = Site::policy_mode(params);
        slow.w.router = Router::new().without_fast_path();
        slow.publish();
        let sent = fast.lan_frame(six, b"either way");
        let packet = fast.far_packet(six, b"either way");
        let sealed = fast.sealed(&packet);
        for (port, bytes) in [(LAN, sent), (WAN, sealed), (WAN, on_wan(&packet))] {
            let (a, b) = (fast.w.send(port, &bytes), slow.w.send(port, &bytes));
            assert_eq!(a.drops, b.drops);
            assert_eq!(a.sent, b.sent);
        }
        assert_eq!(fast.w.router.port_counters(), slow.w.router.port_counters());
        let counted = |site: &Site| {
            let ipsec = Arc::clone(site.w.net.ipsec.as_ref().expect("set"));
            format!("{:?}", ipsec.spds[0].policies.iter().map(|p| &p.counters).collect::<Vec<_>>())
        };
        assert_eq!(counted(&fast), counted(&slow));
    }
}

#[test]
fn transport_mode_protects_between_hosts_and_sends_nothing_elsewhere() {
    // Between a host of ours and one on the WAN, both their own ends: 10.0.0.2 and 10.30.0.9.
    let params = Params { source: addr(NEAR[0]), destination: addr(FAR[0]), ..transport(gcm()) };
    let mut site = Site::policy_mode(params);
    let sent = site.lan_frame(0, b"host to host");
    let seen = site.w.send(LAN, &sent);
    assert_eq!(ipv4(seen.one()).protocol(), 50);
    let opened = site.opened(seen.one());
    assert_eq!(opened, forwarded(&sent[14..]));
    let packet = site.far_packet(0, b"and back");
    let sealed = site.sealed(&packet);
    assert_eq!(site.w.send(WAN, &sealed).one()[14..], forwarded(&packet));
    let elsewhere = frame(LAN, NEAR[0], "10.30.0.10").udp(1, 2, b"to another host");
    site.w.send(LAN, &elsewhere).dropped_silently(Reason::NoOutboundSa);
}

#[test]
fn packet_sealed_by_a_policy_goes_into_the_tunnel_its_far_end_is_behind() {
    let mut site = Site::route_mode(gcm());
    site.add_spd();
    let params = Params { destination: addr("203.0.113.9"), ..gcm() };
    let deep = new_sa(5, Params { spi: 0x5005, source: addr(HERE[0]), ..params.clone() });
    let deep_end = new_sa(5, Params { spi: 0x5005, direction: weir_core::ipsec::Direction::In, ..params });
    let mut rule = Rule::new(Action::Protect, any());
    rule.sas_out = vec![deep.clone()];
    site.policies = vec![rule];
    site.more_out.push(deep);
    site.sas_out = Some(vec![site.out.here.clone()]);
    site.route_by(site.tunnel.expect("a tunnel"), &["203.0.113.0/24"]);
    site.publish();
    let sent = site.lan_frame(0, b"sealed twice");
    let seen = site.w.send(LAN, &sent);
    assert_eq!((seen.forwarded, seen.sent.len()), (1, 1), "{seen:?}");
    let outer = site.opened(seen.one());
    assert_eq!(outer[16..20], [203, 0, 113, 9]);
    assert_eq!(sas::open(&deep_end, &outer), Ok(forwarded(&sent[14..])));
    let tunnel = site.tunnel.expect("a tunnel").index();
    assert_eq!(site.w.router.port_counters()[tunnel].tx_packets, 1);
}
