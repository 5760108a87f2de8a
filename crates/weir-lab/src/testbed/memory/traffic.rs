//! Frames before they are frames: headers in 64 bytes, and how long each is.
//!
//! Up to [`STORED`] flows have a template each. Of more, [`BASES`] have one; the others are made of them as they
//! are sent, turn by turn: the same frame from another source address, or from another source port where rules
//! chose the addresses, with its checksums right (RFC 1624). So four million flows take a megabyte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::ipsec::spd::{Flow, Transport};
use weir_core::wire::build::Frame;

use super::tables::IN_MAC;
use crate::model::{Family, FrameSize, LabError, Workload};
use crate::workload::FCS;
use weir_stats::random::Random;

/// One cache line: Ethernet, IPv6 and UDP headers take 62.
pub const TEMPLATE: usize = 64;
/// 7 × 64, 4 × 570, 1 × 1518.
const IMIX: [u16; 12] = [64, 570, 64, 64, 570, 64, 1518, 64, 570, 64, 64, 570];
/// Least frames in memory: headers, and Ethernet's 60.
const LEAST4: u16 = 60;
const LEAST6: u16 = 62;
/// Link header of a frame.
const ETHERNET: usize = 14;
pub const GENERATOR_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// A template, alone in its cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Template(pub [u8; TEMPLATE]);

/// Flows that may have a template each.
const STORED: u32 = 1 << 16;
/// Templates of more flows than that: a second-level cache holds them.
const BASES: u32 = 1 << 14;

/// Templates for so many flows.
pub fn stored(flows: u32) -> u32 {
    if flows <= STORED { flows } else { flows / flows.div_ceil(BASES) }
}

/// What tells the turns of a template from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Varied {
    Source,
    SourcePort,
}

/// One a flow, or a few for all.
pub struct Templates {
    pub frames: Vec<Template>,
    /// Bytes in memory of each frame.
    pub lens: Vec<u16>,
    pub notes: Vec<String>,
    /// Flows a template stands for.
    pub turns: u32,
    varied: Varied,
}

impl Templates {
    /// A flow a destination, and those of further turns.
    pub fn build(workload: &Workload, destinations: &[IpAddr]) -> Result<Templates, LabError> {
        let make = |flow: usize, len| {
            let destination = destinations[flow];
            let source: IpAddr = match destination {
                IpAddr::V4(_) => Ipv4Addr::from(u32::from(FIRST_V4) + flow as u32).into(),
                IpAddr::V6(_) => Ipv6Addr::from(u128::from(FIRST_V6) + flow as u128).into(),
            };
            template((source, destination), (1024 + (flow % 60_000) as u16, 4789), len)
        };
        Templates::made(workload, destinations.len(), Varied::Source, make)
    }

    /// Packets of flows that rules match; each carries its flow's number, since nothing else tells it.
    pub fn of_flows(workload: &Workload, flows: &[Flow]) -> Result<Templates, LabError> {
        let make = |number: usize, len| {
            let flow = flows[number];
            let Transport::Ports { source, destination } = flow.transport else {
                return Err(LabError::new("memory: a flow without ports".into()));
            };
            let mut template = template((flow.source, flow.destination), (source, destination), len)?;
            number_of(&mut template.0, number as u16);
            Ok(template)
        };
        Templates::made(workload, flows.len(), Varied::SourcePort, make)
    }

    fn made(
        workload: &Workload,
        count: usize,
        varied: Varied,
        make: impl Fn(usize, u16) -> Result<Template, LabError>,
    ) -> Result<Templates, LabError> {
        let least = if workload.family == Family::Inet { LEAST4 } else { LEAST6 };
        let mut notes = Vec::new();
        let mut size = |flow: usize| {
            let wanted = match workload.frame {
                FrameSize::Fixed(bytes) => bytes,
                FrameSize::Imix => IMIX[flow % IMIX.len()],
            };
            let len = wanted.saturating_sub(FCS).max(least);
            if len > wanted - FCS && notes.is_empty() {
                notes.push(format!(
                    "frames of {wanted} bytes are raised to {}, the least that holds IPv6 and UDP",
                    len + FCS
                ));
            }
            len
        };
        let (mut frames, mut lens) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for flow in 0..count {
            let len = size(flow);
            frames.push(make(flow, len)?);
            lens.push(len);
        }
        let turns = (workload.flows / (count as u32).max(1)).max(1);
        let sent = turns * count as u32;
        if sent != workload.flows {
            notes.push(format!("{sent} flows are sent: {count} templates, {turns} of each"));
        }
        Ok(Templates { frames, lens, notes, turns, varied })
    }

    /// The template of a flow of any turn.
    pub fn frame(&self, flow: usize) -> Template {
        let (place, turn) = (flow % self.frames.len(), flow / self.frames.len());
        let mut template = self.frames[place];
        self.turn(&mut template.0, turn as u32);
        template
    }

    /// A flow's frame, payload and all.
    pub fn whole(&self, flow: usize) -> Vec<u8> {
        let mut frame = self.frame(flow).0.to_vec();
        frame.resize(usize::from(self.len(flow)), 0);
        frame
    }

    pub fn len(&self, flow: usize) -> u16 {
        self.lens[flow % self.lens.len()]
    }

    pub fn flows(&self) -> usize {
        self.frames.len() * self.turns as usize
    }

    /// Makes of a template's bytes those of another turn.
    #[inline]
    pub fn turn(&self, bytes: &mut [u8], turn: u32) {
        if turn > 0 {
            self.vary(bytes, turn);
        }
    }

    #[inline(never)]
    fn vary(&self, bytes: &mut [u8], turn: u32) {
        let v4 = bytes[ETHERNET] >> 4 == 4;
        let (source, ports, udp) = if v4 { (26, 34, 40) } else { (34, 54, 60) };
        match self.varied {
            Varied::Source => {
                let was = word(bytes, source).to_be_bytes();
                let is = (word(bytes, source).wrapping_add(turn * self.frames.len() as u32)).to_be_bytes();
                bytes[source..source + 4].copy_from_slice(&is);
                for half in [0, 2] {
                    let (was, is) = ([was[half], was[half + 1]], [is[half], is[half + 1]]);
                    replaced(bytes, udp, was, is);
                    if v4 {
                        replaced(bytes, 24, was, is);
                    }
                }
            }
            Varied::SourcePort => {
                let was = [bytes[ports], bytes[ports + 1]];
                let is = u16::from_be_bytes(was).wrapping_add(turn as u16).to_be_bytes();
                bytes[ports..ports + 2].copy_from_slice(&is);
                replaced(bytes, udp, was, is);
            }
        }
        // zero would say that there is none (RFC 768)
        if bytes[udp..udp + 2] == [0, 0] {
            bytes[udp..udp + 2].fill(0xff);
        }
    }

    /// The flow a packet (from its IP header) belongs to.
    pub fn flow_of(&self, packet: &[u8]) -> Option<usize> {
        let flow = match self.varied {
            Varied::Source => by_source(packet)?,
            Varied::SourcePort => {
                let v4 = packet.first()? >> 4 == 4;
                let (number, ports) = if v4 { (4, 20) } else { (2, 40) };
                let half = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
                let place = usize::from(half(number)?);
                let first = &self.frames.get(place)?.0[ETHERNET..];
                let turn = half(ports)?.wrapping_sub(u16::from_be_bytes([first[ports], first[ports + 1]]));
                usize::from(turn) * self.frames.len() + place
            }
        };
        (flow < self.flows()).then_some(flow)
    }

    /// Bytes in memory of a frame, on average.
    pub fn mean_len(&self) -> f64 {
        self.lens.iter().map(|&l| f64::from(l)).sum::<f64>() / self.lens.len().max(1) as f64
    }

    /// Order of templates: a turn through all of them, decided by the seed.
    pub fn order(&self, seed: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.frames.len()).collect();
        Random::new(seed).shuffle(&mut order);
        order
    }
}

fn by_source(packet: &[u8]) -> Option<usize> {
    let flow = match packet.first()? >> 4 {
        4 => {
            let source = u32::from_be_bytes(packet.get(12..16)?.try_into().ok()?);
            source.checked_sub(u32::from(FIRST_V4))?
        }
        _ => {
            let source = u128::from_be_bytes(packet.get(8..24)?.try_into().ok()?);
            u32::try_from(source.checked_sub(u128::from(FIRST_V6))?).ok()?
        }
    };
    Some(flow as usize)
}

/// Sources: one a flow from these on.
pub const FIRST_V4: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);
pub const FIRST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x80, 0, 0, 0, 0, 0, 1);

fn template(
    (source, destination): (IpAddr, IpAddr),
    (source_port, destination_port): (u16, u16),
    len: u16,
) -> Result<Template, LabError> {
    let headers = if destination.is_ipv4() { 14 + 20 + 8 } else { 14 + 40 + 8 };
    let payload = vec![0; usize::from(len).saturating_sub(headers)];
    let frame = Frame::ip(source, destination)
        .ok_or_else(|| LabError::new("memory: source and destination of two families".into()))?
        .macs(IN_MAC, GENERATOR_MAC)
        .udp(source_port, destination_port, &payload);
    let mut bytes = [0; TEMPLATE];
    let take = frame.len().min(TEMPLATE);
    bytes[..take].copy_from_slice(&frame[..take]);
    Ok(Template(bytes))
}

/// Writes a template's number where no turn changes it: IPv4's identification, IPv6's flow label.
fn number_of(bytes: &mut [u8; TEMPLATE], number: u16) {
    let at = ETHERNET + if bytes[ETHERNET] >> 4 == 4 { 4 } else { 2 };
    let was = [bytes[at], bytes[at + 1]];
    bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
    if bytes[ETHERNET] >> 4 == 4 {
        replaced(bytes, 24, was, number.to_be_bytes());
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The checksum at `at` after a pair of bytes it covers changed (RFC 1624, equation 3).
#[inline]
fn replaced(bytes: &mut [u8], at: usize, was: [u8; 2], is: [u8; 2]) {
    let [check, was, is] = [[bytes[at], bytes[at + 1]], was, is].map(|b| u32::from(u16::from_be_bytes(b)));
    let sum = (!check & 0xffff) + (!was & 0xffff) + is;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    bytes[at..at + 2].copy_from_slice(&(!sum as u16).to_be_bytes());
}

#[cfg(test)]
mod tests;
