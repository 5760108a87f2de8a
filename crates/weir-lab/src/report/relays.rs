//! What relays carried and what it cost them, in both reports.
//!
//! Promises: every value is a median of runs; a dash where a run of that load has none.

use super::comparisons::Table;
use crate::format::{digits, grouped};
use crate::model::Sut;
use crate::model::relay::Load;
use crate::profile::parts::{PARTS, parts};
use crate::profile::profiled::sum;
use crate::profile::rules::Rules;
use crate::result::{Outcome, Results};

pub const METHOD: &str = "Undelivered is of what the rate intended, so what a full socket kept back counts; latency is \
                          from the time a packet was due. Seconds a gigabyte and ns a packet are busy time of the \
                          relay's CPUs, softirqs included, for what was delivered; on hosts of all CPUs of the device \
                          under test. In a namespace TCP goes over the loopback device, \
                          where a CPU receives what it sends on behalf of the other side. A generator that is nearly \
                          always busy may be the limit: compare with the baseline. The share of TCP is what a forwarder of bytes \
                          (tcp-forwarder) needs a packet under the same load: how it batches is its own, and both \
                          share the CPU's caches with the same kernel.";

const CLIENTS: &str =
    "Memory is what the relay's process grew, by client; sockets' memory in the kernel is not in it.";

const SPENT: &str = "Nanoseconds of the relay's CPUs a packet, and their share, of profiled runs: a sample belongs to \
                     what is nearest to its innermost function. Softirq is the kernel's receiving, for the relay's \
                     own sockets and, over loopback, for those it sends to.";

const SIMULATED: &str = "Simulated (callgrind), a packet each: the relay's own code on a processor with two levels of \
                         cache, perfect LRU, no prefetcher; the last is a core's own second level. The kernel, which \
                         copies the packets, is not in it.";

/// Packets between pairs, and clients without packets: a table each, if there are any, with what to know of it.
pub fn sections(results: &Results) -> Vec<(Table, &'static str)> {
    let of_relays = || results.configurations.iter().filter(|o| o.configuration.relay().is_some());
    let has_pairs = |o: &&Outcome| o.configuration.relay().is_some_and(|r| r.load.has_pairs());
    let carrying = of_relays().filter(|o| has_pairs(o) && !is_simulated(o));
    let mut carried: Vec<Vec<String>> = carrying.clone().map(carried).collect();
    let clients: Vec<Vec<String>> = of_relays().filter(|o| !has_pairs(o)).map(clients).collect();
    let simulated: Vec<Vec<String>> = of_relays().filter(|o| is_simulated(o)).map(simulated).collect();
    let of_simulated = vec!["configuration", "instructions", "data references", "D1 misses", "LL misses"];
    let mut of_carried = vec![
        "configuration",
        "Mb/s",
        "undelivered",
        "p50 µs",
        "p99 µs",
        "CPU s/GB",
        "ns a packet",
        "relay's CPUs",
        "generator busy",
        "corrupted",
    ];
    if of_relays().any(|o| o.configuration.sut() == Sut::TcpForwarder) {
        of_carried.insert(SHARE_AT, "of it TCP");
        let shares = carrying.map(|o| or_dash(share_of_tcp(o, results)));
        carried.iter_mut().zip(shares).for_each(|(row, share)| row.insert(SHARE_AT, share));
    }
    let of_clients = vec![
        "configuration",
        "connects/s",
        "CPU ms a connect",
        "relay's CPUs",
        "generator busy",
        "KiB a client",
        "MiB before",
        "MiB with",
    ];
    let tables =
        [(of_carried, carried, METHOD), (of_clients, clients, CLIENTS), (of_simulated, simulated, SIMULATED)];
    let tables = tables.into_iter().filter(|(_, rows, _)| !rows.is_empty());
    let tables = tables.map(|(headings, rows, said)| (Table { headings, text: 1, rows }, said));
    tables.chain(spent(results)).collect()
}

/// Where a row has what of its nanoseconds a packet the kernel's TCP takes: behind them.
const SHARE_AT: usize = 7;

/// What a forwarder of bytes needs a packet under the same load, as a share of what this relay needs.
fn share_of_tcp(outcome: &Outcome, results: &Results) -> Option<String> {
    let own = &outcome.configuration;
    let like = |other: &&Outcome| {
        let c = &other.configuration;
        let same = c.workload == own.workload && c.relay() == own.relay() && c.placement == own.placement;
        c.sut() == Sut::TcpForwarder && c.topology() == own.topology() && same
    };
    let floor = results.configurations.iter().find(like)?;
    let ns = |o: &Outcome| o.further.get("ns_per_packet").map(|s| s.median);
    Some(format!("{:.0} %", ns(floor)? * 100.0 / ns(outcome)?))
}

/// Nanoseconds a packet by part of its way, of profiled runs.
fn spent(results: &Results) -> Option<(Table, &'static str)> {
    let rules = Rules::load(None).ok()?;
    let relays = results.configurations.iter().filter(|o| o.configuration.relay().is_some());
    let row = |outcome: &Outcome| {
        let sum = sum(&outcome.profiles);
        let counts = parts(&sum.profile, &rules);
        let all: u64 = counts.iter().sum();
        let ns = |n: u64| Some(digits(sum.header.ns_per_packet(n)?));
        let cell = |n: u64| Some(format!("{} ({:.0} %)", ns(n)?, n as f64 * 100.0 / all as f64));
        let cells = counts.iter().map(|&n| or_dash(cell(n).filter(|_| all > 0)));
        (sum.runs > 0).then(|| {
            std::iter::once(outcome.configuration.name.clone())
                .chain(cells)
                .chain([or_dash(ns(all).filter(|_| all > 0))])
                .collect()
        })
    };
    let headings = ["configuration"].into_iter().chain(PARTS).chain(["all"]).collect();
    let rows: Vec<Vec<String>> = relays.filter_map(row).collect();
    (!rows.is_empty()).then_some((Table { headings, text: 1, rows }, SPENT))
}

fn is_simulated(outcome: &Outcome) -> bool {
    outcome.configuration.relay().is_some_and(|r| r.load == Load::SimulatedCaches)
}

fn simulated(outcome: &Outcome) -> Vec<String> {
    let names = ["instructions", "data_references", "d1_misses", "ll_misses"];
    let metric = |name: &str| outcome.further.get(&format!("simulated_{name}_per_packet"));
    let metrics = names.map(|name| or_dash(metric(name).map(|s| digits(s.median))));
    std::iter::once(outcome.configuration.name.clone()).chain(metrics).collect()
}

fn carried(outcome: &Outcome) -> Vec<String> {
    let metric = |name: &str| outcome.further.get(name).map(|s| s.median);
    let latency = |name: &str| outcome.latency_ns.get(name).map(|s| digits(s.median / 1e3));
    let percent = |name: &str| metric(name).map(|n| format!("{} %", digits(n)));
    let corrupted = outcome.further.get("corrupted_packets").map(|s| (s.mean * s.n as f64).round() as u64);
    vec![
        outcome.configuration.name.clone(),
        or_dash(metric("mbps").map(digits)),
        or_dash(percent("undelivered_percent")),
        or_dash(latency("p50")),
        or_dash(latency("p99")),
        or_dash(metric("cpu_seconds_per_gb").map(digits)),
        or_dash(metric("ns_per_packet").map(digits)),
        or_dash(percent("sut_cpu_percent").or_else(|| percent("process_cpu_percent"))),
        or_dash(percent("generator_busy_percent")),
        or_dash(corrupted.map(grouped)),
    ]
}

fn clients(outcome: &Outcome) -> Vec<String> {
    let metric = |name: &str, unit: f64| outcome.further.get(name).map(|s| digits(s.median / unit));
    let percent = |name: &str| metric(name, 1.0).map(|n| format!("{n} %"));
    vec![
        outcome.configuration.name.clone(),
        or_dash(metric("connects_per_second", 1.0)),
        or_dash(metric("cpu_ms_per_connect", 1.0)),
        or_dash(percent("sut_cpu_percent").or_else(|| percent("process_cpu_percent"))),
        or_dash(percent("generator_busy_percent")),
        or_dash(metric("memory_bytes_per_client", 1024.0)),
        or_dash(metric("memory_bytes_before", 1048576.0)),
        or_dash(metric("memory_bytes_after", 1048576.0)),
    ]
}

fn or_dash(metric: Option<String>) -> String {
    metric.unwrap_or("–".into())
}
