//! `[relay]`: a file with it makes `weir run` a DERP relay.
//!
//! Promises: everything but `listen` and where the certificate comes from has a default; files are named here and
//! read by [`RelayConfig::settings`]. Refuses: ports, routes and IPsec beside it, TLS without a word about its
//! certificate, and files that name what another key of the table makes meaningless.

mod values;
pub use values::{is_url, listening, remote};

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::DeValue;
use weir_core::relay::handshake::Secret;
use weir_relay::error::KeyError;
use weir_relay::settings::{
    Acceptor, Access, Acme, Certificates, Challenge, Io, Limits, Remote, Settings, TAILSCALED, Tls,
};
use weir_relay::{Engine, Rate, Rates, keyfile};

use super::Placed;
use super::own_files::{own_file, state_directory};
use super::read::{Fields, Value};
use super::source::Complaints;
use super::table::{Form, Key, Table, names as key_names};
use values::Allow;

/// A file the table names that cannot be read, and where it does so.
#[derive(Debug)]
pub struct Unread {
    pub span: Range<usize>,
    /// The key of the table that names the file.
    pub key: &'static str,
    pub error: KeyError,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "relay: {}: {}", self.key, self.error)
    }
}

/// How the file of the relay's own key is read.
pub type ReadKey = fn(&Path) -> Result<Secret, KeyError>;

/// The table, its files not read yet.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    pub span: Range<usize>,
    pub key: Option<Placed<PathBuf>>,
    pub mesh_key: Option<Placed<PathBuf>>,
    pub mesh_with: Vec<Remote>,
    /// The certificate's private key, where it comes from files.
    private_key: Option<Placed<PathBuf>>,
    pub io: Io,
    pub engine: Engine,
    pub acceptor: Acceptor,
}

const RELAY: [Key; 23] = [
    Key::required(
        "listen",
        Form::OneOrMany(&Form::Text),
        "Addresses with ports for clients; `:443` is every address.",
    ),
    Key::new(
        "http",
        Form::OneOrMany(&Form::Text),
        "Addresses with ports for captive portal checks, ACME and a redirect.",
    ),
    Key::new("stun", Form::OneOrMany(&Form::Text), "Addresses with ports for STUN."),
    Key::new("hostname", Form::Text, "The name clients connect to."),
    Key::with_default(
        "tls",
        Form::Words(&["auto", "kernel", "user", "off"]),
        "\"auto\"",
        "Where TLS records are made: in the kernel where it can, in the process, or by a proxy before the relay.",
    ),
    Key::new("certificates", Form::Words(&["self-signed"]), "A certificate made at the start, for a lab."),
    Key::new(
        "certificate",
        Form::Text,
        "The file with the certificate and its chain. It is read again when it changes.",
    ),
    Key::new("private_key", Form::Text, "The file with the certificate's private key."),
    Key::new("acme", Form::Table(&ACME_TABLE), "Certificates from an ACME server."),
    Key::new(
        "key",
        Form::Text,
        "The file with the relay's own key. It is made once, mode 600. derper's file works too.",
    ),
    Key::new("mesh_key", Form::Text, "The file with the key that relays of a mesh share: 64 hex digits."),
    Key::new("mesh_with", Form::OneOrMany(&Form::Text), "The other relays of the mesh."),
    Key::new("verify", Form::Text, "A URL that is asked about each client."),
    Key::with_default(
        "verify_fail_open",
        Form::Boolean,
        "true",
        "Whether clients come in while `verify` does not answer.",
    ),
    Key::new("verify_tailscaled", Form::Text, "The socket of a tailscaled whose peers may connect."),
    Key::new("allow", Form::OneOrMany(&Form::Text), "Node keys that may connect, or `\"everybody\"`."),
    Key::with_default(
        "home",
        Form::Text,
        "\"usual\"",
        "What browsers see: `usual`, `blank`, or a URL to send them to.",
    ),
    Key::new(
        "bootstrap_dns",
        Form::OneOrMany(&Form::Text),
        "Names whose addresses the relay tells to clients without DNS.",
    ),
    Key::new("debug", Form::OneOrMany(&Form::Text), "Prefixes that may read /debug/. Without it, nobody."),
    Key::with_default(
        "io",
        Form::Words(&["auto", "io_uring", "epoll"]),
        "\"auto\"",
        "How sockets are served.",
    ),
    Key::with_default(
        "buffers",
        Form::Integer(*BUFFERS.start() as u64, *BUFFERS.end() as u64),
        "256",
        "Buffers of each worker, of 64 KiB.",
    ),
    Key::with_default(
        "colocate",
        Form::Boolean,
        "true",
        "Whether clients move to the worker of those they send most packets to, and away from one whose CPU has no time left.",
    ),
    Key::new("limits", Form::Table(&LIMITS_TABLE), "Limits; a client beyond them is refused or slowed."),
];
pub const TABLE: Table =
    Table { heading: "[relay]", about: "A DERP relay. A file with this table has no ports.", keys: &RELAY };
const LIMITS: [Key; 16] = [
    Key::with_default("accepts_per_second", Form::Integer(1, 1_000_000), "5000", "New connections a second."),
    Key::with_default("accept_burst", Form::Integer(1, 1_000_000), "20000", "New connections at once."),
    Key::new(
        "accepts_per_second_per_source",
        Form::Integer(1, 1_000_000),
        "New connections a second of one address (IPv6: one /64). Without it, a twentieth of the above.",
    ),
    Key::new(
        "accept_burst_per_source",
        Form::Integer(1, 1_000_000),
        "New connections at once of one address. Without it, a tenth of the above.",
    ),
    Key::with_default(
        "handshakes",
        Form::Integer(1, 1_000_000),
        "10000",
        "Handshakes under way at once; the oldest make room.",
    ),
    Key::with_default(
        "handshakes_per_source",
        Form::Integer(1, 1_000_000),
        "10000",
        "Handshakes under way of one address.",
    ),
    Key::with_default(
        "handshake_bytes",
        Form::Integer(HELD_MIN, 1 << 36),
        "33554432",
        "Bytes that handshakes hold beyond 20 KiB each.",
    ),
    Key::with_default(
        "handshake_bytes_per_source",
        Form::Integer(HELD_MIN, 1 << 36),
        "1048576",
        "The same, of one address.",
    ),
    Key::with_default("clients", Form::Integer(1, 1 << 24), "1048576", "Clients at once."),
    Key::with_default(
        "clients_per_source",
        Form::Integer(1, 1 << 24),
        "65536",
        "Clients of one address, which may be that of a NAT.",
    ),
    Key::with_default(
        "queue_frames",
        Form::Integer(8, 65_536),
        "4096",
        "Frames that wait for one client; then the oldest go.",
    ),
    Key::with_default(
        "queue_bytes",
        Form::Integer(128 << 10, 64 << 20),
        "1048576",
        "Bytes that wait for one client; then the oldest go.",
    ),
    Key::new(
        "receive_bytes_per_second",
        Form::Integer(10_000, 1 << 40),
        "Bytes a second taken from each client. It is told, and read no faster.",
    ),
    Key::new(
        "receive_burst_bytes",
        Form::Integer(66 << 10, 1 << 40),
        "Bytes taken at once. Without it, a tenth of a second.",
    ),
    Key::new("send_bytes_per_second", Form::Integer(10_000, 1 << 40), "Bytes a second sent to each client."),
    Key::new(
        "send_burst_bytes",
        Form::Integer(66 << 10, 1 << 40),
        "Bytes sent at once. Without it, a tenth of a second.",
    ),
];
const LIMITS_TABLE: Table =
    Table { heading: "[relay.limits]", about: "What clients may take of the relay.", keys: &LIMITS };
const ACME: [Key; 5] = [
    Key::with_default(
        "directory",
        Form::Text,
        "\"https://acme-v02.api.letsencrypt.org/directory\"",
        "The ACME server's directory.",
    ),
    Key::new("contact", Form::Text, "A mail address for the ACME server."),
    Key::new("store", Form::Text, "The folder for account and certificates."),
    Key::new(
        "root",
        Form::Text,
        "A file with the CA certificate that the ACME server's own is checked against.",
    ),
    Key::new(
        "challenge",
        Form::Words(&["http-01", "tls-alpn-01"]),
        "How the name is proved: over `http`, or over port 443 alone. Without it, the first where there is `http`.",
    ),
];
const ACME_TABLE: Table = Table {
    heading: "[relay.acme]",
    about: "Certificates from an ACME server such as Let's Encrypt.",
    keys: &ACME,
};
/// Let's Encrypt.
pub const ACME_DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

pub fn read(value: &Value<'_>, complaints: &mut Complaints) -> Option<RelayConfig> {
    let fields = value.table(&key_names(&RELAY), "[relay]", complaints)?;
    let mut engine = Engine::default();
    let mut acceptor = Acceptor::default();
    let listen = fields.required("listen", "listen = [\":443\"]", complaints);
    acceptor.listen = listen.map(|v| values::sockets(&v, 443, complaints)).unwrap_or_default();
    acceptor.http = fields.get("http").map(|v| values::sockets(&v, 80, complaints)).unwrap_or_default();
    acceptor.stun = fields.get("stun").map(|v| values::sockets(&v, 3478, complaints)).unwrap_or_default();
    acceptor.hostname = fields.get("hostname").and_then(|v| values::hostname(&v, complaints));
    acceptor.tls = fields.get("tls").and_then(|v| v.word(TLS, complaints)).unwrap_or_default();
    acceptor.certificates = certificates(&fields, &acceptor, complaints);
    acceptor.access = access(&fields, complaints);
    acceptor.home = fields.get("home").and_then(|v| values::home(&v, complaints)).unwrap_or_default();
    acceptor.bootstrap_dns =
        fields.get("bootstrap_dns").map(|v| values::hostnames(&v, complaints)).unwrap_or_default();
    acceptor.debug = fields.get("debug").map(|v| values::sources(&v, complaints)).unwrap_or_default();
    let colocate = fields.get("colocate").and_then(|v| values::yes_or_no(&v, complaints));
    engine.colocate = colocate.unwrap_or(engine.colocate);
    if let Some(buffers) = fields.get("buffers").and_then(|v| v.integer(BUFFERS, 256, complaints)) {
        engine.buffers = buffers as u16;
    }
    if let Some(table) = fields.get("limits") {
        limits(&table, &mut engine, &mut acceptor, complaints);
    }
    let mesh_key = fields.get("mesh_key").and_then(|v| values::path(&v, "mesh.key", complaints));
    Some(RelayConfig {
        span: fields.span.clone(),
        key: fields.get("key").and_then(|v| values::path(&v, "relay.key", complaints)),
        mesh_with: mesh_with(&fields, mesh_key.is_some(), complaints),
        mesh_key,
        private_key: fields.get("private_key").and_then(|v| match v.value {
            DeValue::String(path) => Some(Placed::new(PathBuf::from(path.as_ref()), v.span)),
            // Complained about where the certificate is read.
            _ => None,
        }),
        io: fields.get("io").and_then(|v| v.word(IO, complaints)).unwrap_or_default(),
        engine,
        acceptor,
    })
}

const TLS: &[(&str, Tls)] =
    &[("auto", Tls::Auto), ("kernel", Tls::Kernel), ("user", Tls::User), ("off", Tls::Off)];
const IO: &[(&str, Io)] = &[("auto", Io::Auto), ("io_uring", Io::Uring), ("epoll", Io::Epoll)];
const CHALLENGE: &[(&str, Challenge)] = &[("http-01", Challenge::Http), ("tls-alpn-01", Challenge::TlsAlpn)];
/// Buffers a worker may have, of 64 KiB each: from 1 MiB to 2 GiB a worker. A ring of the kernel holds no more.
const BUFFERS: std::ops::RangeInclusive<u32> = 16..=32_768;

/// Who may connect.
fn access(fields: &Fields<'_>, complaints: &mut Complaints) -> Access {
    let mut access = Access::default();
    let verify = fields.get("verify");
    access.verify = verify.as_ref().and_then(|v| values::url(v, complaints));
    if let Some(value) = fields.get("verify_fail_open") {
        access.fail_open = values::yes_or_no(&value, complaints).unwrap_or(access.fail_open);
        if verify.is_none() {
            complaints.add(
                value.span.clone(),
                "relay: verify_fail_open: there is no `verify`, so nobody is asked; write `verify = \"http://127.0.0.1:8080/verify\"`, or remove this",
            );
        }
    }
    let tailscaled = fields.get("verify_tailscaled");
    access.tailscaled =
        tailscaled.as_ref().and_then(|v| values::path(v, TAILSCALED, complaints)).map(|path| path.value);
    let Some(allow) = fields.get("allow") else { return access };
    match values::allow(&allow, complaints) {
        Allow::Keys(keys) => access.allow = keys,
        Allow::Everybody => access.everybody = true,
    }
    if let Some(other) = verify.or(tailscaled).filter(|_| access.everybody) {
        complaints.add(
            allow.span,
            format!(
                "relay: allow: got `everybody`, but `{}` asks who comes; remove one of them",
                last(&other.subject)
            ),
        );
    }
    access
}

/// Exactly one word about the certificate while TLS is on, none while it is off.
fn certificates(fields: &Fields<'_>, acceptor: &Acceptor, complaints: &mut Complaints) -> Certificates {
    let (chain, key) = (fields.get("certificate"), fields.get("private_key"));
    let (word, acme) = (fields.get("certificates"), fields.get("acme"));
    let given: Vec<&Value<'_>> = [&word, &chain, &acme].into_iter().flatten().collect();
    let all = given.iter().copied().chain(&key);
    if acceptor.tls == Tls::Off {
        for value in all {
            complaints.add(
                value.span.clone(),
                format!("{}: tls is off, so it means nothing; remove it, or `tls`", value.subject),
            );
        }
        return Certificates::SelfSigned;
    }
    if given.is_empty() {
        let at = key.as_ref().map_or(fields.span.clone(), |k| k.span.clone());
        complaints.add(
            at,
            "relay: no word about its certificate; write `certificate` and `private_key`, or `[relay.acme]`, or for a lab `certificates = \"self-signed\"`, or `tls = \"off\"`",
        );
    }
    if let [first, second, ..] = given.as_slice() {
        complaints.add(
            second.span.clone(),
            format!(
                "{}: `{}` says where the certificate comes from; keep one of them",
                second.subject,
                last(&first.subject)
            ),
        );
    }
    match (&chain, &key) {
        (Some(chain), Some(key)) => {
            let chain = values::path(chain, "fullchain.pem", complaints);
            let key = values::path(key, "privkey.pem", complaints);
            if let (Some(chain), Some(key)) = (chain, key) {
                return Certificates::Files { chain: chain.value, key: key.value };
            }
        }
        (Some(chain), None) => complaints.add(
            chain.span.clone(),
            "relay: a certificate without `private_key`; write `private_key = \"privkey.pem\"`",
        ),
        (None, Some(key)) if !given.is_empty() => complaints.add(
            key.span.clone(),
            "relay: a private key without `certificate`; write `certificate = \"fullchain.pem\"`, or remove it",
        ),
        _ => {}
    }
    if let Some(value) = &acme {
        return acme_of(value, acceptor, complaints).map_or(Certificates::SelfSigned, Certificates::Acme);
    }
    let word = word.and_then(|v| v.word(&[("self-signed", ())], complaints));
    word.map_or(Certificates::SelfSigned, |()| Certificates::SelfSigned)
}

/// `verify` of `relay: verify`.
fn last(subject: &str) -> &str {
    subject.rsplit(": ").next().unwrap_or(subject)
}

fn acme_of(value: &Value<'_>, acceptor: &Acceptor, complaints: &mut Complaints) -> Option<Acme> {
    let fields = value.table(&key_names(&ACME), "[relay.acme]", complaints)?;
    if acceptor.hostname.is_none() {
        complaints.add(
            fields.span.clone(),
            "relay: acme: a certificate is for a name; write `hostname = \"derp.example.com\"` in [relay]",
        );
    }
    let directory = fields.get("directory").map(|v| values::url(&v, complaints));
    let contact = fields.get("contact").and_then(|v| {
        v.text("a mail address", "contact = \"ops@example.com\"", complaints).map(str::to_owned)
    });
    // Where nothing listens for HTTP, TLS is all there is.
    let usual = if acceptor.http.is_empty() { Challenge::TlsAlpn } else { Challenge::Http };
    let challenge = fields.get("challenge").and_then(|v| v.word(CHALLENGE, complaints)).unwrap_or(usual);
    let store = fields.get("store").map(|v| values::path(&v, "acme", complaints));
    let root = fields.get("root").map(|v| values::path(&v, "root.pem", complaints));
    Some(Acme {
        directory: directory.unwrap_or_else(|| Some(ACME_DIRECTORY.to_owned()))?,
        contact,
        store: match store {
            // An absolute path stays when it is joined to the configuration's folder.
            None => state_directory().unwrap_or_default().join("acme"),
            Some(store) => store?.value,
        },
        root: match root {
            None => None,
            Some(root) => Some(root?.value),
        },
        challenge,
    })
}

fn mesh_with(fields: &Fields<'_>, has_key: bool, complaints: &mut Complaints) -> Vec<Remote> {
    let Some(value) = fields.get("mesh_with") else { return Vec::new() };
    if !has_key && fields.get("mesh_key").is_none() {
        complaints.add(
            value.span.clone(),
            "relay: mesh_with: relays of a mesh know each other by a key; write `mesh_key = \"mesh.key\"`",
        );
    }
    values::remotes(&value, complaints)
}

fn limits(value: &Value<'_>, engine: &mut Engine, acceptor: &mut Acceptor, complaints: &mut Complaints) {
    let Some(fields) = value.table(&key_names(&LIMITS), "[relay.limits]", complaints) else { return };
    let mut number = |key: &str, low: u64, high: u64, usual: u64| {
        fields.get(key).and_then(|v| v.integer(low..=high, usual, complaints)).unwrap_or(usual)
    };
    let usual = Limits::default();
    let many = 1 << 24;
    let clients = number("clients", 1, many, usual.clients as u64) as usize;
    let mut accepts = |key: &str, usual: u32| number(key, 1, 1_000_000, usual.into()) as u32;
    let accepts_per_second = accepts("accepts_per_second", usual.accepts_per_second);
    let accept_burst = accepts("accept_burst", usual.accept_burst);
    let source_keys = ["accepts_per_second_per_source", "accept_burst_per_source"];
    let source_rate = accepts(source_keys[0], Limits::source_rate(accepts_per_second));
    let source_burst = accepts(source_keys[1], Limits::source_burst(accept_burst));
    acceptor.limits = Limits {
        accepts_per_second,
        accept_burst,
        accepts_per_second_per_source: source_rate,
        accept_burst_per_source: source_burst,
        loopback_is_a_source: source_keys.iter().any(|key| fields.get(key).is_some()),
        handshakes: number("handshakes", 1, 1_000_000, usual.handshakes as u64) as usize,
        handshakes_per_source: number(
            "handshakes_per_source",
            1,
            1_000_000,
            usual.handshakes_per_source as u64,
        ) as usize,
        handshake_bytes: number("handshake_bytes", HELD_MIN, 1 << 36, usual.handshake_bytes as u64) as usize,
        handshake_bytes_per_source: number(
            "handshake_bytes_per_source",
            HELD_MIN,
            1 << 36,
            usual.handshake_bytes_per_source as u64,
        ) as usize,
        clients,
        clients_per_source: number("clients_per_source", 1, many, usual.clients_per_source as u64) as usize,
        ..usual
    };
    engine.clients = clients;
    engine.queue_frames = number("queue_frames", 8, 65_536, engine.queue_frames as u64) as usize;
    engine.queue_bytes = number("queue_bytes", 128 << 10, 64 << 20, engine.queue_bytes as u64) as usize;
    acceptor.rates = Rates {
        receive: rate(&fields, "receive_bytes_per_second", "receive_burst_bytes", complaints),
        send: rate(&fields, "send_bytes_per_second", "send_burst_bytes", complaints),
    };
}

/// The longest ClientInfo there may be, twice while it is read, and what comes in beside it.
const HELD_MIN: u64 = 1 << 20;

/// A burst is a tenth of a second's worth where none is given, and never less than the largest frame.
fn rate(fields: &Fields<'_>, rate: &str, burst: &str, complaints: &mut Complaints) -> Option<Rate> {
    const LEAST: u64 = 66 << 10;
    let usual = 12_500_000;
    let per_second = fields.get(rate).map(|v| v.integer(10_000..=1_u64 << 40, usual, complaints));
    let given = fields.get(burst);
    let Some(per_second) = per_second else {
        if let Some(given) = given {
            complaints.add(
                given.span.clone(),
                format!("{}: there is no `{rate}` to burst from; write it, or remove this", given.subject),
            );
        }
        return None;
    };
    let bytes_per_second = per_second?;
    let usual = (bytes_per_second / 10).max(LEAST);
    let burst = match given {
        Some(given) => given.integer(LEAST..=1_u64 << 40, usual, complaints)?,
        None => usual,
    };
    Some(Rate { bytes_per_second, burst })
}

/// The key of a relay whose configuration names none.
fn own_key(name: &str, folder: &Path) -> PathBuf {
    own_file(folder, state_directory().as_deref(), &format!("{name}.key"))
}

impl RelayConfig {
    /// Reads the files it names, relative to `folder`, that of its own key by `read_key`. An error is about the span
    /// beside it.
    pub fn settings(
        &self,
        name: &str,
        cpus: &[u32],
        folder: &Path,
        read_key: ReadKey,
    ) -> Result<Settings, Unread> {
        let (key, at) = match &self.key {
            Some(key) => (key.value.clone(), key.span.clone()),
            None => (own_key(name, folder), self.span.clone()),
        };
        let secret = read_key(&folder.join(key)).map_err(|error| Unread { span: at, key: "key", error })?;
        let mesh_key = match &self.mesh_key {
            None => None,
            Some(path) => {
                Some(keyfile::read_mesh_key(&folder.join(&path.value)).map_err(|error| Unread {
                    span: path.span.clone(),
                    key: "mesh_key",
                    error,
                })?)
            }
        };
        let mut acceptor = self.acceptor.clone();
        acceptor.access.tailscaled = acceptor.access.tailscaled.map(|socket| folder.join(socket));
        match &mut acceptor.certificates {
            Certificates::SelfSigned => {}
            Certificates::Files { chain, key } => {
                *chain = folder.join(&chain);
                *key = folder.join(&key);
            }
            Certificates::Acme(acme) => {
                acme.store = folder.join(&acme.store);
                acme.root = acme.root.take().map(|root| folder.join(root));
            }
        }
        Ok(Settings {
            name: name.to_owned(),
            secret,
            mesh_key,
            mesh_with: self.mesh_with.clone(),
            cpus: cpus.to_vec(),
            io: self.io,
            engine: self.engine.clone(),
            acceptor,
        })
    }

    /// Complains about files with a key in them that others than their owner may read. A file that is not there, or
    /// cannot be looked at, is for who runs it.
    pub fn check_files(&self, name: &str, folder: &Path, complaints: &mut Complaints) {
        let own = Placed::new(own_key(name, folder), self.span.clone());
        let files = [
            ("key", Some(self.key.as_ref().unwrap_or(&own))),
            ("mesh_key", self.mesh_key.as_ref()),
            ("private_key", self.private_key.as_ref()),
        ];
        for (key, file) in files {
            let Some(file) = file else { continue };
            if let Err(why) = weir_io::private::check_if_there(&folder.join(&file.value)) {
                complaints.add(file.span.clone(), format!("relay: {key}: {why}"));
            }
        }
    }

    /// What cannot stand beside it in one file.
    pub fn check_beside<'a>(fields: &Fields<'a>, complaints: &mut Complaints) {
        for key in ["port", "route", "neighbor", "ipsec", "sa", "tunnel", "spd", "policy", "limits", "keys"] {
            let Some(value) = fields.get(key) else { continue };
            let span = match value.value {
                DeValue::Array(items) => items.iter().next().map_or(value.span, |first| first.span()),
                _ => value.span,
            };
            complaints.add(
                span,
                format!("{key}: the file is a relay's; write it in another file, for a weir of its own, or remove `[relay]`"),
            );
        }
    }
}
