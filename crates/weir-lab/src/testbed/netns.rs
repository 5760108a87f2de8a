//! The `netns` topology: generator – device under test – receiver, in namespaces joined by veth pairs.
//!
//! ```text
//!   generator ns        device-under-test ns         receiver ns
//!   gen ════════════ din ─► SUT ─► dout ════════════ rcv          baseline: gen ════════════ rcv
//! ```
//!
//! Promises: every SUT stands on the same wires with the same settings, CPUs and generator; what each
//! hop lost in the window is in the ledger by the name of its counter; everything made is gone when it is
//! dropped, and what a killed lab left is removed by the next.
//!
//! Refuses: to hide a fallback. What could not be had (a pinned NAPI thread, AF_XDP) is in the notes.

mod connecting;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use crate::experiment::hosts::Commands;
use crate::experiment::{Experiment, kebab};
use crate::generator::{TrafficSpec, Transmitter};
use crate::model::{Configuration, LabError, NicModes, Prepared, Sample, Scope, Sut, Trial};
use crate::netns::counters::{self, Counters};
use crate::netns::cpus::{self, Cpus};
use crate::netns::drive::{self, Course, Driven, Wired};
use crate::netns::flows;
use crate::netns::namespace::Namespace;
use crate::netns::open::{open_collector, open_spreading, open_transmitter};
use crate::netns::residue::Sweep;
use crate::netns::veth::{self, Port};
use crate::receiver::{Collector, Form};
use crate::sut::command::local::LocalCommand;
use crate::sut::kernel::{self, Kernel};
use crate::sut::kernel_xfrm::KernelXfrm;
use crate::sut::vpp::Vpp;
use crate::sut::weir::Weir;
use crate::sut::xdp_fib::XdpFib;
use crate::sut::{Environment, Running, l3fwd, peer, testpmd};
use crate::workload::{Link, Traffic};
use connecting::Connecting;
use weir_io::interface::HeldInterrupts;
use weir_io::offload::{self, Offload};
use weir_stats::search::Rate;

#[derive(Debug, Default)]
pub struct NetnsTestbed {
    sweep: Sweep,
    /// The commands of each configuration.
    commands: BTreeMap<String, Commands>,
}

impl NetnsTestbed {
    pub fn of(experiment: &Experiment) -> NetnsTestbed {
        NetnsTestbed { commands: experiment.commands.clone(), ..NetnsTestbed::default() }
    }

    pub fn missing(&mut self, configuration: &Configuration) -> Option<String> {
        if configuration.placement.port == "tun" {
            return Some("netns: its ports are wires: use port = \"af_xdp\" or \"af_packet\"".into());
        }
        if configuration.firewall().is_some() && Command::new("nft").arg("--version").output().is_err() {
            return Some("netns: `firewall` needs nft (the package nftables)".into());
        }
        cpus::missing_privilege().or_else(|| crate::sut::missing(configuration))
    }

    pub fn prepare(&mut self, configuration: &Configuration) -> Result<Box<dyn Prepared>, LabError> {
        let missing = self.missing(configuration);
        let commands = self.commands.get(&configuration.name);
        self.sweep.deploy(missing, |swept| {
            Ok(match configuration.connection_packets() {
                Some(packets) => {
                    Box::new(Connecting::new((configuration, packets), commands, swept)?) as Box<dyn Prepared>
                }
                None => Box::new(Deployed::new(configuration, commands, swept)?),
            })
        })
    }
}

/// The device under test: its namespace, its ends of the wires, and what forwards between them.
struct Device {
    // Dropped first: a SUT ends before its namespace does.
    running: Box<dyn Running>,
    input: Port,
    output: Port,
    namespace: Namespace,
    _held: Vec<HeldInterrupts>,
}

impl Drop for Device {
    fn drop(&mut self) {
        self.running.tear_down(&self.namespace);
    }
}

/// Wires, SUT, generator and receiver of one configuration.
struct Deployed {
    sut: Sut,
    device: Option<Device>,
    transmitter: Box<dyn Transmitter>,
    collector: Box<dyn Collector>,
    near: (Namespace, Port),
    far: (Namespace, Port),
    cpus: Cpus,
    traffic: Traffic,
    notes: Vec<String>,
    /// Number of the last run; the packets carry it.
    run: u8,
    /// Metrics of the CPUs at work in the last window.
    busy: [(&'static str, Option<f64>); 2],
}

impl Deployed {
    fn new(
        configuration: &Configuration,
        commands: Option<&Commands>,
        swept: Vec<String>,
    ) -> Result<Deployed, LabError> {
        let cpus = Cpus::choose(&configuration.placement)?;
        let queues = configuration.queues();
        let near = (Namespace::new("generator")?, Port::named("gen", 1).queues(queues));
        let far = (Namespace::new("receiver")?, Port::named("rcv", 4).queues(queues));
        let mut notes = swept;
        notes.extend(cpus.notes());
        let device = join_ends((configuration, commands), &cpus, &near, &far, &mut notes)?;
        // The receiver's reception runs before the busy generator it may share a CPU with: otherwise a
        // scheduler's slice (3 ms) would overflow a ring of 256.
        notes.extend(veth::place(&near.0, &near.1, &[cpus.generator], false)?);
        notes.extend(veth::place(&far.0, &far.1, &[cpus.receiver], true)?);
        let link = Link {
            source: near.1.mac,
            destination: device.as_ref().map_or(far.1.mac, |device| device.input.mac),
        };
        let traffic = Traffic::new(&configuration.workload, configuration.routes, link)?;
        notes.extend(traffic.notes().iter().cloned());
        let transmitter = match queues {
            0 => open_transmitter(&near, &traffic, &mut notes)?,
            _ => open_spreading(&near, &traffic)?,
        };
        let collector = open_collector(&far, Form::of(configuration), &mut notes)?;
        notes.push(format!("generator: {}; receiver: {}", transmitter.name(), collector.name()));
        let busy = ["sut_cpu_percent", "generator_cpu_percent"].map(|name| (name, None));
        let sut = configuration.sut();
        Ok(Deployed { sut, device, transmitter, collector, near, far, cpus, traffic, notes, run: 0, busy })
    }
}

impl Wired for Deployed {
    type Reading = Counters;

    fn drive(&mut self, rate: Rate, window: Duration, seed: u64) -> Result<Driven, LabError> {
        self.run = self.run.wrapping_add(1);
        let plan = TrafficSpec { rate, window, run: self.run };
        let (home, cpus) = (Some(self.near.0.path()), &self.cpus);
        let (transmitter, collector) = (self.transmitter.as_mut(), self.collector.as_mut());
        let course = Course { plan, seed, flows: self.traffic.flows(), cpus, home };
        let (sut, load) = (cpus.sut_ticks(), cpus.load_ticks());
        let driven = drive::drive(transmitter, collector, course)?;
        let (sut_after, load_after) = (cpus.sut_ticks(), cpus.load_ticks());
        self.busy = [
            ("sut_cpu_percent", cpus::percent(sut, sut_after)),
            ("generator_cpu_percent", cpus::percent(load, load_after)),
        ];
        Ok(driven)
    }

    fn read(&mut self) -> Result<Counters, LabError> {
        let mut all = counters::backlog(&self.far.0)?;
        let near = counters::port("gen", &self.near.0, &self.near.1)?;
        // A refusal the transmitter was told of is a packet not sent, so not a packet lost.
        if !self.transmitter.sees_refusals() {
            all.extend(near);
        }
        if let Some(device) = &mut self.device {
            all.extend(counters::port("din", &device.namespace, &device.input)?);
            all.extend(counters::port("dout", &device.namespace, &device.output)?);
            all.extend(device.running.drops(&device.namespace)?);
        }
        all.extend(counters::port("rcv", &self.far.0, &self.far.1)?);
        Ok(all)
    }

    fn drops(reading: &Counters) -> &Counters {
        reading
    }
}

/// Joins quiet ends: by a wire where nothing is measured, else by the device under test.
fn join_ends(
    (configuration, commands): (&Configuration, Option<&Commands>),
    cpus: &Cpus,
    near: &(Namespace, Port),
    far: &(Namespace, Port),
    notes: &mut Vec<String>,
) -> Result<Option<Device>, LabError> {
    // What the ends would say by themselves (router solicitations, reports) is not part of the test.
    for (namespace, _) in [near, far] {
        namespace.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
        namespace.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    }
    if configuration.is_baseline() {
        veth::lay((&near.0, &near.1), (&far.0, &far.1))?;
        return Ok(None);
    }
    deploy_device((configuration, commands), cpus, near, far, notes).map(Some)
}

/// Namespace, wires and SUT of the device under test.
fn deploy_device(
    (configuration, commands): (&Configuration, Option<&Commands>),
    cpus: &Cpus,
    near: &(Namespace, Port),
    far: &(Namespace, Port),
    notes: &mut Vec<String>,
) -> Result<Device, LabError> {
    let namespace = Namespace::new("device-under-test")?;
    let queues = configuration.queues();
    let (input, output) = (Port::named("din", 2).queues(queues), Port::named("dout", 3).queues(queues));
    // Before any device exists, so that none asks the wire for its addresses.
    namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    // Nor repeats its multicast reports within the hour: one that met a full ring would count as a loss of the test's.
    for version in ["mldv1", "mldv2"] {
        let interval = format!("net/ipv6/conf/default/{version}_unsolicited_report_interval");
        namespace.sysctl(&interval, "3600000")?;
    }
    veth::lay((&near.0, &near.1), (&namespace, &input))?;
    veth::lay((&namespace, &output), (&far.0, &far.1))?;
    let environment = Environment {
        namespace: &namespace,
        input: &input,
        output: &output,
        gateway_mac: far.1.mac,
        cpus: &cpus.sut,
        configuration,
    };
    let rules = configuration.firewall();
    if let Some(rules) = rules {
        // Both ends of the wires take what XDP sends.
        for (namespace, port) in [near, far] {
            let name = port.name.clone();
            let set = namespace.run(move || offload::set(&name, Offload::Gro, true))?;
            set.map_err(|e| LabError::new(format!("{}: GRO cannot be switched on: {e}", port.name)))?;
        }
        kernel::configure(&environment)?;
        flows::prepare(&namespace, (&input, &output), near.1.mac, rules)?;
    }
    let mut running: Box<dyn Running> = match configuration.sut() {
        Sut::Kernel => Box::new(Kernel::start(&environment)?),
        Sut::KernelXfrm => Box::new(KernelXfrm::start(&environment)?),
        Sut::XdpFib => Box::new(XdpFib::start(&environment)?),
        Sut::Weir => Box::new(Weir::start(&environment)?),
        Sut::Command => Box::new(LocalCommand::start(&environment, commands)?),
        Sut::DpdkTestpmd => testpmd::start(&environment)?,
        Sut::DpdkL3fwd => l3fwd::start(&environment)?,
        Sut::Vpp => Box::new(Vpp::start(&environment)?),
        other => return Err(LabError::new(format!("{other:?}: not a SUT of the netns topology"))),
    };
    // Connections make their own.
    if let Some(rules) = rules.filter(|_| configuration.connection_packets().is_none()) {
        flows::establish(&namespace, configuration, rules)?;
        running.await_flows(configuration.workload.flows)?;
    }
    // After the SUT: switching GRO off and attaching XDP makes a veth's NAPI thread anew, on any CPU.
    for port in [&input, &output] {
        notes.extend(veth::place(&namespace, port, &cpus.sut, false)?);
    }
    let held = match configuration.nic_modes().is_some_and(NicModes::are_held) {
        true => vec![veth::hold(&namespace, &input)?, veth::hold(&namespace, &output)?],
        false => Vec::new(),
    };
    notes.extend(running.notes());
    Ok(Device { running, input, output, namespace, _held: held })
}

impl Prepared for Deployed {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let measured = drive::measure(self, trial);
        // one that ended has forwarded part of a window: no value, but a finding
        if let Some(ended) = self.device.as_mut().and_then(|device| device.running.ended()) {
            return Err(ended);
        }
        let (mut sample, _) = measured?;
        let nothing = sample.ledger.sent > 0 && sample.ledger.delivered == 0;
        // of a burst all may be lost
        if nothing && self.device.is_some() && !matches!(trial.rate, Rate::Burst(_)) {
            return Err(peer::delivered_nothing(&kebab(&self.sut), &sample.ledger));
        }
        for (name, percent) in self.busy {
            sample.metrics.extend(percent.map(|p| (name.to_string(), p)));
        }
        if let Some(device) = &mut self.device {
            sample.notes.extend(device.running.warnings());
        }
        sample.notes.splice(0..0, self.notes.iter().cloned());
        sample.fallbacks = Some(self.device.as_ref().map_or(Vec::new(), |device| device.running.fallbacks()));
        Ok(sample)
    }

    fn scope(&self) -> Option<Scope> {
        self.device.as_ref().map(|_| Scope::Cpus(self.cpus.sut.clone()))
    }
}
