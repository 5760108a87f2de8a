//! Equilibrium throughput, as netbenches' generator finds it: step the offered rate until it equals the
//! received.
//!
//! ```text
//! load = line / 2, step = line / 4
//! received ≈ load ─► up by step      received < load ─► down by step
//! step halves with every move once the direction has turned; a first trial that keeps less than half of
//! its load jumps to what it received, step half of that; 7 trials, or until the step is no whole Mb/s
//! ```
//!
//! Promises: whole Mb/s of Ethernet frames without FCS, the values those logs print: the last received rate
//! and the greatest seen. The moves are read off published logs; a test asks for the same loads as each of
//! them. Refuses: bounds, a loss ratio; it is comparable with the field's values, not with NDR.

use super::{Measurer, Rate, Refusal};

/// Trials at most.
const TRIALS: usize = 7;
/// Share of the load that may be missing where received and offered count as equal.
const TOLERANCE: f64 = 0.01;

/// What one Mb/s is, and where the search begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Equilibrium {
    /// Mb/s the source can offer at most.
    pub line_mbps: u64,
    /// Bits of a frame without its FCS.
    pub frame_bits: f64,
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub mbps: u64,
    pub max_seen_mbps: u64,
    /// Packets a second of the last trial.
    pub pps: f64,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub load_mbps: u64,
    pub received_mbps: u64,
}

impl Found {
    /// The line netbenches' tools look for.
    pub fn sentence(&self) -> String {
        format!(
            "Estimated Equilibrium Ethernet throughput= {} Mb/s (maximum value seen: {} Mb/s)",
            self.mbps, self.max_seen_mbps
        )
    }
}

/// Where the search stands; loads in Mb/s.
#[derive(Clone, Copy, Debug)]
struct State {
    load: u64,
    step: u64,
    /// Which way the last move went; none before the first.
    up: Option<bool>,
    /// The direction has turned at least once: every further move halves the step.
    turned: bool,
}

impl State {
    fn start(line_mbps: u64) -> State {
        State { load: line_mbps / 2, step: line_mbps / 4, up: None, turned: false }
    }

    /// The next load, or `None` when the step is used up.
    fn after(self, received: u64, line_mbps: u64) -> Option<State> {
        if self.up.is_none() && received < self.load / 2 {
            let step = received / 2;
            let state = State { load: received, step, up: Some(false), turned: true };
            return (step > 0).then_some(state);
        }
        // the least that still counts as all, in whole Mb/s
        let up = received >= (self.load as f64 * (1.0 - TOLERANCE)) as u64;
        let turned = self.turned || self.up.is_some_and(|before| before != up);
        let step = if turned { self.step / 2 } else { self.step };
        let load = if up { (self.load + step).min(line_mbps) } else { self.load.saturating_sub(step) };
        (step > 0 && load > 0).then_some(State { load, step, up: Some(up), turned })
    }
}

pub fn search<M: Measurer + ?Sized>(measurer: &mut M, config: Equilibrium) -> Result<Found, M::Error> {
    let Equilibrium { line_mbps, frame_bits, seconds } = config;
    let mut state = State::start(line_mbps);
    if state.step == 0 {
        return Err(Refusal::Line { mbps: line_mbps }.into());
    }
    let mut found = Found { mbps: 0, max_seen_mbps: 0, pps: 0.0, steps: Vec::new() };
    loop {
        let pps = (state.load as f64 * 1e6 / frame_bits).round().max(1.0) as u64;
        let purpose = format!("equilibrium at {} Mb/s, step {}", state.load, state.step);
        let record = measurer.trial(Rate::Pps(pps), seconds, &purpose)?;
        found.pps = record.load_pps() * (1.0 - record.loss_ratio());
        found.mbps = (found.pps * frame_bits / 1e6).round() as u64;
        found.max_seen_mbps = found.max_seen_mbps.max(found.mbps);
        found.steps.push(Step { load_mbps: state.load, received_mbps: found.mbps });
        match state.after(found.mbps, line_mbps) {
            Some(next) if found.steps.len() < TRIALS => state = next,
            _ => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::simulate::{Shape, Simulated};
    use std::io::Write;
    use std::path::{Path, PathBuf};

    fn on(shape: Shape, line_mbps: u64) -> Found {
        let frame_bits = 480.0;
        let mut sut = Simulated::new(shape, line_mbps as f64 * 1e6 / frame_bits, 1);
        search(&mut sut, Equilibrium { line_mbps, frame_bits, seconds: 1.0 }).expect("a line of whole Mb/s")
    }

    fn mbps(mbps: f64) -> f64 {
        mbps * 1e6 / 480.0
    }

    #[test]
    fn a_cliff_is_found_within_the_last_step() {
        for capacity in [600.0, 700.0, 905.0, 333.0, 66.0] {
            let found = on(Shape::Cliff { capacity: mbps(capacity) }, 1000);
            assert!((found.mbps as f64 - capacity).abs() <= 8.0, "{capacity}: {found:?}");
            assert!(found.max_seen_mbps >= found.mbps && found.steps.len() <= TRIALS);
        }
    }

    #[test]
    fn a_first_trial_that_keeps_little_jumps_to_what_it_received() {
        let found = on(Shape::Cliff { capacity: mbps(66.0) }, 1000);
        let loads: Vec<u64> = found.steps.iter().map(|s| s.load_mbps).collect();
        assert_eq!(loads[..3], [500, 66, 82]);
    }

    #[test]
    fn ends_of_the_range_end_the_search() {
        assert_eq!(on(Shape::Dead, 1000).mbps, 0);
        let endless = on(Shape::Endless, 1000);
        assert_eq!((endless.mbps, endless.max_seen_mbps), (1000, 1000));
        let narrow = Equilibrium { line_mbps: 3, frame_bits: 480.0, seconds: 1.0 };
        let mut sut = Simulated::new(Shape::Endless, 1e6, 1);
        assert!(search(&mut sut, narrow).expect_err("refused").to_string().contains("larger frames"));
    }

    /// (offered, received) of each trial in a published generator log.
    fn published(log: &str) -> Vec<(u64, u64)> {
        let value = |line: &str, label: &str| -> Option<u64> {
            line.trim().strip_prefix(label)?.split_whitespace().next()?.parse().ok()
        };
        let offered = log.lines().filter_map(|l| value(l, "- Offering load ="));
        offered.zip(log.lines().filter_map(|l| value(l, "- Measured forwarding rate ="))).collect()
    }

    fn logs(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                logs(&path, found);
            } else if path.extension().is_some_and(|e| e == "sender") {
                found.push(path);
            }
        }
    }

    #[test]
    fn the_loads_asked_for_are_those_of_published_logs() {
        let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/corpus/netbenches"));
        let mut files = Vec::new();
        logs(corpus, &mut files);
        let mut replayed = 0;
        for file in &files {
            let trials = published(&std::fs::read_to_string(file).unwrap_or_default());
            if trials.is_empty() {
                continue;
            }
            let mut state = Some(State::start(1000));
            for (i, &(offered, received)) in trials.iter().enumerate() {
                let now = state.unwrap_or_else(|| panic!("{}: ended before trial {}", file.display(), i + 1));
                assert_eq!(now.load, offered, "{}: trial {}", file.display(), i + 1);
                state = now.after(received, 1000);
            }
            assert!(trials.len() == TRIALS || state.is_none(), "{}: ended early", file.display());
            replayed += 1;
        }
        if replayed == 0 {
            let _ = writeln!(std::io::stderr(), "SKIP equilibrium logs: none below {}", corpus.display());
        }
    }
}
