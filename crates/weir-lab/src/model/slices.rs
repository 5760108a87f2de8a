//! A run measured in slices, and what they amount to.
//!
//! ```text
//! round 0   a b c     one slice of each configuration, milliseconds apart,
//! round 1   c a b     in another order every round
//! …                   a run of a: the sum of its slices
//! ```
//!
//! Promises: a run's ledger is the sum of its slices', packet by packet; values are what one window of all
//! slices would show: counts add up, rates are weighted by time, values a packet by packets, shares computed
//! again. Refuses: percentiles, which have no sum. A value whose unit it does not know stays in the slices, and
//! the run says so.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LabError, LossLedger, Sample};

/// One slice of a run, as raw files keep it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Number of the round, from 0. Slices of one block and round are compared with each other.
    pub round: usize,
    /// Its place in the round, from 0.
    pub place: usize,
    pub seconds: f64,
    pub pps: f64,
    pub ledger: LossLedger,
    #[serde(
        default,
        alias = "figures",
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "super::by_todays_names"
    )]
    pub metrics: BTreeMap<String, f64>,
    /// CLOCK_MONOTONIC nanoseconds at the ends of its window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ns: Option<(u64, u64)>,
}

impl Slice {
    /// What metrics are read from.
    pub fn sample(&self) -> Sample {
        let Slice { seconds, pps, ledger, metrics, window_ns, .. } = self.clone();
        Sample { seconds, pps, ledger, metrics, window_ns, ..Sample::default() }
    }
}

/// What a value's slices amount to.
enum Sum {
    /// A count.
    Total,
    /// Weighted by delivered packets.
    ByPackets,
    /// Weighted by seconds.
    ByTime,
    /// What is so at the end.
    Last,
    /// The largest.
    Most,
    /// The first in percent of the second.
    Percent(&'static str, &'static str),
}

/// How slices of this metric are summed: its unit stands last in its name.
fn sum_of(metric: &str) -> Option<Sum> {
    let unit = |unit: &str| metric.strip_suffix(unit).is_some_and(|n| n.is_empty() || n.ends_with('_'));
    match metric {
        "aead_share_percent" => Some(Sum::Percent("pps", "aead_pps")),
        "llc_miss_percent" => Some(Sum::Percent("llc_misses_per_packet", "llc_loads_per_packet")),
        _ if unit("per_packet") => Some(Sum::ByPackets),
        _ if unit("pps") || unit("mbps") || unit("percent") => Some(Sum::ByTime),
        _ if ["packets", "frames", "updates", "total"].into_iter().any(unit) => Some(Sum::Total),
        _ if unit("max") => Some(Sum::Most),
        _ if unit("buckets") || unit("comparisons") => Some(Sum::Last),
        _ => None,
    }
}

/// A run of slices, in the order measured; each with its place in its round.
pub fn sum(slices: Vec<(usize, Sample)>) -> Result<Sample, LabError> {
    let mut run = Sample::default();
    for (round, (place, mut slice)) in slices.into_iter().enumerate() {
        if !(slice.latency_ns.is_empty() && slice.trials.is_empty() && slice.goals.is_empty()) {
            return Err(LabError::new(
                "slices: percentiles and searches have no sum over slices: remove `slices`".into(),
            ));
        }
        for note in std::mem::take(&mut slice.notes) {
            if !run.notes.contains(&note) {
                run.notes.push(note);
            }
        }
        run.seconds += slice.seconds;
        run.ledger.add(&slice.ledger);
        run.reordered += slice.reordered;
        run.duplicated += slice.duplicated;
        let Sample { seconds, pps, ledger, metrics, window_ns, .. } = slice;
        run.slices.push(Slice { round, place, seconds, pps, ledger, metrics, window_ns });
    }
    run.pps = weighted(&run.slices, &|s| Some((s.pps, s.seconds))).unwrap_or(0.0);
    let (metrics, unknown) = metrics(&run);
    run.metrics = metrics;
    run.notes.extend(unknown.into_iter().map(|name| {
        format!("{name}: its name does not say how slices add up; it is in those of the raw file")
    }));
    Ok(run)
}

/// Those of the run, and names of those without a sum.
fn metrics(run: &Sample) -> (BTreeMap<String, f64>, Vec<String>) {
    let slices = &run.slices;
    let names: std::collections::BTreeSet<&String> = slices.iter().flat_map(|s| s.metrics.keys()).collect();
    let mut metrics = BTreeMap::new();
    let (mut shares, mut unknown) = (Vec::new(), Vec::new());
    for name in names {
        let of = |s: &Slice| s.metrics.get(name).copied();
        let metric = match sum_of(name) {
            Some(Sum::Total) => Some(slices.iter().filter_map(of).sum()),
            Some(Sum::Last) => slices.iter().rev().find_map(of),
            Some(Sum::Most) => slices.iter().filter_map(of).max_by(f64::total_cmp),
            Some(Sum::ByPackets) => weighted(slices, &|s| Some((of(s)?, s.ledger.delivered as f64))),
            Some(Sum::ByTime) => weighted(slices, &|s| Some((of(s)?, s.seconds))),
            Some(Sum::Percent(part, whole)) => {
                shares.push((name.clone(), part, whole));
                None
            }
            None => {
                unknown.push(name.clone());
                None
            }
        };
        metrics.extend(metric.map(|f| (name.clone(), f)));
    }
    for (name, part, whole) in shares {
        let of = |name: &str| if name == "pps" { Some(run.pps) } else { metrics.get(name).copied() };
        if let Some((part, whole)) = of(part).zip(of(whole)).filter(|(_, whole)| *whole > 0.0) {
            metrics.insert(name, 100.0 * part / whole);
        }
    }
    (metrics, unknown)
}

/// Mean of what every slice has, each with its weight.
fn weighted(slices: &[Slice], of: &dyn Fn(&Slice) -> Option<(f64, f64)>) -> Option<f64> {
    let all: Vec<(f64, f64)> = slices.iter().map(of).collect::<Option<_>>()?;
    let weight: f64 = all.iter().map(|(_, w)| w).sum();
    (weight > 0.0).then(|| all.iter().map(|(v, w)| v * w).sum::<f64>() / weight)
}

/// Why a run cannot be the sum of its slices; `None` where it is, or has none.
pub fn contradiction(run: &Sample) -> Option<String> {
    if run.slices.is_empty() {
        return None;
    }
    let mut ledger = LossLedger::default();
    run.slices.iter().for_each(|s| ledger.add(&s.ledger));
    if ledger != run.ledger {
        return Some("its ledger is not the sum of its slices'".into());
    }
    let misplaced = run.slices.iter().enumerate().find(|(i, s)| s.round != *i);
    misplaced.map(|(i, s)| format!("slice {i} is of round {}, expected {i}", s.round))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A slice that delivered so many in so many seconds.
    fn slice(seconds: f64, delivered: u64, dropped: u64) -> Sample {
        let sent = delivered + dropped;
        let drops = BTreeMap::from([("weir.no_route".to_string(), dropped)]);
        let ledger = LossLedger { intended: sent, offered: sent, sent, drops, delivered };
        let pps = delivered as f64 / seconds;
        let ns = seconds * 1e9 / delivered as f64;
        let metrics = [
            ("ns_per_packet", ns),
            ("mbps", pps * 60.0 * 8.0 / 1e6),
            ("aead_pps", 2e6),
            ("aead_share_percent", 100.0 * pps / 2e6),
            ("verified_packets", 64.0),
        ];
        let metrics = metrics.map(|(name, f)| (name.to_string(), f)).into();
        Sample { seconds, pps, ledger, metrics, notes: vec!["said".into()], ..Sample::default() }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs()
    }

    proptest! {
        #[test]
        fn a_run_is_what_one_window_of_all_its_slices_would_show(
            parts in proptest::collection::vec((0.001f64..0.1, 1u64..1_000_000, 0u64..1000), 1..40),
        ) {
            let run = sum(parts.iter().map(|&(s, d, l)| (0, slice(s, d, l))).collect()).expect("adds up");
            let seconds: f64 = parts.iter().map(|p| p.0).sum();
            let (delivered, dropped) = parts.iter().fold((0, 0), |(d, l), p| (d + p.1, l + p.2));
            prop_assert_eq!(run.ledger.delivered, delivered);
            prop_assert_eq!(run.ledger.drops["weir.no_route"], dropped);
            prop_assert_eq!((run.ledger.unaccounted(), run.ledger.intended), (0, delivered + dropped));
            prop_assert!(close(run.pps, delivered as f64 / seconds));
            prop_assert!(close(run.metrics["ns_per_packet"], seconds * 1e9 / delivered as f64));
            prop_assert!(close(run.metrics["mbps"], run.pps * 480.0 / 1e6));
            prop_assert!(close(run.metrics["aead_share_percent"], run.pps / 2e4));
            prop_assert_eq!(run.metrics["verified_packets"], 64.0 * parts.len() as f64);
            prop_assert_eq!(&run.notes, &["said"]);
            prop_assert_eq!(contradiction(&run), None);
            let back: Sample = serde_json::from_str(&serde_json::to_string(&run).expect("plain")).expect("back");
            prop_assert_eq!(contradiction(&back), None);
        }
    }

    #[test]
    fn a_packet_more_in_a_slice_than_in_the_run_is_a_contradiction() {
        let mut run = sum(vec![(0, slice(0.1, 10, 0)), (1, slice(0.1, 12, 1))]).expect("adds up");
        run.slices[1].ledger.delivered += 1;
        assert_eq!(contradiction(&run).as_deref(), Some("its ledger is not the sum of its slices'"));
    }

    #[test]
    fn what_has_no_sum_stays_in_the_slices_and_percentiles_are_refused() {
        let mut odd = slice(0.1, 10, 0);
        odd.metrics.insert("temperature_celsius".into(), 40.0);
        let run = sum(vec![(0, odd)]).expect("adds up");
        assert!(run.notes[1].starts_with("temperature_celsius: "), "{:?}", run.notes);
        let kept = run.slices[0].metrics.contains_key("temperature_celsius");
        assert!(kept && !run.metrics.contains_key("temperature_celsius"));
        let mut late = slice(0.1, 10, 0);
        late.latency_ns.insert("p99".into(), 1000);
        assert!(sum(vec![(0, late)]).expect_err("percentiles").said.contains("percentiles"));
    }

    #[test]
    fn the_longest_of_a_run_is_the_longest_of_its_slices_and_totals_add_up() {
        let with = |total: f64, max: f64| {
            let mut slice = slice(0.1, 10, 0);
            slice.metrics.extend([("update_ns_total".into(), total), ("update_ns_max".into(), max)]);
            slice
        };
        let run = sum(vec![(0, with(30.0, 20.0)), (1, with(50.0, 15.0))]).expect("adds up");
        assert_eq!((run.metrics["update_ns_total"], run.metrics["update_ns_max"]), (80.0, 20.0));
    }

    #[test]
    fn a_value_some_slices_lack_is_no_value_of_the_run() {
        let mut bare = slice(0.1, 10, 0);
        bare.metrics.remove("aead_pps");
        let run = sum(vec![(0, slice(0.1, 10, 0)), (1, bare)]).expect("adds up");
        assert!(!run.metrics.contains_key("aead_pps") && !run.metrics.contains_key("aead_share_percent"));
    }
}
