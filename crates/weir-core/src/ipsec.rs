//! IPsec: ESP (RFC 4303) in policy mode and route mode.

pub mod cipher;
pub mod suite;

pub use cipher::{Cipher, Ciphers, Job, KeyLength, Keys, Secret};
pub use suite::{Encryption, Integrity, Suite};
