//! What there is to tell the reader of a report or of `weir-lab doctor`: how serious, about what, what was found, and
//! what to do about it.
//!
//! Promises: one form for warnings about results, notes of testbeds and checks of a machine, in documents as on screen.
//! Refuses: nothing; results written before this form are read (format 2 of `result.json`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct Diagnostic {
    pub severity: Severity,
    /// The kind of finding, for programs.
    pub kind: Kind,
    /// Names of configurations, or the check of a machine. Empty is the whole campaign.
    pub subject: Vec<String>,
    /// One sentence without the subject, lower case and without a full stop.
    pub finding: String,
    /// What the finding means for measurements, where that is not plain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impact: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The numbers and names of the finding under their own keys, for programs.
    #[serde(flatten)]
    pub data: BTreeMap<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// A check found what it looked for.
    Ok,
    /// It bears on results, and nothing is wrong.
    Note,
    /// A reader who ignores it may believe what is not so.
    Warning,
    /// A check did not find what measurements need.
    Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    // of the machine, by `weir-lab doctor`
    Check,
    // said by testbeds: how it was measured
    Note,
    /// Something better was refused on the way.
    Fallback,
    // of a campaign as a whole
    NotOptimised,
    /// The lab and what it started had another scheduling priority than programs have.
    Priority,
    SmokeValues,
    Interrupted,
    Skipped,
    CutShort,
    /// The campaign was interrupted and resumed.
    Resumed,
    /// Changes accepted with --force when the campaign was resumed.
    ChangedBetweenSessions,
    /// Runs that failed and were measured again in a later session.
    MeasuredAgain,
    /// Runs in slices, measured again because one measured in turn with them was missing or had failed.
    MeasuredTogether,
    // of runs
    Failed,
    /// Runs that the SUT ended by itself, or in which it broke a stream.
    Misbehaved,
    FewRuns,
    Noisy,
    /// The CPUs of a virtual machine were moved apart by its host during runs.
    CpusApart,
    /// The A/A control came out different from itself.
    ControlDiffers,
    #[serde(alias = "generator-is-the-limit")]
    GeneratorLimited,
    Unaccounted,
    Reordered,
    Duplicated,
    // of sets of runs: weir_stats::defects
    Outlier,
    Drift,
    Autocorrelation,
    Bimodal,
    UnequalSpread,
    // of throughput searches
    /// The search ended without close bounds on both sides.
    SearchIrregular,
    /// The generator fell behind: part of the loss of these trials is its own.
    SourceHeldUp,
    /// The trials of a search do not fit a SUT with one capacity.
    SearchOdd,
}

impl Diagnostic {
    pub fn warning(kind: Kind, subject: &[String], finding: String, remedy: &str) -> Diagnostic {
        Diagnostic {
            severity: Severity::Warning,
            kind,
            subject: subject.to_vec(),
            finding,
            impact: None,
            remedy: Some(remedy.into()),
            data: BTreeMap::new(),
        }
    }

    pub fn note(subject: Vec<String>, finding: String) -> Diagnostic {
        Diagnostic {
            severity: Severity::Note,
            kind: Kind::Note,
            subject,
            finding,
            impact: None,
            remedy: None,
            data: BTreeMap::new(),
        }
    }

    /// A check of a machine.
    pub fn check(
        subject: &str,
        severity: Severity,
        finding: impl Into<String>,
        impact: impl Into<String>,
    ) -> Diagnostic {
        let (subject, impact) = (vec![subject.into()], Some(impact.into()));
        Diagnostic { severity, kind: Kind::Check, impact, ..Diagnostic::note(subject, finding.into()) }
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Diagnostic {
        self.data.insert(key.into(), value.into());
        self
    }

    pub fn remedy(mut self, remedy: impl Into<String>) -> Diagnostic {
        self.remedy = Some(remedy.into());
        self
    }

    /// Subject and finding: all subjects of a few, the first of many.
    pub fn sentence(&self) -> String {
        const SHOWN: usize = 4;
        let subject = match self.subject.len().checked_sub(SHOWN + 1) {
            None => self.subject.join(", "),
            Some(_) => {
                let more = self.subject.len() - SHOWN;
                format!("{} and {more} more", self.subject[..SHOWN].join(", "))
            }
        };
        if subject.is_empty() { self.finding.clone() } else { format!("{subject}: {}", self.finding) }
    }
}

/// A diagnostic as it stands in a document. Format 2 had `sentence` (with the subject in it) or `note`, and the
/// subject under `configuration` or `configurations`.
#[derive(Deserialize)]
struct Written {
    severity: Option<Severity>,
    kind: Option<Kind>,
    #[serde(default, alias = "configuration", alias = "configurations")]
    subject: OneOrMany,
    #[serde(alias = "sentence", alias = "note")]
    finding: String,
    impact: Option<String>,
    remedy: Option<String>,
    #[serde(flatten)]
    data: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> OneOrMany {
        OneOrMany::Many(Vec::new())
    }
}

impl From<Written> for Diagnostic {
    fn from(w: Written) -> Diagnostic {
        let of_kind = if w.kind.is_some() { Severity::Warning } else { Severity::Note };
        let subject = match w.subject {
            OneOrMany::One(name) => vec![name],
            OneOrMany::Many(names) => names,
        };
        Diagnostic {
            severity: w.severity.unwrap_or(of_kind),
            kind: w.kind.unwrap_or(Kind::Note),
            subject,
            finding: w.finding,
            impact: w.impact,
            remedy: w.remedy,
            data: w.data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_is_read_as_it_was_written() {
        let names = ["a".to_string(), "b".to_string()];
        let warning = Diagnostic::warning(Kind::Drift, &names, "values rise".into(), "run longer")
            .with("p", 0.001)
            .with("rising", true);
        let json = serde_json::to_value(&warning).expect("plain");
        assert_eq!((&json["kind"], &json["severity"]), (&"drift".into(), &"warning".into()));
        assert_eq!((&json["subject"][1], &json["p"]), (&"b".into(), &0.001.into()));
        assert_eq!(serde_json::from_value::<Diagnostic>(json).expect("back"), warning);
        let note = Diagnostic::note(vec!["a".into()], "busy polling".into());
        let json = serde_json::to_string(&note).expect("plain");
        assert_eq!(serde_json::from_str::<Diagnostic>(&json).expect("back"), note);
    }

    #[test]
    fn diagnostics_of_format_2_are_read() {
        let read = |text| serde_json::from_str::<Diagnostic>(text).expect("read");
        let one = read(
            r#"{"kind": "generator-is-the-limit", "configuration": "a", "percent": 97.0,
            "sentence": "a: 97 %", "remedy": "compare"}"#,
        );
        assert_eq!((one.severity, one.kind), (Severity::Warning, Kind::GeneratorLimited));
        assert_eq!((one.subject, one.data["percent"].as_f64()), (vec!["a".to_string()], Some(97.0)));
        let note = read(r#"{"note": "zero-copy refused", "configurations": ["a", "b"]}"#);
        assert_eq!((note.severity, note.kind, note.subject.len()), (Severity::Note, Kind::Note, 2));
        assert_eq!((note.finding.as_str(), note.remedy), ("zero-copy refused", None));
    }

    #[test]
    fn many_subjects_are_cut_and_counted() {
        let names: Vec<String> = (0..7).map(|i| format!("c{i}")).collect();
        let warning = Diagnostic::warning(Kind::FewRuns, &names, "3 runs, fewer than 5".into(), "more");
        assert_eq!(warning.sentence(), "c0, c1, c2, c3 and 3 more: 3 runs, fewer than 5");
        let whole = Diagnostic::warning(Kind::SmokeValues, &[], "smoke values".into(), "again");
        assert_eq!(whole.sentence(), "smoke values");
    }
}
