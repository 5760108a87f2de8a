//! Where configurations run: each testbed in a file of its own.
//!
//! A testbed builds what a configuration asks for, is loaded once per run, and removes all it made when it
//! is dropped. What the machine lacks is said by [`Testbeds::missing`] before anything is built, so that a
//! configuration is skipped by name instead of failing half way.

pub mod gateways;
pub mod memory;
pub mod netns;
pub mod programs;
pub mod relay;
pub mod ssh;

use std::collections::BTreeMap;

use crate::experiment::Experiment;
use crate::machine::Machine;
use crate::model::{Configuration, LabError, Prepared, Scenario, Testbed, Topology};

const NO_HOSTS: &str = "ssh: the experiment names no hosts: write [hosts]; docs/ssh.md describes it";

/// Every testbed, each with what it keeps between configurations.
#[derive(Default)]
pub struct Testbeds {
    memory: memory::MemoryTestbed,
    netns: netns::NetnsTestbed,
    gateways: gateways::GatewaysTestbed,
    relay: relay::RelayTestbed,
    /// Named by experiments that measure on them.
    hosts: Option<ssh::SshTestbed>,
}

impl Testbeds {
    /// Makes the testbeds with the hosts that an experiment names, if it measures on hosts.
    pub fn of(experiment: &Experiment) -> Testbeds {
        let on_hosts = experiment.suts().any(|c| c.topology() == Topology::Ssh);
        let hosts = on_hosts.then(|| ssh::SshTestbed::new(experiment)).flatten();
        let netns = netns::NetnsTestbed::of(experiment);
        Testbeds { netns, hosts, ..Testbeds::default() }
    }

    /// What this machine lacks for `configuration`, with the remedy; `None` when it can run here. Asked
    /// once, before the first run: what is missing is skipped by name, never silently.
    pub fn missing(&mut self, configuration: &Configuration) -> Option<String> {
        match configuration.scenario() {
            Scenario::Gateways { .. } => self.gateways.missing(configuration),
            Scenario::Relay { relay, on_hosts: false } => self.relay.missing(configuration, relay),
            Scenario::Relay { on_hosts: true, .. } => match &mut self.hosts {
                Some(hosts) => hosts.missing(configuration),
                None => Some(NO_HOSTS.into()),
            },
            Scenario::Forwarding { testbed, .. } => match testbed {
                Testbed::Memory { .. } => self.memory.missing(configuration),
                Testbed::Netns(_) => self.netns.missing(configuration),
                Testbed::Ssh(_) => match &mut self.hosts {
                    Some(hosts) => hosts.missing(configuration),
                    None => Some(NO_HOSTS.into()),
                },
            },
        }
    }

    /// Builds testbed and SUT, which is not measured; they run until what is returned is dropped, which removes
    /// all that was made.
    pub fn prepare(&mut self, configuration: &Configuration) -> Result<Box<dyn Prepared>, LabError> {
        match configuration.scenario() {
            Scenario::Gateways { .. } => self.gateways.prepare(configuration),
            Scenario::Relay { relay, on_hosts: false } => self.relay.prepare(configuration, relay),
            Scenario::Relay { on_hosts: true, .. } => match &mut self.hosts {
                Some(hosts) => hosts.prepare(configuration),
                None => Err(LabError::new(NO_HOSTS.into())),
            },
            Scenario::Forwarding { testbed, .. } => match testbed {
                Testbed::Memory { .. } => self.memory.prepare(configuration),
                Testbed::Netns(_) => self.netns.prepare(configuration),
                Testbed::Ssh(_) => match &mut self.hosts {
                    Some(hosts) => hosts.prepare(configuration),
                    None => Err(LabError::new(NO_HOSTS.into())),
                },
            },
        }
    }

    /// The machines that take part beside this one, by their part; those that cannot be asked, by why.
    pub fn machines(&mut self) -> BTreeMap<String, Result<Machine, LabError>> {
        self.hosts.as_mut().map_or(BTreeMap::new(), |hosts| hosts.machines())
    }
}
