//! The ring of buffers the kernel may receive into.
//!
//! ```text
//! ours: offer ─► | address length number | … | ─► the kernel's: takes the oldest, names it in a completion
//! ```
//!
//! Promises: the kernel has only buffers that are [`Lent`]; one that a completion names is taken back once. At
//! most `depth` are lent, so that the same few stay in the cache and some are left to write into. Only this side
//! writes to the ring.

use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

use crate::stream::buffers::{BUFFER, Lent, Pool};

/// The only group of buffers a ring has.
pub(super) const GROUP: u16 = 0;

#[derive(Debug)]
pub(super) struct Lending {
    entries: NonNull<BufRingEntry>,
    /// A power of two.
    length: u16,
    tail: u16,
    depth: usize,
    out: usize,
    /// By number of the buffer.
    lent: Vec<Option<Lent>>,
    pool: Rc<Pool>,
}

impl Lending {
    /// Shares a ring of entries with the kernel.
    pub(super) fn new(ring: &IoUring, pool: &Rc<Pool>, depth: usize) -> io::Result<Lending> {
        let depth = depth.clamp(1, usize::from(pool.count()));
        let length = (depth as u16).next_power_of_two();
        let bytes = usize::from(length) * size_of::<BufRingEntry>();
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(entries) = NonNull::new(mapped.cast::<BufRingEntry>()) else {
            return Err(io::Error::other("streams: the kernel mapped a ring at address 0"));
        };
        let lent = (0..pool.count()).map(|_| None).collect();
        let lending = Lending { entries, length, tail: 0, depth, out: 0, lent, pool: pool.clone() };
        // SAFETY: the mapping holds `length` entries, page-aligned and zeroed, and lives as long as `lending`,
        // which is dropped only after the ring has been (see `Uring`), or never.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(mapped as u64, length, GROUP, 0)?;
        }
        Ok(lending)
    }

    /// Lends free buffers, up to the depth; how many the kernel has now.
    pub(super) fn fill(&mut self) -> usize {
        let before = self.tail;
        while self.out < self.depth {
            let Some(lent) = self.pool.lend() else { break };
            // SAFETY: the index is below `length`, so the entry lies in the mapping. The kernel reads entries
            // only between its head and the published tail; this one is not published yet, because at most
            // `depth <= length` are out. No other reference to the entry exists.
            let entry =
                unsafe { &mut *self.entries.as_ptr().add(usize::from(self.tail & (self.length - 1))) };
            entry.set_addr(self.pool.address(&lent) as u64);
            entry.set_len(BUFFER as u32);
            entry.set_bid(lent.index());
            let index = usize::from(lent.index());
            self.lent[index] = Some(lent);
            self.tail = self.tail.wrapping_add(1);
            self.out += 1;
        }
        if self.tail != before {
            // SAFETY: `entries` is the start of the registered ring, whose first entry holds the tail in a
            // field that only this side writes; it is aligned for a u16.
            let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
            tail.store(self.tail, Ordering::Release);
        }
        self.out
    }

    /// Takes back the buffer that a completion names; `None` when the kernel does not have it.
    pub(super) fn take(&mut self, number: u16) -> Option<Lent> {
        let lent = self.lent.get_mut(usize::from(number))?.take()?;
        self.out -= 1;
        Some(lent)
    }

    pub(super) fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        let bytes = usize::from(self.length) * size_of::<BufRingEntry>();
        // SAFETY: the mapping was made in `new` with this length; the kernel's ring was closed with no operation
        // in flight before (see `Uring`), so nobody reads it any more.
        unsafe { libc::munmap(self.entries.as_ptr().cast(), bytes) };
    }
}
