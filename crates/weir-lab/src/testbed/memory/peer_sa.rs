//! The far end of a worker's SA: seals what comes in, opens what went out, and knows what must be inside.
//!
//! ```text
//! | Ethernet 14 | IPv4 20 or IPv6 40 | SPI 4 | sequence 4 | IV | inner packet, padding, 2 | ICV |
//! ```
//!
//! It builds and reads ESP by itself, with a cipher other than the measured one where there is another, so
//! that a fast path that is wrong cannot look good. Promises: the sequence numbers of a peer_sa are fresh; a
//! packet that is not what went in is an error that says how. Refuses: outer packets with options.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use weir_core::ipsec::{Cipher, Job};
use weir_core::packet::{Frame, HEADROOM};

use super::devices::Memory;
use super::ipsec::SaPlan;
use super::tables::IN_MAC;
use super::traffic::{GENERATOR_MAC, TEMPLATE, Templates};
use crate::workload::Link;
use crate::workload::esp::{Encapsulation, HEADER, next_header};
use crate::workload::sa::Sealed;

const ETHERNET: usize = 14;
const ESP: u8 = Sealed::PROTOCOL;

pub struct PeerSa {
    plan: SaPlan,
    cipher: Arc<dyn Cipher>,
    templates: Arc<Templates>,
    /// Templates in the order sent, and whose turn it is.
    order: Vec<usize>,
    at: usize,
    turn: usize,
    /// Sequence number of the last packet sealed.
    sequence: u64,
    encapsulation: Encapsulation,
}

impl PeerSa {
    pub fn new(plan: SaPlan, cipher: Arc<dyn Cipher>, templates: Arc<Templates>, seed: u64) -> PeerSa {
        let link = Link { source: GENERATOR_MAC, destination: IN_MAC };
        let encapsulation = Encapsulation::new(&plan, link);
        let order = templates.order(seed);
        PeerSa { plan, cipher, templates, order, at: 0, turn: 0, sequence: 0, encapsulation }
    }

    /// Makes sealed frames of the next flows in these buffers.
    pub fn seal(&mut self, buffers: Vec<Memory>, frames: &mut Vec<Frame<Memory>>) {
        for mut buffer in buffers {
            let flow = self.turn * self.order.len() + self.order[self.at];
            self.at += 1;
            if self.at == self.order.len() {
                (self.at, self.turn) = (0, (self.turn + 1) % self.templates.turns as usize);
            }
            let len = self.write(flow, &mut buffer);
            frames.push(Frame::new(buffer, HEADROOM, len, weir_core::packet::DeviceId(0)));
        }
        let start = self.encapsulation.esp_at();
        let from = self.sequence + 1 - frames.len() as u64;
        let mut jobs: Vec<Job<'_>> = frames
            .iter_mut()
            .zip(from..)
            .map(|(frame, sequence)| Job {
                packet: &mut frame.data_mut()[start..],
                sequence,
                authentic: false,
            })
            .collect();
        self.cipher.seal(&mut jobs);
    }

    /// Headers, plain payload and trailer; returns the frame's length.
    fn write(&mut self, flow: usize, buffer: &mut [u8]) -> usize {
        self.sequence += 1;
        let inner = usize::from(self.templates.len(flow)) - ETHERNET;
        let template = self.templates.frame(flow);
        self.encapsulation.write(self.sequence, inner, &mut buffer[HEADROOM..], |plain| {
            let template = &template.0[ETHERNET..];
            let (headers, payload) = plain.split_at_mut(template.len().min(inner));
            headers.copy_from_slice(&template[..headers.len()]);
            payload.fill(0);
        })
    }

    /// Opens a sealed frame and holds it against what went in.
    pub fn open(&self, frame: &mut [u8]) -> Result<(), Wrong> {
        let start = self.esp_at(frame)?;
        let esp = &mut frame[start..];
        let word = |at: usize| esp.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        let (spi, low) = word(0).zip(word(4)).ok_or(Wrong::CutShort)?;
        if spi != self.plan.spi {
            return Err(Wrong::Spi { got: spi, expected: self.plan.spi });
        }
        // no run lasts for 2³² packets
        let mut jobs = [Job { packet: esp, sequence: u64::from(low), authentic: false }];
        self.cipher.open(&mut jobs);
        if !jobs[0].authentic {
            return Err(Wrong::NotAuthentic(low));
        }
        let (from, to) = (HEADER + self.plan.suite.iv_len(), esp.len() - self.plan.suite.icv_len());
        let plain = esp.get(from..to).ok_or(Wrong::CutShort)?;
        let [rest @ .., padding, next] = plain else { return Err(Wrong::NoTrailer) };
        let inner = rest.len().checked_sub(usize::from(*padding)).ok_or(Wrong::PaddingBeyondPacket)?;
        let (inner, pad) = rest.split_at(inner);
        if pad.iter().zip(1u8..).any(|(&got, expected)| got != expected) {
            return Err(Wrong::Padding(pad.to_vec()));
        }
        if inner.first().map(|b| next_header(b >> 4)) != Some(*next) {
            return Err(Wrong::NextHeader(*next));
        }
        known(&self.templates, inner)
    }

    /// Where ESP begins, the outer header being the SA's.
    fn esp_at(&self, frame: &[u8]) -> Result<usize, Wrong> {
        let head = frame.get(..self.encapsulation.esp_at()).ok_or(Wrong::CutShort)?;
        let v4 = self.plan.source.is_ipv4();
        let (protocol, addresses) = if v4 { (head[23], &head[26..34]) } else { (head[20], &head[22..54]) };
        if protocol != ESP {
            return Err(Wrong::Protocol(protocol));
        }
        let mut expected = octets(self.plan.source);
        expected.extend(octets(self.plan.destination));
        if addresses != expected {
            return Err(Wrong::OuterAddresses);
        }
        if v4 && !weir_core::wire::checksum::is_valid(&head[ETHERNET..]) {
            return Err(Wrong::OuterChecksum);
        }
        let said = match v4 {
            true => usize::from(u16::from_be_bytes([head[16], head[17]])),
            false => usize::from(u16::from_be_bytes([head[18], head[19]])) + 40,
        };
        match said + ETHERNET == frame.len() {
            true => Ok(self.encapsulation.esp_at()),
            false => Err(Wrong::OuterLength { said, has: frame.len() - ETHERNET }),
        }
    }

    pub fn sealed_by(&self) -> String {
        self.cipher.backend()
    }
}

/// What is wrong with a delivered packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    CutShort,
    Spi {
        got: u32,
        expected: u32,
    },
    /// The packet with this sequence number is not authentic.
    NotAuthentic(u32),
    NoTrailer,
    PaddingBeyondPacket,
    Padding(Vec<u8>),
    NextHeader(u8),
    Protocol(u8),
    OuterAddresses,
    OuterChecksum,
    OuterLength {
        said: usize,
        has: usize,
    },
    NoFlow,
    Length {
        flow: usize,
        got: usize,
        expected: usize,
    },
    Header {
        flow: usize,
        at: usize,
        got: u8,
        expected: u8,
    },
    Payload {
        flow: usize,
        at: usize,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::CutShort => f.write_str("is cut short"),
            Wrong::Spi { got, expected } => write!(f, "has SPI {got:#x}, expected {expected:#x}"),
            Wrong::NotAuthentic(number) => write!(f, "number {number} is not authentic"),
            Wrong::NoTrailer => f.write_str("has no trailer"),
            Wrong::PaddingBeyondPacket => f.write_str("has more padding than bytes"),
            Wrong::Padding(pad) => write!(f, "has the padding {pad:?}, expected 1, 2, 3 … (RFC 4303 2.4)"),
            Wrong::NextHeader(next) => write!(f, "says next header {next} of what it holds"),
            Wrong::Protocol(protocol) => write!(f, "has protocol {protocol} inside IP, expected ESP's 50"),
            Wrong::OuterAddresses => f.write_str("has other outer addresses than its SA"),
            Wrong::OuterChecksum => f.write_str("has a wrong outer header checksum"),
            Wrong::OuterLength { said, has } => write!(f, "says {said} bytes in its outer header, has {has}"),
            Wrong::NoFlow => f.write_str("is of no flow sent"),
            Wrong::Length { flow, got, expected } => {
                write!(f, "of flow {flow} has {got} bytes, expected {expected}")
            }
            Wrong::Header { flow, at, got, expected } => {
                write!(f, "of flow {flow} has {got:#04x} at byte {at}, expected {expected:#04x}")
            }
            Wrong::Payload { flow, at } => write!(f, "of flow {flow} has another payload from byte {at}"),
        }
    }
}

/// Whether `packet` is one of the templates' with its payload of zeros, one hop older.
pub fn known(templates: &Templates, packet: &[u8]) -> Result<(), Wrong> {
    let flow = templates.flow_of(packet).ok_or(Wrong::NoFlow)?;
    let len = usize::from(templates.len(flow)) - ETHERNET;
    if packet.len() != len {
        return Err(Wrong::Length { flow, got: packet.len(), expected: len });
    }
    let mut headers = templates.frame(flow).0;
    let head = &mut headers[ETHERNET..];
    match head[0] >> 4 {
        4 => {
            head[8] -= 1;
            let check = u16::from_be_bytes([head[10], head[11]]);
            let check = weir_core::wire::checksum::after_ttl_decrement(check);
            head[10..12].copy_from_slice(&check.to_be_bytes());
        }
        _ => head[7] -= 1,
    }
    let headers = &headers[ETHERNET..TEMPLATE.min(ETHERNET + len)];
    let (got, payload) = packet.split_at(headers.len());
    if let Some(at) = got.iter().zip(headers).position(|(a, b)| a != b) {
        return Err(Wrong::Header { flow, at, got: got[at], expected: headers[at] });
    }
    match payload.iter().position(|&b| b != 0) {
        Some(at) => Err(Wrong::Payload { flow, at: at + headers.len() }),
        None => Ok(()),
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}
