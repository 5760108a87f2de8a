//! The ssh topology against real sshd: whole campaigns, and everything that goes wrong with hosts.

pub mod room;

use std::io::Write as _;
use std::process::{Child, Command};

use room::{DEVICE, GENERATOR, RECEIVER, Room, wait_for};
use serde_json::Value;
use weir_io::channels::Queues;

/// Shared by every experiment here; `runs` first.
const HEAD: &str = "title = \"Hosts\"\nquestion = \"Do hosts work?\"\nwarm_up = \"20ms\"\nwindow = \"100ms\"\n\
    [defaults]\ntopology = \"ssh\"\nflows = 24\nroutes = 10\nrate = 5000\n";

/// What the kernel SUT does, as an operator's commands, and a daemon that outlives them.
const BY_HAND: &str = r#"
[configuration.command]
files = { "on" = "1\n" }
apply = '''
cat on > /proc/sys/net/ipv4/ip_forward
ip link set $WEIR_INPUT up && ip link set $WEIR_OUTPUT up
while read device address; do ip address add $address dev $device nodad; done < addresses
while read gateway mac; do ip neighbour replace $gateway lladdr $mac dev $WEIR_OUTPUT; done < neighbours
while read prefix gateway; do ip route add $prefix via $gateway; done < routes
setsid sleep 600 &
'''
health_check = "ip route get 10.20.0.2"
counters = '''awk '/^Ip:/ && n++ { print "in_discards", $9 }' /proc/net/snmp'''
teardown = '''
while read device address; do ip address del $address dev $device; done < addresses
while read gateway mac; do ip neighbour del $gateway dev $WEIR_OUTPUT; done < neighbours
while read prefix gateway; do ip route del $prefix via $gateway 2>&1; done < routes
echo 0 > /proc/sys/net/ipv4/ip_forward
'''
"#;

fn configurations(list: &[(&str, &str, &str)]) -> String {
    let one = |(name, sut, more): &(&str, &str, &str)| {
        format!("[[configuration]]\nname = \"{name}\"\nsut = \"{sut}\"\n{more}\n")
    };
    list.iter().map(one).collect()
}

fn experiment(room: &Room, runs: usize, list: &[(&str, &str, &str)], timeouts: &str) -> String {
    format!("runs = {runs}\n{HEAD}{}{}", configurations(list), room.hosts_table(timeouts))
}

/// sent = delivered + what counters name.
pub fn assert_adds_up(sample: &Value) {
    let n = |value: &Value| value.as_i64().expect("a count");
    let ledger = &sample["ledger"];
    let drops: i64 = ledger["drops"].as_object().expect("counters").values().map(n).sum();
    assert!(n(&ledger["delivered"]) > 0, "{sample:#}");
    assert_eq!(n(&ledger["sent"]), n(&ledger["delivered"]) + drops, "{sample:#}");
    assert_eq!((n(&sample["reordered"]), n(&sample["duplicated"])), (0, 0), "{sample:#}");
}

/// Runs of the kernel that delivered packets so far, and runs that failed.
fn good(room: &Room) -> usize {
    room.runs("kernel").iter().filter(|run| run.is_ok()).count()
}

fn bad(room: &Room) -> usize {
    room.runs("kernel").iter().filter(|run| run.is_err()).count()
}

/// A campaign that does not end by itself and soon gives a host up; its first run is done.
fn start_long(room: &Room) -> Child {
    let timeouts = "connect = \"1s\"\nanswer = \"3s\"";
    let mut lab = room.start(&experiment(room, 5000, &[("kernel", "kernel", "")], timeouts));
    wait_for("first run", &mut lab, || good(room) >= 1);
    lab
}

/// Ctrl-C; why runs failed.
fn interrupt(room: &Room, lab: Child) -> Vec<String> {
    let interrupted = Command::new("kill").args(["-INT", &lab.id().to_string()]).status().expect("kill");
    assert!(interrupted.success());
    let output = lab.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    room.runs("kernel").into_iter().filter_map(Result::err).collect()
}

#[test]
fn kernel_weir_and_commands_are_measured_on_hosts_that_stay_as_they_were() {
    let Some(room) = Room::open("kernel_weir_and_commands_are_measured_on_hosts_that_stay_as_they_were")
    else {
        return;
    };
    let before = room.settled();
    let list = [
        ("kernel", "kernel", ""),
        ("kernel6", "kernel", "family = \"inet6\"\nrate = \"flat-out\""),
        ("weir", "weir", "cpus = \"0\"\nframe = \"imix\""),
        ("xdp-fib", "xdp-fib", ""),
        ("by-hand", "command", BY_HAND),
    ];
    let said = room.run_well(&experiment(&room, 2, &list, ""));
    for (name, ..) in list {
        let runs = room.runs(name);
        assert_eq!(runs.len(), 2, "{name}: {said}");
        for run in runs {
            let sample = run.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_adds_up(&sample);
            // All "hosts" are one boot of one kernel, so they read one clock.
            assert!(sample["latency_ns"]["p50"].as_u64().expect("latency") > 0, "{sample:#}");
        }
    }
    let machines = &room.json("manifest.json")["machines"];
    for part in ["generator", "device_under_test", "receiver"] {
        assert!(machines[part]["kernel"].as_str().is_some_and(|k| !k.is_empty()), "{part}: {machines:#}");
    }
    room.assert_as_before(&before);
}

/// The shipped experiment for a card of one's own, on hosts of this machine: what of it a veth has, and what it has not by name.
#[test]
fn modes_of_a_card_are_tried_on_its_host_and_the_best_are_written_as_weirs_settings() {
    let test = "modes_of_a_card_are_tried_on_its_host_and_the_best_are_written_as_weirs_settings";
    let Some(room) = Room::open_with(test, 2) else { return };
    // a veth spreads nothing: what its other end sends by a second queue meets no socket where there is one
    let near = room.ports[GENERATOR][0].clone();
    let one = room.hosts[GENERATOR].run(move || Queues::set(&near, 1).map(std::mem::forget));
    one.expect("its thread runs").expect("a veth has queues");
    let before = room.settled();
    let shipped = include_str!("../../../../labs/nic-modes.toml");
    let (head, rest) = shipped.split_once("[hosts.generator]").expect("hosts are named");
    let (_, configurations) = rest.split_once("[defaults]").expect("before the configurations");
    let head =
        head.replace("runs = 10", "runs = 2").replace("\"1s\"", "\"20ms\"").replace("\"5s\"", "\"100ms\"");
    let fewer = [
        ("flows = 1200", "flows = 24\nrate = 2000\ncpus = \"0\""),
        ("routes = 1000", "routes = 10"),
        ("queues = [1, 2]", "queues = [1, 3]"),
    ];
    let configurations = fewer.iter().fold(configurations.to_string(), |text, (a, b)| text.replace(a, b));
    let said = room.run_well(&format!("{head}[defaults]{configurations}{}", room.hosts_table("")));
    for name in ["auto", "copy-interrupt-1", "copy-busy-poll-1"] {
        for run in room.runs(name) {
            let sample = run.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_adds_up(&sample);
            let notes = sample["notes"].to_string();
            assert_eq!(
                notes.contains("din queue 1: "),
                name == "auto",
                "{name}: one queue where one was asked for: {notes}"
            );
            assert_eq!(notes.contains("zero-copy refused"), name == "auto", "{name}: {notes}");
            assert_eq!(notes.contains("busy polling"), name != "copy-interrupt-1", "{name}: {notes}");
        }
        assert_eq!(room.runs(name).len(), 2, "{name}: {said}");
    }
    for run in room.runs("irq-1") {
        let notes = run.expect("a veth has no interrupts to place")["notes"].to_string();
        assert!(notes.contains("irq: no interrupts of queues are known"), "{notes}");
    }
    let refused = |name: &str, expected: &str| {
        let runs = room.runs(name);
        let error = runs[0].as_ref().expect_err(name);
        assert!(error.contains(expected), "{name}\n  got      {error}\n  expected {expected}");
    };
    refused("zero-copy-interrupt-1", "or write `zero_copy = \"auto\"` in [workers]");
    refused("copy-interrupt-3", "got 3 queues, expected 1 to 2: the device has no more; see `ethtool -l ");
    let settings = room.json("result.json")["settings"].clone();
    let modes = settings["modes"].as_array().expect("modes");
    assert_eq!((settings["default"].as_str(), modes.len()), (Some("auto"), 11), "{settings:#}");
    let fragment = room.result("weir.toml");
    assert!(fragment.starts_with("# out (Modes of a network card), 2 runs each: "), "{fragment}");
    assert!(fragment.contains("\n[workers]\ncpus = [0]\n"), "{fragment}");
    room.assert_as_before(&before);
}

#[test]
fn the_experiment_to_start_from_runs_as_soon_as_its_hosts_are_named() {
    let test = "the_experiment_to_start_from_runs_as_soon_as_its_hosts_are_named";
    let Some(room) = Room::open(test) else { return };
    let before = room.settled();
    let written = include_str!("../../src/cli/new/command.toml").replace("@NAME@", "mine");
    let (head, rest) = written.split_once("[hosts.generator]").expect("hosts are named");
    let (_, configurations) = rest.split_once("[defaults]").expect("before the configurations");
    let head =
        head.replace("\"1s\"", "\"20ms\"").replace("\"5s\"", "\"100ms\"").replace("runs = 10", "runs = 1");
    let configurations =
        configurations.replace("flows = 1200", "flows = 24").replace("routes = 1000", "routes = 10");
    let said = room.run_well(&format!("{head}[defaults]{configurations}{}", room.hosts_table("")));
    for name in ["a", "b", "a~again"] {
        for run in room.runs(name) {
            assert_adds_up(&run.unwrap_or_else(|e| panic!("{name}: {e}")));
        }
        assert_eq!(room.runs(name).len(), 1, "{name}: {said}");
    }
    room.assert_as_before(&before);
}

#[test]
fn dead_and_silent_hosts_cost_the_runs_they_miss_and_ctrl_c_leaves_nothing() {
    let test = "dead_and_silent_hosts_cost_the_runs_they_miss_and_ctrl_c_leaves_nothing";
    let Some(mut room) = Room::open(test) else { return };
    let before = room.settled();
    let mut lab = start_long(&room);

    // the first failure is the broken connection, the next the refused one
    let refused = |room: &Room| {
        room.runs("kernel").iter().any(|run| run.as_ref().is_err_and(|e| e.contains("is sshd running there")))
    };
    room.kill_sshd(RECEIVER);
    wait_for("refused run after sshd was killed", &mut lab, || refused(&room));
    room.start_sshd(RECEIVER);
    let seen = good(&room);
    wait_for("good run after sshd came back", &mut lab, || good(&room) > seen);

    let failed = bad(&room);
    room.lab.ip(&format!("link set control{GENERATOR} down")).expect("our own link");
    wait_for("failed run after the network was gone", &mut lab, || bad(&room) > failed);
    room.lab.ip(&format!("link set control{GENERATOR} up")).expect("our own link");
    let seen = good(&room);
    wait_for("good run after the network came back", &mut lab, || good(&room) > seen);

    let errors = interrupt(&room, lab);
    assert!(errors.iter().any(|e| e.starts_with("receiver (root@10.99.3.2): ")), "{errors:#?}");
    assert!(errors.iter().any(|e| e.starts_with("generator (root@10.99.1.2): ")), "{errors:#?}");
    let result = room.json("result.json");
    assert_eq!(result["runs_failed"], errors.len());
    room.runs("kernel").into_iter().flatten().for_each(|sample| assert_adds_up(&sample));
    room.assert_as_before(&before);
}

#[test]
fn a_host_cut_off_from_its_lab_is_taken_over_by_the_next_connection_and_left_as_it_was() {
    let test = "a_host_cut_off_from_its_lab_is_taken_over_by_the_next_connection_and_left_as_it_was";
    let Some(mut room) = Room::open(test) else { return };
    let before = room.settled();
    let mut lab = start_long(&room);

    // The lab moves to another address: the old connection never says that it ended.
    let wire = format!("control{GENERATOR}");
    for words in [
        format!("link set {wire} down"),
        format!("address del 10.99.1.1/24 dev {wire}"),
        format!("address add 10.99.1.77/24 dev {wire}"),
    ] {
        room.lab.ip(&words).expect("our own link");
    }
    wait_for("failed run without a network", &mut lab, || bad(&room) >= 1);
    let seen = good(&room);
    room.lab.ip(&format!("link set {wire} up")).expect("our own link");
    wait_for("good run from the new address", &mut lab, || good(&room) > seen);
    let agents = room.processes(GENERATOR).into_iter().filter(|(_, command)| command == "weir-lab").count();
    assert_eq!(agents, 1, "the agent before has ended");

    // With it goes the old connection, which nobody closes.
    room.kill_sshd(GENERATOR);
    room.start_sshd(GENERATOR);
    let errors = interrupt(&room, lab);
    assert!(!errors.iter().any(|e| e.contains("lease: ")), "{errors:#?}");
    room.assert_as_before(&before);
}

#[test]
fn a_second_lab_on_the_same_hosts_is_refused_and_the_first_goes_on() {
    let Some(room) = Room::open("a_second_lab_on_the_same_hosts_is_refused_and_the_first_goes_on") else {
        return;
    };
    let before = room.settled();
    let text = experiment(&room, 5000, &[("kernel", "kernel", "")], "");
    let mut first = room.start(&text);
    wait_for("first run", &mut first, || !room.runs("kernel").is_empty());
    let single = text.replacen("runs = 5000", "runs = 1", 1);
    let second = room.start_into("second", &single).wait_with_output().expect("it ends");
    assert_eq!(second.status.code(), Some(1), "nothing was measured");
    let errors = room.runs_of("second", "kernel");
    let error = errors[0].as_ref().expect_err("refused");
    let expected = format!("lease: the host is in use by another lab, process {} on ", first.id());
    assert!(error.starts_with("generator (root@10.99.1.2): ") && error.contains(&expected), "{error}");
    let seen = room.runs("kernel").len();
    wait_for("another run of the first", &mut first, || room.runs("kernel").len() > seen);
    first.kill().and_then(|()| first.wait()).expect("our child");
    assert!(room.runs("kernel").iter().all(Result::is_ok), "{:?}", room.runs("kernel"));
    room.assert_as_before(&before);
}

#[test]
fn two_clocks_give_rates_but_no_latency() {
    let Some(mut room) = Room::open("two_clocks_give_rates_but_no_latency") else { return };
    room.replace_receiver();
    let before = room.settled();
    room.run_well(&experiment(&room, 1, &[("kernel", "kernel", "")], ""));
    let runs = room.runs("kernel");
    let sample = runs[0].as_ref().unwrap_or_else(|e| panic!("{e}"));
    assert_adds_up(sample);
    assert_eq!(sample["latency_ns"], serde_json::json!({}), "{sample:#}");
    // Taken as one clock, the last packet came 1000 s after the window.
    assert!(sample["seconds"].as_f64().expect("a length") < 100.0, "{sample:#}");
    let notes = sample["notes"].to_string();
    assert!(notes.contains("clocks of their own") && notes.contains("falls back to af_packet"), "{notes}");
    room.assert_as_before(&before);
}

#[test]
fn a_killed_lab_leaves_nothing_on_its_hosts() {
    let Some(room) = Room::open("a_killed_lab_leaves_nothing_on_its_hosts") else { return };
    let before = room.settled();
    for (name, sut, more) in [("weir", "weir", "cpus = \"0\""), ("by-hand", "command", BY_HAND)] {
        let mut lab = room.start(&experiment(&room, 5000, &[(name, sut, more)], ""));
        wait_for("run", &mut lab, || !room.runs(name).is_empty());
        lab.kill().and_then(|()| lab.wait()).expect("our child");
        assert!(room.runs(name)[0].is_ok(), "{:?}", room.runs(name));
        room.assert_as_before(&before);
    }
}

#[test]
fn commands_that_hang_or_fail_cost_their_own_runs_and_say_why() {
    let Some(room) = Room::open("commands_that_hang_or_fail_cost_their_own_runs_and_say_why") else { return };
    let before = room.settled();
    let command = |more: &str| format!("[configuration.command]\n{more}\n");
    let hangs = command("apply = \"echo before; sleep 600\"");
    let fails = command("apply = \"echo no such router >&2; exit 4\"");
    let idle = command("apply = \"true\"");
    let unwell = command("apply = \"true\"\nhealth_check = \"echo not yet; false\"");
    let list = [
        ("hangs", "command", hangs.as_str()),
        ("fails", "command", fails.as_str()),
        ("idle", "command", idle.as_str()),
        ("unwell", "command", unwell.as_str()),
        ("good", "kernel", ""),
    ];
    room.run_well(&experiment(&room, 1, &list, "apply = \"1500ms\"\nhealth = \"1s\""));
    for (name, expected) in [
        ("hangs", "device_under_test (root@10.99.2.2): apply: apply: ended, not done after 1.5s"),
        ("fails", "exit status: 4); it said: no such router"),
        ("idle", "health check: none of "),
        ("unwell", "device_under_test (root@10.99.2.2): health check: not well after 1s"),
    ] {
        let runs = room.runs(name);
        let error = runs[0].as_ref().expect_err("it cannot be measured");
        assert!(error.contains(expected), "{name}\n  got      {error}\n  expected {expected}");
    }
    assert!(room.runs("good")[0].is_ok(), "{:?}", room.runs("good"));
    room.assert_as_before(&before);
}

#[test]
fn a_host_that_is_not_as_expected_is_refused_with_the_remedy() {
    let Some(room) = Room::open("a_host_that_is_not_as_expected_is_refused_with_the_remedy") else {
        return;
    };
    let before = room.settled();
    let text = experiment(&room, 1, &[("kernel", "kernel", "")], "");
    let refusal = |text: &str, expected: &str| {
        let output = room.run(text);
        let runs = room.runs("kernel");
        let error = runs[0].as_ref().expect_err("refused");
        assert!(error.contains(expected), "got {error}\nexpected {expected}");
        assert_eq!(output.status.code(), Some(1), "nothing was measured");
    };
    let control = text.replace(&format!("input = \"{}\"", room.ports[DEVICE][0]), "input = \"control\"");
    refusal(&control, "control: carries the ssh connection");
    refusal(&text.replace(&room.ports[RECEIVER][0], "eth77"), "no interface eth77; there are ");
    refusal(&text.replace("/user\"", "/host0\""), "put your public key into its authorized_keys");
    let device = &room.hosts[DEVICE];
    match device.ip("link add br7 type bridge") {
        Ok(()) => {
            device.ip(&format!("link set {} master br7", room.ports[DEVICE][0])).expect("our own bridge");
            refusal(&text, "carries br7, which test traffic would disturb");
            device.ip("link del br7").expect("our own bridge");
        }
        Err(e) => {
            writeln!(std::io::stderr(), "SKIP an interface under a bridge is refused: {e}").expect("open")
        }
    }
    room.allow_programs(GENERATOR, false);
    refusal(&text, "mounted without noexec");
    room.allow_programs(GENERATOR, true);
    let known = std::fs::read_to_string(room.folder.join("known_hosts")).expect("written");
    let receiver = room.address(RECEIVER);
    room.write("known_hosts", &known.replace(&receiver, "10.99.3.77"));
    refusal(&text, "receiver (root@10.99.3.2): connect: the connection ended");
    room.make_key("other");
    let other = std::fs::read_to_string(room.folder.join("other.pub")).expect("made");
    room.write(
        "known_hosts",
        &known.replace(known.lines().last().expect("three"), &format!("{receiver} {other}")),
    );
    refusal(&text, "compare its fingerprint on its console");
    room.assert_as_before(&before);
}
