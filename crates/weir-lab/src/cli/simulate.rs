//! `weir-lab simulate`: the throughput searches on subjects whose capacity is known.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use crate::model::LabError;
use weir_stats::search::contest;

const AFTER: &str = "\
Examples:
  weir-lab simulate                 the table of docs/search.md
  weir-lab simulate --seeds 1000    the same, the noisy subjects drawn more often

Error is that of the relevant lower bound against the nearest right answer; seconds are those of trials on
the simulated clock, for the whole set of goals.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Simulate {
    /// How often each search runs, each time with other noise.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
}

impl Simulate {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let table = contest::table(&contest::rows(self.seeds)?, self.seeds);
        // a reader that went away has lost only this
        let _ = std::io::stdout().write_all(table.as_bytes());
        Ok(ExitCode::SUCCESS)
    }
}
