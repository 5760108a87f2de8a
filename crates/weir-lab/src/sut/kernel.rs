//! Linux's own forwarding, as a careful operator sets it up for speed.
//!
//! Forwarding on, reverse-path filter off, early demultiplexing off (it looks up sockets a router does not
//! have), neighbours permanent, routes by `ip -batch`. No netfilter rules but those of `firewall`, so no connection tracking without it. GRO
//! off on the way in: it merges no UDP and costs a tenth. A veth without GRO loses its NAPI context, so a
//! program that passes every frame on keeps it, as a network card's would stay.

use std::error::Error;
use std::fmt::Write as _;

use weir_core::wire::DisplayMac;
use weir_io::bpf::attach::XdpMode;
use weir_io::offload::{self, Offload};
use weir_io::xdp_pass::Pass;

use super::{Environment, Running};
use crate::model::{Family, LabError};
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;
use crate::workload::address;

pub struct Kernel {
    family: Family,
    notes: Vec<String>,
    // Stays attached as long as the SUT runs.
    _pass: Option<Pass>,
}

/// Settings of the namespace, before addresses exist.
const SETTINGS: [(&str, &str); 9] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/ip_early_demux", "0"),
    ("net/ipv6/conf/all/forwarding", "1"),
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/all/accept_ra", "0"),
];

/// SNMP counters that say where a forwarded packet ended, and what we call them. OutNoRoutes is not one: it
/// counts the ICMP errors that find no way back to the generator.
const INET: [(&str, &str, &str); 5] = [
    ("Ip", "InHdrErrors", "kernel.in_hdr_errors"),
    ("Ip", "InAddrErrors", "kernel.in_addr_errors"),
    ("Ip", "InDiscards", "kernel.in_discards"),
    ("Ip", "OutDiscards", "kernel.out_discards"),
    ("IpExt", "InNoRoutes", "kernel.no_route"),
];
const INET6: [(&str, &str); 5] = [
    ("Ip6InHdrErrors", "kernel.in_hdr_errors"),
    ("Ip6InAddrErrors", "kernel.in_addr_errors"),
    ("Ip6InDiscards", "kernel.in_discards"),
    ("Ip6OutDiscards", "kernel.out_discards"),
    ("Ip6InNoRoutes", "kernel.no_route"),
];

impl Kernel {
    pub fn start(environment: &Environment) -> Result<Kernel, LabError> {
        // Rules stand on what was configured before.
        if environment.configuration.firewall().is_none() {
            configure(environment)?;
        }
        let name = environment.input.name.clone();
        let (pass, note) = match environment.namespace.run(move || without_gro(&name))? {
            Ok(pass) => {
                (Some(pass), "kernel: GRO off on the way in, NAPI kept by an XDP program that passes".into())
            }
            Err(error) => (None, format!("kernel: GRO stays on on the way in ({error})")),
        };
        Ok(Kernel { family: environment.configuration.workload.family, notes: vec![note], _pass: pass })
    }
}

/// Settings, addresses, neighbours and routes of a kernel that forwards.
pub fn configure(environment: &Environment) -> Result<(), LabError> {
    for (key, value) in SETTINGS {
        environment.namespace.sysctl(key, value)?;
    }
    addresses(environment)?;
    environment.namespace.ip_batch(routes(environment))
}

/// Switches GRO off and keeps NAPI.
pub(super) fn without_gro(device: &str) -> Result<Pass, Box<dyn Error + Send + Sync>> {
    let link = weir_io::netlink::link(device)?.ok_or("no such interface")?;
    let pass = Pass::attach(device, link.index, &[XdpMode::Native])?;
    offload::set(device, Offload::Gro, false)?;
    Ok(pass)
}

/// Our addresses on both wires, and the gateways as permanent neighbours.
pub(super) fn addresses(environment: &Environment) -> Result<(), LabError> {
    let (input, output) = (&environment.input.name, &environment.output.name);
    let mac = DisplayMac(environment.gateway_mac);
    let mut lines = String::new();
    let (i4, o4, i6, o6) = (address::IN_V4, address::OUT_V4, address::IN_V6, address::OUT_V6);
    let _ = writeln!(lines, "address add {}/{} dev {input}", i4.0, i4.1);
    let _ = writeln!(lines, "address add {}/{} dev {output}", o4.0, o4.1);
    let _ = writeln!(lines, "address add {}/{} dev {input} nodad", i6.0, i6.1);
    let _ = writeln!(lines, "address add {}/{} dev {output} nodad", o6.0, o6.1);
    for family in [Family::Inet, Family::Inet6] {
        for n in 0..address::GATEWAYS {
            let gateway = address::gateway(family, n);
            let _ = writeln!(lines, "neighbor replace {gateway} lladdr {mac} dev {output} nud permanent");
        }
    }
    environment.namespace.ip_batch(lines)
}

fn routes(environment: &Environment) -> String {
    let family = environment.configuration.workload.family;
    let mut lines = String::new();
    for n in 0..environment.configuration.routes {
        let (network, len) = address::prefix(family, n);
        let gateway = address::gateway(family, n);
        let _ = writeln!(lines, "route add {network}/{len} via {gateway} dev {}", environment.output.name);
    }
    lines
}

impl Running for Kernel {
    fn drops(&mut self, namespace: &Namespace) -> Result<Counters, LabError> {
        drops(self.family, namespace)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// Where forwarding ended packets of a family, by the SNMP counters of a namespace.
pub(super) fn drops(family: Family, namespace: &Namespace) -> Result<Counters, LabError> {
    let mut found = Counters::new();
    match family {
        Family::Inet => {
            let snmp = namespace.read("/proc/thread-self/net/snmp")?
                + &namespace.read("/proc/thread-self/net/netstat")?;
            for (table, field, name) in INET {
                found.insert(name.into(), in_table(&snmp, table, field).unwrap_or(0));
            }
        }
        Family::Inet6 => {
            let snmp6 = namespace.read("/proc/thread-self/net/snmp6")?;
            for (field, name) in INET6 {
                let line = snmp6.lines().find_map(|l| l.strip_prefix(field)?.trim().parse().ok());
                found.insert(name.into(), line.unwrap_or(0));
            }
        }
    }
    Ok(found)
}

/// A field of `/proc/net/snmp`: a line of names and a line of values, both after `Table:`.
pub fn in_table(text: &str, table: &str, field: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|l| l.strip_prefix(table)?.strip_prefix(':'));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|name| name == field)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_under_its_name() {
        let text = "Ip: Forwarding InDiscards\nIp: 1 42\nIpExt: InNoRoutes\nIpExt: 7\n";
        assert_eq!(in_table(text, "Ip", "InDiscards"), Some(42));
        assert_eq!(in_table(text, "IpExt", "InNoRoutes"), Some(7));
        assert_eq!(in_table(text, "Ip", "Nothing"), None);
    }
}
