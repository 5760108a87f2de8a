//! What a window cost the relay: read as the window opens and closes.
//!
//! The cost is the time its CPUs were busy, softirqs included; where the generator works on them too, it is
//! what the kernel charged to the relay's process. On a host interrupts run where the host has them, so there the cost
//! is that of all CPUs.

use std::collections::BTreeMap;

use crate::netns::counters::TICKS_A_SECOND;
use crate::netns::cpus::{self, Cpus};
use crate::sut::relay::Ticks;

/// The CPU time that packets cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The relay's CPUs.
    Cpus,
    /// The process: others work on its CPUs too.
    Process,
    /// All CPUs of its host.
    Machine,
}

/// Both ends of a window.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub opened: Ticks,
    pub closed: Ticks,
    pub basis: Basis,
}

impl Cost {
    /// Computes metrics for so many packets and bytes delivered in so many seconds.
    pub fn metrics(&self, packets: u64, bytes: u64, seconds: f64) -> BTreeMap<String, f64> {
        let mut metrics = BTreeMap::new();
        let Cost { opened, closed, basis } = self;
        let between = |a: Option<u64>, b: Option<u64>| Some(b?.saturating_sub(a?) as f64 / TICKS_A_SECOND);
        let busy = |of: fn(&Ticks) -> Option<(u64, u64)>| {
            between(of(opened).map(|ticks| ticks.0), of(closed).map(|ticks| ticks.0))
        };
        let process = between(opened.process, closed.process);
        if let Some(percent) = cpus::percent(opened.cpus, closed.cpus).filter(|_| *basis != Basis::Process) {
            metrics.insert("sut_cpu_percent".into(), percent);
        }
        if let Some(seconds_busy) = process {
            metrics.insert("process_cpu_percent".into(), seconds_busy * 100.0 / seconds);
        }
        let cost = match basis {
            Basis::Cpus => busy(|ticks| ticks.cpus),
            Basis::Process => process,
            Basis::Machine => busy(|ticks| ticks.machine),
        };
        if let Some(seconds_busy) = cost {
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

/// Read on the generator's thread, where generator and relay are on one machine.
pub struct Reading {
    cpus: Cpus,
    process: Option<u32>,
    opened: Option<Ticks>,
    closed: Option<Ticks>,
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
        Ticks::read(&self.cpus.sut, self.process)
    }

    /// `None` without a relay.
    pub fn cost(&self) -> Option<Cost> {
        let (opened, closed, _) = (self.opened?, self.closed?, self.process?);
        let shared = self.cpus.sut.contains(&self.cpus.generator);
        Some(Cost { opened, closed, basis: if shared { Basis::Process } else { Basis::Cpus } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_that_of_the_cpus_unless_the_generator_works_on_them_too() {
        let metrics = |generator: u32| {
            let cpus = Cpus { generator, receiver: generator, sut: vec![1] };
            let at = |busy, all, process| {
                Some(Ticks { cpus: Some((busy, all)), process: Some(process), machine: None })
            };
            let reading =
                Reading { cpus, process: Some(1), opened: at(100, 1000, 50), closed: at(200, 1200, 90) };
            reading.cost().expect("both ends were read").metrics(1_000_000, 2_000_000_000, 2.0)
        };
        let own = metrics(0);
        assert_eq!((own["sut_cpu_percent"], own["process_cpu_percent"]), (50.0, 20.0));
        assert_eq!((own["cpu_seconds_per_gb"], own["ns_per_packet"]), (0.5, 1000.0));
        let shared = metrics(1);
        assert_eq!(shared["cpu_seconds_per_gb"], 0.2);
        assert!(!shared.contains_key("sut_cpu_percent"));
    }

    #[test]
    fn the_cost_on_a_host_is_that_of_all_its_cpus() {
        let at =
            |busy, all| Ticks { cpus: Some((busy, 1000)), process: Some(busy), machine: Some((all, 1000)) };
        let cost = Cost { opened: at(0, 0), closed: at(10, 100), basis: Basis::Machine };
        assert_eq!(cost.metrics(1_000, 1_000_000_000, 1.0)["cpu_seconds_per_gb"], 1.0);
    }
}
