//! What takes CPUs away from a program that never sleeps: the kernel's threads, other programs, a hypervisor.
//!
//! Promises: every CPU this process may use spins for [`SPIN`], all at once, as a SUT beside its generator does;
//! what a clock lost meanwhile is told, and which task of this machine ran longest. A hypervisor's pauses are in the
//! first and have no name in the second.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity};
use weir_core::time::Nanos;
use weir_io::{clock, cpu};

use crate::diagnostic::{Diagnostic, Severity};
use crate::profile::tasks::comm;

const SPIN: Duration = Duration::from_millis(500);
/// Pause between two looks at the clock; a timer tick takes less.
const PAUSE: Nanos = 50_000;
/// Time all CPUs together may be absent, in percent: a tenth of what moves a 99th percentile.
const FINE: f64 = 0.1;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Lost {
    in_all: Nanos,
    longest: Nanos,
}

pub(super) fn pauses() -> Diagnostic {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    let cpus: Vec<u32> = (0..CpuSet::MAX_CPU).filter(|&n| allowed.is_set(n)).map(|n| n as u32).collect();
    let before = run_times();
    let lost: Vec<Lost> = std::thread::scope(|scope| {
        let spinning: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || spin(cpu))).collect();
        spinning.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    });
    told(&lost, longest_run(&before, &run_times()))
}

/// `None` where the CPU cannot be had.
fn spin(cpu: u32) -> Option<Lost> {
    cpu::pin(cpu).ok()?;
    let mut lost = Lost::default();
    let began = clock::now();
    let mut last = began;
    while last - began < SPIN.as_nanos() as Nanos {
        let now = clock::now();
        lost.note(now - last);
        last = now;
    }
    Some(lost)
}

impl Lost {
    fn note(&mut self, pause: Nanos) {
        if pause > PAUSE {
            self.in_all += pause;
            self.longest = self.longest.max(pause);
        }
    }
}

fn told(lost: &[Lost], ran: Option<(String, Nanos)>) -> Diagnostic {
    let spun = SPIN.as_nanos() as f64 * lost.len().max(1) as f64;
    let percent = lost.iter().map(|l| l.in_all).sum::<Nanos>() as f64 * 100.0 / spun;
    let longest = lost.iter().map(|l| l.longest).max().unwrap_or(0) as f64 / 1e3;
    let who = ran.map_or(String::new(), |(name, time)| format!("; {name} ran {:.1} ms", time as f64 / 1e6));
    let found = format!("{percent:.2} % of busy CPUs' time, at most {longest:.0} µs at once{who}");
    if percent < FINE {
        return Diagnostic::check("pauses", Severity::Ok, found, "a 99th percentile is the SUT's");
    }
    Diagnostic::check(
        "pauses",
        Severity::Note,
        found,
        "what is busy meets them: in long runs a 99th percentile may be theirs",
    )
    .remedy("stop what ran, or take the median of many short runs, as labs/relay-latency.toml does")
}

/// Names of tasks, and how long each has run so far, by number.
type RunTimes = HashMap<u32, (String, Nanos)>;

/// The run times of all tasks but this process.
fn run_times() -> RunTimes {
    let own = std::process::id();
    let of = |folder: &Path| {
        let task: u32 = folder.file_name()?.to_str()?.parse().ok()?;
        let ran =
            fs::read_to_string(folder.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()?;
        Some((task, (comm(folder)?, ran)))
    };
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    folders.filter_map(|entry| of(&entry.path())).filter(|&(task, _)| task != own).collect()
}

fn longest_run(before: &RunTimes, after: &RunTimes) -> Option<(String, Nanos)> {
    let since = |(task, (name, ran)): (&u32, &(String, Nanos))| {
        (name.clone(), ran.saturating_sub(before.get(task).map_or(0, |(_, ran)| *ran)))
    };
    after.iter().map(since).max_by_key(|(_, ran)| *ran).filter(|(_, ran)| *ran > PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_steps_of_a_clock_are_no_pauses_and_long_ones_add_up() {
        let mut lost = Lost::default();
        for pause in [20, PAUSE, PAUSE + 1, 8_000_000] {
            lost.note(pause);
        }
        assert_eq!(lost, Lost { in_all: PAUSE + 8_000_001, longest: 8_000_000 });
    }

    #[test]
    fn what_was_lost_is_told_of_all_cpus_with_who_ran() {
        let half = SPIN.as_nanos() as Nanos / 50;
        let lost = [Lost { in_all: half, longest: 8_000_000 }, Lost::default()];
        let noisy = told(&lost, Some(("kdamond.0".into(), 12_340_000)));
        assert_eq!(
            noisy.finding,
            "1.00 % of busy CPUs' time, at most 8000 µs at once; kdamond.0 ran 12.3 ms"
        );
        assert_eq!((noisy.severity, noisy.remedy.is_some()), (Severity::Note, true));
        let quiet = told(&[Lost::default(); 2], None);
        assert_eq!(quiet.finding, "0.00 % of busy CPUs' time, at most 0 µs at once");
        assert_eq!((quiet.severity, quiet.remedy), (Severity::Ok, None));
    }

    #[test]
    fn the_task_that_ran_longest_is_named_also_when_it_is_new() {
        let of = |tasks: &[(u32, &str, Nanos)]| -> RunTimes {
            tasks.iter().map(|&(task, name, ran)| (task, (name.to_string(), ran))).collect()
        };
        let before = of(&[(1, "old", 900_000_000), (2, "busy", 5)]);
        let after = of(&[(1, "old", 900_000_100), (2, "busy", 70_005), (3, "new", 60_000)]);
        assert_eq!(longest_run(&before, &after), Some(("busy".into(), 70_000)));
        assert_eq!(longest_run(&after, &after), None, "nobody ran");
        assert!(!run_times().is_empty(), "this machine has tasks that say how long they ran");
    }
}
