//! Values as reports print them: digits, units, intervals, verdicts; text made safe for HTML.

use weir_stats::bootstrap::Ratio;
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

/// A value in three digits with its unit, for a page that is read and not computed with: `24.3 Mpps`, `43.9 Gb/s`.
pub fn brief(metric: &Metric, value: f64) -> String {
    let (divisor, unit) = metric.unit();
    let (value, unit) = match (value / divisor, unit) {
        (mbps, "Mb/s") if mbps >= 1000.0 => (mbps / 1000.0, "Gb/s"),
        (us, "µs") if us >= 1000.0 => (us / 1000.0, "ms"),
        (ns, "ns a packet") if ns >= 1000.0 => (ns / 1000.0, "µs a packet"),
        other => other,
    };
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    format!("{}{unit}", three_digits(value))
}

/// Three significant digits; thousands are whole, in groups.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        size if size >= 999.5 => signed(value.round() as i64).replace('\u{202f}', ","),
        size if size >= 99.95 || size == 0.0 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A ratio and its interval in three digits, more where its side of 1 would be lost: `1.83 [1.79, 1.87]`, `0.995 [0.991, 1.002]`.
pub fn brief_ratio(ratio: Ratio) -> String {
    let values = [Some(ratio.ratio), ratio.low, ratio.high];
    let near_one = values.iter().flatten().any(|v| (v - 1.0).abs() < 0.015);
    let text = |v: f64| if near_one { format!("{v:.3}") } else { three_digits(v) };
    match ratio.low.zip(ratio.high) {
        Some((low, high)) => format!("{} [{}, {}]", text(ratio.ratio), text(low), text(high)),
        None => text(ratio.ratio),
    }
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
    fn a_page_has_three_digits_and_the_larger_unit() {
        let mbps = |value| brief(&Metric("mbps".into()), value);
        assert_eq!([mbps(43_939.0), mbps(999.0), mbps(16.44)], ["43.9 Gb/s", "999 Mb/s", "16.4 Mb/s"]);
        assert_eq!(brief(&Metric("latency_ns_p99".into()), 2_240_000.0), "2.24 ms");
        assert_eq!(brief(&Metric("pps".into()), 959_700.0), "0.96 Mpps");
        assert_eq!(brief(&Metric("connects_per_second".into()), 10_670.4), "10,670 /s");
        let of = |ratio, low, high| brief_ratio(Ratio { ratio, low: Some(low), high: Some(high) });
        assert_eq!(of(1.832, 1.79, 1.87), "1.83 [1.79, 1.87]");
        assert_eq!(of(0.9947, 0.9912, 0.9981), "0.995 [0.991, 0.998]");
        assert_eq!(of(13.18, 10.923, 15.316), "13.2 [10.9, 15.3]");
        assert_eq!(of(1645.2, 1064.0, 2161.0), "1,645 [1,064, 2,161]");
    }

    #[test]
    fn large_counts_are_grouped() {
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!((grouped(0), signed(-12)), ("0".into(), "−12".into()));
    }
}
