//! What a packet costs in the pipeline beyond time: time-stamp counter clocks, and allocations, of which
//! there must be none.
//!
//! It drives weir-core's own testbed (`weir_core::testing::testbed`) and lives here because an
//! allocator that counts and a counter register both need `unsafe`, which weir-core forbids.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use weir_io::clock::ticks;

use weir_core::testing::testbed::{Family, Testbed};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting.
struct Counting;

// SAFETY: every call is passed unchanged to `System`, whose guarantees these are; counting touches only an
// atomic integer and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s contract, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above with this layout, hence from `System`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: `at` came from `alloc` above with this layout, hence from `System`.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Packets before counting starts: rings and queues grow to their size once.
const WARM_UP: usize = 10_000;
const ROUND: usize = 50_000;
const ROUNDS: usize = 100;
const SMOKE_ROUND: usize = 10_000;

fn main() {
    let smoke = !std::env::args().any(|argument| argument == "--bench");
    let (round, rounds) = if smoke { (SMOKE_ROUND, 1) } else { (ROUND, ROUNDS) };
    println!(
        "{:24} {:>9} {:>12} {:>12} {:>12}",
        "64-byte frames", "routes", "clocks", "base clocks", "allocations"
    );
    for (name, family) in [("inet", Family::Inet), ("inet6", Family::Inet6), ("mixed", Family::Mixed)] {
        cost(name, Testbed::new(family, 1000), round, rounds);
        cost(&format!("{name}, policy beside"), Testbed::new(family, 1000).behind_spd(1), round, rounds);
        cost(&format!("{name}, slow path"), Testbed::new(family, 1000).without_fast_path(), round, rounds);
    }
}

fn cost(name: &str, mut testbed: Testbed, round: usize, rounds: usize) {
    testbed.forward(WARM_UP);
    testbed.copy_only(WARM_UP);
    let (mut best, mut baseline) = (f64::INFINITY, f64::INFINITY);
    let before = ALLOCATIONS.load(Relaxed);
    for _ in 0..rounds {
        best = best.min(clocks(|| testbed.forward(round)));
        baseline = baseline.min(clocks(|| testbed.copy_only(round)));
    }
    let allocations = ALLOCATIONS.load(Relaxed) - before;
    println!("{name:24} {:>9} {best:>12.1} {baseline:>12.1} {allocations:>12}", 1000);
    assert_eq!(allocations, 0, "the data path allocates");
}

/// Clocks a packet of one round; infinite on a processor without a time-stamp counter.
fn clocks(mut round: impl FnMut() -> u64) -> f64 {
    let start = ticks();
    let packets = round();
    match (start, ticks()) {
        (Some(start), Some(end)) => (end - start) as f64 / packets as f64,
        _ => f64::INFINITY,
    }
}
