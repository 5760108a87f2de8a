//! Ports in a VRF of the kernel: its table is followed, and nobody else's. In the second kernel, which has VRF devices.

use std::process::Command;

use crate::second_kernel::there;
use crate::testbed::{Family, LEFT_LAN, LEFT_WAN, Testbed, batch, until};
use crate::weir_gateway::Weir;

const ROUTER: &str = "routes = \"kernel\"\n\
    [[port]]\nname = \"lan\"\ndevice = \"l0\"\nkind = \"af_packet\"\naddresses = \"kernel\"\n\
    [[port]]\nname = \"wan\"\ndevice = \"l1\"\nkind = \"af_packet\"\naddresses = \"kernel\"\n";

/// The left router's devices in VRF red; what the main table has is wrong.
fn testbed() -> Testbed {
    let testbed = Testbed::new();
    let mut lines = vec!["link add red type vrf table 10".to_owned(), "link set red up".to_owned()];
    for (device, addresses) in [("l0", LEFT_LAN), ("l1", LEFT_WAN)] {
        lines.push(format!("link set {device} master red"));
        lines.extend(addresses.iter().map(|address| format!("addr add {address} dev {device}")));
    }
    for (family, via) in [(Family::V4, "192.0.2.2"), (Family::V6, "2001:db8::2")] {
        let far = family.row().nets[1];
        lines.push(format!("route add {far} via {via} table 10"));
        lines.push(format!("route add blackhole {far}"));
    }
    batch(Some(&testbed.left), &lines);
    testbed.kernel_does_not_forward_left();
    testbed
}

fn in_left(testbed: &Testbed, line: &str) {
    batch(Some(&testbed.left), &[line.to_owned()]);
}

fn said(weir: &Weir, text: &str) {
    until(&format!("the log says `{text}`:\n{}", weir.log()), || weir.log().contains(text).then_some(()));
}

fn pings(testbed: &Testbed, family: Family) {
    let to = family.row().b.to_string();
    until(&format!("{to} answers"), || {
        let ping = ["netns", "exec", &testbed.a, "ping", "-q", "-c", "1", "-W", "1", &to];
        Command::new("ip").args(ping).output().expect("ip starts").status.success().then_some(())
    });
}

#[test]
fn ports_in_a_vrf_follow_its_table() {
    there("vrf::ports_in_a_vrf_follow_its_table", || {
        let testbed = testbed();
        let weir = Weir::start(&testbed, ROUTER);
        said(&weir, "prefixes of the kernel's routes for VRF red (table 10); they are followed");
        for family in [Family::V4, Family::V6] {
            pings(&testbed, family);
        }
        let routes = weir.told(&["show", "routes"]);
        assert!(routes.contains("10.2.0.0/24") && routes.contains("192.0.2.2@wan"), "{routes}");
        let trace = || weir.told(&["trace", "--port", "lan", "--src", "10.1.0.2", "--dst", "203.0.113.1"]);
        let file = testbed.folder.join("gateway.toml");
        let doctor = || {
            let words = ["netns", "exec", &testbed.left, env!("CARGO_BIN_EXE_weir"), "doctor"];
            let doctor = Command::new("ip").args(words).arg(&file).output().expect("weir starts");
            String::from_utf8_lossy(&doctor.stdout).into_owned()
        };
        assert!(
            doctor().contains("0.0.0.0/0 is left to the kernel: the VRF has no default route"),
            "{}",
            doctor()
        );
        in_left(&testbed, "route add unreachable default metric 4278198272 table 10");
        until("the VRF ends with it", || trace().contains("drop: unreachable").then_some(()));
        assert!(!doctor().contains("0.0.0.0/0 is left"), "{}", doctor());
        // A device that leaves the VRF takes both families with it, until it is back.
        in_left(&testbed, "link set l0 nomaster");
        said(&weir, "IPv4: l0 belongs to no VRF: every packet of this family is left to the kernel");
        in_left(&testbed, "link set l0 master red");
        said(&weir, "no longer: IPv4: l0 belongs to no VRF");
        pings(&testbed, Family::V4);
        weir.assert_conserved();
    });
}
