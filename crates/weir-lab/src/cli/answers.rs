//! `weir-lab report --documents`: what campaigns say, into the documents that hold it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::answers::{Campaigns, source};
use crate::code::{self, Code};
use crate::model::LabError;
use crate::store::write_whole;

/// Writes anew what stands between the markers of `documents`, from the newest campaigns below `runs`, smoke campaigns only
/// with `quick`. With `check` nothing is written, and a document that says something else is a failure, as is a campaign that
/// did not measure today's code.
pub fn go(documents: &[PathBuf], runs: &Path, check: bool, quick: bool) -> Result<ExitCode, LabError> {
    let mut campaigns = Campaigns::find(runs, quick)?;
    let mut differ = false;
    let mut sources = Vec::new();
    for document in documents {
        let shown = document.display();
        let from = source(document)
            .map_err(|e| LabError::new(format!("{shown}: {e}; name a document with markers")))?;
        let filled = campaigns.fill(document, &from)?;
        let text = fs::read_to_string(document).unwrap_or_default();
        match (filled == text, check) {
            (true, _) => say(format_args!("{shown}: says what the newest campaigns say")),
            (false, true) => {
                differ = true;
                say(format_args!(
                    "{shown}: says something else; `weir-lab report --documents {shown}` writes it anew"
                ));
            }
            (false, false) => {
                write_whole(document, &filled)?;
                say(format_args!("{shown}: written anew"));
            }
        }
        sources.push((shown.to_string(), from));
    }
    if check {
        differ |= !of_today(&campaigns, runs, &sources)?;
    }
    Ok(if differ { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Says which campaigns did not measure today's code; whether documents may quote them.
fn of_today(campaigns: &Campaigns, runs: &Path, sources: &[(String, String)]) -> Result<bool, LabError> {
    let Some(code) = Code::beside(runs)? else {
        say(format_args!(
            "{}: no {} says what campaigns measure: their age was not looked at",
            runs.display(),
            code::FILE
        ));
        return Ok(true);
    };
    let found = code.judge(campaigns, sources)?;
    found.dated.iter().for_each(|said| say(format_args!("dated: {said}")));
    found.refused.iter().for_each(|said| say(format_args!("{said}")));
    if found.refused.is_empty() && found.dated.is_empty() {
        say(format_args!("{}: every campaign that is quoted measured today's code", runs.display()));
    }
    Ok(found.refused.is_empty())
}

/// A line, for whoever still reads.
fn say(line: std::fmt::Arguments<'_>) {
    super::print(&format!("{line}\n"));
}
