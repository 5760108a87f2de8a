//! The outbound SAs, by SPI and destination: whose packet an ICMP error quotes.
//!
//! Promises: those of one SPI and destination after a binary search, whatever is asked: an error, which anybody may send,
//! costs no more with many SAs than with few. Refuses nothing: an SPI is its receiver's choice, so several SAs may have
//! the same one and destination.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use super::sa::Sa;

/// Every outbound SA of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Outbound {
    /// Sorted; parallel to `sas`. 24 B each, so that the search reads no SA.
    keys: Vec<(u32, IpAddr)>,
    sas: Vec<Arc<Sa>>,
}

impl FromIterator<Arc<Sa>> for Outbound {
    fn from_iter<I: IntoIterator<Item = Arc<Sa>>>(sas: I) -> Self {
        let mut sas: Vec<Arc<Sa>> = sas.into_iter().collect();
        sas.sort_by_key(|sa| key(sa));
        Outbound { keys: sas.iter().map(|sa| key(sa)).collect(), sas }
    }
}

impl Outbound {
    /// The SAs that send with this SPI to this destination.
    pub fn find(&self, spi: u32, destination: IpAddr) -> &[Arc<Sa>] {
        let wanted = (spi, destination);
        let first = self.keys.partition_point(|key| *key < wanted);
        let same = self.keys[first..].iter().take_while(|key| **key == wanted).count();
        &self.sas[first..first + same]
    }
}

impl Deref for Outbound {
    type Target = [Arc<Sa>];

    fn deref(&self) -> &[Arc<Sa>] {
        &self.sas
    }
}

fn key(sa: &Sa) -> (u32, IpAddr) {
    (sa.params.spi, sa.params.destination)
}
