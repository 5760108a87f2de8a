//! The sequential test of a gate: how often each answer is given, and after how many blocks.

use weir_stats::gate::{Answer, Better, Block, Question};

use super::draws::{Draws, allowed, documented, percent};

const CASES: usize = 2000;
const MARGIN: f64 = 2.0;
const ALPHA: f64 = 0.05;
const MOST: usize = 40;

/// One gate: its answer and the blocks it took.
fn gate(worse_percent: f64, noise_percent: f64, skewed: bool, draws: &mut Draws) -> (Answer, usize) {
    let question = Question::new(Better::Lower, MARGIN, ALPHA, MOST);
    let mut blocks = Vec::new();
    loop {
        // a neighbour slows a whole block, by far more than runs differ
        let neighbour = (draws.uniform() * 0.4).exp();
        let mut value = |times: f64| {
            let deviation = if skewed { skew(draws) } else { draws.normal() };
            neighbour * times * (deviation * noise_percent / 100.0).exp()
        };
        blocks.push(Block {
            baseline: value(1.0),
            again: value(1.0),
            candidate: value(1.0 + worse_percent / 100.0),
        });
        if let Some(outcome) = question.ask(&blocks) {
            return (outcome.answer, outcome.blocks);
        }
    }
}

/// Mean 0, deviation 1, and a long tail above: an exponential.
fn skew(draws: &mut Draws) -> f64 {
    -draws.uniform().ln() - 1.0
}

#[test]
fn a_gate_is_wrong_no_more_often_than_it_promises() {
    let mut rows = Vec::new();
    for (shape, skewed) in [("normal", false), ("skewed", true)] {
        for noise in [0.5, 1.0, 2.0] {
            for worse in [0.0, 1.0, 2.0, 3.0, 5.0] {
                let mut draws = Draws::new(7000 + (noise * 10.0) as u64 + worse as u64 * 100);
                let mut all: Vec<(Answer, usize)> =
                    (0..CASES).map(|_| gate(worse, noise, skewed, &mut draws)).collect();
                let share = |a: Answer| all.iter().filter(|o| o.0 == a).count() as f64 / CASES as f64;
                let (pass, fail, open) =
                    (share(Answer::NotWorse), share(Answer::Worse), share(Answer::NotShown));
                if worse == 0.0 {
                    assert!(fail <= allowed(ALPHA, CASES), "{shape}, {noise}: called worse {fail}");
                }
                if worse >= MARGIN {
                    assert!(pass <= allowed(ALPHA, CASES), "{shape}, {noise}, {worse}: let pass {pass}");
                }
                all.sort_unstable_by_key(|o| o.1);
                rows.push(format!(
                    "| {shape} | {noise} % | {worse} % | {} | {} | {} | {} |",
                    percent(pass),
                    percent(fail),
                    percent(open),
                    all[CASES / 2].1
                ));
            }
        }
    }
    documented(&rows);
}
