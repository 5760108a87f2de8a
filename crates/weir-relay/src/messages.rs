//! What threads of the engine tell each other: the registrar by its inbox, each worker by its mailbox.
//!
//! Promises: a worker that is gone needs no mail, and nobody waits for it. Refuses: nothing.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use weir_core::relay::registry::{Closing, Destination};
use weir_core::relay::{ConnId, Key, Place};

use super::Newcomer;
use super::parcel::Desk;
use super::report::Connection;
use super::settings::Engine;

/// What the registrar is told.
#[derive(Debug)]
pub enum Told {
    Admit(Box<Newcomer>),
    Closed { at: Place, heard_by: Vec<Key> },
    Active(ConnId),
    Watch(ConnId),
    MeshPresent(ConnId, Key),
    MeshGone(ConnId, Key),
    Heard(Key, Key),
    ClosePeer(ConnId, Key),
    Drain { reconnect_in: Duration, try_for: Duration, grace: Duration },
    Stop,
}

/// What a worker is told.
#[derive(Debug)]
pub enum Mail {
    /// Its route and what else it is told belong together: `then` is done with it.
    Adopt {
        at: Place,
        newcomer: Box<Newcomer>,
        then: Vec<Mail>,
    },
    Route {
        key: Key,
        to: Option<Destination>,
    },
    Flag {
        at: Place,
        flagged: bool,
    },
    Send {
        to: Place,
        bytes: Vec<u8>,
    },
    Close {
        at: Place,
        why: Closing,
    },
    /// Close everybody who has got all, and the others after so long.
    Drain(Duration),
    Connections(Sender<Vec<Connection>>),
    /// Limits and times are these from now on.
    Tune(Box<Engine>),
    Stop,
}

/// The way to a worker.
#[derive(Clone, Debug)]
pub struct Mailbox {
    pub mail: Sender<Mail>,
    pub desk: Arc<Desk>,
}

impl Mailbox {
    pub fn post(&self, mail: Mail) {
        self.put(mail);
        self.desk.wake();
    }

    /// As [`Mailbox::post`], but a worker that sleeps is not woken yet.
    pub fn put(&self, mail: Mail) {
        // A worker that is gone needs no mail.
        if self.mail.send(mail).is_ok() {
            self.desk.note();
        }
    }
}
