//! The answers of experiments in documents, between markers, each from its newest campaign.
//!
//! ```text
//! <!-- answers NAME … -->            a section an experiment: sentences, tables, where they come from
//! <!-- answers as table NAME … -->   a row an experiment: question, headline, evidence
//! <!-- end of answers -->
//! ```
//!
//! Promises: what stands between markers follows from the raw runs alone; all else in the document stays as it is.
//! Refuses: smoke campaigns unless asked, markers without an end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::manifest::Manifest;
use crate::model::LabError;
use crate::report::answers::{circumstances, headline, whole};
use crate::result::{Results, derive};

const BEGIN: &str = "<!-- answers ";
const CLOSE: &str = "-->";
const END: &str = "<!-- end of answers -->";
const AS_TABLE: [&str; 2] = ["as", "table"];

/// The newest campaign of one experiment.
struct Evidence {
    dir: PathBuf,
    manifest: Manifest,
    results: Results,
}

/// Campaigns in a folder, each experiment's newest; derived when first asked for.
pub struct Campaigns {
    runs: PathBuf,
    newest: BTreeMap<String, (u64, PathBuf)>,
    derived: BTreeMap<String, Evidence>,
}

impl Campaigns {
    /// Finds the newest campaign of each experiment among the folders in `runs`; `quick` takes smoke campaigns too.
    pub fn find(runs: &Path, quick: bool) -> Result<Campaigns, LabError> {
        let entries = fs::read_dir(runs).map_err(|e| {
            LabError::new(format!("{}: {e}; name the folder campaigns are kept in", runs.display()))
        })?;
        let mut newest = BTreeMap::new();
        for dir in entries.flatten().map(|entry| entry.path()).filter(|p| p.join("manifest.json").is_file()) {
            let manifest = Manifest::read(&dir)?;
            let (name, started) = (manifest.experiment.name, manifest.started_unix_ms);
            if manifest.experiment.quick && !quick {
                continue;
            }
            let kept: &mut (u64, PathBuf) = newest.entry(name).or_insert((started, dir.clone()));
            if kept.0 < started {
                *kept = (started, dir);
            }
        }
        Ok(Campaigns { runs: runs.into(), newest, derived: BTreeMap::new() })
    }

    pub fn has(&self, experiment: &str) -> bool {
        self.newest.contains_key(experiment)
    }

    fn of(&mut self, experiment: &str) -> Result<Option<&Evidence>, LabError> {
        let Some((_, dir)) = self.newest.get(experiment) else { return Ok(None) };
        if !self.derived.contains_key(experiment) {
            let (manifest, results) = derive(dir)?;
            let evidence = Evidence { dir: dir.clone(), manifest, results };
            self.derived.insert(experiment.into(), evidence);
        }
        Ok(self.derived.get(experiment))
    }

    /// The document at `path`, whose text is `text`, with everything between markers written anew.
    pub fn fill(&mut self, path: &Path, text: &str) -> Result<String, LabError> {
        let shown = path.display();
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once(BEGIN) {
            let asked =
                behind.split_once(CLOSE).and_then(|(asked, after)| Some((asked, after.split_once(END)?)));
            let Some((asked, (_, after))) = asked else {
                return Err(LabError::new(format!(
                    "{shown}: \"{BEGIN}\" without \"{END}\": write it behind"
                )));
            };
            let inside = self.between(path, asked)?;
            out += &format!("{before}{BEGIN}{asked}{CLOSE}\n\n{inside}\n\n{END}");
            rest = after;
        }
        if out.is_empty() {
            let remedy = "write the two where answers should stand";
            return Err(LabError::new(format!(
                "{shown}: no \"{BEGIN}NAME {CLOSE}\" and \"{END}\": {remedy}"
            )));
        }
        Ok(out + rest)
    }

    fn between(&mut self, path: &Path, asked: &str) -> Result<String, LabError> {
        let words: Vec<&str> = asked.split_whitespace().collect();
        let (as_table, names) = match words.strip_prefix(&AS_TABLE) {
            Some(names) => (true, names),
            None => (false, &words[..]),
        };
        let labs = self.runs.parent().unwrap_or(Path::new("")).join("labs");
        let mut said = Vec::new();
        for name in names {
            let experiment = link(path, &labs.join(format!("{name}.toml")));
            said.push(match (self.of(name)?, as_table) {
                (Some(evidence), true) => evidence.row(path),
                (Some(evidence), false) => evidence.section(path, &experiment),
                (None, true) => format!("| {name} | not measured yet | `labs/{name}.toml` |"),
                (None, false) => format!("Not measured yet: `labs/{name}.toml`."),
            });
        }
        Ok(match as_table {
            true => format!("| question | answer | evidence |\n|---|---|---|\n{}", said.join("\n")),
            false => said.join("\n\n"),
        })
    }
}

impl Evidence {
    fn row(&self, document: &Path) -> String {
        let plain = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let report = link(document, &self.dir.join("report.md"));
        let (question, said) = (&self.results.question, headline(&self.results));
        format!("| {} | {} | [raw runs and report]({report}) |", plain(question), plain(&said))
    }

    fn section(&self, document: &Path, experiment: &str) -> String {
        let report = link(document, &self.dir.join("report.md"));
        let mut out = format!("## {}\n\n{}\n\n", self.results.question, whole(&self.results));
        out += &circumstances(&self.manifest, &self.results).join("\n");
        out += &format!("\n[Raw runs and report]({report}); [experiment]({experiment}).");
        out
    }
}

/// Writes the link from a document to a file, both relative to the same folder or both absolute.
fn link(document: &Path, to: &Path) -> String {
    let plain = |path: &Path| {
        let parts = path.components().filter(|c| *c != Component::CurDir);
        parts.map(|c| c.as_os_str().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let (from, to) = (plain(document.parent().unwrap_or(Path::new(""))), plain(to));
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..".to_string(), from.len() - shared);
    up.chain(to[shared..].iter().cloned()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_the_document_to_the_evidence() {
        let of = |document: &str, to: &str| link(Path::new(document), Path::new(to));
        assert_eq!(of("README.md", "runs/a/report.md"), "runs/a/report.md");
        assert_eq!(of("docs/answers.md", "runs/a/report.md"), "../runs/a/report.md");
        assert_eq!(of("./docs/answers.md", "./runs/a"), "../runs/a");
        assert_eq!(of("/r/docs/answers.md", "/r/runs/a"), "../runs/a");
    }

    #[test]
    fn a_document_keeps_what_stands_outside_its_markers_and_one_without_is_refused() {
        let (runs, newest, derived) = (PathBuf::from("runs"), BTreeMap::new(), BTreeMap::new());
        let mut none = Campaigns { runs, newest, derived };
        let document = |inside: &str| format!("a\n<!-- answers x -->{inside}<!-- end of answers -->\nb\n");
        let filled = none.fill(Path::new("docs/a.md"), &document("old")).expect("markers");
        let said = "\n\nNot measured yet: `labs/x.toml`.\n\n";
        assert_eq!(filled, document(said));
        assert_eq!(none.fill(Path::new("docs/a.md"), &filled).expect("markers"), filled);
        for (text, said) in [("no marker", "no \"<!-- answers NAME"), ("<!-- answers x -->", "without")] {
            let why = none.fill(Path::new("a.md"), text).expect_err(said).said;
            assert!(why.starts_with("a.md: ") && why.contains(said), "{why}");
        }
    }
}
