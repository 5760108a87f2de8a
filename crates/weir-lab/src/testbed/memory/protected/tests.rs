//! Protected packets pass in every mode, direction, family and cipher, and one that was not what went in is
//! found.

use std::time::Duration;

use weir_core::packet::{DeviceId, Frame, HEADROOM};

use super::super::{MemoryTestbed, tables};
use super::*;
use crate::model::configuration::PlacementKeys;
use crate::model::ipsec::{Backend, CipherName, Direction, Mode};
use crate::model::{Configuration, Family, FrameSize, Keys, Sample, Sut, Topology, Trial, Workload};
use weir_stats::search::Rate;

fn protection(mode: Mode, direction: Direction, cipher: &str, outer: Family) -> Protection {
    let cipher = CipherName::named(cipher).expect("a cipher");
    Protection { outer, ..Protection::new(mode, direction, cipher) }
}

fn configuration(family: Family, frame: FrameSize, ipsec: Protection) -> Configuration {
    Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        name: "c".into(),
        sut: Sut::Weir,
        topology: Topology::Memory,
        workload: Workload { family, frame, flows: 50, rate: Rate::FlatOut },
        routes: 20,
        placement: PlacementKeys::default(),
        ipsec: Some(ipsec),
        build: None,
        relay: None,
    })
    .expect("valid")
}

fn run(c: &Configuration) -> Sample {
    let mut prepared = MemoryTestbed::default().prepare(c).expect("the memory testbed needs nothing");
    let (warm_up, window) = (Duration::from_millis(2), Duration::from_millis(10));
    prepared.run(&Trial { rate: c.workload.rate, warm_up, window, seed: 1 }).expect("a run")
}

fn passes(c: &Configuration) {
    let sample = run(c);
    let (ledger, p) = (&sample.ledger, c.ipsec().expect("protected"));
    let what = format!("{p:?} {:?} {:?}", c.workload.family, c.workload.frame);
    assert!(ledger.drops.is_empty(), "{what}: {:?}", ledger.drops);
    assert!(ledger.delivered > 0 && ledger.delivered == ledger.sent, "{what}: {ledger:?}");
    if p.direction != Direction::Beside {
        assert!(sample.metrics["verified_packets"] >= 1.0, "{what}: nothing was verified");
        assert!(sample.metrics["aead_pps"] > 0.0 && sample.metrics["aead_share_percent"] > 0.0, "{what}");
    } else {
        assert!(!sample.metrics.contains_key("aead_pps"), "{what}");
    }
}

#[test]
fn every_cipher_passes_both_modes_and_directions() {
    for cipher in CipherName::all() {
        for mode in [Mode::Route, Mode::Policy] {
            for direction in [Direction::Out, Direction::In] {
                let p = protection(mode, direction, &cipher.to_string(), Family::Inet);
                passes(&configuration(Family::Inet, FrameSize::Fixed(546), p));
            }
        }
    }
}

#[test]
fn families_and_sizes_mix_and_the_longest_frame_passes_whole() {
    for inner in [Family::Inet, Family::Inet6] {
        for outer in [Family::Inet, Family::Inet6] {
            for frame in [FrameSize::Fixed(64), FrameSize::Fixed(1518), FrameSize::Imix] {
                for direction in [Direction::Out, Direction::In] {
                    let p = protection(Mode::Route, direction, "aes-gcm-128", outer);
                    passes(&configuration(inner, frame, p));
                }
            }
        }
    }
}

#[test]
fn extended_numbers_deep_policies_and_two_workers_pass() {
    for direction in [Direction::Out, Direction::In] {
        let plain = protection(Mode::Policy, direction, "aes-gcm-128", Family::Inet);
        let p = Protection { esn: true, policies: 100, replay_window: 1024, ..plain };
        let mut c = configuration(Family::Inet, FrameSize::Fixed(64), p);
        passes(&c);
        c.placement.cpus = vec![0, 0];
        passes(&c);
    }
}

#[test]
fn packets_beside_ipsec_are_forwarded_plain() {
    for mode in [Mode::Route, Mode::Policy] {
        let p = protection(mode, Direction::Beside, "aes-gcm-128", Family::Inet);
        passes(&configuration(Family::Inet, FrameSize::Fixed(64), p));
    }
}

#[test]
fn a_paced_source_of_sealed_packets_offers_no_more_than_was_asked() {
    let p = protection(Mode::Route, Direction::In, "aes-gcm-128", Family::Inet);
    let mut c = configuration(Family::Inet, FrameSize::Fixed(64), p);
    c.workload.rate = Rate::Pps(20_000);
    let ledger = run(&c).ledger;
    assert!(ledger.offered <= ledger.intended + 64 && ledger.offered > 0, "{ledger:?}");
}

/// A peer_sa and sealed frames of it, as they would leave.
fn sealed() -> (PeerSa, Vec<Vec<u8>>) {
    let p = protection(Mode::Route, Direction::Out, "aes-gcm-128", Family::Inet);
    let c = configuration(Family::Inet, FrameSize::Fixed(200), p);
    let (net, _) = tables::build(Family::Inet, 20, None).expect("routes");
    let mut templates = Templates::build(&c.workload, &net.destinations(50)).expect("templates");
    let plan = SaPlan::new(&p, 0);
    let ciphers = ciphers(Backend::Auto).expect("there are ciphers");
    let cipher = plan.cipher(ciphers.as_ref()).expect("AES-GCM is everywhere");
    let known = Arc::new(Templates::build(&c.workload, &net.destinations(50)).expect("templates"));
    // what was forwarded is one hop older
    for frame in &mut templates.frames {
        frame.0[22] -= 1;
        let check = u16::from_be_bytes([frame.0[24], frame.0[25]]);
        let check = weir_core::wire::checksum::after_ttl_decrement(check).to_be_bytes();
        frame.0[24..26].copy_from_slice(&check);
    }
    let mut far = PeerSa::new(plan.clone(), cipher.clone(), Arc::new(templates), 1);
    let mut frames: Vec<Frame<Memory>> = Vec::new();
    far.seal(vec![vec![0; 2048].into(), vec![0; 2048].into()], &mut frames);
    assert!(frames.iter().all(|f| f.start() == HEADROOM && f.device == DeviceId(0)));
    let peer_sa = PeerSa::new(plan, cipher, known, 1);
    (peer_sa, frames.iter().map(|f| f.data().to_vec()).collect())
}

#[test]
fn what_went_in_is_known_again() {
    let (peer_sa, frames) = sealed();
    for mut frame in frames {
        assert_eq!(peer_sa.open(&mut frame), Ok(()));
    }
}

#[test]
fn a_sealed_packet_that_is_not_what_went_in_is_found() {
    let (peer_sa, frames) = sealed();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = frames[0].clone();
        change(&mut frame);
        peer_sa.open(&mut frame).expect_err("it was changed").to_string()
    };
    assert!(with(&|f| f[60] ^= 1).contains("is not authentic"));
    assert!(with(&|f| f[34 + 3] ^= 1).contains("has SPI"));
    assert!(with(&|f| f[23] = 17).contains("expected ESP's 50"));
    assert!(with(&|f| f[30] ^= 1).contains("outer addresses"));
    assert!(with(&|f| f[25] ^= 1).contains("outer header checksum"));
    assert!(with(&|f| f.truncate(f.len() - 1)).contains("says"));
    assert!(with(&|f| f.truncate(20)).contains("is cut short"));
}

#[test]
fn an_opened_packet_that_is_not_what_was_sealed_is_found() {
    let p = protection(Mode::Route, Direction::In, "aes-gcm-128", Family::Inet);
    let c = configuration(Family::Inet, FrameSize::Fixed(200), p);
    let (net, _) = tables::build(Family::Inet, 20, None).expect("routes");
    let templates = Templates::build(&c.workload, &net.destinations(50)).expect("templates");
    let mut packet = templates.frames[7].0[ETHERNET..].to_vec();
    packet.resize(usize::from(templates.lens[7]) - ETHERNET, 0);
    let got = known(&templates, &packet).expect_err("its TTL is not decremented").to_string();
    assert!(got.contains("at byte 8"), "{got}");
    packet[8] -= 1;
    let check = u16::from_be_bytes([packet[10], packet[11]]);
    packet[10..12].copy_from_slice(&weir_core::wire::checksum::after_ttl_decrement(check).to_be_bytes());
    assert_eq!(known(&templates, &packet), Ok(()));
    let last = packet.len() - 1;
    packet[last] = 9;
    assert!(known(&templates, &packet).expect_err("changed").to_string().contains("another payload"));
    packet.pop();
    assert!(known(&templates, &packet).expect_err("shorter").to_string().contains("expected"));
}
