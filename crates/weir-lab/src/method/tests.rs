//! Whole runs on a simulated SUT that is loaded as a testbed's SUTs are.

use super::*;
use crate::experiment::Metric;
use crate::model::Keys;
use crate::model::configuration::PlacementKeys;
use crate::model::{Family, Sut, Topology, Workload};
use weir_stats::search::goal::Verdict;
use weir_stats::search::simulate::{Shape, Simulated};

/// A prepared SUT; `held_up` counts trials in which its source offers half of what it should.
struct Fake {
    simulated: Simulated,
    held_up: usize,
}

impl Prepared for Fake {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let mut record = self.simulated.trial(trial.rate, trial.window.as_secs_f64(), "")?;
        if trial.rate != Rate::FlatOut && self.held_up > 0 {
            self.held_up -= 1;
            record.ledger.offered /= 2;
            record.ledger.delivered = record.ledger.delivered.min(record.ledger.offered);
        }
        let latency_ns = [("p50".to_string(), 1000), ("p99".to_string(), 9000)].into();
        Ok(Sample {
            seconds: record.seconds,
            pps: record.pps,
            ledger: record.ledger,
            latency_ns,
            ..Sample::default()
        })
    }
}

const CAPACITY: f64 = 654_321.0;

fn fake(shape: Shape) -> Fake {
    Fake { simulated: Simulated::new(shape, 2e6, 1), held_up: 0 }
}

fn bounds() -> Bounds {
    let goal = |name: &str, loss_ratio| Goal {
        name: name.into(),
        loss_ratio,
        exceed_ratio: 0.5,
        initial_seconds: 0.25,
        final_seconds: 0.5,
        sum_seconds: 1.0,
        width: 0.01,
    };
    Bounds { goals: vec![goal("ndr", 0.0), goal("pdr", 0.01)], min_pps: None, max_pps: None }
}

fn outcome(fake: &mut Fake, method: &Method, stop: bool) -> Result<Sample, LabError> {
    let configuration = Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        name: "fake".into(),
        sut: Sut::Weir,
        topology: Topology::Netns,
        workload: Workload {
            family: Family::Inet,
            frame: FrameSize::Fixed(64),
            flows: 1,
            rate: Rate::FlatOut,
        },
        routes: 1,
        placement: PlacementKeys::default(),
        ipsec: None,
        build: None,
        relay: None,
    })
    .expect("valid");
    let (warm_up, window) = (Duration::ZERO, Duration::from_millis(500));
    let run = Run {
        configuration: &configuration,
        method,
        warm_up,
        window,
        seed: 1,
        stop: &stop.into(),
        say: &|_| {},
    };
    super::run(fake, &run)
}

fn sample(shape: Shape, method: &Method) -> Sample {
    outcome(&mut fake(shape), method, false).expect("simulated")
}

#[test]
fn a_search_for_ndr_and_pdr_leaves_values_goals_and_every_trial() {
    let s = sample(Shape::Cliff { capacity: CAPACITY }, &Method::NdrPdr(bounds()));
    let ndr = Metric("ndr_pps".into()).of(&s).expect("a value");
    assert!(ndr <= CAPACITY && ndr > CAPACITY * 0.99, "{ndr}");
    let pdr = Metric("pdr_pps".into()).of(&s).expect("a value");
    assert!(pdr >= ndr && pdr <= CAPACITY * 1.0102, "{pdr}");
    assert!(s.metrics["pdr_conditional_throughput_pps"] <= CAPACITY + 2.0);
    assert_eq!((s.trials[0].rate, s.pps), (Rate::FlatOut, s.trials[0].pps));
    assert!(s.trials.len() > 8 && s.goals.len() == 2);
    assert!(s.goals.iter().all(|g| g.verdict == Verdict::Regular));
}

#[test]
fn a_sut_that_carries_nothing_has_no_value_and_a_verdict() {
    let s = sample(Shape::Dead, &Method::Latency { bounds: bounds(), shares: vec![50.0] });
    assert_eq!(Metric("pdr_pps".into()).of(&s), None);
    assert!(s.goals.iter().all(|g| g.verdict == Verdict::NothingPasses));
    assert!(s.notes.iter().any(|n| n.contains("no rate to measure it at")), "{:?}", s.notes);
}

#[test]
fn latency_is_measured_at_shares_of_the_pdr() {
    let method = Method::Latency { bounds: bounds(), shares: vec![10.0, 50.0] };
    let s = sample(Shape::Cliff { capacity: CAPACITY }, &method);
    assert_eq!(s.metrics["latency_50_load_pps"], (s.metrics["pdr_pps"] * 0.5).round());
    assert_eq!((s.metrics["latency_10_ns_p50"], s.metrics["latency_50_ns_p99"]), (1000.0, 9000.0));
    assert!(s.trials.last().is_some_and(|t| t.purpose == "latency at 50 % of the PDR"));
}

#[test]
fn sweep_equilibrium_and_bursts_leave_their_values() {
    let cliff = Shape::Cliff { capacity: CAPACITY };
    let rates = vec![Step::Percent(50.0), Step::Percent(100.0), Step::Pps(1_000_000)];
    let s = sample(cliff, &Method::Sweep { rates });
    assert_eq!(s.trials.len(), 4);
    let s = sample(cliff, &Method::Equilibrium { line_mbps: None });
    // 60 bytes of each frame are counted
    let truth = CAPACITY * 480.0 / 1e6;
    assert!((s.metrics["equilibrium_mbps"] - truth).abs() <= 8.0, "{:?}", s.metrics);
    let queue = Shape::Queue { capacity: 1e6, queue: 500.0 };
    let s = sample(queue, &Method::BackToBack { repeats: 2, longest_seconds: 0.5 });
    assert!((s.metrics["back_to_back_frames"] - 1000.0).abs() < 20.0, "{:?}", s.metrics);
}

#[test]
fn a_source_held_up_by_the_machine_is_asked_again_and_said() {
    let mut fake = Fake { held_up: 3, ..fake(Shape::Cliff { capacity: CAPACITY }) };
    let method = Method::Sweep { rates: vec![Step::Pps(100_000)] };
    let s = outcome(&mut fake, &method, false).expect("simulated");
    assert_eq!(s.trials.len(), 5, "flat out, three held up, one whole");
    assert!(s.trials[1..4].iter().all(|t| t.superseded && t.source_fell_behind()));
    assert!(s.trials.last().is_some_and(|t| !t.superseded && !t.source_fell_behind()));
    assert!(s.notes.iter().any(|n| n.contains("held up")), "{:?}", s.notes);
}

#[test]
fn a_machine_that_is_always_busy_does_not_multiply_the_trials() {
    let mut fake = Fake { held_up: usize::MAX, ..fake(Shape::Endless) };
    let rates: Vec<Step> = (1..=20).map(|n| Step::Pps(n * 10_000)).collect();
    let s = outcome(&mut fake, &Method::Sweep { rates }, false).expect("simulated");
    assert_eq!(s.trials.len(), 1 + 20 + AGAIN_A_RUN);
}

#[test]
fn a_stop_ends_a_search_without_half_a_run_and_a_single_trial_not_at_all() {
    let mut sut = fake(Shape::Endless);
    assert!(
        outcome(&mut sut, &Method::NdrPdr(bounds()), true).expect_err("stopped").said.contains("interrupted")
    );
    assert_eq!(outcome(&mut sut, &Method::Mrr, true).expect("one trial").trials, []);
}

#[test]
fn where_the_clock_counts_instructions_cpu_time_is_called_that() {
    let metrics = [("ns_per_packet".to_string(), 254.0), ("mbps".to_string(), 9.0)].into();
    let mut sample = Sample { metrics, ..Sample::default() };
    say_instructions(&mut sample);
    assert_eq!(Metric("instructions_per_packet".into()).of(&sample), Some(254.0));
    assert_eq!(Metric("ns_per_packet".into()).of(&sample), None);
    assert_eq!(sample.metrics["mbps"], 9.0);
    assert!(sample.notes[0].starts_with("clock: it counts instructions"), "{:?}", sample.notes);
}
