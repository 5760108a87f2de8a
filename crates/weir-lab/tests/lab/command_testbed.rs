//! A SUT that is any program, between the lab's own namespaces: the program as a user runs it.

use std::fs;

use serde_json::Value;
use weir_testing::folder::Folder;

use crate::common::program::{run, told};

/// What the kernel SUT does, as an operator's commands, and a daemon that outlives them.
const EXPERIMENT: &str = r#"
title = "Commands"
question = "Do commands forward?"
runs = 2
warm_up = "20ms"
window = "100ms"
compare = "sut"
[defaults]
topology = "netns"
flows = 24
routes = 10
rate = 5000
[[configuration]]
name = "{sut}"
sut = ["kernel", "command"]
[configuration.command]
files = { "on" = "1\n" }
apply = '''
cat on > /proc/sys/net/ipv4/ip_forward
while read device address; do ip address add $address dev $device nodad; done < addresses
while read gateway mac; do ip neighbour replace $gateway lladdr $mac dev $WEIR_OUTPUT; done < neighbours
while read prefix gateway; do ip route add $prefix via $gateway; done < routes
setsid sleep 86399 &
echo $! > @FOLDER@/daemon
'''
health_check = "ip route get 10.20.0.2"
counters = '''awk '/^Ip:/ && n++ { print "in_discards", $9 }' /proc/net/snmp'''
teardown = "ip -o link > @FOLDER@/links; test ! -e /sys/class/net/lo0"
"#;

fn campaign(folder: &Folder, text: &str) -> Option<(bool, String, Vec<Value>)> {
    let file = folder.0.join("commands.toml");
    fs::write(&file, text.replace("@FOLDER@", &folder.0.display().to_string())).expect("space");
    let out = folder.0.join("out");
    let (ok, _, said) = told(&run(&["run", &file.to_string_lossy(), "--out", &out.to_string_lossy()]));
    if said.contains("root") || said.contains("CAP_") {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "SKIP commands between namespaces: {said}");
        return None;
    }
    let raw = fs::read_to_string(out.join("raw/command.jsonl")).expect("runs are kept");
    Some((ok, said, raw.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()))
}

#[test]
fn any_program_is_measured_between_namespaces_and_nothing_of_it_stays() {
    let folder = Folder::new("commands");
    let Some((ok, said, runs)) = campaign(&folder, EXPERIMENT) else { return };
    assert!(ok, "{said}");
    assert_eq!(runs.len(), 2);
    for run in runs {
        let ledger = &run["outcome"]["sample"]["ledger"];
        let ledger = if ledger.is_null() { &run["sample"]["ledger"] } else { ledger };
        let n = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("a count in {run:#}"));
        let drops: i64 = ledger["drops"].as_object().expect("counters").values().map(n).sum();
        assert!(n(&ledger["delivered"]) > 0, "{run:#}");
        assert_eq!(n(&ledger["sent"]), n(&ledger["delivered"]) + drops, "{run:#}");
    }
    let daemon = folder.read("daemon");
    let command = fs::read_to_string(format!("/proc/{}/cmdline", daemon.trim())).unwrap_or_default();
    assert!(!command.contains("86399"), "what apply left running is ended");
    let links = folder.read("links");
    assert!(links.contains("din-") && links.contains("dout-"), "teardown ran where apply did: {links}");
}

#[test]
fn a_program_that_does_not_get_well_costs_its_own_runs() {
    let folder = Folder::new("commands-unwell");
    let unwell = EXPERIMENT.replace("ip route get 10.20.0.2", "exit 3").replace("runs = 2", "runs = 1");
    let text = unwell.replace("apply = '''", "apply = '''\nexit 4\n");
    let Some((_, _, runs)) = campaign(&folder, &text) else { return };
    let said = runs[0].to_string();
    assert!(said.contains("apply: `") && said.contains("exit status: 4"), "{said}");
    assert!(folder.read("links").contains("din-"), "teardown runs also when apply failed");
}
