//! `/metrics`: every counter by worker, port and reason, in the text format Prometheus reads.
//!
//! Promises: names and labels of a counter never change; every drop reason is there from the start, at
//! zero, so that an alert can be written before the first drop; `weir_ledger_balance_frames` is 0 unless
//! frames get lost unaccounted.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use weir_core::ipsec::sa::COUNTED;
use weir_core::neighbor;
use weir_core::verdict::Reason;
use weir_metrics::{Family, Labels};

use super::answer::blame;
use crate::view::{Cache, CacheWay, Lookups, Offload, Policy, Port, Sa, Spd, Status, WorkerCounters};

/// What is told of IPsec: names and counters.
#[derive(Clone, Debug, Default)]
pub struct Ipsec {
    pub sas: Vec<Sa>,
    pub spds: Vec<Spd>,
    pub cache: Cache,
}

/// What is told of the kernel's routes.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    /// What happened, and how often.
    pub events: Vec<(&'static str, u64)>,
    /// Families that are left to the kernel, every packet of them.
    pub aside: usize,
}

/// What is told of the kernel's SAs and policies.
#[derive(Clone, Debug, Default)]
pub struct KeyMirror {
    /// What happened, and how often.
    pub events: Vec<(&'static str, u64)>,
}

/// The OpenMetrics text of one scrape.
pub fn text(
    ports: &[Port],
    workers: &[WorkerCounters],
    status: &Status,
    neighbors: neighbor::Counters,
    ipsec: Ipsec,
    (mirror, keys, offload): (Option<Mirror>, KeyMirror, Offload),
) -> String {
    let (ports, workers, status) = (ports.to_vec(), workers.to_vec(), status.clone());
    weir_metrics::text("weir", Scrape { ports, workers, status, neighbors, ipsec, mirror, keys, offload })
}

#[derive(Debug)]
struct Scrape {
    ports: Vec<Port>,
    workers: Vec<WorkerCounters>,
    status: Status,
    neighbors: neighbor::Counters,
    ipsec: Ipsec,
    mirror: Option<Mirror>,
    keys: KeyMirror,
    offload: Offload,
}

fn labels(port: &Port) -> Labels<'_> {
    vec![("port", &port.name), ("device", &port.device)]
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let encoder = &mut encoder;
        self.ports(encoder)?;
        self.workers(encoder)?;
        self.drops(encoder)?;
        self.neighbors(encoder)?;
        self.sas(encoder)?;
        self.policies(encoder)?;
        self.lookups(encoder)?;
        self.mirror(encoder)?;
        self.key_mirror(encoder)?;
        self.flows(encoder)?;
        let family = Family { encoder, name: "tables_generation", help: "Snapshots of the tables published" };
        family.gauges([(Vec::new(), self.status.generation as i64)])
    }
}

impl Scrape {
    fn ports(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        // Not a closure over the lifetime of one port: each family asks for all of them.
        type Of = fn(&Port) -> u64;
        let families: [(&'static str, &'static str, Of); 13] = [
            ("port_rx_packets", "Frames received", |p| p.traffic.rx_packets),
            ("port_rx_bytes", "Bytes received, Ethernet header included", |p| p.traffic.rx_bytes),
            ("port_tx_packets", "Frames sent", |p| p.traffic.tx_packets),
            ("port_tx_bytes", "Bytes sent, Ethernet header included", |p| p.traffic.tx_bytes),
            ("device_rx_ring_full", "Frames lost before the pipeline: no ring slot or buffer", |p| {
                p.losses.rx_ring_full
            }),
            ("device_rx_invalid", "Frames refused on receive by kernel or driver", |p| p.losses.rx_invalid),
            ("device_tx_invalid", "Frames refused by the kernel after they were accepted", |p| {
                p.losses.tx_invalid
            }),
            ("device_rx_fill_empty", "Times the fill ring was found empty", |p| p.losses.rx_fill_empty),
            (
                "device_programs_reattached",
                "Times a program was attached again, taken off from outside or forgotten by its driver",
                |p| p.reattached,
            ),
            ("device_rx_truncated", "Frames shorter than their IP header says", |p| p.losses.rx_truncated),
            ("device_tx_stalled", "Times frames waited and the transmit ring did not move", |p| {
                p.losses.tx_stalled
            }),
            ("device_tx_live", "Frames sent without a socket buffer", |p| p.losses.tx_live),
            ("device_tx_dropped", "Frames sent so that the far end's full queue did not take", |p| {
                p.losses.tx_dropped
            }),
        ];
        for (name, help, of) in families {
            Family { encoder, name, help }.counters(self.ports.iter().map(|p| (labels(p), of(p))))?;
        }
        let up = self.ports.iter().map(|p| (labels(p), i64::from(p.up)));
        Family { encoder, name: "port_up", help: "1 while frames can be sent" }.gauges(up)?;
        let steered = self.ports.iter().flat_map(|p| {
            p.steered.iter().map(move |(cause, count)| {
                (vec![("device", p.device.as_str()), ("cause", cause.as_str())], *count)
            })
        });
        // Ports that are VLANs of one device tell the same counters: each is told once.
        let mut once: Vec<(Labels<'_>, u64)> = Vec::new();
        for sample in steered {
            if !once.iter().any(|o| o.0 == sample.0) {
                once.push(sample);
            }
        }
        Family {
            encoder,
            name: "steered",
            help: "Frames by what the programs in front of the kernel did with them",
        }
        .counters(once)
    }

    fn workers(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let numbers: Vec<String> = self.workers.iter().map(|w| w.worker.to_string()).collect();
        let each = || self.workers.iter().zip(&numbers);
        type Of = fn(&WorkerCounters) -> u64;
        let counters: [(&'static str, &'static str, Of); 9] = [
            ("frames_received", "Frames taken into the pipeline", |w| w.received),
            ("frames_forwarded", "Received frames that left by a port", |w| w.forwarded),
            ("frames_local", "Received frames given to this host", |w| w.local),
            ("frames_dropped", "Received frames dropped, all reasons", |w| w.dropped),
            ("frames_originated", "Frames of weir's own making: ICMP, ARP, NDP, fragments", |w| w.originated),
            ("frames_originated_lost", "Frames of weir's own making that could not be sent", |w| {
                w.originated_lost
            }),
            ("icmp_errors_limited", "ICMP errors not sent because of the rate limit", |w| w.icmp_limited),
            ("worker_breaths", "Times a worker went round its devices", |w| w.breaths),
            ("worker_idle_breaths", "Times it found nothing", |w| w.idle_breaths),
        ];
        for (name, help, of) in counters {
            let samples = each().map(|(w, n)| (vec![("worker", n.as_str())], of(w)));
            Family { encoder, name, help }.counters(samples)?;
        }
        type Gauge = fn(&WorkerCounters) -> i64;
        let gauges: [(&'static str, &'static str, Gauge); 6] = [
            ("frames_held", "Received frames waiting for a neighbour", |w| w.held as i64),
            (
                "ledger_balance_frames",
                "received - forwarded - local - dropped - held; anything but 0 is a defect",
                |w| w.balance,
            ),
            ("buffers", "Buffers of the worker", |w| w.buffers_total as i64),
            ("buffers_free", "Buffers in its pool", |w| w.buffers_free as i64),
            ("buffers_missing", "Buffers nobody accounts for; anything but 0 is a defect", |w| {
                w.buffers_missing
            }),
            ("worker_generation", "Snapshot of the tables the worker uses", |w| w.generation as i64),
        ];
        for (name, help, of) in gauges {
            let samples = each().map(|(w, n)| (vec![("worker", n.as_str())], of(w)));
            Family { encoder, name, help }.gauges(samples)?;
        }
        Ok(())
    }

    fn drops(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let numbers: Vec<String> = self.workers.iter().map(|w| w.worker.to_string()).collect();
        let samples = self.workers.iter().zip(&numbers).flat_map(|(w, n)| {
            Reason::ALL.iter().map(move |&r| {
                let labels = vec![("worker", n.as_str()), ("reason", r.name()), ("blame", blame(r))];
                (labels, w.drops.get(r.name()).copied().unwrap_or(0))
            })
        });
        let help = "Received frames dropped, by reason and by who has to act";
        Family { encoder, name: "drops", help }.counters(samples)
    }

    fn neighbors(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let n = &self.neighbors;
        let events = [
            ("requests_sent", n.requests_sent),
            ("replies_sent", n.replies_sent),
            ("learned", n.learned),
            ("mac_changes", n.mac_changes),
            ("failed", n.failed),
            ("bad", n.bad),
            ("ignored", n.ignored),
            ("insane", n.insane),
            ("conflicts", n.conflicts),
            ("held_down", n.held_down),
            ("unresolvable", n.unresolvable),
            ("no_source", n.no_source),
            ("table_full", n.table_full),
            ("evicted", n.evicted),
            ("transmit_full", n.transmit_full),
        ];
        let samples = events.map(|(event, count)| (vec![("event", event)], count));
        Family { encoder, name: "neighbor_events", help: "What happened in ARP and NDP" }.counters(samples)
    }
}

impl Scrape {
    fn mirror(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let Some(mirror) = &self.mirror else { return Ok(()) };
        let samples = mirror.events.iter().map(|(event, count)| (vec![("event", *event)], *count));
        let help = "What happened while the kernel's routes were followed";
        Family { encoder, name: "mirror_events", help }.counters(samples)?;
        let help = "Address families of which every packet is left to the kernel";
        Family { encoder, name: "mirror_families_aside", help }.gauges([(Vec::new(), mirror.aside as i64)])
    }

    fn key_mirror(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let samples = self.keys.events.iter().map(|(event, count)| (vec![("event", *event)], *count));
        let help = "What happened while the kernel's SAs and policies were followed";
        Family { encoder, name: "key_mirror_events", help }.counters(samples)
    }

    /// Flows of the kernel's firewall.
    fn flows(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let offload = &self.offload;
        let kernel = offload
            .kernel
            .iter()
            .map(|left| (vec![("way", "kernel"), ("reason", left.reason.as_str())], left.flows as i64));
        let xdp = [(vec![("way", "xdp"), ("reason", "")], offload.xdp as i64)];
        let help = "Flows of the kernel's conntrack, by who forwards them and why";
        Family { encoder, name: "flows", help }.gauges(xdp.into_iter().chain(kernel))?;
        let events = offload.events.iter().map(|(event, count)| (vec![("event", event.as_str())], *count));
        let help = "What happened while the kernel's flows were followed";
        Family { encoder, name: "flow_events", help }.counters(events)?;
        for (name, help, count) in [
            ("flow_packets", "Packets that passed the kernel's firewall by", offload.packets),
            ("flow_bytes", "Bytes of IP that passed the kernel's firewall by", offload.bytes),
            ("flow_overflows", "Times a flow found no room to be followed", offload.overflowed),
        ] {
            Family { encoder, name, help }.counters([(Vec::new(), count)])?;
        }
        Ok(())
    }
}

/// An SA that drains beside its successor has its name: the SPI tells them apart.
fn sa_labels(sa: &Sa) -> Labels<'_> {
    vec![("sa", &sa.name), ("direction", &sa.direction), ("spi", &sa.spi)]
}

impl Scrape {
    fn sas(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        if self.ipsec.sas.is_empty() {
            return Ok(());
        }
        type Of = fn(&Sa) -> u64;
        let counters: [(&'static str, &'static str, Of); 2] = [
            ("sa_packets", "Packets an SA sealed or opened", |s| s.packets),
            ("sa_bytes", "Bytes of inner packets an SA sealed or opened", |s| s.bytes),
        ];
        for (name, help, of) in counters {
            let samples = self.ipsec.sas.iter().map(|s| (sa_labels(s), of(s)));
            Family { encoder, name, help }.counters(samples)?;
        }
        type Gauge = fn(&Sa) -> i64;
        let gauges: [(&'static str, &'static str, Gauge); 4] = [
            ("sa_age_seconds", "Since the SA was installed", |s| s.age_seconds as i64),
            ("sa_sequence", "Sequence number given out last, or the highest that was authentic", |s| {
                i64::try_from(s.sequence).unwrap_or(i64::MAX)
            }),
            ("sa_state_kept", "1 when what it used is kept on disk, 0 when a restart forgets it", |s| {
                s.kept.into()
            }),
            ("sa_rekey_due", "1 when the soft lifetime is reached, 2 when the hard one is", |s| {
                match s.state.as_str() {
                    "expired" => 2,
                    "rekey" => 1,
                    _ => 0,
                }
            }),
        ];
        for (name, help, of) in gauges {
            let samples = self.ipsec.sas.iter().map(|s| (sa_labels(s), of(s)));
            Family { encoder, name, help }.gauges(samples)?;
        }
        let remaining = self.ipsec.sas.iter().filter_map(|s| {
            let remaining = s.hard.seconds? as f64 - s.age_seconds;
            Some((sa_labels(s), remaining.max(0.0)))
        });
        let help = "Until the hard lifetime, of SAs that have one in seconds";
        Family { encoder, name: "sa_remaining_seconds", help }.gauges_f64(remaining)?;
        let failures = self.ipsec.sas.iter().flat_map(|s| {
            COUNTED.iter().map(move |reason| {
                let mut labels = sa_labels(s);
                labels.push(("reason", reason.name()));
                let count = s.failures.iter().find(|f| f.reason == reason.name()).map_or(0, |f| f.packets);
                (labels, count)
            })
        });
        Family { encoder, name: "sa_failures", help: "Packets an SA did not carry, by reason" }
            .counters(failures)
    }

    fn policies(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        if self.ipsec.spds.is_empty() {
            return Ok(());
        }
        type Of = fn(&Policy) -> [u64; 2];
        let counters: [(&'static str, &'static str, Of); 2] = [
            ("policy_packets", "Packets a policy decided about", |p| [p.out_packets, p.in_packets]),
            ("policy_bytes", "Bytes of packets a policy decided about", |p| [p.out_bytes, p.in_bytes]),
        ];
        for (name, help, of) in counters {
            let samples = self.ipsec.spds.iter().flat_map(|spd| {
                spd.policies.iter().flat_map(move |p| {
                    ["out", "in"].into_iter().zip(of(p)).map(move |(direction, count)| {
                        let labels: Labels<'_> = vec![
                            ("spd", &spd.name),
                            ("policy", &p.name),
                            ("action", &p.action),
                            ("direction", direction),
                        ];
                        (labels, count)
                    })
                })
            });
            Family { encoder, name, help }.counters(samples)?;
        }
        Ok(())
    }
}

impl Scrape {
    fn lookups(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        if self.ipsec.spds.is_empty() {
            return Ok(());
        }
        let numbers: Vec<String> = self.workers.iter().map(|w| w.worker.to_string()).collect();
        let each = || {
            self.workers.iter().zip(&numbers).flat_map(|(worker, number)| {
                worker.lookups.iter().map(move |l| {
                    let labels: Labels<'_> =
                        vec![("direction", &l.direction), ("family", &l.family), ("worker", number)];
                    (labels, l.lookups)
                })
            })
        };
        type Of = fn(Lookups) -> u64;
        let counters: [(&'static str, &'static str, Of); 5] = [
            ("spd_cache_hits", "Packets a flow cache had the answer for", |l| l.hit),
            ("spd_cache_misses", "Packets a flow cache had no answer for", |l| l.miss),
            ("spd_cache_collisions", "Misses because another flow had the bucket", |l| l.collision),
            ("spd_cache_stale", "Misses because the rules had changed", |l| l.stale),
            ("spd_oracle_disagreements", "Answers that were not the ordered scan's; each is a defect", |l| {
                l.disagreed
            }),
        ];
        for (name, help, of) in counters {
            Family { encoder, name, help }.counters(each().map(|(labels, l)| (labels, of(l))))?;
        }
        let layers: [(&'static str, Of); 5] = [
            ("first", |l| l.first),
            ("outside", |l| l.outside),
            ("cache", |l| l.hit),
            ("classifier", |l| l.classified),
            ("scan", |l| l.scanned),
        ];
        let by_layer = each().flat_map(|(labels, l)| {
            layers.map(|(layer, of)| ([&[("layer", layer)], &labels[..]].concat(), of(l)))
        });
        Family {
            encoder,
            name: "spd_lookups",
            help: "Packets looked up in SPDs, by the layer that answered",
        }
        .counters(by_layer)?;
        type Gauge = fn(&CacheWay) -> u64;
        let gauges: [(&'static str, &'static str, Gauge); 3] = [
            ("spd_cache_buckets", "Buckets of a flow cache; 0 where it is off", |c| c.buckets),
            ("spd_cache_occupied_buckets", "Buckets that have a flow", |c| c.occupied),
            ("spd_cache_bytes", "Memory of a flow cache", |c| c.bytes),
        ];
        for (name, help, of) in gauges {
            let samples = self.ipsec.cache.ways.iter().map(|c| {
                let labels: Labels<'_> = vec![("direction", &c.direction), ("family", &c.family)];
                (labels, i64::try_from(of(c)).unwrap_or(i64::MAX))
            });
            Family { encoder, name, help }.gauges(samples)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::WorkerLookups;

    #[test]
    fn who_answered_is_told_by_layer_direction_and_family() {
        let lookups = Lookups {
            first: 1,
            outside: 5,
            hit: 2,
            miss: 7,
            classified: 3,
            scanned: 4,
            ..Lookups::default()
        };
        let asked = WorkerLookups { direction: "in".into(), family: "ipv6".into(), lookups };
        let worker = WorkerCounters { lookups: vec![asked], ..WorkerCounters::default() };
        let way =
            CacheWay { direction: "in".into(), family: "ipv6".into(), buckets: 16, ..CacheWay::default() };
        let ipsec = Ipsec {
            spds: vec![Spd::default()],
            cache: Cache { ways: vec![way], ..Cache::default() },
            ..Ipsec::default()
        };
        let text = text(
            &[],
            &[worker],
            &Status::default(),
            neighbor::Counters::default(),
            ipsec,
            (None, KeyMirror::default(), Offload::default()),
        );
        let labels = "direction=\"in\",family=\"ipv6\",worker=\"0\"}";
        for (layer, count) in [("first", 1), ("outside", 5), ("cache", 2), ("classifier", 3), ("scan", 4)] {
            let line = format!("weir_spd_lookups_total{{layer=\"{layer}\",{labels} {count}\n");
            assert!(text.contains(&line), "{line} is missing in {text}");
        }
        assert!(text.contains(&format!("weir_spd_cache_misses_total{{{labels} 7\n")), "{text}");
        assert!(text.contains("weir_spd_cache_buckets{direction=\"in\",family=\"ipv6\"} 16\n"), "{text}");
    }

    #[test]
    fn events_of_the_key_mirror_are_told() {
        let told = |keys| {
            text(
                &[],
                &[],
                &Status::default(),
                neighbor::Counters::default(),
                Ipsec::default(),
                (None, keys, Offload::default()),
            )
        };
        let keys = KeyMirror { events: vec![("overrun", 2), ("interrupted", 1)] };
        let text = told(keys);
        assert!(text.contains("weir_key_mirror_events_total{event=\"overrun\"} 2\n"), "{text}");
        assert!(text.contains("weir_key_mirror_events_total{event=\"interrupted\"} 1\n"), "{text}");
    }

    #[test]
    fn every_reason_is_told_from_the_start() {
        let worker = WorkerCounters { received: 3, forwarded: 2, ..WorkerCounters::default() };
        let text = text(
            &[],
            &[worker],
            &Status::default(),
            neighbor::Counters::default(),
            Ipsec::default(),
            (None, KeyMirror::default(), Offload::default()),
        );
        for reason in Reason::ALL {
            let line = format!(
                "weir_drops_total{{worker=\"0\",reason=\"{}\",blame=\"{}\"}} 0",
                reason.name(),
                blame(*reason)
            );
            assert!(text.contains(&line), "{line} is missing");
        }
        assert!(text.contains("weir_frames_received_total{worker=\"0\"} 3"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
