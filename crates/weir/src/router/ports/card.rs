//! Settings of a device that are ours while its port is open: offloads, interrupts, the hash over flows.
//!
//! Promises: each is put back when what it returns is dropped, and said. A device that refuses one is opened without it, which
//! is said with what it costs.

use weir_io::coalescing::SentAtOnce;
use weir_io::interface::may_be_a_card;
use weir_io::irq::PlacedIrqs;
use weir_io::offload::{self, Offload, SwitchedOff};
use weir_io::rss::{self, HashedByFlow};

use super::With;
use crate::text::count;

/// Switches these offloads off, for what they do; what is lost where that fails.
fn switch_off(
    name: &str,
    offloads: &[Offload],
    why: &str,
    otherwise: &str,
    said: &mut Vec<String>,
) -> Option<SwitchedOff> {
    match SwitchedOff::on(name, offloads) {
        Ok(off) => {
            let names: Vec<&str> = off.offloads().iter().map(|o| o.name()).collect();
            if !names.is_empty() {
                said.push(format!(
                    "port {name}: {} switched off ({why}); back on at the end",
                    names.join(" and ")
                ));
            }
            Some(off)
        }
        Err(error) => {
            said.push(format!("port {name}: offloads cannot be switched off ({error}); {otherwise}"));
            None
        }
    }
}

pub(super) fn switch_off_merging(name: &str, said: &mut Vec<String>) -> Option<SwitchedOff> {
    let lost = "merged frames will be dropped and counted";
    switch_off(name, &offload::MERGING, "they merge frames", lost, said)
}

pub(super) fn switch_off_hiding(name: &str, said: &mut Vec<String>) -> Option<SwitchedOff> {
    if !may_be_a_card(name) {
        return None;
    }
    let lost = "frames of VLANs will be taken for untagged ones";
    switch_off(name, &offload::HIDING, "it takes VLAN tags off frames", lost, said)
}

/// A zero-copy port sends in its card's interrupts: that they are held back would be time for every packet.
pub(super) fn send_at_once(name: &str, said: &mut Vec<String>) -> Option<SentAtOnce> {
    match SentAtOnce::on(name) {
        Ok(set) => {
            said.extend(set.as_ref().map(|set| {
                let before = set.before();
                format!("port {name}: tx-usecs {before} set to 0 (zero-copy sends in these interrupts); back at the end")
            }));
            set
        }
        Err(error) => {
            said.push(format!(
                "port {name}: tx-usecs cannot be set to 0 ({error}); packets wait for the card's interrupts"
            ));
            None
        }
    }
}

/// The CPU of a queue's worker takes its interrupts, where that is asked for.
pub(super) fn place_irqs(name: &str, with: &With<'_>, said: &mut Vec<String>) -> Option<PlacedIrqs> {
    if !with.workers.place_irqs {
        return None;
    }
    // As the sockets of queues fall to workers.
    let worker_of = |queue: usize| with.cpus[queue % with.cpus.len()];
    match PlacedIrqs::on(name, worker_of) {
        Ok(placed) if placed.found() == 0 => {
            said.push(format!("port {name}: irq: no interrupts of queues are known of this device"));
            None
        }
        Ok(placed) => {
            let (found, moved) = (count(placed.found(), "interrupt"), placed.moved());
            said.push(format!(
                "port {name}: irq: {found} of queues, {moved} of them moved to the CPU of the queue's worker; back at the end"
            ));
            said.extend(placed.refused().iter().map(|(irq, error)| {
                format!("port {name}: irq: interrupt {irq} stays where it is: the kernel refuses to move it ({error})")
            }));
            Some(placed)
        }
        Err(error) => {
            said.push(format!(
                "port {name}: irq: interrupts cannot be read ({error}); they stay where they are"
            ));
            None
        }
    }
}

/// Several queues get the flows of a card each in turn, whatever hosts they are between; what else decides about queues is said.
pub(super) fn spread_flows(name: &str, queues: usize, said: &mut Vec<String>) -> Option<HashedByFlow> {
    if !may_be_a_card(name) {
        return None;
    }
    if let Ok(rules @ 1..) = rss::rules(name) {
        said.push(format!(
            "port {name}: {} of the card decide before its hash where frames go (`ethtool -n {name}`); they stay as they are",
            count(rules as usize, "flow rule")
        ));
    }
    if queues < 2 {
        return None;
    }
    if let Ok(Some(named)) = rss::spread(name)
        && named.len() < queues
    {
        said.push(format!(
            "port {name}: the card spreads frames over {} of {queues} queues only (`ethtool -x {name}`); `ethtool -X {name} default` \
             spreads them over all",
            named.len()
        ));
    }
    match HashedByFlow::on(name) {
        Ok(hash) => {
            said.extend(hash.as_ref().map(|hash| {
                let kinds: Vec<&str> = hash.kinds().collect();
                format!(
                    "port {name}: {} spread over queues by ports too (rx-flow-hash); back at the end",
                    kinds.join(" and ")
                )
            }));
            hash
        }
        Err(error) => {
            said.push(format!(
                "port {name}: the hash of received flows cannot be read ({error}); flows between two hosts may share one worker"
            ));
            None
        }
    }
}
