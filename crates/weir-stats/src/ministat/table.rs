//! Student's t as the table of the original prints it: three decimals, a hundred rows and infinity.
//!
//! The table follows from the distribution but for one slip and one column. *99.5 %* stands over the
//! quantile 0.999, which leaves 0.2 % outside on two sides, and seven of that column's values differ in the
//! last digits from the quantile; the error bars of the field were computed with them, so they stay.

use crate::student::quantile;

/// Rows of the table; beyond it the normal quantile stands.
const ROWS: usize = 100;

/// A confidence level the table has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Confidence {
    P80,
    P90,
    #[default]
    P95,
    P98,
    P99,
    P99_5,
}

/// (degrees of freedom, t) where the column *99.5 %* is not the rounded quantile.
const MISPRINTS: [(usize, f64); 7] =
    [(1, 318.313), (7, 4.782), (8, 4.499), (9, 4.296), (10, 4.143), (11, 4.024), (12, 3.929)];

impl Confidence {
    pub const ALL: [Confidence; 6] = [
        Confidence::P80,
        Confidence::P90,
        Confidence::P95,
        Confidence::P98,
        Confidence::P99,
        Confidence::P99_5,
    ];

    pub fn percent(self) -> f64 {
        match self {
            Confidence::P80 => 80.0,
            Confidence::P90 => 90.0,
            Confidence::P95 => 95.0,
            Confidence::P98 => 98.0,
            Confidence::P99 => 99.0,
            Confidence::P99_5 => 99.5,
        }
    }

    /// The level of that many percent, if the table has it.
    pub fn of_percent(percent: f64) -> Option<Confidence> {
        Confidence::ALL.into_iter().find(|c| c.percent() == percent)
    }

    /// Share of the distribution below t.
    fn share(self) -> f64 {
        match self {
            Confidence::P99_5 => 0.999,
            other => (1.0 + other.percent() / 100.0) / 2.0,
        }
    }

    /// The table's value for so many degrees of freedom.
    pub fn t(self, degrees: usize) -> f64 {
        if degrees > ROWS {
            return self.infinite();
        }
        match MISPRINTS.iter().find(|(row, _)| self == Confidence::P99_5 && *row == degrees) {
            Some((_, t)) => *t,
            None => (quantile(self.share(), degrees as f64) * 1000.0).round() / 1000.0,
        }
    }

    fn infinite(self) -> f64 {
        match self {
            Confidence::P80 => 1.282,
            Confidence::P90 => 1.645,
            Confidence::P95 => 1.960,
            Confidence::P98 => 2.326,
            Confidence::P99 => 2.576,
            Confidence::P99_5 => 3.090,
        }
    }
}
