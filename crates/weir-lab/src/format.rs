//! Values as reports print them: digits, units, intervals, verdicts; text made safe for HTML.

use weir_stats::{Comparison, Summary, Verdict};

use crate::experiment::Metric;

/// A value with its unit: `24.31 Mpps`.
pub fn with_unit(metric: &Metric, value: f64) -> String {
    let (divisor, unit) = metric.unit();
    format!("{} {unit}", digits(value / divisor)).trim_end().to_string()
}

/// Four significant digits, as far as the places after the point allow.
pub fn digits(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size == 0.0 => 0,
        _ if size >= 1000.0 => 0,
        _ if size >= 100.0 => 1,
        _ if size >= 10.0 => 2,
        _ if size >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// `min – max` in the metric's unit.
pub fn range(metric: &Metric, summary: &Summary) -> String {
    let (divisor, _) = metric.unit();
    format!("{} – {}", digits(summary.min / divisor), digits(summary.max / divisor))
}

/// `12 345 678` with thin groups, for ledgers.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    out
}

pub fn signed(n: i64) -> String {
    if n < 0 { format!("−{}", grouped(n.unsigned_abs())) } else { grouped(n as u64) }
}

/// `1.832 [1.79, 1.87]`.
pub fn ratio(comparison: &Comparison) -> String {
    match comparison.ratio {
        None => "–".into(),
        Some(r) => match (r.low, r.high) {
            (Some(low), Some(high)) => format!("{:.3} [{low:.3}, {high:.3}]", r.ratio),
            _ => format!("{:.3}", r.ratio),
        },
    }
}

pub fn p(value: Option<f64>) -> String {
    match value {
        None => "–".into(),
        Some(p) if p < 0.0001 => "< 0.0001".into(),
        Some(p) => format!("{p:.4}"),
    }
}

pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Different => "different",
        Verdict::Equivalent => "equivalent",
        Verdict::Underpowered => "underpowered",
        Verdict::NoTest => "not tested",
    }
}

/// Text as it may stand in HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_carry_four_digits_and_their_unit() {
        assert_eq!(with_unit(&Metric("pps".into()), 24_312_345.0), "24.31 Mpps");
        assert_eq!(with_unit(&Metric("pps".into()), 640_000.0), "0.640 Mpps");
        assert_eq!(with_unit(&Metric("clocks_per_packet".into()), 101.26), "101.3 cycles/packet");
        assert_eq!(digits(1234.5), "1234");
    }

    #[test]
    fn large_counts_are_grouped() {
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!((grouped(0), signed(-12)), ("0".into(), "−12".into()));
    }
}
