//! The start of following: what there is now, and whether it can be followed.

use std::sync::Arc;

use weir_core::control::Control;
use weir_core::mirror::{Filter, KernelRoute, Mirror, Passes};
use weir_core::route::Prefix;
use weir_core::time::Nanos;
use weir_core::wire::rtnetlink::{GET_NEXT_HOP, GET_ROUTE, GET_RULE};
use weir_io::netlink::routes::dump;
use weir_io::netlink::{self, LinkInfo};
use weir_io::wake::Waker;

use super::{Follower, Routes, members, mirror_links};
use crate::config::{self, Config};
use crate::failure::Failure;
use crate::router::memory;

/// Follows the kernel's routes: into the tables, or only to say which are lacking. The first of them are in `control`
/// afterwards; what is left to the kernel is returned.
pub fn begin(
    config: &Config,
    links: &[LinkInfo],
    now: Nanos,
    news: &Arc<Waker>,
    control: &mut Control,
) -> Result<(Option<Routes>, Option<Passes>), Failure> {
    let mirrored = config.kernel.routes.is_some();
    let mut filter = if mirrored { members::filter(config, links)? } else { Filter::default() };
    if filter.most == usize::MAX {
        filter.most = memory::routes();
    }
    if mirrored {
        control.follow_kernel_neighbors(now);
    }
    let ports = mirror_links(config, links, &filter);
    let (follower, first) = match Follower::start(filter.clone(), ports, news.clone()) {
        Ok(started) => started,
        Err(error) if mirrored => {
            return Err(Failure(format!(
                "routes: the kernel does not tell its routes ({error}); run as root"
            )));
        }
        Err(error) => {
            tracing::warn!(
                "the kernel does not tell its routes ({error}); which of them are lacking is not known"
            );
            return Ok((None, None));
        }
    };
    let of = members::vrf_name(&filter, links).map_or(String::new(), |vrf| format!(" for {vrf}"));
    let mut routes = Routes::new(follower, mirrored, filter);
    let passes = first.passes.clone().filter(|_| mirrored);
    let told = first.routes.len();
    routes.take(now, first, control, None);
    if mirrored {
        tracing::info!("{told} prefixes of the kernel's routes{of}; they are followed");
    }
    Ok((Some(routes), passes))
}

/// The kernel's routes at one moment.
pub struct Looked {
    /// Why everything of a family would be left to the kernel.
    pub aside: Vec<String>,
    /// Policy rules for which only a destination would be.
    pub by_rule: Vec<(Prefix, String)>,
    pub routes: Vec<(Prefix, KernelRoute)>,
}

/// The kernel's routes as they are now.
pub fn look(config: &Config, links: &[LinkInfo]) -> Result<Looked, Failure> {
    let mirrored = config.kernel.routes.is_some();
    let filter = if mirrored { members::filter(config, links)? } else { Filter::default() };
    let ports = mirror_links(config, links, &filter);
    let mut mirror = Mirror::new(filter);
    mirror.set_links(ports);
    mirror.begin_resync();
    for kind in [GET_RULE, GET_NEXT_HOP, GET_ROUTE] {
        dump(kind, |news| _ = mirror.observe(news)).map_err(|e| Failure(format!("cannot be read ({e})")))?;
    }
    mirror.end_resync();
    Ok(Looked {
        aside: mirror.aside().map(str::to_owned).collect(),
        by_rule: mirror.by_rule().map(|(prefix, rule)| (prefix, rule.to_owned())).collect(),
        routes: mirror.all().collect(),
    })
}

/// The configuration of `weir accelerate`: these devices, with everything the kernel has on them, and a value of `firewall`.
pub fn taken_over(devices: &[String], keys: bool, firewall: Option<&str>) -> Result<Config, Failure> {
    const NAME: &str = "accelerate";
    let forwards = |path: &str| std::fs::read_to_string(path).is_ok_and(|on| on.trim() != "0");
    let v6 = forwards("/proc/sys/net/ipv6/conf/all/forwarding");
    if !forwards("/proc/sys/net/ipv4/ip_forward") {
        return Err(Failure(
            "accelerate: the kernel does not forward IPv4 here, so there is nothing to make faster; `sysctl -w net.ipv4.ip_forward=1`"
                .to_owned(),
        ));
    }
    let mut text = String::from("routes = \"kernel\"\n");
    if keys {
        text += "keys = \"kernel\"\n";
    }
    if let Some(firewall) = firewall {
        text += &format!("firewall = {firewall}\n");
    }
    let links = if firewall.is_some() { netlink::links().unwrap_or_default() } else { Vec::new() };
    for device in devices {
        let on = on_device(device, &links);
        text += &format!("[[port]]\nname = {device:?}\n{on}addresses = \"kernel\"\n");
    }
    let mut config = config::parse(NAME, NAME, text).map_err(Failure::of)?;
    config.kernel.routes = Some(Filter { off: [false, !v6], ..Filter::default() });
    Ok(config)
}

/// What a port is on: of a VLAN (`eth0.7`) that stands in `links` the device below, with the tag.
fn on_device(device: &str, links: &[LinkInfo]) -> String {
    let vlan = links.iter().find(|link| link.name == device).and_then(|link| link.vlan);
    let lower = vlan.and_then(|vlan| links.iter().find(|link| link.index == vlan.lower));
    match vlan.zip(lower) {
        Some((vlan, lower)) if device == format!("{}.{}", lower.name, vlan.id) => {
            format!("device = {:?}\nvlan = {}\n", lower.name, vlan.id)
        }
        _ => format!("device = {device:?}\n"),
    }
}
