//! What peers, the kernel and strangers may send, at smoke length: other inputs in each run.

use weir_core::wire::build::Frame;
use weir_core::wire::tcp;
use weir_io::fuzz::FUZZ_TARGETS;
use weir_io::tls::{Handshake, kind};
use weir_testing::fuzz::{Smoke, assert_targets, inputs};

use crate::ends::{SUITES, client_config, name};

/// Inputs a target gets: some seconds, unoptimised. A damaged stream costs its next input a handshake.
const INPUTS: usize = 4_000;

/// A virtio header and what is to be cut, after the two bytes of a length that is not asked for.
fn whole(kind: u8, packet: &[u8], transport: u16, segment: u16) -> Vec<u8> {
    let halves = [transport + 20, segment, transport, 16];
    let header = [[1, kind].to_vec(), halves.iter().flat_map(|half| half.to_ne_bytes()).collect()].concat();
    [&[0, 0, 0], &header[..], packet].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![Vec::new()];
    // Of streams: suites, then data, key updates, records of the client's choice, deliveries.
    for suite in 0..6 {
        seeds.push(vec![suite, 0, 5, 220, 7, 0, 200, 4, 1, 2, 64, 0, 7, 1, 0, 0, 0, 9, 7, 255, 255]);
        seeds.push(vec![suite, 3, 21, 2, 1, 0, 7, 255, 255, 0, 0, 9]);
        seeds.push(vec![suite, 3, 22, 5, 24, 0, 0, 1, 1, 0, 0, 40, 5, 0, 9, 1, 7, 255, 255]);
    }
    // A type of zero, behind which the peer of TLS 1.3 finds another.
    for suite in [2, 5] {
        seeds.push(vec![suite, 3, 0, 7, 4, kind::DATA, 0, 0]);
    }
    // Records before a server has left rustls: half a key update, then data; data in two pieces.
    seeds.push([&[0, 5, 2, 255, 24, 0][..], &[0, 3, 255, 1, 2, 3, 0, 0, 255]].concat());
    seeds.push(vec![3, 0, 4, 9, 1, 2, 3, 4, 0, 0, 255, 3, 2, 255, 1, 0]);
    for (version, suite) in SUITES {
        let mut client = Handshake::client(client_config(version, suite), name()).expect("a client");
        let mut hello = Vec::new();
        client.advance(&mut Vec::new(), &mut hello).expect("it begins");
        seeds.push(hello);
    }
    let header =
        tcp::Header { src_port: 80, dst_port: 443, sequence: 7, acknowledgment: 9, flags: 0x18, window: 512 };
    let v4 = Frame::ipv4([10, 0, 0, 1].into(), [10, 9, 9, 9].into()).packet().tcp(&header, &[5; 300]);
    let v6 = Frame::ipv6([0x20; 16].into(), [0x30; 16].into()).packet().tcp(&header, &[6; 300]);
    seeds.push(whole(1, &v4, 20, 100));
    seeds.push(whole(4, &v6, 40, 77));
    for packet in [&v4, &v6] {
        let length = (packet.len() as u16).to_be_bytes();
        let more = [[1, 1, 1, 5, 3, 0, 9, 1].to_vec(), [4].to_vec(), length.to_vec(), packet[..120].to_vec()];
        seeds.push([&[4], &length[..], &packet[..120], &more.concat()].concat());
    }
    seeds
}

#[test]
fn nothing_that_is_sent_breaks_a_stream_or_a_packet() {
    Smoke { targets: FUZZ_TARGETS, seeds: seeds(), longest: 2048, inputs: inputs(INPUTS) }.run();
}

#[test]
fn every_fuzz_function_has_a_target_in_the_fuzz_workspace() {
    assert_targets(&[FUZZ_TARGETS], &[]);
}
