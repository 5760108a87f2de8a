//! Frames before they are frames: one template a flow, headers in 64 bytes, and how long each is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::wire::build::Frame;

use super::tables::IN_MAC;
use crate::model::{Family, FrameSize, LabError, Workload};
use crate::stats::random::Random;
use crate::workload::FCS;

/// One cache line: Ethernet, IPv6 and UDP headers take 62.
pub const TEMPLATE: usize = 64;
/// 7 × 64, 4 × 570, 1 × 1518.
const IMIX: [u16; 12] = [64, 570, 64, 64, 570, 64, 1518, 64, 570, 64, 64, 570];
/// Least frames in memory: headers, and Ethernet's 60.
const LEAST4: u16 = 60;
const LEAST6: u16 = 62;
pub const GENERATOR_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// A template, alone in its cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Template(pub [u8; TEMPLATE]);

/// One a flow.
pub struct Templates {
    pub frames: Vec<Template>,
    /// Bytes in memory of each frame.
    pub lens: Vec<u16>,
    pub notes: Vec<String>,
}

impl Templates {
    pub fn build(workload: &Workload, destinations: &[IpAddr]) -> Result<Templates, LabError> {
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
        let mut frames = Vec::with_capacity(destinations.len());
        let mut lens = Vec::with_capacity(destinations.len());
        for (flow, &destination) in destinations.iter().enumerate() {
            let len = size(flow);
            frames.push(template(flow as u32, destination, len)?);
            lens.push(len);
        }
        Ok(Templates { frames, lens, notes })
    }

    /// Bytes in memory of a frame, on average.
    pub fn mean_len(&self) -> f64 {
        self.lens.iter().map(|&l| f64::from(l)).sum::<f64>() / self.lens.len().max(1) as f64
    }

    /// Order of flows: a turn through all of them, decided by the seed.
    pub fn order(&self, seed: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.frames.len()).collect();
        Random::new(seed).shuffle(&mut order);
        order
    }
}

/// The flow a packet (from its IP header) belongs to, by its source address.
pub fn flow_of(packet: &[u8]) -> Option<usize> {
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
const FIRST_V4: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);
const FIRST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x80, 0, 0, 0, 0, 0, 1);

fn template(flow: u32, destination: IpAddr, len: u16) -> Result<Template, LabError> {
    let source: IpAddr = match destination {
        IpAddr::V4(_) => Ipv4Addr::from(u32::from(FIRST_V4) + flow).into(),
        IpAddr::V6(_) => Ipv6Addr::from(u128::from(FIRST_V6) + u128::from(flow)).into(),
    };
    let headers = if destination.is_ipv4() { 14 + 20 + 8 } else { 14 + 40 + 8 };
    let payload = vec![0; usize::from(len).saturating_sub(headers)];
    let frame = Frame::ip(source, destination)
        .ok_or_else(|| LabError("memory: source and destination of two families".into()))?
        .macs(IN_MAC, GENERATOR_MAC)
        .udp(1024 + (flow % 60_000) as u16, 4789, &payload);
    let mut bytes = [0; TEMPLATE];
    let take = frame.len().min(TEMPLATE);
    bytes[..take].copy_from_slice(&frame[..take]);
    Ok(Template(bytes))
}
