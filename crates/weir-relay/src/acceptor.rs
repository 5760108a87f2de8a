//! The relay's acceptor: everything between a stranger's first packet and a client the workers carry.
//!
//! ```text
//! listener ─► limits ─► TLS ─► HTTP head ─┬─ /derp ─► key, box, access ─► AuthenticatedConn ─► workers
//!                                         └─ pages
//! ```
//!
//! A few threads with a small runtime each; they share the listening sockets. Promises: every step of a stranger has
//! a deadline; when too many are on their way the oldest make room, so that nobody's slowness keeps others out; what
//! became of each connection is counted. Refuses: whoever the access rules do not let in.

pub mod access;
mod arrivals;
pub mod budget;
pub mod counters;
pub mod http;
pub mod limits;
pub mod listen;
pub mod mesh;
mod names;
pub mod pages;
mod rates;
pub mod serve;
pub mod stun;
mod tailscaled;
pub mod tls;
pub mod upgrade;
pub mod wire;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::sync::watch;
use weir_core::relay::handshake::{ClientInfo, Refused, Secret, SharedKey};
use weir_core::relay::shared_key_cache::SharedKeyCache;
use weir_core::relay::{Frame, Key};

use super::Relay;
use super::certificates::Identity;
use super::error::{Error, ListenError, Resource};
use super::inherited::Inherited;
use super::settings::{self, MeshKey, Settings};
use arrivals::Arrivals;
use counters::Counters;
use limits::Limiter;
use listen::ListenerKind;
use names::Names;

/// Handshakes are short and many: a few threads keep up with any number of workers.
const THREADS_MAX: usize = 4;
/// Keys of clients for which is kept what they share with ours: of some 100 bytes each, 6 MiB.
const SHARED_KEYS: usize = 1 << 16;
/// Pages and handshakes under way when all ends get this long.
const GRACEFUL_CLOSE: Duration = Duration::from_millis(200);
/// How often it is looked whether all have arrived.
const LOOK: Duration = Duration::from_millis(5);

/// What TLS connections are met with.
#[derive(Clone)]
pub struct Tls {
    pub config: Arc<ServerConfig>,
    pub identity: Arc<Identity>,
}

/// What is asked at each connection, replaced whole when the configuration changes.
pub struct Live {
    pub name: String,
    pub secret: Secret,
    pub mesh_key: Option<MeshKey>,
    pub acceptor: settings::Acceptor,
    /// Absent while TLS is off.
    pub tls: Option<Tls>,
    /// Keys that `secret` shares with clients: the cache goes where `secret` goes.
    shared_keys: Mutex<SharedKeyCache>,
}

impl Live {
    pub fn new(settings: &Settings, tls: Option<Tls>) -> Live {
        Live {
            name: settings.name.clone(),
            secret: weir_io::x25519::prepared(settings.secret.clone()),
            mesh_key: settings.mesh_key.clone(),
            acceptor: settings.acceptor.clone(),
            tls,
            shared_keys: Mutex::new(SharedKeyCache::new(SHARED_KEYS)),
        }
    }

    /// What a client's first frame says, whose it is, and what seals the answer.
    pub(super) fn open(
        &self,
        frame: &Frame<'_>,
        counters: &Counters,
    ) -> Result<(Key, ClientInfo, SharedKey), Refused> {
        // A thread that panicked has left whole entries behind; no key is agreed on while it is locked.
        let cache = || self.shared_keys.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_known = false;
        let known = |key: &Key| cache().get(key).inspect(|_| is_known = true);
        let opened = ClientInfo::open_with(known, &self.secret, frame)?;
        match is_known {
            true => counters::count(&counters.known_keys),
            false => cache().insert(opened.0, opened.2.clone()),
        }
        Ok(opened)
    }
}

/// What all threads of the acceptor share.
pub struct Shared {
    pub live: ArcSwap<Live>,
    pub relay: Arc<Relay>,
    pub counters: Counters,
    pub limiter: Limiter,
    names: Names,
}

/// Sockets that listen.
#[derive(Debug, Default)]
pub struct Sockets {
    pub listeners: Vec<(ListenerKind, TcpListener)>,
    pub stun: Vec<UdpSocket>,
}

impl Sockets {
    /// Those that listen already are used; the others are made.
    pub fn open(acceptor: &settings::Acceptor, inherited: &mut Inherited) -> Result<Sockets, ListenError> {
        let mut sockets = Sockets::default();
        for (kind, addresses) in
            [(ListenerKind::Relay, &acceptor.listen), (ListenerKind::Pages, &acceptor.http)]
        {
            for address in addresses {
                let listener = inherited.tcp(*address).map_or_else(|| listen::tcp(*address), Ok)?;
                listen::options(&listener);
                sockets.listeners.push((kind, listener));
            }
        }
        for address in &acceptor.stun {
            sockets.stun.push(inherited.udp(*address).map_or_else(|| listen::udp(*address), Ok)?);
        }
        Ok(sockets)
    }

    pub fn addresses(&self, kind: ListenerKind) -> Vec<SocketAddr> {
        let those = self.listeners.iter().filter(|d| d.0 == kind);
        those.filter_map(|(_, listener)| listener.local_addr().ok()).collect()
    }

    /// The same sockets, under descriptors of their own.
    pub fn again(&self) -> io::Result<Sockets> {
        let listeners = self.listeners.iter().map(|(kind, l)| Ok((*kind, l.try_clone()?)));
        Ok(Sockets {
            listeners: listeners.collect::<io::Result<_>>()?,
            stun: self.stun.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>()?,
        })
    }
}

/// How far the acceptor's threads are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// Nobody new; who is on its way arrives.
    Closed,
    Ended,
}

/// The running acceptor; dropping it stops accepting and ends handshakes under way.
pub struct Acceptor {
    pub shared: Arc<Shared>,
    stage: watch::Sender<Stage>,
    /// Threads that accept.
    accepting: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Acceptor {
    pub fn start(live: Live, sockets: &Sockets, relay: Arc<Relay>) -> Result<Acceptor, Error> {
        let lacking = |what, error| Error::Resource { of: "acceptor", what, error };
        let limiter = Limiter::new(&live.acceptor.limits);
        let live = ArcSwap::from_pointee(live);
        let (counters, names) = (Counters::default(), Names::default());
        let shared = Arc::new(Shared { live, relay, counters, limiter, names });
        let (stage, now) = watch::channel(Stage::Open);
        let mut acceptor = Acceptor { shared, stage, accepting: Arc::default(), threads: Vec::new() };
        let count = thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX));
        for number in 0..count {
            // One thread answers STUN: it is a datagram in, a datagram out.
            let mut own = sockets.again().map_err(|e| lacking(Resource::Descriptors, e))?;
            if number > 0 {
                own.stun.clear();
            }
            let first = number == 0;
            let (shared, now) = (acceptor.shared.clone(), now.clone());
            let accepting = Accepting::new(&acceptor.accepting);
            let thread = thread::Builder::new()
                .name(format!("weir-acceptor-{number}"))
                .spawn(move || {
                    if let Err(error) = run(own, (shared, first), now, accepting) {
                        tracing::error!("acceptor thread {number}: {error}; the others go on without it");
                    }
                })
                .map_err(|e| lacking(Resource::Tasks, e))?;
            acceptor.threads.push(thread);
        }
        Ok(acceptor)
    }

    /// Takes nobody new, and waits at most so long for those on their way.
    pub fn close(&self, patience: Duration) {
        let _ = self.stage.send(Stage::Closed);
        let end = Instant::now() + patience;
        let busy = || self.accepting.load(Acquire) > 0 || self.shared.limiter.underway() > 0;
        while busy() && Instant::now() < end {
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // No receiver is left when the threads have ended by themselves.
        let _ = self.stage.send(Stage::Ended);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A thread that accepts, until this is dropped.
struct Accepting(Arc<AtomicUsize>);

impl Accepting {
    fn new(all: &Arc<AtomicUsize>) -> Accepting {
        all.fetch_add(1, Release);
        Accepting(all.clone())
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

fn run(
    sockets: Sockets,
    (shared, first): (Arc<Shared>, bool),
    mut stage: watch::Receiver<Stage>,
    accepting: Accepting,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let verifier = Arc::new(access::Verifier::new());
        let arrivals = Arc::new(Arrivals::new(shared.relay.clone()));
        let mut tasks = Vec::new();
        for (kind, listener) in sockets.listeners {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let (verifier, arrivals) = (verifier.clone(), arrivals.clone());
            let site = serve::ListenerContext { shared: shared.clone(), kind, verifier, arrivals };
            tasks.push(tokio::spawn(serve::accept(listener, Arc::new(site))));
        }
        if first {
            tokio::spawn(names::keep(shared.clone()));
        }
        for socket in sockets.stun {
            let socket = tokio::net::UdpSocket::from_std(socket)?;
            tokio::spawn(stun::answer(socket, shared.clone()));
        }
        // Ends too when the acceptor was dropped without a word. What a listener has accepted is a task of its own, so
        // nobody is lost between the two.
        let mut accepting = Some(accepting);
        while stage.changed().await.is_ok() && *stage.borrow() != Stage::Ended {
            for task in tasks.drain(..) {
                task.abort();
                // Aborted, as asked.
                let _ = task.await;
            }
            accepting.take();
        }
        arrivals.go();
        Ok::<(), io::Error>(())
    })?;
    runtime.shutdown_timeout(GRACEFUL_CLOSE);
    Ok(())
}
