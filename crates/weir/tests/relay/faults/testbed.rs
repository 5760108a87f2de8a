//! A relay in a namespace, and a second namespace for clients whose link can be cut.
//!
//! ```text
//! relay (lo 127.0.0.1)  10.1.0.1/24 r0 ──veth── c0 10.1.0.2/24  away
//! ```
//!
//! Everything made has a name with this process's number in it and goes away on drop, after a panic too.

use std::io::Write as _;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use weir_io::netns;

use crate::client::Client;
use crate::daemon::Running;
use crate::machine::{missing, run, until};

static NUMBER: AtomicU32 = AtomicU32::new(0);

const PORT: u16 = 3340;

pub struct Testbed {
    pub relay: String,
    pub away: String,
    pub folder: PathBuf,
}

impl Testbed {
    /// `None`, and a line that says so, where namespaces cannot be made.
    pub fn new(test: &str) -> Option<Testbed> {
        if let Some(missing) = missing() {
            writeln!(std::io::stderr(), "SKIP {test}: needs {missing}").expect("stderr is open");
            return None;
        }
        let stem = format!("weirf{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(&stem);
        std::fs::create_dir_all(&folder).expect("a folder");
        let testbed = Testbed { relay: format!("{stem}-r"), away: format!("{stem}-a"), folder };
        let (relay, away) = (&testbed.relay, &testbed.away);
        for ns in [relay, away] {
            run(&format!("ip netns add {ns}"));
            run(&format!("ip -n {ns} link set lo up"));
        }
        run(&format!("ip link add r0 netns {relay} type veth peer name c0 netns {away}"));
        for (ns, device, address) in [(relay, "r0", "10.1.0.1/24"), (away, "c0", "10.1.0.2/24")] {
            run(&format!("ip -n {ns} addr add {address} dev {device}"));
            run(&format!("ip -n {ns} link set {device} up"));
        }
        Some(testbed)
    }

    /// Writes the configuration and starts a relay by way of `through` (a program that starts another).
    pub fn start(&self, more: &str, through: &[&str]) -> RunningRelay {
        self.start_with(more, through, |_| ())
    }

    /// The same, with something said about the process.
    pub fn start_with(&self, more: &str, through: &[&str], say: impl FnOnce(&mut Command)) -> RunningRelay {
        self.start_of(&format!("tls = \"off\"\n{more}"), through, say)
    }

    /// A relay with TLS of its own, by a certificate that nobody signed.
    pub fn start_secured(&self, more: &str) -> RunningRelay {
        self.start_of(&format!("tls = \"user\"\ncertificates = \"self-signed\"\n{more}"), &[], |_| ())
    }

    fn start_of(&self, more: &str, through: &[&str], say: impl FnOnce(&mut Command)) -> RunningRelay {
        let file = self.folder.join("relay.toml");
        let text = format!("[relay]\nlisten = \":{PORT}\"\nkey = \"relay.key\"\n{more}");
        std::fs::write(&file, text).expect("a file");
        let socket = self.folder.join("control.sock");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.relay]).args(through);
        command.arg(env!("CARGO_BIN_EXE_weir")).arg("--socket").arg(&socket).arg("run").arg(&file);
        say(&mut command);
        let mut relay = RunningRelay(Running::start(&mut command, socket));
        until("the relay is ready", || {
            let ended = relay.0.child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "the relay ended:\n{}", relay.log());
            relay.log().contains("is ready").then_some(())
        });
        relay
    }

    /// A client beside the relay. Those of one number have the same key.
    pub fn client(&self, number: u64) -> Client {
        self.connect(&self.relay, "127.0.0.1", number)
    }

    /// A client whose link can be cut.
    pub fn client_away(&self, number: u64) -> Client {
        self.connect(&self.away, "10.1.0.1", number)
    }

    fn connect(&self, ns: &str, ip: &str, number: u64) -> Client {
        let at = Testbed::at(ip);
        let client = until("a client is let in", || {
            netns::inside(ns, || Client::connect(at, number)).expect("the namespace is there").ok()
        });
        client.listen_long();
        client
    }

    /// TCP connections of the relay's namespace, whoever's they are, but for those that are over at both ends (TIME_WAIT).
    pub fn connections(&self) -> usize {
        let of = |table: &str| {
            let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).expect("a table");
            let states =
                text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3).map(str::to_owned));
            states.filter(|state| !["06", "0A"].contains(&state.as_str())).count()
        };
        netns::inside(&self.relay, || of("tcp") + of("tcp6")).expect("the namespace is there")
    }

    pub fn at(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().expect("an address"), PORT)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for ns in [&self.relay, &self.away] {
            // What was never made cannot be removed; nothing else can be done about a failure here.
            let _ = Command::new("ip").args(["netns", "del", ns]).stderr(Stdio::null()).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running relay, killed on drop.
pub struct RunningRelay(Running);

impl Deref for RunningRelay {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.0
    }
}

impl RunningRelay {
    pub fn kill(&mut self) {
        self.0.child.kill().expect("it runs");
        self.0.child.wait().expect("a child of ours");
    }

    pub fn signal(&self, name: &str) {
        run(&format!("kill -{name} {}", self.0.child.id()));
    }

    /// The sum of a metric over all its labels that contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> i64 {
        self.values(name, label).iter().sum()
    }

    pub fn until_metric(&self, name: &str, label: &str, wanted: i64) {
        until(&format!("{name} with `{label}` is {wanted}"), || {
            (self.metric(name, label) == wanted).then_some(())
        });
    }

    /// Bytes of the process in memory.
    pub fn resident(&self) -> usize {
        weir_testing::process::resident(&self.0.child.id().to_string()) as usize
    }

    /// Descriptors the process has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0.child.id())).expect("it runs").count()
    }

    /// Every packet ended somewhere.
    pub fn assert_conserved(&self) {
        until("the books balance", || (self.metric("weir_relay_balance_packets", "") == 0).then_some(()));
        assert!(self.metric("weir_relay_packets_received_total", "") > 0, "no packet was counted");
    }
}

impl Drop for RunningRelay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the relay said:\n{}", self.log());
        }
    }
}
