//! The kernel's entries of flows that pass it by: what it was made to think of them meanwhile, and how long they live.

use std::thread;
use std::time::{Duration, Instant};

use weir::testing::machine::set;
use weir_core::wire::build::Frame;
use weir_core::wire::ctnetlink::{Event, TCP_ESTABLISHED, Tuple};
use weir_core::wire::tcp;
use weir_io::netns;

use super::firewall::{Conversation, behind, flows, in_router, wait_for_flows};
use super::mirror::accelerate;
use super::testbed::{Testbed, Wire, ip, until};

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
