//! How much of the time the workers' CPUs are idle, read when somebody wants to know.
//!
//! Promises: a share is of 150 ms at least and of two seconds at most, and no older than that. Refuses: shares of workers
//! that are bound to no CPU.

use std::time::{Duration, Instant};

use weir_io::cpu_time::{self, Ticks};

const LEAST: Duration = Duration::from_millis(150);
const MOST: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Room {
    cpus: Vec<u32>,
    before: Vec<Ticks>,
    at: Instant,
    shares: Option<Vec<f64>>,
}

impl Room {
    /// `cpus` are those of the workers, in their order.
    pub fn new(cpus: Vec<u32>) -> Room {
        Room { cpus, before: Vec::new(), at: Instant::now(), shares: None }
    }

    /// The idle share of each worker's CPU, where it is known by now.
    pub fn shares(&mut self) -> Option<&[f64]> {
        let passed = self.at.elapsed();
        if self.before.is_empty() || passed >= LEAST {
            let ticks = cpu_time::ticks(&self.cpus).unwrap_or_default();
            let fresh = !self.before.is_empty() && passed <= MOST;
            let shares = ticks.iter().zip(&self.before).map(|(now, before)| now.idle_since(*before));
            self.shares = shares.collect::<Option<Vec<f64>>>().filter(|shares| fresh && !shares.is_empty());
            (self.before, self.at) = (ticks, Instant::now());
        }
        self.shares.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_told_from_the_second_reading_on_and_never_old_ones() {
        let mut room = Room::new(vec![0]);
        assert_eq!(room.shares(), None);
        assert_eq!(room.shares(), None, "too soon after it");
        std::thread::sleep(LEAST);
        let shares = room.shares().expect("two readings").to_vec();
        assert!(shares.len() == 1 && (0.0..=1.0).contains(&shares[0]), "{shares:?}");
        assert_eq!(room.shares(), Some(&shares[..]));
        std::thread::sleep(MOST);
        assert_eq!(room.shares(), None, "what was long ago says nothing");
    }

    #[test]
    fn workers_of_no_cpu_have_no_shares() {
        let mut room = Room::new(Vec::new());
        assert_eq!(room.shares(), None);
        std::thread::sleep(LEAST);
        assert_eq!(room.shares(), None);
    }
}
