//! `weir-lab run --resume`: an interrupted campaign, from where it stands.

use std::path::Path;
use std::process::ExitCode;

use super::run::{finish, stop_flag};
use crate::campaign::{self, Resume};
use crate::experiment::Experiment;
use crate::model::LabError;

/// Measures the runs that have no record yet, in their order; where an `experiment` is given, only if it is the campaign's.
pub fn go(
    dir: &Path,
    experiment: Option<Experiment>,
    force: bool,
    retry_failed: bool,
) -> Result<ExitCode, LabError> {
    let argv = super::command_line();
    let done = campaign::resume(Resume { dir, experiment, force, retry_failed, argv, stop: stop_flag()? })?;
    Ok(finish(&done, dir))
}
