//! A relay on a host of its own: it listens on the wire to its clients.
//!
//! Promises: what starting it changed (the interface's address, settings of the host's TCP) is changed back when the
//! value is dropped. Refuses: an address that the host has already.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_io::{cpu, netlink};

use super::protocol::Counted;
use super::protocol::relay::{RelayEnd, RelayStarted, Watched};
use super::{LOOK, await_carrier, device};
use crate::model::relay::RelayScenario;
use crate::model::{Configuration, LabError, Sut};
use crate::netns::counters::cpu_ticks;
use crate::netns::namespace::Namespace;
use crate::sut::relay::{self, Environment, ON_HOST, Relaying, Ticks};
use crate::sut::{derper, tcp_forwarder, weir};
use crate::workload::address;

pub struct RelayHost {
    // Dropped first: it ends before its surroundings are changed back.
    running: Box<dyn Relaying>,
    cpus: Vec<u32>,
    /// All CPUs of the host.
    machine: Vec<u32>,
    notes: Vec<String>,
    fallbacks: Vec<String>,
    here: Namespace,
}

impl RelayHost {
    pub fn start(end: &RelayEnd) -> Result<RelayHost, LabError> {
        let (configuration, name) = (&end.configuration, &end.interface.name);
        let relay = scenario(configuration)?;
        if let Some(missing) = missing(configuration.sut(), &relay) {
            return Err(LabError::new(missing));
        }
        await_carrier(name)?;
        let topology =
            cpu::Topology::read(Path::new(cpu::SYSFS)).map_err(|e| LabError::new(e.to_string()))?;
        let machine = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let cpus = cpus(configuration, relay.workers)?;
        let here = Namespace::here("device-under-test")?;
        give_address(&here, name, address::IN_V4.0.into())?;
        let tcp = here.untuned()?;
        let fallbacks = tcp.fell_back.then(|| format!("device under test: {}", tcp.said));
        let environment = Environment { namespace: &here, cpus: &cpus, address: ON_HOST, relay };
        let running = relay::start(configuration.sut(), &environment)?
            .ok_or_else(|| LabError::new(format!("{:?}: is no relay", configuration.sut())))?;
        let list = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let mut notes = vec![format!(
            "device under test: relay on cpu {list}, at {ON_HOST}; queues and interrupts as its host has them"
        )];
        notes.push(format!("device under test: {}", tcp.said));
        notes.extend(running.notes());
        Ok(RelayHost { running, cpus, machine, notes, fallbacks: fallbacks.into_iter().collect(), here })
    }

    pub fn started(&self) -> RelayStarted {
        RelayStarted {
            notes: self.notes.clone(),
            fallbacks: self.fallbacks.clone(),
            cpus: self.cpus.clone(),
            machine: self.machine.len(),
        }
    }

    /// What it dropped so far, and what it knows to be wrong with itself.
    pub fn counters(&mut self) -> Result<Counted, LabError> {
        let drops = self.running.drops(&self.here)?;
        Ok(Counted { drops, cpu: None, warnings: self.running.warnings() })
    }

    /// Reads the CPU time at both ends of a window, or until the lab is gone.
    pub fn watch(&self, after: Duration, window: Duration, stop: &AtomicBool) -> Result<Watched, LabError> {
        let began = Instant::now();
        let wait_until = |until: Instant| {
            while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            {
                if stop.load(Ordering::Acquire) {
                    return Err(LabError::new("the lab went away".into()));
                }
                std::thread::sleep(left.min(LOOK));
            }
            Ok(())
        };
        wait_until(began + after)?;
        let opened = self.ticks();
        wait_until(began + after + window)?;
        Ok(Watched { opened, closed: self.ticks() })
    }

    fn ticks(&self) -> Ticks {
        let own = Ticks::read(&self.cpus, Some(self.running.process()));
        Ticks { machine: cpu_ticks(&self.machine), ..own }
    }

    pub fn memory(&mut self) -> Result<u64, LabError> {
        let unread = || LabError::new("relay: its memory cannot be read: has it ended?".into());
        relay::memory(self.running.process()).ok_or_else(unread)
    }

    pub fn ended(&mut self) -> Option<LabError> {
        self.running.ended()
    }
}

/// What the table `relay` says.
pub fn scenario(configuration: &Configuration) -> Result<RelayScenario, LabError> {
    configuration.relay().ok_or_else(|| LabError::new("relay: the configuration has no table `relay`".into()))
}

/// What this host lacks for a relay.
fn missing(sut: Sut, relay: &RelayScenario) -> Option<String> {
    match sut {
        Sut::Derper => derper::missing(relay.tls),
        Sut::Weir => weir::relay::missing(relay.tls),
        Sut::TcpForwarder => tcp_forwarder::missing(relay),
        _ => None,
    }
}

/// The CPUs asked for, or one a worker, each of another core.
fn cpus(configuration: &Configuration, workers: u32) -> Result<Vec<u32>, LabError> {
    let wanted = &configuration.placement.cpus;
    let mut cpus = device::cpus(wanted)?;
    if wanted.is_empty() {
        if cpus.len() < workers as usize {
            let has = cpus.len();
            return Err(LabError::new(format!(
                "relay: {workers} workers, the device under test has {has} cores: lower `workers`"
            )));
        }
        cpus.truncate(workers as usize);
    }
    Ok(cpus)
}

/// Gives an interface its address on the wire between relay and clients. One that is there already is its owner's.
pub fn give_address(here: &Namespace, interface: &str, own: IpAddr) -> Result<(), LabError> {
    if has_address(own)? {
        return Err(LabError::new(format!(
            "{own}: this host has the address already: the test wires are to have none of yours"
        )));
    }
    here.ip_batch(format!("address add {own}/{} dev {interface}\n", address::IN_V4.1))
}

pub fn has_address(wanted: IpAddr) -> Result<bool, LabError> {
    let all = netlink::addresses().map_err(|e| LabError::new(format!("interfaces: {e}")))?;
    Ok(all.iter().any(|a| a.address == wanted))
}
