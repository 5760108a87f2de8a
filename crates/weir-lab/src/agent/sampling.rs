//! Profiles on the SUT's own host: what the topology `netns` does on the lab's machine.
//!
//! ```text
//! lab   sample ──►  (warm-up, window)  profile, from, to ──►
//! agent    └─ Session: records ───────────┴─► names of this host ─► folded stacks ─► lab
//! ```
//!
//! Promises: addresses get their names here, from this host's kernel and its programs; only folded stacks travel.
//! Refuses: stacks of more than [`ANSWER_BYTES`].

use std::ops::Range;
use std::time::Duration;

use weir_core::time::Nanos;
use weir_io::perf_event::Target;

use crate::model::LabError;
use crate::profile::folded;
use crate::profile::session::{Focus, Session};

/// A window of five seconds of weir and the kernel is some 300 kB of stacks. Each sample of 256 MiB of records (31,000)
/// with a stack of its own, of 500 letters, would fit.
const ANSWER_BYTES: usize = 16 << 20;

/// Sampling under way; it ends when dropped.
pub struct Sampling(Session);

impl Sampling {
    pub fn start(cpus: &[u32], frequency_hz: u32, expected: Duration) -> Result<Sampling, LabError> {
        let target = Target::Cpus(cpus.to_vec());
        Session::start(&target, Focus::Family, frequency_hz, expected.as_secs_f64()).map(Sampling)
    }

    /// Folded stacks of what was seen between two moments of CLOCK_MONOTONIC.
    pub fn finish(self, window: Range<Nanos>) -> Result<String, LabError> {
        let (header, profile) = self.0.finish(window);
        bounded(folded::write(&header, &profile)?)
    }
}

fn bounded(stacks: String) -> Result<String, LabError> {
    let got = stacks.len();
    if got <= ANSWER_BYTES {
        return Ok(stacks);
    }
    Err(LabError::new(format!(
        "profile: got {got} bytes of folded stacks, expected at most {ANSWER_BYTES}: shorten `window`, or name fewer `cpus`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_that_are_too_large_are_refused_with_a_remedy() {
        assert!(bounded("a".repeat(ANSWER_BYTES)).is_ok());
        let error = bounded("a".repeat(ANSWER_BYTES + 1)).expect_err("too large");
        assert!(
            error.said.ends_with("expected at most 16777216: shorten `window`, or name fewer `cpus`"),
            "{error}"
        );
    }
}
