//! `weir show`: what the daemon says, as tables for people or as its own JSON for programs.

use std::net::IpAddr;
use std::path::Path;

use clap::ValueEnum;

use crate::control::client;
use crate::control::encoded;
use crate::failure::Failure;
use crate::text::{count, duration, print, print_json, table};
use crate::view;

mod cache;
mod flows;
mod ipsec;
mod relay;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    /// Name, version, uptime, and what an operator should know
    Status,
    /// Ports: devices, addresses, traffic, how each was opened
    Ports,
    /// Routes, and where each came from
    Routes,
    /// Link-layer addresses of neighbours
    Neighbors,
    /// Workers and their packet accounting
    Workers,
    /// Why packets were dropped, and who has to act
    Drops,
    /// Security associations of IPsec
    Sa,
    /// Policies of IPsec
    Spd,
    /// IPsec tunnels
    Tunnels,
    /// Flow caches and rules of SPDs
    Cache,
    /// Flows of the kernel's firewall, who forwards them, and why
    Flows,
    /// How many flows are forwarded past the kernel's firewall, and why others are not
    Offload,
    /// A relay: connections, workers, drops
    Relay,
    /// Who is connected to a relay
    Peers,
}

impl Topic {
    /// Where the daemon tells it.
    pub fn path(self) -> &'static str {
        match self {
            Topic::Status => "/v1/status",
            Topic::Ports => "/v1/ports",
            Topic::Routes => "/v1/routes",
            Topic::Neighbors => "/v1/neighbors",
            Topic::Workers => "/v1/workers",
            Topic::Drops => "/v1/drops",
            Topic::Sa => "/v1/sa",
            Topic::Spd => "/v1/spd",
            Topic::Tunnels => "/v1/tunnels",
            Topic::Cache => "/v1/cache",
            Topic::Flows => "/v1/flows",
            Topic::Offload => "/v1/offload",
            Topic::Relay => "/v1/relay",
            Topic::Peers => "/v1/peers",
        }
    }
}

/// `weir show` alone: what there is to show.
pub fn topics() -> Result<(), Failure> {
    let topics = Topic::value_variants().iter().filter_map(Topic::to_possible_value);
    let rows = topics.map(|t| {
        let help = t.get_help().map(ToString::to_string).unwrap_or_default();
        [t.get_name().to_owned(), help]
    });
    print(&table(["topic", "what it shows"], 0..0, rows.collect()))
}

/// Which policies `weir show spd` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// However many there are.
    pub all: bool,
    /// Those with this in their name.
    pub named: Option<String>,
    /// Those that decided about a packet.
    pub hit: bool,
}

/// Which part of a long list is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// `for=` or `match=`.
    about: Option<String>,
    /// Counted from 1.
    from: Option<usize>,
    limit: Option<usize>,
}

/// `--from`, `--limit` and `--match` of `weir show`.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageArgs<'a> {
    pub from: Option<usize>,
    pub limit: Option<usize>,
    pub matching: Option<&'a str>,
}

impl Page {
    /// `for ADDRESS` (of routes), `--match TEXT` (of lists that have it), `--from N` and `--limit N`.
    pub fn of(topic: Topic, about: &[String], args: PageArgs<'_>) -> Result<Page, Failure> {
        let pages = [
            Topic::Routes,
            Topic::Neighbors,
            Topic::Sa,
            Topic::Spd,
            Topic::Tunnels,
            Topic::Flows,
            Topic::Peers,
        ];
        let address = match about {
            [] => None,
            [word, address] if word == "for" => {
                let address: IpAddr = address.parse().map_err(|_| {
                    Failure(format!(
                        "show: got `{address}`, expected an address; write `weir show routes for 192.0.2.1`"
                    ))
                })?;
                Some(format!("for={}", encoded(&address.to_string())))
            }
            other => {
                let got = other.join(" ");
                return Err(Failure(format!(
                    "show: got `{got}`, expected `for ADDRESS`; write `weir show routes for 192.0.2.1`"
                )));
            }
        };
        if topic != Topic::Routes && address.is_some() {
            return Err(Failure("show: `for` chooses routes; write `weir show routes`".into()));
        }
        let PageArgs { from, limit, matching } = args;
        if (from.is_some() || limit.is_some()) && !pages.contains(&topic) {
            return Err(Failure(
                "show: --from and --limit choose routes, neighbors, sa, spd, tunnels, flows and peers; show one of them"
                    .into(),
            ));
        }
        if from == Some(0) {
            return Err(Failure("show: --from is 0, expected a number from 1 on; write --from 1".into()));
        }
        let matched = matching.is_some();
        if matched && (!pages.contains(&topic) || matches!(topic, Topic::Routes | Topic::Spd)) {
            return Err(Failure(
                "show: --match chooses neighbors, sa, tunnels, flows and peers; routes have `for ADDRESS`, spd has --named".into(),
            ));
        }
        Ok(Page { about: address.or(matching.map(|text| format!("match={}", encoded(text)))), from, limit })
    }

    /// The path with this page's query; `more` asks for so many items beyond it.
    fn path(&self, topic: Topic, more: usize) -> String {
        if topic == Topic::Spd {
            return topic.path().to_owned();
        }
        let from = self.from.map(|n| format!("from={n}"));
        let limit = self.limit.map(|n| format!("limit={}", n.saturating_add(more)));
        let options: Vec<String> = [self.about.clone(), from, limit].into_iter().flatten().collect();
        let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        topic.path().to_owned() + &query
    }

    /// Reads a list, and tells whether more follow than were asked for.
    fn read<T: serde::de::DeserializeOwned>(
        &self,
        socket: &Path,
        topic: Topic,
    ) -> Result<(Vec<T>, String), Failure> {
        let mut items: Vec<T> = client::read(socket, &self.path(topic, 1)).map_err(Failure::of)?;
        let Some(limit) = self.limit.filter(|limit| items.len() > *limit) else {
            return Ok((items, String::new()));
        };
        items.truncate(limit);
        let next = self.from.unwrap_or(1) + limit;
        Ok((items, format!("# more follow: --from {next}\n")))
    }
}

pub fn run(socket: &Path, topic: Topic, json: bool, shown: &Shown, page: &Page) -> Result<(), Failure> {
    if topic != Topic::Spd && *shown != Shown::default() {
        return Err(Failure("show: --all, --named and --hit choose policies; write `weir show spd`".into()));
    }
    if json {
        let body = client::get(socket, &page.path(topic, 0)).map_err(Failure::of)?;
        let value: serde_json::Value = serde_json::from_str(&body).map_err(|e| Failure(e.to_string()))?;
        return print_json(&value);
    }
    let text = match topic {
        Topic::Status => status(&client::read(socket, topic.path()).map_err(Failure::of)?),
        Topic::Ports => ports(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure::of)?),
        Topic::Routes => routes(&client::read(socket, &page.path(topic, 0)).map_err(Failure::of)?),
        Topic::Neighbors => {
            let (items, more) = page.read(socket, topic)?;
            neighbors(&items) + &more
        }
        Topic::Workers => workers(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure::of)?),
        Topic::Drops => drops(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure::of)?),
        Topic::Sa => {
            let (items, more) = page.read(socket, topic)?;
            ipsec::sas(&items, page != &Page::default()) + &more
        }
        Topic::Spd => {
            let spds: Vec<view::Spd> = client::read(socket, topic.path()).map_err(Failure::of)?;
            ipsec::spds(&spds, shown, (page.from.unwrap_or(1) - 1, page.limit))
        }
        Topic::Cache => cache::cache(&client::read(socket, topic.path()).map_err(Failure::of)?),
        Topic::Flows => {
            let shown = client::read(socket, &page.path(topic, 0)).map_err(Failure::of)?;
            flows::flows(&shown, page.from.unwrap_or(1))
        }
        Topic::Offload => flows::offload(&client::read(socket, topic.path()).map_err(Failure::of)?),
        Topic::Relay => relay::relay(&client::read(socket, topic.path()).map_err(Failure::of)?),
        Topic::Peers => {
            let (items, more) = page.read(socket, topic)?;
            relay::peers(&items) + &more
        }
        Topic::Tunnels => {
            let (items, more) = page.read(socket, topic)?;
            ipsec::tunnels(&items, page != &Page::default()) + &more
        }
    };
    print(&text)
}

fn status(s: &view::Status) -> String {
    let mut out = format!(
        "{} (weir {}, process {}), up {}\n{} ports, {} static routes, {} workers, tables of generation {}, {} frames unaccounted for\n",
        s.name,
        s.version,
        s.pid,
        duration(s.uptime_seconds),
        s.ports,
        s.routes,
        s.workers,
        s.generation,
        s.balance
    );
    if s.sas > 0 {
        out +=
            &format!("{}; see `weir show sa`, `spd` and `tunnels`\n", count(s.sas, "security association"));
    }
    for notice in &s.notices {
        out += &format!("! {notice}\n");
    }
    out
}

pub fn ports(ports: &[view::Port]) -> String {
    let row = |p: &view::Port| {
        let device = match p.vlan {
            Some(vlan) => format!("{}.{vlan}", p.device),
            None => p.device.clone(),
        };
        let lost = p.losses.rx_ring_full + p.losses.rx_invalid + p.losses.tx_invalid + p.losses.tx_dropped;
        [
            p.name.clone(),
            device,
            if p.kind.is_empty() { "absent".to_owned() } else { p.kind.clone() },
            if p.up { "up" } else { "down" }.to_owned(),
            p.mtu.to_string(),
            p.traffic.rx_packets.to_string(),
            p.traffic.tx_packets.to_string(),
            p.traffic.rx_bytes.to_string(),
            p.traffic.tx_bytes.to_string(),
            lost.to_string(),
            p.addresses.iter().map(|a| format!("{} ({})", a.address, a.owner)).collect::<Vec<_>>().join(", "),
        ]
    };
    let head = [
        "port",
        "device",
        "kind",
        "state",
        "mtu",
        "rx pkts",
        "tx pkts",
        "rx bytes",
        "tx bytes",
        "dev lost",
        "addresses",
    ];
    let mut out = table(head, 4..10, ports.iter().map(row).collect());
    for said in ports.iter().flat_map(|p| &p.opened) {
        out += &format!("# {said}\n");
    }
    for port in ports.iter().filter(|p| p.losses.tx_live > 0) {
        out += &format!(
            "# port {}: {} left without a socket buffer\n",
            port.name,
            count(port.losses.tx_live as usize, "frame")
        );
    }
    ports.iter().for_each(|port| out += &alarms(port));
    out
}

/// What a device's counters mean and what to do, for those that ought to stay zero.
fn alarms(port: &view::Port) -> String {
    let (name, device) = (&port.name, &port.device);
    let mut out = String::new();
    match port.losses.tx_stalled {
        0 => {}
        times => {
            out += &format!(
                "! port {name}: frames waited in {device}'s transmit ring and it did not move, {}; if it happens again, \
                 set `wake_up = \"interrupt\"` in [workers], or kind = \"af_packet\"\n",
                count(times as usize, "time")
            );
        }
    }
    match port.losses.rx_truncated {
        0 => {}
        frames => {
            out += &format!(
                "! port {name}: {} shorter than the IP header says came in by {device}: cut by a sender, or by a \
                 receive buffer; if longer packets never pass, set kind = \"af_packet\" and report `ethtool -i {device}`\n",
                count(frames as usize, "frame")
            );
        }
    }
    out
}

fn routes(routes: &view::Routes) -> String {
    let hop = |h: &view::NextHop| {
        let mut text = h.gateway.clone().unwrap_or_default();
        if let Some(port) = &h.port {
            text += &format!("{}{port}", if text.is_empty() { "" } else { "@" });
        }
        if h.weight != 1 {
            text += &format!("*{}", h.weight);
        }
        match (h.up, h.resolved) {
            (false, _) => text + " (down)",
            (true, false) => text + " (unresolved)",
            (true, true) => text,
        }
    };
    let row = |r: &view::Route| {
        [
            r.prefix.clone(),
            r.origin.clone(),
            if r.active { "active" } else { "inactive" }.to_owned(),
            match (&r.discard, &r.left) {
                (Some(discard), _) => discard.clone(),
                (None, Some(left)) => format!("left to the kernel: {left}"),
                (None, None) => r.next_hops.iter().map(hop).collect::<Vec<_>>().join(", "),
            },
        ]
    };
    let mut out = table(["prefix", "origin", "state", "via"], 0..0, routes.routes.iter().map(row).collect());
    if routes.routes.len() < routes.total {
        out += &format!(
            "# {} of {} routes; more with --from N and --limit N, fewer with `for ADDRESS`\n",
            routes.routes.len(),
            routes.total
        );
    }
    out
}

fn neighbors(neighbors: &[view::Neighbor]) -> String {
    let row = |n: &view::Neighbor| {
        [
            n.port.clone(),
            n.address.clone(),
            n.mac.clone().unwrap_or_else(|| "-".into()),
            n.state.clone(),
            n.origin.clone(),
            duration(n.age_seconds),
            if n.gateway { "gateway" } else { "" }.to_owned(),
        ]
    };
    let head = ["port", "address", "mac", "state", "origin", "since", "use"];
    table(head, 5..6, neighbors.iter().map(row).collect())
}

fn workers(workers: &[view::WorkerCounters]) -> String {
    let row = |w: &view::WorkerCounters| {
        let idle = if w.breaths == 0 { 0.0 } else { 100.0 * w.idle_breaths as f64 / w.breaths as f64 };
        [
            w.worker.to_string(),
            w.cpu.to_string(),
            w.received.to_string(),
            w.forwarded.to_string(),
            w.local.to_string(),
            w.held.to_string(),
            w.dropped.to_string(),
            w.balance.to_string(),
            w.originated.to_string(),
            format!("{}/{}", w.buffers_free, w.buffers_total),
            format!("{idle:.0}%"),
            w.generation.to_string(),
        ]
    };
    let head = [
        "worker",
        "cpu",
        "received",
        "forwarded",
        "local",
        "held",
        "dropped",
        "unaccounted",
        "own",
        "buffers free",
        "idle breaths",
        "tables",
    ];
    table(head, 0..12, workers.iter().map(row).collect())
}

fn drops(drops: &[view::Drop]) -> String {
    if drops.is_empty() {
        return "nothing was dropped\n".to_owned();
    }
    let row = |d: &view::Drop| [d.packets.to_string(), d.reason.clone(), d.blame.clone(), d.sentence.clone()];
    table(["packets", "reason", "responsible", "because"], 0..1, drops.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cuts_frames_or_stops_sending_is_named_with_the_remedy() {
        let mut port = view::Port { name: "lan".into(), device: "eth0".into(), ..view::Port::default() };
        assert_eq!(alarms(&port), "");
        port.losses.rx_truncated = 57;
        assert!(
            alarms(&port)
                .starts_with("! port lan: 57 frames shorter than the IP header says came in by eth0")
        );
        port.losses = view::DeviceLosses { tx_stalled: 1, ..view::DeviceLosses::default() };
        let text = alarms(&port);
        assert!(
            text.starts_with(
                "! port lan: frames waited in eth0's transmit ring and it did not move, 1 time; "
            )
        );
        assert!(ports(&[port]).ends_with(&text));
    }

    #[test]
    fn a_drop_says_who_is_responsible_and_why() {
        let drop = view::Drop {
            reason: "no_route".into(),
            packets: 12,
            blame: "operator".into(),
            sentence: "no route to the destination".into(),
        };
        assert_eq!(
            drops(&[drop]),
            "packets  reason    responsible  because\n     12  no_route  operator     no route to the destination\n"
        );
    }

    #[test]
    fn a_multipath_route_shows_weights_and_what_is_unresolved() {
        let hop = |gateway: &str, weight, resolved| view::NextHop {
            port: Some("lan".into()),
            gateway: Some(gateway.into()),
            weight,
            up: true,
            resolved,
        };
        let route = view::Route {
            prefix: "10.0.0.0/8".into(),
            origin: "static".into(),
            discard: None,
            left: None,
            next_hops: vec![hop("192.0.2.2", 2, true), hop("192.0.2.3", 1, false)],
            active: true,
        };
        let text = routes(&view::Routes { total: 1, routes: vec![route] });
        assert!(
            text.ends_with("10.0.0.0/8  static  active  192.0.2.2@lan*2, 192.0.2.3@lan (unresolved)\n"),
            "{text}"
        );
    }
}
