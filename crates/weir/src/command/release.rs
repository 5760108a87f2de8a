//! `weir release`: gives devices back to the kernel whose transit a gateway kept from it.
//!
//! Promises: while a weir runs on one of the devices none is released; what the kernel does from then on is said.

use std::io;

use weir_io::netlink::{self, LinkInfo};
use weir_io::steer::enforce;

use crate::enforcement::{Claim, Taken, kernel_would, release_blocks};
use crate::failure::Failure;
use crate::text::{count, print};

/// Releases these devices; without names, every device of this network namespace that has a point.
pub fn run(devices: &[String]) -> Result<(), Failure> {
    let failed = |what: &str, error: io::Error| Failure(format!("{what}: {error}; run as root"));
    let links = netlink::links().map_err(|e| failed("listing devices", e))?;
    let mut held: Vec<(&LinkInfo, Option<u64>)> = Vec::new();
    for name in devices {
        if !links.iter().any(|link| link.name == *name) {
            let there: Vec<&str> = links.iter().map(|l| l.name.as_str()).collect();
            return Err(Failure(format!(
                "release: there is no device `{name}` here; devices are {}",
                there.join(", ")
            )));
        }
    }
    for link in links.iter().filter(|link| devices.is_empty() || devices.contains(&link.name)) {
        if !enforce::is_enforced(link.index).map_err(|e| failed(&link.name, e))? {
            continue;
        }
        if let Err(Taken::Weir) = Claim::new(link.index).map_err(|e| failed(&link.name, e))? {
            return Err(Failure(format!(
                "release: a weir with policies runs on {}; stop it first, or `weir apply` a file without that port; nothing was released",
                link.name
            )));
        }
        // Who may not read the counter may still take the program off.
        let dropped = enforce::counted(link.index).ok().flatten().map(|counters| counters.transit);
        held.push((link, dropped));
    }
    let mut out = String::new();
    for (link, dropped) in held {
        enforce::release(link.index).map_err(|e| failed(&link.name, e))?;
        let dropped =
            dropped.map_or(String::new(), |n| format!(" ({} dropped)", count(n as usize, "packet")));
        out += &format!("{}: given back to the kernel{dropped}: {}\n", link.name, kernel_would(&link.name));
    }
    if devices.is_empty() {
        for packets in release_blocks().map_err(|e| failed("policies of the kernel", e))? {
            out += &format!("the host's own packets from {packets}: no longer dropped\n");
        }
    }
    if out.is_empty() {
        out = "nothing to release: no device here has a policy enforcement point\n".to_owned();
    }
    print(&out)
}
