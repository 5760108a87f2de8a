//! The memory testbed forwards every packet of either family, paces, adds workers up, and refuses what it must.

use crate::model::Keys;
use std::time::Duration;

use super::*;
use crate::model::configuration::PlacementKeys;
use crate::model::{FrameSize, Topology, Workload};
use weir_stats::search::Rate;

fn configuration(sut: Sut, family: Family, frame: FrameSize) -> Configuration {
    Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        name: "c".into(),
        sut,
        topology: Topology::Memory,
        workload: Workload { family, frame, flows: 50, rate: Rate::FlatOut },
        routes: 20,
        placement: PlacementKeys::default(),
        ipsec: None,
        build: None,
        relay: None,
    })
    .expect("valid")
}

fn trial(configuration: &Configuration, warm_up_ms: u64, window_ms: u64) -> Trial {
    let (warm_up, window) = (Duration::from_millis(warm_up_ms), Duration::from_millis(window_ms));
    Trial { rate: configuration.workload.rate, warm_up, window, seed: 1 }
}

fn run(configuration: &Configuration) -> Sample {
    let mut prepared =
        MemoryTestbed::default().prepare(configuration).expect("the memory testbed needs nothing");
    prepared.run(&trial(configuration, 2, 10)).expect("a run")
}

#[test]
fn every_packet_of_both_families_is_forwarded_and_accounted_for() {
    for family in [Family::Inet, Family::Inet6] {
        for frame in [FrameSize::Fixed(64), FrameSize::Fixed(1518), FrameSize::Imix] {
            let sample = run(&configuration(Sut::Weir, family, frame));
            let ledger = &sample.ledger;
            assert!(ledger.drops.is_empty(), "{family:?} {frame:?}: {:?}", ledger.drops);
            assert!(ledger.delivered > 0 && ledger.delivered == ledger.sent);
            assert!(sample.pps > 0.0 && sample.metrics["ns_per_packet"] > 0.0);
        }
    }
}

#[test]
fn the_baseline_passes_the_same_frames_without_a_router() {
    let sample = run(&configuration(Sut::Baseline, Family::Inet, FrameSize::Fixed(64)));
    assert_eq!(sample.ledger.sent, sample.ledger.delivered);
}

#[test]
fn a_paced_source_offers_what_was_asked() {
    let mut c = configuration(Sut::Weir, Family::Inet, FrameSize::Fixed(64));
    c.workload.rate = Rate::Pps(20_000);
    let mut prepared = MemoryTestbed::default().prepare(&c).expect("ready");
    let sample = prepared.run(&trial(&c, 0, 50)).expect("a run");
    let ledger = &sample.ledger;
    // whatever the scheduler does, no more is offered than was due, and what is offered is counted
    assert!(ledger.offered <= ledger.intended + 64, "{ledger:?}");
    assert!(ledger.offered > 0 && ledger.unaccounted() == 0, "{ledger:?}");
}

#[test]
fn several_workers_add_up() {
    let mut c = configuration(Sut::Weir, Family::Inet, FrameSize::Fixed(64));
    c.placement.cpus = vec![0, 0];
    let sample = run(&c);
    assert_eq!(sample.ledger.unaccounted(), 0);
    assert!(sample.ledger.delivered > 0);
}

#[test]
fn short_ipv6_frames_are_raised_and_said() {
    let sample = run(&configuration(Sut::Weir, Family::Inet6, FrameSize::Fixed(64)));
    assert!(sample.notes.iter().any(|n| n.contains("raised to 66")), "{:?}", sample.notes);
}

#[test]
fn suts_that_need_a_kernel_are_refused_with_the_remedy() {
    let c = configuration(Sut::Kernel, Family::Inet, FrameSize::Fixed(64));
    let lacks = MemoryTestbed::default().missing(&c).expect("not here");
    assert!(lacks.contains("netns"), "{lacks}");
    assert!(MemoryTestbed::default().prepare(&c).is_err());
}

#[test]
fn traffic_follows_the_seed() {
    let c = configuration(Sut::Weir, Family::Inet, FrameSize::Imix);
    let (net, _) = tables::build(Family::Inet, 20, None).expect("routes");
    let templates = Templates::build(&c.workload, &net.destinations(50)).expect("templates");
    assert_eq!(templates.order(5), templates.order(5));
    assert_ne!(templates.order(5), templates.order(6));
    assert_eq!(templates.lens.iter().filter(|&&l| l == 1514).count(), 4);
}
