//! ARP for IPv4 over Ethernet (RFC 826, RFC 5227 for probes and announcements).
//!
//! ```text
//! 0     2      4    5    6    8          14         18         24         28
//! | hw=1| 0800 | 6  | 4  | op | sender MAC | sender IP | target MAC | target IP |
//! ```
//!
//! Refuses, as [`Reason::BadArp`]: other hardware, other protocols, other operations than request and
//! reply. Trailing bytes (Ethernet padding) are ignored.

use std::fmt;
use std::net::Ipv4Addr;

use super::{DisplayMac, get_array, get16, put16};
use crate::id::Mac;
use crate::verdict::Reason;

pub const LEN: usize = 28;
const FIXED: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Request,
    Reply,
}

/// An ARP packet, Ethernet header not included.
#[derive(Clone, Copy, Debug)]
pub struct Arp<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Arp<T> {
    pub fn parse(bytes: T) -> Result<Self, Reason> {
        let b = bytes.as_ref();
        if b.len() < LEN || b[..6] != FIXED || !matches!(get16(b, 6), 1 | 2) {
            return Err(Reason::BadArp);
        }
        Ok(Arp { bytes })
    }

    pub fn operation(&self) -> Operation {
        if get16(self.bytes.as_ref(), 6) == 1 { Operation::Request } else { Operation::Reply }
    }

    pub fn sender_mac(&self) -> Mac {
        get_array(self.bytes.as_ref(), 8)
    }

    pub fn sender_ip(&self) -> Ipv4Addr {
        get_array::<4>(self.bytes.as_ref(), 14).into()
    }

    pub fn target_mac(&self) -> Mac {
        get_array(self.bytes.as_ref(), 18)
    }

    pub fn target_ip(&self) -> Ipv4Addr {
        get_array::<4>(self.bytes.as_ref(), 24).into()
    }

    /// RFC 5227 1.1: asks whether an address is taken, and must teach nobody its sender.
    pub fn is_probe(&self) -> bool {
        self.operation() == Operation::Request && self.sender_ip().is_unspecified()
    }

    /// Gratuitous: the sender speaks of its own address.
    pub fn is_announcement(&self) -> bool {
        self.sender_ip() == self.target_ip()
    }
}

/// Writes a packet at the front of `out`; returns [`LEN`], or `None` when `out` is shorter. A request's
/// `target` MAC is zero.
pub fn write(
    out: &mut [u8],
    operation: Operation,
    sender: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
) -> Option<usize> {
    let out = out.get_mut(..LEN)?;
    out[..6].copy_from_slice(&FIXED);
    put16(out, 6, if operation == Operation::Request { 1 } else { 2 });
    out[8..14].copy_from_slice(&sender.0);
    out[14..18].copy_from_slice(&sender.1.octets());
    out[18..24].copy_from_slice(&target.0);
    out[24..28].copy_from_slice(&target.1.octets());
    Some(LEN)
}

impl<T: AsRef<[u8]>> fmt::Display for Arp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation() {
            Operation::Request if self.is_probe() => write!(f, "ARP probe for {}", self.target_ip()),
            Operation::Request => {
                write!(f, "ARP who has {}? tell {}", self.target_ip(), self.sender_ip())
            }
            Operation::Reply => {
                write!(f, "ARP {} is at {}", self.sender_ip(), DisplayMac(self.sender_mac()))
            }
        }
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_arp(data: &[u8]) {
    if let Ok(arp) = Arp::parse(data) {
        let mut again = [0; LEN];
        let sender = (arp.sender_mac(), arp.sender_ip());
        let target = (arp.target_mac(), arp.target_ip());
        assert_eq!(write(&mut again, arp.operation(), sender, target), Some(LEN));
        assert_eq!(again, data[..LEN]);
        let _ = arp.to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: [u8; LEN] =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];

    #[test]
    fn request_is_read() {
        let arp = Arp::parse(&REQUEST).expect("valid");
        assert_eq!(arp.operation(), Operation::Request);
        assert_eq!(arp.sender_mac(), [2, 0, 0, 0, 0, 1]);
        assert_eq!((arp.sender_ip(), arp.target_ip()), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        assert_eq!(arp.to_string(), "ARP who has 10.0.0.2? tell 10.0.0.1");
        assert!(!arp.is_probe() && !arp.is_announcement());
    }

    #[test]
    fn padding_behind_the_packet_is_ignored() {
        let mut padded = REQUEST.to_vec();
        padded.resize(46, 0xaa);
        assert!(Arp::parse(&padded).is_ok());
    }

    #[test]
    fn truncated_or_foreign_packets_are_refused() {
        for len in 0..LEN {
            assert_eq!(Arp::parse(&REQUEST[..len]).err(), Some(Reason::BadArp));
        }
        for (at, value) in [(1, 6), (2, 0x86), (4, 8), (5, 16), (7, 3), (6, 1)] {
            let mut bytes = REQUEST;
            bytes[at] = value;
            assert_eq!(Arp::parse(&bytes).err(), Some(Reason::BadArp), "byte {at}");
        }
    }

    #[test]
    fn probe_and_announcement_are_told_apart() {
        let mut probe = REQUEST;
        probe[14..18].fill(0);
        assert!(Arp::parse(&probe).expect("valid").is_probe());
        let mut gratuitous = REQUEST;
        gratuitous[24..28].copy_from_slice(&[10, 0, 0, 1]);
        assert!(Arp::parse(&gratuitous).expect("valid").is_announcement());
    }
}
