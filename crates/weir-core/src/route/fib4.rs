//! IPv4 lookup: DIR-24-8 (Gupta, Lin, McKeown, "Routing lookups in hardware at memory access speeds",
//! INFOCOM 1998).
//!
//! ```text
//! address  31 ……… 8 │ 7 … 0
//!          slot ─► Direct ─┬─► value                    (one load: no route longer than /24 inside)
//!                          └─► groups[index][low 8] ─► value
//! ```
//!
//! Promises: one load for most destinations, two for the rest, whatever the table. Memory: at most
//! 64 MiB and 1 KiB for each /24 with longer routes inside.

use std::fmt;
use std::net::Ipv4Addr;

use super::direct::{Direct, EMPTY, Entry, INDEX, LINK, is_link, route_entry, value_of};
use super::rib::Rib;
use super::table::Fib;
use super::{NO_ROUTE, Prefix4};

/// Longest prefix the first level can tell.
const DIRECT_LEN: u8 = 24;

/// The last eight bits of the addresses of one /24.
const GROUP: usize = 1 << 8;

/// Free groups worth keeping whatever the table: 4,096 × 1 KiB = 4 MiB.
const SPARE_GROUPS: usize = 1 << 12;

/// An immutable IPv4 table.
#[derive(Clone, Default)]
pub struct Fib4 {
    direct: Direct<{ 1 << DIRECT_LEN }>,
    /// Entries of /24s with longer routes inside; a [`LINK`] entry of `direct` is an index in here.
    groups: Vec<[Entry; GROUP]>,
    free: Vec<Entry>,
    /// Value of 0.0.0.0/0.
    default: u32,
}

impl Fib4 {
    /// The value of the longest route that covers `addr`.
    #[inline]
    pub fn lookup(&self, addr: Ipv4Addr) -> u32 {
        value_of(self.entry(u32::from(addr)), self.default)
    }

    /// The same with the default route left out (RFC 3704 §2.4, loose reverse path).
    #[inline]
    pub fn lookup_specific(&self, addr: Ipv4Addr) -> u32 {
        value_of(self.entry(u32::from(addr)), NO_ROUTE)
    }

    #[inline]
    fn entry(&self, addr: u32) -> Entry {
        self.resolve(self.direct.entry(addr >> 8), addr)
    }

    #[inline]
    fn resolve(&self, entry: Entry, addr: u32) -> Entry {
        if is_link(entry) { self.groups[(entry & INDEX) as usize][(addr & 0xff) as usize] } else { entry }
    }

    /// `out[i]` becomes the value of `addrs[i]` (host byte order); the longer slice's rest is left alone.
    ///
    /// One plain loop: no load waits for another's, so the processor keeps as many misses in flight as it
    /// can. Splitting first loads and second loads into two loops was slower: the second drains what the
    /// first filled.
    #[inline]
    pub fn lookup_batch(&self, addrs: &[u32], out: &mut [u32]) {
        for (out, &addr) in out.iter_mut().zip(addrs) {
            *out = value_of(self.entry(addr), self.default);
        }
    }

    /// Memory in use: written parts of the first level, and the second.
    pub fn memory_bytes(&self) -> usize {
        self.direct.memory_bytes() + self.groups.capacity() * GROUP * size_of::<Entry>()
    }

    fn fill(&mut self, prefix: Prefix4, entry: Entry) {
        let free = &mut self.free;
        self.direct.fill(prefix.bits() >> 8, prefix.last() >> 8, entry, |link| free.push(link & INDEX));
    }

    /// Writes a route longer than /24, giving its /24 a group if it has none.
    fn fill_hosts(&mut self, prefix: Prefix4, entry: Entry) {
        let slot = prefix.bits() >> 8;
        let old = self.direct.entry(slot);
        let group = if is_link(old) {
            old & INDEX
        } else {
            let group = self.free.pop().unwrap_or_else(|| {
                self.groups.push([EMPTY; GROUP]);
                self.groups.len() as Entry - 1
            });
            self.groups[group as usize].fill(old);
            self.direct.set(slot, LINK | group);
            group
        };
        let hosts = (prefix.bits() & 0xff) as usize..=(prefix.last() & 0xff) as usize;
        self.groups[group as usize][hosts].fill(entry);
    }

    /// Writes routes in the order of a [`Rib`]: what covers comes before what is covered.
    fn paint_routes(&mut self, routes: impl Iterator<Item = (Prefix4, u32)>) {
        for (prefix, value) in routes {
            match prefix.len() {
                0 => self.default = value,
                1..=DIRECT_LEN => self.fill(prefix, route_entry(value)),
                _ => self.fill_hosts(prefix, route_entry(value)),
            }
        }
    }
}

impl Fib for Fib4 {
    type Prefix = Prefix4;

    const AREA_LEN: u8 = DIRECT_LEN;

    // A /24 is a few entries: 1 µs against 50 ns.
    const ROUTES_PER_AREA: usize = 32;

    fn build(rib: &Rib<Prefix4>) -> Self {
        let mut fib = Fib4::default();
        fib.paint_routes(rib.iter());
        fib
    }

    fn paint(&mut self, rib: &Rib<Prefix4>, area: Prefix4) {
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
        self.free.len() > SPARE_GROUPS.max(self.groups.len() / 2)
    }
}

impl fmt::Debug for Fib4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fib4")
            .field("memory_bytes", &self.memory_bytes())
            .field("groups", &(self.groups.len() - self.free.len()))
            .field("default", &self.default)
            .finish_non_exhaustive()
    }
}
