//! Other tasks of this machine: where they run, how urgently, and asking them to end; and what this one may have.
//!
//! The lab places kernel threads (NAPI) and subjects with it, and makes sure that no subject outlives it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// More than any service has.
const PASSED_MAX: u32 = 253;
/// What a process that this one starts has opened for it: the number of its ticket, then `NAME=NUMBER` for each.
const PASSED: &str = "WEIR_PASSED";

/// Binds a task (a thread id, or a process id for its main thread) to one CPU.
pub fn pin(task: u32, cpu: u32) -> io::Result<()> {
    if cpu as usize >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("cpu {cpu} is beyond CPU_SETSIZE")));
    }
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET stays inside it because `cpu` is below
    // CPU_SETSIZE; the kernel reads exactly the size passed.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        libc::sched_setaffinity(task as libc::pid_t, size_of::<libc::cpu_set_t>(), &set)
    };
    result(done)
}

/// Lets a task run before every ordinary one, first in first out. Priorities go from 1 to 99.
pub fn run_first(task: u32, priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: `parameters` is a valid sched_param for the whole call; the kernel checks its range.
    result(unsafe { libc::sched_setscheduler(task as libc::pid_t, libc::SCHED_FIFO, &parameters) })
}

/// Gives a task the calling process' niceness, so that `nice` before a command reaches its kernel threads.
pub fn as_nice_as_we_are(task: u32) -> io::Result<()> {
    // SAFETY: getpriority touches no memory. A result of -1 is a niceness too; for ourselves, asked about
    // a process that exists, it cannot be an error.
    let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // SAFETY: setpriority touches no memory; the kernel checks task and range.
    result(unsafe { libc::setpriority(libc::PRIO_PROCESS, task, own) })
}

/// Takes turns of this length on the CPU from now on, 0.1 to 100 ms: a thread with shorter turns than the one that runs goes before it as soon
/// as it wakes, at the next point where the kernel lets go. The share of the CPU stays that of its niceness. Kernels before Linux 6.12 leave it
/// as it is, without an error.
pub fn take_turns_of(turn: Duration) -> io::Result<()> {
    // SAFETY: sched_attr is plain numbers, for which zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the kernel writes at most `size` bytes, those of `attributes`; task 0 is the calling thread.
    result(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } as i32)?;
    attributes.sched_runtime = turn.as_nanos() as u64;
    // SAFETY: the kernel reads `attributes`, whose size is in it, and checks every value.
    result(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } as i32)
}

/// The niceness of this process' session, by which the kernel gives a CPU to sessions (autogroup); nothing where it has no such groups.
pub fn nice_of_session() -> Option<i32> {
    nice_of_group(&std::fs::read_to_string("/proc/self/autogroup").ok()?)
}

/// Whether this process leads its session. In a PID namespace whose processes are of a session from outside, whose number there is 0, none does.
pub fn leads_its_session() -> bool {
    // SAFETY: both system calls take and give numbers.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// What `/autogroup-12 nice -10` says.
fn nice_of_group(autogroup: &str) -> Option<i32> {
    autogroup.trim().rsplit_once(" nice ")?.1.parse().ok()
}

/// Asks a process to end (SIGTERM).
pub fn terminate(process: u32) -> io::Result<()> {
    signal(process, libc::SIGTERM)
}

/// Asks a daemon to read its file again (SIGHUP).
pub fn reload(process: u32) -> io::Result<()> {
    signal(process, libc::SIGHUP)
}

/// Asks a daemon to have the installed program take over from it (SIGUSR2).
pub fn succeed(process: u32) -> io::Result<()> {
    signal(process, libc::SIGUSR2)
}

/// Ends a process (SIGKILL).
pub fn kill(process: u32) -> io::Result<()> {
    signal(process, libc::SIGKILL)
}

/// Descriptors that whoever started us opened for us (`sd_listen_fds`(3)): from 3 on, `LISTEN_FDS` of them, if
/// `LISTEN_PID` is this process. They are given once.
pub fn passed_descriptors() -> Vec<OwnedFd> {
    static GIVEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) || GIVEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    // SAFETY: the environment says that it was opened for this process before it began, so nobody else here owns it, and
    // GIVEN lets this happen once.
    let own = |fd: i32| unsafe { take_passed(fd) };
    let count = number("LISTEN_FDS").unwrap_or(0).min(PASSED_MAX);
    (3..3 + count as i32).filter_map(own).collect()
}

/// Makes a descriptor this process was started with its own, which no program that it starts gets; none where it is not open.
///
/// # Safety
///
/// Nobody else in this process owns it.
unsafe fn take_passed(fd: i32) -> Option<OwnedFd> {
    // SAFETY: this fcntl touches no memory; on a number that is no descriptor it fails.
    result(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }).ok()?;
    // SAFETY: it is open, as fcntl says, and nobody else owns it, as the caller promises.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// [`passed_descriptors`] with their names (`LISTEN_FDNAMES`); one without is called `unknown`, as systemd does.
pub fn passed_descriptors_by_name() -> Vec<(String, OwnedFd)> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat("unknown".to_owned()));
    names.zip(passed_descriptors()).chain(passed_by_starter()).collect()
}

/// Descriptors that are to be a process' own, and the ticket that says which process that is.
#[derive(Debug)]
pub struct Passed {
    _copies: Vec<OwnedFd>,
    ticket: File,
}

impl Passed {
    /// The process that has them; of a command that was not started, an error.
    pub fn process(&self) -> io::Result<u32> {
        let mut pid = [0; 4];
        self.ticket.read_exact_at(&mut pid, 0)?;
        Ok(u32::from_ne_bytes(pid))
    }
}

/// Has the process of this command be given these descriptors under their names ([`passed_descriptors_by_name`]). It gets
/// copies, which any other process that this one starts would get too until what is returned is dropped: start it at once.
pub fn pass_descriptors(command: &mut Command, named: &[(String, BorrowedFd<'_>)]) -> io::Result<Passed> {
    // SAFETY: the kernel reads the name, which ends with a zero byte, and makes a descriptor.
    let ticket = unsafe { libc::memfd_create(c"ticket".as_ptr(), 0) };
    if ticket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was made above, and nobody else owns it.
    let ticket = File::from(unsafe { OwnedFd::from_raw_fd(ticket) });
    let number = ticket.as_raw_fd();
    let mut text = number.to_string();
    let mut copies = Vec::new();
    for (name, fd) in named {
        let copy = fd.try_clone_to_owned()?;
        // SAFETY: this fcntl touches no memory; the descriptor is the copy made above.
        result(unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_SETFD, 0) })?;
        text += &format!(" {name}={}", copy.as_raw_fd());
        copies.push(copy);
    }
    command.env(PASSED, text);
    let sign = move || {
        let pid = std::process::id().to_ne_bytes();
        // SAFETY: the kernel reads four bytes of this stack; both calls may be made between fork and exec.
        let written = unsafe { libc::pwrite(number, pid.as_ptr().cast(), pid.len(), 0) };
        if written == pid.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure runs between fork and exec; it makes two async-signal-safe system calls and allocates nothing.
    unsafe { command.pre_exec(sign) };
    Ok(Passed { _copies: copies, ticket })
}

/// What [`pass_descriptors`] of the process that started this one said, if its ticket names this process. They are given once.
fn passed_by_starter() -> Vec<(String, OwnedFd)> {
    static GIVEN: AtomicBool = AtomicBool::new(false);
    let text = std::env::var(PASSED).unwrap_or_default();
    let (ticket, named) = text.split_once(' ').unwrap_or((text.as_str(), ""));
    let Some(ticket) = ticket.parse::<i32>().ok().filter(|&fd| fd > 2) else { return Vec::new() };
    let mut pid = [0_u8; 4];
    // SAFETY: the kernel writes at most four bytes there; a number that is no file's descriptor fails.
    let read = unsafe { libc::pread(ticket, pid.as_mut_ptr().cast(), pid.len(), 0) };
    let signed = read == pid.len() as isize && u32::from_ne_bytes(pid) == std::process::id();
    if !signed || GIVEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    // SAFETY: it was opened for this process, as it says itself, so nobody else here owns it, and GIVEN lets this happen once.
    drop(unsafe { take_passed(ticket) });
    let own = |entry: &str| {
        let (name, number) = entry.rsplit_once('=')?;
        let fd = number.parse::<i32>().ok().filter(|&fd| fd > 2)?;
        // SAFETY: the process that started this one says that it was opened for this one, so nobody else here owns it, and
        // GIVEN lets this happen once.
        unsafe { take_passed(fd) }.map(|fd| (name.to_owned(), fd))
    };
    named.split(' ').take(PASSED_MAX as usize).filter_map(own).collect()
}

/// A process that this one started and that is not its child: its parent is whoever takes orphans, as a service manager does.
#[derive(Debug)]
pub struct Orphan {
    pid: u32,
    /// None where it had ended before it could be asked for.
    handle: Option<OwnedFd>,
}

impl Orphan {
    pub fn id(&self) -> u32 {
        self.pid
    }

    pub fn is_ended(&self) -> bool {
        let Some(handle) = &self.handle else { return true };
        // Where this process takes orphans itself, as the first one of a container does, nobody else would bury it.
        // SAFETY: waitid with a null address writes nothing.
        unsafe {
            libc::waitid(
                libc::P_PIDFD,
                handle.as_raw_fd() as libc::id_t,
                std::ptr::null_mut(),
                libc::WEXITED | libc::WNOHANG,
            )
        };
        let mut ended = libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes this one pollfd.
        unsafe { libc::poll(&raw mut ended, 1, 0) > 0 }
    }
}

/// Starts the command as an orphan with these descriptors. A service manager waits for the end of its own children alone:
/// a main process that is not one of them it kills at once where it would wait for an orderly end.
pub fn start_orphan(command: &mut Command, named: &[(String, BorrowedFd<'_>)]) -> io::Result<Orphan> {
    let leave = || {
        // SAFETY: between fork and exec there is one thread; fork and _exit may be called there.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(()),
            // SAFETY: this process is the one in between, which owns nothing but copies.
            _ => unsafe { libc::_exit(0) },
        }
    };
    // SAFETY: the closure runs between fork and exec; it makes async-signal-safe calls and allocates nothing.
    unsafe { command.pre_exec(leave) };
    let passed = pass_descriptors(command, named)?;
    command.spawn()?.wait()?;
    let pid = passed.process()?;
    // SAFETY: pidfd_open takes numbers and makes a descriptor.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    let handle = i32::try_from(handle).ok().filter(|&fd| fd >= 0);
    // SAFETY: it was made above, and nobody else owns it.
    Ok(Orphan { pid, handle: handle.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }) })
}

/// The command's process is killed when the *thread* that starts it ends, however it ends.
pub fn dies_with_starter(command: &mut Command) -> &mut Command {
    // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call without
    // touching memory.
    unsafe {
        command.pre_exec(|| result(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)))
    }
}

/// The command's process leads a session of its own, as a service does: no terminal's signals reach it, and the kernel gives it a part of each CPU
/// of its own (autogroup). It leads its process group too.
pub fn in_session_of_its_own(command: &mut Command) -> &mut Command {
    // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call without
    // touching memory.
    unsafe { command.pre_exec(|| result(libc::setsid())) }
}

/// Ends every process of the group that `leader` was started as (`Command::process_group(0)`).
pub fn kill_group(leader: u32) -> io::Result<()> {
    match libc::pid_t::try_from(leader) {
        // Group 0 is our own; 1 and below are everybody's.
        Ok(leader) if leader > 1 => {
            // SAFETY: killpg touches no memory.
            result(unsafe { libc::killpg(leader, libc::SIGKILL) })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{leader} leads no group"))),
    }
}

/// Makes processes whose starter ends ours from now on, if they descend from us: daemons too.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: this prctl takes plain numbers and touches no memory.
    result(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as libc::c_ulong) })
}

/// Ends every child and, where [`become_subreaper`] was called, every descendant; returns how many it ended.
/// Call it when nobody waits for a child any more.
pub fn end_children() -> usize {
    // A generation a round: a process that forks faster than it is killed is left after so many.
    const ROUNDS: usize = 100;
    let mut ended = 0;
    for _ in 0..ROUNDS {
        let living = children();
        if living.is_empty() {
            break;
        }
        for child in living {
            ended += usize::from(kill(child).is_ok());
            // SAFETY: waitpid with a null status writes nothing; the child is ours, and killed.
            unsafe { libc::waitpid(child as libc::pid_t, std::ptr::null_mut(), 0) };
        }
    }
    ended
}

/// Field `number` of a line of `/proc/PID/stat`, numbered as proc(5) does, from 3 on: the state.
pub fn stat_field(stat: &str, number: usize) -> Option<&str> {
    // The name in parentheses, field 2, may hold anything: fields count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(number.checked_sub(3)?)
}

/// Processes started or adopted by this one.
pub fn children() -> Vec<u32> {
    let own = std::process::id();
    let parent = |process: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat_field(&stat, 4)?.parse().ok()
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(|&process| parent(process) == Some(own)).collect()
}

/// Lets this process have `wanted` descriptors, or as many as it may; returns how many that are. A process that
/// may raise its own hard limit (root) does. Call it before threads start that rely on it.
pub fn raise_descriptors(wanted: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`.
    result(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_cur >= wanted {
        return Ok(limit.rlim_cur);
    }
    let hard = limit.rlim_max.max(wanted);
    let raised = |cur, max| {
        let limit = libc::rlimit { rlim_cur: cur, rlim_max: max };
        // SAFETY: the kernel reads one `rlimit`.
        result(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).map(|()| cur)
    };
    raised(wanted, hard).or_else(|_| raised(wanted.min(limit.rlim_max), limit.rlim_max))
}

/// No core dump of this process from now on, and nobody but root traces it or reads its memory (`PR_SET_DUMPABLE`): keys stay
/// in it. What belongs to it in `/proc` is root's.
pub fn forbid_dumps() -> io::Result<()> {
    // SAFETY: this prctl takes plain numbers and touches no memory.
    result(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0 as libc::c_ulong, 0, 0, 0) })
}

/// Keeps every page of this process, now and later, out of swap once it is used. Refused where the process may lock a part
/// only (`RLIMIT_MEMLOCK` without `CAP_IPC_LOCK`): what goes beyond would not be mapped at all.
pub fn forbid_swap() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`.
    result(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) })?;
    if limit.rlim_cur != libc::RLIM_INFINITY && !may_lock_memory() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // SAFETY: mlockall takes a number; it changes where pages may be, not what is in them.
    result(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) })
}

/// Whether this machine has swap.
pub fn has_swap() -> bool {
    // A line of titles, then one for each file or partition.
    std::fs::read_to_string("/proc/swaps").map_or(true, |text| text.lines().nth(1).is_some())
}

/// `CAP_IPC_LOCK`, as this process has it now.
fn may_lock_memory() -> bool {
    /// capability.h
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|all| all >> CAP_IPC_LOCK & 1 == 1)
}

fn signal(process: u32, signal: i32) -> io::Result<()> {
    match libc::pid_t::try_from(process) {
        // Zero and negative numbers would reach whole groups.
        Ok(process) if process > 0 => {
            // SAFETY: kill touches no memory.
            result(unsafe { libc::kill(process, signal) })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{process} is not a process id"))),
    }
}

fn result(done: i32) -> io::Result<()> {
    if done >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_niceness_of_a_session_is_read() {
        assert_eq!(nice_of_group("/autogroup-12 nice -10\n"), Some(-10));
        assert_eq!(nice_of_group("/autogroup-3 nice 0\n"), Some(0));
        assert_eq!(nice_of_group(""), None);
    }

    #[test]
    fn descriptors_are_raised_as_far_as_they_may_and_never_lowered() {
        let now = raise_descriptors(0).expect("a limit");
        assert_eq!(raise_descriptors(now).expect("the same"), now);
        let more = raise_descriptors(now + 1).expect("as many as it may");
        assert!((now..=now + 1).contains(&more));
    }

    /// The child is this test program again: it has the descriptor under its name, once, and nobody else has.
    #[test]
    fn a_child_has_what_is_passed_to_it_and_a_grandchild_has_not() {
        const CHILD: &str = "WEIR_TEST_PASSED_TO";
        let name = "process::tests::a_child_has_what_is_passed_to_it_and_a_grandchild_has_not";
        let again = |what: &str| {
            let mut command = Command::new(std::env::current_exe().expect("a test is a file"));
            command.args(["--exact", name, "--nocapture"]).env(CHILD, what);
            command
        };
        match std::env::var(CHILD).as_deref() {
            Ok("child") => {
                let mut grandchild = again("grandchild");
                assert!(grandchild.status().expect("it starts").success(), "the grandchild has none");
                let given = passed_descriptors_by_name();
                let [(name, fd)] = &given[..] else { panic!("{given:?}") };
                assert_eq!(name, "xdp-a=b");
                let mut text = String::new();
                let mut file = std::fs::File::from(fd.try_clone().expect("a descriptor"));
                io::Read::read_to_string(&mut file, &mut text).expect("a pipe");
                assert_eq!(text, "for the child");
                assert!(passed_descriptors_by_name().is_empty(), "given once");
            }
            Ok(_) => assert!(passed_descriptors_by_name().is_empty(), "its parent passed nothing"),
            Err(_) => {
                let (reader, mut writer) = io::pipe().expect("a pipe");
                io::Write::write_all(&mut writer, b"for the child").expect("it has room");
                drop(writer);
                let mut child = again("child");
                let named = [("xdp-a=b".to_owned(), std::os::fd::AsFd::as_fd(&reader))];
                let passed = pass_descriptors(&mut child, &named).expect("copies");
                let status = child.status().expect("it starts");
                drop(passed);
                assert!(status.success(), "what the child says is above");
            }
        }
    }

    #[test]
    fn an_orphan_is_no_child_of_its_starter_and_its_end_is_seen() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$; read -r _; exit 3"]).stdout(writer);
        let (stdin, held) = io::pipe().expect("a pipe");
        let orphan = start_orphan(command.stdin(stdin), &[]).expect("sh starts");
        assert!(!children().contains(&orphan.id()), "it is somebody else's");
        drop(command);
        let mut said = [0; 16];
        let len = io::Read::read(&mut reader, &mut said).expect("its number");
        assert_eq!(String::from_utf8_lossy(&said[..len]).trim(), orphan.id().to_string());
        assert!(!orphan.is_ended());
        drop(held);
        let by = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !orphan.is_ended() {
            assert!(std::time::Instant::now() < by, "process {} has ended", orphan.id());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn an_orphan_whose_program_is_missing_is_not_started() {
        let error = start_orphan(&mut Command::new("/nowhere/program"), &[]).expect_err("there is none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn signals_never_reach_a_group() {
        assert!(terminate(0).is_err());
        assert!(kill(u32::MAX).is_err());
        assert!(kill_group(0).is_err() && kill_group(1).is_err());
    }

    #[test]
    fn a_group_ends_with_what_its_leader_started() {
        let mut leader = Command::new("sh");
        leader.args(["-c", "sleep 600 & sleep 600"]);
        let mut child = leader.process_group(0).spawn().expect("sh starts");
        assert!(children().contains(&child.id()));
        kill_group(child.id()).expect("our own group");
        assert!(!child.wait().expect("our child").success());
    }

    #[test]
    fn a_command_ends_with_the_thread_that_started_it() {
        let mut child = std::thread::spawn(|| {
            dies_with_starter(Command::new("sleep").arg("600")).spawn().expect("sleep starts")
        })
        .join()
        .expect("the thread ends");
        let status = child.wait().expect("our child");
        assert!(!status.success());
    }
}
