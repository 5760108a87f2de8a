//! The programs that took part: how this one was built, and a mark of each one's bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Build {
    pub version: String,
    pub rustc: String,
    pub flags: String,
    pub profile: String,
    pub target: String,
    pub opt_level: String,
    /// Empty when built outside a repository.
    pub commit: String,
    /// Program → a mark of its bytes: tells apart what two builds of one changed tree share.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, String>,
    /// Program of others that was a SUT → what it says of its version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<String, String>,
}

impl Build {
    /// The build of this program, as far as it knows without looking at itself.
    pub fn own() -> Build {
        Build {
            version: env!("CARGO_PKG_VERSION").into(),
            rustc: env!("WEIR_BUILD_RUSTC").into(),
            flags: env!("WEIR_BUILD_FLAGS").into(),
            profile: env!("WEIR_BUILD_PROFILE").into(),
            target: env!("WEIR_BUILD_TARGET").into(),
            opt_level: env!("WEIR_BUILD_OPT_LEVEL").into(),
            commit: env!("WEIR_BUILD_COMMIT").into(),
            programs: BTreeMap::new(),
            peers: BTreeMap::new(),
        }
    }

    pub fn optimised(&self) -> bool {
        self.opt_level != "0"
    }
}

/// FNV-1a, eight bytes at a time: tells builds apart, proves nothing against forgers.
pub fn mark(bytes: &[u8]) -> String {
    const PRIME: u64 = 0x0100_0000_01b3;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for word in words {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME);
    }
    for byte in rest {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_differ_in_a_byte_have_different_marks() {
        assert_eq!(mark(b"0123456789"), mark(b"0123456789"));
        assert_ne!(mark(b"0123456789"), mark(b"0123456788"));
        assert_ne!(mark(b""), mark(b"\x01"));
    }
}
