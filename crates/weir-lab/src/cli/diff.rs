//! `weir-lab profile diff`: what changed between the profiles of two configurations.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::run::aligned;
use crate::model::LabError;
use crate::profile::differential::flame::render as drawn;
use crate::profile::differential::{Differential, Side, differential, table};
use crate::profile::flame;
use crate::profile::import::Recording;
use crate::profile::rules::Rules;
use crate::store::write_whole;

const AFTER: &str = "\
Examples:
  weir-lab profile diff raw/old.0.folded raw/old.1.folded --against raw/new.0.folded raw/new.1.folded
  weir-lab profile diff support.pmc.graph --against ipsec.pmc.graph --pps 28544251,27883878 --svg diff.svg

Folded stacks, the text of `perf script` and the graphs of FreeBSD's `pmcstat -G` are recognised. Several
profiles a side are repeated runs: intervals then say what differs from run to run. Percentages are of samples
that are not idle; with --pps, values are nanoseconds a packet over all CPUs watched.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Diff {
    /// Profiles of the reference, one a run.
    #[arg(required = true, value_name = "BEFORE")]
    before: Vec<PathBuf>,
    /// Profiles of what is compared with it, one a run.
    #[arg(long, required = true, num_args = 1.., value_name = "AFTER")]
    against: Vec<PathBuf>,
    /// Packets a second of both sides (`A,B`), or of every profile in the order given [default: what the
    /// profiles say].
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pps: Vec<f64>,
    /// CPUs a profile watches [default: those it tells apart].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    cpus: Option<u16>,
    /// Rules for idle frames and categories, in place of the built-in ones.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Frames the table shows.
    #[arg(long, default_value_t = 20, value_name = "N")]
    top: usize,
    /// Draw the differential flame graph too, for browsers: searchable, in red and blue.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON document with all frames, for programs.
    #[arg(long)]
    json: bool,
}

impl Diff {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let rules = Rules::load(self.rules.as_deref())?;
        let (before, after) = self.sides()?;
        let differential = differential(&before, &after, &rules)?;
        if let Some(file) = &self.svg {
            let title = format!("{} against {}", names(&self.against), names(&self.before));
            let svg = flame::document(&drawn(&title, &differential, &before, &after, &rules));
            write_whole(file, &svg)?;
        }
        let text = if self.json {
            serde_json::to_string_pretty(&differential).map_err(|e| LabError::new(format!("json: {e}")))?
                + "\n"
        } else {
            show(&differential, self.top)
        };
        // a reader that went away (a closed pipe) wants no more
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(ExitCode::SUCCESS)
    }

    fn sides(&self) -> Result<(Side, Side), LabError> {
        let (first, second) = (self.before.len(), self.against.len());
        let (before, after) = match self.pps.as_slice() {
            [] => (None, None),
            &[before, after] => (Some(vec![before; first]), Some(vec![after; second])),
            all if all.len() == first + second => (Some(all[..first].to_vec()), Some(all[first..].to_vec())),
            all => {
                return Err(LabError::new(format!(
                    "--pps: got {} rates for {} profiles; give two (before, after) or one a profile",
                    all.len(),
                    first + second
                )));
            }
        };
        let (mut before, mut after) = (self.side(&self.before, before)?, self.side(&self.against, after)?);
        if before.pps.is_empty() || after.pps.is_empty() {
            (before.pps, after.pps) = (Vec::new(), Vec::new());
        }
        Ok((before, after))
    }

    fn side(&self, files: &[PathBuf], pps: Option<Vec<f64>>) -> Result<Side, LabError> {
        let recordings = files.iter().map(|f| Recording::read(f)).collect::<Result<Vec<_>, _>>()?;
        Ok(Side::of(recordings, pps, self.cpus.map(usize::from)))
    }
}

/// The first file's name, and how many more.
fn names(files: &[PathBuf]) -> String {
    let name = |f: &PathBuf| f.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    match files {
        [] => String::new(),
        [one] => name(one),
        [first, more @ ..] => format!("{} and {} more", name(first), more.len()),
    }
}

fn show(differential: &Differential, top: usize) -> String {
    let head = table::head(differential).join("\n");
    let foot = table::foot(differential).join("\n");
    format!("{head}\n\n{}\n{foot}\n", aligned(&table::rows(differential, top)))
}
