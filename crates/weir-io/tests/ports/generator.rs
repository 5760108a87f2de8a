//! The generator of live frames against a real kernel: every frame arrives as described, in order.

use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use weir_core::device::Device;
use weir_core::packet::{Batch, DeviceId};
use weir_core::wire::build;
use weir_io::af_xdp::{AfXdp, Options};
use weir_io::bpf::attach::XdpMode;
use weir_io::clock;
use weir_io::interface::Interface;
use weir_io::netns;
use weir_io::steer::{LocalAddresses, Steering};
use weir_io::umem::{ChunkSize, Umem};
use weir_io::xdp_gen::{FrameTemplate, Generator, Layout};

/// Layout of an IPv4 frame of UDP: the mark behind the headers starts at 42.
const LAYOUT: Layout = Layout { sequence: Some(42), time: Some(46), checksum: Some(40) };
const FRAMES: usize = 300;

fn slot(flow: u16, len: u16, sequence: u32) -> FrameTemplate {
    let payload = vec![0; usize::from(len) - 42];
    let frame = build::Frame::ipv4([10, 0, 0, 1].into(), [10, 1, 0, 1].into()).udp(flow, 9, &payload);
    FrameTemplate { head: frame[..54].to_vec(), len, sequence }
}

/// Ones' complement sum of pseudo-header and datagram: 0xffff when the checksum is right.
fn udp_sum(frame: &[u8]) -> u32 {
    let len = (frame.len() - 34) as u16;
    let all = [&frame[26..34], &[0, 17], &len.to_be_bytes(), &frame[34..], &[0][..frame.len() % 2]].concat();
    let sum: u32 = all.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn frames_arrive_in_order_numbered_timed_and_with_right_checksums() {
    let Some(ns) = Namespace::new("frames_arrive_in_order_numbered_timed") else { return };
    for name in ["a", "b"] {
        ns.sysctl(&format!("net.ipv6.conf.{name}.disable_ipv6=1"));
        ns.ip(&["link", "set", "dev", name, "up"]);
    }
    netns::inside(&ns.0, || {
        let index = |name| Interface::open(name).expect("there").index();
        let local = LocalAddresses::new().expect("maps");
        let steering = Steering::attach("a", index("a"), &[XdpMode::Native], &local).expect("attached");
        let umem = Umem::new(2048, ChunkSize::default()).expect("memory");
        let mut pool = umem.pool();
        let mut port = AfXdp::open(&Options::new(DeviceId(0), 0), &steering, &umem).expect("opened");
        let mut batch = Batch::new();
        port.rx(&mut pool, &mut batch);
        let slots = [slot(1, 60, 0), slot(2, 1514, 0), slot(1, 61, 1)];
        let mut generator = Generator::new(index("b"), LAYOUT, &slots, 2).expect("loaded");
        let before = clock::now();
        // In portions that fit the ring of a veth, so that none is dropped.
        let mut got: Vec<Vec<u8>> = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        for portion in 1..=FRAMES / 50 {
            assert!(generator.run(50).expect("runs"));
            while got.len() < portion * 50 {
                assert!(Instant::now() < end, "{} frames of {}", got.len(), portion * 50);
                port.rx(&mut pool, &mut batch);
                for frame in batch.drain() {
                    got.push(frame.data().to_vec());
                    pool.put(frame.into_buffer());
                }
            }
        }
        assert_eq!(generator.sent().expect("readable"), FRAMES as u64);
        let mut last_time = before;
        for (n, frame) in got.iter().enumerate() {
            let (round, slot) = ((n / 3) as u32, &slots[n % 3]);
            assert_eq!(frame.len(), usize::from(slot.len));
            assert_eq!(frame[..40], slot.head[..40], "frame {n}");
            assert_eq!(frame[42..46], (slot.sequence + 2 * round).to_be_bytes(), "frame {n}");
            let time = frame[46..54].try_into().map(u64::from_be_bytes).expect("eight bytes");
            assert!(time >= last_time && time <= clock::now(), "frame {n}: {time} after {last_time}");
            last_time = time;
            assert_eq!(udp_sum(frame), 0xffff, "frame {n}");
        }
    })
    .expect("entered");
}

#[test]
fn nothing_is_sent_after_the_deadline_and_a_rate_is_not_exceeded() {
    let Some(ns) = Namespace::new("nothing_is_sent_after_the_deadline") else { return };
    for name in ["a", "b"] {
        ns.ip(&["link", "set", "dev", name, "up"]);
    }
    netns::inside(&ns.0, || {
        let index = Interface::open("b").expect("there").index();
        let mut generator = Generator::new(index, LAYOUT, &[slot(1, 60, 0)], 1).expect("loaded");
        generator.run_until(clock::now()).expect("runs");
        assert_eq!(generator.sent().expect("readable"), 0, "the deadline had passed");
        generator.pace(Some(10_000.0)).expect("set");
        let start = clock::now();
        generator.run_until(start + 50_000_000).expect("runs");
        // 500 are due in 50 ms, plus the catch-up of 64 and the one at the start.
        let sent = generator.sent().expect("readable");
        assert!((1..=565).contains(&sent), "{sent} frames");
    })
    .expect("entered");
}
