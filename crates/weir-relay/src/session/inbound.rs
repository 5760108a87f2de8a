//! From bytes to queues: what was received is opened, cut, and laid before its receivers.
//!
//! Promises: of a received buffer whole frames are shared, not copied; a sender beyond its rate is not read from for a
//! while. Refuses: what the sorter refuses: the connection is closed, and what came before it is still delivered.

use std::ops::Range;
use std::rc::Rc;

use weir_core::relay::frame::{Frame, Gone, HEADER, KEY, Kind};
use weir_core::relay::{Key, Reason};
use weir_io::stream::{Buffer, Part};
use weir_io::tls::News;

use super::client::CONTROL_BUSY;
use super::outgoing::{CrossWorkerBatch, drop_frames};
use super::sort::{Act, Run, Sorted, Sorter, Target};
use super::timers::Due;
use super::{Action, Event, Session, client_of};
use crate::backlog::data_of;
use crate::counters::{End, Tally};
use crate::websocket::Ended;

impl Session {
    /// A receive of a client's.
    pub fn received(&mut self, slot: u32, buffer: Buffer) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        let bytes = buffer.len() as u64;
        client.bytes_received += bytes;
        self.tally.bytes_received += bytes;
        if let Some(bucket) = &mut client.receive {
            let wait = bucket.spend(bytes, self.now);
            if wait > 0 && !client.paused {
                client.paused = true;
                self.tally.paused += 1;
                self.actions.push(Action::Pause { slot });
                self.timers.add(self.now.saturating_add(wait), slot, client.conn, Due::Resume);
            }
        }
        let done =
            if client.transport.tls.is_some() { self.open(slot, buffer) } else { self.clear(slot, buffer) };
        if let Err(end) = done {
            self.close(slot, end);
        }
    }

    /// What came out of TLS, or without it.
    fn clear(&mut self, slot: u32, mut buffer: Buffer) -> Result<(), End> {
        let framed =
            client_of(&mut self.clients, slot).is_some_and(|client| client.transport.websocket.is_some());
        if framed { self.unframe(slot, &mut buffer) } else { self.plain(slot, buffer) }
    }

    /// The same, in memory of our own.
    pub(super) fn clear_bytes(&mut self, slot: u32, bytes: &mut [u8]) -> Result<(), End> {
        let framed =
            client_of(&mut self.clients, slot).is_some_and(|client| client.transport.websocket.is_some());
        if framed { self.unframe(slot, bytes) } else { self.plain_bytes(slot, bytes) }
    }

    /// Takes frames out of WebSocket messages.
    fn unframe(&mut self, slot: u32, bytes: &mut [u8]) -> Result<(), End> {
        let Some(client) = client_of(&mut self.clients, slot) else { return Ok(()) };
        let Some(unframer) = client.transport.websocket.as_deref_mut() else { return Ok(()) };
        let (mut inside, mut answers) = (self.pool.take(bytes.len()), Vec::new());
        let taken = unframer.take(bytes, &mut inside, &mut answers);
        if !answers.is_empty() && client.partial_write.len() < CONTROL_BUSY {
            client.transport.write_raw(&answers, &mut client.partial_write)?;
            self.mark(slot);
        }
        let done = self.plain_bytes(slot, &mut inside);
        self.pool.give(inside);
        done.and(taken.map_err(|ended| if ended == Ended::Closed { End::Peer } else { End::Transport }))
    }

    /// Frames in a received buffer.
    fn plain(&mut self, slot: u32, mut buffer: Buffer) -> Result<(), End> {
        let mut sorted = std::mem::take(&mut self.sorted);
        let result = self.sort(slot, &mut buffer, &mut sorted);
        if !sorted.runs.is_empty() {
            let buffer = Rc::new(buffer);
            for run in &sorted.runs {
                match run.to {
                    Target::Here(to) => self.share(to, &buffer, run),
                    Target::There(_) => self.copy(slot, run, &buffer),
                }
            }
            self.note_crossings(slot, &sorted.runs);
            self.act(slot, &buffer, &mut sorted);
        } else if !sorted.acts.is_empty() {
            self.act(slot, &buffer, &mut sorted);
        }
        self.keep_sorted(sorted);
        result
    }

    /// Frames in memory of our own.
    fn plain_bytes(&mut self, slot: u32, bytes: &mut [u8]) -> Result<(), End> {
        let mut sorted = std::mem::take(&mut self.sorted);
        let result = self.sort(slot, bytes, &mut sorted);
        sorted.runs.iter().for_each(|run| self.copy(slot, run, bytes));
        self.note_crossings(slot, &sorted.runs);
        self.act(slot, bytes, &mut sorted);
        self.keep_sorted(sorted);
        result
    }

    /// Sorts frames; those that came in parts are delivered at once.
    #[inline]
    fn sort(&mut self, slot: u32, bytes: &mut [u8], sorted: &mut Sorted) -> Result<(), End> {
        let mut at = 0;
        loop {
            let Some(client) = client_of(&mut self.clients, slot) else { return Ok(()) };
            let (routes, tally, now) = (&self.routes, &mut self.tally, self.now);
            let whole = Sorter { client, routes, tally, now, sorted }.sort(bytes, &mut at)?;
            let Some(whole) = whole else { return Ok(()) };
            self.deliver_whole(slot, whole, sorted);
        }
    }

    /// The lists are used again; what they say of these bytes is nothing to the next.
    fn keep_sorted(&mut self, mut sorted: Sorted) {
        sorted.clear();
        self.sorted = sorted;
    }

    /// A frame that came in parts.
    fn deliver_whole(&mut self, slot: u32, whole: Vec<u8>, sorted: &mut Sorted) {
        if let [run] = sorted.runs[..]
            && let Target::Here(to) = run.to
            && run.from == 0
        {
            let length = whole.len();
            self.lay(to, Part::Owned(whole), length, run.frames);
            // A packet has no act beside it but that its sender is active.
            return self.act(slot, &[], sorted);
        }
        sorted.runs.iter().for_each(|run| self.copy(slot, run, &whole));
        self.act(slot, &whole, sorted);
        self.pool.give(whole);
    }

    /// Frames of a received buffer, for a client of this worker.
    #[inline]
    fn share(&mut self, to: u32, buffer: &Rc<Buffer>, run: &Run) {
        let frames = u64::from(run.frames);
        self.tally.packets_in += frames;
        let Some(client) = client_of(&mut self.clients, to) else {
            return self.nobody_here(to, &buffer[run.from..run.end], run.frames);
        };
        self.tally.held += frames;
        if client.stage.parts.capacity() == 0 {
            client.stage = self.batches.pop().unwrap_or_default();
        }
        client.stage.share(buffer, run.from, run.end, run.frames, self.now);
        if !client.dirty {
            client.dirty = true;
            self.dirty.push(to);
        }
    }

    /// Frames of the client `from` that are copied.
    fn copy(&mut self, from: u32, run: &Run, bytes: &[u8]) {
        let bytes = &bytes[run.from..run.end];
        match run.to {
            Target::Here(to) => {
                let mut own = self.pool.take(bytes.len());
                own.extend_from_slice(bytes);
                self.lay(to, Part::Owned(own), bytes.len(), run.frames);
            }
            Target::There(place) => {
                self.tally.packets_in += u64::from(run.frames);
                if self.keeps(|at| at.conn == place.conn) {
                    return self.keep(bytes, run.frames);
                }
                if let Some(other) = self.others.get_mut(usize::from(place.worker))
                    && !other.add(Some(from), place, (bytes, run.frames), self.now, &mut self.pool)
                {
                    drop_frames(bytes, Reason::RingFull, &mut self.tally);
                }
            }
        }
    }

    /// Frames with their own memory, for a client of this worker.
    fn lay(&mut self, to: u32, part: Part, bytes: usize, frames: u32) {
        self.tally.packets_in += u64::from(frames);
        let Some(client) = client_of(&mut self.clients, to) else {
            return self.nobody_here(to, part.bytes(), frames);
        };
        self.tally.held += u64::from(frames);
        client.stage.push(part, bytes, frames, self.now);
        self.mark(to);
    }

    /// Frames for a client that is not here: on its way to another worker, or gone.
    #[cold]
    fn nobody_here(&mut self, slot: u32, bytes: &[u8], frames: u32) {
        if self.departed_from(slot) { self.keep(bytes, frames) } else { drop_run(&mut self.tally, bytes) }
    }

    /// What another worker has for a client of this one.
    pub fn take_batch(&mut self, batch: CrossWorkerBatch) {
        self.tally.taken += u64::from(batch.frames);
        match client_of(&mut self.clients, batch.to.slot) {
            Some(client) if client.conn == batch.to.conn => {
                self.tally.held += u64::from(batch.frames);
                let length = batch.bytes.len();
                client.stage.push(Part::Owned(batch.bytes), length, batch.frames, batch.since);
                self.mark(batch.to.slot);
            }
            _ => drop_run(&mut self.tally, &batch.bytes),
        }
    }

    fn act(&mut self, slot: u32, bytes: &[u8], sorted: &mut Sorted) {
        for act in sorted.acts.drain(..) {
            let Some(client) = client_of(&mut self.clients, slot) else { return };
            let conn = client.conn;
            match act {
                Act::Pong(range) => {
                    if client.control.len() < CONTROL_BUSY {
                        client.say(&Frame::Pong(&bytes[range]));
                        self.tally.sent_kind(Kind::Pong, 1);
                        self.mark(slot);
                    }
                }
                Act::NotHere(key) => {
                    client.say(&Frame::PeerGone(key, Gone::NotHere));
                    self.tally.sent_kind(Kind::PeerGone, 1);
                    self.mark(slot);
                }
                Act::Mesh(to, range) => {
                    let source = client.key;
                    self.forward(slot, to, source, &bytes[range]);
                }
                Act::Active => self.events.push(Event::Active(conn)),
                Act::Watch => self.events.push(Event::Watch(conn)),
                Act::ClosePeer(key) => self.events.push(Event::ClosePeer(conn, key)),
                Act::MeshPresent(key) => self.events.push(Event::MeshPresent(conn, key)),
                Act::MeshGone(key) => self.events.push(Event::MeshGone(conn, key)),
                Act::SentTo(source, listener) => self.events.push(Event::SentTo(source, listener)),
            }
        }
    }

    /// A packet of the client `from` for another relay; `frame` is what the client sent.
    fn forward(&mut self, from: u32, to: Target, source: Key, frame: &[u8]) {
        let mut bytes = self.pool.take(frame.len() + KEY);
        let length = (frame.len() - HEADER + KEY) as u32;
        bytes.push(Kind::ForwardPacket as u8);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&source.0);
        bytes.extend_from_slice(&frame[HEADER..]);
        let length = bytes.len();
        match to {
            Target::Here(slot) => self.lay(slot, Part::Owned(bytes), length, 1),
            Target::There(_) => {
                self.copy(from, &Run { to, from: 0, end: length, frames: 1 }, &bytes);
                self.pool.give(bytes);
            }
        }
    }

    /// Ciphertext in a received buffer: whole records are opened where they lie.
    fn open(&mut self, slot: u32, mut buffer: Buffer) -> Result<(), End> {
        while self.carries(slot) {
            let Some(tls) = client_of(&mut self.clients, slot).and_then(|c| c.transport.tls.as_deref_mut())
            else {
                return Ok(());
            };
            let (taken, whole) = tls.complete(&buffer)?;
            buffer.advance(taken);
            if !whole {
                return Ok(());
            }
            let mut record = std::mem::take(&mut tls.carry);
            let done = self.open_bytes(slot, &mut record);
            self.pool.give(record);
            done?;
        }
        if buffer.is_empty() {
            return Ok(());
        }
        let (plain, ended) = self.open_in(slot, &mut buffer)?;
        buffer.truncate(plain.end);
        buffer.advance(plain.start);
        if !buffer.is_empty() {
            self.clear(slot, buffer)?;
        }
        ended
    }

    fn carries(&mut self, slot: u32) -> bool {
        client_of(&mut self.clients, slot)
            .and_then(|client| client.transport.tls.as_deref())
            .is_some_and(|tls| !tls.carry.is_empty())
    }

    /// Ciphertext in memory of our own. What is left of it is kept.
    pub(super) fn open_bytes(&mut self, slot: u32, bytes: &mut [u8]) -> Result<(), End> {
        let (plain, ended) = self.open_in(slot, bytes)?;
        if !plain.is_empty() {
            self.clear_bytes(slot, &mut bytes[plain])?;
        }
        ended
    }

    /// Opens what is whole, keeps the rest; where the plaintext lies, and whether the peer has ended the stream.
    fn open_in(&mut self, slot: u32, bytes: &mut [u8]) -> Result<(Range<usize>, Result<(), End>), End> {
        let Some(client) = client_of(&mut self.clients, slot) else { return Ok((0..0, Ok(()))) };
        let Some(tls) = client.transport.tls.as_deref_mut() else { return Ok((0..0, Ok(()))) };
        let opened = match tls.session.open(bytes) {
            Ok(opened) => opened,
            Err(error) => {
                let mut alert = Vec::new();
                if tls.session.alert(&error, &mut alert).is_ok() {
                    client.partial_write.append(&mut alert);
                }
                return Err(End::Transport);
            }
        };
        let ended = match opened.news {
            Some(News::CloseNotify) => Err(End::Peer),
            Some(News::Alert(_)) => Err(End::Transport),
            Some(News::UpdateWanted) => {
                tls.update_wanted = true;
                self.mark(slot);
                Ok(())
            }
            None => Ok(()),
        };
        let rest = &bytes[opened.consumed..];
        if ended.is_ok() && !rest.is_empty() {
            self.keep_carry(slot, rest);
        }
        Ok((opened.plain, ended))
    }

    fn keep_carry(&mut self, slot: u32, rest: &[u8]) {
        let mut carry = self.pool.take(rest.len());
        carry.extend_from_slice(rest);
        if let Some(tls) = client_of(&mut self.clients, slot).and_then(|c| c.transport.tls.as_deref_mut()) {
            tls.carry = carry;
        }
    }
}

/// Frames for a client that is gone; they were counted in, and never held.
fn drop_run(tally: &mut Tally, bytes: &[u8]) {
    drop_frames(bytes, Reason::GoneDisconnected, tally);
    debug_assert!(data_of(bytes).len() < bytes.len() || bytes.is_empty());
}
