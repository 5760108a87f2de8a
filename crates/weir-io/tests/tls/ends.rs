//! Two ends of a connection in memory, certificates for them, and the suites both are tried with.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ClientConfig, Connection, ServerConfig, SupportedProtocolVersion};
use weir_io::tls::{self, ClientOptions, Handshake, Progress, Session, Trust};

/// Every version and suite that is spoken here.
pub const SUITES: [(&SupportedProtocolVersion, CipherSuite); 6] = [
    (&TLS13, CipherSuite::TLS13_AES_128_GCM_SHA256),
    (&TLS13, CipherSuite::TLS13_AES_256_GCM_SHA384),
    (&TLS13, CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    (&TLS12, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    (&TLS12, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (&TLS12, CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
];

pub fn server_config() -> Arc<ServerConfig> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let key = any_supported_type(&key).expect("a key of rcgen");
    let certified = CertifiedKey::new(vec![made.cert.der().clone()], key);
    Arc::new(tls::server_config(Arc::new(SingleCertAndKey::from(certified))).expect("a configuration"))
}

pub fn client_config(version: &'static SupportedProtocolVersion, suite: CipherSuite) -> Arc<ClientConfig> {
    let options = ClientOptions { suites: vec![suite], versions: vec![version] };
    Arc::new(tls::client_config(Trust::Anyone, &options).expect("a configuration"))
}

pub fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name")
}

/// Both ends of a handshake by ourselves, `step` bytes at a time.
pub fn handshakes(
    version: &'static SupportedProtocolVersion,
    suite: CipherSuite,
    step: usize,
) -> (Handshake, Handshake) {
    let mut client = Handshake::client(client_config(version, suite), name()).expect("a client");
    let mut server = Handshake::server(server_config()).expect("a server");
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
    let mut states = [Progress::NeedMore; 2];
    for _ in 0..100_000 {
        states[0] = client.advance(&mut at_client, &mut to_server).expect("the client goes on");
        at_server.extend(to_server.drain(..to_server.len().min(step)));
        states[1] = server.advance(&mut at_server, &mut to_client).expect("the server goes on");
        at_client.extend(to_client.drain(..to_client.len().min(step)));
        let quiet = to_server.is_empty() && to_client.is_empty() && at_client.is_empty();
        if states == [Progress::Ready; 2] && quiet {
            return (client, server);
        }
    }
    panic!("handshake did not end: {states:?}");
}

/// Two sessions that belong together: (client, server).
pub fn sessions(version: &'static SupportedProtocolVersion, suite: CipherSuite) -> (Session, Session) {
    let (client, server) = handshakes(version, suite, usize::MAX);
    (client.finish().expect("client keys").0, server.finish().expect("server keys").0)
}

/// One record of `plain` as `session` seals it.
pub fn sealed(session: &mut Session, plain: &[u8]) -> Vec<u8> {
    let mut record = vec![0; plain.len() + session.overhead()];
    let head = session.head();
    record[head..head + plain.len()].copy_from_slice(plain);
    session.seal(&mut record).expect("sealed");
    record
}

/// Bytes that look like nothing else.
pub fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| ((i * 31 + seed * 7) ^ (i >> 8)) as u8).collect()
}

/// rustls' own connection at one end, a handshake of ours at the other; both Ready afterwards.
pub fn shake_with(theirs: &mut Connection, ours: &mut Handshake) {
    let mut at_ours = Vec::new();
    for _ in 0..20 {
        while theirs.wants_write() {
            theirs.write_tls(&mut at_ours).expect("memory takes everything");
        }
        let mut out = Vec::new();
        let progress = ours.advance(&mut at_ours, &mut out).expect("our side goes on");
        feed(theirs, &out);
        if progress == Progress::Ready && !theirs.is_handshaking() && !theirs.wants_write() {
            return;
        }
    }
    panic!("handshake did not end");
}

/// Gives bytes to rustls' connection.
pub fn feed(theirs: &mut Connection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        theirs.read_tls(&mut bytes).expect("bytes are taken");
        theirs.process_new_packets().expect("bytes are understood");
    }
}

/// What rustls' connection seals of `plain`.
pub fn said(theirs: &mut Connection, plain: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in plain.chunks(16_384) {
        theirs.writer().write_all(part).expect("the writer takes it");
        while theirs.wants_write() {
            theirs.write_tls(&mut bytes).expect("memory takes everything");
        }
    }
    bytes
}

/// What rustls' connection has received.
pub fn heard(theirs: &mut Connection, length: usize) -> Vec<u8> {
    let mut plain = vec![0; length];
    theirs.reader().read_exact(&mut plain).expect("as many bytes were sent");
    plain
}
