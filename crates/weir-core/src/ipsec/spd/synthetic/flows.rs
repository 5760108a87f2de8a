//! Flows that rules match.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::{AddressRange, Flow, PortRange, Selector, Transport};
use super::{any, random128};
use crate::ipsec::flow::{has_icmp_type, has_ports};
use crate::random::SplitMix64;
use crate::wire::protocol::{ICMPV4, ICMPV6, TCP, UDP};

/// Makes up to `count` flows, no two alike: fewer only where the rules have no more room. Rules far down the list are
/// drawn more often (by the later of two draws), one that matches everything seldom; then a flow anywhere in the
/// rule, often at the ends of its ranges. An earlier rule may match it too. Addresses are such as hosts have.
pub fn flows(rules: &[Selector], count: usize, seed: u64) -> Vec<Flow> {
    let mut scatter = SplitMix64::new(seed);
    let (mut seen, mut made) = (HashSet::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..1000 + 64 * count {
        if made.len() == count || rules.is_empty() {
            break;
        }
        let all = rules.len() as u64;
        let rule = &rules[scatter.below(all).max(scatter.below(all)) as usize];
        let open = [any(super::Family::V4), any(super::Family::V6)].contains(rule);
        if open && all > 1 && scatter.below(16) != 0 {
            continue;
        }
        if let Some(flow) = of(rule, &mut scatter).filter(|flow| seen.insert(*flow)) {
            made.push(flow);
        }
    }
    made
}

/// A flow the rule matches; `None` where none was found.
pub fn of(rule: &Selector, scatter: &mut SplitMix64) -> Option<Flow> {
    let ports = (rule.source_ports, rule.destination_ports) != (PortRange::ANY, PortRange::ANY);
    let icmp = if rule.source.first.is_ipv4() { ICMPV4 } else { ICMPV6 };
    let protocol = rule.protocol.unwrap_or_else(|| match scatter.below(8) {
        _ if !ports && rule.icmp != PortRange::ANY => icmp,
        0 if !ports => icmp,
        1..=4 => TCP,
        _ => UDP,
    });
    let transport = if has_ports(protocol) {
        Transport::Ports {
            source: port(rule.source_ports, scatter),
            destination: port(rule.destination_ports, scatter),
        }
    } else if has_icmp_type(protocol) {
        Transport::Icmp(port(rule.icmp, scatter))
    } else {
        Transport::None
    };
    let flow = Flow {
        source: address(rule.source, scatter)?,
        destination: address(rule.destination, scatter)?,
        protocol,
        transport,
    };
    rule.matches(&flow).then_some(flow)
}

fn port(range: PortRange, scatter: &mut SplitMix64) -> u16 {
    let open = u64::from(range.last.saturating_sub(range.first));
    range.first + place(u128::from(open), scatter) as u16
}

/// A number from 0 to `last`: either end as often as anything between.
fn place(last: u128, scatter: &mut SplitMix64) -> u128 {
    match scatter.below(4) {
        0 => 0,
        1 => last,
        _ if last == u128::MAX => random128(scatter),
        _ => random128(scatter) % (last + 1),
    }
}

fn address(range: AddressRange, scatter: &mut SplitMix64) -> Option<IpAddr> {
    let draw = |scatter: &mut SplitMix64| match (range.first, range.last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            let open = last.to_bits().checked_sub(first.to_bits())?;
            Some(Ipv4Addr::from_bits(first.to_bits() + place(open.into(), scatter) as u32).into())
        }
        // 2000::/3 is all there is (RFC 4291 2.4).
        _ if range == AddressRange::ANY_V6 => {
            Some(Ipv6Addr::from_bits(random128(scatter) >> 3 | 1 << 125).into())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            let open = last.to_bits().checked_sub(first.to_bits())?;
            Some(Ipv6Addr::from_bits(first.to_bits() + place(open, scatter)).into())
        }
        _ => None,
    };
    (0..32).find_map(|_| draw(scatter).filter(|&address| is_host(address)))
}

fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !matches!(a.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(a) => !matches!(a.segments()[0], 0..=0xff | 0xfe80..),
    }
}
