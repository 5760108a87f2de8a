//! Metrics as text, by Prometheus' conventions, in the format that the asker reads.
//!
//! Promises: counters end in `_total`, units are seconds and bytes, a histogram's buckets are cumulative and end with
//! `+Inf`; `weir_build_info` and `process_start_time_seconds` stand in every text. Who names OpenMetrics in `Accept` gets
//! it, everybody else the text format 0.0.4. Refuses: samples whose time is not that of the scrape.

#![forbid(unsafe_code)]

use std::fmt;
use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// What OpenMetrics is called in HTTP.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What the older text format is called.
pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// When this process began, as far as metrics know: the daemons ask at their start.
pub fn process_started() -> SystemTime {
    static STARTED: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);
    *STARTED
}

/// The OpenMetrics text of one scrape: what `collector` has under `prefix`, and what every daemon has.
pub fn text(prefix: &str, collector: impl Collector + 'static) -> String {
    let mut own = Registry::with_prefix(prefix);
    own.register_collector(Box::new(collector));
    let mut every = Registry::default();
    every.register_collector(Box::new(Process));
    let mut out = String::new();
    let written = encode_registry(&mut out, &own)
        .and_then(|()| encode_registry(&mut out, &every))
        .and_then(|()| encode_eof(&mut out));
    match written {
        Ok(()) => out,
        // Writing to a string cannot fail; a scrape without metrics is seen as down.
        Err(_) => String::new(),
    }
}

/// Content type and text for an asker with this `Accept`.
pub fn negotiated(accept: Option<&str>, openmetrics: String) -> (&'static str, String) {
    match accept.is_some_and(takes_openmetrics) {
        true => (OPENMETRICS, openmetrics),
        false => (PROMETHEUS, prometheus(&openmetrics)),
    }
}

/// Whether OpenMetrics is named and not refused (`q=0`).
fn takes_openmetrics(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().is_some_and(|t| t.eq_ignore_ascii_case("application/openmetrics-text"));
        let refused = |p: &str| p.strip_prefix("q=").and_then(|q| q.parse().ok()) == Some(0.0_f32);
        named && !parts.any(refused)
    })
}

/// OpenMetrics text in the format 0.0.4: there a counter's family has the name of its samples, and nothing ends the text.
fn prometheus(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    let mut lines = openmetrics.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        // HELP comes before TYPE, which says whether the family's name needs its suffix.
        let described = |line: &str, keyword: &str| {
            line.strip_prefix(keyword)
                .and_then(|rest| rest.split_once(' '))
                .map(|(n, r)| (n.to_owned(), r.to_owned()))
        };
        if let Some((name, help)) = described(line, "# HELP ") {
            let kind = lines.peek().and_then(|next| described(next, "# TYPE ")).map(|(_, kind)| kind);
            let suffix = if kind.as_deref() == Some("counter") { "_total" } else { "" };
            let _ = writeln!(out, "# HELP {name}{suffix} {help}");
        } else if let Some((name, kind)) = described(line, "# TYPE ") {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

pub type Labels<'a> = Vec<(&'static str, &'a str)>;

/// One family: a name and a help line, then a sample for each set of labels.
pub struct Family<'a, 'e> {
    pub encoder: &'a mut DescriptorEncoder<'e>,
    pub name: &'a str,
    pub help: &'a str,
}

/// One sample of a histogram: counts of values up to and including each bound, not cumulative, and their sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    pub buckets: Vec<(f64, u64)>,
    pub sum: f64,
}

impl Family<'_, '_> {
    pub fn counters<'a>(self, samples: impl IntoIterator<Item = (Labels<'a>, u64)>) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(self.name, self.help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    pub fn gauges<'a>(self, samples: impl IntoIterator<Item = (Labels<'a>, i64)>) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(self.name, self.help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// The same in fractions, for seconds.
    pub fn gauges_f64<'a>(self, samples: impl IntoIterator<Item = (Labels<'a>, f64)>) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(self.name, self.help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    pub fn histograms<'a>(
        self,
        samples: impl IntoIterator<Item = (Labels<'a>, Distribution)>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(self.name, self.help, None, MetricType::Histogram)?;
        for (labels, Distribution { buckets, sum }) in samples {
            let count = buckets.iter().map(|b| b.1).sum();
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// What every daemon has.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let encoder = &mut encoder;
        let help = "1, with the version that runs";
        let labels = vec![("version", env!("CARGO_PKG_VERSION"))];
        Family { encoder, name: "weir_build_info", help }.gauges([(labels, 1)])?;
        let since = process_started().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let help = "When the process began, in seconds since 1970";
        Family { encoder, name: "process_start_time_seconds", help }.gauges_f64([(Vec::new(), since)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Sample;

    impl Collector for Sample {
        fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
            let encoder = &mut encoder;
            Family { encoder, name: "frames", help: "Frames" }.counters([(vec![("port", "wan")], 3)])?;
            let buckets = vec![(0.5, 1), (1.0, 2), (f64::INFINITY, 4)];
            Family { encoder, name: "wait_seconds", help: "Waits" }
                .histograms([(vec![("worker", "0")], Distribution { buckets, sum: 9.5 })])
        }
    }

    #[test]
    fn who_does_not_name_openmetrics_gets_the_older_format() {
        for accept in [None, Some("*/*"), Some("text/plain"), Some("application/openmetrics-text;q=0")] {
            assert_eq!(negotiated(accept, String::new()).0, PROMETHEUS, "{accept:?}");
        }
        let of_prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5";
        assert_eq!(negotiated(Some(of_prometheus), String::new()).0, OPENMETRICS);
    }

    #[test]
    fn a_counter_is_described_by_the_name_its_samples_have() {
        let open = text("weir", Sample);
        assert!(open.contains("# TYPE weir_frames counter\n") && open.ends_with("# EOF\n"), "{open}");
        let (_, older) = negotiated(None, open);
        assert!(
            older.contains("# HELP weir_frames_total Frames\n# TYPE weir_frames_total counter\n"),
            "{older}"
        );
        assert!(older.contains("weir_frames_total{port=\"wan\"} 3\n") && !older.contains("EOF"), "{older}");
    }

    #[test]
    fn buckets_of_a_histogram_are_cumulative_and_end_with_infinity() {
        let text = text("weir", Sample);
        for line in [
            "weir_wait_seconds_bucket{le=\"0.5\",worker=\"0\"} 1\n",
            "weir_wait_seconds_bucket{le=\"1.0\",worker=\"0\"} 3\n",
            "weir_wait_seconds_bucket{le=\"+Inf\",worker=\"0\"} 7\n",
            "weir_wait_seconds_sum{worker=\"0\"} 9.5\n",
            "weir_wait_seconds_count{worker=\"0\"} 7\n",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }

    #[test]
    fn version_and_start_are_told() {
        let text = text("weir", Sample);
        let version = format!("weir_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&version) && text.contains("process_start_time_seconds "), "{text}");
    }
}
