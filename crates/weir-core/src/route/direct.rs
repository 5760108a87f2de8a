//! The first level of both tables: one entry for each value of an address's first bits.
//!
//! ```text
//! entry  31     30     29 … 24   24          23 … 0
//!        LINK   INNER  –         PRESENT     value          PRESENT: a route's value
//!        1      0/1    index in another structure           a longer look is needed
//!        all zero: no route but the default
//! ```
//!
//! 2²⁴ slots × 4 B = 64 MiB of address space for IPv4. Zeroed memory from the operating system is not
//! backed until it is written, so a small table costs the pages its prefixes lie in. The default route is kept
//! elsewhere for the same reason: it would touch all of them.

use super::{MAX_VALUE, NO_ROUTE};

/// Slots a bit of [`Direct::touched`] stands for: 16,384 × 4 B = 64 KiB.
const CHUNK: usize = 1 << 14;

/// One word of a lookup structure.
pub type Entry = u32;

/// No route here but the default.
pub const EMPTY: Entry = 0;

/// Set in the entry of a route, so that a route with value 0 is not [`EMPTY`].
pub const PRESENT: Entry = 1 << 24;

/// The rest of the entry is an index: the lookup goes on elsewhere.
pub const LINK: Entry = 1 << 31;

/// Set beside [`LINK`] when the place it names has nothing but links.
pub const INNER: Entry = 1 << 30;

/// The index in a link: 2³⁰ of them.
pub const INDEX: Entry = (1 << 30) - 1;

/// The entry of a route.
pub fn route_entry(value: u32) -> Entry {
    debug_assert!(value <= MAX_VALUE, "route value {value}: expected at most {MAX_VALUE}");
    PRESENT | if value <= MAX_VALUE { value } else { NO_ROUTE }
}

/// Whether the lookup goes on elsewhere.
#[inline]
pub fn is_link(entry: Entry) -> bool {
    entry >= LINK
}

/// What an entry that is no link means, given the default route's value.
#[inline]
pub fn value_of(entry: Entry, default: u32) -> u32 {
    if entry == EMPTY { default } else { entry & MAX_VALUE }
}

pub struct Direct<const SLOTS: usize> {
    slots: Box<[Entry; SLOTS]>,
    /// Which chunks were ever written: only those are copied by `clone`, so that a copy of a small table
    /// is small too.
    touched: Vec<bool>,
}

fn zeroed<const SLOTS: usize>() -> Box<[Entry; SLOTS]> {
    match vec![EMPTY; SLOTS].into_boxed_slice().try_into() {
        Ok(slots) => slots,
        Err(_) => unreachable!("a vector of SLOTS entries has SLOTS entries"),
    }
}

impl<const SLOTS: usize> Default for Direct<SLOTS> {
    fn default() -> Self {
        Direct { slots: zeroed(), touched: vec![false; SLOTS / CHUNK] }
    }
}

impl<const SLOTS: usize> Clone for Direct<SLOTS> {
    fn clone(&self) -> Self {
        let mut slots = zeroed::<SLOTS>();
        for chunk in (0..SLOTS / CHUNK).filter(|&chunk| self.touched[chunk]) {
            let range = chunk * CHUNK..(chunk + 1) * CHUNK;
            slots[range.clone()].copy_from_slice(&self.slots[range]);
        }
        Direct { slots, touched: self.touched.clone() }
    }
}

impl<const SLOTS: usize> Direct<SLOTS> {
    /// An index below `SLOTS` needs no check: both are powers of two.
    const MASK: u32 = {
        assert!(SLOTS.is_power_of_two() && SLOTS >= CHUNK && SLOTS <= 1 << 30);
        SLOTS as u32 - 1
    };

    #[inline]
    pub fn entry(&self, slot: u32) -> Entry {
        self.slots[(slot & Self::MASK) as usize]
    }

    pub fn set(&mut self, slot: u32, entry: Entry) {
        let slot = (slot & Self::MASK) as usize;
        self.slots[slot] = entry;
        self.touched[slot / CHUNK] = true;
    }

    /// Writes `entry` to `slots` (first and last) and hands every link it overwrites to `unlink`.
    pub fn fill(&mut self, first: u32, last: u32, entry: Entry, mut unlink: impl FnMut(Entry)) {
        let (first, last) = (first as usize, last as usize);
        for chunk in first / CHUNK..=last / CHUNK {
            if !self.touched[chunk] && entry == EMPTY {
                continue;
            }
            self.touched[chunk] = true;
            let range = first.max(chunk * CHUNK)..=last.min(chunk * CHUNK + CHUNK - 1);
            for slot in &mut self.slots[range] {
                if is_link(*slot) {
                    unlink(*slot);
                }
                *slot = entry;
            }
        }
    }

    /// Bytes written at least once, to a chunk.
    pub fn memory_bytes(&self) -> usize {
        self.touched.iter().filter(|&&touched| touched).count() * CHUNK * size_of::<Entry>()
    }
}
