//! `weir monitor`: what happens on a router, a line each, as it happens.
//!
//! Promises: links, neighbours, SAs, tables and notices are told when they change, drops when a reason's rate passes a
//! bound and again when it falls below. What comes and goes between two looks is not seen: counters say how often.
//! Refuses: a relay, whose log has its events.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::control::client::{self, ClientError};
use crate::failure::Failure;
use crate::view;

/// What is compared between two looks: a thing's name, and how it is.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    things: BTreeMap<String, String>,
    /// Drops by reason.
    drops: BTreeMap<String, u64>,
}

pub fn run(socket: &Path, every: Duration, rate: f64) -> Result<(), Failure> {
    let mut before = look(socket).map_err(Failure::of)?;
    let mut loud = BTreeSet::new();
    loop {
        thread::sleep(every);
        let now = look(socket).map_err(Failure::of)?;
        let mut lines = changes(&before.things, &now.things);
        lines.extend(drops(&before.drops, &now.drops, every.as_secs_f64(), rate, &mut loud));
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut out = std::io::stdout().lock();
        for line in lines {
            if writeln!(out, "{}.{:03} {line}", at.as_secs(), at.subsec_millis()).is_err() {
                // Whoever read it has gone.
                return Ok(());
            }
        }
        if out.flush().is_err() {
            return Ok(());
        }
        before = now;
    }
}

fn look(socket: &Path) -> Result<Seen, ClientError> {
    let mut seen = Seen::default();
    let ports: Vec<view::Port> = client::read(socket, "/v1/ports")?;
    for port in ports {
        let state = if port.up { "up" } else { "down" };
        let kind = if port.kind.is_empty() { "absent" } else { &port.kind };
        seen.things.insert(format!("port {}", port.name), format!("{state}, {kind}, mtu {}", port.mtu));
    }
    let neighbors: Vec<view::Neighbor> = client::read(socket, "/v1/neighbors")?;
    for n in neighbors {
        let mac = n.mac.unwrap_or_else(|| "no address".into());
        seen.things.insert(format!("neighbour {} on {}", n.address, n.port), format!("{}, {mac}", n.state));
    }
    let sas: Vec<view::Sa> = client::read(socket, "/v1/sa")?;
    for sa in sas {
        seen.things.insert(format!("sa {} {} spi {}", sa.name, sa.direction, sa.spi), sa.state);
    }
    let status: view::Status = client::read(socket, "/v1/status")?;
    for notice in status.notices {
        seen.things.insert(format!("notice: {notice}"), "stands".into());
    }
    seen.things.insert("tables".into(), format!("generation {}", status.generation));
    seen.things.insert("frames unaccounted for".into(), status.balance.to_string());
    let drops: Vec<view::Drop> = client::read(socket, "/v1/drops")?;
    seen.drops = drops.into_iter().map(|d| (d.reason, d.packets)).collect();
    Ok(seen)
}

/// `+` comes, `-` goes, `~` changes, as `weir apply` has it.
fn changes(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let gone = before.iter().filter(|(name, _)| !now.contains_key(*name));
    let mut lines: Vec<String> = gone.map(|(name, was)| format!("- {name} (was {was})")).collect();
    for (name, is) in now {
        match before.get(name) {
            None => lines.push(format!("+ {name}: {is}")),
            Some(was) if was != is => lines.push(format!("~ {name}: {was} -> {is}")),
            Some(_) => {}
        }
    }
    lines
}

/// Reasons whose rate has passed the bound, either way; `loud` are those above it.
fn drops(
    before: &BTreeMap<String, u64>,
    now: &BTreeMap<String, u64>,
    seconds: f64,
    bound: f64,
    loud: &mut BTreeSet<String>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (reason, &count) in now {
        let rate = count.saturating_sub(before.get(reason).copied().unwrap_or(0)) as f64 / seconds;
        if rate > bound && loud.insert(reason.clone()) {
            lines.push(format!("! drops {reason}: {rate:.0}/s"));
        } else if rate <= bound && loud.remove(reason) {
            lines.push(format!(". drops {reason}: {rate:.0}/s, below {bound}/s again"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map<V: Clone>(pairs: &[(&str, V)]) -> BTreeMap<String, V> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()
    }

    #[test]
    fn what_comes_goes_and_changes_is_a_line_each() {
        let before = map(&[("port lan", "up".to_owned()), ("sa a", "active".into()), ("same", "x".into())]);
        let now = map(&[("port lan", "down".to_owned()), ("sa b", "active".into()), ("same", "x".into())]);
        let expected = ["- sa a (was active)", "~ port lan: up -> down", "+ sa b: active"];
        assert_eq!(changes(&before, &now), expected);
        assert!(changes(&now, &now).is_empty());
    }

    #[test]
    fn drops_are_told_when_their_rate_passes_the_bound_and_not_again_until_it_fell() {
        let mut loud = BTreeSet::new();
        let mut step = |from: u64, to: u64| {
            drops(&map(&[("no_route", from)]), &map(&[("no_route", to)]), 2.0, 10.0, &mut loud)
        };
        assert!(step(0, 20).is_empty(), "ten a second are not above ten");
        assert_eq!(step(20, 120), ["! drops no_route: 50/s"]);
        assert!(step(120, 300).is_empty(), "told already");
        assert_eq!(step(300, 300), [". drops no_route: 0/s, below 10/s again"]);
        assert_eq!(step(300, 400), ["! drops no_route: 50/s"]);
    }
}
