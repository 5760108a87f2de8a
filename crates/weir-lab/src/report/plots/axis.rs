//! The value against a numeric axis (frame size, flows, routes, rate): one line a series.

use super::super::svg::{Scale, Shape, Svg, text_width};
use super::{COLOURS, Plot, TOPOLOGIES, WIDTH, legend, legend_row, ticks_beside, widest};
use crate::experiment::{Axis, Experiment, kebab};
use crate::format::with_unit;
use crate::model::relay::{Load, Tls, UNDER_WAY};
use crate::model::{Configuration, Topology};
use crate::result::{Outcome, Results};

const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 20.0;
const FLOOR: f64 = HEIGHT - 52.0;

type Series<'a> = (String, Vec<(&'a Outcome, f64)>);

/// One plot a topology; none without a numeric axis or with a single point along it.
pub fn against_axis(experiment: &Experiment, results: &Results) -> Vec<Plot> {
    let Some(axis) = experiment.axis else { return Vec::new() };
    TOPOLOGIES.into_iter().filter_map(|(topology, name)| one(results, axis, topology, name)).collect()
}

fn one(results: &Results, axis: Axis, topology: Topology, name: &str) -> Option<Plot> {
    let measured: Vec<(&Outcome, f64)> = results
        .configurations
        .iter()
        .filter(|o| o.configuration.topology() == topology && o.summary.is_some())
        .filter(|o| !results.is_control(&o.configuration.name))
        .filter_map(|o| Some((o, axis.number(&o.configuration)?)))
        .collect();
    let mut xs: Vec<f64> = measured.iter().map(|(_, x)| *x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.len() < 2 {
        return None;
    }
    let all: Vec<&Configuration> = measured.iter().map(|(o, _)| &o.configuration).collect();
    let mut series: Vec<Series<'_>> = Vec::new();
    for &(outcome, x) in &measured {
        let name = series_name(&all, &outcome.configuration, axis);
        match series.iter_mut().find(|(n, _)| *n == name) {
            Some((_, points)) => points.push((outcome, x)),
            None => series.push((name, vec![(outcome, x)])),
        }
    }
    for (_, points) in &mut series {
        points.sort_by(|a, b| a.1.total_cmp(&b.1));
    }
    let kinds: Vec<(bool, usize)> = series.iter().map(|(_, p)| (is_baseline(p), p.len())).collect();
    let drawn = along(&kinds);
    let elsewhere = match drawn.contains(&false) {
        true => " What was measured at one place along it is among every run below.",
        false => "",
    };
    let series: Vec<Series<'_>> =
        series.into_iter().zip(drawn).filter(|(_, drawn)| *drawn).map(|(one, _)| one).collect();
    Some(Plot {
        title: format!(
            "{} by {}, {name}",
            results.metric.sentence(),
            axis.key().replace("frame", "frame size")
        ),
        caption: format!(
            "Medians, whiskers from the least to the greatest run; the axis below is logarithmic; \
             baselines are dashed.{elsewhere}"
        ),
        svg: draw(results, axis, &xs, &series),
    })
}

/// Which series to draw, told whether they are baselines and how many points they have: where others of its kind have a
/// line, not what has one point.
fn along(all: &[(bool, usize)]) -> Vec<bool> {
    let has_lines = |baseline| all.iter().any(|&(is, points)| is == baseline && points > 1);
    all.iter().map(|&(baseline, points)| points > 1 || !has_lines(baseline)).collect()
}

fn is_baseline(points: &[(&Outcome, f64)]) -> bool {
    points.iter().all(|(o, _)| o.configuration.is_baseline())
}

fn draw(results: &Results, axis: Axis, xs: &[f64], series: &[Series<'_>]) -> String {
    let (divisor, unit) = results.metric.unit();
    let right = WIDTH - widest(series.iter().map(|(name, _)| name)) - 48.0;
    let high = series
        .iter()
        .flat_map(|(_, points)| points.iter().filter_map(|(o, _)| Some(o.summary?.max / divisor)))
        .fold(0.0, f64::max);
    let x = Scale::log(xs[0], xs[xs.len() - 1], LEFT + 16.0, right - 16.0);
    let y = Scale::linear(0.0, high * 1.06, FLOOR, TOP);
    let mut svg = Svg::new(WIDTH, HEIGHT.max(legend_row(series.len() + 1)));
    ticks_beside(&mut svg, &y, &y.ticks(6), LEFT, right);
    svg.text("unit", "start", 4.0, 12.0, unit);
    let mut last = f64::NEG_INFINITY;
    for &value in xs {
        let at = x.at(value);
        svg.line("grid", at, TOP, at, FLOOR);
        let label = short(value);
        if at - last > text_width(&label) {
            svg.text("tick", "middle", at, FLOOR + 18.0, &label);
            last = at;
        }
    }
    svg.text("unit", "end", right, HEIGHT - 8.0, word(axis));
    let mut coloured = 0;
    for (i, (name, points)) in series.iter().enumerate() {
        let baseline = is_baseline(points);
        let colour = if baseline { "plain".to_string() } else { format!("c{}", coloured % COLOURS) };
        coloured += usize::from(!baseline);
        let mut line = Vec::new();
        for (outcome, at) in points {
            let Some(s) = outcome.summary else { continue };
            let place = (x.at(*at), y.at(s.median / divisor));
            svg.line(
                &format!("range {colour}"),
                place.0,
                y.at(s.min / divisor),
                place.0,
                y.at(s.max / divisor),
            );
            line.push(place);
        }
        if let ([(_, y)], true) = (line.as_slice(), baseline) {
            // measured once, for it does not depend on the axis
            line = vec![(LEFT + 16.0, *y), (right - 16.0, *y)];
            svg.path(&format!("curve {colour}"), &line);
            line.clear();
        }
        svg.path(&format!("curve {colour}"), &line);
        for ((outcome, _), place) in points.iter().zip(&line) {
            let median = outcome.summary.map_or(String::new(), |s| with_unit(&results.metric, s.median));
            let title = format!("{}: {median}", outcome.configuration.name);
            svg.mark(&format!("dot {colour}"), Shape::of(i), place.0, place.1, 4.0, &title);
        }
        legend(&mut svg, i, right + 12.0, &colour, Shape::of(i), name);
    }
    svg.finish(&format!("{} by {}", results.metric.sentence(), word(axis)))
}

fn word(axis: Axis) -> &'static str {
    match axis {
        Axis::Frame => "frame size, bytes with FCS",
        Axis::Flows => "flows",
        Axis::Routes => "routes",
        Axis::Rate => "packets offered a second",
        Axis::Policies => "policies, the last matches",
        Axis::Match => "index of the policy that matches",
        Axis::Buckets => "buckets of the flow cache",
        Axis::Churn => "policies changed a second",
        other => other.key(),
    }
}

/// What tells this series from the others, the axis aside.
pub(super) fn series_name(all: &[&Configuration], c: &Configuration, axis: Axis) -> String {
    let parts = |c: &Configuration| -> Vec<(Axis, String)> {
        let cpus = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
        let word = |text: String| text.to_lowercase();
        vec![
            (Axis::Sut, kebab(&c.sut())),
            (Axis::Topology, word(format!("{:?}", c.topology()))),
            (Axis::Family, word(format!("{:?}", c.workload.family))),
            (Axis::Frame, Axis::Frame.number(c).map_or("imix".into(), |n| format!("{n} B"))),
            (Axis::Flows, format!("{} flows", c.workload.flows)),
            (Axis::Routes, format!("{} routes", c.routes)),
            (Axis::Cpus, format!("cpu {}", cpus(&c.placement.cpus))),
            (Axis::Port, c.placement.port.clone()),
            (Axis::Queues, Axis::Queues.number(c).map_or(String::new(), |n| format!("{n} queues"))),
            (Axis::WakeUp, Axis::WakeUp.word(c).unwrap_or_default()),
            (Axis::ZeroCopy, Axis::ZeroCopy.word(c).map_or(String::new(), |w| format!("zero-copy {w}"))),
            (Axis::Xdp, Axis::Xdp.word(c).map_or(String::new(), |w| format!("XDP {w}"))),
            (
                Axis::FlowOffload,
                Axis::FlowOffload.word(c).map_or(String::new(), |w| format!("flow offload {w}")),
            ),
            (
                Axis::LiveTransmit,
                Axis::LiveTransmit.word(c).map_or(String::new(), |w| format!("live transmit {w}")),
            ),
            (Axis::Irq, Axis::Irq.word(c).map_or(String::new(), |w| format!("irq {w}"))),
            (Axis::Nice, Axis::Nice.word(c).map_or(String::new(), |w| format!("nice {w}"))),
            (Axis::Moderation, Axis::Moderation.word(c).map_or(String::new(), |w| format!("moderation {w}"))),
            (Axis::Offload, Axis::Offload.word(c).map_or(String::new(), |w| format!("offload {w}"))),
            (Axis::Netem, c.netem().to_string()),
            (Axis::Build, Axis::Build.word(c).unwrap_or_default()),
            (Axis::Mode, Axis::Mode.word(c).unwrap_or_default()),
            (Axis::Direction, Axis::Direction.word(c).unwrap_or_default()),
            (Axis::Cipher, Axis::Cipher.word(c).unwrap_or_default()),
            (Axis::Backend, Axis::Backend.word(c).unwrap_or_default()),
            (Axis::Policies, c.ipsec().map_or(String::new(), |i| format!("{} policies", i.policies))),
            (Axis::Outer, Axis::Outer.word(c).unwrap_or_default()),
            (Axis::Lookup, Axis::Lookup.word(c).unwrap_or_default()),
            (Axis::Buckets, c.ipsec().map_or(String::new(), |i| format!("{} buckets", i.spd.buckets))),
            (Axis::Match, Axis::Match.number(c).map_or(String::new(), |n| format!("match {n}"))),
            (Axis::Rules, Axis::Rules.word(c).unwrap_or_default()),
            (Axis::Action, Axis::Action.word(c).unwrap_or_default()),
            (Axis::Churn, c.ipsec().map_or(String::new(), |i| format!("{} changes/s", i.spd.churn))),
            (Axis::Tls, c.relay().map_or(String::new(), |r| tls(r.tls).into())),
            (Axis::Load, c.relay().map_or(String::new(), |r| load(r.load).into())),
            (Axis::Workers, c.relay().map_or(String::new(), |r| beside(r.workers, 1, "workers"))),
            (
                Axis::UnderWay,
                c.relay().map_or(String::new(), |r| beside(r.under_way, UNDER_WAY, "under way")),
            ),
            (Axis::Stalled, c.relay().map_or(String::new(), |r| beside(r.stalled, 0, "stalled"))),
            (Axis::Rate, Axis::Rate.number(c).map_or(String::new(), |n| format!("{} pps", short(n)))),
        ]
    };
    // a baseline has no routes of its own
    let baseline = c.is_baseline();
    let told: Vec<String> = parts(c)
        .into_iter()
        .enumerate()
        .filter(|(i, (a, _))| {
            *a != axis
                && !(axis == Axis::Match && *a == Axis::Policies)
                && !(baseline && matches!(a, Axis::Routes | Axis::Port))
                && all.iter().any(|o| parts(o)[*i] != parts(c)[*i])
        })
        .map(|(_, (_, text))| text)
        .filter(|text| !text.is_empty())
        .collect();
    if told.is_empty() { "median".into() } else { told.join(" ") }
}

fn tls(tls: Tls) -> &'static str {
    match tls {
        Tls::Off => "plain",
        Tls::User => "TLS",
        Tls::Kernel => "kernel TLS",
    }
}

/// What most have needs no word.
fn load(load: Load) -> &'static str {
    match load {
        Load::ClosedLoop => "",
        Load::Open => "open",
        Load::Idle => "idle",
        Load::Connects => "connects",
        Load::Reconnects => "reconnects",
        Load::SimulatedCaches => "simulated",
    }
}

/// A number with its word, which most have no need of.
fn beside(n: u32, most: u32, word: &str) -> String {
    if n == most { String::new() } else { format!("{n} {word}") }
}

/// `1000` as `1 k`, `1048576` as `1.05 M`.
fn short(value: f64) -> String {
    let trimmed = |v: f64| {
        let text = format!("{v:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    };
    match value {
        v if v >= 1e6 => format!("{} M", trimmed(v / 1e6)),
        v if v >= 1e4 => format!("{} k", trimmed(v / 1e3)),
        v => trimmed(v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::configuration::PlacementKeys;
    use crate::model::relay::RelayScenario;
    use crate::model::{Family, FrameSize, Workload};
    use crate::model::{Keys, Sut};
    use weir_stats::search::Rate;

    fn relay(flows: u32, rate: Rate, relay: RelayScenario) -> Configuration {
        Configuration::try_from(Keys {
            firewall: None,
            connection_packets: None,
            name: "c".into(),
            sut: Sut::Weir,
            topology: Topology::Relay,
            workload: Workload { family: Family::Inet, frame: FrameSize::Fixed(1400), flows, rate },
            routes: 1,
            placement: PlacementKeys::default(),
            ipsec: None,
            build: None,
            relay: Some(relay),
        })
        .expect("valid")
    }

    #[test]
    fn a_line_joins_what_differs_along_the_axis_alone() {
        let plain = RelayScenario::default();
        let all = [
            relay(10, Rate::FlatOut, plain),
            relay(100, Rate::FlatOut, plain),
            relay(10, Rate::FlatOut, RelayScenario { tls: Tls::User, ..plain }),
            relay(10, Rate::FlatOut, RelayScenario { workers: 2, ..plain }),
            relay(10, Rate::Pps(267_857), plain),
            relay(10, Rate::Pps(4000), RelayScenario { load: Load::SimulatedCaches, ..plain }),
            relay(10, Rate::FlatOut, RelayScenario { under_way: 1, ..plain }),
            relay(10, Rate::FlatOut, RelayScenario { stalled: 2, ..plain }),
        ];
        let all: Vec<&Configuration> = all.iter().collect();
        let names: Vec<String> = all.iter().map(|c| series_name(&all, c, Axis::Flows)).collect();
        let expected = [
            "plain",
            "plain",
            "TLS",
            "plain 2 workers",
            "plain 267.86 k pps",
            "plain simulated 4000 pps",
            "plain 1 under way",
            "plain 2 stalled",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn one_point_is_drawn_where_nothing_of_its_kind_has_a_line() {
        assert_eq!(along(&[(false, 3), (false, 1), (true, 1), (true, 1)]), [true, false, true, true]);
        assert_eq!(along(&[(false, 1), (true, 3), (true, 1)]), [true, true, false]);
        assert_eq!(along(&[(false, 3), (false, 2)]), [true, true]);
    }
}
