//! Rules that came or went lately: whether what was cached under an earlier epoch is still right.
//!
//! ```text
//! epochs   7 ──────► 9 ──────────► 12 ──────────► 13 now
//! steps      came a     went b, c       came d        an answer of 9 holds if none of b, c, d concerns its flow
//! ```
//!
//! Promises: [`Recent::holds`] says yes only where the ordered scan of both epochs' rules has the same answer. A rule
//! that came concerns a flow it matches; one that went, if besides it is of the policy that was the answer:
//! taking out another leaves the first that matches where it was. Refuses to say anything about epochs it has
//! no unbroken record of: epochs are compared for being the same and never for which is later, so that no other SPD's
//! epoch is taken for one of these. At most [`STEPS`] steps and [`RULES`] rules of each family are kept, and so many
//! comparisons are what a packet pays at the most.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::rules::{range4, range6};
use super::scan::Rule;
use super::{Flow, PolicyIndex, Selector};
use crate::ipsec::flow_cache::NO_EPOCH;

/// Steps kept: a flow that is asked about once in so many changes need not be looked up anew.
pub const STEPS: usize = 32;
/// Rules kept of each family: comparing with all of them takes about as long as a lookup.
pub const RULES: usize = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    /// Where the last step led.
    epoch: u64,
    /// The oldest first, and so are rules.
    steps: VecDeque<Step>,
    v4: VecDeque<Change<u32>>,
    v6: VecDeque<Change<u128>>,
}

/// What changed from one epoch to the next.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: u64,
    /// Rules of each family that changed.
    v4: usize,
    v6: usize,
}

#[derive(Clone, Debug)]
struct Change<A> {
    came: bool,
    rule: Rule<A>,
}

impl Recent {
    /// Rules of epoch `from` became those of `to` by these that came (`true`) or went, and by nothing else.
    pub fn record<'a>(
        &mut self,
        (from, to): (u64, u64),
        changes: impl IntoIterator<Item = (bool, &'a Selector, PolicyIndex)>,
    ) {
        if self.epoch != from || from == NO_EPOCH {
            self.clear();
        }
        self.epoch = to;
        let mut step = Step { from, v4: 0, v6: 0 };
        for (came, selector, policy) in changes {
            if let (Some(s), Some(d)) = (range4(selector.source), range4(selector.destination)) {
                self.v4.push_back(Change { came, rule: Rule::new(selector, s, d, policy) });
                step.v4 += 1;
            } else if let (Some(s), Some(d)) = (range6(selector.source), range6(selector.destination)) {
                self.v6.push_back(Change { came, rule: Rule::new(selector, s, d, policy) });
                step.v6 += 1;
            }
            if step.v4.max(step.v6) > RULES {
                return self.clear();
            }
        }
        self.steps.push_back(step);
        while self.steps.len() > STEPS || self.v4.len().max(self.v6.len()) > RULES {
            let Some(oldest) = self.steps.pop_front() else { break };
            (0..oldest.v4).for_each(|_| _ = self.v4.pop_front());
            (0..oldest.v6).for_each(|_| _ = self.v6.pop_front());
        }
    }

    /// Whether `answer`, learnt about a flow by the rules of epoch `then`, is that of the rules of `now`.
    pub fn holds(&self, (then, now): (u64, u64), flow: &Flow, answer: Option<PolicyIndex>) -> bool {
        if self.epoch != now || then == NO_EPOCH {
            return false;
        }
        let (mut v4, mut v6) = (0, 0);
        let known = self.steps.iter().rev().any(|step| {
            (v4, v6) = (v4 + step.v4, v6 + step.v6);
            step.from == then
        });
        known
            && match (flow.source, flow.destination) {
                (IpAddr::V4(s), IpAddr::V4(d)) => {
                    let (s, d) = (s.to_bits(), d.to_bits());
                    !self.v4.iter().rev().take(v4).any(|change| change.concerns(s, d, flow, answer))
                }
                (IpAddr::V6(s), IpAddr::V6(d)) => {
                    let (s, d) = (s.to_bits(), d.to_bits());
                    !self.v6.iter().rev().take(v6).any(|change| change.concerns(s, d, flow, answer))
                }
                _ => false,
            }
    }

    pub fn memory(&self) -> usize {
        self.steps.capacity() * size_of::<Step>()
            + self.v4.capacity() * size_of::<Change<u32>>()
            + self.v6.capacity() * size_of::<Change<u128>>()
    }

    fn clear(&mut self) {
        self.steps.clear();
        self.v4.clear();
        self.v6.clear();
    }
}

impl<A: Copy + PartialOrd> Change<A> {
    #[inline]
    fn concerns(&self, source: A, destination: A, flow: &Flow, answer: Option<PolicyIndex>) -> bool {
        (self.came || Some(self.rule.policy) == answer) && self.rule.matches(source, destination, flow)
    }
}
