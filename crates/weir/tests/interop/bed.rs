//! Four network namespaces in a row: two hosts and the gateways between them.
//!
//! ```text
//! a  a0 ──veth── l0  left  l1 ──veth── r1  right  r0 ──veth── b0  b
//! 10.1.0.2/24   10.1.0.1   192.0.2.1  192.0.2.2   10.2.0.1   10.2.0.2/24
//! fd01::2/64    fd01::1   2001:db8::1 2001:db8::2  fd02::1   fd02::2/64
//! ```
//!
//! Everything made has a name with this process's number in it and goes away on drop, after a panic too.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_io::{netns, offload};

/// How long anything that must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Addresses of the left gateway towards its host and towards the other gateway.
pub const LEFT_LAN: [&str; 2] = ["10.1.0.1/24", "fd01::1/64"];
pub const LEFT_WAN: [&str; 2] = ["192.0.2.1/24", "2001:db8::1/64"];

/// Namespaces, interfaces and a folder for files. The left gateway has no addresses yet.
pub struct Bed {
    pub a: String,
    pub left: String,
    pub right: String,
    pub b: String,
    pub folder: PathBuf,
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Addresses of one family along the row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub a: IpAddr,
    pub left: IpAddr,
    pub right: IpAddr,
    pub b: IpAddr,
    /// The prefixes behind the gateways, as configurations write them.
    pub nets: [&'static str; 2],
}

impl Family {
    pub fn row(self) -> Row {
        let row = |[a, left, right, b]: [&str; 4], nets| Row {
            a: ip(a),
            left: ip(left),
            right: ip(right),
            b: ip(b),
            nets,
        };
        match self {
            Family::V4 => {
                row(["10.1.0.2", "192.0.2.1", "192.0.2.2", "10.2.0.2"], ["10.1.0.0/24", "10.2.0.0/24"])
            }
            Family::V6 => {
                row(["fd01::2", "2001:db8::1", "2001:db8::2", "fd02::2"], ["fd01::/64", "fd02::/64"])
            }
        }
    }
}

/// Runs a command to its end; its stderr in the panic when it fails.
pub fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a program");
    let output = Command::new(program).args(words).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{command}`: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether namespaces can be made, or what is missing.
pub fn missing() -> Option<String> {
    let output = match Command::new("ip").args(["netns", "list"]).output() {
        Ok(output) => output,
        Err(e) => return Some(format!("the `ip` command ({e}); install iproute2")),
    };
    let root = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = root.lines().any(|l| l.starts_with("Uid:") && l.split_whitespace().nth(2) == Some("0"));
    (!root || !output.status.success()).then(|| "root, to make network namespaces".into())
}

impl Bed {
    pub fn new() -> Bed {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let stem = format!("weiri{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(&stem);
        std::fs::create_dir_all(&folder).expect("a folder");
        let name = |place: &str| format!("{stem}-{place}");
        let bed = Bed { a: name("a"), left: name("l"), right: name("r"), b: name("b"), folder };
        for ns in bed.all() {
            run(&format!("ip netns add {ns}"));
            netns::inside(ns, || {
                set("/proc/sys/net/ipv6/conf/all/disable_ipv6", "0");
                set("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
            })
            .expect("the namespace is there");
            run(&format!("ip -n {ns} link set lo up"));
        }
        let (a, left, right, b) = (&bed.a, &bed.left, &bed.right, &bed.b);
        connect([a, "a0"], [left, "l0"]);
        connect([left, "l1"], [right, "r1"]);
        connect([right, "r0"], [b, "b0"]);
        address(a, "a0", ["10.1.0.2/24", "fd01::2/64"]);
        address(right, "r1", ["192.0.2.2/24", "2001:db8::2/64"]);
        address(right, "r0", ["10.2.0.1/24", "fd02::1/64"]);
        address(b, "b0", ["10.2.0.2/24", "fd02::2/64"]);
        for (ns, via) in [(a, ["10.1.0.1", "fd01::1"]), (b, ["10.2.0.1", "fd02::1"])] {
            for via in via {
                run(&format!("ip -n {ns} route replace default via {via}"));
            }
        }
        for (family, via) in [(Family::V4, "192.0.2.1"), (Family::V6, "2001:db8::1")] {
            run(&format!("ip -n {right} route replace {} via {via}", family.row().nets[0]));
        }
        bed.kernel_forwards(right);
        bed
    }

    fn all(&self) -> [&String; 4] {
        [&self.a, &self.left, &self.right, &self.b]
    }

    /// Lets the kernel forward in a gateway's namespace.
    pub fn kernel_forwards(&self, ns: &str) {
        netns::inside(ns, || {
            set("/proc/sys/net/ipv4/ip_forward", "1");
            set("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        })
        .expect("the namespace is there");
    }

    /// Makes the left gateway the kernel's: its addresses, and the far prefixes by the other gateway.
    pub fn kernel_is_left(&self) {
        address(&self.left, "l0", LEFT_LAN);
        address(&self.left, "l1", LEFT_WAN);
        self.kernel_forwards(&self.left);
        for (family, via) in [(Family::V4, "192.0.2.2"), (Family::V6, "2001:db8::2")] {
            run(&format!("ip -n {} route replace {} via {via}", self.left, family.row().nets[1]));
        }
    }

    /// Writes a file into the bed's folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }
}

/// A wire between two devices: each `[namespace, device]`.
fn connect(near: [&str; 2], far: [&str; 2]) {
    let [[near_ns, near_device], [far_ns, far_device]] = [near, far];
    run(&format!(
        "ip link add {near_device} netns {near_ns} type veth peer name {far_device} netns {far_ns}"
    ));
    for [ns, device] in [near, far] {
        run(&format!("ip -n {ns} link set {device} up"));
        // A veth sends frames on before anyone finished their checksums; no card does.
        netns::inside(ns, || {
            for offload in offload::UNFINISHED {
                let set = offload::set(device, offload, false);
                assert!(!offload::is_on(device, offload).expect("veth knows this offload"), "{set:?}");
            }
        })
        .expect("the namespace is there");
    }
}

fn address(ns: &str, device: &str, addresses: [&str; 2]) {
    for address in addresses {
        run(&format!("ip -n {ns} addr add {address} dev {device}"));
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for ns in self.all() {
            // What was never made cannot be removed; nothing else can be done about a failure here.
            let _ = Command::new("ip").args(["netns", "del", ns]).stderr(Stdio::null()).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Tries until it works; panics with what was waited for when it never does.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn set(path: &str, value: &str) {
    // A kernel without IPv6 has no such file, and its tests fail by what they miss.
    let _ = std::fs::write(path, value);
}
