//! Fuzz functions of TLS streams: what a peer may send after its handshake, whole, in pieces, damaged, and before it.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig};
use weir_core::fuzz_input::Input;

use super::{News, Session};
use crate::tls::{self, ClientOptions, Handshake, Progress, TlsError, Trust, kind};

/// Signed by nobody, for nobody: fuzzing's own.
const CERTIFICATE: &[u8] = include_bytes!("../../../../../testdata/tls/certificate.der");
const KEY: &[u8] = include_bytes!("../../../../../testdata/tls/key.der");
/// Versions and suites, as configurations of clients have them.
const SUITES: usize = 6;
/// Bytes on their way at most.
const WIRE_MOST: usize = 1 << 18;

/// Both ends of a stream, after the handshake.
type Ends = (Session, Session);

thread_local! {
    /// Streams that went on well, by suite: a handshake costs more than all the rest.
    static KEPT: RefCell<[Option<Ends>; SUITES]> = RefCell::default();
}

/// Whether a configuration's suite is one of TLS 1.3.
fn is_tls_13(suite: usize) -> bool {
    suite < SUITES / 2
}

fn configs() -> &'static (Arc<ServerConfig>, Vec<Arc<ClientConfig>>) {
    static CONFIGS: OnceLock<(Arc<ServerConfig>, Vec<Arc<ClientConfig>>)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(KEY));
        let key = any_supported_type(&key).expect("a key of ECDSA");
        let certified = CertifiedKey::new(vec![CertificateDer::from(CERTIFICATE)], key);
        let server = tls::server_config(Arc::new(SingleCertAndKey::from(certified)));
        let client = |at: usize| {
            let version = if is_tls_13(at) { &TLS13 } else { &TLS12 };
            let all = rustls::crypto::aws_lc_rs::default_provider().cipher_suites;
            let suites: Vec<_> = all.iter().filter(|s| s.version().version == version.version).collect();
            let suites = vec![suites[at % (SUITES / 2)].suite()];
            let options = ClientOptions { suites, versions: vec![version] };
            Arc::new(tls::client_config(Trust::Unverified, &options).expect("a configuration"))
        };
        (Arc::new(server.expect("a configuration")), (0..SUITES).map(client).collect())
    })
}

fn ends(suite: usize) -> Ends {
    if let Some(kept) = KEPT.with_borrow_mut(|kept| kept[suite].take()) {
        return kept;
    }
    let (client, server) = handshakes(suite);
    (client.finish().expect("keys").0, server.finish().expect("keys").0)
}

/// Both ends, after they have agreed.
fn handshakes(suite: usize) -> (Handshake, Handshake) {
    let (server, clients) = configs();
    let name = ServerName::try_from("fuzz.invalid").expect("a name");
    let mut client = Handshake::client(clients[suite].clone(), name).expect("a client");
    let mut server = Handshake::server(server.clone()).expect("a server");
    let (mut up, mut down) = (Vec::new(), Vec::new());
    loop {
        let here = client.advance(&mut down, &mut up).expect("the client goes on");
        let there = server.advance(&mut up, &mut down).expect("the server goes on");
        if (here, there) == (Progress::Ready, Progress::Ready) && up.is_empty() && down.is_empty() {
            return (client, server);
        }
    }
}

/// What a record of TLS 1.3 holds whose sealer was given this: a type of zero is padding, and the last byte that is not zero
/// is the type (RFC 8446, 5.4).
fn without_padding(kind: u8, plain: &[u8]) -> (u8, &[u8]) {
    if kind != 0 {
        return (kind, plain);
    }
    let at = plain.iter().rposition(|&byte| byte != 0);
    at.map_or((0, plain), |at| (plain[at], &plain[..at]))
}

/// A stream from a client to a server, whose bytes an attacker has, or the client itself.
struct Stream {
    client: Session,
    server: Session,
    /// Sealed, not delivered yet.
    wire: Vec<u8>,
    /// Delivered, not opened yet.
    received: Vec<u8>,
    /// What was sealed as data, and how much of it came out.
    said: Vec<u8>,
    heard: usize,
    /// The type of a record is sealed with its data, as in TLS 1.3.
    padded: bool,
    /// Bytes were changed, or the client has said what no honest one says.
    wild: bool,
    over: bool,
}

impl Stream {
    fn seal(&mut self, kind: u8, plain: &[u8]) {
        if self.wire.len() > WIRE_MOST {
            return;
        }
        if self.client.append(kind, plain, &mut self.wire).is_err() {
            return;
        }
        let (kind, said) = if self.padded { without_padding(kind, plain) } else { (kind, plain) };
        if kind == kind::DATA {
            self.said.extend_from_slice(said);
        }
    }

    /// Delivers so much of what is on its way.
    fn deliver(&mut self, length: usize) {
        if self.over {
            return;
        }
        self.received.extend(self.wire.drain(..length.min(self.wire.len())));
        match self.server.open(&mut self.received) {
            Ok(opened) => {
                let plain = &self.received[opened.plain];
                let expected = self.said.get(self.heard..self.heard + plain.len());
                assert_eq!(Some(plain), expected, "what was heard was not said");
                self.heard += plain.len();
                self.received.drain(..opened.consumed);
                match opened.news {
                    Some(News::UpdateWanted) => self.answer(),
                    Some(News::CloseNotify | News::Alert(_)) => self.over = true,
                    None => {}
                }
            }
            Err(error) => {
                let allowed = self.wild || matches!(error, TlsError::Flood { .. });
                assert!(allowed, "an honest stream ends with {error}");
                let mut out = Vec::new();
                self.server.alert(&error, &mut out).expect("the reason can be said");
                self.over = true;
            }
        }
    }

    /// The server changes its keys, and the client follows.
    fn answer(&mut self) {
        let mut out = Vec::new();
        self.server.update(&mut out).expect("TLS 1.3 can");
        self.server.seal_into(b"answer", &mut out).expect("sealed");
        let opened = self.client.open(&mut out).expect("the server is honest");
        assert_eq!(&out[opened.plain], b"answer");
    }

    fn step(&mut self, what: u8, input: &mut Input<'_>) {
        let whole = self.wire.len();
        match what % 8 {
            0 | 1 => {
                let length = input.word() % 1500;
                let pattern: Vec<u8> = (0..length).map(|n| (n ^ self.said.len()) as u8).collect();
                self.seal(kind::DATA, &pattern);
            }
            2 => {
                let length = input.word() % (tls::record::PLAIN_LIMIT + 1);
                self.seal(kind::DATA, &vec![what; length]);
            }
            3 => {
                let (kind, length) = (input.byte(), usize::from(input.byte()));
                self.wild |= kind != kind::DATA;
                let plain = input.take(length).to_vec();
                self.seal(kind, &plain);
            }
            4 => drop(self.client.update_with(input.byte() & 1 == 1, &mut self.wire)),
            5 if whole > 0 => {
                let at = input.word() % whole;
                self.wire[at] ^= input.byte();
                self.wild = true;
            }
            6 if whole > 0 => {
                let (from, to) = (input.word() % whole, input.word() % whole);
                let part = self.wire[from.min(to)..from.max(to)].to_vec();
                match input.byte() % 3 {
                    0 => drop(self.wire.drain(from.min(to)..from.max(to))),
                    1 if whole < WIRE_MOST => self.wire.extend(part),
                    _ => self.wire.splice(to..to, input.take(40).iter().copied()).for_each(drop),
                }
                self.wild = true;
            }
            _ => {
                let length = input.word();
                self.deliver(length);
            }
        }
    }
}

/// Delivers what a client says, honestly or not, in pieces of any size: what comes out is what went in, up to where it was
/// spoilt, and an honest stream comes out whole.
pub fn fuzz_tls_session(data: &[u8]) {
    let mut input = Input(data);
    let suite = usize::from(input.byte()) % SUITES;
    let (client, server) = ends(suite);
    let mut stream = Stream {
        client,
        server,
        wire: Vec::new(),
        received: Vec::new(),
        said: Vec::new(),
        heard: 0,
        padded: is_tls_13(suite),
        wild: false,
        over: false,
    };
    while !input.0.is_empty() {
        let what = input.byte();
        stream.step(what, &mut input);
    }
    stream.deliver(usize::MAX);
    if !stream.over && !stream.wild {
        assert_eq!(stream.heard, stream.said.len(), "all that was said was heard");
        KEPT.with_borrow_mut(|kept| kept[suite] = Some((stream.client, stream.server)));
    }
}

/// Delivers records of any kind to a server that is still rustls', and has it answer: what is data comes out as it went in.
pub fn fuzz_tls_early(data: &[u8]) {
    let mut input = Input(data);
    let (client, mut server) = handshakes(usize::from(input.byte()) % SUITES);
    let mut client = client.finish().expect("keys").0;
    let (mut wire, mut received, mut said, mut heard) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    while !input.0.is_empty() {
        let (kind, length, cut) = (input.byte(), usize::from(input.byte()), usize::from(input.byte()));
        let plain = input.take(length).to_vec();
        let kind = if kind & 1 == 0 { kind::DATA } else { kind::CHANGE_CIPHER_SPEC + kind / 2 % 4 };
        if client.append(kind, &plain, &mut wire).is_ok() && kind == kind::DATA {
            said.extend_from_slice(&plain);
        }
        received.extend(wire.drain(..cut.min(wire.len())));
        let mut out = Vec::new();
        let read = server.read(&mut received, &mut heard, &mut out);
        assert!(said.starts_with(&heard), "what was heard was not said");
        // Whether it can or not.
        let _ = server.write(b"answer", &mut received, &mut out);
        if read.is_err() {
            break;
        }
    }
    let _ = server.close_notify(&mut received, &mut Vec::new());
}

/// Looks at what may be a ClientHello: what is awaited is less than a record, and whoever is waited for is asked again.
pub fn fuzz_tls_hello(data: &[u8]) {
    let awaits = tls::awaits(data);
    // More bytes end the wait; they do not begin one.
    if !awaits {
        assert!(!tls::awaits(&[data, b"more"].concat()), "the wait begins again");
    }
    assert!(!awaits || data.len() < 5 + (16 << 10), "the wait is bounded");
    let (server, _) = configs();
    let theirs = tls::for_client(server.clone(), data);
    assert!(theirs.ignore_client_order || !Arc::ptr_eq(&theirs, server));
    // And as the first thing a server hears.
    let mut received = data.to_vec();
    let mut out = Vec::new();
    let mut handshake = Handshake::server(theirs).expect("a server");
    if handshake.advance(&mut received, &mut out).is_ok() {
        assert!(received.len() <= data.len());
    }
}
