//! Where a value breaks as the load rises: a jump or a bend that no smooth curve explains.
//!
//! ```text
//! smooth:  y = polynomial in the load                           (degree 5; 3 below 12 loads, 2 below 9)
//! cliff:   y = the same + a·[load > c] + b·(load − c)·[load > c]   for one c between two loads
//! ```
//!
//! The statistic is the largest F over every c (Quandt 1960, Andrews 1993). Because c is searched for, F has
//! no tabled distribution; with normal noise of one size it depends on the loads alone, so it is simulated
//! exactly for them (`DRAWS` sets of noise, Barnard 1963). The interval holds every c whose F is not
//! significantly below the largest.
//!
//! Promises: on smooth curves a cliff in at most one of twenty. Refuses: fewer than [`LOADS`] loads. Limits:
//! noise must have one size (give the logarithm of values whose spread grows with them, such as latencies:
//! [`find_in_log`]); of several cliffs one is found; a curve bent more sharply than its polynomial follows is
//! called a cliff, and is one for those who load it.

use serde::{Deserialize, Serialize};

use super::random::Random;

/// Distinct loads needed: two on each side of the break, and two to tell a curve from a line.
pub const LOADS: usize = 6;
/// (distinct loads, degree of the polynomial taken as smooth), the first that is reached.
const SMOOTH: [(usize, i32); 3] = [(12, 5), (9, 3), (0, 2)];
/// Distinct loads on each side of a break.
const BESIDE: usize = 2;
/// Places a break is looked for, at most: a search's hundreds of rates need no finer grid.
const PLACES: usize = 40;
/// Sets of noise: the least p is 1/1000, and 0.05 is known to ± 0.014.
const DRAWS: usize = 999;
const SEED: u64 = 0x0063_6c69_6666;
/// p from which a break counts.
pub const ALPHA: f64 = 0.05;
/// Share of the values' own square below which a residue is rounding.
const ROUNDING: f64 = 1e-20;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cliff {
    /// The last load before the break and the first one behind it.
    pub between: (f64, f64),
    /// Loads between which the break lies at 95 %.
    pub low: f64,
    pub high: f64,
    /// Fitted values at the two ends of `between`.
    pub before: f64,
    pub after: f64,
    /// The p-value of the largest F, the search for c counted.
    pub p: f64,
}

/// What the points say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    Cliff(Cliff),
    /// A smooth curve explains the points.
    Smooth {
        p: f64,
    },
    /// Distinct loads seen, fewer than [`LOADS`].
    TooFewLoads {
        loads: usize,
    },
}

/// Looks for one cliff in (load, value) points, in any order; a load may have several points.
pub fn find(points: &[(f64, f64)]) -> Finding {
    let loads: Vec<f64> = points.iter().map(|p| p.0).collect();
    let values: Vec<f64> = points.iter().map(|p| p.1).collect();
    match Design::new(&loads) {
        Ok(design) => design.find(&values),
        Err(loads) => Finding::TooFewLoads { loads },
    }
}

/// Like [`find`], for values above zero whose spread grows with them.
pub fn find_in_log(points: &[(f64, f64)]) -> Finding {
    let logs: Vec<(f64, f64)> = points.iter().filter(|p| p.1 > 0.0).map(|p| (p.0, p.1.ln())).collect();
    match find(&logs) {
        Finding::Cliff(c) => Finding::Cliff(Cliff { before: c.before.exp(), after: c.after.exp(), ..c }),
        other => other,
    }
}

/// A place where the curve may break.
struct Break {
    between: (f64, f64),
    /// Orthonormal directions the break adds to the smooth curve's.
    directions: Vec<Vec<f64>>,
}

/// Everything that depends on the loads alone.
pub struct Design {
    loads: Vec<f64>,
    /// Orthonormal basis of the smooth curves.
    smooth: Vec<Vec<f64>>,
    breaks: Vec<Break>,
    /// The largest shares breaks explain of pure noise, in ascending order.
    chance: Vec<f64>,
}

impl Design {
    /// Fewer distinct loads than needed are returned as the error.
    pub fn new(loads: &[f64]) -> Result<Design, usize> {
        let mut distinct: Vec<f64> = loads.iter().copied().filter(|l| l.is_finite()).collect();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        if distinct.len() < LOADS || loads.iter().any(|l| !l.is_finite()) {
            return Err(distinct.len());
        }
        let (first, last) = (distinct[0], distinct[distinct.len() - 1]);
        // onto −1 … 1, so that powers stay apart
        let x: Vec<f64> = loads.iter().map(|l| 2.0 * (l - first) / (last - first) - 1.0).collect();
        let degree = SMOOTH.iter().find(|(from, _)| distinct.len() >= *from).map_or(2, |s| s.1);
        let mut smooth = Vec::new();
        for power in 0..=degree {
            smooth.extend(orthogonal(x.iter().map(|x| x.powi(power)).collect(), &[&smooth]));
        }
        let places = BESIDE..=distinct.len() - BESIDE;
        let step = (distinct.len() - 2 * BESIDE + 1).div_ceil(PLACES);
        let breaks = places
            .step_by(step)
            .map(|i| {
                let between = (distinct[i - 1], distinct[i]);
                let behind = |of: &dyn Fn(f64) -> f64| -> Vec<f64> {
                    loads.iter().map(|&l| if l > between.0 { of(l) } else { 0.0 }).collect()
                };
                let mut directions = Vec::new();
                for column in [behind(&|_| 1.0), behind(&|l| (l - between.0) / (last - first))] {
                    directions.extend(orthogonal(column, &[&smooth, &directions]));
                }
                Break { between, directions }
            })
            .collect();
        let mut design = Design { loads: loads.to_vec(), smooth, breaks, chance: Vec::new() };
        design.chance = design.noise();
        Ok(design)
    }

    /// Looks for one cliff in the values measured at the loads.
    pub fn find(&self, values: &[f64]) -> Finding {
        let residue = without(values, &[&self.smooth]);
        let left = dot(&residue, &residue);
        if left <= ROUNDING * dot(values, values) {
            return Finding::Smooth { p: 1.0 };
        }
        let explained: Vec<f64> = self.breaks.iter().map(|b| explains(&b.directions, &residue)).collect();
        let Some(best) = (0..explained.len()).max_by(|&a, &b| explained[a].total_cmp(&explained[b])) else {
            return Finding::Smooth { p: 1.0 };
        };
        let share = explained[best] / left;
        let as_large = self.chance.len() - self.chance.partition_point(|&c| c < share);
        let p = (as_large + 1) as f64 / (self.chance.len() + 1) as f64;
        if p > ALPHA {
            return Finding::Smooth { p };
        }
        let unlikely = self.behind_best(left, explained[best]);
        let held = |i: &usize| explained[*i] >= unlikely;
        let (low, high) = (0..explained.len()).filter(held).fold((f64::MAX, f64::MIN), |(low, high), i| {
            (low.min(self.breaks[i].between.0), high.max(self.breaks[i].between.1))
        });
        let between = self.breaks[best].between;
        let fitted = self.fitted(values, &self.breaks[best]);
        Finding::Cliff(Cliff {
            between,
            low,
            high,
            before: self.at(between.0, &fitted),
            after: self.at(between.1, &fitted),
            p,
        })
    }

    /// What a break must explain to be in the interval: F of its loss against the best below the 95 % point
    /// of χ² with one degree of freedom, 3.84, which F with many degrees approaches.
    fn behind_best(&self, left: f64, best: f64) -> f64 {
        let spare = self.loads.len().saturating_sub(self.smooth.len() + 2).max(1) as f64;
        best - 3.84 * (left - best).max(0.0) / spare
    }

    fn fitted(&self, values: &[f64], at: &Break) -> Vec<f64> {
        let rest = without(values, &[&self.smooth, &at.directions]);
        values.iter().zip(rest).map(|(f, r)| f - r).collect()
    }

    fn at(&self, load: f64, fitted: &[f64]) -> f64 {
        self.loads.iter().position(|&l| l == load).map_or(f64::NAN, |i| fitted[i])
    }

    /// The largest share a break explains of noise, in ascending order.
    fn noise(&self) -> Vec<f64> {
        let mut random = Random::new(SEED);
        let mut shares: Vec<f64> = (0..DRAWS)
            .map(|_| {
                let noise: Vec<f64> = self.loads.iter().map(|_| normal(&mut random)).collect();
                let residue = without(&noise, &[&self.smooth]);
                let most = self.breaks.iter().map(|b| explains(&b.directions, &residue)).fold(0.0, f64::max);
                most / dot(&residue, &residue)
            })
            .collect();
        shares.sort_by(f64::total_cmp);
        shares
    }
}

/// Squares of the residue that orthonormal directions take away.
fn explains(directions: &[Vec<f64>], residue: &[f64]) -> f64 {
    directions.iter().map(|d| dot(d, residue).powi(2)).sum()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `column` less its part in the span of the orthonormal `bases`.
fn without(column: &[f64], bases: &[&Vec<Vec<f64>>]) -> Vec<f64> {
    let mut rest = column.to_vec();
    for direction in bases.iter().flat_map(|b| b.iter()) {
        let part = dot(direction, &rest);
        rest.iter_mut().zip(direction).for_each(|(r, d)| *r -= part * d);
    }
    rest
}

/// The direction `column` adds to `bases`; `None` when it adds none. Twice, because once leaves rounding
/// (Giraud et al. 2005).
fn orthogonal(column: Vec<f64>, bases: &[&Vec<Vec<f64>>]) -> Option<Vec<f64>> {
    let size = dot(&column, &column);
    let rest = without(&without(&column, bases), bases);
    let left = dot(&rest, &rest);
    (left > 1e-12 * size).then(|| rest.iter().map(|r| r / left.sqrt()).collect())
}

/// Box and Muller (1958); one of the pair is enough.
fn normal(random: &mut Random) -> f64 {
    let uniform = |r: &mut Random| (r.draw() >> 11) as f64 / (1u64 << 53) as f64;
    let (u, v) = (1.0 - uniform(random), uniform(random));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[cfg(test)]
mod tests;
