//! The front of the relay: everything between a stranger's first packet and a client the workers carry.
//!
//! ```text
//! listener ─► limits ─► TLS ─► HTTP head ─┬─ /derp ─► key, box, access ─► Newcomer ─► workers
//!                                         └─ pages
//! ```
//!
//! A few threads with a small runtime each; they share the listening sockets. Promises: every step of a stranger has
//! a deadline; when too many are on their way the oldest make room, so that nobody's slowness keeps others out; what
//! became of each connection is counted. Refuses: whoever the access rules do not let in.

pub mod access;
pub mod counters;
pub mod http;
pub mod limits;
pub mod listen;
pub mod mesh;
pub mod pages;
pub mod serve;
pub mod stun;
pub mod tls;
pub mod upgrade;
pub mod websocket;
pub mod wire;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::sync::watch;
use weir_core::relay::handshake::Secret;

use super::Relay;
use super::certificates::Identity;
use super::settings::{self, MeshKey, Settings};
use counters::Counters;
use limits::Limiter;
use listen::Door;

/// Handshakes are short and many: a few threads keep up with any number of workers.
const THREADS_MAX: usize = 4;
/// Pages and handshakes under way when all ends get this long.
const LAST_WORDS: Duration = Duration::from_millis(200);

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
    pub front: settings::Front,
    /// Absent while TLS is off.
    pub tls: Option<Tls>,
}

impl Live {
    pub fn new(settings: &Settings, tls: Option<Tls>) -> Live {
        Live {
            name: settings.name.clone(),
            secret: settings.secret.clone(),
            mesh_key: settings.mesh_key.clone(),
            front: settings.front.clone(),
            tls,
        }
    }
}

/// What all threads of the front share.
pub struct Shared {
    pub live: ArcSwap<Live>,
    pub relay: Arc<Relay>,
    pub counters: Counters,
    pub limiter: Limiter,
}

/// Sockets that listen.
#[derive(Debug, Default)]
pub struct Sockets {
    pub doors: Vec<(Door, TcpListener)>,
    pub stun: Vec<UdpSocket>,
}

impl Sockets {
    pub fn open(front: &settings::Front) -> Result<Sockets, String> {
        let mut sockets = Sockets::default();
        for (door, addresses) in [(Door::Relay, &front.listen), (Door::Pages, &front.http)] {
            for address in addresses {
                sockets.doors.push((door, listen::tcp(*address)?));
            }
        }
        for address in &front.stun {
            sockets.stun.push(listen::udp(*address)?);
        }
        Ok(sockets)
    }

    pub fn addresses(&self, door: Door) -> Vec<SocketAddr> {
        let those = self.doors.iter().filter(|d| d.0 == door);
        those.filter_map(|(_, listener)| listener.local_addr().ok()).collect()
    }

    /// The same sockets, under descriptors of their own.
    pub fn again(&self) -> io::Result<Sockets> {
        let doors = self.doors.iter().map(|(door, l)| Ok((*door, l.try_clone()?)));
        Ok(Sockets {
            doors: doors.collect::<io::Result<_>>()?,
            stun: self.stun.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>()?,
        })
    }
}

/// The running front; dropping it stops accepting and ends handshakes under way.
pub struct Front {
    pub shared: Arc<Shared>,
    end: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Front {
    pub fn start(live: Live, sockets: &Sockets, relay: Arc<Relay>) -> Result<Front, String> {
        let limiter = Limiter::new(&live.front.limits);
        let live = ArcSwap::from_pointee(live);
        let shared = Arc::new(Shared { live, relay, counters: Counters::default(), limiter });
        let (end, ended) = watch::channel(false);
        let mut front = Front { shared, end, threads: Vec::new() };
        let count = thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX));
        for number in 0..count {
            // One thread answers STUN: it is a datagram in, a datagram out.
            let mut own =
                sockets.again().map_err(|e| format!("front: {e}; raise the limit of open files"))?;
            if number > 0 {
                own.stun.clear();
            }
            let (shared, ended) = (front.shared.clone(), ended.clone());
            let thread = thread::Builder::new()
                .name(format!("weir-front-{number}"))
                .spawn(move || {
                    if let Err(error) = run(own, shared, ended) {
                        tracing::error!("front thread {number}: {error}; the others go on without it");
                    }
                })
                .map_err(|e| format!("front: no thread ({e}); raise the limit of tasks"))?;
            front.threads.push(thread);
        }
        Ok(front)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // No receiver is left when the threads have ended by themselves.
        let _ = self.end.send(true);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(sockets: Sockets, shared: Arc<Shared>, mut ended: watch::Receiver<bool>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let verifier = Arc::new(access::Verifier::new());
        for (door, listener) in sockets.doors {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let site = serve::Site { shared: shared.clone(), door, verifier: verifier.clone() };
            tokio::spawn(serve::accept(listener, Arc::new(site)));
        }
        for socket in sockets.stun {
            let socket = tokio::net::UdpSocket::from_std(socket)?;
            tokio::spawn(stun::answer(socket, shared.clone()));
        }
        // Ends too when the front was dropped without a word.
        let _ = ended.changed().await;
        Ok::<(), io::Error>(())
    })?;
    runtime.shutdown_timeout(LAST_WORDS);
    Ok(())
}
