//! Whether a campaign measured today's code: its commit is in the repository's history, and nothing it measures changed since.
//!
//! `code.toml` beside the campaigns says what each topology measures, which campaigns may be older, and which commits made no
//! difference to what is measured, each with its reason:
//!
//! ```toml
//! except = ["**/tests/**"]              # these never count; patterns of git, as all paths here
//!
//! [files]
//! memory = ["crates/weir-core/src"]     # a topology without an entry measures every file
//!
//! [dated]
//! vpp-forwarding = "VPP takes half an hour to build"
//!
//! [without_effect]
//! 45381a3b = "control groups are read by one function, at start"
//! ```
//!
//! Promises: a build of a changed tree, or of a commit that is not in the history, never passes for today's code.
//! Refuses: a document that quotes a dated campaign without its date, a date that nothing needs, a history that is cut short.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use serde::Deserialize;

use crate::answers::{Campaigns, asks_for, quotes};
use crate::experiment::text::from_toml;
use crate::git::{GitFailed, git};
use crate::manifest::Manifest;
use crate::model::{LabError, Topology};

/// The file beside campaigns that has the rules.
pub const FILE: &str = "code.toml";
/// Digits of a commit that are shown.
const SHORT: usize = 8;
/// Commits that are named.
const NAMED: usize = 3;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    #[serde(default)]
    except: Vec<String>,
    files: HashMap<Topology, Vec<String>>,
    #[serde(default)]
    dated: BTreeMap<String, String>,
    #[serde(default)]
    without_effect: BTreeMap<String, String>,
}

/// A repository's history, and what of it campaigns measure.
#[derive(Debug)]
pub struct Code {
    shown: String,
    top: PathBuf,
    rules: Rules,
}

/// Why a campaign is not one of today's code.
#[derive(Debug)]
pub enum Stale {
    NoCommit,
    ChangedTree(String),
    Missing(String),
    /// What it measures changed in these commits.
    Older {
        commit: String,
        since: Vec<String>,
    },
}

/// Why it cannot be told.
#[derive(Debug)]
pub enum NotTold {
    Rules(LabError),
    /// No repository here, or a part of one.
    NoHistory(String),
}

/// What was found of the campaigns that documents quote.
#[derive(Debug, Default)]
pub struct Found {
    pub refused: Vec<String>,
    /// Quoted with their date.
    pub dated: Vec<String>,
}

impl Code {
    /// The rules in the folder of campaigns and the repository it is in; nothing where there are no rules.
    pub fn beside(runs: &Path) -> Result<Option<Code>, NotTold> {
        let path = runs.join(FILE);
        let shown = path.display().to_string();
        let text = match fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|e| LabError::new(format!("{shown}: {e}")))?,
        };
        let rules = from_toml(&shown, &text)?;
        let no_history = |e: GitFailed| NotTold::NoHistory(e.to_string());
        let top = git(runs, &["rev-parse", "--show-toplevel"]).map_err(no_history)?;
        if git(runs, &["rev-parse", "--is-shallow-repository"]).map_err(no_history)? == "true" {
            return Err(NotTold::NoHistory("the history is cut short; `git fetch --unshallow`".into()));
        }
        let code = Code { shown, top: top.into(), rules };
        match code.rules.without_effect.keys().find(|commit| !code.has(commit)) {
            None => Ok(Some(code)),
            Some(unknown) => {
                let why = "is not in the history of HEAD: correct it or take it out";
                Err(LabError::new(format!("{}: [without_effect]: {unknown} {why}", code.shown)).into())
            }
        }
    }

    /// Whether the history of HEAD has a commit.
    fn has(&self, commit: &str) -> bool {
        git(&self.top, &["merge-base", "--is-ancestor", commit, "HEAD"]).is_ok()
    }

    /// Holds each campaign that documents quote against the history; `documents` are names, and what each is written from.
    pub fn judge(&self, campaigns: &Campaigns, documents: &[(String, String)]) -> Result<Found, NotTold> {
        let mut found = Found::default();
        for (name, dir) in campaigns.newest() {
            let quoting = || documents.iter().filter(|(_, text)| quotes(text, name));
            if quoting().next().is_none() {
                continue;
            }
            let older = match (self.stale(&Manifest::read(dir)?)?, self.rules.dated.get(name)) {
                (None, None) => continue,
                (Some(stale @ Stale::Older { .. }), Some(why)) => format!("{name} {stale}: {why}"),
                (Some(stale), _) => {
                    let remedy = format!("`weir-lab run labs/{name}.toml --into runs` measures it again");
                    found.refused.push(format!("{name} {stale}; {remedy}"));
                    continue;
                }
                (None, Some(_)) => {
                    let shown = &self.shown;
                    found
                        .refused
                        .push(format!("{shown}: [dated]: {name} measured today's code: take it out"));
                    continue;
                }
            };
            for (document, _) in quoting().filter(|(_, text)| !gives_date(text, name)) {
                let remedy = format!("write {{{{{name}: date}}}} beside its values");
                found.refused.push(format!("{document}: {older}; {remedy}"));
            }
            found.dated.push(older);
        }
        Ok(found)
    }

    fn stale(&self, manifest: &Manifest) -> Result<Option<Stale>, NotTold> {
        let commit = &manifest.build.commit;
        if commit.is_empty() {
            return Ok(Some(Stale::NoCommit));
        }
        if let Some(clean) = commit.strip_suffix("+changes") {
            return Ok(Some(Stale::ChangedTree(clean.into())));
        }
        if !self.has(commit) {
            return Ok(Some(Stale::Missing(commit.clone())));
        }
        let since = self.since(manifest, commit)?;
        Ok((!since.is_empty()).then(|| Stale::Older { commit: commit.clone(), since }))
    }

    /// Commits behind `commit` that changed what this campaign measures.
    fn since(&self, manifest: &Manifest, commit: &str) -> Result<Vec<String>, NotTold> {
        let mut asked = HashSet::new();
        let mut since: Vec<String> = Vec::new();
        for planned in &manifest.experiment.configurations {
            let topology = planned.configuration.topology();
            if asked.insert(topology) {
                since.extend(self.changes(topology, commit)?);
            }
        }
        let mut named = HashSet::new();
        since.retain(|changed| named.insert(changed.clone()));
        Ok(since)
    }

    fn changes(&self, topology: Topology, commit: &str) -> Result<Vec<String>, NotTold> {
        let Rules { except, files, without_effect, .. } = &self.rules;
        let every = [".".to_string()];
        let measured = files.get(&topology).map_or(&every[..], Vec::as_slice).iter().cloned();
        let paths: Vec<String> =
            measured.chain(except.iter().map(|path| format!(":(exclude,glob){path}"))).collect();
        let range = format!("{commit}..HEAD");
        let asked = ["log", "--format=%H", &range, "--"].into_iter().chain(paths.iter().map(String::as_str));
        let commits = git(&self.top, &asked.collect::<Vec<_>>());
        let commits = commits.map_err(|e| NotTold::NoHistory(e.to_string()))?;
        let counts = |commit: &&str| !without_effect.keys().any(|known| commit.starts_with(known.as_str()));
        Ok(commits.lines().filter(counts).map(|commit| commit.chars().take(SHORT).collect()).collect())
    }
}

/// Whether a document that quotes values of an experiment gives their date; a section of answers always does.
fn gives_date(text: &str, experiment: &str) -> bool {
    !asks_for(text, experiment, "") || asks_for(text, experiment, "date}}")
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stale::NoCommit => f.write_str("was measured by a build outside a repository"),
            Stale::ChangedTree(commit) => write!(f, "was measured by a build of {commit} with changes"),
            Stale::Missing(commit) => {
                write!(f, "was measured at {commit}, which is not in the history of HEAD")
            }
            Stale::Older { commit, since } => {
                let named = &since[..since.len().min(NAMED)];
                write!(
                    f,
                    "was measured at {commit}; what it measures changed since in {}",
                    named.join(", ")
                )?;
                match since.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

impl fmt::Display for NotTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotTold::Rules(e) => f.write_str(&e.said),
            NotTold::NoHistory(why) => {
                write!(f, "whether campaigns are of today's code needs a clone with its history: {why}")
            }
        }
    }
}

impl std::error::Error for NotTold {}

impl From<LabError> for NotTold {
    fn from(error: LabError) -> NotTold {
        NotTold::Rules(error)
    }
}

impl From<NotTold> for LabError {
    fn from(error: NotTold) -> LabError {
        match error {
            NotTold::Rules(error) => error,
            no_history @ NotTold::NoHistory(_) => LabError::new(no_history.to_string()),
        }
    }
}
