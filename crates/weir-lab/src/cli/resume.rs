//! `weir-lab resume`: an interrupted campaign, from where it stands.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::run::{finish, stop_flag};
use crate::campaign::{self, Resume};
use crate::model::LabError;

const AFTER: &str = "\
Examples:
  weir-lab resume out/demo                   after Ctrl-C, a crash or a power cut
  weir-lab resume out/demo --retry-failed    also measure again what failed (a host was down)
  weir-lab resume out/demo --force           although kernel or build changed; the report says so";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Again {
    /// Folder of the campaign, as given to `run --out`.
    dir: PathBuf,
    /// Go on although the build or the machine differs from the campaign's beginning; the manifest records
    /// what differs, the report says it.
    #[arg(long)]
    force: bool,
    /// Measure the runs that failed again too; their errors stay in the raw files.
    #[arg(long)]
    retry_failed: bool,
}

impl Again {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let done = campaign::resume(Resume {
            dir: &self.dir,
            experiment: None,
            force: self.force,
            retry_failed: self.retry_failed,
            argv: std::env::args().collect(),
            stop: stop_flag()?,
        })?;
        Ok(finish(&done, &self.dir))
    }
}
