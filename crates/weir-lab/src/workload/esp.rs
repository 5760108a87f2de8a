//! ESP around test packets, as the far end of an SA makes it (RFC 4303 2, tunnel mode).
//!
//! ```text
//! | Ethernet 14 | IPv4 20 or IPv6 40 | SPI 4 | sequence 4 | IV | inner packet, padding, 2 | ICV |
//! ```
//!
//! Promises: it is written here and not by the code that is measured. What it leaves for the cipher is the IV's and ICV's room.

use weir_core::ipsec::Suite;
use weir_core::wire::build;

use super::Link;
use super::sa::{SaPlan, Sealed};

const ETHERNET: usize = 14;
/// SPI and sequence number.
pub const HEADER: usize = 8;
/// Next headers of packets inside a tunnel.
const INNER: [(u8, u8); 2] = [(4, 4), (6, 41)];

pub struct Encapsulation {
    spi: u32,
    suite: Suite,
    /// Ethernet and outer IP header, without lengths and checksum.
    outer: Vec<u8>,
}

impl Encapsulation {
    pub fn new(plan: &SaPlan, link: Link) -> Encapsulation {
        let outer = build::Frame::ip(plan.source, plan.destination).map_or(Vec::new(), |f| {
            f.macs(link.destination, link.source).dont_fragment().raw(Sealed::PROTOCOL, &[])
        });
        Encapsulation { spi: plan.spi, suite: plan.suite, outer }
    }

    /// Where ESP begins in a frame.
    pub fn esp_at(&self) -> usize {
        self.outer.len()
    }

    /// Headers, plain payload and trailer of a packet of `inner` bytes, which `fill` writes; returns the frame's length.
    pub fn write(
        &self,
        sequence: u64,
        inner: usize,
        frame: &mut [u8],
        fill: impl FnOnce(&mut [u8]),
    ) -> usize {
        let (suite, start) = (self.suite, self.outer.len());
        let esp = inner + suite.overhead(inner);
        frame[..start].copy_from_slice(&self.outer);
        lengths(&mut frame[ETHERNET..start], esp);
        frame[start..start + 4].copy_from_slice(&self.spi.to_be_bytes());
        frame[start + 4..start + HEADER].copy_from_slice(&(sequence as u32).to_be_bytes());
        let plain = start + HEADER + suite.iv_len();
        let trailer = start + esp - suite.icv_len();
        fill(&mut frame[plain..plain + inner]);
        let padding = trailer - 2 - plain - inner;
        for (i, byte) in frame[plain + inner..trailer - 2].iter_mut().enumerate() {
            *byte = i as u8 + 1;
        }
        frame[trailer - 2] = padding as u8;
        frame[trailer - 1] = next_header(frame[plain] >> 4);
        start + esp
    }
}

/// What the trailer says of a packet of this IP version.
pub fn next_header(version: u8) -> u8 {
    INNER.iter().find(|(v, _)| *v == version).map_or(0, |(_, next)| *next)
}

/// Sets the lengths of an outer IP header that carries `payload` bytes, and IPv4's checksum.
fn lengths(header: &mut [u8], payload: usize) {
    if header[0] >> 4 == 4 {
        let total = (header.len() + payload) as u16;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[10..12].fill(0);
        let check = weir_core::wire::checksum::checksum(header);
        header[10..12].copy_from_slice(&check.to_be_bytes());
    } else {
        header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    }
}
