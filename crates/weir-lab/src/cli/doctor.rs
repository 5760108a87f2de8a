//! `weir-lab doctor`: what this machine can and cannot measure, and how to fix it.
//!
//! Promises: tries what it reports (a namespace, a socket, a clock) rather than guessing, leaves nothing
//! behind, and always exits 0: lacking something is an answer.

mod checks;
mod pauses;

use std::process::ExitCode;

use crate::cli::print;
use crate::diagnostic::Severity;
use crate::model::LabError;

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
        let sign = match finding.severity {
            Severity::Ok => "✓",
            Severity::Note | Severity::Warning => "·",
            Severity::Missing => "✗",
        };
        let (subject, impact) = (finding.subject.join(", "), finding.impact.as_deref().unwrap_or_default());
        out += &format!("{sign} {subject:<16} {}\n  {:<16} {impact}\n", finding.finding, "");
        if let Some(remedy) = &finding.remedy {
            out += &format!("  {:<16} → {remedy}\n", "");
        }
    }
    let missing = findings.iter().filter(|f| f.severity == Severity::Missing).count();
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
            assert!(!f.finding.is_empty() && f.impact.as_ref().is_some_and(|i| !i.is_empty()), "{f:?}");
            assert!(f.severity != Severity::Missing || f.remedy.is_some(), "{f:?}");
        }
    }
}
