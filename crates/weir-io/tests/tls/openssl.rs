//! OpenSSL at the other end of a socket: `s_client` against our server, `s_server` against our client, with data and
//! key updates both ways, and a clean close by either.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustls::{CipherSuite, ProtocolVersion};
use weir_io::tls::{Handshake, News, Progress, Session};

use crate::ends::{SUITES, client_config, name, pattern, server_config};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn missing(test: &str) -> bool {
    let found = Command::new("openssl").arg("version").output().is_ok_and(|said| said.status.success());
    if !found {
        writeln!(std::io::stderr(), "SKIP {test}: needs the `openssl` command; install openssl")
            .expect("stderr is open");
    }
    !found
}

/// How OpenSSL is told to speak this version and suite, and nothing else.
fn choice(version: ProtocolVersion, suite: CipherSuite) -> [&'static str; 3] {
    let (option, suite) = match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => ("-ciphersuites", "TLS_AES_128_GCM_SHA256"),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => ("-ciphersuites", "TLS_AES_256_GCM_SHA384"),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => ("-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"),
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => ("-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => ("-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        _ => ("-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    };
    [if version == ProtocolVersion::TLSv1_3 { "-tls1_3" } else { "-tls1_2" }, option, suite]
}

/// An `openssl` of ours, and what it says.
struct Openssl {
    child: Child,
    stdin: ChildStdin,
    said: Receiver<String>,
}

impl Openssl {
    fn start(args: &[&str]) -> Openssl {
        let mut child = Command::new("openssl")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl starts");
        let stdin = child.stdin.take().expect("it is piped");
        let said = lines(child.stdout.take().expect("it is piped"));
        Openssl { child, stdin, said }
    }

    fn type_line(&mut self, line: &str) {
        self.stdin.write_all(format!("{line}\n").as_bytes()).expect("openssl reads");
        self.stdin.flush().expect("openssl reads");
    }

    fn wait_for(&self, text: &str) -> String {
        loop {
            let line = self.said.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("openssl does not say `{text}`"));
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Our end of the socket.
struct End {
    socket: TcpStream,
    session: Session,
    received: Vec<u8>,
}

impl End {
    fn shake(mut socket: TcpStream, mut handshake: Handshake) -> End {
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut received = Vec::new();
        loop {
            let mut out = Vec::new();
            let progress = handshake.advance(&mut received, &mut out).expect("handshake goes on");
            socket.write_all(&out).expect("is sent");
            if progress == Progress::Ready {
                break;
            }
            let mut more = [0; 4096];
            let length = socket.read(&mut more).expect("is received");
            assert!(length > 0, "openssl closed during the handshake");
            received.extend_from_slice(&more[..length]);
        }
        let (session, plain) = handshake.finish().expect("the keys");
        assert!(plain.is_empty());
        End { socket, session, received }
    }

    /// Opens until there is data or news; answers wishes for new keys.
    fn receive(&mut self) -> (Vec<u8>, Option<News>) {
        loop {
            let opened = self.session.open(&mut self.received).expect("opens");
            let plain = self.received[opened.plain].to_vec();
            self.received.drain(..opened.consumed);
            if opened.news == Some(News::UpdateWanted) {
                let mut out = Vec::new();
                self.session.update(&mut out).expect("TLS 1.3 can");
                self.socket.write_all(&out).expect("is sent");
            }
            if !plain.is_empty() || opened.news.is_some() {
                return (plain, opened.news);
            }
            let mut more = [0; 4096];
            let length = self.socket.read(&mut more).expect("is received");
            assert!(length > 0, "openssl closed without a close_notify");
            self.received.extend_from_slice(&more[..length]);
        }
    }

    fn expect(&mut self, text: &str) {
        let mut plain = Vec::new();
        while plain.len() < text.len() {
            plain.extend(self.receive().0);
        }
        assert_eq!(String::from_utf8_lossy(&plain), text);
    }

    fn send(&mut self, plain: &[u8]) {
        let mut out = Vec::new();
        self.session.seal_into(plain, &mut out).expect("sealed");
        self.socket.write_all(&out).expect("is sent");
    }

    fn update(&mut self) {
        let mut out = Vec::new();
        self.session.update_with(true, &mut out).expect("TLS 1.3 can");
        self.socket.write_all(&out).expect("is sent");
    }
}

/// Data both ways, key updates both ways where there are any, and bulk.
fn converse(openssl: &mut Openssl, end: &mut End, tls13: bool) {
    openssl.type_line("a line from openssl");
    end.expect("a line from openssl\n");
    end.send(b"a line from weir\n");
    openssl.wait_for("a line from weir");
    if tls13 {
        openssl.type_line("K");
        assert_eq!(end.receive(), (Vec::new(), Some(News::UpdateWanted)));
        openssl.type_line("under a new key");
        end.expect("under a new key\n");
        end.send(b"our new key too\n");
        openssl.wait_for("our new key too");
        end.update();
        end.send(b"asked for another\n");
        openssl.wait_for("asked for another");
        openssl.type_line("which came");
        end.expect("which came\n");
    }
    let bulk: Vec<u8> = pattern(200_000, 1).iter().map(|byte| b'a' + byte % 20).collect();
    for part in bulk.chunks(1_000) {
        end.send(&[part, b"\n"].concat());
    }
    end.send(b"end of bulk\n");
    openssl.wait_for("end of bulk");
}

#[test]
fn openssl_client_and_our_server_understand_each_other() {
    if missing("openssl_client_and_our_server_understand_each_other") {
        return;
    }
    for (version, suite) in SUITES {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let mut args = vec!["s_client", "-connect", &address];
        args.extend(choice(version.version, suite));
        let mut openssl = Openssl::start(&args);
        let (socket, _) = listener.accept().expect("openssl connects");
        let mut end = End::shake(socket, Handshake::server(server_config()).expect("a server"));
        converse(&mut openssl, &mut end, version.version == ProtocolVersion::TLSv1_3);
        openssl.type_line("Q");
        assert_eq!(end.receive(), (Vec::new(), Some(News::CloseNotify)), "openssl closes");
    }
}

/// A certificate in files, gone afterwards.
struct Files(PathBuf);

impl Files {
    fn new() -> Files {
        let folder = std::env::temp_dir().join(format!("weir-tls-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("a certificate");
        fs::write(folder.join("cert.pem"), made.cert.pem()).expect("written");
        fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
        Files(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn openssl_server_and_our_client_understand_each_other() {
    if missing("openssl_server_and_our_client_understand_each_other") {
        return;
    }
    let files = Files::new();
    let (certificate, key) = (files.path("cert.pem"), files.path("key.pem"));
    for (version, suite) in SUITES {
        let mut args = vec!["s_server", "-accept", "127.0.0.1:0", "-cert", &certificate, "-key", &key];
        args.extend(choice(version.version, suite));
        let mut openssl = Openssl::start(&args);
        let address = openssl.wait_for("ACCEPT ").trim_start_matches("ACCEPT ").to_string();
        let socket = TcpStream::connect(&address).expect("openssl listens");
        let client = Handshake::client(client_config(version, suite), name()).expect("a client");
        let mut end = End::shake(socket, client);
        converse(&mut openssl, &mut end, version.version == ProtocolVersion::TLSv1_3);
        let mut out = Vec::new();
        end.session.close_notify(&mut out).expect("sealed");
        end.socket.write_all(&out).expect("is sent");
        assert_eq!(end.receive(), (Vec::new(), Some(News::CloseNotify)), "openssl answers our close");
    }
}
