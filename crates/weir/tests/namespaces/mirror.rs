//! Linux as the control plane: its routes and neighbours forward here, what cannot be done here stays there, and what
//! would be bypassed is said.

use std::io::Write as _;
use std::net::IpAddr;
use std::process::Command;

use weir_core::mirror::Outcome;
use weir_core::random::SplitMix64;
use weir_core::state::Via;
use weir_io::netns;

use super::testbed::{Router, Testbed, ip, run, until};
use super::traffic::{ping, under_traffic, ways};
use weir::testing::daemon::Running;
use weir::testing::machine::set;

const KERNEL: &str = "routes = \"kernel\"\n";

/// A configuration that takes the kernel's routes.
pub(super) fn mirrored(testbed: &Testbed) -> String {
    KERNEL.to_owned() + &testbed.config("auto", "")
}

/// The kernel of the router forwards too, as on a router that works without weir.
pub(super) fn forwarding(testbed: &Testbed, on: bool) {
    let value = if on { "1" } else { "0" };
    netns::inside(&testbed.router, || {
        set("/proc/sys/net/ipv4/ip_forward", value);
        set("/proc/sys/net/ipv6/conf/all/forwarding", value);
    })
    .expect("the namespace is there");
}

pub(super) fn has(program: &str, test: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        writeln!(std::io::stderr(), "SKIP {test}: needs {program}").expect("stderr is open");
    }
    there
}

/// An address of the server beyond its network.
pub(super) fn beyond(testbed: &Testbed, address: &str) -> IpAddr {
    run(&format!("ip -n {} addr add {address} dev lo", testbed.server));
    ip(address.split('/').next().expect("an address"))
}

pub(super) fn in_router(testbed: &Testbed, command: &str) {
    run(&format!("ip -n {} {command}", testbed.router));
}

fn trace(router: &Running, dst: &str) -> String {
    let src = if dst.contains(':') { "fd01::2" } else { "10.1.0.2" };
    router.told(&["trace", "--port", "left", "--src", src, "--dst", dst])
}

/// Waits until a trace to this address says so.
pub(super) fn traced(router: &Running, dst: &str, says: &str) {
    until(&format!("the trace to {dst} says `{says}`: {}", trace(router, dst)), || {
        trace(router, dst).contains(says).then_some(())
    });
}

pub(super) fn nft(testbed: &Testbed, rules: &str) {
    let file = testbed.file("rules.nft", rules);
    run(&format!("ip netns exec {} nft -f {}", testbed.router, file.display()));
}

pub(super) fn weir(testbed: &Testbed, args: &[&str]) -> std::process::Output {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &testbed.router, env!("CARGO_BIN_EXE_weir")]).args(args);
    command.output().expect("weir starts")
}

/// `weir accelerate` on both devices.
pub(super) fn accelerate(testbed: &Testbed) -> Running {
    accelerate_with(testbed, &[])
}

pub(super) fn accelerate_with(testbed: &Testbed, args: &[&str]) -> Running {
    let socket = testbed.folder.join("accelerate.sock");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &testbed.router, env!("CARGO_BIN_EXE_weir"), "--socket"]).arg(&socket);
    command.args(["accelerate", "r0", "r1"]).args(args);
    let running = Running::start(&mut command, socket);
    until(&format!("it is ready:\n{}", running.log()), || running.log().contains("is ready").then_some(()));
    running
}

pub(super) fn signal(running: &mut Running, name: &str) {
    run(&format!("kill -{name} {}", running.child.id()));
    running.child.wait().expect("a child of ours");
}

#[test]
fn routes_that_are_not_in_the_file_are_named_at_the_start_and_when_they_come() {
    let Some(testbed) =
        Testbed::new("routes_that_are_not_in_the_file_are_named_at_the_start_and_when_they_come")
    else {
        return;
    };
    in_router(&testbed, "route add 10.9.0.0/16 via 10.2.0.2 proto bgp");
    let file = testbed.file("doctor.toml", &testbed.config("auto", ""));
    let check = weir(&testbed, &["check", &file.to_string_lossy()]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success() && said.contains("1 bgp (10.9.0.0/16)"), "{said}");
    let router = testbed.start(&testbed.config("auto", ""));
    router.wait_for("1 route of the kernel is not in the configuration: 1 bgp (10.9.0.0/16)");
    in_router(&testbed, "route add fd09::/48 via fd02::2 proto static");
    router.wait_for(
        "2 routes of the kernel are not in the configuration: 1 static (fd09::/48), 1 bgp (10.9.0.0/16)",
    );
    assert!(router.told(&["show", "status"]).contains("2 routes of the kernel"));
    in_router(&testbed, "route del fd09::/48");
    in_router(&testbed, "route del 10.9.0.0/16");
    router.wait_for("every route of the kernel is in the configuration now");
}

#[test]
fn a_packet_filter_is_not_bypassed_unawares() {
    let test = "a_packet_filter_is_not_bypassed_unawares";
    let Some(testbed) = Testbed::new(test) else { return };
    if !has("nft", test) {
        return;
    }
    let config = testbed.config("auto", "");
    nft(
        &testbed,
        "table inet filter {\n chain forward {\n type filter hook forward priority 0; policy drop;\n }\n}\n",
    );
    let mut refused = testbed.spawn(&config, &[]);
    assert!(!refused.wait(), "it must not start");
    let log = refused.log();
    assert!(
        log.contains("nftables chain inet filter forward (filter at forward, 0 rules, policy drop)"),
        "{log}"
    );
    assert!(log.contains("--bypass-firewall"), "{log}");
    let file = testbed.file("doctor.toml", &config);
    let doctor = weir(&testbed, &["doctor", &file.to_string_lossy()]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(!doctor.status.success() && said.contains("policy drop"), "{said}");
    drop(refused);
    let router = testbed.start(&format!("bypass_firewall = true\n{config}"));
    assert!(router.log().contains("do not meet nftables chain inet filter forward"), "{}", router.log());
    nft(&testbed, "flush ruleset\n");
    router.wait_for("no chain of the kernel's packet filter is bypassed any more");
    nft(
        &testbed,
        "table ip nat {\n chain post {\n type nat hook postrouting priority 100; oifname \"r1\" masquerade\n }\n}\n",
    );
    router.wait_for("nftables chain ip nat post (nat at postrouting, 1 rules)");
    assert!(router.told(&["show", "status"]).contains("nat at postrouting"));
}

#[test]
fn traffic_control_that_is_bypassed_is_named() {
    let test = "traffic_control_that_is_bypassed_is_named";
    let Some(testbed) = Testbed::new(test) else { return };
    let file = testbed.file("doctor.toml", &testbed.config("auto", ""));
    let doctor = || {
        let said = weir(&testbed, &["doctor", &file.to_string_lossy()]);
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let before = doctor();
    assert!(!before.contains("discipline") && !before.contains("filter"), "{before}");
    let tc = |line: &str| run(&format!("tc -n {} {line}", testbed.router));
    tc("qdisc add dev r1 root handle 1: tbf rate 10mbit burst 32k latency 50ms");
    tc("qdisc add dev r0 clsact");
    let hook = doctor();
    assert!(hook.contains("r1: what this router sends does not pass the queueing discipline tbf"), "{hook}");
    assert!(!hook.contains("filters at"), "{hook}");
    // A filter that takes nothing: one instruction of classic BPF.
    let nothing = testbed.file("nothing.bpf", "1,6 0 0 0,");
    for (place, protocol, preference) in [("ingress", "ip", 7), ("egress", "ip", 7), ("egress", "ipv6", 8)] {
        let bytecode = nothing.to_string_lossy();
        tc(&format!(
            "filter add dev r0 {place} protocol {protocol} pref {preference} bpf bytecode-file {bytecode}"
        ));
    }
    let both = doctor();
    assert!(both.contains("r0: what this router forwards does not meet traffic control's filters at ingress, of which there is 1"), "{both}");
    assert!(both.contains("filters at egress, of which there are 2"), "{both}");
}

#[test]
fn a_packet_filter_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    let test = "a_packet_filter_that_cannot_be_read_is_not_taken_for_an_empty_one";
    let Some(testbed) = Testbed::new(test) else { return };
    if !has("setpriv", test) {
        return;
    }
    // nf_tables answers nobody without CAP_NET_ADMIN.
    let blind = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];
    let config = testbed.config("auto", "");
    let mut refused = testbed.spawn(&config, &blind);
    assert!(!refused.wait(), "it must not start");
    let log = refused.log();
    assert!(log.contains("the kernel's packet filter cannot be read"), "{log}");
    assert!(
        log.contains("run as root or with CAP_NET_ADMIN, or say that it is meant: `--bypass-firewall`"),
        "{log}"
    );
    drop(refused);
    let told = testbed.spawn(&format!("bypass_firewall = true\n{config}"), &blind);
    told.wait_for("router is ready");
    assert!(told.log().contains("bypass it is not known"), "{}", told.log());
}

#[test]
fn chains_at_the_devices_of_ports_are_seen_and_those_of_others_are_not() {
    let test = "chains_at_the_devices_of_ports_are_seen_and_those_of_others_are_not";
    let Some(testbed) = Testbed::new(test) else { return };
    if !has("nft", test) {
        return;
    }
    let config = testbed.config("auto", "");
    let chain = |hook: &str, devices: &str| {
        nft(
            &testbed,
            &format!(
                "flush ruleset\ntable netdev edge {{\n chain first {{\n type filter hook {hook} devices = {{ {devices} }} priority 0; policy drop;\n }}\n}}\n"
            ),
        );
    };
    for hook in ["ingress", "egress"] {
        chain(hook, "lo, r1");
        let mut refused = testbed.spawn(&config, &[]);
        assert!(!refused.wait(), "it must not start");
        assert!(refused.log().contains(&format!("at {hook}")), "{}", refused.log());
    }
    chain("ingress", "lo");
    testbed.start(&config);
}

#[test]
fn rules_of_the_older_iptables_are_seen() {
    let test = "rules_of_the_older_iptables_are_seen";
    let Some(testbed) = Testbed::new(test) else { return };
    if !has("iptables-legacy", test) {
        return;
    }
    let table = |more: &str| {
        let words = format!("netns exec {} iptables-legacy {more}", testbed.router);
        Command::new("ip").args(words.split(' ')).output().expect("it starts").status.success()
    };
    if !table("-A FORWARD -s 10.66.0.0/16 -j DROP") {
        writeln!(std::io::stderr(), "SKIP {test}: needs a kernel with ip_tables").expect("stderr is open");
        return;
    }
    let mut refused = testbed.spawn(&testbed.config("auto", ""), &[]);
    assert!(!refused.wait(), "it must not start");
    assert!(refused.log().contains("iptables chain ip filter FORWARD"), "{}", refused.log());
    drop(refused);
    assert!(table("-F FORWARD") && table("-P FORWARD DROP"));
    let mut refused = testbed.spawn(&testbed.config("auto", ""), &[]);
    assert!(!refused.wait() && refused.log().contains("policy drop"), "{}", refused.log());
    drop(refused);
    assert!(table("-P FORWARD ACCEPT"));
    drop(testbed.start(&testbed.config("auto", "")));
}

#[test]
fn every_kind_of_route_leads_where_it_leads_in_the_kernel() {
    let Some(testbed) = Testbed::new("every_kind_of_route_leads_where_it_leads_in_the_kernel") else {
        return;
    };
    let [four, six] = ways();
    in_router(&testbed, "route add 10.9.0.0/24 via 10.2.0.2 proto bgp");
    in_router(&testbed, "route add blackhole 10.9.1.0/24");
    in_router(&testbed, "route add unreachable 10.9.2.0/24");
    in_router(&testbed, "route add prohibit 10.9.3.0/24 proto ospf");
    in_router(&testbed, "route add 10.9.4.0/24 nexthop via 10.2.0.2 weight 3 nexthop via 10.2.0.9");
    in_router(&testbed, "nexthop add id 7 via 10.2.0.2 dev r1");
    in_router(&testbed, "nexthop add id 8 via 10.2.0.9 dev r1");
    in_router(&testbed, "nexthop add id 9 group 7,3/8");
    in_router(&testbed, "route add 10.9.5.0/24 nhid 7 proto zebra");
    in_router(&testbed, "route add 10.9.6.0/24 nhid 9 proto zebra");
    in_router(&testbed, "route add 10.9.7.0/24 via inet6 fd02::2 dev r1");
    in_router(&testbed, "route add 10.9.8.0/24 via 192.0.2.77 dev r1 onlink");
    in_router(&testbed, "route add 10.9.9.0/24 via 10.2.0.2 metric 50");
    in_router(&testbed, "route add 10.9.9.0/24 via 10.1.0.2 metric 60");
    in_router(&testbed, "route add fd09::/64 via fd02::2 proto bird");
    let router = testbed.start(&mirrored(&testbed));
    let there = beyond(&testbed, "10.9.0.1/24");
    ping(&testbed, four.client, there);
    ping(&testbed, four.client, four.server);
    ping(&testbed, six.client, beyond(&testbed, "fd09::1/64"));
    ping(&testbed, four.client, beyond(&testbed, "10.9.5.1/24"));
    ping(&testbed, four.client, beyond(&testbed, "10.9.7.1/24"));
    let routes = router.told(&["show", "routes"]);
    for line in [
        "10.9.0.0/24  kernel bgp",
        "10.9.1.0/24  kernel boot",
        "10.9.3.0/24  kernel ospf",
        "10.2.0.2@right*3, 10.2.0.9@right",
        "fd02::2@right",
        "192.0.2.77@right",
        "fd09::/64    kernel bird",
        "10.1.0.0/24  kernel kernel",
    ] {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed(&routes).contains(&squeezed(line)), "{line}:\n{routes}");
    }
    traced(&router, "10.9.0.1", "via 10.2.0.2 on right (kernel bgp)");
    traced(&router, "10.9.1.1", "drop: blackhole");
    traced(&router, "10.9.2.1", "drop: unreachable");
    traced(&router, "10.9.3.1", "drop: prohibited");
    traced(&router, "10.9.9.1", "via 10.2.0.2");
    // Replaced, deleted, and gone without a message of their own.
    in_router(&testbed, "route replace blackhole 10.9.0.0/24 proto bgp");
    traced(&router, "10.9.0.1", "drop: blackhole");
    in_router(&testbed, "route del 10.9.9.0/24 metric 50");
    traced(&router, "10.9.9.1", "via 10.1.0.2");
    in_router(&testbed, "nexthop del id 7");
    traced(&router, "10.9.5.1", "drop: no_route");
    traced(&router, "10.9.6.1", "via 10.2.0.9");
    in_router(&testbed, "nexthop add id 7 via 10.2.0.9 dev r1");
    in_router(&testbed, "addr del 10.2.0.1/24 dev r1");
    traced(&router, "10.9.7.1", "drop: no_route");
    traced(&router, "10.9.4.1", "drop: no_route");
    in_router(&testbed, "addr add 10.2.0.1/24 dev r1");
    in_router(&testbed, "route add 10.9.0.0/24 via 10.2.0.2 proto bgp metric 5");
    ping(&testbed, four.client, four.server);
    in_router(&testbed, "link set r1 down");
    traced(&router, "10.9.8.1", "drop: no_route");
    in_router(&testbed, "link set r1 up");
    traced(&router, "10.2.0.2", "10.2.0.0/24 connected to right");
    router.assert_conserved();
}

/// A third interface that is no port: what leads there is forwarded by the kernel, what lies inside and leads to ports
/// is not.
#[test]
fn what_leads_elsewhere_is_left_to_the_kernel() {
    let Some(testbed) = Testbed::new("what_leads_elsewhere_is_left_to_the_kernel") else { return };
    forwarding(&testbed, true);
    testbed.connect(
        &testbed.server,
        "s2",
        "r2",
        ["10.3.0.2/24", "fd03::2/64"],
        ["10.3.0.1/24", "fd03::1/64"],
        1,
    );
    in_router(&testbed, "route add default via 10.3.0.2");
    in_router(&testbed, "route add 10.9.0.0/16 via 10.2.0.2");
    let elsewhere = beyond(&testbed, "203.0.113.9/32");
    let ours = beyond(&testbed, "10.9.0.1/16");
    let router = testbed.start(&mirrored(&testbed));
    let [four, six] = ways();
    ping(&testbed, four.client, elsewhere);
    ping(&testbed, four.client, ip("10.3.0.2"));
    ping(&testbed, six.client, ip("fd03::2"));
    let forwarded = |router: &Router| router.metric("weir_frames_forwarded_total", "");
    let before = forwarded(&router);
    ping(&testbed, four.client, ours);
    until("it is forwarded here", || (forwarded(&router) > before).then_some(()));
    let kept =
        router.json("ports").as_array().and_then(|p| p[0]["steered"]["kept"].as_u64()).unwrap_or_default();
    assert!(kept >= 3, "{}", router.told(&["show", "ports"]));
    let routes = router.told(&["show", "routes"]);
    assert!(routes.contains("left to the kernel: it leads by interface"), "{routes}");
    // A policy rule that is not honoured here leaves its family to the kernel, and only while it is there.
    in_router(&testbed, "route add default via 10.3.0.2 table 100");
    in_router(&testbed, "rule add from 10.1.0.0/24 lookup 100 priority 500");
    router.wait_for("IPv4 policy rule 500: from 10.1.0.0/24 lookup 100: every packet of this family is left to the kernel");
    let before = forwarded(&router);
    ping(&testbed, four.client, ours);
    ping(&testbed, six.client, six.server);
    until("only IPv6 is forwarded here", || (forwarded(&router) > before).then_some(()));
    in_router(&testbed, "rule del priority 500");
    router.wait_for("no longer: IPv4 policy rule 500");
    let before = forwarded(&router);
    ping(&testbed, four.client, ours);
    until("it is forwarded here again", || (forwarded(&router) > before).then_some(()));
    router.assert_conserved();
}

/// Rules of one priority that differ in what weir does not read are two, whichever goes first.
#[test]
fn of_two_rules_by_mark_one_holds_when_the_other_goes() {
    let Some(testbed) = Testbed::new("of_two_rules_by_mark_one_holds_when_the_other_goes") else { return };
    forwarding(&testbed, true);
    in_router(&testbed, "route add default via 10.2.0.2 table 100");
    let router = testbed.start(&mirrored(&testbed));
    let [four, _] = ways();
    let forwarded = || router.metric("weir_frames_forwarded_total", "");
    let kept = || router.metric("weir_steered_total", "kept");
    let goes = |count: &dyn Fn() -> i64, what: &str| {
        let before = count();
        ping(&testbed, four.client, four.server);
        until(what, || (count() > before).then_some(()));
    };
    goes(&forwarded, "without rules it is forwarded here");
    for mark in [1, 2] {
        in_router(&testbed, &format!("rule add fwmark {mark} lookup 100 priority 500"));
    }
    router.wait_for("IPv4 policy rule 500: from all and more lookup 100: every packet of this family");
    in_router(&testbed, "rule del fwmark 1 priority 500");
    // What comes behind it on the same socket is heard after it.
    in_router(&testbed, "route add 10.9.0.0/16 via 10.2.0.2");
    until("the route behind it is known", || {
        router.told(&["show", "routes"]).contains("10.9.0.0/16").then_some(())
    });
    goes(&kept, "the other rule is there");
    in_router(&testbed, "rule del fwmark 2 priority 500");
    router.wait_for("no longer: IPv4 policy rule 500");
    goes(&forwarded, "without rules it is forwarded here again");
    router.assert_conserved();
}

/// A policy rule for a destination: that is the kernel's while the rule is there, everything else stays here.
#[test]
fn a_rule_for_a_destination_leaves_only_that_to_the_kernel() {
    let Some(testbed) = Testbed::new("a_rule_for_a_destination_leaves_only_that_to_the_kernel") else {
        return;
    };
    forwarding(&testbed, true);
    testbed.connect(
        &testbed.server,
        "s2",
        "r2",
        ["10.3.0.2/24", "fd03::2/64"],
        ["10.3.0.1/24", "fd03::1/64"],
        1,
    );
    in_router(&testbed, "route add 10.9.0.0/16 via 10.2.0.2");
    in_router(&testbed, "route add 10.9.7.0/24 via 10.3.0.2 table 100");
    let [ours, ruled] = ["10.9.0.1/32", "10.9.7.1/32"].map(|address| beyond(&testbed, address));
    let router = testbed.start(&mirrored(&testbed));
    let [four, _] = ways();
    let forwarded = || router.metric("weir_frames_forwarded_total", "");
    let kept = || router.metric("weir_steered_total", "kept");
    let goes = |to: IpAddr, count: &dyn Fn() -> i64, what: &str| {
        let before = count();
        ping(&testbed, four.client, to);
        until(what, || (count() > before).then_some(()));
    };
    goes(ruled, &forwarded, "without a rule it is forwarded here");
    in_router(&testbed, "rule add to 10.9.7.0/24 lookup 100 priority 500");
    let says = "IPv4 policy rule 500: from all to 10.9.7.0/24 lookup 100: 10.9.7.0/24 is left to the kernel";
    router.wait_for(says);
    assert!(router.told(&["show", "status"]).contains(says));
    goes(ruled, &kept, "the rule's destination is the kernel's");
    goes(ours, &forwarded, "what the rule does not name is forwarded here");
    let routes = router.told(&["show", "routes"]);
    assert!(routes.contains("left to the kernel: a policy rule decides about it"), "{routes}");
    let file = testbed.file("doctor.toml", &mirrored(&testbed));
    let doctor = weir(&testbed, &["doctor", &file.to_string_lossy()]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("lookup 100: 10.9.7.0/24 is left to the kernel"), "{said}");
    in_router(&testbed, "rule del priority 500");
    router.wait_for(&format!("no longer: {says}"));
    goes(ruled, &forwarded, "and without the rule it is forwarded here again");
    router.assert_conserved();
}

/// A rule that leads to a table without routes, as strongSwan's for its table 220, changes nothing but for the prefixes
/// that come into the table.
#[test]
fn of_a_rules_table_only_the_prefixes_are_the_kernels() {
    let Some(testbed) = Testbed::new("of_a_rules_table_only_the_prefixes_are_the_kernels") else { return };
    forwarding(&testbed, true);
    in_router(&testbed, "route add 10.9.0.0/16 via 10.2.0.2");
    let [ours, tunnelled] = ["10.9.0.1/32", "10.9.7.1/32"].map(|address| beyond(&testbed, address));
    in_router(&testbed, "rule add lookup 220 priority 220");
    let router = testbed.start(&mirrored(&testbed));
    let [four, _] = ways();
    let forwarded = || router.metric("weir_frames_forwarded_total", "");
    let kept = || router.metric("weir_steered_total", "kept");
    let goes = |to: IpAddr, count: &dyn Fn() -> i64, what: &str| {
        let before = count();
        ping(&testbed, four.client, to);
        until(what, || (count() > before).then_some(()));
    };
    goes(tunnelled, &forwarded, "the table has no routes");
    in_router(&testbed, "route add 10.9.7.0/24 via 10.2.0.2 table 220");
    let says = "IPv4 policy rule 220: from all lookup 220: 10.9.7.0/24 is left to the kernel";
    router.wait_for(says);
    goes(tunnelled, &kept, "the table has a route to it");
    goes(ours, &forwarded, "and none to this one");
    in_router(&testbed, "route del 10.9.7.0/24 table 220");
    router.wait_for(&format!("no longer: {says}"));
    goes(tunnelled, &forwarded, "the table has no routes again");
    // A rule that comes while this router runs: its table is read first.
    in_router(&testbed, "rule add from 10.1.0.0/24 lookup 100 priority 500");
    router.wait_for("IPv4 policy rule 500: from 10.1.0.0/24 lookup 100: every packet of this family");
    router.wait_for("no longer: IPv4 policy rule 500");
    goes(ours, &forwarded, "that table has no routes either");
    router.assert_conserved();
}

/// An entry of the administrator's is used, and stays permanent though its neighbour answers nobody.
#[test]
fn a_permanent_neighbor_stays_permanent() {
    let Some(testbed) = Testbed::new("a_permanent_neighbor_stays_permanent") else { return };
    for (address, prefix) in [("10.2.0.77", "10.9.0.0/24"), ("fd02::77", "fd09::/48")] {
        in_router(
            &testbed,
            &format!("neigh replace {address} lladdr 02:00:00:00:00:77 dev r1 nud permanent"),
        );
        in_router(&testbed, &format!("route add {prefix} via {address}"));
    }
    let router = testbed.start(&mirrored(&testbed));
    until("both are used", || {
        (router.told(&["show", "neighbors"]).matches("02:00:00:00:00:77").count() == 2).then_some(())
    });
    for address in ["10.2.0.77", "fd02::77"] {
        let known = run(&format!("ip -n {} neigh show {address} dev r1", testbed.router));
        assert!(known.contains("PERMANENT"), "{known}");
    }
}

/// Neighbours are asked for by the kernel, followed, and kept in use though the kernel sees none of their packets.
#[test]
fn neighbors_are_the_kernels() {
    let Some(testbed) = Testbed::new("neighbors_are_the_kernels") else { return };
    netns::inside(&testbed.router, || {
        for family in ["ipv4", "ipv6"] {
            set(&format!("/proc/sys/net/{family}/neigh/r1/base_reachable_time_ms"), "1000");
            set(&format!("/proc/sys/net/{family}/neigh/r1/delay_first_probe_time"), "1");
        }
    })
    .expect("the namespace is there");
    let router = testbed.start(&mirrored(&testbed));
    let known = |address: &str| run(&format!("ip -n {} neigh show {address} dev r1", testbed.router));
    assert!(!known("10.2.0.2").contains("lladdr"), "nobody has asked yet");
    for way in ways() {
        ping(&testbed, way.client, way.server);
    }
    assert!(known("10.2.0.2").contains("lladdr"), "the kernel has asked: {}", known("10.2.0.2"));
    let shown = router.json("neighbors");
    let origin = |address: &str| {
        let all = shown.as_array().expect("a list").iter();
        all.filter(|n| n["address"] == address).map(|n| n["origin"].clone()).next()
    };
    assert_eq!(origin("fd02::2"), Some("kernel".into()), "{shown}");
    // It is verified again and again, because somebody here needs it.
    let in_doubt = ["STALE", "DELAY", "PROBE"];
    for _ in 0..2 {
        until("it is in doubt", || in_doubt.iter().any(|s| known("10.2.0.2").contains(s)).then_some(()));
        until("and reachable again", || known("10.2.0.2").contains("REACHABLE").then_some(()));
    }
    // The kernel's word counts: another address, and back.
    in_router(&testbed, "neigh replace 10.2.0.2 lladdr 02:00:00:00:00:99 dev r1 nud permanent");
    until("the other address is used", || {
        router.told(&["show", "neighbors"]).contains("02:00:00:00:00:99").then_some(())
    });
    in_router(&testbed, "neigh del 10.2.0.2 dev r1");
    let [four, _] = ways();
    ping(&testbed, four.client, four.server);
}

/// More changes than the socket holds: they are dumped again, and nothing else is touched.
#[test]
fn many_changes_end_in_the_kernels_table() {
    let Some(testbed) = Testbed::new("many_changes_end_in_the_kernels_table") else { return };
    let router = testbed.start(&mirrored(&testbed));
    let batch = |verb: &str, count: u32| {
        let lines: String = (0..count)
            .map(|n| format!("route {verb} 20.{}.{}.0/24 via 10.2.0.2 proto bgp\n", n >> 8, n & 255))
            .collect();
        let file = testbed.file("batch", &lines);
        run(&format!("ip -n {} -batch {}", testbed.router, file.display()));
    };
    let count = |router: &Router| {
        let status: serde_json::Value = router.json("status");
        status["routes"].as_u64().unwrap_or_default()
    };
    let before = count(&router);
    let [four, _] = ways();
    ping(&testbed, four.client, four.server);
    let seen = under_traffic(&testbed, four.client, four.server, || {
        batch("add", 20_000);
        until("all are there", || (count(&router) == before + 20_000).then_some(()));
        batch("del", 20_000);
        until("all are gone", || (count(&router) == before).then_some(()));
    });
    // On a busy machine the receiving socket may overflow; here nothing may be lost.
    let drops: i64 = router.metric("weir_drops_total", "");
    let ports = router.json("ports");
    let losses = ports.as_array().into_iter().flatten().flat_map(|p| p["losses"].as_object().cloned());
    let losses: u64 = losses.flat_map(|l| l.into_iter().filter_map(|(_, n)| n.as_u64())).sum();
    assert_eq!(
        (drops, losses),
        (0, 0),
        "other prefixes lose nothing: {seen:?}\n{}",
        router.told(&["show", "drops"])
    );
    assert!(seen.received * 10 >= seen.sent * 9, "{seen:?}");
}

/// Random route sets: what is followed says of random destinations what the kernel says.
#[test]
fn the_kernel_agrees_about_random_routes() {
    let Some(testbed) = Testbed::new("the_kernel_agrees_about_random_routes") else { return };
    forwarding(&testbed, true);
    testbed.connect(
        &testbed.server,
        "s2",
        "r2",
        ["10.3.0.2/24", "fd03::2/64"],
        ["10.3.0.1/24", "fd03::1/64"],
        1,
    );
    let mut random = SplitMix64::new(22);
    for round in 0..6 {
        for n in 0..60 {
            let length = 12 + random.below(14);
            let prefix = format!("20.{}.{}.0/{length}", random.below(4) << 6, random.below(8) << 5);
            let prefix = weir_core::route::Prefix::new(
                ip(prefix.split('/').next().expect("an address")),
                length as u8,
            );
            let metric = random.below(3);
            let via = match random.below(9) {
                0 => format!("blackhole {prefix}"),
                1 => format!("unreachable {prefix}"),
                2 => format!("prohibit {prefix}"),
                3 => format!("{prefix} nexthop via 10.2.0.{} nexthop via 10.1.0.9 weight 2", 2 + n % 3),
                4 => format!("{prefix} via 10.3.0.2"),
                5 => format!("{prefix} dev r1"),
                6 => format!("throw {prefix}"),
                _ => format!("{prefix} via 10.{}.0.{}", 1 + n % 2, 2 + n % 5),
            };
            let verb = ["replace", "append", "del"][random.below(3) as usize];
            let words = format!("-n {} route {verb} {via} metric {metric}", testbed.router);
            // What was never there cannot be deleted.
            let _ = Command::new("ip").args(words.split(' ')).stderr(std::process::Stdio::null()).status();
        }
        if round == 3 {
            in_router(&testbed, "link set r1 down");
        }
        if round == 4 {
            in_router(&testbed, "link set r1 up");
        }
        agree(&testbed, &mut random);
    }
}

/// Asks both about random destinations.
fn agree(testbed: &Testbed, random: &mut SplitMix64) {
    let config = weir::config::parse("r", "r", mirrored(testbed)).expect("it is good");
    let routes = netns::inside(&testbed.router, || {
        let links = weir_io::netlink::links().expect("listed");
        weir::router::mirror::look(&config, &links).expect("dumped").routes
    });
    let routes = routes.expect("the namespace is there");
    for _ in 0..60 {
        let to = format!(
            "20.{}.{}.{}",
            random.below(4) << 6 | random.below(64),
            random.below(256),
            random.below(256)
        );
        let address = ip(&to);
        let covers = |p: &weir_core::route::Prefix| {
            p.addr().is_ipv4() && weir_core::route::Prefix::new(address, p.len()) == *p
        };
        let best = routes.iter().filter(|(p, _)| covers(p)).max_by_key(|(p, _)| p.len());
        let asked = Command::new("ip")
            .args(["-n", &testbed.router, "route", "get", &to])
            .output()
            .expect("ip starts");
        let said =
            String::from_utf8_lossy(&asked.stdout).into_owned() + &String::from_utf8_lossy(&asked.stderr);
        let agrees = match best.map(|(_, route)| &route.outcome) {
            None => said.contains("Network is unreachable"),
            // Left to the kernel: whatever it does is right.
            Some(Outcome::Kernel(_)) => true,
            Some(Outcome::Via(via)) => match &**via {
                Via::Blackhole => said.contains("Invalid argument"),
                Via::Unreachable => said.contains("No route to host"),
                Via::Prohibited => said.contains("Permission denied"),
                Via::NextHops(hops) => hops.iter().any(|hop| {
                    let device = if hop.port.as_deref() == Some("left") { "dev r0" } else { "dev r1" };
                    let via = hop.gateway.map_or(String::new(), |g| format!("via {g} "));
                    said.contains(&format!("{via}{device}"))
                        && (hop.gateway.is_some() || !said.contains(" via "))
                }),
            },
        };
        assert!(agrees, "{to}: the kernel says {said}, here it is {best:?}");
    }
}
