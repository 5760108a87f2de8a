//! Ciphers of ESP: aws-lc on every machine, our own vector code where the CPU has the instructions.
//!
//! Promises: every suite of [`Suite::all`](weir_core::ipsec::Suite::all) and NULL alone; no allocation
//! while packets are sealed and opened; a packet that cannot be sealed leaves as zeros, never as
//! plaintext; one that is too short, misaligned or forged is not authentic and makes nothing panic.
//! Refuses: keys of another length than the suite's.

mod aws_lc;
mod choice;
mod hmac;
pub mod rate;
mod shape;
#[cfg(target_arch = "x86_64")]
mod vaes;
#[cfg(test)]
mod wycheproof;

use std::sync::Arc;

use weir_core::ipsec::Ciphers;

pub use aws_lc::AwsLc;
pub use choice::Choice;
#[cfg(target_arch = "x86_64")]
pub use vaes::Vaes;

/// Every name [`by_name`] may know; the first is on every machine.
pub const BACKENDS: [&str; 2] = ["aws-lc", "vaes"];

/// Ciphers for every machine.
pub fn portable() -> Arc<dyn Ciphers> {
    Arc::new(AwsLc)
}

/// The ciphers called `name`: `aws-lc` on every machine, `vaes` where the CPU has the instructions.
pub fn by_name(name: &str) -> Option<Arc<dyn Ciphers>> {
    match name {
        aws_lc::NAME => Some(portable()),
        #[cfg(target_arch = "x86_64")]
        vaes::NAME => Vaes::new().map(|vaes| Arc::new(vaes) as Arc<dyn Ciphers>),
        _ => None,
    }
}

/// The fastest ciphers of this machine, by measurement: the first SA of an encryption takes some
/// milliseconds.
pub fn best() -> Arc<dyn Ciphers> {
    Arc::new(choice())
}

/// What [`best`] rests on, to print.
pub fn choice() -> &'static Choice {
    choice::choice(|| BACKENDS.into_iter().filter_map(by_name).collect())
}
