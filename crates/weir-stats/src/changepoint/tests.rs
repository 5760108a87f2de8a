//! Synthetic series: steps are found where they are, noise is split as often as the level says.

use super::*;

/// Reorderings of a simulation: 100 values of p.
const FAST: Settings = Settings { level: 0.05, reorderings: 99, seed: 7 };

/// Near normal, deviation 1: twelve uniform draws.
fn noise(random: &mut Random) -> f64 {
    (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0
}

/// Levels with noise around them, in deviations.
fn series(levels: &[(usize, f64)], seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let all = levels.iter().flat_map(|&(n, level)| std::iter::repeat_n(level, n));
    all.map(|level| 100.0 + level + noise(&mut random)).collect()
}

fn places(divided: &Divided) -> Vec<usize> {
    divided.changes.iter().map(|c| c.at).collect()
}

#[test]
fn q_is_the_energy_distance_computed_by_hand() {
    // {0, 1} against {10, 13}: across (10 + 13 + 9 + 12)/4 = 11, inside 1 and 3, n·m/(n + m) = 1
    assert_eq!(best(&[0.0, 1.0, 10.0, 13.0]), Some((2, 2.0 * 11.0 - 1.0 - 3.0)));
    assert_eq!(best(&[1.0, 2.0, 3.0]), None);
}

#[test]
fn a_step_of_four_deviations_is_found_where_it_is() {
    let found: Vec<Vec<usize>> = (0..100)
        .map(|seed| places(&e_divisive(&series(&[(12, 0.0), (8, 4.0)], seed), Settings { seed, ..FAST })))
        .collect();
    assert!(found.iter().all(|f| f.iter().any(|at| at.abs_diff(12) <= 2)), "{found:?}");
    let exact = found.iter().filter(|f| **f == [12]).count();
    assert!(exact >= 85, "{exact} of 100 found the step alone and at its place: {found:?}");
}

#[test]
fn a_step_of_two_deviations_is_found_near_its_place() {
    let near = (0..100)
        .map(|seed| places(&e_divisive(&series(&[(15, 0.0), (15, -2.0)], seed), Settings { seed, ..FAST })))
        .filter(|found| found.iter().any(|at| at.abs_diff(15) <= 2))
        .count();
    assert!(near >= 85, "{near} of 100");
}

#[test]
fn a_regression_and_its_repair_are_two_changes() {
    let found: Vec<Vec<usize>> = (0..40)
        .map(|seed| {
            let bump = series(&[(10, 0.0), (6, -6.0), (10, 0.0)], seed);
            places(&e_divisive(&bump, Settings { seed, ..FAST }))
        })
        .collect();
    let both = found.iter().filter(|f| **f == [10, 16]).count();
    assert!(both >= 34, "{both} of 40: {found:?}");
}

#[test]
fn noise_is_split_at_the_nominal_rate() {
    let split = |n: usize| {
        let one = |seed: u64| e_divisive(&series(&[(n, 0.0)], seed), Settings { seed, ..FAST });
        (0..1000).filter(|&seed| !one(seed + n as u64 * 10_000).changes.is_empty()).count()
    };
    // 50 of 1,000, deviation √(1000 · 0.05 · 0.95) = 6.9: three of them either side
    for n in [8, 20] {
        let split = split(n);
        assert!((30..=71).contains(&split), "{split} of 1,000 series of {n}");
    }
}

#[test]
fn heavy_tails_do_not_raise_the_rate() {
    let cubed = |seed| series(&[(16, 0.0)], seed).iter().map(|v| (v - 100.0).powi(3)).collect::<Vec<_>>();
    let split = (0..600u64)
        .filter(|&seed| !e_divisive(&cubed(seed), Settings { seed, ..FAST }).changes.is_empty())
        .count();
    assert!(split <= 46, "{split} of 600, expected 30 ± 16");
}

#[test]
fn short_and_constant_series_are_left_whole() {
    assert_eq!(e_divisive(&[], FAST), Divided::default());
    assert_eq!(e_divisive(&[1.0, 9.0, 9.0], FAST), Divided::default());
    let constant = e_divisive(&[5.0; 12], FAST);
    assert!(constant.changes.is_empty() && constant.p == Some(1.0), "{constant:?}");
}

#[test]
fn the_same_series_gives_the_same_answer() {
    let values = series(&[(9, 0.0), (9, 1.5)], 3);
    assert_eq!(e_divisive(&values, FAST), e_divisive(&values, FAST));
}
