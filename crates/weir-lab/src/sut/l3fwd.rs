//! DPDK's l3fwd: routes by longest prefix match, lowers IPv4's hop limit, rewrites link-layer addresses.
//!
//! Debian has its source alone; `scripts/peers l3fwd` builds it. A next hop is a port here, so all routes lead to one.
//! Packets without a route go back out of the port they came in by; IPv6's hop limit it leaves alone.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use weir_core::wire::DisplayMac;

use super::dpdk::{Dpdk, DpdkProgram, Ends};
use super::peer::{self, ProcessPlacement};
use super::{Environment, Running};
use crate::model::{Configuration, Family, LabError};
use crate::workload::address;

const NAME: &str = "dpdk-l3fwd";
const MISSING: &str = "dpdk-l3fwd: no such program in ~/.cache/weir/peers/bin or on the PATH: `scripts/peers dpdk-l3fwd` builds it";
/// `IPV4_L3FWD_LPM_MAX_RULES` and its twin for IPv6.
const RULES_MAX: u32 = 1024;

pub fn missing(configuration: &Configuration) -> Option<String> {
    if configuration.routes > RULES_MAX {
        let routes = configuration.routes;
        return Some(format!("dpdk-l3fwd: {routes} routes, its tables hold {RULES_MAX}: lower `routes`"));
    }
    peer::find(NAME).is_none().then(|| MISSING.into())
}

pub fn start(environment: &Environment<'_>) -> Result<Box<dyn Running>, LabError> {
    let mac = DisplayMac(environment.gateway_mac).to_string();
    let family = environment.configuration.workload.family;
    let prefixes = (0..environment.configuration.routes).map(|n| address::prefix(family, n));
    let rules: Vec<String> = prefixes.map(|(network, len)| format!("{network}/{len}")).collect();
    let place = ProcessPlacement { namespace: Some(environment.namespace), cpus: environment.cpus };
    Ok(Box::new(Dpdk::start(
        plan(Ends::of(environment), environment.cpus[0], &mac, (family, &rules))?,
        place,
    )?))
}

/// Starts l3fwd in memory: from a capture file to nowhere, by these prefixes.
pub fn start_alone(
    capture: PathBuf,
    cpu: u32,
    family: Family,
    prefixes: &[String],
) -> Result<Dpdk, LabError> {
    // its telemetry answers from another CPU than the busy one
    let place = ProcessPlacement { namespace: None, cpus: &[] };
    Dpdk::start(plan(Ends::Capture(capture), cpu, "02:00:00:01:00:00", (family, prefixes))?, place)
}

fn plan(
    ends: Ends,
    cpu: u32,
    mac: &str,
    (family, prefixes): (Family, &[String]),
) -> Result<DpdkProgram, LabError> {
    // both files are required; documentation prefixes stand in the other
    let (inet, inet6) = match family {
        Family::Inet => (rules(prefixes), rules(&["2001:db8::/32".into()])),
        Family::Inet6 => (rules(&["192.0.2.0/24".into()]), rules(prefixes)),
    };
    let peer = format!("--eth-dest=1,{mac}");
    let (count, first) = (prefixes.len(), prefixes.first().map_or("", String::as_str));
    Ok(DpdkProgram {
        name: NAME,
        program: peer::find(NAME).ok_or_else(|| LabError::new(MISSING.into()))?,
        cores: format!("0@{cpu}"),
        ends,
        environment: Vec::new(),
        preload: None,
        words: Box::new(move |folder| {
            let (v4, v6) = (folder.join("routes4"), folder.join("routes6"));
            fs::write(&v4, inet)?;
            fs::write(&v6, inet6)?;
            let files = [("rule_ipv4", v4), ("rule_ipv6", v6)];
            let mut words: Vec<String> =
                ["-p", "0x3", "-P", "--lookup=lpm", "--parse-ptype"].map(String::from).to_vec();
            words.extend(["--config=(0,0,0),(1,0,0)".into(), peer]);
            words.extend(files.map(|(what, file)| format!("--{what}={}", file.display())));
            Ok(words)
        }),
        ready: "entering main loop",
        note: format!(
            "{count} rules as `R{first} 1`; every next hop is port 1; checksums of packets are not verified"
        ),
    })
}

/// A line a route; port 1 is the next hop of all.
fn rules(prefixes: &[String]) -> String {
    prefixes.iter().fold(String::new(), |mut text, prefix| {
        let _ = writeln!(text, "R{prefix} 1");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_a_line_and_leads_to_port_1() {
        assert_eq!(rules(&["32.0.0.0/24".into(), "2a00::/48".into()]), "R32.0.0.0/24 1\nR2a00::/48 1\n");
    }
}
