//! Messages of nf_tables about tables, chains, rules and sets (`include/uapi/linux/netfilter/nf_tables.h`).
//!
//! ```text
//! nfgenmsg  family:1 version:1 resource:2 │ attributes, nested; their numbers in network byte order
//! rule      TABLE CHAIN HANDLE EXPRESSIONS { LIST_ELEM { NAME DATA { … } } … }
//! ```
//!
//! Promises: a message is read whole or refused as malformed; nothing is read past its slice. An expression that is not
//! known is kept by its name, so that who judges rules can refuse it. Refuses: to guess what an expression does.

mod expression;
mod xt;

use std::fmt;

pub use expression::{CtStates, Expression, Key, REGISTER_BYTES, Register, Truth, Verdict};

use super::netlink::{Malformed, Message, attribute, attributes};

const SUBSYSTEM: u16 = 10 << 8;
pub const NEW_TABLE: u16 = SUBSYSTEM;
pub const GET_TABLE: u16 = SUBSYSTEM | 1;
pub const NEW_CHAIN: u16 = SUBSYSTEM | 3;
pub const GET_CHAIN: u16 = SUBSYSTEM | 4;
pub const NEW_RULE: u16 = SUBSYSTEM | 6;
pub const GET_RULE: u16 = SUBSYSTEM | 7;
pub const NEW_SET: u16 = SUBSYSTEM | 9;
pub const GET_SET: u16 = SUBSYSTEM | 10;
pub const NEW_ELEMENTS: u16 = SUBSYSTEM | 12;
pub const GET_ELEMENTS: u16 = SUBSYSTEM | 13;
pub const NEW_GENERATION: u16 = SUBSYSTEM | 15;
pub const GET_GENERATION: u16 = SUBSYSTEM | 16;

/// `struct nfgenmsg`.
pub const HEADER: usize = 4;

const TABLE_DORMANT: u32 = 1;
const SET_ANONYMOUS: u32 = 1;
const SET_INTERVAL: u32 = 4;
/// `NFT_SET_TIMEOUT` and `NFT_SET_EVAL`: elements come and go without a message.
const SET_CHANGES: u32 = 16 | 32;
const SET_EXPRESSIONS: u32 = 256;
/// `NFT_DATA_VERDICT`, the data type of a verdict map.
const DATA_VERDICT: u32 = 0xffff_ff00;
const ELEMENT_INTERVAL_END: u32 = 1;
const ELEMENT_CATCH_ALL: u32 = 2;

/// Packets a table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Inet,
    Ip,
    Ip6,
    Netdev,
    Arp,
    Bridge,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Netdev => "netdev",
            Family::Arp => "arp",
            Family::Bridge => "bridge",
        })
    }
}

/// Where on a packet's way a base chain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    Ingress,
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
    Egress,
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hook::Ingress => "ingress",
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
            Hook::Egress => "egress",
        })
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub family: Family,
    pub name: String,
    /// Its chains are not asked.
    pub dormant: bool,
}

/// A chain, base or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub family: Family,
    pub table: String,
    pub name: String,
    /// None: it is only jumped to.
    pub base: Option<Base>,
}

/// What makes a chain a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    pub hook: Hook,
    pub priority: i32,
    /// `filter`, `nat` or `route`.
    pub kind: String,
    pub drops: bool,
    /// Devices of an ingress or egress chain; none where names are missing or have a wildcard, which may be any.
    pub devices: Vec<String>,
}

/// A rule, its expressions in the order in which they are evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub family: Family,
    pub table: String,
    pub chain: String,
    pub handle: u64,
    pub expressions: Vec<Expression>,
}

/// A set or map, without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub family: Family,
    pub table: String,
    pub name: String,
    /// Written in a rule; nobody else can change it.
    pub anonymous: bool,
    /// Elements are the ends of ranges.
    pub interval: bool,
    /// Elements run out or are made by packets, of which nobody hears.
    pub changes: bool,
    pub key_length: usize,
    /// A map whose values are verdicts.
    pub verdicts: bool,
    /// Something is evaluated for an element when it is found.
    pub has_statements: bool,
}

/// Elements of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elements {
    pub family: Family,
    pub table: String,
    pub set: String,
    pub elements: Vec<Element>,
}

/// An element of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// None: whatever no other element matches.
    pub key: Option<Vec<u8>>,
    pub verdict: Option<Verdict>,
    /// Something is evaluated when it is found.
    pub has_statements: bool,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    Table(Table),
    Chain(Chain),
    Rule(Rule),
    Set(Set),
    Elements(Elements),
    /// The number of the rule set; every change has another.
    Generation(u32),
    /// A message of another type.
    Other,
}

/// Reads a message of the nf_tables subsystem that a dump answers with.
pub fn parse(message: &Message<'_>) -> Result<News, Malformed> {
    let body = message.payload.get(HEADER..).ok_or(Malformed)?;
    // What is well formed in the whole cannot end early at one attribute.
    for attribute in attributes(body) {
        attribute?;
    }
    let family = || family(message.payload[0]).ok_or(Malformed);
    Ok(match message.kind {
        NEW_TABLE => News::Table(table(family()?, body)?),
        NEW_CHAIN => News::Chain(chain(family()?, body)?),
        NEW_RULE => News::Rule(rule(family()?, body)?),
        NEW_SET => News::Set(set(family()?, body)?),
        NEW_ELEMENTS => News::Elements(elements(family()?, body)?),
        NEW_GENERATION => News::Generation(required(body, 1).and_then(be32)?),
        _ => News::Other,
    })
}

/// A request for the elements of a set.
pub fn elements_of(set: &Set) -> ([u8; HEADER], [(u16, Vec<u8>); 2]) {
    let text = |name: &str| [name.as_bytes(), &[0]].concat();
    ([number(set.family), 0, 0, 0], [(1, text(&set.table)), (2, text(&set.name))])
}

fn number(family: Family) -> u8 {
    match family {
        Family::Inet => 1,
        Family::Ip => 2,
        Family::Arp => 3,
        Family::Netdev => 5,
        Family::Bridge => 7,
        Family::Ip6 => 10,
    }
}

fn family(number: u8) -> Option<Family> {
    Some(match number {
        1 => Family::Inet,
        2 => Family::Ip,
        3 => Family::Arp,
        5 => Family::Netdev,
        7 => Family::Bridge,
        10 => Family::Ip6,
        _ => return None,
    })
}

fn table(family: Family, body: &[u8]) -> Result<Table, Malformed> {
    let flags = attribute(body, 2).map_or(Ok(0), be32)?;
    Ok(Table { family, name: text(required(body, 1)?)?, dormant: flags & TABLE_DORMANT != 0 })
}

fn chain(family: Family, body: &[u8]) -> Result<Chain, Malformed> {
    let base = match attribute(body, 4) {
        None => None,
        Some(hook) => Some(base(family, hook, body)?),
    };
    Ok(Chain { family, table: text(required(body, 1)?)?, name: text(required(body, 3)?)?, base })
}

fn base(family: Family, hook: &[u8], body: &[u8]) -> Result<Base, Malformed> {
    let hooked = match (family, required(hook, 1).and_then(be32)?) {
        (Family::Netdev, 0) => Hook::Ingress,
        (Family::Netdev, 1) => Hook::Egress,
        (Family::Netdev, _) => return Err(Malformed),
        // The hooks of ARP are two, input and output; the numbers of a bridge's are those of IP.
        (_, 0) => Hook::Prerouting,
        (_, 1) => Hook::Input,
        (_, 2) => Hook::Forward,
        (_, 3) => Hook::Output,
        (_, 4) => Hook::Postrouting,
        (Family::Inet, 5) => Hook::Ingress,
        _ => return Err(Malformed),
    };
    Ok(Base {
        hook: hooked,
        priority: required(hook, 2).and_then(be32)? as i32,
        kind: attribute(body, 7).map_or(Ok("filter".to_owned()), text)?,
        // NF_DROP is 0.
        drops: attribute(body, 5).map(be32).transpose()? == Some(0),
        devices: devices(hook)?,
    })
}

/// `NFTA_HOOK_DEV`, or those of `NFTA_HOOK_DEVS`; what is in there beside a name is a name with a wildcard.
fn devices(hook: &[u8]) -> Result<Vec<String>, Malformed> {
    let mut found = Vec::new();
    if let Some(name) = attribute(hook, 3) {
        found.push(text(name)?);
    }
    for device in attribute(hook, 4).into_iter().flat_map(attributes) {
        match device? {
            (1, name) => found.push(text(name)?),
            _ => return Ok(Vec::new()),
        }
    }
    Ok(found)
}

fn rule(family: Family, body: &[u8]) -> Result<Rule, Malformed> {
    let mut expressions = Vec::new();
    for entry in attributes(required(body, 4)?) {
        match entry? {
            (1, value) => expressions.push(expression::parse(value)?),
            _ => return Err(Malformed),
        }
    }
    Ok(Rule {
        family,
        table: text(required(body, 1)?)?,
        chain: text(required(body, 2)?)?,
        handle: required(body, 3).and_then(be64)?,
        expressions,
    })
}

fn set(family: Family, body: &[u8]) -> Result<Set, Malformed> {
    let flags = attribute(body, 3).map_or(Ok(0), be32)?;
    let has = |kind| attribute(body, kind).is_some();
    Ok(Set {
        family,
        table: text(required(body, 1)?)?,
        name: text(required(body, 2)?)?,
        anonymous: flags & SET_ANONYMOUS != 0,
        interval: flags & SET_INTERVAL != 0,
        changes: flags & SET_CHANGES != 0,
        key_length: required(body, 5).and_then(be32)? as usize,
        verdicts: attribute(body, 6).map(be32).transpose()? == Some(DATA_VERDICT),
        has_statements: flags & SET_EXPRESSIONS != 0 || has(17) || has(18),
    })
}

fn elements(family: Family, body: &[u8]) -> Result<Elements, Malformed> {
    let mut found = Vec::new();
    for entry in attribute(body, 3).into_iter().flat_map(attributes) {
        match entry? {
            (1, value) => found.extend(element(value)?),
            _ => return Err(Malformed),
        }
    }
    Ok(Elements { family, table: text(required(body, 1)?)?, set: text(required(body, 2)?)?, elements: found })
}

/// None: the end of a range, which is not found by itself.
fn element(value: &[u8]) -> Result<Option<Element>, Malformed> {
    let flags = attribute(value, 3).map_or(Ok(0), be32)?;
    if flags & ELEMENT_INTERVAL_END != 0 {
        return Ok(None);
    }
    let key = match flags & ELEMENT_CATCH_ALL {
        0 => Some(required(required(value, 1)?, 1)?.to_vec()),
        _ => None,
    };
    let verdict = attribute(value, 2).and_then(|data| attribute(data, 2));
    let has = |kind| attribute(value, kind).is_some();
    Ok(Some(Element {
        key,
        verdict: verdict.map(expression::verdict).transpose()?,
        has_statements: has(7) || has(9) || has(11),
    }))
}

fn required(bytes: &[u8], kind: u16) -> Result<&[u8], Malformed> {
    attribute(bytes, kind).ok_or(Malformed)
}

fn be32(value: &[u8]) -> Result<u32, Malformed> {
    value.try_into().map(u32::from_be_bytes).map_err(|_| Malformed)
}

fn be64(value: &[u8]) -> Result<u64, Malformed> {
    value.try_into().map(u64::from_be_bytes).map_err(|_| Malformed)
}

/// A name: text up to its zero.
fn text(value: &[u8]) -> Result<String, Malformed> {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).map(str::to_owned).map_err(|_| Malformed)
}

/// Any bytes as a datagram: reading ends, and what is read is written without a panic.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_nftables(data: &[u8]) {
    for message in super::netlink::messages(data).map_while(Result::ok) {
        if let Ok(News::Rule(rule)) = parse(&message) {
            for expression in &rule.expressions {
                assert!(!expression.to_string().is_empty() || matches!(expression, Expression::Statement(_)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
