//! Whole runs and runs in slices under a neighbour who comes and goes: how often identical things are called
//! different, how often the interval holds the ratio, and how wide it is.

use weir_stats::paired::{Paired, Series, in_rounds, paired};

use super::draws::{Draws, allowed, documented, percent, rate};

const CASES: usize = 2000;
/// Slices of a run, 20 ms each.
const SLICES: usize = 25;
/// Slices between two whole runs: what the next takes to be prepared.
const GAP: usize = 35;
/// What the other of a pair is faster by where intervals are asked.
const RATIO: f64 = 1.02;
/// A run's own luck with memory and caches, and a slice's.
const RUN_SD: f64 = 0.005;
const SLICE_SD: f64 = 0.02;

/// A machine, slice by slice.
#[derive(Clone, Copy)]
struct Machine {
    name: &'static str,
    /// Chance that the neighbour comes, and goes, from one slice to the next.
    comes: f64,
    goes: f64,
    /// Chance that a slice is held up by itself, by up to nine tenths.
    stalls: f64,
}

const CALM: Machine = Machine { name: "calm", comes: 0.0, goes: 1.0, stalls: 0.0 };
/// Takes 45 % for two seconds of six.
const NEIGHBOUR: Machine = Machine { name: "neighbour", comes: 0.005, goes: 0.01, stalls: 0.0 };
const AND_STALLS: Machine = Machine { name: "and stalls", stalls: 0.05, ..NEIGHBOUR };

struct Time<'a> {
    machine: Machine,
    draws: &'a mut Draws,
    disturbed: bool,
}

impl Time<'_> {
    fn pass(&mut self) {
        let chance = if self.disturbed { self.machine.goes } else { self.machine.comes };
        self.disturbed ^= self.draws.uniform() < chance;
    }

    /// The speed of the next slice.
    fn slice(&mut self) -> f64 {
        self.pass();
        let [stalled, by] = [0, 1].map(|_| self.draws.uniform());
        let held_up = if stalled < self.machine.stalls { 1.0 - 0.9 * by } else { 1.0 };
        let speed = if self.disturbed { 0.55 } else { 1.0 };
        speed * held_up * (SLICE_SD * self.draws.normal()).exp()
    }

    fn run(&mut self) -> f64 {
        (RUN_SD * self.draws.normal()).exp()
    }

    /// A block of two whole runs.
    fn whole(&mut self, ratio: f64) -> (f64, f64) {
        // which comes first means nothing: the neighbour knows neither
        let mut one = |speed: f64| {
            (0..GAP).for_each(|_| self.pass());
            let run = speed * self.run();
            run * (0..SLICES).map(|_| self.slice()).sum::<f64>() / SLICES as f64
        };
        (one(1.0), one(ratio))
    }

    /// A block of two runs in slices, and each run's by round.
    fn sliced(&mut self, ratio: f64) -> (Vec<f64>, Vec<f64>) {
        (0..GAP).for_each(|_| self.pass());
        let (a, b) = (self.run(), ratio * self.run());
        let mut round = || {
            if self.draws.uniform() < 0.5 {
                let first = a * self.slice();
                (first, b * self.slice())
            } else {
                let first = b * self.slice();
                (a * self.slice(), first)
            }
        };
        (0..SLICES).map(|_| round()).unzip()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Design {
    Whole,
    Sums,
    Rounds,
}

fn campaign(design: Design, time: &mut Time<'_>, n: usize, ratio: f64) -> Paired {
    let blocks: Vec<usize> = (0..n).collect();
    let mean = |r: &Vec<f64>| r.iter().sum::<f64>() / r.len() as f64;
    let (a, b): (Vec<Vec<f64>>, Vec<Vec<f64>>) = match design {
        Design::Whole => (0..n).map(|_| time.whole(ratio)).map(|(a, b)| (vec![a], vec![b])).unzip(),
        _ => (0..n).map(|_| time.sliced(ratio)).unzip(),
    };
    let (of_a, of_b): (Vec<f64>, Vec<f64>) = (a.iter().map(mean).collect(), b.iter().map(mean).collect());
    let series = |values, rounds| Series { name: "", values, blocks: &blocks, rounds };
    let (a, b) = (series(&of_a, &a), series(&of_b, &b));
    let judged = if design == Design::Rounds { in_rounds(a, b, 1) } else { paired(a, b, 1) };
    judged.expect("they spread")
}

/// Share called different where nothing is, share of intervals that hold the ratio, median of half their width
/// in percent.
fn rates(design: Design, machine: Machine, n: usize) -> (f64, f64, f64) {
    let mut draws = Draws::new(61 + n as u64);
    let mut time = Time { machine, draws: &mut draws, disturbed: false };
    let wrong = rate(CASES, || campaign(design, &mut time, n, 1.0).t_test.p <= 0.05);
    let mut widths = Vec::with_capacity(CASES);
    let held = rate(CASES, || {
        let p = campaign(design, &mut time, n, RATIO);
        widths.push(50.0 * (p.high / p.low).ln());
        p.low <= RATIO && RATIO <= p.high
    });
    widths.sort_by(f64::total_cmp);
    (wrong, held, widths[CASES / 2])
}

/// How wide intervals of eight blocks are, judged by whole runs, sums of slices, and rounds.
fn widths(machine: Machine) -> [f64; 3] {
    let designs =
        [("whole runs", Design::Whole), ("sums of slices", Design::Sums), ("rounds", Design::Rounds)];
    let mut rows = Vec::new();
    let mut row = |(name, design): (&str, Design), n: usize| {
        let (wrong, held, width) = rates(design, machine, n);
        let what = format!("{} {name} {n}: {wrong} {held}", machine.name);
        assert!(wrong <= allowed(0.05, CASES), "{what}");
        assert!(1.0 - held <= allowed(0.05, CASES), "{what}");
        let (wrong, held) = (percent(wrong), percent(held));
        rows.push(format!("| {} | {name} | {n} | {wrong} | {held} | ±{width:.2} % |", machine.name));
        width
    };
    let [_, widths] = [5, 8].map(|n| designs.map(|d| row(d, n)));
    documented(&rows);
    widths
}

#[test]
fn on_a_calm_machine_rounds_are_honest_and_lose_nothing() {
    let [whole, _, rounds] = widths(CALM);
    assert!(rounds < 1.2 * whole, "{rounds} {whole}");
}

#[test]
fn beside_a_neighbour_rounds_are_honest_and_ten_times_as_tight_as_whole_runs() {
    let [whole, sums, rounds] = widths(NEIGHBOUR);
    assert!(rounds * 10.0 < whole && rounds < sums, "{rounds} {sums} {whole}");
}

#[test]
fn where_single_slices_stall_too_rounds_are_honest_and_tighter_than_sums() {
    let [_, sums, rounds] = widths(AND_STALLS);
    assert!(rounds * 2.0 < sums, "{rounds} {sums}");
}
