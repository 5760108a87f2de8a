//! Everything that is wrong with a file, each finding with its line and a caret under what is meant.
//!
//! The parser ends at the first wrong value. So the line it stopped at is taken out, and the rest is read again, until
//! nothing more is found that the missing line did not bring about. What only the whole file means is looked at when
//! every value is right, and is one finding.

use std::fmt::Write as _;

use super::error::{ExperimentError, Refused};
use super::file;
use crate::model::LabError;

/// More is a file of something else.
const MOST: usize = 20;
/// Longest part of a line that is shown.
const SHOWN: usize = 120;

/// All findings of a file of which `first` is the first.
pub fn told(first: Refused, shown: &str, text: &str) -> LabError {
    let mut all = further(first, shown, text);
    // In the order of the file; what has no place there comes last.
    all.sort_by_key(|finding| {
        let position = finding.location.as_ref().and_then(|location| location.position.as_ref());
        position.map_or((usize::MAX, 0), |position| (position.line, position.column))
    });
    let mut said: String = all.iter().map(|finding| excerpt(finding, text)).collect();
    let (count, word) = (all.len(), if all.len() == 1 { "error" } else { "errors" });
    let _ = write!(said, "{shown}: {count} {word}; nothing was run");
    LabError::new(said)
}

fn further(first: Refused, shown: &str, text: &str) -> Vec<Refused> {
    let mut all = vec![first];
    let mut left: Vec<&str> = text.lines().collect();
    let mut taken: Vec<&str> = Vec::new();
    while all.len() < MOST {
        let Some(line) = all.last().and_then(line_of_a_value).filter(|line| *line < left.len()) else {
            break;
        };
        let Some((key, _)) = left[line].split_once('=') else { break };
        taken.push(key.trim());
        left[line] = "";
        let rest = left.join("\n");
        // A value of several lines is not whole any more: what follows from that is no finding.
        if toml::from_str::<toml::Table>(&rest).is_err() {
            break;
        }
        let Err(next) = file::parse(shown, &rest) else { break };
        if taken.iter().any(|key| next.to_string().contains(&format!("missing field `{key}`"))) {
            break;
        }
        all.push(next);
    }
    all
}

/// The line, from 0, of a value that the parser did not take.
fn line_of_a_value(finding: &Refused) -> Option<usize> {
    match (&finding.location, &*finding.error) {
        (Some(location), ExperimentError::Toml(_)) => location.position.map(|position| position.line - 1),
        _ => None,
    }
}

/// The finding, and where it stands in the file.
fn excerpt(finding: &Refused, text: &str) -> String {
    let mut out = format!("{finding}\n");
    let Some(location) = &finding.location else { return out };
    let Some(position) = location.position else { return out };
    let Some(line) = text.lines().nth(position.line - 1) else { return out };
    let skip = if position.column > SHOWN { position.column - SHOWN / 2 } else { 0 };
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let part: String = line.chars().skip(skip).take(SHOWN).map(plain).collect();
    let indent = position.column - 1 - skip;
    let width = location.width.clamp(1, SHOWN.saturating_sub(indent).max(1));
    let number = position.line.to_string();
    let _ = writeln!(out, "  {number} | {}", part.trim_end());
    let _ = writeln!(out, "  {:1$} | {2}{3}", "", number.len(), " ".repeat(indent), "^".repeat(width));
    out
}

#[cfg(test)]
mod tests {
    use crate::experiment::{Changes, Experiment};

    fn said(text: &str) -> String {
        Experiment::parse("x", "x.toml", text, &Changes::default()).expect_err("refused").said
    }

    #[test]
    fn every_wrong_value_is_shown_with_a_caret_under_it() {
        let text = "title = \"t\"\nquestion = \"q\"\nruns = \"many\"\nwarm_up = \"10ms\"\nwindow = 5\n\
                    [[configuration]]\nsut = \"weir\"\nframe = 17\ncolour = \"red\"\n";
        let said = said(text);
        assert!(said.contains("x.toml:3:8: got \"many\", expected a number of runs"), "{said}");
        assert!(said.contains("  3 | runs = \"many\"\n    |        ^^^^^^\n"), "{said}");
        assert!(said.contains("x.toml:5:10: got 5, expected a duration"), "{said}");
        assert!(said.contains("  5 | window = 5\n    |          ^\n"), "{said}");
        assert!(said.contains("  9 | colour = \"red\"\n    | ^^^^^^\n"), "{said}");
        assert!(said.contains("x.toml:8:"), "{said}");
        let order: Vec<_> =
            said.lines().filter_map(|line| line.strip_prefix("x.toml:")?.split(':').next()).collect();
        assert_eq!(order, ["3", "5", "8", "9", " 4 errors; nothing was run"], "{said}");
        assert!(said.ends_with("x.toml: 4 errors; nothing was run"), "{said}");
        assert!(!said.contains("missing field"), "what was taken out is not missed: {said}");
    }

    #[test]
    fn a_text_that_is_no_toml_is_one_finding() {
        let said = said("title = \"t\"\n[[configuration\nruns = \"many\"\n");
        assert!(said.ends_with("x.toml: 1 error; nothing was run"), "{said}");
    }

    #[test]
    fn what_the_whole_file_means_is_shown_at_its_place_too() {
        let text = "title = \"t\"\nquestion = \"q\"\nruns = 2\nwarm_up = \"10ms\"\nwindow = \"100ms\"\n\
                    reference = \"z\"\n[[configuration]]\n";
        let said = said(text);
        assert!(said.contains("  6 | reference = \"z\"\n    |             ^^^\n"), "{said}");
    }
}
