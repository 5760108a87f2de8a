//! Generator and receiver on hosts of their own: the lab's, with its two ends far apart.
//!
//! Refuses: the receiver's XDP program on a device with several receive queues (its counters are one CPU's);
//! it falls back to a packet socket and says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_io::cipher;
use weir_io::packet_socket::PacketSocket;

use super::protocol::{Arrived, Sent, Stream, Window};
use super::{await_carrier, check_mtu};
use crate::generator::packet::PacketTransmitter;
use crate::generator::sealed::Sealer;
use crate::generator::{TrafficSpec, Transmitter};
use crate::model::{LabError, Protection};
use crate::netns::counters::{self, Counters};
use crate::netns::cpus::Cpus;
use crate::netns::drive::{self, Course, Receiver};
use crate::netns::namespace::Namespace;
use crate::netns::open::{open_collector, open_transmitter};
use crate::netns::veth::Port;
use crate::receiver::packet::PacketCollector;
use crate::receiver::{Collector, Form, Tally};
use crate::workload::esp::Encapsulation;
use crate::workload::sa::SaPlan;
use crate::workload::{Link, Traffic};

pub struct Source {
    transmitter: Box<dyn Transmitter>,
    flows: u32,
    cpus: Cpus,
    home: (Namespace, Port),
    notes: Vec<String>,
}

impl Source {
    pub fn open(stream: &Stream) -> Result<Source, LabError> {
        let (configuration, interface) = (&stream.configuration, &stream.interface);
        await_carrier(&interface.name)?;
        check_mtu(&interface.name, configuration)?;
        let cpus = Cpus::choose(&configuration.placement)?;
        let link = Link { source: interface.mac, destination: stream.destination };
        let traffic = Traffic::new(&configuration.workload, configuration.routes, link)?;
        let mut notes = traffic.notes().to_vec();
        let home = (Namespace::here("generator")?, port(stream));
        let transmitter = match configuration.ipsec().filter(|p| p.opens()) {
            Some(p) => open_sealed(&p, &traffic, (&interface.name, link), &mut notes)?,
            None => open_transmitter(&home, &traffic, &mut notes)?,
        };
        notes.push(format!("generator: {} on cpu {}", transmitter.name(), cpus.generator));
        Ok(Source { transmitter, flows: traffic.flows(), cpus, home, notes })
    }

    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    pub fn send(&mut self, window: &Window) -> Result<Sent, LabError> {
        let plan = TrafficSpec {
            rate: window.rate,
            window: Duration::from_nanos(window.window_ns),
            run: window.run,
        };
        let course = Course { plan, seed: window.seed, flows: self.flows, cpus: &self.cpus, home: None };
        let transmitter = self.transmitter.as_mut();
        // A thread of its own: it stays bound to its CPU.
        let sent =
            std::thread::scope(|scope| scope.spawn(|| drive::generate(transmitter, course, None)).join());
        let sent = sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let (intended, began, took, behind_max) = (sent.intended, sent.began, sent.took, sent.behind_max);
        let (offered, sent) = (sent.counts.offered, sent.counts.sent);
        Ok(Sent { intended, offered, sent, began, took, behind_max })
    }

    /// Empty where a refusal is a packet not sent, so not a packet lost.
    pub fn counters(&self) -> Result<Counters, LabError> {
        if self.transmitter.sees_refusals() {
            return Ok(Counters::new());
        }
        counters::port("gen", &self.home.0, &self.home.1)
    }
}

/// A generator that seals what it sends.
fn open_sealed(
    p: &Protection,
    traffic: &Traffic,
    (name, link): (&str, Link),
    notes: &mut Vec<String>,
) -> Result<Box<dyn Transmitter>, LabError> {
    let plan = SaPlan::new(p, 0);
    let cipher = plan.cipher(cipher::best().as_ref())?;
    let socket = PacketSocket::sender(name)
        .map_err(|e| LabError::new(format!("generator: no packet socket on {name}: {e}")))?;
    notes.push(format!(
        "generator: seals every packet ({}, {}); latency begins before a batch is sealed",
        plan.suite,
        cipher.backend()
    ));
    let sealer = Sealer::new(Encapsulation::new(&plan, link), cipher);
    Ok(Box::new(PacketTransmitter::sealing(socket, traffic.clone(), sealer)))
}

pub struct Destination {
    /// The collector; the thread has it while it collects.
    collector: Option<Box<dyn Collector>>,
    collecting: Option<Collecting>,
    form: Form,
    cpu: u32,
    home: (Namespace, Port),
    notes: Vec<String>,
}

struct Collecting {
    tally: Option<Tally>,
    /// The collecting thread; none where the kernel counts.
    thread: Option<JoinHandle<Collected>>,
    sending: Arc<AtomicBool>,
}

type Collected = (Box<dyn Collector>, Result<Tally, LabError>);

impl Destination {
    pub fn open(stream: &Stream) -> Result<Destination, LabError> {
        let (configuration, name) = (&stream.configuration, &stream.interface.name);
        await_carrier(name)?;
        check_mtu(name, configuration)?;
        let cpu = Cpus::choose(&configuration.placement)?.receiver;
        let form = Form::of(configuration);
        let home = (Namespace::here("receiver")?, port(stream));
        let mut notes = Vec::new();
        let queues = counters::receive_queues(name);
        let collector = if queues > 1 {
            notes.push(format!(
                "receiver: {name} has {queues} receive queues: falls back to af_packet (`ethtool -L {name} combined 1` \
                 lets an XDP program count)"
            ));
            let socket = PacketSocket::receiver(name)
                .map_err(|e| LabError::new(format!("receiver: no packet socket on {name}: {e}")))?;
            Box::new(PacketCollector::new(socket, form))
        } else {
            open_collector(&home, form, &mut notes)?
        };
        notes.push(format!("receiver: {} on cpu {cpu}", collector.name()));
        if matches!(form, Form::Sealed(_)) {
            notes.push(
                "receiver: counts ESP by SPI and sequence number; sealed packets tell no time, so no latency is reported".into(),
            );
        }
        Ok(Destination { collector: Some(collector), collecting: None, form, cpu, home, notes })
    }

    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Packets of `run` count from now on.
    pub fn start(&mut self, run: u8) -> Result<(), LabError> {
        self.stop_collecting();
        let mut collector = self.collector.take().ok_or_else(lost)?;
        let fresh = collector.start(run).and_then(|()| collector.lost());
        let tally = Tally::new(run, self.form.flows());
        let sending = Arc::new(AtomicBool::new(true));
        if let Err(e) = fresh {
            self.collector = Some(collector);
            return Err(LabError::new(format!("receiver: {e}")));
        }
        if collector.in_kernel() {
            self.collector = Some(collector);
            self.collecting = Some(Collecting { tally: Some(tally), thread: None, sending });
            return Ok(());
        }
        let (cpu, go_on) = (self.cpu, sending.clone());
        let thread = std::thread::spawn(move || collect(collector, tally, cpu, &go_on));
        self.collecting = Some(Collecting { tally: None, thread: Some(thread), sending });
        Ok(())
    }

    /// Waits until nothing comes any more.
    pub fn finish(&mut self) -> Result<Arrived, LabError> {
        let tally = self.stop_collecting().ok_or_else(lost)??;
        let collector = self.collector.as_mut().ok_or_else(lost)?;
        let mut receiver = Receiver { collector: collector.as_mut(), tally };
        receiver.collect_until_quiet()?;
        let t = receiver.tally;
        let lost = collector.lost().map_err(|e| LabError::new(format!("receiver: {e}")))?;
        Ok(Arrived {
            delivered: t.delivered,
            duplicated: t.duplicated,
            reordered: t.reordered,
            beyond_memory: t.beyond_memory,
            lost,
            last_arrival: t.last_arrival,
            latencies: t
                .latency
                .iter_recorded()
                .map(|v| (v.value_iterated_to(), v.count_at_value()))
                .collect(),
        })
    }

    fn stop_collecting(&mut self) -> Option<Result<Tally, LabError>> {
        let collecting = self.collecting.take()?;
        collecting.sending.store(false, Ordering::Release);
        let Some(thread) = collecting.thread else { return collecting.tally.map(Ok) };
        let (collector, tally) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.collector = Some(collector);
        Some(tally)
    }

    pub fn counters(&self) -> Result<Counters, LabError> {
        let mut all = counters::backlog(&self.home.0)?;
        all.extend(counters::port("rcv", &self.home.0, &self.home.1)?);
        all.extend(counters::missed("rcv", &self.home.1.name));
        Ok(all)
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // Whatever was collected is of no use any more.
        let _ = self.stop_collecting();
    }
}

fn collect(mut collector: Box<dyn Collector>, tally: Tally, cpu: u32, go_on: &AtomicBool) -> Collected {
    let mut receiver = Receiver { collector: collector.as_mut(), tally };
    let mut outcome = drive::pin(cpu);
    while outcome.is_ok() && go_on.load(Ordering::Relaxed) {
        outcome = receiver.step();
    }
    let tally = outcome.map(|()| receiver.tally);
    (collector, tally)
}

fn port(stream: &Stream) -> Port {
    Port { name: stream.interface.name.clone(), mac: stream.interface.mac, queues: 1 }
}

fn lost() -> LabError {
    LabError::new("receiver: asked for what it collected before it was asked to collect".into())
}
