//! One queue of one interface as a [`Device`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use weir_core::device::{Device, DeviceStats, DeviceStatus};
use weir_core::packet::{Batch, DeviceId, Frame, Pool};

use weir_core::time::Nanos;
use weir_core::wire::partial_checksum;

use super::lingering::{self, QueueId};
use super::live::Live;
use super::transmit::{Mover, Transmit};
use super::{Bind, OpenError, Options, PortReport, socket};
use crate::bpf::attach::XdpMode;
use crate::bpf::features;
use crate::interface::{HeldInterrupts, Interface, POLLED_AT_LEAST, may_be_a_card};
use crate::ring::{Addr, Consumer, Desc, Producer, Which};
use crate::steer::Steering;
use crate::umem::{Chunk, LINK_HEADER, Region, Umem};

/// Fill-ring slots are refilled when this many are due: one publication for several frames.
const REFILL: u32 = 32;

/// An AF_XDP socket, its rings, and the chunks it holds.
///
/// Fields drop in order: rings and socket first (the kernel begins to release the memory), then `held`
/// (the chunks go home when it has).
#[derive(Debug)]
pub struct AfXdp {
    fill: Producer<Addr>,
    rx: Consumer<Desc>,
    tx: Transmit,
    /// The other way to send, of copied frames.
    live: Option<Live>,
    completion: Consumer<Addr>,
    socket: OwnedFd,
    held: KernelChunks,
    /// The hold on the interface's interrupts while this port polls; its queues share one.
    interrupts: Option<HeldInterrupts>,
    busy_poll_insists: bool,
    interface: Interface,
    device: DeviceId,
    /// Chunks to keep posted, and those posted now (in the fill ring, the kernel, or the rx ring).
    want_posted: u32,
    posted: u32,
    /// Entries that name a chunk the kernel was not given.
    rx_alien: u64,
    /// Frames in chunks of another umem.
    tx_alien: u64,
    /// Frames may come with checksums that their sender left to a card: a program behind the driver gets them so.
    finishes_checksums: bool,
    report: PortReport,
}

impl AfXdp {
    /// Opens `options.queue` of the steered interface on this umem.
    pub fn open(options: &Options, steering: &Steering, umem: &Umem) -> Result<AfXdp, OpenError> {
        let name = steering.interface();
        let interface =
            Interface::open(name).map_err(|error| OpenError::Interface { interface: name.into(), error })?;
        let mut refusals = Vec::new();
        for &bind in &options.order {
            if bind == Bind::ZeroCopy
                && let Err(error) = card_takes(&interface, umem)
            {
                refusals.push((bind, error));
                continue;
            }
            let wanted = bind == Bind::ZeroCopy && options.busy_poll.is_some();
            let vain = wanted && !options.busy_poll_insists && polls_in_vain(&interface, options.queue);
            // Zero-copy and polled: sending needs a socket that wakes the driver.
            let beside = wanted && !vain;
            let mut no_sender =
                vain.then(|| io::Error::other("the driver sends by another poller than it receives by"));
            let mut parts = Parts::bound(options, &interface, umem, bind, beside)?;
            if let Attempt::NoSender(error) = parts {
                no_sender = Some(error);
                parts = Parts::bound(options, &interface, umem, bind, false)?;
            }
            match parts {
                Attempt::Bound(parts) => {
                    let opened = Opened { interface, bind, refusals, no_sender };
                    return parts.finish(options, steering, umem, opened);
                }
                Attempt::Refused(error) | Attempt::NoSender(error) => refusals.push((bind, error)),
            }
        }
        Err(OpenError::Bind { interface: name.into(), queue: options.queue, refusals })
    }

    /// What was tried and what was taken.
    pub fn report(&self) -> &PortReport {
        &self.report
    }

    /// Readable when frames wait: for a worker with nothing to do.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What moves the transmit ring now.
    fn mover(&self) -> Mover {
        match (self.report.bind, &self.interrupts) {
            (Bind::Copy, _) => Mover::Copying,
            (Bind::ZeroCopy, None) => Mover::Waking,
            (Bind::ZeroCopy, Some(_)) => Mover::Polling,
        }
    }

    /// Gives busy polling up: interrupts drive this port from now on.
    fn forgo_busy_poll(&mut self) {
        self.interrupts = None;
        // What cannot be taken back leaves a socket that polls, and a sender beside it that wakes.
        let _ = socket::forgo_busy_poll(self.socket.as_fd());
        self.report.busy_poll = false;
        self.kick();
    }

    fn kick(&mut self) {
        let mover = self.mover();
        self.tx.kick(self.socket.as_fd(), mover);
    }

    /// Sends frames from the front without socket buffers, as many as are better sent so.
    fn send_live(&mut self, pool: &mut Pool<Chunk>, frames: &mut Vec<Frame<Chunk>>) -> usize {
        // What the socket has not sent would be overtaken.
        let Some(live) = self.live.as_mut().filter(|_| self.tx.ring.pending() == 0) else { return 0 };
        let mut gone = 0;
        loop {
            let count = live.takes(frames.iter().map(Frame::data));
            let sent = if count > 0 { live.send(frames[..count].iter().map(Frame::data)) } else { 0 };
            frames.drain(..sent).for_each(|frame| pool.put(frame.into_buffer()));
            gone += sent;
            if sent == 0 {
                return gone;
            }
        }
    }

    /// Keeps `want_posted` chunks with the kernel.
    fn refill(&mut self, pool: &mut Pool<Chunk>) {
        let due = self.want_posted.saturating_sub(self.posted);
        if due < REFILL.min(self.want_posted) {
            return;
        }
        let room = self.fill.room(due).min(due);
        let mut added = 0;
        while added < room {
            let Some(chunk) = pool.take() else { break };
            let Some(index) = self.held.claim(chunk) else { break };
            self.fill.push(self.held.addr(index));
            added += 1;
        }
        if added > 0 {
            self.fill.submit();
            self.posted += added;
        }
    }

    /// Takes back the chunks of frames that were sent.
    fn reap(&mut self, pool: &mut Pool<Chunk>) {
        while let Some(addr) = self.completion.pop() {
            if let Some(chunk) = self.held.release(addr) {
                pool.put(chunk);
            }
        }
        self.completion.release();
    }
}

impl Device<Chunk> for AfXdp {
    fn rx(&mut self, pool: &mut Pool<Chunk>, batch: &mut Batch<Chunk>) -> usize {
        if self.tx.unsent {
            self.kick();
        }
        self.reap(pool);
        self.refill(pool);
        if self.rx.ready() == 0 && (self.interrupts.is_some() || self.fill.needs_wakeup()) {
            // A refusal means no traffic to receive: the interface is down or gone (`status`).
            let _ = socket::wake_rx(self.socket.as_fd());
        }
        let mut received = 0;
        let mut taken = 0;
        for _ in 0..batch.room() {
            let Some(desc) = self.rx.pop() else { break };
            taken += 1;
            let Some(chunk) = self.held.release(desc.addr) else {
                self.rx_alien += 1;
                continue;
            };
            let start = self.held.offset(desc.addr);
            let mut frame = Frame::new(chunk, start, desc.len as usize, self.device);
            if self.finishes_checksums {
                partial_checksum::finish(frame.data_mut());
            }
            match batch.push(frame) {
                Ok(()) => received += 1,
                Err(frame) => pool.put(frame.into_buffer()),
            }
        }
        if taken > 0 {
            self.rx.release();
            self.posted = self.posted.saturating_sub(taken);
        }
        received
    }

    fn tx(&mut self, pool: &mut Pool<Chunk>, frames: &mut Vec<Frame<Chunk>>) -> usize {
        self.reap(pool);
        let gone = self.send_live(pool, frames);
        let room = self.tx.ring.room(frames.len() as u32) as usize;
        let accepted = room.min(frames.len());
        let was_empty = self.tx.ring.pending() == 0;
        for frame in frames.drain(..accepted) {
            let (start, len) = (frame.start() as u64, frame.len() as u32);
            match self.held.claim(frame.into_buffer()) {
                Some(index) => {
                    self.tx.ring.push(Desc { addr: self.held.addr(index) + start, len, options: 0 });
                }
                None => self.tx_alien += 1,
            }
        }
        if accepted > 0 {
            let mover = self.mover();
            self.tx.submit(self.socket.as_fd(), mover, was_empty);
        }
        if self.tx.unsent && (accepted == 0 || !frames.is_empty()) {
            // The ring is full: the driver is to take frames now, for the caller to try again.
            self.tx.owe_nothing();
            self.kick();
        }
        gone + accepted
    }

    fn buffers_held(&self) -> usize {
        self.held.count
    }

    fn stats(&mut self) -> DeviceStats {
        const ZERO: libc::xdp_statistics = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        // The option exists since the first AF_XDP kernel; without it only our own counts remain.
        let of = |socket| crate::socket_option::xdp(socket, libc::XDP_STATISTICS, || ZERO).unwrap_or(ZERO);
        let port = self.socket.as_fd();
        let (kernel, sending) = (of(port), of(self.tx.socket(port)));
        DeviceStats {
            rx_ring_full: kernel.rx_ring_full + kernel.rx_dropped,
            rx_invalid: kernel.rx_invalid_descs + self.rx_alien,
            tx_invalid: sending.tx_invalid_descs + self.tx_alien,
            rx_fill_empty: kernel.rx_fill_ring_empty_descs,
            rx_truncated: 0,
            tx_stalled: self.tx.stalled,
            tx_live: self.live.as_ref().map_or(0, |live| live.sent),
            tx_dropped: self.live.as_ref().map_or(0, |live| live.dropped),
        }
    }

    fn watch(&mut self, now: Nanos) -> Option<String> {
        let (interface, port) = (&self.interface, self.socket.as_fd());
        let (name, queue) = (&self.report.interface, self.report.queue);
        if let Some(said) = self.live.as_mut().and_then(Live::watch) {
            return Some(format!("af_xdp {name} queue {queue}: {said}"));
        }
        let up = || interface.status() == DeviceStatus::Up;
        let stalls = self.tx.stalls(now, port, up);
        let what = format!(
            "af_xdp {name} queue {queue}: frames waited in the transmit ring for 100 ms and it did not move"
        );
        let notice = match (stalls, self.interrupts.is_some()) {
            (true, true) => format!(
                "{what}: busy polling is given up here, interrupts drive it from now on; `wake_up = \"interrupt\"` in [workers] starts so"
            ),
            (true, false) => {
                return Some(format!(
                    "{what}; the driver was woken; if `tx stalled` grows on in `weir show ports`, use kind \"af_packet\" and report the driver: `ethtool -i {name}`"
                ));
            }
            // One interrupt less to receive by, and one to send by all the same: the CPU is better left to others.
            (false, true) if self.tx.has_own_poller() && !self.busy_poll_insists && up() => format!(
                "af_xdp {name} queue {queue}: the driver sends by another poller than it receives by: busy polling is given up here, interrupts drive it from now on; `wake_up = \"busy-poll\"` in [workers] keeps it"
            ),
            (false, _) => return None,
        };
        self.forgo_busy_poll();
        Some(notice)
    }

    fn unsent(&self) -> bool {
        self.tx.unsent
    }

    fn take_owed_wake_up(&mut self) -> Option<RawFd> {
        self.tx.take_owed(self.socket.as_fd()).map(|socket| socket.as_raw_fd())
    }

    fn received_by_kernel(&self) -> bool {
        self.interrupts.is_none()
    }

    fn status(&mut self) -> DeviceStatus {
        self.interface.status()
    }
}

impl Drop for AfXdp {
    fn drop(&mut self) {
        if let Some(socket) = self.tx.take_owed(self.socket.as_fd()) {
            let _ = socket::wake_tx(socket);
        }
    }
}

/// Whether a poll of the receive queue is known not to send.
fn polls_in_vain(interface: &Interface, queue: u32) -> bool {
    matches!(features::sends_by_another_poller(interface.index(), queue), Ok(Some(true)))
}

/// Whether any card behind this interface can be given chunks that hold a whole frame.
fn card_takes(interface: &Interface, umem: &Umem) -> io::Result<()> {
    let frame = interface.mtu()? as usize + LINK_HEADER;
    if !may_be_a_card(interface.name()) || frame <= umem.card_room() {
        return Ok(());
    }
    let (chunk, room) = (umem.chunk_size(), umem.card_room());
    Err(io::Error::other(format!(
        "of a buffer of {chunk} bytes a card may use {room}, and frames here have up to {frame}"
    )))
}

/// A bound socket with memory and rings.
struct Parts {
    fill: Producer<Addr>,
    rx: Consumer<Desc>,
    tx: Transmit,
    completion: Consumer<Addr>,
    socket: OwnedFd,
}

enum Attempt {
    Bound(Box<Parts>),
    /// The kernel does not bind the queue this way.
    Refused(io::Error),
    /// It does, but lets no second socket in to send.
    NoSender(io::Error),
}

/// How a queue came to be bound.
struct Opened {
    interface: Interface,
    bind: Bind,
    refusals: Vec<(Bind, io::Error)>,
    no_sender: Option<io::Error>,
}

impl Parts {
    /// Binds the queue; what is sent goes by the same socket, or by one `beside` it.
    fn bound(
        options: &Options,
        interface: &Interface,
        umem: &Umem,
        bind: Bind,
        beside: bool,
    ) -> Result<Attempt, OpenError> {
        let step = |what| move |error| step_error(interface.name(), options.queue, what, error);
        let socket = socket::open().map_err(step("no AF_XDP socket"))?;
        let fd = socket.as_fd();
        socket::register(fd, umem.region()).map_err(step("umem not accepted"))?;
        let ring = options.ring;
        let fill = Producer::of_socket(fd, Which::Fill, ring).map_err(step("fill ring"))?;
        let completion = Consumer::of_socket(fd, Which::Completion, ring).map_err(step("completion ring"))?;
        let rx = Consumer::of_socket(fd, Which::Rx, ring).map_err(step("rx ring"))?;
        let tx = match beside {
            true => None,
            false => Some(Transmit::of_port(fd, ring).map_err(step("tx ring"))?),
        };
        if let Err(error) = bind_patiently(fd, interface.index(), options.queue, bind) {
            return Ok(Attempt::Refused(error));
        }
        lingering::bound(QueueId::here(interface.index(), options.queue));
        let tx = match tx.map_or_else(|| Transmit::beside(fd, ring, interface.index(), options.queue), Ok) {
            Ok(tx) => tx,
            Err(error) => return Ok(Attempt::NoSender(error)),
        };
        Ok(Attempt::Bound(Box::new(Parts { fill, rx, tx, completion, socket })))
    }

    fn finish(
        self,
        options: &Options,
        steering: &Steering,
        umem: &Umem,
        opened: Opened,
    ) -> Result<AfXdp, OpenError> {
        let Opened { interface, bind, refusals, no_sender } = opened;
        let fd = self.socket.as_fd();
        socket::raise_send_budget(self.tx.socket(fd), options.ring);
        // Refused busy polling leaves a good socket: opening the queue anew would find it taken, because
        // the kernel releases a closed socket's queue only after a while.
        let polling = options.busy_poll.map(|budget| match no_sender {
            Some(error) => Err(error),
            None => socket::prefer_busy_poll(fd, budget)
                .and_then(|()| HeldInterrupts::hold(interface.name(), POLLED_AT_LEAST))
                .inspect_err(|_| drop(socket::forgo_busy_poll(fd))),
        });
        let (interrupts, busy_poll_refusal) = match polling {
            Some(Ok(held)) => (Some(held), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        steering.add(options.queue, fd)?;
        let attachment = steering.attachment();
        let live = options.live.clone().filter(|_| bind == Bind::Copy);
        let live = live.map(|shared| Live::new(shared, interface.name(), interface.index()));
        let report = PortReport {
            interface: interface.name().into(),
            queue: options.queue,
            bind,
            xdp: attachment.mode,
            refusals,
            xdp_refusals: attachment
                .refusals
                .iter()
                .map(|(mode, error)| (*mode, error.raw_os_error().unwrap_or(0)))
                .collect(),
            busy_poll: interrupts.is_some(),
            busy_poll_refusal,
            replaced_leftover: attachment.replaced_leftover,
            live: live.as_ref().map(Live::report),
        };
        Ok(AfXdp {
            fill: self.fill,
            rx: self.rx,
            tx: self.tx,
            live,
            completion: self.completion,
            socket: self.socket,
            held: KernelChunks::new(
                umem.region().clone(),
                Some(QueueId::here(interface.index(), options.queue)),
            ),
            interrupts,
            busy_poll_insists: options.busy_poll_insists,
            interface,
            device: options.device,
            want_posted: options.posted.min(options.ring),
            posted: 0,
            rx_alien: 0,
            tx_alien: 0,
            finishes_checksums: attachment.mode == XdpMode::Generic,
            report,
        })
    }
}

/// The kernel releases a queue some milliseconds after the last socket on it is closed: a successor
/// that comes at once is patient for 200 ms.
fn bind_patiently(socket: BorrowedFd<'_>, ifindex: u32, queue: u32, bind: Bind) -> io::Result<()> {
    const TRIES: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(10);
    for _ in 1..TRIES {
        match socket::bind(socket, ifindex, queue, bind) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    socket::bind(socket, ifindex, queue, bind)
}

fn step_error(interface: &str, queue: u32, what: &'static str, error: io::Error) -> OpenError {
    OpenError::Step { interface: interface.into(), queue, what, error }
}

/// The chunks the kernel has from us, one bit each: an address that comes back is believed only if
/// its chunk was given, so no second handle of a chunk can ever be made.
#[derive(Debug)]
struct KernelChunks {
    region: Arc<Region>,
    bits: Vec<u64>,
    count: usize,
    shift: u32,
    /// The queue whose pool has them.
    place: Option<QueueId>,
}

impl KernelChunks {
    fn new(region: Arc<Region>, place: Option<QueueId>) -> KernelChunks {
        let words = region.count().div_ceil(64) as usize;
        let shift = region.chunk_size().trailing_zeros();
        KernelChunks { region, bits: vec![0; words], count: 0, shift, place }
    }

    /// Takes a chunk over; `None` (and the chunk goes home) when it is another umem's.
    #[inline]
    fn claim(&mut self, chunk: Chunk) -> Option<u32> {
        let index = self.region.claim(chunk).ok()?;
        self.bits[index as usize / 64] |= 1 << (index % 64);
        self.count += 1;
        Some(index)
    }

    /// Makes the chunk at `addr` a handle again; `None` when the kernel was not given it.
    #[inline]
    fn release(&mut self, addr: Addr) -> Option<Chunk> {
        let index = addr >> self.shift;
        let word = self.bits.get_mut((index / 64) as usize)?;
        let bit = 1 << (index % 64);
        if *word & bit == 0 {
            return None;
        }
        *word &= !bit;
        self.count -= 1;
        // SAFETY: the bit said that this device held the claim on the chunk, made by `claim` from
        // its only handle; clearing it ended that. Bits exist for indices below the count only.
        Some(unsafe { self.region.chunk(index as u32) })
    }

    fn addr(&self, index: u32) -> Addr {
        u64::from(index) << self.shift
    }

    fn offset(&self, addr: Addr) -> usize {
        (addr & ((1 << self.shift) - 1)) as usize
    }
}

impl Drop for KernelChunks {
    fn drop(&mut self) {
        let of_word = |(word, bits): (usize, &u64)| {
            let bits = *bits;
            (0..64).filter(move |b| bits & (1 << b) != 0).map(move |bit| word as u32 * 64 + bit)
        };
        let chunks: Vec<u32> = self.bits.iter().enumerate().flat_map(of_word).collect();
        match self.place {
            Some(place) => lingering::keep(place, self.region.clone(), chunks),
            None => chunks.into_iter().for_each(|index| self.region.send_home(index)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::umem::ChunkSize;

    #[test]
    fn an_address_comes_back_once_and_only_if_it_was_given() {
        let umem = Umem::new(100, ChunkSize::default()).expect("memory");
        let mut pool = umem.pool();
        let mut held = KernelChunks::new(umem.region().clone(), None);
        let index = held.claim(pool.take().expect("full")).expect("ours");
        let addr = held.addr(index) + 256;
        assert_eq!((held.count, held.offset(addr)), (1, 256));
        assert!(held.release(addr ^ 2048).is_none(), "never given");
        assert!(held.release(1 << 40).is_none(), "outside");
        let chunk = held.release(addr).expect("given");
        assert!(held.release(addr).is_none(), "a second handle");
        pool.put(chunk);
        assert_eq!(pool.free(), umem.total());
    }

    #[test]
    fn what_the_kernel_held_goes_home_with_the_port() {
        let umem = Umem::new(100, ChunkSize::default()).expect("memory");
        let mut pool = umem.pool();
        let mut held = KernelChunks::new(umem.region().clone(), None);
        for _ in 0..70 {
            held.claim(pool.take().expect("full")).expect("ours");
        }
        drop(held);
        assert_eq!((umem.home(), pool.free()), (70, 30));
    }
}
