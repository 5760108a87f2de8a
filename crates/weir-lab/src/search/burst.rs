//! Back-to-back frames: the longest burst at the source's full rate that loses nothing (RFC 2544 section
//! 26.4, RFC 9004).
//!
//! ```text
//! burst of 2 s lost nothing? ─► no limit seen
//! else halve between the longest that passed and the shortest that lost, until they are close; repeat, average
//! ```
//!
//! Promises: a burst's length is what the source counted, not what was asked; every repeat is kept. Refuses:
//! a length where a burst of one trial's granularity already loses: it is 0.

use super::Measurer;
use crate::model::{LabError, Rate};
use crate::stats::Summary;

/// Lengths this close, relative to the longer, end a search: RFC 9004 leaves the resolution to the tester.
const RESOLUTION: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// The longest burst tried; RFC 2544 asks for 2 s at least.
    pub longest_seconds: f64,
    /// The shortest.
    pub shortest_seconds: f64,
    /// RFC 2544 asks for 50.
    pub repeats: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Frames of the longest lossless burst, a figure a repeat.
    pub frames: Vec<f64>,
    pub summary: Summary,
    /// Repeats in which not even the longest burst lost anything.
    pub unlimited: usize,
    /// Repeats in which even the shortest lost.
    pub none: usize,
}

pub fn search(measurer: &mut dyn Measurer, config: Bursts) -> Result<Found, LabError> {
    let (mut frames, mut unlimited, mut none) = (Vec::new(), 0, 0);
    for repeat in 1..=config.repeats {
        let mut burst = |seconds: f64| {
            let purpose = format!("back-to-back {repeat} of {}", config.repeats);
            let record = measurer.trial(Rate::FlatOut, seconds, &purpose)?;
            Ok::<_, LabError>((
                record.ledger.offered as f64,
                record.ledger.delivered >= record.ledger.offered,
            ))
        };
        let (offered, lossless) = burst(config.longest_seconds)?;
        if lossless {
            unlimited += 1;
            frames.push(offered);
            continue;
        }
        let (offered, lossless) = burst(config.shortest_seconds)?;
        if !lossless {
            none += 1;
            frames.push(0.0);
            continue;
        }
        let (mut low, mut high, mut best) = (config.shortest_seconds, config.longest_seconds, offered);
        while high - low > high * RESOLUTION {
            // from microseconds to seconds: halve the ratio, not the difference
            let middle = (low * high).sqrt();
            match burst(middle)? {
                (offered, true) => (low, best) = (middle, offered),
                (_, false) => high = middle,
            }
        }
        frames.push(best);
    }
    let summary =
        Summary::of(&frames).ok_or(LabError("back-to-back: no repeats, expected at least one".into()))?;
    Ok(Found { frames, summary, unlimited, none })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::simulate::{Shape, Simulated};

    const BURSTS: Bursts = Bursts { longest_seconds: 2.0, shortest_seconds: 1e-4, repeats: 3 };

    fn on(shape: Shape) -> Found {
        search(&mut Simulated::new(shape, 1e6, 7), BURSTS).expect("repeats")
    }

    #[test]
    fn the_longest_burst_is_what_queue_and_service_carry_together() {
        // 1,000 packets wait while 0.8 of what comes is served: 1,000 / (1 − 0.8) = 5,000 frames
        let found = on(Shape::Queue { capacity: 8e5, queue: 1000.0 });
        assert!((found.summary.mean - 5000.0).abs() < 5000.0 * 0.011, "{found:?}");
        assert_eq!((found.unlimited, found.none, found.frames.len()), (0, 0, 3));
    }

    #[test]
    fn a_subject_as_fast_as_the_source_has_no_limit_and_a_dead_one_no_burst() {
        let endless = on(Shape::Endless);
        assert_eq!((endless.unlimited, endless.summary.mean), (3, 2e6));
        let dead = on(Shape::Dead);
        assert_eq!((dead.none, dead.summary.mean), (3, 0.0));
    }
}
