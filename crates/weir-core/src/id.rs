//! Identifiers: what modules call a thing by without knowing what it is. The ground floor: it imports nothing.
//!
//! A device's is [`crate::packet::DeviceId`], on the same floor; SAs, SPDs and tunnels have theirs in
//! [`crate::ipsec`].

/// A MAC address.
pub type Mac = [u8; 6];

/// A logical port, with addresses and an MTU: an index into [`crate::tables::Tables::ports`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortId(pub u16);

impl PortId {
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An index into [`crate::tables::Tables::adjacencies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AdjacencyId(pub u32);
