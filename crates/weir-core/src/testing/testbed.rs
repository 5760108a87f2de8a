//! A testbed in process, for benches: a source that copies frames from templates, a sink, and tables by hand.
//!
//! ```text
//! Source (templates of 2,000 flows) ─► Router ─► Sink (buffers back to the pool)
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::device::{Device, DeviceStats};
use crate::id::{AdjacencyId, Mac, PortId};
use crate::ipsec::spd::{AddressRange, PolicyIndex, RuleSet, Selector, SpdId};
use crate::ipsec::{Action, Ipsec, Policy, Queue, Spd};
use crate::packet::{BATCH, BUFFER_SIZE, Batch, Buffer, DeviceId, Frame, HEADROOM, Pool};
use crate::random::SplitMix64;
use crate::route::{Prefix4, Prefix6, RouteTable4, RouteTable6};
use crate::router::{Output, Router, breathe};
use crate::tables::{
    Adjacency, Device as DeviceEntry, Owner, Port, PortAddress, PortKind, ReversePath, Settings, Tables,
    Target,
};

const IN_MAC: Mac = [2, 0, 0, 0, 0, 1];
const OUT_MAC: Mac = [2, 0, 0, 0, 0, 2];
/// A 64-byte frame without its FCS.
const FRAME_LEN: usize = 60;
/// The field's campaigns use 2,000 flows.
const FLOWS: usize = 2000;
/// Next hops the routes are spread over.
const NEXT_HOPS: u32 = 8;
/// Buffers of the testbed: two batches, as many as ever are in flight, twice.
const BUFFERS: usize = 4 * BATCH;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Inet,
    Inet6,
    Mixed,
}

/// Copies template after template into buffers of the pool.
struct Source {
    templates: Vec<[u8; FRAME_LEN]>,
    at: usize,
}

impl Device<Box<[u8]>> for Source {
    fn rx(&mut self, pool: &mut Pool<Box<[u8]>>, batch: &mut Batch<Box<[u8]>>) -> usize {
        let room = batch.room();
        for _ in 0..room {
            let Some(mut buffer) = pool.take() else { break };
            let template = &self.templates[self.at];
            self.at = if self.at + 1 == self.templates.len() { 0 } else { self.at + 1 };
            buffer.bytes_mut()[HEADROOM..HEADROOM + FRAME_LEN].copy_from_slice(template);
            if batch.push(Frame::new(buffer, HEADROOM, FRAME_LEN, DeviceId(0))).is_err() {
                break;
            }
        }
        batch.len()
    }

    fn tx(&mut self, _: &mut Pool<Box<[u8]>>, _: &mut Vec<Frame<Box<[u8]>>>) -> usize {
        0
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        DeviceStats::default()
    }
}

/// Takes every frame and gives its buffer back.
struct Sink;

impl Device<Box<[u8]>> for Sink {
    fn rx(&mut self, _: &mut Pool<Box<[u8]>>, _: &mut Batch<Box<[u8]>>) -> usize {
        0
    }

    fn tx(&mut self, pool: &mut Pool<Box<[u8]>>, frames: &mut Vec<Frame<Box<[u8]>>>) -> usize {
        let count = frames.len();
        for frame in frames.drain(..) {
            pool.put(frame.into_buffer());
        }
        count
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        DeviceStats::default()
    }
}

pub struct Testbed {
    tables: Tables,
    devices: Vec<Box<dyn Device<Box<[u8]>>>>,
    router: Router<Box<[u8]>>,
    batch: Batch<Box<[u8]>>,
    pool: Pool<Box<[u8]>>,
    out: Output<Box<[u8]>>,
}

impl Testbed {
    pub fn new(family: Family, routes: usize) -> Self {
        let mut random = SplitMix64::new(7);
        let (tables, prefixes4, prefixes6) = tables(&mut random, family, routes);
        let templates = (0..FLOWS as u32)
            .map(|flow| match family {
                Family::Inet6 => frame6(&mut random, &prefixes6, flow),
                Family::Mixed if flow % 2 == 1 => frame6(&mut random, &prefixes6, flow),
                _ => frame4(&mut random, &prefixes4, flow),
            })
            .collect();
        Testbed {
            devices: vec![Box::new(Source { templates, at: 0 }), Box::new(Sink)],
            router: Router::new(),
            batch: Batch::new(),
            pool: Pool::new((0..BUFFERS).map(|_| vec![0; BUFFER_SIZE].into_boxed_slice())),
            out: Output::new(tables.devices.len()),
            tables,
        }
    }

    /// Puts an SPD of `policies` rules in front of the port packets leave by: each is for a host no packet goes to, and what
    /// none matches leaves as cleartext.
    pub fn behind_spd(mut self, policies: u32) -> Self {
        let host = |address: IpAddr| Selector {
            destination: AddressRange { first: address, last: address },
            ..Selector::within(if address.is_ipv4() { AddressRange::ANY_V4 } else { AddressRange::ANY_V6 })
        };
        let hosts = (1..=policies).flat_map(|n| {
            [IpAddr::V4(Ipv4Addr::from(n)), IpAddr::V6(Ipv6Addr::from(u128::from(n) << 64))]
                .map(|address| (host(address), PolicyIndex(n - 1)))
        });
        let rules = Arc::new(RuleSet::new(hosts.collect()));
        let policy = |n: u32| Policy {
            name: n.to_string(),
            action: Action::Discard,
            out: Vec::new(),
            inbound: Vec::new(),
            counters: Arc::default(),
        };
        let spd = Spd {
            name: "bench".into(),
            policies: (0..policies).map(|n| Arc::new(policy(n))).collect(),
            outbound: rules.clone(),
            inbound: rules,
            default: Action::Bypass,
            epochs: [0; 2],
        };
        let (port, device) = (PortId(1), DeviceId(1));
        let point = Queue::Enforcement { spd: SpdId(0), port, device };
        self.tables.ipsec = Some(Arc::new(Ipsec {
            spds: vec![Arc::new(spd)],
            queues: Arc::new([Queue::Hardware, Queue::Hardware, point]),
            enforcement: Arc::new([None, Some(SpdId(0))]),
            udp_ports: Arc::new([4500]),
            ..Ipsec::default()
        }));
        let entry = DeviceEntry { name: "point".into(), untagged: None, tagged: Vec::new() };
        self.tables.devices = self.tables.devices.iter().cloned().chain([entry]).collect();
        let through = |next: &Adjacency| Adjacency { egress: DeviceId(2), ..next.clone() };
        self.tables.adjacencies = self.tables.adjacencies.iter().map(through).collect();
        self.out = Output::new(self.tables.devices.len());
        self
    }

    /// Sends every packet through the slow path, which handles all that is uncommon: tags, options,
    /// reverse-path checks.
    pub fn without_fast_path(self) -> Self {
        Testbed { router: self.router.without_fast_path(), ..self }
    }

    /// Moves at least `packets` through the router; returns how many it forwarded.
    pub fn forward(&mut self, packets: usize) -> u64 {
        let before = self.router.ledger().forwarded;
        let mut moved = 0;
        while moved < packets {
            moved += breathe(
                &mut self.router,
                0,
                &self.tables,
                &mut self.devices,
                &mut self.batch,
                &mut self.pool,
                &mut self.out,
            );
        }
        assert_eq!(self.router.ledger().balance(), 0);
        self.router.ledger().forwarded - before
    }

    /// The same source and sink with nothing between: the testbed's baseline.
    pub fn copy_only(&mut self, packets: usize) -> u64 {
        let mut moved = 0;
        while moved < packets {
            moved += self.devices[0].rx(&mut self.pool, &mut self.batch);
            self.out.tx[1].extend(self.batch.drain());
            self.devices[1].tx(&mut self.pool, &mut self.out.tx[1]);
        }
        moved as u64
    }
}

fn port(name: &str, device: u16, mac: Mac, addresses: &[(&str, u8)]) -> Port {
    let address = |&(text, prefix_len): &(&str, u8)| PortAddress {
        address: text.parse().expect("an address"),
        prefix_len,
        owner: Owner::Kernel,
    };
    Port {
        name: name.into(),
        kind: PortKind::Device,
        device: DeviceId(device),
        egress: DeviceId(device),
        vlan: None,
        mac,
        mtu: 1500,
        point_to_point: false,
        up: true,
        reverse_path: ReversePath::Off,
        addresses: addresses.iter().map(address).collect(),
    }
}

fn tables(random: &mut SplitMix64, family: Family, routes: usize) -> (Tables, Vec<Prefix4>, Vec<Prefix6>) {
    let (mut rib4, mut rib6) = (RouteTable4::default(), RouteTable6::default());
    let (mut prefixes4, mut prefixes6) = (Vec::new(), Vec::new());
    while family != Family::Inet6 && prefixes4.len() < routes {
        // Lengths as in the global table: three of five are /24, the rest /16 to /23.
        let len = if random.next_u64() % 5 < 3 { 24 } else { 16 + (random.next_u64() % 8) as u8 };
        let prefix = Prefix4::new(Ipv4Addr::from(random.next_u64() as u32), len);
        if matches!(prefix.addr().octets()[0], 1..=9 | 11..=126 | 128..=223)
            && rib4.insert(prefix, 1 + prefixes4.len() as u32 % NEXT_HOPS).is_none()
        {
            prefixes4.push(prefix);
        }
    }
    while family != Family::Inet && prefixes6.len() < routes {
        let len = if random.next_u64().is_multiple_of(2) { 48 } else { 29 + (random.next_u64() % 20) as u8 };
        let bits = 0x2 << 124 | (u128::from(random.next_u64()) << 64) >> 4 & u128::MAX >> 4;
        let prefix = Prefix6::from_bits(bits, len);
        if rib6.insert(prefix, 1 + prefixes6.len() as u32 % NEXT_HOPS).is_none() {
            prefixes6.push(prefix);
        }
    }
    let adjacency = |i: u32| Adjacency {
        port: PortId(1),
        device: DeviceId(1),
        egress: DeviceId(1),
        next_hop: IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2 + i as u8)),
        header: [2, 0, 0, 1, 0, i as u8, OUT_MAC[0], 0, 0, 0, 0, OUT_MAC[5]],
        ready: true,
        vlan: None,
        mtu: 1500,
    };
    let targets =
        std::iter::once(Target::NoRoute).chain((0..NEXT_HOPS).map(|i| Target::Adjacent(AdjacencyId(i))));
    let device =
        |name: &str, port| DeviceEntry { name: name.into(), untagged: Some(port), tagged: Vec::new() };
    let tables = Tables {
        generation: 1,
        devices: Arc::new([device("in", PortId(0)), device("out", PortId(1))]),
        ports: Arc::new([
            port("in", 0, IN_MAC, &[("10.0.0.1", 24), ("fd00::1", 64)]),
            port("out", 1, OUT_MAC, &[("10.1.0.1", 24), ("fd01::1", 64)]),
        ]),
        fib4: rib4.publish(),
        fib6: rib6.publish(),
        targets: targets.collect(),
        multipath: Arc::new([]),
        adjacencies: (0..NEXT_HOPS).map(adjacency).collect(),
        neighbors: Arc::new(HashMap::new()),
        settings: Settings::default(),
        ipsec: None,
    };
    (tables, prefixes4, prefixes6)
}

fn ethernet(ethertype: u16) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    frame[..6].copy_from_slice(&IN_MAC);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    frame
}

fn frame4(random: &mut SplitMix64, prefixes: &[Prefix4], flow: u32) -> [u8; FRAME_LEN] {
    let prefix = prefixes[random.next_u64() as usize % prefixes.len()];
    let dst = prefix.bits() | random.next_u64() as u32 & !Prefix4::mask(prefix.len());
    let mut frame = ethernet(0x0800);
    let total = (FRAME_LEN - 14) as u16;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    (frame[22], frame[23]) = (64, 17);
    frame[26..30].copy_from_slice(&(0x0a00_0100 + flow).to_be_bytes());
    frame[30..34].copy_from_slice(&dst.to_be_bytes());
    let sum: u32 =
        frame[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let check = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    frame
}

fn frame6(random: &mut SplitMix64, prefixes: &[Prefix6], flow: u32) -> [u8; FRAME_LEN] {
    let prefix = prefixes[random.next_u64() as usize % prefixes.len()];
    let dst = prefix.bits() | u128::from(random.next_u64()) & !Prefix6::mask(prefix.len());
    let src = u128::from("fd00::".parse::<Ipv6Addr>().expect("an address")) + u128::from(flow) + 256;
    let mut frame = ethernet(0x86dd);
    let payload = (FRAME_LEN - 54) as u16;
    frame[14] = 0x60;
    frame[18..20].copy_from_slice(&payload.to_be_bytes());
    // Six bytes are too few for UDP: "no next header" (RFC 8200 4.7) is as long as the frame is.
    (frame[20], frame[21]) = (59, 64);
    frame[22..38].copy_from_slice(&src.to_be_bytes());
    frame[38..54].copy_from_slice(&dst.to_be_bytes());
    frame
}
