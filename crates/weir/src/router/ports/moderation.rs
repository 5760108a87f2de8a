//! Moderation of a virtual cable's receive interrupts.
//!
//! Where reception runs in threads (threaded NAPI), a frame that finds its queue's thread asleep wakes it, on another CPU by an interrupt
//! of that CPU. The more queues share the load, the less each has to do, and the more often its thread sleeps: in the end every frame wakes
//! two. Held back, reception runs by a timer, in batches. What the sender's CPU receives itself wakes nobody: there it would be time lost,
//! as it is where one queue's thread does not sleep anyhow. Cards moderate theirs themselves (`ethtool -c`).
//!
//! Promises: held back only where frames are many and a CPU has no time left, so that no packet waits for what nobody needs; put back
//! when this is dropped.

use std::fs;
use std::path::Path;

use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_io::cpu_time::{self, Ticks};
use weir_io::interface::{HeldInterrupts, MODERATED, may_be_a_card};

use crate::config::settings::Workers;

/// Frames a second and queue from which interrupts are held back: five in each turn of the timer.
const MANY: u64 = 50_000;
/// A CPU that was idle for less of its time than this has none left.
const FULL: f64 = 0.05;
/// Interrupts are let through after so many turns with fewer frames: a pause of a load is no end of it.
const PATIENCE: u32 = 8;
const SYSFS: &str = "/sys/class/net";
/// Shorter than this is no measure of a rate.
const MEASURE: Nanos = 100 * MILLISECOND;

/// What a port's interrupts are moderated by.
#[derive(Debug, Default)]
pub struct Moderation {
    /// When frames were counted last, and how many.
    counted: Option<(Nanos, u64)>,
    /// What holds them, and how many frames a second and queue there were when it began.
    held: Option<(HeldInterrupts, u64)>,
    /// Turns in a row with fewer than half of that.
    quiet: u32,
    /// The CPUs of this machine when they were looked at last.
    cpus: Vec<Ticks>,
    /// The kernel has no such knobs, or refuses them.
    refused: bool,
}

impl Moderation {
    /// That of a virtual cable, where it is wanted.
    pub fn of(name: &str, workers: &Workers) -> Option<Moderation> {
        (!workers.moderation_off && !may_be_a_card(name)).then(Moderation::default)
    }

    /// Holds interrupts back or lets them through, by what the device received since the last call; a sentence where it holds them, or
    /// cannot.
    pub fn watch(&mut self, name: &str, queues: usize, now: Nanos) -> Option<String> {
        if queues < 2 || self.refused {
            return None;
        }
        let rate =
            self.rate(number(&Path::new(SYSFS).join(name), "statistics/rx_packets")?, now)? / queues as u64;
        let full = self.is_a_cpu_full();
        self.decide(Path::new(SYSFS), name, rate, full)
    }

    fn decide(&mut self, sysfs: &Path, name: &str, rate: u64, full: bool) -> Option<String> {
        let wanted = match &self.held {
            // Held back they take less of the CPU; that it has some left is no reason to let them through.
            Some((_, before)) => {
                self.quiet = if rate < before / 2 { self.quiet + 1 } else { 0 };
                self.quiet < PATIENCE
            }
            None => rate >= MANY && full,
        };
        match wanted && number(&sysfs.join(name), "threaded") == Some(1) {
            true if self.held.is_none() => self.hold(sysfs, name, rate),
            true => None,
            false => {
                self.held = None;
                None
            }
        }
    }

    fn hold(&mut self, sysfs: &Path, name: &str, rate: u64) -> Option<String> {
        match HeldInterrupts::hold_in(sysfs, name, MODERATED) {
            Ok(held) => {
                (self.held, self.quiet) = (Some((held, rate)), 0);
                Some(format!(
                    "port {name}: a CPU has no time left and frames are many: interrupts of its queues are held back for {MODERATED:?} until for two \
                     seconds they are half as many (`moderation = \"off\"` leaves them)"
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

    /// Whether a CPU of this machine had no time left since the last call; senders and receivers may be on any.
    fn is_a_cpu_full(&mut self) -> bool {
        let now = cpu_time::all_ticks().unwrap_or_default();
        let before = std::mem::replace(&mut self.cpus, now);
        let mut since = self.cpus.iter().zip(before).filter_map(|(now, before)| now.idle_since(before));
        since.any(|idle| idle < FULL)
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

/// What sysfs has of a device.
fn number(device: &Path, what: &str) -> Option<u64> {
    fs::read_to_string(device.join(what)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_held_back_where_frames_are_many_a_cpu_is_full_and_a_thread_receives() {
        const NAME: &str = "two-queues";
        let sysfs = std::env::temp_dir().join(format!("weir-moderation-{}", std::process::id()));
        let device = sysfs.join(NAME);
        fs::create_dir_all(&device).expect("a folder");
        let write = |what: &str, text: &str| fs::write(device.join(what), text).expect("written");
        write("napi_defer_hard_irqs", "0\n");
        write("gro_flush_timeout", "7\n");
        write("threaded", "1\n");
        let mut moderation = Moderation::default();
        let mut turn = |rate, full| {
            let said = moderation.decide(&sysfs, NAME, rate, full);
            let knobs = ["napi_defer_hard_irqs", "gro_flush_timeout"].map(|knob| number(&device, knob));
            (said, knobs)
        };
        let (through, held) = ([Some(0), Some(7)], [Some(2), Some(100_000)]);
        assert_eq!(turn(10 * MANY, false), (None, through), "no CPU is full");
        assert_eq!(turn(MANY - 1, true), (None, through), "too few");
        let (said, knobs) = turn(2 * MANY, true);
        assert!(said.expect("said").contains("held back for 100µs"));
        assert_eq!(knobs, held);
        assert_eq!(turn(5 * MANY, false), (None, held), "the CPU has time because of it");
        assert_eq!(turn(MANY, false), (None, held), "half as many");
        for _ in 1..PATIENCE {
            assert_eq!(turn(MANY - 1, true), (None, held), "fewer, for a moment");
        }
        assert_eq!(turn(MANY, false), (None, held), "half as many again");
        for _ in 1..PATIENCE {
            turn(0, false);
        }
        assert_eq!(turn(0, false), (None, through), "fewer, for long enough");
        assert!(turn(MANY, true).0.is_some());
        write("threaded", "0\n");
        assert_eq!(turn(MANY, true), (None, through), "the thread is gone");
        assert_eq!(turn(MANY, true), (None, through));
        write("threaded", "1\n");
        fs::remove_file(device.join("gro_flush_timeout")).expect("removed");
        let (refused, _) = turn(MANY, true);
        assert!(refused.expect("said").contains("cannot be held back"));
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
}
