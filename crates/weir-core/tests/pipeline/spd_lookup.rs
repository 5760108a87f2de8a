//! Lookups in the SPD and the SAD are what their definitions say, whatever is asked.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::testbed::ipsec::{Clear, policy, ranges, sa};
use crate::testbed::spd::{agrees, flow, rules};
use proptest::prelude::*;
use weir_core::ipsec::spd::{Action, AddressRange, PolicyIndex, PortRange, RuleSet, Selector, Transport};
use weir_core::ipsec::{Ciphers, Direction, Flow, Inbound, Sa, SaId, SaState, Sad};
use weir_core::packet::DeviceId;
use weir_core::state::PolicySpec;
use weir_core::wire::build::Frame;

proptest! {
    #[test]
    fn packed_rules_are_the_ordered_scan(
        rules in rules(40),
        flows in prop::collection::vec(flow(), 1..60),
    ) {
        let set = RuleSet::new(rules.clone());
        agrees(&rules, &flows, |flow| set.find(flow))?;
    }

    #[test]
    fn packet_finds_what_its_flow_finds(
        rules in rules(20),
        flow in flow(),
        (options, fragment) in (any::<bool>(), prop::option::of((0usize..3, any::<bool>()))),
        cut in 0usize..90,
    ) {
        let Some(mut frame) = Frame::ip(flow.source, flow.destination).map(Frame::packet) else {
            return Ok(());
        };
        if options {
            frame = if flow.source.is_ipv4() { frame.options(&[1; 4]) } else { frame.extension(60, &[0; 7]) };
        }
        if let Some((offset, more)) = fragment {
            frame = frame.fragment(8 * offset, more);
        }
        let mut packet = frame.raw(flow.protocol, &[0, 1, 0, 2, 0, 0, 0, 0]);
        packet.truncate(cut);
        let set = RuleSet::new(rules);
        prop_assert_eq!(set.find_packet(&packet), Flow::of_any(&packet).map(|flow| set.find(&flow)));
    }

    #[test]
    fn policy_matches_inbound_what_answers_it_outbound(rules in rules(2), flows in prop::collection::vec(flow(), 1..40)) {
        for (selector, _) in &rules {
            let (local, remote) = (vec![selector.source], vec![selector.destination]);
            let (local_ports, remote_ports) = (selector.source_ports, selector.destination_ports);
            let spec = PolicySpec {
                local,
                remote,
                protocol: selector.protocol,
                local_ports,
                remote_ports,
                icmp: selector.icmp,
                ..policy("p", Action::Bypass, "", "")
            };
            let matches = |direction, flow: &Flow| spec.selectors(direction).iter().any(|s| s.matches(flow));
            for flow in &flows {
                let back = Flow {
                    source: flow.destination,
                    destination: flow.source,
                    transport: match flow.transport {
                        Transport::Ports { source, destination } => {
                            Transport::Ports { source: destination, destination: source }
                        }
                        other => other,
                    },
                    ..*flow
                };
                prop_assert_eq!(matches(Direction::Out, flow), matches(Direction::In, &back));
            }
        }
    }

    #[test]
    fn every_sa_is_found_and_no_other(
        known in prop::collection::hash_set((0u32..64, 0u8..4, any::<bool>()), 0..120),
        asked in prop::collection::vec((0u32..80, 0u8..5, any::<bool>()), 0..120),
    ) {
        let address = |n: u8, v4: bool| -> IpAddr {
            if v4 { Ipv4Addr::new(192, 0, 2, n).into() } else { Ipv6Addr::from(u128::from(n) << 96).into() }
        };
        let sad = Sad::new(known.iter().map(|&(spi, n, v4)| inbound(spi, address(n, v4))));
        let truth: HashMap<(u32, IpAddr), ()> =
            known.iter().map(|&(spi, n, v4)| ((spi, address(n, v4)), ())).collect();
        for &(spi, n, v4) in known.iter().chain(&asked) {
            let found = sad.find(spi, address(n, v4)).map(|i| (i.sa.params.spi, i.sa.params.destination));
            let expected = truth.get_key_value(&(spi, address(n, v4))).map(|(&key, _)| key);
            prop_assert_eq!(found, expected);
        }
        prop_assert_eq!(sad.iter().count(), known.len());
    }
}

fn inbound(spi: u32, destination: IpAddr) -> Inbound {
    let mut spec = sa("x", Direction::In, spi, ("203.0.113.1", "203.0.113.2"));
    spec.params.destination = destination;
    let cipher = Clear.cipher(spec.params.suite, false, &spec.keys).expect("a cipher");
    let state = Arc::new(SaState::new(&spec.params, 0));
    let sa = Arc::new(Sa::new(SaId(spi), spec.name, spec.params, cipher, state));
    Inbound { sa, device: DeviceId(0), spd: None }
}

proptest! {
    /// Few SPIs and destinations, so that many SAs share one.
    #[test]
    fn outbound_sas_of_an_spi_and_destination_are_all_found_and_no_others(
        all in proptest::collection::vec((1u32..6, 0u8..4), 0..40)
    ) {
        let sa = |(id, &(spi, host)): (u32, &(u32, u8))| {
            let destination = if host < 2 { [192, 0, 2, host].into() } else { [host; 16].into() };
            let source = if host < 2 { [192, 0, 2, 99].into() } else { [9; 16].into() };
            crate::common::site::new_sa(id, weir_core::ipsec::Params { spi, destination, source, ..crate::common::sas::gcm() })
        };
        let sas: Vec<_> = (0..).zip(&all).map(sa).collect();
        let outbound: weir_core::ipsec::Outbound = sas.iter().cloned().collect();
        prop_assert_eq!(outbound.len(), sas.len());
        for spi in 0..7 {
            for sa in &sas {
                let mut found: Vec<_> = outbound.find(spi, sa.params.destination).iter().map(|sa| sa.id).collect();
                let of = |other: &&std::sync::Arc<weir_core::ipsec::Sa>| {
                    (other.params.spi, other.params.destination) == (spi, sa.params.destination)
                };
                let mut wanted: Vec<_> = sas.iter().filter(of).map(|sa| sa.id).collect();
                found.sort_unstable();
                wanted.sort_unstable();
                prop_assert_eq!(found, wanted);
            }
        }
    }
}

#[test]
fn a_large_sad_with_spis_in_a_row_answers() {
    let destination: IpAddr = "192.0.2.1".parse().expect("address");
    let sad = Sad::new((256..5256).map(|spi| inbound(spi, destination)));
    assert!((256..5256).all(|spi| sad.find(spi, destination).is_some_and(|i| i.sa.params.spi == spi)));
    assert!((5256..9000).all(|spi| sad.find(spi, destination).is_none()));
    assert!(Sad::default().is_empty() && Sad::default().find(256, destination).is_none());
}

fn any_to(destination: &str) -> Selector {
    Selector {
        source: AddressRange::ANY_V4,
        destination: ranges(destination)[0],
        protocol: None,
        source_ports: PortRange::ANY,
        destination_ports: PortRange::ANY,
        icmp: PortRange::ANY,
    }
}

fn to(destination: &str, protocol: u8, transport: Transport) -> Flow {
    let ip = |text: &str| text.parse().expect("address");
    Flow { source: ip("192.0.2.1"), destination: ip(destination), protocol, transport }
}

#[test]
fn first_rule_that_matches_decides() {
    let set = RuleSet::new(vec![
        (any_to("10.1.0.0/16"), PolicyIndex(0)),
        (any_to("10.0.0.0/8"), PolicyIndex(1)),
        (any_to("10.1.2.0/24"), PolicyIndex(2)),
    ]);
    let found = |a| set.find(&to(a, 47, Transport::None));
    assert_eq!(found("10.1.2.3"), Some(PolicyIndex(0)));
    assert_eq!(found("10.2.0.0"), Some(PolicyIndex(1)));
    assert_eq!(found("11.0.0.0"), None);
}

#[test]
fn rule_that_names_ports_does_not_match_what_hides_them() {
    let web = Selector {
        protocol: Some(6),
        destination_ports: PortRange { first: 80, last: 443 },
        ..any_to("10.0.0.0/8")
    };
    let set = RuleSet::new(vec![(web, PolicyIndex(0))]);
    let found = |transport| set.find(&to("10.0.0.1", 6, transport)).is_some();
    assert!(found(Transport::Ports { source: 1, destination: 443 }));
    assert!(!found(Transport::Ports { source: 1, destination: 444 }));
    assert!(!found(Transport::Opaque));
    assert!(!found(Transport::None));
}

/// Some packet of a flow's addresses and protocol.
fn packet(flow: &Flow) -> Vec<u8> {
    let frame = Frame::ip(flow.source, flow.destination).expect("of one family");
    frame.packet().raw(flow.protocol, &[0, 7, 0, 3, 0, 12, 0, 0, 1, 2, 3, 4])
}

proptest! {
    #[test]
    fn a_batch_is_answered_at_once_only_as_each_packet_would_be(
        rules in rules(4),
        flows in prop::collection::vec(flow(), 1..4),
    ) {
        let set = RuleSet::new(rules);
        let packets: Vec<Vec<u8>> = flows.iter().map(packet).collect();
        if let Some(policy) = set.first_for_all(packets.iter().map(Vec::as_slice), 0) {
            for packet in &packets {
                prop_assert_eq!(set.find_packet(packet), Some(Some(policy)), "{:02x?}", packet);
            }
        }
    }
}

#[test]
fn a_batch_of_one_policy_is_answered_at_once() {
    let rules =
        [AddressRange::ANY_V4, AddressRange::ANY_V6].map(|range| (Selector::within(range), PolicyIndex(3)));
    let set = RuleSet::new(rules.to_vec());
    for (a, b) in [("10.0.0.1", "255.255.255.254"), ("::1", "ffff::ffff")] {
        let (source, destination) = (a.parse().expect("an address"), b.parse().expect("an address"));
        let flow = Flow { source, destination, protocol: 17, transport: Transport::None };
        let batch = vec![packet(&flow); 3];
        assert_eq!(set.first_for_all(batch.iter().map(Vec::as_slice), 0), Some(PolicyIndex(3)));
    }
}
