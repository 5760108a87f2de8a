//! Receiving through packet sockets: the ring that `af_packet` uses against `recvmmsg`.
//!
//! `cargo bench -p weir-io --bench packet_receive` sends 60-byte frames over veth and then takes them in, on
//! one thread, the two ways interleaved; the best of many rounds is printed, in nanoseconds a frame. Delivery
//! into the socket runs in the sender's call. Under `cargo test --benches` it runs one round.

use std::io::{self, Write};
use std::process::Command;
use std::time::Instant;

use weir_core::device::Device;
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_io::af_packet::AfPacket;
use weir_io::netns;
use weir_io::packet_socket::PacketSocket;

/// Frames of a round: fewer than the ring has slots, so that none is lost.
const ROUND: usize = 3200;
const ROUNDS: usize = 30;
/// A fresh mapping is slow at first; a socket lives long.
const PASSES: usize = 5;

type Port = AfPacket<Box<[u8]>>;

fn main() {
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    let name = format!("weir-bench-packet-{}", std::process::id());
    if !ip(&["netns", "add", &name]) {
        let _ = writeln!(io::stderr(), "SKIP packet_receive: network namespaces need root and iproute2");
        return;
    }
    let measured = netns::inside(&name, || measure(rounds));
    ip(&["netns", "del", &name]);
    measured.expect("the namespace can be entered");
}

fn measure(rounds: usize) {
    ip(&["link", "add", "name", "v0", "type", "veth", "peer", "name", "v1"]);
    ip(&["link", "set", "dev", "v0", "up"]);
    ip(&["link", "set", "dev", "v1", "up"]);
    let mut sender = Port::open("v1", DeviceId(1), None).expect("opened");
    let mut pool = Pool::boxed(256);
    let (mut ring_best, mut recvmmsg_best) = ([f64::MAX; 2], [f64::MAX; 2]);
    for _ in 0..rounds {
        // Each way has the device to itself: a second socket would be delivered to as well.
        let mut port = Port::open("v0", DeviceId(0), None).expect("opened");
        let mut batch = Batch::new();
        round(&mut ring_best, &mut sender, &mut pool, |pool| {
            let count = port.rx(pool, &mut batch);
            batch.drain().for_each(|frame| pool.put(frame.into_buffer()));
            count
        });
        drop(port);
        let mut socket = PacketSocket::receiver("v0").expect("opened");
        round(&mut recvmmsg_best, &mut sender, &mut pool, |_| socket.receive(|_| ()).expect("received"));
    }
    println!("{:12} {:>16} {:>10} {:>10}", "ns a frame", "send and deliver", "receive", "together");
    for (name, best) in [("ring", ring_best), ("recvmmsg", recvmmsg_best)] {
        println!("{name:12} {:>16.0} {:>10.0} {:>10.0}", best[0], best[1], best[0] + best[1]);
    }
}

/// Sends and receives a few times over and keeps the best of each.
fn round(
    best: &mut [f64; 2],
    sender: &mut Port,
    pool: &mut Pool<Box<[u8]>>,
    mut receive: impl FnMut(&mut Pool<Box<[u8]>>) -> usize,
) {
    for _ in 0..PASSES {
        let sent = per_frame(ROUND, || send(sender, pool));
        let mut taken = 0;
        let received = per_frame(ROUND, || {
            loop {
                match receive(pool) {
                    0 => break,
                    count => taken += count,
                }
            }
        });
        assert!(taken >= ROUND, "{taken} of {ROUND} frames arrived");
        *best = [best[0].min(sent), best[1].min(received)];
    }
}

fn send(sender: &mut Port, pool: &mut Pool<Box<[u8]>>) {
    let mut bytes = [0; 60];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    let mut frames = Vec::with_capacity(64);
    for _ in 0..ROUND / 64 {
        while frames.len() < 64 {
            let buffer = pool.take().expect("a buffer");
            frames.push(Frame::from_bytes(buffer, &bytes, DeviceId(1)).expect("fits"));
        }
        while !frames.is_empty() {
            sender.tx(pool, &mut frames);
        }
    }
}

fn per_frame(frames: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / frames as f64
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).output().is_ok_and(|o| o.status.success())
}
