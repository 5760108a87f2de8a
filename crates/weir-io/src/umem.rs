//! Memory for frames: one mapping per worker, cut into chunks of one size.
//!
//! ```text
//! | chunk 0 (2048) | chunk 1 | chunk 2 | …            huge pages when the machine has them
//! ```
//!
//! Promises: a [`Chunk`] is the only handle of its bytes; no chunk is ever lost (a chunk dropped
//! anywhere, on any thread, goes home and [`Umem::reclaim`] finds it again); the mapping lives
//! until the last chunk is home. So home + lingering + pools + device rings + frames in flight = total, always.
//! Refuses: chunks of other sizes than AF_XDP's aligned mode takes (2048 or 4096), and growth.
//!
//! **How large a chunk.** Where the kernel copies, it takes a chunk for what it is: headroom (256), then the frame. A card
//! that writes chunks itself is told their size by its driver, and some can tell theirs whole KiB only (igb, ixgbe of the
//! 82599 class): of 2048 − 256 such a card uses 1024 and cuts what is longer. No driver says so, so every card is taken
//! for one of these: 4096 bytes, of which 3072 are sure.
//!
//! Nothing here needs AF_XDP: the other ports take their buffers from the same place.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_core::packet::{Buffer, HEADROOM, Pool};

use crate::anonymous::{self, Advice};

/// Bytes of a huge page on x86-64 and (with 4 KiB base pages) aarch64; mappings are rounded up to it.
const HUGE_PAGE: usize = 2 << 20;

/// Chunks a umem may have: 2^20 × 4096 B = 4 GiB, the largest UMEM whose offsets fit in a `u32`.
pub const MAX_CHUNKS: u32 = 1 << 20;

/// Ethernet header and VLAN tag: what a frame has beside its IP packet.
pub const LINK_HEADER: usize = 14 + 4;
/// The coarsest step in which a known card's receive buffers are told to it: 1 KiB (`SRRCTL.BSIZEPKT` of igb and ixgbe).
const CARD_STEP: usize = 1024;

/// The sizes AF_XDP's aligned mode takes on 4 KiB pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum ChunkSize {
    /// Two chunks a page; frames up to 1,792 B behind 256 B of headroom, where the kernel copies them.
    #[default]
    Bytes2048 = 2048,
    /// One chunk a page; frames up to 3,840 B where the kernel copies them, up to 3,072 B from every card.
    Bytes4096 = 4096,
}

impl ChunkSize {
    /// The smallest size that holds a frame of an interface with this MTU: VLAN and Ethernet
    /// headers (4 + 14) and headroom (256) beside it; `None` when no size does.
    pub fn for_mtu(mtu: usize) -> Option<ChunkSize> {
        let need = mtu + LINK_HEADER + HEADROOM;
        [ChunkSize::Bytes2048, ChunkSize::Bytes4096].into_iter().find(|s| need <= s.bytes())
    }

    /// The smallest size for an interface that may be a card's, which may come to write chunks itself.
    pub fn for_card(mtu: usize) -> Option<ChunkSize> {
        ChunkSize::for_mtu(mtu).map(|_| ChunkSize::Bytes4096)
    }

    /// Bytes of a frame that any card can be told to write into one chunk.
    pub fn card_room(self) -> usize {
        (self.bytes() - HEADROOM) / CARD_STEP * CARD_STEP
    }

    pub fn bytes(self) -> usize {
        self as u32 as usize
    }
}

/// What backs a umem, for the operator: TLB misses are a tenth of a small packet's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Reserved huge pages (`MAP_HUGETLB`).
    Huge,
    /// Ordinary pages the kernel was asked to merge (`MADV_HUGEPAGE`).
    Transparent,
    /// 4 KiB pages: the kernel has no transparent huge pages.
    Small,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pages::Huge => "reserved huge pages",
            Pages::Transparent => "transparent huge pages",
            Pages::Small => "4 KiB pages",
        })
    }
}

/// Why there is no umem.
#[derive(Debug)]
pub enum UmemError {
    Count(u32),
    Map { bytes: usize, error: io::Error },
}

impl fmt::Display for UmemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UmemError::Count(got) => write!(f, "umem: {got} chunks, expected 1 to {MAX_CHUNKS}"),
            UmemError::Map { bytes, error } => {
                write!(f, "umem: cannot map {bytes} bytes ({error}); configure fewer buffers or free memory")
            }
        }
    }
}

impl std::error::Error for UmemError {}

/// One worker's frame memory.
#[derive(Debug)]
pub struct Umem {
    region: Arc<Region>,
}

impl Umem {
    /// Maps `count` chunks, touched in advance so that no packet pays for a page fault.
    pub fn new(count: u32, size: ChunkSize) -> Result<Umem, UmemError> {
        if count == 0 || count > MAX_CHUNKS {
            return Err(UmemError::Count(count));
        }
        let bytes = (count as usize * size.bytes()).next_multiple_of(HUGE_PAGE);
        let (base, pages) = map(bytes).map_err(|error| UmemError::Map { bytes, error })?;
        let mut regions = lock(&REGIONS);
        let slot = regions.iter().position(Option::is_none).unwrap_or(regions.len());
        let region = Arc::new(Region {
            base,
            bytes,
            size,
            count,
            id: slot as u32,
            pages,
            home: Mutex::new(Home { free: (0..count).rev().collect(), closed: false, lingering: 0 }),
        });
        match regions.get_mut(slot) {
            Some(empty) => *empty = Some(region.clone()),
            None => regions.push(Some(region.clone())),
        }
        Ok(Umem { region })
    }

    /// Every chunk now at home, as a worker's pool.
    pub fn pool(&self) -> Pool<Chunk> {
        let mut pool = Pool::new(Vec::with_capacity(self.total()));
        self.reclaim(&mut pool);
        pool
    }

    /// Moves chunks that were dropped outside a pool back into `pool`; returns how many. A worker
    /// calls it when idle or when its pool runs low.
    pub fn reclaim(&self, pool: &mut Pool<Chunk>) -> usize {
        let free = std::mem::take(&mut lock(&self.region.home).free);
        let count = free.len();
        for index in free {
            // SAFETY: an index in `free` has no handle (the invariant of `Home`), and taking the
            // list made this loop its only owner.
            pool.put(unsafe { self.region.chunk(index) });
        }
        count
    }

    /// Chunks at home: neither in a pool, nor in a device, nor in flight.
    pub fn home(&self) -> usize {
        lock(&self.region.home).free.len()
    }

    /// Chunks of closed ports that the kernel may still use: they come home by themselves.
    pub fn lingering(&self) -> usize {
        lock(&self.region.home).lingering
    }

    /// [`Umem::home`] and [`Umem::lingering`] of one moment.
    pub fn at_rest(&self) -> usize {
        let home = lock(&self.region.home);
        home.free.len() + home.lingering
    }

    /// All chunks there are.
    pub fn total(&self) -> usize {
        self.region.count as usize
    }

    pub fn chunk_size(&self) -> usize {
        self.region.size.bytes()
    }

    /// [`ChunkSize::card_room`] of these chunks.
    pub fn card_room(&self) -> usize {
        self.region.size.card_room()
    }

    /// Bytes of a frame that the kernel copies into one of these chunks.
    pub fn copied_room(&self) -> usize {
        self.chunk_size() - HEADROOM
    }

    pub fn pages(&self) -> Pages {
        self.region.pages
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        let mut regions = lock(&REGIONS);
        lock(&self.region.home).closed = true;
        self.region.retire(&mut regions);
    }
}

/// Every region with a living `Umem` or chunk, by [`Region::id`].
static REGIONS: Mutex<Vec<Option<Arc<Region>>>> = Mutex::new(Vec::new());

/// A poisoned lock means a panic elsewhere; the lists it guards are valid at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mapping and the list of chunks nobody holds.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    size: ChunkSize,
    count: u32,
    id: u32,
    pages: Pages,
    home: Mutex<Home>,
}

/// Invariant: an index is in `free` exactly when no [`Chunk`] and no device holds that chunk.
#[derive(Debug)]
struct Home {
    free: Vec<u32>,
    /// Claims of ports that are closed, among those that are not in `free`.
    lingering: usize,
    /// The [`Umem`] is gone: the region goes when the last chunk comes home.
    closed: bool,
}

// SAFETY: `base` is the only field that is not already Send + Sync. The region itself never
// dereferences it; bytes are reached only through a `Chunk`, which owns its part exclusively.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives no access to the mapped bytes.
unsafe impl Sync for Region {}

impl Region {
    /// The handle of chunk `index`.
    ///
    /// # Safety
    /// The caller owns the claim on `index`: it is out of `home`, no other `Chunk` of it exists, and
    /// no device holds it. `index < self.count`.
    #[inline]
    pub(crate) unsafe fn chunk(&self, index: u32) -> Chunk {
        debug_assert!(index < self.count);
        // SAFETY: index < count and count × size ≤ bytes, so the offset stays inside the mapping.
        let start = unsafe { self.base.add(index as usize * self.size.bytes()) };
        Chunk { start, size: self.size as u32, region: self.id }
    }

    /// Turns a handle into the claim a device ring holds; gives back a chunk of another region.
    #[inline]
    pub(crate) fn claim(&self, chunk: Chunk) -> Result<u32, Chunk> {
        if chunk.region != self.id {
            return Err(chunk);
        }
        let offset = chunk.start.as_ptr() as usize - self.base.as_ptr() as usize;
        std::mem::forget(chunk);
        Ok((offset >> self.chunk_size().trailing_zeros()) as u32)
    }

    /// Notes that a closed port still claims `chunks`.
    pub(crate) fn linger(&self, chunks: usize) {
        lock(&self.home).lingering += chunks;
    }

    /// Ends claims of a port that is closed.
    pub(crate) fn end_lingering(&self, chunks: &[u32]) {
        let mut regions = lock(&REGIONS);
        let mut home = lock(&self.home);
        home.lingering -= chunks.len();
        home.free.extend_from_slice(chunks);
        drop(home);
        self.retire(&mut regions);
    }

    /// Ends a claim without a handle, as a device does with what it still held when it closed.
    pub(crate) fn send_home(&self, index: u32) {
        let mut regions = lock(&REGIONS);
        lock(&self.home).free.push(index);
        self.retire(&mut regions);
    }

    /// Forgets a region whose owner is gone and whose chunks are all home; the last `Arc` unmaps.
    fn retire(&self, regions: &mut [Option<Arc<Region>>]) {
        let home = lock(&self.home);
        if home.closed && home.free.len() == self.count as usize {
            drop(home);
            regions[self.id as usize] = None;
        }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn chunk_size(&self) -> u32 {
        self.size as u32
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are one mapping of ours. No chunk is out: while one is, either
        // the `Umem` lives or the table keeps this region's last `Arc` (see `retire`).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The owned handle of one chunk: 16 bytes, `Option<Chunk>` too.
///
/// Invariant: the `size` bytes at `start` are mapped, aligned to `size`, and reachable through this
/// handle alone until it is dropped or claimed by a device.
pub struct Chunk {
    start: NonNull<u8>,
    size: u32,
    region: u32,
}

// SAFETY: a chunk is the exclusive owner of plain bytes; nothing about it is bound to a thread.
unsafe impl Send for Chunk {}
// SAFETY: `&Chunk` gives shared reads of plain bytes only.
unsafe impl Sync for Chunk {}

impl Buffer for Chunk {
    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the invariant of `Chunk`: `size` mapped bytes, and `&self` forbids writers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size as usize) }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the invariant of `Chunk`: `size` mapped bytes no one else can reach.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.size as usize) }
    }
}

impl Drop for Chunk {
    #[cold]
    fn drop(&mut self) {
        let mut regions = lock(&REGIONS);
        // A chunk is out, so its region is in the table: `retire` waits for it.
        if let Some(region) = regions.get(self.region as usize).and_then(|r| r.clone()) {
            let offset = self.start.as_ptr() as usize - region.base.as_ptr() as usize;
            lock(&region.home).free.push((offset / self.size as usize) as u32);
            region.retire(&mut regions);
        }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({}:{:p}+{})", self.region, self.start, self.size)
    }
}

/// Maps `bytes` (a multiple of [`HUGE_PAGE`]), best pages first.
fn map(bytes: usize) -> io::Result<(NonNull<u8>, Pages)> {
    if let Ok(base) = anonymous::map(bytes, libc::MAP_HUGETLB | libc::MAP_POPULATE) {
        return Ok((base, Pages::Huge));
    }
    let base = anonymous::map(bytes, 0)?;
    let advised = anonymous::advise(base.as_ptr(), bytes, Advice::HugePages);
    // Failure leaves pages to be faulted in later, which is slower, not wrong.
    anonymous::advise(base.as_ptr(), bytes, Advice::Populate);
    Ok((base, if advised { Pages::Transparent } else { Pages::Small }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::packet::{DeviceId, Frame};

    fn umem(count: u32) -> Umem {
        Umem::new(count, ChunkSize::default()).expect("a few pages")
    }

    #[test]
    fn a_handle_takes_sixteen_bytes_even_as_an_option() {
        assert_eq!(size_of::<Option<Chunk>>(), 16);
    }

    #[test]
    fn chunks_do_not_overlap() {
        // Miri looks at each byte for a tenth of a millisecond.
        let umem = umem(if cfg!(miri) { 4 } else { 64 });
        let mut pool = umem.pool();
        let mut chunks: Vec<Chunk> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(chunks.len(), umem.total());
        for (i, chunk) in chunks.iter_mut().enumerate() {
            chunk.bytes_mut().fill(i as u8);
        }
        for (i, chunk) in chunks.iter().enumerate() {
            assert_eq!(chunk.bytes().len(), 2048);
            assert!(chunk.bytes().iter().all(|&b| b == i as u8));
        }
    }

    #[test]
    fn a_dropped_chunk_comes_home_from_any_thread() {
        let umem = umem(8);
        let mut pool = umem.pool();
        let frame = Frame::from_bytes(pool.take().expect("eight"), b"x", DeviceId(0)).expect("fits");
        assert_eq!(pool.free() + umem.home() + 1, umem.total());
        std::thread::spawn(move || drop(frame)).join().expect("no panic");
        assert_eq!((pool.free(), umem.home()), (7, 1));
        assert_eq!(umem.reclaim(&mut pool), 1);
        assert_eq!(pool.free(), umem.total());
    }

    #[test]
    fn the_mapping_outlives_its_umem_while_a_chunk_is_out() {
        let umem = umem(2);
        let id = umem.region.id as usize;
        let weak = Arc::downgrade(&umem.region);
        let mut chunk = umem.pool().take().expect("two");
        drop(umem);
        chunk.bytes_mut().fill(7);
        assert_eq!(chunk.bytes()[2047], 7);
        assert!(lock(&REGIONS)[id].is_some());
        drop(chunk);
        assert!(weak.upgrade().is_none(), "the last chunk unmaps");
    }

    #[test]
    fn a_device_claim_counts_until_it_goes_home() {
        let (ours, other) = (umem(4), umem(4));
        let mut pool = ours.pool();
        let index = ours.region().claim(pool.take().expect("four")).expect("same region");
        assert_eq!((pool.free(), ours.home()), (3, 0));
        ours.region().send_home(index);
        assert_eq!(ours.home(), 1);
        let foreign = other.pool().take().expect("four");
        assert!(ours.region().claim(foreign).is_err());
        assert_eq!(other.home(), 4);
    }

    #[test]
    fn sizes_follow_the_mtu() {
        assert_eq!(ChunkSize::for_mtu(1500), Some(ChunkSize::Bytes2048));
        assert_eq!(ChunkSize::for_mtu(1774), Some(ChunkSize::Bytes2048));
        assert_eq!(ChunkSize::for_mtu(1775), Some(ChunkSize::Bytes4096));
        assert_eq!(ChunkSize::for_mtu(9000), None);
    }

    #[test]
    fn a_card_that_counts_in_whole_kib_has_room_for_every_frame_it_is_given() {
        assert_eq!(ChunkSize::Bytes2048.card_room(), 1024, "what igb made of 2048 − 256");
        assert_eq!(ChunkSize::Bytes4096.card_room(), 3072);
        let size = ChunkSize::for_card(1500).expect("a common MTU");
        assert!(size.card_room() >= 1500 + LINK_HEADER);
        assert_eq!(ChunkSize::for_card(68), Some(ChunkSize::Bytes4096));
        assert_eq!(ChunkSize::for_card(3822), Some(ChunkSize::Bytes4096), "in copy mode");
        assert_eq!(ChunkSize::for_card(3823), None);
    }

    #[test]
    fn a_count_out_of_range_is_refused_with_the_range() {
        let error = Umem::new(0, ChunkSize::default()).expect_err("zero chunks").to_string();
        assert_eq!(error, "umem: 0 chunks, expected 1 to 1048576");
    }
}
