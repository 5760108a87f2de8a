//! Many clients connected at once, a few of them on their way at a time.
//!
//! Promises: one thread, one epoll; a client that does not get through within [`WITHIN`] is an error that says
//! how far it came. Refuses: more clients than descriptors; the limit is raised as far as it may be.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use weir_core::time::Nanos;
use weir_io::clock;

use super::dial::{Dial, Identity, Progress};
use super::tls::Trusting;
use super::wire::{self, Wire};
use crate::model::LabError;

/// Handshakes under way at a time, where they are not what is measured: far below a listener's backlog.
const AT_ONCE: usize = 32;
/// Time for a step of the handshake: the relay's own limit.
const WITHIN: Nanos = 10_000_000_000;
/// Descriptors beside those of clients.
const SPARE: u64 = 256;

/// Whom clients connect to, and how.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    /// The TLS settings, where the clients use TLS.
    pub trusting: Option<Trusting>,
}

impl Server {
    pub fn new(address: SocketAddr, tls: bool) -> Result<Server, LabError> {
        let trusting = tls.then(Trusting::new).transpose();
        Ok(Server { address, trusting: trusting.map_err(|e| LabError::new(format!("generator: {e}")))? })
    }

    pub(super) fn failed(&self, e: &io::Error) -> LabError {
        wire::blamed(e, format!("relay: a client cannot connect to {}: {e}", self.address))
    }
}

/// A client's connection, and who it is.
pub type Client = (Wire, Identity);

/// Dials for whoever `next` names until there is nobody, so many at a time; `done` gets each that is through, in any
/// order, and says whether to go on.
pub fn dial(
    server: &Server,
    at_once: usize,
    mut next: impl FnMut() -> Option<Identity>,
    mut done: impl FnMut(Client) -> io::Result<bool>,
) -> io::Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut under_way: BTreeMap<u64, (Box<Dial>, Nanos)> = BTreeMap::new();
    let (mut number, mut exhausted) = (0, false);
    let mut events = Vec::with_capacity(at_once);
    loop {
        while !exhausted && under_way.len() < at_once {
            let Some(identity) = next() else {
                exhausted = true;
                break;
            };
            let dial = Box::new(Dial::begin(server.address, server.trusting.as_ref(), identity)?);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            epoll::add(&poll, &dial, epoll::EventData::new_u64(number), flags)?;
            under_way.insert(number, (dial, clock::now()));
            number += 1;
        }
        if under_way.is_empty() {
            return Ok(());
        }
        events.clear();
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        epoll::wait(&poll, spare_capacity(&mut events), Some(&second))?;
        for event in &events {
            let token = event.data.u64();
            let Some((dial, began)) = under_way.remove(&token) else { continue };
            match dial.step()? {
                Progress::Waits(dial) => drop(under_way.insert(token, (dial, began))),
                Progress::Done(client) => {
                    epoll::delete(&poll, &client.0)?;
                    if !done(*client)? {
                        return Ok(());
                    }
                }
            }
        }
        let now = clock::now();
        // The lowest number began first.
        if let Some((_, (dial, began))) = under_way.first_key_value()
            && now - began > WITHIN
        {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("a client was not through after {} s ({})", WITHIN / 1_000_000_000, dial.stage()),
            ));
        }
    }
}

/// `count` clients, in order.
pub fn connect(server: &Server, seed: u64, count: u64) -> Result<Vec<Client>, LabError> {
    descriptors(count)?;
    let identities: Vec<Identity> = (0..count).map(|n| Identity::numbered(seed, n)).collect();
    let order: BTreeMap<_, _> = identities.iter().enumerate().map(|(n, i)| (i.key, n)).collect();
    let mut identities = identities.into_iter();
    let mut clients = BTreeMap::new();
    dial(
        server,
        AT_ONCE,
        || identities.next(),
        |client| {
            clients.insert(order.get(&client.1.key).copied(), client);
            Ok(true)
        },
    )
    .map_err(|e| server.failed(&e))?;
    Ok(clients.into_values().collect())
}

/// Lets this process have a descriptor for each of `clients`.
pub fn descriptors(clients: u64) -> Result<(), LabError> {
    let wanted = clients + SPARE;
    match weir_io::process::raise_descriptors(wanted) {
        Ok(most) if most >= wanted => Ok(()),
        Ok(most) => Err(LabError::new(format!(
            "relay: {clients} clients need {wanted} descriptors, the limit is {most}: raise it (ulimit -n)"
        ))),
        Err(e) => Err(LabError::new(format!("relay: {wanted} descriptors for {clients} clients: {e}"))),
    }
}
