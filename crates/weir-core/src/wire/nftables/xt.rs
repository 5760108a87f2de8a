//! Matches of iptables inside rules of nf_tables (`include/uapi/linux/netfilter/xt_*.h`), as `iptables-nft` writes them.
//!
//! Promises: what `conntrack` and `state` say of an established packet, and that a flag of TCP's begin or end is wanted, is
//! read; other matches that keep nothing between packets may hold or not. Refuses: matches that count, and unknown ones.

use super::super::netlink::{Malformed, attribute, u32_at};
use super::expression::{CtStates, Expression, Truth};
use super::{be32, required, text};

/// Invalid, established, related and new, as `ct state` has them.
const STATES: u32 = 1 | 2 | 4 | 8;

/// Matches that only look at one packet: they may hold or not, and leave nothing behind.
const STATELESS: &[&str] = &[
    "addrtype",
    "ah",
    "connmark",
    "cpu",
    "devgroup",
    "dscp",
    "ecn",
    "esp",
    "eui64",
    "frag",
    "helper",
    "hl",
    "iprange",
    "length",
    "mac",
    "mark",
    "multiport",
    "owner",
    "physdev",
    "pkttype",
    "policy",
    "realm",
    "rpfilter",
    "tcp",
    "tcpmss",
    "time",
    "tos",
    "ttl",
    "udp",
];

/// `NFTA_MATCH_NAME`, `_REV` and `_INFO`.
pub(super) fn matching(data: &[u8]) -> Result<Expression, Malformed> {
    let name = text(required(data, 1)?)?;
    let revision = required(data, 2).and_then(be32)?;
    let info = attribute(data, 3).unwrap_or_default();
    let truth = match (name.as_str(), revision) {
        ("comment", _) => Truth::Always,
        ("conntrack", 3) => return conntrack(info).ok_or(Malformed),
        ("state", 0) => return state(info).ok_or(Malformed),
        ("tcp", 0) => tcp(info).ok_or(Malformed)?,
        (name, _) if name == "conntrack" || STATELESS.contains(&name) => Truth::Unknown,
        (name, _) => return Ok(Expression::Statement(format!("match {name}"))),
    };
    Ok(Expression::Match { name: format!("match {name}"), truth })
}

/// `struct xt_conntrack_mtinfo3`: flags at 146 and 148, states at 150.
fn conntrack(info: &[u8]) -> Option<Expression> {
    /// `XT_CONNTRACK_STATE`.
    const STATE: u16 = 1;
    /// `XT_CONNTRACK_STATE_ALIAS`: it was written as `-m state`.
    const ALIAS: u16 = 1 << 13;
    /// `XT_CONNTRACK_STATE_SNAT` and `_DNAT`; bit 8 is untracked.
    const TRANSLATED: u16 = 64 | 128;
    let number = |at: usize| Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?));
    let (flags, inverted, states) = (number(146)?, number(148)?, number(150)?);
    if flags & STATE == 0 {
        return Some(Expression::Match { name: "match conntrack".into(), truth: Truth::Unknown });
    }
    Some(Expression::CtState(CtStates {
        states: u32::from(states) & STATES,
        translated: states & TRANSLATED != 0,
        not: inverted & STATE != 0,
        more: flags & !ALIAS != STATE,
    }))
}

/// `struct xt_state_info`; its bit 6 is untracked.
fn state(info: &[u8]) -> Option<Expression> {
    let states = u32_at(info, 0)? & STATES;
    Some(Expression::CtState(CtStates { states, translated: false, not: false, more: false }))
}

/// `struct xt_tcp`: two ranges of ports, an option, then mask and value of the flags, and what is inverted.
fn tcp(info: &[u8]) -> Option<Truth> {
    /// FIN, SYN and RST.
    const BEGIN_OR_END: u8 = 7;
    const FLAGS_INVERTED: u8 = 4;
    let &[mask, value, inverted] = info.get(9..12)? else { return None };
    // The kernel asks for `flags & mask == value`.
    let never = value & BEGIN_OR_END & mask != 0 && inverted & FLAGS_INVERTED == 0;
    Some(if never { Truth::Never } else { Truth::Unknown })
}
