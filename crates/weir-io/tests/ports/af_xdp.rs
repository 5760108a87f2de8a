//! AF_XDP against a real kernel: what is transit comes to us, what is local does not, no chunk is lost,
//! and whatever happens to the interface is survived.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use weir_core::device::{Device, DeviceStatus};
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_core::tables::Owner;
use weir_core::wire::build;
use weir_io::af_packet::AfPacket;
use weir_io::af_xdp::{AfXdp, Bind, Options};
use weir_io::bpf::attach::XdpMode;
use weir_io::bpf::features::can_transmit;
use weir_io::cpu;
use weir_io::interface::{Interface, may_be_a_card};
use weir_io::netns;
use weir_io::offload::{self, Offload};
use weir_io::steer::flow_offload::{Arrives, Decided, FlowOffload, Leaves};
use weir_io::steer::{Cause, LocalAddresses, Steering};
use weir_io::umem::{Chunk, ChunkSize, Umem};
use weir_io::xdp_pass::Pass;
use weir_io::xdp_tally::{self, Tally};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const BOTH: [XdpMode; 2] = [XdpMode::Native, XdpMode::Generic];

/// `a` is ours, `b` the far end of the wire; neither speaks by itself.
fn link(test: &str) -> Option<Namespace> {
    let ns = Namespace::new(test)?;
    quiet(&ns, "a", "02:00:00:00:00:0a");
    quiet(&ns, "b", "02:00:00:00:00:0b");
    Some(ns)
}

/// An interface that is up and says nothing of its own accord.
fn quiet(ns: &Namespace, name: &str, mac: &str) {
    ns.sysctl(&format!("net.ipv6.conf.{name}.disable_ipv6=1"));
    ns.ip(&["link", "set", "dev", name, "address", mac, "up"]);
}

struct Port {
    steering: Arc<Steering>,
    queue: u32,
    device: AfXdp,
    pool: Pool<Chunk>,
    umem: Umem,
    /// Number of the frame received last.
    number: u64,
}

impl Port {
    fn open(name: &str, local: &LocalAddresses, offload: Option<&FlowOffload>) -> Port {
        let index = Interface::open(name).expect("the interface is there").index();
        let steering = Steering::attach_with(name, index, &BOTH, local, offload).expect("attached");
        Port::of_queue(0, Arc::new(steering))
    }

    /// A queue of an interface that is steered already.
    fn of_queue(queue: u32, steering: Arc<Steering>) -> Port {
        let umem = Umem::new(512, ChunkSize::default()).expect("memory");
        let mut options = Options::new(DeviceId(0), queue);
        (options.ring, options.posted) = (128, 128);
        let device = AfXdp::open(&options, &steering, &umem).expect("opened");
        let mut port = Port { pool: umem.pool(), steering, queue, device, umem, number: 0 };
        port.receive();
        port
    }

    /// Everything received so far has left.
    fn done(&self) {
        self.steering.progress(self.queue).expect("with a flow offload").done(self.number);
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        self.device.rx(&mut self.pool, &mut batch);
        let mut frames = Vec::new();
        for mut frame in batch.drain() {
            if let Some(progress) = self.steering.progress(self.queue) {
                self.number = progress.number(&mut frame, self.number).expect("numbered");
            }
            frames.push(frame.data().to_vec());
            self.pool.put(frame.into_buffer());
        }
        frames
    }

    /// Receives until `count` frames came.
    fn await_frames(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        await_that(&format!("{count} frames"), || {
            frames.extend(self.receive());
            frames.len() >= count
        });
        frames
    }

    fn await_counted(&self, cause: Cause, count: u64) {
        await_that(&format!("{count} times {}", cause.name()), || {
            self.steering.counters().expect("readable").of(cause) >= count
        });
    }

    fn assert_no_chunk_is_lost(&self) {
        let found = self.pool.free() + self.device.buffers_held() + self.umem.home();
        assert_eq!(found, self.umem.total());
    }
}

fn await_that(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < end, "{what}: not within five seconds");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The far end's own way to send exactly these bytes.
struct Wire {
    port: AfPacket<Box<[u8]>>,
    pool: Pool<Box<[u8]>>,
    heard: VecDeque<Vec<u8>>,
}

impl Wire {
    fn of(name: &str) -> Wire {
        let port = AfPacket::open(name, DeviceId(0), None).expect("opened");
        Wire { port, pool: Pool::boxed(256), heard: VecDeque::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        let buffer = self.pool.take().expect("a buffer");
        let mut frames = vec![Frame::from_bytes(buffer, bytes, DeviceId(0)).expect("fits")];
        await_that("sending", || {
            self.port.tx(&mut self.pool, &mut frames);
            frames.is_empty()
        });
    }

    fn await_frame(&mut self) -> Vec<u8> {
        let mut batch = Batch::new();
        await_that("a frame at the far end", || {
            self.port.rx(&mut self.pool, &mut batch);
            for frame in batch.drain() {
                self.heard.push_back(frame.data().to_vec());
                self.pool.put(frame.into_buffer());
            }
            !self.heard.is_empty()
        });
        self.heard.pop_front().expect("one was heard")
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn local(addresses: &[(&str, Owner)]) -> LocalAddresses {
    let mut local = LocalAddresses::new().expect("maps");
    local.set(addresses.iter().map(|&(a, owner)| (ip(a), owner))).expect("room");
    local
}

fn packet(source: &str, destination: &str) -> build::Frame {
    build::Frame::ip(ip(source), ip(destination)).expect("one family").macs(OURS, FAR)
}

fn udp(source: &str, destination: &str) -> Vec<u8> {
    packet(source, destination).udp(1000, 2000, b"payload")
}

fn tagged(mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(12..12, [0x81, 0, 0, 7]);
    frame
}

fn with_destination(mut frame: Vec<u8>, mac: [u8; 6]) -> Vec<u8> {
    frame[..6].copy_from_slice(&mac);
    frame
}

fn arp(target: [u8; 4]) -> Vec<u8> {
    build::arp_request((FAR, [192, 0, 2, 2].into()), target.into(), None)
}

/// Makes a solicitation for fe80::`last`.
fn solicitation(last: u16) -> Vec<u8> {
    let address = |last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last);
    build::neighbor_solicitation((FAR, address(2)), address(last), None)
}

#[test]
fn each_frame_goes_where_its_destination_belongs() {
    let Some(ns) = link("each_frame_goes_where_its_destination_belongs") else { return };
    netns::inside(&ns.0, || {
        let local = local(&[
            ("192.0.2.1", Owner::Kernel),
            ("2001:db8::1", Owner::Kernel),
            ("192.0.2.9", Owner::Weir),
            ("fe80::9", Owner::Weir),
        ]);
        let mut port = Port::open("a", &local, None);
        let mut wire = Wire::of("b");
        let group = |frame| with_destination(frame, [0x33, 0x33, 0, 0, 0, 1]);
        let cases = [
            (Cause::Transit, udp("10.0.0.1", "10.1.0.1")),
            (Cause::Transit, udp("2001:db8:1::1", "2001:db8:2::1")),
            (Cause::Transit, tagged(udp("10.0.0.1", "10.1.0.1"))),
            (Cause::Transit, tagged(udp("2001:db8:1::1", "2001:db8:2::1"))),
            (Cause::Transit, udp("10.0.0.1", "192.0.2.9")),
            (Cause::Resolve, arp([192, 0, 2, 9])),
            (Cause::Resolve, solicitation(9)),
            (Cause::Local, udp("10.0.0.1", "192.0.2.1")),
            (Cause::Local, udp("2001:db8:1::1", "2001:db8::1")),
            (Cause::Local, tagged(udp("10.0.0.1", "192.0.2.1"))),
            (Cause::Arp, arp([192, 0, 2, 1])),
            (Cause::Group, udp("10.0.0.1", "224.0.0.5")),
            (Cause::Group, udp("10.0.0.1", "255.255.255.255")),
            (Cause::Group, group(udp("2001:db8:1::1", "2001:db8:2::1"))),
            (Cause::Group, udp("2001:db8:1::1", "ff02::5")),
            (Cause::Group, solicitation(1)),
            (Cause::NotIp, [&udp("10.0.0.1", "10.1.0.1")[..12], &[0x88, 0xb5], &[0; 46]].concat()),
        ];
        let before = port.steering.counters().expect("readable");
        for (_, frame) in &cases {
            wire.send(frame);
        }
        let expected = |cause| cases.iter().filter(|c| c.0 == cause).count() as u64;
        for &cause in Cause::ALL {
            port.await_counted(cause, before.of(cause) + expected(cause));
            let counted = port.steering.counters().expect("readable").of(cause) - before.of(cause);
            assert_eq!(counted, expected(cause), "{}", cause.name());
        }
        let ours = |cause: &Cause| matches!(cause, Cause::Transit | Cause::Resolve);
        let steered: Vec<_> = cases.iter().filter(|(c, _)| ours(c)).map(|(_, f)| f.clone()).collect();
        assert_eq!(port.await_frames(steered.len()), steered, "all of them, whole, in order");
        port.assert_no_chunk_is_lost();
    })
    .expect("entered");
}

/// SPI, sequence number and something behind.
const SEALED: [u8; 24] = [0x10; 24];

#[test]
fn esp_to_an_address_of_the_kernel_is_ours_and_ike_is_not() {
    let Some(ns) = link("esp_to_an_address_of_the_kernel_is_ours") else { return };
    netns::inside(&ns.0, || {
        let mut local = local(&[
            ("192.0.2.1", Owner::Kernel),
            ("2001:db8::1", Owner::Kernel),
            ("192.0.2.3", Owner::Kernel),
        ]);
        let ends = ["192.0.2.1", "2001:db8::1", "198.51.100.7"].map(ip);
        assert_eq!(local.set_esp(ends.into(), [4500, 4501].into()).expect("room"), 4);
        let mut port = Port::open("a", &local, None);
        let mut wire = Wire::of("b");
        let (ours, six, other) = ("192.0.2.1", "2001:db8::1", "192.0.2.3");
        let from =
            |to: &str| if to.contains(':') { packet("2001:db8:1::1", to) } else { packet("10.0.0.1", to) };
        let ike = [&[0; 4][..], &SEALED].concat();
        let cases = [
            (Cause::Esp, from(ours).raw(50, &SEALED)),
            (Cause::Esp, from(six).raw(50, &SEALED)),
            (Cause::Esp, tagged(from(ours).raw(50, &SEALED))),
            (Cause::Esp, from(ours).fragment(0, true).raw(50, &SEALED)),
            (Cause::Esp, from(ours).fragment(24, false).raw(50, &SEALED)),
            (Cause::Esp, from(six).fragment(24, false).raw(50, &SEALED)),
            (Cause::Esp, from(ours).udp(4500, 4500, &SEALED)),
            (Cause::Esp, from(six).udp(4500, 4501, &SEALED)),
            (Cause::Esp, from(ours).options(&[1, 1, 1, 0]).udp(4500, 4500, &SEALED)),
            (Cause::Local, from(ours).udp(4500, 4500, &ike)),
            (Cause::Local, from(six).udp(4500, 4500, &ike)),
            (Cause::Local, from(ours).udp(4500, 4500, &[0xff])),
            (Cause::Local, from(ours).udp(4500, 4499, &SEALED)),
            (Cause::Local, from(ours).udp(500, 500, &SEALED)),
            (Cause::Local, from(ours).fragment(24, false).raw(17, &SEALED)),
            (Cause::Local, from(six).fragment(24, false).raw(17, &SEALED)),
            (Cause::Local, from(ours).raw(6, &SEALED)),
            (Cause::Local, from(other).raw(50, &SEALED)),
            (Cause::Local, from(other).udp(4500, 4500, &SEALED)),
            (Cause::Transit, from("198.51.100.7").raw(50, &SEALED)),
        ];
        for (_, frame) in &cases {
            wire.send(frame);
        }
        let expected = |cause| cases.iter().filter(|c| c.0 == cause).count() as u64;
        for cause in [Cause::Esp, Cause::Local, Cause::Transit] {
            port.await_counted(cause, expected(cause));
            assert_eq!(
                port.steering.counters().expect("readable").of(cause),
                expected(cause),
                "{}",
                cause.name()
            );
        }
        let kept: Vec<_> = cases.iter().filter(|(c, _)| *c != Cause::Local).map(|(_, f)| f.clone()).collect();
        let heard = port.await_frames(kept.len());
        assert_eq!(heard, kept, "all of them, whole, in order");
        assert_eq!(local.set_esp([ip("192.0.2.1")].into(), [4500].into()).expect("room"), 2);
        wire.send(&from(six).raw(50, &SEALED));
        port.await_counted(Cause::Local, expected(Cause::Local) + 1);
        assert_eq!(local.set([(ip("192.0.2.1"), Owner::Kernel)]).expect("room"), 2);
        wire.send(&from(ours).raw(50, &SEALED));
        port.await_counted(Cause::Esp, expected(Cause::Esp) + 1);
    })
    .expect("entered");
}

#[test]
fn esp_that_only_the_kernel_opens_is_its_own_where_an_sa_of_ours_ends() {
    let Some(ns) = link("esp_that_only_the_kernel_opens_is_its_own") else { return };
    netns::inside(&ns.0, || {
        let mut local = local(&[("192.0.2.1", Owner::Kernel), ("2001:db8::1", Owner::Kernel)]);
        local.set_esp(["192.0.2.1", "2001:db8::1"].map(ip).into(), [4500].into()).expect("room");
        let port = Port::open("a", &local, None);
        let mut wire = Wire::of("b");
        let sealed = [
            packet("10.0.0.1", "192.0.2.1").raw(50, &SEALED),
            packet("10.0.0.1", "192.0.2.1").udp(4500, 4500, &SEALED),
            packet("2001:db8:1::1", "2001:db8::1").raw(50, &SEALED),
            packet("2001:db8:1::1", "2001:db8::1").udp(4500, 4500, &SEALED),
        ];
        let others = [
            packet("10.0.0.1", "192.0.2.1").raw(50, &[0x11; 24]),
            packet("10.0.0.1", "192.0.2.1").fragment(24, false).raw(50, &SEALED),
        ];
        let counted = |cause| port.steering.counters().expect("readable").of(cause);
        for kept in [false, true, false] {
            let spis: &[u32] = if kept { &[0x1010_1010] } else { &[] };
            local.set_kept_spis(spis.iter().copied().collect()).expect("room");
            let before = (counted(Cause::Local), counted(Cause::Esp));
            sealed.iter().chain(&others).for_each(|frame| wire.send(frame));
            let ours = if kept { 2 } else { 6 };
            port.await_counted(Cause::Esp, before.1 + ours);
            port.await_counted(Cause::Local, before.0 + 6 - ours);
            assert_eq!((counted(Cause::Local), counted(Cause::Esp)), (before.0 + 6 - ours, before.1 + ours));
        }
    })
    .expect("entered");
}

#[test]
fn local_addresses_change_while_traffic_flows() {
    let Some(ns) = link("local_addresses_change_while_traffic_flows") else { return };
    netns::inside(&ns.0, || {
        let mut local = local(&[]);
        let mut port = Port::open("a", &local, None);
        let mut wire = Wire::of("b");
        wire.send(&udp("10.0.0.1", "192.0.2.1"));
        assert_eq!(port.await_frames(1).len(), 1);
        assert_eq!(local.set([(ip("192.0.2.1"), Owner::Kernel)]).expect("room"), 1);
        assert_eq!(local.set([(ip("192.0.2.1"), Owner::Kernel)]).expect("room"), 0);
        wire.send(&udp("10.0.0.1", "192.0.2.1"));
        port.await_counted(Cause::Local, 1);
        assert_eq!(local.set([]).expect("room"), 1);
        wire.send(&udp("10.0.0.1", "192.0.2.1"));
        assert_eq!(port.await_frames(1).len(), 1);
        assert_eq!(port.steering.counters().expect("readable").of(Cause::Local), 1);
    })
    .expect("entered");
}

#[test]
fn the_kernel_answers_on_its_own_address_while_we_are_attached() {
    let Some(ns) = link("the_kernel_answers_on_its_own_address_while") else { return };
    let Some(far) = Namespace::new("the_far_end_of_its_own_address") else { return };
    far.ip(&["link", "del", "dev", "b"]);
    ns.ip(&["link", "set", "dev", "b", "netns", &far.0]);
    far.ip(&["link", "set", "dev", "b", "up"]);
    far.ip(&["addr", "add", "192.0.2.2/24", "dev", "b"]);
    ns.ip(&["addr", "add", "192.0.2.1/24", "dev", "a"]);
    netns::inside(&ns.0, || {
        let local = local(&[("192.0.2.1", Owner::Kernel)]);
        let port = Port::open("a", &local, None);
        let server = UdpSocket::bind("192.0.2.1:5000").expect("bound");
        server.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        netns::inside(&far.0, || {
            let client = UdpSocket::bind("192.0.2.2:6000").expect("bound");
            client.send_to(b"question", "192.0.2.1:5000").expect("sent");
        })
        .expect("entered");
        let mut buffer = [0; 64];
        let (len, from) = server.recv_from(&mut buffer).expect("the datagram reached the kernel");
        assert_eq!((&buffer[..len], from.to_string().as_str()), (&b"question"[..], "192.0.2.2:6000"));
        let counters = port.steering.counters().expect("readable");
        assert!(counters.of(Cause::Arp) >= 1 && counters.of(Cause::Local) >= 1, "{counters:?}");
        assert_eq!(counters.of(Cause::Transit), 0);
    })
    .expect("entered");
}

#[test]
fn frames_sent_arrive_whole_and_every_chunk_comes_back() {
    let Some(ns) = link("frames_sent_arrive_whole_and_every_chunk") else { return };
    netns::inside(&ns.0, || {
        let mut port = Port::open("a", &local(&[]), None);
        let mut wire = Wire::of("b");
        for round in 0..10u8 {
            let mut frames: Vec<Frame<Chunk>> = (0..50u8)
                .map(|n| {
                    let mut bytes = udp("10.0.0.1", "10.1.0.1");
                    bytes.extend([round, n]);
                    Frame::from_bytes(port.pool.take().expect("a chunk"), &bytes, DeviceId(0)).expect("fits")
                })
                .collect();
            assert_eq!(port.device.tx(&mut port.pool, &mut frames), 50);
            port.assert_no_chunk_is_lost();
            for n in 0..50u8 {
                assert_eq!(wire.await_frame().last_chunk::<2>(), Some(&[round, n]));
            }
        }
        await_that("completions", || {
            port.receive();
            port.device.buffers_held() <= 128
        });
        port.assert_no_chunk_is_lost();
        let Port { device, pool, umem, .. } = port;
        drop(device);
        assert_eq!(pool.free() + umem.home() + umem.lingering(), umem.total());
        await_that("a closed port's chunks at home", || pool.free() + umem.home() == umem.total());
    })
    .expect("entered");
}

/// Zero-copy is not to be had on veth; the kernel lets go of a pool in the same way, and says so in the same way.
#[test]
fn chunks_of_a_closed_port_come_home_when_the_kernel_has_let_go_of_its_queue_and_not_before() {
    let Some(ns) = link("chunks_of_a_closed_port_come_home") else { return };
    netns::inside(&ns.0, || {
        let port = Port::open("a", &local(&[]), None);
        let held = port.device.buffers_held();
        assert!(held > 0, "some are posted");
        // The pool lives as long as any descriptor of its socket.
        let kept = port.device.poll_fd().try_clone_to_owned().expect("a descriptor");
        let Port { device, pool, umem, steering, .. } = port;
        drop(device);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!((umem.lingering(), pool.free() + umem.home() + held), (held, umem.total()));
        drop(kept);
        await_that("chunks at home", || umem.lingering() == 0 && pool.free() + umem.home() == umem.total());
        // A successor on the queue is proof enough, and is not kept from it.
        let mut options = Options::new(DeviceId(0), 0);
        (options.ring, options.posted) = (128, 128);
        let mut pool = pool;
        umem.reclaim(&mut pool);
        for _ in 0..5 {
            let mut device = AfXdp::open(&options, &steering, &umem).expect("opened");
            assert_eq!(umem.lingering(), 0);
            umem.reclaim(&mut pool);
            device.rx(&mut pool, &mut Batch::new());
            assert!(device.buffers_held() > 0);
        }
    })
    .expect("entered");
}

#[test]
fn frames_of_another_umem_are_refused_and_go_home() {
    let Some(ns) = link("frames_of_another_umem_are_refused_and_go_home") else { return };
    netns::inside(&ns.0, || {
        let mut port = Port::open("a", &local(&[]), None);
        let other = Umem::new(4, ChunkSize::default()).expect("memory");
        let chunk = other.pool().take().expect("a chunk");
        let mut frames = vec![Frame::from_bytes(chunk, &[0; 60], DeviceId(0)).expect("fits")];
        port.device.tx(&mut port.pool, &mut frames);
        assert_eq!((port.device.stats().tx_invalid, other.home()), (1, 4));
        port.assert_no_chunk_is_lost();
    })
    .expect("entered");
}

#[test]
fn the_order_of_attempts_is_printed() {
    let Some(ns) = link("the_order_of_attempts_is_printed") else { return };
    netns::inside(&ns.0, || {
        let mut port = Port::open("a", &local(&[]), None);
        let report = port.device.report();
        assert_eq!((report.bind, report.xdp), (Bind::Copy, XdpMode::Native));
        let text = report.to_string();
        assert_eq!(text, "af_xdp a queue 0: zero-copy refused (EOPNOTSUPP), copy mode, native XDP");
        assert_eq!(port.device.status(), DeviceStatus::Up);
    })
    .expect("entered");
}

#[test]
fn a_virtual_cable_is_no_card_and_what_does_not_answer_may_be_one() {
    let Some(ns) = link("a_virtual_cable_is_no_card") else { return };
    netns::inside(&ns.0, || {
        assert!(!may_be_a_card("a"));
        assert!(may_be_a_card("nosuch0"));
        assert_eq!(Interface::open("a").expect("there").mtu().expect("told"), 1500);
    })
    .expect("entered");
}

#[test]
fn a_queue_that_is_not_there_is_refused_with_the_remedy() {
    let Some(ns) = link("a_queue_that_is_not_there_is_refused") else { return };
    netns::inside(&ns.0, || {
        let port = Port::open("a", &local(&[]), None);
        let refused = AfXdp::open(&Options::new(DeviceId(0), 64), &port.steering, &port.umem);
        let text = refused.expect_err("no such queue").to_string();
        assert!(text.starts_with("af_xdp a queue 64: no way to bind is accepted"), "{text}");
        assert!(text.ends_with("the interface may have no such queue: see `ethtool -l`"), "{text}");
    })
    .expect("entered");
}

#[test]
fn a_program_that_passes_or_counts_stays_as_long_as_its_owner() {
    let Some(ns) = link("a_program_that_passes_or_counts_stays_as_long_as_its_owner") else { return };
    netns::inside(&ns.0, || {
        let index = |name| Interface::open(name).expect("there").index();
        let layout = xdp_tally::Layout {
            ethertype: 0x0800,
            protocol_at: 23,
            protocol: 17,
            mark_at: 42,
            magic: [0; 2],
        };
        for counts in [false, true] {
            let pass = (!counts).then(|| Pass::attach("b", index("b"), &BOTH).expect("attached"));
            let tally = counts.then(|| Tally::attach("b", index("b"), layout, 1).expect("attached"));
            // A veth takes redirected frames while its peer has a program.
            assert!(can_transmit(index("a")).expect("asked"), "counts: {counts}");
            drop((pass, tally));
            await_that("the program to be gone", || !can_transmit(index("a")).expect("asked"));
        }
    })
    .expect("entered");
}

#[test]
fn another_program_on_the_interface_is_respected() {
    let Some(ns) = link("another_program_on_the_interface_is_respected") else { return };
    netns::inside(&ns.0, || {
        let index = Interface::open("a").expect("there").index();
        let theirs = Pass::attach("a", index, &BOTH).expect("attached");
        let refusal = |local: &LocalAddresses| {
            Steering::attach("a", index, &BOTH, local).expect_err("occupied").to_string()
        };
        let text = refusal(&local(&[]));
        assert!(text.starts_with("a: XDP program weir_pass (id "), "{text}");
        assert!(text.contains("ip link set dev a xdp off"), "{text}");
        drop(theirs);
        // A process forked at this moment holds the link open until it becomes another program.
        let mut ours = None;
        await_that("the interface to be free again", || {
            ours = Steering::attach("a", index, &BOTH, &local(&[])).ok();
            ours.is_some()
        });
        let ours = ours.expect("just attached");
        assert!(!ours.attachment().replaced_leftover);
        assert!(refusal(&local(&[])).starts_with("a: XDP program weir_steer (id "), "a living twin");
    })
    .expect("entered");
}

#[test]
fn a_deleted_interface_is_told_and_survived() {
    let Some(ns) = link("a_deleted_interface_is_told_and_survived") else { return };
    netns::inside(&ns.0, || {
        let mut port = Port::open("a", &local(&[]), None);
        ns.ip(&["link", "set", "dev", "a", "down"]);
        assert_eq!(port.device.status(), DeviceStatus::Down);
        ns.ip(&["link", "set", "dev", "a", "up"]);
        await_that("carrier", || port.device.status() == DeviceStatus::Up);
        ns.ip(&["link", "del", "dev", "a"]);
        assert_eq!(port.device.status(), DeviceStatus::Gone);
        let bytes = udp("10.0.0.1", "10.1.0.1");
        for _ in 0..300 {
            let Some(chunk) = port.pool.take() else { break };
            let mut frames = vec![Frame::from_bytes(chunk, &bytes, DeviceId(0)).expect("fits")];
            port.device.tx(&mut port.pool, &mut frames);
            frames.drain(..).for_each(|f| port.pool.put(f.into_buffer()));
            port.receive();
        }
        port.assert_no_chunk_is_lost();
        ns.ip(&["link", "add", "name", "a", "type", "veth", "peer", "name", "b"]);
        assert_eq!(port.device.status(), DeviceStatus::Gone, "another interface of the same name");
        let Port { device, pool, umem, .. } = port;
        drop(device);
        await_that("a deleted interface's chunks at home", || pool.free() + umem.home() == umem.total());
    })
    .expect("entered");
}

/// The ones' complement sum of an IPv4 frame's UDP pseudo-header and datagram: 0xffff when right.
fn udp_sum(frame: &[u8]) -> u32 {
    let udp = &frame[34..];
    let pseudo = [&frame[26..34], &[0, 17, udp[4], udp[5]]].concat();
    let len = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    let all = [&pseudo, &udp[..len], &[0][..len % 2]].concat();
    let sum: u32 = all.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn checksums_a_veth_peer_leaves_unfinished_are_finished_once_it_is_told_to() {
    let Some(ns) = link("checksums_a_veth_peer_leaves_unfinished") else { return };
    ns.ip(&["addr", "add", "192.0.2.2/24", "dev", "b"]);
    ns.ip(&["route", "add", "10.1.0.0/16", "via", "192.0.2.1"]);
    ns.ip(&["neigh", "add", "192.0.2.1", "lladdr", "02:00:00:00:00:0a", "dev", "b"]);
    netns::inside(&ns.0, || {
        let mut port = Port::open("a", &local(&[]), None);
        let socket = UdpSocket::bind("192.0.2.2:5000").expect("bound");
        offload::set("b", Offload::TxChecksum, true).expect("switched on");
        socket.send_to(b"unfinished", "10.1.0.1:6000").expect("sent");
        assert_ne!(udp_sum(&port.await_frames(1)[0]), 0xffff, "the reason for the advice is gone");
        offload::set("b", Offload::TxChecksum, false).expect("switched off");
        socket.send_to(b"finished", "10.1.0.1:6000").expect("sent");
        assert_eq!(udp_sum(&port.await_frames(1)[0]), 0xffff);
    })
    .expect("entered");
}

/// `a` and `c` are ours, `b` and `d` the far ends; `c` can be redirected to.
fn two_links(test: &str) -> Option<Namespace> {
    let ns = link(test)?;
    ns.ip(&["link", "add", "name", "c", "type", "veth", "peer", "name", "d"]);
    quiet(&ns, "c", "02:00:00:00:00:0c");
    quiet(&ns, "d", "02:00:00:00:00:0d");
    netns::inside(&ns.0, || offload::set("d", Offload::Gro, true).expect("switched on")).expect("entered");
    Some(ns)
}

fn decided(source: &str, destination: &str) -> Decided {
    let index = |name| Interface::open(name).expect("there").index();
    let macs = [2, 0, 0, 0, 0, 0x0d, 2, 0, 0, 0, 0, 0x0c];
    let (come, go) = (DeviceId(0), DeviceId(1));
    Decided {
        generation: 7,
        source: ip(source),
        destination: ip(destination),
        flow: None,
        arrives: Arrives { ifindex: index("a"), queue: 0, device: come, vlan: None, mac: OURS },
        leaves: Leaves {
            ifindex: index("c"),
            device: go,
            vlan: None,
            queue: 0,
            far_queues: 0,
            mtu: 1400,
            macs,
        },
        policies: None,
    }
}

/// What RFC 1812 and RFC 8200 make of a frame that is forwarded: new MACs, one hop less.
fn forwarded(mut frame: Vec<u8>, decided: &Decided) -> Vec<u8> {
    frame[..12].copy_from_slice(&decided.leaves.macs);
    if frame[12..14] == [8, 0] {
        frame[22] -= 1;
        frame[24..26].fill(0);
        let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[21] -= 1;
    }
    frame
}

#[test]
fn a_decided_pair_is_offloaded_and_looks_as_if_routed() {
    let Some(ns) = two_links("a_decided_pair_is_offloaded") else { return };
    netns::inside(&ns.0, || {
        let index = Interface::open("c").expect("there").index();
        offload::set("d", Offload::Gro, false).expect("switched off");
        assert!(!can_transmit(index).expect("asked"), "a veth whose peer has no NAPI");
        offload::set("d", Offload::Gro, true).expect("switched on");
        assert!(can_transmit(index).expect("asked"));
        let offload = FlowOffload::new().expect("maps");
        offload.set_generation(7);
        let mut port = Port::open("a", &local(&[]), Some(&offload));
        let (mut wire, mut far) = (Wire::of("b"), Wire::of("d"));
        let mut bytes = 0;
        for (source, destination) in [("10.0.0.1", "10.1.0.1"), ("2001:db8:1::1", "2001:db8:2::1")] {
            let decided = decided(source, destination);
            let frame = udp(source, destination);
            wire.send(&frame);
            assert_eq!(port.await_frames(1)[0], frame, "not learned yet: ours");
            offload.insert(&decided).expect("room");
            wire.send(&frame);
            assert_eq!(port.await_frames(1)[0], frame, "others may still be on their way: ours");
            port.done();
            wire.send(&frame);
            assert_eq!(far.await_frame(), forwarded(frame.clone(), &decided));
            bytes += frame.len() as u64;
        }
        let (rx, tx) =
            (offload.counters(DeviceId(0)).expect("read"), offload.counters(DeviceId(1)).expect("read"));
        assert_eq!((rx.rx_packets, rx.rx_bytes, rx.tx_packets), (2, bytes, 0));
        assert_eq!((tx.tx_packets, tx.tx_bytes, tx.rx_packets), (2, bytes, 0));
        port.assert_no_chunk_is_lost();
    })
    .expect("entered");
}

#[test]
fn what_is_not_plain_or_not_in_force_stays_with_the_router() {
    let Some(ns) = two_links("what_is_not_plain_or_not_in_force_stays") else { return };
    netns::inside(&ns.0, || {
        let offload = FlowOffload::new().expect("maps");
        offload.set_generation(7);
        let (v4, v6) = (("10.0.0.1", "10.1.0.1"), ("2001:db8:1::1", "2001:db8:2::1"));
        for (source, destination) in [v4, v6] {
            offload.insert(&decided(source, destination)).expect("room");
        }
        let mut port = Port::open("a", &local(&[]), Some(&offload));
        let (mut wire, mut far) = (Wire::of("b"), Wire::of("d"));
        let four = || udp(v4.0, v4.1);
        let six = || udp(v6.0, v6.1);
        let changed = |mut frame: Vec<u8>, at: usize, value: u8| {
            frame[at] = value;
            frame
        };
        // A header checksum that fits again after a change of the 16-bit word at `at`.
        let repaired = |mut frame: Vec<u8>, at: usize, word: u16| {
            frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
            frame[24..26].fill(0);
            let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            frame
        };
        let big = |(source, destination)| packet(source, destination).udp(1, 2, &[0; 1400]);
        let cases = [
            ("TTL 1", repaired(four(), 22, 0x0111)),
            ("a wrong header checksum", changed(four(), 24, four()[24] ^ 1)),
            ("a fragment", repaired(four(), 20, 0x2000)),
            ("a later fragment", repaired(four(), 20, 0x0010)),
            ("options", changed(four(), 14, 0x46)),
            ("a length beyond the frame", repaired(four(), 16, 1000)),
            ("beyond the MTU", big(v4)),
            ("a tag", tagged(four())),
            ("another host's MAC", with_destination(four(), [2, 0, 0, 0, 9, 9])),
            ("another source", udp("10.0.0.2", v4.1)),
            ("hop limit 1", changed(six(), 21, 1)),
            ("hop-by-hop options", changed(six(), 20, 0)),
            ("an IPv6 length beyond the frame", changed(six(), 18, 9)),
            ("IPv6 beyond the MTU", big(v6)),
            ("a version that is neither", changed(six(), 14, 0x50)),
        ];
        for plain in [four(), six()] {
            wire.send(&plain);
            port.await_frames(1);
        }
        for (what, frame) in &cases {
            port.done();
            wire.send(frame);
            assert_eq!(&port.await_frames(1)[0], frame, "{what}");
        }
        port.done();
        offload.set_generation(8);
        wire.send(&four());
        assert_eq!(port.await_frames(1), [four()], "decided by tables that are no longer in force");
        offload.set_generation(7);
        port.done();
        wire.send(&four());
        assert_eq!(far.await_frame(), forwarded(four(), &decided(v4.0, v4.1)), "plain and in force");
        offload.disable();
        port.done();
        wire.send(&six());
        assert_eq!(port.await_frames(1), [six()], "closed");
        assert_eq!(offload.counters(DeviceId(0)).expect("read").rx_packets, 1);
    })
    .expect("entered");
}

#[test]
fn no_frame_overtakes_an_earlier_one_of_its_pair() {
    let Some(ns) = two_links("no_frame_overtakes_an_earlier_one_of_its_pair") else { return };
    netns::inside(&ns.0, || {
        let offload = FlowOffload::new().expect("maps");
        offload.set_generation(7);
        let decided = decided("10.0.0.1", "10.1.0.1");
        offload.insert(&decided).expect("room");
        let mut port = Port::open("a", &local(&[]), Some(&offload));
        let (mut wire, mut far) = (Wire::of("b"), Wire::of("d"));
        let numbered = |n: u8| packet("10.0.0.1", "10.1.0.1").udp(1000, 2000, &[n]);
        for n in 0..20 {
            wire.send(&numbered(n));
        }
        assert_eq!(port.await_frames(20), (0..20).map(numbered).collect::<Vec<_>>());
        let all = port.number;
        port.number = all - 1;
        port.done();
        wire.send(&numbered(20));
        assert_eq!(port.await_frames(1), [numbered(20)], "one before it is still with us");
        assert_eq!(port.number, all + 1);
        port.done();
        offload.insert(&decided).expect("known");
        wire.send(&numbered(21));
        assert_eq!(far.await_frame(), forwarded(numbered(21), &decided));
        let options = packet("10.0.0.1", "10.1.0.1").options(&[1, 1, 1, 1]).udp(1000, 2000, &[22]);
        wire.send(&options);
        wire.send(&numbered(23));
        assert_eq!(port.await_frames(2), [options, numbered(23)], "behind one that is not plain");
        port.done();
        wire.send(&numbered(24));
        assert_eq!(far.await_frame(), forwarded(numbered(24), &decided));
        assert_eq!(offload.counters(DeviceId(0)).expect("read").rx_packets, 2);
    })
    .expect("entered");
}

/// A cable with two queues each way takes a frame by the queue of the CPU that sends it, so a test chooses both.
#[test]
fn each_queue_has_flows_of_its_own_and_offloads_them_where_a_socket_would_send() {
    let test = "each_queue_has_flows_of_its_own";
    if std::thread::available_parallelism().is_ok_and(|n| n.get() < 2) {
        writeln!(std::io::stderr(), "SKIP {test}: needs two CPUs").expect("stderr is open");
        return;
    }
    let Some(ns) = two_links(test) else { return };
    let queues = ["numtxqueues", "2", "numrxqueues", "2"];
    ns.ip(&["link", "del", "dev", "a"]);
    ns.ip(&[&["link", "add", "name", "a"], &queues[..], &["type", "veth", "peer", "name", "b"], &queues[..]]
        .concat());
    quiet(&ns, "a", "02:00:00:00:00:0a");
    quiet(&ns, "b", "02:00:00:00:00:0b");
    netns::inside(&ns.0, || {
        let offload = FlowOffload::new().expect("maps");
        offload.set_generation(7);
        let first = Port::open("a", &local(&[]), Some(&offload));
        let second = Port::of_queue(1, first.steering.clone());
        let (mut ports, mut far) = ([first, second], Wire::of("d"));
        for (source, destination) in [("10.0.0.1", "10.1.0.1"), ("2001:db8:1::1", "2001:db8:2::1")] {
            let frame = udp(source, destination);
            for (own, port) in ports.iter_mut().enumerate() {
                cpu::pin(own as u32).expect("pinned");
                // A socket of its own: one keeps the queue it began with.
                let mut wire = Wire::of("b");
                let queue = own as u32;
                let mut decided = decided(source, destination);
                decided.arrives.queue = queue;
                (decided.leaves.queue, decided.leaves.far_queues) = (own as u16, 2);
                wire.send(&frame);
                assert_eq!(port.await_frames(1)[0], frame, "the other queue's decision says nothing here");
                let progress = port.steering.progress(queue).expect("with a flow offload");
                assert_eq!(progress.cpu(), own as u64, "where the kernel received it");
                offload.insert(&decided).expect("room");
                wire.send(&frame);
                assert_eq!(port.await_frames(1)[0], frame, "others may still be on their way");
                port.done();
                wire.send(&frame);
                assert_eq!(far.await_frame(), forwarded(frame.clone(), &decided), "queue {queue}");
                decided.leaves.queue = 1 - own as u16;
                offload.insert(&decided).expect("room");
                for _ in 0..2 {
                    wire.send(&frame);
                    assert_eq!(port.await_frames(1)[0], frame, "the socket sends by another queue");
                    port.done();
                }
                decided.leaves.queue = own as u16;
                offload.insert(&decided).expect("room");
                offload.remove(&decided).expect("it was there");
                offload.remove(&decided).expect("nothing to do");
                for _ in 0..2 {
                    wire.send(&frame);
                    assert_eq!(port.await_frames(1)[0], frame, "what is forgotten goes to the router");
                    port.done();
                }
            }
        }
        assert_eq!(offload.counters(DeviceId(0)).expect("read").rx_packets, 4);
        ports.iter().for_each(Port::assert_no_chunk_is_lost);
    })
    .expect("entered");
}
