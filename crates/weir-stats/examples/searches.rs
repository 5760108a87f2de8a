//! The throughput searches on SUTs whose capacity is known: error and cost, beside plain bisection.
//!
//! `cargo run --release -p weir-stats --example searches` prints the table of docs/search.md. An argument is how often
//! each search runs, each time with other noise (200). Error is that of the relevant lower bound against the nearest
//! right answer; seconds are those of trials on the simulated clock, for the whole set of goals.

use std::error::Error;
use std::io::Write;

use weir_stats::search::contest;

fn main() -> Result<(), Box<dyn Error>> {
    let seeds = std::env::args().nth(1).map_or(Ok(200), |argument| argument.parse::<u64>())?;
    let table = contest::table(&contest::rows(seeds)?, seeds);
    Ok(std::io::stdout().write_all(table.as_bytes())?)
}
