//! The table `ipsec` on hosts: policies and ESP of the device under test, with real sshd.

use serde_json::Value;

use crate::ssh_hosts::assert_adds_up;
use crate::ssh_hosts::room::{DEVICE, Room};

const HEAD: &str = "title = \"Hosts\"\nquestion = \"Does IPsec work on hosts?\"\nwarm_up = \"20ms\"\n\
    window = \"100ms\"\n[defaults]\ntopology = \"ssh\"\nflows = 24\nroutes = 10\nrate = 5000\n";

/// A configuration: name, SUT, the table `ipsec`, further lines.
type Written<'a> = (&'a str, &'a str, &'a str, &'a str);

fn experiment(room: &Room, list: &[Written]) -> String {
    let one = |(name, sut, ipsec, more): &Written| {
        format!("[[configuration]]\nname = \"{name}\"\nsut = \"{sut}\"\nipsec = {{ {ipsec} }}\n{more}\n")
    };
    let all: String = list.iter().map(one).collect();
    format!("runs = 1\n{HEAD}{all}{}", room.hosts_table(""))
}

/// The sample of a configuration's only run.
fn sample(room: &Room, name: &str) -> Value {
    let mut runs = room.runs(name);
    assert_eq!(runs.len(), 1, "{name}");
    runs.remove(0).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The samples of configurations that all ran, on hosts that are afterwards as before.
fn measured(room: &Room, list: &[Written]) -> Vec<Value> {
    let before = room.settled();
    let output = room.run(&experiment(room, list));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let samples = list.iter().map(|(name, ..)| sample(room, name)).collect();
    room.assert_as_before(&before);
    samples
}

#[test]
fn policies_of_weir_and_of_the_kernel_are_asked_on_the_device_under_test() {
    let test = "policies_of_weir_and_of_the_kernel_are_asked_on_the_device_under_test";
    let Some(room) = Room::open(test) else { return };
    let policies = "mode = \"policy\", cipher = \"null\", action = \"bypass\", policies = 30";
    let out = format!("{policies}, direction = \"out\", match = 20");
    let linear = format!("{policies}, direction = \"out\", match = 20, lookup = \"linear\"");
    let beside = format!("{policies}, direction = \"beside\"");
    let list = [
        ("weir-out", "weir", out.as_str(), ""),
        ("weir-linear", "weir", linear.as_str(), "family = \"inet6\""),
        ("weir-beside", "weir", beside.as_str(), ""),
        ("kernel-out", "kernel-xfrm", out.as_str(), ""),
        ("kernel-linear", "kernel-xfrm", linear.as_str(), "family = \"inet6\""),
        ("kernel-beside", "kernel-xfrm", beside.as_str(), ""),
    ];
    for (sample, (name, ..)) in measured(&room, &list).iter().zip(list) {
        assert_adds_up(sample);
        let beside = "packets match none of 30 policies";
        let expected = if name.ends_with("beside") { beside } else { "packets match policy 20 of 30" };
        assert!(sample["notes"].to_string().contains(expected), "{name}: {sample:#}");
    }
}

#[test]
fn a_kernel_that_has_policies_of_its_own_is_refused_and_keeps_them() {
    let test = "a_kernel_that_has_policies_of_its_own_is_refused_and_keeps_them";
    let Some(room) = Room::open(test) else { return };
    let own = "xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir out priority 9 action allow";
    room.hosts[DEVICE].ip(own).expect("a kernel with XFRM");
    let before = room.settled();
    assert!(before[DEVICE].contains("priority 9"), "{}", before[DEVICE]);
    let out = "mode = \"policy\", cipher = \"null\", action = \"bypass\", direction = \"out\"";
    let output = room.run(&experiment(&room, &[("kernel", "kernel-xfrm", out, "")]));
    assert_eq!(output.status.code(), Some(1), "nothing was measured");
    let runs = room.runs("kernel");
    let error = runs[0].as_ref().expect_err("refused");
    assert!(error.contains("got 1 XFRM policies that are there already, expected none"), "{error}");
    room.assert_as_before(&before);
}

#[test]
fn what_weir_seals_is_counted_by_sequence_number_and_adds_up() {
    let Some(room) = Room::open("what_weir_seals_is_counted_by_sequence_number_and_adds_up") else { return };
    let out = |more: &str| format!("direction = \"out\", {more}");
    let route = out("mode = \"route\", cipher = \"aes-gcm-128\", esn = true");
    let long = out("mode = \"route\", cipher = \"chacha20-poly1305\", outer = \"inet6\"");
    let backend = out("mode = \"route\", cipher = \"aes-gcm-256\", backend = \"aws-lc\", shared_sa = true");
    let policy =
        out("mode = \"policy\", cipher = \"aes-cbc-256+hmac-sha2-512-256\", policies = 30, match = 20");
    let linear = out("mode = \"policy\", cipher = \"null+hmac-sha1-96\", policies = 30, lookup = \"linear\"");
    let cache =
        out("mode = \"policy\", cipher = \"null\", lookup = \"cache\", buckets = 4096, outer = \"inet\"");
    let list = [
        ("route", "weir", route.as_str(), ""),
        ("long", "weir", long.as_str(), "frame = 1400"),
        ("backend", "weir", backend.as_str(), "rate = \"flat-out\""),
        ("policy", "weir", policy.as_str(), ""),
        ("linear", "weir", linear.as_str(), "family = \"inet6\""),
        ("cache", "weir", cache.as_str(), "family = \"inet6\""),
    ];
    for (sample, (name, ..)) in measured(&room, &list).iter().zip(list) {
        assert_adds_up(sample);
        assert_eq!(sample["latency_ns"], serde_json::json!({}), "{name}: {sample:#}");
        let notes = sample["notes"].to_string();
        let one = if name == "backend" { "seals by one SA" } else { "weir: seals by " };
        for said in ["native XDP program", "counts ESP by SPI and sequence number", one] {
            assert!(notes.contains(said), "{name}: {said}: {notes}");
        }
        let asked = ["policy", "linear", "cache"].contains(&name);
        assert_eq!(notes.contains("the SPD of the port packets leave by"), asked, "{name}: {notes}");
    }
}
