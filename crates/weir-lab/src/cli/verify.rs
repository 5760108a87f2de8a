//! `weir-lab verify`: printed blocks against the raw data beside them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::argument::ArgumentError;
use crate::model::LabError;
use crate::result::verify::Campaigns;
use weir_stats::verify::{Verified, verify};

const AFTER: &str = "\
Examples:
  weir-lab verify results/README.md          one document, its data beside it
  weir-lab verify results                    every document below a folder
  weir-lab verify runs --all                 each block with its style and its data
  weir-lab verify results --json             counts for programs

Exits with 0 when no block differs, 1 when one does or a path cannot be read.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Verify {
    /// Documents, or folders whose documents (README, *.md) are verified.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Difference of interest, percent: a verdict of no difference that could have missed it is warned about.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    effect: f64,
    /// Print the counts blocks, reproduced, whitespace, differs and no_data as one JSON document, for programs.
    #[arg(long)]
    json: bool,
    /// With --json: every block, with what it was derived from, and every warning.
    #[arg(long, requires = "json")]
    details: bool,
    /// Name reproduced blocks too.
    #[arg(long)]
    all: bool,
}

fn percent(text: &str) -> Result<f64, ArgumentError> {
    match text.trim_end_matches('%').trim_end().parse() {
        Ok(percent) if percent > 0.0 && f64::is_finite(percent) => Ok(percent),
        _ => Err(ArgumentError::Percentage(text.into())),
    }
}

impl Verify {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let mut verified = Verified::default();
        for path in &self.paths {
            verified.add(verify(path, self.effect, &Campaigns).map_err(|e| LabError::new(e.to_string()))?);
        }
        if self.json {
            super::print(&format!("{}\n", verified.json(self.details)));
        } else {
            super::print(&verified.text(self.all));
        }
        Ok(if verified.counts().differs > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
