//! Two clocks: nanoseconds for the pipeline, time-stamp counter ticks for measurements.
//!
//! Nanoseconds are `CLOCK_MONOTONIC` (comparable between processes of one machine: the lab's one-way
//! latency rests on it). Ticks are the processor's constant-rate counter; on machines without one
//! [`ticks`] is `None` and whoever reports clocks per packet leaves the value out.

use weir_core::time::Nanos;

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline]
pub fn now() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, writable timespec for the whole call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time-stamp counter, on processors that have one.
#[inline]
pub fn ticks() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: RDTSC exists on every x86-64 processor and touches no memory.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_backwards() {
        let (a, t) = (now(), ticks());
        let (b, u) = (now(), ticks());
        assert!(b >= a && u >= t);
    }
}
