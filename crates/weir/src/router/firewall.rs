//! The kernel's packet filter and address translation, which transit through this router does not meet.
//!
//! Promises: what would be bypassed is named, at the start and whenever it changes; a router does not start over it
//! unless told so, nor over a filter that it cannot read. Refuses: to judge rules: one rule of a forward chain is enough.

pub mod established;
mod traced;

use std::fmt;
use std::io;

use weir_core::conntrack::Admission;
use weir_core::time::{Nanos, SECOND};
use weir_io::clock;
use weir_io::netlink::firewall::{Chain, FirewallMonitor, Hook, chains};

use super::Daemon;
use crate::config::{Config, Kind};
use crate::failure::Failure;

/// The older iptables tell nobody of a change.
const LOOK_EVERY: Nanos = 10 * SECOND;
/// Chains named in one sentence.
const NAMED: usize = 5;

/// What transit on ports of a configuration does not meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bypassed {
    /// A filter or translation: without it packets go where they must not, or with addresses that are wrong.
    pub decisive: Vec<Chain>,
    /// Chains that mark, count or prepare.
    pub other: Vec<Chain>,
}

impl Bypassed {
    pub fn is_empty(&self) -> bool {
        self.decisive.is_empty() && self.other.is_empty()
    }
}

impl fmt::Display for Bypassed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.decisive.iter().chain(&self.other);
        let named: Vec<String> = all.take(NAMED).map(ToString::to_string).collect();
        let count = self.decisive.len() + self.other.len();
        write!(f, "packets that are forwarded here do not meet {}", named.join(", "))?;
        if count > NAMED { write!(f, " and {} more", count - NAMED) } else { Ok(()) }
    }
}

/// What these devices' transit would meet in the kernel.
pub fn bypassed(devices: &[&str]) -> io::Result<Bypassed> {
    let mut found = Bypassed::default();
    for chain in chains()?.into_iter().filter(|c| !c.is_empty()) {
        let ours = chain.devices.is_empty() || chain.devices.iter().any(|d| devices.contains(&d.as_str()));
        match chain.hook {
            Hook::Ingress | Hook::Egress if !ours => {}
            Hook::Forward | Hook::Ingress | Hook::Egress => found.decisive.push(chain),
            Hook::Prerouting | Hook::Postrouting if chain.kind == "nat" || chain.drops => {
                found.decisive.push(chain)
            }
            Hook::Prerouting | Hook::Postrouting => found.other.push(chain),
        }
    }
    Ok(found)
}

/// Devices of a configuration that the kernel forwards between, too.
pub fn kernel_devices(config: &Config) -> Vec<&str> {
    let kernels = |kind| matches!(kind, Kind::Auto | Kind::AfXdp | Kind::AfPacket);
    config.devices().into_iter().filter(|p| kernels(p.kind.value)).map(|p| p.device.value.as_str()).collect()
}

/// What was found when the kernel's filter was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    Read(Bypassed),
    /// It is asked, and why it admits no flows of some kind.
    Asked(Vec<String>),
    /// Nothing is known, so everything may be bypassed.
    Unreadable {
        reason: String,
    },
}

impl Looked {
    fn at(config: &Config) -> Looked {
        let devices = kernel_devices(config);
        let admission = config.kernel.firewall.as_ref().map(|firewall| firewall.admission);
        let looked = match admission {
            _ if devices.is_empty() => Ok(Looked::Read(Bypassed::default())),
            None => bypassed(&devices).map(Looked::Read),
            Some(Admission::Established) => established::obstacles(config).map(Looked::Asked),
            // Nothing is bypassed but what its own mark admits.
            Some(_) => Ok(Looked::Asked(Vec::new())),
        };
        looked.unwrap_or_else(|error| Looked::Unreadable { reason: error.to_string() })
    }

    /// Whether nothing is bypassed.
    fn is_clear(&self) -> bool {
        match self {
            Looked::Read(bypassed) => bypassed.is_empty(),
            Looked::Asked(obstacles) => obstacles.is_empty(),
            Looked::Unreadable { .. } => false,
        }
    }

    /// Something that decides about transit is bypassed, or may be.
    fn is_decisive(&self) -> bool {
        match self {
            Looked::Read(bypassed) => !bypassed.decisive.is_empty(),
            Looked::Asked(_) => false,
            Looked::Unreadable { .. } => true,
        }
    }

    /// What takes the obstacle away.
    fn remedy(&self) -> &'static str {
        match self {
            Looked::Read(_) | Looked::Asked(_) => {
                "write `firewall = \"kernel\"`, so that it is asked (docs/firewall.md), take that away"
            }
            Looked::Unreadable { .. } => "run as root or with CAP_NET_ADMIN",
        }
    }
}

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Looked::Read(bypassed) => bypassed.fmt(f),
            Looked::Asked(obstacles) => {
                write!(f, "the kernel forwards what its rules decide about: {}", obstacles.join("; "))
            }
            Looked::Unreadable { reason } => write!(
                f,
                "the kernel's packet filter cannot be read ({reason}), so whether packets that are forwarded here bypass it is not known"
            ),
        }
    }
}

/// The kernel's filter, looked at again when it changes.
pub struct Firewall {
    pub monitor: Option<FirewallMonitor>,
    last: Looked,
    looked: Nanos,
}

impl Firewall {
    /// Looks, and refuses to go on over what decides about transit, or cannot be read, unless that is meant.
    pub fn begin(config: &Config, bypass: bool) -> Result<Firewall, Failure> {
        let last = Looked::at(config);
        if last.is_decisive() && !bypass && !config.kernel.bypass_firewall {
            let mut text = format!(
                "firewall: {last}; {}, or say that it is meant: `--bypass-firewall`, or `bypass_firewall = true` in the file",
                last.remedy()
            );
            // What cannot be read was said already.
            for finding in established::findings(config).unwrap_or_default() {
                text.push_str("\nfirewall: ");
                text.push_str(&finding);
            }
            return Err(Failure(text));
        }
        if !last.is_clear() {
            tracing::warn!("{last}");
        }
        let monitor = FirewallMonitor::open()
            .inspect_err(|error| tracing::debug!("changes of nf_tables are not followed: {error}"))
            .ok();
        Ok(Firewall { monitor, last, looked: clock::now() })
    }

    /// Looks again; what is bypassed, if that is other than before.
    fn again(&mut self, config: &Config) -> Option<&Looked> {
        let now = Looked::at(config);
        if now == self.last {
            return None;
        }
        self.last = now;
        Some(&self.last)
    }

    pub fn heard(&mut self) -> bool {
        self.monitor.as_mut().is_some_and(FirewallMonitor::heard)
    }
}

impl Daemon {
    /// Says what of the kernel's filter is bypassed, when that changes.
    pub(super) fn watch_firewall(&mut self, now: Nanos) {
        let heard = self.firewall.heard();
        if !heard && now.saturating_sub(self.firewall.looked) < LOOK_EVERY {
            return;
        }
        self.firewall.looked = now;
        match self.firewall.again(&self.config) {
            None => {}
            Some(Looked::Asked(obstacles)) if obstacles.is_empty() => {
                tracing::info!("the rules accept established flows; they are forwarded past them");
            }
            Some(looked) if looked.is_clear() => {
                tracing::info!("no chain of the kernel's packet filter is bypassed any more");
            }
            Some(looked) if !looked.is_decisive() => tracing::warn!("{looked}"),
            Some(looked @ (Looked::Read(_) | Looked::Asked(_))) => {
                tracing::error!("{looked}; stop weir if they are to decide")
            }
            Some(looked @ Looked::Unreadable { .. }) => {
                tracing::error!("{looked}; stop weir if it is to decide");
            }
        }
    }

    pub(super) fn firewall_notice(&self) -> Option<String> {
        (!self.firewall.last.is_clear()).then(|| self.firewall.last.to_string())
    }
}
