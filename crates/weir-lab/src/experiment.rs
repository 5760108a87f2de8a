//! An experiment: what is compared, under which traffic, how often, with which verdict.
//!
//! ```text
//! labs/x.toml ─► File (checked, line:column) ─► quick values ─► expanded configurations ─► Experiment
//! ```
//!
//! Promises: a malformed file is refused whole, with the line and column, what was expected and what to
//! write instead; what cannot run here is kept, with the reason. Refuses: two configurations of one name.

pub mod answer;
pub mod control;
pub mod error;
mod expand;
mod file;
mod findings;
pub mod hosts;
mod ipsec;
mod method;
pub mod metric;
mod placement;
mod relay;
pub mod schema;
mod slices;
pub(crate) mod text;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::method::Method;
pub use crate::model::kebab;
use crate::model::{Configuration, LabError};
use answer::AnswerSpec;
use error::{Location, Refused};
pub use expand::frame_label;
pub use file::Axis;
use hosts::{Commands, Hosts};
pub use metric::Metric;
pub use slices::Slicing;
use weir_stats::Analysis;

/// Everything an experiment is, after expansion. Written into the manifest, so that a report can be
/// derived without the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// The file's name without `.toml`.
    pub name: String,
    pub title: String,
    /// One sentence.
    pub question: String,
    pub metric: Metric,
    /// Blocks: every configuration runs once in each.
    pub runs: usize,
    pub warm_up_ms: u64,
    pub window_ms: u64,
    /// How many slices a run is cut into, in turn with those it is compared with; whole without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<usize>,
    /// What one run is. Manifests from before it could be chosen have none: it was one trial.
    #[serde(default)]
    pub method: Method,
    /// Differences below this share of the reference count as none.
    pub margin_percent: f64,
    /// The test that decides. Manifests from before it could be chosen have none: it was Welch's.
    #[serde(default)]
    pub analysis: Analysis,
    /// Profiled runs a configuration, after the measured ones and never among the values.
    #[serde(default)]
    pub profile: usize,
    /// The smoke values were used.
    pub quick: bool,
    /// What a plot has along its bottom.
    pub axis: Option<Axis>,
    /// (reference, other), by name.
    pub pairs: Vec<(String, String)>,
    /// (configuration, the same again), by name.
    #[serde(default)]
    pub controls: Vec<(String, String)>,
    pub configurations: Vec<Planned>,
    /// The hosts of the `ssh` topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Hosts>,
    /// The commands of SUTs `command`, by configuration.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub commands: BTreeMap<String, Commands>,
    /// What is said of the values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<AnswerSpec>,
}

/// A configuration, and why it cannot run here if the file already shows that it cannot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    #[serde(flatten)]
    pub configuration: Configuration,
    pub missing: Option<String>,
}

/// What the command line changes.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub quick: bool,
    pub runs: Option<usize>,
    pub profile: Option<usize>,
    /// Names or patterns with `*`; empty keeps all.
    pub only: Vec<String>,
    /// Measure the reference of each pair twice, whatever the file says.
    pub control: bool,
}

impl Experiment {
    pub fn load(path: &Path, changes: &Changes) -> Result<Experiment, LabError> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            LabError::new(format!(
                "{}: {e}; `weir-lab run --list` names the experiments, `weir-lab new NAME` writes one",
                path.display()
            ))
        })?;
        let name = path.file_stem().map_or("experiment".into(), |s| s.to_string_lossy().into_owned());
        Experiment::parse(&name, &path.display().to_string(), &text, changes)
    }

    /// `shown` is how errors name the file.
    pub fn parse(name: &str, shown: &str, text: &str, changes: &Changes) -> Result<Experiment, LabError> {
        let read = Experiment::read(name, shown, text, changes.quick);
        let (mut experiment, control) = read.map_err(|first| findings::told(first, shown, text))?;
        if let Some(runs) = changes.runs {
            experiment.runs = runs;
        }
        if let Some(profile) = changes.profile {
            experiment.profile = profile;
        }
        experiment.keep_only(&changes.only)?;
        if control || changes.control {
            experiment.add_controls()?;
        }
        Ok(experiment)
    }

    /// What the file says, and whether it asks for a control.
    fn read(name: &str, shown: &str, text: &str, quick: bool) -> Result<(Experiment, bool), Refused> {
        let file = file::parse(shown, text)?;
        let control = file.control;
        let locate = |span, error| {
            let location = Location::of(shown, text, Some(span));
            Refused { location: Some(location), error: Box::new(error) }
        };
        Ok((expand::expand(name, file, quick, &locate)?, control))
    }

    /// Estimates how long all runs take; setting up comes on top.
    pub fn length(&self) -> Duration {
        let [mut warm_up, window] = [self.warm_up_ms, self.window_ms].map(|ms| ms as f64 / 1e3);
        if let Some(cut) = self.slicing() {
            warm_up = cut.warm_up.as_secs_f64() * cut.slices as f64;
        }
        let runs = (self.configurations.len() * self.runs) as f64;
        let profiled = (self.suts().count() * self.profile) as f64;
        Duration::from_secs_f64(runs * self.method.seconds(warm_up, window) + profiled * (warm_up + window))
    }

    /// The configurations that name a SUT (baselines aside).
    pub fn suts(&self) -> impl Iterator<Item = &Configuration> {
        self.configurations.iter().map(|p| &p.configuration).filter(|c| !c.is_baseline())
    }

    /// The baseline that belongs to a configuration: same topology, same traffic.
    pub fn baseline_of(&self, configuration: &Configuration) -> Option<&Configuration> {
        self.configurations
            .iter()
            .map(|p| &p.configuration)
            .find(|c| c.is_baseline() && !configuration.is_baseline() && expand::same_load(c, configuration))
    }

    fn keep_only(&mut self, patterns: &[String]) -> Result<(), LabError> {
        if patterns.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = self.configurations.iter().map(|p| p.configuration.name.clone()).collect();
        if let Some(lost) = patterns.iter().find(|p| !names.iter().any(|n| text::matches(p, n))) {
            return Err(LabError::new(format!(
                "--only {lost}: no configuration of that name; there are {}",
                names.join(", ")
            )));
        }
        let chosen = |name: &str| patterns.iter().any(|p| text::matches(p, name));
        let kept: Vec<Configuration> = self.suts().filter(|c| chosen(&c.name)).cloned().collect();
        self.configurations.retain(|p| {
            let c = &p.configuration;
            let needed = c.is_baseline() && kept.iter().any(|k| expand::same_load(c, k));
            chosen(&c.name) || needed
        });
        self.pairs.retain(|(a, b)| chosen(a) && chosen(b));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
