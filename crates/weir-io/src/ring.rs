//! The four rings a process shares with the kernel: fill, receive, transmit, completion.
//!
//! ```text
//!              consumer            producer
//!                 ▼                   ▼
//! |  free  |  entries in transit      |  free  |        indices only grow; slot = index & mask
//! ```
//!
//! Promises: an entry is written before the producer index that publishes it (release), and read
//! after the index that announced it (acquire); a full ring refuses, an empty ring says so; the
//! kernel's indices are read once a batch, not once an entry. Refuses: to trust an index that runs
//! further ahead than the ring is long (the ring then looks empty or full, never larger).
//! Source: Linux `Documentation/networking/af_xdp.rst`, `include/uapi/linux/if_xdp.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// An entry of the fill and completion rings: an offset in the umem.
pub type Addr = u64;

/// An entry of the receive and transmit rings, `struct xdp_desc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Desc {
    pub addr: Addr,
    pub len: u32,
    pub options: u32,
}

/// Plain data of a ring: any bit pattern is a value.
///
/// # Safety
/// Implementors have no padding-sensitive or invalid bit patterns.
pub(crate) unsafe trait Entry: Copy {}
// SAFETY: an integer.
unsafe impl Entry for Addr {}
// SAFETY: `repr(C)` integers, no padding (8 + 4 + 4).
unsafe impl Entry for Desc {}

/// Which ring of a socket: the page offset the kernel maps it at and the option that sizes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Rx,
    Tx,
    Fill,
    Completion,
}

impl Which {
    fn page_offset(self) -> libc::off_t {
        (match self {
            Which::Rx => libc::XDP_PGOFF_RX_RING as u64,
            Which::Tx => libc::XDP_PGOFF_TX_RING as u64,
            Which::Fill => libc::XDP_UMEM_PGOFF_FILL_RING,
            Which::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING,
        }) as libc::off_t
    }

    fn option(self) -> libc::c_int {
        match self {
            Which::Rx => libc::XDP_RX_RING,
            Which::Tx => libc::XDP_TX_RING,
            Which::Fill => libc::XDP_UMEM_FILL_RING,
            Which::Completion => libc::XDP_UMEM_COMPLETION_RING,
        }
    }

    fn offsets(self, all: &libc::xdp_mmap_offsets) -> libc::xdp_ring_offset {
        match self {
            Which::Rx => all.rx,
            Which::Tx => all.tx,
            Which::Fill => all.fr,
            Which::Completion => all.cr,
        }
    }
}

/// A mapped ring: what both directions share.
///
/// Invariant: the four pointers lie inside the mapping, aligned, and `entries` has `mask + 1` slots.
#[derive(Debug)]
struct Shared<T> {
    mapping: NonNull<u8>,
    mapped: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
}

// SAFETY: a ring end is used by one thread at a time (every access takes `&mut self` or is an
// atomic load); moving that thread is fine, the memory is not bound to one.
unsafe impl<T: Entry> Send for Shared<T> {}

impl<T: Entry> Shared<T> {
    /// Sizes a socket's ring (`size`, a power of two) and maps it.
    fn of_socket(socket: BorrowedFd<'_>, which: Which, size: u32) -> io::Result<Shared<T>> {
        if !size.is_power_of_two() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        crate::socket_option::set_xdp(socket, which.option(), &size)?;
        let all: libc::xdp_mmap_offsets = crate::socket_option::xdp(socket, libc::XDP_MMAP_OFFSETS, || {
            libc::xdp_mmap_offsets { rx: no_offsets(), tx: no_offsets(), fr: no_offsets(), cr: no_offsets() }
        })?;
        let offsets = which.offsets(&all);
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        // SAFETY: a new mapping at an address the kernel chooses, of a descriptor we hold.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                which.page_offset(),
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        // SAFETY: the kernel made a ring of `size` entries with these offsets, so all of them lie in
        // the `bytes` just mapped; it aligns indices to cache lines and entries to eight bytes.
        Ok(unsafe { Shared::at(base, bytes, &offsets, size) })
    }

    /// # Safety
    /// `base` is a mapping of `bytes` that outlives the ring and is unmapped by nobody else; the
    /// offsets point inside it, aligned for their types, with `size` entries (a power of two) at `desc`.
    unsafe fn at(base: NonNull<u8>, bytes: usize, offsets: &libc::xdp_ring_offset, size: u32) -> Shared<T> {
        // SAFETY: the caller's promise: every offset stays inside the mapping.
        unsafe {
            Shared {
                mapping: base,
                mapped: bytes,
                producer: base.add(offsets.producer as usize).cast(),
                consumer: base.add(offsets.consumer as usize).cast(),
                flags: base.add(offsets.flags as usize).cast(),
                entries: base.add(offsets.desc as usize).cast(),
                mask: size - 1,
            }
        }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the invariant of `Shared`; the kernel, too, accesses the index atomically.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for `producer`.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as for `producer`.
        unsafe { self.flags.as_ref() }
    }

    #[inline]
    fn slot(&self, index: u32) -> NonNull<T> {
        // SAFETY: `index & mask` is below the number of entries.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }

    #[inline]
    fn size(&self) -> u32 {
        self.mask + 1
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // There a ring is a test's, whose two ends have one mapping.
        if cfg!(miri) {
            return;
        }
        // SAFETY: the mapping is ours alone (`at`), and nothing points into it after this.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

fn no_offsets() -> libc::xdp_ring_offset {
    libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 }
}

/// Our end of a ring the kernel reads: fill or transmit.
#[derive(Debug)]
pub(crate) struct Producer<T: Entry> {
    shared: Shared<T>,
    /// Next index to write; entries from the published index up to here are staged.
    next: u32,
    /// The kernel's consumer index when last read; never ahead of the real one.
    seen: u32,
}

impl<T: Entry> Producer<T> {
    pub(crate) fn of_socket(socket: BorrowedFd<'_>, which: Which, size: u32) -> io::Result<Self> {
        Ok(Producer { shared: Shared::of_socket(socket, which, size)?, next: 0, seen: 0 })
    }

    /// Free slots; reads the kernel's index only when fewer than `want` are known.
    #[inline]
    pub(crate) fn room(&mut self, want: u32) -> u32 {
        let known = self.shared.size().saturating_sub(self.next.wrapping_sub(self.seen));
        if known >= want {
            return known;
        }
        // Acquire: the kernel has read an entry before it frees the slot.
        self.seen = self.shared.consumer().load(Ordering::Acquire);
        self.shared.size().saturating_sub(self.next.wrapping_sub(self.seen))
    }

    /// Stages an entry; the kernel sees it after [`Producer::submit`]. `false` when the ring is full.
    #[inline]
    pub(crate) fn push(&mut self, entry: T) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // SAFETY: the slot is inside the ring and free: the kernel has consumed it (`room`) and will
        // not read it before `submit` publishes it.
        unsafe { self.shared.slot(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Publishes every staged entry.
    #[inline]
    pub(crate) fn submit(&mut self) {
        // Release: entries are written before the index that announces them.
        self.shared.producer().store(self.next, Ordering::Release);
    }

    /// Whether the kernel sleeps until a system call tells it of new entries.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        // The kernel raises the flag and then looks at the ring; we publish and then look at the
        // flag. A full fence between makes sure that one of the two sees the other.
        fence(Ordering::SeqCst);
        self.shared.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// The kernel's index: how many entries it has ever taken, wrapping.
    pub(crate) fn taken(&self) -> u32 {
        self.shared.consumer().load(Ordering::Acquire)
    }

    /// Entries the kernel has not taken yet.
    pub(crate) fn pending(&self) -> u32 {
        self.next.wrapping_sub(self.shared.consumer().load(Ordering::Acquire)).min(self.shared.size())
    }
}

/// Our end of a ring the kernel writes: receive or completion.
#[derive(Debug)]
pub(crate) struct Consumer<T: Entry> {
    shared: Shared<T>,
    /// Next index to read.
    next: u32,
    /// The kernel's producer index when last read.
    seen: u32,
}

impl<T: Entry> Consumer<T> {
    pub(crate) fn of_socket(socket: BorrowedFd<'_>, which: Which, size: u32) -> io::Result<Self> {
        Ok(Consumer { shared: Shared::of_socket(socket, which, size)?, next: 0, seen: 0 })
    }

    /// Entries ready to be read, at most the ring's size; reads the kernel's index when none are known.
    #[inline]
    pub(crate) fn ready(&mut self) -> u32 {
        if self.seen == self.next {
            // Acquire: entries were written before the index that announced them.
            self.seen = self.shared.producer().load(Ordering::Acquire);
        }
        let ready = self.seen.wrapping_sub(self.next);
        if ready > self.shared.size() { 0 } else { ready }
    }

    /// The next entry; its slot goes back to the kernel with [`Consumer::release`].
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.ready() == 0 {
            return None;
        }
        // SAFETY: the slot is inside the ring and announced (`ready`), and the kernel does not write
        // it again before `release` frees it.
        let entry = unsafe { self.shared.slot(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the slots of everything popped back to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        // Release: our reads are done before the slot is free.
        self.shared.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use weir_core::packet::Buffer;

    use super::*;
    use crate::umem::{ChunkSize, Umem};

    const SIZE: u32 = 8;
    /// Entries that cross from thread to thread; Miri takes milliseconds for each.
    const CROSSING: u64 = if cfg!(miri) { 300 } else { 10_000 };

    /// Whoever takes from the ring sleeps until it is woken.
    pub(crate) fn sleeps(consumer: &Consumer<Desc>) {
        consumer.shared.flags().store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
    }

    /// Two views of one anonymous mapping, laid out as the kernel lays out a ring.
    pub(crate) fn pair() -> (Producer<Desc>, Consumer<Desc>) {
        let offsets = libc::xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };
        let (first, second) = views();
        // SAFETY: 4096 mapped bytes each, 192 + 8 × 16 of them used, aligned to 64.
        let (producer, consumer) =
            unsafe { (Shared::at(first, 4096, &offsets, SIZE), Shared::at(second, 4096, &offsets, SIZE)) };
        (Producer { shared: producer, next: 0, seen: 0 }, Consumer { shared: consumer, next: 0, seen: 0 })
    }

    #[cfg(not(miri))]
    fn views() -> (NonNull<u8>, NonNull<u8>) {
        let map = |old: *mut libc::c_void| {
            // SAFETY: a new shared mapping, or (old size 0 of a shared mapping) a second view of one.
            let base = unsafe {
                if old.is_null() {
                    libc::mmap(
                        old,
                        4096,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                        -1,
                        0,
                    )
                } else {
                    libc::mremap(old, 0, 4096, libc::MREMAP_MAYMOVE)
                }
            };
            assert_ne!(base, libc::MAP_FAILED);
            NonNull::new(base.cast::<u8>()).expect("not zero")
        };
        let first = map(std::ptr::null_mut());
        (first, map(first.as_ptr().cast()))
    }

    /// Miri sees one address of both, so that it notices accesses of theirs that no index orders.
    #[cfg(miri)]
    fn views() -> (NonNull<u8>, NonNull<u8>) {
        let base = crate::anonymous::map(4096, 0).expect("a page");
        (base, base)
    }

    fn desc(addr: u64) -> Desc {
        Desc { addr, len: 60, options: 0 }
    }

    #[test]
    fn nothing_is_seen_before_it_is_submitted() {
        let (mut producer, mut consumer) = pair();
        assert!(producer.push(desc(1)));
        assert_eq!(consumer.pop(), None);
        producer.submit();
        assert_eq!(consumer.pop(), Some(desc(1)));
        assert_eq!(consumer.pop(), None);
    }

    #[test]
    fn a_full_ring_refuses_until_slots_are_released() {
        let (mut producer, mut consumer) = pair();
        assert!((0..SIZE as u64).all(|i| producer.push(desc(i))));
        assert!(!producer.push(desc(99)));
        producer.submit();
        assert_eq!(producer.pending(), SIZE);
        assert_eq!(consumer.pop(), Some(desc(0)));
        assert!(!producer.push(desc(99)), "popped is not released");
        consumer.release();
        assert!(producer.push(desc(8)));
        assert_eq!(producer.pending(), SIZE);
    }

    #[test]
    fn order_holds_across_the_wrap_of_the_index() {
        let (mut producer, mut consumer) = pair();
        let start = u32::MAX - 10;
        producer.shared.producer().store(start, Ordering::Relaxed);
        producer.shared.consumer().store(start, Ordering::Relaxed);
        (producer.next, producer.seen, consumer.next, consumer.seen) = (start, start, start, start);
        let (mut sent, mut got) = (0u64, 0u64);
        while got < 100 {
            while sent < 100 && producer.push(desc(sent)) {
                sent += 1;
            }
            producer.submit();
            while let Some(entry) = consumer.pop() {
                assert_eq!(entry.addr, got);
                got += 1;
            }
            consumer.release();
        }
    }

    #[test]
    fn an_index_further_ahead_than_the_ring_is_long_is_not_believed() {
        let (producer, mut consumer) = pair();
        producer.shared.producer().store(SIZE + 1, Ordering::Relaxed);
        assert_eq!(consumer.ready(), 0);
        let (mut producer, consumer) = pair();
        consumer.shared.consumer().store(u32::MAX - 3, Ordering::Relaxed);
        assert!(producer.push(desc(0)), "the last good index still counts");
        producer.next = SIZE;
        assert_eq!(producer.room(SIZE), 0);
    }

    #[test]
    fn entries_cross_threads_whole() {
        let (mut producer, mut consumer) = pair();
        let writer = std::thread::spawn(move || {
            let mut sent = 0u64;
            while sent < CROSSING {
                while sent < CROSSING
                    && producer.push(Desc { addr: sent, len: sent as u32, options: !sent as u32 })
                {
                    sent += 1;
                }
                producer.submit();
                std::thread::yield_now();
            }
        });
        let mut expected = 0u64;
        while expected < CROSSING {
            while let Some(entry) = consumer.pop() {
                assert_eq!(
                    (entry.addr, entry.len, entry.options),
                    (expected, expected as u32, !expected as u32)
                );
                expected += 1;
            }
            consumer.release();
            std::thread::yield_now();
        }
        writer.join().expect("no panic");
    }

    #[test]
    fn whoever_takes_a_chunk_from_a_ring_sees_what_was_written_to_it() {
        let umem = Umem::new(4, ChunkSize::default()).expect("a few pages");
        let (region, size) = (umem.region().clone(), u64::from(umem.region().chunk_size()));
        let (mut producer, mut consumer) = pair();
        let writer = std::thread::spawn(move || {
            let mut pool = umem.pool();
            let mut sent = 0u64;
            while sent < CROSSING {
                umem.reclaim(&mut pool);
                while sent < CROSSING
                    && let Some(mut chunk) = pool.take()
                {
                    chunk.bytes_mut()[..8].copy_from_slice(&sent.to_le_bytes());
                    let index = umem.region().claim(chunk).expect("one of this umem");
                    assert!(producer.push(desc(u64::from(index) * size)), "fewer chunks than slots");
                    sent += 1;
                }
                producer.submit();
                std::thread::yield_now();
            }
            umem
        });
        let mut expected = 0u64;
        while expected < CROSSING {
            while let Some(entry) = consumer.pop() {
                consumer.release();
                // SAFETY: the other thread gave its claim up with the entry, which came once.
                let mut chunk = unsafe { region.chunk((entry.addr / size) as u32) };
                assert_eq!(chunk.bytes()[..8], expected.to_le_bytes());
                chunk.bytes_mut().fill(0xff);
                expected += 1;
            }
            std::thread::yield_now();
        }
        let umem = writer.join().expect("no panic");
        assert_eq!(umem.home(), umem.total());
    }
}
