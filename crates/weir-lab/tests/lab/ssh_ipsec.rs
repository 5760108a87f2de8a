//! The table `ipsec` on hosts: policies and ESP of the device under test, with real sshd.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ssh_hosts::assert_adds_up;
use crate::ssh_hosts::room::{DEVICE, RECEIVER, Room};

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
    room.run_well(&experiment(room, list));
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

#[test]
fn what_the_generator_seals_is_opened_by_weir_and_adds_up() {
    let Some(room) = Room::open("what_the_generator_seals_is_opened_by_weir_and_adds_up") else { return };
    let inbound = |more: &str| format!("direction = \"in\", {more}");
    let route = inbound("mode = \"route\", cipher = \"aes-gcm-128\", esn = true");
    let long =
        inbound("mode = \"route\", cipher = \"chacha20-poly1305\", outer = \"inet6\", replay_window = 0");
    let policy =
        inbound("mode = \"policy\", cipher = \"aes-cbc-128+hmac-sha2-256-128\", policies = 30, match = 20");
    let linear = inbound("mode = \"policy\", cipher = \"null\", policies = 30, lookup = \"linear\"");
    let bypass =
        inbound("mode = \"policy\", cipher = \"aes-gcm-256\", policies = 30, match = 7, action = \"bypass\"");
    let beside = "mode = \"route\", direction = \"beside\", cipher = \"aes-gcm-128\"";
    let list = [
        ("route", "weir", route.as_str(), ""),
        ("long", "weir", long.as_str(), "frame = 1400"),
        ("policy", "weir", policy.as_str(), "frame = 570"),
        ("linear", "weir", linear.as_str(), "family = \"inet6\""),
        ("bypass", "weir", bypass.as_str(), "family = \"inet6\""),
        ("beside", "weir", beside, ""),
    ];
    for (sample, (name, ..)) in measured(&room, &list).iter().zip(list) {
        assert_adds_up(sample);
        assert!(sample["latency_ns"]["p50"].as_u64().expect("latency") > 0, "{name}: {sample:#}");
        let notes = sample["notes"].to_string();
        let opens =
            notes.contains("weir: opens by one SA") && notes.contains("generator: seals every packet");
        assert_eq!(opens, name != "beside", "{name}: {notes}");
        assert_eq!(notes.contains("no packet takes it"), name == "beside", "{name}: {notes}");
    }
}

#[test]
fn a_receiver_of_two_queues_counts_what_is_sealed_by_a_packet_socket() {
    let test = "a_receiver_of_two_queues_counts_what_is_sealed_by_a_packet_socket";
    let Some(mut room) = Room::open(test) else { return };
    room.replace_receiver();
    let out = "mode = \"route\", direction = \"out\", cipher = \"aes-gcm-128\"";
    let list = [("inet", "weir", out, ""), ("inet6", "weir", out, "family = \"inet6\"")];
    for sample in measured(&room, &list) {
        assert_adds_up(&sample);
        assert_eq!(sample["latency_ns"], serde_json::json!({}), "{sample:#}");
        let notes = sample["notes"].to_string();
        for said in ["falls back to af_packet", "receiver: af_packet on cpu", "counts ESP by SPI"] {
            assert!(notes.contains(said), "{said}: {notes}");
        }
    }
}

/// The folder of the weir on the device under test, once an SA of it carried more packets than that.
fn weir_at_work(room: &Room, packets: u64) -> (PathBuf, PathBuf) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let found = room.hosts[DEVICE].run(move || {
            let list = "echo /tmp/weir-lab-*/weir /tmp/weir-lab-*/weir-lab-*/weir.sock";
            let output = Command::new("sh").args(["-c", list]).output().expect("sh starts");
            let paths = String::from_utf8_lossy(&output.stdout).trim().to_string();
            let (weir, socket) = paths.split_once(' ')?;
            let mut show = Command::new(weir);
            let output = show.args(["show", "sa", "--json", "--socket", socket]).output().ok()?;
            let sas: Value = serde_json::from_slice(&output.stdout).ok()?;
            let carried = sas.as_array()?.iter().filter_map(|sa| sa["packets"].as_u64()).max()?;
            (carried > packets).then(|| (PathBuf::from(weir), PathBuf::from(socket)))
        });
        if let Some(found) = found.expect("its thread runs") {
            return found;
        }
        assert!(Instant::now() < until, "no packets are sealed or opened");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A run of 2 s of warm-up and 4 s of window, during which a file of weir's is changed and applied.
fn changed_under_way(
    room: &Room,
    ipsec: &str,
    packets: u64,
    file: &'static str,
    words: (&'static str, &'static str),
) -> Value {
    let before = room.settled();
    let text = experiment(room, &[("changed", "weir", ipsec, "cpus = \"0\"")]);
    let text = text.replacen("\"20ms\"", "\"2s\"", 1).replacen("\"100ms\"", "\"4s\"", 1);
    let lab = room.start(&text);
    let (weir, socket) = weir_at_work(room, packets);
    let applied = room.hosts[DEVICE].run(move || {
        let path = socket.with_file_name(file);
        let text = std::fs::read_to_string(&path).expect("written by the lab");
        assert!(text.contains(words.0), "{text}");
        std::fs::write(&path, text.replace(words.0, words.1)).expect("root");
        let file = socket.with_file_name("weir.toml");
        Command::new(weir).arg("apply").arg(file).arg("--socket").arg(socket).output().expect("weir starts")
    });
    let applied = applied.expect("its thread runs");
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let output = lab.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    room.assert_as_before(&before);
    sample(room, "changed")
}

#[test]
fn what_an_expired_sa_drops_is_in_the_ledger() {
    let Some(room) = Room::open("what_an_expired_sa_drops_is_in_the_ledger") else { return };
    let out = "mode = \"route\", direction = \"out\", cipher = \"aes-gcm-128\"";
    // the warm-up seals 10,000 packets, the window another 20,000
    let limit = ("\nesn = false\n", "\nesn = false\nhard = { packets = 15000 }\n");
    let sample = changed_under_way(&room, out, 500, "weir.toml", limit);
    assert_adds_up(&sample);
    let expired = sample["ledger"]["drops"]["weir.sa_expired"].as_u64().expect("counted");
    assert!(expired > 10_000, "{sample:#}");
}

#[test]
fn what_another_key_sealed_is_in_the_ledger() {
    let Some(room) = Room::open("what_another_key_sealed_is_in_the_ledger") else { return };
    let inbound = "mode = \"route\", direction = \"in\", cipher = \"aes-gcm-128\"";
    let sample = changed_under_way(&room, inbound, 11_000, "lab.keys", ("5a5a5a5a", "5a5a5a5b"));
    assert_adds_up(&sample);
    assert!(sample["ledger"]["drops"]["weir.integrity_failed"].as_u64() > Some(0), "{sample:#}");
}

#[test]
fn an_interface_that_carries_less_than_sealed_packets_is_refused() {
    let Some(room) = Room::open("an_interface_that_carries_less_than_sealed_packets_is_refused") else {
        return;
    };
    let out = "mode = \"route\", direction = \"out\", cipher = \"aes-gcm-128\"";
    let port = &room.ports[RECEIVER][0];
    room.hosts[RECEIVER].ip(&format!("link set {port} mtu 1400")).expect("our own link");
    let output = room.run(&experiment(&room, &[("small", "weir", out, "")]));
    assert_eq!(output.status.code(), Some(1), "nothing was measured");
    let runs = room.runs("small");
    let error = runs[0].as_ref().expect_err("refused");
    assert!(error.contains("got an MTU of 1400, expected 1500 at least"), "{error}");
}
