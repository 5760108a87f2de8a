//! One SA or policy of the kernel's in this crate's words.
//!
//! Promises: an algorithm is taken only with the length of its check value that ESP gives it here; nothing is guessed.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::Why;
use crate::ipsec::sa::{Df, Dscp, Lifetime, UdpPorts};
use crate::ipsec::spd::{Action, AddressRange, PortRange};
use crate::ipsec::{Direction, Encryption, Integrity, Keys, Params, SaSpec, Secret, Suite};
use crate::route::Prefix;
use crate::state::PolicySpec;
use crate::wire::protocol;
use crate::wire::xfrm::{
    Algorithm, ESP, EXTRA_DONT_ENCAP_DSCP, EXTRA_NUMBERS_MAY_WRAP, FLAG_ESN, FLAG_NO_PMTU_DISCOVERY, Mode,
    Policy, Sa, UNLIMITED,
};

/// `UDP_ENCAP_ESPINUDP`.
const IN_UDP: u16 = 2;
/// The least and the most a window may be.
const WINDOW_MIN: u32 = 32;
const WINDOW_MAX: u32 = 4096;
/// The window of an SA with ESN whose own is none: numbers beyond 32 bits cannot be told without one.
const WINDOW_OF_ESN: u32 = 64;

pub(super) fn sa(sa: &Sa, name: String, direction: Direction) -> Result<SaSpec, Why> {
    if sa.key.protocol != ESP {
        return Err(Why::Protocol(sa.key.protocol));
    }
    match sa.mode {
        Mode::Tunnel => {}
        Mode::Transport => return Err(Why::Transport),
        Mode::Other(mode) => return Err(Why::Mode(mode)),
    }
    if sa.key.mark != (0, 0) {
        return Err(Why::Marked);
    }
    if sa.extra_flags & EXTRA_NUMBERS_MAY_WRAP != 0 {
        return Err(Why::Wraps);
    }
    if sa.compressed {
        return Err(Why::Protocol(108));
    }
    let (suite, keys) = suite(sa)?;
    let udp = match sa.encapsulation {
        None => None,
        Some((IN_UDP, source, destination)) => Some(UdpPorts { source, destination }),
        Some((other, ..)) => return Err(Why::Encapsulation(other)),
    };
    let mut params = Params::new(
        direction,
        sa.key.spi,
        crate::ipsec::Mode::Tunnel,
        (sa.source, sa.key.destination),
        suite,
    );
    params.esn = sa.flags & FLAG_ESN != 0;
    params.udp = udp;
    let window = sa.replay.map_or(u32::from(sa.window), |replay| replay.window);
    params.replay_window = match window {
        _ if direction == Direction::Out => params.replay_window,
        0 if !params.esn => 0,
        0 => WINDOW_OF_ESN as u16,
        other => other.clamp(WINDOW_MIN, WINDOW_MAX) as u16,
    };
    if sa.flags & FLAG_NO_PMTU_DISCOVERY != 0 {
        params.df = Df::Clear;
    }
    if sa.extra_flags & EXTRA_DONT_ENCAP_DSCP != 0 {
        params.dscp = Dscp::Set(0);
    }
    // Limits of time are the kernel's: it tells of them by itself.
    let limit = |value: u64| (value != UNLIMITED && value != 0).then_some(value);
    let limits = &sa.limits;
    params.soft =
        Lifetime { bytes: limit(limits.soft_bytes), packets: limit(limits.soft_packets), seconds: None };
    params.hard =
        Lifetime { bytes: limit(limits.hard_bytes), packets: limit(limits.hard_packets), seconds: None };
    // The kernel's file of both may have them the wrong way round.
    params.soft.bytes = params.soft.bytes.filter(|soft| params.hard.bytes.is_none_or(|hard| *soft <= hard));
    params.soft.packets =
        params.soft.packets.filter(|soft| params.hard.packets.is_none_or(|hard| *soft <= hard));
    Ok(SaSpec { name, params, keys })
}

fn suite(sa: &Sa) -> Result<(Suite, Keys), Why> {
    let secret =
        |algorithm: Option<&Algorithm>| Secret::new(algorithm.map_or(Vec::new(), |a| a.key.bytes().to_vec()));
    let all = [&sa.aead, &sa.encryption, &sa.integrity];
    if all.iter().any(|a| a.as_ref().is_some_and(|a| a.key.is_hidden())) {
        return Err(Why::HiddenKey);
    }
    if let Some(aead) = &sa.aead {
        let keys = Keys { encryption: secret(Some(aead)), integrity: secret(None) };
        let suite = Suite::new(self::aead(aead)?, None, false).map_err(|_| Why::NoAlgorithm)?;
        return Ok((suite, keys));
    }
    let encryption = match &sa.encryption {
        Some(algorithm) => cipher(algorithm)?,
        None => return Err(Why::NoAlgorithm),
    };
    let integrity = sa.integrity.as_ref().map(self::integrity).transpose()?;
    let keys = Keys { encryption: secret(sa.encryption.as_ref()), integrity: secret(sa.integrity.as_ref()) };
    let suite = Suite::new(encryption, integrity, false).map_err(|_| Why::NoAlgorithm)?;
    Ok((suite, keys))
}

fn unknown(algorithm: &Algorithm) -> Why {
    let (name, bits) = (&algorithm.name, algorithm.key.bytes().len() * 8);
    match algorithm.icv_bits {
        0 => Why::Algorithm(format!("{name} with a key of {bits} bits")),
        icv => Why::Algorithm(format!("{name} with a key of {bits} bits and a check value of {icv}")),
    }
}

fn aead(algorithm: &Algorithm) -> Result<Encryption, Why> {
    // Key and salt.
    match (algorithm.name.as_str(), algorithm.key.bytes().len(), algorithm.icv_bits) {
        ("rfc4106(gcm(aes))", 20, 128) => Ok(Encryption::AesGcm128),
        ("rfc4106(gcm(aes))", 28, 128) => Ok(Encryption::AesGcm192),
        ("rfc4106(gcm(aes))", 36, 128) => Ok(Encryption::AesGcm256),
        ("rfc7539esp(chacha20,poly1305)", 36, 128) => Ok(Encryption::ChaCha20Poly1305),
        _ => Err(unknown(algorithm)),
    }
}

fn cipher(algorithm: &Algorithm) -> Result<Encryption, Why> {
    match (algorithm.name.as_str(), algorithm.key.bytes().len()) {
        ("cbc(aes)" | "aes", 16) => Ok(Encryption::AesCbc128),
        ("cbc(aes)" | "aes", 24) => Ok(Encryption::AesCbc192),
        ("cbc(aes)" | "aes", 32) => Ok(Encryption::AesCbc256),
        ("ecb(cipher_null)" | "cipher_null", 0) => Ok(Encryption::Null),
        _ => Err(unknown(algorithm)),
    }
}

fn integrity(algorithm: &Algorithm) -> Result<Integrity, Why> {
    match (algorithm.name.as_str(), algorithm.icv_bits) {
        ("hmac(sha1)" | "sha1", 96) => Ok(Integrity::HmacSha1_96),
        ("hmac(sha256)" | "sha256", 128) => Ok(Integrity::HmacSha256_128),
        ("hmac(sha384)" | "sha384", 192) => Ok(Integrity::HmacSha384_192),
        ("hmac(sha512)" | "sha512", 256) => Ok(Integrity::HmacSha512_256),
        _ => Err(unknown(algorithm)),
    }
}

/// What a policy selects and does, without its SAs.
pub(super) fn policy(policy: &Policy, name: &str, direction: Direction) -> Result<PolicySpec, Why> {
    let selector = &policy.selector;
    if policy.mark != (0, 0) {
        return Err(Why::Marked);
    }
    if policy.more || selector.link != 0 || selector.user != 0 {
        return Err(Why::Selector);
    }
    let (near, far) = match direction {
        Direction::Out => {
            ((selector.source, selector.source_port), (selector.destination, selector.destination_port))
        }
        Direction::In => {
            ((selector.destination, selector.destination_port), (selector.source, selector.source_port))
        }
    };
    let protocol = Some(selector.protocol).filter(|&p| p != 0);
    let icmp = protocol.is_some_and(|p| p == protocol::ICMPV4 || p == protocol::ICMPV6);
    let mut spec = PolicySpec {
        name: name.to_owned(),
        direction: Some(direction),
        local: vec![range(near.0)],
        remote: vec![range(far.0)],
        protocol,
        local_ports: PortRange::ANY,
        remote_ports: PortRange::ANY,
        icmp: PortRange::ANY,
        action: match (policy.allowed, policy.templates.is_empty()) {
            (false, _) => Action::Discard,
            (true, true) => Action::Bypass,
            (true, false) => Action::Protect,
        },
        out: Vec::new(),
        inbound: Vec::new(),
    };
    if icmp {
        // The kernel has the type in the place of the source port and the code in that of the destination port.
        spec.icmp = icmp_range(selector.source_port, selector.destination_port)?;
    } else {
        (spec.local_ports, spec.remote_ports) = (ports(near.1)?, ports(far.1)?);
    }
    Ok(spec)
}

pub(super) fn range(prefix: Prefix) -> AddressRange {
    match prefix {
        Prefix::V4(p) => AddressRange { first: p.addr().into(), last: Ipv4Addr::from(p.last()).into() },
        Prefix::V6(p) => AddressRange { first: p.addr().into(), last: Ipv6Addr::from(p.last()).into() },
    }
}

fn ports((port, mask): (u16, u16)) -> Result<PortRange, Why> {
    // A mask of leading ones is a range; nobody makes another.
    if mask.leading_ones() + mask.trailing_zeros().min(16) != 16 {
        return Err(Why::Selector);
    }
    Ok(PortRange { first: port & mask, last: port | !mask })
}

fn icmp_range(kind: (u16, u16), code: (u16, u16)) -> Result<PortRange, Why> {
    match (kind, code) {
        ((_, 0), (_, 0)) => Ok(PortRange::ANY),
        ((kind, 0xffff), (_, 0)) if kind < 256 => Ok(PortRange { first: kind << 8, last: kind << 8 | 0xff }),
        ((kind, 0xffff), (code, 0xffff)) if kind < 256 && code < 256 => {
            Ok(PortRange { first: kind << 8 | code, last: kind << 8 | code })
        }
        _ => Err(Why::Selector),
    }
}
