//! What differs between the machine and build a campaign began on and those at hand.
//!
//! Promises: names whatever can change a value (processor, kernel, mitigations, clock, compiler, flags,
//! source), each with both values. Leaves out what changes by itself: load, the measured TSC rate, a few
//! pages of memory.

use std::collections::BTreeMap;

use crate::build::Build;
use crate::machine::{Machine, Priority};

/// The kernel keeps a varying part of memory to itself at boot: less than this share is no difference.
const MEMORY_SHARE: f64 = 0.01;

/// Collects `what: then → now`.
struct Differences(Vec<String>);

impl Differences {
    fn of<T: PartialEq + Value>(&mut self, what: &str, then: &T, now: &T) {
        if then != now {
            self.0.push(format!("{what}: {} → {}", then.shown(), now.shown()));
        }
    }
}

/// A value as a person writes it: text in quotes, since it has spaces.
trait Value {
    fn shown(&self) -> String;
}

impl Value for String {
    fn shown(&self) -> String {
        format!("\"{self}\"")
    }
}

impl Value for usize {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Value for u64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    fn shown(&self) -> String {
        if *self { "yes" } else { "no" }.into()
    }
}

impl Value for Vec<u32> {
    fn shown(&self) -> String {
        if self.is_empty() {
            return "none".into();
        }
        self.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl Value for Priority {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl<T: Value> Value for &T {
    fn shown(&self) -> String {
        (*self).shown()
    }
}

impl<T: Value> Value for Option<T> {
    fn shown(&self) -> String {
        self.as_ref().map_or_else(|| "unknown".into(), T::shown)
    }
}

pub fn machines(then: &Machine, now: &Machine) -> Vec<String> {
    let mut d = Differences(Vec::new());
    d.of("processor", &then.cpu, &now.cpu);
    d.of("microcode", &then.microcode, &now.microcode);
    d.of("threads", &then.threads, &now.threads);
    d.of("cores", &then.cores, &now.cores);
    d.of("SMT", &then.smt, &now.smt);
    d.of("isolated CPUs", &then.isolated_cpus, &now.isolated_cpus);
    d.of("governor", &then.governor, &now.governor);
    d.of("turbo", &then.turbo, &now.turbo);
    d.of("virtual", &then.virtualisation, &now.virtualisation);
    d.of("kernel", &then.kernel, &now.kernel);
    d.of("kernel parameters", &then.cmdline, &now.cmdline);
    d.of("distribution", &then.distribution, &now.distribution);
    d.of("huge pages", &then.transparent_huge_pages, &now.transparent_huge_pages);
    d.of("clock source", &then.clocksource, &now.clocksource);
    d.of("OPENSSL_ia32cap", &then.instructions_withheld, &now.instructions_withheld);
    if then.priority.is_some() {
        d.of("priority", &then.priority, &now.priority);
    }
    let names =
        then.mitigations.keys().chain(now.mitigations.keys().filter(|k| !then.mitigations.contains_key(*k)));
    for name in names {
        d.of(&format!("mitigation {name}"), &then.mitigations.get(name), &now.mitigations.get(name));
    }
    let tools = then.tools.keys().chain(now.tools.keys().filter(|k| !then.tools.contains_key(*k)));
    for tool in tools {
        d.of(tool, &then.tools.get(tool), &now.tools.get(tool));
    }
    if let (Some(a), Some(b)) = (then.memory_bytes, now.memory_bytes)
        && (a as f64 - b as f64).abs() > MEMORY_SHARE * a as f64
    {
        d.of("memory, bytes", &a, &b);
    }
    d.0
}

/// What changed of the machines that took part beside this one. One that does not answer is no difference: its runs fail.
pub fn other_machines(then: &BTreeMap<String, Machine>, now: &BTreeMap<String, Machine>) -> Vec<String> {
    let both = then.iter().filter_map(|(part, then)| Some((part, then, now.get(part)?)));
    both.flat_map(|(part, then, now)| machines(then, now).into_iter().map(move |d| format!("{part}: {d}")))
        .collect()
}

pub fn builds(then: &Build, now: &Build) -> Vec<String> {
    let mut d = Differences(Vec::new());
    d.of("weir-lab", &then.version, &now.version);
    d.of("commit", &then.commit, &now.commit);
    d.of("compiler", &then.rustc, &now.rustc);
    d.of("flags", &then.flags, &now.flags);
    d.of("profile", &then.profile, &now.profile);
    d.of("optimisation", &then.opt_level, &now.opt_level);
    d.of("target", &then.target, &now.target);
    for (program, mark) in &then.programs {
        if let Some(now) = now.programs.get(program) {
            d.of(&format!("bytes of {program}"), mark, now);
        }
    }
    for (peer, version) in &then.peers {
        if let Some(now) = now.peers.get(peer) {
            d.of(peer, version, now);
        }
    }
    d.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_by_itself_is_no_difference_and_a_new_kernel_is_one() {
        let then = Machine { kernel: "6.1".into(), memory_bytes: Some(1_000_000), ..Machine::default() };
        let mut now =
            Machine { load_1min: Some(9.0), tsc_hz: Some(1), memory_bytes: Some(1_000_900), ..then.clone() };
        assert_eq!(machines(&then, &now), Vec::<String>::new());
        now.kernel = "6.2".into();
        now.memory_bytes = Some(500_000);
        now.mitigations.insert("retbleed".into(), "Vulnerable".into());
        assert_eq!(
            machines(&then, &now),
            [
                "kernel: \"6.1\" → \"6.2\"",
                "mitigation retbleed: unknown → \"Vulnerable\"",
                "memory, bytes: 1000000 → 500000"
            ]
        );
    }

    #[test]
    fn values_are_told_as_a_person_writes_them() {
        let then = Machine { microcode: Some("0x1".into()), turbo: Some(true), ..Machine::default() };
        let priority = Some(Priority { nice: -5, group_nice: None, policy: 1 });
        let usual = Some(Priority { nice: 0, group_nice: None, policy: 0 });
        let then = Machine { priority: usual, isolated_cpus: vec![2, 3], ..then };
        let now = Machine { microcode: None, turbo: Some(false), priority, ..then.clone() };
        let now = Machine { isolated_cpus: Vec::new(), smt: true, threads: 4, ..now };
        let now = Machine { instructions_withheld: Some(":~0x10000".into()), ..now };
        assert_eq!(
            machines(&then, &now),
            [
                "microcode: \"0x1\" → unknown",
                "threads: 0 → 4",
                "SMT: no → yes",
                "isolated CPUs: 2, 3 → none",
                "turbo: yes → no",
                "OPENSSL_ia32cap: unknown → \":~0x10000\"",
                "priority: nice 0 → nice -5, SCHED_FIFO",
            ]
        );
    }

    #[test]
    fn another_kernel_on_another_host_is_said_with_its_part_and_a_silent_host_is_not() {
        let host = |kernel: &str| Machine { kernel: kernel.into(), ..Machine::default() };
        let then = [("receiver".to_string(), host("6.1")), ("generator".to_string(), host("6.1"))].into();
        let now = [("receiver".to_string(), host("6.2"))].into();
        assert_eq!(other_machines(&then, &now), ["receiver: kernel: \"6.1\" → \"6.2\""]);
    }

    #[test]
    fn another_commit_or_profile_is_another_build() {
        let then = Build::own();
        let now = Build { commit: "0123456789ab".into(), opt_level: "9".into(), ..then.clone() };
        let found = builds(&then, &now);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("commit: ") && found[1].starts_with("optimisation: "), "{found:?}");
        let with = |mark: &str| {
            let programs = [("weir".to_string(), mark.to_string())].into();
            Build { programs, ..Build::own() }
        };
        assert_eq!(builds(&with("1"), &with("2")), ["bytes of weir: \"1\" → \"2\""]);
        // manifests from before programs were marked
        assert!(builds(&Build::own(), &with("2")).is_empty());
    }
}
