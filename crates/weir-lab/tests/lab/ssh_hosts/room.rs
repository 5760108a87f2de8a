//! A room with four machines: a lab and three hosts, each a network namespace with a `/tmp` and a `/run` of
//! its own and a real sshd.
//!
//! ```text
//!          10.99.1.1 ─── 10.99.1.2 generator ═════╗
//!   lab    10.99.2.1 ─── 10.99.2.2 device under test    ═ test wires (veth)
//!          10.99.3.1 ─── 10.99.3.2 receiver ══════╝
//! ```
//!
//! Promises: keys are made for the room and thrown away; everything is gone when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use weir_io::interface::Interface;
use weir_io::offload::{self, Offload};
use weir_io::process;
use weir_lab::netns::cpus::missing_privilege;
use weir_lab::netns::namespace::Namespace;
use weir_lab::netns::veth::{self, Port};

const SSHD: &str = "/usr/sbin/sshd";
const OUT: &str = "out";
static ROOMS: AtomicU32 = AtomicU32::new(0);

pub const GENERATOR: usize = 0;
pub const DEVICE: usize = 1;
pub const RECEIVER: usize = 2;

/// Runs a program whose clock is 1000 s ahead.
pub const AHEAD: [&str; 6] = ["unshare", "--time", "--monotonic", "1000", "--fork", "--kill-child"];

pub struct Room {
    sshd: [Option<Child>; 3],
    pub hosts: [Namespace; 3],
    pub lab: Namespace,
    /// Ports of each host, in the direction of the packets.
    pub ports: [Vec<String>; 3],
    pub folder: PathBuf,
}

/// Why there can be no room here.
fn missing() -> Option<String> {
    if !Path::new(SSHD).exists() {
        return Some("sshd is not installed (package openssh-server)".into());
    }
    for tool in ["ssh", "ssh-keygen"] {
        if Command::new(tool).arg("-?").stderr(Stdio::null()).status().is_err() {
            return Some(format!("{tool} is not installed (package openssh-client)"));
        }
    }
    missing_privilege()
}

impl Room {
    /// None, and a line that says why, where there can be none.
    pub fn open(test: &str) -> Option<Room> {
        Room::open_with(test, 1)
    }

    /// The same, with cards of so many queues.
    pub fn open_with(test: &str, queues: u32) -> Option<Room> {
        use std::io::Write;
        if let Some(missing) = missing() {
            writeln!(std::io::stderr(), "SKIP {test}: {missing}").expect("stderr is open");
            return None;
        }
        let n = ROOMS.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("room-{}-{n}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder of our own");
        let lab = Namespace::new("lab").expect("root");
        let hosts = ["generator", "device", "receiver"].map(|name| Namespace::new(name).expect("root"));
        // Addresses are there at once: a host's state does not change by itself.
        for host in &hosts {
            for which in ["all", "default"] {
                host.sysctl(&format!("net/ipv6/conf/{which}/accept_dad"), "0").expect("root");
            }
        }
        let roles = [vec![("gen", 1)], vec![("din", 2), ("dout", 3)], vec![("rcv", 4)]];
        let port = |(role, mac)| Port::named(role, mac).queues(queues);
        let ports = roles.map(|roles| roles.into_iter().map(port).collect::<Vec<_>>());
        veth::lay((&hosts[0], &ports[0][0]), (&hosts[1], &ports[1][0])).expect("a wire");
        veth::lay((&hosts[1], &ports[1][1]), (&hosts[2], &ports[2][0])).expect("a wire");
        let ports = ports.map(|ports| ports.into_iter().map(|port| port.name).collect());
        let mut room = Room { sshd: [None, None, None], hosts, lab, ports, folder };
        room.make_key("user");
        let mut known = String::new();
        for host in 0..3 {
            room.furnish(host);
            room.make_key(&format!("host{host}"));
            let key = room.read(&format!("host{host}.pub"));
            known += &format!("{} {key}", room.address(host));
            room.start_sshd(host);
        }
        room.write("known_hosts", &known);
        Some(room)
    }

    /// A control wire, and folders no other host sees.
    fn furnish(&self, host: usize) {
        let (near, far) = (format!("control{host}"), "control");
        let peer = self.hosts[host].path();
        self.lab.ip(&format!("link add {near} type veth peer name {far} netns {peer}")).expect("a wire");
        self.lab.ip(&format!("address add 10.99.{}.1/24 dev {near}", host + 1)).expect("an address");
        self.lab.ip(&format!("link set {near} up")).expect("up");
        self.hosts[host].ip(&format!("address add {}/24 dev {far}", self.address(host))).expect("an address");
        self.hosts[host].ip(&format!("link set {far} up")).expect("up");
        // Where the tree itself lies below /tmp, the room's folder is kept in sight.
        let folder = self.folder.clone();
        let made = self.hosts[host].run(move || {
            let mount = |words: &[&Path]| Command::new("mount").args(words).status();
            let fresh = |at: &str| mount(&["-t", "tmpfs", "tmpfs", at].map(Path::new));
            fresh("/run")?;
            fs::create_dir("/run/sshd")?;
            let kept = Path::new("/run/room");
            fs::create_dir(kept)?;
            mount(&[Path::new("--bind"), &folder, kept])?;
            fresh("/tmp")?;
            fs::create_dir_all(&folder)?;
            mount(&[Path::new("--bind"), kept, &folder]).map(drop)
        });
        made.expect("its thread runs").expect("root mounts");
    }

    /// Whether programs of `/tmp` may run.
    pub fn allow_programs(&self, host: usize, allowed: bool) {
        let option = if allowed { "remount,exec" } else { "remount,noexec" };
        let done = self.hosts[host].run(move || Command::new("mount").args(["-o", option, "/tmp"]).status());
        assert!(done.expect("its thread runs").expect("mount starts").success());
    }

    pub fn address(&self, host: usize) -> String {
        format!("10.99.{}.2", host + 1)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).expect("our own folder");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub fn make_key(&self, name: &str) {
        let path = self.folder.join(name);
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"])
            .arg(path)
            .status();
        assert!(made.expect("ssh-keygen starts").success());
    }

    /// The machine with its sshd started anew under a program that runs another.
    pub fn restart_under(&mut self, host: usize, under: &[&str]) {
        self.kill_sshd(host);
        self.start_sshd_under(host, under);
    }

    /// A receiver whose clock is 1000 s ahead of everybody's, with a network card of two queues.
    pub fn replace_receiver(&mut self) {
        self.kill_sshd(RECEIVER);
        let (near, far) = (&self.ports[DEVICE][1], &self.ports[RECEIVER][0]);
        let (device, peer) = (&self.hosts[DEVICE], self.hosts[RECEIVER].path());
        device.ip(&format!("link del {near}")).expect("our own link");
        let queues = "numtxqueues 2 numrxqueues 2";
        device
            .ip(&format!("link add {near} {queues} type veth peer name {far} netns {peer}"))
            .expect("a wire of two queues");
        device.ip(&format!("link set {near} up")).expect("up");
        self.hosts[RECEIVER].ip(&format!("link set {far} up")).expect("up");
        self.start_sshd_ahead(RECEIVER);
    }

    /// A host whose clock is 1000 s ahead of everybody's, as if it were another machine; its sshd is down.
    pub fn start_sshd_ahead(&mut self, host: usize) {
        self.start_sshd_under(host, &AHEAD);
    }

    pub fn start_sshd(&mut self, host: usize) {
        self.start_sshd_under(host, &["env"]);
    }

    /// `under` is a program that runs another.
    fn start_sshd_under(&mut self, host: usize, under: &[&str]) {
        let folder = self.folder.display();
        let config = format!(
            "ListenAddress {}\nHostKey {folder}/host{host}\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\n\
             PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             UsePAM no\nPidFile none\nLogLevel ERROR\n",
            self.address(host)
        );
        self.write(&format!("sshd{host}"), &config);
        let (config, log) = (self.folder.join(format!("sshd{host}")), self.folder.join(format!("log{host}")));
        let words: Vec<String> =
            under.iter().copied().chain([SSHD, "-D", "-e", "-f"]).map(str::to_string).collect();
        let started = self.hosts[host].run(move || {
            let log = fs::File::create(log)?;
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).arg(config).stdin(Stdio::null()).stderr(log);
            process::dies_with_starter(&mut command).spawn()
        });
        self.sshd[host] = Some(started.expect("its thread runs").expect("sshd starts"));
        let address = format!("{}:22", self.address(host));
        let listens = self.lab.run(move || {
            let until = Instant::now() + Duration::from_secs(20);
            while Instant::now() < until {
                if std::net::TcpStream::connect(&address).is_ok() {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            false
        });
        assert!(listens.expect("its thread runs"), "sshd: {}", self.read(&format!("log{host}")));
    }

    /// sshd and its sessions end without a word.
    pub fn kill_sshd(&mut self, host: usize) {
        for (id, command) in self.processes(host) {
            if command.starts_with("sshd") {
                let _ = process::kill(id);
            }
        }
        if let Some(mut sshd) = self.sshd[host].take() {
            let _ = sshd.kill();
            let _ = sshd.wait();
        }
    }

    /// Processes of a host, this one's threads aside.
    pub fn processes(&self, host: usize) -> Vec<(u32, String)> {
        let own =
            self.hosts[host].run(|| fs::read_link("/proc/thread-self/ns/net")).expect("runs").expect("proc");
        let numbers = fs::read_dir("/proc").expect("proc").flatten();
        numbers
            .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
            .filter(|id| fs::read_link(format!("/proc/{id}/ns/net")).is_ok_and(|ns| ns == own))
            .map(|id| {
                (id, fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default().trim().to_string())
            })
            .collect()
    }

    /// Everything the lab or a SUT could leave on a host: processes, files, settings of the network.
    pub fn state(&self, host: usize) -> String {
        let mut processes: Vec<String> =
            self.processes(host).into_iter().map(|(_, command)| command).collect();
        processes.sort();
        let ports = self.ports[host].clone();
        let shown = self.hosts[host].run(move || {
            let files = |folder: &str| -> Vec<_> {
                fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.file_name()).collect()
            };
            let mut text = format!("/tmp {:?}\n/run {:?}\n", files("/tmp"), files("/run"));
            for words in [
                "-4 address",
                "-6 route show table all",
                "-4 route show table all",
                "neighbour show nud permanent",
                "xfrm policy",
                "-details link",
            ] {
                let output = Command::new("ip").args(words.split(' ')).output().expect("ip starts");
                text += &String::from_utf8_lossy(&output.stdout);
            }
            for port in ports {
                let on: Vec<_> =
                    Offload::ALL.into_iter().filter(|o| offload::is_on(&port, *o).unwrap_or(false)).collect();
                let queues = Interface::open(&port).and_then(|port| port.queues()).ok();
                let filters = Command::new("tc").args(["filter", "show", "dev", &port, "ingress"]).output();
                let filters = String::from_utf8_lossy(&filters.expect("tc starts").stdout).trim().to_string();
                text += &format!("{port} {on:?} queues {queues:?} filters {filters:?}\n");
            }
            for key in ["ipv4/ip_forward", "ipv4/conf/all/rp_filter", "ipv6/conf/all/forwarding"] {
                text += &fs::read_to_string(format!("/proc/sys/net/{key}")).unwrap_or_default();
            }
            text
        });
        // Routes that came back stand in another order.
        let shown = shown.expect("its thread runs");
        let mut lines: Vec<&str> = shown.lines().collect();
        lines.sort_unstable();
        format!("{processes:?}\n{}", lines.join("\n"))
    }

    /// Shows the state of all hosts, once every wire has its carrier and nothing changes by itself any more.
    pub fn settled(&self) -> [String; 3] {
        let states = || [GENERATOR, DEVICE, RECEIVER].map(|host| self.state(host));
        let until = Instant::now() + Duration::from_secs(60);
        let mut last = states();
        loop {
            std::thread::sleep(Duration::from_millis(150));
            let now = states();
            if now == last && !now.iter().any(|state| state.contains("NO-CARRIER")) {
                return now;
            }
            assert!(Instant::now() < until, "the room does not settle: {last:?}");
            last = now;
        }
    }

    /// Waits until a host is as it was.
    pub fn assert_as_before(&self, before: &[String; 3]) {
        let until = Instant::now() + Duration::from_secs(60);
        for (host, before) in before.iter().enumerate() {
            loop {
                let now = self.state(host);
                if now == *before {
                    break;
                }
                assert!(Instant::now() < until, "host {host}: {}", differences(before, &now));
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// `[hosts]` of this room, with these lines in every host and these timeouts.
    pub fn hosts_table(&self, timeouts: &str) -> String {
        let login = |host: usize| {
            let (address, folder) = (self.address(host), self.folder.display());
            format!(
                "ssh = \"root@{address}\"\nidentity = \"{folder}/user\"\noptions = [\"UserKnownHostsFile={folder}/known_hosts\", \
                 \"GlobalKnownHostsFile=/dev/null\"]\n"
            )
        };
        let (device, ports) = (&self.ports[DEVICE], &self.ports);
        format!(
            "[hosts.generator]\n{}interface = \"{}\"\n[hosts.device_under_test]\n{}input = \"{}\"\noutput = \"{}\"\n\
             [hosts.receiver]\n{}interface = \"{}\"\n[hosts.timeouts]\n{timeouts}\n",
            login(GENERATOR),
            ports[GENERATOR][0],
            login(DEVICE),
            device[0],
            device[1],
            login(RECEIVER),
            ports[RECEIVER][0]
        )
    }

    /// Starts `weir-lab run` on an experiment of this text, on the lab's machine.
    pub fn start(&self, experiment: &str) -> Child {
        self.start_into(OUT, experiment)
    }

    /// The same, with a folder of its own for results.
    pub fn start_into(&self, out: &str, experiment: &str) -> Child {
        let file = format!("{out}.toml");
        self.write(&file, experiment);
        let (file, out) = (self.folder.join(file), self.folder.join(out));
        let started = self.lab.run(move || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir-lab"));
            command.arg("run").arg(file).arg("--out").arg(out).args(["--seed", "7"]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            process::dies_with_starter(&mut command).spawn()
        });
        started.expect("its thread runs").expect("the program starts")
    }

    /// Runs an experiment that ends well; what it said.
    pub fn run_well(&self, experiment: &str) -> String {
        let output = self.run(experiment);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    }

    pub fn run(&self, experiment: &str) -> Output {
        self.start(experiment).wait_with_output().expect("it ends")
    }

    /// Runs of a configuration so far: what was delivered, or why nothing was.
    pub fn runs(&self, configuration: &str) -> Vec<Result<serde_json::Value, String>> {
        self.runs_of(OUT, configuration)
    }

    /// The same of what [`Room::start_into`] started.
    pub fn runs_of(&self, out: &str, configuration: &str) -> Vec<Result<serde_json::Value, String>> {
        let text = fs::read_to_string(self.folder.join(format!("{out}/raw/{configuration}.jsonl")))
            .unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let runs = whole.map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        runs.map(|run| match run["error"].as_str() {
            Some(error) => Err(error.to_string()),
            None => Ok(run["sample"].clone()),
        })
        .collect()
    }

    /// A file of the results.
    pub fn result(&self, file: &str) -> String {
        self.read(&format!("{OUT}/{file}"))
    }

    pub fn json(&self, file: &str) -> serde_json::Value {
        serde_json::from_str(&self.result(file)).expect("JSON")
    }
}

fn differences(before: &str, after: &str) -> String {
    let only = |sign: &str, a: &str, b: &str| -> String {
        a.lines()
            .filter(|line| !b.lines().any(|other| other == *line))
            .map(|line| format!("\n{sign} {line}"))
            .collect()
    };
    only("-", before, after) + &only("+", after, before)
}

impl Drop for Room {
    fn drop(&mut self) {
        for host in 0..3 {
            self.kill_sshd(host);
            for (id, _) in self.processes(host) {
                let _ = process::kill(id);
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Waits until something holds while the lab runs.
pub fn wait_for(what: &str, lab: &mut Child, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(lab.try_wait().expect("our child").is_none(), "the lab ended before {what}");
        assert!(Instant::now() < until, "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
