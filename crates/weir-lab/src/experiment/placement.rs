//! Placements by name, so that one experiment file fits every machine.
//!
//! | word | CPUs |
//! |---|---|
//! | `default` | the subject's own choice |
//! | `first-core`, `last-core` | first thread of that core |
//! | `two-cores` | first threads of the first two cores |
//! | `sibling-pair` | both threads of the first core |
//! | `every-core` | first thread of every core |
//! | `every-thread` | every online CPU |
//! | `0-1,3` | exactly these |

use weir_io::cpu::{self, Topology as Machine};

use crate::model::{Configuration, Subject, Topology};

pub const WORDS: &str = "default, first-core, last-core, two-cores, sibling-pair, every-core, every-thread or a list such as 0-1,3";

/// The CPUs a word means on this machine; the error says what the machine lacks.
pub fn resolve(word: &str, machine: &Machine) -> Result<Vec<u32>, String> {
    let cores: Vec<u32> =
        machine.cpus.iter().filter(|c| c.siblings.first() == Some(&c.id)).map(|c| c.id).collect();
    let first = |n: usize| {
        cores.get(..n).map(<[u32]>::to_vec).ok_or_else(|| {
            format!("cpus {word}: needs {n} cores, this machine has {}: run it on a larger one", cores.len())
        })
    };
    match word {
        "default" => Ok(Vec::new()),
        "first-core" => first(1),
        "two-cores" => first(2),
        "last-core" => Ok(cores.last().map(|&c| vec![c]).unwrap_or_default()),
        "every-core" => Ok(cores),
        "every-thread" => Ok(machine.cpus.iter().map(|c| c.id).collect()),
        "sibling-pair" => machine.cpus.iter().find(|c| c.siblings.len() > 1).map_or_else(
            || Err("cpus sibling-pair: no core here has a second hardware thread online: run it on a machine with SMT switched on".into()),
            |c| Ok(c.siblings[..2].to_vec()),
        ),
        list => {
            let ids = cpu::parse_list(list).unwrap_or_default();
            let lost = ids.iter().find(|&&id| !machine.cpus.iter().any(|c| c.id == id));
            match lost {
                Some(id) => Err(format!("cpus {list}: cpu {id} is not online here: name others")),
                None => Ok(ids),
            }
        }
    }
}

/// What means nothing together.
pub fn refuse(c: &Configuration) -> Result<(), String> {
    let refused = |message: &str| Err(format!("configuration {}: {message}", c.name));
    let placement = &c.placement;
    if c.topology != Topology::Netns && (placement.queues > 0 || !placement.wake_up.is_empty()) {
        return refused("`queues` and `wake_up` are of the netns topology: remove them");
    }
    if !placement.wake_up.is_empty() && c.subject != Subject::Weir {
        return refused("`wake_up` is of subject \"weir\": remove it");
    }
    let in_kernel = match c.subject {
        Subject::Weir => placement.port == "tun",
        other => [Subject::Strongswan, Subject::Ceiling].contains(&other),
    };
    if placement.offload && (c.topology != Topology::Gateways || !in_kernel) {
        return refused(
            "`offload` is of gateways whose inner wires are the kernel's (strongswan, weir with port = \"tun\"): remove it",
        );
    }
    Ok(())
}

/// Whether `word` means something on some machine.
pub fn is_word(word: &str) -> bool {
    const NAMED: [&str; 7] =
        ["default", "first-core", "last-core", "two-cores", "sibling-pair", "every-core", "every-thread"];
    NAMED.contains(&word) || cpu::parse_list(word).is_some_and(|ids| !ids.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_io::cpu::Cpu;

    fn machine(cores: u32, threads: u32) -> Machine {
        let cpu = |id: u32| Cpu {
            id,
            package: 0,
            core: id % cores,
            siblings: (0..threads).map(|t| id % cores + t * cores).collect(),
            isolated: false,
        };
        Machine { cpus: (0..cores * threads).map(cpu).collect() }
    }

    #[test]
    fn words_mean_the_cpus_of_this_machine() {
        let smt = machine(4, 2);
        assert_eq!(resolve("sibling-pair", &smt), Ok(vec![0, 4]));
        assert_eq!(resolve("two-cores", &smt), Ok(vec![0, 1]));
        assert_eq!(resolve("last-core", &smt), Ok(vec![3]));
        assert_eq!(resolve("every-core", &smt), Ok(vec![0, 1, 2, 3]));
        assert_eq!(resolve("every-thread", &smt).expect("all").len(), 8);
        assert_eq!(resolve("1,6", &smt), Ok(vec![1, 6]));
    }

    #[test]
    fn what_the_machine_lacks_is_said_with_the_remedy() {
        let plain = machine(1, 1);
        assert!(resolve("sibling-pair", &plain).expect_err("no SMT").contains("SMT switched on"));
        assert!(resolve("two-cores", &plain).expect_err("one core").contains("has 1"));
        assert!(resolve("7", &plain).expect_err("offline").contains("cpu 7 is not online"));
        assert!(!is_word("everything") && is_word("0-3"));
    }
}
