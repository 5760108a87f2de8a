//! Random rules and flows that meet often, and the oracle every lookup is held against.

use std::net::IpAddr;

use proptest::prelude::*;
use weir_core::ipsec::Flow;
use weir_core::ipsec::spd::{AddressRange, PolicyIndex, PortRange, Selector, Transport, first_match};

pub type Rules = Vec<(Selector, PolicyIndex)>;

/// Addresses close together, around the ends of their family too.
fn address(v4: bool) -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        6 => 0u32..12,
        1 => Just(u32::MAX),
        1 => any::<u32>(),
    ]
    .prop_map(move |n| {
        if v4 { IpAddr::V4(n.into()) } else { IpAddr::V6((u128::from(n) << 64 | u128::from(n)).into()) }
    })
}

fn addresses(v4: bool) -> impl Strategy<Value = AddressRange> {
    let any = if v4 { AddressRange::ANY_V4 } else { AddressRange::ANY_V6 };
    let some = (address(v4), address(v4)).prop_map(|(a, b)| AddressRange { first: a.min(b), last: a.max(b) });
    prop_oneof![1 => Just(any), 3 => some]
}

fn protocol() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![1u8, 6, 17, 47, 58, 132])
}

fn ports() -> impl Strategy<Value = PortRange> {
    let some = (0u16..8, 0u16..8).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) });
    prop_oneof![2 => Just(PortRange::ANY), 1 => some]
}

fn selector(v4: bool) -> impl Strategy<Value = Selector> {
    let addresses = (addresses(v4), addresses(v4));
    (addresses, prop::option::of(protocol()), ports(), ports(), ports()).prop_map(
        |((source, destination), protocol, source_ports, destination_ports, icmp)| Selector {
            source,
            destination,
            protocol,
            source_ports,
            destination_ports,
            icmp,
        },
    )
}

pub fn rules(most: usize) -> impl Strategy<Value = Rules> {
    let selector = prop_oneof![3 => selector(true), 2 => selector(false)];
    prop::collection::vec(selector, 0..most)
        .prop_map(|all| all.into_iter().zip((0..).map(PolicyIndex)).collect())
}

pub fn flow() -> impl Strategy<Value = Flow> {
    let transport = prop_oneof![
        Just(Transport::None),
        Just(Transport::Opaque),
        (0u16..9, 0u16..9).prop_map(|(source, destination)| Transport::Ports { source, destination }),
        (0u16..9).prop_map(Transport::Icmp),
    ];
    let of = |v4| (address(v4), address(v4));
    (prop_oneof![3 => of(true), 2 => of(false)], protocol(), transport).prop_map(
        |((source, destination), protocol, transport)| Flow { source, destination, protocol, transport },
    )
}

/// Whether `find` is the ordered scan of `rules`, for each flow and for flows at the edges of each rule.
pub fn agrees(
    rules: &Rules,
    flows: &[Flow],
    find: impl Fn(&Flow) -> Option<PolicyIndex>,
) -> Result<(), TestCaseError> {
    let edges = rules.iter().flat_map(|(s, _)| {
        let transport =
            Transport::Ports { source: s.source_ports.first, destination: s.destination_ports.last };
        let protocol = s.protocol.unwrap_or(6);
        let corner = move |source, destination| Flow { source, destination, protocol, transport };
        [corner(s.source.first, s.destination.last), corner(s.source.last, s.destination.first)]
    });
    for flow in flows.iter().copied().chain(edges) {
        prop_assert_eq!(find(&flow), first_match(rules, &flow), "{:?}", flow);
    }
    Ok(())
}
