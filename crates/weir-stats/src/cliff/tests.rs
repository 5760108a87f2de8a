//! Cliffs are found where they were put, and seldom where there is none.

use super::*;

/// Twenty loads, one point each.
fn loads() -> Vec<f64> {
    (1..=20).map(f64::from).collect()
}

/// Findings in `sets` sets of points on `curve` with noise of deviation `sd`.
fn simulated(loads: &[f64], curve: impl Fn(f64) -> f64, sd: f64, sets: usize) -> Vec<Finding> {
    let design = Design::new(loads).expect("enough loads");
    let mut random = Random::new(11);
    (0..sets)
        .map(|_| {
            let values: Vec<f64> = loads.iter().map(|&l| curve(l) + sd * normal(&mut random)).collect();
            design.find(&values)
        })
        .collect()
}

fn cliffs(findings: &[Finding]) -> Vec<Cliff> {
    findings.iter().filter_map(|f| if let Finding::Cliff(c) = f { Some(*c) } else { None }).collect()
}

#[test]
fn smooth_curves_have_cliffs_at_the_nominal_rate_at_most() {
    type Curve = fn(f64) -> f64;
    let curves: [(&str, Curve); 5] = [
        ("flat", |_| 5.0),
        ("line", |l| 3.0 * l),
        ("cubic", |l| 0.01 * (l - 10.0).powi(3) - l),
        ("saturation", |l| 20.0 * (1.0 - (-l / 10.0).exp())),
        ("square root", |l| 4.0 * l.sqrt()),
    ];
    for (name, curve) in curves {
        let found = cliffs(&simulated(&loads(), curve, 0.2, 1000)).len();
        // 50 of 1000 at 5 %; one in a thousand lies beyond 72. The noise is 1 % of the range
        assert!(found <= 72, "{name}: {found} of 1000");
        if name == "line" {
            assert!(found >= 28, "{name}: {found} of 1000: the test would not see what it could");
        }
    }
}

#[test]
fn a_drop_is_found_between_the_loads_around_it() {
    let findings = simulated(&loads(), |l| if l < 12.5 { l } else { l - 4.0 }, 0.4, 200);
    let found = cliffs(&findings);
    assert!(found.len() >= 190, "{} of 200", found.len());
    let exact = found.iter().filter(|c| c.between == (12.0, 13.0)).count();
    assert!(exact >= 180, "{exact} between 12 and 13");
    let held = found.iter().filter(|c| c.low <= 12.0 && c.high >= 13.0).count();
    assert!(held * 100 >= found.len() * 93, "{held} of {} intervals hold it", found.len());
    let drop = found.iter().map(|c| c.after - c.before).sum::<f64>() / found.len() as f64;
    assert!((drop + 3.0).abs() < 0.5, "the step of 4 less a load's rise of 1, got {drop}");
}

#[test]
fn a_bend_is_found_near_its_place() {
    // loss: none up to the capacity, then in proportion
    let findings = simulated(&loads(), |l| (l - 13.0f64).max(0.0), 0.1, 200);
    let found = cliffs(&findings);
    assert!(found.len() >= 190, "{} of 200", found.len());
    let near = found.iter().filter(|c| c.between.0 >= 11.0 && c.between.1 <= 15.0).count();
    assert!(near * 10 >= found.len() * 9, "{near} of {}", found.len());
}

#[test]
fn repeated_points_at_seven_loads_are_enough() {
    let loads: Vec<f64> = (0..35).map(|i| f64::from(i % 7)).collect();
    let found = cliffs(&simulated(&loads, |l| if l < 4.5 { 10.0 } else { 6.0 }, 0.5, 100));
    assert!(found.iter().filter(|c| c.between == (4.0, 5.0)).count() >= 90, "{found:?}");
}

#[test]
fn values_without_noise_are_judged_too() {
    let line: Vec<(f64, f64)> = loads().iter().map(|&l| (l, 2.0 * l)).collect();
    assert_eq!(find(&line), Finding::Smooth { p: 1.0 });
    let step: Vec<(f64, f64)> = loads().iter().map(|&l| (l, if l > 9.0 { 1.0 } else { 0.0 })).collect();
    let Finding::Cliff(cliff) = find(&step) else { panic!("a step is a cliff") };
    assert_eq!((cliff.between, cliff.low, cliff.high), ((9.0, 10.0), 9.0, 10.0));
    assert!(cliff.before.abs() < 1e-9 && (cliff.after - 1.0).abs() < 1e-9);
}

#[test]
fn latencies_are_compared_by_their_logarithm() {
    // the spread is a tenth of the value, which steps up by a factor of 20
    let mut random = Random::new(3);
    let points: Vec<(f64, f64)> = loads()
        .iter()
        .map(|&l| (l, (10.0 + l) * if l > 15.0 { 20.0 } else { 1.0 } * (0.1 * normal(&mut random)).exp()))
        .collect();
    let Finding::Cliff(cliff) = find_in_log(&points) else { panic!("a cliff") };
    assert_eq!(cliff.between, (15.0, 16.0));
    assert!(cliff.after / cliff.before > 10.0, "{cliff:?}");
}

#[test]
fn few_loads_are_not_judged() {
    let points: Vec<(f64, f64)> = (0..40).map(|i| (f64::from(i % 5), f64::from(i))).collect();
    assert_eq!(find(&points), Finding::TooFewLoads { loads: 5 });
    assert_eq!(find(&[]), Finding::TooFewLoads { loads: 0 });
}
