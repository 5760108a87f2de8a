//! `weir-lab report`: every value and sentence of a campaign again, from its manifest and raw runs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::answers;
use crate::experiment::{Changes, Experiment};
use crate::manifest::Manifest;
use crate::model::LabError;
use crate::report;
use crate::store::Store;

const AFTER: &str = "\
Examples:
  weir-lab report out/demo
  weir-lab report --documents docs/answers.md docs/benchmarks.md          write them anew from the newest campaigns
  weir-lab report --documents docs/answers.md docs/benchmarks.md --check  do they say what the newest campaigns say?

A document names the experiments itself: <!-- answers NAME … -->, or <!-- answers as table NAME … -->, and
<!-- end of answers -->; what stands between is written anew. docs/experiments.md: `[[answer]]`.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Report {
    /// Folder of a campaign, as given to `run --out`.
    #[arg(required_unless_present = "documents")]
    dir: Option<PathBuf>,
    /// Take title, question and `[[answer]]` from this experiment instead of the manifest, and keep them there. What was
    /// measured has to be what the file says.
    #[arg(long, value_name = "FILE", requires = "dir")]
    wording: Option<PathBuf>,
    /// Write what the newest campaigns say into these documents, between markers.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "dir")]
    documents: Vec<PathBuf>,
    /// With --documents: the folder that holds the campaigns.
    #[arg(long, value_name = "DIR", default_value = "runs", requires = "documents")]
    runs: PathBuf,
    /// With --documents: write nothing; exit with 1 when a document says something else, or quotes a campaign that did not
    /// measure today's code (`code.toml` beside the campaigns has the rules).
    #[arg(long, requires = "documents")]
    check: bool,
    /// With --documents: take smoke campaigns (run --quick) too, which prove nothing.
    #[arg(long, requires = "documents")]
    quick: bool,
}

impl Report {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let Some(dir) = self.dir else {
            return answers::go(&self.documents, &self.runs, self.check, self.quick);
        };
        if let Some(file) = &self.wording {
            let mut manifest = Manifest::read(&dir)?;
            let store = Store::open(&dir)?;
            reword(&mut manifest.experiment, file)?;
            store.write("manifest.json", &manifest.text()?)?;
        }
        let results = report::write(&dir)?;
        super::print(&format!("{}\n{}\n", results.answer, dir.join("report.html").display()));
        Ok(ExitCode::SUCCESS)
    }
}

/// The file's words about the same configurations and pairs.
fn reword(measured: &mut Experiment, file: &std::path::Path) -> Result<(), LabError> {
    let changes = Changes { quick: measured.quick, ..Changes::default() };
    let written = Experiment::load(file, &changes)?;
    let names =
        |e: &Experiment| e.configurations.iter().map(|p| p.configuration.name.clone()).collect::<Vec<_>>();
    let is_other = |name: &String| !names(measured).contains(name);
    if let Some(other) = names(&written).iter().find(|name| is_other(name)) {
        let shown = file.display();
        return Err(LabError::new(format!(
            "{shown}: has {other}, which this campaign has not: measure it anew"
        )));
    }
    if written.pairs != measured.pairs || written.metric != measured.metric {
        let shown = file.display();
        return Err(LabError::new(format!(
            "{shown}: compares other things than this campaign did: measure it anew"
        )));
    }
    (measured.title, measured.question) = (written.title, written.question);
    measured.answers = written.answers;
    Ok(())
}
