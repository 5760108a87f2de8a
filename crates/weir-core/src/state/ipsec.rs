//! IPsec as wished for: SAs, tunnels, policies.

use super::AddressSpec;
use crate::ipsec::SaSpec;
use crate::ipsec::sa::Direction;
use crate::ipsec::spd::{Action, AddressRange, PortRange};
use crate::tables::ReversePath;

/// All of it; empty where IPsec is not used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpsecSpec {
    pub sas: Vec<SaSpec>,
    pub tunnels: Vec<TunnelSpec>,
    pub spds: Vec<SpdSpec>,
}

/// A tunnel of route mode: a port routes can lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSpec {
    /// Also the port's name.
    pub name: String,
    /// Names of outbound SAs: one, or one a worker.
    pub out: Vec<String>,
    /// Names of inbound SAs.
    pub inbound: Vec<String>,
    pub addresses: Vec<AddressSpec>,
    /// `None`: what fits into the outer path.
    pub mtu: Option<u16>,
    pub reverse_path: ReversePath,
}

/// An SPD and the ports it guards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpdSpec {
    pub name: String,
    pub ports: Vec<String>,
    /// Where no policy matches: discard or bypass.
    pub default: Action,
    /// In order: the first that matches decides.
    pub policies: Vec<PolicySpec>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySpec {
    pub name: String,
    /// `None`: both.
    pub direction: Option<Direction>,
    /// On our side; empty is any.
    pub local: Vec<AddressRange>,
    /// On the far side; empty is any.
    pub remote: Vec<AddressRange>,
    pub protocol: Option<u8>,
    pub local_ports: PortRange,
    pub remote_ports: PortRange,
    /// ICMP type and code as one number.
    pub icmp: PortRange,
    pub action: Action,
    pub out: Vec<String>,
    pub inbound: Vec<String>,
}
