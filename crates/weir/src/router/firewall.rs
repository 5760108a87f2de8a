//! The kernel's packet filter and address translation, which transit through this router does not meet.
//!
//! Promises: what would be bypassed is named, at the start and whenever it changes; a router does not start over it
//! unless told so. Refuses: to judge rules: one rule of a forward chain is enough.

use std::fmt;
use std::io;

use weir_core::time::{Nanos, SECOND};
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
        let ours = chain.device.as_deref().is_none_or(|d| devices.contains(&d));
        match chain.hook {
            Hook::Ingress if !ours => {}
            Hook::Forward | Hook::Ingress => found.decisive.push(chain),
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

/// The kernel's filter, looked at again when it changes.
pub struct Firewall {
    pub monitor: Option<FirewallMonitor>,
    pub last: Bypassed,
    looked: Nanos,
}

impl Firewall {
    /// Looks, and refuses to go on over what decides about transit unless that is meant.
    pub fn begin(config: &Config, bypass: bool) -> Result<Firewall, Failure> {
        let firewall = Firewall::look(config);
        if !firewall.last.decisive.is_empty() && !bypass && !config.kernel.bypass_firewall {
            return Err(Failure(format!(
                "firewall: {}; take that away, or say that it is meant: `--bypass-firewall`, or `bypass_firewall = true` in the file",
                firewall.last
            )));
        }
        if !firewall.last.is_empty() {
            tracing::warn!("{}", firewall.last);
        }
        Ok(firewall)
    }

    /// What is bypassed now. Not to be read: said, and taken for nothing.
    pub fn look(config: &Config) -> Firewall {
        let monitor = FirewallMonitor::open()
            .inspect_err(|error| tracing::debug!("changes of nf_tables are not followed: {error}"))
            .ok();
        Firewall { monitor, last: now(config), looked: 0 }
    }

    /// Looks again; what is bypassed, if that is other than before.
    pub fn again(&mut self, config: &Config) -> Option<&Bypassed> {
        let now = now(config);
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
            Some(bypassed) if bypassed.is_empty() => {
                tracing::info!("no chain of the kernel's packet filter is bypassed any more");
            }
            Some(bypassed) if bypassed.decisive.is_empty() => tracing::warn!("{bypassed}"),
            Some(bypassed) => tracing::error!("{bypassed}; stop weir if they are to decide"),
        }
    }

    pub(super) fn firewall_notice(&self) -> Option<String> {
        (!self.firewall.last.is_empty()).then(|| self.firewall.last.to_string())
    }
}

fn now(config: &Config) -> Bypassed {
    let devices = kernel_devices(config);
    if devices.is_empty() {
        return Bypassed::default();
    }
    bypassed(&devices).unwrap_or_else(|error| {
        tracing::warn!(
            "the kernel's packet filter cannot be read ({error}); whether it is bypassed is not known"
        );
        Bypassed::default()
    })
}
