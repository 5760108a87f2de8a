//! How large a packet may be for a tunnel without an MTU of its own.
//!
//! Promises: what the narrowest of its SAs makes of it fits into the port the sealed packets leave by, as
//! routes are now; tunnels in tunnels up to [`NESTING`] deep. Where no route leads to the far end yet,
//! Ethernet's MTU is assumed outside. What the path beyond the first link takes is learned by the data
//! path, for each SA.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Control;
use super::ports::MTU_UNSEEN;
use super::targets::{Hop, Meaning};
use crate::ipsec::esp::inner_mtu;
use crate::state::TunnelSpec;
use crate::time::Nanos;

/// The tunnels inside each other that the data path seals.
const NESTING: usize = 4;

impl Control {
    /// Gives tunnels the MTU that routes allow now, which may change what other tunnels are routed over.
    pub(super) fn fit_tunnels(&mut self, now: Nanos) {
        for _ in 0..NESTING {
            let open = self.desired.ipsec.tunnels.iter().filter(|t| t.mtu.is_none());
            let mtus: HashMap<String, u16> =
                open.filter_map(|t| Some((t.name.clone(), self.room(t)?))).collect();
            if mtus == self.tunnel_mtus {
                return;
            }
            self.tunnel_mtus = mtus;
            let mut touched = Vec::new();
            self.rewire(now, &mut touched);
            self.install_touched(now, touched);
        }
    }

    /// The largest packet every SA of a tunnel can take; `None` without one.
    fn room(&self, tunnel: &TunnelSpec) -> Option<u16> {
        let sas = tunnel.out.iter().filter_map(|name| self.gateway.kept.get(name));
        sas.map(|kept| {
            let outside = self.toward(kept.sa.params.destination, &tunnel.name).unwrap_or(MTU_UNSEEN);
            inner_mtu(&kept.sa, outside)
        })
        .min()
    }

    /// The MTU of the port, or the narrowest of several, that lead to an address; never the tunnel itself.
    fn toward(&self, destination: IpAddr, tunnel: &str) -> Option<u16> {
        let hops = self.hops_toward(destination)?.iter().flatten().filter(|h| h.up);
        let ports = hops.filter_map(|h| self.ports.port(h.port)).filter(|p| p.name != tunnel);
        ports.map(|p| p.mtu).min()
    }

    /// The next hops of the route that forwards to an address; `None` where none does.
    pub(super) fn hops_toward(&self, destination: IpAddr) -> Option<&[Option<Hop>]> {
        let value = match destination {
            IpAddr::V4(v4) => self.table4.explain(v4)?.1,
            IpAddr::V6(v6) => self.table6.explain(v6)?.1,
        };
        let forwards = matches!(
            self.targets.meaning(value)?,
            Meaning::Static(_) | Meaning::Mirrored(..) | Meaning::Connected(_)
        );
        forwards.then(|| self.targets.hops(value))
    }
}
