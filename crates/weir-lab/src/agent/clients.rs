//! A relay's clients on a host of their own: the generator of the topology `relay`, across a wire.
//!
//! Promises: what connecting them changed (the interface's address, settings of the host's TCP) is changed back when
//! the value is dropped. Refuses: to be on the relay's host: packets would not take the wire.

use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use weir_io::clock;

use super::protocol::relay::{ClientsReady, RelayEnd};
use super::relay::{give_address, has_address, scenario};
use super::{LOOK, await_carrier};
use crate::generator::derp::client::{self, Client, Server};
use crate::generator::derp::pairs::{Outcome, PairTraffic, Pairs};
use crate::generator::derp::visits::{Connected, Stay, Visits};
use crate::model::relay::RelayScenario;
use crate::model::{LabError, Sut};
use crate::netns::cpus::Cpus;
use crate::netns::drive::pin;
use crate::netns::namespace::Namespace;
use crate::sut::relay::ON_HOST;

/// The clients' address on the wire, beside the relay's.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 10, 0, 2);
/// Time for one connection that asks whether the relay can be reached.
const PROBE: Duration = Duration::from_secs(1);

pub struct Clients {
    // Dropped first: they leave before the host is changed back.
    pairs: Option<Pairs>,
    silent: Vec<Client>,
    visits: Option<Visits>,
    relay: RelayScenario,
    cpu: u32,
    notes: Vec<String>,
    fallbacks: Vec<String>,
    here: Namespace,
}

impl Clients {
    pub fn connect(end: &RelayEnd, within: Duration) -> Result<Clients, LabError> {
        let (configuration, name) = (&end.configuration, &end.interface.name);
        let relay = scenario(configuration)?;
        let data = configuration.workload.frame.of_relay()?;
        await_carrier(name)?;
        let cpu = Cpus::choose(&configuration.placement)?.generator;
        if has_address(ON_HOST.ip())? {
            return Err(LabError::new(
                "relay: its address is this host's too: packets would not take the wire: name two hosts"
                    .into(),
            ));
        }
        let here = Namespace::here("generator")?;
        give_address(&here, name, OWN.into())?;
        // as in a namespace: ten thousand clients of one address, again and again
        here.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
        let tcp = here.untuned()?;
        let said = format!("generator: {}", tcp.said);
        let fallbacks = tcp.fell_back.then(|| said.clone()).into_iter().collect();
        let notes = vec![format!("generator: clients on cpu {cpu}, TCP from {OWN} by {name}"), said];
        reach(configuration.sut(), within)?;
        let mut clients =
            Clients { pairs: None, silent: Vec::new(), visits: None, relay, cpu, notes, fallbacks, here };
        if relay.load.has_pairs() {
            let (sut, count) = (configuration.sut(), configuration.workload.flows);
            clients.pairs = Some(clients.on_cpu(move || Pairs::relayed(sut, ON_HOST, count, data, &relay))??);
        }
        Ok(clients)
    }

    pub fn ready(&self) -> ClientsReady {
        ClientsReady { notes: self.notes.clone(), fallbacks: self.fallbacks.clone(), cpu: self.cpu }
    }

    pub fn run(&mut self, plan: PairTraffic) -> Result<Outcome, LabError> {
        let mut pairs = self
            .pairs
            .take()
            .ok_or_else(|| LabError::new("relay: its connections ended in a run before this one".into()))?;
        let (pairs, came) = self.on_cpu(move || {
            let came = pairs.run(&plan, |_| ());
            (pairs, came)
        })?;
        let came = came?;
        self.pairs = Some(pairs);
        Ok(came)
    }

    /// Connects silent clients; how long it took, nanoseconds.
    pub fn hold(&mut self, seed: u64, count: u64) -> Result<u64, LabError> {
        let server = self.server()?;
        let began = clock::now();
        self.silent = self.on_cpu(move || client::connect(&server, seed, count))??;
        Ok(clock::now() - began)
    }

    pub fn release(&mut self) {
        self.silent.clear();
    }

    pub fn invite(&mut self, stay: Stay) -> Result<(), LabError> {
        let server = self.server()?;
        self.visits = Some(self.on_cpu(move || Visits::prepare(&server, stay))??);
        Ok(())
    }

    pub fn visit(&mut self) -> Result<Connected, LabError> {
        let visits = self.visits.take().ok_or_else(|| LabError::new("relay: nobody was invited".into()))?;
        self.on_cpu(move || visits.go(|| ()))?
    }

    fn server(&self) -> Result<Server, LabError> {
        Server::new(ON_HOST, self.relay.tls.is_on())
    }

    /// Works on the generator's CPU.
    fn on_cpu<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, LabError> {
        let cpu = self.cpu;
        self.here.run(move || pin(cpu).map(|()| work()))?
    }
}

/// Tries until the relay takes a connection: links that negotiate and bridges that learn take a while.
fn reach(sut: Sut, within: Duration) -> Result<(), LabError> {
    let until = Instant::now() + within;
    loop {
        let connected = TcpStream::connect_timeout(&ON_HOST, PROBE).and_then(|first| {
            // a forwarder joins every two connections: a single one would be half of the first pair
            let second = (sut == Sut::TcpForwarder).then(|| TcpStream::connect(ON_HOST)).transpose()?;
            Ok((first, second))
        });
        match connected {
            Ok(_) => return Ok(()),
            Err(e) if Instant::now() > until => {
                return Err(LabError::new(format!(
                    "relay: cannot be reached at {ON_HOST} in {within:?}: {e}; is the cable where [hosts] says, and does a \
                     firewall let the port in?"
                )));
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}
