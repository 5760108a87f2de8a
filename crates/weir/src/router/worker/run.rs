//! The worker's loop: breathe, pass on, look up now and then, sleep when there is nothing to do.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TrySendError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use arc_swap::Cache;
use weir_core::device::{Device, DeviceStats};
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_core::router::{Output, Router, breathe};
use weir_core::tables::Tables;
use weir_core::time::{MILLISECOND, Nanos};
use weir_core::verdict::Reason;
use weir_io::umem::{Chunk, Umem};
use weir_io::wake::{Sleep, wake_driver};
use weir_io::{clock, cpu};

use super::priority::{self, NotFirst};
use super::queues::{Absent, Several, add};
use super::sampling::Sampling;
use super::{EventSender, OpenDevice, Shared, Start, WakeUp, WorkerCommand, WorkerEvent, WorkerState};

/// Breaths without a frame before a worker sleeps: 2,000 × some 100 ns (one look at each ring) is
/// about the time a sleep and a wake-up cost together.
const IDLE_BREATHS: u32 = 2_000;
/// Idle breaths before a sleep where the kernel's own receive work needs the CPU to bring the next frames: one empty look.
const IDLE_BREATHS_SHARED: u32 = 1;
/// The same as a time, for devices that take a system call to look at: where a breath costs microseconds, 2,000 of them
/// keep a CPU for milliseconds from whoever else needs it.
const IDLE_LONGEST: Nanos = MILLISECOND / 2;
/// Idle breaths of a worker that was told never to sleep; it does once in some minutes without a frame.
const IDLE_BREATHS_POLLING: u32 = u32::MAX;
/// Breaths of one frame in a row after which a worker takes it that frames come one at a time.
const LONE_FRAMES: u32 = 4;
/// Longest sleep: held frames and neighbours have deadlines of whole seconds.
const SLEEP_LONGEST: Duration = Duration::from_millis(10);
/// Longest sleep while frames wait to be sent, or no buffer is free to receive into: nothing that ends these waits ends
/// a sleep.
const SLEEP_SHORT: Duration = Duration::from_millis(1);
/// How often counters are copied for the control side.
const REPORT_EVERY: Nanos = 20 * MILLISECOND;
/// How long a stopping worker goes on without traffic before it ends, and at most.
const DRAIN_QUIET: Nanos = 5 * MILLISECOND;
const DRAIN_LONGEST: Nanos = 200 * MILLISECOND;

pub(super) struct Loop {
    shared: Arc<Shared>,
    inbox: Receiver<WorkerCommand>,
    events: EventSender,
    number: usize,
    /// How many workers there are.
    workers: usize,
    cpu: u32,
    devices: Vec<Box<dyn Device<Chunk>>>,
    /// Counts, for each device, of those it replaced.
    past: Vec<DeviceStats>,
    polls: Vec<Vec<RawFd>>,
    sleep: Sleep,
    /// Sockets whose drivers are woken by the next sleep.
    owed: Vec<RawFd>,
    /// Breaths in a row that found one frame, idle ones aside.
    lone: u32,
    /// Idle breaths before a sleep.
    patience: u32,
    wake_up: WakeUp,
    /// Its priority is not to be raised, or is.
    keeps_nice: bool,
    router: Router<Chunk>,
    pool: Pool<Chunk>,
    batch: Batch<Chunk>,
    out: Output<Chunk>,
    report: WorkerState,
    reported: Nanos,
    umem: Arc<Umem>,
    /// What is copied while somebody captures what is dropped.
    sampling: Option<Sampling>,
    /// Debug builds only, for tests: the worker panics when this file exists.
    fault: Option<PathBuf>,
}

/// How many idle breaths a worker of these devices takes before it sleeps.
fn patience(wake_up: WakeUp, devices: &[Box<dyn Device<Chunk>>]) -> u32 {
    match wake_up {
        WakeUp::BusyPoll => IDLE_BREATHS_POLLING,
        WakeUp::Interrupt => IDLE_BREATHS_SHARED,
        WakeUp::Auto if devices.iter().any(|device| device.received_by_kernel()) => IDLE_BREATHS_SHARED,
        WakeUp::Auto => IDLE_BREATHS,
    }
}

impl Loop {
    pub(super) fn new(
        start: Start,
        shared: Arc<Shared>,
        mut sleep: Sleep,
        inbox: Receiver<WorkerCommand>,
        events: EventSender,
    ) -> Loop {
        let mut devices: Vec<Box<dyn Device<Chunk>>> = Vec::new();
        let mut polls = Vec::new();
        for OpenDevice { device, poll } in start.devices {
            devices.push(device);
            polls.push(poll);
        }
        sleep.watch(polls.iter().flatten().copied());
        Loop {
            inbox,
            events,
            number: start.number,
            workers: start.workers,
            cpu: start.cpu,
            sleep,
            owed: Vec::new(),
            lone: 0,
            router: Router::new().with_flow_key(start.key).with_worker(start.number),
            pool: start.umem.pool(),
            batch: Batch::new(),
            out: Output::new(devices.len()),
            patience: patience(start.wake_up, &devices),
            wake_up: start.wake_up,
            keeps_nice: start.leave_nice || start.wake_up == WakeUp::BusyPoll,
            past: vec![DeviceStats::default(); devices.len()],
            devices,
            polls,
            report: WorkerState::default(),
            reported: 0,
            umem: start.umem,
            shared,
            sampling: None,
            fault: std::env::var_os("WEIR_FAULT_WORKER")
                .filter(|_| cfg!(debug_assertions))
                .map(PathBuf::from),
        }
    }

    pub(super) fn run(mut self) {
        if let Err(error) = cpu::pin(self.cpu) {
            tracing::warn!("worker {}: cannot be bound to cpu {}: {error}", self.number, self.cpu);
        }
        self.raise_priority();
        let shared = Arc::clone(&self.shared);
        let mut tables = Cache::new(&*shared.tables);
        let mut idle = 0;
        let mut last_frame = 0;
        let mut quiet_since = None;
        let mut stop_by = None;
        loop {
            let now = clock::now();
            let tables = tables.load();
            if self.devices.len() < tables.devices.len() {
                self.fit(tables.devices.len());
            }
            let received = breathe(
                &mut self.router,
                now,
                tables,
                &mut self.devices,
                &mut self.batch,
                &mut self.pool,
                &mut self.out,
            );
            self.pass_on();
            if let Some(sampling) = &mut self.sampling {
                sampling.pass_on(now, tables, &mut self.router);
            }
            if shared.commands_wait.load(Ordering::Relaxed) {
                self.read_commands(now, tables);
            }
            self.report.breaths += 1;
            if received > 0 {
                idle = 0;
                self.note_frames(received);
                last_frame = now;
                quiet_since = None;
            } else {
                idle += 1;
                self.report.idle_breaths += 1;
            }
            if now.saturating_sub(self.reported) >= REPORT_EVERY {
                self.publish_report(now, tables.generation);
            }
            if shared.stop.load(Ordering::Relaxed) {
                let quiet = now.saturating_sub(*quiet_since.get_or_insert(now)) >= DRAIN_QUIET;
                if quiet || now >= *stop_by.get_or_insert(now + DRAIN_LONGEST) {
                    break;
                }
            } else if idle >= self.patience
                || (self.wake_up == WakeUp::Auto && now.saturating_sub(last_frame) >= IDLE_LONGEST)
            {
                idle = 0;
                // A sleep of every few batches must not cost a report each; one is due soon enough.
                if self.patience == IDLE_BREATHS && now.saturating_sub(self.reported) >= MILLISECOND {
                    self.publish_report(now, tables.generation);
                }
                self.fall_asleep();
            } else if idle == 1 {
                self.wake_drivers();
            }
        }
        self.router.shutdown(&mut self.pool);
        self.copy_counters(self.report.generation);
        *self.shared.report.lock().unwrap_or_else(PoisonError::into_inner) = self.report;
    }

    /// Where frames come one at a time somebody waits for each, and no driver is kept waiting for the next sleep.
    fn note_frames(&mut self, received: usize) {
        self.lone = if received == 1 { self.lone.saturating_add(1) } else { 0 };
        if self.lone >= LONE_FRAMES {
            self.wake_drivers();
        }
    }

    /// Sleeps until a device has frames or somebody has news, and wakes drivers that were told nothing yet before.
    fn fall_asleep(&mut self) {
        let waits = self.pool.free() == 0 || self.devices.iter().any(|device| device.unsent());
        self.owed.extend(self.devices.iter_mut().filter_map(|device| device.take_owed_wake_up()));
        self.sleep.after_waking(&self.owed, if waits { SLEEP_SHORT } else { SLEEP_LONGEST });
        self.owed.clear();
    }

    /// Wakes the drivers that a sleep would have woken.
    fn wake_drivers(&mut self) {
        for socket in self.devices.iter_mut().filter_map(|device| device.take_owed_wake_up()) {
            // A refusal is the interface's state, which the device tells.
            let _ = wake_driver(socket);
        }
    }

    /// One slot and one outgoing queue for each of `devices`; empty until the control side fills it.
    #[cold]
    fn fit(&mut self, devices: usize) {
        while self.devices.len() < devices {
            self.devices.push(Box::new(Absent));
            self.polls.push(Vec::new());
            self.past.push(DeviceStats::default());
            self.out.tx.push(Vec::new());
        }
    }

    /// Where the kernel's reception runs on this CPU too, as a thread (threaded NAPI, ksoftirqd) it takes half of it in an overload, for frames that
    /// then find no room. One that sleeps as soon as there is nothing cannot keep the kernel from its work.
    fn raise_priority(&mut self) {
        if self.keeps_nice || !self.devices.iter().any(|device| device.received_by_kernel()) {
            return;
        }
        self.keeps_nice = true;
        match priority::go_first(self.workers) {
            Ok(()) => {}
            // whoever starts a router at a terminal has not forgotten a right
            Err(why @ (NotFirst::NotOurSession | NotFirst::Group { .. })) => {
                tracing::info!("worker {}: {why}", self.number)
            }
            Err(why) => tracing::warn!("worker {}: {why}", self.number),
        }
    }

    /// Hands punted frames and events to the control side; what does not fit is dropped and counted.
    fn pass_on(&mut self) {
        if self.out.punt.is_empty() && self.out.events.is_empty() {
            return;
        }
        for (port, frame) in self.out.punt.drain(..) {
            let event = WorkerEvent::Punt(port, frame.data().to_vec());
            match self.events.queue.try_send((self.number, event)) {
                Ok(()) => self.router.punted(1),
                Err(_) => self.router.punt_refused(&frame, Reason::PuntQueueFull),
            }
            self.pool.put(frame.into_buffer());
        }
        for event in self.out.events.drain(..) {
            let event = (self.number, WorkerEvent::Router(event));
            if let Err(TrySendError::Full(_)) = self.events.queue.try_send(event) {
                self.report.events_lost += 1;
            }
        }
        self.events.waker.wake();
    }

    fn read_commands(&mut self, now: Nanos, tables: &Tables) {
        // A swap, so that a command whose flag this takes down is seen below.
        self.shared.commands_wait.swap(false, Ordering::AcqRel);
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                WorkerCommand::Send(device, bytes) => {
                    let sent = self.pool.take().and_then(|b| Frame::from_bytes(b, &bytes, device).ok());
                    let queue = self.out.tx.get_mut(device.index());
                    match (sent, queue) {
                        (Some(frame), Some(queue)) => self.router.originate(frame, queue),
                        (Some(frame), None) => {
                            self.pool.put(frame.into_buffer());
                            self.report.commands_lost += 1;
                        }
                        (None, _) => self.report.commands_lost += 1,
                    }
                }
                WorkerCommand::Replace(id, open) => {
                    self.fit(id.index() + 1);
                    let device = &mut self.devices[id.index()];
                    add(&mut self.past[id.index()], device.stats());
                    *device = open.device;
                    self.patience = patience(self.wake_up, &self.devices);
                    self.polls[id.index()] = open.poll;
                    self.sleep.watch(self.polls.iter().flatten().copied());
                    // What the old device held came home when it was dropped.
                    self.umem.reclaim(&mut self.pool);
                }
                WorkerCommand::Add(id, open) => {
                    self.fit(id.index() + 1);
                    let slot = &mut self.devices[id.index()];
                    let mut several: Several<dyn Device<Chunk>> =
                        Several::new(std::mem::replace(slot, Box::new(Absent)));
                    several.add(open.device);
                    *slot = Box::new(several);
                    self.patience = patience(self.wake_up, &self.devices);
                    self.polls[id.index()].extend(open.poll);
                    self.sleep.watch(self.polls.iter().flatten().copied());
                }
                WorkerCommand::Sample(None) => {
                    self.sampling = None;
                    self.router.set_sampler(None);
                }
                WorkerCommand::Sample(Some(order)) => {
                    self.sampling = Some(Sampling::begin(order, now, &mut self.router));
                }
                WorkerCommand::Report(copied) => {
                    self.publish_report(now, tables.generation);
                    // Whoever asked may have given up waiting.
                    let _ = copied.try_send(());
                }
            }
        }
    }

    /// Lets every device look after itself, and passes on what it has to say.
    fn watch(&mut self, now: Nanos) {
        let mut any = false;
        for (index, device) in self.devices.iter_mut().enumerate() {
            let Some(notice) = device.watch(now) else { continue };
            let notice = (self.number, WorkerEvent::Notice(DeviceId(index as u16), notice));
            if let Err(TrySendError::Full(_)) = self.events.queue.try_send(notice) {
                self.report.events_lost += 1;
            }
            any = true;
        }
        if any {
            // A device may have changed who brings its frames.
            self.patience = patience(self.wake_up, &self.devices);
            self.events.waker.wake();
        }
    }

    /// Copies the counters for the control side, unless it is reading them just now.
    fn publish_report(&mut self, now: Nanos, generation: u64) {
        let told = self.fault.as_ref().is_some_and(|file| file.exists());
        assert!(!told, "told to by WEIR_FAULT_WORKER");
        self.reported = now;
        self.watch(now);
        self.copy_counters(generation);
        if let Ok(mut shared) = self.shared.report.try_lock() {
            shared.clone_from(&self.report);
        }
    }

    fn copy_counters(&mut self, generation: u64) {
        let report = &mut self.report;
        report.generation = generation;
        report.ledger.clone_from(self.router.ledger());
        report.lookups = self.router.lookups();
        report.ports.clear();
        report.ports.extend_from_slice(self.router.port_counters());
        report.devices.clear();
        for (index, (device, past)) in self.devices.iter_mut().zip(&self.past).enumerate() {
            let mut stats = *past;
            add(&mut stats, device.stats());
            stats.rx_truncated = self.router.truncated().get(index).copied().unwrap_or(0);
            report.devices.push(stats);
        }
        report.buffers_free = self.pool.free();
        report.buffers_in_devices = self.devices.iter().map(|d| d.buffers_held()).sum();
        report.buffers_held = self.router.held();
        report.buffers_home = self.umem.at_rest();
        report.buffers_total = self.umem.total();
    }
}
