//! A simulated cache, where the machine shows no counters: valgrind's cachegrind on the memory topology.
//!
//! ```text
//! valgrind weir-lab … (a packets)      ┐ start-up is in both:
//! valgrind weir-lab … (a packets)      ├─► (long − short) / b = per packet; short − short = what it is worth
//! valgrind weir-lab … (a + b packets)  ┘
//! ```
//!
//! What it is: two levels, first and last, inclusive, physically perfect LRU, without prefetchers, other
//! cores or a kernel. Misses it shows are those the data's size and reuse force; a machine's own differ.
//!
//! Promises: values carry its name; packets are passed by the code of the memory topology. Refuses: other
//! topologies, values below the noise of start-up without saying so.
//!
//! Source: Valgrind manual, chapter 5, "Cachegrind".

pub mod live;
mod output;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::model::{Configuration, LabError, Topology};
pub use output::Totals;

/// Packets before those that count: each flow has been seen once.
const WARM_UP: u64 = 1000;
const INSTALL: &str = "install Debian's valgrind";
/// What valgrind says of an instruction it does not know.
const UNKNOWN_INSTRUCTION: &str = "nrecognised instruction";

/// What to simulate.
#[derive(Clone, Debug)]
pub struct CacheSimulation {
    /// The program that passes packets when asked to: this one.
    pub program: PathBuf,
    /// Its arguments up to the number of packets; the configuration's name comes first.
    pub arguments: Vec<OsString>,
    /// Packets that count.
    pub packets: u64,
    /// `size,associativity,line` in bytes; absent: those cachegrind takes from this machine.
    pub d1: Option<String>,
    pub ll: Option<String>,
}

/// Simulated, a packet each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerPacket {
    pub configuration: String,
    pub packets: u64,
    pub instructions: f64,
    pub data_references: f64,
    pub d1_misses: f64,
    /// What the first level did not hold: instructions and data.
    pub ll_references: f64,
    pub ll_misses: f64,
    /// The share of references to the last level that missed it.
    pub ll_miss_percent: Option<f64>,
    /// How far two equal short runs were apart, spread over the packets: values below it say nothing.
    pub d1_noise: f64,
    pub ll_noise: f64,
    /// The caches simulated, as cachegrind describes them.
    pub caches: Vec<String>,
}

/// Why `configuration` cannot be simulated.
pub fn missing(configuration: &Configuration) -> Option<String> {
    (configuration.topology() != Topology::Memory).then(|| {
        "only the memory topology can be simulated: cachegrind sees one process and no kernel".into()
    })
}

/// Whether there is a valgrind to run, with the remedy.
pub fn valgrind() -> Result<(), LabError> {
    let found =
        Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(LabError::new(format!("valgrind: ended with {status}; {INSTALL}"))),
        Err(e) => Err(LabError::new(format!("valgrind: {e}; {INSTALL}"))),
    }
}

pub fn simulate(plan: &CacheSimulation, configuration: &Configuration) -> Result<PerPacket, LabError> {
    let warm_up = WARM_UP.max(configuration.workload.flows.into());
    let run = |packets| once(plan, &configuration.name, packets);
    let (short, again, long) = (run(warm_up)?, run(warm_up)?, run(warm_up + plan.packets)?);
    let packets = plan.packets.max(1) as f64;
    let per = |metric: &dyn Fn(&Totals) -> u64| (metric(&long) as f64 - metric(&short) as f64) / packets;
    let noise = |metric: &dyn Fn(&Totals) -> u64| metric(&again).abs_diff(metric(&short)) as f64 / packets;
    let (ll_references, ll_misses) = (per(&Totals::ll_references), per(&Totals::ll_misses));
    Ok(PerPacket {
        configuration: configuration.name.clone(),
        packets: plan.packets,
        instructions: per(&|t| t.instructions),
        data_references: per(&|t| t.data_references),
        d1_misses: per(&|t| t.d1_misses),
        ll_references,
        ll_misses,
        ll_miss_percent: (ll_references > noise(&Totals::ll_references))
            .then(|| (100.0 * ll_misses / ll_references).clamp(0.0, 100.0)),
        d1_noise: noise(&|t| t.d1_misses),
        ll_noise: noise(&Totals::ll_misses),
        caches: long.caches,
    })
}

/// One run under cachegrind.
fn once(plan: &CacheSimulation, name: &str, packets: u64) -> Result<Totals, LabError> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file =
        Scratch(std::env::temp_dir().join(format!("weir-lab-cachesim-{}-{number}", std::process::id())));
    let mut command = Command::new("valgrind");
    command.args(["--tool=cachegrind", "--cache-sim=yes"]);
    command.arg(format!("--cachegrind-out-file={}", file.0.display()));
    command.args(plan.d1.iter().map(|d1| format!("--D1={d1}")));
    command.args(plan.ll.iter().map(|ll| format!("--LL={ll}")));
    command.arg(&plan.program).args(&plan.arguments).arg(packets.to_string());
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| LabError::new(format!("valgrind: {e}; {INSTALL}")))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let remedy = match said.contains(UNKNOWN_INSTRUCTION) {
            true => {
                "this valgrind does not know an instruction of the program: build without `-C target-cpu`"
            }
            // valgrind's own lines come last and say nothing of why
            false => {
                let own = |l: &&str| l.trim().is_empty() || l.starts_with("==");
                said.lines().rev().find(|l| !own(l)).unwrap_or("it said nothing")
            }
        };
        return Err(LabError::new(format!("{name}: valgrind ended with {}: {remedy}", done.status)));
    }
    let text = std::fs::read_to_string(&file.0)
        .map_err(|e| LabError::new(format!("{name}: {}: {e}", file.0.display())))?;
    output::parse(&text).map_err(|e| LabError::new(format!("{name}: {e}")))
}

/// A file that goes away with its owner.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // it may never have been written
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Arguments with which `program` passes packets of `name` in `file`.
pub fn arguments(file: &Path, name: &str, quick: bool) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        vec!["profile".into(), "cachesim".into(), file.into(), "--inside".into(), name.into()];
    if quick {
        arguments.push("--quick".into());
    }
    arguments.push("--packets".into());
    arguments
}
