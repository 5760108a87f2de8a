//! What is shown of flows.

use weir_core::conntrack::{Flow, FlowId, Way};
use weir_core::time::{Nanos, SECOND};
use weir_core::wire::ctnetlink::Tuple;
use weir_core::wire::protocol;

use super::{Flows, lock};
use crate::control::page::Page;
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

    /// A page of flows, those forwarded here first.
    pub fn view(&self, now: Nanos, page: &Page) -> view::Flows {
        let known = lock(&self.known);
        let tracked = lock(&self.tracked);
        let here = |id: &FlowId| known.taken.contains_key(id);
        let first = known.table.flows().filter(|(id, _)| here(id));
        let all = first.chain(known.table.flows().filter(|(id, _)| !here(id)));
        let matching = all.map(|(id, flow)| (id, shown(flow)));
        let mut matching = matching.filter(|(_, flow)| page.matches(|| flow.words())).skip(page.skip);
        // What passed by is asked for of those alone that are shown: a system call each.
        let counted = |(id, flow): (FlowId, view::Flow)| {
            let Some(taken) = known.taken.get(&id) else { return flow };
            let [original, reply] = tracked.passed(taken.number);
            view::Flow {
                age_seconds: Some(now.saturating_sub(taken.since) as f64 / SECOND as f64),
                packets: original.packets + reply.packets,
                bytes: original.bytes + reply.bytes,
                ..flow
            }
        };
        let limit = page.limit.unwrap_or(usize::MAX);
        let flows: Vec<view::Flow> = matching.by_ref().take(limit).map(counted).collect();
        let total = known.table.len();
        let more = match page.matching {
            Some(_) => matching.count(),
            None => total.saturating_sub(page.skip + flows.len()),
        };
        view::Flows { total, more, flows }
    }
}

/// A flow, but for what passed the kernel by.
fn shown(flow: &Flow) -> view::Flow {
    let (way, reason) = match flow.way() {
        Way::Xdp => ("xdp", None),
        Way::Kernel(reason) => ("kernel", Some(reason.name().to_owned())),
    };
    view::Flow {
        protocol: if flow.original().protocol == protocol::TCP { "tcp" } else { "udp" }.to_owned(),
        original: tuple(flow.original()),
        reply: tuple(flow.reply()),
        mark: flow.mark(),
        way: way.to_owned(),
        reason,
        ..view::Flow::default()
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
