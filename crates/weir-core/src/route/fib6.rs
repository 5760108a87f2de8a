//! IPv6 lookup in the sorted routes themselves: right, and slow.

use std::net::Ipv6Addr;

use super::rib::{Key, Rib};
use super::table::Fib;
use super::{NO_ROUTE, Prefix6};

/// An immutable IPv6 table.
#[derive(Clone, Debug, Default)]
pub struct Fib6(Rib<Prefix6>);

impl Fib6 {
    /// The value of the longest route that covers `addr`.
    pub fn lookup(&self, addr: Ipv6Addr) -> u32 {
        self.0.cover(Prefix6::host(addr)).map_or(NO_ROUTE, |(_, value)| value)
    }

    /// The same with the default route left out (RFC 3704 §2.4, loose reverse path).
    pub fn lookup_specific(&self, addr: Ipv6Addr) -> u32 {
        match self.0.cover(Prefix6::host(addr)) {
            Some((prefix, value)) if prefix.len() > 0 => value,
            _ => NO_ROUTE,
        }
    }

    /// `out[i]` becomes the value of `addrs[i]` (host byte order); the longer slice's rest is left alone.
    pub fn lookup_batch(&self, addrs: &[u128], out: &mut [u32]) {
        for (out, &addr) in out.iter_mut().zip(addrs) {
            *out = self.lookup(Ipv6Addr::from(addr));
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.0.len() * size_of::<(Prefix6, u32)>()
    }
}

impl Fib for Fib6 {
    type Prefix = Prefix6;

    fn build(rib: &Rib<Prefix6>) -> Self {
        Fib6(rib.clone())
    }

    fn paint(&mut self, rib: &Rib<Prefix6>, _changed: Prefix6) {
        self.0 = rib.clone();
    }
}
