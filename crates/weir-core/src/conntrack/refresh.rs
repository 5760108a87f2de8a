//! When the kernel's entry of a flow that passes it by is given more time.
//!
//! Promises: an entry is given time only if packets passed since the last look, and never more than the kernel gives at most
//! after a packet, counted from when the last one was seen; and before the least that the kernel may have given is over. The kernel
//! gives an established TCP connection far less while data waits for its acknowledgement, and tells nobody.
//! Refuses: to be asked seldom; packets are seen as late as it is asked.

use crate::time::{Nanos, SECOND};

/// A flow that is taken, as its refreshing knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// Packets at the last look.
    packets: u64,
    /// When they were found to have grown.
    moved: Nanos,
    /// When the kernel's entry was given time last, which was up to [`Refresh::moved`] or later.
    given: Nanos,
}

impl Refresh {
    /// The flow was taken now, with its counter at `packets`.
    pub fn new(now: Nanos, packets: u64) -> Refresh {
        Refresh { packets, moved: now, given: now }
    }

    /// The seconds to give the entry now, if any, where the kernel gives from `least_s` to `lifetime_s` after a packet.
    pub fn poll(&mut self, now: Nanos, packets: u64, (least_s, lifetime_s): (u32, u32)) -> Option<u32> {
        self.look(now, packets);
        // A third: what was given last may have been counted from a packet a third before, so another third is left.
        let third = u64::from(least_s.min(lifetime_s)) * SECOND / 3;
        (now.saturating_sub(self.given) >= third).then(|| self.give(now, lifetime_s)).flatten()
    }

    /// The same when the flow goes back to the kernel: what passed by is not forgotten.
    pub fn last(&mut self, now: Nanos, packets: u64, lifetime_s: u32) -> Option<u32> {
        self.look(now, packets);
        self.give(now, lifetime_s)
    }

    fn look(&mut self, now: Nanos, packets: u64) {
        if packets != self.packets {
            self.packets = packets;
            self.moved = now;
        }
    }

    fn give(&mut self, now: Nanos, lifetime_s: u32) -> Option<u32> {
        if self.moved <= self.given {
            return None;
        }
        let since = now.saturating_sub(self.moved).div_ceil(SECOND);
        let left = u64::from(lifetime_s).checked_sub(since).filter(|&left| left > 0)?;
        self.given = now;
        u32::try_from(left).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn an_entry_without_packets_is_given_no_time() {
        let mut refresh = Refresh::new(0, 7);
        assert!((1..1000).all(|s| refresh.poll(s * SECOND, 7, (120, 120)).is_none()));
        assert_eq!(refresh.last(1001 * SECOND, 7, 120), None);
    }

    #[test]
    fn what_an_entry_is_given_is_what_the_kernel_would_have_given() {
        for seed in 0..200 {
            let mut random = SplitMix64::new(seed);
            let lifetime = 3 + random.below(300) as u32;
            // What the kernel gave to the last packet it saw.
            let least = 3 + random.below(u64::from(lifetime) - 2) as u32;
            let busy = 1 + random.below(100);
            let mut refresh = Refresh::new(0, 0);
            let (mut packets, mut last_packet, mut ends, mut quiet) = (0, 0, u64::from(least), 0);
            for second in 1..3000_u64 {
                // An entry that ended has no packets; silences are up to longer than it lives.
                let kernel = last_packet + u64::from(if packets == 0 { least } else { lifetime });
                assert!(ends <= kernel, "seed {seed}: lives to {ends}, the kernel's to {kernel}");
                if second > kernel {
                    break;
                }
                assert!(ends >= second, "seed {seed}: ended at {ends}, the kernel's lives to {kernel}");
                quiet = if random.below(200) == 0 {
                    random.below(u64::from(lifetime) + 10)
                } else {
                    quiet.saturating_sub(1)
                };
                if quiet == 0 && random.below(100) < busy {
                    packets += 1;
                    last_packet = second;
                }
                if let Some(left) = refresh.poll(second * SECOND, packets, (least, lifetime)) {
                    ends = second + u64::from(left);
                }
            }
        }
    }
}
