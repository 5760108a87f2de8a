//! Test traffic: which packets are sent, in which order, and what each one carries.
//!
//! Promises: a workload is a pure function of its description and a seed. Every frame is a valid UDP
//! packet (lengths, IPv4 header checksum, UDP checksum) that carries a [`Mark`]: which run, which flow,
//! its number inside the flow, and when it was sent. So loss, reordering, duplication and one-way
//! latency are seen packet by packet.
//!
//! Refuses: more flows than a mark can name, frames too short for headers and mark (they are raised to
//! the smallest size that holds them, and [`Traffic::notes`] says so).
//!
//! ```text
//! | Ethernet 14 | IPv4 20 or IPv6 40 | UDP 8 | mark 18 | zeros |
//! ```

pub mod address;
pub mod capture;
pub mod esp;
pub mod frame;
pub mod mark;
pub mod sa;

use crate::model::configuration::FLOWS_MAX;
use crate::model::{Family, FrameSize, LabError, Workload};
use frame::Header;
pub use mark::Mark;

/// The frame check sequence, counted by the field and never seen by software.
pub const FCS: u16 = 4;

/// Most flows in memory, where the source address makes them: all of its 10.128.0.0/10.
pub const MEMORY_FLOWS_MAX: u32 = 1 << 22;

/// 7 × 64, 4 × 570, 1 × 1518, spread so that no size comes in bursts.
const IMIX: [u16; 12] = [64, 570, 64, 64, 570, 64, 1518, 64, 570, 64, 64, 570];

/// The link-layer addresses of the generator's wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub source: [u8; 6],
    pub destination: [u8; 6],
}

/// Every packet a workload can send, ready to be stamped.
#[derive(Clone, Debug)]
pub struct Traffic {
    family: Family,
    flows: u32,
    /// Bytes in memory (no FCS), repeated in this order.
    pattern: Vec<u16>,
    /// Index into `headers` of each entry of `pattern`, in units of flows.
    class: Vec<u32>,
    /// Headers by size class, then by flow.
    headers: Vec<Header>,
    notes: Vec<String>,
}

/// One packet of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub flow: u32,
    /// Its number inside the flow, from 0.
    pub sequence: u32,
    slot: u32,
}

impl Packet {
    /// The same packet with another number.
    pub fn numbered(self, sequence: u32) -> Packet {
        Packet { sequence, ..self }
    }
}

impl Traffic {
    /// `routes` is how many prefixes of [`address::prefix`] the destinations spread over.
    pub fn new(workload: &Workload, routes: u32, link: Link) -> Result<Traffic, LabError> {
        if workload.flows == 0 || workload.flows > FLOWS_MAX {
            return Err(LabError::new(format!(
                "workload: {} flows, expected 1 to {FLOWS_MAX}: change `flows`",
                workload.flows
            )));
        }
        if routes == 0 || routes > address::ROUTES_MAX {
            return Err(LabError::new(format!(
                "workload: {routes} routes, expected 1 to {}: change `routes`",
                address::ROUTES_MAX
            )));
        }
        let (pattern, notes) = pattern(workload.family, workload.frame)?;
        let mut sizes = pattern.clone();
        sizes.sort_unstable();
        sizes.dedup();
        let class = pattern
            .iter()
            .map(|size| sizes.iter().position(|s| s == size).expect("every size has its class") as u32)
            .collect();
        let mut headers = Vec::with_capacity(sizes.len() * workload.flows as usize);
        for &size in &sizes {
            for flow in 0..workload.flows {
                let ends = address::ends(workload.family, flow, workload.flows, routes);
                headers.push(Header::new(link, ends, flow, size));
            }
        }
        Ok(Traffic { family: workload.family, flows: workload.flows, pattern, class, headers, notes })
    }

    pub fn family(&self) -> Family {
        self.family
    }

    pub fn flows(&self) -> u32 {
        self.flows
    }

    /// Frame sizes in memory (no FCS), in the order they repeat.
    pub fn pattern(&self) -> &[u16] {
        &self.pattern
    }

    /// The longest frame, bytes in memory.
    pub fn longest(&self) -> usize {
        self.pattern.iter().copied().max().unwrap_or(0) as usize
    }

    /// What the reader of a value must know of the frames.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The packets in sending order: flows in turn, in an order the seed decides.
    pub fn stream(&self, seed: u64) -> Stream {
        let mut order: Vec<u32> = (0..self.flows).collect();
        let mut state = seed;
        for i in (1..order.len()).rev() {
            order.swap(i, (splitmix(&mut state) % (i as u64 + 1)) as usize);
        }
        Stream { order, at: 0, sequence: 0, slot: 0, slots: self.pattern.len() as u32 }
    }

    /// Frame size of a packet, bytes in memory.
    #[inline]
    pub fn len(&self, packet: Packet) -> usize {
        self.pattern[packet.slot as usize] as usize
    }

    /// Writes headers and mark of a packet into `frame` and returns the frame's length. What follows
    /// the mark is not touched: it must be zero already, and stays so.
    #[inline]
    pub fn write(&self, packet: Packet, run: u8, sent_ns: u64, frame: &mut [u8]) -> usize {
        let class = self.class[packet.slot as usize];
        let header = &self.headers[(class * self.flows + packet.flow) as usize];
        let mark = Mark { run, flow: packet.flow, sequence: packet.sequence, sent_ns };
        header.write(mark, frame);
        self.len(packet)
    }

    /// The finished frame of a packet, for those who keep frames rather than write them.
    pub fn frame(&self, packet: Packet, run: u8, sent_ns: u64) -> Vec<u8> {
        let mut frame = vec![0; self.len(packet)];
        self.write(packet, run, sent_ns, &mut frame);
        frame
    }
}

/// The endless sequence of packets of one run.
#[derive(Clone, Debug)]
pub struct Stream {
    order: Vec<u32>,
    at: usize,
    sequence: u32,
    slot: u32,
    slots: u32,
}

impl Stream {
    /// The next packet.
    #[inline]
    pub fn advance(&mut self) -> Packet {
        let packet = Packet { flow: self.order[self.at], sequence: self.sequence, slot: self.slot };
        self.at += 1;
        if self.at == self.order.len() {
            self.at = 0;
            self.sequence = self.sequence.wrapping_add(1);
        }
        self.slot += 1;
        if self.slot == self.slots {
            self.slot = 0;
        }
        packet
    }

    /// The order in which flows take turns.
    pub fn order(&self) -> &[u32] {
        &self.order
    }
}

/// Sizes in memory, raised to the smallest frame that holds headers and mark.
fn pattern(family: Family, frame: FrameSize) -> Result<(Vec<u16>, Vec<String>), LabError> {
    let wire: Vec<u16> = match frame {
        FrameSize::Fixed(size) => vec![size],
        FrameSize::Imix => IMIX.to_vec(),
    };
    let smallest = (frame::headers_len(family) + mark::LEN) as u16;
    let mut notes = Vec::new();
    let mut raised = 0;
    let mut sizes = Vec::with_capacity(wire.len());
    for size in wire {
        if !(64..=1518).contains(&size) {
            return Err(LabError::new(format!(
                "workload: frame size {size}, expected 64 to 1518 (FCS included)"
            )));
        }
        if size - FCS < smallest {
            raised = size;
        }
        sizes.push((size - FCS).max(smallest));
    }
    if raised > 0 {
        notes.push(format!(
            "frames of {raised} B are sent as {} B (FCS included): Ethernet 14 + IPv6 40 + UDP 8 + mark {} is \
             the smallest that carries sequence number and timestamp",
            smallest + FCS,
            mark::LEN
        ));
    }
    Ok((sizes, notes))
}

/// Steele, Lea and Flood's SplitMix64: small, and good enough to shuffle.
pub(crate) fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};
    use weir_stats::search::Rate;

    const LINK: Link = Link { source: [2, 0, 0, 0, 0, 1], destination: [2, 0, 0, 0, 0, 2] };

    fn traffic(family: Family, frame: FrameSize, flows: u32, routes: u32) -> Traffic {
        let workload = Workload { family, frame, flows, rate: Rate::FlatOut };
        Traffic::new(&workload, routes, LINK).expect("a valid workload")
    }

    /// Ones' complement sum, RFC 1071.
    fn sum(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| u32::from(b));
        }
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    #[test]
    fn every_frame_has_valid_lengths_and_checksums() {
        for family in [Family::Inet, Family::Inet6] {
            let traffic = traffic(family, FrameSize::Imix, 50, 7);
            let mut stream = traffic.stream(1);
            for n in 0..500u64 {
                let packet = stream.advance();
                let frame = traffic.frame(packet, 9, n * 1_234_567_891_011);
                let ip = &frame[14..];
                let (pseudo, udp) = match family {
                    Family::Inet => {
                        assert_eq!(&frame[12..14], &[8, 0]);
                        assert_eq!(u16::from_be_bytes([ip[2], ip[3]]) as usize, ip.len());
                        assert_eq!(sum(&ip[..20]), 0xffff, "IPv4 header");
                        ([&ip[12..20], &[0, 17], &ip[24..26]].concat(), &ip[20..])
                    }
                    Family::Inet6 => {
                        assert_eq!(&frame[12..14], &[0x86, 0xdd]);
                        assert_eq!(u16::from_be_bytes([ip[4], ip[5]]) as usize, ip.len() - 40);
                        ([&ip[8..40], &[0, 17], &ip[44..46]].concat(), &ip[40..])
                    }
                };
                assert_eq!(u16::from_be_bytes([udp[4], udp[5]]) as usize, udp.len());
                assert_ne!(&udp[6..8], &[0, 0], "a zero UDP checksum means none");
                assert_eq!(sum(&[&pseudo, udp].concat()), 0xffff, "UDP");
                let mark = Mark::read(&frame).expect("our own mark");
                assert_eq!((mark.run, mark.flow), (9, packet.flow));
                assert_eq!((mark.sequence, mark.sent_ns), (packet.sequence, n * 1_234_567_891_011));
            }
        }
    }

    #[test]
    fn imix_is_seven_to_four_to_one() {
        let mut counts = BTreeMap::new();
        for &size in traffic(Family::Inet, FrameSize::Imix, 1, 1).pattern() {
            *counts.entry(size).or_insert(0) += 1;
        }
        assert_eq!(counts, BTreeMap::from([(60, 7), (566, 4), (1514, 1)]));
    }

    #[test]
    fn smallest_inet6_frame_is_said_to_be_larger_than_64() {
        let v6 = traffic(Family::Inet6, FrameSize::Fixed(64), 1, 1);
        assert_eq!(v6.pattern(), [80]);
        assert!(v6.notes()[0].contains("84 B"), "{:?}", v6.notes());
        let v4 = traffic(Family::Inet, FrameSize::Fixed(64), 1, 1);
        assert_eq!((v4.pattern(), v4.notes().len()), (&[60][..], 0));
    }

    #[test]
    fn flows_take_turns_and_count_for_themselves() {
        let traffic = traffic(Family::Inet, FrameSize::Fixed(64), 100, 10);
        let mut stream = traffic.stream(42);
        for round in 0..3 {
            let flows: HashSet<u32> = (0..100)
                .map(|_| {
                    let packet = stream.advance();
                    assert_eq!(packet.sequence, round);
                    packet.flow
                })
                .collect();
            assert_eq!(flows.len(), 100);
        }
        assert_ne!(traffic.stream(1).order(), traffic.stream(2).order());
        assert_eq!(traffic.stream(1).order(), traffic.stream(1).order());
    }

    #[test]
    fn a_size_no_ethernet_has_is_refused() {
        for size in [0, 63, 1519] {
            let workload = Workload {
                family: Family::Inet,
                frame: FrameSize::Fixed(size),
                flows: 1,
                rate: Rate::FlatOut,
            };
            assert!(Traffic::new(&workload, 1, LINK).is_err(), "{size}");
        }
    }
}
