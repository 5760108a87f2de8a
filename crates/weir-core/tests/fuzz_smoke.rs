//! Every fuzz target at smoke length, on stable, without libFuzzer: mutations of golden captures and of
//! built frames, other ones in each run. Long runs with coverage are in `fuzz/`. A binary of its own, because runs of hours are
//! asked for by its name.
//!
//! `WEIR_FUZZ_INPUTS=5000000 cargo test -p weir-core --release --test fuzz_smoke` runs longer.

use std::path::Path;

use weir_core::fuzz_input::FuzzTarget;
use weir_core::relay::frame::{Gone, Key, Presence};
use weir_core::relay::handshake::{ClientInfo, Secret};
use weir_core::relay::{self, fuzz, stun};
use weir_core::testing::PACKET_PARSERS;
use weir_core::wire::build::{self, Frame};
use weir_core::wire::netlink::request;
use weir_core::wire::rtnetlink;
use weir_testing::fuzz::{Random, Smoke, inputs, mutate};

/// Inputs a target gets: about a second each, unoptimised.
const DEFAULT_INPUTS: usize = 200_000;
/// Beyond this an input is cut: the longest header chains are well below it.
const MAX_INPUT: usize = 512;

/// What rtnetlink says of a route of two next hops, a group of next-hop objects, a neighbour and a rule.
fn netlink() -> Vec<Vec<u8>> {
    let hop = |via: u8| [&[16u8, 0, 0, 0, 2, 0, 0, 0][..], &[8, 0, 5, 0, 10, 2, 0, via]].concat();
    let hops = [hop(2), hop(3)].concat();
    let route = [2, 24, 0, 0, 254, 186, 0, 1, 0, 0, 0, 0];
    vec![
        request(rtnetlink::NEW_ROUTE, 0, &route, &[(1, &[10, 9, 0, 0]), (6, &[5, 0, 0, 0]), (9, &hops)]),
        request(rtnetlink::NEW_NEXT_HOP, 0, &[0; 8], &[(1, &[9, 0, 0, 0]), (2, &[7, 0, 0, 0, 1, 0, 0, 0])]),
        request(
            rtnetlink::NEW_NEIGHBOR,
            0,
            &[2, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 1],
            &[(1, &[10, 2, 0, 2]), (2, &[2; 6])],
        ),
        request(
            rtnetlink::NEW_RULE,
            0,
            &[2, 0, 24, 0, 254, 0, 0, 1, 0, 0, 0, 0],
            &[(2, &[10, 1, 0, 0]), (3, b"eth0\0")],
        ),
    ]
}

/// What the kernel says of SAs, policies and rules.
fn hexadecimal(text: &str) -> Vec<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).expect("hex") as u8;
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let hex = lines.filter_map(|l| l.split(' ').nth(1));
    hex.map(|h| h.as_bytes().chunks(2).map(|b| digit(b[0]) << 4 | digit(b[1])).collect()).collect()
}

/// Golden captures and built frames, each from its Ethernet header, its IP header and its transport
/// header on, so that every parser starts from something it accepts.
fn seeds() -> Vec<Vec<u8>> {
    let mut frames = captured();
    assert!(frames.len() > 20, "testdata/ holds {} frames", frames.len());
    let mac = [2, 0, 0, 0, 0, 9];
    let v4 = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let v6 = Frame::ipv6([0x20; 16].into(), [0x30; 16].into());
    frames.push(build::arp_request((mac, [10, 0, 0, 1].into()), [10, 0, 0, 2].into(), Some(7)));
    frames.push(build::neighbor_solicitation((mac, [0xfe; 16].into()), [0x30; 16].into(), None));
    frames.push(v4.clone().options(&[7, 7, 4, 0, 0, 0, 0]).udp(1, 2, b"payload"));
    frames.push(v4.vlan(5).echo_request(1, 2, &[9; 64]));
    frames.push(v6.clone().extension(0, &[0, 5, 2, 0, 0, 1, 0]).extension(60, &[0; 7]).udp(1, 2, b"x"));
    frames.push(v6.fragment(0, true).raw(58, &[128, 0, 0, 0, 0, 1, 0, 1]));
    frames.extend(netlink());
    frames.extend(hexadecimal(include_str!("../../../testdata/xfrm.txt")));
    frames.extend(hexadecimal(include_str!("../../../testdata/nftables.txt")));
    let mut seeds = vec![Vec::new()];
    for frame in frames {
        for at in [0, 14, 18, 34, 54] {
            if at < frame.len() {
                seeds.push(frame[at..].to_vec());
            }
        }
    }
    seeds
}

fn captured() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("testdata/ is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    paths.sort();
    let mut frames = Vec::new();
    for path in paths {
        let file = std::fs::File::open(path).expect("readable");
        let mut reader = pcap_file::pcap::PcapReader::new(file).expect("a pcap file");
        while let Some(packet) = reader.next_packet() {
            frames.push(packet.expect("a whole packet").data.into_owned());
        }
    }
    frames
}

/// Frames of the relay's protocol, what is in a client's box, a question to STUN, and some frames in a row.
fn relay_seeds() -> Vec<Vec<u8>> {
    let (a, b) = (Key([1; 32]), Key([2; 32]));
    let address = Presence { address: [192, 0, 2, 1].into(), port: 4242, flags: 1 };
    let mut seeds =
        vec![Vec::new(), br#"{"meshKey":"00","version":2,"CanAckPings":true,"IsProber":true}"#.to_vec()];
    let mut all = vec![0, 6];
    for frame in [
        relay::Frame::ServerKey(a),
        relay::Frame::ServerInfo([3; 24], &[4; 20]),
        relay::Frame::SendPacket(a, &[5; 30]),
        relay::Frame::ForwardPacket(a, b, b"data"),
        relay::Frame::PeerGone(a, Gone::NotHere),
        relay::Frame::PeerPresent(a, Some(address)),
        relay::Frame::WatchConns,
        relay::Frame::ClosePeer(b),
        relay::Frame::NotePreferred(true),
        relay::Frame::Ping(b"12345678"),
        relay::Frame::Health(b"ill"),
        relay::Frame::Restarting(10, 2000),
        relay::Frame::KeepAlive,
    ] {
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        all.extend_from_slice(&bytes);
        seeds.push(bytes);
    }
    seeds.push(all);
    let mut bytes = Vec::new();
    ClientInfo::default().seal(&Secret::new([1; 32]), &Secret::new([7; 32]).public(), [0; 24], &mut bytes);
    bytes.remove(5);
    seeds.push(bytes);
    let mut bytes = Vec::new();
    stun::ask(b"transaction!", &mut bytes);
    seeds.push(bytes);
    seeds.push((0..200).map(|i: u8| i.wrapping_mul(73)).collect());
    seeds
}

fn run(targets: &[(&str, FuzzTarget)], seeds: Vec<Vec<u8>>, inputs: usize) {
    Smoke { targets, seeds, longest: MAX_INPUT, inputs }.run();
}

#[test]
fn no_input_makes_a_parser_panic() {
    run(PACKET_PARSERS, seeds(), inputs(DEFAULT_INPUTS));
}

#[test]
fn no_input_makes_the_relays_protocol_panic() {
    run(fuzz::FUZZ_TARGETS, relay_seeds(), inputs(DEFAULT_INPUTS));
}

#[test]
fn no_sequence_confuses_the_relays_streams_and_registry() {
    run(fuzz::FUZZ_SEQUENCES, relay_seeds(), inputs(DEFAULT_INPUTS) / 20);
}

#[test]
fn every_fuzz_function_has_a_target_in_the_fuzz_workspace() {
    // Those that keep state have smoke tests of their own: their inputs are sequences of frames.
    let with_state = ["conntrack", "router", "gate", "esp_open", "reassembly", "classifier", "spd"];
    weir_testing::fuzz::assert_targets(
        &[PACKET_PARSERS, fuzz::FUZZ_TARGETS, fuzz::FUZZ_SEQUENCES],
        &with_state,
    );
}

#[test]
fn mutations_reach_behind_the_headers() {
    // A mutator whose inputs are all refused at the first byte would test nothing.
    let seeds = seeds();
    let mut random = Random::new(1);
    let mut input = Vec::new();
    let mut decoded = [0; 3];
    for _ in 0..60_000 {
        mutate(&mut random, &seeds, MAX_INPUT, &mut input);
        let text = weir_core::wire::decode(&input).to_string();
        decoded[0] += usize::from(text.contains("IP ") || text.contains("IP6 "));
        decoded[1] += usize::from(text.contains("ARP "));
        decoded[2] += usize::from(text.contains("frag"));
    }
    assert!(decoded.iter().all(|&n| n > 50), "IP, ARP, fragments: {decoded:?} of 60000");
}
