//! `weir top`: rates between two looks at the counters, on the whole screen or, in a pipe, line by line.

mod relay;
mod screen;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use self::relay::Sort;
use self::screen::{Keys, REDRAW, Size};
use crate::control::client::{self, ClientError};
use crate::failure::Failure;
use crate::text::{print, table};
use crate::view;

/// Ethernet's share of the wire that software never sees: preamble 8, FCS 4, gap 12.
const WIRE_OVERHEAD: u64 = 24;

#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// One interval, then end
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_parser = interval)]
    every: f64,
    /// A relay's clients: what the first have most of
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
}

/// Reads an interval: between a hundredth of a second, where counters are that fresh, and an hour.
pub fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.02..=3600.0).contains(&s) => Ok(s),
        _ => Err("expected seconds from 0.02 to 3600".to_owned()),
    }
}

struct Look {
    at: Instant,
    ports: Vec<view::Port>,
    workers: Vec<view::WorkerCounters>,
}

/// Looks until interrupted; with `once`, one interval and done.
pub fn run(socket: &Path, args: &TopArgs) -> Result<(), Failure> {
    // A relay has no ports.
    match client::get(socket, "/v1/relay") {
        Ok(_) => watch(args, || relay::Look::new(socket), relay::screen),
        Err(_) => watch(args, || look(socket), |before, now, _, size| fit(&rates(before, now), size)),
    }
}

/// Shows the difference of one look and the next, on the screen or, in a pipe, line by line.
fn watch<L>(
    args: &TopArgs,
    look: impl Fn() -> Result<L, ClientError>,
    show: impl Fn(&L, &L, Sort, Option<Size>) -> String,
) -> Result<(), Failure> {
    let on_screen = !args.once && io::stdout().is_terminal();
    let every = Duration::from_secs_f64(args.every);
    let mut sort = args.sort;
    let mut before = look().map_err(Failure::of)?;
    if !on_screen {
        loop {
            thread::sleep(every);
            let now = look().map_err(Failure::of)?;
            print(&show(&before, &now, sort, None))?;
            if args.once {
                return Ok(());
            }
            before = now;
        }
    }
    let keys = Keys::new().map_err(Failure::of)?;
    let mut newest: Option<L> = None;
    loop {
        let due = Instant::now() + every;
        while let Some(key) = keys.until(due) {
            if key == b'q' {
                return Ok(());
            }
            sort = Sort::of_key(key).unwrap_or(sort);
            if let Some(now) = &newest {
                print(&format!("{REDRAW}{}", show(&before, now, sort, screen::size())))?;
            }
        }
        if keys.ended() {
            return Ok(());
        }
        let now = look().map_err(Failure::of)?;
        if let Some(last) = newest.take() {
            before = last;
        }
        print(&format!("{REDRAW}{}", show(&before, &now, sort, screen::size())))?;
        newest = Some(now);
    }
}

/// Lines that are no longer than the screen is wide, and as many as it has; how to end stands in the last.
fn fit(text: &str, size: Option<Size>) -> String {
    let Some(Size { columns, lines }) = size else { return text.to_owned() };
    let lines = text.lines().take(lines.saturating_sub(2)).chain(["q quit"]);
    lines.map(|line| line.chars().take(columns).chain(['\n']).collect::<String>()).collect()
}

fn look(socket: &Path) -> Result<Look, ClientError> {
    let ports = client::read(socket, "/v1/ports")?;
    let workers = client::read(socket, "/v1/workers")?;
    Ok(Look { at: Instant::now(), ports, workers })
}

fn rates(before: &Look, now: &Look) -> String {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let mut out = port_rates(before, now, seconds);
    let worker = |w: &view::WorkerCounters| {
        let old = before.workers.iter().find(|o| o.worker == w.worker).cloned().unwrap_or_default();
        let (breaths, idle) =
            (w.breaths - old.breaths.min(w.breaths), w.idle_breaths - old.idle_breaths.min(w.idle_breaths));
        [
            w.worker.to_string(),
            w.cpu.to_string(),
            si(rate(w.received, old.received)),
            si(rate(w.forwarded, old.forwarded)),
            si(rate(w.local, old.local)),
            si(rate(w.dropped, old.dropped)),
            w.held.to_string(),
            format!(
                "{:.1}",
                (w.received - old.received.min(w.received)) as f64
                    / (breaths - idle.min(breaths)).max(1) as f64
            ),
        ]
    };
    let head =
        ["worker", "cpu", "received/s", "forwarded/s", "local/s", "dropped/s", "held", "frames/breath"];
    out += "\n";
    out += &table(head, 0..8, now.workers.iter().map(worker).collect());
    out += &offload_rate(before, now, seconds);
    let sum = |workers: &[view::WorkerCounters]| {
        let mut sum: BTreeMap<String, u64> = BTreeMap::new();
        for (reason, count) in workers.iter().flat_map(|w| &w.drops) {
            *sum.entry(reason.clone()).or_default() += count;
        }
        sum
    };
    let old = sum(&before.workers);
    let mut dropping: Vec<(String, f64)> = sum(&now.workers)
        .into_iter()
        .map(|(reason, count)| {
            let per_second = rate(count, old.get(&reason).copied().unwrap_or(0));
            (reason, per_second)
        })
        .filter(|d| d.1 > 0.0)
        .collect();
    dropping.sort_by(|a, b| b.1.total_cmp(&a.1));
    out += "\n";
    if dropping.is_empty() {
        out += "no drops\n";
    } else {
        let rows = dropping.into_iter().map(|(reason, r)| [si(r), reason]).collect();
        out += &table(["drops/s", "reason"], 0..1, rows);
    }
    out
}

/// What the XDP program forwards by itself passes no worker.
fn offload_rate(before: &Look, now: &Look, seconds: f64) -> String {
    let offloaded = |look: &Look| {
        let mut by_device: BTreeMap<String, u64> = BTreeMap::new();
        for port in &look.ports {
            if let Some(count) = port.steered.get("flow_offload") {
                by_device.insert(port.device.clone(), *count);
            }
        }
        by_device.values().sum::<u64>()
    };
    let (old, new) = (offloaded(before), offloaded(now));
    if new == 0 {
        return String::new();
    }
    format!(
        "XDP flow offload: {} packets/s forwarded by the XDP program itself\n",
        si(new.saturating_sub(old) as f64 / seconds)
    )
}

fn port_rates(before: &Look, now: &Look, seconds: f64) -> String {
    let row = |p: &view::Port| {
        let old =
            before.ports.iter().find(|o| o.name == p.name).map(|o| (o.traffic, o.losses)).unwrap_or_default();
        let (t, o) = (p.traffic, old.0);
        let packets = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let bits = |bytes: u64, old_bytes: u64, pkts: u64, old_pkts: u64| {
            let wire = bytes.saturating_sub(old_bytes) + WIRE_OVERHEAD * pkts.saturating_sub(old_pkts);
            si(wire as f64 * 8.0 / seconds)
        };
        let lost = |l: view::DeviceLosses| l.rx_ring_full + l.rx_invalid + l.tx_invalid;
        [
            p.name.clone(),
            if p.up { "up" } else { "down" }.to_owned(),
            si(packets(t.rx_packets, o.rx_packets)),
            bits(t.rx_bytes, o.rx_bytes, t.rx_packets, o.rx_packets),
            si(packets(t.tx_packets, o.tx_packets)),
            bits(t.tx_bytes, o.tx_bytes, t.tx_packets, o.tx_packets),
            si(packets(lost(p.losses), lost(old.1))),
        ]
    };
    let head =
        ["port", "state", "rx pkts/s", "rx bits/s (wire)", "tx pkts/s", "tx bits/s (wire)", "dev lost/s"];
    table(head, 2..7, now.ports.iter().map(row).collect())
}

/// Four digits and a decimal prefix: `1234`, `12.34 k`, `1.234 M`.
fn si(value: f64) -> String {
    let (scaled, unit) = match value {
        v if v >= 1e9 => (v / 1e9, " G"),
        v if v >= 1e6 => (v / 1e6, " M"),
        v if v >= 1e4 => (v / 1e3, " k"),
        v => return format!("{v:.0}"),
    };
    let decimals = if scaled >= 100.0 {
        1
    } else if scaled >= 10.0 {
        2
    } else {
        3
    };
    format!("{scaled:.decimals$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_told_with_four_digits() {
        assert_eq!(si(0.0), "0");
        assert_eq!(si(9999.0), "9999");
        assert_eq!(si(12_345.0), "12.35 k");
        assert_eq!(si(1_488_095.0), "1.488 M");
        assert_eq!(si(10e9), "10.00 G");
    }

    #[test]
    fn a_screen_is_neither_left_nor_overflown() {
        let text = fit("one two three\nfour\nfive\nsix\n", Some(Size { columns: 7, lines: 4 }));
        assert_eq!(text, "one two\nfour\nq quit\n");
        assert_eq!(fit("as it is\n", None), "as it is\n");
    }

    #[test]
    fn drops_are_told_by_reason_and_per_second() {
        let worker = |dropped: u64| view::WorkerCounters {
            received: 100 + dropped,
            dropped,
            drops: BTreeMap::from([("no_route".to_owned(), dropped)]),
            ..view::WorkerCounters::default()
        };
        let at = Instant::now();
        let before = Look { at, ports: Vec::new(), workers: vec![worker(10)] };
        let now = Look { at: at + Duration::from_secs(2), ports: Vec::new(), workers: vec![worker(50)] };
        let text = rates(&before, &now);
        assert!(text.ends_with("drops/s  reason\n     20  no_route\n"), "{text}");
    }

    #[test]
    fn a_port_that_came_between_two_looks_has_rates() {
        let port = view::Port {
            name: "lan".into(),
            traffic: view::Traffic { rx_packets: 10, rx_bytes: 1000, ..view::Traffic::default() },
            ..view::Port::default()
        };
        let at = Instant::now();
        let before = Look { at, ports: Vec::new(), workers: Vec::new() };
        let now = Look { at: at + Duration::from_secs(1), ports: vec![port], workers: Vec::new() };
        // (1000 + 10 × 24) × 8
        assert!(rates(&before, &now).contains("9920"), "{}", rates(&before, &now));
    }
}
