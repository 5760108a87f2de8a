//! Relays that are killed or paused, clocks that jump, links that are cut.

use std::io::Write as _;
use std::path::Path;

use weir_core::relay::frame::{Frame, Gone};

use super::testbed::Testbed;
use crate::machine::{run, until};

#[test]
fn a_killed_relay_comes_back_as_the_same() {
    let Some(testbed) = Testbed::new("a_killed_relay_comes_back_as_the_same") else { return };
    let mut relay = testbed.start("", &[]);
    let (mut one, mut two) = (testbed.client(1), testbed.client(2));
    one.reaches(&mut two, b"before");
    relay.kill();
    assert!(one.packet().is_err(), "a dead relay speaks");
    let relay = testbed.start("", &[]);
    let before = one.server;
    let (mut one, mut two) = (testbed.client(1), testbed.client(2));
    assert_eq!(one.server, before, "the relay has another key");
    one.reaches(&mut two, b"after");
    relay.assert_conserved();
}

#[test]
fn a_relay_that_was_paused_goes_on_where_it_was() {
    let Some(testbed) = Testbed::new("a_relay_that_was_paused_goes_on_where_it_was") else { return };
    let relay = testbed.start("", &[]);
    let (mut one, mut two) = (testbed.client(1), testbed.client(2));
    one.reaches(&mut two, b"before");
    relay.signal("STOP");
    for n in 0..100u8 {
        one.send(two.key, &[n; 100]).expect("its socket takes it");
    }
    // Longer than a client may take nothing.
    std::thread::sleep(std::time::Duration::from_secs(3));
    relay.signal("CONT");
    for n in 0..100u8 {
        assert_eq!(two.packet().expect("a packet"), (one.key, vec![n; 100]));
    }
    two.reaches(&mut one, b"after");
    relay.assert_conserved();
}

/// Tells a program what time it is.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

#[test]
fn a_clock_that_jumps_disconnects_nobody() {
    let test = "a_clock_that_jumps_disconnects_nobody";
    let Some(testbed) = Testbed::new(test) else { return };
    if !Path::new(FAKETIME).exists() {
        writeln!(std::io::stderr(), "SKIP {test}: needs {FAKETIME}; install libfaketime")
            .expect("stderr is open");
        return;
    }
    let clock = testbed.folder.join("clock");
    std::fs::write(&clock, "+0d").expect("a file");
    let relay = testbed.start_with("", &[], |command| {
        command.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", &clock);
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    });
    let (mut one, mut two) = (testbed.client(1), testbed.client(2));
    one.reaches(&mut two, b"today");
    for jump in ["+4000d", "-4000d", "+0d"] {
        std::fs::write(&clock, jump).expect("a file");
        one.reaches(&mut two, jump.as_bytes());
        let mut third = testbed.client(3);
        third.reaches(&mut one, b"new here");
        two.reaches(&mut one, jump.as_bytes());
    }
    relay.until_metric("weir_relay_connections", "", 2);
    relay.assert_conserved();
}

#[test]
fn a_client_whose_link_was_cut_is_let_go_and_told_of() {
    let Some(testbed) = Testbed::new("a_client_whose_link_was_cut_is_let_go_and_told_of") else { return };
    let relay = testbed.start("", &[]);
    let (mut near, mut far) = (testbed.client(1), testbed.client_away(2));
    far.reaches(&mut near, b"heard");
    near.reaches(&mut far, b"heard");
    run(&format!("ip -n {} link set c0 down", testbed.away));
    near.send(far.key, b"lost on the way").expect("the relay reads");
    let gone = Frame::PeerGone(far.key, Gone::Disconnected);
    until("the peer is gone", || {
        let (code, payload) = near.frame().expect("a frame");
        (Frame::parse(code, &payload).ok()? == gone).then_some(())
    });
    relay.until_metric("weir_relay_connections", "", 1);
    run(&format!("ip -n {} link set c0 up", testbed.away));
    let mut far = testbed.client_away(2);
    near.reaches(&mut far, b"back");
    relay.assert_conserved();
}
