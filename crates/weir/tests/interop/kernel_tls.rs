//! Kernel TLS, in the second kernel: the relay's side of a connection has its keys in the kernel, the other side is our
//! own user-space TLS, which other tests hold against OpenSSL and rustls.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ServerConfig, SupportedProtocolVersion};
use weir_core::relay::Key;
use weir_io::tls::kernel::{receive, support};
use weir_io::tls::record::missing;
use weir_io::tls::{
    self, ClientOptions, Established, Handshake, Kernel, News, Progress, Session, TlsError, Trust, alert,
    kind,
};
use weir_relay::certificates::Identity;
use weir_relay::settings::Certificates;

use crate::second_kernel;

const SUITES: [(&SupportedProtocolVersion, CipherSuite); 6] = [
    (&TLS13, CipherSuite::TLS13_AES_128_GCM_SHA256),
    (&TLS13, CipherSuite::TLS13_AES_256_GCM_SHA384),
    (&TLS13, CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    (&TLS12, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    (&TLS12, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (&TLS12, CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
];

fn server_config() -> Arc<ServerConfig> {
    Identity::open(&Certificates::SelfSigned, None, Key([1; 32]), SystemTime::now())
        .and_then(|identity| identity.server_config())
        .expect("a configuration")
}

/// The side in user space.
struct Near {
    socket: TcpStream,
    session: Session,
    received: Vec<u8>,
}

impl Near {
    fn send(&mut self, plain: &[u8]) {
        let mut out = Vec::new();
        self.session.seal_into(plain, &mut out).expect("sealed");
        self.socket.write_all(&out).expect("is sent");
    }

    /// Opens until `length` bytes or news came; of a length of 0, until news came.
    fn receive(&mut self, length: usize) -> (Vec<u8>, Option<News>) {
        let mut plain = Vec::new();
        loop {
            let opened = self.session.open(&mut self.received).expect("opens");
            plain.extend_from_slice(&self.received[opened.plain]);
            self.received.drain(..opened.consumed);
            if plain.len() >= length && length > 0 || opened.news.is_some() {
                return (plain, opened.news);
            }
            let mut more = [0; 16_384];
            let length = self.socket.read(&mut more).expect("is received");
            assert!(length > 0, "closed without a close_notify");
            self.received.extend_from_slice(&more[..length]);
        }
    }
}

/// Reads no more than the record that is coming, as one has to whose socket the kernel will take over.
fn read_record(socket: &mut TcpStream, received: &mut Vec<u8>) {
    while missing(received) > 0 {
        let at = received.len();
        received.resize(at + missing(received), 0);
        let length = socket.read(&mut received[at..]).expect("is received");
        assert!(length > 0, "closed during the handshake");
        received.truncate(at + length);
    }
}

/// A connection whose handshake is over: the near side, and the far side's socket and keys.
fn established(
    version: &'static SupportedProtocolVersion,
    suite: CipherSuite,
) -> (Near, TcpStream, Established) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (mut far, _) = listener.accept().expect("connects");
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    }
    let options = ClientOptions { suites: vec![suite], versions: vec![version] };
    let client = tls::client_config(Trust::Anyone, &options).expect("a configuration");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = Handshake::client(Arc::new(client), name).expect("a client");
    let mut server = Handshake::server(server_config()).expect("a server");
    let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| shake(&mut client, &mut near, &mut at_client));
        shake(&mut server, &mut far, &mut at_server);
    });
    let (session, _) = client.finish().expect("the keys");
    assert!(at_server.is_empty(), "nothing was read too early");
    (Near { socket: near, session, received: at_client }, far, server.establish().expect("the keys").0)
}

fn shake(side: &mut Handshake, socket: &mut TcpStream, received: &mut Vec<u8>) {
    loop {
        let mut out = Vec::new();
        let progress = side.advance(received, &mut out).expect("the handshake goes on");
        socket.write_all(&out).expect("is sent");
        if progress == Progress::Ready {
            return;
        }
        read_record(socket, received);
    }
}

/// The same with the far side's keys in the kernel.
fn offloaded(version: &'static SupportedProtocolVersion, suite: CipherSuite) -> (Near, TcpStream, Kernel) {
    let (near, far, keys) = established(version, suite);
    let kernel = keys.offload(far.as_fd()).expect("the kernel takes the keys");
    (near, far, kernel)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + (i >> 8)) as u8).collect()
}

fn receive_exactly(socket: BorrowedFd<'_>, length: usize) -> Vec<u8> {
    let mut plain = vec![0; length];
    let mut at = 0;
    while at < length {
        let (kind, received) = receive(socket, &mut plain[at..]).expect("is received");
        assert_eq!(kind, kind::DATA);
        assert!(received > 0, "ended after {at} bytes");
        at += received;
    }
    plain
}

#[test]
fn kernel_tls_carries_data_both_ways_in_every_suite() {
    second_kernel::there("kernel_tls::kernel_tls_carries_data_both_ways_in_every_suite", || {
        for (version, suite) in SUITES {
            let (mut near, mut far, _kernel) = offloaded(version, suite);
            let plain = pattern(40_000);
            for round in 0..3 {
                near.send(&plain);
                assert!(
                    receive_exactly(far.as_fd(), plain.len()) == plain,
                    "{suite:?}, received, round {round}"
                );
                far.write_all(&plain).expect("is sent");
                assert!(near.receive(plain.len()).0 == plain, "{suite:?}, sent, round {round}");
            }
        }
    });
}

#[test]
fn kernel_tls_takes_over_after_data_of_the_handshake() {
    second_kernel::there("kernel_tls::kernel_tls_takes_over_after_data_of_the_handshake", || {
        for (version, suite) in SUITES {
            // What the near side says before the far side's kernel has its keys waits in the socket.
            let (mut near, far, keys) = established(version, suite);
            near.send(b"GET /derp HTTP/1.1");
            let _kernel = keys.offload(far.as_fd()).expect("the kernel takes the keys");
            assert_eq!(receive_exactly(far.as_fd(), 18), b"GET /derp HTTP/1.1", "{suite:?}");
        }
    });
}

#[test]
fn kernel_tls_closes_cleanly_both_ways() {
    second_kernel::there("kernel_tls::kernel_tls_closes_cleanly_both_ways", || {
        for (version, suite) in SUITES {
            let (mut near, mut far, mut kernel) = offloaded(version, suite);
            far.write_all(b"last words").expect("is sent");
            kernel.close_notify(far.as_fd()).expect("is sent");
            let heard = near.receive(0);
            assert_eq!(heard, (b"last words".to_vec(), Some(News::CloseNotify)), "{suite:?}, sent");
            let mut out = Vec::new();
            near.session.close_notify(&mut out).expect("sealed");
            near.socket.write_all(&out).expect("is sent");
            let mut plain = [0; 100];
            let (kind, length) = receive(far.as_fd(), &mut plain).expect("is received");
            let news = kernel.control(far.as_fd(), kind, &plain[..length]);
            assert_eq!(news, Ok(Some(News::CloseNotify)), "{suite:?}, received");
        }
    });
}

#[test]
fn kernel_tls_tells_alerts_both_ways() {
    second_kernel::there("kernel_tls::kernel_tls_tells_alerts_both_ways", || {
        for (version, suite) in SUITES {
            let (mut near, far, mut kernel) = offloaded(version, suite);
            let reason = TlsError::Malformed { what: "test" };
            kernel.alert(far.as_fd(), &reason).expect("is sent");
            assert_eq!(near.receive(0).1, Some(News::Alert(alert::DECODE_ERROR)), "{suite:?}, sent");
            let mut out = Vec::new();
            near.session.alert(&reason, &mut out).expect("sealed");
            near.socket.write_all(&out).expect("is sent");
            let mut plain = [0; 100];
            let (kind, length) = receive(far.as_fd(), &mut plain).expect("is received");
            let news = kernel.control(far.as_fd(), kind, &plain[..length]);
            assert_eq!(news, Ok(Some(News::Alert(alert::DECODE_ERROR))), "{suite:?}, received");
        }
    });
}

#[test]
fn kernel_tls_follows_key_updates_or_says_that_it_cannot() {
    second_kernel::there("kernel_tls::kernel_tls_follows_key_updates_or_says_that_it_cannot", || {
        let rekey = support().expect("this kernel has TLS").rekey;
        for (version, suite) in &SUITES[..3] {
            let (mut near, mut far, mut kernel) = offloaded(version, suite.to_owned());
            let mut out = Vec::new();
            near.session.update_with(true, &mut out).expect("TLS 1.3 can");
            near.session.seal_into(b"new key", &mut out).expect("sealed");
            near.socket.write_all(&out).expect("is sent");
            let mut plain = [0; 100];
            let (kind, length) = receive(far.as_fd(), &mut plain).expect("is received");
            assert_eq!(kind, kind::HANDSHAKE);
            let news = kernel.control(far.as_fd(), kind, &plain[..length]);
            if !rekey {
                let Err(error @ TlsError::KernelKeys { .. }) = news else { panic!("{suite:?}: {news:?}") };
                assert!(error.to_string().contains("Linux 6.14"), "{error}");
                kernel.alert(far.as_fd(), &error).expect("the peer is told");
                assert_eq!(near.receive(0).1, Some(News::Alert(alert::INTERNAL_ERROR)));
                continue;
            }
            assert_eq!(news, Ok(Some(News::UpdateWanted)));
            assert_eq!(receive_exactly(far.as_fd(), 7), b"new key");
            kernel.update(far.as_fd()).expect("the kernel can");
            far.write_all(b"ours too").expect("is sent");
            assert_eq!(near.receive(8).0, b"ours too");
        }
    });
}

#[test]
fn kernel_tls_does_not_take_a_forged_record_for_data() {
    second_kernel::there("kernel_tls::kernel_tls_does_not_take_a_forged_record_for_data", || {
        for (version, suite) in SUITES {
            let (mut near, far, _kernel) = offloaded(version, suite);
            let mut out = Vec::new();
            near.session.seal_into(b"to be damaged", &mut out).expect("sealed");
            let last = out.len() - 1;
            out[last] ^= 1;
            near.socket.write_all(&out).expect("is sent");
            let error = receive(far.as_fd(), &mut [0; 100]).expect_err("it is forged");
            assert_eq!(error.raw_os_error(), Some(libc_ebadmsg()), "{suite:?}: {error}");
        }
    });
}

/// `EBADMSG` of linux/errno.h.
fn libc_ebadmsg() -> i32 {
    74
}

#[test]
fn kernel_without_its_tls_module_leaves_the_stream_to_user_space() {
    second_kernel::there("kernel_tls::kernel_without_its_tls_module_leaves_the_stream_to_user_space", || {
        const ASKED: &str = "/proc/sys/kernel/modprobe";
        let modprobe = fs::read_to_string(ASKED).expect("it is there").trim().to_string();
        // Of tests that ran before.
        let _ = Command::new(&modprobe).args(["-r", "tls"]).status();
        fs::write(ASKED, "/bin/false").expect("we are root there");
        let refused = support();
        let (mut near, mut far, keys) = established(SUITES[0].0, SUITES[0].1);
        let refusal = keys.offload(far.as_fd());
        fs::write(ASKED, modprobe).expect("we are root there");
        assert!(refused.is_err_and(|why| why.to_string().contains("module `tls`")));
        let refusal = refusal.expect_err("there is no module");
        assert!(refusal.why.to_string().contains("load it, or use TLS in user space"), "{}", refusal.why);
        let mut session = refusal.keys.expect("no key was given").session().expect("a session");
        let mut out = Vec::new();
        session.seal_into(b"in user space", &mut out).expect("sealed");
        far.write_all(&out).expect("is sent");
        assert_eq!(near.receive(13).0, b"in user space");
    });
}

#[test]
fn kernel_tls_keeps_records_apart_from_what_follows() {
    second_kernel::there("kernel_tls::kernel_tls_keeps_records_apart_from_what_follows", || {
        let (mut near, far, mut kernel) = offloaded(SUITES[0].0, SUITES[0].1);
        let mut out = Vec::new();
        near.session.seal_into(b"data", &mut out).expect("sealed");
        near.session.close_notify(&mut out).expect("sealed");
        near.socket.write_all(&out).expect("is sent");
        let mut plain = [0; 100];
        // One receive never mixes types, although there was room.
        assert_eq!(receive(far.as_fd(), &mut plain).expect("is received"), (kind::DATA, 4));
        let (kind, length) = receive(far.as_fd(), &mut plain).expect("is received");
        assert_eq!(kernel.control(far.as_fd(), kind, &plain[..length]), Ok(Some(News::CloseNotify)));
        far.set_nonblocking(true).expect("a socket");
        let nothing = receive(far.as_fd(), &mut plain).expect_err("nothing more was sent");
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    });
}
