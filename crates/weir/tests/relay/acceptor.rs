//! The relay as a program: what a stranger, a client and an operator meet, over sockets.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::daemon::Running;
use rustix::net::{AddressFamily, SocketType};
use weir_core::relay::frame::{Frame, HEADER, Key, head};
use weir_core::relay::handshake::{ClientInfo, Secret, ServerInfo};

/// Longer than any machine keeps anything waiting.
const LONG: Duration = Duration::from_secs(60);

/// A relay of a configuration, in a folder of its own.
struct TestRelay {
    running: Running,
    address: SocketAddr,
    folder: PathBuf,
}

impl TestRelay {
    fn start(more: &str) -> TestRelay {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("weir-relay-acceptor-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("relay.toml");
        write(&file, more);
        let socket = folder.join("socket");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--socket").arg(&socket).arg("run").arg(&file);
        let running = Running::start(&mut command, socket);
        let address = until("an address", || {
            let log = running.log();
            let at = log.split("DERP on ").nth(1).filter(|_| log.contains("is ready"))?;
            at.split_whitespace().next()?.parse().ok()
        });
        TestRelay { running, address, folder }
    }

    /// Another configuration, read again; what is said of it.
    fn reload(&self, more: &str) -> String {
        write(&self.folder.join("relay.toml"), more);
        let file = self.folder.join("relay.toml");
        self.running.told(&["apply", &file.display().to_string()])
    }
}

impl Drop for TestRelay {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn write(file: &std::path::Path, more: &str) {
    let text = format!("[relay]\nlisten = \"127.0.0.1:0\"\ntls = \"off\"\nio = \"epoll\"\n{more}\n");
    std::fs::write(file, text).expect("written");
}

fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        match ask() {
            Some(found) => return found,
            None if Instant::now() > end => panic!("{what} did not come"),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// A client that is in.
struct Client {
    stream: TcpStream,
    key: Key,
}

impl Client {
    /// Connected and greeted, or let go.
    fn join(relay: &TestRelay, number: u8) -> Option<Client> {
        let secret = Secret::new([number; 32]);
        let mut stream = TcpStream::connect(relay.address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("set");
        stream.write_all(b"GET /derp HTTP/1.1\r\nHost: h\r\nUpgrade: DERP\r\n\r\n").expect("asked");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a head");
            answer.push(byte[0]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
        let mut client = Client { stream, key: secret.public() };
        let (code, payload) = client.frame().expect("a first frame");
        let Ok(Frame::ServerKey(server)) = Frame::parse(code, &payload) else { panic!("no ServerKey") };
        let mut said = Vec::new();
        ClientInfo { version: 2, ..ClientInfo::default() }.seal(&secret, &server, [9; 24], &mut said);
        client.stream.write_all(&said).expect("said");
        let (code, payload) = client.frame()?;
        let frame = Frame::parse(code, &payload).expect("well formed");
        ServerInfo::open(&secret, &server, &frame).expect("for us");
        Some(client)
    }

    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut bytes = [0; HEADER];
        match self.stream.read_exact(&mut bytes) {
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return None;
            }
            read => read.expect("a header"),
        }
        let (code, length) = head(&bytes).expect("a header");
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).expect("a payload");
        Some((code, payload))
    }

    fn send(&mut self, to: Key, data: &[u8]) {
        let mut bytes = Vec::new();
        Frame::SendPacket(to, data).write(&mut bytes);
        self.stream.write_all(&bytes).expect("sent");
    }

    /// The next packet's source and data.
    fn packet(&mut self) -> (Key, Vec<u8>) {
        loop {
            let (code, payload) = self.frame().expect("a frame");
            if let Ok(Frame::RecvPacket(from, data)) = Frame::parse(code, &payload) {
                return (from, data.to_vec());
            }
        }
    }
}

#[test]
fn two_clients_exchange_packets_and_are_shown() {
    let relay = TestRelay::start("");
    let (mut a, mut b) = (Client::join(&relay, 1).expect("in"), Client::join(&relay, 2).expect("in"));
    a.send(b.key, b"ping");
    assert_eq!(b.packet(), (a.key, b"ping".to_vec()));
    b.send(a.key, b"pong");
    assert_eq!(a.packet(), (b.key, b"pong".to_vec()));
    let shown = relay.running.told(&["show", "peers"]);
    assert!(shown.contains(&a.key.to_string()) && shown.contains(&b.key.to_string()), "{shown}");
    let shown = relay.running.told(&["show", "relay"]);
    assert!(shown.contains("2 connected, 2 accepted, 2 became clients"), "{shown}");
    assert_eq!(relay.running.values("weir_relay_balance_packets", ""), [0]);
}

#[test]
fn keys_of_a_daemon_are_in_no_core_dump_and_no_swap() {
    if !rustix::process::geteuid().is_root() {
        let name = "keys_of_a_daemon_are_in_no_core_dump_and_no_swap";
        writeln!(std::io::stderr(), "SKIP {name}: needs root").expect("stderr is open");
        return;
    }
    let relay = TestRelay::start("");
    let status = |process: u32| std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let locked = |process| {
        let text = status(process);
        let line = text.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    assert!(locked(relay.running.child.id()) > 1024, "all that root's process uses");
    // What a process that dumps has in /proc is its user's.
    let nobody = 65534;
    let folder = relay.folder.join("nobody");
    std::fs::create_dir(&folder).expect("a folder");
    std::os::unix::fs::chown(&folder, Some(nobody), Some(nobody)).expect("given away");
    let program = relay.folder.join("weir");
    weir_testing::process::copy(env!("CARGO_BIN_EXE_weir"), &program);
    let mut command = Command::new(&program);
    let socket = folder.join("socket");
    command.arg("--socket").arg(&socket).args(["relay", "--dev", "--listen", "127.0.0.1:0"]);
    std::os::unix::process::CommandExt::uid(&mut command, nobody);
    command.current_dir(&folder).env("HOME", &folder).env("XDG_STATE_HOME", &folder);
    let other = Running::start(&mut command, socket);
    until("a relay of nobody's", || other.log().contains("control socket").then_some(()));
    let owner = std::fs::metadata(format!("/proc/{}/status", other.child.id())).expect("it runs");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 0, "{}", other.log());
}

#[test]
fn a_key_that_was_proved_is_known_when_it_comes_back() {
    let relay = TestRelay::start("");
    let known = || relay.running.values("weir_relay_known_keys_total", "");
    let (first, _other) = (Client::join(&relay, 1).expect("in"), Client::join(&relay, 2).expect("in"));
    assert_eq!(known(), [0]);
    drop(first);
    let mut again = Client::join(&relay, 1).expect("in");
    again.send(again.key, b"myself");
    assert_eq!(again.packet(), (again.key, b"myself".to_vec()));
    assert_eq!(known(), [1]);
}

#[test]
fn strangers_who_say_nothing_make_room_for_clients() {
    let relay = TestRelay::start("[relay.limits]\nhandshakes = 4\n");
    let silent: Vec<_> = (0..32).map(|_| TcpStream::connect(relay.address).expect("it listens")).collect();
    until("evictions", || {
        let gone = relay.running.values("weir_relay_ended_total", "handshake_limit");
        (gone == [28]).then_some(())
    });
    let mut a = Client::join(&relay, 1).expect("in among the silent");
    a.send(a.key, b"to myself");
    assert_eq!(a.packet().1, b"to myself");
    drop(silent);
}

#[test]
fn who_is_not_allowed_is_kept_out_until_the_list_says_otherwise() {
    let allowed = |n: u8| format!("allow = [\"{}\"]", Secret::new([n; 32]).public());
    let relay = TestRelay::start(&allowed(1));
    assert!(Client::join(&relay, 1).is_some());
    assert!(Client::join(&relay, 2).is_none(), "not on the list");
    relay.reload(&allowed(2));
    assert!(Client::join(&relay, 2).is_some(), "on the list now");
    assert_eq!(relay.running.values("weir_relay_verifier_total", "denied"), [1]);
}

/// Connected from an address of this host.
fn from(source: Ipv4Addr, relay: &TestRelay) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddr::from((source, 0))).expect("loopback has them all");
    rustix::net::connect(&socket, &relay.address).expect("it listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG)).expect("set");
    stream
}

const A: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const B: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

#[test]
fn a_source_in_a_hurry_is_refused_and_nobody_else_waits() {
    // All of what everybody has would be gone for ten minutes.
    let limits = "accepts_per_second = 1\naccept_burst = 100\naccept_burst_per_source = 20\n";
    let relay = TestRelay::start(&format!("[relay.limits]\n{limits}"));
    let hurried: Vec<_> = (0..700).map(|_| from(A, &relay)).collect();
    let mut page = from(B, &relay);
    page.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    page.write_all(b"GET /derp/probe HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").expect("asked");
    let mut answer = String::new();
    page.read_to_string(&mut answer).expect("an answer while the other is refused");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let refused = relay.running.values("weir_relay_ended_total", "\"source_rate");
    // It may have earned some while it came.
    assert!(matches!(refused[..], [600..=680]), "{refused:?}");
    drop(hurried);
}

/// The beginning of a ClientInfo that would have `length` bytes, on its way from `source`.
fn half_said(relay: &TestRelay, source: Ipv4Addr, length: u32) -> TcpStream {
    let mut stream = from(source, relay);
    let head = b"GET /derp HTTP/1.1\r\nHost: h\r\nUpgrade: DERP\r\nDerp-Fast-Start: 1\r\n\r\n";
    let mut said = [head.as_slice(), &[2], &length.to_be_bytes()].concat();
    said.resize(said.len() + length as usize - 1, 7);
    // One that is let go in the middle has heard enough.
    let _ = stream.write_all(&said);
    stream
}

#[test]
fn half_a_client_info_costs_its_source_and_all_no_more_than_they_may_hold() {
    let budget = 4 << 20;
    let relay = TestRelay::start(&format!(
        "[relay.limits]\nhandshake_bytes = {budget}\nhandshake_bytes_per_source = 1048576\n"
    ));
    let held = || relay.running.values("weir_relay_handshake_bytes", "")[0];
    let ended = || relay.running.values("weir_relay_ended_total", "\"handshake_bytes")[0];
    let mut all: Vec<_> = (0..12).map(|_| half_said(&relay, A, 200 << 10)).collect();
    until("refusals", || (ended() >= 8).then_some(()));
    assert!((200 << 10..=1 << 20).contains(&held()), "{} bytes of one source", held());
    for other in 3..40 {
        all.extend((0..4).map(|_| half_said(&relay, Ipv4Addr::new(127, 0, 1, other), 200 << 10)));
    }
    until("refusals of all", || (ended() >= 8 + 37 * 4 - 20).then_some(()));
    assert!((1 << 20..=budget).contains(&held()), "{} bytes of all", held());
    // Who says who it is as clients do needs nothing of it.
    let mut client = Client::join(&relay, 1).expect("in among them");
    client.send(client.key, b"to myself");
    assert_eq!(client.packet().1, b"to myself");
    drop(all);
    until("all is given back", || (held() == 0).then_some(()));
}

/// What a client is told that is not let in before it has said who it is.
fn refusal(relay: &TestRelay) -> String {
    let mut stream = TcpStream::connect(relay.address).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("set");
    stream.write_all(b"GET /derp HTTP/1.1\r\nHost: h\r\nUpgrade: DERP\r\n\r\n").expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer and an end");
    answer
}

#[test]
fn a_source_has_so_many_clients_and_no_more_until_one_leaves_or_the_limit_is_raised() {
    let limit = |n: u32| format!("[relay.limits]\nclients_per_source = {n}\n");
    let relay = TestRelay::start(&limit(2));
    let (first, _second) = (Client::join(&relay, 1).expect("in"), Client::join(&relay, 2).expect("in"));
    let answer = refusal(&relay);
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("of one address"), "{answer}");
    // Counted when the connection is closed, which the client sees a moment before.
    until("a refusal", || {
        (relay.running.values("weir_relay_ended_total", "source_client_limit") == [1]).then_some(())
    });
    drop(first);
    until("one less", || (relay.running.values("weir_relay_client_sources", "") == [1]).then_some(()));
    until("one has left", || {
        (relay.running.values("weir_relay_connections", "").iter().sum::<i64>() == 1).then_some(())
    });
    let _third = Client::join(&relay, 3).expect("there is room");
    refusal(&relay);
    relay.reload(&limit(3));
    assert!(Client::join(&relay, 4).is_some(), "the limit is a higher one");
}

#[test]
fn a_file_read_again_changes_limits_and_queues_and_says_what_needs_a_restart() {
    let relay = TestRelay::start("");
    let said = relay.reload("buffers = 64\n[relay.limits]\nqueue_bytes = 200000\nhandshakes = 5\n");
    assert!(said.contains("~ limits") && said.contains("~ queues"), "{said}");
    assert!(said.contains("# buffers is read at the start only"), "{said}");
    let said = relay
        .reload("buffers = 64\n[relay.limits]\nqueue_bytes = 200000\nhandshakes = 5\nclients = 2000000\n");
    assert!(said.contains("# clients above those of the start is read at the start only"), "{said}");
    let mut client = Client::join(&relay, 1).expect("in");
    client.send(client.key, b"to myself");
    assert_eq!(client.packet().1, b"to myself");
}

#[test]
fn a_dry_run_prints_what_an_apply_would_do_and_does_nothing() {
    let relay = TestRelay::start("");
    let file = relay.folder.join("wanted.toml");
    let wanted = "key = \"another.key\"\nhome = \"blank\"\n[relay.limits]\nqueue_bytes = 200000\n";
    write(&file, wanted);
    let file = file.display().to_string();
    let said = relay.running.told(&["apply", "--dry-run", &file]);
    let expected = "~ queues: 200000 bytes, 4096 frames\n~ home\n# key is read at the start only\n\
                    2 changes to make; nothing was done\n";
    assert_eq!(said, expected);
    assert_eq!(relay.running.told(&["apply", "--dry-run", &file]), said, "it has changed nothing");
    let applied = relay.running.told(&["apply", &file]);
    assert!(applied.ends_with("# key is read at the start only\n2 changes applied\n"), "{applied}");
    let again = relay.running.told(&["apply", "--dry-run", &file]);
    assert_eq!(again, "# key is read at the start only\nnothing to change\n");
    assert!(!relay.folder.join("another.key").exists(), "a key that is not used is not made");
}

#[test]
fn a_full_relay_says_so_and_serves_pages_on() {
    let relay = TestRelay::start("[relay.limits]\nclients = 1\n");
    let mut only = Client::join(&relay, 1).expect("in");
    let answer = refusal(&relay);
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("as many clients as it may"), "{answer}");
    // Counted once the connection is closed.
    until("its end is counted", || {
        (relay.running.values("weir_relay_ended_total", "\"client_limit") == [1]).then_some(())
    });
    let mut page = TcpStream::connect(relay.address).expect("it listens");
    page.write_all(b"GET /derp/probe HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").expect("asked");
    let mut answer = String::new();
    page.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    only.send(only.key, b"to myself");
    assert_eq!(only.packet().1, b"to myself");
}

#[test]
fn a_key_stays_the_same_over_restarts_and_clients_hear_of_the_end() {
    let mut relay = TestRelay::start("");
    let mut client = Client::join(&relay, 1).expect("in");
    let key = |log: &str| log.split("public key ").nth(1).map(|k| k[..72].to_owned()).expect("said");
    let first = key(&relay.running.log());
    weir_io::process::terminate(relay.running.child.id()).expect("it runs");
    let told = std::iter::from_fn(|| client.frame()).any(|(code, _)| code == 0x15);
    assert!(told, "Restarting comes before the end");
    relay.running.child.wait().expect("a child of ours");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("--socket").arg(relay.folder.join("socket")).arg("run").arg(relay.folder.join("relay.toml"));
    let again = Running::start(&mut command, relay.folder.join("socket"));
    until("readiness", || again.log().contains("is ready").then_some(()));
    assert_eq!(key(&again.log()), first);
}

#[test]
fn only_root_and_the_user_it_runs_as_may_ask_whatever_the_sockets_mode_became() {
    let name = "only_root_and_the_user_it_runs_as_may_ask_whatever_the_sockets_mode_became";
    let stranger = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups"]).args(args).output()
    };
    if !stranger(&["true"]).is_ok_and(|o| o.status.success()) {
        writeln!(std::io::stderr(), "SKIP {name}: needs root and setpriv").expect("stderr is open");
        return;
    }
    let relay = TestRelay::start("");
    let socket = relay.folder.join("socket");
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).expect("our file");
    let program = relay.folder.join("weir");
    weir_testing::process::copy(env!("CARGO_BIN_EXE_weir"), &program);
    let text = |path: &Path| path.to_str().expect("a path of ours").to_owned();
    let asked = stranger(&[&text(&program), "--socket", &text(&socket), "show", "relay"]).expect("starts");
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(!asked.status.success() && said.contains("user 65534 may not ask"), "{asked:?}");
    assert!(relay.running.told(&["show", "relay"]).contains("0 connected"));
}

#[test]
fn who_is_told_to_stop_as_soon_as_it_is_ready_stops_in_order() {
    let start = |number: usize| {
        let socket = std::env::temp_dir().join(format!("weir-relay-brief-{}-{number}", std::process::id()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--socket").arg(socket).args(["relay", "--dev", "--listen", "127.0.0.1:0"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        weir_io::process::dies_with_starter(&mut command).spawn().expect("weir starts")
    };
    // All at once, so that their threads wait for a CPU.
    let relays: Vec<_> = (0..24).map(start).collect();
    let ends: Vec<_> = relays.into_iter().map(|relay| thread::spawn(|| stopped_at_once(relay))).collect();
    for end in ends {
        let (status, log) = end.join().expect("it ends");
        assert!(status.success() && log.contains("drained"), "{status}: {log}");
    }
}

/// Told to stop with its first word that it is ready.
fn stopped_at_once(mut relay: Child) -> (ExitStatus, String) {
    let mut log = String::new();
    for line in BufReader::new(relay.stderr.take().expect("piped")).lines().map_while(Result::ok) {
        if line.ends_with("is ready") {
            weir_io::process::terminate(relay.id()).expect("it runs");
        }
        log.push_str(&(line + "\n"));
    }
    (relay.wait().expect("a child of ours"), log)
}
