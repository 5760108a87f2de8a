//! The SAs of a workload: their ends, SPIs and keys, the same in every run, and how what they sealed is told on the wire.
//!
//! ```text
//! | Ethernet 14 | IPv4 20 or IPv6 40 | SPI 4 | sequence 4 | …
//! ```
//!
//! Keys of the lab are no secret: every SA has keys of its own, derived from its SPI (RFC 4106 3.1). Refuses: outer packets with
//! options or extension headers, which no SA of the lab has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use weir_core::ipsec::{Cipher, Ciphers, Keys, Secret, Suite};
use weir_io::cipher::{self, rate};

use super::{address, frame};
use crate::model::ipsec::Direction;
use crate::model::{Family, LabError, Protection};

/// The peer's gateway, out of reach of every drawn route by being longer than all.
const PEER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, 1);
/// SPI of the first worker; 0 to 255 are reserved (RFC 4303 2.1).
pub const FIRST_SPI: u32 = 0x1000;
/// Distance from an SA's SPI to that of the other way.
const BACK: u32 = 0x1000;

/// SAs of one direction, at most: more workers share them.
pub const SAS_MAX: u32 = 256;
const ESP: u8 = 50;

/// What the far end of an SA knows of it.
#[derive(Clone, Debug)]
pub struct SaPlan {
    pub spi: u32,
    pub suite: Suite,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub esn: bool,
    pub keys: Keys,
}

impl SaPlan {
    /// Plans the SA of the `worker`th worker.
    pub fn new(p: &Protection, worker: usize) -> SaPlan {
        let (ours, peer) = (ours(p), peer(p.outer));
        let (source, destination) = if p.direction == Direction::In { (peer, ours) } else { (ours, peer) };
        let suite = p.cipher.0;
        let spi = FIRST_SPI + if p.shared_sa { 0 } else { worker as u32 };
        // no two SAs may have one key (RFC 4106 3.1)
        let keys =
            changed(&rate::keys(suite), |at, byte| if at < 2 { spi.to_be_bytes()[2 + at] } else { byte });
        SaPlan { spi, suite, source, destination, esn: p.esn, keys }
    }

    /// The other of the pair, which a gateway has too: a tunnel without an outbound SA is down.
    pub fn back(&self) -> SaPlan {
        let keys = changed(&self.keys, |_, byte| !byte);
        let (source, destination) = (self.destination, self.source);
        SaPlan { spi: self.spi + BACK, source, destination, keys, ..self.clone() }
    }

    /// Its cipher of another implementation than `measured`, or a second one of the same; which, is in
    /// [`Cipher::backend`].
    pub fn other_cipher(&self, measured: &dyn Cipher) -> Result<Arc<dyn Cipher>, LabError> {
        let others = ["aws-lc", "vaes"].into_iter().filter_map(cipher::by_name);
        let made = others.filter_map(|ciphers| self.cipher(ciphers.as_ref()).ok());
        let all: Vec<Arc<dyn Cipher>> = made.collect();
        let other = all.iter().find(|c| c.backend() != measured.backend()).or(all.first());
        other.cloned().ok_or_else(|| LabError::new(format!("ipsec: no cipher for {}", self.suite)))
    }

    pub fn cipher(&self, ciphers: &dyn Ciphers) -> Result<Arc<dyn Cipher>, LabError> {
        ciphers.cipher(self.suite, self.esn, &self.keys).map_err(|e| {
            LabError::new(format!("ipsec: no cipher for {}: {e:?}; name another backend", self.suite))
        })
    }
}

/// Keys of the same lengths, byte by byte.
fn changed(keys: &Keys, change: impl Fn(usize, u8) -> u8) -> Keys {
    let each = |secret: &Secret| {
        Secret::new(secret.bytes().iter().enumerate().map(|(at, &byte)| change(at, byte)).collect())
    };
    Keys { encryption: each(&keys.encryption), integrity: each(&keys.integrity) }
}

/// Our end of a tunnel.
pub fn ours(p: &Protection) -> IpAddr {
    match (p.outer, p.direction) {
        (Family::Inet, Direction::In) => address::IN_V4.0.into(),
        (Family::Inet, _) => address::OUT_V4.0.into(),
        (Family::Inet6, Direction::In) => address::IN_V6.0.into(),
        (Family::Inet6, _) => address::OUT_V6.0.into(),
    }
}

/// The far end of a tunnel.
pub fn peer(family: Family) -> IpAddr {
    match family {
        Family::Inet => PEER_V4.into(),
        Family::Inet6 => PEER_V6.into(),
    }
}

/// How packets that the SAs of a workload sealed are told from others where they arrive, and numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub outer: Family,
    /// The end of the outer destination, which stands in front of the SPI.
    pub destination: [u8; 2],
}

impl Sealed {
    pub const PROTOCOL: u8 = ESP;

    pub fn of(p: &Protection) -> Sealed {
        let destination = match peer(p.outer) {
            IpAddr::V4(a) => [a.octets()[2], a.octets()[3]],
            IpAddr::V6(a) => [a.octets()[14], a.octets()[15]],
        };
        Sealed { outer: p.outer, destination }
    }

    /// EtherType, where the byte of the protocol is, and where the SPI is.
    pub fn layout(self) -> (u16, usize, usize) {
        frame::ip_layout(self.outer)
    }

    /// The number of the SA that sealed a frame, and its sequence number; `None` for what no SA of the lab sealed.
    #[inline]
    pub fn read(self, frame: &[u8]) -> Option<(u32, u32)> {
        let (ethertype, protocol_at, spi_at) = self.layout();
        let word = |at: usize| Some(u32::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let ours = *frame.get(protocol_at)? == ESP
            && frame.get(12..14)? == ethertype.to_be_bytes()
            && frame.get(spi_at - 2..spi_at)? == self.destination;
        let sa = word(spi_at)?.checked_sub(FIRST_SPI).filter(|sa| ours && *sa < SAS_MAX)?;
        Some((sa, word(spi_at + 4)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ipsec::{CipherName, Mode};
    use crate::workload::Link;
    use crate::workload::esp::Encapsulation;

    fn protection(outer: Family) -> Protection {
        let cipher = CipherName::named("aes-gcm-128").expect("there");
        Protection { outer, ..Protection::new(Mode::Route, Direction::Out, cipher) }
    }

    #[test]
    fn a_sealed_frame_tells_its_sa_and_number_and_others_tell_nothing() {
        for outer in [Family::Inet, Family::Inet6] {
            let p = protection(outer);
            let (sealed, mut frame) = (Sealed::of(&p), vec![0; 200]);
            let encapsulation =
                Encapsulation::new(&SaPlan::new(&p, 3), Link { source: [1; 6], destination: [2; 6] });
            let len = encapsulation.write(0x1_0000_0007, 60, &mut frame, |inner| inner[0] = 0x45);
            assert_eq!(sealed.read(&frame[..len]), Some((3, 7)));
            let (_, protocol_at, spi_at) = sealed.layout();
            for at in [12, 13, protocol_at, spi_at - 1, spi_at, spi_at + 2] {
                let mut other = frame.clone();
                other[at] ^= 0x40;
                assert_eq!(sealed.read(&other), None, "{outer:?}: byte {at}");
            }
            for short in [0, 13, spi_at, spi_at + 7] {
                assert_eq!(sealed.read(&frame[..short]), None, "{outer:?}: {short} bytes");
            }
        }
    }
}
