//! The relay testbed carries packets through relays, holds idle clients and lets clients come and go.

use super::*;
use crate::model::Keys;
use crate::model::relay::Tls;
use crate::netns::namespace::Untuned;
use crate::testbed::Testbeds;
use std::io::Write;
use std::time::Duration;
use weir_stats::search::Rate;

use crate::model::configuration::PlacementKeys;
use crate::model::{FrameSize, Topology, Workload};

fn configuration(sut: Sut, relay: RelayScenario) -> Configuration {
    let workload =
        Workload { family: Family::Inet, frame: FrameSize::Fixed(1400), flows: 3, rate: Rate::FlatOut };
    Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        name: "c".into(),
        sut,
        topology: Topology::Relay,
        workload,
        routes: 1,
        placement: PlacementKeys::default(),
        ipsec: None,
        build: None,
        relay: Some(relay),
    })
    .expect("valid")
}

fn trial(rate: Rate) -> Trial {
    Trial { rate, warm_up: Duration::from_millis(50), window: Duration::from_millis(200), seed: 1 }
}

fn relay(tls: Tls, load: Load) -> RelayScenario {
    RelayScenario { tls, load, ..RelayScenario::default() }
}

/// The prepared testbed, or `None` after saying what is missing.
fn prepared(test: &str, sut: Sut, relay: RelayScenario) -> Option<Box<dyn Prepared>> {
    let (mut testbed, configuration) = (Testbeds::default(), configuration(sut, relay));
    if let Some(missing) = testbed.missing(&configuration) {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {missing}");
        return None;
    }
    Some(testbed.prepare(&configuration).expect("all that is needed is here"))
}

#[test]
fn the_baseline_is_pairs_without_a_relay() {
    let test = "the_baseline_is_pairs_without_a_relay";
    let Some(mut baseline) = prepared(test, Sut::Baseline, relay(Tls::Off, Load::Open)) else { return };
    let sample = baseline.run(&trial(Rate::FlatOut)).expect("a run");
    assert!(sample.pps > 0.0 && sample.metrics["mbps"] > 0.0, "{sample:?}");
    assert_eq!((sample.ledger.unaccounted(), sample.reordered, sample.duplicated), (0, 0, 0));
    assert!(baseline.scope().is_none() && !sample.metrics.contains_key("cpu_seconds_per_gb"));
}

#[test]
fn tcp_is_the_kernels_own_whatever_the_machine_prefers() {
    let test = "tcp_is_the_kernels_own_whatever_the_machine_prefers";
    if let Some(missing) = cpus::missing_privilege() {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {missing}");
        return;
    }
    let namespace = Namespace::new("relay").expect("a namespace");
    let key = "/proc/sys/net/ipv4/tcp_congestion_control";
    // what a new namespace has is the machine's; it allows its namespaces fewer than it has, but always reno
    namespace.sysctl("net/ipv4/tcp_congestion_control", "reno").expect("every kernel has it");
    namespace.sysctl("net/ipv4/tcp_rmem", "4096 65536 99999").expect("it is a namespace's own");
    let allowed =
        namespace.read("/proc/sys/net/ipv4/tcp_allowed_congestion_control").expect("it can be read");
    let (own, tuned, why) = match allowed.split_whitespace().any(|name| name == "cubic") {
        true => ("cubic", " where this machine has reno", ""),
        false => ("reno", "", ", since cubic is refused"),
    };
    let Untuned { said, fell_back } = namespace.untuned().expect("it can be read");
    assert_eq!(fell_back, !why.is_empty(), "{said}");
    assert!(said.starts_with(&format!("tcp: tcp_congestion_control {own}{tuned}{why}; ")), "{said}");
    let buffers = "tcp_rmem 4096 131072 6291456";
    assert!(said.contains(&format!("{buffers} where this machine has 4096 65536 99999; ")), "{said}");
    assert_eq!(namespace.read(key).expect("it can be read").trim(), own);
    let again = namespace.untuned().expect("it can be read").said;
    let all = format!("tcp: tcp_congestion_control {own}{why}; {buffers}; tcp_wmem 4096 16384 4194304");
    assert_eq!(again, all);
}

#[test]
fn derper_relays_a_closed_loop_and_a_rate() {
    relays("derper_relays_a_closed_loop_and_a_rate", Sut::Derper, Tls::Off);
}

#[test]
fn derper_relays_through_tls() {
    relays("derper_relays_through_tls", Sut::Derper, Tls::User);
}

#[test]
fn hyper_derp_relays_a_closed_loop_and_a_rate() {
    relays("hyper_derp_relays_a_closed_loop_and_a_rate", Sut::HyperDerp, Tls::Off);
}

#[test]
fn weir_relays_a_closed_loop_and_a_rate() {
    relays("weir_relays_a_closed_loop_and_a_rate", Sut::Weir, Tls::Off);
}

#[test]
fn weir_relays_through_tls() {
    relays("weir_relays_through_tls", Sut::Weir, Tls::User);
}

fn relays(test: &str, sut: Sut, tls: Tls) {
    let Some(mut relay) = prepared(test, sut, relay(tls, Load::ClosedLoop)) else { return };
    for rate in [Rate::FlatOut, Rate::Pps(1000)] {
        let sample = relay.run(&trial(rate)).expect("a run");
        assert!(sample.ledger.delivered > 0 && sample.latency_ns["p50"] > 0, "{sample:?}");
        assert_eq!(sample.metrics["corrupted_packets"], 0.0);
        // a relay that gets no CPU for long is not waited for
        assert!(sample.ledger.unaccounted() >= 0, "{:?}", sample.ledger);
        assert!(sample.metrics["process_cpu_percent"] >= 0.0);
        assert!(!sample.notes.iter().any(|n| n.contains("defect")), "{:?}", sample.notes);
    }
    let burst = relay.run(&trial(Rate::Burst(10))).expect_err("no bursts");
    assert!(burst.said.contains("back-to-back"), "{burst}");
}

#[test]
fn a_forwarder_of_bytes_carries_all_of_a_load_plain_and_through_tls() {
    let test = "a_forwarder_of_bytes_carries_all_of_a_load_plain_and_through_tls";
    for (tls, load) in [(Tls::Off, Load::ClosedLoop), (Tls::User, Load::Open)] {
        let Some(mut forwarder) = prepared(test, Sut::TcpForwarder, relay(tls, load)) else { return };
        for rate in [Rate::FlatOut, Rate::Pps(1000)] {
            let sample = forwarder.run(&trial(rate)).expect("a run");
            assert!(sample.ledger.delivered > 0 && sample.ledger.drops.is_empty(), "{sample:?}");
            assert_eq!(sample.metrics["corrupted_packets"], 0.0);
            assert_eq!((sample.reordered, sample.duplicated), (0, 0), "{sample:?}");
            assert!(sample.metrics["process_cpu_percent"] >= 0.0);
        }
        assert!(forwarder.scope().is_some(), "a profiler sees it");
    }
}

#[test]
fn what_a_forwarder_of_bytes_cannot_be_asked_is_said() {
    let missing = |relay| crate::sut::tcp_forwarder::missing(&relay);
    let good = relay(Tls::Off, Load::ClosedLoop);
    for (relay, expected) in [
        (relay(Tls::Off, Load::Idle), "use load = \"closed-loop\""),
        (RelayScenario { stalled: 1, ..good }, "remove `stalled`"),
        (RelayScenario { workers: 2, ..good }, "use workers = 1"),
    ] {
        assert!(missing(relay).is_some_and(|why| why.contains(expected)), "{relay:?}");
    }
}

#[test]
fn what_a_flooded_relay_loses_is_in_its_own_counters() {
    let test = "what_a_flooded_relay_loses_is_in_its_own_counters";
    for sut in [Sut::Derper, Sut::Weir] {
        let Some(mut relay) = prepared(test, sut, relay(Tls::Off, Load::Open)) else { continue };
        let cold = Trial { warm_up: Duration::ZERO, ..trial(Rate::FlatOut) };
        let sample = relay.run(&cold).expect("a run");
        let ledger = &sample.ledger;
        assert!(ledger.sent > 0 && sample.metrics["corrupted_packets"] == 0.0, "{ledger:?}");
        assert!(ledger.unaccounted() >= 0, "{sut:?}: more dropped than was lost: {ledger:?}");
        let silent = ledger.drops.is_empty() && ledger.sent > 4 * ledger.delivered.max(1000);
        assert!(!silent, "{sut:?}: most packets were lost and it says nothing of it: {ledger:?}");
    }
}

#[test]
fn stalled_receivers_are_in_the_ledger_and_beside_the_values() {
    let test = "stalled_receivers_are_in_the_ledger_and_beside_the_values";
    for (sut, tls) in [(Sut::Weir, Tls::Off), (Sut::Weir, Tls::User), (Sut::Derper, Tls::Off)] {
        let with = RelayScenario { stalled: 2, ..relay(tls, Load::ClosedLoop) };
        let Some(mut relay) = prepared(test, sut, with) else { continue };
        // more than a receiver that stalls takes, so that the relay drops
        let sample = relay.run(&trial(Rate::Pps(6000))).expect("a run");
        let (ledger, metrics) = (&sample.ledger, &sample.metrics);
        assert!(
            metrics["stalled_sent_packets"] > 0.0 && metrics["stalled_received_packets"] > 0.0,
            "{metrics:?}"
        );
        assert!(metrics["offered_pps"] * sample.seconds <= 1300.0, "two pairs are in a value: {metrics:?}");
        assert_eq!(metrics["corrupted_packets"], 0.0);
        // a relay that gets no CPU for long is not waited for
        assert!(ledger.unaccounted() >= 0, "{sut:?}: {ledger:?}");
        assert!(ledger.unaccounted() as u64 <= ledger.sent / 2, "{sut:?}: {ledger:?}");
    }
}

#[test]
fn idle_clients_of_derper_have_a_price_each() {
    let test = "idle_clients_of_derper_have_a_price_each";
    let Some(mut derper) = prepared(test, Sut::Derper, relay(Tls::Off, Load::Idle)) else { return };
    let sample = derper.run(&trial(Rate::FlatOut)).expect("a run");
    assert!(sample.metrics["memory_bytes_before"] > 0.0, "{sample:?}");
    assert!(sample.metrics.contains_key("memory_bytes_per_client"));
}

#[test]
fn clients_come_and_go() {
    // With TLS they begin fast, which either relay must understand.
    for (sut, tls, load) in [
        (Sut::Derper, Tls::Off, Load::Connects),
        (Sut::Derper, Tls::User, Load::Reconnects),
        (Sut::Weir, Tls::User, Load::Connects),
        (Sut::Weir, Tls::Off, Load::Reconnects),
    ] {
        let Some(mut sut) = prepared("clients_come_and_go", sut, relay(tls, load)) else {
            continue;
        };
        let sample = sut.run(&trial(Rate::FlatOut)).expect("a run");
        assert!(sample.metrics["connects_per_second"] > 0.0, "{sample:?}");
        assert!(sample.metrics["generator_busy_percent"] > 0.0, "{sample:?}");
    }
}

#[test]
fn what_no_relay_is_or_has_is_said() {
    let missing = |sut, relay| Testbeds::default().missing(&configuration(sut, relay));
    if cpus::missing_privilege().is_some() {
        let _ = writeln!(std::io::stderr(), "SKIP what_no_relay_is_or_has_is_said: no namespaces here");
        return;
    }
    let kernel = missing(Sut::Kernel, RelayScenario::default()).expect("it is none");
    assert!(kernel.contains("is no relay here"), "{kernel}");
    let derper = missing(Sut::Derper, relay(Tls::Kernel, Load::Open)).expect("it has none");
    assert!(derper.contains("use tls = \"user\""), "{derper}");
}
