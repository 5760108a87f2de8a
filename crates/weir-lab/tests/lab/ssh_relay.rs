//! Relays on the ssh topology against real sshd: what they carry between hosts, and that the hosts stay as they were.

use std::io::Write as _;
use std::time::Duration;

use serde_json::Value;
use weir_io::process;
use weir_lab::sut::derper;

use crate::ssh_hosts::room::{DEVICE, GENERATOR, Room, wait_for};

/// Shared by every experiment here; `runs` first. The relay has a CPU, and the generator the other, if there are two.
const HEAD: &str = "title = \"Relays on hosts\"\nquestion = \"Do they relay?\"\nwarm_up = \"20ms\"\nwindow = \"200ms\"\n\
    [defaults]\ntopology = \"ssh\"\nflows = 3\nframe = 1400\n";

/// Settings of a host's TCP that a run changes.
const SETTINGS: [&str; 4] = ["tcp_congestion_control", "tcp_rmem", "tcp_wmem", "ip_local_port_range"];

fn experiment(room: &Room, runs: usize, list: &[(&str, &str, &str)]) -> String {
    let one = |(name, sut, more): &(&str, &str, &str)| {
        format!("[[configuration]]\nname = \"{name}\"\nsut = \"{sut}\"\n{more}\n")
    };
    let configurations: String = list.iter().map(one).collect();
    format!("runs = {runs}\n{HEAD}{configurations}{}", without_receiver(room))
}

/// The hosts that relays need.
fn without_receiver(room: &Room) -> String {
    let table = room.hosts_table("");
    let (head, rest) = table.split_once("[hosts.receiver]").expect("it is named");
    let (_, timeouts) = rest.split_once("[hosts.timeouts]").expect("they are named");
    let output = format!("output = \"{}\"\n", room.ports[DEVICE][1]);
    format!("{}[hosts.timeouts]{timeouts}", head.replace(&output, ""))
}

/// All that a run may change on the hosts of a room.
fn state(room: &Room) -> (Vec<String>, [String; 3]) {
    let read = |host: usize, key: &str| room.hosts[host].read(&format!("/proc/sys/net/ipv4/{key}"));
    let settings = [GENERATOR, DEVICE]
        .iter()
        .flat_map(|&host| SETTINGS.map(|key| read(host, key).expect("a setting")))
        .collect();
    (settings, room.settled())
}

fn assert_as_before(room: &Room, before: &(Vec<String>, [String; 3])) {
    room.assert_as_before(&before.1);
    assert_eq!(state(room).0, before.0, "settings of TCP are as they were");
}

fn count(value: &Value) -> i64 {
    value.as_i64().expect("a count")
}

/// A run of pairs that came to something.
fn assert_carried(name: &str, sample: &Value) {
    let (ledger, metrics) = (&sample["ledger"], &sample["metrics"]);
    let drops: i64 = ledger["drops"].as_object().expect("counters").values().map(count).sum();
    assert!(count(&ledger["delivered"]) > 0, "{name}: {sample:#}");
    assert_eq!(count(&ledger["sent"]), count(&ledger["delivered"]) + drops, "{name}: {sample:#}");
    assert_eq!((count(&sample["reordered"]), count(&sample["duplicated"])), (0, 0), "{name}: {sample:#}");
    assert!(count(&sample["latency_ns"]["p50"]) > 0, "{name}: {sample:#}");
    assert!(metrics["mbps"].as_f64().is_some_and(|mbps| mbps > 0.0), "{name}: {sample:#}");
    assert_eq!(metrics["corrupted_packets"].as_f64(), Some(0.0), "{name}: {sample:#}");
    assert!(metrics["undelivered_percent"].as_f64().is_some(), "{name}: {sample:#}");
    assert!(metrics["process_cpu_percent"].as_f64().is_some(), "{name}: {sample:#}");
    let notes = sample["notes"].to_string();
    for note in ["TCP from 10.10.0.2", "at 10.10.0.1:3340", "tcp: ", "the cost of a packet is"] {
        assert!(notes.contains(note), "{name}: no {note} in {notes}");
    }
}

#[test]
fn weir_and_a_forwarder_relay_between_hosts_that_stay_as_they_were() {
    let test = "weir_and_a_forwarder_relay_between_hosts_that_stay_as_they_were";
    let Some(room) = Room::open(test) else { return };
    let before = state(&room);
    let list = [
        ("plain", "weir", "relay = {}"),
        ("tls", "weir", "relay = { tls = \"user\", load = \"open\" }\nrate = 2000"),
        ("workers", "weir", "relay = { workers = 2, under_way = 4 }\nframe = 200"),
        ("flood", "weir", "relay = { load = \"open\" }"),
        ("stalled", "weir", "relay = { load = \"open\", stalled = 1 }"),
        ("bytes", "tcp-forwarder", "relay = {}"),
        ("bytes-tls", "tcp-forwarder", "relay = { tls = \"user\", load = \"open\" }\nrate = 2000"),
    ];
    let said = room.run_well(&experiment(&room, 1, &list));
    for (name, sut, _) in list {
        let runs = room.runs(name);
        assert_eq!(runs.len(), 1, "{name}: {said}");
        let sample = runs[0].as_ref().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_carried(name, sample);
        let notes = sample["notes"].to_string();
        assert!(notes.contains(sut), "{name}: {notes}");
        if name == "stalled" {
            // the relay's own counters come from its host: without them the ledger would not add up
            let drops = sample["ledger"]["drops"].as_object().expect("counters");
            assert!(drops.keys().any(|counter| counter.starts_with("weir.")), "{sample:#}");
            assert!(sample["metrics"]["stalled_sent_packets"].as_f64() > Some(0.0), "{sample:#}");
        }
        let workers = if name == "workers" { "weir: 2 workers" } else { "weir: 1 workers" };
        assert!(sut != "weir" || notes.contains(workers), "{name}: {notes}");
    }
    let machines = &room.json("manifest.json")["machines"];
    assert_eq!(machines.as_object().map(|all| all.len()), Some(2), "{machines:#}");
    let report = room.result("report.md");
    assert!(report.contains("## Relays") && report.contains("of it TCP"), "{report}");
    assert_as_before(&room, &before);
}

#[test]
fn the_cost_between_two_machines_is_that_of_all_cpus_of_the_relays_host() {
    let test = "the_cost_between_two_machines_is_that_of_all_cpus_of_the_relays_host";
    let Some(mut room) = Room::open(test) else { return };
    room.kill_sshd(GENERATOR);
    room.start_sshd_ahead(GENERATOR);
    let before = state(&room);
    room.run_well(&experiment(&room, 1, &[("plain", "weir", "relay = {}")]));
    let runs = room.runs("plain");
    let sample = runs[0].as_ref().unwrap_or_else(|e| panic!("{e}"));
    assert_carried("plain", sample);
    let metric =
        |name: &str| sample["metrics"][name].as_f64().unwrap_or_else(|| panic!("{name}: {sample:#}"));
    // the clients' CPU is one of them here, and is never idle; the process alone is a part of it
    let all = metric("cpu_seconds_per_gb") * metric("mbps") / 8e3;
    assert!(all * 100.0 > metric("process_cpu_percent"), "{sample:#}");
    assert!(metric("ns_per_packet") > 0.0 && metric("sut_cpu_percent") > 0.0, "{sample:#}");
    // both ends of a pair are on the generator's clock, a thousand seconds from the relay's
    assert!(sample["latency_ns"]["max"].as_u64().is_some_and(|ns| ns < 100_000_000_000), "{sample:#}");
    let notes = sample["notes"].to_string();
    assert!(
        notes.contains("CPUs of the device under test") && notes.contains("what else the host does"),
        "{notes}"
    );
    assert_as_before(&room, &before);
}

#[test]
fn derper_relays_between_hosts_plain_and_through_tls() {
    let test = "derper_relays_between_hosts_plain_and_through_tls";
    let Some(room) = Room::open(test) else { return };
    if derper::program().is_none() {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {}", derper::MISSING);
        return;
    }
    let before = state(&room);
    let list =
        [("plain", "derper", "relay = {}"), ("tls", "derper", "relay = { tls = \"user\" }\nrate = 2000")];
    room.run_well(&experiment(&room, 1, &list));
    for (name, ..) in list {
        let runs = room.runs(name);
        assert_carried(name, runs[0].as_ref().unwrap_or_else(|e| panic!("{name}: {e}")));
    }
    assert_as_before(&room, &before);
}

#[test]
fn silent_clients_and_those_that_leave_are_measured_between_hosts() {
    let test = "silent_clients_and_those_that_leave_are_measured_between_hosts";
    let Some(room) = Room::open(test) else { return };
    let before = state(&room);
    let list = [
        ("idle", "weir", "relay = { load = \"idle\" }\nflows = 200"),
        ("connects", "weir", "relay = { load = \"connects\", tls = \"user\" }"),
        ("reconnects", "weir", "relay = { load = \"reconnects\" }"),
    ];
    room.run_well(&experiment(&room, 1, &list));
    let metric = |name: &str, metric: &str| {
        let runs = room.runs(name);
        let sample = runs[0].as_ref().unwrap_or_else(|e| panic!("{name}: {e}"));
        sample["metrics"][metric].as_f64().unwrap_or_else(|| panic!("{name}: no {metric}: {sample:#}"))
    };
    assert!(metric("idle", "memory_bytes_per_client") > 100.0, "a client has some memory");
    assert!(metric("idle", "memory_bytes_after") > metric("idle", "memory_bytes_before"));
    for name in ["connects", "reconnects"] {
        assert!(metric(name, "connects_per_second") > 0.0 && metric(name, "cpu_ms_per_connect") > 0.0);
        assert!(metric(name, "generator_busy_percent") > 0.0);
    }
    assert_as_before(&room, &before);
}

#[test]
fn a_relay_that_dies_and_a_host_that_is_lost_cost_their_own_runs() {
    let test = "a_relay_that_dies_and_a_host_that_is_lost_cost_their_own_runs";
    let Some(mut room) = Room::open(test) else { return };
    let before = state(&room);
    let text = experiment(&room, 5000, &[("plain", "weir", "relay = {}")]);
    let text = text.replace("window = \"200ms\"", "window = \"600ms\"");
    let text = text.replace("[hosts.timeouts]\n", "[hosts.timeouts]\nconnect = \"1s\"\nanswer = \"3s\"\n");
    let mut lab = room.start(&text);
    let good = |room: &Room| room.runs("plain").iter().filter(|run| run.is_ok()).count();
    let failed = |room: &Room, why: &str| {
        room.runs("plain").iter().any(|run| run.as_ref().is_err_and(|e| e.contains(why)))
    };
    wait_for("first run", &mut lab, || good(&room) >= 1);

    let ended = "weir: ended while it was measured";
    wait_for("run that its relay has failed", &mut lab, || {
        let relay = room.processes(DEVICE).into_iter().find(|(_, command)| command == "weir");
        // One that still starts is killed for nothing: it is the start that fails.
        relay.map(|(id, _)| process::kill(id));
        std::thread::sleep(Duration::from_millis(333));
        failed(&room, ended)
    });
    let seen = good(&room);
    wait_for("good run after its relay died", &mut lab, || good(&room) > seen);

    room.kill_sshd(DEVICE);
    wait_for("refused run after sshd was killed", &mut lab, || failed(&room, "is sshd running there"));
    room.start_sshd(DEVICE);
    let seen = good(&room);
    wait_for("good run after sshd came back", &mut lab, || good(&room) > seen);

    lab.kill().and_then(|()| lab.wait()).expect("our child");
    room.runs("plain").iter().flatten().for_each(|sample| assert_carried("plain", sample));
    assert_as_before(&room, &before);
}

#[test]
fn what_cannot_be_a_relay_on_hosts_is_skipped_or_fails_with_the_remedy() {
    let test = "what_cannot_be_a_relay_on_hosts_is_skipped_or_fails_with_the_remedy";
    let Some(room) = Room::open(test) else { return };
    let before = state(&room);
    let list = [
        ("forwards", "kernel", "relay = {}"),
        ("everywhere", "hyper-derp", "relay = {}"),
        ("six", "weir", "relay = {}\nfamily = \"inet6\""),
        ("mixed", "weir", "relay = {}\nframe = \"imix\""),
        ("two", "tcp-forwarder", "relay = { workers = 2 }"),
        ("crowded", "weir", "relay = { workers = 64 }"),
        ("good", "weir", "relay = {}"),
    ];
    let text = format!("baseline = true\n{}", experiment(&room, 1, &list));
    room.run_well(&text);
    let result = room.json("result.json");
    let skipped = result["skipped"].to_string();
    for expected in [
        "kernel: is no relay here: use sut",
        "hyper-derp: would listen on every address of its host",
        "relay: its clients use IPv4",
        "relay: packets of one size",
        "it has one thread: use workers = 1",
        "baseline: on hosts clients reach each other through the device under test alone",
    ] {
        assert!(skipped.contains(expected), "no {expected} in {skipped}");
    }
    let runs = room.runs("crowded");
    let crowded = runs[0].as_ref().expect_err("no host has so many cores");
    assert!(crowded.contains("device_under_test (root@10.99.2.2): apply: relay: 64 workers"), "{crowded}");
    assert!(room.runs("good")[0].is_ok(), "{:?}", room.runs("good"));

    // an address of the operator's is left alone
    let device = &room.hosts[DEVICE];
    let wire = &room.ports[DEVICE][0];
    device.ip(&format!("address add 10.10.0.1/24 dev {wire}")).expect("our own link");
    let output = room.run(&experiment(&room, 1, &[("good", "weir", "relay = {}")]));
    assert_eq!(output.status.code(), Some(1), "nothing was measured");
    let refused = room.runs("good")[0].clone().expect_err("refused");
    assert!(refused.contains("10.10.0.1: this host has the address already"), "{refused}");
    device.ip(&format!("address del 10.10.0.1/24 dev {wire}")).expect("it is still there");

    // the relay's wire ends where no client is
    let other = &room.ports[DEVICE][1];
    let text = experiment(&room, 1, &[("good", "weir", "relay = {}")]);
    let text = text.replace(&format!("input = \"{wire}\""), &format!("input = \"{other}\""));
    let text = text.replace("[hosts.timeouts]\n", "[hosts.timeouts]\nhealth = \"500ms\"\n");
    let output = room.run(&text);
    assert_eq!(output.status.code(), Some(1), "nothing was measured");
    let refused = room.runs("good")[0].clone().expect_err("refused");
    assert!(refused.contains("relay: cannot be reached at 10.10.0.1:3340 in 500ms"), "{refused}");
    assert_as_before(&room, &before);
}
