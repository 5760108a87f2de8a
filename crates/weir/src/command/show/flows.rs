//! `weir show flows` and `weir show offload`.

use crate::text::{count, duration, table};
use crate::view;

/// A page of flows whose first is number `from`.
pub fn flows(shown: &view::Flows, from: usize) -> String {
    let row = |f: &view::Flow| {
        [
            f.protocol.clone(),
            f.original.clone(),
            f.reply.clone(),
            f.mark.map_or("?".to_owned(), |mark| format!("{mark:#x}")),
            f.way.clone(),
            f.reason.clone().unwrap_or_default(),
            f.age_seconds.map(duration).unwrap_or_default(),
            f.packets.to_string(),
            f.bytes.to_string(),
        ]
    };
    let head = ["flow", "original", "answers", "mark", "way", "because", "for", "packets", "bytes"];
    let mut out = table(head, 7..9, shown.flows.iter().map(row).collect());
    if shown.more > 0 {
        let next = from + shown.flows.len();
        out += &format!("# {} more: --from {next}\n", count(shown.more, "flow"));
    }
    out
}

pub fn offload(o: &view::Offload) -> String {
    let mut rows = vec![[o.xdp.to_string(), "xdp".to_owned(), String::new(), String::new()]];
    rows.extend(o.kernel.iter().filter(|left| left.flows > 0).map(|left| {
        [left.flows.to_string(), "kernel".to_owned(), left.reason.clone(), left.sentence.clone()]
    }));
    let mut out = table(["flows", "way", "because", ""], 0..1, rows);
    out += &format!("{} packets, {} bytes passed the kernel by\n", o.packets, o.bytes);
    if o.overflowed > 0 {
        out += &format!("{} times a flow found no room to be followed\n", o.overflowed);
    }
    let events: Vec<String> =
        o.events.iter().filter(|(_, n)| **n > 0).map(|(event, n)| format!("{n} {event}")).collect();
    if !events.is_empty() {
        out += &format!("messages and flows: {}\n", events.join(", "));
    }
    out
}
