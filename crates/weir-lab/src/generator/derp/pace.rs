//! When the packets of a rate are due, and whose they are.
//!
//! Packets leave in groups of at most [`GROUP_MAX`] of one pair, pairs in turn, at evenly spaced times: a relay
//! that keeps 32 packets a client (derper) meets no burst of ours. Groups of one up to [`SENDS`] packets a second;
//! above that a system call a packet would cost more than the packet.
//!
//! Refuses: catching up by more than [`BEHIND`]. What was due before that is missed.

use weir_core::time::Nanos;

pub const GROUP_MAX: u64 = 8;
/// Groups a second a generator sends with time to spare: with TLS, twice as many leave it a tenth of its own.
const SENDS: u64 = 50_000;
/// How late a group may leave.
const BEHIND: Nanos = 1_000_000;

#[derive(Clone, Debug)]
pub struct Pacer {
    rate: u64,
    pub group: u64,
    began: Nanos,
    /// Groups not sent or missed so far.
    groups: u64,
    pub missed: u64,
    /// The longest a group was late.
    pub late_max: Nanos,
}

impl Pacer {
    pub fn new(rate: u64, now: Nanos) -> Pacer {
        let group = rate.div_ceil(SENDS).clamp(1, GROUP_MAX);
        Pacer { rate: rate.max(1), group, began: now, groups: 0, missed: 0, late_max: 0 }
    }

    /// The number and the time of the next group that is due.
    #[inline]
    pub fn next(&mut self, now: Nanos) -> Option<(u64, Nanos)> {
        let mut due = self.due(self.groups);
        if due > now {
            return None;
        }
        if now - due > BEHIND {
            let first = self.groups;
            while self.due(self.groups) + BEHIND < now {
                self.groups += 1;
            }
            self.missed += (self.groups - first) * self.group;
            due = self.due(self.groups);
            if due > now {
                return None;
            }
        }
        self.late_max = self.late_max.max(now - due);
        let number = self.groups;
        self.groups += 1;
        Some((number, due))
    }

    fn due(&self, group: u64) -> Nanos {
        let packets = u128::from(group * self.group);
        self.began + (packets * 1_000_000_000 / u128::from(self.rate)) as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_due_evenly_and_keep_the_rate() {
        let mut pacer = Pacer::new(200_000, 1000);
        assert_eq!(pacer.group, 4);
        let mut due = Vec::new();
        for now in (1000..1_001_000).step_by(500) {
            while let Some((_, at)) = pacer.next(now) {
                due.push(at);
            }
        }
        assert_eq!(due.len(), 50, "a millisecond of 200,000 packets a second in groups of 4");
        assert!(due.windows(2).all(|w| w[1] - w[0] == 20_000));
        assert_eq!((pacer.missed, pacer.late_max), (0, 0));
    }

    #[test]
    fn what_is_too_late_is_missed_rather_than_hurried() {
        let mut pacer = Pacer::new(50_000, 0);
        assert_eq!(pacer.next(0), Some((0, 0)));
        let mut sent = 0;
        while pacer.next(10_000_000).is_some() {
            sent += 1;
        }
        assert_eq!((sent, pacer.missed), (51, 449), "a millisecond's worth at most, the rest is missed");
    }

    #[test]
    fn slow_rates_send_single_packets() {
        assert_eq!(Pacer::new(1, 0).group, 1);
        assert_eq!(Pacer::new(893_000, 0).group, 8, "never more, however fast");
    }
}
