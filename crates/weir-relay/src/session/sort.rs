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
    Heard(Key, Key),
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

/// What sorting looks at beside the sender.
pub struct Around<'a> {
    pub routes: &'a Routes,
    pub tally: &'a mut Tally,
    pub now: Nanos,
}

/// Cuts `bytes` from `at` on into frames and sorts them. A frame that came in parts is given back, alone, sorted on
/// its own: deliver it, and call again.
pub fn sort(
    client: &mut Client,
    around: &mut Around<'_>,
    bytes: &mut [u8],
    at: &mut usize,
    sorted: &mut Sorted,
) -> Result<Option<Vec<u8>>, End> {
    sorted.clear();
    loop {
        match client.decoder.next(bytes, at).map_err(|_| End::Protocol)? {
            None => return Ok(None),
            Some(Piece::InPlace(range)) => {
                one(client, around, &mut bytes[range.clone()], range.start, sorted)?
            }
            Some(Piece::Owned(mut whole)) => {
                // It is the first piece, so nothing else is sorted yet.
                one(client, around, &mut whole, 0, sorted)?;
                return Ok(Some(whole));
            }
            Some(Piece::Skipped(code, _)) => around.tally.received_kind(code, 1),
        }
    }
}

/// One whole frame that begins at `at`.
#[inline]
fn one(
    client: &mut Client,
    around: &mut Around<'_>,
    frame: &mut [u8],
    at: usize,
    sorted: &mut Sorted,
) -> Result<(), End> {
    around.tally.received_kind(frame[0], 1);
    if client.flagged {
        client.flagged = false;
        sorted.acts.push(Act::Active);
    }
    if frame[0] == Kind::SendPacket as u8 && frame.len() >= HEADER + KEY {
        send_packet(client, around, frame, at, sorted);
        return Ok(());
    }
    other(client, around, frame, at, sorted)
}

#[inline]
fn send_packet(
    client: &mut Client,
    around: &mut Around<'_>,
    frame: &mut [u8],
    at: usize,
    sorted: &mut Sorted,
) {
    let end = at + frame.len();
    let same = client.last.epoch == around.routes.epoch && frame[HEADER..HEADER + KEY] == client.last.key.0;
    let route = if same { client.last.route } else { look_up(client, around.routes, frame) };
    match route {
        Route::Here(slot) => {
            frame::forward_in_place(frame, &client.key);
            sorted.packet(Target::Here(slot), at, end);
        }
        Route::There(place) => {
            frame::forward_in_place(frame, &client.key);
            sorted.packet(Target::There(place), at, end);
        }
        Route::MeshHere(slot) => sorted.acts.push(Act::Mesh(Target::Here(slot), at..end)),
        Route::MeshThere(place) => sorted.acts.push(Act::Mesh(Target::There(place), at..end)),
        Route::Nowhere => {
            let to = client.last.key;
            lost(client, around, (Reason::UnknownDest, to), &frame[HEADER + KEY..], sorted);
        }
    }
}

fn look_up(client: &mut Client, routes: &Routes, frame: &[u8]) -> Route {
    let mut key = Key([0; KEY]);
    key.0.copy_from_slice(&frame[HEADER..HEADER + KEY]);
    let route = routes.find(&key);
    client.last = Last { key, route, epoch: routes.epoch };
    if matches!(route, Route::Here(_) | Route::There(_)) {
        client.note_heard(key, routes);
    }
    route
}

/// A packet for a key that nobody here has; only path discovery is answered.
#[cold]
fn lost(
    client: &mut Client,
    around: &mut Around<'_>,
    (reason, to): (Reason, Key),
    data: &[u8],
    sorted: &mut Sorted,
) {
    around.tally.packets_in += 1;
    around.tally.drop_packet(reason, data);
    client.dropped += 1;
    if frame::is_disco(data) && client.not_here.take(1, around.now) {
        sorted.acts.push(Act::NotHere(to));
    }
}

/// A frame that is rare, or not for clients.
#[cold]
fn other(
    client: &mut Client,
    around: &mut Around<'_>,
    frame: &mut [u8],
    at: usize,
    sorted: &mut Sorted,
) -> Result<(), End> {
    let range = at..at + frame.len();
    if frame[0] == Kind::ForwardPacket as u8 {
        return forward_packet(client, around, frame, at, sorted);
    }
    let mesh = client.role == Role::Mesh;
    let dialled = client.role == Role::Dialled;
    match Frame::parse(frame[0], &frame[HEADER..]).map_err(|_| End::Protocol)? {
        // Whatever more it has is not repeated.
        Frame::Ping(_) => {
            let data = range.start + HEADER;
            sorted.acts.push(Act::Pong(data..data + frame::PING_MIN));
        }
        Frame::NotePreferred(home) => client.home = home,
        Frame::WatchConns if mesh => sorted.acts.push(Act::Watch),
        Frame::ClosePeer(key) if mesh => sorted.acts.push(Act::ClosePeer(key)),
        Frame::WatchConns | Frame::ClosePeer(_) => return Err(End::Protocol),
        Frame::PeerPresent(key, _) if dialled => sorted.acts.push(Act::MeshPresent(key)),
        // Also in answer to what was forwarded there: the route was stale.
        Frame::PeerGone(key, _) if dialled => sorted.acts.push(Act::MeshGone(key)),
        _ => {}
    }
    Ok(())
}

/// A packet from another relay goes to a client of ours only: nothing is forwarded twice.
fn forward_packet(
    client: &mut Client,
    around: &mut Around<'_>,
    frame: &mut [u8],
    at: usize,
    sorted: &mut Sorted,
) -> Result<(), End> {
    if client.role != Role::Mesh {
        return Err(End::Protocol);
    }
    let Ok(Frame::ForwardPacket(source, to, _)) = Frame::parse(frame[0], &frame[HEADER..]) else {
        return Err(End::Protocol);
    };
    let target = match around.routes.find(&to) {
        Route::Here(slot) => Target::Here(slot),
        Route::There(place) => Target::There(place),
        Route::MeshHere(_) | Route::MeshThere(_) | Route::Nowhere => {
            lost(client, around, (Reason::UnknownDestOnFwd, to), &frame[HEADER + 2 * KEY..], sorted);
            return Ok(());
        }
    };
    if client.relayed.is_new(source, to, around.routes.gone) {
        sorted.acts.push(Act::Heard(source, to));
    }
    frame::deliver_in_place(frame);
    sorted.packet(target, at + KEY, at + frame.len());
    Ok(())
}
