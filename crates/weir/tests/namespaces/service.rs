//! A service manager keeps what holds the XDP programs on their devices, as systemd's descriptor store does.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::in_and_out::{flows, is_all_there, kernels, under_flows};
use super::spd_lookup::{RULES, enforced};
use super::testbed::{Router, Testbed, run, until};
use super::traffic::{ping, ways};

struct Manager {
    path: PathBuf,
    socket: UnixDatagram,
    /// What it keeps, by name.
    kept: BTreeMap<String, OwnedFd>,
    /// Every message.
    heard: Vec<String>,
}

impl Manager {
    fn new(testbed: &Testbed) -> Manager {
        let path = testbed.folder.join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        Manager { path, socket, kept: BTreeMap::new(), heard: Vec::new() }
    }

    /// Does what the messages so far ask for.
    fn listen(&mut self) {
        let mut text = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        loop {
            let mut beside = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut text)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let Ok(got) = recvmsg(&self.socket, &mut parts, &mut beside, flags) else { return };
            let fds = beside.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let mut fds: Vec<OwnedFd> = fds.flatten().collect();
            let message = String::from_utf8_lossy(&text[..got.bytes]).into_owned();
            let name = message.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned);
            if message.lines().any(|line| line == "FDSTOREREMOVE=1") {
                self.kept.remove(&name.expect("a name"));
            } else if message.lines().any(|line| line == "FDSTORE=1") {
                self.kept.insert(name.expect("a name"), fds.pop().expect("a descriptor"));
            }
            self.heard.push(message);
        }
    }

    /// Starts a router, with what is kept of the one before.
    fn start(&mut self, testbed: &Testbed, config: &str) -> Router {
        let notify = format!("NOTIFY_SOCKET={}", self.path.display());
        let names: Vec<&str> = self.kept.keys().map(String::as_str).collect();
        let mut script = format!("export LISTEN_PID=$$ LISTEN_FDNAMES={} ", names.join(":"));
        script += &format!("LISTEN_FDS={}; exec ", names.len());
        // Without FD_CLOEXEC until the router runs. The shell has none above 9.
        let passed: Vec<OwnedFd> = self.kept.values().map(inheritable).collect();
        let mut moves: Vec<String> = Vec::new();
        for (to, fd) in (3..).zip(&passed) {
            moves.push(format!("{to}<&{}", fd.as_raw_fd()));
        }
        script += &moves.join(" ");
        script += "; exec \"$@\"";
        let router = testbed.spawn(config, &["env", &notify, "bash", "-c", &script, "bash"]);
        router.wait_for("is ready");
        self.listen();
        router
    }

    /// The numbers of the link on a device and of the program it holds.
    fn link(&self, device: &str) -> (u32, u32) {
        let fd = self.kept[&format!("xdp-{device}")].as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("ours");
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a link");
            line.trim_matches([':', '\t', ' ']).parse().expect("a number")
        };
        (number("link_id"), number("prog_id"))
    }
}

fn inheritable(fd: &OwnedFd) -> OwnedFd {
    let duplicate = fd.try_clone().expect("a descriptor");
    rustix::io::fcntl_setfd(&duplicate, rustix::io::FdFlags::empty()).expect("ours");
    duplicate
}

#[test]
fn a_program_stays_on_its_device_over_a_restart_where_the_manager_keeps_its_link() {
    let test = "a_program_stays_on_its_device_over_a_restart_where_the_manager_keeps_its_link";
    let Some(testbed) = Testbed::new(test) else { return };
    let mut manager = Manager::new(&testbed);
    let is_attached =
        |device: &str| run(&format!("ip -n {} link show {device}", testbed.router)).contains("xdp");
    let config = testbed.config("af_xdp", "");
    let mut router = manager.start(&testbed, &config);
    assert_eq!(manager.kept.keys().collect::<Vec<_>>(), ["xdp-r0", "xdp-r1"], "{}", router.log());
    let before = ["r0", "r1"].map(|device| manager.link(device));
    router.kill();
    assert!(is_attached("r0") && is_attached("r1"));

    let mut router = manager.start(&testbed, &config);
    for (device, (link, program)) in ["r0", "r1"].into_iter().zip(before) {
        let now = manager.link(device);
        assert_eq!(now.0, link, "{device}: the same link; {}", router.log());
        assert_ne!(now.1, program, "{device}: another program");
    }
    assert!(!router.log().contains("taken off"), "{}", router.log());
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
    router.assert_conserved();

    // A port that is given back is free, whoever has the link; what else holds on goes with the manager.
    let left: String = config.split("[[port]]\nname = \"right\"").next().expect("a part").to_owned();
    let file = testbed.file("left.toml", &left);
    router.told(&["apply", &file.to_string_lossy()]);
    manager.listen();
    assert_eq!((is_attached("r0"), is_attached("r1")), (true, false));
    assert_eq!(manager.kept.keys().collect::<Vec<_>>(), ["xdp-r0"]);
    router.signal("TERM");
    assert!(router.wait(), "{}", router.log());
    assert!(is_attached("r0"), "for the next");

    // The next one has another device only.
    let right = config.replacen("[[port]]", "[[none]]", 1);
    let right = &right[right.find("[[port]]").expect("the second")..];
    let mut router = manager.start(&testbed, right);
    assert_eq!((is_attached("r0"), is_attached("r1")), (false, true), "{}", router.log());
    router.signal("TERM");
    assert!(router.wait(), "{}", router.log());
    manager.kept.clear();
    assert!(!is_attached("r1"), "a stopped service leaves nothing");
}

/// What policies let pass is forwarded by XDP, and nobody would hear of another policy while no router runs.
#[test]
fn where_policies_apply_the_manager_keeps_no_link() {
    let Some(testbed) = Testbed::new("where_policies_apply_the_manager_keeps_no_link") else { return };
    let mut manager = Manager::new(&testbed);
    let is_attached = || run(&format!("ip -n {} link show r0", testbed.router)).contains("xdp");
    let mut router = manager.start(&testbed, &testbed.config("af_xdp", ""));
    assert_eq!(manager.kept.len(), 2, "{}", router.log());
    router.kill();
    assert!(is_attached());
    let mut router = manager.start(&testbed, &enforced(&testbed, "", RULES));
    assert_eq!(manager.kept.len(), 0, "those of the router before are given up: {}", router.log());
    router.kill();
    until("nobody holds the programs", || (!is_attached()).then_some(()));
}

/// As a package's upgrade has it: one signal, and the program that is installed by then takes over.
#[test]
fn the_installed_program_takes_over_from_a_router_at_a_signal_and_loses_nothing() {
    let test = "the_installed_program_takes_over_from_a_router_at_a_signal_and_loses_nothing";
    let Some((testbed, pairs)) = kernels(test) else { return };
    let mut manager = Manager::new(&testbed);
    let config = format!("routes = \"kernel\"\n{}", testbed.config("auto", ""));
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        let mut router = manager.start(&testbed, &config);
        let before = ["r0", "r1"].map(|device| manager.link(device));

        // A file that the new program refuses changes nothing.
        testbed.file("router.toml", "nonsense = 1\n");
        router.signal("USR2");
        router.wait_for("this router goes on");
        manager.listen();
        assert!(!manager.heard.iter().any(|message| message.contains("MAINPID")), "{:?}", manager.heard);
        progress.arrives(100);
        testbed.file("router.toml", &config);

        let successor = router.succeed();
        manager.listen();
        let own = format!("MAINPID={}", successor.0);
        let said =
            manager.heard.iter().position(|message| message.contains(&own)).expect("another main process");
        let ready =
            manager.heard.iter().rposition(|message| message.contains("READY=1")).expect("it is ready");
        assert!(said < ready, "{:?}", manager.heard);
        assert!(!manager.heard.iter().any(|message| message.contains("STOPPING")), "{:?}", manager.heard);
        for (device, (link, program)) in ["r0", "r1"].into_iter().zip(before) {
            let now = manager.link(device);
            assert_eq!(now.0, link, "{device}: the same link; {}", router.log());
            assert_ne!(now.1, program, "{device}: another program");
        }
        let log = router.log();
        let told = log.lines().find(|line| line.contains("took over from process")).expect("it is said");
        assert!(told.contains(" ms without a router, in which the kernel forwarded"), "{told}");
        progress.arrives(100);
        weir_io::process::terminate(successor.0).expect("it runs");
        until("it ends as it was told", || router.log().matches("(0 unaccounted)").nth(1).map(drop));
        manager.listen();
        assert!(manager.heard.iter().any(|message| message.contains("STOPPING")), "{:?}", manager.heard);
        progress.arrives(100);
    });
    is_all_there(&fates, "a successor started by a signal");
}

/// A router that is told to run its program behind the driver must not go on with a link of the driver.
#[test]
fn a_program_runs_behind_the_driver_where_that_is_asked_for() {
    let Some(testbed) = Testbed::new("a_program_runs_behind_the_driver_where_that_is_asked_for") else {
        return;
    };
    let mut manager = Manager::new(&testbed);
    let mut router = manager.start(&testbed, &testbed.config("auto", "[workers]\nxdp = \"native\"\n"));
    let (link, _) = manager.link("r0");
    let runs_at = |device: &str| {
        let said = run(&format!("ip -n {} link show {device}", testbed.router));
        ["xdpgeneric", "xdp"].into_iter().find(|word| said.split_whitespace().any(|w| w == *word))
    };
    assert_eq!((runs_at("r0"), runs_at("r1")), (Some("xdp"), Some("xdp")));
    router.kill();

    let router = manager.start(&testbed, &testbed.config("auto", "[workers]\nxdp = \"generic\"\n"));
    assert_eq!((runs_at("r0"), runs_at("r1")), (Some("xdpgeneric"), Some("xdpgeneric")), "{}", router.log());
    assert_ne!(manager.link("r0").0, link, "{}", router.log());
    let ports = router.told(&["show", "ports"]);
    assert_eq!(ports.matches("copy mode, generic XDP").count(), 2, "{ports}");
    assert!(!ports.contains("native XDP refused"), "nobody was asked: {ports}");
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
    router.assert_conserved();
}
