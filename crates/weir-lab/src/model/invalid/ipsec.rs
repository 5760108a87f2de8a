//! Tables `ipsec` and keys `build` that mean nothing.

use std::fmt;

use crate::model::ipsec::{Direction, HOSTS_MTU};
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
    /// What the pipeline in memory has, on hosts.
    OfMemory {
        key: &'static str,
    },
    /// Policies of a port that hosts have not.
    NoThirdPort,
    /// 64-bit sequence numbers of an SA that remembers none.
    EsnWithoutWindow,
    /// Frames that have to be cut once they are sealed.
    SealedTooLong {
        frame: u16,
        sealed: usize,
        most: u16,
    },
    /// A kernel that has policies only.
    KernelSeals,
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
                "use topology = \"memory\" and sut = \"weir\", or remove it (`ipsec` is also of vpp and dpdk-ipsec-secgw, and in namespaces and on hosts of weir and kernel-xfrm)"
            }
            IpsecError::OfMemory { .. } => "remove it, or use topology = \"memory\"",
            IpsecError::NoThirdPort => {
                "use action = \"bypass\" or mode = \"route\", or topology = \"memory\""
            }
            IpsecError::EsnWithoutWindow => "remove one of them",
            IpsecError::SealedTooLong { .. } => "lower `frame`",
            IpsecError::KernelSeals => {
                "use mode = \"policy\", action = \"bypass\" and direction = \"out\" or \"beside\", or sut = \"weir\""
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
            IpsecError::OfMemory { key } => write!(f, "ipsec has `{key}`, which hosts have not"),
            IpsecError::NoThirdPort => f.write_str(
                "direction \"beside\" with policies that protect needs a third port, which hosts have not",
            ),
            IpsecError::EsnWithoutWindow => f.write_str(
                "`esn` and `replay_window = 0` exclude each other where packets are opened on hosts",
            ),
            IpsecError::SealedTooLong { frame, sealed, most } => write!(
                f,
                "frames of {frame} bytes are IP packets of {sealed} once sealed, expected {HOSTS_MTU} at most (frames of {most})"
            ),
            IpsecError::KernelSeals => f.write_str(
                "SUT \"kernel-xfrm\" on hosts has policies that let pass, and neither seals nor opens",
            ),
            IpsecError::Flows { got, most } => {
                write!(f, "{got} flows, expected {most} at most where packets carry a mark")
            }
        }
    }
}
