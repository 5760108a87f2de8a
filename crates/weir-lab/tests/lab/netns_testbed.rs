//! The netns testbed end to end, at smoke length: ledgers add up, known loss is found, nothing is left.

use crate::common::testbeds::one_at_a_time;
use std::io::Write as _;
use std::time::Duration;

use crate::common::configuration::configuration;
use weir_lab::model::{Configuration, Family, FirewallRules, Keys, Sample, Sut, Topology, Trial};
use weir_lab::testbed::Testbeds;
use weir_stats::search::Rate;

const WARM_UP: Duration = Duration::from_millis(50);
const WINDOW: Duration = Duration::from_millis(200);

/// Runs a configuration once, or says why it cannot be and returns nothing.
fn run(test: &str, configuration: &Configuration) -> Option<Sample> {
    let _alone = one_at_a_time();
    let mut testbeds = Testbeds::default();
    if let Some(missing) = testbeds.missing(configuration) {
        writeln!(std::io::stderr(), "SKIP {test}: {missing}").expect("stderr is open");
        return None;
    }
    let mut prepared = testbeds.prepare(configuration).expect("the testbed is deployed");
    let trial = Trial { rate: configuration.workload.rate, warm_up: WARM_UP, window: WINDOW, seed: 7 };
    Some(prepared.run(&trial).expect("the run ends"))
}

fn assert_healthy(sample: &Sample) {
    let ledger = &sample.ledger;
    assert!(ledger.delivered > 0, "{sample:#?}");
    assert!(ledger.intended >= ledger.offered && ledger.offered >= ledger.sent, "{sample:#?}");
    assert_eq!(ledger.unaccounted(), 0, "{ledger:?} {sample:#?}");
    assert_eq!((sample.duplicated, sample.reordered), (0, 0), "{sample:#?}");
    assert!(sample.latency_ns["p50"] <= sample.latency_ns["max"], "{sample:#?}");
}

#[test]
fn baseline_ledger_adds_up_paced_and_flat_out() {
    for family in [Family::Inet, Family::Inet6] {
        for rate in [Rate::Pps(20_000), Rate::FlatOut] {
            let name = "baseline_ledger_adds_up_paced_and_flat_out";
            let Some(sample) = run(name, &configuration(Sut::Baseline, Topology::Netns, family, rate)) else {
                return;
            };
            assert_healthy(&sample);
        }
    }
}

#[test]
fn a_burst_is_exactly_its_packets() {
    for sut in [Sut::Baseline, Sut::Kernel] {
        let burst = configuration(sut, Topology::Netns, Family::Inet, Rate::Burst(100));
        let Some(sample) = run("a_burst_is_exactly_its_packets", &burst) else { return };
        // 100 frames fit into any ring on the way
        let l = &sample.ledger;
        assert_eq!((l.intended, l.offered, l.delivered), (100, 100, 100), "{sample:#?}");
    }
}

#[test]
fn established_flows_of_a_firewall_are_forwarded_by_the_kernel_and_by_weir() {
    let name = "established_flows_of_a_firewall_are_forwarded_by_the_kernel_and_by_weir";
    for (family, rules) in
        [(Family::Inet, FirewallRules::Masquerade), (Family::Inet6, FirewallRules::Stateful)]
    {
        for sut in [Sut::Kernel, Sut::Weir] {
            let plain = configuration(sut, Topology::Netns, family, Rate::Pps(20_000));
            let keys = Keys { firewall: Some(rules), ..Keys::from(plain) };
            let Some(sample) = run(name, &Configuration::try_from(keys).expect("valid")) else { return };
            assert_healthy(&sample);
            let past = sample.notes.iter().any(|note| note == "weir: 100 flows past the kernel's firewall");
            assert_eq!(past, sut == Sut::Weir, "{:?}", sample.notes);
        }
    }
}

/// Ten packets: SYN, SYN and ACK, ACK; two requests and two replies; FIN of each end, and the last ACK.
#[test]
fn connections_of_so_many_packets_begin_and_end_through_a_firewall() {
    let name = "connections_of_so_many_packets_begin_and_end_through_a_firewall";
    for (sut, packets) in
        [(Sut::Baseline, 10), (Sut::Kernel, 10), (Sut::Kernel, 100), (Sut::Weir, 10), (Sut::Weir, 100)]
    {
        let plain = configuration(sut, Topology::Netns, Family::Inet, Rate::FlatOut);
        let mut keys = Keys {
            firewall: (sut != Sut::Baseline).then_some(FirewallRules::Masquerade),
            connection_packets: Some(packets),
            ..Keys::from(plain)
        };
        keys.workload.flows = 16;
        let Some(sample) = run(name, &Configuration::try_from(keys).expect("valid")) else { return };
        let whole = sample.metrics["connects_per_second"] * sample.seconds;
        let (sent, own) = (sample.ledger.sent as f64, f64::from(packets));
        // Of those under way at either end of the window a part counts, and a busy machine acknowledges or sends again.
        let under_way = 16.0;
        assert!(whole > 0.0 && sent >= own * (whole - under_way), "{whole} connections: {sample:#?}");
        assert!(sent <= 2.0 * own * (whole + under_way), "{whole} connections: {sample:#?}");
        assert!(!sample.notes.iter().any(|note| note.contains("failed in the window")), "{sample:#?}");
        let taken = sample.metrics.get("flows_taken_per_connection");
        assert_eq!(taken.is_some(), sut == Sut::Weir, "{sample:#?}");
    }
}

#[test]
fn kernel_ledger_adds_up_paced_and_flat_out() {
    for family in [Family::Inet, Family::Inet6] {
        for rate in [Rate::Pps(20_000), Rate::FlatOut] {
            let name = "kernel_ledger_adds_up_paced_and_flat_out";
            let Some(sample) = run(name, &configuration(Sut::Kernel, Topology::Netns, family, rate)) else {
                return;
            };
            assert_healthy(&sample);
        }
    }
}

#[test]
fn weir_ledger_adds_up_paced_and_flat_out() {
    for family in [Family::Inet, Family::Inet6] {
        for rate in [Rate::Pps(20_000), Rate::FlatOut] {
            let name = "weir_ledger_adds_up_paced_and_flat_out";
            let Some(sample) = run(name, &configuration(Sut::Weir, Topology::Netns, family, rate)) else {
                return;
            };
            assert_healthy(&sample);
        }
    }
}

#[test]
fn xdp_fib_ledger_adds_up_paced_and_flat_out() {
    for family in [Family::Inet, Family::Inet6] {
        for rate in [Rate::Pps(20_000), Rate::FlatOut] {
            let name = "xdp_fib_ledger_adds_up_paced_and_flat_out";
            let Some(sample) = run(name, &configuration(Sut::XdpFib, Topology::Netns, family, rate)) else {
                return;
            };
            assert_healthy(&sample);
        }
    }
}
