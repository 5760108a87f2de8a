//! A policy enforcement point against a real kernel: what transits never reaches the stack, what is local does,
//! and the program outlives whoever attached it.

use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use weir_core::device::Device;
use weir_core::packet::{DeviceId, Frame, Pool};
use weir_core::tables::Owner;
use weir_core::wire::build;
use weir_io::af_packet::{AfPacket, kernel_forwards};
use weir_io::bpf::attach::{self, XdpMode};
use weir_io::interface::Interface;
use weir_io::netns;
use weir_io::steer::enforce::{self, EnforceCounters, Enforcement};
use weir_io::steer::{LocalAddresses, Steering};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

fn link(test: &str) -> Option<Namespace> {
    let ns = Namespace::new(test)?;
    for (name, mac) in [("a", "02:00:00:00:00:0a"), ("b", "02:00:00:00:00:0b")] {
        ns.sysctl(&format!("net.ipv6.conf.{name}.disable_ipv6=1"));
        ns.ip(&["link", "set", "dev", name, "address", mac, "up"]);
    }
    Some(ns)
}

fn udp(to: &str) -> Vec<u8> {
    let from = if to.contains(':') { "2001:db8:1::1" } else { "10.0.0.1" };
    let ip = |text: &str| text.parse().expect("an address");
    let packet = build::Frame::ip(ip(from), ip(to)).expect("one family").macs(OURS, FAR);
    packet.udp(4000, 4001, b"transit")
}

fn tagged(mut frame: Vec<u8>, kind: u16) -> Vec<u8> {
    let tag = [kind.to_be_bytes(), 5u16.to_be_bytes()].concat();
    frame.splice(12..12, tag);
    frame
}

fn local() -> LocalAddresses {
    let mut local = LocalAddresses::new().expect("maps");
    let kernel = ["192.0.2.1", "2001:db8::1"].map(|a| (a.parse().expect("an address"), Owner::Kernel));
    let weir = ("192.0.2.9".parse().expect("an address"), Owner::Weir);
    local.set(kernel.into_iter().chain([weir])).expect("set");
    local
}

fn send(frames: &[Vec<u8>]) {
    let mut port = AfPacket::open("b", DeviceId(0), None).expect("opened");
    let mut pool: Pool<Box<[u8]>> = Pool::boxed(64);
    for bytes in frames {
        let buffer = pool.take().expect("a buffer");
        let mut frames = vec![Frame::from_bytes(buffer, bytes, DeviceId(0)).expect("fits")];
        await_that("sending", || {
            port.tx(&mut pool, &mut frames);
            frames.is_empty()
        });
    }
}

fn await_that(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "{what}: not within ten seconds");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn index() -> u32 {
    Interface::open("a").expect("the interface is there").index()
}

#[test]
fn transit_is_dropped_and_what_is_local_is_not() {
    let Some(ns) = link("transit_is_dropped_and_what_is_local") else { return };
    netns::inside(&ns.0, || {
        let point = Enforcement::attach("a", index(), &local()).expect("attached");
        let mut arp = udp("192.0.2.1");
        arp[12..14].copy_from_slice(&[8, 6]);
        let mut elsewhere = udp("10.1.0.1");
        elsewhere[..6].copy_from_slice(&[0xff; 6]);
        let passed = ["192.0.2.1", "2001:db8::1", "224.0.0.5", "255.255.255.255", "ff02::5"].map(udp);
        send(&passed);
        send(&[arp, elsewhere, tagged(udp("192.0.2.1"), 0x8100)]);
        send(&[tagged(tagged(udp("10.1.0.1"), 0x8100), 0x8100)]);
        await_that("the stacked tag", || point.counters().expect("readable").opaque == 1);
        assert_eq!(point.counters().expect("readable").transit, 0, "nothing local is dropped");
        let transit = ["10.1.0.1", "192.0.2.9", "240.0.0.1", "0.0.0.1", "2001:db8:2::1", "fe80::1"].map(udp);
        send(&transit);
        send(&[tagged(udp("10.1.0.1"), 0x8100), tagged(udp("10.1.0.1"), 0x88a8)]);
        // A header that ends before its destination is nobody's.
        send(&[udp("192.0.2.1")[..30].to_vec()]);
        await_that("nine frames of transit", || point.counters().expect("readable").transit >= 9);
        assert_eq!(point.counters().expect("readable"), EnforceCounters { transit: 9, opaque: 1 });
    })
    .expect("entered");
}

#[test]
fn the_point_outlives_its_maker_and_a_successor_counts_on() {
    let Some(ns) = link("the_point_outlives_its_maker") else { return };
    netns::inside(&ns.0, || {
        let index = index();
        assert_eq!(enforce::counted(index).expect("asked"), None);
        assert!(!enforce::release(index).expect("asked"), "there is none");
        drop(Enforcement::attach("a", index, &local()).expect("attached"));
        send(&[udp("10.1.0.1")]);
        let counted = || enforce::counted(index).expect("asked").expect("still there").transit;
        await_that("a drop without an owner", || counted() == 1);
        let successor = Enforcement::attach("a", index, &local()).expect("a predecessor is no obstacle");
        assert!(successor.is_there().expect("asked"));
        send(&[udp("10.1.0.1")]);
        await_that("both drops", || successor.counters().expect("readable").transit == 2);
        // Taken off from outside, and attached again.
        ns.command("tc").args(["qdisc", "del", "dev", "a", "clsact"]).status().expect("tc");
        assert!(!successor.is_there().expect("asked"));
        successor.attach_again().expect("attached");
        assert!(successor.is_there().expect("asked"));
        assert!(enforce::release(index).expect("asked"));
        assert!(!successor.is_there().expect("asked"));
    })
    .expect("entered");
}

#[test]
fn a_steering_program_detached_by_force_is_attached_again() {
    let Some(ns) = link("a_steering_program_detached_by_force") else { return };
    netns::inside(&ns.0, || {
        let (index, local) = (index(), local());
        let mut steering = Steering::attach("a", index, &[XdpMode::Native], &local).expect("attached");
        assert!(!steering.attach_if_gone().expect("asked"));
        assert!(attach::force_detach(index).expect("asked"), "a link held it");
        assert!(steering.attach_if_gone().expect("attached again"));
        assert!(!steering.attach_if_gone().expect("asked"));
    })
    .expect("entered");
}

#[test]
fn ipv6_is_forwarded_by_the_word_of_all_devices() {
    let Some(ns) = link("ipv6_is_forwarded_by_the_word_of_all") else { return };
    netns::inside(&ns.0, || {
        ns.sysctl("net.ipv4.conf.all.forwarding=0");
        ns.sysctl("net.ipv6.conf.all.forwarding=0");
        assert_eq!(kernel_forwards("a"), (false, false));
        ns.sysctl("net.ipv4.conf.a.forwarding=1");
        assert_eq!(kernel_forwards("a"), (true, false));
        ns.sysctl("net.ipv6.conf.all.forwarding=1");
        ns.sysctl("net.ipv6.conf.a.forwarding=0");
        assert_eq!(kernel_forwards("a"), (true, true), "the device's own knob is no obstacle to the kernel");
    })
    .expect("entered");
}
