//! Where values break as the load rises: along a numeric axis, and along the rates of searches.
//!
//! Promises: every curve with enough loads is looked at, and says what was found or that nothing was; p values
//! share one chance of error over all of them (Holm). Refuses: curves of too few loads
//! ([`weir_stats::cliff::LOADS`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::metric::loss_percent;
use crate::experiment::{Axis, Experiment, Metric};
use crate::model::{Configuration, FrameSize, Keys, Sample};
use crate::store::Run;
use weir_stats::cliff::{ALPHA, Cliff, Finding, find, find_in_log};
use weir_stats::holm;
use weir_stats::search::Rate;
use weir_stats::search::TrialRecord;

/// Ends of an axis this many times apart are compared by their logarithm, as plots draw them.
const WIDE: f64 = 30.0;
const TAIL: &str = "latency_ns_p99";
const TAIL_OF_TRIAL: &str = "p99";

/// One curve, looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sought {
    /// Configurations along the axis, or the one that was searched.
    pub configurations: Vec<String>,
    /// `loss_percent`, `pps`, `latency_ns_p99`, …
    #[serde(alias = "figure")]
    pub metric: Metric,
    /// What rises: `routes`, `flows`, `frame`, `rate`.
    pub along: Axis,
    pub points: usize,
    /// The break, were this curve the only one.
    pub cliff: Option<Cliff>,
    pub p: f64,
    /// The p-value, adjusted over all curves of the campaign.
    pub p_holm: f64,
}

impl Sought {
    /// The break, if chance is ruled out.
    pub fn stands(&self) -> Option<&Cliff> {
        self.cliff.as_ref().filter(|_| self.p_holm <= ALPHA)
    }
}

/// (load, value) points of one curve.
struct Curve {
    configurations: Vec<String>,
    metric: Metric,
    along: Axis,
    points: Vec<(f64, f64)>,
}

/// Every curve of the campaign that can be judged.
pub fn of(experiment: &Experiment, runs: &BTreeMap<String, Vec<Run>>) -> Vec<Sought> {
    let mut curves = along_axis(experiment, runs);
    curves.extend(
        experiment
            .suts()
            .filter_map(|c| Some((c, runs.get(&c.name)?)))
            .flat_map(|(c, runs)| searched(c, runs)),
    );
    let mut sought: Vec<Sought> = curves.into_iter().filter_map(look).collect();
    let p: Vec<f64> = sought.iter().map(|s| s.p).collect();
    for (one, p_holm) in sought.iter_mut().zip(holm::adjust(&p)) {
        one.p_holm = p_holm;
    }
    sought
}

fn look(curve: Curve) -> Option<Sought> {
    let Curve { configurations, metric, along, mut points } = curve;
    let least = points.iter().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(|p| p.0).fold(0.0, f64::max);
    let wide = least > 0.0 && most > WIDE * least;
    if wide {
        points.iter_mut().for_each(|p| p.0 = p.0.ln());
    }
    let found = if metric.0.starts_with("latency_") { find_in_log(&points) } else { find(&points) };
    let (cliff, p) = match found {
        Finding::TooFewLoads { .. } => return None,
        Finding::Smooth { p } => (None, p),
        Finding::Cliff(c) => {
            let load = |l: f64| if wide { l.exp() } else { l };
            let between = (load(c.between.0), load(c.between.1));
            (Some(Cliff { between, low: load(c.low), high: load(c.high), ..c }), c.p)
        }
    };
    Some(Sought { configurations, metric, along, points: points.len(), cliff, p, p_holm: p })
}

/// Configurations that differ along the axis alone are one curve for the metric, the loss and the latency.
fn along_axis(experiment: &Experiment, runs: &BTreeMap<String, Vec<Run>>) -> Vec<Curve> {
    let Some(axis) = experiment.axis else { return Vec::new() };
    let mut series: Vec<(Keys, Vec<(&Configuration, f64)>)> = Vec::new();
    for c in experiment.suts() {
        let Some(load) = axis.number(c) else { continue };
        let rest = elsewhere(c, axis);
        match series.iter_mut().find(|(r, _)| *r == rest) {
            Some((_, along)) => along.push((c, load)),
            None => series.push((rest, vec![(c, load)])),
        }
    }
    let metrics = metrics(&experiment.metric);
    let curve = |along: &[(&Configuration, f64)], metric: &Metric| {
        let mut points = Vec::new();
        for (c, load) in along {
            let samples = runs.get(&c.name).into_iter().flatten().filter_map(|r| r.sample.as_ref());
            points.extend(samples.filter_map(|s| Some((*load, of_sample(metric, s)?))));
        }
        let configurations = along.iter().map(|(c, _)| c.name.clone()).collect();
        Curve { configurations, metric: metric.clone(), along: axis, points }
    };
    series.iter().flat_map(|(_, along)| metrics.iter().map(|f| curve(along, f)).collect::<Vec<_>>()).collect()
}

/// The metric first, then what breaks before it does.
fn metrics(metric: &Metric) -> Vec<Metric> {
    let mut metrics = vec![metric.clone()];
    let others = ["loss_percent", TAIL, "llc_miss_percent"];
    let simulated = ["simulated_d1_misses_per_packet", "simulated_ll_misses_per_packet"];
    for name in others.into_iter().chain(simulated) {
        if metric.0 != name {
            metrics.push(Metric(name.into()));
        }
    }
    metrics
}

fn of_sample(metric: &Metric, sample: &Sample) -> Option<f64> {
    match metric.0.as_str() {
        "loss_percent" => loss_percent(sample),
        _ => metric.of(sample),
    }
}

/// The configuration without its name and its place on the axis: equal for all of a series.
fn elsewhere(c: &Configuration, axis: Axis) -> Keys {
    let mut rest = Keys { name: String::new(), ..c.clone().into() };
    match axis {
        Axis::Frame => rest.workload.frame = FrameSize::Imix,
        Axis::Flows => rest.workload.flows = 0,
        Axis::Routes => rest.routes = 0,
        Axis::Rate => rest.workload.rate = Rate::FlatOut,
        Axis::Policies => rest.ipsec.iter_mut().for_each(|i| i.policies = 0),
        Axis::Match => rest.ipsec.iter_mut().for_each(|i| (i.policies, i.spd.matching) = (0, None)),
        Axis::Buckets => rest.ipsec.iter_mut().for_each(|i| i.spd.buckets = 0),
        Axis::Churn => rest.ipsec.iter_mut().for_each(|i| i.spd.churn = 0),
        _ => {}
    }
    rest
}

/// Rates a search tried; flat-out trials aside, whose rate is nobody's choice.
fn searched(c: &Configuration, runs: &[Run]) -> Vec<Curve> {
    let samples = runs.iter().filter_map(|r| r.sample.as_ref());
    let trials: Vec<&TrialRecord> =
        samples.flat_map(|s| &s.trials).filter(|t| matches!(t.rate, Rate::Pps(_))).collect();
    let curve = |metric: &str, of: &dyn Fn(&TrialRecord) -> Option<f64>| Curve {
        configurations: vec![c.name.clone()],
        metric: Metric(metric.into()),
        along: Axis::Rate,
        points: trials.iter().filter_map(|t| Some((t.load_pps(), of(t)?))).collect(),
    };
    vec![
        curve("loss_percent", &|t| Some(t.loss_ratio() * 100.0)),
        curve("pps", &|t| Some(t.pps)),
        curve(TAIL, &|t| t.latency_ns.get(TAIL_OF_TRIAL).map(|&ns| ns as f64)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_stats::cliff::LOADS;

    #[test]
    fn loads_that_span_decades_are_compared_by_their_logarithm() {
        let points: Vec<(f64, f64)> =
            (0..12).map(|i| (10f64.powi(i), if i > 7 { 300.0 } else { 100.0 + f64::from(i) })).collect();
        let curve = Curve {
            configurations: vec!["a".into()],
            metric: Metric("clocks_per_packet".into()),
            along: Axis::Routes,
            points,
        };
        let sought = look(curve).expect("twelve loads");
        let cliff = sought.stands().expect("a step");
        assert!(
            (cliff.between.0 / 1e7 - 1.0).abs() < 1e-9 && (cliff.between.1 / 1e8 - 1.0).abs() < 1e-9,
            "{cliff:?}"
        );
    }

    /// Seven rates, four runs each; `lost` says which share of a million packets is lost at a rate.
    fn campaign(lost: impl Fn(u64, usize) -> u64) -> (Experiment, BTreeMap<String, Vec<Run>>) {
        let text = "title = \"t\"\nquestion = \"q?\"\nmetric = \"pps\"\nruns = 4\nwarm_up = \"1ms\"\n\
                    window = \"10ms\"\nmargin_percent = 5\naxis = \"rate\"\n[[configuration]]\n\
                    name = \"a-{rate}\"\nroutes = 2\nframe = 64\nflows = 1\n\
                    rate = [100000, 200000, 300000, 400000, 500000, 600000, 700000]\n";
        let experiment = Experiment::parse("x", "x.toml", text, &Default::default()).expect("well formed");
        let mut runs = BTreeMap::new();
        for c in experiment.suts() {
            let Rate::Pps(pps) = c.workload.rate else { panic!("a rate is given") };
            let run = |block: usize| {
                let mut sample = Sample { pps: pps as f64, ..Sample::default() };
                sample.ledger.sent = 1_000_000;
                sample.ledger.delivered = 1_000_000 - lost(pps, block);
                Run {
                    format: crate::store::first_format(),
                    block,
                    order: block,
                    seed: 0,
                    session: 0,
                    started_unix_ms: 0,
                    sample: Some(sample),
                    error: None,
                    misbehaviour: None,
                }
            };
            runs.insert(c.name.clone(), (0..4).map(run).collect());
        }
        (experiment, runs)
    }

    #[test]
    fn configurations_along_the_axis_are_one_curve_whose_loss_breaks_where_it_does() {
        let (experiment, runs) =
            campaign(|pps, block| block as u64 * 500 + if pps > 500_000 { 40_000 } else { 0 });
        let sought = of(&experiment, &runs);
        let metrics: Vec<&str> = sought.iter().map(|s| s.metric.0.as_str()).collect();
        assert_eq!(metrics, ["pps", "loss_percent"], "there are no latencies");
        assert_eq!((sought[0].configurations.len(), sought[0].points), (7, 28));
        assert!(sought[0].stands().is_none(), "delivered rates lie on a line");
        let cliff = sought[1].stands().expect("the loss breaks");
        assert_eq!(cliff.between, (500_000.0, 600_000.0));
    }

    #[test]
    fn loss_that_rises_smoothly_is_no_cliff() {
        let (experiment, runs) = campaign(|pps, block| pps * pps / 100_000_000 + block as u64 * 500);
        assert!(of(&experiment, &runs).iter().all(|s| s.stands().is_none()));
    }

    #[test]
    fn few_loads_are_left_out() {
        let points = (0..LOADS - 1).map(|i| (i as f64, 1.0)).collect();
        let metric = Metric("pps".into());
        assert!(look(Curve { configurations: Vec::new(), metric, along: Axis::Rate, points }).is_none());
    }
}
