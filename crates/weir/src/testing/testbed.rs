//! Three network namespaces, client – router – server, and a `weir` between them.
//!
//! ```text
//! client  c0 ──veth── r0  router  r1 ──veth── s0  server
//! 10.1.0.2/24   10.1.0.1/24   10.2.0.1/24   10.2.0.2/24
//! fd01::2/64    fd01::1/64    fd02::1/64    fd02::2/64
//! ```
//!
//! Everything made has a name with this process's number in it and goes away on drop, after a panic too.

use std::io::Write as _;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_core::device::Device;
use weir_core::id::Mac;
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_io::af_packet::AfPacket;
use weir_io::{netlink, netns, offload};

use super::daemon::{Orphan, Running, program};
pub use super::machine::{PATIENCE, ip, run, until};
use super::machine::{missing, set};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Namespaces, interfaces and a folder for files.
pub struct Testbed {
    pub client: String,
    pub router: String,
    pub server: String,
    pub folder: PathBuf,
}

impl Testbed {
    /// `None`, and a line that says so, where namespaces cannot be made.
    pub fn new(test: &str) -> Option<Testbed> {
        Testbed::with_queues(test, 1)
    }

    pub fn with_queues(test: &str, queues: u32) -> Option<Testbed> {
        if let Some(missing) = missing() {
            writeln!(std::io::stderr(), "SKIP {test}: needs {missing}").expect("stderr is open");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let stem = format!("weir{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(&stem);
        std::fs::create_dir_all(&folder).expect("a folder");
        let testbed = Testbed {
            client: format!("{stem}-c"),
            router: format!("{stem}-r"),
            server: format!("{stem}-s"),
            folder,
        };
        for ns in [&testbed.client, &testbed.router, &testbed.server] {
            run(&format!("ip netns add {ns}"));
            netns::inside(ns, || {
                for family in ["ipv4", "ipv6"] {
                    for which in ["all", "default"] {
                        set(&format!("/proc/sys/net/{family}/conf/{which}/forwarding"), "0");
                    }
                }
                set("/proc/sys/net/ipv6/conf/all/disable_ipv6", "0");
                set("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
            })
            .expect("the namespace is there");
            run(&format!("ip -n {ns} link set lo up"));
        }
        testbed.connect_client(queues);
        testbed.connect_server(queues);
        Some(testbed)
    }

    pub fn connect_client(&self, queues: u32) {
        self.connect(
            &self.client,
            "c0",
            "r0",
            ["10.1.0.2/24", "fd01::2/64"],
            ["10.1.0.1/24", "fd01::1/64"],
            queues,
        );
        run(&format!("ip -n {} route replace default via 10.1.0.1", self.client));
        run(&format!("ip -n {} route replace default via fd01::1", self.client));
    }

    pub fn connect_server(&self, queues: u32) {
        self.connect(
            &self.server,
            "s0",
            "r1",
            ["10.2.0.2/24", "fd02::2/64"],
            ["10.2.0.1/24", "fd02::1/64"],
            queues,
        );
        run(&format!("ip -n {} route replace default via 10.2.0.1", self.server));
        run(&format!("ip -n {} route replace default via fd02::1", self.server));
    }

    pub fn connect(
        &self,
        host: &str,
        near: &str,
        far: &str,
        host_addresses: [&str; 2],
        ours: [&str; 2],
        queues: u32,
    ) {
        let router = &self.router;
        let q = format!("numrxqueues {queues} numtxqueues {queues}");
        run(&format!("ip link add {near} netns {host} {q} type veth peer name {far} netns {router} {q}"));
        for (ns, device, addresses) in [(host, near, host_addresses), (router.as_str(), far, ours)] {
            for address in addresses {
                run(&format!("ip -n {ns} addr add {address} dev {device}"));
            }
            run(&format!("ip -n {ns} link set {device} up"));
        }
        // A veth sends frames on before anyone finished their checksums; no card does.
        netns::inside(host, || {
            for offload in offload::UNFINISHED {
                // A router that has taken up the other end already has switched some off for good.
                let set = offload::set(near, offload, false);
                assert!(!offload::is_on(near, offload).expect("veth knows this offload"), "{set:?}");
            }
        })
        .expect("the namespace is there");
    }

    /// A configuration of both ports.
    pub fn config(&self, kind: &str, more: &str) -> String {
        format!(
            "[[port]]\nname = \"left\"\ndevice = \"r0\"\nkind = \"{kind}\"\naddresses = \"kernel\"\n\
             [[port]]\nname = \"right\"\ndevice = \"r1\"\nkind = \"{kind}\"\naddresses = \"kernel\"\n{more}"
        )
    }

    /// Writes a file into the testbed's folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// Runs `work` in the client's namespace.
    pub fn in_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::inside(&self.client, work).expect("the namespace is there")
    }

    pub fn in_server<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::inside(&self.server, work).expect("the namespace is there")
    }

    /// The MAC address of an interface.
    pub fn mac(&self, ns: &str, device: &str) -> Mac {
        let link = netns::inside(ns, || netlink::link(device)).expect("the namespace is there");
        link.expect("netlink answers").expect("the device is there").mac
    }

    /// Starts a router and waits until it is ready.
    pub fn start(&self, config: &str) -> Router {
        let router = self.spawn(config, &[]);
        router.wait_for("is ready");
        router
    }

    /// Starts a router in place of the one that runs and waits until it is ready.
    pub fn take_over(&self, config: &str) -> Router {
        let router = self.spawn_with(config, &[], &["--take-over"]);
        router.wait_for("is ready");
        router
    }

    /// Starts a router, by way of `through` (a program that starts another).
    pub fn spawn(&self, config: &str, through: &[&str]) -> Router {
        self.spawn_with(config, through, &[])
    }

    /// The same with more arguments of `weir run`.
    pub fn spawn_with(&self, config: &str, through: &[&str], args: &[&str]) -> Router {
        let path = self.file("router.toml", config);
        let socket = self.folder.join("control.sock");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.router]);
        command.args(through);
        command.arg(program()).arg("--socket").arg(&socket).arg("run").arg(&path).args(args);
        command.env("STATE_DIRECTORY", self.folder.join("state"));
        Router { running: Running::start(&mut command, socket), config: path }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for ns in [&self.client, &self.router, &self.server] {
            // What was never made cannot be removed; nothing else can be done about a failure here.
            let _ = Command::new("ip").args(["netns", "del", ns]).stderr(Stdio::null()).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running `weir`.
pub struct Router {
    running: Running,
    pub config: PathBuf,
}

impl Deref for Router {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Router {
    /// Waits until the log says this.
    pub fn wait_for(&self, text: &str) {
        until(&format!("the log says `{text}`:\n{}", self.log()), || self.log().contains(text).then_some(()));
    }

    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
    }

    /// Has the program that is installed take over, and waits until it is ready. It logs where this router does.
    pub fn succeed(&mut self) -> Orphan {
        self.signal("USR2");
        assert!(self.wait(), "{}", self.log());
        let log = self.log();
        let pid = log.lines().rev().find_map(|line| line.split_once(" is started to take over"));
        let pid = pid.and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
        let successor = Orphan(pid.unwrap_or_else(|| panic!("no process is named: {log}")));
        self.wait_for(&format!("took over from process {}", self.pid()));
        until("it is ready", || (self.log().matches(" is ready").count() > 1).then_some(()));
        successor
    }

    pub fn pid(&self) -> u32 {
        self.running.child.id()
    }

    /// Waits for its end: whether it was a good one.
    pub fn wait(&mut self) -> bool {
        let mut ended = None;
        until("the router ends", || {
            ended = self.running.child.try_wait().expect("a child of ours");
            ended.map(|_| ())
        });
        // The log's thread reads to the end of the pipe.
        thread::sleep(Duration::from_millis(50));
        ended.is_some_and(|e| e.success())
    }

    pub fn kill(&mut self) {
        self.running.child.kill().expect("it runs");
        self.running.child.wait().expect("a child of ours");
    }

    pub fn json(&self, topic: &str) -> serde_json::Value {
        serde_json::from_str(&self.told(&["show", topic, "--json"])).expect("JSON")
    }

    /// The sum of a metric over all its labels that contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> i64 {
        let values = self.values(name, label);
        assert!(!values.is_empty(), "no metric {name} with {label}");
        values.iter().sum()
    }

    /// Waits until a metric has reached `least`: counters are some milliseconds old.
    pub fn wait_for_metric(&self, name: &str, label: &str, least: i64) {
        until(&format!("{name} with `{label}` reaches {least}\n{}", self.metrics()), || {
            (self.metric(name, label) >= least).then_some(())
        });
    }

    /// Every frame is accounted for, at one moment without traffic.
    pub fn assert_conserved(&self) {
        until("workers rest and their books balance", || {
            let told = |name: &str| self.metric(name, "");
            let by_reason = told("weir_drops_total") == told("weir_frames_dropped_total");
            (self.balances() && by_reason).then_some(())
        });
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the router said:\n{}", self.log());
        }
    }
}

/// A packet socket on a host's interface: sends whole frames, hears what comes.
pub struct Wire {
    port: AfPacket<Box<[u8]>>,
    pool: Pool<Box<[u8]>>,
    batch: Batch<Box<[u8]>>,
}

impl Wire {
    pub fn open(ns: &str, device: &str) -> Wire {
        let port = netns::inside(ns, || AfPacket::open(device, DeviceId(0), None));
        let port = port.expect("the namespace is there").expect("a packet socket");
        Wire { port, pool: Pool::boxed(256), batch: Batch::new() }
    }

    pub fn send(&mut self, frame: &[u8]) {
        let buffer = self.pool.take().expect("a buffer");
        let mut frames = vec![Frame::from_bytes(buffer, frame, DeviceId(0)).expect("it fits")];
        assert_eq!(self.port.tx(&mut self.pool, &mut frames), 1, "the interface takes a frame");
    }

    /// Frames that came since the last call.
    pub fn heard(&mut self) -> Vec<Vec<u8>> {
        self.port.rx(&mut self.pool, &mut self.batch);
        let mut heard = Vec::new();
        for frame in self.batch.drain() {
            heard.push(frame.data().to_vec());
            self.pool.put(frame.into_buffer());
        }
        heard
    }

    /// Sends the frame, again every second, until one comes back that is `wanted`.
    pub fn exchange(&mut self, what: &str, frame: &[u8], wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut sent: Option<Instant> = None;
        until(what, || {
            if sent.is_none_or(|s| s.elapsed() > Duration::from_secs(1)) {
                self.send(frame);
                sent = Some(Instant::now());
            }
            self.heard().into_iter().find(|f| wanted(f))
        })
    }
}
