//! What the steering program takes for a frame, by `BPF_PROG_TEST_RUN`: no device, no queue, only the program.
//!
//! `cargo bench -p weir-io --bench steer` prints nanoseconds a frame, the tenth percentile of many turns, without
//! the call: the difference between a long and a short turn. To compare two builds, run them by turns.

use std::error::Error;
use std::net::IpAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::Instant;

use weir_core::packet::DeviceId;
use weir_core::tables::Owner;
use weir_core::wire::build;
use weir_io::bpf::attach::XdpMode;
use weir_io::netns;
use weir_io::steer::flow_offload::{Arrives, Decided, FlowOffload, Leaves};
use weir_io::steer::{LocalAddresses, Steering};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
/// The loopback interface, which a test run comes in on.
const LOOPBACK: u32 = 1;
const DEVICE: DeviceId = DeviceId(0);

/// Rounds of a short and of a long turn. A test run keeps what the program wrote, and a frame has 255 hops.
const SHORT: u32 = 20;
const LONG: u32 = 240;
const TURNS: usize = 2000;

struct Case {
    name: &'static str,
    from: &'static str,
    to: &'static str,
    offload: bool,
    known: bool,
}

const fn case(name: &'static str, pair: [&'static str; 2], offload: bool, known: bool) -> Case {
    Case { name, from: pair[0], to: pair[1], offload, known }
}

const V4: [&str; 2] = ["10.0.0.1", "10.1.0.1"];
const V6: [&str; 2] = ["2001:db8:1::1", "2001:db8:2::1"];
const CASES: [Case; 7] = [
    case("IPv4 to the worker", V4, false, false),
    case("IPv6 to the worker", V6, false, false),
    case("IPv4 to the kernel", [V4[0], "192.0.2.1"], false, false),
    case("IPv4, flow unknown, to the worker", V4, true, false),
    case("IPv6, flow unknown, to the worker", V6, true, false),
    case("IPv4, offloaded", V4, true, true),
    case("IPv6, offloaded", V6, true, true),
];

fn main() -> Result<(), Box<dyn Error>> {
    netns::enter_new()?;
    let mut local = LocalAddresses::new()?;
    local.set([("192.0.2.1".parse()?, Owner::Kernel)])?;
    for case in &CASES {
        println!("{:34} {:6.2} ns", case.name, cost(case, &local)?);
    }
    Ok(())
}

fn cost(case: &Case, local: &LocalAddresses) -> Result<f64, Box<dyn Error>> {
    let offload = FlowOffload::new()?;
    offload.set_generation(1);
    let flows = case.offload.then_some(&offload);
    // Attached: the kernel calls a program it knows well without a detour.
    let steering = Steering::attach_with("lo", LOOPBACK, &[XdpMode::Generic], local, flows)?;
    // SAFETY: socket takes no pointers; a fresh descriptor nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0)) };
    steering.add(0, socket.as_fd())?;
    let (source, destination): (IpAddr, IpAddr) = (case.from.parse()?, case.to.parse()?);
    let frame = build::Frame::ip(source, destination).ok_or("two families")?;
    let frame = frame.macs(OURS, FAR).ttl(255).udp(1000, 2000, &[0; 18]);
    if let Some(progress) = steering.progress(0).filter(|_| case.known) {
        // It leaves as it came, to come again.
        let mut macs = [0; 12];
        macs.copy_from_slice(&frame[..12]);
        let (ifindex, device) = (LOOPBACK, DEVICE);
        offload.insert(&Decided {
            generation: 1,
            source,
            destination,
            flow: None,
            arrives: Arrives { ifindex, queue: 0, device, vlan: None, mac: OURS },
            leaves: Leaves { ifindex, device, vlan: None, queue: 0, far_queues: 0, mtu: 1500, macs },
            policies: None,
        })?;
        steering.run(&frame, 1)?;
        progress.done(1);
    }
    let turn = |rounds| -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        steering.run(&frame, rounds)?;
        Ok(start.elapsed().as_nanos() as f64)
    };
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        short.push(turn(SHORT)?);
        long.push(turn(LONG)?);
    }
    let tenth = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 10]
    };
    Ok((tenth(&mut long) - tenth(&mut short)) / f64::from(LONG - SHORT))
}
