//! Counts of events on the calling thread, kernel included where our rights allow it.
//!
//! Promises: a count tells whether the processor had a counter for all of the time; one that shared counters
//! with others is scaled by the time it had one, as perf stat does. Refuses: events the machine does not count.

use std::fs::File;
use std::io::{self, Read};

use super::attributes::{Attributes, open};

const TYPE_SOFTWARE: u32 = 1;
const TYPE_CACHE: u32 = 3;
/// `PERF_COUNT_HW_CACHE_LL | PERF_COUNT_HW_CACHE_OP_READ << 8 | PERF_COUNT_HW_CACHE_RESULT_… << 16`.
const LAST_LEVEL_READS: u64 = 2;
const LAST_LEVEL_READ_MISSES: u64 = 2 | 1 << 16;
const PAGE_FAULTS: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Loads that reached the last level of cache.
    LastLevelLoads,
    /// Those it did not hold.
    LastLevelMisses,
    PageFaults,
}

/// An event that is counted from now on.
#[derive(Debug)]
pub struct Counter(File);

impl Counter {
    /// Starts a counter of the calling thread.
    pub fn start(what: Counted) -> io::Result<Counter> {
        let (kind, config) = match what {
            Counted::LastLevelLoads => (TYPE_CACHE, LAST_LEVEL_READS),
            Counted::LastLevelMisses => (TYPE_CACHE, LAST_LEVEL_READ_MISSES),
            Counted::PageFaults => (TYPE_SOFTWARE, PAGE_FAULTS),
        };
        const THIS_THREAD: i32 = 0;
        const ANY_CPU: i32 = -1;
        let whole = open(&Attributes::counting(kind, config, true), THIS_THREAD, ANY_CPU);
        let event =
            whole.or_else(|_| open(&Attributes::counting(kind, config, false), THIS_THREAD, ANY_CPU))?;
        Ok(Counter(event.into()))
    }

    /// Events so far; `None` when it never had a counter.
    pub fn read(&mut self) -> io::Result<Option<f64>> {
        let mut bytes = [0; 24];
        self.0.read_exact(&mut bytes)?;
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * i..8 * i + 8]);
            u64::from_ne_bytes(word) as f64
        };
        let (count, enabled, running) = (word(0), word(1), word(2));
        Ok((running > 0.0).then(|| count * enabled / running))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_thread_counts_its_own_page_faults() {
        let mut counter = match Counter::start(Counted::PageFaults) {
            Ok(counter) => counter,
            Err(e) => {
                let _ = writeln!(std::io::stderr(), "SKIP a_thread_counts_its_own_page_faults: {e}");
                return;
            }
        };
        let before = counter.read().expect("open").unwrap_or(0.0);
        // fresh memory, touched page by page; 16 MiB come from the kernel whatever the allocator keeps
        let mut memory = vec![0u8; 16 << 20];
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = std::hint::black_box(1));
        std::hint::black_box(&memory);
        let after = counter.read().expect("open").expect("software events always have a counter");
        // 4096 small pages, or 8 huge ones
        assert!(after >= before + 8.0, "{before} → {after}");
    }

    #[test]
    fn last_level_events_are_counted_or_refused() {
        for counted in [Counted::LastLevelLoads, Counted::LastLevelMisses] {
            match Counter::start(counted) {
                Err(e) => {
                    let name = "last_level_events_are_counted_or_refused";
                    let _ = writeln!(std::io::stderr(), "SKIP {name}: no counters ({e})");
                    return;
                }
                Ok(mut counter) => assert!(counter.read().expect("open").is_none_or(|n| n >= 0.0)),
            }
        }
    }
}
