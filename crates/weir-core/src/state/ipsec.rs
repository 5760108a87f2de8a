//! IPsec as wished for: SAs, tunnels, policies.

use super::{AddressSpec, Policies};
use crate::ipsec::SaSpec;
use crate::ipsec::sa::Direction;
use crate::ipsec::spd::{Action, AddressRange, LookupSpec, PortRange, Selector};
use crate::tables::ReversePath;
use crate::wire::protocol;

/// What names of devices without hardware begin with: a tunnel's, an SPD's, an enforced port's egress, and what connects an SPD of
/// route mode with this host's own stack.
pub const VIRTUAL: [&str; 4] = ["tunnel/", "policy/", "enforce/", "host/"];

/// All of it; empty where IPsec is not used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpsecSpec {
    pub sas: Vec<SaSpec>,
    pub tunnels: Vec<TunnelSpec>,
    pub spds: Vec<SpdSpec>,
    pub lookup: LookupSpec,
}

/// A tunnel of route mode: a port routes can lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSpec {
    /// The tunnel's name, which is also its port's.
    pub name: String,
    /// Names of outbound SAs: one, or one a worker.
    pub out: Vec<String>,
    /// Names of inbound SAs.
    pub inbound: Vec<String>,
    pub addresses: Vec<AddressSpec>,
    /// `None`: what fits into the outer path.
    pub mtu: Option<u16>,
    pub reverse_path: ReversePath,
}

/// An SPD and the ports it is enforced on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpdSpec {
    pub name: String,
    pub ports: Vec<String>,
    /// Where no policy matches: discard or bypass.
    pub default: Action,
    /// Policies in order: the first that matches decides.
    pub policies: Policies,
    /// Routes may lead to it, by a port of its name.
    pub route_mode: Option<RouteMode>,
}

/// What makes an SPD a port: an xfrm device of the kernel, whose packets its policies decide about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMode {
    /// The interface id that the kernel's policies and SAs have in common with the device.
    pub if_id: u32,
    pub mtu: u16,
    pub up: bool,
    pub addresses: Vec<AddressSpec>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySpec {
    pub name: String,
    /// `None`: both.
    pub direction: Option<Direction>,
    /// Addresses on our side; empty is any.
    pub local: Vec<AddressRange>,
    /// Addresses on the far side; empty is any.
    pub remote: Vec<AddressRange>,
    pub protocol: Option<u8>,
    pub local_ports: PortRange,
    pub remote_ports: PortRange,
    /// ICMP type and code as one number.
    pub icmp: PortRange,
    pub action: Action,
    pub out: Vec<String>,
    pub inbound: Vec<String>,
}

impl PolicySpec {
    pub fn applies(&self, direction: Direction) -> bool {
        self.direction.is_none_or(|d| d == direction)
    }

    /// Its rules in a direction: one for each pair of a local and a remote range of one family. Outbound
    /// our side is the source, inbound the far side is.
    pub fn selectors(&self, direction: Direction) -> Vec<Selector> {
        let mut selectors = Vec::new();
        for any in self.families(direction) {
            for local in of_family(&self.local, any) {
                for remote in of_family(&self.remote, any) {
                    selectors.push(self.selector(direction, local, remote));
                }
            }
        }
        selectors
    }

    /// Whether it has any.
    pub(crate) fn selects(&self, direction: Direction) -> bool {
        let some = |ranges, any| of_family(ranges, any).next().is_some();
        self.families(direction).any(|any| some(&self.local, any) && some(&self.remote, any))
    }

    /// All addresses of each family it may be about.
    fn families(&self, direction: Direction) -> impl Iterator<Item = AddressRange> {
        let applies = self.applies(direction);
        // ICMP is of one family each (RFC 792, RFC 4443).
        let (v4, v6) = (self.protocol != Some(protocol::ICMPV6), self.protocol != Some(protocol::ICMPV4));
        [(v4, AddressRange::ANY_V4), (v6, AddressRange::ANY_V6)]
            .into_iter()
            .filter_map(move |(has, any)| (applies && has).then_some(any))
    }

    fn selector(&self, direction: Direction, local: AddressRange, remote: AddressRange) -> Selector {
        let (ours, theirs) = ((local, self.local_ports), (remote, self.remote_ports));
        let (from, to) = match direction {
            Direction::Out => (ours, theirs),
            Direction::In => (theirs, ours),
        };
        Selector {
            source: from.0,
            destination: to.0,
            protocol: self.protocol,
            source_ports: from.1,
            destination_ports: to.1,
            icmp: self.icmp,
        }
    }
}

/// The ranges of the family of `any`, which stands for an empty list.
fn of_family(ranges: &[AddressRange], any: AddressRange) -> impl Iterator<Item = AddressRange> {
    let stands = ranges.is_empty().then_some(any);
    let here = move |r: &AddressRange| r.first.is_ipv4() == any.first.is_ipv4();
    stands.into_iter().chain(ranges.iter().copied().filter(here))
}
