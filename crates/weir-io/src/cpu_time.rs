//! Where a CPU's time goes: how long a thread ran and waited for its CPU, how long a CPU was idle.
//!
//! Promises: a reading is one read of a file of `/proc`; a kernel that does not tell is told apart from one that tells of nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The time of one thread so far, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub ran: u64,
    /// It could have run, but others had its CPU.
    pub waited: u64,
}

/// A thread's times, from whichever thread they are read.
#[derive(Debug)]
pub struct ThreadTimes(File);

impl ThreadTimes {
    /// Opens those of the calling thread. Fails where the kernel keeps none (`CONFIG_SCHED_INFO`).
    pub fn of_this_thread() -> io::Result<ThreadTimes> {
        let times = ThreadTimes(File::open("/proc/thread-self/schedstat")?);
        times.read().map(|_| times)
    }

    pub fn read(&self) -> io::Result<Spent> {
        let mut text = [0; 96];
        let length = self.0.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..length]);
        let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(ran), Some(waited)) => Ok(Spent { ran, waited }),
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel keeps no times of threads")),
        }
    }
}

/// A CPU's time since the machine started, in ticks of the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    pub idle: u64,
    pub all: u64,
}

impl Ticks {
    /// The share of the time between two readings that was idle; nothing when there was none.
    pub fn idle_since(self, before: Ticks) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(self.idle.saturating_sub(before.idle).min(all) as f64 / all as f64)
    }
}

/// The ticks of these CPUs, in their order. Fails when one of them is not there.
pub fn ticks(cpus: &[u32]) -> io::Result<Vec<Ticks>> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    cpus.iter()
        .map(|cpu| of_cpu(&stat, *cpu).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound)))
        .collect()
}

/// The ticks of all CPUs of this machine that are at work.
pub fn all_ticks() -> io::Result<Vec<Ticks>> {
    Ok(of_all(&std::fs::read_to_string("/proc/stat")?))
}

fn of_all(stat: &str) -> Vec<Ticks> {
    let numbered = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '));
    stat.lines().filter(numbered).filter_map(|line| of_line(line.split_once(' ')?.1)).collect()
}

fn of_cpu(stat: &str, cpu: u32) -> Option<Ticks> {
    let label = format!("cpu{cpu} ");
    of_line(stat.lines().find_map(|line| line.strip_prefix(&label))?)
}

fn of_line(line: &str) -> Option<Ticks> {
    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is inside user.
    Some(Ticks { idle: fields.get(3)? + fields.get(4)?, all: fields.iter().take(8).sum() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_the_cpu_that_was_named() {
        let stat =
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 1 0\ncpu10 0 0 0 70 0 0 0 0 0 0\nintr 5\n";
        assert_eq!(of_cpu(stat, 0), Some(Ticks { idle: 45, all: 72 }));
        assert_eq!(of_cpu(stat, 10), Some(Ticks { idle: 70, all: 70 }));
        assert_eq!(of_cpu(stat, 1), None);
        assert_eq!(of_all(stat), [Ticks { idle: 45, all: 72 }, Ticks { idle: 70, all: 70 }]);
    }

    #[test]
    fn idle_time_is_a_share_of_what_passed() {
        let (before, after) = (Ticks { idle: 10, all: 100 }, Ticks { idle: 15, all: 120 });
        assert_eq!(after.idle_since(before), Some(0.25));
        assert_eq!(before.idle_since(before), None);
    }

    #[test]
    fn a_thread_that_works_is_seen_to() {
        let Ok(times) = ThreadTimes::of_this_thread() else { return };
        let before = times.read().expect("it could be read");
        let mut sum = 0_u64;
        while times.read().expect("it could be read").ran == before.ran {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(ticks(&[0]).is_ok() && ticks(&[u32::MAX]).is_err());
    }
}
