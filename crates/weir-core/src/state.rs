//! Desired state: what the operator asked for, before any of it exists.
//!
//! A configuration file becomes a [`Desired`]; two of them compare to a list of [`Action`]s (a pure
//! function, so `weir apply` can print what it would do); the control side applies them to its
//! tables. Names are the operator's; ids are made in [`crate::control`].
//!
//! [`check`] promises that what it lets through can be built: unique names and addresses, networks on
//! one port only, next hops that exist. It refuses a wish whole and names every mistake at once.

mod check;
mod diff;
pub mod ipsec;
mod nearest;
mod policies;
mod problem;
mod warning;

use std::net::IpAddr;

pub use check::{
    CACHE_MEMORY_MAX, MULTIPATH_HOPS_MAX, POLICIES_MAX, PORTS_MAX, RECORDS_MAX, ROUTES_MAX, RULES_MAX,
    SAS_MAX, WEIGHT_MAX, check,
};
pub(crate) use check::{check_against, check_ipsec, check_policy, hidden};
pub(crate) use check::{link_local, not_a_host, unroutable, width};
pub(crate) use diff::diff_ipsec;
pub use diff::{Action, Change, IpsecAction, LookupChange, PortChange, diff};
pub use ipsec::{IpsecSpec, PolicySpec, RouteMode, SpdSpec, TunnelSpec, VIRTUAL};
pub use nearest::nearest;
pub use policies::Policies;
pub use problem::ipsec::{
    IpsecElement, LookupProblem, PolicyProblem, SaProblem, SpdProblem, TunnelProblem, UseProblem,
};
pub use problem::{
    Element, Error, HopProblem, NeighborProblem, PortProblem, Problem, RouteProblem, Wrong, amount,
};
pub use warning::{SaWarning, Weakness, warnings};

use crate::id::Mac;
use crate::route::Prefix;
use crate::tables::{Owner, ReversePath, Settings};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    pub ports: Vec<PortSpec>,
    pub routes: Vec<RouteSpec>,
    /// Static neighbours: never asked for, never aged.
    pub neighbors: Vec<NeighborSpec>,
    pub settings: Settings,
    pub ipsec: IpsecSpec,
    /// Routes come from the kernel too, those of ports' networks among them; fixed while a router runs.
    pub routes_from_kernel: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    pub name: String,
    /// The device that carries it, and the tag on it.
    pub device: String,
    pub vlan: Option<u16>,
    pub mtu: Option<u16>,
    pub addresses: Vec<AddressSpec>,
    pub reverse_path: ReversePath,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressSpec {
    pub address: IpAddr,
    pub prefix_len: u8,
    pub owner: Owner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    pub prefix: Prefix,
    pub via: Via,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// One is a plain route, several are ECMP.
    NextHops(Vec<NextHopSpec>),
    Blackhole,
    Unreachable,
    Prohibited,
}

/// A gateway, a port, or both (a link-local gateway needs its port).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHopSpec {
    pub gateway: Option<IpAddr>,
    pub port: Option<String>,
    /// 1…64.
    pub weight: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighborSpec {
    pub port: String,
    pub address: IpAddr,
    pub mac: Mac,
}

/// What the environment says of a device: observed, not wished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub device: String,
    pub mac: Mac,
    pub mtu: u16,
    pub up: bool,
    pub point_to_point: bool,
}
