//! The gateways testbed carries TCP through tunnels of every subject, and leaves nothing behind.

use std::io::Write;
use std::time::Duration;

use weir_lab::model::{Configuration, Family, FrameSize, Placement, Subject, Topology, Trial, Workload};
use weir_lab::testbed::testbed;
use weir_stats::search::Rate;

fn configuration(subject: Subject) -> Configuration {
    let workload =
        Workload { family: Family::Inet, frame: FrameSize::Fixed(64), flows: 2, rate: Rate::FlatOut };
    Configuration {
        name: "c".into(),
        subject,
        topology: Topology::Gateways,
        workload,
        routes: 1,
        placement: Placement::default(),
        ipsec: None,
        build: None,
        relay: None,
    }
}

fn trial(rate: Rate) -> Trial {
    Trial { rate, warm_up: Duration::from_millis(100), window: Duration::from_millis(300), seed: 1 }
}

/// Whether the testbed can be had here; says what is missing if not.
fn there(test: &str, subject: Subject) -> bool {
    let missing = testbed(Topology::Gateways).missing(&configuration(subject));
    if let Some(missing) = &missing {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {missing}");
    }
    missing.is_none()
}

fn carries(test: &str, subject: Subject) {
    if !there(test, subject) {
        return;
    }
    let mut testbed = testbed(Topology::Gateways);
    let mut prepared = testbed.prepare(&configuration(subject)).expect("all that is needed is here");
    let sample = prepared.run(&trial(Rate::FlatOut)).expect("a run");
    assert!(sample.figures["mbps"] > 0.0 && sample.pps > 0.0, "{sample:?}");
    assert_eq!(sample.ledger.unaccounted(), 0);
    let paced = prepared.run(&trial(Rate::Pps(1000))).expect_err("TCP has no rate");
    assert!(paced.said.contains("remove `rate`"), "{paced}");
}

#[test]
fn tcp_passes_two_gateways_of_the_kernel() {
    carries("tcp_passes_two_gateways_of_the_kernel", Subject::Ceiling);
}

#[test]
fn tcp_passes_two_gateways_of_strongswan() {
    carries("tcp_passes_two_gateways_of_strongswan", Subject::Strongswan);
}

#[test]
fn tcp_passes_two_gateways_of_weir() {
    carries("tcp_passes_two_gateways_of_weir", Subject::Weir);
}

#[test]
fn a_packet_is_a_packet_however_many_cross_a_wire_in_one_piece() {
    let test = "a_packet_is_a_packet_however_many_cross_a_wire_in_one_piece";
    if !there(test, Subject::Ceiling) {
        return;
    }
    let mut testbed = testbed(Topology::Gateways);
    for offload in [false, true] {
        let placement = Placement { offload, ..Placement::default() };
        let configuration = Configuration { placement, ..configuration(Subject::Ceiling) };
        let sample =
            testbed.prepare(&configuration).expect("wires").run(&trial(Rate::FlatOut)).expect("a run");
        // Both are read one after the other, so some payload may be counted that came after the packets were.
        let payload = sample.figures["mbps"] * 1e6 / 8.0 / sample.pps;
        assert!((500.0..1800.0).contains(&payload), "offload {offload}: {payload} bytes a packet");
        assert_eq!(offload, sample.notes.iter().any(|note| note.contains("uncut")), "{:?}", sample.notes);
    }
}

#[test]
fn what_is_no_tunnel_gateway_is_refused_with_the_remedy() {
    let missing = testbed(Topology::Gateways).missing(&configuration(Subject::Kernel)).expect("not here");
    let alone = missing.contains("weir") && missing.contains("strongswan");
    assert!(alone || missing.contains("run as root"), "{missing}");
    let inet6 = Configuration {
        workload: Workload { family: Family::Inet6, ..configuration(Subject::Weir).workload },
        ..configuration(Subject::Weir)
    };
    let missing = testbed(Topology::Gateways).missing(&inet6).expect("not yet");
    assert!(missing.contains("family = \"inet\""), "{missing}");
}
