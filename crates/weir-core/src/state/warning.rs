//! What can be built and should be thought about: wishes that protect less than they seem to.
//!
//! Promises: nothing here stops anything; each warning is one line, subject first, with what to do instead.

use std::fmt;

use super::IpsecSpec;
use crate::ipsec::{Direction, Encryption, Integrity};

/// One thing to think about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaWarning {
    pub sa: String,
    pub weakness: Weakness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// NULL without integrity.
    NoProtection,
    NoEncryption,
    /// HMAC-SHA-1: no attack on it is known, but nothing new should use it (RFC 8221 6).
    Sha1,
    NoReplayProtection,
}

impl fmt::Display for SaWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sa {}: ", self.sa)?;
        f.write_str(match self.weakness {
            Weakness::NoProtection => {
                "neither encrypts nor authenticates, so anyone can send by it; for benchmarks only"
            }
            Weakness::NoEncryption => "authenticates and does not encrypt; choose aes-gcm-256 to do both",
            Weakness::Sha1 => {
                "authenticates by HMAC-SHA-1, for old peers only (RFC 8221 6); choose hmac-sha2-256-128"
            }
            Weakness::NoReplayProtection => {
                "has no replay window, so old packets can be sent again; give it 64 or more"
            }
        })
    }
}

/// Every warning about `spec`, in its order.
pub fn warnings(spec: &IpsecSpec) -> Vec<SaWarning> {
    let of = |sa: &crate::ipsec::SaSpec| {
        let suite = sa.params.suite;
        let weak = match (suite.encryption(), suite.integrity()) {
            (Encryption::Null, None) => Some(Weakness::NoProtection),
            (_, Some(Integrity::HmacSha1_96)) => Some(Weakness::Sha1),
            (Encryption::Null, Some(_)) => Some(Weakness::NoEncryption),
            _ => None,
        };
        let open = sa.params.direction == Direction::In && sa.params.replay_window == 0;
        let all = weak.into_iter().chain(open.then_some(Weakness::NoReplayProtection));
        all.map(|weakness| SaWarning { sa: sa.name.clone(), weakness }).collect::<Vec<_>>()
    };
    spec.sas.iter().flat_map(of).collect()
}
