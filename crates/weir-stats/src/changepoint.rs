//! Where a series changes its level: E-divisive (Matteson, James 2014, JASA 109:334, section 2–3).
//!
//! ```text
//! ●  ● ●  ●   ●  │ ○ ○  ○   ○  ○      Q = n·m/(n+m) · (2·mean|● − ○| − mean|● − ●'| − mean|○ − ○'|)
//! └── τ values ─┘ └─ up to κ ─┘      the split (τ, κ) with the greatest Q is where a change may be
//! ```
//!
//! The split stands when few reorderings of the values inside the segments found so far reach its Q; then
//! each part is split in turn, until one does not stand. No distribution is assumed, and nothing but the
//! order is tested: a series without change is split with the chance [`Settings::level`]. It is the method
//! performance values of databases are watched with (Daly et al., ICPE 2020).
//!
//! Promises: the same series gives the same answer. Refuses segments shorter than [`LEAST`]: a change is
//! seen in the second value after it, never in the first.

use super::random::Random;

/// Values on either side of a change: with one there is no distance inside a side.
pub const LEAST: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Chance that a series without change is split.
    pub level: f64,
    /// Reorderings; the least p is 1 in one more than these.
    pub reorderings: u32,
    /// Decides them.
    pub seed: u64,
}

impl Default for Settings {
    /// 2,000 values of p make room for Holm's correction over a hundred series.
    fn default() -> Self {
        Settings { level: 0.05, reorderings: 1999, seed: 1 }
    }
}

/// A level begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Place of the first value of the new level.
    pub at: usize,
    /// Share of reorderings that split as clearly.
    pub p: f64,
}

/// What became of a series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Divided {
    /// The changes in the order of the series.
    pub changes: Vec<Change>,
    /// The series' own p, that of the first split tried, whether it stands or not, for correction over many series.
    /// `None` when the series is too short to split.
    pub p: Option<f64>,
}

/// Splits `values` (in time order, finite) until no further split stands.
pub fn e_divisive(values: &[f64], settings: Settings) -> Divided {
    let mut random = Random::for_part(settings.seed, "e-divisive");
    let mut divided = Divided::default();
    let mut ends = vec![0, values.len()];
    while let Some((at, found)) = best_of(values, &ends) {
        let p = significance(values, &ends, found, settings, &mut random);
        divided.p.get_or_insert(p);
        if p > settings.level {
            break;
        }
        divided.changes.push(Change { at, p });
        ends.push(at);
        ends.sort_unstable();
    }
    divided.changes.sort_by_key(|c| c.at);
    divided
}

/// The clearest split of any segment: its place in the series, and Q.
fn best_of(values: &[f64], ends: &[usize]) -> Option<(usize, f64)> {
    let splits = ends.windows(2).filter_map(|w| best(&values[w[0]..w[1]]).map(|(at, q)| (w[0] + at, q)));
    splits.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Random reorderings within segments whose clearest split reaches `found`, as a share. Once more than the
/// level have, the question is settled, and the share among those drawn is returned (Besag, Clifford 1991).
fn significance(values: &[f64], ends: &[usize], found: f64, settings: Settings, random: &mut Random) -> f64 {
    let enough = (settings.level * f64::from(settings.reorderings + 1)).ceil() as u32 + 1;
    // values equal but for rounding must count as equal
    let reach = found - found.abs() * 1e-9;
    let mut shuffled = values.to_vec();
    let mut hits = 0;
    for drawn in 1..=settings.reorderings {
        for w in ends.windows(2) {
            random.shuffle(&mut shuffled[w[0]..w[1]]);
        }
        hits += u32::from(best_of(&shuffled, ends).is_some_and(|(_, q)| q >= reach));
        if hits >= enough {
            return f64::from(hits) / f64::from(drawn);
        }
    }
    // the observed order is one of them (Phipson, Smyth 2010)
    f64::from(hits + 1) / f64::from(settings.reorderings + 1)
}

/// The split of one segment with the greatest Q; `None` when it is too short.
fn best(segment: &[f64]) -> Option<(usize, f64)> {
    let n = segment.len();
    if n < 2 * LEAST {
        return None;
    }
    let distances = Distances::of(segment);
    let splits = (LEAST..=n - LEAST).flat_map(|at| (at + LEAST..=n).map(move |end| (at, end)));
    splits.map(|(at, end)| (at, distances.q(at, end))).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Sums of |a − b| over any rectangle of pairs in four look-ups.
struct Distances {
    /// Row i, column j: over the first i and the first j values.
    sums: Vec<f64>,
    side: usize,
}

impl Distances {
    fn of(values: &[f64]) -> Distances {
        let side = values.len() + 1;
        let mut sums = vec![0.0; side * side];
        for (i, a) in values.iter().enumerate() {
            let mut row = 0.0;
            for (j, b) in values.iter().enumerate() {
                row += (a - b).abs();
                sums[(i + 1) * side + j + 1] = sums[i * side + j + 1] + row;
            }
        }
        Distances { sums, side }
    }

    fn between(&self, rows: (usize, usize), columns: (usize, usize)) -> f64 {
        let at = |i: usize, j: usize| self.sums[i * self.side + j];
        at(rows.1, columns.1) - at(rows.0, columns.1) - at(rows.1, columns.0) + at(rows.0, columns.0)
    }

    /// Computes the divergence of `0..at` against `at..end`.
    fn q(&self, at: usize, end: usize) -> f64 {
        let (n, m) = (at as f64, (end - at) as f64);
        // both orders of a pair are in the square, so n·(n − 1) of them
        let inside = |from: usize, to: usize, n: f64| self.between((from, to), (from, to)) / (n * (n - 1.0));
        let across = self.between((0, at), (at, end)) / (n * m);
        n * m / (n + m) * (2.0 * across - inside(0, at, n) - inside(at, end, m))
    }
}

#[cfg(test)]
mod tests;
