//! `weir-lab list`: the experiments of a folder.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::experiment::{Changes, Experiment};
use crate::model::LabError;
use crate::progress::human;

pub fn go(dir: &Path) -> Result<ExitCode, LabError> {
    let entries = std::fs::read_dir(dir)
        .map_err(|e| LabError(format!("{}: {e}; name the folder that holds experiments", dir.display())))?;
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "toml")).collect();
    files.sort();
    let mut broken = false;
    for file in &files {
        match Experiment::load(file, &Changes::default()) {
            Ok(e) => println!(
                "{}\n  {}\n  {} configurations × {} blocks, about {}\n",
                file.display(),
                e.question,
                e.configurations.len(),
                e.runs,
                human(e.length())
            ),
            Err(e) => {
                broken = true;
                println!("{e}\n");
            }
        }
    }
    if files.is_empty() {
        println!("{}: no experiments (files that end in .toml)", dir.display());
    }
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
