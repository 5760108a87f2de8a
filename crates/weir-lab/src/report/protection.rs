//! Protected packets beside the cipher alone, in both reports.
//!
//! Promises: the raw rate is of the same cipher, core, packet lengths and window as the pipeline's; the share
//! is a median of runs, not a ratio of medians.

use super::comparisons::Table;
use crate::format::{digits, grouped};
use crate::model::ipsec::Direction;
use crate::result::{Outcome, Results};

pub const METHOD: &str = "Raw is the cipher by itself, in the same window as the pipeline and alternating with it, with \
                          packets of the same lengths; the share is how much of that rate the whole path reaches \
                          (route or policy, ESP, headers, counters). Mb/s counts the plain frames, without FCS. \
                          Verified are delivered packets that were opened by the far end and found to be what went in.";

/// A row a protected configuration; `None` where there is none.
pub fn section(results: &Results) -> Option<Table> {
    let rows: Vec<Vec<String>> = results.configurations.iter().filter_map(row).collect();
    let headings = vec![
        "configuration",
        "cipher",
        "mode",
        "direction",
        "Mpps",
        "Mb/s",
        "raw Mpps",
        "share of raw",
        "verified",
    ];
    (!rows.is_empty()).then_some(Table { headings, text: 4, rows })
}

fn row(outcome: &Outcome) -> Option<Vec<String>> {
    let p = outcome.configuration.ipsec().filter(|p| p.direction != Direction::Beside)?;
    let further = |name: &str| outcome.further.get(name);
    let or_dash = |value: Option<String>| value.unwrap_or("–".into());
    let verified = further("verified_packets").map(|s| s.mean * s.n as f64);
    Some(vec![
        outcome.configuration.name.clone(),
        p.cipher.to_string(),
        crate::experiment::kebab(&p.mode),
        crate::experiment::kebab(&p.direction),
        or_dash(outcome.pps.map(|s| digits(s.median / 1e6))),
        or_dash(further("mbps").map(|s| digits(s.median))),
        or_dash(further("aead_pps").map(|s| digits(s.median / 1e6))),
        or_dash(further("aead_share_percent").map(|s| format!("{} %", digits(s.median)))),
        or_dash(verified.map(|n| grouped(n.round() as u64))),
    ])
}
