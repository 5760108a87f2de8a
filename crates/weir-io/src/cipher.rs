//! Ciphers of ESP: aws-lc on every machine, our own vector code where the CPU has the instructions.
//!
//! Promises: every suite of [`Suite::all`](weir_core::ipsec::Suite::all) and NULL alone; no allocation
//! while packets are sealed and opened; a packet that cannot be sealed leaves as zeros, never as
//! plaintext; one that is too short, misaligned or forged is not authentic and makes nothing panic.
//! Refuses: keys of another length than the suite's.

mod aws_lc;
#[cfg(target_arch = "x86_64")]
mod cbc;
mod choice;
#[cfg(target_arch = "x86_64")]
mod gcm_key;
mod hmac;
#[cfg(target_arch = "x86_64")]
mod multi_hmac;
#[cfg(target_arch = "x86_64")]
mod narrow;
pub mod rate;
#[cfg(target_arch = "x86_64")]
mod separate;
#[cfg(target_arch = "x86_64")]
mod sha512;
#[cfg(target_arch = "x86_64")]
mod sha_ni;
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
pub use narrow::{AesNi, Vaes256};
#[cfg(target_arch = "x86_64")]
pub use vaes::Vaes;

/// Every name [`by_name`] may know; the first is on every machine, and of the others each is narrower than the one before.
pub const BACKENDS: [&str; 4] = ["aws-lc", "vaes", "vaes-256", "aes-ni"];

/// Ciphers for every machine.
pub fn portable() -> Arc<dyn Ciphers> {
    Arc::new(AwsLc)
}

/// The ciphers called `name`: `aws-lc` on every machine, the others where the CPU has the instructions.
pub fn by_name(name: &str) -> Option<Arc<dyn Ciphers>> {
    match name {
        aws_lc::NAME => Some(portable()),
        #[cfg(target_arch = "x86_64")]
        vaes::NAME => Vaes::new().map(|vaes| Arc::new(vaes) as Arc<dyn Ciphers>),
        #[cfg(target_arch = "x86_64")]
        narrow::VAES256 => Vaes256::new().map(|vaes| Arc::new(vaes) as Arc<dyn Ciphers>),
        #[cfg(target_arch = "x86_64")]
        narrow::AES_NI => AesNi::new().map(|aes| Arc::new(aes) as Arc<dyn Ciphers>),
        _ => None,
    }
}

/// The fastest ciphers of this machine, by measurement: the first SA of a suite takes some
/// milliseconds.
pub fn best() -> Arc<dyn Ciphers> {
    Arc::new(choice())
}

/// What [`best`] rests on, to print.
pub fn choice() -> &'static Choice {
    // aws-lc, and the widest of ours.
    choice::choice(|| portable_and(BACKENDS[1..].iter().find_map(|name| by_name(name))))
}

fn portable_and(other: Option<Arc<dyn Ciphers>>) -> Vec<Arc<dyn Ciphers>> {
    [Some(portable()), other].into_iter().flatten().collect()
}
