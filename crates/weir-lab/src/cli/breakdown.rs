//! `weir-lab profile breakdown`: CPU time by kind of work.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::run::aligned;
use crate::model::LabError;
use crate::profile::breakdown::breakdown;
use crate::profile::import::Recording;
use crate::profile::rules::Rules;

const AFTER: &str = "\
Examples:
  weir-lab profile breakdown raw/weir.0.folded raw/weir.1.folded
  perf record -a -g -- sleep 10; perf script | weir-lab profile breakdown /dev/stdin

A function's category comes from the rules, which are data: docs/differential.md shows the form. What no rule
names is `other`, shown like the rest.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Breakdown {
    /// Profiles of one configuration, one a run: folded stacks, `perf script`, `pmcstat -G`.
    #[arg(required = true, value_name = "PROFILE")]
    profiles: Vec<PathBuf>,
    /// Rules for idle frames and categories, in place of the built-in ones.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Functions the table shows.
    #[arg(long, default_value_t = 30, value_name = "N")]
    top: usize,
    /// Print one JSON document with all functions, for programs.
    #[arg(long)]
    json: bool,
}

impl Breakdown {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let rules = Rules::load(self.rules.as_deref())?;
        let recordings = self.profiles.iter().map(|f| Recording::read(f)).collect::<Result<Vec<_>, _>>()?;
        let found = breakdown(&recordings, &rules)?;
        let text = if self.json {
            serde_json::to_string_pretty(&found).map_err(|e| LabError::new(format!("json: {e}")))? + "\n"
        } else {
            format!(
                "{} samples of {} in {} recording(s)\n\n{}\n{}",
                found.samples,
                found.event,
                found.recordings,
                aligned(&found.category_rows()),
                aligned(&found.function_rows(self.top))
            )
        };
        // a reader that went away (a closed pipe) wants no more
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(ExitCode::SUCCESS)
    }
}
