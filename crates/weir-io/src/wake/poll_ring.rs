//! Waiting by io_uring, with polls that stand until they are removed.
//!
//! Why not epoll: before it reports a descriptor, it asks the descriptor once more whether it is readable. An AF_XDP
//! socket in zero-copy mode takes each such question for a wish to send and wakes its driver, which on igb is an
//! interrupt. A standing poll is told by what woke it, and asks only when it was woken more than once in between.
//!
//! Promises: a poll holds its descriptor open until [`PollRing::clear`] has returned or the ring was dropped; a descriptor
//! is reported when something came since it was reported last. Needs Linux 6.1.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

/// Polls put or removed by one system call; more take several.
const ENTRIES: u32 = 32;
/// The name of what is not a poll.
const REMOVAL: u64 = u64::MAX;
/// The name of an empty message that was refused.
const REFUSAL: u64 = u64::MAX - 1;
/// How long a removal may take, which the kernel does at once.
const REMOVED_WITHIN: Duration = Duration::from_millis(100);

pub(super) struct PollRing {
    ring: IoUring,
    /// The polls that stand: the kernel's name for each, and ours.
    standing: Vec<(u64, u64)>,
    next: u64,
}

impl std::fmt::Debug for PollRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PollRing({} polls)", self.standing.len())
    }
}

impl PollRing {
    /// Makes a ring for the calling thread, and no other.
    pub fn new() -> io::Result<PollRing> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        Ok(PollRing { ring: builder.build(ENTRIES)?, standing: Vec::new(), next: 0 })
    }

    /// Reports `fd` by `mark` from now on.
    pub fn add(&mut self, fd: RawFd, mark: u64) -> io::Result<()> {
        let name = self.next;
        let poll = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true);
        self.submit(&poll.build().user_data(name))?;
        self.next += 1;
        self.standing.push((name, mark));
        Ok(())
    }

    /// Removes every poll; afterwards the ring holds no descriptor open.
    pub fn clear(&mut self) -> io::Result<()> {
        for (name, _) in std::mem::take(&mut self.standing) {
            self.submit(&opcode::PollRemove::new(name).build().user_data(REMOVAL))?;
            // The removal's own completion, and after it the poll's, if it still stood.
            self.enter(2, REMOVED_WITHIN)?;
            self.ring.completion().for_each(drop);
        }
        Ok(())
    }

    /// Sends an empty message by each of these sockets and waits, all of it in one system call; calls `ready` with the mark of each poll that was woken. Returns the marks of those the kernel ended, which
    /// stand no more.
    pub fn wait(
        &mut self,
        sockets: &[RawFd],
        at_most: Duration,
        mut ready: impl FnMut(u64),
    ) -> io::Result<Vec<u64>> {
        for socket in sockets {
            // Only a refusal is reported, and ends the wait.
            let send = opcode::Send::new(types::Fd(*socket), std::ptr::null(), 0).flags(libc::MSG_DONTWAIT);
            self.push(&send.build().flags(squeue::Flags::SKIP_SUCCESS).user_data(REFUSAL))?;
        }
        self.enter(1, at_most)?;
        let mut ended = Vec::new();
        for completion in self.ring.completion() {
            let name = completion.user_data();
            let Some(at) = self.standing.iter().position(|(standing, _)| *standing == name) else { continue };
            let mark = self.standing[at].1;
            if !cqueue::more(completion.flags()) {
                self.standing.swap_remove(at);
                ended.push(mark);
            }
            ready(mark);
        }
        Ok(ended)
    }

    fn submit(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        self.push(entry)?;
        self.ring.submit().map(drop)
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: a poll, its removal and an empty message name no memory of ours.
        let full = unsafe { self.ring.submission().push(entry) }.is_err();
        if full {
            self.ring.submit()?;
            // SAFETY: as above.
            unsafe { self.ring.submission().push(entry) }.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Waits until that many completions are there, a signal comes or the time has passed.
    fn enter(&mut self, completions: usize, at_most: Duration) -> io::Result<()> {
        let time = types::Timespec::from(at_most);
        let arguments = types::SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(completions, &arguments) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }
}

impl Drop for PollRing {
    fn drop(&mut self) {
        // The kernel would release the descriptors later, and a socket's queue with them.
        let _ = self.clear();
    }
}
