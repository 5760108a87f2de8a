//! One expression of a rule: what it reads, compares, decides or does.
//!
//! Promises: registers are places in one array, as the kernel has them; what is not known is a [`Expression::Statement`] with its
//! name. Refuses: values of set operations that are shifts and byte orders: their result is called unknown.

use std::fmt;

use super::super::netlink::{Malformed, attribute};
use super::{be32, required, text, xt};

/// Bytes of all registers, the verdict's included (`struct nft_regs`).
pub const REGISTER_BYTES: usize = 80;
/// What one register of the older kind holds; no value is longer.
const REGISTER: usize = 16;

/// The place of a register's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub usize);

impl Register {
    /// Where verdicts are written.
    pub const VERDICT: Register = Register(0);

    /// Register numbers 1 to 4 are of 16 bytes, numbers from 8 on of 4 bytes, of the same array.
    fn parse(value: &[u8]) -> Result<Register, Malformed> {
        match be32(value)? {
            number @ 0..=4 => Ok(Register(number as usize * REGISTER)),
            number @ 8..=23 => Ok(Register(REGISTER + (number as usize - 8) * 4)),
            _ => Err(Malformed),
        }
    }
}

/// What a chain does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Queue,
    /// The next rule, as if there were no verdict.
    Continue,
    Return,
    Jump(String),
    Goto(String),
}

/// Something of a packet or of its flow, read into a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    CtState,
    CtStatus,
    InputName,
    OutputName,
    InputIndex,
    OutputIndex,
    /// `meta nfproto`.
    Family,
    /// `meta protocol`.
    EtherType,
    /// `meta l4proto`.
    Protocol,
    /// Counted from the beginning of the IP header.
    Network {
        offset: usize,
        length: usize,
    },
    /// Counted from the beginning of the TCP or UDP header.
    Transport {
        offset: usize,
        length: usize,
    },
    /// Anything else; its length is not known either.
    Other,
}

/// Whether a match holds for an established packet that is neither a fragment nor the begin or end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    Always,
    Never,
    Unknown,
}

/// States of a flow that a match of iptables wants: bits as `ct state` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtStates {
    pub states: u32,
    /// A translated flow is wanted as well, whatever its state.
    pub translated: bool,
    pub not: bool,
    /// More is asked for than the state.
    pub more: bool,
}

impl CtStates {
    /// Whether a flow in this state has it; none where there is no flow yet.
    pub fn holds(&self, state: Option<u32>) -> Truth {
        let Some(state) = state else { return Truth::Unknown };
        let held = self.states & state != 0;
        match (held, held != self.not) {
            (false, _) if self.translated => Truth::Unknown,
            (_, true) if self.more => Truth::Unknown,
            (_, true) => Truth::Always,
            (_, false) => Truth::Never,
        }
    }
}

/// An expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    Load {
        key: Key,
        to: Register,
    },
    Immediate {
        to: Register,
        value: Vec<u8>,
    },
    Verdict(Verdict),
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        from: Register,
        to: Register,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Computed in a way that is not followed; the rule goes on.
    Computed {
        to: Register,
    },
    /// Goes on where the register equals the value, or does not.
    Equal {
        from: Register,
        value: Vec<u8>,
        not: bool,
    },
    /// Goes on or not; `truth` is that of a packet inside an established connection.
    Match {
        name: String,
        truth: Truth,
    },
    /// The state of the flow, as iptables asks for it.
    CtState(CtStates),
    /// A set is searched for a register; what a map has for it goes to `to`.
    Lookup {
        set: String,
        from: Register,
        to: Option<Register>,
        not: bool,
    },
    Counter,
    /// It does nothing to a packet of a flow that conntrack knows.
    FirstPacketOnly(String),
    /// Anything that does more than decide, by its name.
    Statement(String),
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expression::Load { .. } => f.write_str("load"),
            Expression::Immediate { .. } => f.write_str("value"),
            Expression::Verdict(verdict) => verdict.fmt(f),
            Expression::Bitwise { .. } => f.write_str("bitwise"),
            Expression::Computed { .. } => f.write_str("computed"),
            Expression::Equal { .. } => f.write_str("compare"),
            Expression::Lookup { .. } => f.write_str("lookup"),
            Expression::CtState(_) => f.write_str("ct state"),
            Expression::Counter => f.write_str("counter"),
            Expression::Match { name, .. }
            | Expression::FirstPacketOnly(name)
            | Expression::Statement(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Queue => f.write_str("queue"),
            Verdict::Continue => f.write_str("continue"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

/// `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
pub(super) fn parse(value: &[u8]) -> Result<Expression, Malformed> {
    let name = text(required(value, 1)?)?;
    let data = attribute(value, 2).unwrap_or_default();
    let register = |kind| required(data, kind).and_then(Register::parse);
    let statement = |name: &str| Ok(Expression::Statement(name.to_owned()));
    match name.as_str() {
        "immediate" => immediate(data),
        "cmp" => compare(data),
        "bitwise" => bitwise(data),
        "byteorder" => Ok(Expression::Computed { to: register(2)? }),
        "range" => Ok(Expression::Match { name: "a range".into(), truth: Truth::Unknown }),
        "lookup" => lookup(data),
        "payload" if attribute(data, 5).is_some() => statement("a change of the packet"),
        "payload" => payload(data),
        "meta" if attribute(data, 3).is_some() => statement(meta_set(data)?),
        "meta" => Ok(Expression::Load { key: meta(required(data, 2).and_then(be32)?), to: register(1)? }),
        "ct" if attribute(data, 4).is_some() => statement(ct_set(data)?),
        "ct" => Ok(Expression::Load { key: ct(required(data, 2).and_then(be32)?), to: register(1)? }),
        "fib" | "rt" | "osf" | "xfrm" => Ok(Expression::Load { key: Key::Other, to: register(1)? }),
        "socket" | "tunnel" => Ok(Expression::Load { key: Key::Other, to: register(2)? }),
        "hash" => Ok(Expression::Computed { to: register(2)? }),
        "exthdr" if attribute(data, 1).is_some() => {
            Ok(Expression::Load { key: Key::Other, to: register(1)? })
        }
        "exthdr" => statement("a change of an option"),
        "counter" => Ok(Expression::Counter),
        "objref" => object(data),
        "match" => xt::matching(data),
        "target" => Ok(Expression::Statement(format!("target {}", text(required(data, 1)?)?))),
        "connlimit" => statement("ct count"),
        "dynset" => statement("an update of a set"),
        "flow_offload" => statement("flow add"),
        other => statement(other),
    }
}

fn immediate(data: &[u8]) -> Result<Expression, Malformed> {
    let to = required(data, 1).and_then(Register::parse)?;
    let value = required(data, 2)?;
    match attribute(value, 2) {
        Some(value) if to == Register::VERDICT => Ok(Expression::Verdict(verdict(value)?)),
        None if to != Register::VERDICT => {
            Ok(Expression::Immediate { to, value: bounded(to, required(value, 1)?)? })
        }
        _ => Err(Malformed),
    }
}

/// A value that fits behind its register's place.
fn bounded(at: Register, value: &[u8]) -> Result<Vec<u8>, Malformed> {
    if at.0 + value.len() > REGISTER_BYTES { Err(Malformed) } else { Ok(value.to_vec()) }
}

pub(super) fn verdict(value: &[u8]) -> Result<Verdict, Malformed> {
    let chain = || required(value, 2).and_then(text);
    Ok(match required(value, 1).and_then(be32)? as i32 {
        0 => Verdict::Drop,
        1 => Verdict::Accept,
        // The upper half is the number of the queue.
        code if code > 0 && code & 0xff == 3 => Verdict::Queue,
        -1 => Verdict::Continue,
        -3 => Verdict::Jump(chain()?),
        -4 => Verdict::Goto(chain()?),
        -5 => Verdict::Return,
        _ => return Err(Malformed),
    })
}

fn compare(data: &[u8]) -> Result<Expression, Malformed> {
    let from = required(data, 1).and_then(Register::parse)?;
    let value = bounded(from, required(required(data, 3)?, 1)?)?;
    match required(data, 2).and_then(be32)? {
        0 => Ok(Expression::Equal { from, value, not: false }),
        1 => Ok(Expression::Equal { from, value, not: true }),
        2..=5 => Ok(Expression::Match { name: "a comparison".into(), truth: Truth::Unknown }),
        _ => Err(Malformed),
    }
}

fn bitwise(data: &[u8]) -> Result<Expression, Malformed> {
    let from = required(data, 1).and_then(Register::parse)?;
    let to = required(data, 2).and_then(Register::parse)?;
    // Operations beside the first shift, or have a second register.
    if attribute(data, 6).map_or(Ok(0), be32)? != 0 {
        return Ok(Expression::Computed { to });
    }
    let mask = bounded(from, required(required(data, 4)?, 1)?)?;
    let xor = bounded(to, required(required(data, 5)?, 1)?)?;
    if mask.len() != xor.len() || to.0 + mask.len() > REGISTER_BYTES {
        return Err(Malformed);
    }
    Ok(Expression::Bitwise { from, to, mask, xor })
}

fn lookup(data: &[u8]) -> Result<Expression, Malformed> {
    Ok(Expression::Lookup {
        set: text(required(data, 1)?)?,
        from: required(data, 2).and_then(Register::parse)?,
        to: attribute(data, 3).map(Register::parse).transpose()?,
        not: attribute(data, 5).map_or(Ok(0), be32)? & 1 != 0,
    })
}

fn payload(data: &[u8]) -> Result<Expression, Malformed> {
    let to = required(data, 1).and_then(Register::parse)?;
    let number = |kind| required(data, kind).and_then(be32).map(|n| n as usize);
    let (offset, length) = (number(3)?, number(4)?);
    if to.0 + length > REGISTER_BYTES {
        return Err(Malformed);
    }
    let key = match number(2)? {
        1 => Key::Network { offset, length },
        2 => Key::Transport { offset, length },
        _ => Key::Other,
    };
    Ok(Expression::Load { key, to })
}

fn meta(key: u32) -> Key {
    match key {
        1 => Key::EtherType,
        4 => Key::InputIndex,
        5 => Key::OutputIndex,
        6 => Key::InputName,
        7 => Key::OutputName,
        15 => Key::Family,
        16 => Key::Protocol,
        _ => Key::Other,
    }
}

fn meta_set(data: &[u8]) -> Result<&'static str, Malformed> {
    Ok(match required(data, 2).and_then(be32)? {
        2 => "meta priority set",
        3 => "meta mark set",
        12 => "meta nftrace set",
        14 => "meta secmark set",
        19 => "meta pkttype set",
        _ => "meta set",
    })
}

fn ct(key: u32) -> Key {
    match key {
        0 => Key::CtState,
        2 => Key::CtStatus,
        _ => Key::Other,
    }
}

fn ct_set(data: &[u8]) -> Result<&'static str, Malformed> {
    Ok(match required(data, 2).and_then(be32)? {
        3 => "ct mark set",
        13 => "ct label set",
        17 => "ct zone set",
        _ => "ct set",
    })
}

/// A stateful object by its type; helpers and timeouts are given to new connections only.
fn object(data: &[u8]) -> Result<Expression, Malformed> {
    let name = |name: &str| name.to_owned();
    Ok(match attribute(data, 1).map(be32).transpose()? {
        Some(1) => Expression::Counter,
        Some(2) => Expression::Statement(name("quota")),
        Some(3) => Expression::FirstPacketOnly(name("ct helper set")),
        Some(4) => Expression::Statement(name("limit")),
        Some(5) => Expression::Statement(name("ct count")),
        Some(7) => Expression::FirstPacketOnly(name("ct timeout set")),
        Some(9) => Expression::Statement(name("ct expectation set")),
        Some(10) => Expression::Statement(name("synproxy")),
        _ => Expression::Statement(name("an object")),
    })
}
