//! Random mixes through a gateway of both modes: plain packets, ESP that is right, mangled, replayed, nested
//! or in fragments, ICMP errors about what it sent, and tables that change in between.
//!
//! Promises checked: no panic; the ledger balances after every batch; no buffer is lost; what a trace says
//! of a single frame, the router does with it; small flow caches say nothing the ordered scan does not.

use std::sync::Arc;

use super::router::{Bench, frame};
use super::sample::{self, LAN, Net, WAN, address};
use crate::fuzz_input::Input;
use crate::id::PortId;
use crate::ipsec::esp::fuzz::Toy;
use crate::ipsec::esp::{self, Outcome};
use crate::ipsec::sa::{FragmentWhen, UdpPorts};
use crate::ipsec::spd::{AddressRange, LookupSpec, PolicyIndex, PortRange, RuleSet, Selector};
use crate::ipsec::{
    Action, Awaited, Direction, FlowCaches, Inbound, Ipsec, Mode, Params, Policy, Queue, Sa, SaId, SaState,
    Sad, Spd, SpdId, Suite, Tunnel, TunnelId,
};
use crate::packet::{BATCH, DeviceId, Frame};
use crate::router::Router;
use crate::router::ipsec::rules::packet_len;
use crate::tables::{PortKind, Tables, Target};
use crate::time::{Nanos, SECOND};
use crate::trace::trace;
use crate::verdict::Verdict;
use crate::wire::flow::FlowKey;
use crate::wire::{build, icmpv4, protocol};

/// More than a batch and all that can be held: every frame of it may be cut in two, and answered.
const BUFFERS: usize = 2048;

const HERE: [&str; 2] = ["192.0.2.1", "2001:db8:1::1"];
const THERE: [&str; 2] = ["192.0.2.2", "2001:db8:1::2"];

/// One gateway: both ends of its SAs, and the tables it may have.
struct Site {
    /// Sealing for it.
    there: Vec<Sa>,
    snapshots: Vec<Tables>,
}

fn sa(id: u32, params: Params) -> Sa {
    let state = Arc::new(SaState::new(&params, 0));
    Sa::new(SaId(id), format!("sa-{id}"), params.clone(), Arc::new(Toy(params.suite)), state)
}

fn params(direction: Direction, spi: u32, six: usize, flags: u8) -> Params {
    let ends = match direction {
        Direction::Out => (address(HERE[six]), address(THERE[six])),
        Direction::In => (address(THERE[six]), address(HERE[six])),
    };
    let mut params = Params::new(direction, spi, Mode::Tunnel, ends, Suite::AES_GCM_128);
    params.udp = (flags & 1 != 0).then_some(UdpPorts { source: 4500, destination: 4500 });
    params.fragment = if flags & 2 != 0 { FragmentWhen::After } else { FragmentWhen::Before };
    params
}

fn selector(six: usize) -> Selector {
    let ends = [("0.0.0.0", "255.255.255.255"), ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")][six];
    let all = AddressRange { first: address(ends.0), last: address(ends.1) };
    let any = PortRange::ANY;
    Selector {
        source: all,
        destination: all,
        protocol: None,
        source_ports: any,
        destination_ports: any,
        icmp: any,
    }
}

/// The sample network with a tunnel to 10.30/16 and 2001:db8:30::/48 and an SPD before its WAN port.
fn net() -> (Net, PortId, DeviceId, PortId) {
    let mut net = Net::new();
    let tunnel = net.add_virtual("vti", PortKind::Tunnel, 1400, &["10.8.0.1/30", "fd00:8::1/64"]);
    let egress = net.add_enforcement_point(WAN);
    let inside = net.add_virtual("spd", PortKind::Policy, 1500, &[]);
    for prefix in ["10.30.0.0/16", "2001:db8:30::/48"] {
        let id = net.adjacency(tunnel, address("0.0.0.0"), true);
        if let Ok(prefix) = prefix.parse() {
            net.route(prefix, Target::Adjacent(id));
        }
    }
    (net, tunnel, egress, inside)
}

/// Made once: a route table is 64 MiB, and an input takes microseconds.
fn plain() -> &'static ([Tables; 3], PortId, DeviceId, PortId) {
    static PLAIN: std::sync::OnceLock<([Tables; 3], PortId, DeviceId, PortId)> = std::sync::OnceLock::new();
    PLAIN.get_or_init(|| {
        let (mut net, tunnel, egress, inside) = net();
        let first = net.tables();
        net.forget(WAN, address("192.0.2.2"));
        let unresolved = net.tables();
        net.resolve(WAN, address("192.0.2.2"));
        net.set_mtu(WAN, 700);
        ([first, unresolved, net.tables()], tunnel, egress, inside)
    })
}

impl Site {
    fn new(flags: u8) -> Site {
        let (tables, tunnel, egress, inside) = plain();
        let six = usize::from(flags >> 7);
        let out = Arc::new(sa(1, params(Direction::Out, 0x1001, six, flags)));
        let policy_out = Arc::new(sa(3, params(Direction::Out, 0x1003, 0, flags >> 2)));
        let back = [(2, six, flags), (4, 0, flags >> 2)];
        let inbound = back.map(|(id, six, flags)| sa(id, params(Direction::In, 0x1000 + id, six, flags)));
        let there =
            inbound.iter().map(|s| sa(s.id.0, Params { direction: Direction::Out, ..s.params.clone() }));
        let there = there.collect();
        let [by_tunnel, by_policy] = inbound.map(Arc::new);
        let devices = tables[0].devices.len();
        let mut queues = vec![Queue::Hardware; devices];
        let device_of = |port: PortId| tables[0].ports[port.index()].device;
        queues[device_of(*tunnel).index()] = Queue::Tunnel(TunnelId(0));
        queues[egress.index()] = Queue::Enforcement { spd: SpdId(0), port: WAN, device: device_of(WAN) };
        queues[device_of(*inside).index()] = Queue::Policy(SpdId(0));
        let mut enforcement = vec![None; tables[0].ports.len()];
        enforcement[WAN.index()] = Some(SpdId(0));
        // So few buckets that flows fight for them.
        let lookup = LookupSpec { caches: [Some(16); 4], oracle: true, ..LookupSpec::default() };
        let ipsec = Ipsec {
            sad: Arc::new(Sad::new([
                Inbound { sa: by_tunnel, device: device_of(*tunnel), spd: None },
                Inbound { sa: by_policy.clone(), device: device_of(*inside), spd: Some(SpdId(0)) },
            ])),
            outbound: Arc::new([out.clone(), policy_out.clone()].into_iter().collect()),
            spds: vec![Arc::new(spd(policy_out.clone(), by_policy.id, false))],
            tunnels: [Tunnel { name: "vti".into(), port: *tunnel, out: vec![out] }].into(),
            queues: queues.into(),
            enforcement: enforcement.into(),
            hosts: Arc::default(),
            udp_ports: [4500].into(),
            awaited: None,
            caches: Arc::new(FlowCaches::new(&lookup, 0x5eed)),
            oracle: lookup.oracle,
        };
        // The same policies in another order.
        let turned = vec![Arc::new(Spd { epochs: [3, 4], ..spd(policy_out, by_policy.id, true) })];
        // And there packets wait for SAs.
        let awaited = Some(Awaited { spd: SpdId(0), others: Arc::default() });
        let turned = Arc::new(Ipsec { spds: turned, awaited, ..ipsec.clone() });
        let both = [Arc::new(ipsec), turned];
        let with = both.iter().cycle().map(|ipsec| Some(ipsec.clone()));
        let snapshots = tables.iter().zip(with).map(|(t, ipsec)| Tables { ipsec, ..t.clone() });
        Site { there, snapshots: snapshots.collect() }
    }
}

/// Ports above 1100 as cleartext, TCP discarded, everything else protected, and that first if `turned`.
fn spd(out: Arc<Sa>, inbound: SaId, turned: bool) -> Spd {
    let policy = |name: &str, action, out: &[Arc<Sa>], inbound: &[SaId]| {
        let (name, out, inbound) = (name.into(), out.to_vec(), inbound.to_vec());
        Arc::new(Policy { name, action, out, inbound, counters: Arc::default() })
    };
    let ports = PortRange { first: 1100, last: u16::MAX };
    let rules = || {
        let clear = Selector { protocol: Some(protocol::UDP), source_ports: ports, ..selector(0) };
        let tcp = Selector { protocol: Some(protocol::TCP), ..selector(0) };
        let all = [selector(0), selector(1)].map(|s| (s, PolicyIndex(2)));
        let some = [(clear, PolicyIndex(0)), (tcp, PolicyIndex(1))];
        let mut rules: Vec<_> = some.into_iter().chain(all).collect();
        if turned {
            rules.reverse();
        }
        Arc::new(RuleSet::new(rules))
    };
    Spd {
        name: "site".into(),
        policies: vec![
            policy("clear", Action::Bypass, &[], &[]),
            policy("no", Action::Discard, &[], &[]),
            policy("site", Action::Protect, &[out], &[inbound]),
        ],
        outbound: rules(),
        inbound: rules(),
        default: Action::Discard,
        epochs: [1, 2],
    }
}

/// Reads `data` as batches of frames and changes of tables.
pub fn fuzz_gate(data: &[u8]) {
    let mut input = Input(data);
    let site = Site::new(input.byte());
    let router = if input.byte() & 1 == 0 { Router::new() } else { Router::new().without_fast_path() };
    let mut bench = Bench::new(router, BUFFERS);
    let mut tables = site.snapshots[0].clone();
    let (mut now, mut seen) = (0, Vec::new());
    while !input.0.is_empty() {
        let count = usize::from(input.byte()) % BATCH + 1;
        let frames: Vec<_> = (0..count).map_while(|_| next(&mut input, &site, &seen)).collect();
        now += Nanos::from(input.byte()) * SECOND / 64;
        seen.clear();
        match &frames[..] {
            [(device, bytes)] if bytes.len() < 1600 => {
                // What waits goes first: a new snapshot and the time would set it free in the same batch.
                bench.forward(now, &tables, &[]);
                seen = bench.left();
                agrees(&mut bench, now, &tables, *device, bytes);
            }
            frames => bench.forward(now, &tables, frames),
        }
        seen.extend(bench.left());
        let choice = input.byte();
        if choice.is_multiple_of(8) {
            let other = &site.snapshots[usize::from(choice >> 3) % site.snapshots.len()];
            let ipsec = if choice == 248 { None } else { other.ipsec.clone() };
            tables = Tables { generation: tables.generation + 1, ipsec, ..other.clone() };
        }
    }
    bench.router.shutdown(&mut bench.pool);
    bench.check();
    assert_eq!(bench.router.ledger().held, 0);
    let lookups = bench.router.lookups();
    assert!(lookups.ways.iter().all(|way| way.disagreed == 0), "{lookups:?}");
}

/// A frame whose trace was read before.
fn agrees(bench: &mut Bench, now: Nanos, tables: &Tables, device: DeviceId, bytes: &[u8]) {
    let said = trace(tables, &FlowKey::new(0), device, bytes);
    let before = bench.router.ledger().clone();
    bench.forward(now, tables, &[(device, bytes.to_vec())]);
    let after = bench.router.ledger();
    match said.verdict {
        Verdict::Forward(_) => assert_eq!(after.forwarded, before.forwarded + 1, "{said}"),
        Verdict::Local => assert_eq!(after.local, before.local + 1, "{said}"),
        // A fragment may have been the last one; a full queue loses another frame.
        Verdict::Held => {}
        Verdict::Drop(reason) => assert_eq!(after.drops.of(reason), before.drops.of(reason) + 1, "{said}"),
    }
}

/// A frame of any kind.
fn next(input: &mut Input<'_>, site: &Site, seen: &[(DeviceId, Vec<u8>)]) -> Option<(DeviceId, Vec<u8>)> {
    if input.0.is_empty() {
        return None;
    }
    let kind = input.byte();
    let flags = input.byte();
    let family = usize::from(flags & 1);
    let len = [0, 6, 200, 600, 1340, 1400][usize::from(flags >> 1) % 6];
    match kind % 8 {
        0 | 1 => frame(input),
        2 | 3 => {
            // To the tunnel, or to the enforced port.
            let near = ["10.0.0.2", "fd00::2"][family];
            let far = [["10.30.0.9", "2001:db8:30::9"], ["10.100.0.9", "2001:db8:100::9"]];
            let to = far[usize::from(kind >> 3 & 1)][family];
            let mut packet = build::Frame::ip(address(near), address(to))?;
            packet = packet.macs(sample::mac(LAN), sample::neighbor_mac(LAN, 2));
            if flags & 64 != 0 {
                packet = packet.dont_fragment();
            }
            let mut bytes = packet.udp(1000 + u16::from(input.byte()), 9, &vec![7; len]);
            if flags & 128 != 0 {
                // Link padding.
                bytes.extend([0xaa; 60]);
            }
            Some((sample::LAN_DEVICE, bytes))
        }
        4..=6 => Some(sealed(input, site, kind, family, len)),
        _ => error_about(input, seen),
    }
}

/// A frame from the far end: sealed, and perhaps sealed again, mangled or cut.
fn sealed(input: &mut Input<'_>, site: &Site, kind: u8, family: usize, len: usize) -> (DeviceId, Vec<u8>) {
    let (far, near) = ([["10.30.0.9", "10.0.0.2"], ["2001:db8:30::9", "fd00::2"]])[family].into();
    let inner = build::Frame::ip(address(far), address(near)).map(|f| f.packet());
    let mut packet = inner.map_or(Vec::new(), |f| f.udp(1000 + u16::from(input.byte()), 9, &vec![7; len]));
    for _ in 0..=usize::from(input.byte().is_multiple_of(16)) * 5 {
        let sa = &site.there[usize::from(kind >> 3) % site.there.len()];
        packet = seal(sa, &packet);
    }
    match input.byte() % 8 {
        0 => {
            let at = input.word() % packet.len().max(1);
            if let Some(byte) = packet.get_mut(at) {
                *byte ^= input.byte();
            }
        }
        1 => packet.truncate(input.word() % (packet.len() + 1)),
        2 if packet.first() == Some(&0x45) && packet.len() > 200 => packet = cut(&packet, input.byte()),
        _ => {}
    }
    let mut bytes = [sample::mac(WAN), sample::neighbor_mac(WAN, 2)].concat();
    bytes.extend(if packet.first().is_some_and(|b| b >> 4 == 6) { [0x86, 0xdd] } else { [0x08, 0x00] });
    bytes.extend(packet);
    bytes.truncate(1700);
    (sample::WAN_DEVICE, bytes)
}

fn seal(sa: &Sa, packet: &[u8]) -> Vec<u8> {
    let buffer = vec![0; packet.len() + 1024].into_boxed_slice();
    let Ok(frame) = Frame::from_bytes(buffer, packet, DeviceId(0)) else { return packet.to_vec() };
    let mut frames = [frame];
    let mut outcomes = [Outcome::Done];
    esp::seal(sa, 0, &mut frames, &mut outcomes);
    frames[0].data().to_vec()
}

/// The first or the last part of an outer IPv4 packet.
fn cut(packet: &[u8], choice: u8) -> Vec<u8> {
    let half = 20 + 96;
    let (from, to, offset) = if choice & 1 == 0 { (20, half, 0) } else { (half, packet.len(), 96) };
    let mut piece = [&packet[..20], &packet[from..to]].concat();
    let len = piece.len() as u16;
    let mut ip = crate::wire::Ipv4::new_unchecked(&mut piece[..]);
    ip.set_total_len(len);
    ip.set_ident(u16::from(choice >> 4));
    ip.set_fragment(false, choice & 1 == 0, offset);
    ip.fill_checksum();
    piece
}

/// An ICMP error about something the gateway sent.
fn error_about(input: &mut Input<'_>, seen: &[(DeviceId, Vec<u8>)]) -> Option<(DeviceId, Vec<u8>)> {
    let (_, about) = seen.get(usize::from(input.byte()) % seen.len().max(1))?;
    let packet = about.get(14..)?;
    let packet = packet.get(..packet_len(packet)).unwrap_or(packet);
    let mut bytes = vec![0; 600];
    let error = icmpv4::Error::FragmentationNeeded { mtu: input.word() as u16 };
    let len = icmpv4::write_error(&mut bytes, error, [192, 0, 2, 2].into(), packet, 64, 1).unwrap_or(0);
    bytes.truncate(len);
    let mut frame = [sample::mac(WAN), sample::neighbor_mac(WAN, 2)].concat();
    frame.extend([0x08, 0x00]);
    frame.extend(bytes);
    Some((sample::WAN_DEVICE, frame))
}
