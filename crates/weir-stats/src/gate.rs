//! Whether a change made something worse, asked while runs come in: a sequential test that ends early.
//!
//! A block is one value of the candidate and two of the baseline, measured next to each other. Its candidate is judged
//! against the mean of both baselines (in logarithms), and the second baseline against the first: the A/A control.
//! Blocks are looked at a few times, and the allowed error is shared out among the looks (Bonferroni), so that looking
//! early costs power and never the promise:
//!
//! - nothing is worse, and [`Answer::Worse`] is said: at most `alpha`;
//! - it is worse by the margin or more, and [`Answer::NotWorse`] is said: at most `alpha`.
//!
//! Refuses: to say either while an interval reaches both ways.

use serde::{Deserialize, Serialize};

use crate::student::{of_differences, quantile};
use crate::summary::mean;

/// The control is taken for broken below this p.
pub const CONTROL_ALPHA: f64 = 0.01;
/// Blocks of the first look.
const FIRST: usize = 6;
/// Each look has so many blocks as the one before, in tenths.
const STEP: usize = 15;

/// Which direction of a value is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    Lower,
    Higher,
}

/// Values measured next to each other, all above 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    pub baseline: f64,
    /// The baseline once more.
    pub again: f64,
    pub candidate: f64,
}

impl Block {
    fn change(self, better: Better) -> f64 {
        let change = self.candidate.ln() - (self.baseline.ln() + self.again.ln()) / 2.0;
        if better == Better::Lower { change } else { -change }
    }

    fn control(self) -> f64 {
        self.again.ln() - self.baseline.ln()
    }
}

/// What is asked, declared before a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    pub better: Better,
    /// Worse by less than this is let pass, in percent; above 0.
    pub margin_percent: f64,
    /// Chance of each wrong answer over all looks.
    pub alpha: f64,
    /// Blocks at which the answer is looked for, rising; the last is where measuring ends.
    pub looks: Vec<usize>,
}

impl Question {
    /// Looks after 6 blocks, 9, 13, …, and after `most`, which is at least 6.
    pub fn new(better: Better, margin_percent: f64, alpha: f64, most: usize) -> Question {
        let mut looks = Vec::new();
        let mut next = FIRST;
        // a last look shortly behind another would only cost both of them power
        while next * 12 <= most * 10 {
            looks.push(next);
            next = next * STEP / 10;
        }
        looks.push(most.max(FIRST));
        Question { better, margin_percent, alpha, looks }
    }

    /// Blocks until measuring ends, answer or not.
    pub fn most(&self) -> usize {
        self.looks.last().copied().unwrap_or(FIRST)
    }

    /// The answer after these blocks. `None` between two looks, and where more blocks may still bring one.
    pub fn ask(&self, blocks: &[Block]) -> Option<Outcome> {
        if !self.looks.contains(&blocks.len()) {
            return None;
        }
        let outcome = self.so_far(blocks)?;
        let last = blocks.len() >= self.most();
        (last || !matches!(outcome.answer, Answer::NotShown)).then_some(outcome)
    }

    /// What these blocks say, whether a look is due or not. `None` below two blocks.
    pub fn so_far(&self, blocks: &[Block]) -> Option<Outcome> {
        if blocks.len() < 2 {
            return None;
        }
        let changes: Vec<f64> = blocks.iter().map(|b| b.change(self.better)).collect();
        let controls: Vec<f64> = blocks.iter().map(|b| b.control()).collect();
        let worse = self.interval(&changes);
        let (control, control_p) = (self.interval(&controls), of_differences(&controls).map(|t| t.p));
        let margin = (1.0 + self.margin_percent / 100.0).ln();
        let answer = if worse.high < margin {
            Answer::NotWorse
        } else if worse.low > 0.0 && worse.estimate >= margin {
            Answer::Worse
        } else {
            Answer::NotShown
        };
        let broken = control_p.is_some_and(|p| p < CONTROL_ALPHA);
        Some(Outcome {
            // what differs from itself proves nothing about others
            answer: if broken { Answer::NotShown } else { answer },
            blocks: blocks.len(),
            worse_percent: worse.percent(),
            control_percent: control.percent(),
            control_p,
            control_differs: broken,
        })
    }

    /// The interval each of the looks may use.
    fn interval(&self, values: &[f64]) -> Interval {
        let estimate = mean(values);
        // values without spread have an interval without width: they are what they are
        let half = of_differences(values).map_or(0.0, |t| {
            let alpha = self.alpha / self.looks.len().max(1) as f64;
            quantile(1.0 - alpha, t.degrees_of_freedom) * t.standard_error
        });
        Interval { low: estimate - half, estimate, high: estimate + half }
    }
}

/// In logarithms.
struct Interval {
    low: f64,
    estimate: f64,
    high: f64,
}

impl Interval {
    fn percent(&self) -> Span {
        let percent = |log: f64| log.exp_m1() * 100.0;
        Span { low: percent(self.low), estimate: percent(self.estimate), high: percent(self.high) }
    }
}

/// An estimate and its interval, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub low: f64,
    pub estimate: f64,
    pub high: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Better, the same, or worse by less than the margin.
    NotWorse,
    /// Worse, and by the margin or more as far as can be told.
    Worse,
    /// Neither is shown.
    NotShown,
}

/// What blocks said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub answer: Answer,
    pub blocks: usize,
    /// How much worse the candidate is: below 0 it is better.
    pub worse_percent: Span,
    /// How much the baseline differs from itself.
    pub control_percent: Span,
    /// Two-sided, of the control alone; `None` without spread.
    pub control_p: Option<f64>,
    /// The baseline differs from itself: no answer is given.
    pub control_differs: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(better: Better) -> Question {
        Question::new(better, 2.0, 0.05, 40)
    }

    /// Blocks whose values lie a little around their means, and no two differences alike.
    fn blocks(n: usize, candidate: f64) -> Vec<Block> {
        let around = |i: usize, step: usize| 1.0 + ((i * step) % 7) as f64 / 1000.0;
        (0..n)
            .map(|i| Block {
                baseline: 100.0 * around(i, 3),
                again: 100.0 * around(i + 2, 5),
                candidate: candidate * around(i, 2),
            })
            .collect()
    }

    #[test]
    fn looks_rise_to_the_last_and_none_is_close_to_it() {
        assert_eq!(Question::new(Better::Lower, 2.0, 0.05, 40).looks, [6, 9, 13, 19, 28, 40]);
        assert_eq!(Question::new(Better::Lower, 2.0, 0.05, 10).looks, [6, 10]);
        assert_eq!(Question::new(Better::Lower, 2.0, 0.05, 7).looks, [7]);
        assert_eq!(Question::new(Better::Lower, 2.0, 0.05, 0).looks, [6], "fewer say nothing");
        for most in 6..300 {
            let looks = Question::new(Better::Lower, 2.0, 0.05, most).looks;
            assert!(looks.windows(2).all(|w| w[0] < w[1]) && looks.last() == Some(&most), "{looks:?}");
        }
    }

    #[test]
    fn a_slower_candidate_is_worse_and_a_higher_rate_is_better() {
        let slower = blocks(6, 110.0);
        let answer = |better| question(better).ask(&slower).map(|o| o.answer);
        assert_eq!(answer(Better::Lower), Some(Answer::Worse));
        assert_eq!(answer(Better::Higher), Some(Answer::NotWorse));
        let span = question(Better::Lower).ask(&slower).expect("a look").worse_percent;
        assert!(span.low < span.estimate && (9.5..10.5).contains(&span.estimate), "{span:?}");
    }

    #[test]
    fn the_same_is_not_worse_and_less_than_the_margin_is_let_pass() {
        for candidate in [100.0, 100.8] {
            let outcome = question(Better::Lower).ask(&blocks(6, candidate)).expect("a look");
            assert_eq!(outcome.answer, Answer::NotWorse, "{outcome:?}");
        }
    }

    #[test]
    fn between_looks_nothing_is_said_and_at_the_last_always_something() {
        let q = question(Better::Lower);
        assert_eq!(q.ask(&blocks(7, 110.0)), None);
        assert!(q.so_far(&blocks(7, 110.0)).is_some());
        assert_eq!(q.so_far(&blocks(1, 110.0)), None);
        // just at the margin: no number of blocks shows either
        assert_eq!(q.ask(&blocks(28, 102.0)), None);
        assert_eq!(q.ask(&blocks(40, 102.0)).map(|o| o.answer), Some(Answer::NotShown));
    }

    #[test]
    fn a_baseline_that_differs_from_itself_gives_no_answer() {
        let mut drifting = blocks(40, 120.0);
        drifting.iter_mut().for_each(|b| b.again *= 1.05);
        let outcome = question(Better::Lower).ask(&drifting).expect("the last look");
        assert!(outcome.control_differs && outcome.control_p < Some(CONTROL_ALPHA));
        assert_eq!(outcome.answer, Answer::NotShown);
    }

    #[test]
    fn values_without_spread_are_what_they_are() {
        let equal = |candidate| vec![Block { baseline: 5.0, again: 5.0, candidate }; 6];
        let answer = |candidate| question(Better::Lower).ask(&equal(candidate)).map(|o| o.answer);
        assert_eq!(answer(5.0), Some(Answer::NotWorse));
        assert_eq!(answer(6.0), Some(Answer::Worse));
    }
}
