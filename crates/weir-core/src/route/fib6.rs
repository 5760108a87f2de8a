//! IPv6 lookup: 25 bits directly, then search trees of cache lines over 31 bits at a time.
//!
//! ```text
//! address  127 … 103 │ 102 … 72     │ 71 … 41      │ 40 … 10     │ 9 … 0
//!          slot      │ first stride │ second       │ third       │ fourth (padded to 31 bits)
//!          Direct ─► tree ─► value  or ─► tree ─► …               (prefixes longer than /56, /87, /118)
//!
//! tree     inner ─┬─► inner ─┬─► leaf          inner: 15 borders, 16 children
//!                 └─► …      └─► …             leaf:   7 borders,  8 entries
//! ```
//!
//! A tree holds the disjoint intervals its routes cut the stride's 2³¹ keys into, neighbours with the same
//! value merged. Its lines lie side by side, level by level, and every leaf is at the same depth: a tree
//! of 8 intervals is one line, 128 two levels, 2,048 three, 32,768 four. Each level is one comparison of
//! eight or sixteen borders at once, and a batch goes through the levels together, so that its cache
//! misses overlap.
//!
//! Promises: memory is linear in routes, whatever they are, beside 128 MiB of address space of which only
//! what prefixes lie in is backed; a change rebuilds the trees of its /25 only. That is microseconds in the global
//! table, and some milliseconds where 200,000 customers share one /25 (`v6 dense update` of the bench).
//!
//! The other structure tried was one static B+-tree over all borders of the upper 64 bits (an S-tree): about
//! as small, slower to look up, and rebuilt whole by each change. `cargo bench -p weir-core --bench route -- v6
//! lookup` shows both on the same destinations.

mod lines;
mod tree;

use std::fmt;
use std::hint::select_unpredictable;
use std::net::Ipv6Addr;

use super::direct::{Direct, EMPTY, Entry, INNER, is_link, route_entry, value_of};
use super::rib::Rib;
use super::table::Fib;
use super::{NO_ROUTE, Prefix6};
use lines::Lines;

/// Longest prefix the first level can tell.
const DIRECT_LEN: u8 = 25;

/// Bits a tree decides. One less than a word has: keys are never negative, links always are.
const STRIDE: u8 = 31;

/// Lookups that walk together: their loads do not depend on each other, so the processor overlaps the misses.
const STAGE: usize = 64;

/// Batches of at most this many lookups go one by one: there are not enough of them to overlap.
const ALONE: usize = 8;

/// An immutable IPv6 table.
#[derive(Clone, Default)]
pub struct Fib6 {
    direct: Direct<{ 1 << DIRECT_LEN }>,
    lines: Lines,
    /// Value of ::/0.
    default: u32,
}

/// The key of an address in the tree that begins `start` bits into it.
#[inline]
fn key(addr: u128, start: u8) -> i32 {
    let rest = addr.checked_shl(u32::from(start)).unwrap_or(0);
    (rest >> (128 - u32::from(STRIDE))) as i32
}

/// Whether a link leads to a line with links of its own.
#[inline]
fn is_inner(entry: Entry) -> bool {
    entry & INNER != 0
}

/// The first level's slot of an address.
#[inline]
fn slot(addr: u128) -> u32 {
    (addr >> (128 - u32::from(DIRECT_LEN))) as u32
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
        self.resolve(self.direct.entry(slot(addr)), addr, DIRECT_LEN)
    }

    /// Follows links, the first of them to a tree that begins `start` bits into the address.
    #[inline]
    fn resolve(&self, mut entry: Entry, addr: u128, mut start: u8) -> Entry {
        while is_link(entry) {
            let key = key(addr, start);
            while is_inner(entry) {
                entry = self.lines.child(entry, key);
            }
            entry = self.lines.value(entry, key);
            start += STRIDE;
        }
        entry
    }

    /// `out[i]` becomes the value of `addrs[i]` (host byte order); the longer slice's rest is left alone.
    pub fn lookup_batch(&self, addrs: &[u128], out: &mut [u32]) {
        for (addrs, out) in addrs.chunks(STAGE).zip(out.chunks_mut(STAGE)) {
            let len = addrs.len().min(out.len());
            if len <= ALONE {
                for (out, &addr) in out.iter_mut().zip(addrs) {
                    *out = value_of(self.entry(addr), self.default);
                }
                continue;
            }
            let mut stage = Stage { entries: [EMPTY; STAGE], keys: [0; STAGE], len };
            for ((entry, out_key), &addr) in stage.entries.iter_mut().zip(&mut stage.keys).zip(&addrs[..len])
            {
                *entry = self.direct.entry(slot(addr));
                *out_key = key(addr, DIRECT_LEN);
            }
            if stage.descend(&self.lines) {
                self.descend_deeper(&mut stage, addrs);
            }
            for (out, &entry) in out.iter_mut().zip(&stage.entries[..len]) {
                *out = value_of(entry, self.default);
            }
        }
    }

    /// Goes on with the entries that stand before a second stride: together while there are many.
    #[cold]
    fn descend_deeper(&self, stage: &mut Stage, addrs: &[u128]) {
        let mut start = DIRECT_LEN + STRIDE;
        while stage.entries.iter().filter(|&&entry| is_link(entry)).count() > ALONE {
            for (out, &addr) in stage.keys.iter_mut().zip(addrs) {
                *out = key(addr, start);
            }
            stage.descend(&self.lines);
            start += STRIDE;
        }
        for (entry, &addr) in stage.entries.iter_mut().zip(addrs).filter(|(entry, _)| is_link(**entry)) {
            *entry = self.resolve(*entry, addr, start);
        }
    }

    /// Memory in use: written parts of the first level, and the trees.
    pub fn memory_bytes(&self) -> usize {
        self.direct.memory_bytes() + self.lines.memory_bytes()
    }

    fn fill(&mut self, prefix: Prefix6, entry: Entry) {
        let lines = &mut self.lines;
        let (first, last) = (slot(prefix.bits()), slot(prefix.last()));
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
                    let here = slot(prefix.bits());
                    inside.clear();
                    inside.push((prefix, value));
                    while let Some(next) = routes.next_if(|(next, _)| slot(next.bits()) == here) {
                        inside.push(next);
                    }
                    let entry = tree::build(&mut self.lines, &inside, DIRECT_LEN, self.direct.entry(here));
                    self.direct.set(here, entry);
                }
            }
        }
    }
}

/// Lookups on their way down one stride.
struct Stage {
    entries: [Entry; STAGE],
    keys: [i32; STAGE],
    /// How many there are, at most [`STAGE`].
    len: usize,
}

impl Stage {
    /// Takes all through their trees together, a level at a time; those that have arrived stand still.
    /// Says whether any has another stride before it.
    ///
    /// Standing still costs a comparison with a line that is cached; deciding who moves would cost a
    /// mispredicted branch. From the second level on, those that still move are listed.
    #[inline]
    fn descend(&mut self, lines: &Lines) -> bool {
        let len = self.len.min(STAGE);
        let (entries, keys) = (&mut self.entries[..len], &self.keys[..len]);
        if entries.iter().fold(EMPTY, |all, &entry| all | entry) & INNER != 0 {
            let mut links = EMPTY;
            for (entry, &key) in entries.iter_mut().zip(keys) {
                let child = lines.child(*entry, key);
                *entry = select_unpredictable(is_inner(*entry), child, *entry);
                links |= *entry;
            }
            if is_inner(links) {
                descend_listed(entries, keys, lines);
            }
        }
        let mut links = EMPTY;
        for (entry, &key) in entries.iter_mut().zip(keys) {
            let value = lines.value(*entry, key);
            *entry = select_unpredictable(is_link(*entry), value, *entry);
            links |= *entry;
        }
        is_link(links)
    }
}

/// Takes the entries that are still at inner lines to their leaves.
#[inline]
fn descend_listed(entries: &mut [Entry], keys: &[i32], lines: &Lines) {
    let mut listed = [0u8; STAGE];
    let mut len = 0;
    for (n, &entry) in entries.iter().enumerate() {
        listed[len % STAGE] = n as u8;
        len += usize::from(is_inner(entry));
    }
    let mut links = INNER;
    while is_inner(links) {
        links = EMPTY;
        for &n in &listed[..len] {
            let entry = &mut entries[n as usize];
            let child = lines.child(*entry, keys[n as usize]);
            *entry = select_unpredictable(is_inner(*entry), child, *entry);
            links |= *entry;
        }
    }
}

impl Fib for Fib6 {
    type Prefix = Prefix6;

    const AREA_LEN: u8 = DIRECT_LEN;

    // A /24 is a tree of some hundred routes: 10 µs against 40 ns.
    const ROUTES_PER_AREA: usize = 256;

    fn build(rib: &Rib<Prefix6>) -> Self {
        let mut fib = Fib6::default();
        fib.paint_routes(rib.iter());
        fib
    }

    fn paint(&mut self, rib: &Rib<Prefix6>, area: Prefix6) {
        if area.len() == 0 {
            self.default = rib.get(area).unwrap_or(NO_ROUTE);
            return;
        }
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
