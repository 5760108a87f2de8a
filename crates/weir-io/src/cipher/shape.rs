//! Where the parts of an ESP packet lie, and what is made of its sequence number (RFC 4303 2).
//!
//! ```text
//! | SPI 4 | sequence 4 | IV | body | ICV |
//! ```
//!
//! Promises: a packet is taken apart only when its body is a whole, positive number of alignment units.

use weir_core::ipsec::Suite;

/// SPI and sequence number.
pub const HEADER: usize = 8;

/// Lengths of one SA's packets.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub suite: Suite,
    pub esn: bool,
    iv: usize,
    icv: usize,
    alignment: usize,
}

/// An ESP packet, taken apart.
pub struct Parts<'a> {
    pub header: &'a mut [u8; HEADER],
    pub iv: &'a mut [u8],
    /// Payload, padding, pad length and next header: what is encrypted.
    pub body: &'a mut [u8],
    pub icv: &'a mut [u8],
}

impl Shape {
    pub fn new(suite: Suite, esn: bool) -> Shape {
        Shape { suite, esn, iv: suite.iv_len(), icv: suite.icv_len(), alignment: suite.alignment() }
    }

    /// Whether a packet of `len` bytes can be one of this SA.
    pub fn fits(&self, len: usize) -> bool {
        let fixed = HEADER + self.iv + self.icv;
        // Alignments are powers of two.
        len > fixed && (len - fixed) & (self.alignment - 1) == 0
    }

    pub fn parts<'a>(&self, packet: &'a mut [u8]) -> Option<Parts<'a>> {
        if !self.fits(packet.len()) {
            return None;
        }
        let (header, rest) = packet.split_first_chunk_mut::<HEADER>()?;
        let (iv, rest) = rest.split_at_mut_checked(self.iv)?;
        let (body, icv) = rest.split_at_mut_checked(rest.len() - self.icv)?;
        Some(Parts { header, iv, body, icv })
    }

    /// Everything before the ICV, and the ICV: what a separate integrity algorithm sees.
    pub fn covered<'a>(&self, packet: &'a mut [u8]) -> Option<(&'a mut [u8], &'a mut [u8])> {
        let at = if self.fits(packet.len()) { packet.len() - self.icv } else { return None };
        packet.split_at_mut_checked(at)
    }
}

/// Associated data of the AEADs: SPI and sequence number, 64 bits of it with ESN (RFC 4106 5, RFC 7634 2.1).
pub struct Associated {
    bytes: [u8; 12],
    len: usize,
}

impl Associated {
    pub fn new(header: &[u8; HEADER], sequence: u64, esn: bool) -> Associated {
        let mut bytes = [0; 12];
        let len = if esn {
            bytes[..4].copy_from_slice(&header[..4]);
            bytes[4..8].copy_from_slice(&high(sequence));
            bytes[8..].copy_from_slice(&header[4..]);
            12
        } else {
            bytes[..HEADER].copy_from_slice(header);
            HEADER
        };
        Associated { bytes, len }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The half of an extended sequence number that is authenticated and not sent.
pub fn high(sequence: u64) -> [u8; 4] {
    ((sequence >> 32) as u32).to_be_bytes()
}

/// Salt and IV (RFC 4106 4, RFC 7634 2).
pub fn nonce(salt: &[u8; 4], iv: &[u8]) -> Option<[u8; 12]> {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(salt);
    nonce[4..].copy_from_slice(iv.first_chunk::<8>()?);
    Some(nonce)
}

#[cfg(test)]
mod tests {
    use weir_core::ipsec::{Encryption, Integrity};

    use super::*;

    #[test]
    fn a_packet_is_taken_apart_only_when_whole_units_are_in_it() {
        let cbc = Suite::new(Encryption::AesCbc128, Some(Integrity::HmacSha1_96), false).expect("a suite");
        let shape = Shape::new(cbc, false);
        let fitting: Vec<usize> = (0..70).filter(|&len| shape.parts(&mut vec![0; len]).is_some()).collect();
        assert_eq!(fitting, [8 + 16 + 16 + 12, 8 + 16 + 32 + 12]);
    }

    #[test]
    fn the_high_half_stands_between_spi_and_low_half() {
        let header = [1, 2, 3, 4, 5, 6, 7, 8];
        let sequence = 0x1122_3344_0506_0708;
        assert_eq!(Associated::new(&header, sequence, false).bytes(), header);
        assert_eq!(
            Associated::new(&header, sequence, true).bytes(),
            [1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 5, 6, 7, 8]
        );
    }
}
