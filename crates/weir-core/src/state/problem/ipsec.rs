//! What is wrong with a wished-for SA, tunnel, SPD or policy.
//!
//! Promises: as its parent, and that no sentence has anything of a key but its length.

use std::fmt;

use super::super::IpsecSpec;
use super::Problem;
use crate::ipsec::{Encryption, Integrity, KeyLength, Suite};

/// Which element of [`IpsecSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpsecPlace {
    /// All of it.
    All,
    Sa(usize),
    Tunnel(usize),
    TunnelAddress {
        tunnel: usize,
        address: usize,
    },
    Spd(usize),
    Policy {
        spd: usize,
        policy: usize,
    },
}

impl IpsecSpec {
    /// What a sentence about a place begins with.
    pub(crate) fn subject(&self, place: IpsecPlace) -> String {
        match place {
            IpsecPlace::All => "ipsec".to_string(),
            IpsecPlace::Sa(i) => format!("sa {}", self.sas[i].name),
            IpsecPlace::Tunnel(i) | IpsecPlace::TunnelAddress { tunnel: i, .. } => {
                format!("tunnel {}", self.tunnels[i].name)
            }
            IpsecPlace::Spd(i) => format!("spd {}", self.spds[i].name),
            IpsecPlace::Policy { spd, policy } => {
                let spd = &self.spds[spd];
                format!("spd {}: policy {}", spd.name, spd.policies[policy].name)
            }
        }
    }
}

/// Of an SA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaProblem {
    /// SAs without anything to encrypt with.
    NoCiphers(usize),
    KeyLength {
        length: KeyLength,
        suite: Suite,
    },
    /// The key was used with another SPI.
    KeySpent {
        spi: u32,
    },
}

impl From<SaProblem> for Problem {
    fn from(problem: SaProblem) -> Self {
        Problem::Sa(problem)
    }
}

impl fmt::Display for SaProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaProblem::NoCiphers(n) => write!(
                f,
                "{n} SAs are configured, but there are no ciphers here; remove the SAs or start with ciphers"
            ),
            SaProblem::KeyLength { length, suite } => key_length(f, *length, *suite),
            SaProblem::KeySpent { spi } => write!(
                f,
                "its key was used with spi {spi:#x}, and an AEAD key must not start again (RFC 4106 3.1); \
                 give it a new key"
            ),
        }
    }
}

fn key_length(f: &mut fmt::Formatter<'_>, length: KeyLength, suite: Suite) -> fmt::Result {
    let encryption: Encryption = suite.encryption();
    match (length, suite.integrity().map(Integrity::name)) {
        (KeyLength::Encryption { got, expected }, _) => {
            write!(f, "key is {got} bytes, {} takes {expected}", encryption.name())?;
            if encryption.salt_len() > 0 {
                write!(f, " ({} key + {} salt)", encryption.key_len(), encryption.salt_len())?;
            }
            f.write_str("; correct the key or the algorithm")
        }
        (KeyLength::Integrity { got, expected }, Some(name)) => {
            write!(
                f,
                "integrity key is {got} bytes, {name} takes {expected}; correct the key or the algorithm"
            )
        }
        (KeyLength::Integrity { got, .. }, None) => write!(
            f,
            "integrity key is {got} bytes, {} takes none; remove it or name an integrity algorithm",
            encryption.name()
        ),
    }
}
