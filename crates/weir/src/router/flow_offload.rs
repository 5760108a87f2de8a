//! XDP flow offload of this daemon: which devices it serves, which flows are installed, when it stops.
//!
//! ```text
//! worker receives a frame ─► lasting decision? ─► FlowOffload::insert ─► the XDP program does the next ones
//! new tables, interface unable or able again ─► another word in force ─► everything through the workers again
//! ```
//!
//! Promises: an entry is in force under the snapshot it was decided by and no other; a device that
//! cannot take redirected frames (a veth whose peer stopped receiving by NAPI) is never redirected to
//! for longer than [`ASK_EVERY`]; what policies let pass is forwarded no longer than a second after nobody follows
//! them; installing takes a bounded part of a worker's time; no frame
//! overtakes one of its pair and queue that is still with a worker. Refuses: devices in zero-copy mode (their sockets
//! are faster), and generic XDP where not one poller alone brings the frames of a queue.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use weir_core::device::{Device, DeviceStats, DeviceStatus};
use weir_core::ipsec::Direction;
use weir_core::ipsec::spd::PolicyCounters;
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_core::router::PortCounters;
use weir_core::router::lasting::Lasting;
use weir_core::tables::Tables;
use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_core::verdict::Ledger;
use weir_core::wire::flow::FlowKey;
use weir_io::af_xdp::AfXdp;
use weir_io::bpf::features;
use weir_io::steer::flow_offload::{
    Arrives, Decided, Leaves, MAX_COUNTS, MAX_DEVICES, OffloadCounters, Progress,
};
use weir_io::steer::tracked::Tracked;
use weir_io::steer::{self, SteerError};
use weir_io::umem::Chunk;

use super::worker::WorkerState;

/// How often devices are asked whether they still take redirected frames.
pub const ASK_EVERY: Nanos = 250 * MILLISECOND;

/// Frames of one receive call that are looked at: 2 × some 2 µs (a decision and a system call) in a
/// batch of 64 are 60 ns a packet when every packet is of a new pair, and nothing when none is.
const FLOWS_A_CALL: usize = 2;

/// How long what policies let pass holds after this process was last seen to follow them.
const POLICIES_HOLD: Nanos = SECOND;

/// In place of the queues of a far end: frames must not be redirected to this device.
const NO_REDIRECTS: u32 = u32::MAX;

/// Bits of the word in force that count closures; the rest is the snapshot's number.
const CLOSURES_SHIFT: u32 = 48;

/// Whom a counter is for.
#[derive(Debug)]
enum Counted {
    Vlan(DeviceId, u16),
    /// A policy, and up to where its own counters have these.
    Policy(Arc<PolicyCounters>, OffloadCounters),
}

/// Shared by the control thread, which opens and closes, and the workers, which install flows.
#[derive(Debug)]
pub struct FlowOffload {
    pub flows: steer::flow_offload::FlowOffload,
    /// Holds for each [`DeviceId`] its interface while frames may be redirected to it, else 0.
    out: Vec<AtomicU32>,
    /// Holds for each [`DeviceId`] its interface if the device takes part, else 0.
    devices: Vec<AtomicU32>,
    /// Holds for each [`DeviceId`] how many queues its far end has, if which of them takes a redirected frame follows the CPU; else 0.
    far_queues: Vec<AtomicU32>,
    /// The owners of the counters behind those of devices, in their order.
    counted: Mutex<Vec<Counted>>,
    closures: AtomicU64,
    /// Held while a word is put in force.
    putting: Mutex<()>,
    /// Sockets with frames the kernel has not taken yet.
    unsent: AtomicU32,
    generation: AtomicU64,
    asked: AtomicU64,
}

impl FlowOffload {
    pub fn new() -> Result<FlowOffload, SteerError> {
        let none = || (0..MAX_DEVICES).map(|_| AtomicU32::new(0)).collect();
        Ok(FlowOffload {
            flows: steer::flow_offload::FlowOffload::new()?,
            out: none(),
            devices: none(),
            far_queues: none(),
            counted: Mutex::default(),
            closures: AtomicU64::new(0),
            putting: Mutex::default(),
            unsent: AtomicU32::new(0),
            generation: AtomicU64::new(u64::MAX),
            asked: AtomicU64::new(0),
        })
    }

    /// The device takes part: flows that come in by it are installed, and those that leave by it where it can; `None`: it
    /// must not be asked to.
    pub fn join(&self, device: DeviceId, ifindex: u32, far_queues: Option<u32>) {
        if let Some(of) = self.far_queues.get(device.index()) {
            of.store(far_queues.unwrap_or(NO_REDIRECTS), Ordering::Release);
        }
        if let Some(joined) = self.devices.get(device.index()) {
            joined.store(ifindex, Ordering::Release);
        }
        if self.ask_one(device.index()) {
            self.forget();
        }
    }

    /// The device is gone or given back.
    pub fn leave(&self, device: DeviceId) {
        if let Some(joined) = self.devices.get(device.index()) {
            joined.store(0, Ordering::Release);
        }
        self.ask_one(device.index());
        self.forget();
    }

    /// The far end of a device that takes part has so many queues now.
    pub fn follow_far_queues(&self, device: DeviceId, count: u32) {
        let of = self.far_queues.get(device.index()).filter(|_| self.joined(device).is_some());
        let of = of.filter(|of| of.load(Ordering::Acquire) != NO_REDIRECTS);
        if of.is_some_and(|of| of.swap(count, Ordering::AcqRel) != count) {
            self.forget();
        }
    }

    /// These tables are in force now; older decisions no longer are.
    pub fn publish(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
        self.put_in_force();
    }

    /// All news of policies up to now is in the tables.
    pub fn follow_policies(&self, now: Nanos) {
        self.flows.follow_policies_until(now + POLICIES_HOLD);
    }

    /// Forgets every flow: the tables stay, something else changed.
    pub fn forget(&self) {
        self.closures.fetch_add(1, Ordering::AcqRel);
        self.put_in_force();
    }

    /// The word that stays is that of the last change, whichever thread made it.
    fn put_in_force(&self) {
        let _one = self.putting.lock().unwrap_or_else(PoisonError::into_inner);
        let word = self.word(self.generation.load(Ordering::Acquire));
        self.flows.set_generation(word);
    }

    /// What has to be in force for decisions of this snapshot to hold.
    pub fn word(&self, generation: u64) -> u64 {
        generation ^ (self.closures.load(Ordering::Acquire) << CLOSURES_SHIFT)
    }

    /// The number that frames of a VLAN are counted under, or those of a device without a tag. VLANs beyond those that have a
    /// counter are counted with their device.
    pub fn counted(&self, device: DeviceId, vlan: Option<u16>) -> DeviceId {
        let Some(vlan) = vlan else { return device };
        let is_it =
            |counted: &Counted| matches!(counted, Counted::Vlan(of, id) if (*of, *id) == (device, vlan));
        self.number(is_it, |_| Counted::Vlan(device, vlan)).unwrap_or(device)
    }

    /// The numbers that packets are counted under which these policies let in and out, for [`FlowOffload::count_for_policies`]; `None`
    /// where there are no more of them.
    fn counted_by(&self, policies: [Option<&Arc<PolicyCounters>>; 2]) -> Option<[Option<DeviceId>; 2]> {
        let mut numbers = [None; 2];
        for (number, policy) in numbers.iter_mut().zip(policies) {
            let Some(policy) = policy else { continue };
            let is_it =
                |counted: &Counted| matches!(counted, Counted::Policy(of, _) if Arc::ptr_eq(of, policy));
            let new = |had| Counted::Policy(policy.clone(), had);
            *number = Some(self.number(is_it, new)?);
        }
        Some(numbers)
    }

    /// The number of a counter behind those of devices; a new one's, or that of a policy nobody else knows any more, begins from
    /// what stands there.
    fn number(
        &self,
        is_it: impl Fn(&Counted) -> bool,
        new: impl Fn(OffloadCounters) -> Counted,
    ) -> Option<DeviceId> {
        let mut counted = self.lock_counted();
        let number = |at: usize| Some(DeviceId(MAX_DEVICES as u16 + at as u16));
        if let Some(known) = counted.iter().position(is_it) {
            return number(known);
        }
        if counted.len() < (MAX_COUNTS - MAX_DEVICES) as usize {
            counted.push(new(OffloadCounters::default()));
            return number(counted.len() - 1);
        }
        let gone =
            |counted: &Counted| matches!(counted, Counted::Policy(of, _) if Arc::strong_count(of) == 1);
        let at = counted.iter().position(gone)?;
        counted[at] = new(self.flows.counters(number(at)?).ok()?);
        number(at)
    }

    fn lock_counted(&self) -> MutexGuard<'_, Vec<Counted>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the policies what XDP forwarded by them since the last time.
    pub fn count_for_policies(&self) {
        let mut counted = self.lock_counted();
        if !counted.iter().any(|counted| matches!(counted, Counted::Policy(..))) {
            return;
        }
        let Ok(all) = self.flows.all_counters() else { return };
        for (counted, now) in counted.iter_mut().zip(all.into_iter().skip(MAX_DEVICES as usize)) {
            let Counted::Policy(policy, had) = counted else { continue };
            let since = |now: u64, had: u64| now.wrapping_sub(had);
            let (packets, bytes) = (since(now.rx_packets, had.rx_packets), since(now.rx_bytes, had.rx_bytes));
            policy.count_many(Direction::In, packets, bytes);
            let (packets, bytes) = (since(now.tx_packets, had.tx_packets), since(now.tx_bytes, had.tx_bytes));
            policy.count_many(Direction::Out, packets, bytes);
            *had = now;
        }
    }

    /// The interface of a device that takes part.
    pub fn joined(&self, device: DeviceId) -> Option<u32> {
        self.devices
            .get(device.index())
            .map(|joined| joined.load(Ordering::Acquire))
            .filter(|&index| index != 0)
    }

    /// The interface of a device that takes redirected frames now.
    pub fn takes(&self, device: DeviceId) -> Option<u32> {
        self.out.get(device.index()).map(|out| out.load(Ordering::Acquire)).filter(|&index| index != 0)
    }

    /// How many queues a device's far end has, if which of them takes a redirected frame follows the CPU; else 0.
    fn far_queues(&self, device: DeviceId) -> u16 {
        let of = self.far_queues.get(device.index()).map_or(0, |of| of.load(Ordering::Acquire));
        if of == NO_REDIRECTS { 0 } else { of.min(u16::MAX.into()) as u16 }
    }

    /// Asks every device that takes part, if the last time is long enough ago.
    pub fn ask(&self, now: Nanos) {
        if now.saturating_sub(self.asked.load(Ordering::Relaxed)) < ASK_EVERY {
            return;
        }
        self.asked.store(now, Ordering::Relaxed);
        let mut changed = false;
        for device in 0..self.devices.len() {
            changed |= self.ask_one(device);
        }
        // One that takes frames again too: flows that it was in the way of are judged again.
        if changed {
            self.forget();
        }
    }

    /// True when the device took redirected frames and no longer does, or the other way round.
    fn ask_one(&self, device: usize) -> bool {
        let (Some(joined), Some(out)) = (self.devices.get(device), self.out.get(device)) else {
            return false;
        };
        let ifindex = joined.load(Ordering::Acquire);
        let barred = self.far_queues.get(device).is_none_or(|of| of.load(Ordering::Acquire) == NO_REDIRECTS);
        let able = ifindex != 0 && !barred && features::can_transmit(ifindex).unwrap_or(false);
        let open = if able { ifindex } else { 0 };
        out.swap(open, Ordering::AcqRel) != open
    }

    /// VLANs with counters of their own, and the numbers of these.
    fn vlans(&self) -> Vec<((DeviceId, u16), u16)> {
        let counted = self.lock_counted();
        let vlans = counted.iter().zip(MAX_DEVICES as u16..).filter_map(|(counted, number)| match counted {
            Counted::Vlan(device, vlan) => Some(((*device, *vlan), number)),
            Counted::Policy(..) => None,
        });
        vlans.collect()
    }

    /// Frames of a device and its VLANs that XDP forwarded by itself.
    pub fn received(&self, device: DeviceId) -> Option<u64> {
        let all = self.flows.all_counters().ok()?;
        let own = self.vlans().into_iter().filter(|&((of, _), _)| of == device);
        let numbers = own.map(|(_, number)| usize::from(number)).chain([device.index()]);
        Some(numbers.filter_map(|number| all.get(number)).map(|counters| counters.rx_packets).sum())
    }

    /// What XDP forwarded by itself, as a report of its own: received and forwarded, port by port.
    pub fn report(&self, tables: &Tables) -> WorkerState {
        let mut report = WorkerState { generation: tables.generation, ..WorkerState::default() };
        report.ports.resize(tables.ports.len(), PortCounters::default());
        let mut ledger = Ledger::default();
        let all = self.flows.all_counters().unwrap_or_default();
        let tagged = self.vlans().into_iter().map(|((device, vlan), number)| {
            let known = tables.devices.get(device.index()).map_or(&[][..], |device| &device.tagged);
            (number, known.iter().find(|(id, _)| *id == vlan).map(|(_, port)| *port))
        });
        let untagged = tables.devices.iter().zip(0..).map(|(device, number)| (number, device.untagged));
        for (number, port) in untagged.chain(tagged) {
            let Some(counters) = all.get(usize::from(number)) else { continue };
            ledger.received += counters.rx_packets;
            ledger.forwarded += counters.rx_packets;
            let port = port.and_then(|port| report.ports.get_mut(port.index()));
            if let Some(port) = port {
                port.rx_packets += counters.rx_packets;
                port.rx_bytes += counters.rx_bytes;
                port.tx_packets += counters.tx_packets;
                port.tx_bytes += counters.tx_bytes;
            }
        }
        report.ledger = ledger;
        report
    }
}

/// What a device that takes part needs to install flows.
#[derive(Clone)]
pub struct FlowOffloadHandle {
    pub shared: Arc<FlowOffload>,
    pub tables: Arc<ArcSwap<Tables>>,
    pub key: FlowKey,
    /// Where the firewall stays the kernel's: its flows, and nothing else, are forwarded, by XDP alone.
    pub tracked: Option<Arc<Mutex<Tracked>>>,
}

/// Where a socket receives.
#[derive(Clone)]
pub struct ReceiveQueue {
    pub device: DeviceId,
    pub ifindex: u32,
    pub queue: u32,
    /// The queue of each device that its worker sends by.
    pub sends_by: u16,
    pub progress: Progress,
    /// The program runs behind the driver: the kernel sends what it redirects, whatever the driver of the outgoing
    /// device is.
    pub generic: bool,
}

/// A socket that installs flows of the frames it receives, and tells XDP how far its worker has come.
pub struct OffloadingSocket {
    inner: AfXdp,
    at: ReceiveQueue,
    offload: FlowOffloadHandle,
    lasting: Lasting,
    /// Which frame of a batch is looked at next: not always the first.
    turn: usize,
    /// Number of the frame received last.
    number: u64,
    /// This socket is among [`FlowOffload::unsent`].
    unsent: bool,
}

impl OffloadingSocket {
    pub fn new(inner: AfXdp, at: ReceiveQueue, offload: FlowOffloadHandle) -> Self {
        let lasting = Lasting::new(offload.key);
        OffloadingSocket { inner, at, offload, lasting, turn: 0, number: 0, unsent: false }
    }

    fn note_unsent(&mut self) {
        let unsent = self.inner.unsent();
        match (self.unsent, unsent) {
            (false, true) => self.offload.shared.unsent.fetch_add(1, Ordering::AcqRel),
            (true, false) => self.offload.shared.unsent.fetch_sub(1, Ordering::AcqRel),
            _ => 0,
        };
        self.unsent = unsent;
    }

    /// Whether the far end's queue that takes a frame from the CPU where the kernel receives is the worker's.
    fn is_received_for(&self, leaves: &Leaves) -> bool {
        let far_queues = u64::from(leaves.far_queues);
        far_queues <= 1 || self.at.progress.cpu() % far_queues == u64::from(leaves.queue)
    }

    fn install_flows(&mut self, frames: &[Frame<Chunk>]) {
        let tables = self.offload.tables.load();
        let shared = &self.offload.shared;
        let ReceiveQueue { device, ifindex, queue, sends_by, generic, .. } = self.at;
        // It left.
        if shared.joined(device).is_none() {
            return;
        }
        for _ in 0..FLOWS_A_CALL.min(frames.len()) {
            self.turn = self.turn.wrapping_add(1);
            let frame = &frames[self.turn % frames.len()];
            // The word before the devices: a closure between the two makes the entry void.
            let generation = shared.word(tables.generation);
            let Some(way) = self.lasting.way(&tables, device, frame.data()) else { continue };
            let out_device = way.next.device;
            let able = if generic { &shared.devices } else { &shared.out };
            let out = able.get(out_device.index()).map_or(0, |out| out.load(Ordering::Acquire));
            if out == 0 {
                continue;
            }
            let far_queues = shared.far_queues(out_device);
            // Behind generic XDP the kernel chooses by the packet.
            if generic && far_queues > 1 {
                continue;
            }
            let policies = match way.policies {
                None => None,
                Some(by) => match shared.counted_by(by) {
                    None => continue,
                    numbers => numbers,
                },
            };
            let decided = Decided {
                generation,
                source: way.source,
                destination: way.destination,
                flow: way.flow,
                arrives: Arrives {
                    ifindex,
                    queue,
                    device: shared.counted(device, way.arrived.vlan),
                    vlan: way.arrived.vlan,
                    mac: way.arrived.mac,
                },
                leaves: Leaves {
                    ifindex: out,
                    device: shared.counted(out_device, way.next.vlan),
                    vlan: way.next.vlan,
                    queue: sends_by,
                    far_queues,
                    mtu: way.next.mtu,
                    macs: way.next.header,
                },
                policies,
            };
            // A full map makes room by itself; without memory the pair stays with the workers. So does what XDP could not redirect
            // where the kernel receives it: it would be looked up for nothing.
            let _ = if self.is_received_for(&decided.leaves) {
                shared.flows.insert(&decided)
            } else {
                shared.flows.remove(&decided)
            };
        }
    }
}

impl Device<Chunk> for OffloadingSocket {
    fn rx(&mut self, pool: &mut Pool<Chunk>, batch: &mut Batch<Chunk>) -> usize {
        // A breath sends what it received before it receives again. What a socket kept is not sent.
        if self.offload.shared.unsent.load(Ordering::Acquire) == 0 {
            self.at.progress.done(self.number);
        }
        let before = batch.len();
        let received = self.inner.rx(pool, batch);
        self.note_unsent();
        if received > 0 {
            for frame in &mut batch.frames_mut()[before..] {
                self.number = self.at.progress.number(frame, self.number).unwrap_or(self.number);
            }
            self.install_flows(&batch.frames()[before..]);
        }
        received
    }

    fn tx(&mut self, pool: &mut Pool<Chunk>, frames: &mut Vec<Frame<Chunk>>) -> usize {
        let accepted = self.inner.tx(pool, frames);
        self.note_unsent();
        accepted
    }

    fn buffers_held(&self) -> usize {
        self.inner.buffers_held()
    }

    fn stats(&mut self) -> DeviceStats {
        self.inner.stats()
    }

    fn unsent(&self) -> bool {
        self.inner.unsent()
    }

    fn take_owed_wake_up(&mut self) -> Option<RawFd> {
        self.inner.take_owed_wake_up()
    }

    fn received_by_kernel(&self) -> bool {
        self.inner.received_by_kernel()
    }

    fn watch(&mut self, now: Nanos) -> Option<String> {
        self.inner.watch(now)
    }

    fn status(&mut self) -> DeviceStatus {
        self.inner.status()
    }
}

impl Drop for OffloadingSocket {
    fn drop(&mut self) {
        if self.unsent {
            self.offload.shared.unsent.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
