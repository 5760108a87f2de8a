//! Whether wished-for SAs, tunnels and SPDs can be built.

use super::super::{IpsecPlace, Place, PortProblem};
use super::Check;

impl Check<'_> {
    pub(super) fn ipsec(&mut self) {
        let desired = self.desired;
        for (i, tunnel) in desired.ipsec.tunnels.iter().enumerate() {
            if !self.names.insert(&tunnel.name) {
                self.wrong(Place::Ipsec(IpsecPlace::Tunnel(i)), PortProblem::Duplicate);
            }
            self.addresses(&tunnel.name, &tunnel.addresses, |address| {
                Place::Ipsec(IpsecPlace::TunnelAddress { tunnel: i, address })
            });
        }
    }
}
