//! `weir-lab report`: every value and sentence of a campaign again, from its manifest and raw runs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::experiment::{Changes, Experiment};
use crate::manifest::Manifest;
use crate::model::LabError;
use crate::report;
use crate::store::Store;

#[derive(Args)]
pub struct Report {
    /// Folder of a campaign, as given to `run --out`.
    dir: PathBuf,
    /// Take title, question and `[[answer]]` from this experiment instead of the manifest, and keep them there. What was
    /// measured has to be what the file says.
    #[arg(long, value_name = "FILE")]
    wording: Option<PathBuf>,
}

impl Report {
    pub fn go(self) -> Result<ExitCode, LabError> {
        if let Some(file) = &self.wording {
            let mut manifest = Manifest::read(&self.dir)?;
            let store = Store::open(&self.dir)?;
            reword(&mut manifest.experiment, file)?;
            store.write("manifest.json", &manifest.text()?)?;
        }
        let results = report::write(&self.dir)?;
        super::print(&format!("{}\n{}\n", results.answer, self.dir.join("report.html").display()));
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
