//! `weir-lab profile cachesim`: cache misses a packet on machines that count none.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::run::aligned;
use crate::cachesim::{self, CacheSimulation, PerPacket};
use crate::experiment::{Changes, Experiment};
use crate::format::digits;
use crate::model::LabError;
use crate::testbed::memory::MemoryTestbed;

const AFTER: &str = "\
Examples:
  weir-lab profile cachesim labs/route-table-size.toml --only 'inet-*'
  weir-lab profile cachesim labs/forwarding-flows.toml --ll 41943040,20,64     a last level of 40 MiB

Values are simulated (cachegrind): two levels of cache with perfect LRU, no prefetcher, no other core, no
kernel. They show what the size and reuse of the data force, not what this machine measures. Use a release
build; tables of a million routes take minutes to build under simulation.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Cachesim {
    /// The experiment; its configurations on the memory topology are simulated.
    file: PathBuf,
    /// Only these configurations (and their baselines); `*` stands for anything.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// The experiment's smoke values.
    #[arg(long)]
    quick: bool,
    /// Packets that count, after one of every flow.
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    packets: u64,
    /// First-level data cache: size, associativity, line in bytes [default: this machine's].
    #[arg(long, value_name = "SIZE,WAYS,LINE")]
    d1: Option<String>,
    /// Last-level cache, likewise.
    #[arg(long, value_name = "SIZE,WAYS,LINE")]
    ll: Option<String>,
    /// Print one JSON document, for programs.
    #[arg(long)]
    json: bool,
    /// What runs inside the simulation: passes --packets packets of one configuration and ends.
    #[arg(long, value_name = "NAME", hide = true)]
    inside: Option<String>,
}

impl Cachesim {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let changes = Changes { quick: self.quick, only: self.only.clone(), ..Changes::default() };
        let experiment = Experiment::load(&self.file, &changes)?;
        if let Some(name) = &self.inside {
            inside(&experiment, name, self.packets)?;
            return Ok(ExitCode::SUCCESS);
        }
        cachesim::valgrind()?;
        let program = std::env::current_exe()
            .map_err(|e| LabError::new(format!("weir-lab: {e}; its own program was not found")))?;
        let mut all = Vec::new();
        for planned in &experiment.configurations {
            let configuration = &planned.configuration;
            if let Some(lacks) = cachesim::missing(configuration) {
                eprintln!("skipped {}: {lacks}", configuration.name);
                continue;
            }
            eprintln!("{}: three runs under cachegrind", configuration.name);
            let plan = CacheSimulation {
                program: program.clone(),
                arguments: cachesim::arguments(&self.file, &configuration.name, self.quick),
                packets: self.packets,
                d1: self.d1.clone(),
                ll: self.ll.clone(),
            };
            all.push(cachesim::simulate(&plan, configuration)?);
        }
        let text = if self.json {
            serde_json::to_string_pretty(&all).map_err(|e| LabError::new(format!("json: {e}")))? + "\n"
        } else {
            show(&all)
        };
        // a reader that went away (a closed pipe) wants no more
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(if all.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn show(all: &[PerPacket]) -> String {
    let Some(first) = all.first() else { return String::new() };
    let mut rows = vec![
        ["configuration", "instructions", "data", "D1 misses ±", "LL loads", "LL misses ±", "LL miss rate"]
            .map(String::from),
    ];
    for one in all {
        rows.push([
            one.configuration.clone(),
            format!("{:.1}", one.instructions),
            format!("{:.1}", one.data_references),
            format!("{} ± {}", thousandths(one.d1_misses), digits(one.d1_noise)),
            thousandths(one.ll_references),
            format!("{} ± {}", thousandths(one.ll_misses), digits(one.ll_noise)),
            one.ll_miss_percent.map_or("–".into(), |p| format!("{p:.1} %")),
        ]);
    }
    format!(
        "simulated (cachegrind), a packet each over {} packets\n{}\n\n{}",
        first.packets,
        first.caches.join("\n"),
        aligned(&rows)
    )
}

/// What rounds to nothing has no sign.
fn thousandths(value: f64) -> String {
    if value.abs() < 0.0005 { "0.000".into() } else { format!("{value:.3}") }
}

/// Passes `packets` packets of a configuration: what runs inside the simulation.
fn inside(experiment: &Experiment, name: &str, packets: u64) -> Result<(), LabError> {
    let mut planned = experiment.configurations.iter().map(|p| &p.configuration);
    let configuration = planned.find(|c| c.name == name).ok_or_else(|| {
        LabError::new(format!("{name}: no configuration of that name in {}", experiment.name))
    })?;
    let ledger = MemoryTestbed::default().pass(configuration, packets)?;
    match ledger.delivered {
        0 => Err(LabError::new(format!("{name}: nothing was delivered; drops {:?}", ledger.drops))),
        _ => Ok(()),
    }
}
