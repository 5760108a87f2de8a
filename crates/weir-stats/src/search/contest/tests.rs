//! What the searches promise, on SUTs whose capacity is known.

use proptest::prelude::*;

use super::super::goal::Oddity;
use super::super::{Measurer, Rate, TrialRecord};
use super::*;

const SEEDS: u64 = 20;

fn shape(name: &str) -> Shape {
    SUTS.iter().find(|(n, _)| *n == name).expect("a SUT of the table").1
}

fn rows_of(name: &'static str) -> Vec<Row> {
    goal_sets()
        .iter()
        .flat_map(|(set, goals)| of_sut(name, shape(name), set, goals, SEEDS).expect("simulated"))
        .collect()
}

fn found(shape: Shape, goals: &[Goal]) -> Vec<GoalResult> {
    mlr::search(&mut Simulated::new(shape, SOURCE_PPS, 3), goals, LIMITS).expect("simulated")
}

#[test]
fn bounds_bracket_the_truth_within_a_width_where_there_is_one_capacity() {
    for name in ["sharp cliff", "low cliff", "soft knee", "livelock", "queue of 50,000"] {
        for (_, goals) in goal_sets() {
            for r in found(shape(name), &goals) {
                let (truth, _) = shape(name).truth(&r.goal, LIMITS, 0.0);
                let (lower, upper) =
                    (r.lower_pps.expect("a lower bound"), r.upper_pps.expect("an upper bound"));
                assert_eq!(r.verdict, Verdict::Regular, "{name} {}", r.goal.name);
                assert!(
                    lower as f64 <= truth + 1.0 && truth < upper as f64,
                    "{name}: {lower}..{upper}, {truth}"
                );
                assert!(r.goal.close(lower, upper), "{name}: {lower}..{upper}");
                assert!(r.conditional_pps.expect("at the lower bound") <= lower as f64);
                let grows_with_length = |o: &Oddity| matches!(o, Oddity::Inconsistent { least_seconds, most_seconds, .. } if least_seconds < most_seconds);
                assert!(
                    r.oddities.iter().all(|o| name.starts_with("queue") && grows_with_length(o)),
                    "{r:?}"
                );
            }
        }
    }
}

#[test]
fn the_search_costs_less_than_half_of_plain_bisection_at_equal_precision() {
    for name in ["sharp cliff", "low cliff", "soft knee", "livelock", "queue of 50,000"] {
        for row in rows_of(name) {
            assert!(
                row.mlr.seconds.median * 2.0 < row.bisection.seconds.median,
                "{name}, {}: {} s against {} s",
                row.goals,
                row.mlr.seconds.median,
                row.bisection.seconds.median
            );
        }
    }
}

#[test]
fn rare_noise_lowers_neither_goal_when_half_of_the_trials_may_exceed() {
    for row in rows_of("noise, 1 s of 20").iter().filter(|r| r.goals.starts_with("NDR")) {
        let worst = row.mlr.worst_error().expect("bounds");
        assert!(worst.abs() < 1.0, "{}: {worst} %", row.goal);
        let bisection = row.bisection.worst_error().expect("bounds");
        assert!(row.goal == "pdr" || bisection < -50.0, "one trial a load believes the noise: {bisection} %");
    }
}

#[test]
fn a_bimodal_sut_is_said_to_be_inconsistent() {
    for row in rows_of("bimodal, 7 s turns").iter().filter(|r| r.goals.starts_with("NDR")) {
        let strange = row.mlr.odd + (SEEDS as usize - row.mlr.regular);
        assert_eq!(strange, SEEDS as usize, "{}: every seed is odd or irregular", row.goal);
    }
    let results = found(shape("bimodal, 7 s turns"), &goal_sets()[1].1);
    let odd = |r: &GoalResult| r.oddities.iter().any(|o| matches!(o, Oddity::Inconsistent { .. }));
    assert!(results.iter().all(odd), "{results:?}");
}

#[test]
fn a_drifting_capacity_is_found_between_its_ends() {
    for row in rows_of("drift, −10 % an hour") {
        let worst = row.mlr.worst_error().expect("bounds");
        assert!((-0.6..=0.01).contains(&worst), "{}: {worst} %", row.goals);
    }
}

#[test]
fn degenerate_suts_have_a_verdict_and_no_invented_value() {
    for (_, goals) in goal_sets() {
        for r in found(Shape::Dead, &goals) {
            assert_eq!((r.verdict, r.lower_pps, r.conditional_pps), (Verdict::NothingPasses, None, None));
            assert_eq!(r.upper_pps, Some(LIMITS.min_pps));
        }
        for r in found(Shape::Endless, &goals) {
            assert_eq!((r.verdict, r.upper_pps), (Verdict::NoUpperBound, None));
            assert_eq!(r.lower_pps, Some(LIMITS.max_pps));
        }
    }
}

#[test]
fn a_source_that_cannot_keep_up_is_named_as_the_limit() {
    let goals = &goal_sets()[1].1;
    let mut slow_source = Simulated::new(Shape::Endless, 700_000.0, 1);
    for r in mlr::search(&mut slow_source, goals, LIMITS).expect("simulated") {
        assert!(r.oddities.iter().any(|o| matches!(o, Oddity::SourceIsTheLimit { .. })), "{r:?}");
        let upper = r.upper_pps.expect("beyond the source") as f64;
        assert!((700_000.0..712_000.0).contains(&upper), "{upper}");
    }
}

/// A SUT that passes or fails at random: nothing can be learnt, but the search must end.
struct Coin(crate::random::Random);

impl Measurer for Coin {
    type Error = Refusal;

    fn trial(&mut self, rate: Rate, seconds: f64, purpose: &str) -> Result<TrialRecord, Refusal> {
        let mut record =
            Simulated::new(Shape::Endless, SOURCE_PPS, 0).trial(rate, seconds, purpose).expect("simulated");
        if self.0.draw() & 1 == 0 {
            record.ledger.delivered /= 2;
        }
        Ok(record)
    }
}

#[test]
fn a_sut_that_tosses_coins_ends_the_search_and_is_odd() {
    for seed in 0..20 {
        let results = mlr::search(&mut Coin(crate::random::Random::new(seed)), &goal_sets()[1].1, LIMITS);
        for r in results.expect("ends") {
            assert!(r.verdict != Verdict::Regular || !r.oddities.is_empty(), "{r:?}");
        }
    }
}

#[test]
fn the_table_has_a_row_for_every_sut_and_goal() {
    let table = table(&rows(1).expect("simulated"), 1);
    assert_eq!(table.lines().count(), 2 + SUTS.len() * 3);
    assert!(table.contains("| never loses | RFC 2544, 60 s | ndr |"));
    assert!(table.contains("upper bound unknown") && table.contains("not even the minimum passes"));
}

proptest! {
    #[test]
    fn any_cliff_is_bracketed_within_the_width(capacity in 2_000.0f64..1_900_000.0) {
        for (_, goals) in goal_sets() {
            for r in found(Shape::Cliff { capacity }, &goals) {
                let (truth, _) = Shape::Cliff { capacity }.truth(&r.goal, LIMITS, 0.0);
                let (lower, upper) = (r.lower_pps.expect("lower"), r.upper_pps.expect("upper"));
                prop_assert!(lower as f64 <= truth + 1.0 && truth < upper as f64 + 1.0, "{} {} {}", lower, truth, upper);
                prop_assert!(r.goal.close(lower, upper));
            }
        }
    }

    #[test]
    fn bisection_brackets_the_same_cliffs(capacity in 2_000.0f64..1_900_000.0) {
        let goal = Goal::rfc2544(60.0, 0.005);
        let mut sut = Simulated::new(Shape::Cliff { capacity }, SOURCE_PPS, 1);
        let r = bisect::search(&mut sut, &goal, LIMITS).expect("simulated");
        let (truth, _) = Shape::Cliff { capacity }.truth(&goal, LIMITS, 0.0);
        prop_assert!(r.lower_pps.expect("lower") as f64 <= truth + 1.0 && truth < r.upper_pps.expect("upper") as f64 + 1.0);
    }
}
