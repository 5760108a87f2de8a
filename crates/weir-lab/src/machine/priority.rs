//! The scheduling priority the lab ran with, and everything it starts.
//!
//! Promises: what the kernel says of this process and its session's group. A raised priority is no detail: the SUT then
//! takes its CPU from the kernel's own threads, so packets that wait for `ksoftirqd` are dropped that would not be.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};
use weir_io::process::{nice_of_session, stat_field};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priority {
    /// −20 takes most of a CPU, 19 least.
    pub nice: i32,
    /// The nice value of the session's group, where the kernel groups sessions: it counts before `nice` does.
    pub group_nice: Option<i32>,
    /// The scheduling policy by its number in `sched(7)`; 0 is what programs have.
    pub policy: u32,
}

impl Priority {
    pub fn observe() -> Option<Priority> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        Priority::parse(&stat, nice_of_session())
    }

    fn parse(stat: &str, group_nice: Option<i32>) -> Option<Priority> {
        Some(Priority {
            nice: stat_field(stat, 19)?.parse().ok()?,
            group_nice,
            policy: stat_field(stat, 41)?.parse().ok()?,
        })
    }

    /// What programs have that nobody gave another.
    pub fn is_usual(self) -> bool {
        self.policy == 0 && self.nice == 0 && self.group_nice.unwrap_or(0) == 0
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nice {}", self.nice)?;
        if let Some(group) = self.group_nice {
            write!(f, ", its session {group}")?;
        }
        match self.policy {
            0 => Ok(()),
            1 => f.write_str(", SCHED_FIFO"),
            2 => f.write_str(", SCHED_RR"),
            3 => f.write_str(", SCHED_BATCH"),
            5 => f.write_str(", SCHED_IDLE"),
            6 => f.write_str(", SCHED_DEADLINE"),
            other => write!(f, ", policy {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of /proc/PID/stat whose 19th and 41st field are these.
    fn stat(nice: i32, policy: u32) -> String {
        let mut fields = vec!["0".to_string(); 50];
        fields[16] = nice.to_string();
        fields[38] = policy.to_string();
        format!("7 (a ) b) {}\n", fields.join(" "))
    }

    #[test]
    fn a_raised_session_is_seen_though_the_process_is_as_usual() {
        let usual = Priority::parse(&stat(0, 0), Some(0)).expect("a line of stat");
        let raised = Priority::parse(&stat(0, 0), Some(-15)).expect("a line of stat");
        assert!(usual.is_usual());
        assert!(!raised.is_usual());
        assert_eq!(raised.to_string(), "nice 0, its session -15");
    }

    #[test]
    fn nice_and_policy_are_the_fields_the_kernel_documents() {
        let fifo = Priority::parse(&stat(-5, 1), None).expect("a line of stat");
        assert_eq!(fifo, Priority { nice: -5, group_nice: None, policy: 1 });
        assert_eq!(fifo.to_string(), "nice -5, SCHED_FIFO");
        assert_eq!(Priority::parse("7 (a) S 1", None), None);
    }

    #[test]
    fn a_child_started_with_nice_says_so() {
        let own = Priority::observe().expect("procfs");
        let stat = std::process::Command::new("nice").args(["-n", "3", "cat", "/proc/self/stat"]).output();
        let stat = String::from_utf8(stat.expect("nice of coreutils").stdout).expect("ASCII");
        let child = Priority::parse(&stat, None).expect("a line of stat");
        assert_eq!(child.nice, (own.nice + 3).min(19));
    }
}
