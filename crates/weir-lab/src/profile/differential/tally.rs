//! Samples of every frame in every part of every recording of both sides.

use std::collections::{BTreeMap, BTreeSet};

use super::{Presence, Side, Total};
use crate::profile::function;
use crate::profile::rules::Rules;

/// The samples of one frame, by side, recording and part.
pub type Samples = [Vec<Vec<u64>>; 2];

/// A frame's samples.
pub struct Counts {
    pub category: String,
    pub own: Samples,
    pub inclusive: Samples,
}

/// Functions of stacks at work, inlined or not; the rest counts only as idle.
pub struct Tally {
    pub frames: BTreeMap<String, Counts>,
    pub all: Samples,
    pub idle: Samples,
}

impl Counts {
    pub fn presence(&self) -> Presence {
        match [0, 1].map(|side| sum(&self.inclusive[side])) {
            [0, _] => Presence::New,
            [_, 0] => Presence::Vanished,
            _ => Presence::Kept,
        }
    }
}

impl Tally {
    pub fn of(before: &Side, after: &Side, rules: &Rules) -> Tally {
        let sides = [before, after];
        let zero: Samples = sides.map(|s| s.recordings.iter().map(|r| vec![0; r.parts.len()]).collect());
        let mut tally = Tally { frames: BTreeMap::new(), all: zero.clone(), idle: zero.clone() };
        for (s, side) in sides.into_iter().enumerate() {
            for (r, recording) in side.recordings.iter().enumerate() {
                for (p, part) in recording.parts.iter().enumerate() {
                    for (stack, &n) in &part.stacks {
                        tally.all[s][r][p] += n;
                        if !rules.is_work(stack) {
                            tally.idle[s][r][p] += n;
                            continue;
                        }
                        // a recursive function is in its stack once
                        for name in stack.iter().map(|f| function(f)).collect::<BTreeSet<_>>() {
                            if !tally.frames.contains_key(name) {
                                let category = rules.category(name, part).to_string();
                                let counts = Counts { category, own: zero.clone(), inclusive: zero.clone() };
                                tally.frames.insert(name.to_string(), counts);
                            }
                            if let Some(counts) = tally.frames.get_mut(name) {
                                counts.inclusive[s][r][p] += n;
                                counts.own[s][r][p] +=
                                    n * u64::from(stack.last().is_some_and(|f| function(f) == name));
                            }
                        }
                    }
                }
            }
        }
        tally
    }

    pub fn total(&self, side: usize) -> Total {
        Total { recordings: self.all[side].len(), samples: sum(&self.all[side]), idle: sum(&self.idle[side]) }
    }

    /// Samples values are shares of: all, or those at work.
    pub fn base(&self, with_idle: bool) -> Samples {
        let mut base = self.all.clone();
        if !with_idle {
            for (base, idle) in base.iter_mut().flatten().flatten().zip(self.idle.iter().flatten().flatten())
            {
                *base -= idle;
            }
        }
        base
    }
}

pub fn sum(recordings: &[Vec<u64>]) -> u64 {
    recordings.iter().flatten().sum()
}
