//! Connections through the `netns` topology, each of a few packets: what a firewall costs that follows every one of them.
//!
//! Promises: wires, rules, CPUs and SUT as for packets; client and server are where generator and receiver are, and speak the
//! kernel's TCP as it is by itself. What counts is whole connections; how many packets one had is measured at the ends. Refuses:
//! rates, for the ends find their own; connections of which every one failed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{Device, join_ends};
use crate::experiment::hosts::Commands;
use crate::model::{Configuration, Family, LabError, Prepared, Sample, Scope, Trial};
use crate::netns::connections::{Client, Server, requests};
use crate::netns::cpus::{self, Cpus};
use crate::netns::namespace::Namespace;
use crate::netns::veth::{self, Port};
use crate::sut::kernel;
use crate::workload::address;
use weir_stats::search::{LossLedger, Rate};

/// A first connection finds its way within this: neighbours are found, a program is attached.
const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(10);

/// Wires, SUT, and the ends of connections.
pub(super) struct Connecting {
    device: Option<Device>,
    _server: Server,
    near: (Namespace, Port),
    far: (Namespace, Port),
    cpus: Cpus,
    /// Requests of each connection, and how many connections are under way at once.
    requests: (u32, u32),
    notes: Vec<String>,
}

/// What moved so far.
struct Reading {
    /// Packets that both ends sent.
    sent: u64,
    /// Those of them that TCP sent again.
    again: u64,
    /// Flows that the SUT took past the firewall.
    taken: Option<u64>,
    sut: Option<(u64, u64)>,
    ends: Option<(u64, u64)>,
}

impl Connecting {
    pub fn new(
        (configuration, packets): (&Configuration, u32),
        commands: Option<&Commands>,
        swept: Vec<String>,
    ) -> Result<Connecting, LabError> {
        let cpus = Cpus::choose(&configuration.placement)?;
        let near = (Namespace::new("client")?, Port::named("gen", 1));
        let far = (Namespace::new("server")?, Port::named("rcv", 4));
        let mut notes = swept;
        notes.extend(cpus.notes());
        let device = join_ends((configuration, commands), &cpus, &near, &far, &mut notes)?;
        address_ends(&near, &far, device.is_some())?;
        notes.extend(veth::place(&near.0, &near.1, &[cpus.generator], false)?);
        notes.extend(veth::place(&far.0, &far.1, &[cpus.receiver], false)?);
        let mut fallbacks = Vec::new();
        for (namespace, _) in [&near, &far] {
            let tcp = namespace.untuned()?;
            fallbacks.extend(tcp.fell_back.then(|| tcp.said.clone()));
            notes.push(tcp.said);
        }
        notes.dedup();
        let requests = (requests(packets), configuration.workload.flows);
        notes.push(format!(
            "connections: {} requests of 32 bytes each, answered one by one; {} connections under way at once, begun by a thread on cpu {}, \
             answered by one on cpu {}",
            requests.0, requests.1, cpus.generator, cpus.receiver
        ));
        let server = Server::start(&far.0, cpus.receiver, requests.0)?;
        Ok(Connecting { device, _server: server, near, far, cpus, requests, notes })
    }

    fn read(&mut self) -> Result<Reading, LabError> {
        let (mut sent, mut again) = (0, 0);
        for (namespace, port) in [&self.near, &self.far] {
            let text = namespace.read(&format!("/sys/class/net/{}/statistics/tx_packets", port.name))?;
            sent += text.trim().parse::<u64>().unwrap_or(0);
            let snmp = namespace.read("/proc/thread-self/net/snmp")?;
            again += kernel::in_table(&snmp, "Tcp", "RetransSegs").unwrap_or(0);
        }
        let taken = self.device.as_mut().map_or(Ok(None), |device| device.running.taken())?;
        Ok(Reading { sent, again, taken, sut: self.cpus.sut_ticks(), ends: self.cpus.load_ticks() })
    }

    /// A client whose connections pass.
    fn connect(&self) -> Result<Client, LabError> {
        let server = address::gateway(Family::Inet, 0);
        let std::net::IpAddr::V4(server) = server else {
            return Err(LabError::new("connections: the server has no IPv4 address".into()));
        };
        let client = Client::start(&self.near.0, self.cpus.generator, server, self.requests)?;
        let until = Instant::now() + READY_WITHIN;
        while client.done.whole.load(Relaxed) == 0 {
            if Instant::now() > until {
                let failed = client.done.failed.load(Relaxed);
                return Err(LabError::new(format!(
                    "connections: none was whole within {} s, {failed} failed",
                    READY_WITHIN.as_secs()
                )));
            }
            std::thread::sleep(LOOK);
        }
        Ok(client)
    }
}

/// Addresses of the ends and their ways to each other; without a device they are on one wire.
fn address_ends(near: &(Namespace, Port), far: &(Namespace, Port), routed: bool) -> Result<(), LabError> {
    let ends = [
        (near, address::generator(Family::Inet), address::IN_V4, address::OUT_V4),
        (far, address::gateway(Family::Inet, 0), address::OUT_V4, address::IN_V4),
    ];
    for ((namespace, port), own, here, there) in ends {
        let name = &port.name;
        let by = if routed { format!("via {}", here.0) } else { String::new() };
        let net = std::net::Ipv4Addr::from(u32::from(there.0) & !0xff);
        namespace.ip_batch(format!(
            "address add {own}/{} dev {name}\nroute add {net}/{} {by} dev {name}\n",
            here.1, there.1
        ))?;
    }
    Ok(())
}

impl Prepared for Connecting {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        if trial.rate != Rate::FlatOut {
            return Err(LabError::new(
                "connections: their ends find the rate: remove `rate`, use method \"mrr\"".into(),
            ));
        }
        let client = self.connect()?;
        std::thread::sleep(trial.warm_up);
        let counts = || (client.done.whole.load(Relaxed), client.done.failed.load(Relaxed));
        let (done, before, began) = (counts(), self.read()?, weir_io::clock::now());
        std::thread::sleep(trial.window);
        let (now, after, ended) = (counts(), self.read()?, weir_io::clock::now());
        drop(client);
        if let Some(ended) = self.device.as_mut().and_then(|device| device.running.ended()) {
            return Err(ended);
        }
        let (whole, failed) = (now.0 - done.0, now.1 - done.1);
        if whole == 0 {
            return Err(LabError::new(format!(
                "connections: none was whole in the window, {failed} failed: lengthen `window`"
            )));
        }
        let seconds = (ended - began) as f64 / 1e9;
        let (sent, again) = (after.sent - before.sent, after.again - before.again);
        let mut metrics = BTreeMap::from([
            ("connects_per_second".to_string(), whole as f64 / seconds),
            ("packets_per_connection".to_string(), sent as f64 / whole as f64),
            ("packets_sent_again_per_connection".to_string(), again as f64 / whole as f64),
        ]);
        let taken =
            after.taken.zip(before.taken).map(|(after, before)| (after - before) as f64 / whole as f64);
        for (name, value) in [
            ("flows_taken_per_connection", taken),
            ("sut_cpu_percent", cpus::percent(before.sut, after.sut)),
            ("generator_cpu_percent", cpus::percent(before.ends, after.ends)),
        ] {
            metrics.extend(value.map(|value| (name.to_string(), value)));
        }
        let ledger =
            LossLedger { intended: sent, offered: sent, sent, delivered: sent, ..LossLedger::default() };
        let mut notes = self.notes.clone();
        notes.push(
            "packets are those both ends sent; what was lost is in no ledger, for TCP sends it again".into(),
        );
        if failed > 0 {
            notes.push(format!("connections: {failed} failed in the window, {whole} were whole"));
        }
        let mut fallbacks = Vec::new();
        if let Some(device) = &mut self.device {
            notes.extend(device.running.warnings());
            fallbacks = device.running.fallbacks();
        }
        Ok(Sample {
            seconds,
            pps: sent as f64 / seconds,
            ledger,
            metrics,
            notes,
            fallbacks: Some(fallbacks),
            window_ns: Some((began, ended)),
            ..Sample::default()
        })
    }

    fn scope(&self) -> Option<Scope> {
        self.device.as_ref().map(|_| Scope::Cpus(self.cpus.sut.clone()))
    }
}
