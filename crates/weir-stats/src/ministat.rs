//! The field's verdict: a ministat block, byte for byte, as ministat(1) prints it.
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
//! Promises every [`Dialect`], plot quirks included: the span covers every mean ± deviation, the height
//! follows the last set. Refuses more than [`MAX_SETS`] sets or fewer than [`MIN_POINTS`] points, as the
//! original does, and plots the original crashes on: one column wide, or of values that are not finite.

mod plot;
pub mod read;
mod table;

use std::fmt;

use super::number::general;
pub use table::Confidence;

/// One symbol a set: `x+*%#@O`.
pub const MAX_SETS: usize = 7;
/// Below three points a deviation says nothing.
pub const MIN_POINTS: usize = 3;
/// Columns of the plot between its borders: an 80-column terminal less six, and what a pipe gets.
pub const WIDTH: usize = 74;

const SYMBOLS: [char; MAX_SETS + 1] = [' ', 'x', '+', '*', '%', '#', '@', 'O'];

/// The program whose values are computed: programs of one name are in use, and differ in what they compute.
///
/// | | median of an even count | relative error | variance |
/// |---|---|---|---|
/// | modern | midpoint | of the ratio of means | Σ (v − mean)², ascending |
/// | ratio | midpoint | of the ratio of means | Σ v² − (Σ v)² / n, at least 0 |
/// | midpoint | midpoint | of the difference, over the reference's mean | as ratio |
/// | old | upper middle | as midpoint | as ratio, but where it comes out below 0 the deviation is NaN |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// FreeBSD since 2018.
    #[default]
    Modern,
    /// FreeBSD's development branch of 2016 and 2017.
    Ratio,
    /// FreeBSD's development branch of 2015, into 2016.
    Midpoint,
    /// FreeBSD before that, its releases 10 and below, and Linux distributions (Debian's 20150715).
    Old,
}

impl Dialect {
    /// Newest first.
    pub const ALL: [Dialect; 4] = [Dialect::Modern, Dialect::Ratio, Dialect::Midpoint, Dialect::Old];

    pub fn name(self) -> &'static str {
        match self {
            Dialect::Modern => "modern",
            Dialect::Ratio => "ratio",
            Dialect::Midpoint => "midpoint",
            Dialect::Old => "old",
        }
    }
}

/// How much of a block is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    #[default]
    All,
    /// `-A`: no plot.
    NoPlot,
    /// `-n`: vitals alone.
    Vitals,
}

/// How a block is computed and drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub dialect: Dialect,
    /// `-w`.
    pub width: usize,
    /// `-s`: one line of mean and median a set instead of one for all.
    pub separate_bars: bool,
    /// `-c`.
    pub confidence: Confidence,
    pub parts: Parts,
    /// `-q`: neither legend nor heading.
    pub quiet: bool,
    /// `-P`: the deviation is that of a whole population (divided by n), and nothing is compared.
    pub population: bool,
}

impl Default for Style {
    /// What `ministat -s` writes into a pipe.
    fn default() -> Self {
        Style {
            dialect: Dialect::Modern,
            width: WIDTH,
            separate_bars: true,
            confidence: Confidence::default(),
            parts: Parts::All,
            quiet: false,
            population: false,
        }
    }
}

/// A named set of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub name: String,
    values: Vec<f64>,
    sorted: Vec<f64>,
}

impl Set {
    pub fn new(name: impl Into<String>, values: &[f64]) -> Self {
        Set { name: name.into(), values: values.to_vec(), sorted: ascending(values) }
    }

    /// The values in the order given.
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}

/// −0 and 0 are equal and stay in the order given, as with C's `<`; NaN has no order there, and goes last.
fn ascending(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| if a == b { std::cmp::Ordering::Equal } else { a.total_cmp(b) });
    sorted
}

/// A set as one dialect describes it.
struct Described<'a> {
    set: &'a Set,
    n: f64,
    median: f64,
    mean: f64,
    variance: f64,
    sd: f64,
}

impl<'a> Described<'a> {
    fn of(set: &'a Set, style: &Style) -> Self {
        let n = set.values.len() as f64;
        // summed in the order given: the last digits follow from it
        let sum = set.values.iter().fold(0.0, |sum, v| sum + v);
        let mean = sum / n;
        let variance = match style.dialect {
            Dialect::Modern => set.sorted.iter().fold(0.0, |s, v| s + (v - mean) * (v - mean)) / (n - 1.0),
            dialect => {
                let squares = set.values.iter().fold(0.0, |s, v| s + v * v);
                let excess = squares - sum * sum / n;
                if dialect != Dialect::Old && excess <= 0.0 { 0.0 } else { excess / (n - 1.0) }
            }
        };
        let whole = if style.population { ((n - 1.0) / n).sqrt() } else { 1.0 };
        Described {
            set,
            n,
            median: median(&set.sorted, style.dialect),
            mean,
            variance,
            sd: variance.sqrt() * whole,
        }
    }

    fn min(&self) -> f64 {
        self.set.sorted[0]
    }

    fn max(&self) -> f64 {
        self.set.sorted[self.set.sorted.len() - 1]
    }
}

/// The median of ascending values, of which there is at least one.
pub fn median(sorted: &[f64], dialect: Dialect) -> f64 {
    let half = sorted.len() / 2;
    match dialect {
        Dialect::Old => sorted[half],
        _ if sorted.len().is_multiple_of(2) => (sorted[half] + sorted[half - 1]) / 2.0,
        _ => sorted[half],
    }
}

/// The block for `sets`, the first being the reference; ends with a newline.
pub fn block(sets: &[Set], style: Style) -> Result<String, Refusal> {
    if !(1..=MAX_SETS).contains(&sets.len()) {
        return Err(Refusal::Sets(sets.len()));
    }
    if let Some(set) = sets.iter().find(|s| s.sorted.len() < MIN_POINTS) {
        return Err(Refusal::Points { set: set.name.clone(), points: set.sorted.len() });
    }
    let described: Vec<Described<'_>> = sets.iter().map(|s| Described::of(s, &style)).collect();
    let mut out = String::new();
    if !style.quiet {
        for (set, symbol) in sets.iter().zip(&SYMBOLS[1..]) {
            out += &format!("{symbol} {}\n", set.name);
        }
    }
    if style.parts == Parts::All {
        out += &plot::draw(&described, &style)?;
    }
    if !style.quiet {
        out += "    N           Min           Max        Median           Avg        Stddev\n";
    }
    for (i, set) in described.iter().enumerate() {
        out += &vitals(set, SYMBOLS[i + 1], style.dialect);
        if i > 0 && style.parts != Parts::Vitals && !style.population {
            out += &difference(set, &described[0], &style);
        }
    }
    Ok(out)
}

/// Why there is no block.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// This many sets.
    Sets(usize),
    /// A set of so few points that a deviation says nothing.
    Points { set: String, points: usize },
    /// A plot the original crashes on.
    Plot { columns: usize, low: f64, high: f64 },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Sets(sets) => {
                write!(f, "too many datasets: got {sets}, takes 1 to {MAX_SETS}: compare fewer at once")
            }
            Refusal::Points { set, points } => {
                write!(
                    f,
                    "dataset {set} must contain at least {MIN_POINTS} data points, got {points}: add runs"
                )
            }
            Refusal::Plot { columns, low, high } => write!(
                f,
                "no plot {columns} columns wide from {low:e} to {high:e}: take a width of 2 or more and values \
                 that are finite, or leave the plot out with -A"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

fn vitals(set: &Described<'_>, symbol: char, dialect: Dialect) -> String {
    let given = [set.min(), set.max()].map(|f| general(f, 8));
    let derived = [set.median, set.mean, set.sd].map(|f| computed(f, 8, dialect));
    let cells: Vec<String> = given.iter().chain(&derived).map(|f| format!("{f:>13}")).collect();
    format!("{symbol} {:3} {}\n", set.set.sorted.len(), cells.join(" "))
}

/// A value that arithmetic made: the processor's own NaN has its sign bit set, which glibc prints and
/// FreeBSD does not.
fn computed(value: f64, precision: usize, dialect: Dialect) -> String {
    match dialect {
        _ if !value.is_nan() => general(value, precision),
        Dialect::Old => "-nan".into(),
        _ => "nan".into(),
    }
}

/// Student's sentence about `set` against `reference`.
fn difference(set: &Described<'_>, reference: &Described<'_>, style: &Style) -> String {
    let (n1, n2) = (set.n, reference.n);
    let (v1, v2) = (set.variance, reference.variance);
    let (a1, a2) = (set.mean, reference.mean);
    let degrees = n1 + n2 - 2.0;
    let t = style.confidence.t(degrees as usize);
    let pooled = (((n1 - 1.0) * v1 + (n2 - 1.0) * v2) / degrees).sqrt();
    let d = a1 - a2;
    let e = t * (pooled * (1.0 / n1 + 1.0 / n2).sqrt());
    let percent = style.confidence.percent();
    if d.abs() <= e || e.is_nan() || d.is_nan() {
        return format!("No difference proven at {percent:.1}% confidence\n");
    }
    let relative = match style.dialect {
        Dialect::Modern | Dialect::Ratio => {
            let spread = (n1 - 1.0) * v1 + (n2 - 1.0) * v2 * (a1 * a1) / (a2 * a2);
            t * (spread * ((n1 + n2) / (n1 * n2 * degrees))).sqrt()
        }
        Dialect::Midpoint | Dialect::Old => e,
    };
    let g = |v| computed(v, 6, style.dialect);
    format!(
        "Difference at {percent:.1}% confidence\n\t{} +/- {}\n\t{}% +/- {}%\n\t(Student's t, pooled s = {})\n",
        g(d),
        g(e),
        g(d * 100.0 / a2),
        g(relative * 100.0 / a2),
        g(pooled)
    )
}

#[cfg(test)]
mod tests;
