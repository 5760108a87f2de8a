//! Who runs where, and what the machine must allow.
//!
//! Default, by physical core: generator on the first, SUT on the second, receiver on the third; with
//! two cores generator and receiver share the first, and the SUT has a core to itself.

use std::path::Path;

use weir_io::cpu::{self, Topology};

use super::counters::cpu_ticks;
use crate::model::{LabError, Placement};

/// One CPU each for generator and receiver, any number for the SUT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus {
    pub generator: u32,
    pub receiver: u32,
    pub sut: Vec<u32>,
}

impl Cpus {
    pub fn choose(placement: &Placement) -> Result<Cpus, LabError> {
        let topology = Topology::read(Path::new(cpu::SYSFS)).map_err(|e| LabError::new(e.to_string()))?;
        let check = |cpus: &[u32]| {
            cpu::Placement::explicit(&topology, cpus)
                .map(drop)
                .map_err(|e| LabError::new(format!("placement: {e}")))
        };
        if !placement.cpus.is_empty() {
            check(&placement.cpus)?;
        }
        if !placement.generator_cpus.is_empty() {
            check(&placement.generator_cpus)?;
        }
        let cores = cpu::Placement::by_core(&topology, None).cpus;
        Ok(Cpus::among(&cores, placement))
    }

    /// `cores` holds at least one CPU, one of each physical core.
    fn among(cores: &[u32], placement: &Placement) -> Cpus {
        let core = |n: usize| cores[n.min(cores.len() - 1)];
        let (generator, receiver) = match placement.generator_cpus[..] {
            [] => (core(0), if cores.len() > 2 { core(2) } else { core(0) }),
            [both] => (both, both),
            [generator, receiver, ..] => (generator, receiver),
        };
        let sut = if placement.cpus.is_empty() { vec![core(1)] } else { placement.cpus.clone() };
        Cpus { generator, receiver, sut }
    }

    pub fn notes(&self) -> Vec<String> {
        let list = self.sut.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let mut notes = vec![format!(
            "cpus: generator {}, receiver {}, SUT {list} (reception of each veth end on its side's cpu)",
            self.generator, self.receiver
        )];
        if self.sut.iter().any(|&c| c == self.generator || c == self.receiver) {
            notes.push("SUT and load share a cpu: values say little about the SUT".into());
        }
        notes
    }

    pub fn sut_ticks(&self) -> Option<(u64, u64)> {
        cpu_ticks(&self.sut)
    }

    pub fn load_ticks(&self) -> Option<(u64, u64)> {
        let both = [self.generator, self.receiver];
        cpu_ticks(if self.generator == self.receiver { &both[..1] } else { &both })
    }
}

/// Busy share between two readings.
pub fn percent(before: Option<(u64, u64)>, after: Option<(u64, u64)>) -> Option<f64> {
    let ((busy0, all0), (busy1, all1)) = (before?, after?);
    (all1 > all0).then(|| (busy1 - busy0) as f64 * 100.0 / (all1 - all0) as f64)
}

/// Why this process cannot make namespaces and veth pairs, with the remedy.
pub fn missing_privilege() -> Option<String> {
    if !Path::new("/proc/self/ns/net").exists() {
        return Some("the kernel has no network namespaces (CONFIG_NET_NS): use one that has".into());
    }
    let probe = super::namespace::Namespace::new("probe")
        .and_then(|namespace| namespace.ip("link add probe0 type veth peer name probe1"));
    probe.err().map(|e| e.said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(cores: &[u32], sut: &[u32], load: &[u32]) -> (u32, u32, Vec<u32>) {
        let placement = Placement { cpus: sut.into(), generator_cpus: load.into(), ..Placement::default() };
        let cpus = Cpus::among(cores, &placement);
        (cpus.generator, cpus.receiver, cpus.sut)
    }

    #[test]
    fn sut_has_a_core_to_itself_when_there_are_two() {
        assert_eq!(chosen(&[0, 1], &[], &[]), (0, 0, vec![1]));
        assert_eq!(chosen(&[0, 2, 4, 6], &[], &[]), (0, 4, vec![2]));
        assert_eq!(chosen(&[0], &[], &[]), (0, 0, vec![0]));
    }

    #[test]
    fn explicit_cpus_are_taken_as_they_are() {
        assert_eq!(chosen(&[0, 1, 2, 3], &[2, 3], &[1]), (1, 1, vec![2, 3]));
        assert_eq!(chosen(&[0, 1, 2, 3], &[3], &[0, 2]), (0, 2, vec![3]));
    }
}
