//! A gateway between a client and a far network, on a host whose kernel forwards and has the routes to it.
//!
//! ```text
//! client ── r0  router  r1 ── server with 10.3.0.2, fd03::2
//!           ip_forward = 1, route to the far network by the server: as cleartext, if the kernel gets it
//! ```

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use weir_io::interface::Interface;
use weir_io::netns;
use weir_io::steer::enforce::{self, EnforceCounters};

use super::machine::set;
use super::testbed::{Router, Testbed, run, until};
use super::traffic::{Stream, WAYS, Way};

/// What keeps the far network's traffic from being clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An SPD whose policies protect it.
    Protect,
    /// An SPD that discards it.
    Discard,
    /// A route into a tunnel; what comes as cleartext is routed, so only the way out is a case.
    Tunnel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    AfXdp,
    AfPacket,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::AfXdp => "af_xdp",
            Kind::AfPacket => "af_packet",
        }
    }
}

pub const DEVICES: [&str; 2] = ["r0", "r1"];

pub struct Scene {
    pub testbed: Testbed,
    pub mode: Mode,
    pub kind: Kind,
}

impl Scene {
    pub fn new(test: &str, mode: Mode, kind: Kind) -> Option<Scene> {
        let testbed = Testbed::with_queues(test, 4)?;
        let router = &testbed.router;
        for address in ["10.3.0.2/32", "fd03::2/128"] {
            run(&format!("ip -n {} addr add {address} dev lo", testbed.server));
        }
        run(&format!("ip -n {router} route add 10.3.0.0/16 via 10.2.0.2"));
        run(&format!("ip -n {router} route add fd03::/64 via fd02::2"));
        let scene = Scene { testbed, mode, kind };
        scene.in_router(|| {
            set("/proc/sys/net/ipv4/ip_forward", "1");
            set("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        });
        scene.queues("r0", 1);
        scene.queues("r1", 1);
        let key: String = (0..20).map(|n| format!("{n:02x}")).collect();
        let keys = scene.testbed.file("keys", &format!("there = \"{key}\"\nback = \"ff{}\"\n", &key[2..]));
        std::fs::set_permissions(keys, std::fs::Permissions::from_mode(0o600)).expect("permissions");
        Some(scene)
    }

    pub fn in_router<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::inside(&self.testbed.router, work).expect("the namespace is there")
    }

    /// `ethtool -L` of receive queues, and as many at the far end that send into them: a veth with fewer than
    /// that takes no native XDP. False when the kernel refuses.
    pub fn queues(&self, device: &str, count: u32) -> bool {
        let (far, peer) =
            if device == "r0" { (&self.testbed.client, "c0") } else { (&self.testbed.server, "s0") };
        let set = |ns: &str, device: &str, which: &str| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", ns, "ethtool", "-L", device, which, &count.to_string()]);
            let output = command.output().expect("ethtool starts");
            output.status.success() || String::from_utf8_lossy(&output.stderr).contains("unmodified")
        };
        match count {
            1 => set(far, peer, "tx") && set(&self.testbed.router, device, "rx"),
            _ => set(&self.testbed.router, device, "rx") && set(far, peer, "tx"),
        }
    }

    /// The ways that must not arrive as cleartext.
    pub fn ways(&self) -> Vec<Way> {
        WAYS.into_iter().filter(|way| way.outward || self.mode != Mode::Tunnel).collect()
    }

    pub fn config(&self) -> String {
        self.testbed.config(self.kind.word(), &self.ipsec())
    }

    pub fn ipsec(&self) -> String {
        let spd = "[[spd]]\nname = \"outside\"\nports = [\"right\"]\ndefault = \"drop\"\n";
        let routes = "[[route]]\nprefix = \"10.3.0.0/16\"\nvia = \"10.2.0.2\"\n\
                      [[route]]\nprefix = \"fd03::/64\"\nvia = \"fd02::2\"\n";
        let sa = |name: &str, way: &str, spi: u32, ends: [&str; 2]| {
            format!(
                "[[sa]]\nname = \"{name}\"\ndirection = \"{way}\"\nspi = {spi}\nsource = \"{}\"\n\
                 destination = \"{}\"\ncipher = \"aes-gcm-128\"\nkey = \"{name}\"\n",
                ends[0], ends[1]
            )
        };
        let sas = sa("there", "out", 0x1000, ["10.2.0.1", "10.2.0.2"])
            + &sa("back", "in", 0x1001, ["10.2.0.2", "10.2.0.1"]);
        let families = [("10.1.0.0/16", "10.3.0.0/16"), ("fd01::/64", "fd03::/64")];
        let policies: String = families
            .iter()
            .enumerate()
            .map(|(n, (local, remote))| {
                let act = match self.mode {
                    Mode::Protect => "action = \"protect\"\nout = \"there\"\nin = \"back\"",
                    _ => "action = \"discard\"",
                };
                format!(
                    "[[policy]]\nspd = \"outside\"\nname = \"family-{n}\"\nlocal = \"{local}\"\n\
                     remote = \"{remote}\"\n{act}\n"
                )
            })
            .collect();
        match self.mode {
            Mode::Protect => format!("[ipsec]\nkeys = \"keys\"\n{sas}{spd}{policies}{routes}"),
            Mode::Discard => format!("{spd}{policies}{routes}"),
            Mode::Tunnel => format!(
                "[ipsec]\nkeys = \"keys\"\n{sas}[[tunnel]]\nname = \"tun\"\nout = \"there\"\nin = \"back\"\n\
                 [[route]]\nprefix = \"10.3.0.0/16\"\nvia = {{ port = \"tun\" }}\n\
                 [[route]]\nprefix = \"fd03::/64\"\nvia = {{ port = \"tun\" }}\n"
            ),
        }
    }

    pub fn streams(&self) -> Vec<Stream> {
        let streams: Vec<Stream> =
            self.ways().into_iter().map(|way| Stream::start(&self.testbed, way)).collect();
        // A test that could not fail would show nothing: without weir all of it arrives.
        for stream in &streams {
            until(&format!("the kernel forwards {}", stream.way.name), || (stream.clear() > 0).then_some(()));
        }
        streams
    }

    /// What the points on both devices have counted; `None` until both are there.
    pub fn kept(&self) -> Option<u64> {
        let of = |device| Some(self.counters(device)?.transit);
        Some(of(DEVICES[0])? + of(DEVICES[1])?)
    }

    pub fn counters(&self, device: &str) -> Option<EnforceCounters> {
        self.in_router(|| {
            let index = Interface::open(device).ok()?.index();
            enforce::counted(index).expect("the counters are readable")
        })
    }

    pub fn index(&self, device: &str) -> u32 {
        self.in_router(|| Interface::open(device).expect("the device is there").index())
    }

    /// Takes the program in front of the kernel off; refused while weir looks at it just then.
    pub fn take_filter_off(&self, device: &str) {
        until(&format!("clsact goes from {device}"), || {
            let mut command = Command::new("ip");
            command.args([
                "netns",
                "exec",
                &self.testbed.router,
                "tc",
                "qdisc",
                "del",
                "dev",
                device,
                "clsact",
            ]);
            command.output().expect("tc starts").status.success().then_some(())
        });
    }

    /// `weir release …` in the router's namespace.
    pub fn release(&self, devices: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.testbed.router, env!("CARGO_BIN_EXE_weir"), "release"]);
        command.args(devices).output().expect("weir starts")
    }

    /// Everything that is sent from here on is counted by weir or by the kernel's programs.
    pub fn assert_counted(&self, streams: &[Stream], router: Option<&Router>) {
        const MORE: u64 = 40;
        let counted = || {
            let received = router.map_or(0, |r| r.metric("weir_frames_received_total", ""));
            self.kept().expect("both points are there") + received as u64
        };
        let (before, more) = (counted(), MORE * streams.len() as u64);
        streams.iter().for_each(|stream| stream.await_sent(MORE));
        until("what was sent is counted", || (counted() >= before + more).then_some(()));
    }
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
