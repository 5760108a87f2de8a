//! Profiles of other tools: folded stacks, `perf script` text, FreeBSD's `pmcstat -G` graphs.
//!
//! Promises: the form is recognised from the text, every sample of the source is in a stack once, and a
//! malformed line is refused with its number and what was expected. Refuses: a file of no known form, a
//! graph whose callers add up to more than their callee, a profile without samples.

mod perf_script;
mod pmcstat;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Profile;
use super::folded::{self, Header};
use crate::model::LabError;

/// How a profile is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// `root;…;leaf count`, as flame graph tools read it.
    Folded,
    /// What `perf script` prints.
    PerfScript,
    /// What `pmcstat -G` prints.
    PmcstatGraph,
}

/// What was recorded of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// The file it came from.
    pub source: String,
    pub form: Form,
    /// One profile for each CPU where the source tells them apart, otherwise one.
    pub parts: Vec<Profile>,
    /// How it was taken, as far as folded stacks of ours say it.
    pub header: Header,
}

impl Recording {
    pub fn read(path: &Path) -> Result<Recording, LabError> {
        let shown = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|e| LabError::new(format!("{shown}: {e}")))?;
        Recording::parse(&shown, &String::from_utf8_lossy(&bytes))
    }

    /// `shown` is how errors name the text.
    pub fn parse(shown: &str, text: &str) -> Result<Recording, LabError> {
        let refused = |fault: Fault| LabError::new(format!("{shown}:{}: {}", fault.line, fault.message));
        let form = recognise(text).map_err(refused)?;
        let mut header = Header::default();
        let parts = match form {
            Form::Folded => {
                let (found, profile) = folded::read(shown, text)?;
                header = found;
                vec![profile]
            }
            Form::PerfScript => perf_script::parse(text).map_err(refused)?,
            Form::PmcstatGraph => pmcstat::parse(text).map_err(refused)?,
        };
        if parts.iter().all(|p| p.samples() == 0) {
            return Err(LabError::new(format!("{shown}: no samples; was the profiler running under load?")));
        }
        Ok(Recording { source: shown.into(), form, parts, header })
    }

    pub fn samples(&self) -> u64 {
        self.parts.iter().map(Profile::samples).sum()
    }

    /// All parts added up.
    pub fn whole(&self) -> Profile {
        let event = self.parts.first().map(|p| p.event.clone()).unwrap_or_default();
        let mut whole = Profile { event, ..Profile::default() };
        self.parts.iter().for_each(|part| whole.absorb(part));
        whole
    }
}

/// What is wrong, and where.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    /// Number of the line, from 1.
    line: usize,
    message: String,
}

/// The form of the first line that holds data.
fn recognise(text: &str) -> Result<Form, Fault> {
    let first = text.lines().zip(1..).find(|(l, _)| !l.trim().is_empty() && !l.starts_with('#'));
    let Some((line, number)) = first else {
        return Err(Fault {
            line: 1,
            message: "no samples in it; was the profiler running under load?".into(),
        });
    };
    if line.starts_with("@ ") && line.ends_with(" samples]") {
        return Ok(Form::PmcstatGraph);
    }
    if perf_script::is_head(line) {
        return Ok(Form::PerfScript);
    }
    if line.trim_end().rsplit_once(' ').is_some_and(|(_, count)| count.parse::<u64>().is_ok()) {
        return Ok(Form::Folded);
    }
    Err(Fault {
        line: number,
        message: format!(
            "`{}` opens no profile known here; folded stacks (`main;rx 12`), the output of `perf script` and \
             of `pmcstat -G` are read",
            line.chars().take(60).collect::<String>()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_form_is_recognised_from_its_first_line_of_data() {
        let form = |text: &str| Recording::parse("x", text).map(|r| r.form).map_err(|e| e.said);
        assert_eq!(form("# event: cycles\nmain;rx 12\n"), Ok(Form::Folded));
        assert_eq!(
            form("@ cycles [2 samples]\n\n100.0%  [2]  rx @ /boot/kernel/kernel\n"),
            Ok(Form::PmcstatGraph)
        );
        assert_eq!(
            form("weir 7 [001] 1.5: 250000 cpu-clock:pppH: \n\t  55 rx+0x1 (/usr/bin/weir)\n\n"),
            Ok(Form::PerfScript)
        );
    }

    #[test]
    fn what_is_no_profile_is_refused_with_what_would_be() {
        let error = Recording::parse("x.txt", "\nhello there\n").expect_err("not a profile").said;
        assert!(
            error.starts_with("x.txt:2: `hello there` opens no profile") && error.contains("pmcstat -G"),
            "{error}"
        );
        assert!(Recording::parse("x", "").expect_err("empty").said.contains("no samples"));
        for empty in ["@ cycles [0 samples]\n", "a;b 0\na;c 0\n"] {
            assert!(Recording::parse("x", empty).expect_err("empty").said.contains("no samples"), "{empty}");
        }
    }

    #[test]
    fn counts_beyond_what_a_number_holds_stay_at_its_most() {
        let most = Recording::parse("x", &format!("a;b {0}\na;b 1\na;c 1\n", u64::MAX)).expect("folded");
        assert_eq!(most.samples(), u64::MAX);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            head in "(@ cycles \\[[0-9]{1,3} samples\\]|w 7 \\[001\\] 1\\.5: 9 cycles: |a;b 3|\\PC{0,20})",
            lines in proptest::collection::vec(
                "( {0,4}[0-9]{1,3}\\.[0-9]%  \\[[0-9]{1,3}\\]  [a-z]( @ /x)?|\\t[0-9a-f]{1,16} f\\+0x1 \\(x\\)|a;b [0-9]|\\PC{0,30}|)",
                0..12,
            ),
        ) {
            let text = format!("{head}\n{}", lines.join("\n"));
            match Recording::parse("x", &text) {
                Ok(recording) => prop_assert!(recording.samples() > 0),
                Err(refused) => prop_assert!(refused.said.starts_with("x:"), "{}", refused.said),
            }
        }
    }
}
