//! The gateways testbed carries TCP and datagrams through tunnels of every SUT, and leaves nothing behind.

use crate::common::testbeds::one_at_a_time;
use std::io::Write;
use std::time::Duration;

use weir_lab::model::configuration::PlacementKeys;
use weir_lab::model::{Configuration, Family, FrameSize, Keys, Sut, Topology, Trial, Workload};
use weir_lab::testbed::Testbeds;
use weir_stats::search::Rate;

fn configuration(sut: Sut) -> Configuration {
    let workload =
        Workload { family: Family::Inet, frame: FrameSize::Fixed(64), flows: 2, rate: Rate::FlatOut };
    Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        name: "c".into(),
        sut,
        topology: Topology::Gateways,
        workload,
        routes: 1,
        placement: PlacementKeys::default(),
        ipsec: None,
        build: None,
        relay: None,
    })
    .expect("valid")
}

fn trial(rate: Rate) -> Trial {
    Trial { rate, warm_up: Duration::from_millis(100), window: Duration::from_millis(300), seed: 1 }
}

/// Whether the testbed can be had here; says what is missing if not.
fn there(test: &str, sut: Sut) -> bool {
    let missing = Testbeds::default().missing(&configuration(sut));
    if let Some(missing) = &missing {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {missing}");
    }
    missing.is_none()
}

fn carries(test: &str, sut: Sut) {
    if !there(test, sut) {
        return;
    }
    let _alone = one_at_a_time();
    let mut testbeds = Testbeds::default();
    let mut prepared = testbeds.prepare(&configuration(sut)).expect("all that is needed is here");
    let sample = prepared.run(&trial(Rate::FlatOut)).expect("a run");
    assert!(sample.metrics["mbps"] > 0.0 && sample.pps > 0.0, "{sample:?}");
    assert_eq!(sample.ledger.unaccounted(), 0);
    let paced = prepared.run(&trial(Rate::Pps(1000))).expect("a run of datagrams");
    let (sent, delivered) = (paced.ledger.sent, paced.ledger.delivered);
    // A relay between Tailscale's clients drops what its queue has no room for, on a busy machine at any rate.
    let relayed = matches!(sut, Sut::TailscaleWeir | Sut::TailscaleDerper);
    assert!(sent > 0 && (delivered == sent || relayed && (1..sent).contains(&delivered)), "{paced:?}");
    assert_eq!(paced.reordered, 0);
    let burst = prepared.run(&trial(Rate::Burst(100))).expect_err("there are none");
    assert!(burst.said.contains("bursts have no meaning"), "{burst}");
}

#[test]
fn tcp_passes_two_gateways_of_the_kernel() {
    carries("tcp_passes_two_gateways_of_the_kernel", Sut::Baseline);
}

#[test]
fn tcp_passes_two_gateways_of_strongswan() {
    carries("tcp_passes_two_gateways_of_strongswan", Sut::Strongswan);
}

#[test]
fn tcp_passes_two_gateways_of_weir() {
    carries("tcp_passes_two_gateways_of_weir", Sut::Weir);
}

#[test]
fn tcp_passes_two_clients_of_tailscale_by_weirs_relay() {
    carries("tcp_passes_two_clients_of_tailscale_by_weirs_relay", Sut::TailscaleWeir);
}

#[test]
fn tcp_passes_two_clients_of_tailscale_by_derper() {
    carries("tcp_passes_two_clients_of_tailscale_by_derper", Sut::TailscaleDerper);
}

/// Either netem delays what each gateway sends, or one sentence says that the kernel has none.
#[test]
fn what_each_gateway_sends_is_delayed_and_lost_or_the_kernels_lack_is_named() {
    let mut keys = Keys::from(configuration(Sut::Baseline));
    keys.placement.netem = "delay 20ms".into();
    let delayed = Configuration::try_from(keys.clone()).expect("valid");
    let mut testbeds = Testbeds::default();
    if let Some(missing) = testbeds.missing(&delayed) {
        let test = "what_each_gateway_sends_is_delayed_and_lost_or_the_kernels_lack_is_named";
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {missing}");
        assert!(missing.contains("sch_netem") || missing.contains("root"), "{missing}");
        return;
    }
    let _alone = one_at_a_time();
    keys.placement.netem = "loss 30%".into();
    let lossy = Configuration::try_from(keys).expect("valid");
    let run = |configuration: &Configuration, testbeds: &mut Testbeds| {
        let mut prepared = testbeds.prepare(configuration).expect("all that is needed is here");
        prepared.run(&trial(Rate::Pps(1000))).expect("a run")
    };
    let sample = run(&delayed, &mut testbeds);
    assert!(sample.notes.iter().any(|note| note.contains("delay 20ms")), "{sample:?}");
    let share = {
        let ledger = run(&lossy, &mut testbeds).ledger;
        ledger.delivered as f64 / ledger.sent as f64
    };
    assert!((0.5..0.9).contains(&share), "{share} of the datagrams came, of which 0.3 are to be lost");
}

/// Either the kernel takes SAs of ESP and packets pass, or one sentence says what it lacks.
fn carries_or_names_the_kernels_lack(test: &str, sut: Sut) {
    let missing = Testbeds::default().missing(&configuration(sut));
    if let Some(missing) = missing.filter(|said| said.contains("takes no SA")) {
        assert!(missing.contains("CONFIG_INET_ESP") && !missing.contains('\n'), "{missing}");
    }
    carries(test, sut);
}

#[test]
fn tcp_passes_two_gateways_of_weir_that_strongswan_keys() {
    carries_or_names_the_kernels_lack(
        "tcp_passes_two_gateways_of_weir_that_strongswan_keys",
        Sut::WeirStrongswan,
    );
}

#[test]
fn tcp_passes_two_gateways_of_strongswan_with_the_kernels_esp() {
    carries_or_names_the_kernels_lack(
        "tcp_passes_two_gateways_of_strongswan_with_the_kernels_esp",
        Sut::StrongswanKernel,
    );
}

#[test]
fn frames_that_do_not_fit_are_refused_with_the_largest_that_does() {
    let too_large = |frame, rate| {
        let workload = Workload { frame, rate, ..configuration(Sut::Baseline).workload };
        let keys = Keys { workload, ..configuration(Sut::Baseline).into() };
        Testbeds::default().missing(&Configuration::try_from(keys).expect("valid")).unwrap_or_default()
    };
    for frame in [FrameSize::Fixed(1419), FrameSize::Imix] {
        assert!(too_large(frame, Rate::Pps(1000)).contains("frame = 1418 or less"), "{frame:?}");
        assert!(!too_large(frame, Rate::FlatOut).contains("frame"), "TCP has no frames: {frame:?}");
    }
    assert!(!too_large(FrameSize::Fixed(1418), Rate::Pps(1000)).contains("frame"));
}

#[test]
fn a_packet_is_a_packet_however_many_cross_a_wire_in_one_piece() {
    let test = "a_packet_is_a_packet_however_many_cross_a_wire_in_one_piece";
    if !there(test, Sut::Baseline) {
        return;
    }
    let _alone = one_at_a_time();
    let mut testbeds = Testbeds::default();
    for offload in [false, true] {
        let placement = PlacementKeys { offload, ..PlacementKeys::default() };
        let configuration =
            Configuration::try_from(Keys { placement, ..configuration(Sut::Baseline).into() })
                .expect("valid");
        let sample =
            testbeds.prepare(&configuration).expect("wires").run(&trial(Rate::FlatOut)).expect("a run");
        // Both are read one after the other, so some payload may be counted that came after the packets were.
        let payload = sample.metrics["mbps"] * 1e6 / 8.0 / sample.pps;
        assert!((500.0..1800.0).contains(&payload), "offload {offload}: {payload} bytes a packet");
        assert_eq!(offload, sample.notes.iter().any(|note| note.contains("uncut")), "{:?}", sample.notes);
    }
}

#[test]
fn what_is_no_tunnel_gateway_is_refused_with_the_remedy() {
    let missing = Testbeds::default().missing(&configuration(Sut::Kernel)).expect("not here");
    let alone = missing.contains("weir") && missing.contains("strongswan");
    assert!(alone || missing.contains("run as root"), "{missing}");
    let inet6 = Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        workload: Workload { family: Family::Inet6, ..configuration(Sut::Weir).workload },
        ..configuration(Sut::Weir).into()
    })
    .expect("valid");
    let missing = Testbeds::default().missing(&inet6).expect("not yet");
    assert!(missing.contains("family = \"inet\""), "{missing}");
}
