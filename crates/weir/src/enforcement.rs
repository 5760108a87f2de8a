//! Policy enforcement points as operators see them: who holds one, and what the kernel would do with traffic where
//! weir is not.
//!
//! Refuses to guess at more than forwarding and routes: firewalls are not read.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use weir_core::keying::Keying;
use weir_core::wire::xfrm::unblock;
use weir_io::af_packet::kernel_forwards;
use weir_io::netlink;
use weir_io::netlink::xfrm::{KeyRequests, dump};

use crate::config::Config;
use crate::text::count;

/// The number of errno(3) that a kernel without XFRM answers.
const EPROTONOSUPPORT: i32 = 93;

/// Takes back the kernel's policies by which a gateway with keys of the kernel has it drop what would leave in cleartext.
/// Returns what they are about; nothing on a kernel without XFRM.
pub fn release_blocks() -> io::Result<Vec<String>> {
    let mut requests = match KeyRequests::open() {
        Ok(requests) => requests,
        Err(error) if error.raw_os_error() == Some(EPROTONOSUPPORT) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut keying = Keying::default();
    dump(|news| _ = keying.observe(news))?;
    let mut released = Vec::new();
    for selector in keying.blocked() {
        requests.send(&unblock(selector))?;
        released.push(format!("{} to {}", selector.source, selector.destination));
    }
    Ok(released)
}

/// Held by the one weir that runs on an interface: an address of its network namespace, which the kernel takes
/// back when the process ends, however it ends.
pub struct Claim {
    _listener: UnixListener,
}

/// Who has a claim that is not to be had.
pub enum Taken {
    /// Root, or this user: a weir.
    Weir,
    /// Somebody who could not run a weir: no reason to stop.
    Stranger { uid: u32 },
}

impl Claim {
    pub fn new(ifindex: u32) -> io::Result<Result<Claim, Taken>> {
        let address = SocketAddr::from_abstract_name(format!("weir-enforcement-{ifindex}"))?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Ok(Claim { _listener: listener })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(Err(holder(&address)?)),
            Err(error) => Err(error),
        }
    }
}

fn holder(address: &SocketAddr) -> io::Result<Taken> {
    let Ok(stream) = UnixStream::connect_addr(address) else { return Ok(Taken::Weir) };
    let uid = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    let own = std::fs::metadata("/proc/self")?.uid();
    let weir = uid.is_root() || uid.as_raw() == own;
    Ok(if weir { Taken::Weir } else { Taken::Stranger { uid: uid.as_raw() } })
}

/// What the kernel does with transit of a device that reaches it.
pub fn kernel_would(device: &str) -> String {
    let (v4, v6) = kernel_forwards(device);
    let mut families = Vec::new();
    if v4 {
        let (routes, default) = routes4();
        families.push(format!("IPv4 (net.ipv4.conf.{device}.forwarding is on, {})", by(routes, default)));
    }
    if v6 {
        let (routes, default) = routes6();
        families.push(format!("IPv6 (net.ipv6.conf.all.forwarding is on, {})", by(routes, default)));
    }
    match families.as_slice() {
        [] => "the kernel forwards nothing from it (forwarding is off)".to_owned(),
        families => format!("the kernel forwards {} from it in cleartext", families.join(" and ")),
    }
}

fn by(routes: usize, default: bool) -> String {
    format!("{}{}", count(routes, "route"), if default { ", the default one among them" } else { "" })
}

/// Routes of the main table, and whether one is the default.
fn routes4() -> (usize, bool) {
    let text = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let destinations: Vec<&str> = text.lines().skip(1).filter_map(|l| l.split_whitespace().nth(1)).collect();
    (destinations.len(), destinations.contains(&"00000000"))
}

/// The same for IPv6, without the host's own addresses and what is unreachable.
fn routes6() -> (usize, bool) {
    let text = std::fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    let routes: Vec<&str> = text.lines().filter(|l| !l.ends_with(" lo") && !l.starts_with("ff")).collect();
    let default = routes.iter().any(|l| l.starts_with("00000000000000000000000000000000 00"));
    (routes.len(), default)
}

/// Says, for `weir check` on the machine that is to run a configuration with policies, what happens where weir is
/// not.
pub fn without_weir(config: &Config) -> Vec<String> {
    if !config.enforces() {
        return Vec::new();
    }
    let links = netlink::links().unwrap_or_default();
    let here = config.enforced_devices();
    let here = here.into_iter().filter(|port| links.iter().any(|link| link.name == port.device.value));
    here.map(|port| {
        let device = &port.device.value;
        format!(
            "port {} ({device}): before weir's first start and after `weir release`, {}",
            port.name.value,
            kernel_would(device)
        )
    })
    .collect()
}
