//! What reading a packet costs: checksums by length, header checks, flow hashes. Nanoseconds an item.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use weir_core::wire::build::Frame;
use weir_core::wire::flow::FlowKey;
use weir_core::wire::{Ethernet, Ipv4, Ipv6, checksum};

fn main() {
    divan::main();
}

/// Packets a sample goes through: few enough to stay in the first-level cache.
const PACKETS: usize = 64;

fn packets4() -> Vec<Vec<u8>> {
    let packet = |i: usize| {
        let frame = Frame::ipv4([10, 0, 0, i as u8].into(), [10, 0, 1, i as u8].into());
        frame.packet().udp(1000 + i as u16, 2000, &[0; 18])
    };
    (0..PACKETS).map(packet).collect()
}

fn packets6() -> Vec<Vec<u8>> {
    let packet = |i: usize| {
        let frame = Frame::ipv6([i as u8; 16].into(), [0x20; 16].into());
        frame.packet().udp(1000 + i as u16, 2000, &[0; 2])
    };
    (0..PACKETS).map(packet).collect()
}

fn each<T>(bencher: Bencher, packets: Vec<Vec<u8>>, work: impl Fn(&[u8]) -> T + Sync) {
    bencher.counter(ItemsCount::new(PACKETS)).bench(|| {
        for packet in &packets {
            black_box(work(black_box(packet)));
        }
    });
}

#[divan::bench(args = [20, 40, 64, 576, 1500])]
fn checksum_of_bytes(bencher: Bencher, len: usize) {
    each(bencher, vec![vec![0xa5; len]; PACKETS], checksum::checksum);
}

#[divan::bench]
fn checksum_of_a_20_byte_header(bencher: Bencher) {
    each(bencher, packets4(), |packet| packet.first_chunk().is_some_and(checksum::ipv4_header_20));
}

#[divan::bench]
fn parse_ipv4(bencher: Bencher) {
    each(bencher, packets4(), |packet| Ipv4::parse(packet).is_ok());
}

#[divan::bench]
fn parse_ipv6_and_walk(bencher: Bencher) {
    each(bencher, packets6(), |packet| Ipv6::parse(packet).and_then(|p| p.chain()));
}

#[divan::bench]
fn parse_ethernet(bencher: Bencher) {
    each(bencher, packets4(), |packet| Ethernet::parse(packet).map(|frame| frame.ethertype()));
}

#[divan::bench]
fn flow_of_ipv4(bencher: Bencher) {
    let key = FlowKey::new(7);
    each(bencher, packets4(), |packet| key.of_ipv4(&Ipv4::new_unchecked(packet)));
}

#[divan::bench]
fn flow_of_ipv6(bencher: Bencher) {
    let key = FlowKey::new(7);
    each(bencher, packets6(), |packet| key.of_ipv6(&Ipv6::new_unchecked(packet)));
}
