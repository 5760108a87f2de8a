//! The packet socket port against a real kernel: what a veth peer sends arrives whole, what cannot be
//! forwarded is counted, and a device that goes away is survived.

use std::collections::{BTreeSet, HashMap};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use weir_core::device::{Device, DeviceStatus};
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_core::wire::build;
use weir_io::af_packet::{AfPacket, Tap, kernel_forwards};
use weir_io::netns;

type Port = AfPacket<Box<[u8]>>;

/// `b` is the far end, with an address of the kernel's; `a` is ours and has none.
fn link(test: &str) -> Option<Namespace> {
    let ns = Namespace::new(test)?;
    ns.ip(&["link", "set", "dev", "a", "address", "02:00:00:00:00:0a", "up"]);
    ns.ip(&["link", "set", "dev", "b", "address", "02:00:00:00:00:0b", "up"]);
    ns.ip(&["addr", "add", "192.0.2.2/24", "dev", "b"]);
    ns.ip(&["neigh", "add", "192.0.2.1", "lladdr", "02:00:00:00:00:0a", "dev", "b"]);
    Some(ns)
}

/// Receives until `count` frames satisfied `wanted` (within five seconds); returns those, in order.
fn await_frames(
    port: &mut Port,
    pool: &mut Pool<Box<[u8]>>,
    count: usize,
    wanted: impl Fn(&[u8]) -> bool,
) -> Vec<Vec<u8>> {
    let end = Instant::now() + Duration::from_secs(5);
    let mut batch = Batch::new();
    let mut found = Vec::new();
    while found.len() < count {
        assert!(Instant::now() < end, "{} of {count} frames arrived", found.len());
        if port.rx(pool, &mut batch) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for frame in batch.drain() {
            if wanted(frame.data()) {
                found.push(frame.data().to_vec());
            }
            pool.put(frame.into_buffer());
        }
    }
    found
}

/// A frame of a local experimental protocol, tagged when asked.
fn experimental(pool: &mut Pool<Box<[u8]>>, vlan: Option<u16>, mark: u8) -> Frame<Box<[u8]>> {
    let mut bytes = vec![2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a];
    if let Some(vlan) = vlan {
        bytes.extend([0x81, 0]);
        bytes.extend(vlan.to_be_bytes());
    }
    bytes.extend([0x88, 0xb5, mark]);
    bytes.resize(64, 0);
    Frame::from_bytes(pool.take().expect("a buffer"), &bytes, DeviceId(0)).expect("fits")
}

fn is_udp_to(port: u16) -> impl Fn(&[u8]) -> bool {
    move |f| f.len() > 42 && f[12..14] == [8, 0] && f[23] == 17 && f[36..38] == port.to_be_bytes()
}

/// The one's complement sum of the UDP pseudo-header, header and payload: 0xffff when right.
fn udp_sum(frame: &[u8]) -> u32 {
    let length = u16::from_be_bytes([frame[38], frame[39]]);
    let words = frame[26..34].chunks(2).chain(frame[34..34 + length as usize].chunks(2));
    let mut sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w.get(1).copied().unwrap_or(0))).sum();
    sum += 17 + u32::from(length);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

#[test]
fn checksum_left_to_hardware_by_a_veth_peer_is_completed() {
    let Some(ns) = link("checksum_left_to_hardware_by_a_veth_peer_is_completed") else { return };
    netns::inside(&ns.0, || {
        let mut port = Port::open("a", DeviceId(3), None).expect("opened");
        let mut pool = Pool::boxed(128);
        let socket = UdpSocket::bind("192.0.2.2:5000").expect("bound");
        socket.send_to(b"odd length!", "192.0.2.1:6000").expect("sent");
        let frame = await_frames(&mut port, &mut pool, 1, is_udp_to(6000)).remove(0);
        assert_eq!(udp_sum(&frame), 0xffff);
        assert_eq!(&frame[42..53], b"odd length!");
        assert_eq!(pool.free() + Device::<Box<[u8]>>::buffers_held(&port), 128, "no buffer is lost");
    })
    .expect("entered");
}

#[test]
fn vlan_tag_taken_off_by_the_kernel_is_put_back() {
    let Some(ns) = link("vlan_tag_taken_off_by_the_kernel_is_put_back") else { return };
    netns::inside(&ns.0, || {
        let mut near = Port::open("a", DeviceId(0), None).expect("opened");
        let mut far = Port::open("b", DeviceId(1), None).expect("opened");
        let mut pool = Pool::boxed(256);
        let mut frames = vec![experimental(&mut pool, Some(0x6007), 1)];
        assert_eq!(near.tx(&mut pool, &mut frames), 1);
        let frame = await_frames(&mut far, &mut pool, 1, |f| f[12..14] == [0x81, 0]).remove(0);
        assert_eq!(frame[14..19], [0x60, 0x07, 0x88, 0xb5, 1], "tag with its priority, then the payload");
    })
    .expect("entered");
}

#[test]
fn frames_sent_arrive_in_order_and_are_not_heard_back() {
    let Some(ns) = link("frames_sent_arrive_in_order_and_are_not_heard_back") else { return };
    netns::inside(&ns.0, || {
        let mut near = Port::open("a", DeviceId(0), None).expect("opened");
        let mut far = Port::open("b", DeviceId(1), None).expect("opened");
        let mut pool = Pool::boxed(512);
        let mut frames: Vec<_> = (0..100).map(|n| experimental(&mut pool, None, n)).collect();
        assert_eq!(near.tx(&mut pool, &mut frames), 100);
        let seen = await_frames(&mut far, &mut pool, 100, |f| f[12..14] == [0x88, 0xb5]);
        assert!(seen.iter().map(|f| f[14]).eq(0..100), "in order, once each");
        let mut batch = Batch::new();
        near.rx(&mut pool, &mut batch);
        assert!(batch.frames().iter().all(|f| f.data()[12..14] != [0x88, 0xb5]), "own frames are not heard");
    })
    .expect("entered");
}

#[test]
fn device_down_and_gone_are_told_and_survived() {
    let Some(ns) = link("device_down_and_gone_are_told_and_survived") else { return };
    netns::inside(&ns.0, || {
        let mut port = Port::open("a", DeviceId(0), None).expect("opened");
        let mut pool = Pool::boxed(128);
        let mut batch = Batch::new();
        assert_eq!(port.status(), DeviceStatus::Up);
        ns.ip(&["link", "set", "dev", "a", "down"]);
        assert_eq!(port.status(), DeviceStatus::Down);
        port.rx(&mut pool, &mut batch);
        ns.ip(&["link", "set", "dev", "a", "up"]);
        assert_eq!(port.status(), DeviceStatus::Up);
        ns.ip(&["link", "del", "dev", "a"]);
        assert_eq!(port.status(), DeviceStatus::Gone);
        // What came while it was up is still there to be had: the kernel asks for its neighbours by itself.
        while port.rx(&mut pool, &mut batch) > 0 {
            batch.drain().for_each(|frame| pool.put(frame.into_buffer()));
        }
        let frame = Frame::from_bytes(pool.take().expect("a buffer"), &[0; 60], DeviceId(0)).expect("fits");
        let mut frames = vec![frame];
        assert_eq!(port.tx(&mut pool, &mut frames), 0);
        assert_eq!(frames.len(), 1, "what was not sent stays with the caller");
    })
    .expect("entered");
}

#[test]
fn unknown_device_is_refused_with_the_devices_there_are() {
    let Some(ns) = link("unknown_device_is_refused_with_the_devices_there_are") else { return };
    let error = netns::inside(&ns.0, || Port::open("nosuch", DeviceId(0), None).err()).expect("entered");
    let text = error.expect("refused").to_string();
    assert!(text.starts_with("port af_packet:nosuch: no such device; devices here are"), "{text}");
    assert!(text.contains("lo") && text.contains('a'), "{text}");
}

#[test]
fn tap_hears_arp_and_neighbor_solicitation_and_nothing_else() {
    let Some(ns) = link("tap_hears_arp_and_neighbor_solicitation_and_nothing_else") else { return };
    ns.ip(&["addr", "add", "2001:db8::2/64", "dev", "b", "nodad"]);
    netns::inside(&ns.0, || {
        let mut tap = Tap::open("a").expect("opened");
        let v4 = UdpSocket::bind("192.0.2.2:0").expect("bound");
        let v6 = UdpSocket::bind("[2001:db8::2]:0").expect("bound");
        // A known neighbour: plain UDP, which the tap must not hear. Unknown ones: ARP and NS.
        for to in ["192.0.2.1:9", "192.0.2.77:9"] {
            v4.send_to(b"x", to).expect("sent");
        }
        v6.send_to(b"x", "[2001:db8::77]:9").expect("sent");
        let (mut arp, mut ns) = (false, false);
        let end = Instant::now() + Duration::from_secs(5);
        while !(arp && ns) && Instant::now() < end {
            for frame in tap.receive().expect("readable") {
                match frame[12..14] {
                    [0x08, 0x06] => arp = true,
                    [0x86, 0xdd] => {
                        assert!((133..=137).contains(&frame[54]), "ICMPv6 type {}", frame[54]);
                        ns |= frame[54] == 135;
                    }
                    _ => panic!("the tap heard {frame:02x?}"),
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(arp && ns, "arp {arp}, solicitation {ns}");
    })
    .expect("entered");
}

#[test]
fn tap_hears_errors_about_esp_that_was_too_big_and_no_other_icmp() {
    let Some(ns) = link("tap_hears_errors_about_esp_that_was_too_big") else { return };
    netns::inside(&ns.0, || {
        let mut tap = Tap::open("a").expect("opened");
        let mut far = Tap::open("b").expect("opened");
        let v4 = || build::Frame::ipv4([192, 0, 2, 254].into(), [192, 0, 2, 1].into());
        let six = |last: u16| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        let v6 = || build::Frame::ipv6(six(254), six(1));
        let (near, from) = ([2, 0, 0, 0, 0, 0x0a], [2, 0, 0, 0, 0, 0x0b]);
        // What is quoted: 28 bytes of IPv4 or 48 of IPv6 with this protocol.
        let about4 = |kind: [u8; 2], protocol| {
            let quote = v4().packet().raw(protocol, &[7; 8]);
            [&kind[..], &[0, 0, 0, 0, 5, 0], &quote].concat()
        };
        let about6 = |kind: u8, protocol| {
            let quote = v6().packet().raw(protocol, &[7; 8]);
            [&[kind, 0, 0, 0, 0, 0, 5, 0][..], &quote].concat()
        };
        let v4 = |message: Vec<u8>| v4().macs(near, from).raw(1, &message);
        let v6 = |message: Vec<u8>| v6().macs(near, from).raw(58, &message);
        let heard = [
            v4(about4([3, 4], 50)),
            v4(about4([3, 4], 17)),
            build::Frame::ipv4([192, 0, 2, 254].into(), [192, 0, 2, 1].into())
                .macs(near, from)
                .options(&[1, 1, 1, 0])
                .raw(1, &about4([3, 4], 50)),
            v6(about6(2, 50)),
            v6(about6(2, 17)),
            v6(about6(2, 44)),
            v6(about6(135, 0)),
        ];
        let unheard = [
            v4(about4([3, 4], 6)),
            v4(about4([3, 3], 17)),
            v4(about4([8, 0], 50)),
            v6(about6(2, 6)),
            v6(about6(1, 50)),
            v6(about6(128, 50)),
            v4(about4([3, 4], 50)[..16].to_vec()),
        ];
        for frame in unheard.iter().chain(&heard) {
            far.send(frame).expect("sent");
        }
        let mut got: Vec<Vec<u8>> = Vec::new();
        let end = Instant::now() + Duration::from_secs(5);
        while got.len() < heard.len() && Instant::now() < end {
            // The kernel's own neighbour discovery is heard too.
            let ours = |frame: &Vec<u8>| heard.contains(frame) || unheard.contains(frame);
            got.extend(tap.receive().expect("readable").into_iter().filter(ours));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(got, heard);
    })
    .expect("entered");
}

#[test]
fn forwarding_of_the_kernel_is_seen_per_family() {
    let Some(ns) = link("forwarding_of_the_kernel_is_seen_per_family") else { return };
    ns.sysctl("net.ipv4.conf.a.forwarding=1");
    ns.sysctl("net.ipv6.conf.a.forwarding=0");
    let seen = netns::inside(&ns.0, || kernel_forwards("a")).expect("entered");
    assert_eq!(seen, (true, false));
}

/// A UDP frame of flow `flow` with a serial number, from the far end to ours.
fn numbered(flow: u16, serial: u32) -> Vec<u8> {
    let frame = build::Frame::ipv4([192, 0, 2, 2].into(), [198, 51, 100, 1].into());
    let frame = frame.macs([2, 0, 0, 0, 0, 0x0a], [2, 0, 0, 0, 0, 0x0b]);
    frame.udp(1000 + flow, 7777, &serial.to_be_bytes())
}

#[test]
fn queues_of_one_device_share_its_flows_even_while_they_open() {
    let Some(ns) = link("queues_of_one_device_share_its_flows_even_while_they_open") else { return };
    netns::inside(&ns.0, || {
        let group = std::process::id() as u16;
        let mut ports = vec![Port::open("a", DeviceId(0), Some(group)).expect("opened")];
        let mut far = Port::open("b", DeviceId(1), None).expect("opened");
        let mut pool = Pool::boxed(1024);
        let mut seen: HashMap<u32, usize> = HashMap::new();
        let mut queues_of: HashMap<(u16, bool), BTreeSet<usize>> = HashMap::new();
        let mut serial = 0;
        // Traffic flows from before the second queue opens until after the fourth has.
        for round in 0..40 {
            std::thread::scope(|scope| {
                let opened = scope.spawn(|| {
                    netns::enter(&ns.0).expect("entered");
                    (round % 10 == 9 && round < 30).then(|| Port::open("a", DeviceId(0), Some(group)))
                });
                let mut flow = 0;
                while flow < 32 || (!opened.is_finished() && flow < 2000) {
                    let buffer = pool.take().expect("a buffer");
                    let bytes = numbered(flow % 32, serial);
                    let frame = Frame::from_bytes(buffer, &bytes, DeviceId(1)).expect("fits");
                    assert_eq!(far.tx(&mut pool, &mut vec![frame]), 1);
                    (flow, serial) = (flow + 1, serial + 1);
                }
                ports.extend(opened.join().expect("no panic").map(|port| port.expect("opened")));
            });
            let mut batch = Batch::new();
            for (queue, port) in ports.iter_mut().enumerate() {
                while port.rx(&mut pool, &mut batch) > 0 {
                    for frame in batch.drain() {
                        let data = frame.data();
                        if is_udp_to(7777)(data) {
                            let flow = u16::from_be_bytes([data[34], data[35]]);
                            let serial = u32::from_be_bytes([data[42], data[43], data[44], data[45]]);
                            *seen.entry(serial).or_default() += 1;
                            queues_of.entry((flow, round >= 30)).or_default().insert(queue);
                        }
                        pool.put(frame.into_buffer());
                    }
                }
            }
        }
        // A queue is deaf while it joins: what hashes to it then is lost, but nothing ever comes twice.
        assert!(seen.values().all(|&times| times == 1), "no frame arrives twice");
        assert!((serial - 320..serial).all(|n| seen.contains_key(&n)), "none is lost once all are open");
        let settled: Vec<_> = queues_of.iter().filter(|((_, settled), _)| *settled).collect();
        assert_eq!(settled.len(), 32);
        assert!(settled.iter().all(|(_, queues)| queues.len() == 1), "a flow stays on one queue");
        let used: BTreeSet<_> = settled.iter().flat_map(|(_, queues)| queues.iter()).collect();
        assert!(used.len() >= 3, "32 flows use most of 4 queues: {used:?}");
    })
    .expect("entered");
}

#[test]
fn frames_beyond_the_ring_are_counted_not_lost_in_silence() {
    let Some(ns) = link("frames_beyond_the_ring_are_counted_not_lost_in_silence") else { return };
    netns::inside(&ns.0, || {
        let mut port = Port::open("a", DeviceId(0), None).expect("opened");
        let mut far = Port::open("b", DeviceId(1), None).expect("opened");
        let mut pool = Pool::boxed(64);
        let before = Device::<Box<[u8]>>::stats(&mut port).rx_ring_full;
        const SENT: u64 = 6000;
        for serial in 0..SENT as u32 {
            let buffer = pool.take().expect("a buffer");
            let frame = Frame::from_bytes(buffer, &numbered(1, serial), DeviceId(1)).expect("fits");
            assert_eq!(far.tx(&mut pool, &mut vec![frame]), 1);
        }
        let mut received = 0;
        let mut batch = Batch::new();
        while port.rx(&mut pool, &mut batch) > 0 {
            received += batch.frames().iter().filter(|frame| is_udp_to(7777)(frame.data())).count() as u64;
            batch.drain().for_each(|frame| pool.put(frame.into_buffer()));
        }
        let lost = Device::<Box<[u8]>>::stats(&mut port).rx_ring_full - before;
        assert!(lost > 0, "the ring holds fewer than {SENT}");
        // The kernel's own neighbour discovery may have been received or lost beside ours.
        assert!((SENT..SENT + 20).contains(&(received + lost)), "{received} received, {lost} counted");
        // And the port goes on.
        let mut frames = vec![experimental(&mut pool, None, 9)];
        assert_eq!(far.tx(&mut pool, &mut frames), 1);
        await_frames(&mut port, &mut pool, 1, |f| f[12..15] == [0x88, 0xb5, 9]);
    })
    .expect("entered");
}

#[test]
fn segments_merged_by_the_peer_are_refused_and_counted() {
    let Some(ns) = link("segments_merged_by_the_peer_are_refused_and_counted") else { return };
    netns::inside(&ns.0, || {
        let mut port = Port::open("a", DeviceId(0), None).expect("opened");
        let mut pool = Pool::boxed(128);
        let socket = UdpSocket::bind("192.0.2.2:0").expect("bound");
        let size: i32 = 400;
        // SAFETY: the kernel reads four bytes of `size`, which outlives the call.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const size).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        assert_eq!(done, 0, "udp segmentation offload is there since Linux 4.18");
        socket.send_to(&[7; 1200], "192.0.2.1:6000").expect("sent as one frame of three segments");
        let single = UdpSocket::bind("192.0.2.2:0").expect("bound");
        single.send_to(b"single", "192.0.2.1:6001").expect("sent");
        await_frames(&mut port, &mut pool, 1, is_udp_to(6001));
        assert_eq!(Device::<Box<[u8]>>::stats(&mut port).rx_invalid, 1);
    })
    .expect("entered");
}
