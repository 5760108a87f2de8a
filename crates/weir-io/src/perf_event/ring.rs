//! The ring a perf event writes its records to.
//!
//! ```text
//! | metadata page | data: 2ⁿ pages, head written by the kernel, tail by us; both only grow |
//! ```
//!
//! Promises: bytes are read after the head that announced them (acquire) and given back after they were
//! copied (release); a head that runs ahead of the ring is cut to its size. A record that wraps around the
//! end comes out in one piece.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Data pages wanted: 4 MiB, a quarter of a second of samples with stacks of 8 KiB at 2 kHz: so late may the
/// reader be on a busy machine. With the metadata page 128 are the 516 KiB a CPU that kernels allow users without privileges.
pub const PAGES: [usize; 2] = [1024, 128];
/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

#[derive(Debug)]
pub struct Ring {
    base: NonNull<u8>,
    mapped: usize,
    data: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to this value alone and is not bound to a thread; all access takes `&mut`.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps a ring as large as we are allowed.
    pub fn of(event: &OwnedFd) -> io::Result<Ring> {
        let [wanted, allowed] = PAGES;
        Ring::with_pages(event, wanted).or_else(|_| Ring::with_pages(event, allowed))
    }

    fn with_pages(event: &OwnedFd, pages: usize) -> io::Result<Ring> {
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let (size, mapped) = (pages * page, (pages + 1) * page);
        // SAFETY: a new shared mapping at an address the kernel chooses, of a descriptor we hold.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        // SAFETY: the data pages follow the metadata page inside the mapping.
        let data = unsafe { base.add(page) };
        Ok(Ring { base, mapped, data, size })
    }

    /// Appends every record written since the last time.
    pub fn drain(&mut self, out: &mut Vec<u8>) {
        // SAFETY: both words lie inside the metadata page, aligned to eight bytes; the kernel writes the
        // head and reads the tail by single 64-bit accesses, as atomics do.
        let (head, tail) = unsafe {
            (
                self.base.add(DATA_HEAD).cast::<AtomicU64>().as_ref(),
                self.base.add(DATA_TAIL).cast::<AtomicU64>().as_ref(),
            )
        };
        let (end, begin) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        // SAFETY: `data` holds `size` readable bytes, a power of two; the kernel does not write between
        // tail and head until the tail moves.
        unsafe { copy_out(self.data, self.size, begin, end, out) };
        tail.store(end, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this address and length, and no pointer into it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// Appends the bytes from `begin` to `end`, positions that only grow, of a ring of `size` bytes.
///
/// # Safety
/// `data` holds `size` readable bytes, a power of two, that nobody writes between `begin` and `end`.
pub(super) unsafe fn copy_out(data: NonNull<u8>, size: usize, begin: u64, end: u64, out: &mut Vec<u8>) {
    let wanted = (end.wrapping_sub(begin) as usize).min(size);
    let at = begin as usize & (size - 1);
    let first = wanted.min(size - at);
    // SAFETY: the caller's promise: at + first ≤ size and wanted − first ≤ at, all inside `data`.
    unsafe {
        out.extend_from_slice(std::slice::from_raw_parts(data.as_ptr().add(at), first));
        out.extend_from_slice(std::slice::from_raw_parts(data.as_ptr(), wanted - first));
    }
}
