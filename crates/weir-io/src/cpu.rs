//! Which CPUs there are, how they share cores, and where workers go.
//!
//! The topology is read from a sysfs tree whose root is a parameter, so placement is tested against
//! recorded trees of machines of other shapes. Default: one worker per *physical* core, on its first
//! hardware thread, siblings left idle (work on siblings slowed forwarding by 11 % in a published
//! hyper-threading campaign), CPUs isolated from the scheduler first when there are any. An explicit
//! list is obeyed or refused, never mended.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// Where the running kernel keeps it.
pub const SYSFS: &str = "/sys/devices/system/cpu";

/// One online CPU (a hardware thread).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub id: u32,
    pub package: u32,
    /// Core id: unique inside its package only.
    pub core: u32,
    /// The hardware threads of its core, itself included, in order.
    pub siblings: Vec<u32>,
    /// Kept from the scheduler (`isolcpus`).
    pub isolated: bool,
}

/// The online CPUs of a machine, by id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub cpus: Vec<Cpu>,
}

/// Why a topology or a placement cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuError(String);

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CpuError {}

impl Topology {
    /// Reads the tree below `root` (usually [`SYSFS`]).
    pub fn read(root: &Path) -> Result<Topology, CpuError> {
        let online = read_list(root, "online")?;
        let isolated = read_list(root, "isolated").unwrap_or_default();
        let mut cpus = Vec::new();
        for &id in &online {
            let topology = root.join(format!("cpu{id}/topology"));
            let mut siblings = read_list(&topology, "thread_siblings_list").unwrap_or_else(|_| vec![id]);
            siblings.retain(|s| online.contains(s));
            cpus.push(Cpu {
                id,
                package: read_number(&topology, "physical_package_id").unwrap_or(0),
                core: read_number(&topology, "core_id").unwrap_or(id),
                siblings,
                isolated: isolated.contains(&id),
            });
        }
        if cpus.is_empty() {
            return Err(CpuError(format!("cpu topology: {} names no online cpu", root.display())));
        }
        Ok(Topology { cpus })
    }

    /// The CPUs this process may use, each as a core of its own: for where sysfs is not to be seen, as in some containers.
    pub fn of_process() -> Result<Topology, CpuError> {
        let path = "/proc/self/status";
        let text = fs::read_to_string(path)
            .map_err(|e| CpuError(format!("cpu topology: {path} cannot be read: {e}")))?;
        Topology::of_status(&text)
            .ok_or_else(|| CpuError(format!("cpu topology: {path} has no Cpus_allowed_list")))
    }

    fn of_status(text: &str) -> Option<Topology> {
        let allowed = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let alone = |id| Cpu { id, package: 0, core: id, siblings: vec![id], isolated: false };
        let cpus: Vec<Cpu> = parse_list(allowed)?.into_iter().map(alone).collect();
        (!cpus.is_empty()).then_some(Topology { cpus })
    }

    /// Physical cores with at least one online thread.
    pub fn cores(&self) -> usize {
        self.cpus.iter().map(|c| (c.package, c.siblings.first())).collect::<BTreeSet<_>>().len()
    }

    /// More threads than cores.
    pub fn smt(&self) -> bool {
        self.cores() < self.cpus.len()
    }

    fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.cpus.iter().find(|c| c.id == id)
    }
}

/// Where workers run, and why there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// One worker each, in worker order.
    pub cpus: Vec<u32>,
    /// One sentence for the operator.
    pub reason: String,
    /// What speaks against a requested placement, a sentence each.
    pub warnings: Vec<String>,
}

impl Placement {
    /// One worker on the first thread of each physical core, isolated cores only when there are any.
    pub fn by_core(topology: &Topology, at_most: Option<usize>) -> Placement {
        let first = |c: &&Cpu| c.siblings.first() == Some(&c.id);
        let isolated: Vec<&Cpu> = topology.cpus.iter().filter(|c| c.isolated).filter(first).collect();
        let (chosen, of): (Vec<&Cpu>, &str) = if isolated.is_empty() {
            (topology.cpus.iter().filter(first).collect(), "physical core")
        } else {
            (isolated, "isolated physical core")
        };
        let limit = at_most.unwrap_or(chosen.len()).max(1);
        let cpus: Vec<u32> = chosen.iter().map(|c| c.id).take(limit).collect();
        let idle = if topology.smt() { ", siblings left idle" } else { "" };
        let reason = format!(
            "{} worker{} on cpu {}: one per {of}{idle} ({} threads on {} cores online)",
            cpus.len(),
            if cpus.len() == 1 { "" } else { "s" },
            join(&cpus),
            topology.cpus.len(),
            topology.cores(),
        );
        Placement { cpus, reason, warnings: Vec::new() }
    }

    /// Exactly the CPUs asked for.
    pub fn explicit(topology: &Topology, wanted: &[u32]) -> Result<Placement, CpuError> {
        if wanted.is_empty() {
            return Err(CpuError("cpus: the list is empty; name at least one cpu or write \"auto\"".into()));
        }
        let mut warnings = Vec::new();
        let mut used: Vec<&Cpu> = Vec::new();
        for &id in wanted {
            let Some(cpu) = topology.cpu(id) else {
                let online: Vec<u32> = topology.cpus.iter().map(|c| c.id).collect();
                return Err(CpuError(format!("cpus: cpu {id} is not online; online are {}", join(&online))));
            };
            if used.iter().any(|u| u.id == id) {
                return Err(CpuError(format!(
                    "cpus: cpu {id} is named twice; a worker needs a cpu of its own"
                )));
            }
            if let Some(other) = used.iter().find(|u| u.siblings.contains(&id)) {
                warnings.push(format!(
                    "cpu {id} and cpu {} share one core: both workers will be slower",
                    other.id
                ));
            }
            used.push(cpu);
        }
        let workers = if wanted.len() == 1 { "1 worker".into() } else { format!("{} workers", wanted.len()) };
        let reason = format!("{workers} on cpu {}: as configured", join(wanted));
        Ok(Placement { cpus: wanted.to_vec(), reason, warnings })
    }
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: u32) -> io::Result<()> {
    if cpu as usize >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("cpu {cpu} is beyond CPU_SETSIZE")));
    }
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET stays inside it because `cpu` is below
    // CPU_SETSIZE; the kernel reads exactly the size passed.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Processors that this machine may come to have, those that are off counted.
pub fn possible() -> Option<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    Some(*parse_list(&list)?.last()? as usize + 1)
}

/// Reads `0-3,8,10-11`.
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut found = BTreeSet::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first > libc::CPU_SETSIZE as u32 {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found.into_iter().collect())
}

fn join(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn read_list(folder: &Path, name: &str) -> Result<Vec<u32>, CpuError> {
    let path = folder.join(name);
    let text = fs::read_to_string(&path)
        .map_err(|e| CpuError(format!("cpu topology: {} cannot be read: {e}", path.display())))?;
    parse_list(&text).ok_or_else(|| {
        CpuError(format!("cpu topology: {} holds `{}`, expected a cpu list", path.display(), text.trim()))
    })
}

fn read_number(folder: &Path, name: &str) -> Option<u32> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_sysfs_the_cpus_of_the_process_are_cores() {
        let topology = Topology::of_status("Name:\tweir\nCpus_allowed:\t13\nCpus_allowed_list:\t0-1,4\n");
        let placement = Placement::by_core(&topology.expect("a list"), None);
        assert_eq!(placement.cpus, [0, 1, 4]);
        assert!(Topology::of_status("Name:\tweir\n").is_none());
        assert!(Topology::of_process().is_ok_and(|topology| !topology.cpus.is_empty()));
    }
}
