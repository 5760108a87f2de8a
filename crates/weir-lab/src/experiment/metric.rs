//! The value an experiment is about.

use serde::{Deserialize, Serialize};

use crate::model::Sample;

/// `pps`, `loss_percent`, `latency_ns_<percentile>`, or a value the testbed reports (`clocks_per_packet`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metric(pub String);

/// Every metric a file may name; testbeds report further values in tables only.
pub const KNOWN: [&str; 25] = [
    "pps",
    "mbps",
    "clocks_per_packet",
    "ns_per_packet",
    "instructions_per_packet",
    "cpu_percent",
    "loss_percent",
    "latency_ns_p50",
    "latency_ns_p90",
    "latency_ns_p99",
    "latency_ns_p99.9",
    "ndr_pps",
    "ndr_conditional_throughput_pps",
    "pdr_pps",
    "pdr_conditional_throughput_pps",
    "equilibrium_mbps",
    "equilibrium_max_mbps",
    "back_to_back_frames",
    "undelivered_percent",
    "cpu_seconds_per_gb",
    "connects_per_second",
    "memory_bytes_per_client",
    "simulated_instructions_per_packet",
    "simulated_d1_misses_per_packet",
    "simulated_ll_misses_per_packet",
];

/// Whether a file may name it: one of [`KNOWN`], or a latency at a share of the PDR.
pub fn is_known(name: &str) -> bool {
    let percentiles = ["p50", "p90", "p99", "p99.9", "max"];
    let at_share = latency(name).is_some_and(|(share, percentile)| {
        share.and_then(|s| s.parse().ok()).is_some_and(|s: f64| s > 0.0) && percentiles.contains(&percentile)
    });
    KNOWN.contains(&name) || at_share
}

impl Metric {
    /// The value of one run; `None` when this run does not have it.
    pub fn of(&self, sample: &Sample) -> Option<f64> {
        let metric = match self.0.as_str() {
            "pps" => Some(sample.pps),
            "loss_percent" => loss_percent(sample),
            name => match latency(name) {
                Some((None, percentile)) => sample.latency_ns.get(percentile).map(|&ns| ns as f64),
                _ => sample.metrics.get(name).copied(),
            },
        };
        metric.filter(|f| f.is_finite())
    }

    pub fn higher_is_better(&self) -> bool {
        let name = self.0.as_str();
        name == "pps"
            || name == "mbps"
            || ["_pps", "_mbps", "_frames", "_per_second"].iter().any(|unit| name.ends_with(unit))
    }

    /// Divisor and unit for tables and plots.
    pub fn unit(&self) -> (f64, &'static str) {
        match self.0.as_str() {
            "pps" => (1e6, "Mpps"),
            "mbps" => (1.0, "Mb/s"),
            "clocks_per_packet" => (1.0, "cycles/packet"),
            "ns_per_packet" => (1.0, "ns a packet"),
            "instructions_per_packet" | "simulated_instructions_per_packet" => (1.0, "instructions a packet"),
            name if latency(name).is_some() => (1e3, "µs"),
            name if name.ends_with("_pps") => (1e6, "Mpps"),
            name if name.ends_with("_mbps") => (1.0, "Mb/s"),
            name if name.ends_with("_frames") => (1.0, "frames"),
            name if name.ends_with("_percent") => (1.0, "%"),
            "cpu_seconds_per_gb" => (1.0, "s/GB"),
            "connects_per_second" => (1.0, "/s"),
            "memory_bytes_per_client" => (1024.0, "KiB"),
            _ => (1.0, ""),
        }
    }

    /// What the plots and tables call it.
    pub fn sentence(&self) -> String {
        match self.0.as_str() {
            "pps" => "packets delivered a second".into(),
            "mbps" => "megabits delivered a second".into(),
            "clocks_per_packet" => "TSC cycles/packet".into(),
            "ns_per_packet" => "nanoseconds a packet".into(),
            "loss_percent" => "packets lost of those sent".into(),
            "undelivered_percent" => "packets offered that were not delivered".into(),
            "cpu_seconds_per_gb" => "seconds of CPU a gigabyte delivered".into(),
            "connects_per_second" => "connections/s".into(),
            "memory_bytes_per_client" => "memory of an idle client".into(),
            "simulated_instructions_per_packet" => "instructions of its own code a packet".into(),
            "simulated_d1_misses_per_packet" => "simulated first-level misses a packet".into(),
            "simulated_ll_misses_per_packet" => "simulated last-level misses a packet".into(),
            "ndr_pps" => "largest load without loss, packets a second".into(),
            "pdr_pps" => "largest load within the tolerated loss, packets a second".into(),
            name => match latency(name) {
                Some((None, percentile)) => format!("latency {percentile}"),
                Some((Some(share), percentile)) => format!("latency {percentile} at {share} % load"),
                None => name.replace('_', " "),
            },
        }
    }
}

/// The share of the load in percent where the name has one, and the percentile.
fn latency(name: &str) -> Option<(Option<&str>, &str)> {
    let rest = name.strip_prefix("latency_")?;
    match rest.strip_prefix("ns_") {
        Some(percentile) => Some((None, percentile)),
        None => rest.split_once("_ns_").map(|(share, percentile)| (Some(share), percentile)),
    }
}

/// Share of what was sent that was not delivered.
pub fn loss_percent(sample: &Sample) -> Option<f64> {
    let ledger = &sample.ledger;
    (ledger.sent > 0)
        .then(|| ledger.sent.saturating_sub(ledger.delivered) as f64 * 100.0 / ledger.sent as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_in_microseconds_is_not_called_nanoseconds() {
        for (name, said) in
            [("latency_ns_p99", "latency p99"), ("latency_50_ns_p99.9", "latency p99.9 at 50 % load")]
        {
            let metric = Metric(name.into());
            assert_eq!((metric.unit(), metric.sentence().as_str()), ((1e3, "µs"), said));
        }
    }
}
