//! The daemon: workers that forward, and one control thread that does everything else.
//!
//! ```text
//! workers ── punts, events ──►┐                       ┌──► snapshots (ArcSwap) ──► workers
//! taps (ARP, NDP) ───────────►│                       ├──► frames to send ───────► worker 0
//! netlink (links, addresses) ►│  control thread: Control ──► XDP's local addresses
//! HTTP socket, signals ──────►┘                       └──► answers
//! ```
//!
//! Promises: one thread changes tables; what it hears is bounded and read in turn; an interface that
//! vanishes, goes down or changes is reported, counted and taken up again when it comes back; at the end
//! traffic is handed to the kernel first, then what has arrived is sent, then everything is removed. Where policies
//! apply the kernel never gets transit, and what keeps it from the kernel stays ([`enforcement`]).
//! Refuses: to start half: what cannot be opened is said and nothing stays behind.

mod answer;
mod apply;
mod capture;
mod control_group;
pub mod durable;
mod enforcement;
mod error;
pub mod firewall;
mod flow_offload;
mod flows;
mod gateway;
mod host;
mod keying;
mod links;
mod live;
mod lookups;
pub mod memory;
mod metrics;
pub mod mirror;
mod policies;
mod ports;
pub mod resources;
mod routed;
mod start;
mod succession;
mod worker;

#[cfg(feature = "testing")]
pub use policies::fuzz::fuzz_policy_changes;

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use weir_core::control::Control;
use weir_core::packet::DeviceId;
use weir_core::tables::Tables;
use weir_core::time::{MILLISECOND, Nanos};
use weir_core::verdict::Ledger;
use weir_core::wire::flow::FlowKey;
use weir_io::clock;
use weir_io::netlink::{AddressInfo, FilterMonitor, LinkInfo, Monitor};
use weir_io::steer::LocalAddresses;
use weir_io::umem::Umem;
use weir_io::wake::{Sleep, Waker};

use crate::config::Config;
use crate::control::server::Server;
use crate::control::{Request, RequestKind};
use crate::failure::Failure;
use crate::service::Watchdog;
use crate::successor::Successor;
use enforcement::Points;
use firewall::Firewall;
use flow_offload::FlowOffloadHandle;
pub use links::mtu_max;
use live::LiveHandle;
use ports::OpenPort;
pub use ports::may_be_zero_copy;
pub use start::{StartArgs, accelerate, start};
use worker::{PendingReport, Worker, WorkerCommand, WorkerEvent, WorkerState};

/// Longest the control thread sleeps: a dead worker is noticed within it, and a program taken off.
const SLEEP_MS: u64 = enforcement::WATCH / MILLISECOND;
/// A breath takes microseconds, a starved worker's turn to run some milliseconds.
const FIGURES_WITHIN: Duration = Duration::from_millis(100);

/// Everything that runs. Fields drop in order: the server goes first, then workers with their sockets,
/// then what holds the interfaces.
pub struct Daemon {
    _server: Server,
    workers: Vec<Worker>,
    open: BTreeMap<String, Open>,
    /// The host's own packets by xfrm devices, by the device.
    hosts: BTreeMap<String, host::Host>,
    points: Points,
    watchdog: Watchdog,
    /// None: nobody wrote a file, everything is taken from the kernel.
    path: Option<PathBuf>,
    config: Config,
    control: Control,
    tables: Arc<ArcSwap<Tables>>,
    umems: Vec<Arc<Umem>>,
    key: FlowKey,
    /// Absent where BPF cannot be used: then no port is `af_xdp`.
    local: Option<LocalAddresses>,
    /// XDP flow offload; absent where BPF cannot be used.
    flow_offload: Option<FlowOffloadHandle>,
    live: LiveHandle,
    kernel: Kernel,
    /// Absent where the kernel tells nothing of its routes.
    routes: Option<mirror::Routes>,
    /// Absent where keys are not the kernel's.
    keys: Option<keying::Keys>,
    /// Absent where the firewall is not the kernel's.
    flows: Option<flows::Flows>,
    firewall: Firewall,
    events: Receiver<(usize, WorkerEvent)>,
    requests: Receiver<Request>,
    watch: gateway::Watch,
    state: durable::State,
    state_args: durable::StateArgs,
    socket: PathBuf,
    waker: Arc<Waker>,
    sleep: Sleep,
    /// The set of descriptors to sleep on has changed.
    resleep: bool,
    started: Nanos,
    /// Changes of policies since a file was applied.
    unsaved: policies::Unsaved,
    captures: capture::Captures,
    successor: Successor,
}

/// A device that is ours now.
struct Open {
    port: OpenPort,
    /// Kept here, because a device that left the configuration has no name in the tables.
    id: DeviceId,
    /// The interface it was opened on; another one under the same name has another.
    index: Option<u32>,
    /// Times a program of ours was taken off by somebody, and attached again.
    reattached: u64,
    /// Times its driver had to be given the program again after its link was down.
    forgotten: u64,
    /// The kernel forwards from it too: said.
    forwarded: bool,
    /// What is wrong with it, as said last.
    complaint: String,
}

impl Open {
    fn new(port: OpenPort, id: DeviceId, index: Option<u32>) -> Open {
        Open { port, id, index, reattached: 0, forgotten: 0, forwarded: false, complaint: String::new() }
    }

    /// Says what is wrong, once.
    fn complain(&mut self, complaint: String) {
        if self.complaint != complaint {
            tracing::error!("{complaint}");
            self.complaint = complaint;
        }
    }
}

/// What the kernel last said of itself.
struct Kernel {
    monitor: Monitor,
    filters: FilterMonitor,
    links: Vec<LinkInfo>,
    addresses: Vec<AddressInfo>,
}

impl Daemon {
    /// Runs until told to stop, then drains.
    pub fn run(mut self) -> Result<(), Failure> {
        loop {
            self.sleep();
            self.watchdog.alive(Instant::now());
            let now = clock::now();
            self.on_worker_events(now);
            self.read_taps(now);
            self.on_link_changes(now);
            self.on_route_updates(now);
            self.on_key_news(now);
            self.watch_firewall(now);
            let stop = self.answer_requests(now);
            self.control.tick(now);
            self.keep_state(now);
            self.publish();
            self.ask_neighbors();
            self.watch_ipsec(now);
            self.watch_enforcement(now);
            if let Some(flow_offload) = &self.flow_offload {
                flow_offload.shared.ask(now);
                flow_offload.shared.follow_policies(now);
            }
            self.live.ask(now);
            self.watch_capture(now);
            self.watch_successor();
            if stop {
                return self.drain();
            }
            if let Some(dead) = self.workers.iter().find(|w| w.is_finished()) {
                let number = dead.number;
                self.drain()?;
                let left = self.points.left_behind().unwrap_or_else(|| {
                    "the interfaces were given back to the kernel; start weir again".to_owned()
                });
                return Err(Failure(format!(
                    "worker {number}: ended by a defect of weir, see the panic above, and report it; {left}"
                )));
            }
        }
    }

    fn sleep(&mut self) {
        if std::mem::take(&mut self.resleep) {
            let taps = self.open.values().filter_map(|o| o.port.tap.as_ref()).map(AsRawFd::as_raw_fd);
            let firewall = self.firewall.monitor.as_ref().map(AsRawFd::as_raw_fd);
            let kernel = [self.kernel.monitor.as_raw_fd(), self.kernel.filters.as_raw_fd()];
            let keys = self.keys.as_ref().map(AsRawFd::as_raw_fd);
            self.sleep.watch(taps.chain(kernel).chain(firewall).chain(keys));
        }
        let now = clock::now();
        let due = [self.control.poll_at(), self.routes_due(), self.keys_due()].into_iter().flatten().min();
        let due = due.map_or(u64::MAX, |at| at.saturating_sub(now).div_ceil(MILLISECOND));
        self.sleep.until_woken(Duration::from_millis(due.min(SLEEP_MS)));
    }

    fn on_worker_events(&mut self, now: Nanos) {
        // At most what is there now: workers that never fall silent must not keep the rest waiting.
        for (_, event) in self.events.try_iter().take(worker::EVENTS_QUEUED_MAX) {
            match event {
                WorkerEvent::Punt(port, frame) => self.control.handle_punt(now, port, &frame),
                WorkerEvent::Router(event) => self.control.handle_event(now, event),
                WorkerEvent::Notice(device, notice) => note(&mut self.open, device, notice),
            }
        }
    }

    /// ARP, NDP and errors about ESP that the XDP program left to the kernel.
    fn read_taps(&mut self, now: Nanos) {
        let tables = self.control.tables().clone();
        let mut errors = Vec::new();
        for open in self.open.values_mut() {
            let Some(tap) = &mut open.port.tap else { continue };
            // A device that is down or gone says so by netlink too.
            for frame in tap.receive().unwrap_or_default() {
                let Some(port) = tables.port_of(open.id, &frame) else { continue };
                match gateway::too_big(&frame) {
                    Some(packet) => errors.push(packet.to_vec()),
                    None => self.control.handle_punt(now, port, &frame),
                }
            }
        }
        for packet in errors {
            self.on_too_big(now, &packet);
        }
    }

    /// Answers what was asked; true when the answer is to stop.
    fn answer_requests(&mut self, now: Nanos) -> bool {
        let mut stop = false;
        while let Ok(Request { kind, reply }) = self.requests.try_recv() {
            stop |= kind == RequestKind::Stop;
            // Whoever asked may have gone; what was done stays done.
            let _ = reply.send(self.respond(now, kind));
        }
        stop
    }

    /// Gives workers the newest tables and the frames the control side wants sent.
    fn publish(&mut self) {
        if let Some(tables) = self.control.take_snapshot() {
            let generation = tables.generation;
            // Before the workers have the SAs: ESP that comes early is counted, not answered by the kernel.
            self.steer_esp();
            self.tables.store(tables);
            if let Some(flow_offload) = &self.flow_offload {
                flow_offload.shared.publish(generation);
            }
            if let Some(flows) = &self.flows {
                flows.wake();
            }
            for worker in &self.workers {
                worker.wake();
            }
        }
        for (port, frame) in self.control.take_transmits() {
            let device = self.control.tables().ports.get(port.index()).map(|p| p.device);
            if let (Some(device), Some(worker)) = (device, self.workers.first()) {
                worker.post(WorkerCommand::Send(device, frame));
            }
        }
    }

    /// Has every worker copy its counters, so that an answer counts what happened before it was asked for.
    fn refresh(&self) {
        let until = Instant::now() + FIGURES_WITHIN;
        let asked: Vec<PendingReport> = self.workers.iter().map(Worker::refresh).collect();
        for fresh in asked {
            fresh.wait(until);
        }
        if let Some(handle) = &self.flow_offload {
            handle.shared.count_for_policies();
        }
    }

    /// The workers' reports, and those of flow offload and enforcement points behind them.
    fn reports(&self) -> Vec<WorkerState> {
        let offloaded = self.flow_offload.as_ref().map(|handle| handle.shared.report(self.control.tables()));
        let unserved = self.points.report(self.control.tables());
        self.workers.iter().map(Worker::report).chain(offloaded).chain([unserved]).collect()
    }

    /// Traffic back to the kernel, then what has arrived out, then the counts.
    fn drain(&mut self) -> Result<(), Failure> {
        let left = self.points.left_behind();
        let become_of =
            if left.is_some() { "are dropped, but for the kernel's own" } else { "go to the kernel" };
        tracing::info!("stopping: new frames {become_of}; frames that have arrived are still sent");
        self.say_stopping();
        // What passed the kernel by is told to it before the programs go.
        self.flows = None;
        for open in self.open.values_mut() {
            // Where the service manager keeps its link, the program stays.
            if let Some(steering) = open.port.steering.take() {
                steering.withhold();
            }
        }
        for worker in &self.workers {
            worker.stop();
        }
        for worker in &mut self.workers {
            // A panic has told of itself; the counters are those of its last report.
            worker.join();
        }
        self.finish_keys(clock::now());
        self.finish_state();
        let mut total = Ledger::default();
        for report in self.reports() {
            total.merge(&report.ledger);
        }
        tracing::info!(
            "drained: {} received = {} forwarded + {} local + {} dropped ({} unaccounted)",
            total.received,
            total.forwarded,
            total.local,
            total.drops.total(),
            total.balance()
        );
        for (reason, count) in total.drops.nonzero() {
            tracing::info!("dropped {count}: {}: {}", reason.name(), reason.sentence());
        }
        if let Some(left) = left {
            tracing::warn!("{left}");
        }
        Ok(())
    }
}

/// Logs what a device says of itself, and has `weir show ports` say it from now on.
fn note(open: &mut BTreeMap<String, Open>, device: DeviceId, notice: String) {
    tracing::warn!("{notice}");
    let open = open.values_mut().find(|open| open.id == device);
    if let Some(said) = open.map(|open| &mut open.port.said).filter(|said| !said.contains(&notice)) {
        said.push(notice);
    }
}

/// The id of a device by its name.
fn device_id(tables: &Tables, name: &str) -> Option<DeviceId> {
    let at = tables.devices.iter().position(|d| d.name == name)?;
    Some(DeviceId(at as u16))
}
