//! `weir-lab profile record`: what CPUs or a process are doing, as folded stacks and a flame graph.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use weir_io::clock;
use weir_io::perf_event::Target;

use super::run::stop_flag;
use crate::model::LabError;
use crate::profile::session::{FREQUENCY_HZ, Focus, Session, threads};
use crate::profile::{IDLE, INLINED, flame, folded, function};
use crate::store::write_whole;

const AFTER: &str = "\
Examples:
  weir-lab profile record --cpu 1 --seconds 5 --svg out.svg      everything on CPU 1; open out.svg in a browser
  weir-lab profile record --pid $(pidof weir) -o weir.folded     for flame graph tools, or to compare later

Callers are found without frame pointers, within the innermost 8 KiB of each stack.";

/// How long a look for Ctrl-C may be late.
const LOOK: Duration = Duration::from_millis(50);
/// Functions named on the terminal.
const SHOWN: usize = 12;

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Sample {
    /// CPUs to sample, kernel and idle time included; needs root or CAP_PERFMON.
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        required_unless_present = "pid",
        conflicts_with = "pid"
    )]
    cpu: Vec<u32>,
    /// Process to sample, with every thread it has and starts.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// How long; Ctrl-C ends it earlier.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// Samples a second and CPU.
    #[arg(long, value_name = "HZ", default_value_t = FREQUENCY_HZ, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    frequency: u32,
    /// File for the folded stacks.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// File for the flame graph, a page of its own.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Sample {
    pub fn go(self) -> Result<ExitCode, LabError> {
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            return Err(LabError::new(format!(
                "--seconds: got {}, expected more than 0, up to a day",
                self.seconds
            )));
        }
        let stop = stop_flag()?;
        let (target, focus, title) = match self.pid {
            Some(pid) => (Target::Threads(threads(pid)?), Focus::Process(pid), format!("process {pid}")),
            None => (Target::Cpus(self.cpu.clone()), Focus::All, format!("cpus {:?}", self.cpu)),
        };
        let session = Session::start(&target, focus, self.frequency, self.seconds)?;
        let began = clock::now();
        let end = began + (self.seconds * 1e9) as u64;
        while clock::now() < end && !stop.load(Ordering::Acquire) {
            std::thread::sleep(LOOK.min(Duration::from_nanos(end.saturating_sub(clock::now()))));
        }
        let ended = clock::now();
        let (mut header, profile) = session.finish(began..ended);
        header.seconds = (ended - began) as f64 / 1e9;
        if let Some(path) = &self.output {
            write_whole(path, &folded::write(&header, &profile)?)?;
        }
        if let Some(path) = &self.svg {
            write_whole(path, &flame::document(&flame::render(&profile, &title, &flame::plain)))?;
        }
        let written: Vec<&Path> =
            [&self.output, &self.svg].into_iter().flatten().map(PathBuf::as_path).collect();
        // a reader that went away (a closed pipe) has lost only this
        let _ = std::io::stdout().write_all(said(&header, &profile, &written).as_bytes());
        Ok(if header.samples == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// How it was sampled, the functions most often at work, and where the rest is.
fn said(header: &folded::Header, profile: &crate::profile::Profile, written: &[&Path]) -> String {
    let mut out = format!(
        "{} samples of {} at {} Hz in {:.1} s, {} lost, {} without a name\n",
        header.samples, header.event, header.frequency_hz, header.seconds, header.lost, header.unnamed
    );
    for note in &header.notes {
        out += &format!("! {note}\n");
    }
    let mut own = std::collections::BTreeMap::<&str, u64>::new();
    for (stack, n) in &profile.stacks {
        // what was inlined counts for the function it is in
        let compiled = stack.iter().rfind(|f| !f.ends_with(INLINED)).or(stack.last());
        *own.entry(compiled.map_or(IDLE, |f| function(f))).or_default() += n;
    }
    let mut own: Vec<_> = own.into_iter().collect();
    own.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
    for (name, n) in own.iter().take(SHOWN) {
        out += &format!("{:6.2} %  {name}\n", *n as f64 * 100.0 / header.samples.max(1) as f64);
    }
    for path in written {
        out += &format!("{}\n", path.display());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_most_often_at_work_come_first_whoever_called_them() {
        let mut profile = crate::profile::Profile::default();
        for (stack, n) in [("a;rx", 2), ("b;tx_[k]", 3), ("c;rx;min_[i]", 4)] {
            profile.add(stack.split(';').map(str::to_string).collect(), n);
        }
        let header = folded::Header { event: "cpu-clock".into(), samples: 9, ..folded::Header::default() };
        let text = said(&header, &profile, &[]);
        assert!(text.ends_with(" 66.67 %  rx\n 33.33 %  tx\n"), "{text}");
    }
}
