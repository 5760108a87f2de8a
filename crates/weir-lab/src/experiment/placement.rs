//! Placements by name, so that one experiment file fits every machine.
//!
//! | word | CPUs |
//! |---|---|
//! | `default` | the SUT's own choice |
//! | `first-core`, `last-core` | first thread of that core |
//! | `two-cores` | first threads of the first two cores |
//! | `sibling-pair` | both threads of the first core |
//! | `every-core` | first thread of every core |
//! | `every-thread` | every online CPU |
//! | `0-1,3` | exactly these |

use weir_io::cpu::{self, Topology as Machine};

use super::error::CpusError;

pub const WORDS: &str = "default, first-core, last-core, two-cores, sibling-pair, every-core, every-thread or a list such as 0-1,3";

/// The CPUs a word means on this machine; the error says what the machine lacks.
pub fn resolve(word: &str, machine: &Machine) -> Result<Vec<u32>, CpusError> {
    let cores: Vec<u32> =
        machine.cpus.iter().filter(|c| c.siblings.first() == Some(&c.id)).map(|c| c.id).collect();
    let first = |n: usize| {
        let lack = || CpusError::Cores { word: word.into(), needs: n, has: cores.len() };
        cores.get(..n).map(<[u32]>::to_vec).ok_or_else(lack)
    };
    match word {
        "default" => Ok(Vec::new()),
        "first-core" => first(1),
        "two-cores" => first(2),
        "last-core" => Ok(cores.last().map(|&c| vec![c]).unwrap_or_default()),
        "every-core" => Ok(cores),
        "every-thread" => Ok(machine.cpus.iter().map(|c| c.id).collect()),
        "sibling-pair" => {
            let core = machine.cpus.iter().find(|c| c.siblings.len() > 1);
            core.map(|c| c.siblings[..2].to_vec()).ok_or(CpusError::NoSiblings)
        }
        list => {
            let ids = cpu::parse_list(list).unwrap_or_default();
            let lost = ids.iter().find(|&&id| !machine.cpus.iter().any(|c| c.id == id));
            match lost {
                Some(&cpu) => Err(CpusError::Offline { list: list.into(), cpu }),
                None => Ok(ids),
            }
        }
    }
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
        assert!(resolve("sibling-pair", &plain).expect_err("no SMT").to_string().contains("SMT switched on"));
        assert!(resolve("two-cores", &plain).expect_err("one core").to_string().contains("has 1"));
        assert!(resolve("7", &plain).expect_err("offline").to_string().contains("cpu 7 is not online"));
        assert!(!is_word("everything") && is_word("0-3"));
    }
}
