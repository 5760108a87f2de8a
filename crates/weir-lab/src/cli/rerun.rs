//! `weir-lab rerun`: the experiment of a campaign once more, from its manifest, into a folder of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::run::{announce, finish, stop_flag};
use crate::campaign::{self, CampaignSpec};
use crate::machine::{Machine, unix_ms};
use crate::manifest::{Manifest, Repeated};
use crate::model::LabError;
use crate::store::free_name;
use crate::testbed::programs;

const AFTER: &str = "\
Examples:
  weir-lab rerun runs/2026-11-21-xeon-2cpu-demo --out out/again
  weir-lab rerun out/demo --new-seed         another order and other traffic: does the finding stand?
  weir-lab compare out/demo out/demo.1       what changed between the two";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Rerun {
    /// Folder of the campaign to repeat: its manifest.json is enough.
    run: PathBuf,
    /// Folder of the repetition [default: the first free one of RUN.1, RUN.2 …].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Another order and other traffic, from the clock, instead of the same.
    #[arg(long, conflicts_with = "seed")]
    new_seed: bool,
    /// This seed instead of the same.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl Rerun {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let earlier = Manifest::read(&self.run)?;
        let dir = self.out.unwrap_or_else(|| free_name(&self.run));
        let differences = campaign::builds(&earlier.build, &programs::took_part(&earlier.experiment))
            .into_iter()
            .chain(campaign::machines(&earlier.machine, &Machine::observe()));
        for difference in differences {
            eprintln!("differs from the earlier campaign: {difference}");
        }
        let seed = if self.new_seed { unix_ms() } else { self.seed.unwrap_or(earlier.seed) };
        let repeats = Repeated { seed: earlier.seed, started_unix_ms: earlier.started_unix_ms };
        announce(&earlier.experiment, &dir);
        let done = campaign::run(CampaignSpec {
            experiment: earlier.experiment,
            seed,
            dir: &dir,
            argv: std::env::args().collect(),
            repeats: Some(repeats),
            stop: stop_flag()?,
            whole: None,
        })?;
        let code = finish(&done, &dir);
        eprintln!("next: weir-lab compare {} {}", self.run.display(), dir.display());
        Ok(code)
    }
}
