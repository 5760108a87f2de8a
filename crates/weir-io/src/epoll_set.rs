//! A set of descriptors to wait on (epoll).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct EpollSet {
    set: OwnedFd,
}

impl EpollSet {
    pub fn new() -> io::Result<EpollSet> {
        // SAFETY: epoll_create1 takes no memory; its result is checked before it is owned.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `set` is a fresh descriptor that nothing else owns.
        Ok(EpollSet { set: unsafe { OwnedFd::from_raw_fd(set) } })
    }

    pub fn control(&self, operation: libc::c_int, fd: RawFd, events: u32, mark: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: mark };
        // SAFETY: the kernel reads one epoll_event, which lives through the call.
        let done = unsafe { libc::epoll_ctl(self.set.as_raw_fd(), operation, fd, &raw mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits; how many of `ready` the kernel has filled. A signal ends the wait with none.
    pub fn wait(&self, ready: &mut [libc::epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
        let limit = timeout.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the kernel writes at most `ready.len()` entries into `ready` and reads one timespec, if any; no
        // signal mask is given.
        let mut got = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.set.as_raw_fd(),
                ready.as_mut_ptr(),
                ready.len() as libc::c_int,
                limit,
                std::ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        };
        if got < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            // Kernels before 5.11, and sandboxes: whole milliseconds, rounded up.
            let limit =
                timeout.map_or(-1, |limit| limit.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32);
            // SAFETY: as above.
            let waited = unsafe {
                libc::epoll_wait(self.set.as_raw_fd(), ready.as_mut_ptr(), ready.len() as i32, limit)
            };
            got = waited.into();
        }
        match usize::try_from(got) {
            Ok(got) => Ok(got),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
                error => Err(error),
            },
        }
    }
}
