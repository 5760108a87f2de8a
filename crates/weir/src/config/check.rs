//! What each entry promises must fit the others: names, devices, connected networks, next hops.
//!
//! Ports with `addresses = "kernel"` have networks only the machine knows; what would need them is left
//! to the daemon.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use weir_core::route::Prefix;
use weir_core::state::{Element, HopProblem, Problem};

use super::port::MTU_MIN_IPV6;
use super::route::NextHop;
use super::source::{Complaints, Excerpt, nearest};
use super::{Addresses, Config, Kind, Placed, Port, Via};

pub fn check(config: &Config, complaints: &mut Complaints) {
    if config.ports.is_empty() && complaints.is_empty() {
        complaints.add(
            0..0,
            "the file has no port, expected at least one; write `[[port]]` with `name` and `device`",
        );
    }
    port_names(config, complaints);
    devices(config, complaints);
    addresses(config, complaints);
    let ports = Ports::new(config);
    routes(config, &ports, complaints);
    neighbors(config, &ports, complaints);
    for spd in &config.ipsec.spds {
        let subject = format!("spd {}", spd.name.value);
        for port in &spd.ports {
            ports.known(port, &subject, complaints);
        }
    }
    config.ipsec.check_names(&ports.names, complaints);
    firewall(config, complaints);
}

/// Flows past the kernel's firewall take the kernel's routes, and XDP on every port.
fn firewall(config: &Config, complaints: &mut Complaints) {
    let Some(firewall) = &config.kernel.firewall else { return };
    let mut refuse = |what: &str| complaints.add(firewall.at.clone(), format!("firewall: {what}"));
    if config.kernel.routes.is_none() {
        refuse("flows take the kernel's routes; write `routes = \"kernel\"`");
    }
    if config.enforces() {
        refuse(
            "the kernel forwards what is not taken, and IPsec here keeps that from it; remove one of the two",
        );
    }
    if config.kernel.bypass_firewall {
        refuse("`bypass_firewall` says that the kernel's rules are not asked; remove one of the two");
    }
    if config.workers.flow_offload_off {
        refuse("flows are forwarded by XDP; remove `flow_offload = \"off\"` from [workers]");
    }
    for port in &config.ports {
        let (name, kind) = (&port.name.value, port.kind.value);
        if !matches!(kind, Kind::Auto | Kind::AfXdp) {
            complaints.add(
                port.kind.span.clone(),
                format!("port {name}: flows past the kernel's firewall need XDP; write `kind = \"af_xdp\"`"),
            );
        }
        if port.addresses != Addresses::Kernel {
            complaints.add(
                port.name.span.clone(),
                format!(
                    "port {name}: with `firewall` addresses are the kernel's; write `addresses = \"kernel\"`"
                ),
            );
        }
    }
}

/// What the core, which builds tables of it, has to say beyond that. It is asked only about a file that is
/// good so far, so that nothing is said twice.
pub fn check_core(config: &Config, complaints: &mut Complaints) {
    let open = config.ports.iter().any(|p| p.addresses == Addresses::Kernel);
    for error in weir_core::state::check(&config.desired(&|_| Vec::new())) {
        // Networks the kernel knows are not known here.
        if open && matches!(error.problem, Problem::NextHop(HopProblem::GatewayNotConnected { .. })) {
            continue;
        }
        complaints.add(span_of(config, error.at), error.to_string());
    }
}

/// The place of the file that what the core refuses is about.
pub fn place_of(config: &Config, error: &weir_core::state::Error) -> Excerpt {
    config.excerpt(span_of(config, error.at))
}

pub(super) fn span_of(config: &Config, at: Element) -> Range<usize> {
    let port = |i: usize| config.ports.get(i).map_or(0..0, |p| p.name.span.clone());
    match at {
        Element::Ports | Element::Routes | Element::Settings => 0..0,
        Element::Ipsec(at) => config.ipsec.span_of(at),
        Element::Port(i) => port(i),
        Element::Address { port: p, address } => match config.ports.get(p).map(|p| &p.addresses) {
            Some(Addresses::List(list)) => list.get(address).map_or(port(p), |a| a.span.clone()),
            _ => port(p),
        },
        Element::Route(i) => config.routes.get(i).map_or(0..0, |r| r.prefix.span.clone()),
        Element::NextHop { route, hop } => match config.routes.get(route).map(|r| (&r.via, &r.prefix)) {
            Some((Via::NextHops(hops), prefix)) => {
                hops.get(hop).map_or(prefix.span.clone(), |h| h.span.clone())
            }
            Some((_, prefix)) => prefix.span.clone(),
            None => 0..0,
        },
        Element::Neighbor(i) => config.neighbors.get(i).map_or(0..0, |n| n.address.span.clone()),
    }
}

/// What routes and neighbours ask about ports.
struct Ports<'a> {
    names: Vec<&'a str>,
    /// (port, its network, its address there).
    networks: Vec<(&'a str, Prefix, IpAddr)>,
    /// Some port's networks are the kernel's to say.
    open: Vec<&'a str>,
}

impl<'a> Ports<'a> {
    fn new(config: &'a Config) -> Self {
        let mut ports = Ports { names: Vec::new(), networks: Vec::new(), open: Vec::new() };
        let network = |name, a: &Placed<(IpAddr, u8)>| (name, Prefix::new(a.value.0, a.value.1), a.value.0);
        for port in &config.ports {
            let name = port.name.value.as_str();
            ports.names.push(name);
            match &port.addresses {
                Addresses::Kernel => ports.open.push(name),
                Addresses::List(list) => ports.networks.extend(list.iter().map(|a| network(name, a))),
            }
        }
        for tunnel in &config.ipsec.tunnels {
            let name = tunnel.name.value.as_str();
            ports.names.push(name);
            ports.networks.extend(tunnel.addresses.iter().map(|a| network(name, a)));
        }
        ports
    }

    /// Complains when no port has this name.
    fn known(&self, port: &Placed<String>, subject: &str, complaints: &mut Complaints) -> bool {
        let name = port.value.as_str();
        if self.names.contains(&name) {
            return true;
        }
        let remedy = match nearest(name, &self.names) {
            Some(near) => format!("write `{near}`"),
            None => format!("add a `[[port]]` with `name = \"{name}\"`"),
        };
        let expected = match self.names.as_slice() {
            [] => "a port of this file".to_owned(),
            names => super::read::alternatives(&names[..names.len().min(8)]),
        };
        complaints.add(
            port.span.clone(),
            format!("{subject}: there is no port `{name}`, expected {expected}; {remedy}"),
        );
        false
    }

    fn is_open(&self, port: Option<&str>) -> bool {
        match port {
            Some(port) => self.open.contains(&port),
            None => !self.open.is_empty(),
        }
    }
}

fn port_names(config: &Config, complaints: &mut Complaints) {
    let mut first: HashMap<&str, usize> = HashMap::new();
    for port in &config.ports {
        let line = config.source.position(port.name.span.start).0;
        if let Some(first) = first.insert(&port.name.value, line) {
            complaints.add(
                port.name.span.clone(),
                format!("port {}: the name is taken by line {first}; write another one", port.name.value),
            );
        }
    }
}

/// A device has one kind and carries each VLAN once.
fn devices(config: &Config, complaints: &mut Complaints) {
    for (n, port) in config.ports.iter().enumerate() {
        let (name, device) = (&port.name.value, &port.device.value);
        for other in config.ports[..n].iter().filter(|o| o.device.value == *device) {
            let tag = port.vlan.as_ref().map(|v| v.value);
            if tag == other.vlan.as_ref().map(|v| v.value) {
                let (what, remedy) = match tag {
                    Some(tag) => (format!("VLAN {tag}"), "write another `vlan`"),
                    None => {
                        ("untagged frames".to_owned(), "write `vlan = …` on one of them, or another device")
                    }
                };
                let at = port.vlan.as_ref().map_or(&port.device.span, |v| &v.span);
                complaints.add(
                    at.clone(),
                    format!(
                        "port {name}: {what} of {device} already go to port {}; {remedy}",
                        other.name.value
                    ),
                );
            }
            if port.kind.value != other.kind.value {
                complaints.add(
                    port.kind.span.clone(),
                    format!(
                        "port {name}: {device} has kind `{}` here and `{}` on port {}; write the same kind",
                        port.kind.value.name(),
                        other.kind.value.name(),
                        other.name.value
                    ),
                );
            }
        }
    }
}

fn addresses(config: &Config, complaints: &mut Complaints) {
    let mut seen: Vec<(&Port, IpAddr, Prefix)> = Vec::new();
    for port in &config.ports {
        let Addresses::List(list) = &port.addresses else { continue };
        for address in list {
            let (host, len) = address.value;
            address_against_others(port, address, &seen, complaints);
            seen.push((port, host, Prefix::new(host, len)));
        }
        if let Some(mtu) = port.mtu.as_ref().filter(|m| m.value < MTU_MIN_IPV6)
            && list.iter().any(|a| a.value.0.is_ipv6())
        {
            complaints.add(
                mtu.span.clone(),
                format!(
                    "port {}: mtu is {}, expected at least {MTU_MIN_IPV6} with an IPv6 address (RFC 8200); write {MTU_MIN_IPV6} or remove the address",
                    port.name.value, mtu.value
                ),
            );
        }
    }
}

fn address_against_others(
    port: &Port,
    address: &Placed<(IpAddr, u8)>,
    seen: &[(&Port, IpAddr, Prefix)],
    complaints: &mut Complaints,
) {
    let (host, len) = address.value;
    let network = Prefix::new(host, len);
    let link_local = matches!(host, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let name = &port.name.value;
    for (other, other_host, other_network) in seen {
        let same_port = std::ptr::eq(*other, port);
        if link_local && !same_port {
            continue;
        }
        if *other_host == host {
            complaints.add(
                address.span.clone(),
                format!("port {name}: {host} is already an address of port {}; remove one", other.name.value),
            );
        } else if !same_port && *other_network == network {
            complaints.add(
                address.span.clone(),
                format!(
                    "port {name}: the network {network} is already connected to port {}; a network has one port, write another prefix",
                    other.name.value
                ),
            );
        } else {
            continue;
        }
        return;
    }
}

fn routes(config: &Config, ports: &Ports<'_>, complaints: &mut Complaints) {
    let mut first: HashMap<Prefix, usize> = HashMap::with_capacity(config.routes.len());
    for route in &config.routes {
        let prefix = route.prefix.value;
        // A full table has a million routes: lines are counted only for those that are wrong.
        if let Some(first) = first.insert(prefix, route.prefix.span.start) {
            let first = config.source.position(first).0;
            complaints.add(
                route.prefix.span.clone(),
                format!(
                    "route {prefix}: the prefix already has a route in line {first}; for several next hops write them as one list in `via`"
                ),
            );
        }
        if let Some((port, ..)) = ports.networks.iter().find(|n| n.1 == prefix) {
            complaints.add(
                route.prefix.span.clone(),
                format!(
                    "route {prefix}: the network is connected to port {port}, which needs no route; remove it or write longer prefixes"
                ),
            );
        }
        if let Via::NextHops(hops) = &route.via {
            for hop in hops {
                next_hop(prefix, hop, ports, complaints);
            }
        }
    }
}

fn next_hop(prefix: Prefix, hop: &NextHop, ports: &Ports<'_>, complaints: &mut Complaints) {
    let subject = format!("route {prefix}");
    if let Some(port) = &hop.port
        && !ports.known(port, &subject, complaints)
    {
        return;
    }
    let Some(gateway) = &hop.gateway else { return };
    let port = hop.port.as_ref().map(|p| p.value.as_str());
    let mut refuse = |text: String| complaints.add(gateway.span.clone(), format!("{subject}: {text}"));
    let address = gateway.value;
    if address.is_ipv4() != matches!(prefix, Prefix::V4(_)) {
        let (got, expected) = if address.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
        refuse(format!(
            "gateway {address} is an {got} address, expected {expected} as the prefix is; write the gateway's {expected} address"
        ));
        return;
    }
    if address.is_multicast() || address.is_unspecified() || address.is_loopback() {
        refuse(format!(
            "gateway {address} is no router's address, expected a unicast one; write the next router's own address"
        ));
        return;
    }
    if ports.networks.iter().any(|n| n.2 == address) {
        refuse(format!("gateway {address} is this router itself, expected the next one; write its address"));
        return;
    }
    if matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        if port.is_none() {
            refuse(format!(
                "gateway {address} is link-local, expected a port with it; write `via = {{ gateway = \"{address}\", port = \"…\" }}`"
            ));
        }
        return;
    }
    connected(&format!("{subject}: gateway {address}"), gateway, port, ports, complaints);
}

/// An address must be on a network of its port (of any port when none is named).
fn connected(
    subject: &str,
    address: &Placed<IpAddr>,
    port: Option<&str>,
    ports: &Ports<'_>,
    complaints: &mut Complaints,
) {
    let here = |network: &Prefix| match (network, address.value) {
        (Prefix::V4(p), IpAddr::V4(a)) => p.contains(a),
        (Prefix::V6(p), IpAddr::V6(a)) => p.contains(a),
        _ => false,
    };
    let on_port = |name: &str| port.is_none_or(|p| p == name);
    if ports.is_open(port) || ports.networks.iter().any(|n| on_port(n.0) && here(&n.1)) {
        return;
    }
    let elsewhere = ports.networks.iter().find(|n| here(&n.1));
    let same_family = |p: &Prefix| matches!(p, Prefix::V4(_)) == address.value.is_ipv4();
    let networks: Vec<String> = ports
        .networks
        .iter()
        .filter(|n| on_port(n.0) && same_family(&n.1))
        .take(4)
        .map(|n| format!("{} ({})", n.1, n.0))
        .collect();
    let family = if address.value.is_ipv4() { "IPv4" } else { "IPv6" };
    let expected = match (networks.is_empty(), port) {
        (false, _) => format!("one of {}", networks.join(", ")),
        (true, Some(port)) => format!("an {family} network on port {port}, which has none"),
        (true, None) => format!("an {family} network on some port, and there is none"),
    };
    let remedy = match elsewhere {
        Some((port, ..)) => format!("write `port = \"{port}\"`"),
        None => {
            format!("write an address on one of them, or add a port address that covers {}", address.value)
        }
    };
    let network = match port {
        Some(port) => format!("a network of port {port}"),
        None => "a connected network".to_owned(),
    };
    let text = format!("{subject} is not on {network}; expected {expected}; {remedy}");
    complaints.add(address.span.clone(), text);
}

fn neighbors(config: &Config, ports: &Ports<'_>, complaints: &mut Complaints) {
    let mut first: HashMap<(&str, IpAddr), Range<usize>> = HashMap::new();
    for neighbor in &config.neighbors {
        let address = neighbor.address.value;
        let subject = format!("neighbor {address}");
        if !ports.known(&neighbor.port, &subject, complaints) {
            continue;
        }
        let port = neighbor.port.value.as_str();
        if let Some(first) = first.insert((port, address), neighbor.address.span.clone()) {
            let line = config.source.position(first.start).0;
            complaints.add(
                neighbor.address.span.clone(),
                format!("{subject}: port {port} has it already in line {line}; remove one"),
            );
        }
        if ports.networks.iter().any(|n| n.2 == address) {
            complaints.add(
                neighbor.address.span.clone(),
                format!("{subject}: this is our own address, expected another host's; remove it"),
            );
        } else if !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            connected(&format!("{subject}: {address}"), &neighbor.address, Some(port), ports, complaints);
        }
    }
}
