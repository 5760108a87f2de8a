//! The `ssh` topology: generator – device under test – receiver on hosts of their own. A relay's clients are all on the
//! generator, and it has no receiver.
//!
//! ```text
//!        ┌──────────────── lab ────────────────┐        ssh: programs, questions, answers
//!        ▼                  ▼                   ▼
//!   generator ═══► input  device  output ═══► receiver        test interfaces: packets
//! ```
//!
//! A host needs nothing but sshd and a login as root. Each has one connection for the campaign; over it the lab
//! uploads itself (and weir) into a folder, starts it as [`crate::agent`], and asks it to work. The folder
//! goes when the connection does, whatever ended it.
//!
//! Promises: a host that does not answer fails the run under way, with the host, the step and the remedy; the
//! next run connects again. Refuses: unknown host keys, passwords, and latency between two clocks.

mod channel;
mod clocks;
mod deployed;
mod fleet;
mod relay;
mod remedy;
mod sampling;
mod upload;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::experiment::Experiment;
use crate::experiment::hosts::Commands;
use crate::machine::Machine;
use crate::model::{Configuration, LabError, Prepared, Sut, Topology};
use crate::sut::{derper, peer};
use deployed::Deployed;
use fleet::Fleet;
use relay::RelayDeployed;
use upload::Upload;

/// The hosts of one experiment.
pub struct SshTestbed {
    fleet: Rc<RefCell<Fleet>>,
    /// The commands of each configuration.
    commands: BTreeMap<String, Commands>,
}

impl SshTestbed {
    /// `None` where the experiment names no hosts.
    pub fn new(experiment: &Experiment) -> Option<SshTestbed> {
        let on_hosts = |c: &&Configuration| c.topology() == Topology::Ssh;
        let measures = |sut: Sut| experiment.suts().filter(on_hosts).any(|c| c.sut() == sut);
        let derper = measures(Sut::Derper).then(derper::program).flatten();
        let peers = derper.map(|path| ("derper", path)).into_iter().collect();
        let how = if experiment.profile > 0 { Upload::Whole } else { Upload::Loaded };
        let weir = measures(Sut::Weir).then_some(how);
        let fleet = Fleet::new(experiment.hosts.clone()?, weir, peers);
        let fleet = Rc::new(RefCell::new(fleet));
        Some(SshTestbed { fleet, commands: experiment.commands.clone() })
    }

    pub fn missing(&mut self, configuration: &Configuration) -> Option<String> {
        if let Some(placeholder) = self.fleet.borrow().placeholder() {
            return Some(placeholder);
        }
        if peer::on_path("ssh").is_none() {
            return Some("ssh: no such program on the PATH: install the package openssh-client".into());
        }
        if let Some(relay) = configuration.relay() {
            return relay::missing(configuration, &relay);
        }
        match configuration.sut() {
            Sut::Baseline => Some(
                "baseline: on hosts the device under test is always between generator and receiver: measure them \
                 by a wire between the two, as a SUT `command` that does nothing"
                    .into(),
            ),
            Sut::Command => None,
            _ => crate::sut::missing_on_hosts(configuration),
        }
    }

    pub fn prepare(&mut self, configuration: &Configuration) -> Result<Box<dyn Prepared>, LabError> {
        if let Some(missing) = self.missing(configuration) {
            return Err(LabError::new(missing));
        }
        if let Some(relay) = configuration.relay() {
            return Ok(Box::new(RelayDeployed::new(self.fleet.clone(), configuration, relay)?));
        }
        let commands = self.commands.get(&configuration.name);
        Ok(Box::new(Deployed::new(self.fleet.clone(), configuration, commands)?))
    }

    pub fn machines(&mut self) -> BTreeMap<String, Result<Machine, LabError>> {
        let mut fleet = self.fleet.borrow_mut();
        if fleet.placeholder().is_some() {
            return BTreeMap::new();
        }
        let machine =
            |fleet: &mut Fleet, role| fleet.connect(role).map(|channel| channel.hello.machine.clone());
        let roles = fleet.roles();
        roles.into_iter().map(|role| (role.to_string(), machine(&mut fleet, role))).collect()
    }
}
