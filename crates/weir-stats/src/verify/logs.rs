//! From a generator's log to one value a run, as the field's scripts do it.
//!
//! ```text
//! bench.<set>.<run>.receiver  ── lines 16 … last − 10, "main_thread [n] <pps> pps", median ──► <set>.pps
//! bench.<set>.<run>.sender    ── "Estimated … throughput= <Mb/s> …" ───────────────────────► <set>.equilibrium
//!                                        "(maximum value seen: <Mb/s>)" ─────────────► <set>.equilibrium.max
//! raw/<set>.jsonl             ── one run a line, the value of the metric ─────────────────► raw/<set>.<metric>
//! ```
//!
//! Promises the value the published file holds: a median rounded to eight digits. Refuses a log without a
//! single usable line: that run has no value, and the set says so.

use crate::ministat::Dialect;
use crate::number::general;
use crate::summary::median;

/// Lines at the front of a receiver's log: set-up and the rising edge.
const HEAD: usize = 15;
/// Lines at its end: the falling edge and the totals.
const TAIL: usize = 10;
/// Digits ministat prints of a median.
const DIGITS: usize = 8;

/// What a log is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Receiver,
    Sender,
    /// A log of runs in the caller's own format.
    Runs,
}

/// A log's set and kind by its name: `bench.null.3.sender` is of set `null`.
pub fn named(name: &str) -> Option<(&str, Kind)> {
    let (stem, kind) = match name.rsplit_once('.')? {
        (stem, "receiver") => (stem, Kind::Receiver),
        (stem, "sender") => (stem, Kind::Sender),
        (stem, "jsonl") => return Some((stem, Kind::Runs)),
        _ => return None,
    };
    let stem = match stem.rsplit_once('.') {
        Some((set, run)) if run.bytes().all(|b| b.is_ascii_digit()) => set,
        _ => stem,
    };
    Some((stem.strip_prefix("bench.").unwrap_or(stem), kind))
}

/// The run's median rate in packets a second.
pub fn receiver(text: &str, dialect: Dialect) -> Option<f64> {
    let lines: Vec<&str> = text.lines().collect();
    let kept = lines.get(HEAD..lines.len().checked_sub(TAIL)?)?;
    let mut rates: Vec<f64> = kept.iter().filter_map(|l| rate(l)).collect();
    rates.sort_by(f64::total_cmp);
    let half = rates.len() / 2;
    let median = match dialect {
        _ if rates.is_empty() => return None,
        Dialect::Old => rates[half],
        _ => median(&rates),
    };
    general(median, DIGITS).parse().ok()
}

/// `290.703575 main_thread [1441] 729113 pps (…)`: 729113. A rate of 0 is a second without traffic.
fn rate(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("main_thread")?;
    let mut words = rest.split_whitespace();
    let source = words.next()?;
    let number = source.strip_prefix('[')?.strip_suffix(']')?;
    let rate: f64 = words.next()?.parse().ok()?;
    let counts = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (counts && words.next()?.starts_with("pps") && rate > 0.0).then_some(rate)
}

/// Each estimate of a sender's log and the greatest value seen with it, Mb/s.
pub fn sender(text: &str) -> Vec<(f64, Option<f64>)> {
    let estimates = text.lines().filter(|l| l.contains("Estimated"));
    estimates
        .filter_map(|line| {
            let after = |mark: &str| line.split_once(mark)?.1.split_whitespace().next()?.parse().ok();
            Some((after("throughput=")?, after("value seen:")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 15 lines to drop, `rates`, 10 lines to drop.
    fn log(rates: &[&str]) -> String {
        let edge = |n| "587.1 main_thread [2786] 5 pps (5 pkts)\n".repeat(n);
        let body: String =
            rates.iter().map(|r| format!("588.2 main_thread [27] {r} pps (9 pkts)\n")).collect();
        edge(HEAD) + &body + &edge(TAIL)
    }

    #[test]
    fn the_edges_of_a_receiver_are_dropped_and_the_median_kept() {
        assert_eq!(receiver(&log(&["30", "10", "20"]), Dialect::Modern), Some(20.0));
        assert_eq!(receiver(&log(&["30", "0", "20", "10"]), Dialect::Old), Some(20.0));
    }

    #[test]
    fn dialects_disagree_about_an_even_count() {
        let log = log(&["30", "10", "21", "20"]);
        assert_eq!(receiver(&log, Dialect::Modern), Some(20.5));
        assert_eq!(receiver(&log, Dialect::Old), Some(21.0));
    }

    #[test]
    fn medians_have_eight_digits_as_in_the_published_files() {
        assert_eq!(receiver(&log(&["11962549", "11962550"]), Dialect::Modern), Some(11_962_550.0));
    }

    #[test]
    fn a_log_too_short_or_without_rates_gives_no_value() {
        assert_eq!(receiver("", Dialect::Modern), None);
        assert_eq!(receiver(&log(&[]), Dialect::Modern), None);
        assert_eq!(receiver(&"x\n".repeat(HEAD + TAIL - 1), Dialect::Modern), None);
    }

    #[test]
    fn estimates_of_a_sender_are_read_with_their_greatest_value() {
        let text = "a\nEstimated Equilibrium Ethernet throughput= 901 Mb/s (maximum value seen: 906 Mb/s)\n";
        assert_eq!(sender(text), [(901.0, Some(906.0))]);
        assert_eq!(sender("Estimated nothing"), []);
    }

    #[test]
    fn names_tell_set_and_kind() {
        assert_eq!(named("bench.null.3.sender"), Some(("null", Kind::Sender)));
        assert_eq!(named("bench.r1.inet4.12.receiver"), Some(("r1.inet4", Kind::Receiver)));
        assert_eq!(named("alone.receiver"), Some(("alone", Kind::Receiver)));
        assert_eq!(named("bench.null.info"), None);
    }
}
