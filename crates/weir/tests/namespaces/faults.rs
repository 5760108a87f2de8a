//! What goes wrong: killed routers, interfaces that vanish, go down or change, missing privilege.

use std::io::Write as _;
use weir_io::netns;

use super::testbed::{Testbed, run, until};
use super::traffic::{Echo, ping, ways};

#[test]
fn a_killed_router_leaves_usable_interfaces_and_the_next_one_takes_over() {
    for kind in ["af_xdp", "af_packet"] {
        let Some(testbed) =
            Testbed::new("a_killed_router_leaves_usable_interfaces_and_the_next_one_takes_over")
        else {
            return;
        };
        let mut router = testbed.start(&testbed.config(kind, ""));
        ping(&testbed, ways()[0].client, ways()[0].server);
        router.kill();
        assert!(router.socket.exists(), "a killed process removes nothing");
        for way in ways() {
            ping(&testbed, way.client, way.near);
        }
        let router = testbed.start(&testbed.config(kind, ""));
        for way in ways() {
            ping(&testbed, way.client, way.server);
        }
        router.assert_conserved();
    }
}

#[test]
fn an_interface_that_vanishes_is_taken_up_again_when_it_comes_back() {
    let Some(testbed) = Testbed::new("an_interface_that_vanishes_is_taken_up_again_when_it_comes_back")
    else {
        return;
    };
    let router = testbed.start(&testbed.config("af_xdp", ""));
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
    run(&format!("ip -n {} link del r1", testbed.router));
    router.wait_for("r1 vanished");
    let status = router.told(&["show", "status"]);
    assert!(status.contains("device r1 does not exist"), "{status}");
    // The other port goes on, and what would leave by the lost one is counted.
    ping(&testbed, ways()[0].client, ways()[0].near);
    testbed.connect_server(1);
    router.wait_for("r1 is ours again");
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
    assert_eq!(Echo::start(&testbed, ways()[0].server).bounce(&testbed, 50), 0);
    router.assert_conserved();
}

#[test]
fn an_interface_that_goes_down_and_up_is_reported_and_survived() {
    let Some(testbed) = Testbed::new("an_interface_that_goes_down_and_up_is_reported_and_survived") else {
        return;
    };
    for kind in ["af_xdp", "af_packet"] {
        let router = testbed.start(&testbed.config(kind, ""));
        ping(&testbed, ways()[0].client, ways()[0].server);
        run(&format!("ip -n {} link set s0 down", testbed.server));
        router.wait_for("port right: down");
        until("the drop is counted", || {
            super::traffic::send_udp(&testbed, ways()[0].server);
            let dropped = router.metric("weir_frames_dropped_total", "");
            (dropped > 0).then_some(())
        });
        run(&format!("ip -n {} link set s0 up", testbed.server));
        run(&format!("ip -n {} route replace default via 10.2.0.1", testbed.server));
        router.wait_for("port right: up");
        ping(&testbed, ways()[0].client, ways()[0].server);
        router.assert_conserved();
    }
}

#[test]
fn a_changed_mtu_is_reported_and_followed() {
    let Some(testbed) = Testbed::new("a_changed_mtu_is_reported_and_followed") else { return };
    let router = testbed.start(&testbed.config("auto", ""));
    run(&format!("ip -n {} link set r1 mtu 1300", testbed.router));
    router.wait_for("port right: mtu 1500 → 1300");
    let ports = router.json("ports");
    let right = ports.as_array().and_then(|p| p.iter().find(|p| p["name"] == "right")).expect("the port");
    assert_eq!(right["mtu"], 1300);
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
}

#[test]
fn a_kernel_address_that_comes_later_is_local_at_once() {
    let Some(testbed) = Testbed::new("a_kernel_address_that_comes_later_is_local_at_once") else { return };
    let router = testbed.start(&testbed.config("af_xdp", ""));
    run(&format!("ip -n {} addr add 10.1.0.50/24 dev r0", testbed.router));
    until("the port has the address", || {
        router.told(&["show", "ports"]).contains("10.1.0.50/24 (kernel)").then_some(())
    });
    ping(&testbed, ways()[0].client, super::testbed::ip("10.1.0.50"));
}

#[test]
fn an_unknown_device_is_refused_with_the_place_and_the_remedy() {
    let Some(testbed) = Testbed::new("an_unknown_device_is_refused_with_the_place_and_the_remedy") else {
        return;
    };
    let mut router = testbed.spawn(&testbed.config("auto", "").replace("r1", "r7"), &[]);
    assert!(!router.wait());
    let log = router.log();
    assert!(log.contains("router.toml:8:10: port right: there is no device `r7` here; devices are"), "{log}");
    assert!(log.contains("write `r0`"), "{log}");
    assert!(!run(&format!("ip -n {} link show r0", testbed.router)).contains("xdp"));
    assert!(!router.socket.exists());
}

#[test]
fn missing_privilege_is_one_sentence_with_the_remedy() {
    let test = "missing_privilege_is_one_sentence_with_the_remedy";
    let Some(testbed) = Testbed::new(test) else { return };
    if std::process::Command::new("setpriv").arg("--version").output().is_err() {
        writeln!(std::io::stderr(), "SKIP {test}: needs setpriv (util-linux)").expect("stderr is open");
        return;
    }
    let powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];
    let mut router = testbed.spawn(&testbed.config("auto", ""), &powerless);
    assert!(!router.wait());
    let log = router.log();
    assert!(log.contains("run as root") || log.contains("CAP_NET_RAW"), "{log}");
}

/// The row of docs/control-socket.md, in setpriv's words.
const OF_AF_XDP: [&str; 5] = ["net_raw", "net_admin", "bpf", "perfmon", "ipc_lock"];

#[test]
fn af_xdp_needs_the_capabilities_documented_and_no_other() {
    let test = "af_xdp_needs_the_capabilities_documented_and_no_other";
    let Some(testbed) = Testbed::new(test) else { return };
    if std::process::Command::new("setpriv").arg("--version").output().is_err() {
        writeln!(std::io::stderr(), "SKIP {test}: needs setpriv (util-linux)").expect("stderr is open");
        return;
    }
    let page = include_str!("../../../../docs/control-socket.md");
    for name in OF_AF_XDP {
        let written = format!("`CAP_{}`", name.to_uppercase());
        assert!(page.contains(&written), "docs/control-socket.md names {written}");
    }
    let with = |names: &[&str]| {
        let bounding =
            names.iter().fold("--bounding-set=-all".to_owned(), |set, name| format!("{set},+{name}"));
        // A user who may lock as little as Debian lets one lock.
        ["prlimit", "--memlock=65536:65536", "setpriv", &bounding, "--inh-caps=-all", "--no-new-privs"]
            .map(str::to_owned)
    };
    let spawn = |names: &[&str]| {
        let through = with(names);
        testbed.spawn(&testbed.config("af_xdp", ""), &through.each_ref().map(String::as_str))
    };
    for missing in OF_AF_XDP {
        let rest: Vec<&str> = OF_AF_XDP.into_iter().filter(|&name| name != missing).collect();
        let mut router = spawn(&rest);
        assert!(!router.wait(), "without {missing}: {}", router.log());
        let log = router.log();
        let remedy = if missing == "ipc_lock" { "raise the locked-memory limit" } else { "run as root" };
        assert!(log.contains(remedy), "without {missing}: {log}");
    }
    let router = spawn(&OF_AF_XDP);
    router.wait_for("is ready");
    ping(&testbed, ways()[0].client, ways()[0].server);
    assert_eq!(Echo::start(&testbed, ways()[0].server).bounce(&testbed, 20), 0);
    router.assert_conserved();
}

#[test]
fn without_a_capability_a_port_falls_back_and_a_warning_says_what_it_lacks() {
    let test = "without_a_capability_a_port_falls_back_and_a_warning_says_what_it_lacks";
    let Some(testbed) = Testbed::new(test) else { return };
    if std::process::Command::new("setpriv").arg("--version").output().is_err() {
        writeln!(std::io::stderr(), "SKIP {test}: needs setpriv (util-linux)").expect("stderr is open");
        return;
    }
    for lacking in ["perfmon", "bpf"] {
        let bounding = OF_AF_XDP.iter().filter(|&&name| name != lacking);
        let bounding = bounding.fold("--bounding-set=-all".to_owned(), |set, name| format!("{set},+{name}"));
        let through = ["setpriv", &bounding, "--inh-caps=-all", "--no-new-privs"];
        let router = testbed.spawn(&testbed.config("auto", ""), &through);
        router.wait_for("is ready");
        let (log, remedy) = (router.log(), format!("CAP_{}", lacking.to_uppercase()));
        let warned: Vec<&str> = log.lines().filter(|l| l.contains("falling back to af_packet")).collect();
        assert_eq!(warned.len(), 2, "{log}");
        for line in warned {
            assert!(line.contains("WARN") && line.contains(&remedy), "without {lacking}: {line}");
        }
        assert!(!log.contains("goto pc") && !log.contains("last words"), "no dump: {log}");
        assert_eq!(Echo::start(&testbed, ways()[0].server).bounce(&testbed, 20), 0);
    }
}

#[test]
fn af_packet_is_refused_where_the_kernel_forwards_too() {
    let Some(testbed) = Testbed::new("af_packet_is_refused_where_the_kernel_forwards_too") else { return };
    netns::inside(&testbed.router, || {
        for device in ["r0", "r1"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/forwarding"), "1").expect("the knob");
        }
    })
    .expect("the namespace is there");
    let mut router = testbed.spawn(&testbed.config("af_packet", ""), &[]);
    assert!(!router.wait());
    let log = router.log();
    assert!(log.contains("the kernel forwards IPv4 from this device too"), "{log}");
    assert!(log.contains("sysctl -w net.ipv4.conf.r0.forwarding=0"), "{log}");
    // af_xdp takes what transits before the kernel sees it.
    let router = testbed.start(&testbed.config("af_xdp", ""));
    ping(&testbed, ways()[0].client, ways()[0].server);
    assert_eq!(Echo::start(&testbed, ways()[0].server).bounce(&testbed, 20), 0);
    router.assert_conserved();
}
