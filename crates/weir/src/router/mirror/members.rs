//! Whose packets are looked up where: devices that belong to a VRF, a bridge or a bond.
//!
//! Promises: where every port belongs to one VRF, that VRF's table is the one mirrored. Refuses, by name: ports of several VRFs in one
//! router, which has one table, and members of bridges and bonds, whose packets are not routed where they come in.

use std::fmt;

use weir_core::mirror::Filter;
use weir_core::wire::rtnetlink::TABLE_MAIN;
use weir_io::netlink::LinkInfo;

use crate::config::{Config, Port};
use crate::failure::Failure;
use crate::router::links::kernel_device;

/// What a device belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership<'a> {
    None,
    Vrf {
        name: &'a str,
        table: u32,
    },
    /// A bond, which can be a port itself.
    Bond(&'a str),
    /// A bridge, or what else has members.
    Other(&'a str),
}

impl<'a> Membership<'a> {
    pub fn of(link: &LinkInfo, links: &'a [LinkInfo]) -> Membership<'a> {
        let Some(master) = link.master else { return Membership::None };
        match links.iter().find(|l| l.index == master) {
            Some(LinkInfo { name, vrf: Some(table), .. }) => Membership::Vrf { name, table: *table },
            Some(LinkInfo { name, bond: true, .. }) => Membership::Bond(name),
            Some(other) => Membership::Other(&other.name),
            None => Membership::Other("another device"),
        }
    }

    /// The VRF's table its packets are looked up in, if it belongs to a VRF. None: they are not looked up where they come in.
    pub fn table(&self) -> Option<Option<u32>> {
        match self {
            Membership::None => Some(None),
            Membership::Vrf { table, .. } => Some(Some(*table)),
            Membership::Bond(_) | Membership::Other(_) => None,
        }
    }
}

impl fmt::Display for Membership<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Membership::None => f.write_str("belongs to no VRF"),
            Membership::Vrf { name, table } => write!(f, "belongs to VRF {name} (table {table})"),
            Membership::Bond(name) => write!(f, "belongs to the bond {name}"),
            Membership::Other(name) => write!(f, "belongs to {name}"),
        }
    }
}

/// `VRF red (table 10)`, where that is what is mirrored.
pub fn vrf_name(filter: &Filter, links: &[LinkInfo]) -> Option<String> {
    let vrf = links.iter().find(|l| filter.vrf && l.vrf == Some(filter.table))?;
    Some(format!("VRF {} (table {})", vrf.name, filter.table))
}

/// What the configuration says of routes, with the table of the VRF the ports belong to.
pub fn filter(config: &Config, links: &[LinkInfo]) -> Result<Filter, Failure> {
    let filter = config.kernel.routes.clone().unwrap_or_default();
    let complain = |port: &Port, why: String| {
        Failure(config.complain(port.device.span.clone(), format!("port {}: {why}", port.name.value)))
    };
    for port in config.devices() {
        let Some(link) = links.iter().find(|l| l.name == port.device.value) else { continue };
        let here = Membership::of(link, links);
        let instead = match here {
            Membership::None | Membership::Vrf { .. } => continue,
            Membership::Bond(name) => {
                format!("whose frames come and go by any of its members; name {name} instead")
            }
            Membership::Other(_) => {
                "whose routes the kernel looks up; name a device that belongs to none".to_owned()
            }
        };
        return Err(complain(port, format!("{} {here}, {instead}", link.name)));
    }
    let mut first: Option<(&Port, String, Membership<'_>)> = None;
    for port in &config.ports {
        let device = kernel_device(port);
        let Some(link) = links.iter().find(|l| l.name == device) else { continue };
        let here = Membership::of(link, links);
        match &first {
            Some((_, device, there)) if *there != here => {
                let why = format!(
                    "{} {here}, but {device} {there}: a router has one table; run one for each VRF",
                    link.name
                );
                return Err(complain(port, why));
            }
            Some(_) => {}
            None => first = Some((port, device, here)),
        }
    }
    match first {
        Some((port, device, Membership::Vrf { name, table })) => {
            if ![TABLE_MAIN, table].contains(&filter.table) {
                let why = format!(
                    "{device} belongs to VRF {name}, whose table is {table}, but `routes` names table {}; leave the table out",
                    filter.table
                );
                return Err(complain(port, why));
            }
            Ok(Filter { table, vrf: true, ..filter })
        }
        _ => Ok(filter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn link(index: u32, name: &str, master: Option<u32>, vrf: Option<u32>) -> LinkInfo {
        LinkInfo {
            index,
            name: name.to_owned(),
            mac: Default::default(),
            mtu: 1500,
            up: true,
            running: true,
            ethernet: true,
            loopback: false,
            master,
            if_id: None,
            vrf,
            bond: name.starts_with("bond"),
            vlan: None,
        }
    }

    fn judged(routes: &str, masters: [Option<u32>; 2]) -> Result<Filter, Failure> {
        let text = format!(
            "routes = {routes}\n[[port]]\nname = \"lan\"\ndevice = \"eth0\"\n[[port]]\nname = \"wan\"\ndevice = \"eth1\"\n"
        );
        let config = config::parse("t", "t", text).expect("a configuration");
        let links = [
            link(1, "eth0", masters[0], None),
            link(2, "eth1", masters[1], None),
            link(3, "red", None, Some(10)),
            link(4, "blue", None, Some(20)),
            link(5, "br0", None, None),
            link(6, "bond0", None, None),
        ];
        filter(&config, &links)
    }

    #[test]
    fn the_table_is_that_of_the_vrf_every_port_belongs_to() {
        let main = judged("\"kernel\"", [None, None]).expect("no VRF");
        assert_eq!((main.table, main.vrf), (TABLE_MAIN, false));
        let red = judged("\"kernel\"", [Some(3), Some(3)]).expect("one VRF");
        assert_eq!((red.table, red.vrf), (10, true));
        let named = judged("{ from = \"kernel\", table = 10 }", [Some(3), Some(3)]).expect("its own table");
        assert_eq!((named.table, named.vrf), (10, true));
    }

    #[test]
    fn ports_whose_packets_are_looked_up_in_several_places_are_refused_by_name() {
        for (routes, masters, expected) in [
            (
                "\"kernel\"",
                [Some(3), Some(4)],
                "port wan: eth1 belongs to VRF blue (table 20), but eth0 belongs to VRF red (table 10)",
            ),
            (
                "\"kernel\"",
                [Some(3), None],
                "port wan: eth1 belongs to no VRF, but eth0 belongs to VRF red (table 10)",
            ),
            ("\"kernel\"", [None, Some(5)], "port wan: eth1 belongs to br0"),
            (
                "\"kernel\"",
                [None, Some(6)],
                "port wan: eth1 belongs to the bond bond0, whose frames come and go by any of its members; name bond0 instead",
            ),
            ("{ from = \"kernel\", table = 20 }", [Some(3), Some(3)], "names table 20; leave the table out"),
        ] {
            let Failure(why) = judged(routes, masters).expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
    }
}
