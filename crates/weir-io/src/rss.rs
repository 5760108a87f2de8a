//! How a card spreads what it receives over its queues: read, set on ports we own, put back afterwards.
//!
//! ```text
//! frame ─► flow rules (`ethtool -n`) ─► hash of fields (`rx-flow-hash`) ─► indirection table (`ethtool -x`) ─► queue
//! ```
//!
//! Many drivers hash UDP by its addresses alone, as they come: all flows between two hosts meet one worker. Fragments have no ports, so
//! with them in the hash a fragmented datagram may be overtaken by others of its flow; without, one worker has all the work.
//! Refuses: to change tables and rules, which somebody made on purpose; they are reported.

use std::io;

use crate::interface::Interface;

// linux/ethtool.h
const ETHTOOL_GRXFH: u32 = 0x29;
const ETHTOOL_SRXFH: u32 = 0x2a;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
/// `struct ethtool_rxnfc`: 192 bytes, the fields in its third and fourth word, the number of rules in its last but one.
const RULE_WORDS: usize = 48;
const FIELDS: usize = 2;
const RULES: usize = 46;
/// `RXH_IP_SRC | RXH_IP_DST | RXH_L4_B_0_1 | RXH_L4_B_2_3`: addresses and ports.
const BY_FLOW: u32 = 0xf0;
const FLOWS: [(&str, u32); 4] = [("tcp4", 1), ("udp4", 2), ("tcp6", 5), ("udp6", 6)];
/// `struct ethtool_rxfh_indir`: the command, the size, and as many entries as the largest table of a driver in Linux has.
const TABLE_WORDS: usize = 2 + 4096;

/// A device whose hash is over addresses and ports while this is alive, where its driver can.
#[derive(Debug)]
pub struct HashedByFlow {
    interface: Interface,
    /// Kind of flow, its name, and the fields it was hashed by.
    before: Vec<(u32, &'static str, u32)>,
}

impl HashedByFlow {
    /// `None` where nothing had to be changed, or nothing can be. What the driver refuses stays as it is.
    pub fn on(device: &str) -> io::Result<Option<HashedByFlow>> {
        let mut done = HashedByFlow { interface: Interface::open(device)?, before: Vec::new() };
        for (name, kind) in FLOWS {
            let fields = match fields(&done.interface, kind) {
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(None),
                other => other?,
            };
            // 0 stands for no hash at all: the driver has none for this kind.
            if fields != 0
                && fields & BY_FLOW != BY_FLOW
                && set_fields(&done.interface, kind, BY_FLOW).is_ok()
            {
                done.before.push((kind, name, fields));
            }
        }
        Ok(Some(done).filter(|done| !done.before.is_empty()))
    }

    /// The kinds of flow that were hashed otherwise, as `ethtool -n` names them.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.before.iter().map(|(_, name, _)| *name)
    }
}

impl Drop for HashedByFlow {
    fn drop(&mut self) {
        for &(kind, _, before) in &self.before {
            // The device may be gone by now, and then so is the setting. Other fields are somebody else's wish.
            if fields(&self.interface, kind).is_ok_and(|now| now == BY_FLOW) {
                let _ = set_fields(&self.interface, kind, before);
            }
        }
    }
}

/// The queues that the indirection table names, each once, in order; `None` without such a table.
pub fn spread(device: &str) -> io::Result<Option<Vec<u32>>> {
    let mut table = [0; TABLE_WORDS];
    table[0] = ETHTOOL_GRXFHINDIR;
    table[1] = (TABLE_WORDS - 2) as u32;
    match Interface::open(device)?.ethtool(&mut table) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(None),
        other => other?,
    }
    let size = (table[1] as usize).min(TABLE_WORDS - 2);
    let mut queues = table[2..2 + size].to_vec();
    queues.sort_unstable();
    queues.dedup();
    Ok(Some(queues).filter(|queues| !queues.is_empty()))
}

/// How many flow rules the card applies before the hash; 0 without such rules.
pub fn rules(device: &str) -> io::Result<u32> {
    let mut request = [0; RULE_WORDS];
    request[0] = ETHTOOL_GRXCLSRLCNT;
    match Interface::open(device)?.ethtool(&mut request) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(0),
        other => other.map(|()| request[RULES]),
    }
}

fn fields(interface: &Interface, kind: u32) -> io::Result<u32> {
    let mut request = [0; RULE_WORDS];
    (request[0], request[1]) = (ETHTOOL_GRXFH, kind);
    interface.ethtool(&mut request)?;
    Ok(request[FIELDS])
}

fn set_fields(interface: &Interface, kind: u32, fields: u32) -> io::Result<()> {
    let mut request = [0; RULE_WORDS];
    (request[0], request[1], request[FIELDS]) = (ETHTOOL_SRXFH, kind, fields);
    interface.ethtool(&mut request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_hash_is_left_as_it_is() {
        assert!(HashedByFlow::on("lo").expect("there").is_none());
        assert_eq!(spread("lo").expect("there"), None);
        assert_eq!(rules("lo").expect("there"), 0);
        HashedByFlow::on("no-such").expect_err("no device");
        spread("no-such").expect_err("no device");
        rules("no-such").expect_err("no device");
    }
}
