//! IPv6 lookup: 24 bits directly, then search trees of cache lines over 32 bits at a time.
//!
//! ```text
//! address  127 … 104 │ 103 … 72     │ 71 … 40      │ 39 … 8       │ 7 … 0
//!          slot      │ first stride │ second       │ third        │ fourth (padded to 32 bits)
//!          Direct ─► tree ─► value  or ─► tree ─► …                       (prefixes longer than /56, /88, /120)
//!
//! tree     inner ─┬─► inner ─┬─► leaf          inner: 15 borders, 16 children
//!                 └─► …      └─► …             leaf:   7 borders,  8 entries
//! ```
//!
//! A tree holds the disjoint intervals its routes cut the stride's 2³² keys into, neighbours with the same
//! value merged. Its lines lie side by side, level by level, and every leaf is at the same depth: a tree
//! of 8 intervals is one line, 128 two levels, 2,048 three, 32,768 four. Most /24s of the global table need one to
//! three lines a lookup, each one comparison of eight or sixteen keys at a time.
//!
//! Promises: memory is linear in routes, whatever they are ([`Fib6::memory_bytes`] says how much); a
//! change rebuilds the trees of its /24 only.

mod lines;
mod tree;

use std::fmt;
use std::net::Ipv6Addr;

use super::direct::{Direct, EMPTY, Entry, LEAF, NODE, is_link, route_entry, value_of};
use super::rib::Rib;
use super::table::Fib;
use super::{NO_ROUTE, Prefix6};
use lines::Lines;

/// Longest prefix the first level can tell.
const DIRECT_LEN: u8 = 24;

/// Bits a tree decides.
const STRIDE: u8 = 32;

/// Lookups that walk together: their loads do not depend on each other, so the processor overlaps the misses.
const STAGE: usize = 64;

/// An immutable IPv6 table.
#[derive(Clone, Default)]
pub struct Fib6 {
    direct: Direct,
    lines: Lines,
    /// Value of ::/0.
    default: u32,
}

/// The key of an address in the tree that begins `start` bits into it.
#[inline]
fn key(addr: u128, start: u8) -> u32 {
    ((addr << start) >> (128 - u32::from(STRIDE))) as u32
}

impl Fib6 {
    /// The value of the longest route that covers `addr`.
    #[inline]
    pub fn lookup(&self, addr: Ipv6Addr) -> u32 {
        value_of(self.entry(u128::from(addr)), self.default)
    }

    /// The same with the default route left out (RFC 3704 §2.4, loose reverse path).
    #[inline]
    pub fn lookup_specific(&self, addr: Ipv6Addr) -> u32 {
        value_of(self.entry(u128::from(addr)), NO_ROUTE)
    }

    #[inline]
    fn entry(&self, addr: u128) -> Entry {
        let mut entry = self.direct.entry((addr >> 104) as u32);
        let mut rest = addr << DIRECT_LEN;
        while is_link(entry) {
            let key = (rest >> 96) as u32;
            while entry & NODE != 0 {
                entry = self.lines.child(entry, key);
            }
            entry = self.lines.value(entry, key);
            rest <<= STRIDE;
        }
        entry
    }

    /// `out[i]` becomes the value of `addrs[i]` (host byte order); the longer slice's rest is left alone.
    pub fn lookup_batch(&self, addrs: &[u128], out: &mut [u32]) {
        for (addrs, out) in addrs.chunks(STAGE).zip(out.chunks_mut(STAGE)) {
            let mut walk = Walk::new();
            walk.start(&self.direct, addrs);
            walk.run(&self.lines);
            for (out, &entry) in out.iter_mut().zip(&walk.entries) {
                *out = value_of(entry, self.default);
            }
        }
    }

    /// Memory in use: written parts of the first level, and the trees.
    pub fn memory_bytes(&self) -> usize {
        self.direct.memory_bytes() + self.lines.memory_bytes()
    }

    fn fill(&mut self, prefix: Prefix6, entry: Entry) {
        let lines = &mut self.lines;
        let (first, last) = ((prefix.bits() >> 104) as u32, (prefix.last() >> 104) as u32);
        self.direct.fill(first, last, entry, |link| lines.release(link));
    }

    /// Writes routes in the order of a [`Rib`], each run of longer ones as the tree of its /24.
    fn paint_routes(&mut self, routes: impl Iterator<Item = (Prefix6, u32)>) {
        let mut routes = routes.peekable();
        let mut inside = Vec::new();
        while let Some((prefix, value)) = routes.next() {
            match prefix.len() {
                0 => self.default = value,
                1..=DIRECT_LEN => self.fill(prefix, route_entry(value)),
                _ => {
                    let slot = (prefix.bits() >> 104) as u32;
                    inside.clear();
                    inside.push((prefix, value));
                    while let Some(next) = routes.next_if(|(next, _)| (next.bits() >> 104) as u32 == slot) {
                        inside.push(next);
                    }
                    let entry = tree::build(&mut self.lines, &inside, DIRECT_LEN, self.direct.entry(slot));
                    self.direct.set(slot, entry);
                }
            }
        }
    }
}

/// Up to [`STAGE`] lookups on their way down.
struct Walk {
    entries: [Entry; STAGE],
    /// What is left of each address, next stride on top.
    rest: [u128; STAGE],
    /// The lookups that stand at an inner node, and those at a leaf.
    inner: [u8; STAGE],
    leaves: [u8; STAGE],
    inner_len: usize,
    leaves_len: usize,
}

impl Walk {
    #[inline]
    fn new() -> Self {
        Walk {
            entries: [EMPTY; STAGE],
            rest: [0; STAGE],
            inner: [0; STAGE],
            leaves: [0; STAGE],
            inner_len: 0,
            leaves_len: 0,
        }
    }

    /// Puts a lookup where its entry says. No branch: which way it goes is random.
    #[inline]
    fn sort(&mut self, lookup: u8) {
        let entry = self.entries[lookup as usize % STAGE];
        self.inner[self.inner_len % STAGE] = lookup;
        self.inner_len += usize::from(entry & NODE != 0);
        self.leaves[self.leaves_len % STAGE] = lookup;
        self.leaves_len += usize::from(entry & LEAF != 0);
    }

    #[inline]
    fn start(&mut self, direct: &Direct, addrs: &[u128]) {
        for ((entry, rest), &addr) in self.entries.iter_mut().zip(&mut self.rest).zip(addrs) {
            *entry = direct.entry((addr >> 104) as u32);
            *rest = addr << DIRECT_LEN;
        }
        for lookup in 0..addrs.len().min(STAGE) {
            self.sort(lookup as u8);
        }
    }

    #[inline]
    fn run(&mut self, lines: &Lines) {
        while self.inner_len + self.leaves_len > 0 {
            while self.inner_len > 0 {
                let waiting = std::mem::take(&mut self.inner_len);
                for n in 0..waiting.min(STAGE) {
                    let lookup = self.inner[n];
                    let at = lookup as usize % STAGE;
                    self.entries[at] = lines.child(self.entries[at], (self.rest[at] >> 96) as u32);
                    self.sort(lookup);
                }
            }
            let waiting = std::mem::take(&mut self.leaves_len);
            for n in 0..waiting.min(STAGE) {
                let lookup = self.leaves[n];
                let at = lookup as usize % STAGE;
                self.entries[at] = lines.value(self.entries[at], (self.rest[at] >> 96) as u32);
                self.rest[at] <<= STRIDE;
                self.sort(lookup);
            }
        }
    }
}

impl Fib for Fib6 {
    type Prefix = Prefix6;

    fn build(rib: &Rib<Prefix6>) -> Self {
        let mut fib = Fib6::default();
        fib.paint_routes(rib.iter());
        fib
    }

    fn paint(&mut self, rib: &Rib<Prefix6>, changed: Prefix6) {
        if changed.len() == 0 {
            self.default = rib.get(changed).unwrap_or(NO_ROUTE);
            return;
        }
        let area = Prefix6::from_bits(changed.bits(), changed.len().min(DIRECT_LEN));
        let below = match rib.cover(area) {
            Some((cover, value)) if cover.len() > 0 => route_entry(value),
            _ => EMPTY,
        };
        self.fill(area, below);
        self.paint_routes(rib.inside(area).filter(|&(prefix, _)| prefix != area));
    }

    fn wasteful(&self) -> bool {
        self.lines.wasteful()
    }
}

impl fmt::Debug for Fib6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fib6")
            .field("memory_bytes", &self.memory_bytes())
            .field("default", &self.default)
            .finish_non_exhaustive()
    }
}
