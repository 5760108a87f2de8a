//! The inbound SAs, by SPI and destination (RFC 4301 4.1: unicast, two of the three).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::sa::Sa;
use super::spd::SpdId;
use crate::packet::DeviceId;

/// Where a packet that came by an SA goes on.
#[derive(Clone, Debug)]
pub struct Inbound {
    pub sa: Arc<Sa>,
    /// The virtual device it arrives on: its tunnel's, or its SPD's.
    pub device: DeviceId,
    /// Policy mode: the SPD that must have a PROTECT rule for it with this SA.
    pub spd: Option<SpdId>,
}

/// Every inbound SA of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Sad {
    entries: HashMap<(u32, IpAddr), Inbound>,
}

impl Sad {
    pub fn new(entries: impl IntoIterator<Item = Inbound>) -> Sad {
        let key = |i: &Inbound| (i.sa.params.spi, i.sa.params.destination);
        Sad { entries: entries.into_iter().map(|i| (key(&i), i)).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn find(&self, spi: u32, destination: IpAddr) -> Option<&Inbound> {
        self.entries.get(&(spi, destination))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Inbound> {
        self.entries.values()
    }
}
