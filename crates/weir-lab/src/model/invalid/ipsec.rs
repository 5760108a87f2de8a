//! Tables `ipsec` and keys `build` that mean nothing.

use std::fmt;

use crate::model::ipsec::Direction;
use crate::model::kebab;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpsecError {
    /// A key that no table may leave out.
    NoKey(NeededKey),
    /// A key that only policies can follow, with tunnels of mode "route".
    OfPolicies {
        key: &'static str,
    },
    /// `match` and `rules` at once.
    MatchAndRules,
    MatchBeyondPolicies {
        got: u32,
        policies: u32,
    },
    BypassDirection {
        got: Direction,
    },
    /// `rules` and `churn` where packets ask no policy that matches.
    BesideMatches,
    /// `churn` of the only policy.
    ChurnOfOne,
    /// Several senders use the numbers of one inbound SA.
    SharedReplay,
    /// `ipsec` or `build` of something that has neither.
    Elsewhere {
        key: &'static str,
    },
    /// More flows than a mark in packets has values.
    Flows {
        got: u32,
        most: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeededKey {
    Mode,
    Direction,
    Cipher,
}

impl IpsecError {
    pub fn remedy(&self) -> &'static str {
        match self {
            IpsecError::NoKey(NeededKey::Mode) => "name \"route\" or \"policy\"",
            IpsecError::NoKey(NeededKey::Direction) => "name \"out\", \"in\" or \"beside\"",
            IpsecError::NoKey(NeededKey::Cipher) => "name one, such as \"aes-gcm-128\"",
            IpsecError::OfPolicies { .. } => "remove it, or use mode = \"policy\"",
            IpsecError::MatchAndRules => "packets of `rules` match all of them; keep one",
            IpsecError::MatchBeyondPolicies { .. } => "raise `policies`, or lower `match`",
            IpsecError::BypassDirection { .. } => {
                "it is for packets that leave as cleartext: use direction = \"in\" or \"beside\""
            }
            IpsecError::BesideMatches => "remove `rules` and `churn`, or use \"in\" or \"out\"",
            IpsecError::ChurnOfOne => "raise `policies`",
            IpsecError::SharedReplay => "write `replay_window = 0`",
            IpsecError::Elsewhere { .. } => {
                "use topology = \"memory\" and sut = \"weir\", or remove it (`ipsec` is also of vpp and dpdk-ipsec-secgw, and in namespaces of weir and kernel-xfrm)"
            }
            IpsecError::Flows { .. } => "lower `flows`, or use topology = \"memory\"",
        }
    }
}

impl fmt::Display for NeededKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NeededKey::Mode => "mode",
            NeededKey::Direction => "direction",
            NeededKey::Cipher => "cipher",
        })
    }
}

impl fmt::Display for IpsecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IpsecError::NoKey(key) => write!(f, "ipsec has no `{key}`"),
            IpsecError::OfPolicies { key } => {
                write!(f, "ipsec has `{key}`, which tunnels of mode \"route\" have none of")
            }
            IpsecError::MatchAndRules => f.write_str("`match` and `rules` exclude each other"),
            IpsecError::MatchBeyondPolicies { got, policies } => {
                write!(f, "match {got} of {policies} policies")
            }
            IpsecError::BypassDirection { got } => {
                write!(f, "action \"bypass\" with direction \"{}\"", kebab(got))
            }
            IpsecError::BesideMatches => f.write_str("direction \"beside\" asks no policy that matches"),
            IpsecError::ChurnOfOne => f.write_str("churn: the only policy is the one packets need"),
            IpsecError::SharedReplay => f.write_str(
                "shared_sa: each worker has a sender of its own, and they use the same sequence numbers",
            ),
            IpsecError::Elsewhere { key } => write!(f, "`{key}` is of weir in memory"),
            IpsecError::Flows { got, most } => {
                write!(f, "{got} flows, expected {most} at most where packets carry a mark")
            }
        }
    }
}
