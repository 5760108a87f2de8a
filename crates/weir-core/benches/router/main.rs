//! Packets a second through `breathe`, by family and table size, beside the testbed's own baseline.
//!
//! `cargo bench -p weir-core --bench router` measures; under `cargo test --benches` the same code runs
//! once with smoke values. A family's name as argument measures that family alone. Clocks and allocations
//! a packet are counted by weir-io's bench `router_cost`, on the same testbed.

use std::time::Instant;

use weir_core::testing::testbed::{Family, Testbed};

/// Packets of one timed round, about a millisecond, and rounds: the best of many short ones is the least
/// disturbed one.
const ROUND: usize = 50_000;
const ROUNDS: usize = 100;
const SMOKE_ROUND: usize = 1000;

fn main() {
    let smoke = !std::env::args().any(|argument| argument == "--bench");
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let sizes: &[usize] = if smoke { &[2, 1000] } else { &[2, 1000, 100_000, 1_000_000] };
    println!("{:24} {:>9} {:>9} {:>9} {:>9}", "64-byte frames", "routes", "Mpps", "ns", "base ns");
    for (name, family) in [("inet", Family::Inet), ("inet6", Family::Inet6), ("mixed", Family::Mixed)] {
        if wanted.as_ref().is_some_and(|w| w != name) {
            continue;
        }
        for &size in sizes {
            // The global IPv6 table has about 200,000 routes.
            let routes = if family == Family::Inet { size } else { size.min(200_000) };
            measure(name, routes, Testbed::new(family, routes), smoke);
        }
        for policies in [1, 100] {
            let testbed = Testbed::new(family, 1000).behind_spd(policies);
            measure(&format!("{name}, {policies} policies"), 1000, testbed, smoke);
        }
        measure(&format!("{name}, slow path"), 1000, Testbed::new(family, 1000).without_fast_path(), smoke);
    }
}

fn measure(name: &str, routes: usize, mut testbed: Testbed, smoke: bool) {
    let (round, rounds) = if smoke { (SMOKE_ROUND, 1) } else { (ROUND, ROUNDS) };
    let (mut best, mut baseline) = (f64::MAX, f64::MAX);
    for _ in 0..rounds {
        best = best.min(nanoseconds(|| testbed.forward(round)));
        baseline = baseline.min(nanoseconds(|| testbed.copy_only(round)));
    }
    println!("{name:24} {routes:>9} {:>9.2} {best:>9.2} {baseline:>9.2}", 1e3 / best);
}

/// Nanoseconds a packet of one round.
fn nanoseconds(mut round: impl FnMut() -> u64) -> f64 {
    let start = Instant::now();
    let packets = round();
    assert!(packets > 0, "nothing was forwarded");
    start.elapsed().as_nanos() as f64 / packets as f64
}
