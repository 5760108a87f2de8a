//! The device under test on a host of its own: weir, the kernel's forwarding, or any command.
//!
//! Promises: what applying changed (addresses, routes, settings, offloads) is changed back by
//! [`Device::tear_down`] and when the value is dropped. A command's daemons are the agent's to end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use weir_io::channels::Queues;
use weir_io::cpu;
use weir_io::offload::{self, Offload};

use super::enforcement::EnforcementPoints;
use super::protocol::DeviceEnvironment;
use super::{await_carrier, check_mtu};
use crate::model::{LabError, Sut};
use crate::netns::counters::{self, Counters};
use crate::netns::namespace::Namespace;
use crate::netns::veth::Port;
use crate::sut::command::CommandSut;
use crate::sut::kernel::Kernel;
use crate::sut::kernel_xfrm::KernelXfrm;
use crate::sut::weir::Weir;
use crate::sut::xdp_fib::XdpFib;
use crate::sut::{Environment, Running};

pub struct Device {
    // Dropped first: a SUT ends before its surroundings are changed back.
    sut: Under,
    _points: EnforcementPoints,
    _offloads: Offloads,
    /// Their number as it was found is back when dropped.
    _queues: Vec<Queues>,
    input: Port,
    output: Port,
    cpus: Vec<u32>,
    /// As many as the experiment asks for, or 0.
    queues: u32,
    here: Namespace,
}

/// What forwards.
enum Under {
    Built(Box<dyn Running>),
    Command(Box<CommandSut>),
}

impl Device {
    pub fn apply(environment: DeviceEnvironment, stop: Arc<AtomicBool>) -> Result<Device, LabError> {
        let configuration = &environment.configuration;
        let port = |i: &super::Interface| Port { name: i.name.clone(), mac: i.mac, queues: 1 };
        let (input, output) = (port(&environment.input), port(&environment.output));
        check_mtu(&input.name, configuration)?;
        check_mtu(&output.name, configuration)?;
        let points = EnforcementPoints::of(&[&input, &output])?;
        let offloads = Offloads::of(&[&input, &output]);
        let here = Namespace::here("device-under-test")?;
        let cpus = cpus(&configuration.placement.cpus)?;
        let wanted = configuration.queues();
        let queues = set_queues(&[&input, &output], wanted)?;
        await_carrier(&input.name)?;
        await_carrier(&output.name)?;
        let place = Environment {
            namespace: &here,
            input: &input,
            output: &output,
            gateway_mac: environment.gateway_mac,
            cpus: &cpus,
            configuration,
        };
        let sut = match configuration.sut() {
            Sut::Kernel => Under::Built(Box::new(Kernel::start(&place)?)),
            Sut::KernelXfrm => Under::Built(Box::new(KernelXfrm::start(&place)?)),
            Sut::XdpFib => Under::Built(Box::new(XdpFib::start(&place)?)),
            Sut::Weir => Under::Built(Box::new(Weir::start(&place)?)),
            // Inside the agent's own folder, which goes with it.
            Sut::Command => {
                Under::Command(Box::new(CommandSut::apply(&environment, &std::env::temp_dir(), stop)?))
            }
            other => return Err(LabError::new(format!("{other:?}: not a SUT of the ssh topology"))),
        };
        let (_points, _offloads, _queues) = (points, offloads, queues);
        Ok(Device { sut, _points, _offloads, _queues, input, output, cpus, queues: wanted, here })
    }

    pub fn fallbacks(&self) -> Vec<String> {
        if let Under::Built(sut) = &self.sut { sut.fallbacks() } else { Vec::new() }
    }

    pub fn notes(&self) -> Vec<String> {
        let cpus = self.cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let queues = if self.queues == 0 { "queues and interrupts" } else { "interrupts" };
        let mut notes = vec![format!("device under test: SUT on cpu {cpus}; {queues} as its host has them")];
        if let Under::Built(sut) = &self.sut {
            notes.extend(sut.notes());
        }
        notes
    }

    /// Asks the SUT whether it is well, again and again.
    pub fn check(&mut self, within: Duration) -> Result<(), LabError> {
        match &mut self.sut {
            Under::Built(_) => Ok(()),
            Under::Command(sut) => sut.check(within),
        }
    }

    /// Drop counters of both ports and of the SUT, cumulative.
    pub fn counters(&mut self) -> Result<Counters, LabError> {
        let mut all = Counters::new();
        for (role, port) in [("din", &self.input), ("dout", &self.output)] {
            all.extend(counters::port(role, &self.here, port)?);
            all.extend(counters::missed(role, &port.name));
        }
        all.extend(match &mut self.sut {
            Under::Built(sut) => sut.drops(&self.here)?,
            Under::Command(sut) => sut.counters()?,
        });
        Ok(all)
    }

    /// (busy, all) clock ticks of the SUT's CPUs.
    pub fn ticks(&self) -> Option<(u64, u64)> {
        counters::cpu_ticks(&self.cpus)
    }

    /// Where the SUT works.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    pub fn warnings(&mut self) -> Vec<String> {
        if let Under::Built(sut) = &mut self.sut { sut.warnings() } else { Vec::new() }
    }

    /// Ends it as dropping does, and returns what went wrong.
    pub fn tear_down(mut self) -> Result<(), LabError> {
        match &mut self.sut {
            Under::Built(_) => Ok(()),
            Under::Command(sut) => sut.tear_down(),
        }
    }
}

/// Has each port receive on so many queues; 0 leaves them as they are.
fn set_queues(ports: &[&Port], wanted: u32) -> Result<Vec<Queues>, LabError> {
    let mut set = Vec::new();
    for port in ports.iter().filter(|_| wanted > 0) {
        let queues = Queues::set(&port.name, wanted).map_err(|e| {
            LabError::new(format!("queues: {}: {e}; see `ethtool -l {}`", port.name, port.name))
        })?;
        set.extend(queues);
    }
    Ok(set)
}

/// The CPUs asked for, or one of each physical core: the host has nothing else to do.
pub(super) fn cpus(wanted: &[u32]) -> Result<Vec<u32>, LabError> {
    let topology = cpu::Topology::read(Path::new(cpu::SYSFS)).map_err(|e| LabError::new(e.to_string()))?;
    if wanted.is_empty() {
        return Ok(cpu::Placement::by_core(&topology, None).cpus);
    }
    let placement = cpu::Placement::explicit(&topology, wanted);
    placement.map(|p| p.cpus).map_err(|e| LabError::new(format!("placement: {e}")))
}

/// Offloads as they were found, put back when dropped.
struct Offloads(Vec<(String, Offload, bool)>);

impl Offloads {
    fn of(ports: &[&Port]) -> Offloads {
        let all = ports.iter().flat_map(|port| Offload::ALL.map(|offload| (port.name.clone(), offload)));
        // What cannot be read cannot be changed either.
        Offloads(
            all.filter_map(|(name, what)| offload::is_on(&name, what).ok().map(|on| (name, what, on)))
                .collect(),
        )
    }
}

impl Drop for Offloads {
    fn drop(&mut self) {
        for (name, what, on) in &self.0 {
            if offload::is_on(name, *what).is_ok_and(|now| now != *on) {
                // A device that is gone needs nothing put back.
                let _ = offload::set(name, *what, *on);
            }
        }
    }
}
