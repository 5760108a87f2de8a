//! What is wrong with a wished-for SA, tunnel, SPD or policy.
//!
//! Promises: as its parent, and that no sentence has anything of a key but its length.

use std::fmt;
use std::net::IpAddr;

use super::super::IpsecSpec;
use super::super::check::{
    CACHE_MEMORY_MAX, POLICIES_MAX, RECORDS_MAX, RULE_MEMORY, RULES_MAX, SAS_MAX, SPI_MIN, WINDOW,
};
use super::{Problem, Wrong, amount};
use crate::ipsec::flow_cache::{BUCKETS, BUCKETS_MAX};
use crate::ipsec::spd::{Action, AddressRange, PortRange, Way};
use crate::ipsec::{Direction, Encryption, Integrity, KeyLength, Suite};

/// Which element of [`IpsecSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpsecElement {
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
    /// The flow cache of a way.
    Lookup(Way),
}

impl IpsecSpec {
    /// What a sentence about a place begins with.
    pub(crate) fn subject(&self, place: IpsecElement) -> String {
        match place {
            IpsecElement::All => "ipsec".to_string(),
            IpsecElement::Sa(i) => format!("sa {}", self.sas[i].name),
            IpsecElement::Tunnel(i) | IpsecElement::TunnelAddress { tunnel: i, .. } => {
                format!("tunnel {}", self.tunnels[i].name)
            }
            IpsecElement::Spd(i) => format!("spd {}", self.spds[i].name),
            IpsecElement::Lookup(way) => format!("spd flow cache {}", way.name()),
            IpsecElement::Policy { spd, policy } => {
                let spd = &self.spds[spd];
                format!("spd {}: policy {}", spd.name, spd.policies[policy].name)
            }
        }
    }
}

/// What is wrong with an SA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaProblem {
    TooMany(usize),
    /// The state directory would have to remember this many SAs.
    StateFull(usize),
    /// SAs without anything to encrypt with.
    NoCiphers(usize),
    KeyLength {
        length: KeyLength,
        suite: Suite,
    },
    /// An AEAD key another SA has too.
    SharedKey {
        other: String,
    },
    /// The key was used with another SPI.
    KeySpent {
        spi: u32,
    },
    ReservedSpi(u32),
    DuplicateSpi {
        spi: u32,
        destination: IpAddr,
        other: String,
    },
    NotAHost {
        end: &'static str,
        address: IpAddr,
        wrong: Wrong,
    },
    MixedFamilies {
        source: IpAddr,
        destination: IpAddr,
    },
    SameEnds(IpAddr),
    Window(u16),
    EsnWithoutWindow,
    HopLimit,
    Dscp(u8),
    UdpPort,
    NoLife(&'static str),
    SoftAboveHard {
        unit: &'static str,
        soft: u64,
        hard: u64,
    },
    Unused,
}

/// What is wrong with an SA named by a tunnel or a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UseProblem {
    Unknown { sa: String, nearest: Option<String> },
    Direction { sa: String, expected: Direction },
    Twice { sa: String },
    Elsewhere { sa: String, other: String },
}

/// What is wrong with a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelProblem {
    NoSas,
    Transport { sa: String },
}

/// What is wrong with an SPD as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpdProblem {
    NoPorts,
    Default,
    GuardsTunnel(String),
    Guarded {
        port: String,
        other: String,
    },
    TooManyPolicies(usize),
    TooManyRules(usize),
    /// No SPD has this name.
    Unknown {
        name: String,
        nearest: Option<String>,
    },
    /// It has no policy of this name.
    NoPolicy {
        name: String,
        nearest: Option<String>,
    },
    /// A policy cannot be put so far behind the last.
    NoPlace {
        at: usize,
        policies: usize,
    },
}

/// What is wrong with one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyProblem {
    MixedRange(AddressRange),
    BackwardRange(AddressRange),
    NoCommonFamily,
    IcmpFamily,
    BackwardPorts(PortRange),
    PortsWithout(Option<u8>),
    IcmpWithout(Option<u8>),
    NoSa(Direction),
    WrongWay(Direction),
    UselessSa(Action),
    /// A transport-mode SA whose policy is about others than its ends.
    Ends {
        sa: String,
        local: IpAddr,
        remote: IpAddr,
    },
    Hidden {
        by: String,
    },
}

/// What is wrong with how SPDs are to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupProblem {
    /// This many, which would take `bytes`.
    Buckets { buckets: u32, bytes: u64 },
    /// All caches together.
    Memory(u64),
}

macro_rules! problems {
    ($($kind:ident => $variant:ident),*) => {
        $(impl From<$kind> for Problem {
            fn from(problem: $kind) -> Self {
                Problem::$variant(problem)
            }
        })*
    };
}

problems!(SaProblem => Sa, UseProblem => Use, TunnelProblem => Tunnel, SpdProblem => Spd, PolicyProblem => Policy,
    LookupProblem => Lookup);

impl fmt::Display for SaProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaProblem::TooMany(n) => {
                write!(f, "{n} SAs are configured, expected at most {SAS_MAX}; remove some")
            }
            SaProblem::StateFull(n) => write!(
                f,
                "{n} SAs would be remembered in the state directory, expected at most {RECORDS_MAX}; stop weir and \
                 run `weir state forget` for keys that never come back"
            ),
            SaProblem::NoCiphers(n) => write!(
                f,
                "{n} SAs are configured, but there are no ciphers here; remove the SAs or start with ciphers"
            ),
            SaProblem::KeyLength { length, suite } => key_length(f, *length, *suite),
            SaProblem::SharedKey { other } => write!(
                f,
                "has the key of sa {other}, and no two SAs may share an AEAD key, for both would use the same \
                 nonces (RFC 4106 3.1); give it a key of its own"
            ),
            SaProblem::KeySpent { spi } => write!(
                f,
                "its key was used with spi {spi:#x}, and an AEAD key must not start again (RFC 4106 3.1); \
                 give it a new key"
            ),
            SaProblem::ReservedSpi(spi) => write!(
                f,
                "spi is {spi:#x}, expected {SPI_MIN:#x} or more: those below are reserved (RFC 4303 2.1); \
                 choose another"
            ),
            SaProblem::DuplicateSpi { spi, destination, other } => write!(
                f,
                "spi {spi:#x} to {destination} is sa {other}'s already; choose another, at both ends"
            ),
            SaProblem::NotAHost { end, address, wrong } => {
                write!(f, "{end} {address} is {wrong}, expected a host's; correct it")
            }
            SaProblem::MixedFamilies { source, destination } => write!(
                f,
                "source {source} and destination {destination} are of two families, expected one; correct one"
            ),
            SaProblem::SameEnds(address) => {
                write!(f, "source and destination are both {address}, expected two hosts; correct one")
            }
            _ => self.number(f),
        }
    }
}

impl SaProblem {
    /// Writes what is wrong with an SA's limits, and that nobody uses it.
    fn number(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaProblem::Window(window) => write!(
                f,
                "replay window is {window}, expected 0 (none) or {} to {}; correct it",
                WINDOW.start(),
                WINDOW.end()
            ),
            SaProblem::EsnWithoutWindow => write!(
                f,
                "has esn and no replay window, without which nobody knows the upper half of a number \
                 (RFC 4303 3.3.3); give it a window"
            ),
            SaProblem::HopLimit => write!(f, "hop limit is 0, expected 1 to 255; 64 is usual"),
            SaProblem::Dscp(dscp) => write!(f, "dscp is {dscp}, expected 0 to 63; correct it"),
            SaProblem::UdpPort => write!(f, "a UDP port is 0, expected 1 to 65535; 4500 is usual (RFC 3948)"),
            SaProblem::NoLife(unit) => {
                write!(f, "a lifetime is 0 {unit}, which is over at once; raise it or leave it out")
            }
            SaProblem::SoftAboveHard { unit, soft, hard } => write!(
                f,
                "soft lifetime of {soft} {unit} is above the hard one of {hard}, so nobody would be told in \
                 time; lower it"
            ),
            SaProblem::Unused => {
                write!(f, "is used by no tunnel and no policy; name it in one or remove it")
            }
            // What is said above.
            _ => Ok(()),
        }
    }
}

fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "inbound",
        Direction::Out => "outbound",
    }
}

impl fmt::Display for UseProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UseProblem::Unknown { sa, nearest: Some(nearest) } => {
                write!(f, "sa `{sa}` does not exist; did you mean `{nearest}`?")
            }
            UseProblem::Unknown { sa, nearest: None } => {
                write!(f, "sa `{sa}` does not exist; configure it or correct the name")
            }
            UseProblem::Direction { sa, expected } => {
                let got = if *expected == Direction::In { Direction::Out } else { Direction::In };
                write!(f, "sa {sa} is {}, expected an {} one; name another", way(got), way(*expected))
            }
            UseProblem::Twice { sa } => write!(f, "names sa {sa} twice; remove one"),
            UseProblem::Elsewhere { sa, other } => write!(
                f,
                "sa {sa} is used by {other} already, and an SA leads to one tunnel or one SPD; give it SAs of \
                 its own"
            ),
        }
    }
}

impl fmt::Display for TunnelProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TunnelProblem::NoSas => write!(f, "has no SA, expected one to send or to receive by; name some"),
            TunnelProblem::Transport { sa } => write!(
                f,
                "sa {sa} is in transport mode, expected tunnel mode: what is routed here has other addresses; \
                 use a policy for it, or tunnel mode"
            ),
        }
    }
}

impl fmt::Display for SpdProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpdProblem::NoPorts => {
                write!(f, "is enforced on no port, expected one or more; name the outer ports")
            }
            SpdProblem::Default => {
                write!(
                    f,
                    "default is protect, expected discard or bypass; write a last policy to protect all"
                )
            }
            SpdProblem::GuardsTunnel(port) => write!(
                f,
                "port {port} is a tunnel, expected a port with a device; name the port the tunnel leaves by, \
                 or use routes alone"
            ),
            SpdProblem::Guarded { port, other } => {
                write!(f, "port {port} has spd {other} already; remove it from one")
            }
            SpdProblem::TooManyPolicies(n) => {
                write!(f, "has {n} policies, expected at most {POLICIES_MAX}; aggregate some")
            }
            SpdProblem::Unknown { name, nearest } => {
                write!(f, "spd `{name}` does not exist; {}", meant(nearest))
            }
            SpdProblem::NoPolicy { name, nearest } => {
                write!(f, "policy `{name}` does not exist; {}", meant(nearest))
            }
            SpdProblem::NoPlace { at, policies } => {
                write!(f, "place is {at}, expected 0 to {policies}, the end of its list; correct it")
            }
            SpdProblem::TooManyRules(n) => write!(
                f,
                "its policies come to {n} pairs of ranges, which may take {}, expected at most {RULES_MAX}; \
                 aggregate some",
                amount(RULE_MEMORY.saturating_mul(*n as u64))
            ),
        }
    }
}

impl fmt::Display for LookupProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LookupProblem::Buckets { buckets: 0, .. } => {
                write!(f, "has 0 buckets, expected 1 to {BUCKETS_MAX}; {BUCKETS} is usual, or switch it off")
            }
            LookupProblem::Buckets { buckets, bytes } => write!(
                f,
                "has {buckets} buckets, which would take {}, expected 1 to {BUCKETS_MAX}; {BUCKETS} is usual",
                amount(bytes)
            ),
            LookupProblem::Memory(bytes) => write!(
                f,
                "with the others takes {}, expected at most {} for all; write fewer buckets",
                amount(bytes),
                amount(CACHE_MEMORY_MAX)
            ),
        }
    }
}

impl fmt::Display for PolicyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |f: &mut fmt::Formatter<'_>, protocol: &Option<u8>| match protocol {
            Some(protocol) => write!(f, "protocol {protocol}"),
            None => write!(f, "any protocol"),
        };
        match self {
            PolicyProblem::MixedRange(r) => {
                write!(f, "range {}-{} has ends of two families; correct one", r.first, r.last)
            }
            PolicyProblem::BackwardRange(r) => {
                write!(f, "range {}-{} ends before it begins; swap its ends", r.first, r.last)
            }
            PolicyProblem::NoCommonFamily => write!(
                f,
                "local and remote have no family in common, so no packet can match; correct one side"
            ),
            PolicyProblem::IcmpFamily => write!(
                f,
                "its addresses are not of the family of its ICMP, so no packet can match; use 1 with IPv4, 58 \
                 with IPv6"
            ),
            PolicyProblem::BackwardPorts(r) => {
                write!(f, "range {}-{} ends before it begins; swap its ends", r.first, r.last)
            }
            PolicyProblem::PortsWithout(protocol) => {
                f.write_str("names ports of ")?;
                named(f, protocol)?;
                f.write_str(
                    ", expected TCP (6), UDP (17) or SCTP (132); set the protocol or remove the ports",
                )
            }
            PolicyProblem::IcmpWithout(protocol) => {
                f.write_str("names ICMP types of ")?;
                named(f, protocol)?;
                f.write_str(", expected ICMP (1) or ICMPv6 (58); set the protocol or remove the types")
            }
            PolicyProblem::NoSa(direction) => write!(
                f,
                "protects and has no {} SA, so nothing could pass; name one, or say which direction it is for",
                way(*direction)
            ),
            PolicyProblem::WrongWay(direction) => write!(
                f,
                "has an {} SA, but is not for that direction; remove the SA or the direction",
                way(*direction)
            ),
            PolicyProblem::UselessSa(action) => {
                write!(f, "has SAs, but its action is {action}; remove them or say protect")
            }
            PolicyProblem::Ends { sa, local, remote } => write!(
                f,
                "sa {sa} is in transport mode, so local must be {local} alone and remote {remote} alone; \
                 narrow them, or use tunnel mode"
            ),
            PolicyProblem::Hidden { by } => write!(
                f,
                "can never match: policy {by} above it matches all it would; move it up or remove it"
            ),
        }
    }
}

fn meant(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or("configure it or correct the name".into(), |n| format!("did you mean `{n}`?"))
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
