//! Where test traffic comes from and goes to.
//!
//! Destinations are spread evenly over the installed prefixes; with fewer flows than prefixes every flow
//! has a prefix of its own. Prefixes are scattered over a range twice as large as the most of them need,
//! with varying next hops, so that no table can fold neighbours into one.
//!
//! ```text
//! inet    sources 10.128.0.0/10     prefixes /24 in 32.0.0.0/3     gateways 10.20.0.2 … 9
//! inet6   sources fd00:80::/96      prefixes /48 in 2a00::/27      gateways fd00:20::2 … 9
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::Family;

/// Half of the 2²¹ places: 1 Mi routes, a little more than the Internet's table.
pub const ROUTES_MAX: u32 = 1 << 20;
/// Places for prefixes: /24s in a /3, /48s in a /27.
const PLACES: u32 = 1 << 21;
/// Odd, so that multiplying by it visits every place once; 0.618 of the range, so that neighbours are
/// far from each other.
const SCATTER: u32 = 0x13_c6ef;

/// Next hops that routes are spread over.
pub const GATEWAYS: u32 = 8;

/// The wires of the device under test: its own address and the network's prefix length.
pub const IN_V4: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 10, 0, 1), 24);
pub const OUT_V4: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 20, 0, 1), 24);
pub const IN_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 1), 64);
pub const OUT_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfd00, 0x20, 0, 0, 0, 0, 0, 1), 64);

/// Addresses and ports of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
}

/// The ends of flow `flow` of `flows` when destinations spread over `routes` prefixes.
pub fn ends(family: Family, flow: u32, flows: u32, routes: u32) -> Ends {
    let (route, turn) = if flows <= routes {
        ((u64::from(flow) * u64::from(routes) / u64::from(flows)) as u32, 0)
    } else {
        (flow % routes, flow / routes)
    };
    let host = 1 + turn % 254;
    let (network, _) = prefix(family, route);
    let (source, destination) = (offset(sources(family).0, 1 + flow), offset(network, host));
    // 1024 and 7 are first ports no service listens on; both ends vary.
    let source_port = 1024 + (flow % 50_000) as u16;
    Ends { source, destination, source_port, destination_port: 20_000 + (flow / 7 % 10_000) as u16 }
}

/// The address that many behind another.
fn offset(address: IpAddr, by: u32) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from(u32::from(v4) + by)),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6) + u128::from(by))),
    }
}

/// Prefix `n` of the installed routes, and its length.
pub fn prefix(family: Family, n: u32) -> (IpAddr, u8) {
    let place = n.wrapping_mul(SCATTER) % PLACES;
    match family {
        Family::Inet => (IpAddr::V4(Ipv4Addr::from((1 << 29) + (place << 8))), 24),
        Family::Inet6 => (IpAddr::V6(Ipv6Addr::from((0x2a00u128 << 112) + (u128::from(place) << 80))), 48),
    }
}

/// The prefix of every flow's source.
pub fn sources(family: Family) -> (IpAddr, u8) {
    match family {
        Family::Inet => (IpAddr::V4(Ipv4Addr::new(10, 128, 0, 0)), 10),
        Family::Inet6 => (IpAddr::V6(Ipv6Addr::from(0xfd00_0080u128 << 96)), 96),
    }
}

/// An address no packet may have (RFC 1122 3.2.1.3), another for each number.
pub fn nobody(family: Family, n: u32) -> IpAddr {
    match family {
        Family::Inet => IpAddr::V4(Ipv4Addr::from(n)),
        Family::Inet6 => IpAddr::V6(Ipv6Addr::from(u128::from(n) << 64)),
    }
}

/// The gateway of prefix `n`, on the receiver's wire.
pub fn gateway(family: Family, n: u32) -> IpAddr {
    let own = match family {
        Family::Inet => OUT_V4.0.into(),
        Family::Inet6 => OUT_V6.0.into(),
    };
    offset(own, 1 + n % GATEWAYS)
}

/// The generator, on its wire: the way back to every flow's source.
pub fn generator(family: Family) -> IpAddr {
    let own = match family {
        Family::Inet => IN_V4.0.into(),
        Family::Inet6 => IN_V6.0.into(),
    };
    offset(own, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const FAMILIES: [Family; 2] = [Family::Inet, Family::Inet6];

    #[test]
    fn prefixes_are_distinct_up_to_the_limit() {
        for family in FAMILIES {
            let all: HashSet<_> = (0..ROUTES_MAX).map(|n| prefix(family, n)).collect();
            assert_eq!(all.len(), ROUTES_MAX as usize);
        }
        let (IpAddr::V4(last), _) = prefix(Family::Inet, 1) else { panic!("inet") };
        assert!((32..64).contains(&last.octets()[0]));
    }

    #[test]
    fn flows_are_distinct_and_inside_the_installed_prefixes() {
        for family in FAMILIES {
            for (flows, routes) in [(2000, 1), (2000, 2), (5000, 1000), (2000, 100_000), (65_536, 3)] {
                let ends: HashSet<_> = (0..flows).map(|f| ends(family, f, flows, routes)).collect();
                assert_eq!(ends.len(), flows as usize);
                let installed: HashSet<_> = (0..routes).map(|n| prefix(family, n).0).collect();
                let used: HashSet<_> = ends
                    .iter()
                    .map(|e| match e.destination {
                        IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from(u32::from(a) & !0xff)),
                        IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from(u128::from(a) >> 80 << 80)),
                    })
                    .collect();
                assert!(used.is_subset(&installed));
                assert_eq!(used.len(), flows.min(routes) as usize);
            }
        }
    }

    #[test]
    fn gateways_are_neighbours_of_the_device_under_test() {
        let all: HashSet<_> = (0..100).map(|n| gateway(Family::Inet, n).to_string()).collect();
        assert_eq!(all.len(), GATEWAYS as usize);
        assert!(all.contains("10.20.0.2") && all.contains("10.20.0.9"));
        assert_eq!(gateway(Family::Inet6, 7).to_string(), "fd00:20::9");
    }
}
