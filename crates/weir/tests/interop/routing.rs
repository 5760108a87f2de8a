//! FRR and BIRD as the control plane: two routers speak BGP, weir forwards by what they put into the kernel, and the
//! session does not notice when weir starts, stops or is killed.
//!
//! ```text
//! a ── l0  left: FRR or BIRD, kernel, weir  l1 ── BGP ── r1  right: BIRD or FRR, kernel  r0 ── b
//!                                                              10.9.0.0/24, fd09::/64 behind b
//! ```

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use weir_io::process;

use crate::daemon::Running;
use crate::testbed::{self, Testbed, batch, ip, run, until};
use crate::traffic::{Host, Seen, numbered, ping};

const ZEBRA: &str = "/usr/lib/frr/zebra";
const BGPD: &str = "/usr/lib/frr/bgpd";
const BIRD: &str = "/usr/sbin/bird";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suite {
    Frr,
    Bird,
}

/// One end of the session.
struct End<'a> {
    ns: &'a str,
    name: &'static str,
    asn: u32,
    own: [&'static str; 2],
    peer: [&'static str; 2],
    peer_asn: u32,
    announces: [&'static str; 2],
}

fn left(testbed: &Testbed) -> End<'_> {
    End {
        ns: &testbed.left,
        name: "left",
        asn: 65001,
        own: ["192.0.2.1", "2001:db8::1"],
        peer: ["192.0.2.2", "2001:db8::2"],
        peer_asn: 65002,
        announces: ["10.1.0.0/24", "fd01::/64"],
    }
}

fn right(testbed: &Testbed) -> End<'_> {
    End {
        ns: &testbed.right,
        name: "right",
        asn: 65002,
        own: ["192.0.2.2", "2001:db8::2"],
        peer: ["192.0.2.1", "2001:db8::1"],
        peer_asn: 65001,
        announces: ["10.9.0.0/24", "fd09::/64"],
    }
}

/// A router's daemons; they end with it.
struct Speaker {
    children: Vec<Child>,
    folder: PathBuf,
}

impl Speaker {
    fn start(suite: Suite, testbed: &Testbed, end: &End<'_>) -> Speaker {
        let folder = testbed.folder.join(end.name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut speaker = Speaker { children: Vec::new(), folder };
        match suite {
            Suite::Frr => speaker.frr(end),
            Suite::Bird => speaker.bird(end),
        }
        speaker
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_string_lossy().into_owned()
    }

    fn spawn(&mut self, ns: &str, command: &str) {
        let log =
            std::fs::File::options().create(true).append(true).open(self.folder.join("log")).expect("a log");
        let mut exec = Command::new("ip");
        exec.args(["netns", "exec", ns]).args(command.split(' '));
        exec.stdin(Stdio::null()).stdout(log.try_clone().expect("a handle")).stderr(log);
        self.children.push(process::dies_with_starter(&mut exec).spawn().expect("ip starts"));
    }

    fn frr(&mut self, end: &End<'_>) {
        let folder = self.folder.to_string_lossy().into_owned();
        let zebra = self.file("zebra.conf", "hostname router\n");
        let families = [("ipv4", 0), ("ipv6", 1)].map(|(family, n)| {
            let (own, announces) = (end.peer[n], end.announces[n]);
            format!(
                " address-family {family} unicast\n  neighbor {own} activate\n  network {announces}\n exit-address-family\n"
            )
        });
        let peers = end.peer.map(|peer| {
            format!(
                " neighbor {peer} remote-as {}\n neighbor {peer} timers 3 9\n neighbor {peer} timers connect 1\n",
                end.peer_asn
            )
        });
        let bgpd = format!(
            "router bgp {}\n bgp router-id {}\n no bgp ebgp-requires-policy\n no bgp network import-check\n \
             no bgp default ipv4-unicast\n{}{}",
            end.asn,
            end.own[0],
            peers.concat(),
            families.concat()
        );
        let bgpd = self.file("bgpd.conf", &bgpd);
        // FRR gives up root for a user of its own.
        run(&format!("chown -R frr:frr {folder}"));
        let common = format!("-z {folder}/zserv.api --vty_socket {folder} -P 0 --log stdout");
        self.spawn(end.ns, &format!("{ZEBRA} -f {zebra} -i {folder}/zebra.pid {common}"));
        until("zebra listens", || Path::new(&folder).join("zserv.api").exists().then_some(()));
        self.spawn(end.ns, &format!("{BGPD} -f {bgpd} -i {folder}/bgpd.pid -p 179 {common}"));
    }

    fn bird(&mut self, end: &End<'_>) {
        let families = [("ipv4", 0), ("ipv6", 1)].map(|(family, n)| {
            let (own, peer, announces) = (end.own[n], end.peer[n], end.announces[n]);
            let (asn, peer_asn) = (end.asn, end.peer_asn);
            format!(
                "protocol kernel {{ {family} {{ export where source = RTS_BGP; }}; }}\n\
                 protocol static {{ {family}; route {announces} unreachable; }}\n\
                 protocol bgp {{ local {own} as {asn}; neighbor {peer} as {peer_asn}; connect retry time 1; \
                 connect delay time 1; hold time 9; graceful restart off; {family} {{ import all; export all; next hop self; }}; }}\n"
            )
        });
        let text = format!("router id {};\nprotocol device {{}}\n{}", end.own[0], families.concat());
        let conf = self.file("bird.conf", &text);
        let folder = self.folder.to_string_lossy().into_owned();
        self.spawn(end.ns, &format!("{BIRD} -f -c {conf} -s {folder}/bird.ctl"));
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{} said:\n{}", self.folder.display(), self.log());
        }
        for child in self.children.iter_mut().rev() {
            // In order, so that it takes its routes back.
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
    }
}

/// What the kernel says of routes meanwhile.
struct RouteMonitor {
    child: Child,
    path: PathBuf,
}

impl RouteMonitor {
    fn start(testbed: &Testbed) -> RouteMonitor {
        let path = testbed.folder.join("monitor");
        let file = std::fs::File::create(&path).expect("a file");
        let mut command = Command::new("ip");
        command.args(["-n", &testbed.left, "monitor", "route"]).stdout(file);
        RouteMonitor { child: process::dies_with_starter(&mut command).spawn().expect("ip starts"), path }
    }

    fn end(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        std::fs::read_to_string(&self.path).expect("its file")
    }
}

fn accelerate(testbed: &Testbed) -> Running {
    let socket = testbed.folder.join("accelerate.sock");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &testbed.left, env!("CARGO_BIN_EXE_weir"), "--socket"]).arg(&socket);
    command.args(["accelerate", "l0", "l1"]);
    let running = Running::start(&mut command, socket);
    let began = Instant::now();
    while !running.log().contains("is ready") {
        assert!(began.elapsed() < Duration::from_secs(60), "not ready in 60 s: {}", running.log());
        thread::sleep(Duration::from_millis(10));
    }
    running
}

fn end(mut running: Running, signal: &str) {
    run(&format!("kill -{signal} {}", running.child.id()));
    running.child.wait().expect("a child of ours");
}

fn missing(suites: [Suite; 2]) -> Option<String> {
    let programs = |suite| if suite == Suite::Frr { [ZEBRA, BGPD] } else { [BIRD, BIRD] };
    let absent = suites.into_iter().flat_map(programs).find(|p| !Path::new(p).exists());
    testbed::missing().or_else(|| absent.map(|program| format!("{program}; install frr and bird2")))
}

/// Both speak; what the right one announces is forwarded by the kernel, then by weir.
fn speak(test: &str, suites: [Suite; 2]) {
    if let Some(missing) = missing(suites) {
        writeln!(std::io::stderr(), "SKIP {test}: needs {missing}").expect("stderr is open");
        return;
    }
    let testbed = Testbed::new();
    testbed.kernel_is_left();
    batch(
        Some(&testbed.b),
        &["10.9.0.1/24", "fd09::1/64"].map(|address| format!("addr add {address} dev lo")),
    );
    batch(
        Some(&testbed.right),
        &["10.9.0.0/24 via 10.2.0.2", "fd09::/64 via fd02::2"].map(|r| format!("route add {r}")),
    );
    let right = Speaker::start(suites[1], &testbed, &right(&testbed));
    let _left = Speaker::start(suites[0], &testbed, &left(&testbed));
    let protocol = if suites[0] == Suite::Frr { "bgp" } else { "bird" };
    for prefix in ["10.9.0.0/24", "fd09::/64"] {
        let family = if prefix.contains(':') { "-6" } else { "-4" };
        until(&format!("{prefix} is learnt"), || {
            let routes = run(&format!("ip {family} -n {} route show {prefix}", testbed.left));
            routes.contains(&format!("proto {protocol}")).then_some(())
        });
    }
    let hosts = [("10.1.0.2", "10.9.0.1"), ("fd01::2", "fd09::1")]
        .map(|(a, b)| (Host { ns: &testbed.a, ip: ip(a) }, Host { ns: &testbed.b, ip: ip(b) }));
    hosts.iter().for_each(|&(a, b)| ping(a, b));
    let monitor = RouteMonitor::start(&testbed);
    for signal in ["TERM", "KILL"] {
        let running = accelerate(&testbed);
        for (a, b) in hosts {
            ping(a, b);
            assert_eq!(numbered(a, b, 500), Seen { whole: 500, ..Seen::default() }, "{} to {}", a.ip, b.ip);
        }
        let routes = running.told(&["show", "routes"]);
        assert!(routes.contains(&format!("kernel {protocol}")), "{routes}");
        let came: i64 = running.values("weir_port_rx_packets_total", "").iter().sum();
        assert!(came >= 1000, "{came} packets came by weir:\n{}", running.metrics());
        end(running, signal);
        // Longer than the hold time of the session.
        thread::sleep(Duration::from_secs(10));
        hosts.iter().for_each(|&(a, b)| ping(a, b));
    }
    let running = accelerate(&testbed);
    let said = monitor.end();
    assert!(
        !said.contains("Deleted 10.9.0.0/24") && !said.contains("Deleted fd09::/64"),
        "the session was lost:\n{said}"
    );
    // What is withdrawn is gone here too.
    drop(right);
    until("what was withdrawn is gone", || {
        (!running.told(&["show", "routes"]).contains("10.9.0.0/24")).then_some(())
    });
    end(running, "TERM");
}

#[test]
fn frr_and_bird_keep_their_session_while_weir_comes_and_goes() {
    speak("frr_and_bird_keep_their_session_while_weir_comes_and_goes", [Suite::Frr, Suite::Bird]);
}

#[test]
fn bird_and_frr_keep_their_session_while_weir_comes_and_goes() {
    speak("bird_and_frr_keep_their_session_while_weir_comes_and_goes", [Suite::Bird, Suite::Frr]);
}
