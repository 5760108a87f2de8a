//! One router on a virtual clock, with the sample network around it. Every step checks conservation: of
//! frames by the ledger, of buffers by counting them.

use std::net::IpAddr;

use weir_core::id::PortId;
use weir_core::packet::{BATCH, Batch, DeviceId, Frame, Pool};
use weir_core::router::sampler::{Sample, Sampler};
use weir_core::router::{Event, Output, Router};
use weir_core::tables::Tables;
pub use weir_core::testing::sample::{LAN, LAN_10, LAN_20, Net, TUN, WAN, mac, neighbor_mac};
use weir_core::time::Nanos;
use weir_core::verdict::{Ledger, Reason};
use weir_core::wire::{self, Ipv4, Ipv6, build, decode};

const BUFFERS: usize = 1024;

pub struct World {
    pub net: Net,
    pub tables: Tables,
    pub router: Router<Box<[u8]>>,
    pub pool: Pool<Box<[u8]>>,
    pub out: Output<Box<[u8]>>,
    pub now: Nanos,
}

/// What one step did.
#[derive(Debug, Default)]
pub struct Seen {
    /// Frames sent, by device, in order.
    pub sent: Vec<(DeviceId, Vec<u8>)>,
    pub punted: Vec<(PortId, Vec<u8>)>,
    pub events: Vec<Event>,
    pub forwarded: u64,
    pub local: u64,
    pub originated: u64,
    pub drops: Vec<(Reason, u64)>,
    /// Copies of what was dropped.
    pub copies: Vec<Sample>,
}

impl Seen {
    /// The one frame sent.
    #[track_caller]
    pub fn one(&self) -> &[u8] {
        assert_eq!(self.sent.len(), 1, "{self:?}");
        &self.sent[0].1
    }

    /// Nothing happened but one drop.
    #[track_caller]
    pub fn dropped(&self, reason: Reason) {
        assert_eq!(self.drops, [(reason, 1)], "{self:?}");
        assert_eq!((self.forwarded, self.local), (0, 0), "{self:?}");
    }

    /// One drop, and nobody was told.
    #[track_caller]
    pub fn dropped_silently(&self, reason: Reason) {
        self.dropped(reason);
        assert!(self.sent.is_empty(), "{}", self.text());
    }

    /// What was sent, a line each.
    pub fn text(&self) -> String {
        let lines: Vec<_> = self.sent.iter().map(|(_, bytes)| decode(bytes).to_string()).collect();
        lines.join("\n")
    }
}

impl World {
    pub fn new() -> Self {
        World::of(Net::new())
    }

    pub fn of(mut net: Net) -> Self {
        let tables = net.tables();
        World { net, tables, router: Router::new(), pool: Pool::boxed(BUFFERS), out: Output::new(3), now: 0 }
    }

    /// Receives one frame on the device of `port`.
    pub fn send(&mut self, port: PortId, bytes: &[u8]) -> Seen {
        let device = self.tables.ports[port.index()].device;
        self.send_all(&[(device, bytes.to_vec())])
    }

    /// Receives frames in one batch.
    pub fn send_all(&mut self, frames: &[(DeviceId, Vec<u8>)]) -> Seen {
        assert!(frames.len() <= BATCH);
        let mut batch = Batch::new();
        for (device, bytes) in frames {
            let buffer = self.pool.take().expect("the world has buffers");
            let frame = Frame::from_bytes(buffer, bytes, *device).expect("fits");
            batch.push(frame).expect("room");
        }
        self.step(|w| w.router.forward(w.now, &w.tables, &mut batch, &mut w.pool, &mut w.out))
    }

    /// Lets time pass.
    pub fn wait(&mut self, time: Nanos) -> Seen {
        self.now += time;
        self.step(|w| w.router.tick(w.now, &w.tables, &mut w.pool, &mut w.out))
    }

    /// Publishes the network as it is now; nothing is received.
    pub fn publish(&mut self) -> Seen {
        self.tables = self.net.tables();
        self.wait(0)
    }

    fn step(&mut self, act: impl FnOnce(&mut Self)) -> Seen {
        let before = self.router.ledger().clone();
        if self.router.sampler().is_none() {
            self.router.set_sampler(Some(Sampler::new(Reason::ALL, usize::MAX)));
        }
        self.router.sampler().expect("just set").allow(u32::MAX);
        act(self);
        self.router.taken(&self.tables, &self.out);
        let out = self.out.tx.iter().map(Vec::len).sum::<usize>() + self.out.punt.len();
        assert_eq!(self.pool.free() + self.router.held() + out, BUFFERS, "buffers are lost");
        let after = self.router.ledger().clone();
        assert_eq!(after.balance(), 0, "{after:?}");
        let seen = self.collect(&before, &after);
        assert_eq!(self.pool.free() + self.router.held(), BUFFERS);
        seen
    }

    fn collect(&mut self, before: &Ledger, after: &Ledger) -> Seen {
        let drops = Reason::ALL.iter().map(|&r| (r, after.drops.of(r) - before.drops.of(r)));
        let mut seen = Seen {
            events: std::mem::take(&mut self.out.events),
            forwarded: after.forwarded - before.forwarded,
            local: after.local - before.local,
            originated: after.originated - before.originated,
            drops: drops.filter(|&(_, n)| n > 0).collect(),
            copies: self.router.sampler().expect("set").drain().1.collect(),
            ..Seen::default()
        };
        for &(reason, count) in &seen.drops {
            let copies = seen.copies.iter().filter(|copy| copy.reason == reason).count();
            assert_eq!(copies as u64, count, "copies of what was dropped as {}", reason.name());
        }
        for (device, ring) in self.out.tx.iter_mut().enumerate() {
            for frame in ring.drain(..) {
                assert_eq!(frame.device.index(), device);
                seen.sent.push((frame.device, frame.data().to_vec()));
                self.pool.put(frame.into_buffer());
            }
        }
        for (port, frame) in self.out.punt.drain(..) {
            seen.punted.push((port, frame.data().to_vec()));
            self.pool.put(frame.into_buffer());
        }
        seen
    }
}

pub fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A frame to be built, from the second host of `port`'s network to its MAC, tagged as the port is.
pub fn frame(port: PortId, src: &str, dst: &str) -> build::Frame {
    let frame = build::Frame::ip(addr(src), addr(dst)).expect("addresses of one family");
    let frame = frame.macs(mac(port), neighbor_mac(port, 2));
    match port {
        LAN_10 => frame.vlan(10),
        LAN_20 => frame.vlan(20),
        _ => frame,
    }
}

/// An ordinary UDP datagram.
pub fn udp(port: PortId, src: &str, dst: &str) -> Vec<u8> {
    frame(port, src, dst).udp(1000, 2000, b"eighteen bytes pad")
}

/// The IPv4 packet of a frame, valid.
#[track_caller]
pub fn ipv4(frame: &[u8]) -> Ipv4<&[u8]> {
    let link = wire::Ethernet::parse(frame).expect("an Ethernet frame");
    Ipv4::parse(&frame[link.header_len()..]).expect("a valid IPv4 packet")
}

#[track_caller]
pub fn ipv6(frame: &[u8]) -> Ipv6<&[u8]> {
    let link = wire::Ethernet::parse(frame).expect("an Ethernet frame");
    Ipv6::parse(&frame[link.header_len()..]).expect("a valid IPv6 packet")
}
