//! What threads of the engine tell each other: the registrar by its inbox, each worker by its queue of commands.
//!
//! Promises: a worker that is gone needs no command, and nobody waits for it. Refuses: nothing.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use weir_core::relay::{ConnId, Place};
use weir_io::tls::Kernel;

use super::AuthenticatedConn;
use super::ConnGuard;
use super::cross_worker::Doorbell;
use super::report::Connection;
use super::session;

/// What happened, for the registrar.
#[derive(Debug)]
pub enum Event {
    Admit(Box<AuthenticatedConn>),
    Session(session::Event),
    /// The CPU of this worker has no time left, and these of its clients have something to do.
    Pressed(u16, Vec<ConnId>),
    /// The connection that was there is to go to another worker.
    Departed(Place, Box<Moving>),
    Drain {
        reconnect_in: Duration,
        try_for: Duration,
        grace: Duration,
    },
    Stop,
}

/// A connection between two workers.
#[derive(Debug)]
pub struct Moving {
    pub socket: OwnedFd,
    /// The kernel does its TLS, and this is the rest.
    pub kernel: Option<Box<Kernel>>,
    pub guard: ConnGuard,
    pub client: session::Departed,
}

/// What a worker is to do.
#[derive(Debug)]
pub enum Command {
    /// Its route and its other commands belong together: `then` is done with it.
    AddClient {
        at: Place,
        connection: Box<AuthenticatedConn>,
        then: Vec<session::Command>,
    },
    /// The same of a connection that another worker had.
    Arrive {
        at: Place,
        moving: Box<Moving>,
        then: Vec<session::Command>,
    },
    Session(session::Command),
    Connections(Sender<Vec<Connection>>),
    Stop,
}

/// The way to a worker.
#[derive(Clone, Debug)]
pub struct CommandSender {
    pub queue: Sender<Command>,
    pub doorbell: Arc<Doorbell>,
}

impl CommandSender {
    pub fn post(&self, command: Command) {
        self.put(command);
        self.doorbell.notify();
    }

    /// Sends as [`CommandSender::post`] does, but a worker that sleeps is not woken yet.
    pub fn put(&self, command: Command) {
        // A worker that is gone needs no command.
        if self.queue.send(command).is_ok() {
            self.doorbell.note();
        }
    }
}
