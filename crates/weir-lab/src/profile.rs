//! Where time goes: call stacks and how often each was seen.
//!
//! ```text
//! perf_event_open ┐                        ┌─► folded text, flame graph
//! perf script     ├─► Profile (root first) ┼─► differential against another profile
//! pmcstat -G      ┘                        └─► breakdown by category
//! ```
//!
//! Frames carry the field's marks: `_[k]` behind a kernel function, `_[i]` behind an inlined one. What has
//! no name stands in brackets: `[idle]`, `[others]`, `[unknown]`, `[libfoo.so]` for code of that file without symbols,
//! `[cut]` for callers further up than the part of the stack that was copied.
//!
//! Promises: a profile says which event it counted, so that a clock standing in for cycles is never read
//! as cycles; no frame holds what separates frames.

mod binary;
pub mod breakdown;
pub mod differential;
pub mod flame;
pub mod folded;
pub mod import;
mod kernel;
mod naming;
pub mod parts;
pub mod profiled;
pub mod rules;
pub mod session;
pub(crate) mod tasks;
mod unwind;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Suffix of a kernel function's name, as stackcollapse-perf writes it.
pub const KERNEL: &str = "_[k]";
/// Suffix of the name of a function inlined into the frame before it.
pub const INLINED: &str = "_[i]";
/// The processor had nothing to do.
pub const IDLE: &str = "[idle]";
/// Work of processes that have nothing to do with the SUT.
pub const OTHERS: &str = "[others]";
/// Callers beyond the part of the stack that was copied.
pub const CUT: &str = "[cut]";
/// Code that belongs to no file known.
pub const UNKNOWN: &str = "[unknown]";
/// Letters of a function's name in a table: two of them and their values fit a terminal of 160.
const SHOWN: usize = 61;

/// Weighted call stacks of one SUT in one run, or of several runs added up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// What a sample stands for: `cycles`, `cpu-clock`, or an imported event's name.
    pub event: String,
    /// Frames root first; inlined frames are frames of their own.
    pub stacks: BTreeMap<Vec<String>, u64>,
    /// Function → the file its code is in (`if_cxgbe.ko`, `libcrypto.so.3`), where the source named it.
    #[serde(default)]
    pub modules: BTreeMap<String, String>,
}

impl Profile {
    pub fn add(&mut self, stack: Vec<String>, samples: u64) {
        let seen = self.stacks.entry(stack).or_default();
        *seen = seen.saturating_add(samples);
    }

    /// Adds what another profile of the same event saw.
    pub fn absorb(&mut self, other: &Profile) {
        for (stack, &samples) in &other.stacks {
            self.add(stack.clone(), samples);
        }
        for (function, module) in &other.modules {
            self.modules.entry(function.clone()).or_insert_with(|| module.clone());
        }
    }

    pub fn samples(&self) -> u64 {
        self.stacks.values().fold(0, |sum, &n| sum.saturating_add(n))
    }

    /// One line a stack, frames joined by `;`, then the count: what flame graph tools read.
    pub fn folded(&self) -> String {
        let line = |(stack, n): (&Vec<String>, &u64)| {
            let frames: Vec<String> = stack.iter().map(|f| folded::frame(f)).collect();
            format!("{} {n}\n", frames.join(";"))
        };
        self.stacks.iter().map(line).collect()
    }
}

/// A frame's function, without its mark.
pub fn function(frame: &str) -> &str {
    [KERNEL, INLINED].iter().find_map(|mark| frame.strip_suffix(mark)).unwrap_or(frame)
}

/// A name that fits a table: the middle of a long one is left out.
pub fn shortened(name: &str) -> String {
    let length = name.chars().count();
    if length <= SHOWN {
        return name.into();
    }
    let half = (SHOWN - 1) / 2;
    name.chars().take(half).chain(['…']).chain(name.chars().skip(length - half)).collect()
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

    #[test]
    fn long_names_keep_their_ends() {
        assert_eq!(shortened("rx"), "rx");
        let long = shortened(&format!("<{}>::poll", "a::".repeat(40)));
        assert_eq!(long.chars().count(), SHOWN);
        assert!(long.starts_with("<a::a::") && long.contains('…') && long.ends_with("a::>::poll"), "{long}");
    }

    #[test]
    fn marks_are_told_from_names() {
        assert_eq!(function("ip_forward_[k]"), "ip_forward");
        assert_eq!(function("lookup_[i]"), "lookup");
        assert_eq!(function("[idle]"), "[idle]");
    }
}
