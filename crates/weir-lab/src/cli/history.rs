//! `weir-lab history`: trends over campaigns, and the ones that changed a level.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::print;
use crate::across::find;
use crate::across::history::{FORMAT, History as Trend, histories};
use crate::across::trend;
use crate::model::LabError;
use crate::store::write_whole;
use weir_stats::changepoint::Settings;

const AFTER: &str = "\
Examples:
  weir-lab history out                           every experiment found there
  weir-lab history runs --experiment demo --html history.html
  weir-lab history runs --json                   for a dashboard

A campaign is one point: its median. A change needs at least two campaigns on its new level, and eight in all
before it can be told from luck.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct History {
    /// Folder that holds campaigns, at any depth.
    dir: PathBuf,
    /// Only campaigns of this experiment (its file's name without .toml).
    #[arg(long, value_name = "NAME")]
    experiment: Option<String>,
    /// Smoke campaigns (--quick) instead of measurements.
    #[arg(long)]
    quick: bool,
    /// A self-contained page with a picture for each configuration.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON document, for programs.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    histories: &'a [Trend],
    left_out: &'a [String],
}

impl History {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let (mut campaigns, mut left_out) = find(&self.dir)?;
        if let Some(name) = &self.experiment {
            campaigns.retain(|c| c.name == *name);
        }
        let found = campaigns.len();
        campaigns.retain(|c| c.quick == self.quick);
        if campaigns.len() < found {
            let what = if self.quick { "measurements" } else { "smoke campaigns (--quick shows them)" };
            left_out.push(format!("{} {what}", found - campaigns.len()));
        }
        if campaigns.is_empty() {
            return Err(LabError::new(format!(
                "{}: no campaign to show{}; name a folder `weir-lab run --out` wrote below",
                self.dir.display(),
                left_out.iter().map(|l| format!("; left out: {l}")).collect::<String>()
            )));
        }
        let histories = histories(&campaigns, Settings::default());
        if let Some(file) = &self.html {
            write_whole(file, &trend::page(&histories, &left_out))?;
        }
        if self.json {
            let document = Document { format: FORMAT, histories: &histories, left_out: &left_out };
            print(&super::json(&document)?);
        } else {
            print(&show(&histories, &left_out));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(histories: &[Trend], left_out: &[String]) -> String {
    let mut out = String::new();
    for history in histories {
        out += &format!(
            "{}: {} campaigns, {}\n\n",
            history.experiment,
            history.campaigns.len(),
            history.metric.sentence()
        );
        for series in &history.series {
            out += &trend::plain(history, series);
            out.push('\n');
        }
    }
    for reason in left_out {
        out += &format!("left out  {reason}\n");
    }
    out
}
