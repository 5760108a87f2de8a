//! A program's memory, mapped: words that it and this process read and write in place.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The value of an array made with `BPF_F_MMAPABLE`: a row of words, each accessed atomically.
#[derive(Debug)]
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping is reached through atomic operations only, from any thread.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `bytes` of an array made with `BPF_F_MMAPABLE`.
    pub(crate) fn of(map: BorrowedFd<'_>, bytes: usize) -> io::Result<SharedWords> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = map.as_raw_fd();
        // SAFETY: a new mapping at an address the kernel chooses, of a descriptor we hold.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(SharedWords { start, count: bytes / 8 })
    }

    /// Word `at`; the last one where there is none.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the index is below `count`, so the word lies in the mapping, which lives as long as
        // `self`; it is page-aligned and accessed atomically by everyone.
        unsafe { self.start.add(at.min(self.count - 1)).as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `of`; no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.count * 8) };
    }
}
