//! The ring of buffers the kernel may receive into.
//!
//! ```text
//! ours: offer ─► | address length number | … | ─► the kernel's: takes the oldest, names it in a completion
//! ```
//!
//! Promises: the kernel has only buffers that are [`Lent`]; one that a completion names is taken back once. Half
//! of the pool at most is lent, so that some are left to write into. Only this side writes to the ring.
//!
//! The kernel takes buffers in turn, so as many are lent as what typically arrives in them fits a part of the cache:
//! few for bulk, many for single packets. What they bring is then still in the cache when it is sent.

use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

use crate::anonymous;
use crate::stream::buffers::{BUFFER, Lent, Pool};

/// What lent buffers may bring before the first of them comes again: a part of a core's cache (1 to 2 MiB on today's
/// servers), the sockets and tables have theirs beside it. 512 KiB, 8 full buffers.
const CACHE_SHARE: usize = 512 << 10;

/// Receives over which what is typical is averaged.
const AVERAGED: usize = 32;

/// The only group of buffers a ring has.
pub(super) const GROUP: u16 = 0;

#[derive(Debug)]
pub(super) struct Lending {
    entries: NonNull<BufRingEntry>,
    /// A power of two.
    length: u16,
    tail: u16,
    /// Buffers lent at a time: at most `most`, by what is typical.
    most: usize,
    /// Bytes of a receive, of late, times [`AVERAGED`].
    typical: usize,
    out: usize,
    /// Lent buffers by their number.
    lent: Vec<Option<Lent>>,
    pool: Rc<Pool>,
}

impl Lending {
    /// Shares a ring of entries with the kernel.
    pub(super) fn new(ring: &IoUring, pool: &Rc<Pool>) -> io::Result<Lending> {
        let most = pool.count().div_ceil(2);
        let length = most.next_power_of_two();
        let bytes = usize::from(length) * size_of::<BufRingEntry>();
        let mapped = anonymous::map(bytes, libc::MAP_POPULATE)?;
        let lent = (0..pool.count()).map(|_| None).collect();
        let lending = Lending {
            entries: mapped.cast::<BufRingEntry>(),
            length,
            tail: 0,
            most: most.into(),
            typical: 0,
            out: 0,
            lent,
            pool: pool.clone(),
        };
        // SAFETY: the mapping holds `length` entries, page-aligned and zeroed, and lives as long as `lending`,
        // which is dropped only after the ring has been (see `Uring`), or never.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(mapped.as_ptr() as u64, length, GROUP, 0)?;
        }
        Ok(lending)
    }

    /// Lends free buffers, as many as are good; how many the kernel has now.
    pub(super) fn fill(&mut self) -> usize {
        let before = self.tail;
        let depth = depth(self.typical / AVERAGED, self.most);
        while self.out < depth {
            let Some(lent) = self.pool.lend() else { break };
            // SAFETY: the index is below `length`, so the entry lies in the mapping. The kernel reads entries
            // only between its head and the published tail; this one is not published yet, because at most
            // `most <= length` are out. No other reference to the entry exists.
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

    /// Bytes that one receive brought.
    pub(super) fn brought(&mut self, bytes: usize) {
        self.typical = self.typical - self.typical / AVERAGED + bytes;
    }

    pub(super) fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }
}

/// How many buffers to lend when a receive typically brings so many bytes.
fn depth(typical: usize, most: usize) -> usize {
    (CACHE_SHARE / typical.max(1)).clamp(1, most.max(1))
}

impl Drop for Lending {
    fn drop(&mut self) {
        let bytes = usize::from(self.length) * size_of::<BufRingEntry>();
        // SAFETY: the mapping was made in `new` with this length; the kernel's ring was closed with no operation
        // in flight before (see `Uring`), so nobody reads it any more.
        unsafe { libc::munmap(self.entries.as_ptr().cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_full_buffers_are_lent_and_many_small_ones() {
        assert_eq!(depth(BUFFER, 128), 8);
        assert_eq!(depth(1400, 128), 128);
        assert_eq!((depth(0, 128), depth(usize::MAX, 128), depth(BUFFER, 1)), (128, 1, 1));
    }

    #[test]
    fn the_kernel_has_half_of_the_pool_and_less_after_large_receives() {
        let pool = Pool::new(64).expect("mapped");
        let Ok((ring, _)) = super::super::operation::ring() else { return };
        let Ok(mut lending) = Lending::new(&ring, &pool) else { return };
        assert_eq!((lending.fill(), pool.free()), (32, 32));
        for _ in 0..200 {
            lending.brought(BUFFER);
        }
        for number in 0..32 {
            // SAFETY: the ring is never entered, so the kernel writes to nothing.
            drop(lending.take(number).map(|lent| unsafe { pool.filled(lent, 0..0) }));
        }
        assert_eq!(lending.take(40).map(|lent| lent.index()), None, "never lent");
        lending.fill();
        assert_eq!(lending.out, 8);
        drop(ring);
    }
}
