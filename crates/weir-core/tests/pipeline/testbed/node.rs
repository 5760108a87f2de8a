//! Routers (control side and data path) and hosts on cables, on a virtual clock.
//!
//! Every data packet that a host sends is found again: delivered, dropped for a reason, held, lost on a
//! cable, sent to a MAC nobody has, or still on its way. [`Network::run`] checks that at every step. (ICMP
//! errors are not counted: a test in which they might wait or be dropped makes their way known first.)

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use weir_core::control::Control;
use weir_core::id::{Mac, PortId};
use weir_core::packet::{BATCH, Batch, DeviceId, Frame, Pool};
use weir_core::router::{Output, Router};
use weir_core::state::{Desired, Link};
use weir_core::tables::Tables;
use weir_core::time::{MILLISECOND, Nanos};
use weir_core::verdict::Reason;
use weir_core::wire::{Ethernet, build, ethernet, ipv4, ipv6, protocol};

const BUFFERS: usize = 1024;
/// What a cable takes.
const LATENCY: Nanos = MILLISECOND;
/// How often workers look at held frames when nothing else happens.
const BREATH: Nanos = 100 * MILLISECOND;
const UDP_PORT: u16 = 9;

pub struct Node {
    pub control: Control,
    pub router: Router<Box<[u8]>>,
    tables: Arc<Tables>,
    batch: Batch<Box<[u8]>>,
    pool: Pool<Box<[u8]>>,
    out: Output<Box<[u8]>>,
}

impl Node {
    fn new(desired: Desired, links: &[Link]) -> Node {
        let mut control = Control::new(desired, links.iter().cloned(), 0).expect("valid");
        let tables = control.take_snapshot().expect("the first");
        Node {
            control,
            router: Router::new(),
            out: Output::new(tables.devices.len()),
            tables,
            batch: Batch::new(),
            pool: Pool::boxed(BUFFERS),
        }
    }

    /// One breath: frames in by device, frames out by device.
    fn breathe(&mut self, now: Nanos, input: Vec<(DeviceId, Vec<u8>)>) -> Vec<(DeviceId, Vec<u8>)> {
        let mut input = input.into_iter().peekable();
        loop {
            for (device, bytes) in input.by_ref().take(BATCH) {
                let buffer = self.pool.take().expect("a buffer");
                let frame = Frame::from_bytes(buffer, &bytes, device).expect("fits");
                self.batch.push(frame).expect("room");
            }
            self.router.forward(now, &self.tables, &mut self.batch, &mut self.pool, &mut self.out);
            if input.peek().is_none() {
                break;
            }
        }
        self.router.tick(now, &self.tables, &mut self.pool, &mut self.out);
        self.router.punted(self.out.punt.len() as u64);
        for (port, frame) in self.out.punt.drain(..) {
            self.control.handle_punt(now, port, frame.data());
            self.pool.put(frame.into_buffer());
        }
        for event in self.out.events.drain(..) {
            self.control.handle_event(now, event);
        }
        self.control.tick(now);
        if let Some(tables) = self.control.take_snapshot() {
            self.tables = tables;
            self.out.tx.resize_with(self.tables.devices.len(), Vec::new);
            self.router.tick(now, &self.tables, &mut self.pool, &mut self.out);
        }
        for (port, bytes) in self.control.take_transmits() {
            let device = self.tables.ports[port.index()].device;
            let buffer = self.pool.take().expect("a buffer");
            let frame = Frame::from_bytes(buffer, &bytes, device).expect("fits");
            let mut queue = std::mem::take(&mut self.out.tx[device.index()]);
            self.router.originate(frame, &mut queue);
            self.out.tx[device.index()] = queue;
        }
        self.router.taken(&self.tables, &self.out);
        let mut sent = Vec::new();
        for (device, queue) in self.out.tx.iter_mut().enumerate() {
            for frame in queue.drain(..) {
                sent.push((DeviceId(device as u16), frame.data().to_vec()));
                self.pool.put(frame.into_buffer());
            }
        }
        assert_eq!(self.router.ledger().balance(), 0, "{:?}", self.router.ledger());
        assert_eq!(self.pool.free() + self.router.held(), BUFFERS, "a buffer is lost");
        sent
    }
}

/// A station that answers for its addresses and counts what it gets.
pub struct Host {
    pub control: Control,
    pub address: [IpAddr; 2],
    pub mac: Mac,
    /// Highest sequence number by flow.
    pub seen: HashMap<u16, u32>,
    pub received: u64,
    /// ICMP errors.
    pub told: u64,
    /// Frames for another MAC.
    pub misaddressed: u64,
}

impl Host {
    pub fn new(desired: Desired, link: Link) -> Host {
        let mac = link.mac;
        let all: Vec<IpAddr> = desired.ports[0].addresses.iter().map(|a| a.address).collect();
        let control = Control::new(desired, [link], 0).expect("valid");
        let (seen, address) = (HashMap::new(), [all[0], all[1]]);
        Host { control, address, mac, seen, received: 0, told: 0, misaddressed: 0 }
    }

    fn observe(&mut self, now: Nanos, bytes: &[u8]) {
        let frame = Ethernet::parse(bytes).expect("routers send valid frames");
        if frame.dst() != self.mac && !ethernet::is_multicast(&frame.dst()) {
            self.misaddressed += u64::from(is_data(bytes));
            return;
        }
        match (frame.ethertype(), udp_at(bytes)) {
            (_, Some(at)) => {
                let flow = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
                let body = &bytes[at + 8..at + 12];
                let sequence = u32::from_be_bytes([body[0], body[1], body[2], body[3]]);
                let before = self.seen.insert(flow, sequence);
                assert!(before.is_none_or(|b| b < sequence), "flow {flow}: {sequence} came after {before:?}");
                self.received += 1;
            }
            (ethernet::ETHERTYPE_ARP, _) => self.control.handle_punt(now, PortId(0), bytes),
            (ethernet::ETHERTYPE_IPV6, _) if bytes[14 + 40] >= 133 => {
                self.control.handle_punt(now, PortId(0), bytes);
            }
            _ => self.told += 1,
        }
    }
}

/// Where the UDP header of a data packet is.
fn udp_at(bytes: &[u8]) -> Option<usize> {
    let frame = Ethernet::parse(bytes).ok()?;
    let ip = frame.header_len();
    let (protocol_at, header) = match frame.ethertype() {
        ethernet::ETHERTYPE_IPV4 => (9, ipv4::MIN_HEADER_LEN),
        ethernet::ETHERTYPE_IPV6 => (6, ipv6::HEADER_LEN),
        _ => return None,
    };
    (bytes[ip + protocol_at] == protocol::UDP).then_some(ip + header)
}

fn is_data(bytes: &[u8]) -> bool {
    udp_at(bytes).is_some()
}

/// One end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Node(usize, u16),
    Host(usize),
}

#[derive(Default)]
pub struct Network {
    pub nodes: Vec<Node>,
    pub hosts: Vec<Host>,
    cables: HashMap<End, End>,
    cut: Vec<End>,
    flight: VecDeque<(Nanos, End, Vec<u8>)>,
    pub now: Nanos,
    pub injected: u64,
    pub lost_on_cables: u64,
}

impl Network {
    pub fn node(&mut self, desired: Desired, links: &[Link]) -> usize {
        self.nodes.push(Node::new(desired, links));
        self.nodes.len() - 1
    }

    pub fn host(&mut self, host: Host) -> usize {
        self.hosts.push(host);
        self.hosts.len() - 1
    }

    pub fn cable(&mut self, a: End, b: End) {
        self.cables.insert(a, b);
        self.cables.insert(b, a);
    }

    /// Cuts a cable; what is in it is lost. The links are told by the test.
    pub fn cut(&mut self, a: End) {
        let b = self.cables[&a];
        self.cut.extend([a, b]);
        let (gone, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.flight).into_iter().partition(|(_, to, _)| *to == a || *to == b);
        self.lost_on_cables += gone.iter().filter(|(_, _, bytes)| is_data(bytes)).count() as u64;
        self.flight = kept;
    }

    pub fn mend(&mut self, a: End) {
        let b = self.cables[&a];
        self.cut.retain(|&e| e != a && e != b);
    }

    fn send(&mut self, from: End, bytes: Vec<u8>) {
        match self.cables.get(&from) {
            Some(&to) if !self.cut.contains(&to) => self.flight.push_back((self.now + LATENCY, to, bytes)),
            _ => self.lost_on_cables += u64::from(is_data(&bytes)),
        }
    }

    /// A packet of `flow` from one host to another, by the router at the end of its cable. Even flows are
    /// IPv4, odd ones IPv6.
    pub fn inject(&mut self, from: usize, to: IpAddr, flow: u16, sequence: u32) {
        let End::Node(node, device) = self.cables[&End::Host(from)] else { panic!("a host on a router") };
        let host = &self.hosts[from];
        let router = &self.nodes[node].tables;
        let mac = router.ports.iter().find(|p| p.device.0 == device).expect("a port").mac;
        let src = host.address[usize::from(flow % 2)];
        let frame = build::Frame::ip(src, to).expect("one family").macs(mac, host.mac);
        let bytes = frame.udp(flow, UDP_PORT, &sequence.to_be_bytes());
        self.injected += 1;
        self.send(End::Host(from), bytes);
    }

    /// Lets time pass, checking at every step that no packet is unaccounted for.
    pub fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        loop {
            self.breathe();
            let timers = self.nodes.iter().map(|n| &n.control).chain(self.hosts.iter().map(|h| &h.control));
            let due = timers.filter_map(Control::poll_at).chain(self.flight.front().map(|f| f.0)).min();
            let next = due.unwrap_or(end).clamp(self.now + 1, self.now + BREATH);
            if next > end {
                return self.now = end;
            }
            self.now = next;
        }
    }

    fn breathe(&mut self) {
        let mut arrived: Vec<Vec<(DeviceId, Vec<u8>)>> = vec![Vec::new(); self.nodes.len()];
        while self.flight.front().is_some_and(|f| f.0 <= self.now) {
            let (_, to, bytes) = self.flight.pop_front().expect("one is there");
            match to {
                End::Node(node, device) => arrived[node].push((DeviceId(device), bytes)),
                End::Host(host) => self.hosts[host].observe(self.now, &bytes),
            }
        }
        for (n, input) in arrived.into_iter().enumerate() {
            for (device, bytes) in self.nodes[n].breathe(self.now, input) {
                self.send(End::Node(n, device.0), bytes);
            }
        }
        for h in 0..self.hosts.len() {
            self.hosts[h].control.tick(self.now);
            for (_, bytes) in self.hosts[h].control.take_transmits() {
                self.send(End::Host(h), bytes);
            }
        }
        let ledgers = || self.nodes.iter().map(|n| n.router.ledger()).collect::<Vec<_>>();
        assert_eq!(self.injected, self.accounted(), "a packet is unaccounted for: {:?}", ledgers());
    }

    fn accounted(&self) -> u64 {
        let hosts: u64 = self.hosts.iter().map(|h| h.received + h.misaddressed).sum();
        let ledgers = self.nodes.iter().map(|n| n.router.ledger());
        let nodes: u64 = ledgers.map(|l| l.drops.total() + l.held).sum();
        let flying = self.flight.iter().filter(|(_, _, bytes)| is_data(bytes)).count() as u64;
        hosts + nodes + flying + self.lost_on_cables
    }

    pub fn dropped(&self, reason: Reason) -> u64 {
        self.nodes.iter().map(|n| n.router.ledger().drops.of(reason)).sum()
    }

    pub fn dropped_in_all(&self) -> u64 {
        self.nodes.iter().map(|n| n.router.ledger().drops.total()).sum()
    }
}
