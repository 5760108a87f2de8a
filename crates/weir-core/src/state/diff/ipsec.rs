//! The difference of two wishes in SAs, tunnels, SPDs and policies.
//!
//! Promises: as its parent. SAs, tunnels and SPDs are matched by name, policies by name in their SPD. Their
//! order means nothing, but that of policies, of a tunnel's addresses, and of the SAs packets leave by (one
//! a worker). A new SA comes before what names it and an old one goes after, as a rekey asks for. A line
//! has nothing of a key but that it is another.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::super::problem::amount;
use super::super::{AddressSpec, IpsecSpec, Policies, PolicySpec, RouteMode, SpdSpec, TunnelSpec};
use super::{Action, commas, reverse_path};
use crate::ipsec::flow_cache::FlowCache;
use crate::ipsec::sa::{Df, Dscp, FragmentWhen, Lifetime, UdpPorts};
use crate::ipsec::spd::{self, AddressRange, Layer, LookupSpec, PortRange, Way};
use crate::ipsec::{Direction, Mode, SaSpec};

/// Policies an order is shown with; the rest is a number.
const ORDER_SHOWN: usize = 8;

/// What was and what is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<T> {
    pub old: T,
    pub new: T,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpsecAction {
    AddSa(Box<SaSpec>),
    RemoveSa(Box<SaSpec>),
    ChangeSa(Box<Change<SaSpec>>),
    AddTunnel(Box<TunnelSpec>),
    RemoveTunnel(Box<TunnelSpec>),
    ChangeTunnel(Box<Change<TunnelSpec>>),
    /// Adds an SPD without ports and policies, which follow.
    AddSpd(Box<SpdSpec>),
    /// Removes an SPD with all that is in it.
    RemoveSpd(Box<SpdSpec>),
    Enforce {
        spd: String,
        port: String,
    },
    Release {
        spd: String,
        port: String,
    },
    ChangeDefault {
        spd: String,
        old: spd::Action,
        new: spd::Action,
    },
    /// Routes may lead to it now, or no longer, or its port is another.
    ChangeRouteMode {
        spd: String,
        new: Option<RouteMode>,
    },
    RemovePolicy {
        spd: String,
        policy: Box<PolicySpec>,
    },
    ChangePolicy {
        spd: String,
        change: Box<Change<PolicySpec>>,
    },
    /// Those that were there before, in the order they now have.
    OrderPolicies {
        spd: String,
        order: Vec<String>,
    },
    /// Adds a policy as number `at` of the list, from 0; lower ones come first.
    AddPolicy {
        spd: String,
        at: usize,
        policy: Box<PolicySpec>,
    },
    /// How SPDs are asked, one thing of it.
    ChangeLookup(LookupChange),
}

/// A change of [`LookupSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupChange {
    /// Buckets; `None` is off.
    Cache {
        way: Way,
        old: Option<u32>,
        new: Option<u32>,
    },
    Layer {
        old: Layer,
        new: Layer,
    },
    Oracle(bool),
}

/// Actions that come before ports change, and after.
pub(super) fn diff(old: &IpsecSpec, new: &IpsecSpec) -> (Vec<Action>, Vec<Action>) {
    if old == new {
        return (Vec::new(), Vec::new());
    }
    let (mut gone, mut come) = (Vec::new(), Vec::new());
    let spds: HashSet<&str> = new.spds.iter().map(|s| s.name.as_str()).collect();
    let left = old.spds.iter().filter(|s| !spds.contains(&*s.name));
    gone.extend(left.map(|s| IpsecAction::RemoveSpd(s.clone().into())));
    let (left, fresh) = named(&old.tunnels, &new.tunnels, |t| &t.name);
    gone.extend(left.map(|t| IpsecAction::RemoveTunnel(t.clone().into())));
    let (gone_sas, fresh_sas) = named(&old.sas, &new.sas, |s| &s.name);
    come.extend(fresh_sas.into_iter().map(|(was, is)| match was {
        None => IpsecAction::AddSa(is.clone().into()),
        Some(was) => IpsecAction::ChangeSa(Change { old: was.clone(), new: is.clone() }.into()),
    }));
    come.extend(fresh.into_iter().map(|(was, is)| match was {
        None => IpsecAction::AddTunnel(is.clone().into()),
        Some(was) => IpsecAction::ChangeTunnel(Change { old: was.clone(), new: is.clone() }.into()),
    }));
    let before: HashMap<&str, &SpdSpec> = old.spds.iter().map(|s| (s.name.as_str(), s)).collect();
    for spd in &new.spds {
        let empty = SpdSpec { ports: Vec::new(), policies: Policies::default(), ..spd.clone() };
        let was = before.get(&*spd.name).copied();
        if was.is_none() {
            come.push(IpsecAction::AddSpd(empty.clone().into()));
        }
        change_spd(was.unwrap_or(&empty), spd, &mut gone, &mut come);
    }
    come.extend(gone_sas.map(|s| IpsecAction::RemoveSa(s.clone().into())));
    come.extend(change_lookup(&old.lookup, &new.lookup).into_iter().map(IpsecAction::ChangeLookup));
    let actions = |all: Vec<IpsecAction>| all.into_iter().map(Action::Ipsec).collect();
    (actions(gone), actions(come))
}

type Fresh<'a, T> = Vec<(Option<&'a T>, &'a T)>;

/// Those of `old` whose name is gone, and those of `new` that are not what they were.
fn named<'a, T: PartialEq>(
    old: &'a [T],
    new: &'a [T],
    name: fn(&T) -> &String,
) -> (impl Iterator<Item = &'a T>, Fresh<'a, T>) {
    let mut before: HashMap<&str, &T> = old.iter().map(|t| (name(t).as_str(), t)).collect();
    let fresh = new.iter().filter_map(|is| {
        let was = before.remove(name(is).as_str());
        (was != Some(is)).then_some((was, is))
    });
    let fresh = fresh.collect();
    (old.iter().filter(move |t| before.contains_key(name(t).as_str())), fresh)
}

fn change_spd(old: &SpdSpec, new: &SpdSpec, gone: &mut Vec<IpsecAction>, come: &mut Vec<IpsecAction>) {
    let spd = || new.name.clone();
    let left = old.ports.iter().filter(|p| !new.ports.contains(p));
    gone.extend(left.map(|port| IpsecAction::Release { spd: spd(), port: port.clone() }));
    let added = new.ports.iter().filter(|p| !old.ports.contains(p));
    come.extend(added.map(|port| IpsecAction::Enforce { spd: spd(), port: port.clone() }));
    if old.default != new.default {
        come.push(IpsecAction::ChangeDefault { spd: spd(), old: old.default, new: new.default });
    }
    if old.route_mode != new.route_mode {
        come.push(IpsecAction::ChangeRouteMode { spd: spd(), new: new.route_mode.clone() });
    }
    let before: HashMap<&str, &PolicySpec> = old.policies.iter().map(|p| (p.name.as_str(), p)).collect();
    let after: HashSet<&str> = new.policies.iter().map(|p| p.name.as_str()).collect();
    let left = old.policies.iter().filter(|p| !after.contains(&*p.name));
    come.extend(left.map(|p| IpsecAction::RemovePolicy { spd: spd(), policy: p.clone().into() }));
    for is in &new.policies {
        if let Some(&was) = before.get(&*is.name)
            && was != is
        {
            let change = Change { old: was.clone(), new: is.clone() }.into();
            come.push(IpsecAction::ChangePolicy { spd: spd(), change });
        }
    }
    let stayed = old.policies.iter().map(|p| &*p.name).filter(|name| after.contains(name));
    let order = || new.policies.iter().map(|p| &*p.name).filter(|name| before.contains_key(name));
    if !stayed.eq(order()) {
        let order = order().map(str::to_string).collect();
        come.push(IpsecAction::OrderPolicies { spd: spd(), order });
    }
    let added = new.policies.iter().enumerate().filter(|(_, p)| !before.contains_key(&*p.name));
    come.extend(added.map(|(at, p)| IpsecAction::AddPolicy { spd: spd(), at, policy: p.clone().into() }));
}

fn change_lookup(old: &LookupSpec, new: &LookupSpec) -> Vec<LookupChange> {
    let caches = Way::ALL.into_iter().map(|way| (way, old.buckets(way), new.buckets(way)));
    let caches = caches.filter(|(_, old, new)| old != new);
    let mut changes: Vec<_> = caches.map(|(way, old, new)| LookupChange::Cache { way, old, new }).collect();
    if old.layer != new.layer {
        changes.push(LookupChange::Layer { old: old.layer, new: new.layer });
    }
    changes.extend((old.oracle != new.oracle).then_some(LookupChange::Oracle(new.oracle)));
    changes
}

impl fmt::Display for LookupChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LookupChange::Cache { way, old, new } => {
                let size = |buckets: Option<u32>| {
                    buckets.map_or("off".to_string(), |buckets| {
                        let made = u64::from(buckets).next_power_of_two();
                        format!("{made} buckets, {}", amount(FlowCache::bytes(way, buckets)))
                    })
                };
                write!(f, "~ spd flow cache {}: {} → {}", way.name(), size(old), size(new))
            }
            LookupChange::Layer { old, new } => {
                let name = |layer| match layer {
                    Layer::Auto => "auto",
                    Layer::Scan => "off",
                    Layer::Classifier => "on",
                };
                write!(f, "~ spd classifier: {} → {}", name(old), name(new))
            }
            LookupChange::Oracle(true) => f.write_str("~ spd oracle: off → on"),
            LookupChange::Oracle(false) => f.write_str("~ spd oracle: on → off"),
        }
    }
}

impl fmt::Display for IpsecAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IpsecAction::AddSa(sa) => write!(f, "+ sa {}: {}", sa.name, line(sa_fields(sa))),
            IpsecAction::RemoveSa(sa) => write!(f, "- sa {}, spi {:#x}", sa.name, sa.params.spi),
            IpsecAction::ChangeSa(change) => {
                write!(f, "~ sa {}: ", change.new.name)?;
                let mut what = changes(sa_fields(&change.old), sa_fields(&change.new));
                if change.old.keys != change.new.keys {
                    what.push("other keys".into());
                }
                f.write_str(&commas(what.iter()))
            }
            IpsecAction::AddTunnel(t) => write!(f, "+ tunnel {}: {}", t.name, line(tunnel_fields(t))),
            IpsecAction::RemoveTunnel(t) => write!(f, "- tunnel {}", t.name),
            IpsecAction::ChangeTunnel(change) => {
                let what = changes(tunnel_fields(&change.old), tunnel_fields(&change.new));
                write!(f, "~ tunnel {}: {}", change.new.name, commas(what.iter()))
            }
            IpsecAction::AddSpd(spd) => {
                write!(f, "+ spd {}, default {}", spd.name, spd.default)?;
                spd.route_mode
                    .as_ref()
                    .map_or(Ok(()), |port| write!(f, ", {}", line(route_mode_fields(port))))
            }
            IpsecAction::RemoveSpd(spd) => write!(f, "- spd {}", spd.name),
            IpsecAction::Enforce { spd, port } => write!(f, "~ spd {spd}: enforced on port {port}"),
            IpsecAction::Release { spd, port } => write!(f, "~ spd {spd}: no longer enforced on port {port}"),
            IpsecAction::ChangeDefault { spd, old, new } => write!(f, "~ spd {spd}: default {old} → {new}"),
            IpsecAction::ChangeRouteMode { spd, new: None } => write!(f, "~ spd {spd}: no longer a port"),
            IpsecAction::ChangeRouteMode { spd, new: Some(port) } => {
                write!(f, "~ spd {spd}: {}", line(route_mode_fields(port)))
            }
            IpsecAction::ChangeLookup(change) => change.fmt(f),
            IpsecAction::AddPolicy { spd, at, policy } => {
                let fields = line(policy_fields(policy));
                write!(f, "+ policy {} of spd {spd}, number {}: {fields}", policy.name, at + 1)
            }
            IpsecAction::RemovePolicy { spd, policy } => write!(f, "- policy {} of spd {spd}", policy.name),
            IpsecAction::ChangePolicy { spd, change } => {
                let what = changes(policy_fields(&change.old), policy_fields(&change.new));
                write!(f, "~ policy {} of spd {spd}: {}", change.new.name, commas(what.iter()))
            }
            IpsecAction::OrderPolicies { spd, order } => {
                write!(f, "~ spd {spd}: policy order {}", commas(order.iter().take(ORDER_SHOWN)))?;
                match order.len().saturating_sub(ORDER_SHOWN) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

/// What is said of a thing: a name, and a value that is empty where it goes without saying.
type Fields = Vec<(&'static str, String)>;

fn line(fields: Fields) -> String {
    let said = fields.into_iter().filter(|(_, value)| !value.is_empty());
    commas(said.map(|(name, value)| format!("{name} {value}").trim_start().to_string()))
}

fn changes(old: Fields, new: Fields) -> Vec<String> {
    let value = |text: &str| if text.is_empty() { "none".to_string() } else { text.to_string() };
    let differing = old.into_iter().zip(new).filter(|(old, new)| old != new);
    let say = |((name, old), (_, new)): ((&str, String), (&str, String))| {
        format!("{name} {} → {}", value(&old), value(&new)).trim_start().to_string()
    };
    differing.map(say).collect()
}

fn sa_fields(sa: &SaSpec) -> Fields {
    let p = &sa.params;
    vec![
        ("", if p.direction == Direction::In { "inbound" } else { "outbound" }.into()),
        ("spi", format!("{:#x}", p.spi)),
        ("from", p.source.to_string()),
        ("to", p.destination.to_string()),
        ("", p.suite.to_string()),
        ("mode", if p.mode == Mode::Transport { "transport".into() } else { String::new() }),
        ("esn", if p.esn { "on".into() } else { String::new() }),
        ("replay window", p.replay_window.to_string()),
        (
            "udp",
            p.udp.map_or(String::new(), |UdpPorts { source, destination }| format!("{source}:{destination}")),
        ),
        ("dscp", if let Dscp::Set(dscp) = p.dscp { dscp.to_string() } else { String::new() }),
        (
            "df",
            match p.df {
                Df::Copy => "",
                Df::Set => "set",
                Df::Clear => "clear",
            }
            .into(),
        ),
        ("fragments", if p.fragment == FragmentWhen::After { "after".into() } else { String::new() }),
        ("hop limit", if p.hop_limit == 64 { String::new() } else { p.hop_limit.to_string() }),
        ("soft", lifetime(p.soft)),
        ("hard", lifetime(p.hard)),
    ]
}

fn lifetime(l: Lifetime) -> String {
    let parts = [(l.bytes, "bytes"), (l.packets, "packets"), (l.seconds, "s")];
    let said: Vec<String> =
        parts.into_iter().filter_map(|(n, unit)| Some(format!("{} {unit}", n?))).collect();
    said.join(" or ")
}

fn tunnel_fields(t: &TunnelSpec) -> Fields {
    let addresses: Vec<String> = t.addresses.iter().map(AddressSpec::to_string).collect();
    vec![
        ("out", t.out.join(" ")),
        ("inbound", t.inbound.join(" ")),
        ("mtu", t.mtu.map_or("that fits".into(), |mtu| mtu.to_string())),
        ("reverse path", reverse_path(t.reverse_path).into()),
        ("addresses", addresses.join(" ")),
    ]
}

fn route_mode_fields(port: &RouteMode) -> Fields {
    let addresses: Vec<String> = port.addresses.iter().map(AddressSpec::to_string).collect();
    vec![
        ("a port by interface id", port.if_id.to_string()),
        ("", if port.up { "up" } else { "down" }.into()),
        ("mtu", port.mtu.to_string()),
        ("addresses", addresses.join(" ")),
    ]
}

fn policy_fields(p: &PolicySpec) -> Fields {
    let way = |d| if d == Direction::In { "inbound" } else { "outbound" };
    vec![
        ("", p.action.to_string()),
        ("only", p.direction.map_or(String::new(), |d| way(d).into())),
        ("local", ranges(&p.local)),
        ("remote", ranges(&p.remote)),
        ("protocol", p.protocol.map_or(String::new(), |p| p.to_string())),
        ("local ports", numbers(p.local_ports)),
        ("remote ports", numbers(p.remote_ports)),
        ("icmp", numbers(p.icmp)),
        ("out", p.out.join(" ")),
        ("inbound", p.inbound.join(" ")),
    ]
}

fn ranges(all: &[AddressRange]) -> String {
    let one = |r: &AddressRange| {
        if r.first == r.last { r.first.to_string() } else { format!("{}-{}", r.first, r.last) }
    };
    all.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn numbers(range: PortRange) -> String {
    match range {
        PortRange::ANY => String::new(),
        PortRange { first, last } if first == last => first.to_string(),
        PortRange { first, last } => format!("{first}-{last}"),
    }
}
