//! The field's verdict: a ministat block, byte for byte, as FreeBSD's ministat(1) prints it.
//!
//! ```text
//! x reference                          legend: one symbol a set
//! +--------------------------------+
//! |   x x  +  + *                  |   points; cells where sets meet OR their numbers (1 | 2 = 3 is *)
//! | |_MA__|                        |   mean ± deviation, median M, mean A
//! +--------------------------------+
//!     N           Min  …               vitals, then the difference to the first set
//! ```
//!
//! Promises the modern dialect, plot quirks included: the span covers every mean ± deviation, the height
//! follows the last set. Refuses more than [`MAX_SETS`] sets or fewer than [`MIN_POINTS`] points, as the
//! original does.

use super::number::general;
use super::student::quantile;
use super::summary::{mean, median, sorted, variance};

mod plot;

/// One symbol a set: `x+*%#@O`.
pub const MAX_SETS: usize = 7;
/// Below three points a deviation says nothing.
pub const MIN_POINTS: usize = 3;
/// Columns of the plot between its borders: an 80-column terminal less six, and what a pipe gets.
pub const WIDTH: usize = 74;
/// Rows of the original's t table; beyond it the normal quantile stands.
const TABLE_ROWS: usize = 100;

const SYMBOLS: [char; MAX_SETS + 1] = [' ', 'x', '+', '*', '%', '#', '@', 'O'];

/// How a block is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub width: usize,
    /// `-s`: one line of mean and median a set instead of one for all.
    pub separate_bars: bool,
}

impl Default for Style {
    fn default() -> Self {
        Style { width: WIDTH, separate_bars: true }
    }
}

/// A named set of figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub name: String,
    values: Vec<f64>,
    sorted: Vec<f64>,
}

impl Set {
    pub fn new(name: impl Into<String>, values: &[f64]) -> Self {
        Set { name: name.into(), values: values.to_vec(), sorted: sorted(values) }
    }

    fn n(&self) -> f64 {
        self.sorted.len() as f64
    }

    fn min(&self) -> f64 {
        self.sorted[0]
    }

    fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    fn median(&self) -> f64 {
        median(&self.sorted)
    }

    fn mean(&self) -> f64 {
        mean(&self.values)
    }

    fn variance(&self) -> f64 {
        variance(&self.values)
    }

    fn sd(&self) -> f64 {
        self.variance().sqrt()
    }
}

/// The block for `sets`, the first being the reference; ends with a newline.
pub fn block(sets: &[Set], style: Style) -> Result<String, String> {
    if sets.is_empty() || sets.len() > MAX_SETS {
        return Err(format!(
            "ministat: got {} sets, takes 1 to {MAX_SETS}: compare fewer at once",
            sets.len()
        ));
    }
    if let Some(set) = sets.iter().find(|s| s.sorted.len() < MIN_POINTS) {
        let n = set.sorted.len();
        return Err(format!("ministat: {} has {n} points, takes {MIN_POINTS} or more: add runs", set.name));
    }
    let mut out = String::new();
    for (set, symbol) in sets.iter().zip(&SYMBOLS[1..]) {
        out += &format!("{symbol} {}\n", set.name);
    }
    out += &plot::draw(sets, style);
    out += "    N           Min           Max        Median           Avg        Stddev\n";
    for (set, &symbol) in sets.iter().zip(&SYMBOLS[1..]) {
        out += &vitals(set, symbol);
        if symbol != SYMBOLS[1] {
            out += &difference(set, &sets[0]);
        }
    }
    Ok(out)
}

fn vitals(set: &Set, symbol: char) -> String {
    let figures = [set.min(), set.max(), set.median(), set.mean(), set.sd()];
    let figures: Vec<String> = figures.iter().map(|&f| format!("{:>13}", general(f, 8))).collect();
    format!("{symbol} {:3} {}\n", set.sorted.len(), figures.join(" "))
}

/// Student's sentence about `set` against `reference`, at 95 %.
fn difference(set: &Set, reference: &Set) -> String {
    let (n1, n2) = (set.n(), reference.n());
    let (v1, v2) = (set.variance(), reference.variance());
    let (a1, a2) = (set.mean(), reference.mean());
    let df = n1 + n2 - 2.0;
    let t = table_t(df as usize);
    let pooled = (((n1 - 1.0) * v1 + (n2 - 1.0) * v2) / df).sqrt();
    let d = a1 - a2;
    let e = t * pooled * (1.0 / n1 + 1.0 / n2).sqrt();
    if d.abs() <= e || e.is_nan() {
        return "No difference proven at 95.0% confidence\n".into();
    }
    let spread = (n1 - 1.0) * v1 + (n2 - 1.0) * v2 * (a1 * a1) / (a2 * a2);
    let relative = t * (spread * ((n1 + n2) / (n1 * n2 * (n1 + n2 - 2.0)))).sqrt();
    let g = |v| general(v, 6);
    format!(
        "Difference at 95.0% confidence\n\t{} +/- {}\n\t{}% +/- {}%\n\t(Student's t, pooled s = {})\n",
        g(d),
        g(e),
        g(d * 100.0 / a2),
        g(relative * 100.0 / a2),
        g(pooled)
    )
}

/// The two-sided 95 % quantile as printed tables have it: three decimals, and infinity beyond the table.
fn table_t(df: usize) -> f64 {
    if df > TABLE_ROWS {
        return 1.960;
    }
    (quantile(0.975, df as f64) * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests;
