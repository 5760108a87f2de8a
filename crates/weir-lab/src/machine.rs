//! The machine an experiment ran on.
//!
//! Refuses: names of hosts, users and addresses; what the kernel does not tell is absent, never guessed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_io::{clock, cpu};

pub mod nearness;
mod priority;

pub use priority::Priority;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name, family and model: virtual machines of very different processors have one name.
    pub cpu: String,
    pub microcode: Option<String>,
    pub threads: usize,
    pub cores: usize,
    pub smt: bool,
    pub isolated_cpus: Vec<u32>,
    pub governor: Option<String>,
    /// Whether the processor may leave its nominal clock.
    pub turbo: Option<bool>,
    pub memory_bytes: Option<u64>,
    /// `hypervisor` when the processor says it is virtual, with the product's name if there is one.
    pub virtualisation: Option<String>,
    pub kernel: String,
    pub cmdline: String,
    pub distribution: Option<String>,
    /// Vulnerability → what the kernel does about it.
    pub mitigations: BTreeMap<String, String>,
    pub transparent_huge_pages: Option<String>,
    pub clocksource: Option<String>,
    /// Measured against CLOCK_MONOTONIC.
    pub tsc_hz: Option<u64>,
    /// Work of others in the last minute, in CPUs, when the campaign began.
    pub load_1min: Option<f64>,
    /// Absent from campaigns of before it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// `OPENSSL_ia32cap`, where it is set: it keeps aws-lc, and what else asks it, from some of this processor's instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions_withheld: Option<String>,
    /// Tool → first line of its version.
    pub tools: BTreeMap<String, String>,
}

impl Machine {
    /// Observes the machine this runs on. Takes some 20 ms, for the clock.
    pub fn observe() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let topology = cpu::Topology::read(Path::new(cpu::SYSFS)).ok();
        Machine {
            cpu: processor(&cpuinfo),
            microcode: field(&cpuinfo, "microcode"),
            threads: topology.as_ref().map_or(0, |t| t.cpus.len()),
            cores: topology.as_ref().map_or(0, |t| t.cores()),
            smt: topology.as_ref().is_some_and(|t| t.smt()),
            isolated_cpus: topology
                .map_or(Vec::new(), |t| t.cpus.iter().filter(|c| c.isolated).map(|c| c.id).collect()),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            turbo: turbo(),
            memory_bytes: memory_bytes(),
            virtualisation: virtualisation(&cpuinfo),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            cmdline: kernel_parameters(&line("/proc/cmdline").unwrap_or_default()),
            distribution: distribution(),
            mitigations: mitigations(),
            transparent_huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled")
                .map(|l| bracketed(&l)),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            tsc_hz: tsc_hz(),
            load_1min: line("/proc/loadavg").and_then(|l| l.split(' ').next()?.parse().ok()),
            priority: Priority::observe(),
            instructions_withheld: std::env::var("OPENSSL_ia32cap").ok(),
            tools: tools(),
        }
    }
}

/// Says on the kernel's command line that this machine's clock counts instructions, one each nanosecond (QEMU's `-icount shift=0`).
const CLOCK_OF_INSTRUCTIONS: &str = "weir.clock=instructions";

/// Whether time here is the number of instructions executed.
pub fn counts_instructions() -> bool {
    line("/proc/cmdline").is_some_and(|all| all.split(' ').any(|one| one == CLOCK_OF_INSTRUCTIONS))
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// `2026-01-31 23:59:59 UTC` (civil calendar from days, Hinnant 2013).
pub fn utc(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let days = (seconds / 86_400) as i64 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02} UTC")
}

/// First line of a file of the kernel's.
pub fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_string())
}

/// `AMD EPYC, family 26 model 2`.
fn processor(cpuinfo: &str) -> String {
    let name = field(cpuinfo, "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    match (field(cpuinfo, "cpu family"), field(cpuinfo, "model")) {
        (Some(family), Some(model)) => format!("{name}, family {family} model {model}"),
        _ => name,
    }
}

fn field(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
    line.split_once(':').map(|(_, value)| value.trim().to_string())
}

/// The choice in `always [madvise] never`.
fn bracketed(line: &str) -> String {
    line.split_once('[').and_then(|(_, r)| r.split_once(']')).map_or(line, |(word, _)| word).to_string()
}

/// What is meant for the kernel; behind ` -- ` stands what is meant for init.
fn kernel_parameters(cmdline: &str) -> String {
    cmdline.split(" -- ").next().unwrap_or_default().to_string()
}

fn turbo() -> Option<bool> {
    match line("/sys/devices/system/cpu/intel_pstate/no_turbo").as_deref() {
        Some(word) => Some(word == "0"),
        None => line("/sys/devices/system/cpu/cpufreq/boost").map(|word| word == "1"),
    }
}

fn memory_bytes() -> Option<u64> {
    let kib = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")?;
    kib.split(' ').next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn virtualisation(cpuinfo: &str) -> Option<String> {
    let flags = field(cpuinfo, "flags")?;
    flags.split(' ').any(|f| f == "hypervisor").then(|| {
        let product = line("/sys/class/dmi/id/product_name");
        product.map_or("hypervisor".into(), |p| format!("hypervisor ({p})"))
    })
}

fn distribution() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let value = text.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_string())
}

fn mitigations() -> BTreeMap<String, String> {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let state = line(&e.path().to_string_lossy())?;
            Some((e.file_name().to_string_lossy().into_owned(), state))
        })
        .collect()
}

fn tsc_hz() -> Option<u64> {
    const NANOSECONDS: u64 = 20_000_000;
    let (start, ticks) = (clock::now(), clock::ticks()?);
    let mut now = start;
    while now - start < NANOSECONDS {
        now = clock::now();
    }
    let counted = u128::from(clock::ticks()?.wrapping_sub(ticks));
    Some((counted * 1_000_000_000 / u128::from(now - start)) as u64)
}

fn tools() -> BTreeMap<String, String> {
    [("ip", "-V")].into_iter().filter_map(|(tool, flag)| Some((tool.into(), version(tool, flag)?))).collect()
}

/// First line a program says of itself; `None` when there is no such program, or it says nothing.
pub fn version(program: impl AsRef<OsStr>, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).stdin(Stdio::null()).output().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let line = String::from_utf8_lossy(&text).lines().next()?.trim().to_string();
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        // date -u -d @… of coreutils
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_798_761_599_999), "2026-12-31 23:59:59 UTC");
    }

    #[test]
    fn the_machine_is_described_without_naming_it() {
        let machine = Machine::observe();
        assert!(!machine.cpu.is_empty() && !machine.kernel.is_empty() && machine.threads > 0);
        assert!(machine.cores <= machine.threads);
        let json = serde_json::to_string(&machine).expect("plain data");
        if let Some(host) = line("/proc/sys/kernel/hostname").filter(|h| h.len() > 6) {
            assert!(!json.contains(&host), "the manifest names the host");
        }
    }

    #[test]
    fn choices_and_fields_are_read_as_the_kernel_writes_them() {
        assert_eq!(kernel_parameters("quiet mitigations=off -- --init-flag"), "quiet mitigations=off");
        assert_eq!(bracketed("always [madvise] never"), "madvise");
        assert_eq!(field("processor\t: 0\nmodel name\t: A B\n", "model name").as_deref(), Some("A B"));
    }
}
