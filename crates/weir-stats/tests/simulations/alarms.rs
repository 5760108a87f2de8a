//! Warnings: quiet on clean runs, awake to planted defects.

use weir_stats::defects::{FALSE_ALARM, modes, of_campaign, outliers, serial, spread, trend};
use weir_stats::schedule::schedule;

use super::draws::{Draws, allowed, documented, percent, rate};

const CASES: usize = 2000;

type Alarm = fn(&[f64]) -> bool;

const KINDS: [(&str, Alarm); 4] = [
    ("drift", |f| trend(f).is_some_and(|(p, _)| p < FALSE_ALARM)),
    ("autocorrelation", |f| serial(f).is_some_and(|s| s.p < FALSE_ALARM)),
    ("two modes", |f| modes(f).is_some()),
    ("outliers", |f| !outliers(f).is_empty()),
];

const RUNS: [usize; 4] = [6, 10, 20, 50];

/// A row of alarms by number of runs.
fn cells(mut event: impl FnMut(usize) -> f64) -> String {
    RUNS.map(|n| percent(event(n))).join(" | ")
}

#[test]
fn clean_runs_raise_one_false_alarm_in_a_hundred_at_most() {
    let mut rows = Vec::new();
    for (name, alarm) in KINDS {
        let mut draws = Draws::new(61);
        rows.push(format!(
            "| {name} | normal | {} |",
            cells(|n| {
                let wrong = rate(CASES, || alarm(&draws.normals(n, 100.0, 5.0)));
                assert!(wrong <= allowed(FALSE_ALARM, CASES), "{name}, {n} normal runs: {wrong}");
                wrong
            })
        ));
        rows.push(format!(
            "| {name} | uniform | {} |",
            cells(|n| {
                let wrong = rate(CASES, || alarm(&draws.uniforms(n)));
                assert!(wrong <= allowed(FALSE_ALARM, CASES), "{name}, {n} uniform runs: {wrong}");
                wrong
            })
        ));
        // outliers of skewed runs are the tail they have: the only kind that leans on the normal distribution
        rows.push(format!(
            "| {name} | skewed | {} |",
            cells(|n| {
                let wrong = rate(CASES, || alarm(&draws.skewed(n)));
                assert!(
                    name == "outliers" || wrong <= allowed(FALSE_ALARM, CASES),
                    "{name}, {n} skewed: {wrong}"
                );
                wrong
            })
        ));
    }
    documented(&rows);
}

#[test]
fn unequal_spread_is_said_of_equal_ones_once_in_a_hundred() {
    let mut draws = Draws::new(62);
    let alarm = |a: &[f64], b: &[f64]| spread(a, b).is_some_and(|s| s.p < FALSE_ALARM);
    let normal = cells(|n| {
        let wrong = rate(CASES, || alarm(&draws.normals(n, 1.0, 5.0), &draws.normals(n, 9.0, 5.0)));
        assert!(wrong <= allowed(FALSE_ALARM, CASES), "{n} normal runs: {wrong}");
        wrong
    });
    let uniform = cells(|n| rate(CASES, || alarm(&draws.uniforms(n), &draws.uniforms(n))));
    let skewed = cells(|n| rate(CASES, || alarm(&draws.skewed(n), &draws.skewed(n))));
    documented(&[
        format!("| unequal spread | normal | {normal} |"),
        format!("| unequal spread | uniform | {uniform} |"),
        format!("| unequal spread | skewed | {skewed} |"),
    ]);
}

#[test]
fn clean_campaigns_raise_one_false_alarm_in_thirty_at_most() {
    // drift and autocorrelation, one in a hundred each, and what taking away the means adds
    let both = 1.0 / 30.0;
    let rows: Vec<String> = [(2, 5), (3, 3), (6, 5), (10, 5), (4, 20)]
        .iter()
        .map(|&(configurations, blocks): &(usize, usize)| {
            let mut draws = Draws::new(64);
            let mut slots: Vec<(usize, usize)> = Vec::new();
            let mut said = |slow: f64| {
                rate(CASES, || {
                    slots.clear();
                    slots.extend(
                        schedule(configurations, blocks, draws.seed())
                            .iter()
                            .map(|s| (s.configuration, s.order)),
                    );
                    let mut state = 0.0;
                    let mut sets = vec![(Vec::new(), Vec::new()); configurations];
                    for &(configuration, order) in &slots {
                        state = 0.9 * state + draws.normal();
                        let (values, places): &mut (Vec<f64>, Vec<usize>) = &mut sets[configuration];
                        values.push(100.0 * (configuration + 1) as f64 + slow * state + draws.normal());
                        places.push(order);
                    }
                    let sets: Vec<(&[f64], &[usize])> =
                        sets.iter().map(|(f, o)| (f.as_slice(), o.as_slice())).collect();
                    of_campaign(&sets).is_some()
                })
            };
            let (clean, planted) = (said(0.0), said(1.0));
            assert!(clean <= allowed(both, CASES), "{configurations} × {blocks}: {clean}");
            format!("| {configurations} × {blocks} | {} | {} |", percent(clean), percent(planted))
        })
        .collect();
    documented(&rows);
}

/// Planted, in units of the runs' own deviation.
fn planted(kind: &str, n: usize, draws: &mut Draws) -> Vec<f64> {
    let mut runs = draws.normals(n, 0.0, 1.0);
    match kind {
        "drift" => runs.iter_mut().enumerate().for_each(|(i, r)| *r += 4.0 * i as f64 / n as f64),
        "autocorrelation" => (1..n).for_each(|i| runs[i] += 0.8 * runs[i - 1]),
        "two modes" => runs.iter_mut().step_by(2).for_each(|r| *r += 8.0),
        _ => runs[n / 3] += 10.0,
    }
    runs
}

#[test]
fn planted_defects_are_found() {
    let mut draws = Draws::new(63);
    let what = [
        "4 deviations from first to last",
        "0.8 of each run in the next",
        "8 deviations apart",
        "one run 10 deviations away",
    ];
    let mut rows: Vec<String> = KINDS
        .iter()
        .zip(what)
        .map(|((name, alarm), what)| {
            let cells = cells(|n| {
                let found = rate(1000, || alarm(&planted(name, n, &mut draws)));
                assert!(n < 20 || found > 0.5, "{name}, {n} runs: {found}");
                found
            });
            format!("| {name} | {what} | {cells} |")
        })
        .collect();
    let wide = cells(|n| {
        rate(1000, || {
            spread(&draws.normals(n, 0.0, 1.0), &draws.normals(n, 0.0, 4.0))
                .is_some_and(|s| s.p < FALSE_ALARM)
        })
    });
    rows.push(format!("| unequal spread | 4 times as wide | {wide} |"));
    documented(&rows);
}
