//! Links, addresses and offloads of a real kernel, in a namespace made for the purpose.

use crate::namespace::Namespace;
use weir_io::channels::Queues;
use weir_io::interface::Interface;
use weir_io::netlink::{self, Change, Monitor};
use weir_io::netns;
use weir_io::offload::{self, Offload, SwitchedOff};

#[test]
fn links_and_addresses_are_listed_as_the_kernel_has_them() {
    let Some(ns) = Namespace::new("links_and_addresses_are_listed_as_the_kernel_has_them") else { return };
    ns.ip(&["link", "set", "dev", "a", "mtu", "1400", "address", "02:00:00:00:00:01"]);
    ns.ip(&["addr", "add", "192.0.2.1/24", "dev", "a"]);
    ns.ip(&["addr", "add", "192.0.2.9/32", "peer", "192.0.2.10/32", "dev", "b"]);
    ns.ip(&["addr", "add", "2001:db8::1/64", "dev", "a", "nodad"]);
    netns::inside(&ns.0, || {
        let a = netlink::link("a").expect("a dump").expect("a is there");
        assert_eq!((a.mtu, a.mac, a.up, a.ethernet), (1400, [2, 0, 0, 0, 0, 1], false, true));
        let lo = netlink::link("lo").expect("a dump").expect("lo is there");
        assert!(lo.loopback);
        let addresses = netlink::addresses().expect("a dump");
        let has =
            |text: &str, len| addresses.iter().any(|x| x.address.to_string() == text && x.prefix_len == len);
        assert!(has("192.0.2.1", 24) && has("2001:db8::1", 64), "{addresses:?}");
        assert!(has("192.0.2.9", 32), "our end of a peer address, not the far one: {addresses:?}");
        assert!(netlink::link("nosuch").expect("a dump").is_none());
    })
    .expect("the namespace can be entered");
}

#[test]
fn monitor_tells_up_address_and_removal() {
    let Some(ns) = Namespace::new("monitor_tells_up_address_and_removal") else { return };
    let mut monitor = netns::inside(&ns.0, Monitor::open).expect("entered").expect("opened");
    assert_eq!(monitor.changes().expect("readable"), []);
    netns::inside(&ns.0, || {
        for name in ["a", "b"] {
            let link = netlink::link(name).expect("a dump").expect("there");
            netlink::set_up(link.index).expect("set up");
        }
    })
    .expect("entered");
    ns.ip(&["addr", "add", "192.0.2.1/24", "dev", "a"]);
    ns.ip(&["link", "del", "dev", "a"]);
    let changes = monitor.changes().expect("readable");
    assert!(
        changes.iter().any(|c| matches!(c, Change::Link(l) if l.name == "a" && l.running)),
        "{changes:?}"
    );
    assert!(changes.iter().any(|c| matches!(c, Change::Address(x) if x.prefix_len == 24)), "{changes:?}");
    assert!(changes.iter().any(|c| matches!(c, Change::LinkGone(l) if l.name == "a")), "{changes:?}");
}

#[test]
fn setting_up_a_missing_link_is_an_error() {
    let Some(ns) = Namespace::new("setting_up_a_missing_link_is_an_error") else { return };
    let result = netns::inside(&ns.0, || netlink::set_up(9999)).expect("entered");
    assert_eq!(result.expect_err("no such link").raw_os_error(), Some(libc::ENODEV));
}

#[test]
fn offloads_are_switched_off_and_put_back() {
    let Some(ns) = Namespace::new("offloads_are_switched_off_and_put_back") else { return };
    netns::inside(&ns.0, || {
        offload::set("a", Offload::Gro, true).expect("veth knows GRO");
        let list = [Offload::Gro, Offload::Tso, Offload::TxChecksum];
        let off = SwitchedOff::on("a", &list).expect("switched off");
        assert!(off.offloads().contains(&Offload::Gro));
        assert!(list.iter().all(|&o| !offload::is_on("a", o).expect("readable")));
        drop(off);
        assert!(offload::is_on("a", Offload::Gro).expect("readable"));
        let missing = offload::is_on("nosuch", Offload::Gro).expect_err("no such device");
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
    })
    .expect("entered");
}

#[test]
fn queues_are_set_and_put_back_unless_somebody_else_set_them() {
    let Some(ns) = Namespace::new("queues_are_set_and_put_back") else { return };
    let wide =
        "link add name wide numrxqueues 4 numtxqueues 4 type veth peer name far numrxqueues 4 numtxqueues 4";
    ns.ip(&wide.split(' ').collect::<Vec<_>>());
    netns::inside(&ns.0, || {
        let now = || Interface::open("wide").and_then(|wide| wide.queues()).expect("veth tells");
        let two = Queues::set("wide", 2).expect("it can have two").expect("it had another number");
        assert_eq!(now(), (2, 2));
        assert!(Queues::set("wide", 2).expect("it has two").is_none());
        drop(two);
        assert_eq!(now(), (4, 4));
        let two = Queues::set("wide", 2).expect("it can have two").expect("it had another number");
        std::mem::forget(Queues::set("wide", 3).expect("somebody else may set three"));
        drop(two);
        assert_eq!(now(), (3, 3), "what somebody else set stays");
        let many = Queues::set("wide", 5).expect_err("it has four at most").to_string();
        assert_eq!(many, "got 5 queues, expected 1 to 4: the device has no more");
        Queues::set("nosuch", 1).expect_err("no such device");
    })
    .expect("entered");
}

#[test]
fn entering_a_missing_namespace_is_an_error_not_a_panic() {
    assert!(netns::inside("weir-no-such-namespace", || ()).is_err());
}
