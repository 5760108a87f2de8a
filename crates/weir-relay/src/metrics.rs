//! `/metrics` of a relay: names and labels as the field's dashboards have them, every reason from the start.
//!
//! Promises: names and labels never change; `weir_relay_balance_packets` is 0 unless packets get lost unaccounted.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::WorkerReport;
use super::report::Report;

/// What the text is, in HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of one scrape.
pub fn text(acceptor: AcceptorCounters, report: Report) -> String {
    let mut registry = Registry::with_prefix("weir_relay");
    registry.register_collector(Box::new(Scrape { acceptor, report }));
    let mut out = String::new();
    match encode(&mut out, &registry) {
        Ok(()) => out,
        // Writing to a string cannot fail; a scrape without metrics is seen as down.
        Err(_) => String::new(),
    }
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
}

#[derive(Debug)]
struct Scrape {
    acceptor: AcceptorCounters,
    report: Report,
}

type Labels<'a> = Vec<(&'static str, &'a str)>;
type Samples<'a> = Vec<(Labels<'a>, u64)>;

fn counters(e: &mut DescriptorEncoder, name: &str, help: &str, samples: Samples<'_>) -> fmt::Result {
    let kind = ConstCounter::new(0u64).metric_type();
    let mut family = e.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauges(e: &mut DescriptorEncoder, name: &str, help: &str, samples: Vec<(Labels<'_>, i64)>) -> fmt::Result {
    let kind = ConstGauge::new(0i64).metric_type();
    let mut family = e.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
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
        let families: [(&str, &str, Of); 6] = [
            ("packets_received", "Packets from clients and other relays", |w| w.packets_in),
            ("packets_forwarded", "Packets given to their receiver's socket", |w| w.packets_forwarded),
            ("packets_handed", "Packets given to another worker", |w| w.packets_handed),
            ("packets_taken", "Packets taken from another worker", |w| w.packets_taken),
            ("bytes_received", "Bytes of frames received", |w| w.bytes_received),
            ("bytes_sent", "Bytes of frames sent", |w| w.bytes_sent),
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

    /// By reason, by kind, by power of two.
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
        type Powers = fn(&WorkerReport) -> &[u64];
        let powers: [(&str, &str, Powers); 2] = [
            (
                "queue_delay_us",
                "Packets by how long they waited, up to a power of two of microseconds",
                |w| &w.queue_delay_us,
            ),
            ("flush_bytes", "Sends by their size, up to a power of two of bytes", |w| &w.flush_bytes),
        ];
        let bounds: Vec<String> = (0..64).map(|power| (1_u64 << power).to_string()).collect();
        for (name, help, of) in powers {
            let samples = each()
                .flat_map(|(w, n)| {
                    of(w).iter().zip(&bounds).map(move |(count, bound)| {
                        (vec![("below", bound.as_str()), ("worker", n.as_str())], *count)
                    })
                })
                .collect();
            counters(e, name, help, samples)?;
        }
        Ok(())
    }
}
