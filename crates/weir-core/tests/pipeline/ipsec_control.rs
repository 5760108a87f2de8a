//! IPsec wished for in, snapshots out: tunnels as ports, enforcement before ports, SAs that keep their state.

use crate::testbed::control as testbed;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::testbed::ipsec::{Clear, HERE, THERE, east_and_border, policy, sa, spd, tunnel};
use testbed::{address, desired, lookup, neighbor, port, route, up};
use weir_core::control::{Control, DRAIN, KEEPALIVE};
use weir_core::id::PortId;
use weir_core::ipsec::sa::Direction::{In, Out};
use weir_core::ipsec::sa::UdpPorts;
use weir_core::ipsec::spd::Action;
use weir_core::ipsec::{Ipsec, Queue, Sa, SpdId, TunnelId};
use weir_core::state::{Desired, IpsecSpec};
use weir_core::tables::{PortKind, Tables, Target};
use weir_core::time::SECOND;
use weir_core::verdict::Reason;

/// A LAN, a WAN, a tunnel and an enforced WAN with one policy.
fn both_modes() -> Desired {
    let mut d = desired(&[port("lan", "eth0", &["192.0.2.1/24"]), port("wan", "eth1", &["198.51.100.1/24"])]);
    d.ipsec = east_and_border();
    d.routes = vec![route("10.1.0.0/16", &["@east"]), route("10.2.0.0/16", &[THERE])];
    d.neighbors = vec![neighbor("wan", THERE, 2)];
    d
}

fn control(desired: Desired) -> Control {
    let links = [up("eth0"), up("eth1")];
    Control::with_ciphers(desired, links, 0, Arc::new(Clear)).unwrap_or_else(|e| panic!("{e:?}"))
}

fn ipsec(tables: &Tables) -> &Ipsec {
    tables.ipsec.as_deref().expect("IPsec is configured")
}

fn inbound(tables: &Tables, spi: u32) -> Option<&Arc<Sa>> {
    ipsec(tables).sad.find(spi, HERE.parse().expect("address")).map(|i| &i.sa)
}

#[test]
fn whose_sas_come_from_elsewhere_is_in_the_next_snapshot_and_stays() {
    let mut control = control(both_modes());
    assert_eq!(ipsec(&control.take_snapshot().expect("the first")).awaited, None);
    let others = || HashSet::from([(7, HERE.parse().expect("address"))]);
    control.await_sas("border", others());
    let tables = control.take_snapshot().expect("another");
    let awaited = ipsec(&tables).awaited.clone().expect("SAs are awaited");
    assert_eq!((awaited.spd, &*awaited.others), (SpdId(0), &others()));
    control.await_sas("border", others());
    assert!(control.take_snapshot().is_none(), "nothing differs");
    // An SPD comes before it.
    let mut d = both_modes();
    d.ipsec.spds.insert(0, spd("inner", &["lan"], &[]));
    control.apply(1, d.clone()).expect("fits");
    let tables = control.take_snapshot().expect("another");
    assert_eq!(ipsec(&tables).awaited.as_ref().map(|a| a.spd), Some(SpdId(1)));
    d.ipsec.spds.clear();
    d.ipsec.sas.retain(|sa| sa.name.starts_with("east"));
    control.apply(2, d).expect("fits");
    assert_eq!(ipsec(&control.take_snapshot().expect("another")).awaited, None);
}

#[test]
fn tunnel_is_a_port_that_routes_lead_to() {
    let mut control = control(both_modes());
    let tables = control.take_snapshot().expect("the first");
    let id = control.port_id("east").expect("a port");
    let east = &tables.ports[id.index()];
    assert_eq!((east.kind, east.up, east.point_to_point), (PortKind::Tunnel, true, true));
    // 1500 - 20 - 8 - 8 - 16 = 1448 encrypted, two of them trailer.
    assert_eq!(east.mtu, 1446);
    assert_eq!(tables.devices[east.device.index()].name, "tunnel/east");
    assert_eq!(ipsec(&tables).queues[east.device.index()], Queue::Tunnel(TunnelId(0)));
    let Target::Adjacent(adjacency) = lookup(&tables, "10.1.2.3") else { panic!("no route") };
    let adjacency = &tables.adjacencies[adjacency.0 as usize];
    assert_eq!(
        (adjacency.port, adjacency.egress, adjacency.ready, adjacency.mtu),
        (id, east.device, true, 1446)
    );
    let tunnel = &ipsec(&tables).tunnels[0];
    assert_eq!((tunnel.port, &*tunnel.out[0].name), (id, "east-out"));
    let opened = ipsec(&tables).sad.find(0x1002, HERE.parse().expect("address")).expect("an SA");
    assert_eq!((opened.device, opened.spd), (east.device, None));
}

#[test]
fn enforced_port_leaves_by_its_egress_device_and_arrives_by_its_device() {
    let mut control = control(both_modes());
    let tables = control.take_snapshot().expect("the first");
    let id = control.port_id("wan").expect("a port");
    let wan = &tables.ports[id.index()];
    assert_eq!(tables.devices[wan.device.index()].name, "eth1");
    assert_eq!(tables.devices[wan.egress.index()].name, "enforce/wan");
    let egress = Queue::Enforcement { spd: SpdId(0), port: id, device: wan.device };
    assert_eq!(ipsec(&tables).queues[wan.egress.index()], egress);
    assert_eq!(ipsec(&tables).enforcement[id.index()], Some(SpdId(0)));
    let Target::Adjacent(adjacency) = lookup(&tables, "10.2.0.9") else { panic!("no route") };
    let adjacency = &tables.adjacencies[adjacency.0 as usize];
    assert_eq!((adjacency.device, adjacency.egress), (wan.device, wan.egress));
    assert!(adjacency.ready);
    let border = &tables.ports[control.port_id("border").expect("a port").index()];
    assert_eq!((border.kind, border.up), (PortKind::Policy, true));
    assert_eq!(ipsec(&tables).queues[border.device.index()], Queue::Policy(SpdId(0)));
    let opened = ipsec(&tables).sad.find(0x2002, HERE.parse().expect("address")).expect("an SA");
    assert_eq!((opened.device, opened.spd), (border.device, Some(SpdId(0))));
    assert_eq!(ipsec(&tables).spds[0].policies[0].inbound, [opened.sa.id]);
}

#[test]
fn without_ciphers_sas_are_refused() {
    let errors = Control::new(both_modes(), [], 0).expect_err("no ciphers");
    assert_eq!(
        errors[0].to_string(),
        "ipsec: 4 SAs are configured, but there are no ciphers here; remove the SAs or start with ciphers"
    );
}

#[test]
fn ids_of_ports_and_devices_do_not_hang_on_ipsec() {
    let mut plain = both_modes();
    plain.ipsec = IpsecSpec::default();
    plain.routes.remove(0);
    let mut control = control(plain);
    let before = control.take_snapshot().expect("the first");
    assert!(before.ipsec.is_none());
    control.apply(0, both_modes()).expect("valid");
    let tables = control.take_snapshot().expect("changed");
    for id in 0..2 {
        assert_eq!(before.ports[id].name, tables.ports[id].name);
        assert_eq!(before.ports[id].device, tables.ports[id].device);
    }
}

#[test]
fn mtu_of_a_tunnel_follows_the_port_its_packets_leave_by() {
    let mut d = both_modes();
    d.ports[1].mtu = Some(1400);
    let mut control = control(d.clone());
    let mtu = |c: &Control| c.ports().find(|(_, p)| p.name == "east").expect("a port").1.mtu;
    assert_eq!(mtu(&control), 1346);
    d.ports[1].mtu = Some(1280);
    control.apply(0, d.clone()).expect("valid");
    assert_eq!(mtu(&control), 1226);
    d.ipsec.tunnels[0].mtu = Some(1000);
    control.apply(0, d).expect("valid");
    assert_eq!(mtu(&control), 1000);
}

#[test]
fn tunnel_has_addresses_and_networks_like_any_port() {
    let mut d = both_modes();
    d.ipsec.tunnels[0].addresses = vec![address("10.255.0.1/30")];
    d.routes.push(route("10.3.0.0/16", &["10.255.0.2"]));
    let mut control = control(d);
    let tables = control.take_snapshot().expect("the first");
    let east = control.port_id("east").expect("a port");
    assert_eq!(lookup(&tables, "10.255.0.1"), Target::Local(east));
    assert_eq!(lookup(&tables, "10.255.0.2"), lookup(&tables, "10.1.0.1"));
    assert_eq!(lookup(&tables, "10.3.0.1"), lookup(&tables, "10.1.0.1"));
}

#[test]
fn state_of_an_sa_survives_whatever_is_not_its_identity() {
    let mut d = both_modes();
    let mut control = control(d.clone());
    let first = control.take_snapshot().expect("the first");
    let before = ipsec(&first).tunnels[0].out[0].clone();
    before.state.sequence.store(77, Relaxed);
    d.ipsec.sas[0].params.hop_limit = 200;
    control.apply(0, d.clone()).expect("valid");
    let tables = control.take_snapshot().expect("changed");
    let after = &ipsec(&tables).tunnels[0].out[0];
    assert_eq!((after.params.hop_limit, after.id), (200, before.id));
    assert!(Arc::ptr_eq(&after.state, &before.state));
    assert!(Arc::ptr_eq(&ipsec(&tables).spds[0], &ipsec(&first).spds[0]), "nothing of it changed");
    // Gone for a while and back: no number is given out twice.
    let mut without = d.clone();
    without.ipsec.tunnels.clear();
    without.ipsec.sas.drain(..2);
    without.routes.remove(0);
    control.apply(0, without).expect("valid");
    control.apply(0, d).expect("valid");
    let tables = control.take_snapshot().expect("changed");
    assert_eq!(ipsec(&tables).tunnels[0].out[0].state.sequence.load(Relaxed), 77);
}

#[test]
fn aead_key_is_never_started_again_under_another_spi() {
    let mut d = both_modes();
    let mut control = control(d.clone());
    d.ipsec.sas[0].params.spi = 0x1003;
    let errors = control.apply(0, d.clone()).expect_err("the key is spent");
    assert_eq!(
        errors.iter().map(|e| e.to_string()).collect::<Vec<_>>(),
        ["sa east-out: its key was used with spi 0x1001, and an AEAD key must not start again \
          (RFC 4106 3.1); give it a new key"]
    );
    d.ipsec.sas[0].keys = sa("", Out, 0x1003, (HERE, THERE)).keys;
    control.apply(0, d).expect("valid");
}

#[test]
fn removed_inbound_sa_is_accepted_until_it_has_drained() {
    let mut d = both_modes();
    let mut control = control(d.clone());
    let before = control.take_snapshot().expect("the first");
    for (at, name) in [(1, "east-in"), (3, "site-in")] {
        let old = std::mem::replace(&mut d.ipsec.sas[at], sa("", In, 0x3000 + at as u32, (THERE, HERE)));
        d.ipsec.sas[at].name = format!("{name}-2");
        assert_eq!(old.name, name);
    }
    d.ipsec.tunnels[0].inbound = vec!["east-in-2".into()];
    d.ipsec.spds[0].policies[0].inbound = vec!["site-in-2".into()];
    control.apply(5, d).expect("valid");
    let tables = control.take_snapshot().expect("changed");
    for spi in [0x1002, 0x2002, 0x3001, 0x3003] {
        assert!(inbound(&tables, spi).is_some(), "{spi:#x}");
    }
    assert!(Arc::ptr_eq(inbound(&tables, 0x1002).expect("drains"), inbound(&before, 0x1002).expect("was")));
    let listed = &ipsec(&tables).spds[0].policies[0].inbound;
    assert!(listed.contains(&inbound(&tables, 0x2002).expect("drains").id), "the inner check knows it");
    assert!(
        Arc::ptr_eq(&ipsec(&tables).spds[0].outbound, &ipsec(&before).spds[0].outbound),
        "the same rules"
    );
    assert!(control.poll_at().is_some_and(|due| due <= 5 + DRAIN));
    control.tick(5 + DRAIN - 1);
    assert!(control.take_snapshot().is_none());
    control.tick(5 + DRAIN);
    let tables = control.take_snapshot().expect("drained");
    assert!(inbound(&tables, 0x1002).is_none() && inbound(&tables, 0x2002).is_none());
    assert_eq!(ipsec(&tables).spds[0].policies[0].inbound.len(), 1);
}

#[test]
fn sa_whose_tunnel_is_gone_does_not_drain() {
    let mut d = both_modes();
    let mut control = control(d.clone());
    d.ipsec.tunnels.clear();
    d.ipsec.sas.drain(..2);
    d.routes.remove(0);
    control.apply(0, d).expect("valid");
    let tables = control.take_snapshot().expect("changed");
    assert!(inbound(&tables, 0x1002).is_none());
}

#[test]
fn snapshots_share_ipsec_that_did_not_change() {
    let mut d = both_modes();
    let mut control = control(d.clone());
    let before = control.take_snapshot().expect("the first");
    control.link_changed(0, testbed::link("eth0", false));
    let tables = control.take_snapshot().expect("changed");
    assert!(Arc::ptr_eq(before.ipsec.as_ref().expect("some"), tables.ipsec.as_ref().expect("some")));
    d.ports[0].addresses.clear();
    control.apply(0, d).expect("valid");
    let tables = control.take_snapshot().expect("changed");
    assert!(Arc::ptr_eq(before.ipsec.as_ref().expect("some"), tables.ipsec.as_ref().expect("some")));
}

/// The same with both SAs of the tunnel in UDP.
fn behind_a_nat() -> Desired {
    let mut d = both_modes();
    for sa in &mut d.ipsec.sas[..2] {
        sa.params.udp = Some(UdpPorts { source: 4500, destination: 4500 });
    }
    d
}

#[test]
fn nat_hears_from_us_after_20_s_of_silence() {
    let mut control = control(behind_a_nat());
    let tables = control.take_snapshot().expect("the first");
    control.tick(KEEPALIVE - 1);
    assert_eq!(keepalives(&mut control), []);
    control.tick(KEEPALIVE);
    let wan = control.port_id("wan").expect("a port");
    let sent = keepalives(&mut control);
    assert_eq!(sent.len(), 1);
    let (port, frame) = &sent[0];
    assert_eq!((*port, &frame[..6]), (wan, &[2, 0, 0, 0, 0, 2][..]));
    // 20 + 8 + 1 bytes of IP, one of them payload.
    assert_eq!((frame.len(), frame[14 + 28]), (14 + 29, 0xff));
    // Traffic is as good.
    ipsec(&tables).tunnels[0].out[0].state.used.store(2 * KEEPALIVE - 5, Relaxed);
    control.tick(2 * KEEPALIVE);
    assert_eq!(keepalives(&mut control), []);
    control.tick(3 * KEEPALIVE);
    assert_eq!(keepalives(&mut control).len(), 1);
    assert!(control.poll_at().is_some_and(|due| due > 3 * KEEPALIVE));
}

fn keepalives(control: &mut Control) -> Vec<(PortId, Vec<u8>)> {
    let udp = |frame: &[u8]| frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&17);
    control.take_transmits().into_iter().filter(|(_, frame)| udp(frame)).collect()
}

#[test]
fn keepalive_waits_for_a_neighbor() {
    let mut d = behind_a_nat();
    d.neighbors.clear();
    d.routes.truncate(1);
    let mut control = control(d.clone());
    control.tick(KEEPALIVE);
    assert_eq!(keepalives(&mut control), []);
    d.neighbors = vec![neighbor("wan", THERE, 2)];
    control.apply(KEEPALIVE, d).expect("valid");
    control.tick(KEEPALIVE + SECOND);
    assert_eq!(keepalives(&mut control).len(), 1);
}

#[test]
fn each_limit_of_an_sa_is_told_once_and_shown_while_it_lasts() {
    let mut d = both_modes();
    d.ipsec.sas[0].params.soft.packets = Some(10);
    d.ipsec.sas[0].params.hard.packets = Some(20);
    d.ipsec.sas[1].params.hard.seconds = Some(60);
    let mut control = control(d);
    let tables = control.take_snapshot().expect("the first");
    let out = ipsec(&tables).tunnels[0].out[0].clone();
    let told =
        |control: &mut Control| control.take_sa_events().iter().map(|e| e.to_string()).collect::<Vec<_>>();
    control.tick(SECOND);
    assert_eq!(told(&mut control), Vec::<String>::new());
    out.state.packets.store(10, Relaxed);
    control.tick(2 * SECOND);
    assert_eq!(told(&mut control), ["sa east-out: has reached its soft lifetime; rekey it"]);
    control.tick(3 * SECOND);
    assert_eq!(told(&mut control), Vec::<String>::new());
    assert_eq!(control.notices().len(), 1);
    out.state.packets.store(20, Relaxed);
    out.state.sequence.store(u64::from(u32::MAX) - 5, Relaxed);
    control.tick(60 * SECOND);
    let mut all = told(&mut control);
    all.sort();
    assert_eq!(
        all,
        [
            "sa east-in: has reached its hard lifetime and carries nothing more; replace it",
            "sa east-out: has 5 sequence numbers left; rekey it, or use esn",
            "sa east-out: has reached its hard lifetime and carries nothing more; replace it",
        ]
    );
    assert_eq!(control.notices().len(), 2);
}

#[test]
fn learned_path_mtu_is_forgotten_in_time() {
    let mut control = control(both_modes());
    let tables = control.take_snapshot().expect("the first");
    let state = &ipsec(&tables).tunnels[0].out[0].state;
    state.path_mtu.store(1280, Relaxed);
    state.path_mtu_until.store(5 * SECOND, Relaxed);
    control.tick(4 * SECOND);
    assert_eq!(control.sas(4 * SECOND)[0].path_mtu, Some((1280, SECOND)));
    control.tick(5 * SECOND);
    assert_eq!((state.path_mtu.load(Relaxed), control.sas(5 * SECOND)[0].path_mtu), (0, None));
}

#[test]
fn views_name_things_and_count() {
    let mut d = both_modes();
    d.ipsec.sas[0].params.hard.bytes = Some(1000);
    let mut control = control(d.clone());
    let tables = control.take_snapshot().expect("the first");
    let out = &ipsec(&tables).tunnels[0].out[0];
    out.state.bytes.store(300, Relaxed);
    out.state.packets.store(3, Relaxed);
    out.state.used.store(5, Relaxed);
    out.state.fail(Reason::SaExpired);
    ipsec(&tables).spds[0].policies[0].counters.count(Out, 99);
    let sas = control.sas(7);
    assert_eq!(sas.len(), 4);
    assert_eq!((&*sas[0].name, sas[0].spi, &*sas[0].backend), ("east-out", 0x1001, "clear"));
    assert_eq!((sas[0].hard_left.bytes, sas[0].idle, sas[1].idle), (Some(700), Some(2), None));
    assert_eq!(sas[0].failures, [(Reason::SaExpired, 1)]);
    assert_eq!(sas[0].users, ["tunnel east"]);
    assert_eq!(sas[3].users, ["spd border policy site"]);
    let tunnels = control.tunnels();
    assert_eq!((&*tunnels[0].name, tunnels[0].mtu, tunnels[0].out_bytes), ("east", 1446, 300));
    let policies = control.policies();
    assert_eq!((&*policies[0].spd, policies[0].out_packets, policies[0].out_bytes), ("border", 1, 99));
    assert_eq!(control.spds()[0].rules, (1, 1));
    assert!(!format!("{sas:?}").contains("[2, 0"), "no key in sight");
    // Counters of a policy survive changes of others.
    d.ipsec.spds[0].policies.push(policy("rest", Action::Bypass, "", ""));
    control.apply(0, d).expect("valid");
    assert_eq!(control.policies()[0].out_packets, 1);
}

#[test]
fn tunnel_in_a_tunnel_is_smaller_and_one_routed_by_itself_settles() {
    let mut d = both_modes();
    d.ipsec.sas.push(sa("deep-out", Out, 0x3001, (HERE, "10.1.0.9")));
    d.ipsec.tunnels.push(tunnel("deep", &["deep-out"], &[]));
    let mtu = |c: &Control, name: &str| c.ports().find(|(_, p)| p.name == name).expect("a port").1.mtu;
    let mut all = control(d.clone());
    // 1446 - 52 = 1394, 1392 in whole words, two of them trailer.
    assert_eq!((mtu(&all, "east"), mtu(&all, "deep")), (1446, 1390));
    d.routes[0] = route("10.1.0.0/16", &["@deep"]);
    all.apply(0, d).expect("valid");
    assert_eq!((mtu(&all, "east"), mtu(&all, "deep")), (1446, 1446), "nothing is known of where it leads");
}

#[test]
fn tunnel_comes_and_goes_with_its_routes() {
    let mut d = both_modes();
    let mut control = control(d.clone());
    let before = control.take_snapshot().expect("the first");
    assert!(matches!(lookup(&before, "10.1.0.1"), Target::Adjacent(_)));
    // Without an outbound SA nothing can be sent there.
    d.ipsec.tunnels[0].out.clear();
    d.ipsec.sas.remove(0);
    control.apply(0, d).expect("valid");
    let tables = control.take_snapshot().expect("changed");
    assert_eq!(lookup(&tables, "10.1.0.1"), Target::NoRoute);
    control.apply(0, both_modes()).expect("valid");
    let tables = control.take_snapshot().expect("changed");
    assert_eq!(lookup(&tables, "10.1.0.1"), lookup(&before, "10.1.0.1"));
}
