//! Network namespaces: entering one by name, making one, and running work inside one.
//!
//! A thread belongs to one namespace; sockets keep the one they were opened in. So a program that needs
//! ports in several namespaces opens each from a thread that has entered it.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;

/// Where `ip netns` keeps names.
const NAMES: &str = "/run/netns";

/// Moves the calling thread into the namespace `name` (as `ip netns` names it, or an absolute
/// path such as `/proc/7/ns/net`). There is no way back but
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

/// Moves the calling thread into a network namespace of its own that vanishes with the last thread,
/// process, socket or open file in it: also after `kill -9`. The thread and the programs it starts see the
/// namespace's devices under `/sys`; no other thread's view changes.
pub fn enter_new() -> io::Result<()> {
    // SAFETY: unshare touches no memory; the mount namespace comes with file-system state of this thread
    // alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Mounts from here on stay here; unmounts outside still reach us, so nothing is kept busy.
    mount(c"none", c"/", None, libc::MS_REC | libc::MS_SLAVE)?;
    mount(c"sysfs", c"/sys", Some(c"sysfs"), 0)
}

fn mount(source: &CStr, target: &CStr, kind: Option<&CStr>, flags: libc::c_ulong) -> io::Result<()> {
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: source, target and kind are C strings that outlive the call; a null kind and null data are
    // allowed.
    let done = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, std::ptr::null()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
