//! Sets and maps searched for what a register holds, and comparisons that may be inverted.
//!
//! Promises: an element is found for sure only where every bit of the register is known. Refuses: ranges, which may hold a key or not.

use super::packet::Registers;
use crate::wire::nftables::{Element, Register, Set, Truth, Verdict};

/// What a set has for a register.
pub(super) struct Found {
    pub truth: Truth,
    /// A verdict map's that may be found.
    pub verdicts: Vec<Verdict>,
}

impl Found {
    pub fn among(set: &Set, elements: &[&Element], from: Register, registers: &Registers) -> Found {
        let mut found = Found { truth: Truth::Never, verdicts: Vec::new() };
        for element in elements {
            let truth = match &element.key {
                // The key is the begin of a range, and its end another element.
                Some(key) if set.interval || key.len() != set.key_length => Truth::Unknown,
                Some(key) => registers.equal(from, key),
                None => Truth::Unknown,
            };
            match truth {
                Truth::Never => continue,
                Truth::Always => {
                    return Found { truth, verdicts: element.verdict.iter().cloned().collect() };
                }
                Truth::Unknown => found.truth = Truth::Unknown,
            }
            found.verdicts.extend(element.verdict.clone());
        }
        found
    }
}

pub(super) fn inverted(truth: Truth, not: bool) -> Truth {
    match (truth, not) {
        (Truth::Always, true) => Truth::Never,
        (Truth::Never, true) => Truth::Always,
        (truth, _) => truth,
    }
}
