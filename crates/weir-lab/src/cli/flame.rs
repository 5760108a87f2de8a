//! `weir-lab profile flame`: a flame graph from any profile that can be read.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::model::LabError;
use crate::profile::flame::{document, plain, render};
use crate::profile::import::Recording;
use crate::store::write_whole;

const AFTER: &str = "\
Examples:
  weir-lab profile flame raw/weir.0.folded -o weir.svg
  perf record -a -g -- sleep 10; perf script | weir-lab profile flame /dev/stdin -o host.svg

Open the picture in a browser: a click widens a frame, `search` marks frames and says their share.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Flame {
    /// Profiles, added up: folded stacks, `perf script`, `pmcstat -G`.
    #[arg(required = true, value_name = "PROFILE")]
    profiles: Vec<PathBuf>,
    /// The picture.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What stands above it [default: the first profile's name].
    #[arg(long)]
    title: Option<String>,
}

impl Flame {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let recordings = self.profiles.iter().map(|f| Recording::read(f)).collect::<Result<Vec<_>, _>>()?;
        let mut wholes = recordings.iter().map(Recording::whole);
        let mut sum = wholes.next().unwrap_or_default();
        for (whole, recording) in wholes.zip(&recordings[1..]) {
            if whole.event != sum.event {
                return Err(LabError::new(format!(
                    "{}: counts {}, the profiles before it {}; only samples of one event can be added up",
                    recording.source, whole.event, sum.event
                )));
            }
            sum.absorb(&whole);
        }
        let title = self.title.unwrap_or_else(|| recordings[0].source.clone());
        write_whole(&self.output, &document(&render(&sum, &title, &plain)))?;
        Ok(ExitCode::SUCCESS)
    }
}
