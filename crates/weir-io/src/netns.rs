//! Network namespaces: entering one by name, and running work inside one.
//!
//! A thread belongs to one namespace; sockets keep the one they were opened in. So a program that needs
//! ports in several namespaces opens each from a thread that has entered it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;

/// Where `ip netns` keeps names.
const NAMES: &str = "/run/netns";

/// Moves the calling thread into the namespace `name` (as `ip netns` names it). There is no way back but
/// another call: use a thread of its own, or [`inside`].
pub fn enter(name: &str) -> io::Result<()> {
    let file = File::open(Path::new(NAMES).join(name))?;
    // SAFETY: `file` is an open descriptor for the whole call; the kernel checks that it is a network
    // namespace.
    if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Runs `work` on a thread inside the namespace and returns what it returned.
pub fn inside<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| enter(name).map(|()| work()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
