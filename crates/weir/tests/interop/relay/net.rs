//! Two clients that see a relay, or two, and not each other.
//!
//! ```text
//! 10.1.0.2/24  c1 ──veth── m1  middle  m2 ──veth── c2  10.2.0.2/24
//! fd01::2/64             10.9.9.8 control            fd02::2/64
//!                        10.9.9.9, 10.9.9.10 relays
//! ```
//!
//! The middle forwards nothing, so that what arrives at the other client has come by a relay. Everything made has
//! a name with this process's number in it and goes away on drop, after a panic too.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use weir_io::netns;

use super::authority::Authority;
use crate::machine::set;
use crate::testbed::{batch, ip};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Where clients are told who else there is, and relays who may connect.
pub const CONTROL: &str = "10.9.9.8";
pub const RELAYS: [&str; 2] = ["10.9.9.9", "10.9.9.10"];
/// What they are called; the certificates are theirs.
pub const NAMES: [&str; 2] = ["relay-1.weir.test", "relay-2.weir.test"];
/// Where clients come from.
pub const CLIENTS: [&str; 2] = ["10.1.0.2", "10.2.0.2"];

pub struct Net {
    pub middle: String,
    pub clients: [String; 2],
    pub folder: PathBuf,
    pub authority: Authority,
}

impl Net {
    pub fn new() -> Net {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let stem = format!("weirr{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(&stem);
        std::fs::create_dir_all(&folder).expect("a folder");
        let authority = Authority::new(&folder);
        let hosts = [0, 1].map(|n| format!("{} {}\n", RELAYS[n], NAMES[n])).concat();
        std::fs::write(folder.join("hosts"), format!("127.0.0.1 localhost\n{hosts}")).expect("a file");
        let name = |place: &str| format!("{stem}-{place}");
        let net = Net { middle: name("m"), clients: [name("1"), name("2")], folder, authority };
        batch(None, &net.all().map(|ns| format!("netns add {ns}")));
        for ns in net.all() {
            netns::inside(ns, || {
                set("/proc/sys/net/ipv4/ip_forward", "0");
                set("/proc/sys/net/ipv6/conf/all/forwarding", "0");
                set("/proc/sys/net/ipv6/conf/all/disable_ipv6", "0");
                set("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
            })
            .expect("the namespace is there");
        }
        for (n, client) in (1..).zip(&net.clients) {
            let middle = &net.middle;
            batch(None, &[format!("link add c{n} netns {client} type veth peer name m{n} netns {middle}")]);
            batch(
                Some(client),
                &[
                    "link set lo up".into(),
                    format!("addr add 10.{n}.0.2/24 dev c{n}"),
                    format!("addr add fd0{n}::2/64 dev c{n} nodad"),
                    format!("link set c{n} up"),
                    format!("route add default via 10.{n}.0.1"),
                    format!("route add default via fd0{n}::1"),
                ],
            );
            batch(
                Some(middle),
                &[
                    format!("addr add 10.{n}.0.1/24 dev m{n}"),
                    format!("addr add fd0{n}::1/64 dev m{n} nodad"),
                    format!("link set m{n} up"),
                ],
            );
        }
        let mut loopback = vec!["link set lo up".to_string()];
        loopback.extend([CONTROL, RELAYS[0], RELAYS[1]].map(|ip| format!("addr add {ip}/32 dev lo")));
        batch(Some(&net.middle), &loopback);
        net
    }

    fn all(&self) -> [&String; 3] {
        [&self.middle, &self.clients[0], &self.clients[1]]
    }

    /// Lets the first client reach the first relay only from now on, the second the second.
    pub fn part(&self) {
        for (client, other) in self.clients.iter().zip([RELAYS[1], RELAYS[0]]) {
            batch(Some(client), &[format!("route add unreachable {other}/32")]);
        }
    }

    /// Writes a file into the folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    pub fn relay(&self, which: usize) -> IpAddr {
        ip(RELAYS[which])
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for ns in self.all() {
            // What was never made cannot be removed; nothing else can be done about a failure here.
            let _ = Command::new("ip").args(["netns", "del", ns]).stderr(Stdio::null()).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
