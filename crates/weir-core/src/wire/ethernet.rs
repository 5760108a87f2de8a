//! Ethernet II with at most one 802.1Q tag (IEEE 802.3, 802.1Q).
//!
//! ```text
//! 0      6      12                14      18
//! | dst  | src  | 0x8100 | pcp vid | type | payload     tagged
//! | dst  | src  | type   | payload                      untagged
//! ```
//!
//! Promises: VLAN id 0 (a priority tag) reads as untagged. Refuses: a second tag, and the 802.1ad
//! service tag (0x88a8), which exists only to stack tags. 802.3 length fields read as an EtherType below
//! 1536, which nobody serves.

use std::fmt;

use super::{DisplayMac, get_array, get16, put16};
use crate::id::Mac;
use crate::verdict::Reason;

pub const HEADER_LEN: usize = 14;
/// What a VLAN tag adds.
pub const TAG_LEN: usize = 4;
/// Largest VLAN id a port may have (4095 is reserved).
pub const MAX_VLAN: u16 = 4094;
pub const BROADCAST: Mac = [0xff; 6];
const VLAN_ID_MASK: u16 = 0x0fff;

pub const ETHERTYPE_IPV4: u16 = 0x0800;
pub const ETHERTYPE_ARP: u16 = 0x0806;
pub const ETHERTYPE_VLAN: u16 = 0x8100;
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

/// A frame's Ethernet header and what follows.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ethernet<T> {
    #[inline]
    pub fn parse(bytes: T) -> Result<Self, Reason> {
        let b = bytes.as_ref();
        if b.len() < HEADER_LEN {
            return Err(Reason::FrameTooShort);
        }
        match get16(b, 12) {
            ETHERTYPE_SERVICE_VLAN => return Err(Reason::StackedVlan),
            ETHERTYPE_VLAN if b.len() < HEADER_LEN + TAG_LEN => return Err(Reason::FrameTooShort),
            ETHERTYPE_VLAN if matches!(get16(b, 16), ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) => {
                return Err(Reason::StackedVlan);
            }
            _ => {}
        }
        Ok(Ethernet { bytes })
    }

    /// A view of bytes known to hold a whole header, tag included.
    #[inline]
    pub fn new_unchecked(bytes: T) -> Self {
        Ethernet { bytes }
    }

    #[inline]
    pub fn dst(&self) -> Mac {
        get_array(self.bytes.as_ref(), 0)
    }

    #[inline]
    pub fn src(&self) -> Mac {
        get_array(self.bytes.as_ref(), 6)
    }

    #[inline]
    pub fn is_tagged(&self) -> bool {
        get16(self.bytes.as_ref(), 12) == ETHERTYPE_VLAN
    }

    /// The VLAN id; `None` without a tag or with the priority tag's id 0.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        if !self.is_tagged() {
            return None;
        }
        Some(get16(self.bytes.as_ref(), 14) & VLAN_ID_MASK).filter(|&id| id != 0)
    }

    /// 14, or 18 with a tag.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + if self.is_tagged() { TAG_LEN } else { 0 }
    }

    /// The type of the payload, behind the tag if there is one.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        get16(self.bytes.as_ref(), self.header_len() - 2)
    }

    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[self.header_len()..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ethernet<T> {
    #[inline]
    pub fn set_dst(&mut self, mac: Mac) {
        self.bytes.as_mut()[..6].copy_from_slice(&mac);
    }

    #[inline]
    pub fn set_src(&mut self, mac: Mac) {
        self.bytes.as_mut()[6..12].copy_from_slice(&mac);
    }

    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let at = self.header_len();
        &mut self.bytes.as_mut()[at..]
    }
}

/// Writes a header at the front of `out`; returns its length, or `None` when `out` is shorter.
#[inline]
pub fn write(out: &mut [u8], dst: Mac, src: Mac, vlan: Option<u16>, ethertype: u16) -> Option<usize> {
    let len = HEADER_LEN + if vlan.is_some() { TAG_LEN } else { 0 };
    let out = out.get_mut(..len)?;
    out[..6].copy_from_slice(&dst);
    out[6..12].copy_from_slice(&src);
    if let Some(id) = vlan {
        put16(out, 12, ETHERTYPE_VLAN);
        put16(out, 14, id & VLAN_ID_MASK);
    }
    put16(out, len - 2, ethertype);
    Some(len)
}

#[inline]
pub fn is_broadcast(mac: &Mac) -> bool {
    *mac == BROADCAST
}

/// Broadcast included: the group bit is set.
#[inline]
pub fn is_multicast(mac: &Mac) -> bool {
    mac[0] & 1 != 0
}

/// RFC 1112 6.4: the frame address of an IPv4 group.
pub fn multicast_mac4(group: std::net::Ipv4Addr) -> Mac {
    let [_, b, c, d] = group.octets();
    [0x01, 0x00, 0x5e, b & 0x7f, c, d]
}

/// RFC 2464 7: the frame address of an IPv6 group.
pub fn multicast_mac6(group: std::net::Ipv6Addr) -> Mac {
    let o = group.octets();
    [0x33, 0x33, o[12], o[13], o[14], o[15]]
}

impl<T: AsRef<[u8]>> fmt::Display for Ethernet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", DisplayMac(self.src()), DisplayMac(self.dst()))?;
        if let Some(id) = self.vlan() {
            write!(f, ", vlan {id}")?;
        }
        match self.ethertype() {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 | ETHERTYPE_ARP => Ok(()),
            other => write!(f, ", ethertype 0x{other:04x}, length {}", self.payload().len()),
        }
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_ethernet(data: &[u8]) {
    if let Ok(frame) = Ethernet::parse(data) {
        assert!(frame.vlan().is_none_or(|id| id != 0 && id <= VLAN_ID_MASK));
        assert_eq!(frame.header_len() + frame.payload().len(), data.len());
        let _ = frame.to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNTAGGED: [u8; 16] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, 0x45, 0x00];
    const TAGGED: [u8; 20] =
        [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0x00, 0x60, 0x05, 0x86, 0xdd, 0x60, 0x00];

    #[test]
    fn untagged_frame_is_read() {
        let frame = Ethernet::parse(&UNTAGGED).expect("valid");
        assert_eq!(frame.dst(), [2, 0, 0, 0, 0, 1]);
        assert_eq!(frame.src(), [2, 0, 0, 0, 0, 2]);
        assert_eq!((frame.vlan(), frame.ethertype(), frame.header_len()), (None, ETHERTYPE_IPV4, 14));
        assert_eq!(frame.payload(), [0x45, 0]);
    }

    #[test]
    fn tag_is_read_without_its_priority() {
        let frame = Ethernet::parse(&TAGGED).expect("valid");
        assert_eq!((frame.vlan(), frame.ethertype(), frame.header_len()), (Some(5), ETHERTYPE_IPV6, 18));
    }

    #[test]
    fn priority_tag_reads_as_untagged_but_takes_its_room() {
        let mut bytes = TAGGED;
        bytes[15] = 0;
        let frame = Ethernet::parse(&bytes).expect("valid");
        assert_eq!((frame.vlan(), frame.header_len()), (None, 18));
    }

    #[test]
    fn second_tag_is_refused() {
        for inner in [ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN] {
            let mut bytes = TAGGED;
            put16(&mut bytes, 16, inner);
            assert_eq!(Ethernet::parse(&bytes).err(), Some(Reason::StackedVlan));
        }
        let mut bytes = TAGGED;
        put16(&mut bytes, 12, ETHERTYPE_SERVICE_VLAN);
        assert_eq!(Ethernet::parse(&bytes).err(), Some(Reason::StackedVlan));
    }

    #[test]
    fn every_truncation_is_refused() {
        for len in 0..HEADER_LEN {
            assert_eq!(Ethernet::parse(&UNTAGGED[..len]).err(), Some(Reason::FrameTooShort));
        }
        for len in 0..HEADER_LEN + TAG_LEN {
            assert_eq!(Ethernet::parse(&TAGGED[..len]).err(), Some(Reason::FrameTooShort));
        }
    }

    #[test]
    fn written_header_reads_back() {
        let mut out = [0; 20];
        assert_eq!(write(&mut out, [2; 6], [4; 6], Some(7), ETHERTYPE_ARP), Some(18));
        let frame = Ethernet::parse(&out).expect("valid");
        assert_eq!((frame.vlan(), frame.ethertype()), (Some(7), ETHERTYPE_ARP));
        assert_eq!(write(&mut out[..13], [2; 6], [4; 6], None, ETHERTYPE_ARP), None);
    }

    #[test]
    fn groups_map_to_their_frame_addresses() {
        assert_eq!(multicast_mac4([224, 128, 0, 9].into()), [1, 0, 0x5e, 0, 0, 9]);
        let group = "ff02::1:ff00:1234".parse().expect("address");
        assert_eq!(multicast_mac6(group), [0x33, 0x33, 0xff, 0, 0x12, 0x34]);
    }
}
