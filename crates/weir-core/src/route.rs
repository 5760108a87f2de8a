//! Route tables: longest-prefix match for IPv4 and IPv6 (RFC 4632 §5.1, RFC 4291 §2.3).
//!
//! ```text
//! control side                                    workers
//! RouteTable4 ── insert / remove ──► Rib          Arc<Fib4> ── lookup_batch ──► values
//!      └─ publish(): repaint what changed ──────────▲
//! ```
//!
//! A [`RouteTable4`] or [`RouteTable6`] belongs to the control side: it inserts, removes, and publishes
//! an immutable [`Fib4`] or [`Fib6`] that workers read. A route's value is a number below 2²⁴ that means
//! something to [`crate::tables::Tables::targets`]; 0 is [`NO_ROUTE`], and a route may carry it: it then
//! hides what it lies in.
//!
//! Promises: a snapshot never changes while anyone holds it; publishing costs what changed, not what
//! exists, as long as readers release old snapshots. Refuses: values above [`MAX_VALUE`] (they become
//! [`NO_ROUTE`], and panic in debug builds).

mod direct;
mod fib4;
mod fib6;
mod naive;
pub mod prefix;
mod rib;
#[cfg(feature = "synthetic")]
pub mod synthetic;
mod table;

pub use fib4::Fib4;
pub use fib6::Fib6;
pub use naive::Naive;
pub use prefix::{Prefix, Prefix4, Prefix6};
pub use table::RouteTable;

/// The value of a destination no prefix covers.
pub const NO_ROUTE: u32 = 0;

/// Largest value a route may carry.
pub const MAX_VALUE: u32 = (1 << 24) - 1;

/// The control side of IPv4 routing.
pub type RouteTable4 = RouteTable<Fib4>;

/// The control side of IPv6 routing.
pub type RouteTable6 = RouteTable<Fib6>;
