//! Where time goes: call stacks and how often each was seen.
//!
//! ```text
//! perf_event_open ┐                        ┌─► folded text, flame graph
//! perf script     ├─► Profile (root first) ┼─► differential against another profile
//! pmcstat -G      ┘                        └─► breakdown by category
//! ```
//!
//! Promises: a profile says which event it counted, so that a clock standing in for cycles is never read
//! as cycles.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Weighted call stacks of one subject in one run, or of several runs added up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// What a sample stands for: `cycles`, `cpu-clock`, or an imported event's name.
    pub event: String,
    /// Frames root first; inlined frames are frames of their own.
    pub stacks: BTreeMap<Vec<String>, u64>,
}

impl Profile {
    pub fn add(&mut self, stack: Vec<String>, samples: u64) {
        *self.stacks.entry(stack).or_default() += samples;
    }

    pub fn samples(&self) -> u64 {
        self.stacks.values().sum()
    }

    /// One line a stack, frames joined by `;`, then the count: what flame graph tools read.
    pub fn folded(&self) -> String {
        self.stacks.iter().map(|(stack, n)| format!("{} {n}\n", stack.join(";"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_add_up_into_one_folded_line() {
        let mut profile = Profile { event: "cpu-clock".into(), ..Profile::default() };
        for stack in [["main", "rx"], ["main", "tx"], ["main", "rx"]] {
            profile.add(stack.map(String::from).to_vec(), 2);
        }
        assert_eq!(profile.folded(), "main;rx 4\nmain;tx 2\n");
        assert_eq!(profile.samples(), 6);
    }
}
