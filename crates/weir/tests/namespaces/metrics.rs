//! Metrics as their readers want them: Prometheus' own checker takes them, and what alerts and the dashboard name is there.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir::testing::daemon::{Running, program};

use super::gateways::{GCM, Gateways, families, pair, policies, ports};
use super::testbed::{Router, until};

/// A gateway in policy mode that follows the kernel's routes, so that it has every family there is; its SAs have lifetimes.
pub fn gateway(test: &str) -> Option<(Gateways, [Router; 2])> {
    let testbed = Gateways::new(test)?;
    testbed.keys(&["a-east", "a-west"], GCM);
    let suite = super::gateways::Suite { more: "hard = { seconds = 3600 }", ..GCM };
    let text = |side| {
        let file =
            ports(side, "af_packet") + &pair(side, "a", 0x1000, families()[0], suite) + &policies(side, "a");
        // Static routes beside the kernel's, as `routes = "kernel"` has it.
        "routes = \"kernel\"\n".to_owned() + &file
    };
    let routers = testbed.start(text);
    Some((testbed, routers))
}

/// A relay with a certificate of its own making.
pub fn relay(folder: &Path) -> Running {
    let socket = folder.join("relay.sock");
    let mut command = Command::new(program());
    command.arg("--socket").arg(&socket);
    command.args(["relay", "--dev", "--tls", "user", "--listen", "127.0.0.1:0", "--epoll"]);
    let running = Running::start(&mut command, socket);
    until("the relay is ready", || running.log().contains("is ready").then_some(()));
    running
}

pub fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

/// Runs promtool, with `input`: nothing where it is absent, which is said.
fn promtool(test: &str, args: &[&str], input: &str) -> Option<(bool, String)> {
    let started = Command::new("promtool")
        .args(args)
        .current_dir(packaging("prometheus"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        writeln!(std::io::stderr(), "SKIP {test}: needs promtool; install prometheus")
            .expect("stderr is open");
        return None;
    };
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Some((output.status.success(), said.into_owned()))
}

#[test]
fn promtool_finds_nothing_wrong_with_metrics_of_gateway_and_relay() {
    let test = "promtool_finds_nothing_wrong_with_metrics_of_gateway_and_relay";
    let Some((testbed, [west, _east])) = gateway(test) else { return };
    let relay = relay(&testbed.west.folder);
    for text in [west.metrics(), relay.metrics()] {
        let Some((clean, said)) = promtool(test, &["check", "metrics"], &text) else { return };
        assert!(clean && said.trim().is_empty(), "{said}\n{text}");
    }
    // What it does not like it says: the check is one.
    let gauge = "# HELP x_total X\n# TYPE x_total gauge\nx_total 1\n";
    let (_, said) = promtool(test, &["check", "metrics"], gauge).expect("it was there before");
    assert!(said.contains("x_total"), "{said}");
}

#[test]
fn alert_rules_fire_where_they_should_and_nowhere_else() {
    let test = "alert_rules_fire_where_they_should_and_nowhere_else";
    for args in [["check", "rules", "weir.rules.yml"], ["test", "rules", "weir.rules.test.yml"]] {
        let Some((clean, said)) = promtool(test, &args, "") else { return };
        assert!(clean, "{said}");
    }
}

/// What a dashboard asks is PromQL, and no two panels lie on each other.
#[test]
fn every_panel_of_the_dashboard_asks_what_prometheus_understands() {
    let text = std::fs::read_to_string(packaging("grafana/weir.json")).expect("packaging has it");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut rules = String::from("groups:\n- name: panels\n  rules:\n");
    let (mut asked, mut taken) = (0, BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        let side = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        for x in side("x")..side("x") + side("w") {
            for y in side("y")..side("y") + side("h") {
                assert!(x < 24 && taken.insert((x, y)), "{title} lies on another panel or beside the page");
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("an expression");
            let expression = expression.replace("$instance", ".*").replace("$__rate_interval", "1m");
            assert!(!expression.contains('$'), "{title}: {expression}");
            asked += 1;
            rules += &format!("  - record: panel:{asked}\n    expr: {}\n", serde_json::json!(expression));
        }
    }
    assert!(asked > 20, "{asked}");
    let test = "every_panel_of_the_dashboard_asks_what_prometheus_understands";
    let Some((clean, said)) = promtool(test, &["check", "rules", "/dev/stdin"], &rules) else { return };
    assert!(clean, "{said}");
    let (clean, _) =
        promtool(test, &["check", "rules", "/dev/stdin"], &rules.replace("sum", "smu")).expect("as before");
    assert!(!clean, "the check is one");
}

/// Names of metrics in a text of rules or of a dashboard.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|w| w.starts_with("weir_") || w.starts_with("process_")).map(str::to_owned).collect()
}

#[test]
fn what_alerts_and_dashboard_name_is_exported() {
    let Some((testbed, [west, _east])) = gateway("what_alerts_and_dashboard_name_is_exported") else {
        return;
    };
    let relay = relay(&testbed.west.folder);
    let texts = west.metrics() + &relay.metrics();
    let samples = texts.lines().filter(|line| !line.starts_with('#'));
    let exported: BTreeSet<&str> = samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
    for file in ["prometheus/weir.rules.yml", "prometheus/weir.rules.test.yml", "grafana/weir.json"] {
        let text = std::fs::read_to_string(packaging(file)).expect("packaging has it");
        let named = named(&text);
        assert!(named.len() > 10, "{file}: {named:?}");
        let missing: Vec<&String> = named.iter().filter(|name| !exported.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "{file} names what nobody exports: {missing:?}");
    }
    let dashboard = std::fs::read_to_string(packaging("grafana/weir.json")).expect("packaging has it");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 20));
}
