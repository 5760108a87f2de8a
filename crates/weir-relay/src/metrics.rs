//! `/metrics` of a relay: names and labels as the field's dashboards have them, every reason from the start.
//!
//! Promises: names and labels never change; `weir_relay_balance_packets` is 0 unless packets get lost unaccounted.

use std::fmt;
use weir_metrics::{Family, Labels};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::WorkerReport;
use super::counters::Histogram;
use super::report::RelayReport;

/// The OpenMetrics text of one scrape.
pub fn text(acceptor: AcceptorCounters, report: RelayReport) -> String {
    weir_metrics::text("weir_relay", Scrape { acceptor, report })
}

/// The acceptor's counters at one moment: names, help and labels beside each.
#[derive(Debug)]
pub struct AcceptorCounters {
    pub counters: Vec<(&'static str, &'static str, u64)>,
    pub ended: Vec<(&'static str, u64)>,
    pub tls: Vec<(&'static str, u64)>,
    pub records: Vec<(&'static str, u64)>,
    pub verifier: Vec<(&'static str, u64)>,
    pub underway: i64,
    pub handshake_bytes: i64,
    pub sources: i64,
    pub client_sources: i64,
    /// When the certificate that is served ceases to be valid, in seconds since 1970; nothing without TLS.
    pub certificate_expires: Option<f64>,
}

#[derive(Debug)]
struct Scrape {
    acceptor: AcceptorCounters,
    report: RelayReport,
}

type Samples<'a> = Vec<(Labels<'a>, u64)>;

fn counters(encoder: &mut DescriptorEncoder, name: &str, help: &str, samples: Samples<'_>) -> fmt::Result {
    Family { encoder, name, help }.counters(samples)
}

fn gauges(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    samples: Vec<(Labels<'_>, i64)>,
) -> fmt::Result {
    Family { encoder, name, help }.gauges(samples)
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let e = &mut encoder;
        for (name, help, value) in &self.acceptor.counters {
            counters(e, name, help, vec![(Vec::new(), *value)])?;
        }
        fn by(label: &'static str, pairs: &[(&'static str, u64)]) -> Samples<'static> {
            pairs.iter().map(|(name, value)| (vec![(label, *name)], *value)).collect()
        }
        counters(
            e,
            "ended",
            "Connections that ended before they were clients",
            by("why", &self.acceptor.ended),
        )?;
        counters(e, "handshakes", "Connections by version of TLS", by("tls", &self.acceptor.tls))?;
        counters(e, "records", "TLS clients by who opens and seals", by("by", &self.acceptor.records))?;
        counters(e, "verifier", "What the verifier said", by("answer", &self.acceptor.verifier))?;
        gauges(
            e,
            "underway",
            "Connections that are not yet clients",
            vec![(Vec::new(), self.acceptor.underway)],
        )?;
        let bytes = vec![(Vec::new(), self.acceptor.handshake_bytes)];
        gauges(e, "handshake_bytes", "Bytes their buffers have beyond 20 KiB each", bytes)?;
        gauges(e, "sources", "Addresses these come from", vec![(Vec::new(), self.acceptor.sources)])?;
        let clients = vec![(Vec::new(), self.acceptor.client_sources)];
        gauges(e, "client_sources", "Addresses (IPv6: /64s) clients come from", clients)?;
        let expires = self.acceptor.certificate_expires.map(|at| (Vec::new(), at));
        let help = "When the certificate that is served ceases to be valid, in seconds since 1970";
        Family { encoder: e, name: "certificate_expiry_timestamp_seconds", help }.gauges_f64(expires)?;
        self.workers(e)?;
        let help = "Packets in - forwarded - dropped - held; anything but 0 is a defect";
        gauges(e, "balance_packets", help, vec![(Vec::new(), self.report.balance())])
    }
}

impl Scrape {
    fn workers(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        let numbers: Vec<String> = self.report.workers.iter().map(|w| w.worker.to_string()).collect();
        let each = || self.report.workers.iter().zip(&numbers);
        type Of = fn(&WorkerReport) -> u64;
        let families: [(&str, &str, Of); 8] = [
            ("packets_received", "Packets from clients and other relays", |w| w.packets_in),
            ("packets_forwarded", "Packets given to their receiver's socket", |w| w.packets_forwarded),
            ("packets_handed", "Packets given to another worker", |w| w.packets_handed),
            ("packets_taken", "Packets taken from another worker", |w| w.packets_taken),
            (
                "clients_moved",
                "Clients that came from another worker, to be where those they talk to are",
                |w| w.moved,
            ),
            ("bytes_received", "Bytes of frames received", |w| w.bytes_received),
            ("bytes_sent", "Bytes of frames sent", |w| w.bytes_sent),
            ("worker_turns", "Times a worker went round; one that sleeps does once a second", |w| w.turns),
        ];
        for (name, help, of) in families {
            let samples = each().map(|(w, n)| (vec![("worker", n.as_str())], of(w))).collect();
            counters(e, name, help, samples)?;
        }
        let gauged: [(&str, &str, Of); 4] = [
            ("connections", "Connections now", |w| w.connections),
            ("packets_held", "Packets that wait in queues", |w| w.packets_held),
            ("memory_connections_bytes", "Memory held for connections", |w| w.memory_connections),
            ("memory_buffers_bytes", "Memory of buffers", |w| w.memory_buffers),
        ];
        for (name, help, of) in gauged {
            let samples = each().map(|(w, n)| (vec![("worker", n.as_str())], of(w) as i64)).collect();
            gauges(e, name, help, samples)?;
        }
        self.named(e, &numbers)
    }

    /// Writes what is counted by reason and by kind, then distributions.
    fn named(&self, e: &mut DescriptorEncoder, numbers: &[String]) -> fmt::Result {
        let each = || self.report.workers.iter().zip(numbers);
        type Named = fn(&WorkerReport) -> &[(&'static str, u64)];
        let dropped = each()
            .flat_map(|(w, n)| {
                w.drops.iter().map(move |(reason, class, amount)| {
                    let labels =
                        vec![("reason", reason.name()), ("kind", class.name()), ("worker", n.as_str())];
                    (labels, amount.packets)
                })
            })
            .collect();
        counters(e, "packets_dropped", "Packets dropped, by reason and class", dropped)?;
        let named: [(&str, &str, &'static str, Named); 3] = [
            ("connections_ended", "Connections that ended, by why", "why", |w| &w.ended),
            ("frames_received", "Frames received, by kind", "kind", |w| &w.frames_received),
            ("frames_sent", "Frames sent, by kind", "kind", |w| &w.frames_sent),
        ];
        for (name, help, label, of) in named {
            let samples = each()
                .flat_map(|(w, n)| {
                    of(w)
                        .iter()
                        .map(move |(what, count)| (vec![(label, *what), ("worker", n.as_str())], *count))
                })
                .collect();
            counters(e, name, help, samples)?;
        }
        self.distributions(e, numbers)
    }

    fn distributions(&self, e: &mut DescriptorEncoder, numbers: &[String]) -> fmt::Result {
        let each = |of: fn(&WorkerReport) -> &Histogram, bound: fn(f64) -> f64, sum_unit: f64| {
            let workers = self.report.workers.iter().zip(numbers);
            workers.map(move |(w, n)| (vec![("worker", n.as_str())], of(w).distribution(bound, sum_unit)))
        };
        let help = "How long packets waited for their receiver's socket";
        let delays = each(|w| &w.queue_delay, |us| us / 1e6, 1e-9);
        Family { encoder: e, name: "queue_delay_seconds", help }.histograms(delays)?;
        // Sizes are whole: below 2^n is up to 2^n - 1.
        let sizes = each(|w| &w.flush_bytes, |bytes| bytes - 1.0, 1.0);
        Family { encoder: e, name: "flush_bytes", help: "Sizes of sends" }.histograms(sizes)
    }
}
