//! The counters of every hop, read before and after a window.
//!
//! Each place where a frame can vanish is read once, at the counter nearest to the loss: a veth's
//! transmit drops (the other end's ring was full), a veth's receive-queue drops (no memory), the kernel's
//! backlog. Sums that repeat another counter are left out.

use std::collections::BTreeMap;

use weir_io::{cpu_time, port_statistics};

use super::namespace::Namespace;
use super::veth::Port;
use crate::model::LabError;

/// Counter name → value, cumulative.
pub type Counters = BTreeMap<String, u64>;

/// The drop counters of a port, named `role.counter`. What an XDP program of the SUT or the receiver
/// drops is theirs to account for.
pub fn port(role: &str, namespace: &Namespace, port: &Port) -> Result<Counters, LabError> {
    let mut found = Counters::new();
    let path = format!("/sys/class/net/{}/statistics/tx_dropped", port.name);
    found.insert(format!("{role}.tx_dropped"), namespace.read(&path)?.trim().parse().unwrap_or(0));
    let name = port.name.clone();
    let own = namespace
        .run(move || port_statistics::read(&name))?
        .map_err(|e| LabError::new(format!("{}: driver counters cannot be read: {e}", port.name)))?;
    for (name, value) in own {
        // rx_queue_<n>_drops: frames the receive side dropped.
        let counter = match name.strip_prefix("rx_queue_").and_then(|rest| rest.split_once('_')) {
            Some((_, "drops")) => "rx_drops",
            Some((_, "xdp_tx_errors")) => "xdp_tx_errors",
            _ => continue,
        };
        *found.entry(format!("{role}.{counter}")).or_default() += value;
    }
    Ok(found)
}

/// Frames a network card had no room for. Virtual devices count theirs elsewhere.
pub fn missed(role: &str, device: &str) -> Counters {
    let read = |path: &str| std::fs::read_to_string(format!("/sys/class/net/{device}/{path}")).ok();
    let card = std::path::Path::new(&format!("/sys/class/net/{device}/device")).exists();
    let missed = read("statistics/rx_missed_errors").filter(|_| card).and_then(|t| t.trim().parse().ok());
    missed.map(|n| (format!("{role}.rx_missed"), n)).into_iter().collect()
}

/// Receive queues of a device.
pub fn receive_queues(device: &str) -> usize {
    let queues = std::fs::read_dir(format!("/sys/class/net/{device}/queues"));
    let names = queues.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("rx-")).count()
}

/// Frames the kernel's per-CPU backlog refused (used only where reception is not NAPI).
pub fn backlog(namespace: &Namespace) -> Result<Counters, LabError> {
    let text = namespace.read("/proc/thread-self/net/softnet_stat")?;
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    Ok(Counters::from([("backlog.dropped".into(), text.lines().filter_map(dropped).sum())]))
}

/// `after − before`, without what did not move.
pub fn difference(before: &Counters, after: &Counters) -> Counters {
    after
        .iter()
        .map(|(name, &value)| (name.clone(), value.saturating_sub(before.get(name).copied().unwrap_or(0))))
        .filter(|(_, moved)| *moved > 0)
        .collect()
}

/// Clock ticks of `/proc`: USER_HZ, fixed in Linux' interface.
pub const TICKS_A_SECOND: f64 = 100.0;

/// CPU time: (busy, all) clock ticks of these CPUs together since boot; `None` when one of them is not there.
pub fn cpu_ticks(cpus: &[u32]) -> Option<(u64, u64)> {
    let each = cpu_time::ticks(cpus).ok()?;
    Some(each.iter().fold((0, 0), |(busy, all), t| (busy + t.all.saturating_sub(t.idle), all + t.all)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_did_not_move_are_left_out() {
        let before = Counters::from([("a".into(), 1), ("b".into(), 5)]);
        let after = Counters::from([("a".into(), 1), ("b".into(), 7), ("c".into(), 2)]);
        assert_eq!(difference(&before, &after), Counters::from([("b".into(), 2), ("c".into(), 2)]));
    }
}
