//! Rates of TLS records, sealing and opening, as the relay does both: what a worker with TLS in user space cannot
//! exceed.
//!
//! Ways take turns in rounds of a few milliseconds, so that a slow moment of the machine hits all of them.
//! `cargo bench -p weir-io --bench tls_records` prints the best turn of each.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::generate_simple_self_signed;
use rustls::CipherSuite;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use weir_io::tls::record::PLAIN_LIMIT;
use weir_io::tls::{self, ClientOptions, Handshake, Session, Trust};

const TURNS: usize = 15;
const TURN: Duration = Duration::from_millis(10);
const SMOKE_TURNS: usize = 1;
const SMOKE_TURN: Duration = Duration::from_micros(100);
/// One receive of the relay's.
const BUFFER: usize = 64 << 10;
/// A frame of 1,400 bytes alone, some frames, a full record.
const BODIES: [usize; 3] = [1_437, 8_192, PLAIN_LIMIT];
const SUITES: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];

fn main() {
    let smoke = !std::env::args().any(|argument| argument == "--bench");
    let (turns, turn) = if smoke { (SMOKE_TURNS, SMOKE_TURN) } else { (TURNS, TURN) };
    println!(
        "{:32} {:>6} {:>12} {:>14} {:>12}",
        "MB/s of plaintext", "bytes", "seal in place", "seal from", "open"
    );
    for suite in SUITES {
        for body in BODIES {
            let mut best = [0.0f64; 3];
            for _ in 0..turns {
                // What is sealed only is never opened: opening has a pair of its own, whose numbers agree.
                let (mut sealing, _) = sessions(suite);
                let (mut client, mut server) = sessions(suite);
                let rates = [
                    rate(turn, &mut || seal_in_place(&mut sealing, body)),
                    rate(turn, &mut || seal_from(&mut sealing, body)),
                    open(&mut client, &mut server, body, turn),
                ];
                best.iter_mut().zip(rates).for_each(|(best, rate)| *best = best.max(rate));
            }
            let [in_place, from, open] = best;
            println!(
                "{:32} {body:>6} {in_place:>12.0} {from:>14.0} {open:>12.0}",
                suite.as_str().unwrap_or_default()
            );
        }
    }
}

/// Bytes per microsecond of the plaintext that `work` returns.
fn rate(turn: Duration, work: &mut dyn FnMut() -> usize) -> f64 {
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < turn {
        bytes += work();
    }
    bytes as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// A buffer full of records, written one behind the other.
fn seal_in_place(session: &mut Session, body: usize) -> usize {
    thread_local!(static BYTES: RefCell<Vec<u8>> = RefCell::new(vec![7; BUFFER]));
    BYTES.with_borrow_mut(|bytes| {
        let mut sealed = 0;
        for record in bytes.chunks_exact_mut(body + session.overhead()) {
            session.seal(record).expect("a record");
            sealed += body;
        }
        black_box(&bytes);
        sealed
    })
}

fn seal_from(session: &mut Session, body: usize) -> usize {
    thread_local!(static BYTES: RefCell<(Vec<u8>, Vec<u8>)> = RefCell::new((vec![7; BUFFER], vec![0; BUFFER])));
    BYTES.with_borrow_mut(|(plain, bytes)| {
        let mut sealed = 0;
        for (record, plain) in bytes.chunks_exact_mut(body + session.overhead()).zip(plain.chunks_exact(body))
        {
            session.seal_from(plain, record).expect("a record");
            sealed += body;
        }
        black_box(&bytes);
        sealed
    })
}

/// Only opening is timed: each buffer is sealed before.
fn open(client: &mut Session, server: &mut Session, body: usize, turn: Duration) -> f64 {
    let (mut spent, mut bytes) = (Duration::ZERO, 0);
    let plain = vec![7; body];
    while spent < turn {
        let mut buffer = Vec::with_capacity(BUFFER);
        while buffer.len() + body + client.overhead() <= BUFFER {
            client.seal_into(&plain, &mut buffer).expect("records");
        }
        let start = Instant::now();
        let opened = server.open(&mut buffer).expect("what was sealed opens");
        spent += start.elapsed();
        bytes += opened.plain.len();
        black_box(&buffer);
    }
    bytes as f64 / spent.as_secs_f64() / 1e6
}

fn sessions(suite: CipherSuite) -> (Session, Session) {
    let made = generate_simple_self_signed(["localhost".to_string()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let key = any_supported_type(&key).expect("a key of rcgen");
    let certified = CertifiedKey::new(vec![made.cert.der().clone()], key);
    let server = tls::server_config(Arc::new(SingleCertAndKey::from(certified))).expect("a configuration");
    let options = ClientOptions { suites: vec![suite], versions: vec![] };
    let client = tls::client_config(Trust::Anyone, &options).expect("a configuration");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = Handshake::client(Arc::new(client), name).expect("a client");
    let mut server = Handshake::server(Arc::new(server)).expect("a server");
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        client.advance(&mut to_client, &mut to_server).expect("the client goes on");
        server.advance(&mut to_server, &mut to_client).expect("the server goes on");
    }
    (client.finish().expect("the keys").0, server.finish().expect("the keys").0)
}
