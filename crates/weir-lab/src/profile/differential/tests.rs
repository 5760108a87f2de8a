//! Differentials of profiles with known differences.

use super::*;
use crate::profile::Profile;
use crate::profile::folded::Header;
use crate::profile::import::Form;

fn recording(parts: Vec<Vec<(&str, u64)>>) -> Recording {
    let part = |stacks: Vec<(&str, u64)>| {
        let mut profile = Profile { event: "cycles".into(), ..Profile::default() };
        for (stack, n) in stacks {
            profile.add(stack.split(';').map(String::from).collect(), n);
        }
        profile
    };
    Recording {
        source: "made".into(),
        form: Form::Folded,
        parts: parts.into_iter().map(part).collect(),
        header: Header::default(),
    }
}

fn side(recordings: Vec<Recording>, pps: &[f64]) -> Side {
    Side { recordings, pps: pps.to_vec(), cpus: 2 }
}

fn compare(before: &Side, after: &Side) -> Differential {
    differential(before, after, &Rules::load(None).expect("built in")).expect("comparable")
}

fn frame<'a>(differential: &'a Differential, name: &str) -> &'a Frame {
    differential.frames.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("{name} is listed"))
}

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() < 1e-9, "got {got}, expected {expected}");
}

const BEFORE: [(&str, u64); 3] = [("main;rx", 6000), ("main;tx", 3900), ("main;old;tx", 100)];
const AFTER: [(&str, u64); 3] = [("main;rx", 6030), ("main;tx", 3950), ("main;rx;new", 1000)];

#[test]
fn a_new_frame_ranks_first_and_a_vanished_one_is_named() {
    let d = compare(
        &side(vec![recording(vec![BEFORE.to_vec()])], &[]),
        &side(vec![recording(vec![AFTER.to_vec()])], &[]),
    );
    assert_eq!((d.frames[0].name.as_str(), d.frames[0].presence), ("new", Presence::New));
    close(d.frames[0].own.after, 100_000.0 / 10_980.0);
    assert!(d.frames[0].proven() && d.frames[0].own.low > 0.0);
    assert_eq!((frame(&d, "old").presence, frame(&d, "rx").presence), (Presence::Vanished, Presence::Kept));
    assert_eq!(d.evidence, Evidence::Counts);
    // new below rx belongs to rx's inclusive value only
    close(frame(&d, "rx").own.after, 603_000.0 / 10_980.0);
    close(frame(&d, "rx").inclusive.after, 703_000.0 / 10_980.0);
    let said = table::foot(&d).join("\n");
    assert!(
        said.contains("new frames: new (+9.11 inclusive") && said.contains("vanished frames: old"),
        "{said}"
    );
}

#[test]
fn idle_stacks_count_for_nobody_and_shares_change_by_nothing_in_sum() {
    let mut after = AFTER.to_vec();
    after.push(("swapper;do_idle;native_safe_halt", 50_000));
    let d =
        compare(&side(vec![recording(vec![BEFORE.to_vec()])], &[]), &side(vec![recording(vec![after])], &[]));
    assert_eq!((d.after.samples, d.after.idle), (60_980, 50_000));
    assert!(d.frames.iter().all(|f| f.name != "do_idle"));
    close(frame(&d, "new").own.after, 100_000.0 / 10_980.0);
    assert!((d.reconciliation.proven + d.reconciliation.others).abs() < 1e-9);
}

#[test]
fn a_recursive_frame_counts_once_a_stack() {
    let d = compare(
        &side(vec![recording(vec![vec![("walk;walk;walk", 10), ("rx", 90)]])], &[]),
        &side(vec![recording(vec![vec![("walk;walk", 10), ("rx", 90)]])], &[]),
    );
    close(frame(&d, "walk").inclusive.before, 10.0);
    close(frame(&d, "walk").inclusive.change, 0.0);
}

#[test]
fn with_rates_the_changes_of_frames_and_idle_add_up_to_that_of_the_packet() {
    let idle = ("swapper;do_idle", 2000);
    let with = |stacks: &[(&'static str, u64)]| recording(vec![[stacks, &[idle]].concat()]);
    let d = compare(&side(vec![with(&BEFORE)], &[2e6]), &side(vec![with(&AFTER)], &[1.9e6]));
    let r = &d.reconciliation;
    // two CPUs: 2 · 10⁹ ns over 2 Mpps
    close(r.before, 1000.0);
    close(r.after, 2e9 / 1.9e6);
    close(frame(&d, "rx").own.before, 1000.0 * 6000.0 / 12_000.0);
    close(r.proven + r.others + r.idle.expect("rates"), r.after - r.before);
    close(r.unexplained, 0.0);
    assert!(r.sentence(d.unit).contains("2.0000 → 1.9000 Mpps (-5.00 %)"), "{}", r.sentence(d.unit));
}

#[test]
fn repeated_runs_are_judged_by_their_own_spread() {
    // tx varies from run to run far more than its samples by themselves would
    let run = |tx: u64| recording(vec![vec![("rx", 10_000), ("tx", tx)]]);
    let d = compare(
        &side(vec![run(3000), run(4000), run(5000)], &[]),
        &side(vec![run(3600), run(4700), run(5600)], &[]),
    );
    assert_eq!(d.evidence, Evidence::Runs { before: 3, after: 3 });
    let tx = frame(&d, "tx");
    assert!(!tx.proven() && tx.own.low < 0.0 && tx.own.high > 0.0, "{tx:?}");
    // by counts alone it would have been beyond doubt
    let lumped = compare(&side(vec![run(12_000)], &[]), &side(vec![run(13_900)], &[]));
    assert!(frame(&lumped, "tx").proven());
}

#[test]
fn two_equal_counts_are_no_proof_that_a_frame_never_varies() {
    let run = |tx: u64, rare: u64| recording(vec![vec![("rx", 1000), ("tx", tx), ("rare", rare)]]);
    let d = compare(&side(vec![run(300, 0), run(310, 0)], &[]), &side(vec![run(500, 2), run(520, 2)], &[]));
    // between the runs of a side `rare` did not vary at all
    let rare = frame(&d, "rare");
    assert!(!rare.proven() && rare.own.low < 0.0, "{rare:?}");
    assert!(rare.own.high - rare.own.low > rare.own.change, "{rare:?}");
    // and two runs suffice for what hundreds of samples agree on
    assert!(frame(&d, "tx").proven(), "{:?}", frame(&d, "tx"));
}

#[test]
fn one_run_is_judged_by_the_spread_over_its_cpus() {
    // one CPU of ten does all the copying, before and after
    let run = |copies: u64| {
        let mut parts = vec![vec![("rx", 1000)]; 9];
        parts.push(vec![("rx", 1000), ("copy", copies)]);
        recording(parts)
    };
    let d = compare(&side(vec![run(500)], &[]), &side(vec![run(700)], &[]));
    assert_eq!(d.evidence, Evidence::Cpus { before: 10, after: 10 });
    assert!(!frame(&d, "copy").proven(), "{:?}", frame(&d, "copy"));
    // a new frame that all CPUs share alike is found
    let shared = recording(vec![vec![("rx", 1000), ("new", 60)]; 10]);
    let d = compare(&side(vec![run(500)], &[]), &side(vec![shared], &[]));
    assert_eq!(d.frames[0].name, "new");
    assert!(d.frames[0].proven());
}

/// Counts how many of 200 comparisons of profiles of one behaviour name a changed frame. `wander` is what a frame's
/// share varies by from run to run.
fn false_alarms(runs: usize, wander: f64) -> usize {
    let mut random = weir_stats::random::Random::new(7);
    let names: Vec<String> = (0..20).map(|i| format!("f{i}")).collect();
    let mut draw = || {
        let mut run = || {
            let mut stacks: Vec<(&str, u64)> = names.iter().map(|n| (n.as_str(), 0)).collect();
            for stack in &mut stacks {
                let share = 1.0 + wander * (random.below(2001) as f64 / 1000.0 - 1.0);
                let tries = (400.0 * share) as u64;
                stack.1 = (0..tries).filter(|_| random.below(4) == 0).count() as u64;
            }
            recording(vec![stacks])
        };
        side((0..runs).map(|_| run()).collect(), &[])
    };
    (0..200).filter(|_| compare(&draw(), &draw()).frames.iter().any(Frame::proven)).count()
}

#[test]
fn profiles_of_one_behaviour_differ_in_about_as_many_frames_as_chance_allows() {
    // Holm over 20 frames: 5 % of 200 comparisons are 10; beyond 22 lies less than one in 1000
    for (runs, wander) in [(1, 0.0), (2, 0.0), (3, 0.0), (2, 0.2), (3, 0.2), (5, 0.2)] {
        let wrong = false_alarms(runs, wander);
        assert!(
            wrong <= 22,
            "{runs} runs, wander {wander}: {wrong} of 200 found a change where there is none"
        );
    }
}

#[test]
fn what_cannot_be_compared_is_refused_with_the_reason() {
    let rules = Rules::load(None).expect("built in");
    let one = side(vec![recording(vec![BEFORE.to_vec()])], &[]);
    let refused =
        |before: &Side, after: &Side| differential(before, after, &rules).expect_err("refused").said;
    let mut clock = one.clone();
    clock.recordings[0].parts[0].event = "cpu-clock".into();
    assert!(refused(&one, &clock).contains("profiles of one event"));
    assert!(refused(&one, &Side::default()).contains("none on one side"));
    let rated = Side { pps: vec![1e6], ..one.clone() };
    assert!(refused(&one, &rated).contains("give both, or none"));
    let none = Side { pps: vec![0.0], ..one.clone() };
    assert!(refused(&none, &rated).contains("needs packets"));
    let many = Side { pps: vec![1e6; 3], ..one };
    assert!(refused(&many, &rated).contains("got 3 for 1 profiles"));
}

#[test]
fn time_without_samples_is_unexplained() {
    let taken = |samples: u64| {
        let mut one = recording(vec![vec![("rx", samples)]]);
        one.parts[0].event = "cpu-clock".into();
        one.header =
            Header { event: "cpu-clock".into(), frequency_hz: 1000, seconds: 5.0, ..Header::default() };
        one
    };
    // 2 CPUs × 5 s × 1000 Hz = 10,000 samples at most; afterwards a tenth is missing
    let d = compare(&side(vec![taken(10_000)], &[1e6]), &side(vec![taken(9000)], &[1e6]));
    let r = &d.reconciliation;
    close(frame(&d, "rx").own.after, 1800.0);
    close(r.after - r.before, 0.0);
    close(r.unexplained, 200.0);
    assert!(r.sampled);
}

/// The piece of a graph that draws `name`.
fn drawn<'a>(svg: &'a str, name: &str) -> &'a str {
    let title = format!("<title>{name}\n");
    svg.split("<g class=").find(|g| g.contains(&title)).unwrap_or_else(|| panic!("{name} is drawn"))
}

#[test]
fn the_graph_shows_what_is_new_and_what_has_vanished_in_red_and_blue() {
    let idle = ("swapper;do_idle", 7000);
    let with = |stacks: &[(&'static str, u64)]| vec![recording(vec![[stacks, &[idle]].concat()])];
    let (before, after) = (side(with(&BEFORE), &[]), side(with(&AFTER), &[]));
    let d = compare(&before, &after);
    let svg = flame::render("a < b", &d, &before, &after, &Rules::load(None).expect("built in"));
    let new = drawn(&svg, "new");
    assert!(new.starts_with("\"f changed new\"") && new.contains("hsl(4 85%"), "{new}");
    assert!(new.contains("0.00 → 9.11 % of non-idle samples (+9.11)"), "{new}");
    let old = drawn(&svg, "old");
    assert!(old.starts_with("\"f changed vanished\"") && old.contains("hsl(215 85%"), "{old}");
    assert!(!svg.contains("do_idle") && svg.contains("a &lt; b"));
}

#[test]
fn what_chance_explains_stays_grey() {
    let one = |rx: u64| side(vec![recording(vec![vec![("rx", rx), ("tx", 5000)]])], &[]);
    let (before, after) = (one(5000), one(5020));
    let svg =
        flame::render("t", &compare(&before, &after), &before, &after, &Rules::load(None).expect("built in"));
    assert!(drawn(&svg, "rx").starts_with("\"f chance\""), "{svg}");
}
