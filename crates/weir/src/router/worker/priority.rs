//! Going before the kernel's reception on a CPU that a worker shares with it.
//!
//! The kernel gives a CPU to control groups first, by their weight, outside of any to sessions (autogroup), and to the threads of each
//! by their niceness; its own threads belong to none. So a niceness counts against them only where the whole group or session
//! has it, whose part on each CPU shrinks with the CPUs that it uses. A service leads a session of its own, which may be raised; that
//! of a terminal is its user's, and a group's weight is the service manager's.

use std::time::Duration;
use std::{fmt, fs, io};

use crate::router::control_group;
use rustix::process::{getpriority_process, setpriority_process};
use weir_io::process::{leads_its_session, nice_of_session, take_turns_of};

/// Nine tenths of a CPU that another thread of the usual priority wants too. Measured over veth, where -5 forwards less and -15 no more.
pub(super) const NICE: i32 = -10;
/// How long its turns are, the shortest there are: a thread that receives lets go of the CPU soon after the worker wakes.
const TURN: Duration = Duration::from_micros(100);
/// One step of niceness is this much of the CPU.
const STEP: f64 = 1.25;
/// The group of a container that sees it as the root.
const OWN_ROOT: &str = ".";
const AUTOGROUP: &str = "/proc/self/autogroup";
/// A control group of this weight has as much of a CPU as a thread of the usual priority.
const USUAL_WEIGHT: u32 = 100;
const WEIGHT_MAX: u32 = 10_000;

/// What keeps a worker from going first. `Display` says what that costs and the remedy.
#[derive(Debug)]
pub(super) enum NotFirst {
    /// The kernel refuses short turns.
    Turns(io::Error),
    /// It refuses the niceness.
    Nice(io::Error),
    /// This process is one of another's session.
    NotOurSession,
    /// The session leads, but the kernel refuses to raise it.
    Session { wanted: i32, error: io::Error },
    /// This process is in a control group of less weight.
    Group { name: String, weight: u32, wanted: u32 },
}

impl fmt::Display for NotFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const COSTS: &str = "more frames than it can forward will leave it less of its CPU";
        const OR: &str = "or write `nice = \"leave\"` in [workers]";
        match self {
            NotFirst::Turns(error) => {
                write!(f, "turns of {TURN:?} are refused ({error}): {COSTS}; allow sched_setattr, {OR}")
            }
            NotFirst::Nice(error) => write!(
                f,
                "nice {NICE} is refused ({error}): {COSTS}; grant LimitNICE=-20 (systemd) or CAP_SYS_NICE, {OR}"
            ),
            NotFirst::NotOurSession => write!(
                f,
                "the kernel's reception has as much of its CPU as all of this session (autogroup): {COSTS}; run it as a service \
                 or as `setsid --wait weir run …`, {OR}"
            ),
            NotFirst::Session { wanted, error } => write!(
                f,
                "its session may not have nice {wanted} ({error}): {COSTS}; grant LimitNICE=-20 (systemd) or CAP_SYS_NICE, {OR}"
            ),
            NotFirst::Group { name, weight, wanted } => {
                write!(
                    f,
                    "each of the kernel's threads has as much of its CPU as cpu.weight {USUAL_WEIGHT}, and "
                )?;
                match name.as_str() {
                    OWN_ROOT => write!(
                        f,
                        "the control group of this container has {weight} for all its threads: {COSTS}; have it given {wanted} by what \
                         runs it (systemd-nspawn: CPUWeight; Docker and Podman: --cpu-shares), {OR}"
                    ),
                    _ => write!(
                        f,
                        "control group {name} has {weight} for all its threads: {COSTS}; give it {wanted} (systemd: `systemctl \
                         set-property {name} CPUWeight={wanted}`), {OR}"
                    ),
                }
            }
        }
    }
}

/// The calling worker, one of so many, goes first from now on.
pub(super) fn go_first(workers: usize) -> Result<(), NotFirst> {
    if getpriority_process(None).is_ok_and(|nice| nice > NICE) {
        setpriority_process(None, NICE).map_err(|error| NotFirst::Nice(error.into()))?;
    }
    // The niceness is among the attributes this reads first, and stays.
    let turns = take_turns_of(TURN).map_err(NotFirst::Turns);
    let share = match group() {
        Some((name, weight)) => heavy_enough(name, weight, session_nice(workers)),
        None => raise_session(session_nice(workers)),
    };
    share.and(turns)
}

/// The topmost control group this process is in that has a part of each CPU of its own, and its weight.
fn group() -> Option<(String, u32)> {
    let path = control_group::own()?;
    let name = topmost(&path);
    let weight = fs::read_to_string(format!("{}/{name}/cpu.weight", control_group::ROOT)).ok()?;
    Some((name.to_string(), weight.trim().parse().ok()?))
}

/// The first part of `weir.slice/weir@router.service`, or [`OWN_ROOT`].
fn topmost(path: &str) -> &str {
    path.split('/').next().filter(|first| !first.is_empty()).unwrap_or(OWN_ROOT)
}

/// Whether a group has as much of its CPUs as a session of this niceness.
fn heavy_enough(name: String, weight: u32, nice: i32) -> Result<(), NotFirst> {
    let wanted = (f64::from(USUAL_WEIGHT) * STEP.powi(-nice)).round() as u32;
    let wanted = wanted.min(WEIGHT_MAX);
    if weight < wanted { Err(NotFirst::Group { name, weight, wanted }) } else { Ok(()) }
}

/// The niceness of a session that has as much of each of its workers' CPUs as one worker has with [`NICE`].
fn session_nice(workers: usize) -> i32 {
    let steps = (workers.max(1) as f64).log(STEP).round() as i32;
    (NICE - steps).max(-20)
}

/// Raises this process' session, if it leads one and the kernel counts sessions.
fn raise_session(wanted: i32) -> Result<(), NotFirst> {
    let counts =
        fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").is_ok_and(|text| text.trim() == "1");
    if !counts || nice_of_session().is_none_or(|nice| nice <= wanted) {
        return Ok(());
    }
    if !leads_its_session() {
        return Err(NotFirst::NotOurSession);
    }
    match fs::write(AUTOGROUP, wanted.to_string()) {
        // Another worker may have been faster: the kernel takes one such write in a tenth of a second.
        Err(error) if nice_of_session().is_some_and(|nice| nice > wanted) => {
            Err(NotFirst::Session { wanted, error })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_of_several_workers_has_more_for_its_part_is_divided() {
        assert_eq!([0, 1, 2, 4, 8, 64].map(session_nice), [-10, -10, -13, -16, -19, -20]);
    }

    #[test]
    fn the_topmost_control_group_counts() {
        let topmost = |groups| control_group::path_in(groups).map(topmost);
        assert_eq!(topmost("0::/weir.slice/weir@router.service\n"), Some("weir.slice"));
        assert_eq!(topmost("9:name=systemd:/x\n0::/\n"), Some("."), "a container's own");
        assert_eq!(topmost("1:cpu:/docker/7\n"), None, "version 1");
    }

    #[test]
    fn a_control_group_needs_the_weight_of_the_niceness() {
        let slice = |weight, workers| heavy_enough("weir.slice".into(), weight, session_nice(workers));
        assert!(slice(2000, 1).is_ok() && slice(2000, 2).is_ok());
        let why = slice(100, 1).expect_err("as little as one thread of the kernel's").to_string();
        assert!(why.contains("systemctl set-property weir.slice CPUWeight=931"), "{why}");
        let why = heavy_enough(".".into(), 100, NICE).expect_err("a container's").to_string();
        assert!(
            why.contains("of this container has 100")
                && why.contains("given 931")
                && !why.contains("systemctl"),
            "{why}"
        );
        let why = slice(2000, 4).expect_err("divided by four").to_string();
        assert!(why.contains("CPUWeight=3553"), "{why}");
        assert!(slice(WEIGHT_MAX, 64).is_ok(), "there is no more");
    }
}
