//! `weir-lab agent`: the lab's hand on another host of the `ssh` topology.
//!
//! ```text
//! lab ══ ssh ══ stdin  {"do":"send",…}      one question a line, one after the other
//!               stdout {"ok":…} | {"error":{"said":"…"}}
//! ```
//!
//! Promises: an agent lives as long as its lab. When its input ends, nothing came for [`SILENCE`] (the lab
//! sends an empty line every [`BEAT`]), or a newer connection of its lab is here, it ends what it started,
//! changes back what it changed, and is gone; work that does not end is given [`GRACE`]. Refuses: a second lab
//! on the host ([`lease`]), and interfaces that carry the connection itself.

mod clients;
pub mod device;
mod enforcement;
pub mod lease;
pub mod protocol;
mod relay;
mod sampling;
mod traffic;

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, to_value};
use weir_io::{clock, interface, netlink, process};

use crate::machine::{Machine, line};
use crate::model::ipsec::HOSTS_MTU;
use crate::model::{Configuration, LabError};
use crate::netns::namespace::Namespace;
use clients::Clients;
use device::Device;
use lease::Lease;
use protocol::relay::RelayRequest;
use protocol::{Hello, Interface, Request};
use relay::RelayHost;
use sampling::Sampling;
use traffic::{Destination, Source};

/// How often a lab shows that it is there.
pub const BEAT: Duration = Duration::from_secs(5);
/// Twelve beats.
pub const SILENCE: Duration = Duration::from_secs(60);
/// Taking back a million routes takes some seconds.
const GRACE: Duration = Duration::from_secs(60);
/// Time for a cable that was just plugged in (or its driver reset) to have a carrier.
const CARRIER: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// Serves the lab at the other end of standard input and output.
pub fn serve() -> Result<ExitCode, LabError> {
    process::become_subreaper().map_err(|e| LabError::new(format!("agent: cannot adopt orphans: {e}")))?;
    let stop = Arc::new(AtomicBool::new(false));
    let (heard, news) = channel::<Input>();
    let (jobs, todo) = channel::<String>();
    let (ended, end) = channel::<()>();
    let superseded = heard.clone();
    std::thread::spawn(move || {
        let input = std::io::stdin().lock().lines().map_while(Result::ok);
        let all = input.map(|line| heard.send(Input::Line(line))).all(|sent| sent.is_ok());
        all && heard.send(Input::End).is_ok()
    });
    let stopping = stop.clone();
    std::thread::spawn(move || {
        work(&todo, &stopping, superseded);
        drop(ended);
    });
    while let Ok(Input::Line(line)) = news.recv_timeout(SILENCE) {
        if !line.trim().is_empty() && jobs.send(line).is_err() {
            break;
        }
    }
    stop.store(true, Ordering::Release);
    drop(jobs);
    // Either way the answer is an error: the worker ended, or it did not in time and ends with us.
    let _ = end.recv_timeout(GRACE);
    Ok(ExitCode::SUCCESS)
}

enum Input {
    Line(String),
    /// The lab is gone, or here by another connection.
    End,
}

fn work(todo: &Receiver<String>, stop: &Arc<AtomicBool>, superseded: Sender<Input>) {
    let mut agent = Agent {
        source: None,
        destination: None,
        device: None,
        relay: None,
        clients: None,
        sampling: None,
        quiet: Vec::new(),
        stop: stop.clone(),
        superseded,
        lease: None,
    };
    answer(to_value(hello()).map_err(|e| LabError::new(e.to_string())));
    for line in todo {
        answer(match serde_json::from_str::<Request>(&line) {
            Ok(request) => agent.handle(request),
            Err(e) => {
                Err(LabError::new(format!("not understood ({e}): do lab and agent have the same version?")))
            }
        });
    }
    // Nobody is left to hear what could not be undone.
    let _ = agent.reset();
}

/// A lab that went away is seen at the input; an answer nobody reads is no error.
fn answer(outcome: Result<Value, LabError>) {
    let line = match outcome {
        Ok(value) => serde_json::json!({ "ok": value }),
        Err(error) => serde_json::json!({ "error": error }),
    };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn hello() -> Hello {
    let boot = line("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let time = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        clock: format!("{boot} {}", time.display()),
        machine: Machine::observe(),
    }
}

struct Agent {
    source: Option<Source>,
    destination: Option<Destination>,
    device: Option<Device>,
    relay: Option<RelayHost>,
    clients: Option<Clients>,
    /// The sampling of a run that is profiled.
    sampling: Option<Sampling>,
    /// Settings of claimed interfaces, changed back when dropped.
    quiet: Vec<Namespace>,
    stop: Arc<AtomicBool>,
    superseded: Sender<Input>,
    // Dropped last: the host is free when everything is changed back.
    lease: Option<Lease>,
}

impl Agent {
    fn handle(&mut self, request: Request) -> Result<Value, LabError> {
        match request {
            Request::Lease { holder, within_ms } => {
                let (superseded, within) = (self.superseded.clone(), Duration::from_millis(within_ms));
                // An error means that the agent is ending already.
                let ring = move || drop(superseded.send(Input::End));
                self.lease = Some(lease::take(Path::new(lease::FOLDER), &holder, within, &self.stop, ring)?);
                value(())
            }
            Request::Claim { interfaces, silent } => value(self.claim(&interfaces, silent)?),
            Request::Apply(site) => {
                let device = Device::apply(*site, self.stop.clone())?;
                let applied = protocol::Applied { notes: device.notes(), fallbacks: device.fallbacks() };
                self.device = Some(device);
                value(applied)
            }
            Request::Check { within_ms } => {
                let device = self.device.as_mut().ok_or_else(|| unprepared("sut"))?;
                value(device.check(Duration::from_millis(within_ms))?)
            }
            Request::Generate(stream) => {
                let source = Source::open(&stream)?;
                let notes = source.notes().to_vec();
                self.source = Some(source);
                value(notes)
            }
            Request::Receive(stream) => {
                let destination = Destination::open(&stream)?;
                let notes = destination.notes().to_vec();
                self.destination = Some(destination);
                value(notes)
            }
            Request::Start { run } => value(self.destination()?.start(run)?),
            Request::Send(window) => {
                let source = self.source.as_mut().ok_or_else(|| unprepared("generator"))?;
                value(source.send(&window)?)
            }
            Request::Finish => value(self.destination()?.finish()?),
            Request::Counters => value(self.counters()?),
            Request::Clock => value(clock::now()),
            Request::Relay(request) => self.relay(request),
            Request::Sample { frequency_hz, expected_ms } => {
                let device = self.device.as_ref().ok_or_else(|| unprepared("sut"))?;
                let expected = Duration::from_millis(expected_ms);
                self.sampling = Some(Sampling::start(device.cpus(), frequency_hz, expected)?);
                value(())
            }
            Request::Profile { from, to } => {
                let sampling = self.sampling.take().ok_or_else(|| unprepared("sampling"))?;
                value(sampling.finish(from..to)?)
            }
            Request::Reset => value(self.reset()?),
        }
    }

    fn relay(&mut self, request: RelayRequest) -> Result<Value, LabError> {
        match request {
            RelayRequest::Start(end) => {
                let relay = RelayHost::start(&end)?;
                let started = relay.started();
                self.relay = Some(relay);
                value(started)
            }
            RelayRequest::Connect { end, within_ms } => {
                let clients = Clients::connect(&end, Duration::from_millis(within_ms))?;
                let ready = clients.ready();
                self.clients = Some(clients);
                value(ready)
            }
            RelayRequest::Watch { after_ns, window_ns } => {
                let (after, window) = (Duration::from_nanos(after_ns), Duration::from_nanos(window_ns));
                let relay = self.relay.as_ref().ok_or_else(|| unprepared("relay"))?;
                value(relay.watch(after, window, &self.stop)?)
            }
            RelayRequest::Counters => value(self.relay_host()?.counters()?),
            RelayRequest::Memory => value(self.relay_host()?.memory()?),
            RelayRequest::Ended => value(self.relay_host()?.ended()),
            RelayRequest::Run(plan) => value(self.clients()?.run(plan)?),
            RelayRequest::Hold { seed, count } => value(self.clients()?.hold(seed, count)?),
            RelayRequest::Release => {
                self.clients()?.release();
                value(())
            }
            RelayRequest::Invite(stay) => value(self.clients()?.invite(stay)?),
            RelayRequest::Visit => value(self.clients()?.visit()?),
        }
    }

    fn relay_host(&mut self) -> Result<&mut RelayHost, LabError> {
        self.relay.as_mut().ok_or_else(|| unprepared("relay"))
    }

    fn clients(&mut self) -> Result<&mut Clients, LabError> {
        self.clients.as_mut().ok_or_else(|| unprepared("clients"))
    }

    fn destination(&mut self) -> Result<&mut Destination, LabError> {
        self.destination.as_mut().ok_or_else(|| unprepared("receiver"))
    }

    /// Sets test interfaces up and names their addresses. `silent` keeps the host from sending there itself.
    fn claim(&mut self, names: &[String], silent: bool) -> Result<Vec<Interface>, LabError> {
        self.lease.as_ref().ok_or_else(|| unprepared("lease"))?;
        let failed = |e: std::io::Error| LabError::new(format!("interfaces: {e}"));
        let links = netlink::links().map_err(failed)?;
        let mut claimed = Vec::new();
        for name in names {
            let Some(link) = links.iter().find(|link| link.name == *name) else {
                let there: Vec<&str> = links.iter().filter(|l| l.ethernet).map(|l| l.name.as_str()).collect();
                return Err(LabError::new(format!("no interface {name}; there are {}", there.join(", "))));
            };
            if !link.ethernet {
                return Err(LabError::new(format!("{name}: not an Ethernet interface: name another")));
            }
            if carries_us(link.index).map_err(failed)? {
                return Err(LabError::new(format!(
                    "{name}: carries the ssh connection; test traffic would end it: name another interface"
                )));
            }
            if let Some(upper) = upper(name) {
                return Err(LabError::new(format!(
                    "{name}: carries {upper}, which test traffic would disturb: take it off or name another interface"
                )));
            }
            if silent && Path::new(&format!("/proc/sys/net/ipv6/conf/{name}")).exists() {
                let here = Namespace::here("host")?;
                here.sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1")?;
                self.quiet.push(here);
            }
            netlink::set_up(link.index)
                .map_err(|e| LabError::new(format!("{name}: cannot be set up: {e}; log in as root")))?;
            claimed.push(Interface { name: name.clone(), mac: link.mac });
        }
        Ok(claimed)
    }

    fn counters(&mut self) -> Result<protocol::Counted, LabError> {
        let mut counted = protocol::Counted::default();
        if let Some(source) = &self.source {
            counted.drops.extend(source.counters()?);
        }
        if let Some(device) = &mut self.device {
            counted.drops.extend(device.counters()?);
            counted.cpu = device.ticks();
            counted.warnings = device.warnings();
        }
        if let Some(destination) = &self.destination {
            counted.drops.extend(destination.counters()?);
        }
        Ok(counted)
    }

    /// Back to how the host was found.
    fn reset(&mut self) -> Result<(), LabError> {
        self.source = None;
        self.destination = None;
        self.clients = None;
        self.relay = None;
        self.sampling = None;
        let torn_down = self.device.take().map_or(Ok(()), Device::tear_down);
        process::end_children();
        self.quiet.clear();
        torn_down
    }
}

/// Whether the address that ssh reached us at is on this link (`SSH_CONNECTION`: client, port, our address).
fn carries_us(link: u32) -> std::io::Result<bool> {
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let Some(own) = connection.split(' ').nth(2).and_then(|a| a.split('%').next()?.parse().ok()) else {
        return Ok(false);
    };
    let own: std::net::IpAddr = own;
    Ok(netlink::addresses()?.iter().any(|a| a.link == link && a.address == own))
}

/// A bridge, bond or VLAN on top of an interface; ssh may come by it.
fn upper(name: &str) -> Option<String> {
    let entries = std::fs::read_dir(format!("/sys/class/net/{name}")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("upper_").map(str::to_string)).next()
}

/// Waits for the carrier of an interface both ends of which are up.
fn await_carrier(name: &str) -> Result<(), LabError> {
    let until = Instant::now() + CARRIER;
    loop {
        let link = netlink::link(name).map_err(|e| LabError::new(format!("{name}: {e}")))?;
        if link.is_some_and(|link| link.running) {
            return Ok(());
        }
        if Instant::now() > until {
            let waited = CARRIER.as_secs();
            return Err(LabError::new(format!(
                "{name}: no carrier after {waited} s: is its cable plugged in?"
            )));
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether an interface carries the frames of a configuration once they are sealed.
fn check_mtu(name: &str, configuration: &Configuration) -> Result<(), LabError> {
    if !configuration.ipsec().is_some_and(|p| p.seals() || p.opens()) {
        return Ok(());
    }
    let mtu = interface::Interface::open(name).and_then(|interface| interface.mtu());
    match mtu.map_err(|e| LabError::new(format!("{name}: its MTU cannot be read: {e}")))? {
        mtu if mtu as usize >= HOSTS_MTU => Ok(()),
        mtu => Err(LabError::new(format!(
            "{name}: got an MTU of {mtu}, expected {HOSTS_MTU} at least, since sealed packets are not to be cut: \
             `ip link set {name} mtu {HOSTS_MTU}`"
        ))),
    }
}

fn value<T: Serialize>(answer: T) -> Result<Value, LabError> {
    to_value(answer).map_err(|e| LabError::new(format!("agent: {e}")))
}

fn unprepared(what: &str) -> LabError {
    LabError::new(format!("agent: no {what} was prepared before it was asked for"))
}
