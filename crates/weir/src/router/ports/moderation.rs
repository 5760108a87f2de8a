//! Moderation of a virtual cable's receive interrupts.
//!
//! Where reception runs in threads (threaded NAPI), a frame that finds its queue's thread asleep wakes it, on another CPU by an interrupt
//! of that CPU. The more queues share the load, the less each has to do, and the more often its thread sleeps: in the end every frame wakes
//! two. Held back, reception runs by a timer, in batches. What the sender's CPU receives itself wakes nobody: there it would be time lost,
//! as it is where one queue's thread does not sleep anyhow. Cards moderate theirs themselves (`ethtool -c`).
//!
//! Promises: held back only while frames are many, so that a packet that travels alone does not wait; put back when this is dropped.

use std::fs;
use std::path::Path;

use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_io::interface::{HeldInterrupts, MODERATED, may_be_a_card};

/// Frames a second and queue from which interrupts are held back: five in each turn of the timer.
const MANY: u64 = 50_000;
/// Fewer than this many, and they are let through again.
const FEW: u64 = 25_000;
/// Shorter than this is no measure of a rate.
const MEASURE: Nanos = 100 * MILLISECOND;

/// What a port's interrupts are moderated by.
#[derive(Debug, Default)]
pub struct Moderation {
    /// When frames were counted last, and how many.
    counted: Option<(Nanos, u64)>,
    held: Option<HeldInterrupts>,
    /// The kernel has no such knobs, or refuses them.
    refused: bool,
}

impl Moderation {
    /// Holds interrupts back or lets them through, by what the device received since the last call; a sentence where it holds them, or
    /// cannot.
    pub fn watch(&mut self, name: &str, queues: usize, now: Nanos) -> Option<String> {
        if queues < 2 || self.refused || may_be_a_card(name) {
            return None;
        }
        self.watch_in(Path::new("/sys/class/net"), name, queues, now)
    }

    fn watch_in(&mut self, sysfs: &Path, name: &str, queues: usize, now: Nanos) -> Option<String> {
        let device = sysfs.join(name);
        let rate = self.rate(number(&device, "statistics/rx_packets")?, now)? / queues as u64;
        let held = self.held.is_some();
        match wanted(held, rate) && number(&device, "threaded") == Some(1) {
            true if !held => self.hold(sysfs, name),
            true => None,
            false => {
                self.held = None;
                None
            }
        }
    }

    fn hold(&mut self, sysfs: &Path, name: &str) -> Option<String> {
        match HeldInterrupts::hold_in(sysfs, name, MODERATED) {
            Ok(held) => {
                self.held = Some(held);
                Some(format!(
                    "port {name}: interrupts of its queues are held back for {MODERATED:?} while each receives more than {MANY} frames a second \
                     (`moderation = \"off\"` leaves them)"
                ))
            }
            Err(error) => {
                self.refused = true;
                Some(format!(
                    "port {name}: interrupts cannot be held back ({error}): every frame may wake a thread"
                ))
            }
        }
    }

    /// Frames a second since the last count.
    fn rate(&mut self, frames: u64, now: Nanos) -> Option<u64> {
        let Some((at, before)) = self.counted else {
            self.counted = Some((now, frames));
            return None;
        };
        let elapsed = now.saturating_sub(at);
        if elapsed < MEASURE {
            return None;
        }
        self.counted = Some((now, frames));
        Some((u128::from(frames.saturating_sub(before)) * u128::from(SECOND) / u128::from(elapsed)) as u64)
    }
}

/// Whether interrupts are held back at so many frames a second and queue; between the two bounds they stay as they are.
fn wanted(held: bool, rate: u64) -> bool {
    if held { rate >= FEW } else { rate >= MANY }
}

/// What sysfs has of a device.
fn number(device: &Path, what: &str) -> Option<u64> {
    fs::read_to_string(device.join(what)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_held_back_while_frames_are_many_and_a_thread_receives() {
        const NAME: &str = "two-queues";
        let sysfs = std::env::temp_dir().join(format!("weir-moderation-{}", std::process::id()));
        let device = sysfs.join(NAME);
        fs::create_dir_all(device.join("statistics")).expect("folders");
        let write = |what: &str, text: &str| fs::write(device.join(what), text).expect("written");
        let knobs = || ["napi_defer_hard_irqs", "gro_flush_timeout"].map(|knob| number(&device, knob));
        write("napi_defer_hard_irqs", "0\n");
        write("gro_flush_timeout", "7\n");
        write("threaded", "0\n");
        let mut moderation = Moderation::default();
        let mut frames = 0;
        let mut second = 0;
        // A second with so many frames on each of two queues.
        let mut pass = |each: u64| {
            (frames, second) = (frames + 2 * each, second + 1);
            write("statistics/rx_packets", &frames.to_string());
            moderation.watch_in(&sysfs, NAME, 2, second * SECOND)
        };
        assert_eq!(
            (pass(0), pass(10 * MANY), knobs()),
            (None, None, [Some(0), Some(7)]),
            "no thread receives"
        );
        write("threaded", "1\n");
        assert_eq!((pass(MANY - 1), knobs()), (None, [Some(0), Some(7)]), "too few");
        let said = pass(MANY).expect("said");
        assert!(said.contains("held back for 100µs"), "{said}");
        assert_eq!(knobs(), [Some(2), Some(100_000)]);
        assert_eq!((pass(FEW), knobs()), (None, [Some(2), Some(100_000)]), "still many");
        assert_eq!((pass(FEW - 1), knobs()), (None, [Some(0), Some(7)]), "few");
        assert!(pass(MANY).is_some());
        write("threaded", "0\n");
        assert_eq!((pass(MANY), knobs()), (None, [Some(0), Some(7)]), "the thread is gone");
        write("threaded", "1\n");
        fs::remove_file(device.join("gro_flush_timeout")).expect("removed");
        let refused = pass(MANY).expect("said");
        assert!(refused.contains("cannot be held back"), "{refused}");
        fs::remove_dir_all(&sysfs).expect("removed");
    }

    #[test]
    fn a_rate_is_of_the_time_that_passed() {
        let mut moderation = Moderation::default();
        assert_eq!(moderation.rate(1_000, 5 * SECOND), None, "the first count");
        assert_eq!(moderation.rate(2_000, 5 * SECOND + MEASURE / 2), None, "too soon");
        assert_eq!(moderation.rate(51_000, 5 * SECOND + 500 * MILLISECOND), Some(100_000));
        assert_eq!(moderation.rate(10, 6 * SECOND), Some(0), "another device of the same name");
    }

    #[test]
    fn what_was_decided_stays_between_the_bounds() {
        assert!(!wanted(false, MANY - 1) && wanted(false, MANY));
        assert!(wanted(true, FEW) && !wanted(true, FEW - 1));
    }
}
