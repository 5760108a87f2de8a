//! `weir doctor`: what of the kernel a router with this configuration would do without, before it runs.
//!
//! Promises: reads only; each finding is a line with what it means. Status 1 when something decides about transit that
//! this router would not ask.

use std::collections::BTreeSet;
use std::path::Path;

use weir_core::conntrack::Admission;
use weir_core::mirror::{Outcome, Why};
use weir_core::wire::rtnetlink::traffic::{Hook, Item};
use weir_io::netlink::{self, LinkInfo, traffic};
use weir_io::umem::{ChunkSize, LINK_HEADER};

use crate::config::{self, Config};
use crate::failure::Failure;
use crate::router::mirror::members::Membership;
use crate::router::{firewall, may_be_zero_copy, mirror, mtu_max};
use crate::text::print;

pub fn run(file: &Path) -> Result<(), Failure> {
    let config = config::check(file).map_err(Failure::of)?;
    let links = netlink::links().map_err(|e| Failure(format!("listing devices: {e}")))?;
    let Findings { lines, decisive } = findings(&config, &links);
    let text: String = lines.iter().map(|finding| format!("{finding}\n")).collect();
    match lines.is_empty() {
        true => print(&format!("{}: this router does what the kernel here does\n", file.display())),
        false if decisive && !config.kernel.bypass_firewall => {
            print(&text)?;
            Err(Failure(format!(
                "{}: the kernel's packet filter would be bypassed, or cannot be read; `weir run` refuses without `firewall = \"kernel\"` or `--bypass-firewall`",
                file.display()
            )))
        }
        false => print(&text),
    }
}

/// What differs between a router and the kernel of this machine.
#[derive(Default)]
pub struct Findings {
    pub lines: Vec<String>,
    /// The kernel's packet filter decides about transit and would not be asked, or cannot be read.
    decisive: bool,
}

/// What differs between this router and the kernel of this machine; nothing, where its devices are not here.
pub fn findings(config: &Config, links: &[LinkInfo]) -> Findings {
    let devices = firewall::kernel_devices(config);
    let here = |device: &&str| links.iter().any(|l| l.name == **device);
    if devices.is_empty() || !devices.iter().all(here) {
        return Findings::default();
    }
    let (mut found, mut decisive) = (Vec::new(), false);
    match firewall::bypassed(&devices) {
        Ok(_) if config.kernel.firewall.is_some() => {
            let proved =
                config.kernel.firewall.as_ref().is_some_and(|f| f.admission == Admission::Established);
            let obstacles = if proved { firewall::established::obstacles(config) } else { Ok(Vec::new()) };
            found.extend(obstacles.unwrap_or_default().into_iter().map(|o| format!("firewall: {o}")));
        }
        Ok(bypassed) if bypassed.is_empty() => {}
        Ok(bypassed) => {
            decisive = !bypassed.decisive.is_empty();
            found.push(format!("firewall: {bypassed}"));
            let established = firewall::established::findings(config).unwrap_or_default();
            found.extend(established.into_iter().map(|finding| format!("firewall: {finding}")));
        }
        Err(error) => {
            decisive = true;
            found.push(format!("firewall: cannot be read ({error}); run as root"));
        }
    }
    routes(config, links, &mut found);
    let disciplines = traffic::disciplines();
    if let Err(error) = &disciplines {
        found.push(format!("traffic control cannot be read ({error}); run as root"));
    }
    let disciplines = disciplines.unwrap_or_default();
    for link in links.iter().filter(|l| devices.contains(&l.name.as_str())) {
        found.extend(membership(config, link, links));
        sysctls(&link.name, &mut found);
        traffic_control(link, &disciplines, &mut found);
        let zero_copy = config
            .devices()
            .into_iter()
            .filter(|port| port.device.value == link.name)
            .any(|port| may_be_zero_copy(port, &config.workers));
        found.extend(frames(&link.name, link.mtu, zero_copy));
    }
    Findings { lines: found, decisive }
}

/// What a device belongs to, where this router does not do what that does.
fn membership(config: &Config, link: &LinkInfo, links: &[LinkInfo]) -> Option<String> {
    let belongs = Membership::of(link, links);
    match belongs {
        Membership::None => None,
        Membership::Vrf { .. } if config.kernel.routes.is_some() => None,
        Membership::Vrf { .. } => {
            Some(format!("{}: {belongs}; `routes = \"kernel\"` follows its table", link.name))
        }
        Membership::Bond(name) => Some(format!(
            "{}: belongs to the bond {name}, whose frames come and go by any of its members; name {name} instead",
            link.name
        )),
        Membership::Other(name) => {
            Some(format!("{}: belongs to {name}, which the kernel bridges or routes by", link.name))
        }
    }
}

/// Lines of one kind; a full table behind an interface that is no port would be a million.
const LINES_MAX: usize = 20;

/// The first lines, and how many more there are of what they tell.
fn say_some(found: &mut Vec<String>, mut lines: impl Iterator<Item = String>, what: &str) {
    found.extend(lines.by_ref().take(LINES_MAX));
    let more = lines.count();
    if more > 0 {
        found.push(format!("routes: {more} more {what}"));
    }
}

fn routes(config: &Config, links: &[LinkInfo], found: &mut Vec<String>) {
    let mirror::Looked { aside, by_rule, routes } = match mirror::look(config, links) {
        Ok(looked) => looked,
        Err(Failure(why)) => return found.push(format!("routes: {why}")),
    };
    let mirrored = config.kernel.routes.is_some();
    found.extend(aside.into_iter().map(|rule| match mirrored {
        true => format!("routes: {rule}: its family is left to the kernel"),
        false => format!("routes: {rule}: not honoured"),
    }));
    let named = by_rule.iter().map(|(prefix, rule)| match mirrored {
        true => format!("routes: {rule}: {prefix} is left to the kernel"),
        false => format!("routes: {rule}: not honoured for {prefix}"),
    });
    say_some(found, named, "destinations of policy rules");
    if mirrored {
        let left = routes.iter().filter_map(|(prefix, route)| match &route.outcome {
            // Each rule has its line already.
            Outcome::Kernel(Why::Local | Why::Rule) => None,
            Outcome::Kernel(why) => Some(format!("routes: {prefix} is left to the kernel: {why}")),
            _ => None,
        });
        return say_some(found, left, "are left to the kernel");
    }
    let connected = |prefix| {
        let mut addresses = config.ports.iter().filter_map(|p| match &p.addresses {
            config::Addresses::Kernel => None,
            config::Addresses::List(list) => Some(list),
        });
        addresses
            .any(|list| list.iter().any(|a| weir_core::route::Prefix::new(a.value.0, a.value.1) == prefix))
    };
    let by_port = |route: &weir_core::mirror::KernelRoute| {
        use weir_core::wire::rtnetlink::Protocol;
        route.protocol == Protocol::KERNEL && matches!(route.outcome, Outcome::Via(_))
    };
    let lacking = routes.iter().filter(|(prefix, route)| {
        let has =
            config.routes.iter().any(|r| r.prefix.value == *prefix) || connected(*prefix) || by_port(route);
        !has && !matches!(route.outcome, Outcome::Kernel(Why::Local | Why::Rule))
    });
    found.extend(mirror::summary(lacking.map(|(p, r)| (*p, r.protocol))).map(|s| format!("routes: {s}")));
}

/// Frames that no buffer holds, or that are copied because a card might cut them.
fn frames(device: &str, mtu: u32, zero_copy: bool) -> Option<String> {
    let (held, whole) =
        (mtu_max(ChunkSize::Bytes4096.bytes()), ChunkSize::Bytes4096.card_room() - LINK_HEADER);
    if mtu > u32::from(held) {
        return Some(format!(
            "{device}: MTU {mtu} is more than a buffer holds: `weir run` refuses it; run `ip link set {device} mtu {held}`"
        ));
    }
    (zero_copy && mtu as usize > whole).then(|| {
        format!(
            "{device}: with MTU {mtu} frames are copied, for a card might cut them; zero-copy takes `ip link set {device} mtu {whole}`"
        )
    })
}

/// Traffic control of a device that packets forwarded here do not meet.
fn traffic_control(link: &LinkInfo, disciplines: &[Item], found: &mut Vec<String>) {
    /// Disciplines that only queue, as the kernel sets them up by itself; the last two are hooks for filters.
    const PLAIN: [&str; 9] =
        ["noqueue", "pfifo_fast", "pfifo", "bfifo", "fq_codel", "fq", "mq", "clsact", "ingress"];
    let name = &link.name;
    let kinds: BTreeSet<&str> =
        disciplines.iter().filter(|item| item.link == link.index).map(|item| item.kind.as_str()).collect();
    for kind in kinds.iter().filter(|kind| !PLAIN.contains(kind)) {
        found.push(format!(
            "{name}: what this router sends does not pass the queueing discipline {kind}: nothing shapes or delays it"
        ));
    }
    let hooks =
        [(Hook::Ingress, "ingress", &["clsact", "ingress"][..]), (Hook::Egress, "egress", &["clsact"])];
    for (hook, place, owners) in hooks {
        if !owners.iter().any(|owner| kinds.contains(owner)) {
            continue;
        }
        match traffic::filters(link.index, hook) {
            Ok(filters) if filters.is_empty() => {}
            Ok(filters) => found.push(format!(
                "{name}: what this router forwards does not meet traffic control's filters at {place}, of which there {} {}",
                if filters.len() == 1 { "is" } else { "are" },
                filters.len()
            )),
            Err(error) => found.push(format!("{name}: filters at {place} cannot be read ({error}); run as root")),
        }
    }
}

/// Settings of the kernel that it forwards by and this router does not.
fn sysctls(device: &str, found: &mut Vec<String>) {
    let read = |name: &str| {
        let path = format!("/proc/sys/net/{name}");
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let strict = [format!("ipv4/conf/{device}/rp_filter"), "ipv4/conf/all/rp_filter".to_owned()];
    if let Some(on) = strict.iter().filter_map(|name| read(name)).filter(|value| value != "0").max() {
        found.push(format!(
            "{device}: rp_filter is {on} in the kernel; write `rpf = \"{}\"` in its port",
            if on == "1" { "strict" } else { "loose" }
        ));
    }
    if read("ipv4/ip_forward").as_deref() == Some("0") {
        found.push(format!("{device}: ip_forward is 0: the kernel does not forward, this router does"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_no_buffer_holds_and_those_a_card_might_cut_are_said() {
        assert_eq!(frames("eth0", 1500, true), None);
        assert_eq!(frames("eth0", 3054, true), None);
        assert_eq!(frames("eth0", 3822, false), None, "copied anyhow");
        let cut = frames("eth0", 3055, true).expect("a card might");
        assert!(cut.ends_with("zero-copy takes `ip link set eth0 mtu 3054`"), "{cut}");
        let jumbo = frames("eth0", 9000, false).expect("no buffer holds it");
        assert!(jumbo.ends_with("`weir run` refuses it; run `ip link set eth0 mtu 3822`"), "{jumbo}");
    }
}
