//! IPsec of a configuration on the memory topology: what stands between its ports and how packets use it.
//!
//! Promises: every value is one that can run; ciphers are named as operators name them. Refuses: NULL
//! without integrity under any name but its own, `null`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use weir_core::ipsec::{Encryption, Integrity, Suite};

use super::Family;
use super::spd::{Action, Spd};

/// Sequence numbers an inbound SA remembers where nothing is said.
pub const WINDOW: u16 = 64;
/// Policies of an SPD: ten times the deepest published campaign.
pub const POLICIES_MAX: u32 = 10_000;
/// What interfaces of hosts carry, whatever they are.
pub const HOSTS_MTU: usize = 1500;

/// One SA in each worker, and what leads packets to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    pub mode: Mode,
    pub direction: Direction,
    pub cipher: CipherName,
    #[serde(default)]
    pub backend: Backend,
    /// 64-bit sequence numbers.
    #[serde(default)]
    pub esn: bool,
    /// The replay window of inbound SAs, in packets; 0 is none.
    pub replay_window: u16,
    /// Whether all workers use one SA; otherwise each has its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_sa: bool,
    /// The number of policies in the SPD; packets match the last, or the one [`Spd::matching`] names.
    pub policies: u32,
    /// Family of the outer header.
    pub outer: Family,
    #[serde(default, skip_serializing_if = "Spd::is_default")]
    pub spd: Spd,
}

impl Protection {
    /// One policy, the fastest code, an SA a worker with 32-bit numbers and the usual window, and IPv4 outside.
    pub fn new(mode: Mode, direction: Direction, cipher: CipherName) -> Protection {
        Protection {
            mode,
            direction,
            cipher,
            backend: Backend::Auto,
            esn: false,
            replay_window: WINDOW,
            shared_sa: false,
            policies: 1,
            outer: Family::Inet,
            spd: Spd::default(),
        }
    }

    /// Whether packets leave as cleartext by an enforced port, whose policies are asked: opened ones of a tunnel because
    /// a policy lets them, plain ones because none matches.
    pub fn bypasses(&self) -> bool {
        self.mode == Mode::Policy && self.spd.action == Action::Bypass
    }

    /// Whether plain packets leave sealed.
    pub fn seals(&self) -> bool {
        self.direction == Direction::Out && !self.bypasses()
    }

    /// Whether packets come in sealed.
    pub fn opens(&self) -> bool {
        self.direction == Direction::In
    }

    /// Whether plain packets ask an SPD of which no policy matches.
    pub fn matches_nothing(&self) -> bool {
        self.direction == Direction::Beside && self.bypasses()
    }

    /// Whether its packets ask no SPD.
    pub fn is_aside(&self) -> bool {
        self.direction == Direction::Beside && !self.bypasses()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Routes lead into a tunnel.
    Route,
    /// The policies of a port decide.
    Policy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Plain packets in, ESP out.
    Out,
    /// ESP in, plain packets out.
    In,
    /// IPsec is there, for others: the packets measured pass beside it.
    Beside,
}

/// The code that seals and opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The fastest here.
    #[default]
    Auto,
    AwsLc,
    /// Ours, for AES-GCM and AES-CBC on processors with VAES and AVX-512.
    Vaes,
    /// Ours, by vectors of 256 bits, on processors with VAES.
    #[serde(rename = "vaes-256")]
    Vaes256,
    /// Ours, by vectors of 128 bits, on processors with AES-NI.
    AesNi,
}

/// A suite by its name: `aes-gcm-128`, `aes-cbc-128+hmac-sha2-256-128`; `null` is NULL alone, for
/// measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CipherName(pub Suite);

impl CipherName {
    /// Every name, in the order of the algorithms.
    pub fn all() -> Vec<CipherName> {
        let alone = Suite::new(Encryption::Null, None, true).ok();
        alone.into_iter().chain(Suite::all()).map(CipherName).collect()
    }

    pub fn named(name: &str) -> Option<CipherName> {
        CipherName::all().into_iter().find(|c| c.to_string() == name)
    }

    /// How names are made, for errors.
    pub fn expected() -> String {
        let alone = Encryption::ALL.iter().filter(|e| e.is_aead()).map(|e| e.name());
        let cbc = Encryption::ALL.iter().filter(|e| !e.is_aead() && **e != Encryption::Null);
        format!(
            "null, {}; or null, {} with + and one of {}",
            alone.collect::<Vec<_>>().join(", "),
            cbc.map(|e| e.name()).collect::<Vec<_>>().join(", "),
            Integrity::ALL.map(|i| i.name()).join(", ")
        )
    }
}

impl fmt::Display for CipherName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for CipherName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for CipherName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        CipherName::named(&name).ok_or_else(|| {
            de::Error::custom(format!("cipher \"{name}\", expected {}", CipherName::expected()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cipher_is_found_by_its_name_and_no_other() {
        for cipher in CipherName::all() {
            assert_eq!(CipherName::named(&cipher.to_string()), Some(cipher));
        }
        for none in ["aes-cbc-128", "des", "aes-gcm-128+hmac-sha1-96", ""] {
            assert_eq!(CipherName::named(none), None, "{none}");
        }
    }
}
