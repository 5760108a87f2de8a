//! What is said to a session, and what it says: commands in, actions and events out.

use std::time::Duration;

use weir_core::relay::registry::{Closing, Destination};
use weir_core::relay::{ConnId, Key, Place};
use weir_io::stream::Part;

use crate::settings::Engine;

/// What is to be done with a connection's stream, which is named by its slot.
#[derive(Debug)]
pub enum Action {
    /// Send as much of it as the socket takes: answered by [`super::Session::sent`].
    Send {
        slot: u32,
        parts: Vec<Part>,
    },
    /// Answered by [`super::Session::writable`].
    NotifyWritable {
        slot: u32,
    },
    /// Receive no more, until `Resume`.
    Pause {
        slot: u32,
    },
    Resume {
        slot: u32,
    },
    /// Give the socket back as soon as nothing is under way: answered by [`super::Session::depart`], which says whether the client
    /// still wants that.
    Release {
        slot: u32,
    },
    /// After what was to be sent; nothing of this stream may come any more. `notify`: whoever does TLS for it may say so.
    Close {
        slot: u32,
        notify: bool,
    },
}

impl Action {
    pub fn slot(&self) -> u32 {
        match *self {
            Action::Send { slot, .. }
            | Action::NotifyWritable { slot }
            | Action::Pause { slot }
            | Action::Resume { slot }
            | Action::Release { slot }
            | Action::Close { slot, .. } => slot,
        }
    }
}

/// What a session is to do.
#[derive(Debug)]
pub enum Command {
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
    /// A client is to go from there to another worker: packets for it wait. Answered by [`Event::Fenced`] with this number.
    Hold {
        at: Place,
        fence: u64,
    },
    /// Answered by [`Event::Fenced`] once all has been taken that other workers had put in the rings by now.
    Fence(u64),
    /// The client there goes, and everybody holds what is for it.
    Leave(Place),
    /// What was held for this client goes to where it is now, or is dropped where it is no more.
    ReleaseHeld(ConnId, Option<Place>),
    /// Close everybody who has got all, and the others after so long.
    Drain(Duration),
    /// Limits and times are these from now on.
    Tune(Box<Engine>),
}

impl Command {
    /// The same for a connection that is there now.
    pub(crate) fn at(self, at: Place) -> Command {
        match self {
            Command::Flag { flagged, .. } => Command::Flag { at, flagged },
            Command::Send { bytes, .. } => Command::Send { to: at, bytes },
            Command::Close { why, .. } => Command::Close { at, why },
            command => command,
        }
    }
}

/// What happened, for the registrar.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Closed {
        at: Place,
        sent_to: Vec<Key>,
    },
    Active(ConnId),
    Watch(ConnId),
    MeshPresent(ConnId, Key),
    MeshGone(ConnId, Key),
    SentTo(Key, Key),
    ClosePeer(ConnId, Key),
    /// The first sends mostly to clients of the worker that the second is at.
    Crossing {
        conn: ConnId,
        with: ConnId,
    },
    Fenced(u64),
}
