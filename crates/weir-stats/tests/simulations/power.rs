//! True positives: what is said to be detectable is found in four of five campaigns.

use weir_stats::power::{Design, FEWEST_RUNS, Goal, detectable, runs_needed};
use weir_stats::student::{of_differences, welch};

use super::draws::{Draws, documented, percent, rate};

const CASES: usize = 10_000;

/// Share of campaigns of `n` runs that find `effect` deviations at `alpha`.
fn found(design: Design, n: usize, effect: f64, alpha: f64, draws: &mut Draws) -> f64 {
    rate(CASES, || {
        let p = match design {
            Design::Unpaired => {
                welch(&draws.normals(n, 0.0, 1.0), &draws.normals(n, effect, 1.0)).map(|t| t.p)
            }
            Design::Paired => of_differences(&draws.normals(n, effect, 1.0)).map(|t| t.p),
        };
        p.is_some_and(|p| p <= alpha)
    })
}

#[test]
fn what_is_detectable_is_found_in_four_of_five() {
    let mut rows = Vec::new();
    for (name, design) in [("welch", Design::Unpaired), ("paired", Design::Paired)] {
        for n in [3, 5, 10, 30] {
            let cells = [0.05, 0.005].map(|alpha| {
                let (standard_error, df) = design.precision(1.0, n);
                let effect = detectable(standard_error, df, Goal { alpha, power: 0.8 });
                let found = found(design, n, effect, alpha, &mut Draws::new(1000 + n as u64));
                // Welch gives away degrees of freedom that the plan counts on, most with the fewest runs
                let least = match (design, n) {
                    (Design::Unpaired, ..FEWEST_RUNS) => 0.5,
                    (Design::Unpaired, ..10) => 0.7,
                    (Design::Unpaired, ..30) => 0.76,
                    _ => 0.78,
                };
                assert!((least..=0.82).contains(&found), "{name}, {n} runs, {alpha}: {found}");
                percent(found)
            });
            rows.push(format!("| {name} | {n} | {} |", cells.join(" | ")));
        }
    }
    documented(&rows);
}

#[test]
fn the_runs_asked_for_find_the_effect_and_two_less_do_not() {
    let mut draws = Draws::new(22);
    for design in [Design::Unpaired, Design::Paired] {
        let effect = 1.5;
        let n = runs_needed(1.0, effect, design, Goal::default()).expect("few");
        let (enough, fewer) =
            (found(design, n, effect, 0.05, &mut draws), found(design, n - 2, effect, 0.05, &mut draws));
        assert!(enough >= 0.77 && fewer < 0.8, "{design:?}, {n} runs: {enough}, two less {fewer}");
    }
}
