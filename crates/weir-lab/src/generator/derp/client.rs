//! Many clients connected at once, a few of them on their way at a time.
//!
//! Promises: one thread, one epoll; a client that does not get through within [`WITHIN`] is an error that says
//! how far it came. Refuses: more clients than descriptors; the limit is raised as far as it may be.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::time::{ClockId, clock_gettime};
use weir_core::time::Nanos;
use weir_io::clock;

use super::dial::{Dial, Identity, Progress};
use super::tls::Trusting;
use super::wire::Wire;
use crate::model::LabError;

/// On their way at a time, where they are not what is measured: far below a listener's backlog.
const AT_ONCE: usize = 32;
/// As the relay's own limit for a step.
const WITHIN: Nanos = 10_000_000_000;
/// Descriptors beside those of clients.
const SPARE: u64 = 256;

/// Whom clients connect to, and how.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    /// With TLS.
    pub trusting: Option<Trusting>,
}

impl Server {
    pub fn new(address: SocketAddr, tls: bool) -> Result<Server, LabError> {
        let trusting = tls.then(Trusting::new).transpose();
        Ok(Server { address, trusting: trusting.map_err(|e| LabError(format!("generator: {e}")))? })
    }

    fn failed(&self, e: &io::Error) -> LabError {
        LabError(format!("relay: a client cannot connect to {}: {e}", self.address))
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
        Ok(most) => Err(LabError(format!(
            "relay: {clients} clients need {wanted} descriptors, the limit is {most}: raise it (ulimit -n)"
        ))),
        Err(e) => Err(LabError(format!("relay: {wanted} descriptors for {clients} clients: {e}"))),
    }
}

/// A run of clients that connect and leave, for so long.
#[derive(Clone, Copy, Debug)]
pub struct Stay {
    /// On their way at a time: as many as keep the relay busy.
    pub at_once: usize,
    pub warm_up: Duration,
    pub window: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connected {
    pub connects: u64,
    pub began: Nanos,
    pub ended: Nanos,
    /// CPU time of the generator's thread between the two.
    pub busy: Nanos,
}

/// Connects clients and lets them leave at once; those through in the window count. `begin` is called when it opens.
pub fn come_and_go(
    server: &Server,
    seed: u64,
    stay: Stay,
    mut begin: impl FnMut(),
) -> Result<Connected, LabError> {
    let mut known: Vec<Identity> =
        (0..4 * stay.at_once as u64).map(|n| Identity::numbered(seed, n)).collect();
    let known = std::cell::RefCell::new(&mut known);
    let opens = clock::now() + stay.warm_up.as_nanos() as Nanos;
    let window = stay.window.as_nanos() as Nanos;
    let (mut came, mut busy_before) = (Connected::default(), 0);
    dial(
        server,
        stay.at_once,
        || known.borrow_mut().pop(),
        |(wire, identity)| {
            drop(wire);
            known.borrow_mut().insert(0, identity);
            let now = clock::now();
            if came.began == 0 && now >= opens {
                begin();
                busy_before = own_time();
                came.began = clock::now();
            } else if came.began > 0 {
                came.ended = now;
                came.connects += 1;
            }
            Ok(came.began == 0 || now < came.began + window)
        },
    )
    .map_err(|e| server.failed(&e))?;
    came.busy = own_time().saturating_sub(busy_before);
    Ok(came)
}

/// CPU time of this thread so far.
fn own_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
