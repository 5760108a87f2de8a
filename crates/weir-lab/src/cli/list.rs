//! `weir-lab run FOLDER --list`: the experiments of a folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::experiment::{Changes, Experiment};
use crate::model::LabError;
use crate::progress::human;

/// Names the experiments of `folders`, of `labs` without any.
pub fn go(folders: &[PathBuf]) -> Result<ExitCode, LabError> {
    let labs = [PathBuf::from("labs")];
    let mut broken = false;
    for dir in if folders.is_empty() { &labs } else { folders } {
        broken |= !list(dir)?;
    }
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// `false` where a file is no experiment.
fn list(dir: &Path) -> Result<bool, LabError> {
    let entries = std::fs::read_dir(dir).map_err(|e| {
        LabError::new(format!("{}: {e}; name the folder that holds experiments", dir.display()))
    })?;
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "toml")).collect();
    files.sort();
    let mut broken = false;
    for file in &files {
        match Experiment::load(file, &Changes::default()) {
            Ok(e) => super::print(&format!(
                "{}\n  {}\n  {} configurations × {} blocks, about {}\n{}\n",
                file.display(),
                e.question,
                e.configurations.len(),
                e.runs,
                human(e.length()),
                skipped(&e)
            )),
            Err(e) => {
                broken = true;
                super::print(&format!("{e}\n\n"));
            }
        }
    }
    if files.is_empty() {
        let shown = dir.display();
        super::print(&format!(
            "{shown}: no experiments (files that end in .toml); `weir-lab new {shown}/mine` writes one\n"
        ));
    }
    Ok(!broken)
}

/// What the file alone shows to be missing here, a line a reason.
pub(super) fn skipped(e: &Experiment) -> String {
    let mut by_reason = BTreeMap::<&str, Vec<&str>>::new();
    for planned in &e.configurations {
        if let Some(reason) = &planned.missing {
            by_reason.entry(reason).or_default().push(&planned.configuration.name);
        }
    }
    let lines = by_reason.iter().map(|(why, names)| format!("  skipped: {}: {why}\n", names.join(", ")));
    lines.collect()
}
