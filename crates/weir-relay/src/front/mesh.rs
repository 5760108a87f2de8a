//! Dialling the other relays of the mesh: each of them by a thread of its own, again and again.
//!
//! ```text
//! dial ─► TLS ─► GET /derp ─► ServerKey ─► ClientInfo with the mesh key ─► ServerInfo ─► Newcomer (Dialled)
//! ```
//!
//! Promises: a relay that is away is tried again after 1 to 30 s; one that turns out to be this one is left alone.
//! Refuses: servers that do not prove their key, and certificates the system does not trust.

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

use super::http::HEAD_MAX;
use super::listen::options;
use super::upgrade::{Kindred, Proved, newcomer};
use super::wire::{Broken, Wire};
use super::{Live, Shared};
use crate::settings::Remote;
use crate::{Held, Role, keyfile};

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
    /// Of this thread; the flag is down once the connection has ended.
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
    pub fn start(remotes: &[Remote], shared: &Arc<Shared>) -> Result<Mesh, String> {
        let mut mesh = Mesh { ended: Arc::default(), threads: Vec::new() };
        for remote in remotes {
            let (remote, shared, ended) = (remote.clone(), shared.clone(), mesh.ended.clone());
            let thread = thread::Builder::new()
                .name("weir-mesh".into())
                .spawn(move || keep(&remote, &shared, &ended))
                .map_err(|e| format!("mesh: no thread ({e}); raise the limit of tasks"))?;
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
        match dialled.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}"))) {
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

fn said(broken: Broken) -> String {
    match broken {
        Broken::Gone => "it hung up".to_owned(),
        Broken::Wrong => "what it says is not DERP".to_owned(),
        Broken::Full => "it says more than there is room for".to_owned(),
        Broken::Tls(error) => format!("TLS: {error}"),
    }
}

/// The other relay's key, once its connection is the workers'; nothing when it is this relay.
async fn dial(remote: &Remote, live: &Live, shared: &Shared, line: Line) -> Result<Option<Key>, String> {
    let stream = TcpStream::connect((remote.host.as_str(), remote.port)).await.map_err(|e| e.to_string())?;
    let peer = stream.peer_addr().map_err(|e| e.to_string())?;
    options(&stream);
    let mut wire = Wire::new(stream);
    if remote.tls {
        if live.front.tls.by_kernel() {
            wire.by_records();
        }
        let name = ServerName::try_from(remote.host.clone()).map_err(|e| e.to_string())?;
        let config = client_config(Trust::Roots(roots()), &ClientOptions::default());
        let config = Arc::new(config.map_err(|e| e.to_string())?);
        let tls = Handshake::client(config, name).map_err(|e| e.to_string())?;
        wire.handshake(tls).await.map_err(said)?;
    }
    let ask = format!(
        "GET /derp HTTP/1.1\r\nHost: {}\r\nUpgrade: DERP\r\nConnection: Upgrade\r\n\r\n",
        remote.host
    );
    wire.send(ask.as_bytes()).await.map_err(said)?;
    upgraded(&mut wire).await?;
    let hello = next(&mut wire, Kind::ServerKey).await.map_err(said)?;
    let Ok(Frame::ServerKey(server)) = Frame::parse(Kind::ServerKey as u8, &hello) else {
        return Err("its first frame is not a DERP server's".to_owned());
    };
    if server == live.secret.public() {
        return Ok(None);
    }
    let mesh_key = live.mesh_key.as_ref().map(|key| key.text().to_owned()).unwrap_or_default();
    let info = ClientInfo { mesh_key, version: VERSION, can_ack_pings: true, ..ClientInfo::default() };
    let mut frame = Vec::new();
    info.seal(&live.secret, &server, keyfile::random()?, &mut frame);
    wire.send(&frame).await.map_err(said)?;
    let answer = next(&mut wire, Kind::ServerInfo).await.map_err(said)?;
    let answer = Frame::parse(Kind::ServerInfo as u8, &answer).map_err(|e| e.to_string())?;
    ServerInfo::open(&live.secret, &server, &answer).map_err(|e| e.to_string())?;
    let proved = Proved { key: server, info, between: None, unframer: None, unsaid: Vec::new() };
    let of = Kindred { role: Role::Dialled, ideal: true, held: Held::Line(line) };
    let newcomer = newcomer(wire, proved, live, peer, of, &shared.counters);
    let newcomer = newcomer.map_err(|end| format!("its connection cannot be taken over ({})", end.name()))?;
    shared.relay.admit(newcomer);
    Ok(Some(server))
}

/// Whom the system trusts.
fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Reads past a 101.
async fn upgraded(wire: &mut Wire) -> Result<(), String> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        match response.parse(&wire.plain) {
            Ok(httparse::Status::Complete(length)) => {
                let code = response.code.unwrap_or_default();
                if code != 101 {
                    return Err(format!("it answers {code}, expected 101; is there a DERP server?"));
                }
                wire.plain.drain(..length);
                return Ok(());
            }
            Ok(httparse::Status::Partial) if wire.plain.len() < HEAD_MAX => {
                wire.more().await.map_err(said)?;
            }
            _ => return Err("its answer is not HTTP/1.1".to_owned()),
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
