//! From bytes to what is to be done: packets become runs of whole frames, ready for their receivers.
//!
//! ```text
//!  received   │Send a│Send a│Send b│Ping│Send a│Se…
//!  runs        a: 2 frames ─┘ b: 1        a: 1       acts   answer the ping
//! ```
//!
//! Promises: packets are turned into what their receivers get where they lie, and neighbours for one receiver are one run;
//! the table is asked only when the destination differs from that of the packet before. Refuses: frames of the mesh from
//! those who are not of it, and frames longer than their type allows.

use std::ops::Range;

use weir_core::relay::decoder::Piece;
use weir_core::relay::frame::{self, HEADER, KEY, Kind};
use weir_core::relay::{Frame, Key, Place, Reason};
use weir_core::time::Nanos;

use super::client::Client;
use super::routes::{Last, Route, Routes};
use crate::Role;
use crate::counters::{End, Tally};

/// The client a run of frames is for, here or at another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Here(u32),
    There(Place),
}

/// Whole frames in a row for one receiver.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub to: Target,
    pub from: usize,
    pub end: usize,
    pub frames: u32,
}

/// What is to be done beside.
#[derive(Debug)]
pub enum Act {
    /// The packet there (`SendPacket`) goes to another relay.
    Mesh(Target, Range<usize>),
    Pong(Range<usize>),
    /// The sender is told that nobody has this key.
    NotHere(Key),
    /// A flagged connection sent something.
    Active,
    Watch,
    ClosePeer(Key),
    MeshPresent(Key),
    MeshGone(Key),
    /// The second received from the first by the mesh.
    SentTo(Key, Key),
}

/// What one piece of bytes comes to. Kept and reused.
#[derive(Debug, Default)]
pub struct Sorted {
    pub runs: Vec<Run>,
    pub acts: Vec<Act>,
}

impl Sorted {
    pub fn clear(&mut self) {
        self.runs.clear();
        self.acts.clear();
    }

    #[inline]
    fn packet(&mut self, to: Target, from: usize, end: usize) {
        match self.runs.last_mut() {
            Some(run) if run.end == from && run.to == to => {
                run.end = end;
                run.frames += 1;
            }
            _ => self.runs.push(Run { to, from, end, frames: 1 }),
        }
    }
}

/// A sender whose bytes are sorted, and what that looks at.
pub struct Sorter<'a> {
    pub client: &'a mut Client,
    pub routes: &'a Routes,
    pub tally: &'a mut Tally,
    pub now: Nanos,
    pub sorted: &'a mut Sorted,
}

impl Sorter<'_> {
    /// Cuts `bytes` from `at` on into frames and sorts them. A frame that came in parts is given back, alone, sorted on
    /// its own: deliver it, and call again.
    pub fn sort(&mut self, bytes: &mut [u8], at: &mut usize) -> Result<Option<Vec<u8>>, End> {
        self.sorted.clear();
        loop {
            match self.client.decoder.next(bytes, at).map_err(|_| End::Protocol)? {
                None => return Ok(None),
                Some(Piece::InPlace(range)) => self.one(&mut bytes[range.clone()], range.start)?,
                Some(Piece::Owned(mut whole)) => {
                    // It is the first piece, so nothing else is sorted yet.
                    self.one(&mut whole, 0)?;
                    return Ok(Some(whole));
                }
                Some(Piece::Skipped(code, _)) => self.tally.received_kind(code, 1),
            }
        }
    }

    /// One whole frame that begins at `at`.
    #[inline]
    fn one(&mut self, frame: &mut [u8], at: usize) -> Result<(), End> {
        self.tally.received_kind(frame[0], 1);
        if self.client.flagged {
            self.client.flagged = false;
            self.sorted.acts.push(Act::Active);
        }
        if frame[0] == Kind::SendPacket as u8 && frame.len() >= HEADER + KEY {
            self.send_packet(frame, at);
            return Ok(());
        }
        self.other(frame, at)
    }

    #[inline]
    fn send_packet(&mut self, frame: &mut [u8], at: usize) {
        let end = at + frame.len();
        let same = self.client.last.epoch == self.routes.epoch
            && frame[HEADER..HEADER + KEY] == self.client.last.key.0;
        let route = if same { self.client.last.route } else { self.look_up(frame) };
        match route {
            Route::Here(slot) => {
                frame::forward_in_place(frame, &self.client.key);
                self.sorted.packet(Target::Here(slot), at, end);
            }
            Route::There(place) => {
                frame::forward_in_place(frame, &self.client.key);
                self.sorted.packet(Target::There(place), at, end);
            }
            Route::MeshHere(slot) => self.sorted.acts.push(Act::Mesh(Target::Here(slot), at..end)),
            Route::MeshThere(place) => self.sorted.acts.push(Act::Mesh(Target::There(place), at..end)),
            Route::Nowhere => {
                let to = self.client.last.key;
                self.lost((Reason::UnknownDest, to), &frame[HEADER + KEY..]);
            }
        }
    }

    fn look_up(&mut self, frame: &[u8]) -> Route {
        let mut key = Key([0; KEY]);
        key.0.copy_from_slice(&frame[HEADER..HEADER + KEY]);
        let route = self.routes.find(&key);
        self.client.last = Last { key, route, epoch: self.routes.epoch };
        if matches!(route, Route::Here(_) | Route::There(_)) {
            self.client.note_sent_to(key, self.routes);
        }
        route
    }

    /// A packet for a key that nobody here has; only path discovery is answered.
    #[cold]
    fn lost(&mut self, (reason, to): (Reason, Key), data: &[u8]) {
        self.tally.packets_in += 1;
        self.tally.drop_packet(reason, data);
        self.client.dropped += 1;
        if frame::is_disco(data) && self.client.not_here.take(1, self.now) {
            self.sorted.acts.push(Act::NotHere(to));
        }
    }

    /// A frame that is rare, or not for clients.
    #[cold]
    fn other(&mut self, frame: &mut [u8], at: usize) -> Result<(), End> {
        let range = at..at + frame.len();
        if frame[0] == Kind::ForwardPacket as u8 {
            return self.forward_packet(frame, at);
        }
        let mesh = self.client.role == Role::Mesh;
        let dialled = self.client.role == Role::Dialled;
        match Frame::parse(frame[0], &frame[HEADER..]).map_err(|_| End::Protocol)? {
            // Whatever more it has is not repeated.
            Frame::Ping(_) => {
                let data = range.start + HEADER;
                self.sorted.acts.push(Act::Pong(data..data + frame::PING_MIN));
            }
            Frame::NotePreferred(home) => self.client.home = home,
            Frame::WatchConns if mesh => self.sorted.acts.push(Act::Watch),
            Frame::ClosePeer(key) if mesh => self.sorted.acts.push(Act::ClosePeer(key)),
            Frame::WatchConns | Frame::ClosePeer(_) => return Err(End::Protocol),
            Frame::PeerPresent(key, _) if dialled => self.sorted.acts.push(Act::MeshPresent(key)),
            // Also in answer to what was forwarded there: the route was stale.
            Frame::PeerGone(key, _) if dialled => self.sorted.acts.push(Act::MeshGone(key)),
            _ => {}
        }
        Ok(())
    }

    /// A packet from another relay goes to a client of ours only: nothing is forwarded twice.
    fn forward_packet(&mut self, frame: &mut [u8], at: usize) -> Result<(), End> {
        if self.client.role != Role::Mesh {
            return Err(End::Protocol);
        }
        let Ok(Frame::ForwardPacket(source, to, _)) = Frame::parse(frame[0], &frame[HEADER..]) else {
            return Err(End::Protocol);
        };
        let target = match self.routes.find(&to) {
            Route::Here(slot) => Target::Here(slot),
            Route::There(place) => Target::There(place),
            Route::MeshHere(_) | Route::MeshThere(_) | Route::Nowhere => {
                self.lost((Reason::UnknownDestOnFwd, to), &frame[HEADER + 2 * KEY..]);
                return Ok(());
            }
        };
        if self.client.relayed.is_new(source, to, self.routes.gone) {
            self.sorted.acts.push(Act::SentTo(source, to));
        }
        frame::deliver_in_place(frame);
        self.sorted.packet(target, at + KEY, at + frame.len());
        Ok(())
    }
}
