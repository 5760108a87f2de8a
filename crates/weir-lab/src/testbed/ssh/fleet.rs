//! The connections of a campaign: made when first needed, made again when they broke.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::channel::Channel;
use super::upload::{Program, Upload};
use crate::agent::lease::LeaseHolder;
use crate::agent::protocol::Request;
use crate::experiment::hosts::{Host, Hosts, Role, Timeouts};
use crate::machine::line;
use crate::model::LabError;
use crate::sut::weir;

pub struct Fleet {
    hosts: Hosts,
    /// How weir goes along to the device under test, if it does.
    weir: Option<Upload>,
    /// Programs of others that go along to it, where this machine has them.
    peers: Vec<(&'static str, PathBuf)>,
    /// Channels in the order of [`Role::ALL`].
    channels: [Option<Channel>; 3],
    /// Read once: what runs here may be built anew meanwhile.
    programs: Option<Vec<Program>>,
    /// How agents know this lab from others.
    lab: String,
    /// Made so far.
    connections: u32,
    /// What went wrong where nobody listened; told with the next sample.
    pub warnings: Vec<String>,
}

impl Fleet {
    pub fn new(hosts: Hosts, weir: Option<Upload>, peers: Vec<(&'static str, PathBuf)>) -> Fleet {
        let random = line("/proc/sys/kernel/random/uuid");
        Fleet {
            hosts,
            weir,
            peers,
            channels: [None, None, None],
            programs: None,
            lab: random.unwrap_or_else(whence),
            connections: 0,
            warnings: Vec::new(),
        }
    }

    pub fn placeholder(&self) -> Option<String> {
        self.hosts.placeholder()
    }

    pub fn limits(&self) -> Timeouts {
        self.hosts.timeouts
    }

    /// Roles that have a host.
    pub fn roles(&self) -> Vec<Role> {
        Role::ALL.into_iter().filter(|role| self.hosts.host(*role).is_some()).collect()
    }

    /// Test interfaces of a host, in the direction of the packets.
    pub fn interfaces(&self, role: Role) -> Vec<String> {
        self.hosts.host(role).map(Host::interfaces).unwrap_or_default()
    }

    /// The connection to a host, made anew if it broke.
    pub fn connect(&mut self, role: Role) -> Result<&mut Channel, LabError> {
        let at = role as usize;
        if !self.channels[at].as_mut().is_some_and(Channel::alive) {
            self.channels[at] = None;
            let programs = self.programs()?;
            self.connections += 1;
            let (lab, connection) = (self.lab.clone(), self.connections);
            let holder = LeaseHolder { lab, whence: whence(), part: role, connection };
            let along = if role == Role::DeviceUnderTest { &programs[..] } else { &programs[..1] };
            let host = self.hosts.host(role);
            let host = host.ok_or_else(|| LabError::new(format!("hosts.{role}: is not named: name it")))?;
            let channel = Channel::open(holder, host, along, &self.hosts.timeouts)?;
            return Ok(self.channels[at].insert(channel));
        }
        self.channel(role)
    }

    /// The connection as it is: an agent that was lost has lost what was prepared.
    pub fn channel(&mut self, role: Role) -> Result<&mut Channel, LabError> {
        let lost = || LabError::new(format!("{role}: the connection was lost; the next run connects again"));
        self.channels[role as usize].as_mut().ok_or_else(lost)
    }

    pub fn ask<T: DeserializeOwned>(
        &mut self,
        role: Role,
        step: &str,
        request: &Request,
        within: Duration,
    ) -> Result<T, LabError> {
        self.channel(role)?.ask(step, request, within)
    }

    /// Hosts back to how they were found. One that cannot is given up: its agent ends and cleans up.
    pub fn reset(&mut self, roles: &[Role]) {
        let within = self.hosts.timeouts.teardown.0 + self.hosts.timeouts.answer.0;
        for &role in roles {
            if self.channel(role).is_ok_and(|channel| channel.alive())
                && let Err(e) = self.ask::<()>(role, "teardown", &Request::Reset, within)
            {
                self.warnings.push(format!("after the run before: {e}"));
            }
        }
    }

    fn programs(&mut self) -> Result<Vec<Program>, LabError> {
        if let Some(programs) = &self.programs {
            return Ok(programs.clone());
        }
        // The kernel's name for what runs now, also after it was built anew; in another process' words.
        let own = format!("/proc/{}/exe", std::process::id());
        let mut programs = vec![Program::new("weir-lab", Path::new(&own), Upload::Loaded)?];
        if let Some((how, weir)) = self.weir.zip(weir::program()) {
            programs.push(Program::new("weir", &weir, how)?);
        }
        for (name, path) in &self.peers {
            programs.push(Program::new(name, path, Upload::Loaded)?);
        }
        Ok(self.programs.insert(programs).clone())
    }
}

/// Where this lab runs, for whom it is in the way of.
fn whence() -> String {
    let host = line("/proc/sys/kernel/hostname").unwrap_or_else(|| "a host without a name".into());
    format!("process {} on {host}", std::process::id())
}
