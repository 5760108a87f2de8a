//! A configuration: what is measured, where, under which traffic.
//!
//! ```text
//! keys of a file, a manifest or a request (flat) ─► Keys ─► Configuration ─► Scenario, on a Testbed
//! ```
//!
//! Promises: whoever holds a [`Configuration`] holds one that means something: each option is there only where the
//! scenario or the testbed has it, and [`Configuration::try_from`] is the only way to make one. Refuses: with
//! [`Invalid`], what means nothing together. What this machine lacks for a valid one is another question.

use serde::{Deserialize, Serialize};

use super::esp;
use super::invalid::{Invalid, IpsecError, RelayError};
use super::ipsec::{Direction, Protection};
use super::relay::{IDLE_MAX, Load, RelayScenario};
use super::spd::Action;
use super::{Family, FirewallRules, NicModes, Placement, Sut, Topology, Workload};
use weir_stats::search::Rate;

/// What the receiver in the kernel remembers ([`weir_io::xdp_tally::FLOWS_MAX`]).
pub const FLOWS_MAX: u32 = 1 << 17;
/// Connections that are under way at once: the sockets of both ends fit into the 1,024 descriptors that a process has anywhere.
pub const UNDER_WAY_MAX: u32 = 256;
/// Pairs of a run: two clients each.
const PAIRS_MAX: u32 = IDLE_MAX / 2;

/// One thing compared: a SUT in a scenario, under a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Keys", into = "Keys")]
pub struct Configuration {
    /// Unique inside the experiment; the name of its raw files.
    pub name: String,
    pub workload: Workload,
    /// Routes installed in the SUT, the ones the workload uses included.
    pub routes: u32,
    pub placement: Placement,
    firewall: Option<FirewallRules>,
    connection_packets: Option<u32>,
    sut: Sut,
    scenario: Scenario,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Scenario {
    /// Packets are forwarded, or sealed and opened on their way.
    Forwarding { testbed: Testbed, ipsec: Option<Protection> },
    /// TCP through a tunnel between two gateways, in four namespaces.
    Gateways {
        ipsec: Option<Protection>,
        /// Hosts at the ends leave checksums and the cutting of TCP to their devices.
        offload: bool,
        /// What the outer wires do to packets in each direction, in netem's own words; empty for nothing.
        netem: String,
    },
    /// Clients of a DERP relay: in one namespace, or on two hosts driven over ssh.
    Relay { relay: RelayScenario, on_hosts: bool },
}

/// Where packets are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Testbed {
    /// Generator, pipeline and receiver in one process: this one, or that of another build of the lab.
    Memory { build: Option<String> },
    /// Three network namespaces joined by veth pairs. Several queues have flows spread over them; otherwise there is one stream.
    Netns(NicModes),
    /// Three hosts driven over ssh.
    Ssh(NicModes),
}

impl Configuration {
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Rules of the device under test's kernel.
    pub fn firewall(&self) -> Option<FirewallRules> {
        self.firewall
    }

    /// Packets of each connection, where what is measured is connections that begin and end.
    pub fn connection_packets(&self) -> Option<u32> {
        self.connection_packets
    }

    /// What is measured.
    pub fn sut(&self) -> Sut {
        self.sut
    }

    /// Whether generator and receiver are measured without a SUT.
    pub fn is_baseline(&self) -> bool {
        self.sut == Sut::Baseline
    }

    pub fn topology(&self) -> Topology {
        match &self.scenario {
            Scenario::Forwarding { testbed: Testbed::Memory { .. }, .. } => Topology::Memory,
            Scenario::Forwarding { testbed: Testbed::Netns(_), .. } => Topology::Netns,
            Scenario::Forwarding { testbed: Testbed::Ssh(_), .. } => Topology::Ssh,
            Scenario::Gateways { .. } => Topology::Gateways,
            Scenario::Relay { on_hosts: false, .. } => Topology::Relay,
            Scenario::Relay { on_hosts: true, .. } => Topology::Ssh,
        }
    }

    pub fn ipsec(&self) -> Option<Protection> {
        match self.scenario {
            Scenario::Forwarding { ipsec, .. } | Scenario::Gateways { ipsec, .. } => ipsec,
            Scenario::Relay { .. } => None,
        }
    }

    pub fn relay(&self) -> Option<RelayScenario> {
        if let Scenario::Relay { relay, .. } = self.scenario { Some(relay) } else { None }
    }

    /// Which build of the lab runs it, in a process of its own; without it, this process does.
    pub fn build(&self) -> Option<&str> {
        match &self.scenario {
            Scenario::Forwarding { testbed: Testbed::Memory { build }, .. } => build.as_deref(),
            _ => None,
        }
    }

    /// How devices are driven, where there are any.
    pub fn nic_modes(&self) -> Option<&NicModes> {
        match &self.scenario {
            Scenario::Forwarding { testbed: Testbed::Netns(modes) | Testbed::Ssh(modes), .. } => Some(modes),
            _ => None,
        }
    }

    pub fn queues(&self) -> u32 {
        self.nic_modes().map_or(0, |modes| modes.queues)
    }

    pub fn offload(&self) -> bool {
        matches!(self.scenario, Scenario::Gateways { offload: true, .. })
    }

    /// What the kernel's netem does to packets between gateways; empty for nothing.
    pub fn netem(&self) -> &str {
        if let Scenario::Gateways { netem, .. } = &self.scenario { netem } else { "" }
    }

    /// The same for the process of another build, which has none of its own to ask.
    pub fn in_this_process(&self) -> Configuration {
        let mut own = self.clone();
        if let Scenario::Forwarding { testbed: Testbed::Memory { build }, .. } = &mut own.scenario {
            *build = None;
        }
        own
    }

    /// Generator and receiver under the same load, without the SUT and what only SUTs have.
    pub fn baseline(&self) -> Configuration {
        let mut own = Configuration { sut: Sut::Baseline, firewall: None, ..self.in_this_process() };
        match &mut own.scenario {
            Scenario::Forwarding { testbed, ipsec } => {
                *ipsec = None;
                if let Testbed::Netns(modes) | Testbed::Ssh(modes) = testbed {
                    *modes = modes.of_wires();
                }
            }
            Scenario::Gateways { ipsec, .. } => *ipsec = None,
            Scenario::Relay { .. } => {}
        }
        own
    }
}

/// A configuration as files, manifests and requests have it: every key beside the other, nothing checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Keys {
    pub name: String,
    /// `subject` in manifests of before.
    #[serde(alias = "subject")]
    pub sut: Sut,
    pub topology: Topology,
    pub workload: Workload,
    pub routes: u32,
    pub placement: PlacementKeys,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipsec: Option<Protection>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<RelayScenario>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firewall: Option<FirewallRules>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_packets: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementKeys {
    pub cpus: Vec<u32>,
    pub port: String,
    pub generator_cpus: Vec<u32>,
    #[serde(flatten)]
    pub nic_modes: NicModes,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offload: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub netem: String,
}

impl From<Configuration> for Keys {
    fn from(c: Configuration) -> Keys {
        let Placement { cpus, port, generator_cpus } = c.placement.clone();
        let nic_modes = c.nic_modes().cloned().unwrap_or_default();
        let (offload, netem) = (c.offload(), c.netem().to_string());
        Keys {
            sut: c.sut,
            topology: c.topology(),
            placement: PlacementKeys { cpus, port, generator_cpus, nic_modes, offload, netem },
            ipsec: c.ipsec(),
            build: c.build().map(str::to_string),
            relay: c.relay(),
            firewall: c.firewall,
            connection_packets: c.connection_packets,
            name: c.name,
            workload: c.workload,
            routes: c.routes,
        }
    }
}

impl TryFrom<Keys> for Configuration {
    type Error = Invalid;

    fn try_from(written: Keys) -> Result<Configuration, Invalid> {
        let scenario = scenario(&written)?;
        let PlacementKeys { cpus, port, generator_cpus, .. } = written.placement;
        let placement = Placement { cpus, port, generator_cpus };
        let Keys { name, sut, workload, routes, firewall, connection_packets, .. } = written;
        Ok(Configuration { name, workload, routes, placement, firewall, connection_packets, sut, scenario })
    }
}

/// What is measured where, if the keys mean something together.
fn scenario(w: &Keys) -> Result<Scenario, Invalid> {
    let ipsec = protection(w).map_err(Invalid::Ipsec)?;
    let relay = relaying(w).map_err(Invalid::Relay)?;
    let PlacementKeys { nic_modes: modes, offload, netem, .. } = &w.placement;
    if !matches!(w.topology, Topology::Netns | Topology::Ssh) && modes.is_named() {
        return Err(Invalid::NoDevices);
    }
    if modes.of_weir().next().is_some() && w.sut != Sut::Weir {
        return Err(Invalid::NotOfWeir);
    }
    if modes.are_held() && (w.sut, w.topology) != (Sut::Kernel, Topology::Netns) {
        return Err(Invalid::NotHeld);
    }
    let kernel_has_inner_wires = match w.sut {
        Sut::Weir => w.placement.port == "tun",
        other => matches!(other, Sut::Strongswan | Sut::StrongswanKernel | Sut::Baseline),
    };
    if *offload && (w.topology != Topology::Gateways || !kernel_has_inner_wires) {
        return Err(Invalid::NoOffload);
    }
    if !netem.is_empty() && w.topology != Topology::Gateways {
        return Err(Invalid::NoNetem);
    }
    let keeps = w.topology == Topology::Netns && matches!(w.sut, Sut::Kernel | Sut::Weir | Sut::Baseline);
    if w.firewall.is_some() && (!keeps || modes.is_named() || w.ipsec.is_some()) {
        return Err(Invalid::NoFirewall);
    }
    connecting(w, keeps)?;
    if w.sut == Sut::Command && !matches!(w.topology, Topology::Netns | Topology::Ssh) {
        return Err(Invalid::CommandElsewhere);
    }
    if let Some(relay) = relay {
        return Ok(Scenario::Relay { relay, on_hosts: w.topology == Topology::Ssh });
    }
    let testbed = match w.topology {
        Topology::Relay => return Err(Invalid::Relay(RelayError::NoTable)),
        Topology::Gateways => {
            return Ok(Scenario::Gateways { ipsec, offload: *offload, netem: netem.clone() });
        }
        Topology::Memory => Testbed::Memory { build: w.build.clone() },
        Topology::Netns => Testbed::Netns(modes.clone()),
        Topology::Ssh => Testbed::Ssh(modes.clone()),
    };
    Ok(Scenario::Forwarding { testbed, ipsec })
}

/// Connections that begin and end, through a firewall.
fn connecting(w: &Keys, keeps: bool) -> Result<(), Invalid> {
    if w.connection_packets.is_none() {
        return Ok(());
    }
    let walled = w.firewall.is_some() || w.sut == Sut::Baseline;
    let plain = w.workload.family == Family::Inet && w.workload.rate == Rate::FlatOut;
    if !keeps || !walled || !plain || w.placement.nic_modes.is_named() {
        return Err(Invalid::NoConnections);
    }
    match w.workload.flows {
        flows if flows > UNDER_WAY_MAX => Err(Invalid::UnderWay { got: flows }),
        _ => Ok(()),
    }
}

/// The IPsec of weir and ipsec-secgw in memory, of VPP, and of what forwards in namespaces and on hosts; and `build`, which only weir in memory has.
fn protection(w: &Keys) -> Result<Option<Protection>, IpsecError> {
    let in_memory = w.topology == Topology::Memory;
    let of_weir = in_memory && w.sut == Sut::Weir;
    let of_vpp =
        w.sut == Sut::Vpp && (in_memory || matches!(w.topology, Topology::Netns | Topology::Gateways));
    let of_policies =
        matches!(w.topology, Topology::Netns | Topology::Ssh) && matches!(w.sut, Sut::Weir | Sut::KernelXfrm);
    let of_secgw = in_memory && w.sut == Sut::DpdkIpsecSecgw;
    if w.ipsec.is_some() && !of_weir && !of_vpp && !of_secgw && !of_policies {
        return Err(IpsecError::Elsewhere { key: "ipsec" });
    }
    if w.build.is_some() && !of_weir {
        return Err(IpsecError::Elsewhere { key: "build" });
    }
    if w.topology != Topology::Memory && w.workload.flows > FLOWS_MAX {
        return Err(IpsecError::Flows { got: w.workload.flows, most: FLOWS_MAX });
    }
    if let Some(protection) = &w.ipsec {
        check_spd(protection, of_policies || w.sut == Sut::Vpp)?;
        if w.topology == Topology::Ssh {
            on_hosts(protection, w)?;
        }
    }
    Ok(w.ipsec)
}

/// What the device under test of the topology `ssh` cannot do.
fn on_hosts(p: &Protection, w: &Keys) -> Result<(), IpsecError> {
    let plain = p.bypasses() && p.direction != Direction::In;
    match w.sut {
        Sut::KernelXfrm if !plain => Err(IpsecError::KernelSeals),
        // what of policies cannot be shown is skipped by name, as in namespaces
        _ if plain => Ok(()),
        _ => esp::check(p, &w.workload),
    }
}

/// What policies, match, rules, action and churn mean together.
fn check_spd(p: &Protection, may_bypass: bool) -> Result<(), IpsecError> {
    let spd = &p.spd;
    match spd.matching {
        Some(_) if spd.rules.is_some() => return Err(IpsecError::MatchAndRules),
        Some(matching) if matching > p.policies => {
            return Err(IpsecError::MatchBeyondPolicies { got: matching, policies: p.policies });
        }
        _ => {}
    }
    // between namespaces, and VPP's, policies let plain packets pass on their way out; what else they cannot do is
    // skipped by name
    if spd.action == Action::Bypass && p.direction == Direction::Out && !may_bypass {
        return Err(IpsecError::BypassDirection { got: p.direction });
    }
    if p.direction == Direction::Beside && (spd.rules.is_some() || spd.churn > 0) {
        return Err(IpsecError::BesideMatches);
    }
    if p.shared_sa && p.direction == Direction::In && p.replay_window > 0 {
        return Err(IpsecError::SharedReplay);
    }
    if spd.churn > 0 && p.policies < 2 {
        return Err(IpsecError::ChurnOfOne);
    }
    Ok(())
}

/// What clients of a relay do, where a relay is measured.
fn relaying(w: &Keys) -> Result<Option<RelayScenario>, RelayError> {
    let Some(relay) = w.relay else {
        return match w.sut {
            Sut::Derper | Sut::HyperDerp | Sut::TcpForwarder => Err(RelayError::IsRelay(w.sut)),
            _ => Ok(None),
        };
    };
    match w.topology {
        Topology::Relay => {}
        Topology::Ssh => relay_on_hosts(w, &relay)?,
        _ => return Err(RelayError::Elsewhere),
    }
    if w.sut == Sut::Baseline && !relay.load.has_baseline() {
        return Err(RelayError::NeedsRelay(relay.load));
    }
    let (flows, most) = (w.workload.flows, if relay.load.has_pairs() { PAIRS_MAX } else { IDLE_MAX });
    if relay.stalled > 0 && !relay.load.has_pairs() {
        return Err(RelayError::StalledWithoutSenders(relay.load));
    }
    if flows.saturating_add(relay.stalled) > most {
        return Err(RelayError::Clients { flows, stalled: relay.stalled, most });
    }
    if !relay.load.has_pairs() && w.workload.rate != Rate::FlatOut {
        return Err(RelayError::RateWithoutPackets(relay.load));
    }
    Ok(w.relay)
}

/// What a relay on hosts cannot be asked.
fn relay_on_hosts(w: &Keys, relay: &RelayScenario) -> Result<(), RelayError> {
    if w.placement.nic_modes.is_named() {
        return Err(RelayError::NicModes);
    }
    match relay.load {
        Load::SimulatedCaches => Err(RelayError::SimulatedOnHosts),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nic_modes::HELD;
    use crate::model::relay;

    const PLAIN: &str = r#"{"name": "a", "sut": "weir", "topology": "netns", "routes": 20,
        "workload": {"family": "inet", "frame": {"fixed": 64}, "flows": 10, "rate": "flat-out"},
        "placement": {"cpus": [], "port": "", "generator_cpus": [], "queues": 2, "wake_up": "busy-poll"}}"#;

    fn keys() -> Keys {
        serde_json::from_str(PLAIN).expect("keys")
    }

    #[test]
    fn a_configuration_is_written_with_the_keys_it_is_read_from() {
        let read: Configuration = serde_json::from_str(PLAIN).expect("valid");
        let expected = Scenario::Forwarding {
            testbed: Testbed::Netns(NicModes {
                queues: 2,
                wake_up: "busy-poll".into(),
                ..NicModes::default()
            }),
            ipsec: None,
        };
        assert_eq!((read.scenario(), read.sut()), (&expected, Sut::Weir));
        assert_eq!(Keys::from(read.clone()), keys());
        let written: serde_json::Value = serde_json::to_value(&read).expect("plain");
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(PLAIN).expect("plain"));
    }

    #[test]
    fn keys_that_mean_nothing_together_are_no_configuration_wherever_they_come_from() {
        let refused = |change: &dyn Fn(&mut Keys)| {
            let mut keys = keys();
            change(&mut keys);
            let invalid = Configuration::try_from(keys.clone()).expect_err("refused");
            let text = serde_json::to_string(&keys).expect("plain");
            let read = serde_json::from_str::<Configuration>(&text).expect_err("refused").to_string();
            assert!(read.contains(&invalid.to_string()) && !invalid.remedy().is_empty(), "{read}");
            invalid
        };
        assert_eq!(refused(&|k| k.topology = Topology::Memory), Invalid::NoDevices);
        let copied = |k: &mut Keys| {
            (k.topology, k.sut) = (Topology::Ssh, Sut::Command);
            k.placement.nic_modes = NicModes { zero_copy: "off".into(), ..NicModes::default() };
        };
        assert_eq!(refused(&copied), Invalid::NotOfWeir);
        assert_eq!(refused(&|k| k.sut = Sut::Kernel), Invalid::NotOfWeir);
        let held = || NicModes { moderation: HELD.into(), ..NicModes::default() };
        assert_eq!(
            refused(&|k| k.placement.nic_modes = held()),
            Invalid::NotHeld,
            "weir moderates by itself"
        );
        let mut good = keys();
        (good.sut, good.placement.nic_modes) = (Sut::Kernel, held());
        assert!(Configuration::try_from(good).is_ok());
        assert_eq!(refused(&|k| k.placement.offload = true), Invalid::NoOffload);
        assert_eq!(refused(&|k| k.placement.netem = "delay 20ms".into()), Invalid::NoNetem);
        assert_eq!(refused(&|k| k.firewall = Some(FirewallRules::Stateful)), Invalid::NoFirewall);
        let connecting = |k: &mut Keys| {
            k.placement.nic_modes = NicModes::default();
            (k.firewall, k.connection_packets) = (Some(FirewallRules::Masquerade), Some(10));
        };
        let mut good = keys();
        connecting(&mut good);
        assert!(Configuration::try_from(good).is_ok_and(|c| c.connection_packets() == Some(10)));
        for change in [
            |k: &mut Keys| k.firewall = None,
            |k: &mut Keys| k.workload.family = Family::Inet6,
            |k: &mut Keys| k.workload.rate = Rate::Pps(1),
        ] {
            let changed = |k: &mut Keys| {
                connecting(k);
                change(k);
            };
            assert_eq!(refused(&changed), Invalid::NoConnections);
        }
        let many = |k: &mut Keys| {
            connecting(k);
            k.workload.flows = UNDER_WAY_MAX + 1;
        };
        assert_eq!(refused(&many), Invalid::UnderWay { got: UNDER_WAY_MAX + 1 });
        assert_eq!(
            refused(&|k| k.relay = Some(RelayScenario::default())),
            Invalid::Relay(RelayError::Elsewhere)
        );
        assert_eq!(
            refused(&|k| k.build = Some("b".into())),
            Invalid::Ipsec(IpsecError::Elsewhere { key: "build" })
        );
        let of_relay = |k: &mut Keys, sut, relay| {
            (k.sut, k.topology, k.placement) = (sut, Topology::Relay, PlacementKeys::default());
            k.relay = relay;
        };
        let none = refused(&|k| of_relay(k, Sut::Weir, None));
        assert_eq!(none, Invalid::Relay(RelayError::NoTable));
        let idle = RelayScenario { load: relay::Load::Idle, ..RelayScenario::default() };
        let alone = refused(&|k| of_relay(k, Sut::Baseline, Some(idle)));
        assert_eq!(alone, Invalid::Relay(RelayError::NeedsRelay(relay::Load::Idle)));
    }

    #[test]
    fn a_baseline_has_nothing_that_only_suts_have() {
        let weir = Configuration::try_from(keys()).expect("valid");
        let baseline = weir.baseline();
        let wires = NicModes { queues: 2, ..NicModes::default() };
        assert_eq!((baseline.nic_modes(), baseline.is_baseline()), (Some(&wires), true));
        assert_eq!(Configuration::try_from(Keys::from(baseline.clone())), Ok(baseline));
    }
}
