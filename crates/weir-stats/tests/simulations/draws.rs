//! Values to order: normal, skewed, of unequal spread, in blocks.

use std::fs;
use std::path::Path;

use weir_stats::random::Random;

pub struct Draws(Random);

impl Draws {
    pub fn new(seed: u64) -> Draws {
        Draws(Random::new(seed))
    }

    pub fn seed(&mut self) -> u64 {
        self.0.draw()
    }

    pub fn uniform(&mut self) -> f64 {
        // 53 bits, never 0
        ((self.0.draw() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Box and Muller 1958.
    pub fn normal(&mut self) -> f64 {
        let (a, b) = (self.uniform(), self.uniform());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    pub fn normals(&mut self, n: usize, mean: f64, sd: f64) -> Vec<f64> {
        (0..n).map(|_| mean + sd * self.normal()).collect()
    }

    pub fn uniforms(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.uniform()).collect()
    }

    /// Logarithms deviate by ½: skewness 1.75, as latencies and run times have it.
    pub fn skewed(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| (0.5 * self.normal()).exp()).collect()
    }
}

/// Share of `cases` in which `event` comes true.
pub fn rate(cases: usize, mut event: impl FnMut() -> bool) -> f64 {
    (0..cases).filter(|_| event()).count() as f64 / cases as f64
}

/// What a share of `p` may reach in `cases` by chance: four standard errors, once in 30,000.
pub fn allowed(p: f64, cases: usize) -> f64 {
    p + 4.0 * (p * (1.0 - p) / cases as f64).sqrt()
}

pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Every row stands in docs/statistics.md.
pub fn documented(rows: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/statistics.md");
    let text = fs::read_to_string(&path).expect("docs/statistics.md");
    let missing: Vec<&String> = rows.iter().filter(|r| !text.lines().any(|l| l == r.as_str())).collect();
    assert!(
        missing.is_empty(),
        "docs/statistics.md: these rows are simulated and not there:\n{}",
        join(&missing)
    );
}

fn join(rows: &[&String]) -> String {
    rows.iter().map(|r| format!("{r}\n")).collect()
}
