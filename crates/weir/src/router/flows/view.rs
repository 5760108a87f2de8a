//! What is shown of flows.

use weir_core::conntrack::{FlowId, Way};
use weir_core::time::{Nanos, SECOND};
use weir_core::wire::ctnetlink::Tuple;
use weir_core::wire::protocol;

use super::{Flows, lock};
use crate::router::Daemon;
use crate::view;

fn tuple(tuple: &Tuple) -> String {
    let end = |address: std::net::IpAddr, port: u16| std::net::SocketAddr::new(address, port).to_string();
    let (from, to) = (tuple.source, tuple.destination);
    format!("{} -> {}", end(from, tuple.source_port), end(to, tuple.destination_port))
}

impl Flows {
    /// The sums of this moment.
    fn sums(&self) -> view::Offload {
        let known = lock(&self.known);
        let tracked = lock(&self.tracked);
        let c = &known.counters;
        let (mut packets, mut bytes) = (c.packets, c.bytes);
        for passed in known.taken.values().flat_map(|taken| tracked.passed(taken.number)) {
            packets += passed.packets;
            bytes += passed.bytes;
        }
        let events = [
            ("heard", c.heard),
            ("overrun", c.overruns),
            ("resync", c.resyncs),
            ("vanished", c.vanished),
            ("taken", c.taken),
            ("released", c.released),
            ("refreshed", c.refreshed),
            ("refused", c.refused),
        ];
        view::Offload {
            xdp: known.table.xdp(),
            kernel: known
                .table
                .kernel()
                .map(|(reason, flows)| view::LeftFlows {
                    reason: reason.name().to_owned(),
                    flows,
                    sentence: reason.sentence().to_owned(),
                })
                .collect(),
            overflowed: known.table.overflowed(),
            packets,
            bytes,
            events: events.map(|(event, count)| (event.to_owned(), count)).into(),
        }
    }

    /// At most `limit` flows, those forwarded here first.
    pub fn view(&self, now: Nanos, limit: usize) -> view::Flows {
        let known = lock(&self.known);
        let tracked = lock(&self.tracked);
        let here = |id: &FlowId| known.taken.contains_key(id);
        let first = known.table.flows().filter(|(id, _)| here(id));
        let all = first.chain(known.table.flows().filter(|(id, _)| !here(id)));
        let flows = all.take(limit).map(|(id, flow)| {
            let taken = known.taken.get(&id);
            let [original, reply] = taken.map(|t| tracked.passed(t.number)).unwrap_or_default();
            view::Flow {
                protocol: if flow.original().protocol == protocol::TCP { "tcp" } else { "udp" }.to_owned(),
                original: tuple(flow.original()),
                reply: tuple(flow.reply()),
                mark: flow.mark(),
                way: match flow.way() {
                    Way::Xdp => "xdp".to_owned(),
                    Way::Kernel(_) => "kernel".to_owned(),
                },
                reason: match flow.way() {
                    Way::Xdp => None,
                    Way::Kernel(reason) => Some(reason.name().to_owned()),
                },
                age_seconds: taken.map(|t| now.saturating_sub(t.since) as f64 / SECOND as f64),
                packets: original.packets + reply.packets,
                bytes: original.bytes + reply.bytes,
            }
        });
        view::Flows { total: known.table.len(), flows: flows.collect() }
    }
}

impl Daemon {
    /// What is forwarded past the kernel's firewall; zeros where that is not asked.
    pub(in crate::router) fn offload(&self) -> view::Offload {
        self.flows.as_ref().map(Flows::sums).unwrap_or_default()
    }

    /// What an operator should know of the kernel's flows.
    pub(in crate::router) fn flow_notices(&self) -> Vec<String> {
        let Some(flows) = &self.flows else { return Vec::new() };
        let (counters, overflowed) = {
            let known = lock(&flows.known);
            (known.counters, known.table.overflowed())
        };
        let mut notices = Vec::new();
        if counters.overruns > 0 {
            notices.push(format!(
                "the kernel's messages about flows overran {} times; {} dumps since, {} entries had gone without a message",
                counters.overruns, counters.resyncs, counters.vanished
            ));
        }
        if overflowed > 0 {
            notices.push(format!(
                "{overflowed} times a flow found no room among the {} that are followed; it stayed the kernel's",
                super::FOLLOWED_MAX
            ));
        }
        notices
    }
}
