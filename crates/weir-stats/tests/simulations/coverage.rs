//! Intervals hold the truth as often as they say, and equivalence is claimed of unequal things as rarely.

use weir_stats::bootstrap::ratio_of_means;
use weir_stats::compare::p_equivalence;
use weir_stats::paired::{Series, paired};
use weir_stats::student::welch;

use super::draws::{Draws, allowed, documented, percent, rate};

/// A bootstrap costs 10,000 resamples: fewer cases than elsewhere.
const CASES: usize = 250;

/// Share of bootstrap intervals that hold the true ratio of 1.
fn held(n: usize, mut set: impl FnMut(usize) -> Vec<f64>) -> f64 {
    let mut seed = 0;
    rate(CASES, || {
        seed += 1;
        let r = ratio_of_means(&set(n), &set(n), seed).expect("above zero");
        r.low.expect("runs") <= 1.0 && 1.0 <= r.high.expect("runs")
    })
}

fn bootstrap_row(n: usize) -> String {
    let mut draws = Draws::new(31 + n as u64);
    let normal = held(n, |n| draws.normals(n, 100.0, 3.0));
    let skewed = held(n, |n| draws.skewed(n));
    assert!(1.0 - normal <= allowed(0.05, CASES), "{n} normal runs: {normal}");
    assert!(1.0 - skewed <= allowed(0.08, CASES), "{n} skewed runs: {skewed}");
    format!("| bootstrap | {n} | {} | {} |", percent(normal), percent(skewed))
}

#[test]
fn intervals_of_three_and_four_runs_hold_the_ratio() {
    documented(&[bootstrap_row(3), bootstrap_row(4)]);
}

#[test]
fn bootstrap_intervals_of_five_runs_hold_the_ratio() {
    documented(&[bootstrap_row(5)]);
}

#[test]
fn bootstrap_intervals_of_ten_runs_hold_the_ratio() {
    documented(&[bootstrap_row(10)]);
}

#[test]
fn paired_intervals_hold_the_ratio_whatever_blocks_do() {
    let rows: Vec<String> = [3, 5, 10]
        .iter()
        .map(|&n| {
            let mut draws = Draws::new(41 + n as u64);
            let blocks: Vec<usize> = (0..n).collect();
            let mut held = |skewed: bool| {
                rate(4000, || {
                    let common = draws.normals(n, 100.0, 10.0);
                    let mut set = || -> Vec<f64> {
                        let own = if skewed { draws.skewed(n) } else { draws.normals(n, 1.0, 0.03) };
                        common.iter().zip(own).map(|(c, o)| c * o).collect()
                    };
                    let (a, b) = (set(), set());
                    let series = |values| Series::in_blocks("", values, &blocks);
                    let p = paired(series(&a), series(&b), 1).expect("blocks");
                    p.low <= 1.0 && 1.0 <= p.high
                })
            };
            let (normal, skewed) = (held(false), held(true));
            assert!(1.0 - normal.min(skewed) <= allowed(0.05, 4000), "{n}: {normal}, {skewed}");
            format!("| paired | {n} | {} | {} |", percent(normal), percent(skewed))
        })
        .collect();
    documented(&rows);
}

#[test]
fn what_lies_at_the_margin_is_rarely_called_equivalent_and_what_is_equal_often() {
    let rows: Vec<String> = [(3, 1.0), (5, 1.0), (10, 1.0), (20, 1.0)]
        .iter()
        .map(|&(n, margin): &(usize, f64)| {
            let mut draws = Draws::new(51 + n as u64);
            let mut called = |difference: f64| {
                rate(4000, || {
                    let (a, b) = (draws.normals(n, 100.0, 1.0), draws.normals(n, 100.0 + difference, 1.0));
                    welch(&a, &b).is_some_and(|t| p_equivalence(&t, (-margin, margin)) <= 0.05)
                })
            };
            let (wrong, right) = (called(margin), called(0.0));
            assert!(wrong <= allowed(0.05, 4000), "{n}: {wrong}");
            format!("| {n} | {} | {} |", percent(wrong), percent(right))
        })
        .collect();
    documented(&rows);
}
