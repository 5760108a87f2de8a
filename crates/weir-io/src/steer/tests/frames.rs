//! Well-formed frames, one for each way through the programs and more.

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_core::wire::build;

use super::{FAR, frame, tagged, with_checksum};

/// Pairs of addresses whose flows are known; the last is of another interface.
pub const PAIRS: [(&str, &str); 3] =
    [("10.0.0.1", "10.1.0.1"), ("2001:db8:1::1", "2001:db8:2::1"), ("10.0.0.2", "10.1.0.1")];

/// Those that come in by a VLAN: one leaves without a tag, one with another.
pub const TAGGED_PAIRS: [(&str, &str); 2] = [("10.0.0.3", "10.1.0.1"), ("2001:db8:1::3", "2001:db8:2::1")];

/// Those whose flows have ways of their own.
pub const SPREAD_PAIRS: [(&str, &str); 2] = [("10.0.0.4", "10.1.0.1"), ("2001:db8:1::4", "2001:db8:2::1")];

pub fn corpus() -> Vec<Vec<u8>> {
    let sealed = [0x10; 24];
    let ike = [&[0; 4][..], &sealed].concat();
    let mut frames = Vec::new();
    for (from, to) in [
        PAIRS[0],
        PAIRS[1],
        PAIRS[2],
        TAGGED_PAIRS[0],
        TAGGED_PAIRS[1],
        SPREAD_PAIRS[0],
        SPREAD_PAIRS[1],
        ("10.0.0.1", "192.0.2.1"),
        ("10.0.0.1", "192.0.2.3"),
        ("10.0.0.1", "192.0.2.9"),
        ("10.0.0.1", "224.0.0.5"),
        ("10.0.0.1", "255.255.255.255"),
        ("10.0.0.1", "240.0.0.1"),
        ("10.0.0.1", "203.0.113.9"),
        ("10.0.0.1", "203.0.113.70"),
        ("2001:db8:1::1", "2001:db8:f::1"),
        ("2001:db8:1::1", "2001:db8::1"),
        ("2001:db8:1::1", "ff02::5"),
        ("2001:db8:1::1", "fe80::9"),
    ] {
        frames.push(frame(from, to).udp(1000, 2000, b"payload"));
        frames.push(frame(from, to).udp(4500, 4500, &sealed));
        frames.push(frame(from, to).udp(4500, 4501, &ike));
        frames.push(frame(from, to).udp(500, 500, &sealed));
        frames.push(frame(from, to).udp(4500, 4500, &[0xff]));
        frames.push(frame(from, to).raw(50, &sealed));
        // By SPIs that only the kernel opens.
        frames.push(frame(from, to).raw(50, &[0x11; 24]));
        frames.push(frame(from, to).udp(4500, 4501, &[0x20; 24]));
        frames.push(frame(from, to).raw(50, &[0x11; 3]));
        frames.push(frame(from, to).raw(6, &sealed));
        frames.push(frame(from, to).fragment(24, false).raw(50, &sealed));
        frames.push(frame(from, to).fragment(0, true).raw(17, &sealed));
        frames.push(frame(from, to).udp(1, 2, &[0; 1400]));
    }
    // With what a sender's card left behind the packet.
    for (from, to) in PAIRS {
        frames.push([&frame(from, to).udp(1000, 2000, b"x")[..], &[0xa5; 25]].concat());
    }
    frames.extend(strange());
    let v4 = |last: u8| Ipv4Addr::from([192, 0, 2, last]);
    let v6 = |last: u8| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last.into());
    for last in [1, 9, 77] {
        frames.push(build::arp_request((FAR, v4(2)), v4(last), None));
        frames.push(build::neighbor_solicitation((FAR, v6(2)), v6(last), None));
    }
    frames.push([&frames[0][..12], &[0x88, 0xb5], &[0; 46]].concat());
    let behind_tags: Vec<Vec<u8>> = frames.iter().map(|frame| tagged(frame, 0x8100)).collect();
    frames.extend(behind_tags);
    frames
}

/// Frames of known pairs that the flow offload must leave to the router, each for one reason.
fn strange() -> Vec<Vec<u8>> {
    let [v4, v6] = [PAIRS[0], PAIRS[1]].map(|(s, d)| frame(s, d).udp(1000, 2000, b"payload"));
    let changed = |frame: &[u8], at: usize, byte: u8| {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        frame
    };
    let mut options = [&v4[..34], &[1; 4], &v4[34..]].concat();
    options[14] = 0x46;
    vec![
        options,
        with_checksum(changed(&v4, 22, 1)),
        with_checksum(changed(&v4, 20, 0x20)),
        changed(&v4, 24, v4[24] ^ 1),
        with_checksum(changed(&v4, 16, 0x40)),
        with_checksum(changed(&changed(&v4, 16, 0), 17, 19)),
        changed(&v4, 5, 0x0e),
        changed(&v6, 14, 0x40),
        changed(&v6, 21, 1),
        changed(&v6, 20, 58),
        changed(&v6, 20, 99),
        changed(&v6, 18, 0x40),
        changed(&v6, 5, 0x0e),
        v4[..30].to_vec(),
        v6[..50].to_vec(),
        tagged(&v4, 0x8100)[..16].to_vec(),
    ]
}
