//! Devices of the kernel that ports are on while they come, go and change under traffic: VLANs, MTUs, bonds. In the second
//! kernel, which has them, by packet sockets; on a whole Debian (`make keys-test`) by AF_XDP.

use std::process::{Command, Output};
use std::time::Duration;

use crate::second_kernel::{figure, port_kind, there};
use crate::testbed::{LEFT_LAN, LEFT_WAN, Testbed, batch, ip, until};
use crate::traffic::{Host, Seen, all, beside, numbered};
use crate::weir_gateway::Weir;

/// A router by the kernel's routes, its far port on this device, and more ports.
fn router(wan: &str, more: &str) -> String {
    let kind = port_kind();
    let port = |name: &str, device: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\nkind = \"{kind}\"\naddresses = \"kernel\"\n"
        )
    };
    "routes = \"kernel\"\n".to_owned() + &port("lan", "l0") + &port("wan", wan) + more
}

fn lines(ns: &str, lines: &[&str]) {
    batch(Some(ns), &lines.iter().map(|&line| line.to_owned()).collect::<Vec<String>>());
}

fn said(weir: &Weir, text: &str) {
    until(&format!("the log says `{text}`:\n{}", weir.log()), || weir.log().contains(text).then_some(()));
}

/// A ping of `size` bytes of payload that must not be cut in pieces.
fn ping_whole(from: Host<'_>, to: Host<'_>, size: u32) -> Output {
    let (near, far, size) = (from.ip.to_string(), to.ip.to_string(), size.to_string());
    let mut ping = Command::new("ip");
    ping.args(["netns", "exec", from.ns, "ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", &size]);
    ping.args(["-I", &near, &far]).output().expect("ping starts")
}

fn answered(from: Host<'_>, to: Host<'_>, size: u32) -> bool {
    ping_whole(from, to, size).status.success()
}

/// The right gateway's VLAN 7, and hosts that reach each other by nothing else: 10.1.0.3 and 203.0.113.2.
fn vlan_testbed() -> Testbed {
    let testbed = Testbed::new();
    lines(&testbed.left, &["link set lo up"]);
    for (device, addresses) in [("l0", LEFT_LAN), ("l1", LEFT_WAN)] {
        let all = addresses.map(|address| format!("addr add {address} dev {device}"));
        batch(Some(&testbed.left), &all);
    }
    lines(&testbed.left, &["route add 10.2.0.0/24 via 192.0.2.2"]);
    testbed.kernel_does_not_forward_left();
    lines(&testbed.a, &["addr add 10.1.0.3/24 dev a0"]);
    lines(&testbed.b, &["addr add 203.0.113.2/32 dev b0"]);
    lines(
        &testbed.right,
        &[
            "link add link r1 name r1.7 type vlan id 7",
            "addr add 198.51.100.2/24 dev r1.7",
            "link set r1.7 up",
            "route add 203.0.113.0/24 via 10.2.0.2",
            "route add 10.1.0.3/32 via 198.51.100.1",
        ],
    );
    testbed
}

/// The left router's end of VLAN 7.
fn vlan_comes(testbed: &Testbed) {
    lines(
        &testbed.left,
        &[
            "link add link l1 name l1.7 type vlan id 7",
            "addr add 198.51.100.1/24 dev l1.7",
            "link set l1.7 up",
            "route add 203.0.113.0/24 via 198.51.100.2",
        ],
    );
}

/// The VLAN's port.
fn tagged() -> String {
    let kind = port_kind();
    format!(
        "[[port]]\nname = \"tagged\"\ndevice = \"l1\"\nkind = \"{kind}\"\nvlan = 7\naddresses = \"kernel\"\n"
    )
}

fn vlans_come_and_go(testbed: &Testbed, weir: &Weir) {
    let near = Host { ns: &testbed.a, ip: ip("10.1.0.3") };
    let far = Host { ns: &testbed.b, ip: ip("203.0.113.2") };
    let forgets = || lines(&testbed.a, &["route flush cache"]);
    let whole = Seen { whole: 100, ..Seen::default() };
    assert!(!answered(near, far, 56), "there is no VLAN yet");
    for round in 0..2 {
        vlan_comes(testbed);
        until("packets pass by the VLAN", || answered(near, far, 56).then_some(()));
        assert_eq!(numbered(near, far, 100), whole, "round {round}");
        assert_eq!(numbered(far, near, 100), whole, "round {round}, back");
        assert!(answered(near, far, 1472), "as large as the VLAN's device");

        lines(&testbed.left, &["link set l1.7 mtu 1400"]);
        said(weir, "port tagged: mtu 1500 → 1400");
        let refused = ping_whole(near, far, 1400);
        let told = String::from_utf8_lossy(&refused.stdout).to_lowercase();
        assert!(!refused.status.success() && told.contains("frag needed") && told.contains("1400"), "{told}");
        assert!(answered(near, far, 1372), "as large as the VLAN's device is now");
        lines(&testbed.left, &["link set l1.7 mtu 1500"]);
        forgets();
        until("packets may be larger again", || answered(near, far, 1472).then_some(()));
        forgets();

        lines(&testbed.left, &["link del l1.7"]);
        until("nothing passes without the VLAN", || (!answered(near, far, 56)).then_some(()));
    }
    lines(&testbed.left, &["link set l1 mtu 1450"]);
    said(weir, "port wan: mtu 1500 → 1450");
    lines(&testbed.left, &["link set l1 mtu 1500"]);
    said(weir, "port wan: mtu 1450 → 1500");
}

#[test]
fn vlans_come_and_go_and_change_their_mtu_and_nothing_beside_them_is_lost() {
    there("links::vlans_come_and_go_and_change_their_mtu_and_nothing_beside_them_is_lost", || {
        let testbed = vlan_testbed();
        let weir = Weir::start(&testbed, &router("l1", &tagged()));
        let (a, b) = crate::kernel_keys::hosts(&testbed);
        until("packets pass", || answered(a, b, 56).then_some(()));
        let [beside] =
            beside([(a, b)], (100, Duration::from_millis(4)), |_| vlans_come_and_go(&testbed, &weir));
        figure(&format!("VLANs came and went twice, {beside} packets beside them, none lost"));
        weir.assert_conserved();
    });
}

/// A bond of two wires at each end.
fn bond_testbed() -> Testbed {
    let testbed = Testbed::new();
    let (left, right) = (&testbed.left, &testbed.right);
    batch(None, &[format!("link add l2 netns {left} type veth peer name r2 netns {right}")]);
    lines(right, &["addr flush dev r1"]);
    for (ns, members) in [(left, ["l1", "l2"]), (right, ["r1", "r2"])] {
        lines(ns, &["link add bond0 type bond mode active-backup miimon 50"]);
        for member in members {
            batch(
                Some(ns),
                &[
                    format!("link set {member} down"),
                    format!("link set {member} master bond0"),
                    format!("link set {member} up"),
                ],
            );
        }
        lines(ns, &["link set bond0 up"]);
    }
    lines(right, &["addr add 192.0.2.2/24 dev bond0", "route replace 10.1.0.0/24 via 192.0.2.1"]);
    lines(left, &["link set lo up", "addr add 10.1.0.1/24 dev l0", "addr add 192.0.2.1/24 dev bond0"]);
    lines(left, &["route add 10.2.0.0/24 via 192.0.2.2"]);
    testbed.kernel_does_not_forward_left();
    testbed
}

#[test]
fn a_bond_is_a_port_and_its_members_are_none() {
    there("links::a_bond_is_a_port_and_its_members_are_none", || {
        let testbed = bond_testbed();
        let file = testbed.file("member.toml", &router("l1", ""));
        let words = ["netns", "exec", &testbed.left, env!("CARGO_BIN_EXE_weir"), "run"];
        let refused = Command::new("ip").args(words).arg(&file).output().expect("weir starts");
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && why.contains("l1 belongs to the bond bond0"), "{why}");
        assert!(why.contains("name bond0 instead"), "{why}");

        let weir = Weir::start(&testbed, &router("bond0", ""));
        let (a, b) = crate::kernel_keys::hosts(&testbed);
        until("packets pass by the bond", || answered(a, b, 56).then_some(()));
        all(a, b, 200, 300_000);
        for member in ["l1", "l2"] {
            batch(Some(&testbed.left), &[format!("link set {member} down")]);
            until("packets pass by the other member", || answered(a, b, 56).then_some(()));
            all(a, b, 200, 300_000);
            batch(Some(&testbed.left), &[format!("link set {member} up")]);
            until("both members are there", || {
                let links = crate::testbed::run(&format!("ip -n {} -o link show master bond0", testbed.left));
                (links.matches("state UP").count() == 2).then_some(())
            });
        }
        weir.assert_conserved();
    });
}
