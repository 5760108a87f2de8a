//! Which of several next hops a flow takes: the one that the kernel takes for it.
//!
//! ```text
//! route with several next hops ─► the kernel is asked (RTM_GETROUTE) ─► the hop of the group that is it ─► the flow's way
//!                                        └─ the same group under new tables: the same hop
//! ```
//!
//! Promises: an original direction whose source is translated to an address of one of the ports leaves by that port, as the
//! kernel let it; otherwise its weights, its dead hops and, where it goes by addresses, its hash are honoured. Who is asked once is
//! asked again when the group is another. What is translated to another port's own address has no way. Refuses: translated flows where the kernel's hash has more in it than conntrack tells (a
//! card's hash, a flow label); others take one of the hops that it might have taken.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::IpAddr;

use weir_core::conntrack::{Direction, Reason};
use weir_core::id::{AdjacencyId, PortId};
use weir_core::router::lasting::Toward;
use weir_core::tables::{Adjacency, Port, Tables};
use weir_core::wire::ctnetlink::Tuple;
use weir_core::wire::rtnetlink::Transit;
use weir_io::netlink::routes::RouteRequests;

/// The kernel's choice among the next hops of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Which next hops there were.
    group: u64,
    port: PortId,
    next_hop: IpAddr,
}

/// The port a direction leaves by, and where there are several next hops the one it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaves {
    pub port: PortId,
    pub hop: Option<(AdjacencyId, Choice)>,
}

/// What is asked of a direction.
pub(super) struct Asked<'a> {
    pub direction: &'a Direction,
    /// Whether it is the direction that the flow began with.
    pub original: bool,
    pub toward: Toward<'a>,
    /// The link it comes in by.
    pub from: u32,
    /// What was chosen for it before.
    pub before: Option<Choice>,
}

/// Asks the kernel, once for each flow and group.
pub(super) struct Hops {
    requests: RouteRequests,
    /// What the groups hold, under the tables of this generation.
    generation: Option<u64>,
    groups: HashMap<u32, u64>,
    /// The kernel chooses by addresses alone where they are of IPv4.
    by_addresses: bool,
}

/// How the kernel chooses among next hops of IPv4: 0, by addresses.
const HASH_POLICY: &str = "/proc/sys/net/ipv4/fib_multipath_hash_policy";

impl Hops {
    pub fn open() -> io::Result<Hops> {
        Ok(Hops {
            requests: RouteRequests::open()?,
            generation: None,
            groups: HashMap::new(),
            by_addresses: false,
        })
    }

    /// Where a direction leaves; `link` says which of the kernel's links a port is.
    pub fn choose(
        &mut self,
        tables: &Tables,
        asked: &Asked<'_>,
        mut link: impl FnMut(PortId) -> Option<u32>,
    ) -> Result<Leaves, Reason> {
        let &Asked { direction, original, toward, from, before } = asked;
        let (first, hops) = match toward {
            Toward::One(port) => return Ok(Leaves { port, hop: None }),
            Toward::Several { group, hops } => (group, hops),
        };
        let group = self.group(tables, first, hops);
        let leaves = |id: AdjacencyId, hop: &Adjacency| {
            let (port, next_hop) = (hop.port, hop.next_hop);
            Leaves { port, hop: Some((id, Choice { group, port, next_hop })) }
        };
        if let Some(before) = before.filter(|before| before.group == group)
            && let Some((id, hop)) = adjacencies(tables, hops)
                .find(|(_, a)| (a.port, a.next_hop) == (before.port, before.next_hop))
        {
            return Ok(leaves(id, hop));
        }
        let bound = bound_to(tables, direction, hops).filter(|_| original);
        let translated = direction.arrives.source != direction.leaves.source;
        let exact = self.by_addresses && direction.leaves.destination.is_ipv4();
        if translated && bound.is_none() && !exact {
            return Err(Reason::SeveralHops);
        }
        let all = adjacencies(tables, hops).filter(|(_, hop)| bound.is_none_or(|port| hop.port == port));
        let all: Vec<(AdjacencyId, &Adjacency)> = all.collect();
        let &(first, hop) = all.first().ok_or(Reason::NoRoute)?;
        if all.iter().all(|(_, other)| (other.port, other.next_hop) == (hop.port, hop.next_hop)) {
            return Ok(leaves(first, hop));
        }
        let chosen = self.requests.choose(&transit(direction, from));
        let chosen = chosen.inspect_err(|error| tracing::debug!("netlink: the next hop of a flow: {error}"));
        let chosen = chosen.ok().flatten().ok_or(Reason::NoRoute)?;
        let gateway = chosen.gateway.unwrap_or(direction.leaves.destination);
        let mut is_it = |hop: &Adjacency| hop.next_hop == gateway && link(hop.port) == Some(chosen.link);
        // Another than these: by another port, or the kernel's routes changed meanwhile, which the next tables have.
        let found =
            all.iter().find(|(_, hop)| is_it(hop)).or_else(|| bound.and(all.get(pick(direction, all.len()))));
        found.map(|&(id, hop)| leaves(id, hop)).ok_or(Reason::NoRoute)
    }

    /// What tells this group from another.
    fn group(&mut self, tables: &Tables, first: u32, hops: &[AdjacencyId]) -> u64 {
        if self.generation != Some(tables.generation) {
            self.generation = Some(tables.generation);
            self.groups.clear();
            self.by_addresses = std::fs::read_to_string(HASH_POLICY).is_ok_and(|text| text.trim() == "0");
        }
        *self.groups.entry(first).or_insert_with(|| {
            let mut hasher = DefaultHasher::new();
            for (_, hop) in adjacencies(tables, hops) {
                (hop.port, hop.next_hop).hash(&mut hasher);
            }
            hasher.finish()
        })
    }
}

pub(super) fn adjacencies<'a>(
    tables: &'a Tables,
    hops: &'a [AdjacencyId],
) -> impl Iterator<Item = (AdjacencyId, &'a Adjacency)> {
    hops.iter().filter_map(|&id| Some((id, tables.adjacencies.get(id.0 as usize)?)))
}

/// The port whose network has the address that a direction's source is translated to: the one that the kernel chose when it was.
fn bound_to(tables: &Tables, direction: &Direction, hops: &[AdjacencyId]) -> Option<PortId> {
    let source = direction.leaves.source;
    if source == direction.arrives.source {
        return None;
    }
    let covers = |port: &PortId| {
        let port = tables.ports.get(port.index());
        port.is_some_and(|port| port.addresses.iter().any(|address| address.covers(source)))
    };
    adjacencies(tables, hops).map(|(_, hop)| hop.port).find(covers)
}

/// Whether a direction's source is translated to another port's own address: where that is masquerade the kernel chose the other
/// port when it made the entry, and ends it with the next packet.
pub(super) fn is_bound_elsewhere(tables: &Tables, direction: &Direction, leaves_by: PortId) -> bool {
    let source = direction.leaves.source;
    if source == direction.arrives.source {
        return false;
    }
    let has = |port: &Port| port.addresses.iter().any(|address| address.address == source);
    !tables.ports.get(leaves_by.index()).is_some_and(has) && tables.ports.iter().any(has)
}

/// One of so many, by the addresses and ports of a direction.
fn pick(direction: &Direction, len: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    let Tuple { source, destination, source_port, destination_port, .. } = direction.arrives;
    (source, destination, source_port, destination_port).hash(&mut hasher);
    (hasher.finish() % len.max(1) as u64) as usize
}

/// A packet of a direction where the kernel looks up its route: behind the translation of its destination, and before that of
/// its source.
fn transit(direction: &Direction, from: u32) -> Transit {
    let Direction { arrives, leaves } = direction;
    Transit {
        from,
        source: arrives.source,
        destination: leaves.destination,
        protocol: arrives.protocol,
        source_port: arrives.source_port,
        destination_port: leaves.destination_port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::testing::sample::{LAN_10, Net, WAN};
    use weir_core::wire::protocol;

    fn tuple(source: (&str, u16), destination: (&str, u16)) -> Tuple {
        Tuple {
            source: source.0.parse().expect("an address"),
            destination: destination.0.parse().expect("an address"),
            protocol: protocol::UDP,
            source_port: source.1,
            destination_port: destination.1,
        }
    }

    #[test]
    fn a_translated_source_is_bound_to_the_port_whose_network_has_it() {
        let mut net = Net::new();
        let tables = net.tables();
        let hops: Vec<AdjacencyId> = (0..tables.adjacencies.len() as u32).map(AdjacencyId).collect();
        let client = tuple(("10.0.0.2", 1000), ("10.200.0.9", 80));
        let to = |source| Direction { arrives: client, leaves: tuple((source, 1000), ("10.200.0.9", 80)) };
        let bound = |source| bound_to(&tables, &to(source), &hops);
        assert_eq!(bound("192.0.2.1"), Some(WAN), "an address of the port");
        assert_eq!(bound("192.0.2.77"), Some(WAN), "one of its network");
        assert_eq!(bound("10.10.0.77"), Some(LAN_10));
        assert_eq!(bound("198.18.0.1"), None, "of no port");
        assert_eq!(bound("10.0.0.2"), None, "not translated");
        let picked: Vec<usize> = ["198.18.0.1", "198.18.0.2"].map(|source| pick(&to(source), 3)).into();
        assert_eq!(picked[0], picked[1], "by what arrives");
        assert!(picked[0] < 3 && pick(&to("198.18.0.1"), 0) == 0);
    }

    #[test]
    fn a_source_that_is_translated_to_another_ports_address_does_not_leave_by_this_one() {
        let mut net = Net::new();
        let tables = net.tables();
        let client = tuple(("10.0.0.2", 1000), ("10.200.0.9", 80));
        let to = |source| Direction { arrives: client, leaves: tuple((source, 1000), ("10.200.0.9", 80)) };
        let elsewhere = |source, port| is_bound_elsewhere(&tables, &to(source), port);
        assert!(elsewhere("192.0.2.1", LAN_10), "an address of the other port");
        assert!(!elsewhere("192.0.2.1", WAN), "its own");
        assert!(!elsewhere("192.0.2.77", LAN_10), "nobody's own: a translation that names it");
        let own = Direction {
            arrives: tuple(("192.0.2.1", 1), ("10.200.0.9", 80)),
            leaves: tuple(("192.0.2.1", 1), ("10.200.0.9", 80)),
        };
        assert!(!is_bound_elsewhere(&tables, &own, LAN_10), "not translated");
    }

    #[test]
    fn a_route_is_asked_for_behind_one_translation_and_before_the_other() {
        let direction = Direction {
            arrives: tuple(("10.1.0.2", 1000), ("192.0.2.1", 80)),
            leaves: tuple(("10.2.0.1", 1001), ("10.9.0.1", 8080)),
        };
        let asked = transit(&direction, 7);
        assert_eq!((asked.from, asked.source_port, asked.destination_port), (7, 1000, 8080));
        assert_eq!(
            [asked.source, asked.destination].map(|a| a.to_string()),
            ["10.1.0.2".to_owned(), "10.9.0.1".to_owned()]
        );
    }
}
