//! Dialling the other relays of the mesh: each of them by a thread of its own, again and again.
//!
//! ```text
//! dial ─► TLS ─► GET /derp ─► ServerKey ─► ClientInfo with the mesh key ─► ServerInfo ─► AuthenticatedConn (Dialled)
//! ```
//!
//! Promises: a relay that is away is tried again after 1 to 30 s; one that turns out to be this one is left alone.
//! Refuses: servers that do not prove their key, and certificates the system does not trust.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_core::relay::Key;
use weir_core::relay::frame::{self, Frame, HEADER, INFO_MAX, Kind, VERSION};
use weir_core::relay::handshake::{ClientInfo, ServerInfo};
use weir_io::tls::{ClientOptions, Handshake, Trust, client_config};

use super::counters::End;
use super::http::HEAD_MAX;
use super::listen::options;
use super::upgrade::{Kindred, Proved, authenticated};
use super::wire::{Broken, Wire};
use super::{Live, Shared};
use crate::error::{Error, KeyError, Resource};
use crate::settings::Remote;
use crate::{ConnGuard, Role, keyfile};

const PATIENCE: Duration = Duration::from_secs(10);
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How often it is looked whether the other relay is still there, should it not be heard.
const LOOK: Duration = Duration::from_secs(30);

/// Kept with a dialled connection: whoever dialled hears of its end.
#[derive(Debug)]
pub struct Line {
    there: Arc<AtomicBool>,
    dialler: Thread,
}

impl Line {
    /// Makes the line of this thread; the flag is down once the connection has ended.
    fn new() -> (Line, Arc<AtomicBool>) {
        let there = Arc::new(AtomicBool::new(true));
        (Line { there: there.clone(), dialler: thread::current() }, there)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.there.store(false, Ordering::Release);
        self.dialler.unpark();
    }
}

/// The threads that dial; dropping it ends them.
pub struct Mesh {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Mesh {
    pub fn start(remotes: &[Remote], shared: &Arc<Shared>) -> Result<Mesh, Error> {
        let mut mesh = Mesh { ended: Arc::default(), threads: Vec::new() };
        for remote in remotes {
            let (remote, shared, ended) = (remote.clone(), shared.clone(), mesh.ended.clone());
            let thread = thread::Builder::new()
                .name("weir-mesh".into())
                .spawn(move || keep(&remote, &shared, &ended))
                .map_err(|error| Error::Resource { of: "mesh", what: Resource::Tasks, error })?;
            mesh.threads.push(thread);
        }
        Ok(mesh)
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Connected as often and as long as it can be.
fn keep(remote: &Remote, shared: &Shared, ended: &AtomicBool) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        tracing::error!("mesh {}: no runtime; raise the limit of open files", remote.name);
        return;
    };
    let mut backoff = BACKOFF;
    while !ended.load(Ordering::Acquire) {
        let live = shared.live.load_full();
        let (line, there) = Line::new();
        let dialled = runtime.block_on(async { timeout(PATIENCE, dial(remote, &live, shared, line)).await });
        match dialled.unwrap_or(Err(DialError::TooLate)) {
            Ok(None) => {
                tracing::info!("mesh {}: is this relay itself; it is not dialled", remote.name);
                return;
            }
            Ok(Some(key)) => {
                tracing::info!("mesh {}: connected to {key}", remote.name);
                backoff = BACKOFF;
                while there.load(Ordering::Acquire) && !ended.load(Ordering::Acquire) {
                    thread::park_timeout(LOOK);
                }
                tracing::info!("mesh {}: connection ended", remote.name);
            }
            Err(why) => tracing::warn!("mesh {}: {why}; tried again in {backoff:?}", remote.name),
        }
        // A line that ended has unparked us already.
        let until = Instant::now() + backoff;
        while !ended.load(Ordering::Acquire) && Instant::now() < until {
            thread::park_timeout(until.saturating_duration_since(Instant::now()));
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Why another relay is not connected. Causes are what libraries said.
#[derive(Debug)]
enum DialError {
    TooLate,
    Socket(io::Error),
    /// TLS, the handshake's boxes, a name: what could not be set up or opened.
    Refused {
        cause: String,
    },
    Broken(Broken),
    /// An HTTP status but 101.
    Status(u16),
    NotHttp,
    /// Its first frame is another than a server's key.
    NotAServer,
    Random(KeyError),
    /// It was let in, and no worker can take it.
    NotTaken(End),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DialError::TooLate => write!(f, "no answer within {PATIENCE:?}"),
            DialError::Socket(error) => error.fmt(f),
            DialError::Refused { cause } => f.write_str(cause),
            DialError::Broken(Broken::Gone) => f.write_str("it hung up"),
            DialError::Broken(Broken::Wrong) => f.write_str("what it says is not DERP"),
            DialError::Broken(Broken::Full) => f.write_str("it says more than there is room for"),
            DialError::Broken(Broken::Tls(error)) => write!(f, "TLS: {error}"),
            DialError::Status(code) => write!(f, "it answers {code}, expected 101; is there a DERP server?"),
            DialError::NotHttp => f.write_str("its answer is not HTTP/1.1"),
            DialError::NotAServer => f.write_str("its first frame is not a DERP server's"),
            DialError::Random(error) => error.fmt(f),
            DialError::NotTaken(end) => write!(f, "its connection cannot be taken over ({})", end.name()),
        }
    }
}

fn refused(error: impl fmt::Display) -> DialError {
    DialError::Refused { cause: error.to_string() }
}

/// The other relay's key, once its connection is the workers'; nothing when it is this relay.
async fn dial(remote: &Remote, live: &Live, shared: &Shared, line: Line) -> Result<Option<Key>, DialError> {
    let stream = TcpStream::connect((remote.host.as_str(), remote.port)).await.map_err(DialError::Socket)?;
    let peer = stream.peer_addr().map_err(DialError::Socket)?;
    options(&stream);
    let mut wire = Wire::new(stream);
    if remote.tls {
        if live.acceptor.tls.by_kernel() {
            wire.by_records();
        }
        let name = ServerName::try_from(remote.host.clone()).map_err(refused)?;
        let config = client_config(Trust::Roots(roots()), &ClientOptions::default());
        let config = Arc::new(config.map_err(refused)?);
        let tls = Handshake::client(config, name).map_err(refused)?;
        wire.handshake(tls).await.map_err(DialError::Broken)?;
    }
    let ask = format!(
        "GET /derp HTTP/1.1\r\nHost: {}\r\nUpgrade: DERP\r\nConnection: Upgrade\r\n\r\n",
        remote.host
    );
    wire.send(ask.as_bytes()).await.map_err(DialError::Broken)?;
    upgraded(&mut wire).await?;
    let hello = next(&mut wire, Kind::ServerKey).await.map_err(DialError::Broken)?;
    let Ok(Frame::ServerKey(server)) = Frame::parse(Kind::ServerKey as u8, &hello) else {
        return Err(DialError::NotAServer);
    };
    if server == live.secret.public() {
        return Ok(None);
    }
    let mesh_key = live.mesh_key.as_ref().map(|key| key.text().to_owned()).unwrap_or_default();
    let info = ClientInfo { mesh_key, version: VERSION, can_ack_pings: true, ..ClientInfo::default() };
    let mut frame = Vec::new();
    info.seal(&live.secret, &server, keyfile::random().map_err(DialError::Random)?, &mut frame);
    wire.send(&frame).await.map_err(DialError::Broken)?;
    let answer = next(&mut wire, Kind::ServerInfo).await.map_err(DialError::Broken)?;
    let answer = Frame::parse(Kind::ServerInfo as u8, &answer).map_err(refused)?;
    ServerInfo::open(&live.secret, &server, &answer).map_err(refused)?;
    let proved = Proved { key: server, info, shared_key: None, unframer: None, unsaid: Vec::new() };
    let of = Kindred { role: Role::Dialled, ideal: true, guard: ConnGuard::Line(line) };
    let connection = authenticated(wire, proved, live, peer, of, &shared.counters);
    let connection = connection.map_err(DialError::NotTaken)?;
    shared.relay.admit(connection);
    Ok(Some(server))
}

/// Whom the system trusts.
fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Reads past a 101.
async fn upgraded(wire: &mut Wire) -> Result<(), DialError> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        match response.parse(&wire.plain) {
            Ok(httparse::Status::Complete(length)) => {
                let code = response.code.unwrap_or_default();
                if code != 101 {
                    return Err(DialError::Status(code));
                }
                wire.plain.drain(..length);
                return Ok(());
            }
            Ok(httparse::Status::Partial) if wire.plain.len() < HEAD_MAX => {
                wire.more().await.map_err(DialError::Broken)?;
            }
            _ => return Err(DialError::NotHttp),
        }
    }
}

/// The payload of the next frame of this kind; others before it are skipped.
async fn next(wire: &mut Wire, kind: Kind) -> Result<Vec<u8>, Broken> {
    loop {
        if let Some((code, length)) = frame::head(&wire.plain) {
            if length > INFO_MAX {
                return Err(Broken::Wrong);
            }
            if wire.plain.len() >= HEADER + length {
                let frame: Vec<u8> = wire.plain.drain(..HEADER + length).collect();
                if code == kind as u8 {
                    return Ok(frame[HEADER..].to_vec());
                }
                continue;
            }
        }
        wire.more().await?;
    }
}
