//! The A/A control: the reference of each pair once more in every block, under another name.
//!
//! Promises: a control is the same configuration to the last key; it is judged by the rules of the pairs, as
//! a family of its own, so that asking for it changes no verdict. Refuses: a name that is taken.

use super::Experiment;
use crate::model::LabError;

/// What a control's name adds to its original's.
pub const AGAIN: &str = "~again";

impl Experiment {
    /// Adds a control for every reference, or for the first SUT when nothing is compared.
    pub(super) fn add_controls(&mut self) -> Result<(), LabError> {
        let alone = self.suts().next().filter(|_| self.pairs.is_empty()).map(|c| c.name.clone());
        let mut originals: Vec<String> = self.pairs.iter().map(|(a, _)| a.clone()).chain(alone).collect();
        let mut seen = std::collections::BTreeSet::new();
        originals.retain(|name| seen.insert(name.clone()));
        for name in originals {
            let again = format!("{name}{AGAIN}");
            if self.configurations.iter().any(|p| p.configuration.name == again) {
                return Err(LabError::new(format!(
                    "{}: control: a configuration is named \"{again}\", which names the control of \"{name}\": \
                     give it another name",
                    self.name
                )));
            }
            let original = self.configurations.iter().find(|p| p.configuration.name == name);
            let Some(mut planned) = original.cloned() else { continue };
            planned.configuration.name = again.clone();
            // baselines stay last
            let is_sut = |p: &super::Planned| !p.configuration.is_baseline();
            let end = self.configurations.iter().rposition(is_sut).map_or(0, |i| i + 1);
            self.configurations.insert(end, planned);
            self.controls.push((name, again));
        }
        Ok(())
    }
}
