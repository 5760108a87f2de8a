//! `weir-lab doctor`: what this machine can and cannot measure, and how to fix it.
//!
//! Promises: tries what it reports (a namespace, a socket, a clock) rather than guessing, leaves nothing
//! behind, and always exits 0: lacking something is an answer.

mod checks;
mod pauses;

use std::process::ExitCode;

use serde::Serialize;

use crate::cli::print;
use crate::model::LabError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Good,
    /// Works, with a bearing on figures.
    Note,
    Missing,
}

/// One finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub state: State,
    /// How it is.
    pub found: String,
    /// What that means for measurements.
    pub means: String,
    /// What to do, when something can be done.
    pub remedy: Option<String>,
}

pub fn go(json: bool) -> Result<ExitCode, LabError> {
    let findings = checks::all();
    if json {
        let text =
            serde_json::to_string_pretty(&findings).map_err(|e| LabError::new(format!("doctor: {e}")))?;
        print(&(text + "\n"));
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = String::new();
    for finding in &findings {
        let sign = match finding.state {
            State::Good => "✓",
            State::Note => "·",
            State::Missing => "✗",
        };
        out += &format!("{sign} {:<16} {}\n  {:<16} {}\n", finding.what, finding.found, "", finding.means);
        if let Some(remedy) = &finding.remedy {
            out += &format!("  {:<16} → {remedy}\n", "");
        }
    }
    let missing = findings.iter().filter(|f| f.state == State::Missing).count();
    out += &format!(
        "\n{} of {} checks found what they looked for or a way around it.\n",
        findings.len() - missing,
        findings.len()
    );
    print(&out);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_always_has_a_remedy() {
        let findings = checks::all();
        assert!(findings.len() >= 10);
        for f in &findings {
            assert!(!f.found.is_empty() && !f.means.is_empty(), "{f:?}");
            assert!(f.state != State::Missing || f.remedy.is_some(), "{f:?}");
        }
    }
}
