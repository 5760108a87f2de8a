//! From `GET /derp` to a client the workers can have.
//!
//! ```text
//! server ─► 101 (but for a fast start), ServerKey    client ─► ClientInfo    access    server ─► ServerInfo (worker)
//! client, a fast start ─► ClientInfo at once         access                 server ─► ServerKey, ServerInfo (worker)
//! ```
//!
//! Promises: the key is proved before anybody is asked about it; what came after ClientInfo goes to the worker.
//! Refuses: frames before ClientInfo, ClientInfo longer than the protocol's limit before it is read, boxes that do
//! not open.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::Duration;

use tokio::time::timeout;
use weir_core::relay::Key;
use weir_core::relay::frame::{self, Frame, HEADER, INFO_MAX, Kind, VERSION};
use weir_core::relay::handshake::{ClientInfo, ServerInfo, SharedKey};

use super::Live;
use super::counters::{Counters, End, count};
use super::http::{Head, HttpResponse};
use super::limits::Share;
use super::serve::ListenerContext;
use super::wire::{Broken, Wire};
use crate::websocket::{self, Unframer};
use crate::{AuthenticatedConn, ConnGuard, Role, TlsMode, keyfile};

/// What `Upgrade` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upgrade {
    Derp {
        fast: bool,
    },
    /// The answer to `Sec-WebSocket-Key`.
    WebSocket(String),
}

impl Upgrade {
    /// Very old clients say `WebSocket` and mean DERP: only the subprotocol tells.
    pub fn of(head: &Head) -> Result<Upgrade, HttpResponse> {
        let upgrade = head.field("upgrade").unwrap_or_default().to_ascii_lowercase();
        let subprotocol = head.field("sec-websocket-protocol").unwrap_or_default();
        match upgrade.as_str() {
            "websocket" if subprotocol.split(',').any(|p| p.trim() == "derp") => {
                let key = head.field("sec-websocket-key").filter(|k| k.len() == 24);
                match (key, head.field("sec-websocket-version"), head.method.as_str()) {
                    (Some(key), Some("13"), "GET") => Ok(Upgrade::WebSocket(websocket::accept_key(key))),
                    _ => Err(HttpResponse::text(400, "this is no WebSocket handshake of version 13\n")
                        .with("Sec-WebSocket-Version", "13")),
                }
            }
            "websocket" | "derp" => Ok(Upgrade::Derp { fast: head.field("derp-fast-start") == Some("1") }),
            _ => Err(HttpResponse::text(426, "DERP requires connection upgrade\n").with("Upgrade", "DERP")),
        }
    }

    /// The 101, unless the client does not want it.
    fn response(&self, server: &Key) -> Vec<u8> {
        match self {
            Upgrade::Derp { fast: true } => Vec::new(),
            Upgrade::Derp { fast: false } => {
                let key = server.to_string();
                let hex = key.strip_prefix("nodekey:").unwrap_or(&key);
                format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: DERP\r\nConnection: Upgrade\r\n\
                     Derp-Version: {VERSION}\r\nDerp-Public-Key: {hex}\r\n\r\n"
                )
                .into_bytes()
            }
            Upgrade::WebSocket(accept) => format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: derp\r\n\r\n"
            )
            .into_bytes(),
        }
    }
}

/// A stranger who became a client, but for what depends on its connection.
pub(super) struct Proved {
    pub key: Key,
    pub info: ClientInfo,
    /// What seals the greeting; where we are the client there is none.
    pub shared_key: Option<SharedKey>,
    /// Where in WebSocket messages the rest of what it says begins.
    pub unframer: Option<Box<Unframer>>,
    /// What it is still to be told before the greeting.
    pub unsaid: Vec<u8>,
}

/// Takes the connection through the handshake and hands it over.
pub async fn derp(
    mut wire: Wire,
    head: &Head,
    (upgrade, place): (Upgrade, Share),
    site: &ListenerContext,
    peer: SocketAddr,
) -> Result<(), End> {
    let shared = &site.shared;
    let live = shared.live.load_full();
    let proved = handshake(&mut wire, &upgrade, &live, &shared.counters).await?;
    let mesh = live.mesh_key.as_ref().is_some_and(|key| key.matches(&proved.info.mesh_key));
    if !mesh {
        let access = &live.acceptor.access;
        let authorized = site.verifier.authorize(access, &proved.key, peer.ip(), &shared.counters).await;
        authorized.map_err(|denied| {
            tracing::info!("{} from {peer}: kept out: {denied}", proved.key);
            End::Refused
        })?;
    } else {
        count(&shared.counters.meshed);
    }
    if proved.unframer.is_some() {
        count(&shared.counters.websockets);
    }
    if upgrade == (Upgrade::Derp { fast: true }) {
        count(&shared.counters.fast_starts);
    }
    let role = if mesh { Role::Mesh } else { Role::Client };
    let ideal = head.field("ideal-node").is_none_or(str::is_empty);
    let of = Kindred { role, ideal, guard: ConnGuard::Share(place) };
    let connection = authenticated(wire, proved, &live, peer, of, &shared.counters)?;
    count(&shared.counters.clients);
    site.arrivals.add(connection);
    Ok(())
}

/// What the request said of the connection.
pub(super) struct Kindred {
    pub role: Role,
    pub ideal: bool,
    pub guard: ConnGuard,
}

pub(super) fn authenticated(
    wire: Wire,
    proved: Proved,
    live: &Live,
    peer: SocketAddr,
    of: Kindred,
    counters: &Counters,
) -> Result<AuthenticatedConn, End> {
    let rates = match of.role {
        Role::Client => live.acceptor.rates,
        Role::Mesh | Role::Dialled => Default::default(),
    };
    let mut greeting = proved.unsaid;
    let info = ServerInfo {
        bytes_per_second: rates.receive.map_or(0, |r| r.bytes_per_second),
        burst: rates.receive.map_or(0, |r| r.burst),
        ..ServerInfo::new()
    };
    if let Some(shared_key) = &proved.shared_key {
        let nonce = keyfile::random().map_err(|_| End::Gone)?;
        info.seal(shared_key, nonce, &mut greeting);
    }
    let parts = wire.into_parts();
    // Room that holds nothing is given back here, where it came from.
    let mut early = if parts.plain.is_empty() { Vec::new() } else { parts.plain };
    let unread = if parts.unread.is_empty() { Vec::new() } else { parts.unread };
    let tls_mode = match parts.tls {
        None => TlsMode::Plain,
        Some(tls) => {
            let (socket, unread) = (parts.stream.as_fd(), !unread.is_empty());
            let over = super::tls::Over { socket, mode: live.acceptor.tls, unread };
            super::tls::tls_mode(*tls, &over, &mut early, counters)?
        }
    };
    Ok(AuthenticatedConn {
        socket: parts.stream.into_std().map_err(|_| End::Gone)?.into(),
        key: proved.key,
        info: proved.info,
        role: of.role,
        address: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
        tls_mode,
        websocket: proved.unframer,
        greeting,
        early,
        unread,
        ideal: of.ideal,
        rates,
        guard: of.guard,
    })
}

/// Says who we are, hears who they are.
async fn handshake(
    wire: &mut Wire,
    upgrade: &Upgrade,
    live: &Live,
    counters: &Counters,
) -> Result<Proved, End> {
    let step = live.acceptor.limits.step;
    let server = live.secret.public();
    let mut say = upgrade.response(&server);
    let mut hello = Vec::new();
    Frame::ServerKey(server).write(&mut hello);
    let mut unframer = matches!(upgrade, Upgrade::WebSocket(_)).then(Box::<Unframer>::default);
    if unframer.is_some() {
        say.append(&mut websocket::head(hello.len()));
    }
    say.append(&mut hello);
    // Who has begun without waiting for our key is told it together with the rest: one record less, one send less.
    let has_begun =
        matches!(upgrade, Upgrade::Derp { fast: true }) && matches!(length(&wire.plain), Ok(Some(_)));
    if !has_begun {
        timed(step, wire.send(&say)).await?;
        say.clear();
    }
    let frame = timed(step, first_frame(wire, unframer.as_deref_mut())).await?;
    timed(step, async { wire.shrink() }).await?;
    let opened = Frame::parse(Kind::ClientInfo as u8, &frame[HEADER..])
        .map_err(|_| End::Handshake)
        .and_then(|frame| open(live, &frame, counters));
    let (key, info, shared_key) = opened?;
    Ok(Proved { key, info, shared_key: Some(shared_key), unframer, unsaid: say })
}

fn open(live: &Live, frame: &Frame<'_>, counters: &Counters) -> Result<(Key, ClientInfo, SharedKey), End> {
    live.open(frame, counters).map_err(|refused| {
        tracing::debug!("a handshake was refused: {refused}");
        End::Handshake
    })
}

/// Bounds a step, and says how it failed.
pub async fn timed<T>(step: Duration, what: impl Future<Output = Result<T, Broken>>) -> Result<T, End> {
    match timeout(step, what).await {
        Err(_) => Err(End::Deadline),
        Ok(Err(Broken::Gone)) => Err(End::Gone),
        Ok(Err(Broken::Wrong)) => Err(End::Handshake),
        Ok(Err(Broken::Full)) => Err(End::Bytes),
        Ok(Err(Broken::Tls(error))) => {
            tracing::debug!("TLS: {error}");
            Err(End::Tls)
        }
        Ok(Ok(done)) => Ok(done),
    }
}

/// The whole first frame, header and all, which must be ClientInfo. What comes after it stays in the wire as it came.
async fn first_frame(wire: &mut Wire, mut unframer: Option<&mut Unframer>) -> Result<Vec<u8>, Broken> {
    let mut inside = Vec::new();
    loop {
        let Some(unframer) = unframer.as_deref_mut() else {
            match length(&wire.plain)? {
                Some(length) => return Ok(wire.plain.drain(..length).collect()),
                None => wire.more().await?,
            }
            continue;
        };
        let (mut pongs, mut taken) = (Vec::new(), 0);
        // Byte by byte, since what follows is the worker's to take out of its message.
        while length(&inside)?.is_none()
            && let Some(byte) = wire.plain.get(taken..=taken)
        {
            unframer.take(byte, &mut inside, &mut pongs).map_err(|_| Broken::Wrong)?;
            taken += 1;
        }
        wire.plain.drain(..taken);
        if !pongs.is_empty() {
            wire.send(&pongs).await?;
        }
        if length(&inside)?.is_some() {
            return Ok(inside);
        }
        wire.charge_buffers(inside.capacity())?;
        wire.more().await?;
    }
}

/// Gives the length of the first frame, header and all, once it is whole. One that is too long is refused by its
/// header.
fn length(bytes: &[u8]) -> Result<Option<usize>, Broken> {
    match frame::head(bytes) {
        Some((code, length)) if code != Kind::ClientInfo as u8 || length > INFO_MAX => Err(Broken::Wrong),
        Some((_, length)) => Ok(Some(HEADER + length).filter(|whole| bytes.len() >= *whole)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &str) -> Head {
        let text = format!("GET /derp HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        Head::parse(text.as_bytes()).expect("well formed").expect("whole").0
    }

    #[test]
    fn what_upgrade_says_decides_in_any_case_of_letters() {
        assert_eq!(Upgrade::of(&head("Upgrade: DERP\r\n")), Ok(Upgrade::Derp { fast: false }));
        let fast = head("Upgrade: dErP\r\nDerp-Fast-Start: 1\r\n");
        assert_eq!(Upgrade::of(&fast), Ok(Upgrade::Derp { fast: true }));
        assert_eq!(Upgrade::of(&head("Upgrade: WebSocket\r\n")), Ok(Upgrade::Derp { fast: false }));
        assert_eq!(Upgrade::of(&head("Upgrade: h2c\r\n")).map_err(|a| a.status), Err(426));
        assert_eq!(Upgrade::of(&head("")).map_err(|a| a.status), Err(426));
    }

    #[test]
    fn a_websocket_handshake_is_answered_as_the_rfc_has_it() {
        let asked = "Upgrade: websocket\r\nSec-WebSocket-Protocol: derp\r\nSec-WebSocket-Version: 13\r\n";
        let with_key = format!("{asked}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n");
        let accepted = Upgrade::WebSocket("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".into());
        assert_eq!(Upgrade::of(&head(&with_key)), Ok(accepted), "RFC 6455 1.3");
        assert_eq!(Upgrade::of(&head(asked)).map_err(|a| a.status), Err(400));
    }
}
