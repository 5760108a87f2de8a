//! An allocator that puts large tables on huge pages.
//!
//! A full IPv4 table is 64 MiB: on 4 KiB pages its lookups miss the TLB as well as the cache. Most
//! distributions set transparent huge pages to `madvise`, so memory gets them only when asked for.
//! [`HugePages`] asks, for allocations of [`LARGE`] and more, and is the system allocator otherwise.
//! Where the kernel refuses, memory stays on small pages and only speed is lost.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::anonymous::{self, Advice};

/// Allocations below this are left alone: two huge pages, so that at least one fits inside whatever
/// the alignment.
pub const LARGE: usize = 4 << 20;

/// The page size `madvise` wants its start aligned to.
const PAGE: usize = 4096;

/// Declare as `#[global_allocator]` in a binary.
#[derive(Debug)]
pub struct HugePages;

fn advise(memory: *mut u8, size: usize) -> *mut u8 {
    if size >= LARGE && !memory.is_null() {
        let skip = memory.align_offset(PAGE);
        // `skip < PAGE < size`: the range lies inside the block just allocated. A refusal is harmless.
        anonymous::advise(memory.wrapping_add(skip), size - skip, Advice::HugePages);
    }
    memory
}

// SAFETY: every method forwards its arguments unchanged to `System` and returns what it returned.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout` is passed on.
        advise(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        advise(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise about all three is passed on.
        advise(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise that `memory` came from here with `layout` is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_hold_what_is_written_and_come_zeroed() {
        let layout = Layout::from_size_align(LARGE + 123, 8).expect("a valid layout");
        // SAFETY: the layout is not of zero size; every access is inside the block; it is freed once
        // with the size it last had.
        unsafe {
            let block = HugePages.alloc_zeroed(layout);
            assert!(!block.is_null());
            assert_eq!(block.add(LARGE).read(), 0);
            block.add(7).write(9);
            let block = HugePages.realloc(block, layout, 2 * LARGE);
            assert_eq!(block.add(7).read(), 9);
            let grown = Layout::from_size_align(2 * LARGE, 8).expect("a valid layout");
            HugePages.dealloc(block, grown);
        }
    }
}
