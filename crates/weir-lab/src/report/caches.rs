//! Last-level cache a packet, in both reports: counted where the machine counts, and said where it does not.
//!
//! Promises: no value is simulated here; `weir-lab profile cachesim` does that under its own name.

use super::comparisons::Table;
use crate::format::digits;
use crate::model::Topology;
use crate::result::{Outcome, Results};

/// Where nothing was counted.
const NONE: &str = "This machine counts no cache events. `weir-lab profile cachesim` simulates caches on the memory topology.";
const COUNTED: &str = "Counted on the worker's thread in the window (perf_event, last-level loads and load misses); \
                       source and sink of the memory topology included, as they are in the baseline.";

/// A row a counted configuration, and what is said of it; `None` without the memory topology, where alone
/// caches are counted.
pub fn section(results: &Results) -> Option<(Option<Table>, &'static str)> {
    let measured = |o: &&Outcome| o.configuration.topology() == Topology::Memory && o.pps.is_some();
    let memory: Vec<&Outcome> = results.configurations.iter().filter(measured).collect();
    if memory.is_empty() {
        return None;
    }
    let median = |o: &Outcome, name: &str| o.further.get(name).map(|s| digits(s.median));
    let row = |o: &&Outcome| {
        Some(vec![
            o.configuration.name.clone(),
            median(o, "llc_loads_per_packet")?,
            median(o, "llc_misses_per_packet")?,
            median(o, "llc_miss_percent").map_or("–".into(), |p| format!("{p} %")),
        ])
    };
    let rows: Vec<Vec<String>> = memory.iter().filter_map(row).collect();
    if rows.is_empty() {
        return Some((None, NONE));
    }
    let headings = vec!["configuration", "LLC loads a packet", "misses a packet", "miss rate"];
    Some((Some(Table { headings, text: 1, rows }), COUNTED))
}
