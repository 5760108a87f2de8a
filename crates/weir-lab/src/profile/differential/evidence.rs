//! How sure a frame's change is, from the best that was recorded.
//!
//! | recorded | spread comes from | test |
//! |---|---|---|
//! | two or more runs a side | the frame's runs, at least the number of samples × what all frames vary | t, and the count's own |
//! | one run, [`PARTS`] CPUs or more a side | the CPUs: ratio estimate, linearised (Cochran 1977, §6.3) | t, and the count's own |
//! | less | the number of samples | binomial, given the frame's total of both sides |
//!
//! Samples of one CPU resemble each other, so counting alone finds changes that are not there. What CPUs
//! tell is still one run: what differs from run to run is in the first row only.
//!
//! Two or three runs say little about the spread of one frame: two counts of 2 are no proof that it never
//! varies. So all frames together say by how much runs vary beyond counting (the dispersion of a
//! quasi-Poisson model, McCullagh and Nelder 1989, §6.2), and a frame's variance is never below that. A frame
//! that varies more than its like is judged by itself.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal};

use super::tally::{Samples, Tally, sum};
use super::{Change, Unit};
use weir_stats::student::{quantile, upper_tail};
use weir_stats::summary::{mean, variance};

/// CPUs a side from which their spread is used: below, a t of 7 degrees of freedom says little.
const PARTS: usize = 8;
/// Samples a run that a frame must expect for its share of the dispersion: Cochran's rule for Pearson's X².
const EXPECTED: f64 = 5.0;

/// What intervals and tests rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "from")]
pub enum Evidence {
    Runs { before: usize, after: usize },
    Cpus { before: usize, after: usize },
    Counts,
}

impl Evidence {
    /// The evidence in a report's words.
    pub fn sentence(&self) -> String {
        match self {
            Evidence::Runs { before, after } => format!(
                "intervals and tests from the spread over {before} recordings before and {after} after, each \
                 frame's own or that of all frames, whichever is larger"
            ),
            Evidence::Cpus { before, after } => format!(
                "one recording a side: intervals and tests from the spread over {before} and {after} CPUs; what \
                 differs from run to run is not in them, several recordings a side would show it"
            ),
            Evidence::Counts => "too few recordings and CPUs: intervals and tests (binomial) from sample counts \
                                 alone, which are too narrow when samples resemble each other; record several \
                                 runs a side"
                .into(),
        }
    }
}

/// Turns samples into values with their uncertainty.
pub struct Estimate {
    pub evidence: Evidence,
    base: Samples,
    /// What the base stands for, by recording: 100 %, or nanoseconds a packet.
    scale: [Vec<f64>; 2],
    dispersion: Dispersion,
}

/// How much more than counting runs vary, and how well that is known.
struct Dispersion {
    factor: f64,
    degrees_of_freedom: f64,
}

/// A side's value and its variance.
struct Value {
    value: f64,
    variance: f64,
    degrees_of_freedom: f64,
}

impl Estimate {
    pub fn new(tally: &Tally, scale: [Vec<f64>; 2], unit: Unit) -> Estimate {
        let runs = [0, 1].map(|s| tally.all[s].len());
        let cpus = [0, 1].map(|s| tally.all[s].iter().map(Vec::len).sum::<usize>());
        let [before, after] = runs;
        let evidence = match () {
            () if runs.iter().all(|&n| n > 1) => Evidence::Runs { before, after },
            () if cpus.iter().all(|&n| n >= PARTS) => Evidence::Cpus { before: cpus[0], after: cpus[1] },
            () => Evidence::Counts,
        };
        let mut estimate = Estimate {
            evidence,
            base: tally.base(unit == Unit::NsPerPacket),
            scale,
            dispersion: Dispersion { factor: 1.0, degrees_of_freedom: f64::INFINITY },
        };
        if let Evidence::Runs { .. } = evidence {
            estimate.dispersion = estimate.dispersion(tally);
        }
        estimate
    }

    /// Pearson's X² of every frame's values over the runs of its side, by its degrees of freedom; never below
    /// one, what counting alone gives.
    fn dispersion(&self, tally: &Tally) -> Dispersion {
        let (mut square, mut degrees_of_freedom) = (0.0, 0.0);
        for samples in tally.frames.values().map(|f| &f.own) {
            for side in [0, 1] {
                let values = self.by_run(samples, side);
                let expected = sum(&samples[side]) as f64 / values.len() as f64;
                if expected >= EXPECTED {
                    let mean = mean(&values);
                    square += variance(&values) * (values.len() as f64 - 1.0) * expected / (mean * mean);
                    degrees_of_freedom += values.len() as f64 - 1.0;
                }
            }
        }
        if degrees_of_freedom == 0.0 {
            return Dispersion { factor: 1.0, degrees_of_freedom: f64::INFINITY };
        }
        Dispersion { factor: (square / degrees_of_freedom).max(1.0), degrees_of_freedom }
    }

    /// A side's value.
    pub fn value(&self, samples: &Samples, side: usize) -> f64 {
        mean(&self.by_run(samples, side))
    }

    fn by_run(&self, samples: &Samples, side: usize) -> Vec<f64> {
        let runs = samples[side].iter().zip(&self.base[side]).zip(&self.scale[side]);
        runs.map(|((part, base), scale)| {
            let base = base.iter().sum::<u64>();
            scale * part.iter().sum::<u64>() as f64 / base.max(1) as f64
        })
        .collect()
    }

    pub fn change(&self, samples: &Samples) -> Change {
        let [before, after] = [0, 1].map(|side| self.spread(samples, side));
        let variance = before.variance + after.variance;
        let df = variance.powi(2)
            / (before.variance.powi(2) / before.degrees_of_freedom
                + after.variance.powi(2) / after.degrees_of_freedom);
        let exact = self.binomial(samples);
        change(before.value, after.value, variance.sqrt(), df, exact)
    }

    /// A side's value with the largest of the variances that are known.
    fn spread(&self, samples: &Samples, side: usize) -> Value {
        let counted = self.counted(samples, side);
        match self.evidence {
            Evidence::Counts => counted,
            Evidence::Cpus { .. } => Value {
                variance: counted.variance.max(self.over_cpus(samples, side)),
                degrees_of_freedom: self.base[side].iter().map(Vec::len).sum::<usize>() as f64 - 1.0,
                ..counted
            },
            Evidence::Runs { .. } => {
                let values = self.by_run(samples, side);
                let n = values.len() as f64;
                let own = variance(&values) / n;
                let all = counted.variance * self.dispersion.factor;
                let degrees_of_freedom = if own > all { n - 1.0 } else { self.dispersion.degrees_of_freedom };
                Value { variance: own.max(all), degrees_of_freedom, ..counted }
            }
        }
    }

    /// Share and its variance as if every sample were drawn by itself; one success and one failure are added
    /// to the variance (Agresti, Caffo 2000), so that a count of none has a width.
    fn counted(&self, samples: &Samples, side: usize) -> Value {
        let n = sum(&self.base[side]) as f64;
        let scale = mean(&self.scale[side]);
        let share = (sum(&samples[side]) as f64 + 1.0) / (n + 2.0);
        Value {
            value: self.value(samples, side),
            variance: scale * scale * share * (1.0 - share) / (n + 2.0),
            degrees_of_freedom: f64::INFINITY,
        }
    }

    /// Variance of the ratio Σ samples / Σ base over CPUs: (k / (k − 1)) · Σ (x − r·n)² / (Σ n)².
    fn over_cpus(&self, samples: &Samples, side: usize) -> f64 {
        let base = sum(&self.base[side]).max(1) as f64;
        let ratio = sum(&samples[side]) as f64 / base;
        let residues: Vec<f64> = samples[side]
            .iter()
            .flatten()
            .zip(self.base[side].iter().flatten())
            .map(|(&x, &n)| x as f64 - ratio * n as f64)
            .collect();
        (mean(&self.scale[side]) / base).powi(2) * residues.len() as f64 * variance(&residues)
    }

    /// Two-sided p of this split of the frame's samples between the sides, were its cost the same in both.
    fn binomial(&self, samples: &Samples) -> f64 {
        let count = [0, 1].map(|side| sum(&samples[side]));
        // a sample is worth scale / base: as many are expected on a side as its base is worth less
        let weight = [0, 1].map(|side| sum(&self.base[side]) as f64 / mean(&self.scale[side]));
        let Ok(split) = Binomial::new(weight[1] / (weight[0] + weight[1]), count[0] + count[1]) else {
            return 1.0;
        };
        let below = split.cdf(count[1]);
        let above = if count[1] == 0 { 1.0 } else { split.sf(count[1] - 1) };
        (2.0 * below.min(above)).min(1.0)
    }
}

/// The larger of `p` and what the standard error gives.
fn change(before: f64, after: f64, error: f64, df: f64, p: f64) -> Change {
    let change = after - before;
    let t = if error > 0.0 { change / error } else { 0.0 };
    // Student's tail of very many degrees of freedom is the normal one
    let (reach, tail) = if df < 1e6 {
        (quantile(0.975, df), upper_tail(t.abs(), df))
    } else {
        Normal::new(0.0, 1.0).map_or((f64::NAN, f64::NAN), |d| (d.inverse_cdf(0.975), d.sf(t.abs())))
    };
    let reach = reach * error;
    let p = p.max((2.0 * tail).min(1.0));
    Change { before, after, change, low: change - reach, high: change + reach, t, p, p_holm: 1.0 }
}
