//! Cases of a bench that take turns, so that what disturbs the machine disturbs all alike.
//!
//! A turn's value is the median of its slices, which are shorter than a scheduler's: a neighbour on the same core
//! spoils some slices and not the value.

use std::hint::black_box;
use std::time::Instant;

/// What is timed: a name, and one slice (0…`slices`) of so many lookups that gives a sum to keep.
pub struct Case<'a> {
    pub name: String,
    pub lookups: usize,
    pub slice: Box<dyn FnMut(usize) -> u64 + 'a>,
}

/// Seconds a lookup.
pub struct Turns {
    pub best: f64,
    pub median: f64,
}

/// Lets each case have `repeats` turns of `slices`; in the order of `cases`. `warm`: a slice before each turn
/// that is not timed.
pub fn race(cases: &mut [Case<'_>], slices: usize, repeats: usize, warm: bool) -> Vec<Turns> {
    let mut times = vec![Vec::with_capacity(repeats); cases.len()];
    for _ in 0..repeats {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            if warm {
                black_box((case.slice)(slices - 1));
            }
            let mut turn: Vec<_> = (0..slices)
                .map(|n| {
                    let start = Instant::now();
                    black_box((case.slice)(n));
                    start.elapsed().as_secs_f64() / case.lookups as f64
                })
                .collect();
            times.push(median(&mut turn));
        }
    }
    times.iter_mut().map(|times| Turns { median: median(times), best: times[0] }).collect()
}

/// Sorts, too.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
