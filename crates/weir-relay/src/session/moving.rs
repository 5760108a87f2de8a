//! A client moves to the worker of whom it talks to, and what is for it waits meanwhile.
//!
//! ```text
//!  every worker       hold ─► frames for it are kept ─► release_held ─► to where it is then
//!  the old worker     leave ─► Action::Release ─► depart ─┐
//!  the new worker                                         └─► arrive
//! ```
//!
//! Promises: nothing is received or sent for a client between its departure and its arrival; what waited for it moves with it,
//! in order; what is kept for it is bounded as its queue is. Refuses: to judge who should move ([`crate::registrar`] does).

use std::collections::VecDeque;
use std::net::SocketAddr;

use weir_core::relay::bucket::Bucket;
use weir_core::relay::decoder::FrameDecoder;
use weir_core::relay::{ConnId, Key, Place, Reason};
use weir_core::time::Nanos;
use weir_io::stream::Part;

use super::client::{Client, SendState, Who};
use super::outgoing::drop_frames;
use super::sort::{Run, Target};
use super::transport::Transport;
use super::{Action, Command, Event, Session, client_of};
use crate::backlog::{Backlog, data_of, first_frame};
use crate::counters::{End, Tally};
use crate::{Rates, Role};

/// Packets to clients of one other worker, less those to others, until the registrar hears of it.
pub const CROSSINGS: u32 = 4096;

/// A majority vote of a client's packets: which other worker has the clients that it sends to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crossings {
    worker: u16,
    votes: u32,
    /// The client's packets since the vote began, and the worker's packets then.
    own: u64,
    began: u64,
}

impl Crossings {
    /// Packets went to a client of this worker.
    #[inline]
    pub fn stay(&mut self, frames: u32) {
        self.votes = self.votes.saturating_sub(frames);
        self.own += u64::from(frames);
    }

    /// Packets went to a client of another worker. Whether the vote is decided: the client talks to that worker's, and is not
    /// alone in keeping its own worker busy, which would be idle without it.
    #[inline]
    pub fn cross(&mut self, worker: u16, frames: u32, packets_in: u64) -> bool {
        if self.votes == 0 {
            *self = Crossings { worker, votes: 0, own: 0, began: packets_in };
        }
        self.own += u64::from(frames);
        if self.worker != worker {
            self.votes = self.votes.saturating_sub(frames);
            return false;
        }
        self.votes += frames;
        if self.votes < CROSSINGS {
            return false;
        }
        self.votes = 0;
        let all = packets_in.saturating_sub(self.began);
        self.own.saturating_mul(4) < all.saturating_mul(3)
    }
}

/// Packets for a client that is on its way.
#[derive(Debug)]
pub struct Held {
    /// Where it was.
    at: Place,
    backlog: Backlog,
}

/// A client between two workers: all of it but its socket.
#[derive(Debug)]
pub struct Departed {
    who: Who,
    transport: Transport,
    since: Nanos,
    home: bool,
    flagged: bool,
    decoder: FrameDecoder,
    sent_to: Vec<Key>,
    not_here: Bucket,
    receive: Option<Box<Bucket>>,
    send: Option<Box<Bucket>>,
    partial_write: Vec<u8>,
    control: Vec<u8>,
    bulk: VecDeque<Vec<u8>>,
    backlog: Backlog,
    stalled_since: Option<Nanos>,
    write_budget: usize,
    bytes_received: u64,
    bytes_sent: u64,
    dropped: u64,
}

impl Held {
    pub fn conn(&self) -> ConnId {
        self.at.conn
    }
}

impl Departed {
    /// Returns the client's address.
    pub fn address(&self) -> SocketAddr {
        self.who.address
    }
}

impl Session {
    /// What is for this client waits from now on, unless it is still here.
    pub(super) fn hold(&mut self, at: Place, fence: u64) {
        self.held = Some(Box::new(Held { at, backlog: Backlog::default() }));
        self.events.push(Event::Fenced(fence));
    }

    /// The client has arrived there, or is gone: what was held for it follows it.
    pub(super) fn release_held(&mut self, conn: ConnId, to: Option<Place>) {
        let Some(mut held) = self.held.take_if(|held| held.at.conn == conn) else { return };
        while let Some(chunk) = held.backlog.pop() {
            let (frames, since) = (chunk.frames, chunk.since);
            let bytes = chunk.into_bytes();
            let Some(to) = to.filter(|to| to.worker != self.number || self.at(*to).is_some()) else {
                self.tally.held -= u64::from(frames);
                drop_frames(&bytes, Reason::GoneDisconnected, &mut self.tally);
                self.pool.give(bytes);
                continue;
            };
            if let Some(client) = self.at(to) {
                let length = bytes.len();
                client.stage.push(Part::Owned(bytes), length, frames, since);
                self.mark(to.slot);
            } else if let Some(other) = self.others.get_mut(usize::from(to.worker)) {
                self.tally.held -= u64::from(frames);
                // They were accepted here, so they are nobody's share.
                let taken = other.add(None, to, (&bytes, frames), since, &mut self.pool);
                debug_assert!(taken);
                self.pool.give(bytes);
            }
        }
    }

    /// Whether packets for a client that was there are kept.
    #[inline]
    pub(super) fn keeps(&self, at: impl FnOnce(&Place) -> bool) -> bool {
        self.held.as_deref().is_some_and(|held| at(&held.at))
    }

    /// Whether the client of this slot has departed from here.
    pub(super) fn departed_from(&self, slot: u32) -> bool {
        let number = self.number;
        self.keeps(|at| at.worker == number && at.slot == slot)
    }

    /// Keeps whole frames, which were counted as come and are held from now on. The oldest go when there are too many.
    #[cold]
    pub(super) fn keep(&mut self, bytes: &[u8], frames: u32) {
        let Some(held) = self.held.as_deref_mut() else { return };
        self.tally.held += u64::from(frames);
        let mut rest = bytes;
        while !rest.is_empty() {
            let frame = first_frame(rest);
            held.backlog.push(frame, self.now, &mut self.pool);
            rest = &rest[frame.len()..];
        }
        let over_bytes = held.backlog.bytes().saturating_sub(self.engine.queue_bytes);
        let over_frames = held.backlog.frames().saturating_sub(self.engine.queue_frames);
        let tally = &mut self.tally;
        held.backlog.shed(over_bytes, over_frames, &mut self.pool, |frame| shed(tally, frame));
        held.backlog.shed_disco(|frame| shed(tally, frame));
    }

    /// The client is to go to another worker: its socket is wanted as soon as nothing is under way.
    pub(super) fn leave(&mut self, at: Place) {
        let Some(client) = self.at(at) else { return };
        client.send_state = SendState::Leaving;
        self.actions.push(Action::Release { slot: at.slot });
    }

    /// The stream of a client that is to leave was released: the client, and where it was. None when it has gone meanwhile.
    pub fn depart(&mut self, slot: u32) -> Option<(Place, Departed)> {
        let leaves = |client: &Client| client.send_state == SendState::Leaving && client.in_flight.is_none();
        client_of(&mut self.clients, slot).filter(|client| leaves(client))?;
        self.put_away(slot);
        let client = *self.clients.get_mut(slot as usize)?.take()?;
        let at = Place { worker: self.number, slot, conn: client.conn };
        let frames = client.backlog.frames() as u64;
        self.tally.held -= frames;
        self.tally.handed += frames;
        self.tally.connections -= 1;
        // Each field goes or is made anew: a new one has to be put among the ones or the others.
        let Client {
            conn,
            key,
            role,
            address,
            transport,
            since,
            home,
            flagged,
            decoder,
            last: _,
            crossings: _,
            sent_to,
            relayed: _,
            not_here,
            receive,
            paused: _,
            partial_write,
            control,
            bulk,
            stage: _,
            backlog,
            in_flight: _,
            send_state: _,
            stalled_since,
            watched: _,
            write_budget,
            send,
            dirty: _,
            bytes_received,
            bytes_sent,
            dropped,
        } = client;
        let departed = Departed {
            who: Who { conn, key, role, address },
            transport,
            since,
            home,
            flagged,
            decoder,
            sent_to: sent_to.into_iter().collect(),
            not_here,
            receive,
            send,
            partial_write,
            control,
            bulk,
            backlog,
            stalled_since,
            write_budget,
            bytes_received,
            bytes_sent,
            dropped,
        };
        Some((at, departed))
    }

    /// Takes over a client of another worker's, and does `then`.
    pub fn arrive(&mut self, at: Place, departed: Departed, then: Vec<Command>) {
        let client = self.made_anew(departed);
        self.tally.moved += 1;
        self.insert(at, client);
        then.into_iter().for_each(|command| self.command(command));
    }

    /// The stream of a client of another worker's could not be had: it is disconnected, and what waited for it is dropped.
    pub fn not_arrived(&mut self, at: Place, departed: Departed, then: Vec<Command>) {
        let mut client = self.made_anew(departed);
        self.drop_all(&mut client, Reason::GoneDisconnected);
        self.tally.ended[End::Failed as usize] += 1;
        self.events.push(Event::Closed { at, sent_to: client.sent_to.drain().collect() });
        then.into_iter().for_each(|command| self.command(command));
    }

    /// A client from what another worker had of it. What waits for it is held here from now on.
    fn made_anew(&mut self, departed: Departed) -> Client {
        let Departed {
            who,
            transport,
            since,
            home,
            flagged,
            decoder,
            sent_to,
            not_here,
            receive,
            send,
            partial_write,
            control,
            bulk,
            backlog,
            stalled_since,
            write_budget,
            bytes_received,
            bytes_sent,
            dropped,
        } = departed;
        let mut client = Client {
            since,
            home,
            flagged,
            decoder,
            not_here,
            receive,
            send,
            partial_write,
            control,
            bulk,
            backlog,
            stalled_since,
            write_budget,
            bytes_received,
            bytes_sent,
            dropped,
            ..Client::new(who, transport, self.hash, &Rates::default(), self.now)
        };
        client.sent_to.extend(sent_to);
        let frames = client.backlog.frames() as u64;
        self.tally.taken += frames;
        self.tally.held += frames;
        client
    }

    /// Where a client's packets go is noted; the registrar hears of one that talks mostly to clients of another worker.
    #[inline]
    pub(super) fn note_crossings(&mut self, slot: u32, runs: &[Run]) {
        if !self.may_move() {
            return;
        }
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        for run in runs {
            match run.to {
                Target::Here(_) => client.crossings.stay(run.frames),
                Target::There(with) => {
                    let decided = client.crossings.cross(with.worker, run.frames, self.tally.packets_in);
                    if decided && client.role == Role::Client {
                        self.events.push(Event::Crossing { conn: client.conn, with: with.conn });
                    }
                }
            }
        }
    }
}

/// One packet falls out of what is kept.
fn shed(tally: &mut Tally, frame: &[u8]) {
    tally.held -= 1;
    tally.drop_packet(Reason::QueueHead, data_of(frame));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Votes of packets that each go to one of these workers in turns, `own` of every `all` that came to the worker.
    fn decided(workers: &[u16], (own, all): (u64, u64)) -> Option<u16> {
        const HERE: u16 = 0;
        let mut crossings = Crossings::default();
        for n in 0..100_000 {
            let to = workers[n as usize % workers.len()];
            let packets_in = n * all / own;
            if to == HERE {
                crossings.stay(1);
            } else if crossings.cross(to, 1, packets_in) {
                return Some(to);
            }
        }
        None
    }

    #[test]
    fn who_sends_mostly_to_one_other_worker_is_found_and_nobody_else() {
        assert_eq!(decided(&[1], (1, 10)), Some(1));
        assert_eq!(decided(&[2, 0, 2, 2, 1], (1, 10)), Some(2));
        for even in [&[0, 1][..], &[1, 2, 3], &[0, 0, 1], &[0]] {
            assert_eq!(decided(even, (1, 10)), None, "{even:?}");
        }
    }

    #[test]
    fn who_alone_keeps_a_worker_busy_stays() {
        assert_eq!(decided(&[1], (1, 1)), None);
        assert_eq!(decided(&[1], (8, 10)), None);
        assert_eq!(decided(&[1], (7, 10)), Some(1));
    }
}
