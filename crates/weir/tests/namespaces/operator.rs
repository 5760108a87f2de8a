//! What an operator does: asks, traces, applies, reloads, stops; and what the answers look like.

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use weir_io::{netns, offload};

use super::testbed::{Router, Testbed, run, until};
use super::traffic::{Echo, ping, under_traffic, ways};

const ROUTES: &str = "[[route]]\nprefix = \"10.9.0.0/16\"\nvia = \"10.2.0.2\"\n\
    [[route]]\nprefix = \"10.66.0.0/16\"\nvia = \"prohibited\"\n";

#[test]
fn show_trace_and_top_tell_what_is() {
    let Some(testbed) = Testbed::new("show_trace_and_top_tell_what_is") else { return };
    let router = testbed.start(&testbed.config("auto", ROUTES));
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
    router.wait_for_metric("weir_port_rx_packets_total", "port=\"left\"", 2);
    let routes = router.told(&["show", "routes"]);
    assert!(routes.contains("10.9.0.0/16") && routes.contains("10.2.0.2@right"), "{routes}");
    assert!(routes.contains("prohibited"), "{routes}");
    let neighbors = router.told(&["show", "neighbors"]);
    assert!(neighbors.contains("10.2.0.2") && neighbors.contains("fd02::2"), "{neighbors}");
    assert!(neighbors.contains("learned"), "{neighbors}");
    let status = router.told(&["show", "status"]);
    assert!(status.contains("0 frames unaccounted for"), "{status}");
    let ports = router.json("ports");
    let left = ports.as_array().and_then(|p| p.iter().find(|p| p["name"] == "left")).expect("the port");
    assert!(left["rx_packets"].as_u64() > Some(0), "{left}");
    assert_eq!(left["kind"], "af_xdp");
    let trace = |dst: &str, more: &[&str]| {
        let mut args = vec!["trace", "--port", "left", "--src", "10.1.0.2", "--dst", dst];
        args.extend(more);
        router.told(&args)
    };
    let forwarded = trace("10.9.1.2", &[]);
    assert!(forwarded.contains("10.9.0.0/16 via 10.2.0.2 on right (static)"), "{forwarded}");
    assert!(forwarded.contains("forward by right"), "{forwarded}");
    assert!(trace("10.66.0.1", &["--proto", "tcp"]).contains("drop: prohibited"));
    assert!(trace("172.16.0.1", &[]).contains("drop: no_route"));
    assert!(trace("10.9.1.2", &["--ttl", "1"]).contains("drop: ttl_expired"));
    assert!(trace("10.1.0.1", &[]).contains("local"));
    let json: serde_json::Value = serde_json::from_str(&trace("10.9.1.2", &["--json"])).expect("JSON");
    assert_eq!((&json["verdict"], &json["port"]), (&"forward".into(), &"right".into()));
    let top = router.told(&["top", "--once", "--every", "0.1"]);
    assert!(top.contains("rx pkts/s") && top.contains("left") && top.contains("no drops"), "{top}");
    assert!(!top.contains('\x1b'), "no escapes in a pipe");
}

#[test]
fn curl_speaks_to_the_control_socket() {
    let test = "curl_speaks_to_the_control_socket";
    let Some(testbed) = Testbed::new(test) else { return };
    if std::process::Command::new("curl").arg("--version").output().is_err() {
        writeln!(std::io::stderr(), "SKIP {test}: needs curl").expect("stderr is open");
        return;
    }
    let router = testbed.start(&testbed.config("auto", ""));
    let curl = |more: &str| run(&format!("curl -sS --unix-socket {} {more}", router.socket.display()));
    let ports: serde_json::Value = serde_json::from_str(&curl("http://weir/v1/ports")).expect("JSON");
    assert_eq!(ports.as_array().map(Vec::len), Some(2));
    let file = testbed.file("next.toml", &testbed.config("auto", ROUTES));
    let dry = curl(&format!("--data-binary @{} http://weir/v1/apply?dry-run", file.display()));
    assert!(dry.contains("\"applied\":false") && dry.contains("+ route 10.9.0.0/16"), "{dry}");
    assert!(!router.told(&["show", "routes"]).contains("10.9.0.0/16"));
    let wrong = curl("-d nonsense http://weir/v1/apply?file=x.toml");
    assert!(wrong.contains("x.toml:1:") && wrong.contains("\"responsible\":\"operator\""), "{wrong}");
    let trace = curl("-d {\"port\":\"left\",\"frame\":\"00\"} http://weir/v1/trace");
    assert!(trace.contains("frame_too_short"), "{trace}");
    assert!(!curl("http://weir/metrics").contains("# EOF"));
    assert!(curl("-H Accept:application/openmetrics-text http://weir/metrics").ends_with("# EOF\n"));
}

#[test]
fn questions_that_make_no_sense_are_one_sentence() {
    let Some(testbed) = Testbed::new("questions_that_make_no_sense_are_one_sentence") else { return };
    let router = testbed.start(&testbed.config("auto", ""));
    let refused = |args: &[&str], sentence: &str| {
        let output = router.ask(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(sentence), "{args:?}: {stderr}");
    };
    refused(
        &["trace", "--port", "up", "--src", "10.1.0.2", "--dst", "10.2.0.2"],
        "no port `up`; ports are left, right",
    );
    refused(&["trace", "--port", "left", "--src", "10.1.0.2", "--dst", "fd02::2"], "different families");
    refused(&["trace", "--port", "left", "--hex", "0g"], "got `g` among hex digits");
    let curl =
        |path: &str| weir::control::client::get(&router.socket, path).expect_err("refused").to_string();
    assert!(curl("/v1/nothing").contains("GET / lists what there is"));
    assert!(curl("/v1/apply").contains("expected POST"));
    assert!(weir::control::client::get(&router.socket, "/").expect("the index").contains("/v1/ports"));
}

/// Routes, neighbours and settings change many times under traffic; not one datagram is lost.
#[test]
fn apply_under_traffic_loses_nothing() {
    let Some(testbed) = Testbed::new("apply_under_traffic_loses_nothing") else { return };
    let router = testbed.start(&testbed.config("af_xdp", ""));
    let [way, _] = ways();
    ping(&testbed, way.client, way.server);
    let echo = Echo::start(&testbed, way.server);
    let seen = under_traffic(&testbed, way.client, way.server, || {
        for round in 0..10 {
            let more = match round % 3 {
                0 => ROUTES.to_owned(),
                1 => "[[neighbor]]\nport = \"right\"\naddress = \"10.2.0.9\"\nmac = \"02:00:00:00:00:09\"\n\
                      [limits]\nicmp_errors_per_second = 7\n"
                    .to_owned(),
                _ => "[[route]]\nprefix = \"10.2.0.2/32\"\nvia = { gateway = \"10.2.0.2\", port = \"right\" }\n".to_owned(),
            };
            let file = testbed.file("next.toml", &testbed.config("af_xdp", &more));
            let file = file.to_string_lossy().into_owned();
            let dry = router.told(&["apply", "--dry-run", &file]);
            let done = router.told(&["apply", &file]);
            let actions = |text: &str| text.lines().filter(|l| l.starts_with(['+', '-', '~'])).count();
            assert!(actions(&done) > 0, "{done}");
            assert_eq!(actions(&dry), actions(&done), "{dry}{done}");
        }
        thread::sleep(Duration::from_millis(50));
    });
    assert!(seen.sent > 100, "{} datagrams are no traffic", seen.sent);
    let drops = router.told(&["show", "drops"]);
    assert_eq!(seen.sent, seen.received, "{drops}");
    assert_eq!(echo.bounce(&testbed, 10), 0);
    router.assert_conserved();
}

#[test]
fn a_wrong_file_changes_nothing_and_says_where() {
    let Some(testbed) = Testbed::new("a_wrong_file_changes_nothing_and_says_where") else { return };
    let router = testbed.start(&testbed.config("auto", ROUTES));
    let before = router.told(&["show", "routes"]);
    let apply = |text: &str| {
        let file = testbed.file("wrong.toml", text);
        let output = router.ask(&["apply", &file.to_string_lossy()]);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let off = testbed.config("auto", "[[route]]\nprefix = \"10.9.0.0/16\"\nvia = \"203.0.113.9\"\n");
    let said = apply(&off);
    assert!(said.contains("wrong.toml:13:7") && said.contains("203.0.113.9"), "{said}");
    let said = apply(&testbed.config("auto", "[workers]\ncpus = [0]\n"));
    assert!(said.contains("[workers] differs from what runs"), "{said}");
    let said = apply(&testbed.config("af_packet", ""));
    assert!(said.contains("a device changes its kind at the start only"), "{said}");
    let third = "[[port]]\nname = \"third\"\ndevice = \"r9\"\n";
    let said = apply(&testbed.config("auto", third));
    assert!(said.contains("r9") && said.contains("nothing was changed"), "{said}");
    assert_eq!(router.told(&["show", "routes"]), before);
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
}

#[test]
fn hangup_reads_the_file_again() {
    let Some(testbed) = Testbed::new("hangup_reads_the_file_again") else { return };
    let router = testbed.start(&testbed.config("auto", ""));
    testbed.file("router.toml", &testbed.config("auto", ROUTES));
    router.signal("HUP");
    router.wait_for("reloaded");
    assert!(router.told(&["show", "routes"]).contains("10.9.0.0/16"));
    testbed.file("router.toml", "not a configuration");
    router.signal("HUP");
    router.wait_for("not reloaded");
    assert!(router.told(&["show", "routes"]).contains("10.9.0.0/16"), "the old one stays");
    assert!(router.config.ends_with("router.toml"));
}

#[test]
fn a_port_comes_and_goes_by_apply() {
    let Some(testbed) = Testbed::new("a_port_comes_and_goes_by_apply") else { return };
    let whole = testbed.config("auto", "");
    let left: String = whole.split("[[port]]\nname = \"right\"").next().expect("a part").to_owned();
    let router = testbed.start(&left);
    let file = testbed.file("whole.toml", &whole);
    let done = router.told(&["apply", &file.to_string_lossy()]);
    assert!(done.contains("port right"), "{done}");
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
    let file = testbed.file("left.toml", &left);
    router.told(&["apply", &file.to_string_lossy()]);
    assert!(!run(&format!("ip -n {} link show r1", testbed.router)).contains("xdp"), "given back");
    let file = testbed.file("whole.toml", &whole);
    router.told(&["apply", &file.to_string_lossy()]);
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
    router.assert_conserved();
}

#[test]
fn termination_leaves_nothing_behind() {
    let Some(testbed) = Testbed::new("termination_leaves_nothing_behind") else { return };
    let gro = || netns::inside(&testbed.router, || offload::is_on("r0", offload::Offload::Gro));
    let gro = || gro().expect("the namespace is there").expect("veth knows this offload");
    netns::inside(&testbed.router, || offload::set("r0", offload::Offload::Gro, true))
        .expect("the namespace is there")
        .expect("veth knows this offload");
    let mut router = testbed.start(&testbed.config("auto", ""));
    assert!(run(&format!("ip -n {} link show r0", testbed.router)).contains("xdp"));
    assert!(!gro(), "merging is off while the port is ours");
    ping(&testbed, ways()[0].client, ways()[0].server);
    router.signal("TERM");
    assert!(router.wait(), "{}", router.log());
    let log = router.log();
    assert!(log.contains("drained: ") && log.contains("(0 unaccounted)"), "{log}");
    assert!(!run(&format!("ip -n {} link show r0", testbed.router)).contains("xdp"), "{log}");
    assert!(gro(), "back on");
    assert!(!router.socket.exists());
    // The kernel has the interface for itself again.
    ping(&testbed, ways()[0].client, ways()[0].near);
}

#[test]
fn metrics_are_on_tcp_too_where_asked_for() {
    let Some(testbed) = Testbed::new("metrics_are_on_tcp_too_where_asked_for") else { return };
    let router = testbed.start(&testbed.config("auto", "[control]\nmetrics = \"127.0.0.1:9650\"\n"));
    let fetch = |path: &str| {
        use std::io::{Read, Write};
        netns::inside(&testbed.router, || {
            let mut stream = std::net::TcpStream::connect("127.0.0.1:9650").expect("it listens");
            write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("sent");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("an answer");
            text
        })
        .expect("the namespace is there")
    };
    assert!(fetch("/metrics").contains("weir_ledger_balance_frames{worker=\"0\"} 0"));
    assert!(fetch("/v1/ports").starts_with("HTTP/1.1 404"), "no control over TCP");
    assert!(!router.metrics().is_empty());
}

#[test]
fn a_second_router_does_not_take_the_socket_of_the_first() {
    let Some(testbed) = Testbed::new("a_second_router_does_not_take_the_socket_of_the_first") else { return };
    let first = testbed.start(&testbed.config("auto", ""));
    let mut second = testbed.spawn(&testbed.config("auto", ""), &[]);
    assert!(!second.wait());
    assert!(second.log().contains("another weir answers on it; stop that one"), "{}", second.log());
    until("the first one still forwards", || {
        ping(&testbed, ways()[0].client, ways()[0].server);
        Some(())
    });
    assert!(first.socket.exists());
}

/// Nice values of a process's workers.
fn nices(router: &Router) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", router.pid())).expect("it runs");
    let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).ok();
    let stats = tasks.filter_map(|task| stat(task.ok()?)).filter(|stat| stat.contains("(weir-worker"));
    // proc_pid_stat(5): nice is the 17th behind the name.
    stats
        .map(|stat| {
            let behind = stat.rsplit_once(") ").expect("a name").1;
            behind.split(' ').nth(16).and_then(|nice| nice.parse().ok()).expect("a number")
        })
        .collect()
}

/// Nice value of a process's session; nothing where the kernel has no groups for sessions, or this session none.
fn nice_of_session(router: &Router) -> Option<i32> {
    let enabled = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").ok()?;
    let group = std::fs::read_to_string(format!("/proc/{}/autogroup", router.pid())).ok()?;
    let nice = group.trim().rsplit_once(" nice ")?.1;
    (enabled.trim() == "1").then(|| nice.parse().expect("a number"))
}

#[test]
fn workers_go_before_the_kernels_reception_on_their_cpu_where_they_may() {
    let test = "workers_go_before_the_kernels_reception_on_their_cpu_where_they_may";
    let Some(testbed) = Testbed::new(test) else { return };
    let config = |more: &str| testbed.config("af_xdp", &format!("[workers]\ncpus = [0]\n{more}"));
    for (more, nice) in [("", -10), ("nice = \"leave\"\n", 0), ("wake_up = \"busy-poll\"\n", 0)] {
        let router = testbed.spawn(&config(more), &["setsid"]);
        router.wait_for("is ready");
        until("the worker has its priority", || (nices(&router) == [nice]).then_some(()));
        assert!(!router.log().contains("nice"), "{}", router.log());
        if let Some(session) = nice_of_session(&router) {
            assert_eq!(session, nice, "{more}: the kernel gives a CPU to sessions first");
        }
    }
    let in_our_session = testbed.start(&config(""));
    if let Some(session) = nice_of_session(&in_our_session).filter(|&nice| nice > -10) {
        in_our_session.wait_for("as much of its CPU as all of this session");
        assert_eq!(nice_of_session(&in_our_session), Some(session), "the session is its user's");
    }
    drop(in_our_session);
    let without = ["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"];
    let router = testbed.spawn(&config(""), &without);
    router.wait_for("is ready");
    router.wait_for("worker 0: nice -10 is refused");
    assert_eq!(nices(&router), [0]);
    let [way, _] = ways();
    ping(&testbed, way.client, way.server);
}
