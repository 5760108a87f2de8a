//! A firewall's established flows, made before a window: the generator's packets get no answer, so no flow would become
//! established by them.
//!
//! Promises: every flow of the workload has an entry that both directions have used, translated as the rules translate it, which outlives
//! the runs. The way back leads to the generator. Refuses: first packets, and how fast flows are made: what is measured is established flows.

use std::fmt::Write as _;

use weir_core::wire::ctnetlink::{self, Tuple};
use weir_core::wire::{DisplayMac, protocol};
use weir_io::netlink::conntrack::ConntrackRequests;

use super::namespace::Namespace;
use super::veth::Port;
use crate::model::{Configuration, Family, FirewallRules, LabError};
use crate::workload::address;

/// Longer than any campaign.
const LIFETIME_S: u32 = 86_400;

/// Rules, and the way back to the generator.
pub fn prepare(
    namespace: &Namespace,
    (input, output): (&Port, &Port),
    generator_mac: [u8; 6],
    rules: FirewallRules,
) -> Result<(), LabError> {
    namespace.nft(rules.text(&input.name, &output.name))?;
    let (mac, device) = (DisplayMac(generator_mac), &input.name);
    let mut lines = String::new();
    for family in [Family::Inet, Family::Inet6] {
        let (gateway, (sources, len)) = (address::generator(family), address::sources(family));
        let _ = writeln!(lines, "neighbor replace {gateway} lladdr {mac} dev {device} nud permanent");
        let _ = writeln!(lines, "route add {sources}/{len} via {gateway} dev {device}");
    }
    namespace.ip_batch(lines)
}

/// Makes the workload's flows, of which the kernel tells.
pub fn establish(
    namespace: &Namespace,
    configuration: &Configuration,
    rules: FirewallRules,
) -> Result<(), LabError> {
    namespace.sysctl("net/netfilter/nf_conntrack_events", "1")?;
    let (workload, routes) = (configuration.workload.clone(), configuration.routes);
    let own = match workload.family {
        Family::Inet => address::OUT_V4.0.into(),
        Family::Inet6 => address::OUT_V6.0.into(),
    };
    let masquerade = (rules == FirewallRules::Masquerade).then_some(own);
    namespace.run(move || {
        let failed = |e: std::io::Error| LabError::new(format!("conntrack: a flow cannot be made: {e}"));
        let mut requests = ConntrackRequests::open().map_err(failed)?;
        for flow in 0..workload.flows {
            let ends = address::ends(workload.family, flow, workload.flows, routes);
            let original = Tuple {
                source: ends.source,
                destination: ends.destination,
                protocol: protocol::UDP,
                source_port: ends.source_port,
                destination_port: ends.destination_port,
            };
            requests.send(&ctnetlink::establish(&original, masquerade, LIFETIME_S)).map_err(failed)?;
        }
        Ok(())
    })?
}
