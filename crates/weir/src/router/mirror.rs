//! Follows the kernel's routes, next-hop objects, policy rules and neighbours, on a thread of its own.
//!
//! ```text
//! netlink ─► thread: Mirror ─ Update ─► control thread: tables, neighbours, what XDP leaves to the kernel
//!               ▲                            │
//!               └──── links and ports ◄──────┘   neighbours wanted ─► netlink
//! ```
//!
//! Promises: the first dump is over before a port is opened; after that nothing is listened to late, because the thread does
//! nothing else; after an overrun, a change that vanishes without a message, and every five minutes, everything is dumped
//! again and compared, counted and logged. A dump the kernel changed under takes nothing away.
//! Refuses: changing anything of the kernel's but asking it for neighbours.

mod apply;
mod begin;
mod lacking;
pub mod members;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_core::id::Mac;
use weir_core::mirror::{Filter, KernelRoute, Mirror, MirrorLink, Passes};
use weir_core::neighbor::State;
use weir_core::route::Prefix;
use weir_core::wire::rtnetlink::{
    self, Change, GET_NEIGHBOR, GET_NEXT_HOP, GET_ROUTE, GET_RULE, NUD_NOARP, News,
};
use weir_io::netlink::routes::{Dumped, NeighborRequests, RouteMonitor, dump};
use weir_io::wake::{Sleep, Trigger, Waker};

pub use apply::{Routes, mirror_links};
pub use begin::{Looked, begin, look, taken_over};
pub use lacking::{Lacking, summary};

/// How long after a change that may take routes without a message the kernel is dumped again: such changes come in
/// groups.
const DUMP_DELAY: Duration = Duration::from_millis(200);
/// The least time between two dumps, however often something vanishes.
const DUMP_INTERVAL: Duration = Duration::from_secs(2);
/// A dump that finds what no message told of.
const COMPARE_INTERVAL: Duration = Duration::from_secs(300);
/// Updates that wait for the control thread; then messages wait in the socket.
const UPDATES_MAX: usize = 64;

/// What the kernel knows of a neighbour on a port; nothing: it has forgotten it.
#[derive(Debug)]
pub struct NeighborUpdate {
    pub port: Arc<str>,
    pub address: IpAddr,
    pub known: Option<(State, Option<Mac>)>,
}

/// What the control thread is told.
#[derive(Debug, Default)]
pub struct Update {
    pub routes: Vec<(Prefix, Option<KernelRoute>)>,
    pub passes: Option<Passes>,
    pub neighbors: Vec<NeighborUpdate>,
}

impl Update {
    fn is_empty(&self) -> bool {
        self.routes.is_empty() && self.passes.is_none() && self.neighbors.is_empty()
    }
}

/// What happened, cumulative.
#[derive(Debug, Default)]
pub struct Counters {
    /// Changes of routes handed over.
    pub routes: AtomicU64,
    /// The kernel dropped messages because they were not read in time.
    pub overruns: AtomicU64,
    /// Dumps after the first.
    pub resyncs: AtomicU64,
    /// Routes that a dump found gone without a message.
    pub vanished: AtomicU64,
    /// Dumps that a change interrupted, so that nothing was concluded from what they lacked.
    pub interrupted: AtomicU64,
    pub malformed: AtomicU64,
}

/// The thread, from outside.
pub struct Follower {
    links: Sender<Vec<MirrorLink>>,
    waker: Arc<Waker>,
    pub updates: Receiver<Update>,
    pub counters: Arc<Counters>,
    pub requests: NeighborRequests,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Dumps what there is, which is the first update, and follows it. `news` is woken for each later one.
    pub fn start(filter: Filter, links: Vec<MirrorLink>, news: Arc<Waker>) -> io::Result<(Follower, Update)> {
        let counters = Arc::new(Counters::default());
        let (updates_in, updates) = sync_channel(UPDATES_MAX);
        let (links_in, commands) = channel();
        let waker = Arc::new(Waker::new()?);
        let sleep = Sleep::new(&waker, Trigger::Level)?;
        let mut thread = Thread {
            // Before the dump: a change between the two is heard twice, not missed.
            monitor: RouteMonitor::open()?,
            mirror: Mirror::new(filter),
            ports: HashMap::new(),
            neighbors: HashMap::new(),
            told: Vec::new(),
            counters: counters.clone(),
            dumped: Instant::now(),
            due: None,
            lost: false,
        };
        thread.set_links(links);
        thread.dump()?;
        let first = thread.update();
        let requests = NeighborRequests::open()?;
        let run = move || thread.run(sleep, &commands, &updates_in, &news);
        let thread = std::thread::Builder::new().name("weir-mirror".to_owned()).spawn(run)?;
        let follower = Follower { links: links_in, waker, updates, counters, requests, thread: Some(thread) };
        Ok((follower, first))
    }

    /// Which links there are now, and which of them are ports.
    pub fn set_links(&self, links: Vec<MirrorLink>) {
        if self.links.send(links).is_ok() {
            self.waker.wake();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The thread ends when nobody can send it links any more; it may be waiting to hand over an update.
        let (nobody, _) = channel();
        self.links = nobody;
        self.waker.wake();
        while self.thread.as_ref().is_some_and(|t| !t.is_finished()) {
            while self.updates.try_recv().is_ok() {}
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(thread) = self.thread.take() {
            // A panic has told of itself.
            let _ = thread.join();
        }
    }
}

/// What is known on the thread.
struct Thread {
    monitor: RouteMonitor,
    mirror: Mirror,
    ports: HashMap<u32, Arc<str>>,
    /// Neighbours on ports, as they were told of last.
    neighbors: HashMap<(u32, IpAddr), (State, Option<Mac>)>,
    /// See [`Update::neighbors`].
    told: Vec<NeighborUpdate>,
    counters: Arc<Counters>,
    /// When the last dump ended, and when the next is due.
    dumped: Instant,
    due: Option<Instant>,
    /// Messages were lost since the last dump.
    lost: bool,
}

impl Thread {
    fn run(
        mut self,
        mut sleep: Sleep,
        commands: &Receiver<Vec<MirrorLink>>,
        updates: &SyncSender<Update>,
        news: &Waker,
    ) {
        sleep.watch([self.monitor.as_raw_fd()]);
        let mut more = false;
        loop {
            let wait = self.next_dump().saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            sleep.until_woken(if more { Duration::ZERO } else { wait });
            // One wake may stand for several commands.
            loop {
                match commands.try_recv() {
                    Ok(links) => self.set_links(links),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            more = self.observe();
            // What is read after the dump must not be older than what was lost; the kernel adds nothing before all is read.
            if !(self.lost && more) && Instant::now() >= self.next_dump() {
                self.lost = false;
                self.resync();
            }
            if !self.hand_over(updates, news) {
                return;
            }
        }
    }

    fn next_dump(&self) -> Instant {
        self.due.unwrap_or(self.dumped + COMPARE_INTERVAL)
    }

    /// False when nobody takes it.
    fn hand_over(&mut self, updates: &SyncSender<Update>, news: &Waker) -> bool {
        let update = self.update();
        if update.is_empty() {
            return true;
        }
        let sent = updates.send(update).is_ok();
        news.wake();
        sent
    }

    fn update(&mut self) -> Update {
        let routes = self.mirror.take_changes();
        self.counters.routes.fetch_add(routes.len() as u64, Relaxed);
        Update { routes, passes: self.mirror.take_passes(), neighbors: std::mem::take(&mut self.told) }
    }

    /// Reads what the kernel said; true when there may be more.
    fn observe(&mut self) -> bool {
        let Thread { monitor, mirror, ports, neighbors, told, .. } = self;
        let mut vanishing = false;
        let heard = monitor.observe(|news| match news {
            News::Neighbor(change, neighbor) => note(ports, neighbors, told, change, &neighbor),
            news => vanishing |= mirror.observe(news),
        });
        match heard {
            Ok(heard) => {
                self.counters.malformed.fetch_add(heard.malformed, Relaxed);
                if heard.lost {
                    self.lost = true;
                    self.counters.overruns.fetch_add(1, Relaxed);
                    tracing::warn!(
                        "the kernel dropped messages about routes because they were not read in time; everything is dumped again"
                    );
                }
                if vanishing || heard.lost {
                    self.dump_soon();
                }
                heard.more
            }
            Err(error) => {
                tracing::warn!("netlink: {error}; routes are dumped again");
                self.dump_soon();
                false
            }
        }
    }

    fn dump_soon(&mut self) {
        let due = (Instant::now() + DUMP_DELAY).max(self.dumped + DUMP_INTERVAL);
        self.due.get_or_insert(due);
    }

    fn set_links(&mut self, links: Vec<MirrorLink>) {
        let ports: HashMap<u32, Arc<str>> =
            links.iter().filter_map(|l| Some((l.index, l.port.as_ref()?.name.clone()))).collect();
        let others = ports != self.ports;
        self.ports = ports;
        if self.mirror.set_links(links) || others {
            self.dump_soon();
        }
    }

    fn resync(&mut self) {
        self.due = None;
        self.counters.resyncs.fetch_add(1, Relaxed);
        if let Err(error) = self.dump() {
            tracing::warn!("netlink: {error}; routes stay as they were heard last, and are dumped again");
            self.dumped = Instant::now();
            self.dump_soon();
        }
    }

    /// Takes in everything the kernel has.
    fn dump(&mut self) -> io::Result<()> {
        let Thread { mirror, ports, told, .. } = self;
        let mut neighbors = HashMap::new();
        mirror.begin_resync();
        let mut whole = Dumped::default();
        for kind in [GET_RULE, GET_NEXT_HOP, GET_ROUTE, GET_NEIGHBOR] {
            let dumped = dump(kind, |news| match news {
                News::Neighbor(change, neighbor) => note(ports, &mut neighbors, told, change, &neighbor),
                news => _ = mirror.observe(news),
            })?;
            whole.interrupted |= dumped.interrupted;
            whole.malformed += dumped.malformed;
        }
        self.counters.malformed.fetch_add(whole.malformed, Relaxed);
        self.dumped = Instant::now();
        if whole.interrupted {
            // What it did not tell of may be there.
            self.counters.interrupted.fetch_add(1, Relaxed);
            tracing::debug!("a change interrupted a dump of routes; it is taken again");
            self.neighbors.extend(neighbors);
            self.dump_soon();
            return Ok(());
        }
        let gone = mirror.end_resync();
        self.counters.vanished.fetch_add(gone as u64, Relaxed);
        if gone > 0 {
            tracing::debug!("{gone} routes were gone without a message");
        }
        let may_fit = mirror.may_fit_again();
        for key in self.neighbors.keys().filter(|key| !neighbors.contains_key(*key)) {
            if let Some(port) = ports.get(&key.0) {
                self.told.push(NeighborUpdate { port: port.clone(), address: key.1, known: None });
            }
        }
        self.neighbors = neighbors;
        if may_fit {
            self.dump_soon();
        }
        Ok(())
    }
}

/// Notes what the kernel knows of a neighbour on a port.
fn note(
    ports: &HashMap<u32, Arc<str>>,
    neighbors: &mut HashMap<(u32, IpAddr), (State, Option<Mac>)>,
    told: &mut Vec<NeighborUpdate>,
    change: Change,
    neighbor: &rtnetlink::Neighbor,
) {
    let Some(port) = ports.get(&neighbor.link).filter(|_| !neighbor.foreign) else { return };
    let key = (neighbor.link, neighbor.address);
    // Multicast groups and addresses of this host.
    let known = (change != Change::Deleted && neighbor.state & NUD_NOARP == 0)
        .then(|| (State::of_kernel(neighbor.state), neighbor.mac));
    let before = match known {
        Some(known) => neighbors.insert(key, known),
        None => neighbors.remove(&key),
    };
    if before != known || known.is_some_and(|k| k.0 == State::Failed) {
        told.push(NeighborUpdate { port: port.clone(), address: neighbor.address, known });
    }
}
