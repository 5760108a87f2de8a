//! The kernel's entries of flows that pass it by: what it was made to think of them meanwhile, and how long they live.

use std::thread;
use std::time::{Duration, Instant};

use weir::testing::machine::set;
use weir_core::wire::build::Frame;
use weir_core::wire::ctnetlink::{Event, TCP_ESTABLISHED, Tuple};
use weir_core::wire::{DisplayMac, tcp};
use weir_io::netns;
use weir_io::offload::{self, Offload};

use super::firewall::{Conversation, behind, flows, in_router, wait_for_flows};
use super::mirror::{accelerate, accelerate_with, has, in_router as ip_in_router, nft};
use super::testbed::{Testbed, Wire, ip, run, until};

const RULES: &str = "flush ruleset
table inet filter {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname \"r0\" accept
  }
}
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname \"r1\" masquerade; }
}
";

/// A setting of conntrack in the router. What has no entry any more makes none: its connection ends.
fn settings(testbed: &Testbed, settings: &[(&str, u64)]) {
    netns::inside(&testbed.router, || {
        for (name, value) in settings.iter().chain(&[("tcp_loose", 0)]) {
            set(&format!("/proc/sys/net/netfilter/nf_conntrack_{name}"), &value.to_string());
        }
    })
    .expect("the namespace is there");
}

/// The seconds an established connection's entry has left; `None` when it is gone, or closed.
fn left(testbed: &Testbed, original: &Tuple) -> Option<u32> {
    match in_router(testbed, |requests| requests.query(original)) {
        Ok(Event::Present(entry)) if entry.tcp_state == Some(TCP_ESTABLISHED) => entry.timeout_s,
        _ => None,
    }
}

/// RSTs from outside to what the server knows as the client, with numbers that somebody guessed. Of two that are half of all numbers
/// apart one is not behind what the kernel saw acknowledged, which it believes.
fn reset_blindly(testbed: &Testbed, talk: &Conversation, ack: bool) {
    let (from, to) = (talk.stream.peer_addr().expect("connected"), talk.seen);
    let mut wire = Wire::open(&testbed.server, "s0");
    let macs = (testbed.mac(&testbed.router, "r1"), testbed.mac(&testbed.server, "s0"));
    for sequence in [0x1234_5678, 0x9234_5678] {
        let header = tcp::Header {
            src_port: from.port(),
            dst_port: to.port(),
            sequence,
            acknowledgment: if ack { 1 } else { 0 },
            flags: tcp::flag::RST | if ack { tcp::flag::ACK } else { 0 },
            window: 0,
        };
        let frame = Frame::ip(from.ip(), to.ip()).expect("one family").macs(macs.0, macs.1);
        // With an option too: it is not plain, and reaches the kernel all the same.
        let frame = if ack { frame.options(&[1, 1, 1]) } else { frame };
        wire.send(&frame.tcp(&header, &[]));
    }
}

/// The kernel leaves an established connection ten seconds behind a RST that may not be meant, and gives them back with the next packet,
/// which it must see.
#[test]
fn a_connection_outlives_rsts_that_neither_host_accepts() {
    let test = "a_connection_outlives_rsts_that_neither_host_accepts";
    const CLOSE: u64 = 6;
    let Some(testbed) = behind(test, RULES) else { return };
    settings(&testbed, &[("tcp_timeout_close", CLOSE)]);
    let router = accelerate(&testbed);
    let mut talk = Conversation::begin(&testbed, ip("10.2.0.2"));
    talk.exchange(100_000);
    let original = talk.original();
    for ack in [false, true] {
        wait_for_flows(&router, "way=\"xdp\"", 1);
        talk.exchange(100_000);
        reset_blindly(&testbed, &talk, ack);
        until("the kernel believes one of them", || {
            left(&testbed, &original).is_some_and(|left| u64::from(left) <= CLOSE).then_some(())
        });
        let until_when = Instant::now() + Duration::from_secs(CLOSE + 2);
        while Instant::now() < until_when {
            talk.exchange(1000);
            thread::sleep(Duration::from_millis(100));
        }
        let left = left(&testbed, &original).expect("the entry is there");
        assert!(u64::from(left) > CLOSE, "{left} s are left");
    }
    // The kernel has seen what came behind them.
    wait_for_flows(&router, "way=\"xdp\"", 1);
    talk.exchange(1_000_000);
    assert_eq!(flows(&router, "reason=\"reset\""), 0);
    assert!(router.balances());
}

/// Who ended a connection sends no more, and its entry ends as the kernel's alone would.
#[test]
fn a_connection_that_a_rst_ended_is_given_no_time() {
    let test = "a_connection_that_a_rst_ended_is_given_no_time";
    const CLOSE: u64 = 3;
    let Some(testbed) = behind(test, RULES) else { return };
    settings(&testbed, &[("tcp_timeout_close", CLOSE)]);
    let router = accelerate(&testbed);
    let mut talk = Conversation::begin(&testbed, ip("10.2.0.2"));
    talk.exchange(100_000);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    talk.exchange(1_000_000);
    let original = talk.original();
    reset_blindly(&testbed, &talk, false);
    let before = Instant::now();
    until("its entry ends", || left(&testbed, &original).is_none().then_some(()));
    let lived = before.elapsed();
    assert!(lived < Duration::from_secs(CLOSE + 3), "it lived for {lived:?}");
    wait_for_flows(&router, "way=\"xdp\"", 0);
    wait_for_flows(&router, "reason=\"reset\"", 0);
}

/// A VLAN's device says what its frames look like: one that the XDP program's no longer do has its packets.
#[test]
fn flows_of_a_vlan_whose_device_changes_are_judged_again() {
    let test = "flows_of_a_vlan_whose_device_changes_are_judged_again";
    let Some(testbed) = behind(test, &RULES.replace("\"r1\"", "{ \"r1\", \"r1.7\" }")) else { return };
    let add = |ns: &str, lower: &str| {
        let line = format!("ip -n {ns} link add link {lower} name {lower}.7 type vlan id 7");
        std::process::Command::new("sh").args(["-c", &line]).output().expect("sh starts").status.success()
    };
    if !has("ethtool", test) || !add(&testbed.router, "r1") {
        use std::io::Write as _;
        writeln!(std::io::stderr(), "SKIP {test}: needs a kernel with VLANs").expect("stderr is open");
        return;
    }
    assert!(add(&testbed.server, "s0"));
    // The tag is in the frame, where a card's would be.
    run(&format!("ip netns exec {} ethtool -K s0 txvlan off", testbed.server));
    for (ns, device, address) in
        [(&testbed.router, "r1.7", "10.7.0.1/24"), (&testbed.server, "s0.7", "10.7.0.2/24")]
    {
        run(&format!("ip -n {ns} addr add {address} dev {device}"));
        run(&format!("ip -n {ns} link set {device} up"));
    }
    let router = accelerate_with(&testbed, &["r1.7"]);
    let mut talk = Conversation::begin(&testbed, ip("10.7.0.2"));
    talk.exchange(100_000);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    talk.exchange(1_000_000);
    let mac = DisplayMac(testbed.mac(&testbed.router, "r1.7")).to_string();
    for (change, back) in [
        ("type vlan egress-qos-map 0:3", "type vlan egress-qos-map 0:0".to_owned()),
        ("address 02:77:00:00:00:07", format!("address {mac}")),
    ] {
        run(&format!("ip -n {} link set r1.7 {change}", testbed.router));
        wait_for_flows(&router, "reason=\"port\"", 1);
        run(&format!("ip -n {} link set r1.7 {back}", testbed.router));
        // With another address the kernel forgot the device's neighbours, and finds them by the next packets.
        talk.exchange(100_000);
        wait_for_flows(&router, "way=\"xdp\"", 1);
        talk.exchange(100_000);
    }
    assert!(router.balances());
}

/// A veth end takes frames from XDP while the other receives by NAPI.
#[test]
fn flows_come_back_when_their_device_takes_frames_again() {
    let test = "flows_come_back_when_their_device_takes_frames_again";
    let Some(testbed) = behind(test, RULES) else { return };
    // A neighbour that changes would have flows judged again too, and so would its address of IPv6.
    for ns in [&testbed.client, &testbed.router, &testbed.server] {
        netns::inside(ns, || set("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"))
            .expect("the namespace is there");
    }
    for (address, host, near, device) in
        [("10.1.0.2", &testbed.client, "c0", "r0"), ("10.2.0.2", &testbed.server, "s0", "r1")]
    {
        let mac = DisplayMac(testbed.mac(host, near));
        ip_in_router(
            &testbed,
            &format!("neighbor replace {address} lladdr {mac} dev {device} nud permanent"),
        );
    }
    let router = accelerate(&testbed);
    let mut talk = Conversation::begin(&testbed, ip("10.2.0.2"));
    talk.exchange(100_000);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    let receives =
        |on| testbed.in_server(|| offload::set("s0", Offload::Gro, on)).expect("veth knows this offload");
    receives(false);
    wait_for_flows(&router, "reason=\"port\"", 1);
    talk.exchange(100_000);
    receives(true);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    talk.exchange(1_000_000);
    assert!(router.balances());
}

/// The kernel gives an established connection little time while data waits for its acknowledgement, and tells nobody.
#[test]
fn a_connection_that_is_taken_while_data_waits_for_its_acknowledgement_lives_on() {
    let test = "a_connection_that_is_taken_while_data_waits_for_its_acknowledgement_lives_on";
    const WAITS: u64 = 12;
    let Some(testbed) = behind(test, RULES) else { return };
    let waits = ["tcp_timeout_unacknowledged", "tcp_timeout_max_retrans"].map(|name| (name, WAITS));
    settings(&testbed, &[("tcp_timeout_close", 2), waits[0], waits[1]]);
    let router = accelerate(&testbed);
    // A rule about single packets: its flow is heard of, and stays the kernel's.
    nft(&testbed, "insert rule inet filter forward limit rate over 1000000/second drop\n");
    let mut talk = Conversation::begin(&testbed, ip("10.2.0.2"));
    talk.exchange(100_000);
    wait_for_flows(&router, "reason=\"rules\"", 1);
    let original = talk.original();
    let deaf = "table inet deaf { chain in { type filter hook input priority 0; tcp dport 1-65535 drop; }; }";
    let deaf = testbed.file("deaf.nft", deaf);
    run(&format!("ip netns exec {} nft -f {}", testbed.server, deaf.display()));
    talk.send(1000);
    until("the kernel knows of data that waits", || {
        left(&testbed, &original).is_some_and(|left| u64::from(left) <= WAITS).then_some(())
    });
    nft(&testbed, RULES);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    run(&format!("ip netns exec {} nft delete table inet deaf", testbed.server));
    talk.receive(1000);
    let until_when = Instant::now() + Duration::from_secs(WAITS + 3);
    while Instant::now() < until_when {
        talk.exchange(1000);
        thread::sleep(Duration::from_millis(100));
    }
    assert!(left(&testbed, &original).is_some(), "the entry lives as long as packets pass");
    assert_eq!(flows(&router, "way=\"xdp\""), 1);
    assert!(router.balances());
}
