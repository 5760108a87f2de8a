//! IPsec: ESP (RFC 4303) in policy mode and route mode (RFC 4301).
//!
//! ```text
//! route mode   route ─► tunnel port ─► its device's queue ─► seal ─► route of the outer packet
//! policy mode  route ─► port ─► enforcement point's queue ─► SPD ─┬─ PROTECT ─► seal ─► …
//!                                                             ├─ BYPASS ──► the port
//!                                                             └─ DISCARD
//! inbound      ESP to an SA ─► open ─► tunnel's device, or SPD's device and inner check ─► router
//! ```
//!
//! A tunnel, an SPD and the policy enforcement point of a port each have a device of their own ([`Queue`]) that no hardware
//! stands behind: the router sends to and receives from it as it does with any other, so forwarding
//! without IPsec has nothing to ask.

pub mod cipher;
pub mod durable;
pub mod esp;
pub mod flow;
pub mod flow_cache;
pub mod outbound;
pub mod pmtu;
pub mod reassembly;
pub mod replay;
pub mod sa;
pub mod sad;
pub mod spd;
pub mod suite;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

pub use cipher::{Cipher, Ciphers, Job, KeyLength, Keys, Secret};
pub use flow_cache::FlowCaches;
pub use outbound::Outbound;
pub use sa::{Direction, Mode, Params, Resumed, Sa, SaId, SaSpec, SaState};
pub use sad::{Inbound, InboundId, Sad};
pub use spd::{Action, Flow, Policy, Spd, SpdId};
pub use suite::{Encryption, Integrity, Suite};

use crate::id::PortId;
use crate::packet::DeviceId;

/// What a snapshot has of IPsec; [`crate::tables::Tables::ipsec`] is `None` where nothing is configured. Its
/// parts are shared by snapshots that have the same.
#[derive(Clone, Debug, Default)]
pub struct Ipsec {
    pub sad: Arc<Sad>,
    /// Every outbound SA.
    pub outbound: Arc<Outbound>,
    pub spds: Vec<Arc<Spd>>,
    pub tunnels: Arc<[Tunnel]>,
    /// What stands behind each device, by [`DeviceId`]; devices beyond its end are hardware.
    pub queues: Arc<[Queue]>,
    /// The SPD enforced on each port, by [`PortId`].
    pub enforcement: Arc<[Option<SpdId>]>,
    /// Ports of route mode, each with the device by which what is for this host's own stack reaches that.
    pub hosts: Arc<[(PortId, DeviceId)]>,
    /// UDP ports ESP may come in on (RFC 3948), sorted: 4500 and those of configured SAs.
    pub udp_ports: Arc<[u16]>,
    /// Where SAs come from elsewhere, and packets of theirs may come earlier.
    pub awaited: Option<Awaited>,
    /// What SPDs answered before; the same ones in every snapshot until they are configured otherwise.
    pub caches: Arc<FlowCaches>,
    /// Every answer of an SPD is held against the ordered scan.
    pub oracle: bool,
}

/// An SPD whose SAs come from elsewhere: ESP with an SPI that none has is held for a while, at ports where it is enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    pub spd: SpdId,
    /// SPIs and destinations of SAs that others open, which nobody need wait for.
    pub others: Arc<HashSet<(u32, IpAddr)>>,
}

/// What stands behind a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queue {
    /// A real device of a worker.
    #[default]
    Hardware,
    /// Frames sent to it are sealed by a tunnel; what its SAs open arrives on it.
    Tunnel(TunnelId),
    /// Frames that leave by a port with a policy enforcement point: the SPD decides, then they go on to `device`.
    Enforcement { spd: SpdId, port: PortId, device: DeviceId },
    /// What the SAs of an SPD open arrives on it; of frames sent to it, in route mode, the SPD decides.
    Policy(SpdId),
    /// A real device: what this host itself sends by an SPD of route mode, which is sealed by way of `device`, its queue.
    Host { device: DeviceId },
}

/// An index into [`Ipsec::tunnels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunnelId(pub u16);

/// A tunnel of route mode.
#[derive(Debug)]
pub struct Tunnel {
    pub name: String,
    pub port: PortId,
    /// SAs packets leave by, one or one a worker (RFC 9611).
    pub out: Vec<Arc<Sa>>,
}

/// The SA a worker sends by: its own, or a shared one.
pub fn choose(sas: &[Arc<Sa>], worker: usize) -> Option<&Arc<Sa>> {
    if sas.is_empty() { None } else { sas.get(worker % sas.len()) }
}
