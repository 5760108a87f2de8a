//! The kernel's packet filter as a model, and which established flows it accepts without more.
//!
//! ```text
//! tables, chains, rules, sets ─► RuleSet ─┐
//! family, protocol, devices ────► Path ───┴─► judge ─► EstablishedAccepted │ Refused: chain, rule, reason, remedy
//! one first packet ─────────────────────────► decide ─► Accepted │ Dropped │ Open: chain, rule
//! ```
//!
//! Promises: a pure function. A flow is called accepted only where every base chain that its packets cross accepts each of them
//! whatever is not known of it, and does nothing else to it. Refuses: whatever is not understood. Chains of type `nat`
//! see first packets only and do not count.

mod decide;
mod judge;
mod packet;
mod refusal;
mod sets;
mod survey;

pub use decide::{Decision, FirstPacket, decide};
pub use judge::judge;
pub use refusal::{Refusal, Why};
pub use survey::{Obstacle, survey};

use crate::wire::nftables::{Chain, Element, Elements, Family, News, Rule, Set, Table};

/// What of nf_tables there is, and what of the older iptables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// The number the kernel gives to a state of the rule set.
    pub generation: u32,
    pub tables: Vec<Table>,
    pub chains: Vec<Chain>,
    /// In the order in which they are evaluated, chain by chain.
    pub rules: Vec<Rule>,
    pub sets: Vec<Set>,
    pub elements: Vec<Elements>,
    /// Tables of the older iptables that have something to say about transit beyond first packets, as people write them.
    pub older: Vec<Older>,
    /// Whether the older iptables translates addresses of IPv4, and of IPv6.
    pub older_nat: [bool; 2],
}

/// A chain of the older iptables that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Older {
    pub v6: bool,
    pub table: String,
    pub chain: String,
}

impl RuleSet {
    /// Takes a message of a dump in; the elements of a set may come in several.
    pub fn take(&mut self, news: News) {
        match news {
            News::Table(table) => self.tables.push(table),
            News::Chain(chain) => self.chains.push(chain),
            News::Rule(rule) => self.rules.push(rule),
            News::Set(set) => self.sets.push(set),
            News::Elements(more) => self.elements.push(more),
            News::Generation(generation) => self.generation = generation,
            News::Other => {}
        }
    }

    /// Whether the kernel translates packets of flows that it began to translate: it does so while a chain of type `nat` is there.
    pub fn translates(&self, v6: bool) -> bool {
        let family = if v6 { Family::Ip6 } else { Family::Ip };
        let nat = |c: &&Chain| c.base.as_ref().is_some_and(|base| base.kind == "nat");
        let mut chains = self.chains.iter().filter(nat);
        chains.any(|c| [family, Family::Inet].contains(&c.family) && !self.is_dormant(c))
            || self.older_nat[usize::from(v6)]
    }

    fn is_dormant(&self, chain: &Chain) -> bool {
        self.tables.iter().any(|t| t.family == chain.family && t.name == chain.table && t.dormant)
    }

    fn set(&self, family: Family, table: &str, name: &str) -> Option<&Set> {
        self.sets.iter().find(|s| (s.family, s.table.as_str(), s.name.as_str()) == (family, table, name))
    }

    /// None: its elements were not read.
    fn elements_of(&self, set: &Set) -> Option<Vec<&Element>> {
        let of = |e: &&Elements| (e.family, &e.table, &e.set) == (set.family, &set.table, &set.name);
        let mut parts = self.elements.iter().filter(of).peekable();
        parts.peek()?;
        Some(parts.flat_map(|part| &part.elements).collect())
    }
}

/// Packets of established flows: one family and protocol, from one device to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    pub v6: bool,
    pub protocol: Protocol,
    /// None: from whatever device.
    pub input: Option<Interface>,
    /// None: to whatever device.
    pub output: Option<Interface>,
}

/// Protocols of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// A device as rules name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    /// Devices its frames pass too: those below a VLAN's.
    pub lower: Vec<String>,
}

/// Whether established flows of a path may be forwarded without asking the rules again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Rules whose counters would no longer count those packets are named.
    EstablishedAccepted {
        counters: Vec<RuleLocation>,
    },
    Refused(Box<Refusal>),
}

/// A rule, or a chain's policy where there is no handle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleLocation {
    pub family: Family,
    pub table: String,
    pub chain: String,
    pub handle: Option<u64>,
}

impl std::fmt::Display for RuleLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "chain {} {} {}", self.family, self.table, self.chain)?;
        match self.handle {
            Some(handle) => write!(f, ", rule with handle {handle}"),
            None => Ok(()),
        }
    }
}

/// What packets of flows carry that an administrator gives to be forwarded past the rules: `0x100/0x100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtMark {
    pub value: u32,
    pub mask: u32,
}

impl CtMark {
    /// An entry without a mark has mark 0.
    pub fn matches(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }
}

impl std::fmt::Display for CtMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}/{:#x}", self.value, self.mask)
    }
}

/// What is wrong with a text that should be a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtMarkError {
    NotNumbers,
    /// Every flow without a mark would match.
    MatchesUnmarked,
    /// No flow would match.
    OutsideMask,
}

impl std::fmt::Display for CtMarkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CtMarkError::NotNumbers => "is not a mark; write value and mask as `0x100/0x100`, or one number",
            CtMarkError::MatchesUnmarked => "matches flows without a mark; name a bit, as `0x100/0x100`",
            CtMarkError::OutsideMask => "has bits outside its mask, so no flow has it; write the mask wider",
        })
    }
}

impl std::error::Error for CtMarkError {}

impl std::str::FromStr for CtMark {
    type Err = CtMarkError;

    /// Value and mask, or a value alone, in decimal or with `0x`.
    fn from_str(text: &str) -> Result<CtMark, CtMarkError> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16).ok(),
            None if !text.starts_with('+') => text.parse().ok(),
            _ => None,
        };
        let (value, mask) = match text.split_once('/') {
            Some((value, mask)) => (number(value), number(mask)),
            None => (number(text), Some(u32::MAX)),
        };
        let (Some(value), Some(mask)) = (value, mask) else { return Err(CtMarkError::NotNumbers) };
        match value {
            _ if value & !mask != 0 => Err(CtMarkError::OutsideMask),
            0 => Err(CtMarkError::MatchesUnmarked),
            _ => Ok(CtMark { value, mask }),
        }
    }
}

#[cfg(test)]
mod tests;
