//! Tracked flows: established flows of the kernel's conntrack that the XDP program forwards, translated.
//!
//! ```text
//! both ways known ─► install: two map entries ─► set_in_force: one word ─► XDP: same tuple, plain packet? ─► rewrite, out
//! remove: the word, then the entries                                                          └─ no ─► kernel
//! ```
//!
//! Promises: a flow is in force when both its directions are there, under one snapshot of the tables
//! ([`FlowOffload::set_generation`](super::flow_offload::FlowOffload::set_generation)), until one store ends it, and no longer than
//! the caller said that it follows flows ([`Tracked::follow_until`]): one that hangs forwards nothing. A packet is
//! translated as [`weir_core::conntrack::translate`] translates it, or left to the kernel as it came. Packets and bytes are
//! counted by flow and direction, and by device for the ledger. Refuses: more than one VLAN tag, and interfaces that
//! cannot take frames from XDP; the caller does not install such flows.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use weir_core::conntrack::Rewrite;
use weir_core::id::Mac;
use weir_core::packet::DeviceId;
use weir_core::time::Nanos;
use weir_core::wire::ctnetlink::Tuple;
use weir_xdp::layout::{TrackedFlow, TrackedKey4, TrackedKey6, TrackedWay};
use weir_xdp::{LoadError, Memory, STEER, Shared, Table};

use super::{SharedWords, SteerError, sizes};

/// Flows that can be taken: 131,072 × (64 B here + 2 × 192 B of hash element) + 2 × 8 MiB of hash buckets = 72 MiB when all are, of one
/// place a direction; with up to 524,288 places of either family 120 MiB or more.
pub const MAX_TRACKED: u32 = weir_xdp::layout::TRACKED_MAX;

/// The way of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectionWay {
    pub rewrite: Rewrite,
    /// The interface, of a VLAN the one below, and which counters.
    pub in_ifindex: u32,
    pub in_device: DeviceId,
    /// The VLAN whose tag packets come in with.
    pub in_vlan: Option<u16>,
    /// The port's own MAC address.
    pub in_mac: Mac,
    pub out_ifindex: u32,
    pub out_device: DeviceId,
    /// The VLAN whose tag they leave with.
    pub out_vlan: Option<u16>,
    /// The outgoing port's MTU: IP bytes.
    pub mtu: u16,
    /// Destination and source MAC address of the outgoing frame.
    pub out_macs: [u8; 12],
}

/// What passed of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    pub packets: u64,
    pub bytes: u64,
}

/// The tables behind tracked flows, shared by the programs of all interfaces.
#[derive(Debug)]
pub struct Tracked {
    v4: Table<{ TrackedKey4::SIZE }, { TrackedWay::SIZE }>,
    v6: Table<{ TrackedKey6::SIZE }, { TrackedWay::SIZE }>,
    flows: SharedWords,
    flows_map: Memory<{ TrackedFlow::SIZE }>,
    followed: SharedWords,
    followed_map: Memory<8>,
}

/// Words of a flow: the generation it is in force under, then packets and bytes of each direction, then resets.
const WORDS: usize = TrackedFlow::SIZE / 8;

impl Tracked {
    pub fn new() -> Result<Tracked, SteerError> {
        let mut maps = STEER.maps(&sizes(|map| map.starts_with("weir_tracked")))?;
        let flows_map: Memory<{ TrackedFlow::SIZE }> = maps.memory("weir_tracked")?;
        let bytes = MAX_TRACKED as usize * TrackedFlow::SIZE;
        let flows = SharedWords::of(flows_map.shared()?.as_fd(), bytes).map_err(SteerError::Memory)?;
        let followed_map: Memory<8> = maps.memory("weir_followed")?;
        let followed = SharedWords::of(followed_map.shared()?.as_fd(), 8).map_err(SteerError::Memory)?;
        let (v4, v6) = (maps.table("weir_tracked4")?, maps.table("weir_tracked6")?);
        Ok(Tracked { v4, v6, flows, flows_map, followed, followed_map })
    }

    /// Flows hold until then, of [`clock::now`](crate::clock::now), which the program knows to a tick of the kernel (10 ms at
    /// most). At first none does.
    pub fn follow_until(&self, until: Nanos) {
        // Release: what was heard before is obeyed before.
        self.followed.word(0).store(until, Ordering::Release);
    }

    /// The tables for a program.
    pub(super) fn shared(&self) -> Result<[Shared; 4], LoadError> {
        Ok([self.v4.shared()?, self.v6.shared()?, self.flows_map.shared()?, self.followed_map.shared()?])
    }

    fn word(&self, flow: u32, word: usize) -> usize {
        flow as usize % MAX_TRACKED as usize * WORDS + word
    }

    /// Puts both directions of a flow in, under a number below [`MAX_TRACKED`] that no other has; it is not in force. Where that
    /// fails nothing of it is left.
    pub fn install(&mut self, flow: u32, both: &[DirectionWay; 2]) -> Result<(), SteerError> {
        self.suspend(flow);
        for (way, reply) in both.iter().zip(0..) {
            if let Err(error) = self.insert(flow, reply, way) {
                self.remove(flow, both)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Puts in another place where packets of one direction may come in, behind [`install`](Tracked::install).
    pub fn add(&mut self, flow: u32, reply: bool, way: &DirectionWay) -> Result<(), SteerError> {
        self.insert(flow, reply.into(), way)
    }

    /// The flow is in force from the next frame on, as long as this is the generation in force.
    pub fn set_in_force(&self, flow: u32, generation: u64) {
        // Release: its directions were put in before.
        self.flows.word(self.word(flow, 0)).store(generation, Ordering::Release);
    }

    /// The flow is not in force from the next frame on.
    pub fn suspend(&self, flow: u32) {
        self.set_in_force(flow, NO_GENERATION);
    }

    /// Takes a flow out, all that was put in of it, the rest too where one part of it cannot be. What passed stays until the number is
    /// used again.
    pub fn remove<'a>(
        &mut self,
        flow: u32,
        ways: impl IntoIterator<Item = &'a DirectionWay>,
    ) -> Result<(), SteerError> {
        self.suspend(flow);
        let mut all = Ok(());
        for way in ways {
            let removed = match key(way) {
                Key::V4(key) => self.v4.remove(key.to_bytes()),
                Key::V6(key) => self.v6.remove(key.to_bytes()),
            };
            all = all.and(removed.map(|_| ()).map_err(SteerError::from));
        }
        all
    }

    /// What passed of both directions, the original one first.
    pub fn passed(&self, flow: u32) -> [Passed; 2] {
        let word = |at| self.flows.word(self.word(flow, at)).load(Ordering::Relaxed);
        [Passed { packets: word(1), bytes: word(2) }, Passed { packets: word(3), bytes: word(4) }]
    }

    /// Segments that were left to the kernel and that it may take for a RST of the flow, in force or not.
    pub fn resets(&self, flow: u32) -> u64 {
        self.flows.word(self.word(flow, 5)).load(Ordering::Relaxed)
    }

    /// Begins to count from zero, for another flow of this number.
    pub fn clear(&self, flow: u32) {
        (1..6).for_each(|at| self.flows.word(self.word(flow, at)).store(0, Ordering::Relaxed));
    }

    fn insert(&mut self, flow: u32, reply: u32, way: &DirectionWay) -> Result<(), SteerError> {
        let value = value(flow, reply, way).to_bytes();
        match key(way) {
            Key::V4(key) => self.v4.insert(key.to_bytes(), value)?,
            Key::V6(key) => self.v6.insert(key.to_bytes(), value)?,
        }
        Ok(())
    }
}

/// No snapshot has this number, nor has [`super::flow_offload`] when nothing is in force.
const NO_GENERATION: u64 = u64::MAX - 1;

enum Key {
    V4(TrackedKey4),
    V6(TrackedKey6),
}

fn ports(tuple: &Tuple) -> [u8; 4] {
    let ([a, b], [c, d]) = (tuple.source_port.to_be_bytes(), tuple.destination_port.to_be_bytes());
    [a, b, c, d]
}

fn key(way: &DirectionWay) -> Key {
    let tuple = &way.rewrite.direction.arrives;
    let (ports, protocol) = (ports(tuple), tuple.protocol.into());
    let (in_ifindex, vlan) = (way.in_ifindex, way.in_vlan.unwrap_or(0));
    match (tuple.source, tuple.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Key::V4(TrackedKey4 {
            source: source.octets(),
            destination: destination.octets(),
            ports,
            in_ifindex,
            protocol,
            vlan,
        }),
        (source, destination) => Key::V6(TrackedKey6 {
            source: bytes(source),
            destination: bytes(destination),
            ports,
            in_ifindex,
            protocol,
            vlan,
        }),
    }
}

/// An address where the program looks for it: at the front.
fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
    }
}

fn value(flow: u32, reply: u32, way: &DirectionWay) -> TrackedWay {
    let leaves = &way.rewrite.direction.leaves;
    // As a word of a packet is read.
    let word = |delta: u16| u32::from(delta.to_be());
    TrackedWay {
        flow,
        reply,
        out_ifindex: way.out_ifindex,
        mtu: way.mtu.into(),
        in_device: way.in_device.0.into(),
        out_device: way.out_device.0.into(),
        ip_delta: word(way.rewrite.ip_delta),
        transport_delta: word(way.rewrite.transport_delta),
        in_mac: way.in_mac,
        tag: way.out_vlan.unwrap_or(0).to_be_bytes(),
        out_macs: way.out_macs,
        ports: ports(leaves),
        source: bytes(leaves.source),
        destination: bytes(leaves.destination),
    }
}
