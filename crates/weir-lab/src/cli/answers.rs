//! `weir-lab report --documents`: what campaigns say, into the documents that hold it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::answers::{Campaigns, source};
use crate::model::LabError;
use crate::store::write_whole;

/// Writes anew what stands between the markers of `documents`, from the newest campaigns below `runs`, smoke campaigns only
/// with `quick`. With `check` nothing is written, and a document that says something else is a failure.
pub fn go(documents: &[PathBuf], runs: &Path, check: bool, quick: bool) -> Result<ExitCode, LabError> {
    let mut campaigns = Campaigns::find(runs, quick)?;
    let mut differ = false;
    for document in documents {
        let shown = document.display();
        let from = source(document)
            .map_err(|e| LabError::new(format!("{shown}: {e}; name a document with markers")))?;
        let filled = campaigns.fill(document, &from)?;
        let text = fs::read_to_string(document).unwrap_or_default();
        match (filled == text, check) {
            (true, _) => println!("{shown}: says what the newest campaigns say"),
            (false, true) => {
                differ = true;
                println!(
                    "{shown}: says something else; `weir-lab report --documents {shown}` writes it anew"
                );
            }
            (false, false) => {
                write_whole(document, &filled)?;
                println!("{shown}: written anew");
            }
        }
    }
    Ok(if differ { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
