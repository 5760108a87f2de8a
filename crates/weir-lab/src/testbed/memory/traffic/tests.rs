//! Flows beyond the templates are frames like any other.

use std::collections::HashSet;

use weir_core::ipsec::spd::synthetic::Shape;
use weir_core::wire::checksum;

use super::*;
use crate::model::spd::RuleSet;
use crate::testbed::memory::{spd, tables};
use weir_stats::search::Rate;

const FAMILIES: [Family; 2] = [Family::Inet, Family::Inet6];

fn workload(family: Family, flows: u32) -> Workload {
    Workload { family, frame: FrameSize::Fixed(94), flows, rate: Rate::FlatOut }
}

fn plain(family: Family, flows: u32) -> Templates {
    let (net, _) = tables::build(family, 20, None).expect("routes");
    Templates::build(&workload(family, flows), &net.destinations(stored(flows))).expect("templates")
}

fn of_rules(family: Family, flows: u32) -> Templates {
    let set = RuleSet { shape: Shape::Acl, count: 50 };
    let found = spd::flows(set, family, stored(flows).min(64)).expect("flows");
    Templates::of_flows(&workload(family, flows), &found).expect("templates")
}

/// The packet of a template, whole.
fn packet(templates: &Templates, flow: usize) -> Vec<u8> {
    let mut packet = templates.frame(flow).0[ETHERNET..].to_vec();
    packet.resize(usize::from(templates.len(flow)) - ETHERNET, 0);
    packet
}

fn is_sound(packet: &[u8]) -> bool {
    let (pseudo, udp) = match packet[0] >> 4 {
        4 => ([&packet[12..20], &[0, 17], &packet[24..26]].concat(), &packet[20..]),
        _ => ([&packet[8..40], &[0, 17], &packet[44..46]].concat(), &packet[40..]),
    };
    let header = packet[0] >> 4 == 6 || checksum::is_valid(&packet[..20]);
    header && checksum::is_valid(&[&pseudo, udp].concat()) && udp[6..8] != [0, 0]
}

#[test]
fn millions_of_flows_take_a_few_templates() {
    let all = plain(Family::Inet, 1 << 22);
    assert_eq!((all.frames.len(), all.turns, all.flows()), (1 << 14, 256, 1 << 22));
    assert!(all.notes.is_empty());
    assert_eq!((stored(5000), stored(1 << 16)), (5000, 1 << 16), "as many as there are");
    let odd = plain(Family::Inet, 1_000_000);
    assert!(odd.flows() <= 1_000_000 && odd.flows() > 990_000);
    assert!(odd.notes[0].contains("flows are sent"), "{:?}", odd.notes);
}

#[test]
fn frames_of_every_turn_are_sound_distinct_and_known_again() {
    for family in FAMILIES {
        for templates in [plain(family, 100_000), of_rules(family, 4096)] {
            assert!(templates.turns > 1);
            let mut seen = HashSet::new();
            let step = templates.flows() / 997;
            for flow in (0..templates.flows()).step_by(step.max(1)) {
                let packet = packet(&templates, flow);
                assert!(is_sound(&packet), "{family:?} {flow}");
                assert_eq!(templates.flow_of(&packet), Some(flow));
                let told = weir_core::ipsec::spd::Flow::of(&packet).expect("a packet");
                assert!(seen.insert(told), "{family:?} {flow} is there twice");
            }
        }
    }
}

#[test]
fn what_was_never_sent_is_of_no_flow() {
    let templates = plain(Family::Inet, 100_000);
    let mut stranger = packet(&templates, 0);
    stranger[12..16].copy_from_slice(&[10, 129, 134, 200]);
    assert_eq!(templates.flow_of(&stranger), None);
    assert_eq!(of_rules(Family::Inet6, 128).flow_of(&[0x60; 8]), None);
}
