//! The whole rule set of nf_tables, and what the older iptables has to say.
//!
//! Promises: one state of the rule set: what changed while it was read is read again. Refuses: a rule set that does not stand
//! still, a message that is not well formed, and the elements of sets beyond [`ELEMENTS_MAX`], which are left out.

use std::io;

use netlink_sys::Socket;
use weir_core::firewall::{Older, RuleSet};
use weir_core::wire::netlink::{self, FLAG_DUMP, FLAG_DUMP_INTERRUPTED, TYPE_DONE, TYPE_ERROR, messages};
use weir_core::wire::nftables::{
    self, Elements, Expression, GET_CHAIN, GET_ELEMENTS, GET_GENERATION, GET_RULE, GET_SET, GET_TABLE, News,
    Set,
};

use super::super::MESSAGE_MAX;
use super::super::routes::refused;
use super::{older, open};

/// Elements of all sets together, of 100 bytes or so each.
pub const ELEMENTS_MAX: usize = 1 << 16;
/// Readings before a rule set is said not to stand still.
const TRIES: usize = 10;

/// What the kernel would ask of transit. A kernel without nf_tables has nothing of it.
pub fn rules() -> io::Result<RuleSet> {
    let mut found = match nf_tables() {
        Err(e) if is_absent(&e) => RuleSet::default(),
        rules => rules?,
    };
    found.older = older_rules()?;
    found.older_nat = ["ip", "ip6"].map(older_nat);
    Ok(found)
}

/// Whether the older iptables has a table `nat` for a family.
fn older_nat(family: &str) -> bool {
    let tables = std::fs::read_to_string(format!("/proc/thread-self/net/{family}_tables_names"));
    tables.is_ok_and(|names| names.lines().any(|name| name == "nat"))
}

/// Chains of the older iptables that see more than first packets and are not empty.
pub fn older_rules() -> io::Result<Vec<Older>> {
    let mut found = Vec::new();
    for v6 in [false, true] {
        let chains = older(v6)?.into_iter().filter(|c| !c.is_empty() && c.kind != "nat");
        found.extend(chains.map(|c| Older { v6, table: c.table, chain: c.name }));
    }
    Ok(found)
}

pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::EINVAL))
}

fn nf_tables() -> io::Result<RuleSet> {
    let mut reader = Reader { socket: open(&[])?, buffer: Vec::with_capacity(MESSAGE_MAX) };
    for _ in 0..TRIES {
        let generation = reader.generation()?;
        let Some(rules) = reader.whole()? else { continue };
        if reader.generation()? == generation {
            return Ok(RuleSet { generation, ..rules });
        }
    }
    Err(io::Error::new(io::ErrorKind::Interrupted, "the rules of nf_tables changed each time they were read"))
}

struct Reader {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Reader {
    /// Asks and gives each message of the answer to `each`; whether it was of one piece.
    fn ask(&mut self, request: &[u8], mut each: impl FnMut(News)) -> io::Result<bool> {
        let is_dump = netlink::u16_at(request, 6).is_some_and(|flags| flags & FLAG_DUMP == FLAG_DUMP);
        self.socket.send(request, 0)?;
        let mut whole = true;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            for message in messages(&self.buffer) {
                let message = message.map_err(|_| malformed())?;
                whole &= message.flags & FLAG_DUMP_INTERRUPTED == 0;
                match message.kind {
                    TYPE_DONE => return Ok(whole),
                    TYPE_ERROR => return refused(message.payload).map(|()| whole),
                    _ => each(nftables::parse(&message).map_err(|_| malformed())?),
                }
            }
            if !is_dump {
                return Ok(whole);
            }
        }
    }

    fn generation(&mut self) -> io::Result<u32> {
        let mut found = None;
        let request = netlink::request(GET_GENERATION, 0, &[0; nftables::HEADER], &[]);
        self.ask(&request, |news| {
            if let News::Generation(generation) = news {
                found = Some(generation);
            }
        })?;
        found.ok_or_else(malformed)
    }

    /// None: it changed meanwhile.
    fn whole(&mut self) -> io::Result<Option<RuleSet>> {
        let mut rules = RuleSet::default();
        for kind in [GET_TABLE, GET_CHAIN, GET_RULE, GET_SET] {
            let request = netlink::request(kind, FLAG_DUMP, &[0; nftables::HEADER], &[]);
            if !self.ask(&request, |news| rules.take(news))? {
                return Ok(None);
            }
        }
        let searched: Vec<Set> = rules.sets.iter().filter(|set| is_searched(&rules, set)).cloned().collect();
        let mut count = 0;
        for set in searched {
            match self.elements(&set, ELEMENTS_MAX.saturating_sub(count)) {
                Ok(Some(found)) => {
                    count += found.elements.len();
                    rules.elements.push(found);
                }
                // More than there is room for: what needs the set is refused.
                Ok(None) => {}
                // The set, or all of it, went away meanwhile.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(Some(rules))
    }

    /// None: more than `room`, or it changed meanwhile, which the generation tells.
    fn elements(&mut self, set: &Set, room: usize) -> io::Result<Option<Elements>> {
        let (header, attributes) = nftables::elements_of(set);
        let attributes = attributes.each_ref().map(|(kind, value)| (*kind, value.as_slice()));
        let request = netlink::request(GET_ELEMENTS, FLAG_DUMP, &header, &attributes);
        let mut all = Vec::new();
        let whole = self.ask(&request, |news| {
            if let News::Elements(more) = news {
                all.extend(more.elements.into_iter().take((room + 1).saturating_sub(all.len())));
            }
        })?;
        let fits = whole && all.len() <= room;
        let (family, table, set) = (set.family, set.table.clone(), set.name.clone());
        Ok(fits.then_some(Elements { family, table, set, elements: all }))
    }
}

/// Whether a rule searches it.
fn is_searched(rules: &RuleSet, set: &Set) -> bool {
    let names = |e: &Expression| matches!(e, Expression::Lookup { set: name, .. } if *name == set.name);
    let of = rules.rules.iter().filter(|r| r.family == set.family && r.table == set.table);
    of.flat_map(|r| &r.expressions).any(names)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message of nf_tables is not well formed")
}
