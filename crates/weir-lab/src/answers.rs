//! The values of experiments in documents, each from its newest campaign.
//!
//! ```text
//! <!-- answers NAME … -->            a section an experiment: sentences, tables, where they come from
//! <!-- answers as table NAME … -->   a row an experiment: question, headline, evidence
//! <!-- end of answers -->
//!
//! {{NAME: ratio a b}}                one value in three digits, by the placeholders of answers
//! {{NAME: report}}                   the way to its report; `answer` is its headline, `cpu`, `machine`, `date` and `blocks` say of what it is
//! ```
//!
//! Markers stand in the document itself. Values in double braces stand in a file beside it, `benchmarks.md.in` of
//! `benchmarks.md`, which the document is written from as a whole.
//!
//! Promises: what is filled in follows from the raw runs alone; all else in the document stays as it is.
//! Refuses: smoke campaigns unless asked, markers without an end, a value of nothing that was measured.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::{fmt, fs};

use crate::experiment::answer::{KNOWN, Placeholder};
use crate::machine::utc;
use crate::manifest::Manifest;
use crate::model::LabError;
use crate::report::answers::{circumstances, headline, whole};
use crate::result::answers::brief;
use crate::result::{Results, derive_with_runs};
use crate::store::read::Runs;

const BEGIN: &str = "<!-- answers ";
const CLOSE: &str = "-->";
const END: &str = "<!-- end of answers -->";
const OPEN: &str = "{{";
const SHUT: &str = "}}";
const AS_TABLE: [&str; 2] = ["as", "table"];

/// The newest campaign of one experiment.
struct Evidence {
    dir: PathBuf,
    manifest: Manifest,
    results: Results,
    runs: Runs,
}

/// Why a value in double braces cannot be filled in.
enum Unfilled {
    NoValue,
    NoRuns,
}

impl fmt::Display for Unfilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfilled::NoValue => write!(f, "is none of {KNOWN}; answer; report; cpu; machine; date; blocks"),
            Unfilled::NoRuns => {
                f.write_str("no run of the campaign has it: correct the configuration or the metric")
            }
        }
    }
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

    /// The folder of each experiment's newest campaign, by the experiment's name.
    pub fn newest(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.newest.iter().map(|(name, (_, dir))| (name.as_str(), dir.as_path()))
    }

    fn of(&mut self, experiment: &str) -> Result<Option<&Evidence>, LabError> {
        let Some((_, dir)) = self.newest.get(experiment) else { return Ok(None) };
        if !self.derived.contains_key(experiment) {
            let (manifest, results, runs) = derive_with_runs(dir)?;
            let evidence = Evidence { dir: dir.clone(), manifest, results, runs };
            self.derived.insert(experiment.into(), evidence);
        }
        Ok(self.derived.get(experiment))
    }

    /// The document at `path`, written from `text`: its own, or that of the file beside it.
    pub fn fill(&mut self, path: &Path, text: &str) -> Result<String, LabError> {
        let shown = path.display();
        if !text.contains(BEGIN) && !text.contains(OPEN) {
            return Err(LabError::new(format!(
                "{shown}: no \"{BEGIN}NAME {CLOSE}\" and \"{END}\": write the two where answers should stand"
            )));
        }
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
            let (before, inside) = (self.values(path, before)?, self.between(path, asked)?);
            out += &format!("{before}{BEGIN}{asked}{CLOSE}\n\n{inside}\n\n{END}");
            rest = after;
        }
        Ok(out + &self.values(path, rest)?)
    }

    /// The text with each value in double braces filled in, line by line: a line that gives the verdict on a ratio has it once.
    fn values(&mut self, path: &Path, text: &str) -> Result<String, LabError> {
        text.split_inclusive('\n').map(|line| self.line(path, line)).collect()
    }

    fn line(&mut self, path: &Path, line: &str) -> Result<String, LabError> {
        let wrong = |why: &str| LabError::new(format!("{}: {OPEN}{why}", path.display()));
        let judged = verdicts(line);
        let mut out = String::new();
        let mut rest = line;
        while let Some((before, behind)) = rest.split_once(OPEN) {
            let (asked, after) =
                behind.split_once(SHUT).ok_or_else(|| wrong(" without }}: write it behind"))?;
            let (name, value) = asked
                .split_once(": ")
                .ok_or_else(|| wrong(&format!("{asked}{SHUT}: write NAME: and a value")))?;
            let evidence = self.of(name)?.ok_or_else(|| {
                wrong(&format!(
                    "{asked}{SHUT}: {name} was not measured; `weir-lab run labs/{name}.toml` does"
                ))
            })?;
            let said = evidence.value(path, value, &judged);
            out += &format!("{before}{}", said.map_err(|why| wrong(&format!("{asked}{SHUT}: {why}")))?);
            rest = after;
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
    /// What a value in double braces stands for: a dash where a configuration of it was left out.
    fn value(&self, document: &Path, asked: &str, judged: &[[String; 2]]) -> Result<String, Unfilled> {
        let Manifest { machine, experiment, skipped, .. } = &self.manifest;
        Ok(match asked {
            "answer" => headline(&self.results),
            "report" => link(document, &self.dir.join("report.md")),
            "cpu" => machine.cpu.clone(),
            "machine" => format!("{}, {} CPUs, Linux {}", machine.cpu, machine.threads, machine.kernel),
            "date" => utc(self.manifest.started_unix_ms).split(' ').next().unwrap_or_default().into(),
            "blocks" => experiment.runs.to_string(),
            _ => {
                let value = Placeholder::parse(asked).ok_or(Unfilled::NoValue)?;
                let left_out = value.names().iter().any(|name| skipped.contains_key(*name));
                match brief(&self.manifest, &self.results, &self.runs, (&value, judged)) {
                    Some(said) => said,
                    None if left_out => "–".into(),
                    None => return Err(Unfilled::NoRuns),
                }
            }
        })
    }

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

/// The pairs whose verdict a line of a document gives.
fn verdicts(line: &str) -> Vec<[String; 2]> {
    let asked = line.split(OPEN).skip(1).filter_map(|behind| behind.split_once(SHUT));
    let values = asked.filter_map(|(asked, _)| Placeholder::parse(asked.split_once(": ")?.1));
    values.filter_map(Placeholder::judges).collect()
}

/// Whether a text has a value in double braces of an experiment that begins so.
pub fn asks_for(text: &str, experiment: &str, value: &str) -> bool {
    text.contains(&format!("{OPEN}{experiment}: {value}"))
}

/// Whether a text has values of an experiment, or a section.
pub fn quotes(text: &str, experiment: &str) -> bool {
    let mut marked = text.split(BEGIN).skip(1).filter_map(|behind| behind.split_once(CLOSE));
    asks_for(text, experiment, "")
        || marked.any(|(names, _)| names.split_whitespace().any(|n| n == experiment))
}

/// What the document at this path is written from: the file beside it with `.in` behind its name, or itself.
pub fn source(document: &Path) -> std::io::Result<String> {
    let mut beside = document.as_os_str().to_owned();
    beside.push(".in");
    match fs::read_to_string(beside) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => fs::read_to_string(document),
        read => read,
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
