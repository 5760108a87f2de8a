//! What the kernel may tell that is no good, or not all of it: each has its sentence and its counter, and what forwards goes on.
//!
//! The cases are those of the table "When the kernel's word is bad" in docs/control.md.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_core::wire::icmpv4;
use weir_io::process;

use super::in_and_out::{flows, is_all_there, kernels, under_flows};
use super::mirror::{accelerate, beyond, has, in_router, mirrored, signal, traced};
use super::testbed::{Router, Testbed, Wire, ip, run, until};
use super::traffic::{icmp, ping, toward, ways};
use weir::testing::daemon::Running;
use weir::testing::machine::until_within;

/// Sends to a group of the kernel's messages what no kernel sends: bytes in hexadecimal, a datagram each. Who holds
/// CAP_NET_ADMIN may.
fn send_to_group(testbed: &Testbed, protocol: u32, group: u32, datagrams: &[String]) {
    const PROGRAM: &str = "import socket, sys\n\
        s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, int(sys.argv[1]))\n\
        s.bind((0, 0))\n\
        for datagram in sys.argv[3:]:\n    s.sendto(bytes.fromhex(datagram), (0, 1 << int(sys.argv[2]) - 1))\n";
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &testbed.router, "python3", "-c", PROGRAM]);
    command.args([protocol.to_string(), group.to_string()]).args(datagrams);
    let output = command.output().expect("ip starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `struct nlmsghdr` with this length and type, and what follows.
fn message(length: u32, kind: u16, rest: &[u8]) -> String {
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes.extend(rest);
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn event(router: &Router, event: &str) -> i64 {
    router.metric("weir_mirror_events_total", &format!("event=\"{event}\""))
}

#[test]
fn messages_that_are_not_well_formed_are_counted_and_skipped() {
    let test = "messages_that_are_not_well_formed_are_counted_and_skipped";
    let Some(testbed) = Testbed::new(test) else { return };
    if !has("python3", test) {
        return;
    }
    let router = testbed.start(&mirrored(&testbed));
    let [four, _] = ways();
    ping(&testbed, four.client, four.server);
    const NEW_ROUTE: u16 = 24;
    // `struct rtmsg`: IPv4, a /24 of table main.
    let route = [2u8, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    // RTA_DST says more bytes than there are; RTA_DST of two bytes.
    let beyond = [&route[..], &[200, 0, 1, 0, 10, 9, 0, 0]].concat();
    let short = [&route[..], &[6, 0, 1, 0, 10, 9, 0, 0]].concat();
    let bad = [
        message(16 + 20, NEW_ROUTE, &beyond),
        message(16 + 20, NEW_ROUTE, &short),
        message(16 + 4, NEW_ROUTE, &route[..4]),
        message(4000, NEW_ROUTE, &route),
    ];
    send_to_group(&testbed, 0, 7, &bad);
    until("all are counted", || (event(&router, "malformed") == bad.len() as i64).then_some(()));
    let status = router.told(&["show", "status"]);
    assert!(status.contains("4 messages of the kernel about routes were not well formed"), "{status}");
    in_router(&testbed, "route add blackhole 10.9.0.0/16");
    traced(&router, "10.9.0.1", "drop: blackhole");
    ping(&testbed, four.client, four.server);
    router.assert_conserved();
}

#[test]
fn messages_about_sas_that_are_not_well_formed_are_counted_and_skipped() {
    let test = "messages_about_sas_that_are_not_well_formed_are_counted_and_skipped";
    let Some(testbed) = Testbed::new(test) else { return };
    if !has("python3", test) {
        return;
    }
    let keys = "keys = { from = \"kernel\", ports = [\"right\"] }\n";
    let router = testbed.spawn(&(keys.to_owned() + &testbed.config("auto", "")), &[]);
    until(&format!("it starts or says why not:\n{}", router.log()), || {
        (router.log().contains("is ready") || router.log().contains("xfrm_user")).then_some(())
    });
    if !router.log().contains("is ready") {
        return writeln!(std::io::stderr(), "SKIP {test}: needs a kernel with XFRM").expect("stderr is open");
    }
    let [four, _] = ways();
    ping(&testbed, four.client, four.server);
    const NEW_SA: u16 = 0x10;
    let bad = [message(16 + 8, NEW_SA, &[0; 8]), message(4000, NEW_SA, &[0; 8])];
    send_to_group(&testbed, 6, 3, &bad);
    let malformed = || router.metric("weir_key_mirror_events_total", "event=\"malformed\"");
    until("both are counted", || (malformed() == 2).then_some(()));
    let status = router.told(&["show", "status"]);
    assert!(status.contains("2 messages of the kernel about SAs were not well formed"), "{status}");
    ping(&testbed, four.client, four.server);
    router.assert_conserved();
}

/// Packets wait for the next hop, then their sender is told; nobody else notices.
#[test]
fn a_route_by_a_next_hop_nobody_has_is_told_to_the_sender_and_counted() {
    let Some(testbed) = Testbed::new("a_route_by_a_next_hop_nobody_has_is_told_to_the_sender_and_counted")
    else {
        return;
    };
    in_router(&testbed, "route add 10.9.5.0/24 via 10.2.0.77 proto bgp");
    in_router(&testbed, "nexthop add id 77 via 10.2.0.78 dev r1");
    in_router(&testbed, "route add 10.9.6.0/24 nhid 77 proto bgp");
    let router = testbed.start(&mirrored(&testbed));
    let [four, _] = ways();
    for nobodys in ["10.9.5.1", "10.9.6.1"] {
        let mut wire = Wire::open(&testbed.client, "c0");
        let frame = toward(&testbed, four.client, ip(nobodys)).echo_request(78, 1, b"is anybody there?");
        wire.exchange(&format!("nobody leads to {nobodys}"), &frame, |f| {
            icmp(f)
                .is_some_and(|i| (i.from, i.kind, i.code) == (four.near, icmpv4::DESTINATION_UNREACHABLE, 1))
        });
        ping(&testbed, four.client, four.server);
    }
    router.wait_for_metric("weir_drops_total", "neighbor_unresolved", 2);
    in_router(&testbed, &format!("neigh replace 10.2.0.77 lladdr {} dev r1", mac_of_server(&testbed)));
    ping(&testbed, four.client, beyond(&testbed, "10.9.5.1/32"));
    router.assert_conserved();
}

fn mac_of_server(testbed: &Testbed) -> String {
    run(&format!("ip netns exec {} cat /sys/class/net/s0/address", testbed.server)).trim().to_owned()
}

/// Commands for `ip`, over and over, in the router's namespace.
struct Churn(Child);

impl Churn {
    fn start(testbed: &Testbed, lines: &str) -> Churn {
        let file = testbed.file("churn", lines);
        let again = format!("while :; do ip -force -batch {}; done", file.display());
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &testbed.router, "sh", "-c", &again]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Churn(process::dies_with_starter(&mut command).spawn().expect("ip starts"))
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A dump that the kernel changed under may lack anything: it takes nothing away, and is taken again where the kernel says so.
#[test]
fn dumps_while_everything_changes_take_nothing_away() {
    let Some((testbed, pairs)) = kernels("dumps_while_everything_changes_take_nothing_away") else {
        return;
    };
    const OBJECTS: u32 = 4_000;
    let lines: String = (0..OBJECTS)
        .map(|n| {
            let (id, net) = (1_000 + n, format!("20.{}.{}.0/24", n >> 8, n & 255));
            format!("nexthop add id {id} via 10.2.0.2 dev r1\nroute add {net} nhid {id} proto bgp\n")
        })
        .collect();
    let file = testbed.file("objects", &lines);
    run(&format!("ip -n {} -batch {}", testbed.router, file.display()));
    let router = testbed.start(&mirrored(&testbed));
    let count = || router.json("status")["routes"].as_u64().unwrap_or_default();
    let before = count();
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        progress.arrives(100);
        // Each object that goes has everything dumped, while others change.
        let churn: String =
            (0..2_000).map(|n| format!("nexthop replace id 9 via 10.2.0.{} dev r1\n", 3 + n % 2)).collect();
        let _churn = Churn::start(&testbed, &(churn + "nexthop del id 9\n"));
        until_within(Duration::from_secs(60), "everything is dumped twice", || {
            assert_eq!(count(), before, "a dump took routes away");
            (event(&router, "resync") > 1).then_some(())
        });
        progress.arrives(100);
    });
    is_all_there(&fates, "dumps while everything changes");
    assert_eq!(event(&router, "vanished"), 0);
    let resyncs = event(&router, "resync");
    until("everything is dumped once more", || (event(&router, "resync") > resyncs).then_some(()));
    assert_eq!(count(), before);
    router.assert_conserved();
}

/// Interfaces with addresses and routes come and go all the time, at every start and during every dump.
#[test]
fn interfaces_that_vanish_while_everything_is_dumped_take_nothing_with_them() {
    let test = "interfaces_that_vanish_while_everything_is_dumped_take_nothing_with_them";
    let Some((testbed, pairs)) = kernels(test) else { return };
    let comes_and_goes = |n: u32| {
        let routes: String =
            (0..200).map(|i| format!("route add 30.{n}.{i}.0/24 via 10.{}.0.2\n", 50 + n)).collect();
        format!(
            "link add v{n} type veth peer name w{n}\naddr add 10.{}.0.1/24 dev v{n}\nlink set v{n} up\n{routes}link del v{n}\n",
            50 + n
        )
    };
    let churn: String = (0..3).map(comes_and_goes).collect();
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        let _churn = Churn::start(&testbed, &churn);
        for _ in 0..3 {
            let mut running = accelerate(&testbed);
            let events = |event: &str| -> i64 {
                running.values("weir_mirror_events_total", &format!("event=\"{event}\"")).iter().sum()
            };
            until("everything is dumped again", || (events("resync") > 0).then_some(()));
            assert_eq!(events("malformed"), 0);
            progress.arrives(100);
            signal(&mut running, "TERM");
        }
    });
    is_all_there(&fates, "interfaces that vanish");
    let router = testbed.start(&mirrored(&testbed));
    until("what is left is what the kernel has", || {
        let routes = router.told(&["show", "routes", "--limit", "100000"]);
        (!routes.contains(" 30.") && !routes.contains("\n30.")).then_some(())
    });
}

#[test]
fn a_second_weir_on_an_interface_is_refused_by_name_and_the_first_goes_on() {
    let test = "a_second_weir_on_an_interface_is_refused_by_name_and_the_first_goes_on";
    let Some((testbed, pairs)) = kernels(test) else { return };
    let first = accelerate(&testbed);
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        progress.arrives(100);
        let socket = testbed.folder.join("second.sock");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &testbed.router, env!("CARGO_BIN_EXE_weir"), "--socket"]).arg(&socket);
        command.args(["accelerate", "r0", "r1"]);
        let mut second = Running::start(&mut command, socket);
        let ended = until("the second ends", || second.child.try_wait().expect("a child of ours"));
        thread::sleep(Duration::from_millis(50));
        let log = second.log();
        assert!(!ended.success(), "{log}");
        assert!(log.contains("r0: XDP program weir") && log.contains("is already attached"), "{log}");
        progress.arrives(100);
    });
    is_all_there(&fates, "a second weir");
    drop(first);
}

/// More prefixes than there is room for: the kernel goes on with all of it, and that is said, until it fits.
#[test]
fn a_table_there_is_no_room_for_is_left_to_the_kernel_and_said() {
    let Some((testbed, pairs)) = kernels("a_table_there_is_no_room_for_is_left_to_the_kernel_and_said")
    else {
        return;
    };
    let config = format!("routes = {{ from = \"kernel\", most = 1000 }}\n{}", testbed.config("auto", ""));
    let router = testbed.start(&config);
    let batch = |verb: &str| {
        let lines: String = (0..2_000)
            .map(|n| format!("route {verb} 20.{}.{}.0/24 via 10.2.0.2\n", n >> 8, n & 255))
            .collect();
        let file = testbed.file("batch", &lines);
        run(&format!("ip -n {} -batch {}", testbed.router, file.display()));
    };
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        progress.arrives(100);
        batch("add");
        router.wait_for("the kernel has more than 1000 prefixes, for which there is room: every packet of this family is left to the kernel");
        assert_eq!(router.metric("weir_mirror_families_aside", ""), 2);
        progress.arrives(200);
        batch("del");
        // A link that goes has everything dumped.
        run(&format!("ip -n {} link add v0 type veth peer name w0", testbed.router));
        in_router(&testbed, "link set v0 up");
        in_router(&testbed, "link del v0");
        router.wait_for("this family is forwarded here again");
        let before = router.metric("weir_frames_forwarded_total", "");
        progress.arrives(200);
        assert!(router.metric("weir_frames_forwarded_total", "") > before);
    });
    is_all_there(&fates, "a table without room");
    router.assert_conserved();
}
