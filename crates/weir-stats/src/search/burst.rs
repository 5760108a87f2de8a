//! Back-to-back frames: the longest burst at the source's full rate that loses nothing (RFC 2544 section
//! 26.4, RFC 9004).
//!
//! ```text
//! the longest burst lost nothing? ─► no limit seen      not even one packet passed? ─► 0
//! else halve between the longest that passed and the shortest that lost, until they are close; repeat, average
//! ```
//!
//! Promises: bursts are counted in packets, and one that the source could not send whole shows nothing; every
//! repeat is kept. Refuses: to wait between bursts longer than the testbed waits for stragglers.

use super::{Measurer, Rate, Refusal};
use crate::Summary;

/// Lengths this close, relative to the longer, end a search: RFC 9004 leaves the resolution to the tester.
const RESOLUTION: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// The longest burst tried; RFC 2544 asks for 2 s of them at least.
    pub longest: u32,
    /// RFC 2544 asks for 50.
    pub repeats: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Frames of the longest lossless burst, a value a repeat.
    pub frames: Vec<f64>,
    pub summary: Summary,
    /// Repeats in which not even the longest burst lost anything.
    pub unlimited: usize,
}

pub fn search<M: Measurer + ?Sized>(measurer: &mut M, config: Bursts) -> Result<Found, M::Error> {
    let (mut frames, mut unlimited) = (Vec::new(), 0);
    for repeat in 1..=config.repeats {
        let mut lossless = |packets: u32| {
            let purpose = format!("back-to-back {repeat} of {}", config.repeats);
            let l = measurer.trial(Rate::Burst(packets), 0.0, &purpose)?.ledger;
            Ok::<_, M::Error>(l.offered == u64::from(packets) && l.delivered >= l.offered)
        };
        if lossless(config.longest)? {
            unlimited += 1;
            frames.push(f64::from(config.longest));
            continue;
        }
        let (mut low, mut high) = (0, config.longest);
        while high - low > 1 && f64::from(high - low) > f64::from(high) * RESOLUTION {
            // from one packet to millions: halve the ratio, not the difference
            let middle = (f64::from(low.max(1)) * f64::from(high)).sqrt() as u32;
            let middle = middle.clamp(low + 1, high - 1);
            if lossless(middle)? { low = middle } else { high = middle }
        }
        frames.push(f64::from(low));
    }
    let summary = Summary::of(&frames).ok_or(Refusal::NoRepeats)?;
    Ok(Found { frames, summary, unlimited })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::TrialRecord;
    use crate::search::simulate::{Shape, Simulated};

    fn on(shape: Shape) -> Found {
        let bursts = Bursts { longest: 2_000_000, repeats: 3 };
        search(&mut Simulated::new(shape, 1e6, 7), bursts).expect("repeats")
    }

    #[test]
    fn the_longest_burst_is_what_queue_and_service_carry_together() {
        // 1,000 packets wait while 0.8 of what comes is served: 1,000 / (1 − 0.8) = 5,000 frames
        let found = on(Shape::Queue { capacity: 8e5, queue: 1000.0 });
        assert!((found.summary.mean - 5000.0).abs() < 5000.0 * 0.011, "{found:?}");
        assert_eq!((found.unlimited, found.frames.len()), (0, 3));
    }

    #[test]
    fn a_sut_as_fast_as_the_source_has_no_limit_and_a_dead_one_no_burst() {
        let endless = on(Shape::Endless);
        assert_eq!((endless.unlimited, endless.summary.mean), (3, 2e6));
        assert_eq!(on(Shape::Dead).frames, [0.0; 3]);
    }

    #[test]
    fn a_burst_the_source_did_not_send_whole_proves_nothing() {
        struct Stuck;
        impl Measurer for Stuck {
            type Error = Refusal;

            fn trial(&mut self, rate: Rate, _: f64, purpose: &str) -> Result<TrialRecord, Refusal> {
                let mut record = Simulated::new(Shape::Endless, 1e6, 1).trial(rate, 0.0, purpose)?;
                (record.ledger.offered, record.ledger.delivered) = (0, 0);
                Ok(record)
            }
        }
        let found = search(&mut Stuck, Bursts { longest: 1000, repeats: 1 }).expect("a repeat");
        assert_eq!((found.frames.as_slice(), found.unlimited), (&[0.0][..], 0));
    }
}
