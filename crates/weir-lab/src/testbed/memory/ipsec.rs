//! What a protected configuration adds to the wires: SAs, and the tunnel or the policies that lead to them.
//!
//! ```text
//! out      plain ─► in │ routes ─► tunnel, or the policies of port out ─► seal │ out ─► ESP
//! in       ESP ─► in │ open ─► tunnel, or inbound policies of port in ─► routes │ out ─► plain
//! bypass   ESP ─► in │ open ─► tunnel │ routes │ policies of port out ─► out ─► plain
//! beside   plain ─► in │ routes │ out ─► plain         a tunnel no route leads to, or a guarded third port
//! … bypass plain ─► in │ routes │ policies of port out, none matches ─► out ─► plain
//! ```
//!
//! Promises: an SA a worker (RFC 9611), so that nothing is shared, unless one is asked for; the keys are the same in every run.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use weir_core::ipsec::sa::{Direction as Way, Mode as SaMode};
use weir_core::ipsec::{Action, Ciphers, Params, SaSpec};
use weir_core::route::Prefix;
use weir_core::state::{Desired, Link, NextHopSpec, PortSpec, RouteSpec, SpdSpec, TunnelSpec, Via};
use weir_core::tables::ReversePath;
use weir_io::cipher;

use super::spd;
use crate::model::ipsec::{Backend, Direction, Mode, Protection};
use crate::model::{Family, LabError};
use crate::workload::address;
pub use crate::workload::sa::SaPlan;
use crate::workload::sa::peer;

/// Ports that carry ESP take what 1,500 bytes become: a jumbo no buffer is too small for.
pub const MTU: u16 = 1700;
const TUNNEL: &str = "tunnel";
/// Guarded, and used by nobody.
const SIDE: &str = "side";
/// What the tables have of a planned SA.
fn spec(plan: &SaPlan, p: &Protection, direction: Way, name: String) -> SaSpec {
    let ends = (plan.source, plan.destination);
    let params = Params {
        esn: plan.esn,
        replay_window: if direction == Way::In { p.replay_window } else { 0 },
        ..Params::new(direction, plan.spi, SaMode::Tunnel, ends, plan.suite)
    };
    SaSpec { name, params, keys: plan.keys.clone() }
}

/// An implementation whose instructions this processor lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoBackend {
    pub backend: &'static str,
}

impl fmt::Display for NoBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "backend {}: not for this processor, which lacks its instructions: use \"auto\"",
            self.backend
        )
    }
}

impl std::error::Error for NoBackend {}

impl From<NoBackend> for LabError {
    fn from(error: NoBackend) -> LabError {
        LabError::new(error.to_string())
    }
}

/// The implementation a configuration names.
pub fn ciphers(backend: Backend) -> Result<Arc<dyn Ciphers>, NoBackend> {
    let named = |backend: &'static str| cipher::by_name(backend).ok_or(NoBackend { backend });
    match backend {
        Backend::Auto => Ok(cipher::best()),
        Backend::AwsLc => named("aws-lc"),
        Backend::Vaes => named("vaes"),
        Backend::Vaes256 => named("vaes-256"),
        Backend::AesNi => named("aes-ni"),
    }
}

/// Adds what `p` asks for to ports and plain routes of packets of `family`; `workers` SAs, or one for all.
pub fn add(desired: &mut Desired, links: &mut Vec<Link>, (p, workers): (&Protection, usize), family: Family) {
    for port in &mut desired.ports {
        port.mtu = Some(MTU);
    }
    links.iter_mut().for_each(|link| link.mtu = MTU);
    let (way, back) = if p.direction == Direction::In { (Way::In, Way::Out) } else { (Way::Out, Way::In) };
    let (mut names, mut others) = (Vec::new(), Vec::new());
    for i in 0..if p.shared_sa { 1 } else { workers } {
        let plan = SaPlan::new(p, i);
        names.push(format!("sa-{i}"));
        others.push(format!("back-{i}"));
        desired.ipsec.sas.push(spec(&plan, p, way, names[i].clone()));
        desired.ipsec.sas.push(spec(&plan.back(), p, back, others[i].clone()));
    }
    let host = Prefix::new(peer(p.outer), if p.outer == Family::Inet { 32 } else { 128 });
    desired.routes.push(RouteSpec { prefix: host, via: via(Some(address::gateway(p.outer, 0)), None) });
    let (out, inbound) = if p.direction == Direction::In { (others, names) } else { (names, others) };
    match p.mode {
        Mode::Route => {
            if p.direction == Direction::Out {
                let peer = desired.routes.len() - 1;
                desired.routes[..peer].iter_mut().for_each(|r| r.via = via(None, Some(TUNNEL.into())));
            }
            desired.ipsec.tunnels.push(tunnel(out, inbound));
        }
        Mode::Policy => {
            let policies = spd::policies(p, family, &out, &inbound);
            let port = match (p.direction, p.bypasses()) {
                (Direction::Out, _) | (_, true) => "out",
                (Direction::In, _) => "in",
                (Direction::Beside, _) => SIDE,
            };
            if p.is_aside() {
                desired.ports.push(side());
                let link = links.first().cloned().map(|l| Link { device: SIDE.into(), ..l });
                links.extend(link);
            }
            if p.bypasses() {
                desired.ipsec.tunnels.push(tunnel(out, inbound));
            }
            let (name, ports) = (spd::NAME.into(), vec![port.into()]);
            desired.ipsec.spds.push(SpdSpec {
                name,
                ports,
                default: if p.matches_nothing() { Action::Bypass } else { Action::Discard },
                policies: policies.into_iter().collect(),
                route_mode: None,
            });
            desired.ipsec.lookup = spd::lookup(p, family);
        }
    }
    if p.spd.rules.is_some() {
        // their addresses are anywhere
        let anywhere =
            if family == Family::Inet { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let via = via(Some(address::gateway(family, 0)), None);
        desired.routes.push(RouteSpec { prefix: Prefix::new(anywhere, 0), via });
    }
}

fn tunnel(out: Vec<String>, inbound: Vec<String>) -> TunnelSpec {
    TunnelSpec {
        name: TUNNEL.into(),
        out,
        inbound,
        addresses: Vec::new(),
        mtu: None,
        reverse_path: ReversePath::Off,
    }
}

fn via(gateway: Option<IpAddr>, port: Option<String>) -> Via {
    Via::NextHops(vec![NextHopSpec { gateway, port, weight: 1 }])
}

fn side() -> PortSpec {
    PortSpec {
        name: SIDE.into(),
        device: SIDE.into(),
        vlan: None,
        mtu: Some(MTU),
        addresses: Vec::new(),
        reverse_path: ReversePath::Off,
    }
}
