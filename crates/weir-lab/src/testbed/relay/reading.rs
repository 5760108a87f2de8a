//! What a window cost the relay: read on the generator's thread as the window opens and closes.
//!
//! The cost is the time its CPUs were busy, softirqs included; where the generator works on them too, it is
//! what the kernel charged to the relay's process.

use std::collections::BTreeMap;

use crate::netns::counters::cpu_ticks;
use crate::netns::cpus::{self, Cpus};
use crate::sut::relay::process_ticks;

/// Clock ticks of `/proc`: USER_HZ, fixed in Linux' interface.
const TICKS_A_SECOND: f64 = 100.0;

pub struct Reading {
    cpus: Cpus,
    process: Option<u32>,
    opened: Option<Ticks>,
    closed: Option<Ticks>,
}

/// Cumulative.
#[derive(Clone, Copy)]
struct Ticks {
    cpus: Option<(u64, u64)>,
    process: Option<u64>,
}

impl Reading {
    pub fn of(cpus: Cpus, process: Option<u32>) -> Reading {
        Reading { cpus, process, opened: None, closed: None }
    }

    pub fn open(&mut self) {
        self.opened = Some(self.ticks());
    }

    pub fn close(&mut self) {
        self.closed = Some(self.ticks());
    }

    fn ticks(&self) -> Ticks {
        let of = |cpu: &u32| cpu_ticks(*cpu);
        let cpus = self.cpus.sut.iter().map(of).try_fold((0, 0), |(busy, all), ticks| {
            let (b, a) = ticks?;
            Some((busy + b, all + a))
        });
        Ticks { cpus, process: self.process.and_then(process_ticks) }
    }

    /// Computes metrics for so many packets and bytes delivered in so many seconds.
    pub fn metrics(&self, packets: u64, bytes: u64, seconds: f64) -> BTreeMap<String, f64> {
        let mut metrics = BTreeMap::new();
        let (Some(opened), Some(closed), Some(_)) = (self.opened, self.closed, self.process) else {
            return metrics;
        };
        let between = |a: Option<u64>, b: Option<u64>| Some(b?.saturating_sub(a?) as f64 / TICKS_A_SECOND);
        let process = between(opened.process, closed.process);
        let cpus = between(opened.cpus.map(|t| t.0), closed.cpus.map(|t| t.0));
        let shared = self.cpus.sut.contains(&self.cpus.generator);
        if let Some(percent) = cpus::percent(opened.cpus, closed.cpus).filter(|_| !shared) {
            metrics.insert("sut_cpu_percent".into(), percent);
        }
        if let Some(seconds_busy) = process {
            metrics.insert("process_cpu_percent".into(), seconds_busy * 100.0 / seconds);
        }
        if let Some(seconds_busy) = if shared { process } else { cpus } {
            if packets > 0 {
                metrics.insert("ns_per_packet".into(), seconds_busy * 1e9 / packets as f64);
            }
            if bytes > 0 {
                metrics.insert("cpu_seconds_per_gb".into(), seconds_busy / (bytes as f64 / 1e9));
            }
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_that_of_the_cpus_unless_the_generator_works_on_them_too() {
        let metrics = |generator: u32| {
            let cpus = Cpus { generator, receiver: generator, sut: vec![1] };
            let at = |busy, all, process| Some(Ticks { cpus: Some((busy, all)), process: Some(process) });
            let reading =
                Reading { cpus, process: Some(1), opened: at(100, 1000, 50), closed: at(200, 1200, 90) };
            reading.metrics(1_000_000, 2_000_000_000, 2.0)
        };
        let own = metrics(0);
        assert_eq!((own["sut_cpu_percent"], own["process_cpu_percent"]), (50.0, 20.0));
        assert_eq!((own["cpu_seconds_per_gb"], own["ns_per_packet"]), (0.5, 1000.0));
        let shared = metrics(1);
        assert_eq!(shared["cpu_seconds_per_gb"], 0.2);
        assert!(!shared.contains_key("sut_cpu_percent"));
    }
}
