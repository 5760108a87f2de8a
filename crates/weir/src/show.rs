//! `weir show`: what the daemon says, as tables for people or as its own JSON for programs.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::cli::{Failure, Topic};
use crate::{client, view};

mod cache;
mod ipsec;
mod relay;

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

pub fn run(socket: &Path, topic: Topic, json: bool, shown: &Shown) -> Result<(), Failure> {
    if topic != Topic::Spd && *shown != Shown::default() {
        return Err(Failure("show: --all, --named and --hit choose policies; write `weir show spd`".into()));
    }
    if json {
        let body = client::get(socket, topic.path()).map_err(Failure)?;
        let value: serde_json::Value = serde_json::from_str(&body).map_err(|e| Failure(e.to_string()))?;
        return print_json(&value);
    }
    let text = match topic {
        Topic::Status => status(&client::read(socket, topic.path()).map_err(Failure)?),
        Topic::Ports => ports(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure)?),
        Topic::Routes => routes(&client::read(socket, topic.path()).map_err(Failure)?),
        Topic::Neighbors => neighbors(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure)?),
        Topic::Workers => workers(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure)?),
        Topic::Drops => drops(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure)?),
        Topic::Sa => ipsec::sas(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure)?),
        Topic::Spd => ipsec::spds(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure)?, shown),
        Topic::Cache => cache::cache(&client::read(socket, topic.path()).map_err(Failure)?),
        Topic::Relay => relay::relay(&client::read(socket, topic.path()).map_err(Failure)?),
        Topic::Peers => relay::peers(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure)?),
        Topic::Tunnels => ipsec::tunnels(&client::read::<Vec<_>>(socket, topic.path()).map_err(Failure)?),
    };
    print(&text)
}

/// To stdout; a reader that has gone (`| head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure(format!("stdout: {e}; free the disk or close the pipe")))
        }
        _ => Ok(()),
    }
}

pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure(e.to_string()))?;
    print(&(text + "\n"))
}

/// A table without lines: columns can be cut and sorted by other tools. The columns in `numbers` are
/// right-aligned.
pub fn table<const N: usize>(
    head: [&str; N],
    numbers: std::ops::Range<usize>,
    rows: Vec<[String; N]>,
) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).enumerate();
        let line: Vec<String> = cells
            .map(|(at, (cell, width))| match numbers.contains(&at) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:width$}"),
            })
            .collect();
        out += line.join("  ").trim_end();
        out.push('\n');
    }
    out
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
        out += &format!(
            "{}; see `weir show sa`, `spd` and `tunnels`\n",
            crate::cli::count(s.sas, "security association")
        );
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
        let lost = p.losses.rx_ring_full + p.losses.rx_invalid + p.losses.tx_invalid;
        [
            p.name.clone(),
            device,
            if p.kind.is_empty() { "away".to_owned() } else { p.kind.clone() },
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
            match &r.discard {
                Some(discard) => discard.clone(),
                None => r.next_hops.iter().map(hop).collect::<Vec<_>>().join(", "),
            },
        ]
    };
    let mut out = table(["prefix", "origin", "state", "via"], 0..0, routes.routes.iter().map(row).collect());
    if routes.routes.len() < routes.total {
        out += &format!(
            "# {} of {} routes; all of them: curl --unix-socket … 'http://weir/v1/routes?limit=all'\n",
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
            duration(n.age_seconds),
            if n.gateway { "gateway" } else { "" }.to_owned(),
        ]
    };
    table(["port", "address", "mac", "state", "since", "use"], 4..5, neighbors.iter().map(row).collect())
}

fn workers(workers: &[view::Worker]) -> String {
    let row = |w: &view::Worker| {
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
    table(["packets", "reason", "who acts", "because"], 0..1, drops.iter().map(row).collect())
}

/// `4 s`, `3 m 20 s`, `2 d 3 h`.
fn duration(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} m {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} m", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_columns_and_no_trailing_blanks() {
        let text =
            table(["a", "count"], 1..2, vec![["x".into(), "7".into()], ["longer".into(), "1234".into()]]);
        assert_eq!(text, "a       count\nx           7\nlonger   1234\n");
    }

    #[test]
    fn a_drop_says_who_acts_and_why() {
        let drop = view::Drop {
            reason: "no_route".into(),
            packets: 12,
            blame: "operator".into(),
            sentence: "no route to the destination".into(),
        };
        assert_eq!(
            drops(&[drop]),
            "packets  reason    who acts  because\n     12  no_route  operator  no route to the destination\n"
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
