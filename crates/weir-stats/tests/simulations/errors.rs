//! False positives: two identical things, called different.

use weir_stats::holm;
use weir_stats::mannwhitney::mann_whitney;
use weir_stats::paired::{sign_flip, signed_rank};
use weir_stats::permutation::permutation;
use weir_stats::student::{of_differences, student, welch};

use super::draws::{Draws, allowed, documented, percent, rate};

const ALPHA: f64 = 0.05;
const CASES: usize = 4000;

/// How two sets of equal means may look.
#[derive(Clone, Copy, PartialEq)]
enum Scene {
    Normal,
    Skewed,
    /// The second spreads four times as wide.
    Wide,
    /// The same, and of the wide one only half the runs.
    FewWide,
    /// Blocks deviate twice as much as runs inside them.
    Blocks,
}

const SCENES: [Scene; 5] = [Scene::Normal, Scene::Skewed, Scene::Wide, Scene::FewWide, Scene::Blocks];

fn sets(scene: Scene, n: usize, draws: &mut Draws) -> (Vec<f64>, Vec<f64>) {
    match scene {
        Scene::Normal => (draws.normals(n, 0.0, 1.0), draws.normals(n, 0.0, 1.0)),
        Scene::Skewed => (draws.skewed(n), draws.skewed(n)),
        Scene::Wide => (draws.normals(n, 0.0, 1.0), draws.normals(n, 0.0, 4.0)),
        Scene::FewWide => (draws.normals(2 * n, 0.0, 1.0), draws.normals(n, 0.0, 4.0)),
        Scene::Blocks => {
            let blocks = draws.normals(n, 0.0, 2.0);
            let mut set = || blocks.iter().map(|b| b + draws.normal()).collect();
            (set(), set())
        }
    }
}

fn differences(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| b - a).collect()
}

type Test = fn(&[f64], &[f64]) -> Option<f64>;

/// A test, whether it pairs, the scenes in which it does not claim its error rate, and the runs from which on
/// it claims it where spread is unequal.
struct Claim {
    name: &'static str,
    p: Test,
    pairs: bool,
    exceptions: &'static [Scene],
    fewest: usize,
}

/// Ranks and relabellings say whether sets are alike in everything: unequal spread is a difference to them.
const ALIKE: &[Scene] = &[Scene::Wide, Scene::FewWide];

const CLAIMS: [Claim; 7] = [
    Claim { name: "Student", p: |a, b| Some(student(a, b)?.p), pairs: false, exceptions: ALIKE, fewest: 3 },
    Claim { name: "Welch", p: |a, b| Some(welch(a, b)?.p), pairs: false, exceptions: &[], fewest: 5 },
    Claim {
        name: "U test",
        p: |a, b| Some(mann_whitney(a, b)?.p),
        pairs: false,
        exceptions: ALIKE,
        fewest: 3,
    },
    Claim {
        name: "permutation",
        p: |a, b| Some(permutation(a, b, 1)?.p),
        pairs: false,
        exceptions: ALIKE,
        fewest: 3,
    },
    Claim {
        name: "paired t",
        p: |a, b| Some(of_differences(&differences(a, b))?.p),
        pairs: true,
        exceptions: &[],
        fewest: 3,
    },
    Claim {
        name: "sign flips",
        p: |a, b| Some(sign_flip(&differences(a, b), 1).p),
        pairs: true,
        exceptions: &[],
        fewest: 3,
    },
    Claim {
        name: "signed ranks",
        p: |a, b| Some(signed_rank(&differences(a, b)).p),
        pairs: true,
        exceptions: &[],
        fewest: 3,
    },
];

fn row(claim: &Claim, n: usize) -> String {
    let cells = SCENES.map(|scene| {
        // relabellings of 5 among 15 are many, and the pairs are lost with the runs
        if scene == Scene::FewWide && (claim.pairs || claim.name == "permutation") {
            return "–".to_string();
        }
        let mut draws = Draws::new(n as u64);
        let wrong = rate(CASES, || {
            let (a, b) = sets(scene, n, &mut draws);
            (claim.p)(&a, &b).is_some_and(|p| p <= ALPHA)
        });
        let claimed = !claim.exceptions.contains(&scene) && (n >= claim.fewest || !ALIKE.contains(&scene));
        assert!(!claimed || wrong <= allowed(ALPHA, CASES), "{} of {n}: {wrong}", claim.name);
        percent(wrong)
    });
    format!("| {} | {n} | {} |", claim.name, cells.join(" | "))
}

fn rows(runs: &[usize], chosen: impl Fn(&Claim) -> bool) {
    let chosen: Vec<&Claim> = CLAIMS.iter().filter(|c| chosen(c)).collect();
    let rows: Vec<String> = runs.iter().flat_map(|&n| chosen.iter().map(move |c| row(c, n))).collect();
    documented(&rows);
}

#[test]
fn unpaired_tests_call_identical_things_different_as_often_as_they_say() {
    rows(&[3, 5, 10], |c| !c.pairs && c.name != "permutation");
}

#[test]
fn relabelling_calls_identical_things_different_as_often_as_it_says() {
    // 20, 252 and 924 relabellings
    rows(&[3, 5, 6], |c| c.name == "permutation");
}

#[test]
fn paired_tests_call_identical_things_different_as_often_as_they_say() {
    rows(&[3, 5, 6, 10], |c| c.pairs);
}

#[test]
fn t_tests_use_the_error_they_are_allowed() {
    for n in [3, 5, 10] {
        let mut draws = Draws::new(100 + n as u64);
        let wrong = rate(CASES, || {
            let (a, b) = sets(Scene::Normal, n, &mut draws);
            student(&a, &b).is_some_and(|t| t.p <= ALPHA)
        });
        assert!(2.0 * ALPHA - allowed(ALPHA, CASES) <= wrong, "{n}: {wrong} is too careful");
    }
}

/// Share of families of `effects` (in deviations, against one reference) in which a comparison without an
/// effect is called different.
fn family_error(effects: &[f64], corrected: bool, seed: u64) -> f64 {
    let mut draws = Draws::new(seed);
    rate(CASES, || {
        let reference = draws.normals(5, 0.0, 1.0);
        let p: Vec<f64> = effects
            .iter()
            .map(|&e| welch(&reference, &draws.normals(5, e, 1.0)).map_or(f64::NAN, |t| t.p))
            .collect();
        let p = if corrected { holm::adjust(&p) } else { p };
        p.iter().zip(effects).any(|(p, e)| *e == 0.0 && *p <= ALPHA)
    })
}

#[test]
fn a_family_of_comparisons_shares_one_error() {
    let families: [(&str, &[f64]); 3] = [
        ("5 comparisons, none real", &[0.0; 5]),
        ("20 comparisons, none real", &[0.0; 20]),
        ("5 comparisons, 2 real", &[0.0, 8.0, 0.0, -8.0, 0.0]),
    ];
    let rows: Vec<String> = families
        .iter()
        .map(|(name, effects)| {
            let (plain, corrected) = (family_error(effects, false, 7), family_error(effects, true, 7));
            assert!(corrected <= allowed(ALPHA, CASES), "{name}: {corrected}");
            format!("| {name} | {} | {} |", percent(plain), percent(corrected))
        })
        .collect();
    documented(&rows);
}
