//! A process whose caches are simulated while it serves others: valgrind's callgrind, steered from outside.
//!
//! ```text
//! start (uncounted) ─► begin ─► warm-up ─► zero ─► window ─► totals
//! ```
//!
//! What it is: the process's own code, a first level and a last one, perfect LRU; no kernel, no prefetcher, and time
//! that passes some fifty times slower. The last level simulated is the second of this machine's core, which is the
//! core's own; a shared third level is everybody's.
//!
//! Promises: values are of the window alone. Refuses: to wait for a process that has ended.
//!
//! Source: Valgrind manual, chapter 6, "Callgrind", and its program `callgrind_control`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::output::{self, Totals};
use crate::model::LabError;

const CONTROL: &str = "callgrind_control";
const FILE: &str = "callgrind.out";
/// Bytes of a cache line in cachegrind's and callgrind's simulation.
const LINE: u32 = 64;

/// The command that runs `program` under simulation; its output goes to `folder`.
pub fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--cache-sim=yes", "--instr-atstart=no"]);
    command.arg(format!("--callgrind-out-file={}", folder.join(FILE).display()));
    command.args(second_level().map(|level| format!("--LL={level}")));
    command.arg(program);
    command
}

/// The second level of the first core: size, associativity, line.
fn second_level() -> Option<String> {
    let of = |what: &str| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index2/{what}")).ok()
    };
    let size = of("size")?.trim().strip_suffix('K')?.parse::<u64>().ok()? * 1024;
    let ways: u64 = of("ways_of_associativity")?.trim().parse().ok()?;
    // What the simulation can do: sets in a power of two.
    let sets = size.checked_div(ways * u64::from(LINE))?;
    sets.is_power_of_two().then(|| format!("{size},{ways},{LINE}"))
}

/// A simulated process.
#[derive(Clone, Debug)]
pub struct Live {
    process: u32,
    folder: PathBuf,
}

impl Live {
    /// The process that [`command`] became, with the same folder.
    pub fn new(process: u32, folder: &Path) -> Live {
        Live { process, folder: folder.to_owned() }
    }

    /// Simulates from now on; before, code only ran slowly.
    pub fn begin(&self) -> Result<(), LabError> {
        self.control(&["-i", "on"])
    }

    /// What counted so far does not count.
    pub fn zero(&self) -> Result<(), LabError> {
        self.control(&["-z"])
    }

    /// What counted since.
    pub fn totals(&self) -> Result<Totals, LabError> {
        let before = self.dumps();
        self.control(&["-d"])?;
        let newest = self.dumps().into_iter().rfind(|dump| !before.contains(dump));
        let newest =
            newest.ok_or_else(|| LabError::new(format!("{CONTROL} -d: left no file; has it ended?")))?;
        let text = std::fs::read_to_string(&newest)
            .map_err(|e| LabError::new(format!("{}: {e}", newest.display())))?;
        output::parse(&text)
    }

    fn dumps(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_dump = |name: &str| name.strip_prefix(FILE).is_some_and(|rest| rest.len() > 1);
        let mut dumps: Vec<PathBuf> =
            entries.filter(|e| e.file_name().to_str().is_some_and(is_dump)).map(|e| e.path()).collect();
        dumps.sort();
        dumps
    }

    fn control(&self, arguments: &[&str]) -> Result<(), LabError> {
        let done = Command::new(CONTROL)
            .args(arguments)
            .arg(self.process.to_string())
            .stdin(Stdio::null())
            .output()
            .map_err(|e| LabError::new(format!("{CONTROL}: {e}; {}", super::INSTALL)))?;
        let said =
            String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        // Its status is 0 when nobody listens, too.
        if said.contains("OK.") {
            return Ok(());
        }
        let why = said.trim().lines().last().unwrap_or("it said nothing").to_owned();
        Err(LabError::new(format!("{CONTROL} {}: {why}", arguments.join(" "))))
    }
}
