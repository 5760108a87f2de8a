//! Raw rates of every suite, backend and size, sealing and opening: what a whole path cannot exceed.
//!
//! Backends take turns in rounds of a few milliseconds, so that a slow moment of the machine hits all of
//! them. `cargo bench -p weir-io --bench cipher` prints the usual suites, `… -- SUITE` every one whose name has SUITE in it.

use std::time::Duration;

use weir_core::ipsec::Suite;
use weir_io::cipher::{self, rate};

/// Inner packets: the shortest, IMIX's middle, and what an Ethernet frame holds beside ESP.
const SIZES: [usize; 6] = [52, 116, 488, 1000, 1388, 8900];
const TURNS: usize = 9;
const TURN: Duration = Duration::from_millis(4);
const SMOKE_TURNS: usize = 1;
const SMOKE_TURN: Duration = Duration::from_micros(100);

fn main() {
    let smoke = !std::env::args().any(|argument| argument == "--bench");
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let (turns, turn) = if smoke { (SMOKE_TURNS, SMOKE_TURN) } else { (TURNS, TURN) };
    print!("{}", cipher::choice().measure_all());
    println!(
        "{:32} {:5} {:8} {:>6} {:>9} {:>8} {:>8} {:>8} {:>7}",
        "suite", "does", "backend", "bytes", "ns", "clocks", "Mpps", "Gb/s", "/aws-lc"
    );
    let suites = if wanted.is_empty() { rate::usual_suites() } else { Suite::all() };
    for suite in suites.into_iter().filter(|suite| suite.to_string().contains(&wanted)) {
        for direction in [rate::Direction::Seal, rate::Direction::Open] {
            for size in SIZES {
                compare(suite, direction, size, turns, turn);
            }
        }
    }
}

fn compare(suite: Suite, direction: rate::Direction, size: usize, turns: usize, turn: Duration) {
    let backends: Vec<_> = cipher::BACKENDS
        .iter()
        .filter_map(|name| cipher::by_name(name).map(|ciphers| (*name, ciphers)))
        .collect();
    let mut best = vec![None::<rate::Rate>; backends.len()];
    for _ in 0..turns {
        for ((_, ciphers), best) in backends.iter().zip(&mut best) {
            let rate = rate::raw_rate(&**ciphers, suite, size, direction, turn);
            let rate = rate.expect("every backend has every suite and opens what it sealed");
            if best.is_none_or(|best| rate.ns_per_packet < best.ns_per_packet) {
                *best = Some(rate);
            }
        }
    }
    let library = best[0].map_or(f64::NAN, |rate| rate.ns_per_packet);
    for ((name, _), rate) in backends.iter().zip(best.into_iter().flatten()) {
        println!(
            "{:32} {:5} {:8} {:>6} {:>9.1} {:>8} {:>8.2} {:>8.2} {:>7.2}",
            suite.to_string(),
            format!("{direction:?}").to_lowercase(),
            name,
            size,
            rate.ns_per_packet,
            rate.clocks_per_packet.map_or("-".to_string(), |clocks| format!("{clocks:.0}")),
            rate.packets_per_second() / 1e6,
            rate.bits_per_second() / 1e9,
            rate.ns_per_packet / library,
        );
    }
}
