//! Route tables: longest-prefix match for IPv4 and IPv6 (RFC 4632, RFC 4291).
//!
//! A [`RouteTable4`] or [`RouteTable6`] belongs to the control side: it inserts, removes, and publishes
//! an immutable [`Fib4`] or [`Fib6`] that workers read. A route's value is a number below 2²⁴ that means something to
//! [`crate::tables::Tables::targets`]; 0 is [`NO_ROUTE`].

mod naive;
pub mod prefix;

use std::sync::Arc;

pub use naive::Naive;
pub use prefix::{Prefix, Prefix4, Prefix6};

/// The value of a destination no prefix covers.
pub const NO_ROUTE: u32 = 0;

/// Largest value a route may carry.
pub const MAX_VALUE: u32 = (1 << 24) - 1;

// The fast structures take the place of the reference here; the interface stays.
macro_rules! table {
    ($table:ident, $fib:ident, $prefix:ty, $addr:ty, $bits:ty, $insert:ident, $remove:ident, $lookup:ident) => {
        #[derive(Clone, Debug, Default)]
        pub struct $fib(Naive);

        impl $fib {
            pub fn lookup(&self, addr: $addr) -> u32 {
                self.0.$lookup(addr)
            }

            /// `out[i]` becomes the value of `addrs[i]` (host byte order).
            pub fn lookup_batch(&self, addrs: &[$bits], out: &mut [u32]) {
                for (out, &addr) in out.iter_mut().zip(addrs) {
                    *out = self.lookup(<$addr>::from(addr));
                }
            }

            pub fn memory_bytes(&self) -> usize {
                0
            }
        }

        #[derive(Clone, Debug, Default)]
        pub struct $table(Naive);

        impl $table {
            /// Adds or replaces a route; returns the value it had.
            pub fn insert(&mut self, prefix: $prefix, value: u32) -> Option<u32> {
                self.0.$insert(prefix, value)
            }

            pub fn remove(&mut self, prefix: $prefix) -> Option<u32> {
                self.0.$remove(prefix)
            }

            /// A snapshot with every change so far.
            pub fn publish(&mut self) -> Arc<$fib> {
                Arc::new($fib(self.0.clone()))
            }
        }
    };
}

table!(RouteTable4, Fib4, Prefix4, std::net::Ipv4Addr, u32, insert4, remove4, lookup4);
table!(RouteTable6, Fib6, Prefix6, std::net::Ipv6Addr, u128, insert6, remove6, lookup6);
