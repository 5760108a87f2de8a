//! Two gateways between two hosts: what they protect crosses the network between them sealed.
//!
//! ```text
//! client  c0 ── r0  west  r1 ──────── s0  east  e0 ── f0  far host
//! 10.1.0.2   10.1.0.1   10.2.0.1   10.2.0.2  10.3.0.1   10.3.0.2
//! fd01::2    fd01::1    fd02::1    fd02::2   fd03::1    fd03::2
//! ```

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::testbed::{Router, Testbed, ip, run};
use super::traffic::bytes;

pub struct Gateways {
    /// Its `server` is the far host: traffic from end to end.
    pub west: Testbed,
    pub east: Testbed,
}

/// Addresses of one family.
#[derive(Clone, Copy)]
pub struct Ends {
    pub client: IpAddr,
    pub far: IpAddr,
    /// Networks behind west and east.
    pub networks: [&'static str; 2],
    /// West and east on the network between them.
    pub between: [&'static str; 2],
}

pub fn families() -> [Ends; 2] {
    [
        Ends {
            client: ip("10.1.0.2"),
            far: ip("10.3.0.2"),
            networks: ["10.1.0.0/16", "10.3.0.0/16"],
            between: ["10.2.0.1", "10.2.0.2"],
        },
        Ends {
            client: ip("fd01::2"),
            far: ip("fd03::2"),
            networks: ["fd01::/64", "fd03::/64"],
            between: ["fd02::1", "fd02::2"],
        },
    ]
}

/// A suite as both gateways have it, with what its SAs say besides.
#[derive(Clone, Copy)]
pub struct Suite {
    pub cipher: &'static str,
    pub integrity: Option<&'static str>,
    /// Bytes of encryption key with salt, and of integrity key.
    pub lengths: [usize; 2],
    pub more: &'static str,
}

pub const GCM: Suite = Suite { cipher: "aes-gcm-128", integrity: None, lengths: [20, 0], more: "" };

/// Which end of the pair a text is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    West,
    East,
}

impl Gateways {
    pub fn new(test: &str) -> Option<Gateways> {
        let mut west = Testbed::new(test)?;
        let host = format!("{}-f", west.router.trim_end_matches("-r"));
        let east = Testbed {
            client: host.clone(),
            router: std::mem::replace(&mut west.server, host.clone()),
            server: west.client.clone(),
            folder: west.folder.join("east"),
        };
        std::fs::create_dir_all(&east.folder).expect("a folder");
        run(&format!("ip netns add {host}"));
        run(&format!("ip -n {host} link set lo up"));
        east.connect(&host, "f0", "e0", ["10.3.0.2/24", "fd03::2/64"], ["10.3.0.1/24", "fd03::1/64"], 1);
        run(&format!("ip -n {host} route replace default via 10.3.0.1"));
        run(&format!("ip -n {host} route replace default via fd03::1"));
        Some(Gateways { west, east })
    }

    /// Both started with what `text` says for each.
    pub fn start(&self, text: impl Fn(Side) -> String) -> [Router; 2] {
        let start = |side| {
            let router = self.testbed(side).spawn(&text(side), &[]);
            router.wait_for("is ready");
            router
        };
        [start(Side::West), start(Side::East)]
    }

    pub fn testbed(&self, side: Side) -> &Testbed {
        match side {
            Side::West => &self.west,
            Side::East => &self.east,
        }
    }

    /// Writes the keys of these SAs for both sides; the names are the pair's.
    pub fn keys(&self, names: &[&str], suite: Suite) {
        let mut text = String::new();
        for name in names {
            text += &format!("{name} = \"{}\"\n", hex(name, suite.lengths[0]));
            if suite.lengths[1] > 0 {
                text += &format!("{name}-integrity = \"{}\"\n", hex(&format!("{name}!"), suite.lengths[1]));
            }
        }
        for side in [Side::West, Side::East] {
            let path = self.testbed(side).file("keys", &text);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("permissions");
        }
    }

    /// A file for `weir apply` on one side.
    pub fn next(&self, side: Side, text: &str) -> PathBuf {
        self.testbed(side).file("next.toml", text)
    }
}

/// The key with this name, the same in every run: names never come back with another use.
pub fn hex(name: &str, len: usize) -> String {
    let seed = name.bytes().fold(7u64, |seed, b| seed.wrapping_mul(131).wrapping_add(b.into()));
    bytes(seed, len).iter().map(|b| format!("{b:02x}")).collect()
}

/// Ports of a side, and the keys file.
pub fn ports(side: Side, kind: &str) -> String {
    let (inside, outside) = match side {
        Side::West => ("r0", "r1"),
        Side::East => ("e0", "s0"),
    };
    format!(
        "[ipsec]\nkeys = \"keys\"\n\
         [[port]]\nname = \"lan\"\ndevice = \"{inside}\"\nkind = \"{kind}\"\naddresses = \"kernel\"\n\
         [[port]]\nname = \"wan\"\ndevice = \"{outside}\"\nkind = \"{kind}\"\naddresses = \"kernel\"\n"
    )
}

/// The pair of SAs `name`: `east` leads there, `west` back; SPIs from `spi` on.
pub fn pair(side: Side, name: &str, spi: u32, outer: Ends, suite: Suite) -> String {
    let [west, east] = outer.between;
    let there = sa(side, Side::West, &format!("{name}-east"), spi, (west, east), suite);
    there + &sa(side, Side::East, &format!("{name}-west"), spi + 1, (east, west), suite)
}

/// One SA as `side` has it; `sender` seals.
pub fn sa(side: Side, sender: Side, name: &str, spi: u32, ends: (&str, &str), suite: Suite) -> String {
    let direction = if side == sender { "out" } else { "in" };
    let integrity = suite
        .integrity
        .map_or(String::new(), |i| format!("integrity = \"{i}\"\nintegrity_key = \"{name}-integrity\"\n"));
    format!(
        "[[sa]]\nname = \"{name}\"\ndirection = \"{direction}\"\nspi = {spi}\nsource = \"{}\"\n\
         destination = \"{}\"\ncipher = \"{}\"\nkey = \"{name}\"\n{integrity}{}\n",
        ends.0, ends.1, suite.cipher, suite.more
    )
}

/// Names of the pair's SAs that leave and come in on a side.
pub fn ways(side: Side, name: &str) -> (String, String) {
    let (there, back) = (format!("{name}-east"), format!("{name}-west"));
    if side == Side::West { (there, back) } else { (back, there) }
}

/// What lies behind the other side.
fn beyond(side: Side, ends: Ends) -> [&'static str; 2] {
    let [west, east] = ends.networks;
    if side == Side::West { [west, east] } else { [east, west] }
}

/// Route mode: a tunnel, and routes of both families through it.
pub fn tunnel(side: Side, name: &str) -> String {
    let (out, inbound) = ways(side, name);
    let mut text = format!("[[tunnel]]\nname = \"tun\"\nout = \"{out}\"\nin = \"{inbound}\"\n");
    for ends in families() {
        let [_, remote] = beyond(side, ends);
        text += &format!("[[route]]\nprefix = \"{remote}\"\nvia = {{ port = \"tun\" }}\n");
    }
    text
}

/// Policy mode: both families protected, routes to the other gateway, everything else dropped.
pub fn policies(side: Side, name: &str) -> String {
    let (out, inbound) = ways(side, name);
    let mut text = String::from("[[spd]]\nname = \"outside\"\nports = [\"wan\"]\ndefault = \"drop\"\n");
    for (n, ends) in families().into_iter().enumerate() {
        let [local, remote] = beyond(side, ends);
        let gateway = if side == Side::West { ends.between[1] } else { ends.between[0] };
        text += &format!(
            "[[policy]]\nspd = \"outside\"\nname = \"family-{n}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n\
             action = \"protect\"\nout = \"{out}\"\nin = \"{inbound}\"\n\
             [[route]]\nprefix = \"{remote}\"\nvia = \"{gateway}\"\n"
        );
    }
    text
}
