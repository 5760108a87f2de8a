//! Random frames through the router, whole, cut and mutated: what must hold for each of them.
//!
//! Promises checked: no panic; the ledger balances after every batch and no buffer is lost; the fast path
//! and the slow path do the same to every frame, byte for byte; a trace tells what forwarding does.

use std::net::IpAddr;
use std::sync::OnceLock;

use super::sample::{self, Net};
use crate::fuzz_input::Input;
use crate::id::PortId;
use crate::packet::{BATCH, Batch, DeviceId, Frame, Pool};
use crate::router::sampler::{Link, Sampler};
use crate::router::{Output, Router};
use crate::tables::{ReversePath, Tables};
use crate::time::{Nanos, SECOND};
use crate::trace::trace;
use crate::verdict::{Ledger, Reason, Verdict};
use crate::wire::flow::FlowKey;
use crate::wire::{Ipv4, build};

type Heap = Box<[u8]>;

/// Enough that no test input runs out: what wants for buffers is tested by itself.
const BUFFERS: usize = 512;
/// Enough for one frame: itself, its fragments and an answer are fewer.
const BUFFERS_OF_ONE: usize = 16;

/// A router with everything it touches.
pub(super) struct Bench {
    pub router: Router<Heap>,
    pub pool: Pool<Heap>,
    /// All there are.
    buffers: usize,
    out: Output<Heap>,
}

impl Bench {
    pub fn new(mut router: Router<Heap>, buffers: usize) -> Self {
        router.set_sampler(Some(Sampler::new(Reason::ALL, usize::MAX)));
        Bench { router, pool: Pool::boxed(buffers), buffers, out: Output::new(3) }
    }

    pub fn forward(&mut self, now: Nanos, tables: &Tables, frames: &[(DeviceId, Vec<u8>)]) {
        let mut batch = Batch::new();
        for (device, bytes) in frames {
            let Some(buffer) = self.pool.take() else { break };
            match Frame::from_bytes(buffer, bytes, *device) {
                Ok(frame) => batch.push(frame).expect("at most a batch of frames"),
                Err(buffer) => self.pool.put(buffer),
            }
        }
        let mut copied = self.router.ledger().drops.clone();
        self.router.sampler().expect("set").allow(u32::MAX);
        self.router.forward(now, tables, &mut batch, &mut self.pool, &mut self.out);
        self.router.tick(now, tables, &mut self.pool, &mut self.out);
        self.router.taken(tables, &self.out);
        self.check();
        // Whatever is dropped is copied, once, with its reason; what has no link header begins with IP.
        for sample in self.router.sampler().expect("set").drain().1 {
            copied.add(sample.reason, 1);
            let first = sample.data.first().map_or(4, |byte| byte >> 4);
            assert!(sample.link == Link::Ethernet || matches!(first, 4 | 6), "{sample:?}");
        }
        assert_eq!(copied, self.router.ledger().drops);
    }

    pub fn check(&self) {
        assert_eq!(self.router.ledger().balance(), 0, "{:?}", self.router.ledger());
        let out = self.out.tx.iter().map(Vec::len).sum::<usize>() + self.out.punt.len();
        assert_eq!(self.pool.free() + self.router.held() + out, self.buffers, "buffers are lost");
    }

    /// Everything that left, emptied.
    pub fn left(&mut self) -> Vec<(DeviceId, Vec<u8>)> {
        let punt = self.out.punt.drain(..).map(|(_, frame)| frame);
        let frames: Vec<_> = self.out.tx.iter_mut().flat_map(|ring| ring.drain(..)).chain(punt).collect();
        let left = frames.iter().map(|frame| (frame.device, frame.data().to_vec())).collect();
        frames.into_iter().for_each(|frame| self.pool.put(frame.into_buffer()));
        left
    }
}

/// The tables before and after one neighbour answered, and each with ports that look at sources. Made once: a route table is 64 MiB, and an input
/// takes microseconds.
fn snapshots() -> &'static [[Tables; 2]; 2] {
    static SNAPSHOTS: OnceLock<[[Tables; 2]; 2]> = OnceLock::new();
    SNAPSHOTS.get_or_init(|| {
        let mut net = Net::new();
        let first = net.tables();
        net.resolve(sample::WAN, sample::address("192.0.2.66"));
        let plain = [first, net.tables()];
        let checked = plain.clone().map(|tables| {
            let mut ports = tables.ports.to_vec();
            ports[sample::LAN.index()].reverse_path = ReversePath::Strict;
            ports[sample::WAN.index()].reverse_path = ReversePath::Loose;
            ports[sample::TUN.index()].reverse_path = ReversePath::Strict;
            Tables { ports: ports.into(), ..tables }
        });
        [plain, checked]
    })
}

/// Reads `data` as batches of frames, most of them nearly right, and forwards them.
pub fn fuzz_router(data: &[u8]) {
    let mut input = Input(data);
    let [first, resolved] = &snapshots()[usize::from(input.byte() % 2)];
    let mut tables = first.clone();
    let mut fast = Bench::new(Router::new(), BUFFERS);
    let mut slow = Bench::new(Router::new().without_fast_path(), BUFFERS);
    let mut now = 0;
    while !input.0.is_empty() {
        let count = usize::from(input.byte()) % BATCH + 1;
        let frames: Vec<_> = (0..count).map_while(|_| frame(&mut input)).collect();
        for (device, bytes) in &frames {
            trace_agrees(&tables, *device, bytes);
        }
        now += Nanos::from(input.byte()) * SECOND / 64;
        fast.forward(now, &tables, &frames);
        slow.forward(now, &tables, &frames);
        assert_eq!(fast.router.ledger(), slow.router.ledger());
        assert_eq!(fast.router.port_counters(), slow.router.port_counters());
        assert_eq!(fast.out.events, slow.out.events);
        assert_eq!(fast.left(), slow.left());
        if input.byte().is_multiple_of(8) {
            tables = Tables { generation: tables.generation + 1, ..resolved.clone() };
        }
    }
    for bench in [&mut fast, &mut slow] {
        bench.router.shutdown(&mut bench.pool);
        bench.check();
        assert_eq!(bench.router.ledger().held, 0);
    }
}

/// What a trace says of a frame, the router does with it.
fn trace_agrees(tables: &Tables, device: DeviceId, bytes: &[u8]) {
    let said = trace(tables, &FlowKey::new(0), device, bytes);
    let mut bench = Bench::new(Router::new(), BUFFERS_OF_ONE);
    bench.forward(0, tables, &[(device, bytes.to_vec())]);
    let Ledger { received, forwarded, local, held, drops, .. } = bench.router.ledger().clone();
    if received == 0 {
        return; // too large for a buffer
    }
    match said.verdict {
        Verdict::Forward(port) => {
            assert_eq!(forwarded, 1, "{said}");
            assert!(bench.router.port_counters()[port.index()].tx_packets > 0, "{said}");
        }
        Verdict::Local => assert_eq!(local, 1, "{said}"),
        Verdict::Held => assert_eq!(held, 1, "{said}"),
        Verdict::Drop(reason) => assert_eq!(drops.of(reason), 1, "{said}"),
    }
}

/// A frame from a template, then perhaps mutated, mended and cut; or any bytes at all.
pub(super) fn frame(input: &mut Input<'_>) -> Option<(DeviceId, Vec<u8>)> {
    if input.0.is_empty() {
        return None;
    }
    let port = PortId(u16::from(input.byte()) % 5);
    let device = [0, 1, 2, 0, 0][port.index()];
    let kind = input.byte();
    if kind % 16 == 15 {
        let len = input.word() % 256;
        return Some((DeviceId(device), input.take(len).to_vec()));
    }
    let mut bytes = template(input, port, kind % 16);
    for _ in 0..input.byte() % 4 {
        let at = input.word() % bytes.len().min(128);
        bytes[at] = input.byte();
    }
    if !input.byte().is_multiple_of(4)
        && let Some(mut packet) = bytes.get_mut(14..).and_then(|b| Ipv4::parse_header(b).ok())
    {
        packet.fill_checksum();
    }
    if input.byte().is_multiple_of(8) {
        bytes.truncate(input.word() % (bytes.len() + 1));
    }
    Some((DeviceId(device), bytes))
}

/// Destinations of every kind of route, then of every kind of no route.
const DESTINATIONS: [[&str; 2]; 16] = [
    ["10.100.0.9", "2001:db8:100::9"],
    ["10.200.0.9", "2001:db8:200::9"],
    ["10.95.0.9", "2001:db8:95::9"],
    ["10.96.0.9", "2001:db8:96::9"],
    ["10.9.0.9", "2001:db8:9::9"],
    ["10.97.0.9", "2001:db8:97::9"],
    ["10.99.0.9", "2001:db8:99::9"],
    ["10.0.0.2", "fd00::2"],
    ["10.0.0.77", "fd00::77"],
    ["10.0.0.1", "fd00::1"],
    ["192.0.2.1", "2001:db8:1::1"],
    ["10.0.0.255", "ff02::1"],
    ["255.255.255.255", "ff02::1:ff00:1"],
    ["224.0.0.5", "fe80::1"],
    ["8.8.8.8", "2001:db8:8::8"],
    ["127.0.0.1", "::1"],
];

const SOURCES: [[&str; 2]; 8] = [
    ["10.0.0.2", "fd00::2"],
    ["192.0.2.7", "2001:db8:1::7"],
    ["10.20.0.2", "fd00:20::2"],
    ["8.8.4.4", "2001:db8:8::4"],
    ["10.0.0.1", "fd00::1"],
    ["169.254.1.1", "fe80::77"],
    ["0.0.0.0", "::"],
    ["224.0.0.1", "::ffff:1.2.3.4"],
];

fn template(input: &mut Input<'_>, port: PortId, kind: u8) -> Vec<u8> {
    let family = usize::from(kind & 1);
    let dst = sample::address(DESTINATIONS[usize::from(input.byte()) % 16][family]);
    // Half of the sources are the first, so that most frames are ordinary.
    let src = usize::from(input.byte()) % 16;
    let src = sample::address(SOURCES[src.saturating_sub(8)][family]);
    let ttl = match input.byte() {
        ttl @ 0..=2 => ttl,
        ttl => ttl.max(3),
    };
    let to = match input.byte() {
        0 => [0xff; 6],
        1 => [2, 9, 9, 9, 9, 9],
        _ => sample::mac(port),
    };
    let Some(mut frame) = build::Frame::ip(src, dst) else { return Vec::new() };
    frame = frame.macs(to, sample::neighbor_mac(port, 2)).ttl(ttl);
    if port == sample::LAN_10 || port == sample::LAN_20 {
        frame = frame.vlan(port.0 * 10 - 20);
    }
    let len = [0, 6, 18, 200, 1290, 1472][usize::from(input.byte()) % 6];
    let (sport, payload) = (1000 + u16::from(input.byte()), vec![0x5a; len]);
    match (kind / 2, dst) {
        (0..=2, _) => frame.udp(sport, 9, &payload),
        (3, _) => frame.echo_request(sport, 1, &payload),
        (4, IpAddr::V4(_)) => frame.options(&[148, 4, 0, 0, 7, 3, 4]).udp(sport, 9, &payload),
        (4, IpAddr::V6(_)) => frame.extension(0, &[0, 5, 2, 0, 0, 1, 0]).udp(sport, 9, &payload),
        (5, _) => frame.fragment(usize::from(sport) * 8 % 4096, true).raw(17, &vec![1; len & !7]),
        (6, _) => frame.dont_fragment().udp(sport, 9, &payload),
        _ => frame.raw(89, &payload),
    }
}
