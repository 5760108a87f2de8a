//! XDP flow offload: the program itself forwards what the router has decided before.
//!
//! ```text
//! first packet of (in, source, destination) ─► router ─► insert ─┐
//! the next ones ─► XDP: same pair, same snapshot, plain header? ─┴─► rewrite ─► out, no socket buffer
//!                                                        └─ no ──► router, as ever
//! ```
//!
//! Why: in copy mode a frame sent through a socket costs a socket buffer (some 330 ns), more than the
//! rest of its way together. A frame redirected by the program costs none.
//!
//! Promises: only what the router would do with the frame happens to it. A flow holds for one
//! snapshot of the tables ([`FlowOffload::set_generation`]), one receive queue of one interface and one pair of
//! addresses; the program itself (`bpf/include/weir/flow_offload.h` of `weir-xdp`) checks what differs from
//! packet to packet: the MAC address, IPv4 header checksum, lengths, TTL and the outgoing MTU. Everything else
//! (options, fragments, extension headers, two tags, TTL 1, too big, unknown) goes to the router. One VLAN tag is taken off, put on
//! or replaced. Where several next hops lead to a destination, or policies tell packets of a pair apart, the decision is one flow's, by
//! protocol and ports. Frames and bytes are counted by device, for the ledger, and by the policies that let them pass.
//!
//! No frame overtakes another of its pair that came by the same queue, as all of one connection do. Frames on their way to
//! the router are numbered queue by queue, the queue's worker says up to which number everything has left
//! ([`Progress::done`]), and the program remembers with each
//! pair its last frame that went that way: until it has left, the next ones follow it. A far end with several queues (veth) takes
//! what is redirected by the queue of the CPU, what a socket sends by the socket's: only where both are one is a frame redirected. The number is metadata
//! before the frame; drivers that have none (vmxnet3, ena, hv_netvsc) get an Ethernet header before the
//! frame's own, to an address nobody outside knows, which the worker takes off.
//!
//! Refuses: queues beyond [`MAX_QUEUES`], and interfaces that cannot take frames from XDP ([`crate::bpf::features::can_transmit`]); the caller
//! must not insert such pairs.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_core::id::Mac;
use weir_core::packet::{Buffer, DeviceId, Frame};
use weir_core::time::Nanos;
use weir_xdp::layout::{
    FLOW_ENFORCED, FLOW_SPREAD, FLOW_WHICH, FLOW_WHICH_FACTOR, FRONT_LEN, Flow, FlowCounters, FlowKey4,
    FlowKey6, FlowProgress, InForce,
};
use weir_xdp::{Counters, LoadError, Loaded, Memory, STEER, Shared, Table};

use super::{SharedWords, SteerError, sizes};

/// Pairs of addresses of one family, each with a queue: 65,536 × some 130 B = 8.5 MiB; the least recently used go first.
pub const MAX_FLOWS: u32 = weir_xdp::layout::FLOWS_MAX;

/// Devices with counters of what was offloaded.
pub const MAX_DEVICES: u32 = weir_xdp::layout::FLOW_DEVICES_MAX;

/// Counters there are: of devices, and from [`MAX_DEVICES`] on of VLANs and of policies.
pub const MAX_COUNTS: u32 = weir_xdp::layout::FLOW_COUNTS_MAX;

/// Receive queues of a device that have flows.
pub const MAX_QUEUES: u32 = weir_xdp::layout::FLOW_QUEUES_MAX;

/// Metadata before a steered frame: its number.
const NUMBER_SIZE: usize = 8;

/// Words of a queue in the program's memory, and what stands where among them.
const QUEUE_WORDS: usize = FlowProgress::SIZE / 8;
const STEERED: usize = offset_of!(FlowProgress, steered) / 8;
const CPU: usize = offset_of!(FlowProgress, cpu) / 8;
const DONE: usize = offset_of!(FlowProgress, done) / 8;
const FRONT_ROOM: usize = offset_of!(FlowProgress, front_room) / 8;
const FRONT_MARK: usize = offset_of!(FlowProgress, front_mark) / 8;

/// What decisions hold under.
const GENERATION: usize = offset_of!(InForce, generation) / 8;
const POLICIES_UNTIL: usize = offset_of!(InForce, policies_until) / 8;

/// Bits of a mark, and of a number in a front.
const FRONT_BITS: u32 = 48;
const FRONT_MASK: u64 = (1 << FRONT_BITS) - 1;

/// How far the worker of one queue has come.
#[derive(Clone, Debug)]
pub struct Progress {
    words: Arc<SharedWords>,
    /// The first word of its queue.
    at: usize,
    /// Where a front's Ethernet header leads to.
    mark: u64,
}

impl Progress {
    /// Maps the program's memory; the first queue's is returned.
    pub(super) fn of(program: &Loaded) -> Result<Progress, SteerError> {
        let memory = program.maps.array_fd("weir_progress")?;
        let words =
            SharedWords::of(memory, FlowProgress::SIZE * MAX_QUEUES as usize).map_err(SteerError::Memory)?;
        // Random from the system, as hash tables have it; never zero, so that no padding is taken for a front.
        let mark = RandomState::new().build_hasher().finish() & FRONT_MASK | 1 << 1;
        let first = Progress { words: Arc::new(words), at: 0, mark };
        (0..MAX_QUEUES)
            .filter_map(|queue| first.queue(queue))
            .for_each(|p| p.word(FRONT_MARK).store(mark, Ordering::Release));
        Ok(first)
    }

    /// That of another queue of the same device; none beyond [`MAX_QUEUES`].
    pub fn queue(&self, queue: u32) -> Option<Progress> {
        (queue < MAX_QUEUES).then(|| Progress { at: queue as usize * QUEUE_WORDS, ..self.clone() })
    }

    /// One of the queue's words.
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        self.words.word(self.at + at)
    }

    /// Where the driver has no room for metadata, frames carry their number in a front, if with it they have at most
    /// `room` bytes.
    pub fn allow_fronts(&self, room: usize) {
        self.word(FRONT_ROOM).store(room.saturating_sub(FRONT_LEN as usize) as u64, Ordering::Release);
    }

    /// The CPU on which the program gave the queue's last number: where the kernel receives for it.
    pub fn cpu(&self) -> u64 {
        self.word(CPU).load(Ordering::Relaxed)
    }

    /// Every frame up to `number` has been sent, dropped or lost.
    #[inline]
    pub fn done(&self, number: u64) {
        // Release: the system calls that sent the frames come before.
        self.word(DONE).store(number, Ordering::Release);
    }

    /// The number of a steered frame, the one before which was `last`; a front is taken off.
    #[inline]
    pub fn number<B: Buffer>(&self, frame: &mut Frame<B>, last: u64) -> Option<u64> {
        if let Some(front) = frame.data().first_chunk::<{ FRONT_LEN as usize }>()
            && let Some(number) = self.front(front, last)
        {
            return frame.shrink_front(FRONT_LEN as usize).then_some(number);
        }
        let before = frame.buffer().bytes().get(..frame.start())?;
        let number = before.last_chunk::<{ NUMBER_SIZE }>().map(|bytes| u64::from_ne_bytes(*bytes))?;
        // A driver without metadata left there what was there.
        (number > last && number <= self.word(STEERED).load(Ordering::Relaxed)).then_some(number)
    }

    fn front(&self, front: &[u8; FRONT_LEN as usize], last: u64) -> Option<u64> {
        let word = |at: usize| front[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if word(0) & FRONT_MASK != self.mark {
            return None;
        }
        // Its upper bits are those of the number before, or one more.
        let number = last & !FRONT_MASK | word(6) & FRONT_MASK;
        Some(if number < last { number + (1 << FRONT_BITS) } else { number })
    }
}

/// What the router decided about a pair of addresses, or about one flow of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// [`weir_core::tables::Tables::generation`] of the snapshot it was decided by.
    pub generation: u64,
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Protocol and ports (source and destination as they stand in a packet, 0 without), where it is said of those alone.
    pub flow: Option<(u8, u32)>,
    pub arrives: Arrives,
    pub leaves: Leaves,
    /// Policies let it in and out, and count it under these numbers; `None`: none is asked.
    pub policies: Option<[Option<DeviceId>; 2]>,
}

/// How frames of a flow come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrives {
    pub ifindex: u32,
    pub queue: u32,
    /// The number they are counted under.
    pub device: DeviceId,
    pub vlan: Option<u16>,
    /// The port's own MAC address.
    pub mac: Mac,
}

/// How they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    pub ifindex: u32,
    /// The number they are counted under.
    pub device: DeviceId,
    pub vlan: Option<u16>,
    /// Where the worker of the incoming queue sends, and how many queues there are at the far end, if which of them takes what is
    /// redirected follows the CPU; 0: it does not.
    pub queue: u16,
    pub far_queues: u16,
    /// The outgoing port's MTU: IP bytes.
    pub mtu: u16,
    /// Destination and source MAC address of the outgoing frame.
    pub macs: [u8; 12],
}

/// What one device received and sent without the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadCounters {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}

/// The tables behind the flow offload, shared by the programs of all interfaces.
#[derive(Debug)]
pub struct FlowOffload {
    flows4: Mutex<Table<{ FlowKey4::SIZE }, { Flow::SIZE }>>,
    flows6: Mutex<Table<{ FlowKey6::SIZE }, { Flow::SIZE }>>,
    in_force: SharedWords,
    in_force_map: Memory<{ InForce::SIZE }>,
    counters: Counters<{ FlowCounters::SIZE / 8 * MAX_COUNTS as usize }>,
}

/// No snapshot has this number: nothing is offloaded until one is set.
const NO_GENERATION: u64 = u64::MAX;

impl FlowOffload {
    pub fn new() -> Result<FlowOffload, SteerError> {
        let mut maps = STEER.maps(&sizes(|map| map.starts_with("weir_flow")))?;
        let in_force_map: Memory<{ InForce::SIZE }> = maps.memory("weir_tables")?;
        let in_force =
            SharedWords::of(in_force_map.shared()?.as_fd(), InForce::SIZE).map_err(SteerError::Memory)?;
        let offload = FlowOffload {
            flows4: Mutex::new(maps.table("weir_flows4")?),
            flows6: Mutex::new(maps.table("weir_flows6")?),
            in_force,
            in_force_map,
            counters: maps.counters("weir_flow_count")?,
        };
        offload.disable();
        Ok(offload)
    }

    /// The tables for a program.
    pub(super) fn shared(&self) -> Result<[Shared; 4], LoadError> {
        Ok([
            lock(&self.flows4).shared()?,
            lock(&self.flows6).shared()?,
            self.in_force_map.shared()?,
            self.counters.shared()?,
        ])
    }

    /// Lets only decisions of this snapshot hold, from the next frame on. Call it right after publishing.
    pub fn set_generation(&self, generation: u64) {
        // Release: what was published before is in force before.
        self.in_force.word(GENERATION).store(generation, Ordering::Release);
    }

    /// What policies let pass holds until then, of [`clock::now`](crate::clock::now), which the program knows to a tick of the
    /// kernel (10 ms at most): as long as somebody would hear of other policies. At first none of it holds.
    pub fn follow_policies_until(&self, until: Nanos) {
        // Release: what was heard before is obeyed before.
        self.in_force.word(POLICIES_UNTIL).store(until, Ordering::Release);
    }

    /// Sends everything to the router again.
    pub fn disable(&self) {
        self.set_generation(NO_GENERATION);
    }

    /// Remembers a decision, unless it is remembered already; the least recently used one may go for
    /// it. One or two system calls, and two more of one flow alone; none while another worker is at it: the pair's next frame asks again.
    pub fn insert(&self, decided: &Decided) -> Result<(), SteerError> {
        self.change(decided, Change::Remember)
    }

    /// Forgets a decision, of a pair or of one flow of it: its next frames go to the router. A system call; none while another worker
    /// is at it.
    pub fn remove(&self, decided: &Decided) -> Result<(), SteerError> {
        self.change(decided, Change::Forget)
    }

    fn change(&self, decided: &Decided, change: Change) -> Result<(), SteerError> {
        match (decided.source, decided.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (source, destination) = (source.octets(), destination.octets());
                let key = |which| FlowKey4 { source, destination, which }.to_bytes();
                change.make(&self.flows4, key, decided)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (source, destination) = (source.octets(), destination.octets());
                let key = |which| FlowKey6 { source, destination, which }.to_bytes();
                change.make(&self.flows6, key, decided)
            }
            // Two families are no pair: nothing to remember.
            _ => Ok(()),
        }
    }

    /// What a device received and sent without the router.
    pub fn counters(&self, device: DeviceId) -> Result<OffloadCounters, SteerError> {
        Ok(self.all_counters()?.get(device.index()).copied().unwrap_or_default())
    }

    /// What was received and sent without the router, by the number it is counted under.
    pub fn all_counters(&self) -> Result<Vec<OffloadCounters>, SteerError> {
        let all = self.counters.sum(0)?;
        let (devices, _) = all.as_chunks::<{ FlowCounters::SIZE / 8 }>();
        let counters = |&[rx_packets, rx_bytes, tx_packets, tx_bytes]: &[u64; FlowCounters::SIZE / 8]| {
            OffloadCounters { rx_packets, rx_bytes, tx_packets, tx_bytes }
        };
        Ok(devices.iter().map(counters).collect())
    }
}

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What becomes of a decision.
#[derive(Clone, Copy, Debug)]
enum Change {
    Remember,
    Forget,
}

impl Change {
    /// Made in the table of its family, where `key` tells flows of a pair apart; not while another worker is at it.
    fn make<const K: usize>(
        self,
        flows: &Mutex<Table<K, { Flow::SIZE }>>,
        key: impl Fn(u32) -> [u8; K],
        decided: &Decided,
    ) -> Result<(), SteerError> {
        let Ok(mut flows) = flows.try_lock() else { return Ok(()) };
        let queue = decided.arrives.queue;
        let which = decided.flow.map(|(protocol, ports)| which_flow(ports, protocol, queue));
        match (self, which) {
            (Change::Forget, which) => drop(flows.remove(key(which.unwrap_or(queue)))?),
            (Change::Remember, None) => remember(&mut flows, key(queue), value(decided))?,
            (Change::Remember, Some(which)) => {
                remember(&mut flows, key(which), value(decided))?;
                let (generation, flags) = (decided.generation, FLOW_SPREAD as u16);
                remember(&mut flows, key(queue), Flow { generation, flags, ..Flow::default() })?;
            }
        }
        Ok(())
    }
}

fn remember<const K: usize>(
    flows: &mut Table<K, { Flow::SIZE }>,
    key: [u8; K],
    wanted: Flow,
) -> Result<(), SteerError> {
    // Writing it again would forget which frame of the pair is on its way.
    let known = flows.get(key)?.map(|known| Flow { last_slow: 0, ..Flow::from_bytes(&known) });
    if known != Some(wanted) {
        flows.insert(key, wanted.to_bytes())?;
    }
    Ok(())
}

/// As the program has it: of the ports as they stand in a packet.
fn which_flow(ports: u32, protocol: u8, queue: u32) -> u32 {
    (ports.to_be() ^ u32::from(protocol) << 8 ^ queue).wrapping_mul(FLOW_WHICH_FACTOR) | FLOW_WHICH
}

fn value(decided: &Decided) -> Flow {
    let Decided { generation, arrives, leaves, .. } = decided;
    let (protocol, ports) = decided.flow.unwrap_or_default();
    let policies = decided.policies.unwrap_or_default();
    let [in_policy, out_policy] = policies.map(|number| number.map_or(0, |number| number.0));
    Flow {
        generation: *generation,
        in_ifindex: arrives.ifindex,
        in_device: arrives.device.0.into(),
        in_vlan: arrives.vlan.unwrap_or(0),
        in_mac: arrives.mac,
        out_ifindex: leaves.ifindex,
        out_device: leaves.device.0.into(),
        // With one queue there is nothing to compare.
        out_queue: if leaves.far_queues > 1 { leaves.queue } else { 0 },
        out_queues: if leaves.far_queues > 1 { leaves.far_queues } else { 0 },
        mtu: leaves.mtu.into(),
        tag: leaves.vlan.unwrap_or(0).to_be_bytes(),
        out_macs: leaves.macs,
        ports: ports.to_be_bytes(),
        protocol: protocol.into(),
        queue: arrives.queue as u16,
        flags: if decided.policies.is_some() { FLOW_ENFORCED as u16 } else { 0 },
        in_policy,
        out_policy,
        ..Flow::default()
    }
}
