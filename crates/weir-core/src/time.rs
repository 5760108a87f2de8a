//! Time as the core sees it: nanoseconds since some start, passed in by whoever owns a clock.

/// Nanoseconds since an arbitrary start; only differences mean anything.
pub type Nanos = u64;

pub const MICROSECOND: Nanos = 1_000;
pub const MILLISECOND: Nanos = 1_000_000;
pub const SECOND: Nanos = 1_000_000_000;
