//! Where time goes, in both reports: what profiled runs came to, and a flame graph a configuration.
//!
//! Promises: says what was sampled, what sampling cost, and what could not be seen. Profiled runs are
//! never among the values.

use super::comparisons::Table;
use super::differentials;
use crate::format::escape;
use crate::format::{digits, grouped};
use crate::profile::flame;
use crate::profile::profiled::{Sum, sum};
use crate::result::{Outcome, Results};

/// Configurations with profiled runs, each added up.
fn sums(results: &Results) -> Vec<(&Outcome, Sum)> {
    let with = results.configurations.iter().filter(|o| !o.profiles.is_empty());
    with.map(|o| (o, sum(&o.profiles))).collect()
}

pub fn any(results: &Results) -> bool {
    results.configurations.iter().any(|o| !o.profiles.is_empty())
}

/// A row a configuration.
pub fn table(results: &Results) -> Table {
    let dash = |value: Option<String>| value.unwrap_or("–".into());
    let row = |(outcome, sum): &(&Outcome, Sum)| {
        let h = &sum.header;
        let share = |n: u64| (h.samples > 0).then(|| format!("{:.1} %", n as f64 * 100.0 / h.samples as f64));
        let cost = outcome.pps.and_then(|without| {
            let seen = !(without.min..=without.max).contains(&h.pps);
            let percent = sum.cost_percent(without.median)?;
            Some(if seen { format!("{percent:+.1} %").replace('-', "−") } else { "none seen".into() })
        });
        vec![
            outcome.configuration.name.clone(),
            if h.event.is_empty() { "–".into() } else { format!("{} at {} Hz", h.event, h.frequency_hz) },
            format!("{} of {}", sum.runs, outcome.profiles.len()),
            grouped(h.samples),
            grouped(h.lost),
            dash(sum.busy_ns_per_packet().map(digits)),
            dash(share(sum.idle())),
            dash(share(sum.others())),
            dash(share(h.unnamed)),
            dash(cost),
        ]
    };
    Table {
        headings: vec![
            "configuration",
            "event",
            "runs",
            "samples",
            "lost",
            "busy ns a packet",
            "idle",
            "others",
            "without a name",
            "cost of sampling",
        ],
        text: 2,
        rows: sums(results).iter().map(row).collect(),
    }
}

/// What must be known to read the table.
pub fn legend(results: &Results) -> Vec<String> {
    let mut said = vec![
        "Profiled runs follow the measured ones and are not among the values. Busy: samples times their \
         period by packets delivered in the window, without idle time and other processes' work. Cost: the rate \
         while sampled against the median without; “none seen” where it lies among the runs without. A large one \
         is a reason to distrust the shares"
            .to_string(),
    ];
    let mut notes: Vec<String> = sums(results).into_iter().flat_map(|(_, s)| s.header.notes).collect();
    notes.sort();
    notes.dedup();
    said.extend(notes);
    said
}

/// A folded flame graph a configuration, one a compared pair, and what all of them share.
pub fn graphs(results: &Results) -> String {
    let mut out = String::new();
    for (outcome, sum) in sums(results).iter().filter(|(_, s)| s.runs > 0) {
        let name = &outcome.configuration.name;
        out += &format!(
            "<details class=\"profile\"><summary>{}</summary>{}</details>\n",
            escape(name),
            flame::render(&sum.profile, name, &flame::plain)
        );
    }
    for pair in differentials::pairs(results).into_iter().flatten() {
        out += &format!(
            "<details class=\"profile\"><summary>what changed: {}</summary>{}</details>\n",
            escape(&pair.title),
            pair.svg
        );
    }
    if out.is_empty() {
        out
    } else {
        format!("<style>{}</style>{out}<script>{}</script>", flame::STYLE, flame::SCRIPT)
    }
}
