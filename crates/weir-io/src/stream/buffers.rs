//! The memory of a worker's streams: one mapping, cut into buffers that have one owner each.
//!
//! ```text
//! | buffer 0 (64 KiB + room) | buffer 1 | buffer 2 | …
//! ```
//!
//! Promises: a buffer is either free, lent to the kernel ([`Lent`]), or in the user's hands ([`Buffer`]); each
//! of the two is the only handle of its bytes and neither can be copied. Dropping a `Buffer` (or the last `Rc`
//! of it) frees it. The mapping outlives every handle. Refuses: growth, and handles on another thread.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::anonymous::{self, Advice};

/// What one receive brings at most.
pub const BUFFER: usize = 64 << 10;

/// What a buffer holds at most: four full TLS records (4 × (16,384 + 29) B), or one receive and its header. An odd
/// number of cache lines, so that buffers do not all begin in the same sets of the cache.
pub const CAPACITY: usize = BUFFER + 4096 + 64;

/// One worker's buffers.
#[derive(Debug)]
pub(super) struct Pool {
    base: NonNull<u8>,
    count: u16,
    /// The last one freed is taken first: it is still in the cache.
    free: RefCell<Vec<u16>>,
}

/// The pool of one thread, for those who write into its buffers. It can stand alone, without any stream.
#[derive(Clone, Debug)]
pub struct Buffers(pub(super) Rc<Pool>);

impl Buffers {
    /// Maps `count` buffers of [`CAPACITY`] bytes. Pages take memory when they are first used.
    pub fn new(count: u16) -> io::Result<Buffers> {
        Pool::new(count).map(Buffers)
    }

    /// An empty buffer, when one is free.
    pub fn take(&self) -> Option<Buffer> {
        self.0.take()
    }

    /// Buffers nobody has.
    pub fn free(&self) -> usize {
        self.0.free()
    }
}

/// A buffer the kernel may write to. Nobody else has a handle of it.
#[derive(Debug)]
pub(super) struct Lent(u16);

impl Lent {
    pub(super) fn index(&self) -> u16 {
        self.0
    }
}

impl Pool {
    /// Maps `count` buffers. Pages take memory when they are first used.
    pub(super) fn new(count: u16) -> io::Result<Rc<Pool>> {
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "streams: 0 buffers, expected at least 1",
            ));
        }
        let bytes = usize::from(count) * CAPACITY;
        let base = anonymous::map(bytes, libc::MAP_NORESERVE)?;
        anonymous::advise(base.as_ptr(), bytes, Advice::HugePages);
        Ok(Rc::new(Pool { base, count, free: RefCell::new((0..count).rev().collect()) }))
    }

    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Buffers nobody has.
    pub(super) fn free(&self) -> usize {
        self.free.borrow().len()
    }

    pub(super) fn bytes(&self) -> usize {
        usize::from(self.count) * CAPACITY
    }

    /// An empty buffer for the user.
    pub(super) fn take(self: &Rc<Pool>) -> Option<Buffer> {
        let index = self.free.borrow_mut().pop()?;
        Some(Buffer { pool: self.clone(), index, start: 0, end: 0 })
    }

    /// A buffer for the kernel.
    pub(super) fn lend(&self) -> Option<Lent> {
        self.free.borrow_mut().pop().map(Lent)
    }

    /// Where the bytes of a buffer begin; valid for [`CAPACITY`] bytes as long as the pool lives.
    pub(super) fn address(&self, lent: &Lent) -> *mut u8 {
        self.at(lent.0)
    }

    fn at(&self, index: u16) -> *mut u8 {
        debug_assert!(index < self.count);
        // SAFETY: indices come from `free`, which holds numbers below `count` only, so the buffer lies in the
        // mapping.
        unsafe { self.base.as_ptr().add(usize::from(index) * CAPACITY) }
    }

    /// What the kernel has filled becomes the user's.
    ///
    /// # Safety
    /// The kernel must have given `lent` back: no operation that could still write to it is in flight.
    pub(super) unsafe fn filled(self: &Rc<Pool>, lent: Lent, bytes: Range<usize>) -> Buffer {
        let end = bytes.end.min(CAPACITY);
        Buffer { pool: self.clone(), index: lent.0, start: bytes.start.min(end) as u32, end: end as u32 }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length; every `Buffer` holds an `Rc` of the pool, so
        // none is left, and whoever lends buffers to the kernel holds one until the kernel has given them back.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes()) };
    }
}

/// Bytes of one receive, or an empty buffer to write into. The only handle of its memory.
pub struct Buffer {
    pool: Rc<Pool>,
    index: u16,
    /// `start <= end <= CAPACITY`.
    start: u32,
    end: u32,
}

impl Buffer {
    /// Bytes that may still be added at the end.
    pub fn room(&self) -> usize {
        CAPACITY - self.end as usize
    }

    /// Cuts bytes off the front.
    pub fn advance(&mut self, bytes: usize) {
        self.start += bytes.min(self.len()) as u32;
    }

    /// Keeps the first `bytes`.
    pub fn truncate(&mut self, bytes: usize) {
        self.end = self.start + bytes.min(self.len()) as u32;
    }

    /// Makes it this long, at most until there is no more room. What is added holds whatever was there before.
    pub fn resize(&mut self, bytes: usize) {
        self.end = self.start + bytes.min(CAPACITY - self.start as usize) as u32;
    }

    /// Adds bytes at the end; how many found room.
    pub fn extend(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let length = self.len();
        self.end += taken as u32;
        self[length..].copy_from_slice(&bytes[..taken]);
        taken
    }

    /// Forgets what it holds; the whole capacity is room again.
    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// The memory from the start of the buffer, for a system call of this process that writes into it.
    pub(super) fn writable(&mut self) -> (*mut u8, usize) {
        (self.pool.at(self.index), CAPACITY)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let length = (self.end - self.start) as usize;
        // SAFETY: `start <= end <= CAPACITY`, so the bytes lie in this buffer. The mapping lives as long as the
        // pool we hold, came zeroed and is always initialized. This handle is the only one, so nobody writes
        // while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.pool.at(self.index).add(self.start as usize), length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = (self.end - self.start) as usize;
        // SAFETY: as in `deref`; the handle is borrowed mutably, so nobody reads either. What the kernel reads
        // for a send is behind an `Rc`, which gives out no mutable borrow while it is shared.
        unsafe { std::slice::from_raw_parts_mut(self.pool.at(self.index).add(self.start as usize), length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.free.borrow_mut().push(self.index);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}, {} bytes)", self.index, self.len())
    }
}

/// Bytes to send. They stay as they are until the send is answered.
#[derive(Debug)]
pub enum Part {
    /// A range of a received buffer. Several parts, of several streams, may share it.
    Shared(Rc<Buffer>, Range<usize>),
    Owned(Vec<u8>),
}

impl Part {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Part::Shared(buffer, range) => &buffer[range.clone()],
            Part::Owned(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_the_next_one_taken() {
        let pool = Pool::new(4).expect("mapped");
        let first = pool.take().expect("a buffer");
        let second = pool.take().expect("a buffer");
        let index = first.index;
        drop(first);
        assert_eq!(pool.take().expect("a buffer").index, index);
        drop(second);
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn buffers_outlive_their_pools_last_user() {
        let pool = Pool::new(1).expect("mapped");
        let mut buffer = pool.take().expect("a buffer");
        drop(pool);
        assert_eq!(buffer.extend(b"still here"), 10);
        assert_eq!(&*buffer, b"still here");
    }

    #[test]
    fn a_buffer_is_cut_and_grown_within_its_capacity() {
        let pool = Pool::new(2).expect("mapped");
        let mut buffer = pool.take().expect("a buffer");
        assert_eq!(buffer.extend(&vec![7; CAPACITY + 1]), CAPACITY);
        assert_eq!((buffer.room(), buffer.extend(b"x")), (0, 0));
        buffer.advance(10);
        buffer.truncate(20);
        assert_eq!(&*buffer, &[7; 20]);
        buffer.advance(100);
        assert!(buffer.is_empty());
        buffer.resize(usize::MAX);
        assert_eq!(buffer.len(), CAPACITY - 30);
        buffer.clear();
        assert_eq!((buffer.len(), buffer.room()), (0, CAPACITY));
    }

    #[test]
    fn no_two_handles_share_a_byte() {
        // Miri looks at each byte for a tenth of a millisecond.
        let count = if cfg!(miri) { 3 } else { 16 };
        let pool = Pool::new(count).expect("mapped");
        let mut taken: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken.len(), usize::from(count));
        for (mark, buffer) in taken.iter_mut().enumerate() {
            buffer.resize(CAPACITY);
            buffer.fill(mark as u8);
        }
        for (mark, buffer) in taken.iter().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == mark as u8));
        }
    }
}
