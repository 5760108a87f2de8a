//! ESP packets as they are on the wire (RFC 4303 2): what can be read without a key.
//!
//! ```text
//! 0     4          8
//! | SPI | sequence | IV, encrypted payload, ICV …
//! ```
//!
//! Promises: a view made by `parse` has both numbers. Refuses, as [`Reason::EspTooShort`]: less than them.

use std::fmt;

use super::get32;
use crate::verdict::Reason;

pub const HEADER_LEN: usize = 8;
/// Where ESP in UDP is sent (RFC 3948).
pub const UDP_PORT: u16 = 4500;

/// An ESP packet, IP header not included.
#[derive(Clone, Copy, Debug)]
pub struct Esp<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Esp<T> {
    #[inline]
    pub fn parse(bytes: T) -> Result<Self, Reason> {
        if bytes.as_ref().len() < HEADER_LEN { Err(Reason::EspTooShort) } else { Ok(Esp { bytes }) }
    }

    /// 1 to 255 are reserved; 0 is never sent.
    #[inline]
    pub fn spi(&self) -> u32 {
        get32(self.bytes.as_ref(), 0)
    }

    /// The lower half of it, with extended sequence numbers.
    #[inline]
    pub fn sequence(&self) -> u32 {
        get32(self.bytes.as_ref(), 4)
    }

    /// Everything behind the two numbers.
    #[inline]
    pub fn body(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]>> fmt::Display for Esp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes.as_ref().len();
        write!(f, "ESP spi 0x{:08x}, seq {}, length {length}", self.spi(), self.sequence())
    }
}

/// What a datagram from or to port 4500 carries.
#[derive(Clone, Copy, Debug)]
pub struct InUdp<'a>(pub &'a [u8]);

impl fmt::Display for InUdp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [0xff] => f.write_str("NAT keepalive"),
            [0, 0, 0, 0, ..] => f.write_str("IKE"),
            payload => match Esp::parse(payload) {
                Ok(esp) => write!(f, "{esp}"),
                Err(reason) => write!(f, "[{}]", reason.name()),
            },
        }
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_esp(data: &[u8]) {
    if let Ok(esp) = Esp::parse(data) {
        assert_eq!(esp.body().len() + HEADER_LEN, data.len());
        assert!(!esp.to_string().is_empty());
    }
    assert!(!InUdp(data).to_string().is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build::Frame;
    use crate::wire::decode::decode_packet;

    const PACKET: [u8; 12] = [0, 0, 0x10, 1, 0, 0, 0, 5, 0xaa, 0xbb, 0xcc, 0xdd];

    #[test]
    fn numbers_are_read() {
        let esp = Esp::parse(&PACKET).expect("long enough");
        assert_eq!((esp.spi(), esp.sequence(), esp.body()), (0x1001, 5, &PACKET[8..]));
        for len in 0..HEADER_LEN {
            assert_eq!(Esp::parse(&PACKET[..len]).err(), Some(Reason::EspTooShort));
        }
    }

    #[test]
    fn esp_prints_in_ip_and_in_udp() {
        let frame = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).packet();
        let text = |packet: &[u8]| decode_packet(packet).to_string();
        assert!(text(&frame.raw(50, &PACKET)).ends_with("length 32: ESP spi 0x00001001, seq 5, length 12"));
        let udp = |payload: &[u8]| text(&frame.udp(4500, 4500, payload));
        assert!(udp(&PACKET).ends_with("length 12: ESP spi 0x00001001, seq 5, length 12"));
        assert!(udp(&[0xff]).ends_with("length 1: NAT keepalive"));
        assert!(udp(&[0; 32]).ends_with("length 32: IKE"));
        assert!(udp(&[1, 2]).ends_with("length 2: [esp_too_short]"));
    }
}
