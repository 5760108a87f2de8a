//! Workers: one thread on one CPU, with its own buffers and its own queue of each device.
//!
//! ```text
//! control thread                          worker thread
//!   tables (ArcSwap) ───────────────────►  picked up between breaths
//!   commands: replace device, send frame ►  read when the flag says so
//!   ◄─ punts, events (bounded channel) ──   ARP, NDP, "resolve this next hop"
//!   ◄─ report (every 20 ms, or asked for)   ledger, counters, device losses
//! ```
//!
//! Promises: a breath takes no lock and makes no allocation beyond what a punted frame and a copy for a capture need; a full
//! queue to the control side is a counted drop; a worker told to stop sends what it has and says what
//! it could not. A panic ends the thread and is seen by [`Worker::is_finished`].

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use arc_swap::ArcSwap;
use weir_core::device::{Device, DeviceStats};
use weir_core::id::PortId;
use weir_core::ipsec::spd::LookupCounters;
use weir_core::packet::DeviceId;
use weir_core::router::{Event, PortCounters};
use weir_core::tables::Tables;
use weir_core::verdict::Ledger;
use weir_core::wire::flow::FlowKey;
use weir_io::umem::{Chunk, Umem};
use weir_io::wake::{Sleep, Trigger, Waker};

use crate::config::settings::WakeUp;

mod priority;
mod queues;
mod run;
mod sampling;

pub use queues::{Absent, Several};
pub use sampling::{ALLOWED_EVERY, CaptureOrder, CapturedCopy};

/// A device and the descriptors that become readable when it has frames.
pub struct OpenDevice {
    pub device: Box<dyn Device<Chunk> + Send>,
    pub poll: Vec<RawFd>,
}

/// A worker about to start.
pub struct Start {
    pub number: usize,
    /// How many workers there are.
    pub workers: usize,
    pub cpu: u32,
    /// Shared with the control side, which opens further devices on it.
    pub umem: Arc<Umem>,
    /// Its queue of every device, by [`DeviceId`].
    pub devices: Vec<OpenDevice>,
    /// The key all workers of the router choose paths by.
    pub key: FlowKey,
    pub wake_up: WakeUp,
    /// It keeps the priority it is started with.
    pub leave_nice: bool,
}

/// The way from workers to the control thread: a bounded queue and what makes the thread look at it.
#[derive(Clone)]
pub struct EventSender {
    pub queue: SyncSender<(usize, WorkerEvent)>,
    pub waker: Arc<Waker>,
}

/// Events not yet read, of all workers: a burst of 1,024 ARP frames is a /22 answering at once.
pub const EVENTS_QUEUED_MAX: usize = 1024;

/// What a worker tells the control side as it happens.
#[derive(Debug)]
pub enum WorkerEvent {
    /// An ARP or neighbour discovery frame that came in on a port.
    Punt(PortId, Vec<u8>),
    Router(Event),
    /// Something about a device that an operator should know, as a sentence.
    Notice(DeviceId, String),
}

/// What the control side has a worker do.
pub enum WorkerCommand {
    /// Send this frame as it is.
    Send(DeviceId, Vec<u8>),
    /// Use this device from now on (it came back, or it is gone for good and this stands in for it).
    Replace(DeviceId, OpenDevice),
    /// Receive from this queue of the device too.
    Add(DeviceId, OpenDevice),
    /// Copy frames that are dropped, or no more.
    Sample(Option<CaptureOrder>),
    /// Copy the counters of this moment, then say so.
    Report(SyncSender<()>),
}

/// What a worker has yet to say that it has copied its counters.
pub struct PendingReport(Receiver<()>);

impl PendingReport {
    /// Waits until the counters are there, at most until then: those of a worker that hangs are its last.
    pub fn wait(self, until: Instant) {
        let _ = self.0.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// A worker's counters: of the moment they were asked for, else some milliseconds old.
#[derive(Clone, Debug, Default)]
pub struct WorkerState {
    pub ledger: Ledger,
    /// Counters of ports, by [`PortId`].
    pub ports: Vec<PortCounters>,
    /// SPD lookups by the layer that answered them.
    pub lookups: LookupCounters,
    /// Counters of devices, by [`DeviceId`].
    pub devices: Vec<DeviceStats>,
    pub breaths: u64,
    /// Breaths in which nothing came in.
    pub idle_breaths: u64,
    /// Generation of the tables it works with.
    pub generation: u64,
    /// Buffers: in the pool, with devices, held for neighbours, and in all.
    pub buffers_free: usize,
    pub buffers_in_devices: usize,
    pub buffers_held: usize,
    pub buffers_total: usize,
    /// Dropped with a closed device and not yet fetched back.
    pub buffers_home: usize,
    /// Frames of the control side there was no buffer or device for.
    pub commands_lost: u64,
    /// Requests to resolve a neighbour the control side had no room for; the next frame asks again.
    pub events_lost: u64,
}

impl WorkerState {
    /// Buffers no holder accounts for; anything but 0 is a leak.
    pub fn buffers_missing(&self) -> i64 {
        let found = self.buffers_free + self.buffers_in_devices + self.buffers_held + self.buffers_home;
        self.buffers_total as i64 - found as i64
    }
}

/// What a worker and the control side share.
struct Shared {
    tables: Arc<ArcSwap<Tables>>,
    stop: AtomicBool,
    commands_wait: AtomicBool,
    report: Mutex<WorkerState>,
    waker: Waker,
}

/// The control side's end of a running worker.
pub struct Worker {
    pub number: usize,
    pub cpu: u32,
    shared: Arc<Shared>,
    commands: Sender<WorkerCommand>,
    thread: Option<JoinHandle<()>>,
}

/// The CPU of each worker, in order.
pub fn cpus_of(workers: &[Worker]) -> Vec<u32> {
    workers.iter().map(|worker| worker.cpu).collect()
}

impl Worker {
    /// Starts a worker on its CPU. `events` is shared by all workers.
    pub fn start(start: Start, tables: Arc<ArcSwap<Tables>>, events: EventSender) -> io::Result<Worker> {
        let shared = Arc::new(Shared {
            tables,
            stop: AtomicBool::new(false),
            commands_wait: AtomicBool::new(false),
            report: Mutex::default(),
            waker: Waker::new()?,
        });
        let (commands, inbox): (Sender<WorkerCommand>, Receiver<WorkerCommand>) = channel();
        let (number, cpu) = (start.number, start.cpu);
        let sleep = Sleep::new(&shared.waker, Trigger::Edge)?;
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(format!("weir-worker-{number}"))
            .spawn(move || run::Loop::new(start, theirs, sleep, inbox, events).run())?;
        Ok(Worker { number, cpu, shared, commands, thread: Some(thread) })
    }

    /// Posts a command and wakes the worker if it sleeps.
    pub fn post(&self, command: WorkerCommand) {
        // A worker that ended reads no command; `is_finished` tells of that.
        if self.commands.send(command).is_ok() {
            self.shared.commands_wait.store(true, Ordering::Release);
            self.shared.waker.wake();
        }
    }

    /// Makes a sleeping worker look at new tables at once.
    pub fn wake(&self) {
        self.shared.waker.wake();
    }

    /// Asks for the counters of this moment; [`Worker::report`] has them after [`PendingReport::wait`].
    pub fn refresh(&self) -> PendingReport {
        let (copied, fresh) = sync_channel(1);
        self.post(WorkerCommand::Report(copied));
        PendingReport(fresh)
    }

    /// The counters copied last.
    pub fn report(&self) -> WorkerState {
        // Plain numbers are whole at every step, whatever panicked while holding them.
        self.shared.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The thread has ended: as told, or by a panic.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells the worker to send what it has and end; [`Worker::join`] waits for it.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
    }

    /// Waits for the end; `false` when it was a panic.
    pub fn join(&mut self) -> bool {
        self.thread.take().is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::control::Control;
    use weir_core::device::DeviceStatus;
    use weir_core::packet::{Batch, Frame, Pool};
    use weir_core::state::{Desired, PortSpec};
    use weir_core::tables::ReversePath;
    use weir_io::umem::ChunkSize;

    use super::*;

    /// A device with a defect.
    struct Failure;

    impl Device<Chunk> for Failure {
        fn rx(&mut self, _pool: &mut Pool<Chunk>, _batch: &mut Batch<Chunk>) -> usize {
            panic!("this device is broken on purpose")
        }
        fn tx(&mut self, _pool: &mut Pool<Chunk>, _frames: &mut Vec<Frame<Chunk>>) -> usize {
            0
        }
        fn buffers_held(&self) -> usize {
            0
        }
        fn stats(&mut self) -> DeviceStats {
            DeviceStats::default()
        }
        fn status(&mut self) -> DeviceStatus {
            DeviceStatus::Up
        }
    }

    fn start(device: Box<dyn Device<Chunk> + Send>) -> Worker {
        let port = PortSpec {
            name: "lan".into(),
            device: "e0".into(),
            vlan: None,
            mtu: None,
            addresses: Vec::new(),
            reverse_path: ReversePath::Off,
        };
        let desired = Desired { ports: vec![port], ..Desired::default() };
        let mut control = Control::new(desired, [], 0).expect("one port is a configuration");
        let tables = control.take_snapshot().expect("a first snapshot");
        let (queue, _told) = sync_channel(EVENTS_QUEUED_MAX);
        let events = EventSender { queue, waker: Arc::new(Waker::new().expect("an eventfd")) };
        let start = Start {
            number: 0,
            workers: 1,
            cpu: 0,
            umem: Arc::new(Umem::new(64, ChunkSize::default()).expect("memory")),
            devices: vec![OpenDevice { device, poll: Vec::new() }],
            key: FlowKey::new(1),
            wake_up: WakeUp::Auto,
            leave_nice: true,
        };
        Worker::start(start, Arc::new(ArcSwap::new(tables)), events).expect("a thread")
    }

    #[test]
    fn a_panic_ends_the_worker_and_is_seen() {
        let mut worker = start(Box::new(Failure));
        assert!(!worker.join(), "the panic is told");
        assert!(worker.is_finished());
    }

    #[test]
    fn a_worker_told_to_stop_ends_well_and_misses_no_buffer() {
        let mut worker = start(Box::new(Absent));
        worker.post(WorkerCommand::Send(DeviceId(0), vec![0; 60]));
        worker.post(WorkerCommand::Send(DeviceId(7), vec![0; 60]));
        worker.post(WorkerCommand::Replace(
            DeviceId(2),
            OpenDevice { device: Box::new(Absent), poll: Vec::new() },
        ));
        while worker.report().breaths < 10 {
            thread::yield_now();
        }
        worker.stop();
        assert!(worker.join());
        let report = worker.report();
        assert_eq!((report.buffers_missing(), report.buffers_free), (0, 64));
        assert_eq!(report.ledger.originated_lost + report.commands_lost, 2, "{report:?}");
        assert_eq!(report.ledger.balance(), 0);
    }

    #[test]
    fn figures_are_those_of_the_moment_they_are_asked_for() {
        let worker = start(Box::new(Absent));
        for sent in 1..=5 {
            worker.post(WorkerCommand::Send(DeviceId(7), vec![0; 60]));
            worker.refresh().wait(Instant::now() + Duration::from_secs(60));
            assert_eq!(worker.report().commands_lost, sent, "there is no such device");
        }
    }

    #[test]
    fn a_worker_that_ended_is_not_waited_for() {
        let mut worker = start(Box::new(Failure));
        assert!(!worker.join());
        worker.refresh().wait(Instant::now() + Duration::from_secs(3600));
    }
}
