//! What a relay is told to be, after files were read: nothing in here is looked up again.
//!
//! The engine's part is what the workers go by, [`Acceptor`] what is asked before a connection is theirs. Every limit is a
//! number here, with its usual value and why it is that.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use weir_core::relay::frame::Key;
use weir_core::relay::handshake::Secret;
use zeroize::Zeroizing;

use super::error::NoMeshKey;

/// A relay, whole.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The relay's name in logs, in the control socket's path and on the home page.
    pub name: String,
    pub secret: Secret,
    /// Those who show it are relays of the same region.
    pub mesh_key: Option<MeshKey>,
    pub mesh_with: Vec<Remote>,
    /// One worker each; empty means one for each physical core this process may use.
    pub cpus: Vec<u32>,
    pub io: Io,
    pub engine: Engine,
    pub acceptor: Acceptor,
}

/// How sockets are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    #[default]
    Auto,
    Uring,
    Epoll,
}

/// Who opens and seals TLS records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// The kernel where it can, this program otherwise.
    #[default]
    Auto,
    Kernel,
    User,
    /// Plain TCP: for labs and behind a proxy.
    Off,
}

impl Tls {
    /// Whether the kernel is to have the keys, at least where it can.
    pub fn by_kernel(self) -> bool {
        matches!(self, Tls::Auto | Tls::Kernel)
    }
}

/// What is asked before a connection is the workers'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptor {
    /// DERP and pages, with TLS unless that is off.
    pub listen: Vec<SocketAddr>,
    /// Pages without TLS: captive portal checks and ACME.
    pub http: Vec<SocketAddr>,
    pub stun: Vec<SocketAddr>,
    pub hostname: Option<String>,
    pub tls: Tls,
    pub certificates: Certificates,
    pub access: Access,
    pub limits: Limits,
    /// What each client may send (told to it) and is sent.
    pub rates: Rates,
    pub home: Home,
    /// Names `/bootstrap-dns` may be asked about.
    pub bootstrap_dns: Vec<String>,
    /// Who may see `/debug/`; nobody by default.
    pub debug: Vec<Source>,
}

/// How an engine is built. What is not said is [`Engine::default`].
#[derive(Clone, Debug)]
pub struct Engine {
    /// This relay's public key.
    pub own: Key,
    pub workers: usize,
    /// The CPU of each worker; empty leaves them to the kernel.
    pub cpus: Vec<u32>,
    /// Do not use io_uring.
    pub epoll: bool,
    /// Receive buffers of a worker, 64 KiB each.
    pub buffers: u16,
    /// Connected at once, over all workers.
    pub clients: usize,
    /// Move a client to the worker of whom it sends most packets to.
    pub colocate: bool,
    /// What waits for one client at most: data in bytes and frames.
    pub queue_bytes: usize,
    pub queue_frames: usize,
    pub keepalive: Duration,
    /// A client that takes nothing for this long while something waits for it is disconnected.
    pub write_timeout: Duration,
    /// The same of other relays.
    pub mesh_write_timeout: Duration,
}

impl Default for Engine {
    fn default() -> Engine {
        Engine {
            own: Key([0; 32]),
            workers: 1,
            cpus: Vec::new(),
            epoll: false,
            buffers: 256,
            clients: 1 << 20,
            colocate: true,
            queue_bytes: 1 << 20,
            queue_frames: 4096,
            keepalive: Duration::from_secs(60),
            write_timeout: Duration::from_secs(2),
            mesh_write_timeout: Duration::from_secs(30),
        }
    }
}

/// What a connection is held to. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Rate from the client: told to it in `ServerInfo`; beyond it the relay stops reading for a while.
    pub receive: Option<Rate>,
    /// Rate to the client: what is beyond waits in its queue, whose oldest data falls out when it is full.
    pub send: Option<Rate>,
}

/// A token bucket of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub bytes_per_second: u64,
    pub burst: u64,
}

/// Where certificates come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Certificates {
    /// Made at the start, trusted by nobody: for labs.
    #[default]
    SelfSigned,
    /// PEM files, read again when they change.
    Files {
        chain: PathBuf,
        key: PathBuf,
    },
    Acme(Acme),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    /// URL of the directory.
    pub directory: String,
    pub contact: Option<String>,
    /// Account and certificates are kept in this folder.
    pub store: PathBuf,
    /// PEM of the authority that signed the directory's own certificate; the system's otherwise.
    pub root: Option<PathBuf>,
    pub challenge: Challenge,
}

/// How an authority sees that the name leads here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Challenge {
    /// HTTP-01: over port 80.
    #[default]
    Http,
    /// TLS-ALPN-01: over port 443.
    TlsAlpn,
}

/// Where tailscaled is asked.
pub const TAILSCALED: &str = "/var/run/tailscale/tailscaled.sock";

/// Who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Socket of a tailscaled of this host that must know each client.
    pub tailscaled: Option<PathBuf>,
    /// URL that is asked about each client.
    pub verify: Option<String>,
    /// What becomes of clients while nobody answers at the URL.
    pub fail_open: bool,
    /// When there are any, nobody else.
    pub allow: Vec<Key>,
    /// The operator said that everybody is meant.
    pub everybody: bool,
}

impl Default for Access {
    fn default() -> Access {
        Access { tailscaled: None, verify: None, fail_open: true, allow: Vec::new(), everybody: false }
    }
}

/// What strangers can cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections taken a second, and at once after a pause. Later ones wait in the kernel's queue.
    pub accepts_per_second: u32,
    pub accept_burst: u32,
    /// The same of one address (IPv6: one /64). Later ones are refused, and spend nothing of what all have.
    pub accepts_per_second_per_source: u32,
    pub accept_burst_per_source: u32,
    /// This host is a source like others. Unless asked for it is not: it is where a proxy is.
    pub loopback_is_a_source: bool,
    /// Connections that are not yet clients, all together.
    pub handshakes: usize,
    /// The same from one address (IPv6: one /64).
    pub handshakes_per_source: usize,
    /// Bytes their buffers may have beyond 20 KiB each, all together and of one address.
    pub handshake_bytes: usize,
    pub handshake_bytes_per_source: usize,
    /// Clients, all together.
    pub clients: usize,
    /// The same limit for one address (IPv6: one /64), behind which many may share a NAT.
    pub clients_per_source: usize,
    /// A step of a handshake takes no longer.
    pub step: Duration,
    /// A page takes no longer, nor does a pause between two on one connection.
    pub page: Duration,
}

impl Limits {
    /// Computes what one source may take: a twentieth a second of what all may. A core's worth of TLS handshakes is
    /// still an office's or a carrier's NAT away from it.
    pub fn source_rate(accepts_per_second: u32) -> u32 {
        (accepts_per_second / 20).max(1)
    }

    /// Computes what one source may take at once: a tenth.
    pub fn source_burst(accept_burst: u32) -> u32 {
        (accept_burst / 10).max(1)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // A TLS handshake costs about a third of a millisecond: more than this is more than a core.
            accepts_per_second: 5000,
            accept_burst: 20_000,
            accepts_per_second_per_source: Limits::source_rate(5000),
            accept_burst_per_source: Limits::source_burst(20_000),
            loopback_is_a_source: false,
            // At some 40 KiB each 400 MB at worst, and the bytes below; a storm of 10,000 clients fits.
            handshakes: 10_000,
            handshakes_per_source: 10_000,
            // A ClientInfo has some 200 bytes; of the longest there may be (256 KiB, twice while it is read) a source can
            // send two at once, all together 64.
            handshake_bytes: 32 << 20,
            handshake_bytes_per_source: 1 << 20,
            clients: 1 << 20,
            // An address has that many ports to connect from: this bounds what has more than one address.
            clients_per_source: 1 << 16,
            step: Duration::from_secs(10),
            page: Duration::from_secs(30),
        }
    }
}

/// What `/` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Home {
    #[default]
    Usual,
    Blank,
    /// Sent on to this URL.
    Redirect(String),
}

/// A prefix of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub address: IpAddr,
    pub length: u8,
}

impl Source {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(a)) => {
                same(net.to_bits().into(), a.to_bits().into(), 32, self.length)
            }
            (IpAddr::V6(net), IpAddr::V6(a)) => same(net.to_bits(), a.to_bits(), 128, self.length),
            _ => false,
        }
    }
}

/// Whether the first `length` of `width` bits agree.
fn same(a: u128, b: u128, width: u32, length: u8) -> bool {
    let beside = width - u32::from(length).min(width);
    (a ^ b).checked_shr(beside).unwrap_or(0) == 0
}

/// A name of the DNS: RFC 1123 2.1, at most 253 characters in labels of at most 63.
pub fn is_name(text: &str) -> bool {
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// Another relay of the mesh, to be dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The name is as the operator wrote it.
    pub name: String,
    /// Name or address, without brackets.
    pub host: String,
    pub port: u16,
    pub tls: bool,
}

/// 64 hex digits that relays of a mesh share. Never printed.
#[derive(Clone)]
pub struct MeshKey(Zeroizing<String>);

impl MeshKey {
    /// Reads the key from a file's text; blanks around it do not count.
    pub fn new(text: &str) -> Result<MeshKey, NoMeshKey> {
        let text = text.trim();
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(NoMeshKey { characters: text.chars().count() });
        }
        Ok(MeshKey(Zeroizing::new(text.to_ascii_lowercase())))
    }

    /// Takes as long wherever the two differ.
    pub fn matches(&self, shown: &str) -> bool {
        let shown = shown.as_bytes();
        let differ = self.0.bytes().zip(shown).fold(0, |sum, (a, b)| sum | (a ^ b.to_ascii_lowercase()));
        shown.len() == self.0.len() && differ == 0
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for MeshKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MeshKey(…)")
    }
}

impl PartialEq for MeshKey {
    fn eq(&self, other: &MeshKey) -> bool {
        self.matches(&other.0)
    }
}

impl Default for Acceptor {
    fn default() -> Acceptor {
        Acceptor {
            listen: Vec::new(),
            http: Vec::new(),
            stun: Vec::new(),
            hostname: None,
            tls: Tls::Auto,
            certificates: Certificates::SelfSigned,
            access: Access::default(),
            limits: Limits::default(),
            rates: Rates::default(),
            home: Home::Usual,
            bootstrap_dns: Vec::new(),
            debug: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_holds_its_addresses_and_no_others() {
        let net = Source { address: "192.0.2.0".parse().expect("an address"), length: 24 };
        let (inside, outside) = ("192.0.2.255", "192.0.3.0");
        assert!(net.contains(inside.parse().expect("an address")));
        assert!(net.contains("::ffff:192.0.2.7".parse().expect("mapped")));
        assert!(!net.contains(outside.parse().expect("an address")));
        let all = Source { address: "::".parse().expect("an address"), length: 0 };
        assert!(all.contains("2001:db8::1".parse().expect("an address")) && !all.contains(net.address));
    }

    #[test]
    fn only_the_same_mesh_key_matches() {
        let key = MeshKey::new(&format!(" {}\n", "aB".repeat(32))).expect("a key");
        assert!(key.matches(&"ab".repeat(32)));
        assert!(!key.matches(&"ab".repeat(31)) && !key.matches("") && !key.matches(&"ac".repeat(32)));
        assert!(MeshKey::new("short").is_err());
        assert_eq!(format!("{key:?}"), "MeshKey(…)");
    }
}
