//! Lifetimes (RFC 4301 4.4.2.1): what an SA may still carry.
//!
//! Promises: at the hard limit nothing more passes, nor beyond what is reserved on disk ([`Lease`](crate::ipsec::durable::Lease)); the packet that reaches a limit of bytes still does.
//! Workers that share an SA may each go on for the batch in their hands.

use std::sync::atomic::Ordering::Relaxed;

use crate::ipsec::sa::{Lifetime, Sa};
use crate::time::{Nanos, SECOND};
use crate::verdict::Reason;

/// Packets and bytes until an SA is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    packets: u64,
    bytes: u64,
    /// What ends them is the lease, not the lifetime.
    leased: [bool; 2],
}

impl Allowance {
    /// What is left until the hard lifetime, or until the end of what is reserved on disk.
    pub fn of(sa: &Sa, now: Nanos) -> Allowance {
        let (life, lease) = (left(sa, &sa.params.hard, now), &sa.state.lease);
        let packets = lease.packets().saturating_sub(sa.state.packets.load(Relaxed));
        let bytes = lease.bytes().saturating_sub(sa.state.bytes.load(Relaxed));
        Allowance {
            packets: life.packets.min(packets),
            bytes: life.bytes.min(bytes),
            leased: [packets < life.packets, bytes < life.bytes],
        }
    }

    /// Why a packet may not pass.
    #[cold]
    pub fn reason(&self) -> Reason {
        let leased = if self.packets == 0 { self.leased[0] } else { self.leased[1] };
        if leased { Reason::SaUnreserved } else { Reason::SaExpired }
    }

    /// Whether a packet of `len` bytes may pass; then it is taken off.
    #[inline]
    pub fn take(&mut self, len: usize) -> bool {
        if self.packets == 0 || self.bytes == 0 {
            return false;
        }
        self.packets -= 1;
        self.bytes = self.bytes.saturating_sub(len as u64);
        true
    }
}

fn left(sa: &Sa, limit: &Lifetime, now: Nanos) -> Allowance {
    let state = &sa.state;
    if limit.seconds.is_some_and(|seconds| state.age(now) >= seconds.saturating_mul(SECOND)) {
        return Allowance { packets: 0, bytes: 0, leased: [false; 2] };
    }
    let until = |limit: Option<u64>, used: u64| limit.map_or(u64::MAX, |limit| limit.saturating_sub(used));
    Allowance {
        packets: until(limit.packets, state.packets.load(Relaxed)),
        bytes: until(limit.bytes, state.bytes.load(Relaxed)),
        leased: [false; 2],
    }
}

impl Sa {
    /// Whether the soft lifetime is reached: it is time for another SA.
    pub fn is_soft_expired(&self, now: Nanos) -> bool {
        !left(self, &self.params.soft, now).take(0)
    }

    /// Whether the hard lifetime is reached: it carries nothing more.
    pub fn is_hard_expired(&self, now: Nanos) -> bool {
        !left(self, &self.params.hard, now).take(0)
    }
}
