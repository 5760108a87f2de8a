//! Golden captures: `testdata/x.pcap` decodes to `testdata/x.txt`, line by line, and both are what the
//! builders make today. A change of a format shows as a change of text in review.
//!
//! `WEIR_GOLDEN=write cargo test -p weir-core --test golden` makes them anew; look at the difference.

use std::borrow::Cow;
use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use weir_core::id::Mac;
use weir_core::wire::build::{self, Frame};
use weir_core::wire::{decode, icmpv4, icmpv6, protocol, tcp};

const HOST: Mac = [2, 0, 0, 0, 0, 0x0a];
const ROUTER: Mac = [2, 0, 0, 0, 0, 0xfe];
const HOST4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const ROUTER4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const FAR4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0x0a);
const ROUTER6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
const FAR6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 7);

fn v4() -> Frame {
    Frame::ipv4(HOST4, FAR4).macs(ROUTER, HOST)
}

fn v6() -> Frame {
    Frame::ipv6(HOST6, FAR6).macs(ROUTER, HOST)
}

/// (name, frames): one scene per format.
fn scenes() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    vec![
        ("arp", arp()),
        ("icmpv4", icmp4()),
        ("icmpv6", icmp6()),
        ("ipv4", ipv4()),
        ("ipv6", ipv6()),
        ("malformed", malformed()),
        ("ndp", ndp()),
        ("vlan", vlan()),
    ]
}

fn arp() -> Vec<Vec<u8>> {
    let (host, router) = ((HOST, HOST4), (ROUTER, ROUTER4));
    vec![
        build::arp_request(host, ROUTER4, None),
        build::arp_reply(router, host, None),
        build::arp_request_unicast(router, host, None),
        build::arp_request((HOST, Ipv4Addr::UNSPECIFIED), HOST4, None),
        build::arp_request(host, HOST4, None),
    ]
}

fn ndp() -> Vec<Vec<u8>> {
    let (host, router) = ((HOST, HOST6), (ROUTER, ROUTER6));
    let all_nodes = ([0x33, 0x33, 0, 0, 0, 1], "ff02::1".parse().expect("address"));
    vec![
        build::neighbor_solicitation(host, ROUTER6, None),
        build::neighbor_advertisement(router, host, true, None),
        build::neighbor_solicitation_unicast(router, host, None),
        build::neighbor_solicitation((HOST, Ipv6Addr::UNSPECIFIED), HOST6, None),
        build::neighbor_advertisement(router, all_nodes, true, None),
    ]
}

fn ipv4() -> Vec<Vec<u8>> {
    let syn = tcp::Header {
        src_port: 40000,
        dst_port: 443,
        sequence: 1000,
        flags: tcp::flag::SYN,
        window: 64240,
        ..tcp::Header::default()
    };
    vec![
        v4().ident(1).udp(5353, 53, b"what is the name"),
        v4().ident(2).dont_fragment().tcp(&syn, b""),
        v4().ident(3).tos(0xb8).ttl(1).udp(1, 2, &[0; 18]),
        v4().ident(4).options(&[148, 4, 0, 0]).udp(1, 2, b"alert"),
        v4().ident(5).options(&[1, 7, 7, 4, 0, 0, 0, 0]).udp(1, 2, b"record"),
        v4().ident(6).fragment(0, true).udp(9, 9, &[1; 24]),
        v4().ident(6).fragment(32, false).raw(protocol::UDP, &[1; 12]),
        v4().ident(7).raw(protocol::ESP, &[0x10; 40]),
    ]
}

fn ipv6() -> Vec<Vec<u8>> {
    let ack = tcp::Header {
        src_port: 443,
        dst_port: 40000,
        sequence: 7,
        acknowledgment: 1001,
        flags: tcp::flag::PSH | tcp::flag::ACK,
        window: 512,
    };
    vec![
        v6().udp(5353, 53, b"what is the name"),
        v6().tcp(&ack, b"hello"),
        v6().tos(0xb8).flow_label(0xabcde).ttl(1).udp(1, 2, &[0; 2]),
        v6().extension(protocol::HOP_BY_HOP, &[0, 5, 2, 0, 0, 1, 0]).udp(1, 2, b"alert"),
        v6().extension(protocol::DESTINATION_OPTIONS, &[0, 1, 4, 0, 0, 0, 0]).udp(1, 2, b"padded"),
        v6().ident(77).fragment(0, true).udp(9, 9, &[1; 24]),
        v6().ident(77).fragment(32, false).raw(protocol::UDP, &[1; 12]),
        v6().raw(protocol::NO_NEXT_HEADER, b""),
    ]
}

fn vlan() -> Vec<Vec<u8>> {
    vec![
        v4().vlan(5).udp(1, 2, b"tagged"),
        v6().vlan(4094).udp(1, 2, b"tagged"),
        build::arp_request((HOST, HOST4), ROUTER4, Some(5)),
        v4().vlan(0).udp(1, 2, b"priority"),
    ]
}

fn icmp4() -> Vec<Vec<u8>> {
    let back = Frame::ipv4(FAR4, HOST4).macs(HOST, ROUTER);
    let original = v4().packet().ttl(1).udp(33434, 33434, &[7; 1400]);
    let mut frames =
        vec![v4().echo_request(1, 1, b"ping ping ping"), back.echo_reply(1, 1, b"ping ping ping")];
    for error in [
        icmpv4::Error::TimeExceeded,
        icmpv4::Error::NetUnreachable,
        icmpv4::Error::HostUnreachable,
        icmpv4::Error::PortUnreachable,
        icmpv4::Error::FragmentationNeeded { mtu: 1400 },
        icmpv4::Error::Prohibited,
        icmpv4::Error::ParameterProblem { pointer: 20 },
    ] {
        let mut frame = link(0x0800, icmpv4::MAX_ERROR_LEN);
        let len = icmpv4::write_error(&mut frame[14..], error, ROUTER4, &original, 64, 9).expect("fits");
        frame.truncate(14 + len);
        frames.push(frame);
    }
    frames
}

fn icmp6() -> Vec<Vec<u8>> {
    let back = Frame::ipv6(FAR6, HOST6).macs(HOST, ROUTER);
    let original = v6().packet().ttl(1).udp(33434, 33434, &[7; 1400]);
    let mut frames =
        vec![v6().echo_request(1, 1, b"ping ping ping"), back.echo_reply(1, 1, b"ping ping ping")];
    for error in [
        icmpv6::Error::HopLimitExceeded,
        icmpv6::Error::NoRoute,
        icmpv6::Error::AddressUnreachable,
        icmpv6::Error::PortUnreachable,
        icmpv6::Error::PacketTooBig { mtu: 1400 },
        icmpv6::Error::Prohibited,
        icmpv6::Error::ParameterProblem { code: 1, pointer: 6 },
    ] {
        let mut frame = link(0x86dd, icmpv6::MAX_ERROR_LEN);
        let len = icmpv6::write_error(&mut frame[14..], error, ROUTER6, &original, 64).expect("fits");
        frame.truncate(14 + len);
        frames.push(frame);
    }
    frames
}

/// One frame for each reason a parser gives.
fn malformed() -> Vec<Vec<u8>> {
    let good4 = v4().udp(1, 2, b"x");
    let good6 = v6().udp(1, 2, b"x");
    let changed = |frame: &[u8], at: usize, value: u8| {
        let mut frame = frame.to_vec();
        frame[at] = value;
        frame
    };
    let double_tagged = {
        let mut frame = v4().vlan(5).udp(1, 2, b"x");
        frame.splice(12..12, [0x81, 0x00, 0, 6]);
        frame
    };
    vec![
        good4[..13].to_vec(),
        double_tagged,
        good4[..30].to_vec(),
        changed(&good4, 14, 0x55),
        changed(&good4, 14, 0x44),
        changed(&good4, 17, 200),
        changed(&good4, 24, 0),
        v4().options(&[7, 1, 0, 0]).udp(1, 2, b"x"),
        v4().options(&[131, 7, 4, 10, 0, 0, 1]).udp(1, 2, b"x"),
        good6[..50].to_vec(),
        changed(&good6, 14, 0x45),
        changed(&good6, 19, 200),
        v6().extension(protocol::ROUTING, &[0, 0, 1, 0, 0, 0, 0]).udp(1, 2, b"x"),
        v6().extension(60, &[0; 7]).extension(0, &[0; 7]).udp(1, 2, b"x"),
        changed(&v4().echo_request(1, 1, b""), 36, 0),
        changed(&v6().echo_request(1, 1, b""), 56, 0),
        changed(&build::neighbor_solicitation((HOST, HOST6), FAR6, None), 21, 64),
        changed(&build::arp_request((HOST, HOST4), FAR4, None), 18, 8),
        changed(&good4, 12, 0x88),
    ]
}

/// An Ethernet header from router to host and room for `len` bytes.
fn link(ethertype: u16, len: usize) -> Vec<u8> {
    let mut frame = [&HOST[..], &ROUTER[..], &ethertype.to_be_bytes()].concat();
    frame.resize(14 + len, 0);
    frame
}

fn path(name: &str, ending: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(format!("{name}.{ending}"))
}

fn text_of(frames: &[Vec<u8>]) -> String {
    frames.iter().map(|frame| format!("{}\n", decode(frame))).collect()
}

fn write(name: &str, frames: &[Vec<u8>]) {
    let file = File::create(path(name, "pcap")).expect("testdata/ is writable");
    let mut writer = PcapWriter::new(file).expect("a header is written");
    for (i, frame) in frames.iter().enumerate() {
        let packet = PcapPacket {
            timestamp: Duration::from_millis(i as u64),
            orig_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
        };
        writer.write_packet(&packet).expect("a packet is written");
    }
    fs::write(path(name, "txt"), text_of(frames)).expect("testdata/ is writable");
}

fn read(name: &str) -> Vec<Vec<u8>> {
    let file = File::open(path(name, "pcap")).expect("the capture is there: WEIR_GOLDEN=write makes it");
    let mut reader = PcapReader::new(file).expect("a pcap file");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.expect("a whole packet").data.into_owned());
    }
    frames
}

#[test]
fn captures_decode_to_their_text_and_are_what_the_builders_make() {
    for (name, built) in scenes() {
        if std::env::var("WEIR_GOLDEN").is_ok_and(|wish| wish == "write") {
            write(name, &built);
        }
        let captured = read(name);
        let expected = fs::read_to_string(path(name, "txt")).expect("the text stands beside the capture");
        assert_eq!(text_of(&captured), expected, "testdata/{name}.pcap decodes to testdata/{name}.txt");
        assert_eq!(built, captured, "the builders make testdata/{name}.pcap");
    }
}
