//! The `ssh` topology: generator – device under test – receiver on hosts of their own.
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
mod remedy;
mod upload;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::experiment::Experiment;
use crate::experiment::hosts::{Commands, Role};
use crate::machine::Machine;
use crate::model::{Configuration, LabError, Prepared, Subject, Testbed};
use crate::sut::peer;
use deployed::Deployed;
use fleet::Fleet;

/// The hosts of one experiment.
pub struct SshTestbed {
    fleet: Option<Rc<RefCell<Fleet>>>,
    /// By configuration.
    commands: BTreeMap<String, Commands>,
}

impl SshTestbed {
    pub fn new(experiment: &Experiment) -> SshTestbed {
        let subjects = || experiment.subjects().filter(|c| c.topology == crate::model::Topology::Ssh);
        let with_weir = subjects().any(|c| c.subject == Subject::Weir);
        let fleet = experiment.hosts.clone().map(|hosts| Rc::new(RefCell::new(Fleet::new(hosts, with_weir))));
        SshTestbed { fleet, commands: experiment.commands.clone() }
    }

    /// For those who ask without an experiment: everything is missing.
    pub fn without_hosts() -> SshTestbed {
        SshTestbed { fleet: None, commands: BTreeMap::new() }
    }
}

impl Testbed for SshTestbed {
    fn missing(&mut self, configuration: &Configuration) -> Option<String> {
        let Some(fleet) = &self.fleet else {
            return Some(
                "ssh: the experiment names no hosts: write [hosts]; docs/ssh.md describes it".into(),
            );
        };
        if let Some(placeholder) = fleet.borrow().placeholder() {
            return Some(placeholder);
        }
        if peer::on_path("ssh").is_none() {
            return Some("ssh: no such program on the PATH: install the package openssh-client".into());
        }
        match configuration.subject {
            Subject::Ceiling => Some(
                "ceiling: on hosts the device under test is always between generator and receiver: measure them \
                 by a wire between the two, as a subject `command` that does nothing"
                    .into(),
            ),
            Subject::Command => None,
            _ => crate::sut::missing_on_hosts(configuration),
        }
    }

    fn prepare(&mut self, configuration: &Configuration) -> Result<Box<dyn Prepared>, LabError> {
        if let Some(missing) = self.missing(configuration) {
            return Err(LabError::new(missing));
        }
        let fleet = self.fleet.as_ref().ok_or_else(|| LabError::new("ssh: no hosts".into()))?;
        let commands = self.commands.get(&configuration.name);
        Ok(Box::new(Deployed::new(fleet.clone(), configuration, commands)?))
    }

    fn machines(&mut self) -> BTreeMap<String, Result<Machine, LabError>> {
        let Some(fleet) = &self.fleet else { return BTreeMap::new() };
        let mut fleet = fleet.borrow_mut();
        if fleet.placeholder().is_some() {
            return BTreeMap::new();
        }
        let machine =
            |fleet: &mut Fleet, role| fleet.connect(role).map(|channel| channel.hello.machine.clone());
        Role::ALL.map(|role| (role.to_string(), machine(&mut fleet, role))).into()
    }
}
