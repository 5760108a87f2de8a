//! The kernel's established flows: followed on a thread of their own, and forwarded past the kernel where they may be.
//!
//! ```text
//! ctnetlink ─► thread: FlowTable ─► Change::Take ─► both ways in the tables? liberal windows ─► XDP: Tracked
//!    ▲            ▲    ▲                                  ▲                                         │
//!    │            │    └── addresses, admission ◄── control thread ── tables                        │
//!    └────────────┴── time for entries whose packets passed here ◄───────────── packets, bytes ◄────┘
//! ```
//!
//! Promises: a flow is forwarded here only while its entry was heard to allow it, under the tables in force, and with both
//! directions there; what was lost of the kernel's messages takes every flow out of force until everything was dumped
//! again, counted and logged; an entry is given time only for packets that passed; a RST that the kernel saw gives the flow back to
//! it within two seconds, for what follows decides what the RST was worth. When the thread ends, or hangs for a second,
//! flows are the kernel's. Refuses: making or deleting an entry; changing more of one than its time and how strict its windows are.

mod hops;
mod links;
mod numbers;
mod proof;
mod resets;
mod take;
mod view;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use weir_core::conntrack::{Admission, FlowId, FlowTable, Reason, Source};
use weir_core::route::Prefix;
use weir_core::router::lasting::Lasting;
use weir_core::tables::Tables;
use weir_core::time::{Nanos, SECOND};
use weir_core::wire::ctnetlink::{self, Tuple};
use weir_io::clock;
use weir_io::netlink::conntrack::{ConntrackMonitor, ConntrackRequests, dump};
use weir_io::steer::LocalAddresses;
use weir_io::steer::tracked::Tracked;
use weir_io::wake::{Sleep, Trigger, Waker};

use super::flow_offload::{FlowOffload, FlowOffloadHandle};
use super::{Daemon, Kernel};
use crate::failure::Failure;
use hops::Hops;
use links::PortLinks;
use numbers::Numbers;
use proof::Proof;
use take::{Kept, LeftBy, Taken};

/// Entries that are followed: 1,048,576 of at most [`weir_core::conntrack::FLOW_BYTES`] each. The kernel's own limit is
/// `nf_conntrack_max`, 262,144 on most hosts.
pub const FOLLOWED_MAX: usize = 1 << 20;
/// Whether the kernel tells of entries: never, of all, or of those made while somebody listens.
const EVENTS: &str = "/proc/sys/net/netfilter/nf_conntrack_events";
/// Entries that the kernel is asked about before it is listened to again: some 3 MiB of its answers.
const TOUCHED_A_TURN: usize = 4096;
/// The longest that a change of devices or tables that nobody told of waits.
const TURN: Duration = Duration::from_millis(100);
/// How long flows are forwarded after the kernel was last listened to: this thread may hang, or be stopped with its process.
const FOLLOWED_FOR: Nanos = SECOND;
/// How often it is looked which flows had packets.
const LOOK_EVERY: Nanos = SECOND;
/// Entries that a flow table of nftables has are asked about one by one, for the kernel tells nobody when it has them no longer: so many
/// each [`LOOK_EVERY`], 10 ms of work, and while rules have just changed more. Of 1,048,576 entries an eighth is looked at each time.
const OFFLOADED_A_LOOK: usize = 1024;
const OFFLOADED_AFTER_RULES: usize = 4096;
const PLACES_A_LOOK: usize = FOLLOWED_MAX / 8;
/// How long after a change of the rules: a flow table that is deleted lets go of its entries a little later.
const RULES_SETTLE: Nanos = 5 * SECOND;
/// How long after messages were lost everything is dumped again, and the least time between two dumps.
const DUMP_DELAY: Duration = Duration::from_millis(100);
const DUMP_INTERVAL: Duration = Duration::from_secs(1);
/// A dump that finds what no message told of.
const COMPARE_INTERVAL: Duration = Duration::from_secs(300);

/// What happened, cumulative.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Messages about entries.
    pub heard: u64,
    /// The kernel dropped messages because they were not read in time.
    pub overruns: u64,
    /// Dumps after the first.
    pub resyncs: u64,
    /// Entries that a dump found gone without a message.
    pub vanished: u64,
    /// Flows taken, and given back.
    pub taken: u64,
    pub released: u64,
    /// Times an entry was given time.
    pub refreshed: u64,
    /// What the kernel refused.
    pub refused: u64,
    /// Packets and bytes of flows that are no longer here.
    pub packets: u64,
    pub bytes: u64,
}

/// What the thread knows, between two of its turns.
struct Known {
    table: FlowTable,
    /// Flows that may be taken and are not forwarded here.
    wanted: HashSet<FlowId>,
    /// Those of them that are not old enough to be taken, with the time when they are.
    fresh: VecDeque<(Nanos, FlowId)>,
    /// Those of them that are to be taken now, and those there was no room for.
    next: VecDeque<FlowId>,
    full: BTreeSet<FlowId>,
    taken: HashMap<FlowId, Taken>,
    /// How flows left that were given back.
    left_by: HashMap<FlowId, LeftBy>,
    /// Flows that may be taken once the kernel has seen a packet of them.
    reset: BTreeSet<FlowId>,
    kept: Arc<Kept>,
    numbers: Numbers,
    counters: Counters,
}

impl Known {
    fn new(table: FlowTable, kept: Kept) -> Known {
        Known {
            table,
            wanted: HashSet::new(),
            fresh: VecDeque::new(),
            next: VecDeque::new(),
            full: BTreeSet::new(),
            taken: HashMap::new(),
            left_by: HashMap::new(),
            reset: BTreeSet::new(),
            kept: Arc::new(kept),
            numbers: Numbers::default(),
            counters: Counters::default(),
        }
    }
}

/// The thread, from outside.
pub struct Flows {
    known: Arc<Mutex<Known>>,
    tracked: Arc<Mutex<Tracked>>,
    ends: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flows {
    /// Dumps what there is, and follows it. Nothing is taken before `admission` allows it.
    pub fn start(
        handle: &FlowOffloadHandle,
        tracked: &Arc<Mutex<Tracked>>,
        (local, kept): (HashSet<IpAddr>, Kept),
        admission: Admission,
    ) -> Result<Flows, Failure> {
        let refused = |error: io::Error| {
            Failure(format!(
                "firewall: the kernel does not tell its flows ({error}); it needs conntrack with netlink (the module \
                 nf_conntrack_netlink), and root"
            ))
        };
        if std::fs::read_to_string(EVENTS).is_ok_and(|text| text.trim() == "0") {
            return Err(Failure(
                "firewall: the kernel tells nothing of its flows; run `sysctl -w net.netfilter.nf_conntrack_events=1`"
                    .to_owned(),
            ));
        }
        // Before everything else: what is taken is taken by rules that are followed.
        let proof = Proof::open(admission == Admission::Established, clock::now()).map_err(|error| {
            Failure(format!("firewall: what the kernel's rules and IPsec policies say cannot be read ({error}); run as root"))
        })?;
        let mut table = FlowTable::new(FOLLOWED_MAX);
        table.set_local(local);
        table.set_admission(admission);
        let known = Arc::new(Mutex::new(Known::new(table, kept)));
        let (ends, waker) = (Arc::new(AtomicBool::new(false)), Arc::new(Waker::new().map_err(refused)?));
        let mut thread = Thread {
            // Before the dump: a change between the two is heard twice, not missed.
            monitor: ConntrackMonitor::open().map_err(refused)?,
            requests: ConntrackRequests::open().map_err(refused)?,
            known: known.clone(),
            tracked: tracked.clone(),
            offload: handle.shared.clone(),
            tables: handle.tables.clone(),
            lasting: Lasting::new(handle.key),
            hops: Hops::open().map_err(refused)?,
            links: PortLinks::default(),
            proof,
            lifetimes: take::Lifetimes::read(),
            kept: Arc::default(),
            word: 0,
            looked: 0,
            reset_looked: None,
            rules_changed: 0,
            dumped: Instant::now(),
            due: None,
            lost: false,
            ends: ends.clone(),
        };
        thread.dump().map_err(refused)?;
        let sleep = Sleep::new(&waker, Trigger::Level).map_err(refused)?;
        let run = move || thread.run(sleep);
        let thread = std::thread::Builder::new().name("weir-flows".to_owned()).spawn(run).map_err(refused)?;
        let tracked = tracked.clone();
        Ok(Flows { known, tracked, ends, waker, thread: Some(thread) })
    }

    /// Which addresses are this host's.
    pub fn set_local(&self, local: HashSet<IpAddr>) {
        lock(&self.known).table.set_local(local);
        self.waker.wake();
    }

    /// Which destinations only the kernel can forward to.
    pub fn set_kept(&self, kept: Kept) {
        lock(&self.known).kept = Arc::new(kept);
    }

    /// Tables or devices changed.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has told of itself.
            let _ = thread.join();
        }
    }
}

/// What the thread works with.
struct Thread {
    monitor: ConntrackMonitor,
    requests: ConntrackRequests,
    known: Arc<Mutex<Known>>,
    tracked: Arc<Mutex<Tracked>>,
    offload: Arc<FlowOffload>,
    tables: Arc<ArcSwap<Tables>>,
    lasting: Lasting,
    hops: Hops,
    links: PortLinks,
    proof: Proof,
    lifetimes: take::Lifetimes,
    kept: Arc<Kept>,
    /// What was in force when the ways of flows were found.
    word: u64,
    looked: Nanos,
    /// Which of the flows that had a RST was asked about last.
    reset_looked: Option<FlowId>,
    /// When the rules changed last.
    rules_changed: Nanos,
    /// When the last dump ended, and when the next is due.
    dumped: Instant,
    due: Option<Instant>,
    /// Messages were lost since: nothing is in force.
    lost: bool,
    ends: Arc<AtomicBool>,
}

impl Thread {
    fn run(mut self, mut sleep: Sleep) {
        sleep.watch(self.proof.descriptors().chain([self.monitor.as_raw_fd()]));
        loop {
            let now = clock::now();
            // First what ends flows, then what begins them.
            self.obey_rules();
            let more = self.observe();
            lock(&self.tracked).follow_until(now + FOLLOWED_FOR);
            let mut waiting = false;
            if !self.lost {
                waiting = self.act_on_changes();
                self.look();
            }
            if self.ends.load(Relaxed) {
                return self.release_all();
            }
            // What was said before a dump must not be heard after it.
            if more || waiting {
                continue;
            }
            let due = self.due.unwrap_or(self.dumped + COMPARE_INTERVAL);
            if Instant::now() >= due {
                self.resync();
            } else {
                let due = due.saturating_duration_since(Instant::now()).min(TURN);
                // While messages are lost none is taken, however old.
                let ripe = if self.lost { Duration::MAX } else { self.until_one_is_old_enough() };
                sleep.until_woken(due.min(ripe));
            }
        }
    }

    /// Rules or policies that changed void every flow before they are read again.
    fn obey_rules(&mut self) {
        let now = clock::now();
        if self.proof.changed(now) {
            self.rules_changed = now;
            self.offload.forget();
            self.proof.read();
        }
    }

    /// Reads what the kernel said; true when there may be more.
    fn observe(&mut self) -> bool {
        let mut known = lock(&self.known);
        let Known { table, counters, .. } = &mut *known;
        let heard = self.monitor.observe(|event| {
            counters.heard += 1;
            table.observe(event, Source::Event);
        });
        let (lost, more) = match heard {
            Ok(heard) => (heard.lost, heard.more),
            Err(error) => {
                tracing::warn!("netlink: {error}; flows are dumped again");
                (true, false)
            }
        };
        if lost {
            known.counters.overruns += 1;
            drop(known);
            self.suspend_all();
            if self.due.is_none() {
                tracing::warn!(
                    "the kernel's messages about flows were not read in time; everything is dumped again, and meanwhile the kernel forwards"
                );
                self.due = Some((Instant::now() + DUMP_DELAY).max(self.dumped + DUMP_INTERVAL));
            }
        }
        more
    }

    /// What was lost may have ended any flow.
    fn suspend_all(&mut self) {
        let (known, tracked) = (lock(&self.known), lock(&self.tracked));
        known.taken.values().for_each(|taken| tracked.suspend(taken.number));
        (self.word, self.lost) = (0, true);
    }

    fn resync(&mut self) {
        self.due = None;
        lock(&self.known).counters.resyncs += 1;
        if let Err(error) = self.dump() {
            tracing::warn!("netlink: {error}; flows are the kernel's until they are dumped again");
            self.suspend_all();
            self.due = Some(Instant::now() + DUMP_INTERVAL);
        }
    }

    /// Takes in every entry the kernel has.
    fn dump(&mut self) -> io::Result<()> {
        lock(&self.known).table.begin_resync();
        let dumped = dump(|event| lock(&self.known).table.observe(event, Source::Answer))?;
        self.dumped = Instant::now();
        let mut known = lock(&self.known);
        if dumped.interrupted {
            drop(known);
            self.due = Some(self.dumped + DUMP_INTERVAL);
            return Ok(());
        }
        let gone = known.table.end_resync();
        known.counters.vanished += gone as u64;
        let Known { table, left_by, .. } = &mut *known;
        left_by.retain(|&id, left| table.flow(id).is_some_and(|flow| left.is_of(&flow.directions()[0])));
        drop(known);
        self.lost = false;
        Ok(())
    }

    /// Asks what an event left open, and does what is to be done about flows; true when some of them wait.
    fn act_on_changes(&mut self) -> bool {
        let questions = lock(&self.known).table.take_questions();
        self.ask(questions);
        let touches = lock(&self.known).table.take_touches(TOUCHED_A_TURN);
        for original in touches {
            // The event that tells whether there will be others is read in the next turn.
            if let Err(error) = self.requests.send(&ctnetlink::touch(&original)) {
                tracing::debug!("netlink: a flow from before: {error}");
            }
        }
        let taken = self.take_and_release();
        taken || lock(&self.known).table.has_touches()
    }

    /// Asks for entries as they are now.
    fn ask(&mut self, originals: Vec<Tuple>) {
        for original in originals {
            match self.requests.query(&original) {
                Ok(event) => lock(&self.known).table.observe(&event, Source::Answer),
                // Its own message tells.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!("netlink: a flow that was asked for: {error}; everything is dumped again");
                    self.due = Some(Instant::now());
                }
            }
        }
    }

    fn look(&mut self) {
        let now = clock::now();
        if now.saturating_sub(self.looked) >= LOOK_EVERY {
            self.looked = now;
            self.refresh(now);
            self.look_at_reset(now);
            let settled = now.saturating_sub(self.rules_changed) > RULES_SETTLE;
            let most = if settled { OFFLOADED_A_LOOK } else { OFFLOADED_AFTER_RULES };
            let offloaded = lock(&self.known).table.look_again(Reason::Flowtable, PLACES_A_LOOK, most);
            self.ask(offloaded);
        }
    }
}

impl Daemon {
    /// Follows the kernel's flows, where its firewall decides.
    pub(super) fn begin_flows(&mut self) -> Result<(), Failure> {
        let Some(firewall) = &self.config.kernel.firewall else { return Ok(()) };
        let handle = self.flow_offload.as_ref();
        let Some((handle, tracked)) = handle.and_then(|handle| Some((handle, handle.tracked.as_ref()?)))
        else {
            return Err(Failure(
                "firewall: flows are forwarded by XDP, which is not to be had here".to_owned(),
            ));
        };
        let admission = firewall.admission;
        let kept = Kept::new(self.local.iter().flat_map(LocalAddresses::kept));
        let flows = Flows::start(handle, tracked, (local(&self.kernel), kept), admission)?;
        let which = match admission {
            Admission::Marked(mark) => format!("with ct mark {:#x}/{:#x}", mark.value(), mark.mask()),
            Admission::Labelled(label) => format!("with ct label {label}"),
            _ => "that its rules accept without more".to_owned(),
        };
        let entries = lock(&flows.known).table.len();
        tracing::info!(
            "the firewall is the kernel's; established flows {which} are forwarded past it: {entries} entries now"
        );
        self.flows = Some(flows);
        Ok(())
    }

    /// What only the kernel can forward is other than before: no flow is in force until that was looked at.
    pub(super) fn flows_keep(&self, kept: &[(Prefix, bool)]) {
        if let (Some(flows), Some(flow_offload)) = (&self.flows, &self.flow_offload) {
            flows.set_kept(Kept::new(kept.iter().copied()));
            flow_offload.shared.forget();
            flows.wake();
        }
    }

    /// A port's link is another than before: no flow is in force until that was looked at.
    pub(super) fn flows_judge_again(&self) {
        if let (Some(flows), Some(flow_offload)) = (&self.flows, &self.flow_offload) {
            flow_offload.shared.forget();
            flows.wake();
        }
    }

    /// This host's addresses may be others.
    pub(super) fn flows_look_around(&self) {
        if let Some(flows) = &self.flows {
            flows.set_local(local(&self.kernel));
        }
    }
}

fn local(kernel: &Kernel) -> HashSet<IpAddr> {
    kernel.addresses.iter().map(|a| a.address).collect()
}
