//! What VPP counted: packets and clocks of its nodes, and which packets it lost.

use crate::netns::counters::Counters;

/// Where all ends that is dropped, or left to a host that is not there.
const ENDS: [&str; 2] = ["error-drop", "error-punt"];
/// Packets a port of AF_PACKET has thrown away itself, as `show errors` calls them; its other counters are of blocks and calls.
const UNSENT: [&str; 2] = ["tx_frame_not_ready", "tx_ring_overrun"];

/// Lines of a count, a node, a reason and, in newer releases, a severity; columns are two spaces apart or more.
pub fn errors(said: &str) -> Counters {
    let mut found = Counters::new();
    for line in said.lines() {
        let columns: Vec<&str> = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        let (count, node, reason) = match columns[..] {
            [count, node, reason] | [count, node, reason, "error"] => (count, node, reason),
            _ => continue,
        };
        if let Ok(count) = count.parse::<u64>() {
            *found.entry(format!("vpp.{node}.{}", reason.replace(' ', "_"))).or_default() += count;
        }
    }
    found
}

/// Name, state, calls, vectors, suspends, clocks and vectors a call of `show runtime`.
pub fn nodes(said: &str) -> Vec<(String, u64, f64)> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // a state may be two words
        let [name, .., _, vectors, _, clocks, _] = words[..] else { return None };
        let (vectors, clocks) = (vectors.parse().ok()?, clocks.parse().ok()?);
        (words.len() >= 7 && vectors > 0).then(|| (name.to_string(), vectors, clocks))
    };
    said.lines().filter_map(row).collect()
}

/// What its drop and punt nodes took, by the reasons it gives where those add up, and what its ports could not send.
/// Some nodes count what they only let pass with the severity of errors.
pub fn drops(nodes: &[(String, u64, f64)], reasons: Counters) -> Counters {
    let unsent = |name: &str| UNSENT.iter().any(|reason| name.ends_with(&format!("-tx.{reason}")));
    let (mut lost, reasons): (Counters, Counters) = reasons.into_iter().partition(|(name, _)| unsent(name));
    let taken: Vec<&(String, u64, f64)> = nodes.iter().filter(|(name, ..)| ENDS.contains(&&**name)).collect();
    if reasons.values().sum::<u64>() == taken.iter().map(|(_, packets, _)| packets).sum::<u64>() {
        lost.extend(reasons);
    } else {
        lost.extend(taken.into_iter().map(|(name, packets, _)| (format!("vpp.{name}"), *packets)));
    }
    lost
}
