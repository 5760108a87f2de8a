//! Four network namespaces in a row: two hosts and the gateways between them.
//!
//! ```text
//! a  a0 ──veth── l0  left  l1 ──veth── r1  right  r0 ──veth── b0  b
//! 10.1.0.2/24   10.1.0.1   192.0.2.1  192.0.2.2   10.2.0.1   10.2.0.2/24
//! fd01::2/64    fd01::1   2001:db8::1 2001:db8::2  fd02::1   fd02::2/64
//! ```
//!
//! Everything made has a name with this process's number in it and goes away on drop, after a panic too.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use weir_io::{netns, offload};

use crate::machine::set;
pub use crate::machine::{PATIENCE, ip, missing, run, until};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Addresses of the left gateway towards its host and towards the other gateway.
pub const LEFT_LAN: [&str; 2] = ["10.1.0.1/24", "fd01::1/64"];
pub const LEFT_WAN: [&str; 2] = ["192.0.2.1/24", "2001:db8::1/64"];

/// Namespaces, interfaces and a folder for files. The left gateway has no addresses yet.
pub struct Testbed {
    pub a: String,
    pub left: String,
    pub right: String,
    pub b: String,
    /// A bridge between the gateways, where there is one.
    pub middle: Option<String>,
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

/// Runs lines of `ip` in a namespace, all in one process: the second kernel starts few a second.
pub fn batch(ns: Option<&str>, lines: &[String]) {
    let mut command = Command::new("ip");
    if let Some(ns) = ns {
        command.args(["-n", ns]);
    }
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("ip starts");
    let text = lines.join("\n") + "\n";
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("ip reads");
    let output = child.wait_with_output().expect("a child of ours");
    assert!(output.status.success(), "ip: {}\n{text}", String::from_utf8_lossy(&output.stderr));
}

impl Testbed {
    pub fn new() -> Testbed {
        Testbed::with(false)
    }

    /// The same with a bridge between the gateways (`ml` to the left one, `mr` to the right one): whoever listens there sees
    /// frames as they were on the wire, which at an end of it are seen once more as what ESP carried.
    pub fn watched() -> Testbed {
        Testbed::with(true)
    }

    fn with(watched: bool) -> Testbed {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let stem = format!("weiri{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(&stem);
        std::fs::create_dir_all(&folder).expect("a folder");
        let name = |place: &str| format!("{stem}-{place}");
        let testbed = Testbed {
            a: name("a"),
            left: name("l"),
            right: name("r"),
            b: name("b"),
            middle: watched.then(|| name("m")),
            folder,
        };
        let (a, left, right, b) = (&testbed.a, &testbed.left, &testbed.right, &testbed.b);
        batch(None, &testbed.all().map(|ns| format!("netns add {ns}")).collect::<Vec<String>>());
        for ns in testbed.all() {
            netns::inside(ns, || {
                set("/proc/sys/net/ipv6/conf/all/disable_ipv6", "0");
                set("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
            })
            .expect("the namespace is there");
        }
        let mut wires = vec![[(a, "a0"), (left, "l0")], [(right, "r0"), (b, "b0")]];
        match &testbed.middle {
            None => wires.push([(left, "l1"), (right, "r1")]),
            Some(middle) => wires.extend([[(left, "l1"), (middle, "ml")], [(middle, "mr"), (right, "r1")]]),
        }
        let lines = wires.iter().map(|[near, far]| {
            format!("link add {} netns {} type veth peer name {} netns {}", near.1, near.0, far.1, far.0)
        });
        batch(None, &lines.collect::<Vec<String>>());
        if let Some(middle) = &testbed.middle {
            let mut lines = vec!["link add br0 type bridge".to_owned(), "link set br0 up".to_owned()];
            lines.extend(["ml", "mr"].map(|end| format!("link set {end} master br0 up")));
            batch(Some(middle), &lines);
        }
        finish_checksums(&wires);
        up(a, &[("a0", ["10.1.0.2/24", "fd01::2/64"])]);
        up(left, &[("l0", []), ("l1", [])]);
        up(right, &[("r1", ["192.0.2.2/24", "2001:db8::2/64"]), ("r0", ["10.2.0.1/24", "fd02::1/64"])]);
        up(b, &[("b0", ["10.2.0.2/24", "fd02::2/64"])]);
        batch(Some(a), &["10.1.0.1", "fd01::1"].map(default_route));
        batch(Some(b), &["10.2.0.1", "fd02::1"].map(default_route));
        batch(Some(right), &[route(Family::V4, 0, "192.0.2.1"), route(Family::V6, 0, "2001:db8::1")]);
        testbed.kernel_forwards(right);
        testbed
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        [&self.a, &self.left, &self.right, &self.b].into_iter().chain(&self.middle)
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
        up(&self.left, &[("l0", LEFT_LAN), ("l1", LEFT_WAN)]);
        self.kernel_forwards(&self.left);
        batch(Some(&self.left), &[route(Family::V4, 1, "192.0.2.2"), route(Family::V6, 1, "2001:db8::2")]);
    }

    /// The kernel keeps the left gateway's addresses, and forwards nothing.
    pub fn kernel_does_not_forward_left(&self) {
        netns::inside(&self.left, || {
            set("/proc/sys/net/ipv4/ip_forward", "0");
            set("/proc/sys/net/ipv6/conf/all/forwarding", "0");
        })
        .expect("the namespace is there");
    }

    /// Takes the left gateway from the kernel again.
    pub fn kernel_is_not_left(&self) {
        for device in ["l0", "l1"] {
            run(&format!("ip -n {} addr flush dev {device} scope global", self.left));
        }
        self.kernel_does_not_forward_left();
    }

    /// Writes a file into the testbed's folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }
}

fn route(family: Family, net: usize, via: &str) -> String {
    format!("route replace {} via {via}", family.row().nets[net])
}

fn default_route(via: &str) -> String {
    format!("route replace default via {via}")
}

/// Devices of a namespace, with their addresses.
fn up<const N: usize>(ns: &str, devices: &[(&str, [&str; N])]) {
    let mut lines = vec!["link set lo up".to_string()];
    for (device, addresses) in devices {
        lines.extend(addresses.iter().map(|address| format!("addr add {address} dev {device}")));
        lines.push(format!("link set {device} up"));
    }
    batch(Some(ns), &lines);
}

/// A veth sends frames on before anyone finished their checksums; no card does.
fn finish_checksums(wires: &[[(&String, &str); 2]]) {
    for (ns, device) in wires.iter().flatten() {
        netns::inside(ns, || {
            for offload in offload::UNFINISHED {
                let set = offload::set(device, offload, false);
                assert!(!offload::is_on(device, offload).expect("veth knows this offload"), "{set:?}");
            }
        })
        .expect("the namespace is there");
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for ns in self.all() {
            // What was never made cannot be removed; nothing else can be done about a failure here.
            let _ = Command::new("ip").args(["netns", "del", ns]).stderr(Stdio::null()).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
