//! One relay takes over from another while clients come: nobody is refused, nobody is lost who is told to come back.
//!
//! ```text
//! test's listener ─► LISTEN_FDS ─► first relay ─► SCM_RIGHTS ─► second relay
//!      (closed here)                    └ Restarting to its clients, then ends
//! ```

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use crate::client::Client;
use crate::daemon::Running;
use crate::machine::until;
use weir_core::relay::Kind;
use weir_core::relay::stun;

/// Where relays follow each other, and their configuration.
struct Handover {
    folder: PathBuf,
    /// Held until the first relay has them.
    listener: Option<TcpListener>,
    at: SocketAddr,
    stun: SocketAddr,
}

impl Handover {
    fn new() -> Handover {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-handover-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let stun = UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        let place = Handover { folder, listener: Some(listener), at, stun };
        place.write("");
        place
    }

    fn write(&self, more: &str) {
        let text = format!(
            "[relay]\nlisten = \"{}\"\nstun = \"{}\"\ntls = \"off\"\nio = \"epoll\"\nkey = \"relay.key\"\n{more}\n",
            self.at, self.stun
        );
        std::fs::write(self.folder.join("relay.toml"), text).expect("a file");
    }

    fn command(&self, through: &[&str], more: &[&str]) -> Command {
        let weir = env!("CARGO_BIN_EXE_weir");
        let mut words = through.iter().copied().chain([weir]);
        let mut command = Command::new(words.next().expect("weir at least"));
        command.args(words).arg("--socket").arg(self.folder.join("control")).arg("run").args(more);
        command.arg(self.folder.join("relay.toml"));
        command
    }

    fn run(&self, mut command: Command) -> Running {
        let running = Running::start(&mut command, self.folder.join("control"));
        until("the relay is ready", || {
            assert!(!running.log().contains("cannot"), "{}", running.log());
            running.log().contains("is ready").then_some(())
        });
        running
    }

    /// Starts it with the listener on descriptor 3, as a service manager passes it.
    fn passed(&self, listener: TcpListener) -> Running {
        let pass = "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\"";
        let mut command = self.command(&["sh", "-c", pass, "sh"], &[]);
        command.stdin(Stdio::from(OwnedFd::from(listener)));
        self.run(command)
    }

    fn first(&mut self) -> Running {
        let listener = self.listener.take().expect("once");
        self.passed(listener)
    }

    /// Takes over from whoever runs.
    fn next(&self) -> Running {
        self.run(self.command(&[], &["--take-over"]))
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn ended(relay: &mut Running) {
    until("the relay before has ended", || relay.child.try_wait().expect("a child of ours"));
}

#[test]
fn clients_that_keep_coming_while_relays_follow_each_other_are_all_let_in() {
    let mut place = Handover::new();
    let mut relay = place.first();
    let (stop, came) = (AtomicBool::new(false), AtomicU64::new(0));
    let at = place.at;
    thread::scope(|scope| {
        for thread in 0..3 {
            let (stop, came) = (&stop, &came);
            scope.spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    let number = 1000 * thread + came.fetch_add(1, Ordering::AcqRel);
                    let client = Client::connect(at, number);
                    client.unwrap_or_else(|e| panic!("client {number} was refused: {e}"));
                }
            });
        }
        let some_came = || {
            let before = came.load(Ordering::Acquire);
            until("clients come", || (came.load(Ordering::Acquire) >= before + 12).then_some(()));
        };
        for _ in 0..3 {
            some_came();
            let next = place.next();
            ended(&mut relay);
            relay = next;
        }
        some_came();
        stop.store(true, Ordering::Release);
    });
}

#[test]
fn clients_are_told_come_back_and_reach_each_other_by_the_next_relay() {
    let mut place = Handover::new();
    let mut relay = place.first();
    let mut pair = [1, 2].map(|n| Client::connect(place.at, n).expect("in"));
    let server = pair[0].server;
    let [one, two] = &mut pair;
    one.reaches(two, b"by the first");
    let next = place.next();
    let mut again = pair.map(|mut client| {
        while client.frame().expect("Restarting comes before the end").0 != Kind::Restarting as u8 {}
        client
    });
    // The one that leaves last is heard as long as it stays.
    let mut pair = [1, 2].map(|n| Client::connect(place.at, n).expect("in"));
    let [one, two] = &mut pair;
    assert_eq!(one.server, server, "the relay has another key");
    one.reaches(two, b"by the next");
    two.reaches(one, b"and back");
    ended(&mut relay);
    for client in &mut again {
        assert!(client.packet().is_err(), "the relay that ended speaks");
    }
    assert!(relay.log().contains("(0 unaccounted)"), "{}", relay.log());
    // The control socket is the next one's.
    let shown = next.told(&["show", "relay"]);
    assert!(shown.contains("2 connected"), "{shown}");
    next.told(&["drain"]);
}

#[test]
fn a_successor_that_fails_leaves_the_relay_serving() {
    let mut place = Handover::new();
    let relay = place.first();
    let [mut one, mut two] = [1, 2].map(|n| Client::connect(place.at, n).expect("in"));
    for (wrong, why) in [("listne = 3", "is not a key here"), ("http = \"192.0.2.1:80\"", "cannot listen")] {
        place.write(wrong);
        let output = place.command(&[], &["--take-over"]).output().expect("weir starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
        one.reaches(&mut two, b"as before");
    }
    until("it is said", || relay.log().contains("this one serves on").then_some(()));
    let mut three = Client::connect(place.at, 3).expect("in");
    three.reaches(&mut one, b"new");
    relay.told(&["show", "relay"]);
    place.write("");
    drop(place.next());
}

#[test]
fn a_question_for_stun_is_answered_by_the_next_relay() {
    let mut place = Handover::new();
    let mut relay = place.first();
    let next = place.next();
    ended(&mut relay);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(crate::machine::PATIENCE)).expect("a timeout");
    let transaction = [5; 12];
    let mut question = Vec::new();
    stun::ask(&transaction, &mut question);
    socket.send_to(&question, place.stun).expect("sent");
    let mut answer = [0; 200];
    let length = socket.recv(&mut answer).expect("answered");
    assert_eq!(stun::answer(&transaction, &answer[..length]), socket.local_addr().ok());
    drop(next);
}

#[test]
fn connections_made_while_no_relay_runs_wait_in_the_socket_a_service_manager_keeps() {
    let mut place = Handover::new();
    let kept = place.listener.as_ref().expect("held").try_clone().expect("a descriptor");
    let mut relay = place.first();
    weir_io::process::terminate(relay.child.id()).expect("it runs");
    ended(&mut relay);
    let mut early = TcpStream::connect(place.at).expect("the kernel takes it");
    early.set_read_timeout(Some(crate::machine::PATIENCE)).expect("a timeout");
    early
        .write_all(b"GET /derp/probe HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .expect("the kernel takes it");
    let _relay = place.passed(kept);
    let mut answer = String::new();
    early.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn a_relay_started_with_derpers_flags_is_followed_by_one_with_others() {
    let mut place = Handover::new();
    drop(place.listener.take());
    let derper = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--socket").arg(place.folder.join("control")).args(["derper", "-stun=false", "-a"]);
        command.arg(place.at.to_string()).arg("-c").arg(place.folder.join("derper.key")).args(more);
        command
    };
    let mut relay = place.run(derper(&[]));
    let mut before = Client::connect(place.at, 1).expect("in");
    let next = place.run(derper(&["-take-over", "-home", "blank"]));
    while before.frame().expect("Restarting comes before the end").0 != Kind::Restarting as u8 {}
    ended(&mut relay);
    let after = Client::connect(place.at, 1).expect("in");
    assert_eq!(after.server, before.server, "the relay has another key");
    assert!(next.told(&["show", "relay"]).contains("1 connected"));
}

#[test]
fn nobody_to_take_over_from_is_no_obstacle() {
    let mut place = Handover::new();
    drop(place.listener.take());
    let relay = place.next();
    assert!(Client::connect(place.at, 1).is_ok(), "{}", relay.log());
}

#[test]
fn a_socket_of_the_service_manager_that_the_file_does_not_name_is_warned_of() {
    let mut place = Handover::new();
    drop(place.listener.take());
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = other.local_addr().expect("bound");
    let relay = place.passed(other);
    until("the log says so", || {
        relay.log().contains(&format!("TCP {at} was opened by the service manager")).then_some(())
    });
}
