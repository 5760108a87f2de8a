//! From queues to sockets: one send a client and turn, and what is done with what the socket does not take.
//!
//! ```text
//!  residue │ control │ disco │ backlog │ what came this turn ─► [seal] ─► one send
//!      ▲                           ▲                                        │
//!      └── rest of a frame begun ──┴── whole frames ◄── the socket was full ┘
//! ```
//!
//! Promises: a frame begun is finished before anything else; no received buffer is kept beyond the turn after the one that
//! brought it; of a full queue the oldest data goes, at the price of a look at its header. Refuses: sending to a full
//! socket before it says that it has room.

use std::os::fd::BorrowedFd;

use weir_core::relay::{Class, Reason};
use weir_io::stream::{MOST_PARTS, Part};
use weir_io::tls::Kernel;

use super::client::{Cargo, Client, Flight, Gate, Load, OPAQUE_MOST, REACH_LEAST, REACH_MOST};
use super::timers::Due;
use super::wrap::{self, Tls};
use super::{Worker, client_of};
use crate::backlog::{Backlog, Spares, data_of, first_frame};
use crate::counters::{End, Tally};
use crate::websocket;

/// Empty lists of parts kept for use: one for each client that is sent to in the same turn.
const LOADS_MOST: usize = 1024;

impl Worker {
    /// Sends what waits for a client, or puts it away.
    pub(super) fn flush(&mut self, slot: u32) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        client.dirty = false;
        if client.flight.is_some() || client.gate != Gate::Open {
            return self.put_away(slot);
        }
        if !client.has_more() {
            return;
        }
        let sent = if client.wrap.is_opaque() { self.send_opaque(slot) } else { self.send_clear(slot) };
        match sent {
            Ok(()) => self.count_rate(slot),
            Err(end) => self.close(slot, end),
        }
    }

    /// What is to be sent now, packets only. The head is in front, when there is any.
    fn gather(&mut self, slot: u32, head: Vec<u8>) -> Load {
        let Some(client) = client_of(&mut self.clients, slot) else {
            return Load::default();
        };
        let reach = if client.wrap.is_opaque() { client.reach.min(OPAQUE_MOST) } else { client.reach };
        if head.is_empty() && client.backlog.is_empty() {
            // Nothing waited: what came this turn is what is sent.
            if client.stage.parts.len() <= MOST_PARTS && client.stage.bytes <= reach {
                return std::mem::take(&mut client.stage);
            }
        }
        let mut load = self.loads.pop().unwrap_or_default();
        if !head.is_empty() {
            let length = head.len();
            load.push(Part::Owned(head), length, 0, self.now);
        }
        while load.bytes < reach
            && load.parts.len() < MOST_PARTS
            && let Some(chunk) = client.backlog.pop()
        {
            let (frames, since) = (chunk.frames, chunk.since);
            let bytes = chunk.into_bytes();
            let length = bytes.len();
            load.push(Part::Owned(bytes), length, frames, since);
        }
        if client.backlog.is_empty() {
            move_some(&mut client.stage, &mut load, reach);
        }
        if !client.stage.is_empty() {
            self.put_away(slot);
        }
        load
    }

    fn send_clear(&mut self, slot: u32) -> Result<(), End> {
        let Some(client) = client_of(&mut self.clients, slot) else {
            return Ok(());
        };
        let mut head = std::mem::take(&mut client.residue);
        head.append(&mut client.take_control());
        let has_head = !head.is_empty();
        let load = self.gather(slot, head);
        let Load { parts, cargo, bytes, .. } = load;
        self.launch(slot, parts, Flight { cargo, bytes, head: has_head, opaque: false });
        Ok(())
    }

    /// Sealed or framed: what is in a record has left the queue.
    fn send_opaque(&mut self, slot: u32) -> Result<(), End> {
        let Some(client) = client_of(&mut self.clients, slot) else {
            return Ok(());
        };
        let residue = std::mem::take(&mut client.residue);
        let control = client.take_control();
        let mut load = self.gather(slot, control);
        let Some(client) = client_of(&mut self.clients, slot) else {
            return Ok(());
        };
        for cargo in load.cargo.drain(..) {
            self.tally.forwarded(u64::from(cargo.frames), cargo.since, self.now);
        }
        if client.wrap.websocket.is_some() && load.bytes > 0 {
            let head = websocket::head(load.bytes);
            load.bytes += head.len();
            load.parts.insert(0, Part::Owned(head));
        }
        let Load { mut parts, cargo, .. } = self.loads.pop().unwrap_or_default();
        if !residue.is_empty() {
            parts.push(Part::Owned(residue));
        }
        match client.wrap.tls.as_deref_mut() {
            Some(Tls { session, .. }) => {
                if session.key_limit_reached() {
                    let mut update = Vec::new();
                    session.update(&mut update).map_err(|_| End::Crypt)?;
                    parts.push(Part::Owned(update));
                }
                if load.bytes > 0 {
                    let (streams, spares) = (&mut self.streams, &mut self.spares);
                    wrap::seal(session, streams, spares, &load.parts, load.bytes, &mut parts)
                        .map_err(|_| End::Crypt)?;
                }
                for part in load.parts.drain(..) {
                    recycle(part, &mut self.spares);
                }
            }
            None => parts.append(&mut load.parts),
        }
        self.keep_load(load.parts, load.cargo);
        let bytes = parts.iter().map(|part| part.bytes().len()).sum();
        self.launch(slot, parts, Flight { cargo, bytes, head: false, opaque: true });
        Ok(())
    }

    /// Says goodbye where TLS wants it, if the socket is free for it.
    pub(super) fn last_words(&mut self, client: &mut Client, end: End) {
        if client.gate != Gate::Open {
            return;
        }
        let mut words = std::mem::take(&mut client.residue);
        if end != End::Crypt {
            if client.wrap.websocket.is_some()
                && client.wrap.write_raw(&websocket::GOODBYE, &mut words).is_err()
            {
                return;
            }
            if let Some(tls) = client.wrap.tls.as_deref_mut()
                && tls.session.close_notify(&mut words).is_err()
            {
                return;
            }
        }
        if !words.is_empty() {
            self.streams.send(client.stream, vec![Part::Owned(words)]);
        }
        if let (Some(kernel), Some(socket)) = (&client.wrap.kernel, self.streams.socket(client.stream))
            && end != End::Crypt
        {
            // Tried once: who cannot be told finds out.
            let _ = kernel.close_notify(socket);
        }
    }

    /// Keeps a client to what it may be sent.
    fn count_rate(&mut self, slot: u32) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        let (Some(bucket), Some(flight)) = (&mut client.send, &client.flight) else { return };
        let wait = bucket.spend(flight.bytes as u64, self.now);
        if wait > 0 {
            client.gate = Gate::Held;
            self.timers.add(self.now.saturating_add(wait), slot, client.conn, Due::Release);
        }
    }

    fn launch(&mut self, slot: u32, parts: Vec<Part>, flight: Flight) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        if parts.is_empty() {
            return self.keep_load(parts, flight.cargo);
        }
        self.tally.flush_bytes.add(flight.bytes as u64, 1);
        client.flight = Some(flight);
        self.streams.send(client.stream, parts);
        self.in_flight += 1;
    }

    /// The socket took `sent` bytes.
    pub(super) fn sent(&mut self, slot: u32, sent: usize, mut parts: Vec<Part>) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        let Some(mut flight) = client.flight.take() else { return };
        self.in_flight = self.in_flight.saturating_sub(1);
        client.bytes_sent += sent as u64;
        self.tally.bytes_sent += sent as u64;
        let whole = sent >= flight.bytes;
        let worn = match (&mut client.wrap.kernel, self.streams.socket(client.stream)) {
            (Some(kernel), Some(socket)) => after_kernel(kernel, socket, sent),
            _ => Ok(()),
        };
        if flight.opaque {
            keep_rest(client, &parts, sent);
            parts.drain(..).for_each(|part| recycle(part, &mut self.spares));
        } else if whole {
            for cargo in &flight.cargo {
                self.tally.forwarded(u64::from(cargo.frames), cargo.since, self.now);
            }
            parts.drain(..).for_each(|part| recycle(part, &mut self.spares));
        } else {
            self.put_back(slot, sent, &mut parts, &flight);
        }
        self.keep_load(parts, std::mem::take(&mut flight.cargo));
        if let Err(end) = worn {
            return self.close(slot, end);
        }
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        if whole {
            client.stalled_since = None;
            client.reach = (client.reach * 2).min(REACH_MOST);
            if client.has_more() {
                self.mark(slot);
            }
            return;
        }
        client.reach = (sent * 2).clamp(REACH_LEAST, REACH_MOST);
        // How long nothing was taken counts over several tries.
        let since = if sent == 0 { client.stalled_since.unwrap_or(self.now) } else { self.now };
        client.stalled_since = Some(since);
        // A held client's release finds a gate that is not held, and leaves it.
        client.gate = Gate::Full(since);
        self.streams.notify_writable(client.stream);
        self.watch_gate(slot);
    }

    /// A socket has room again.
    pub(super) fn writable(&mut self, slot: u32) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        if let Gate::Full(_) = client.gate {
            client.gate = Gate::Open;
            self.mark(slot);
        }
    }

    /// Of what was sent in the clear, what the socket did not take goes back in front of the queue.
    fn put_back(&mut self, slot: u32, sent: usize, parts: &mut Vec<Part>, flight: &Flight) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        let mut front = Backlog::default();
        let mut left = sent;
        let mut residue = Vec::new();
        // More than the queue holds: the oldest of it is not even copied.
        let waiting = flight.bytes.saturating_sub(sent) + client.backlog.bytes();
        let mut over = waiting.saturating_sub(self.engine.queue_bytes);
        for (i, (part, cargo)) in parts.drain(..).zip(&flight.cargo).enumerate() {
            let length = part.bytes().len();
            if left >= length {
                left -= length;
                self.tally.forwarded(u64::from(cargo.frames), cargo.since, self.now);
                recycle(part, &mut self.spares);
                continue;
            }
            if flight.head && i == 0 {
                residue.extend_from_slice(&part.bytes()[left..]);
                left = 0;
                continue;
            }
            match part {
                Part::Owned(bytes) if left == 0 && over == 0 => {
                    front.push_owned(bytes, cargo.frames, cargo.since)
                }
                part => {
                    let mut begun = left;
                    left = 0;
                    let mut rest = part.bytes();
                    let mut gone = 0;
                    while !rest.is_empty() {
                        let frame = first_frame(rest);
                        if begun >= frame.len() {
                            begun -= frame.len();
                            gone += 1;
                        } else if begun > 0 {
                            residue.extend_from_slice(&frame[begun..]);
                            begun = 0;
                            gone += 1;
                        } else if over > 0 && Class::of(data_of(frame)) == Class::Data {
                            over = over.saturating_sub(frame.len());
                            shed(&mut self.tally, &mut client.dropped, frame);
                        } else {
                            front.push(frame, cargo.since, &mut self.spares);
                        }
                        rest = &rest[frame.len()..];
                    }
                    self.tally.forwarded(gone, cargo.since, self.now);
                    recycle(part, &mut self.spares);
                }
            }
        }
        residue.append(&mut client.residue);
        client.residue = residue;
        front.append(std::mem::take(&mut client.backlog));
        client.backlog = front;
        // What was in flight may be more than the queue holds.
        let over_bytes = client.backlog.bytes().saturating_sub(self.engine.queue_bytes);
        let over_frames = client.backlog.frames().saturating_sub(self.engine.queue_frames);
        let (tally, spares) = (&mut self.tally, &mut self.spares);
        let dropped = &mut client.dropped;
        client.backlog.shed(over_bytes, over_frames, spares, |frame| shed(tally, dropped, frame));
        client.backlog.shed_disco(|frame| shed(tally, dropped, frame));
    }

    /// What came this turn waits behind what waits already; the oldest data goes for it.
    pub(super) fn put_away(&mut self, slot: u32) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        if client.stage.is_empty() {
            return;
        }
        let mut stage = std::mem::take(&mut client.stage);
        let (tally, spares) = (&mut self.tally, &mut self.spares);
        let dropped = &mut client.dropped;
        let mut bytes = (client.backlog.bytes() + stage.bytes).saturating_sub(self.engine.queue_bytes);
        let mut frames =
            (client.backlog.frames() + stage.frames as usize).saturating_sub(self.engine.queue_frames);
        (bytes, frames) = client.backlog.shed(bytes, frames, spares, |frame| shed(tally, dropped, frame));
        for (part, cargo) in stage.parts.drain(..).zip(stage.cargo.drain(..)) {
            let mut rest = part.bytes();
            while !rest.is_empty() {
                let frame = first_frame(rest);
                rest = &rest[frame.len()..];
                // More came in one turn than the queue holds: its oldest is not even copied.
                if (bytes > 0 || frames > 0) && Class::of(data_of(frame)) == Class::Data {
                    bytes = bytes.saturating_sub(frame.len());
                    frames = frames.saturating_sub(1);
                    shed(tally, dropped, frame);
                } else {
                    client.backlog.push(frame, cargo.since, spares);
                }
            }
            recycle(part, spares);
        }
        client.backlog.shed_disco(|frame| shed(tally, dropped, frame));
        self.keep_load(stage.parts, stage.cargo);
    }

    /// Lists are used again.
    fn keep_load(&mut self, mut parts: Vec<Part>, mut cargo: Vec<Cargo>) {
        if self.loads.len() < LOADS_MOST && parts.capacity() <= MOST_PARTS {
            parts.clear();
            cargo.clear();
            self.loads.push(Load { parts, cargo, bytes: 0, frames: 0 });
        }
    }

    /// Everything that waits for a client is dropped.
    pub(super) fn drop_all(&mut self, client: &mut Client, reason: Reason) {
        let (tally, spares) = (&mut self.tally, &mut self.spares);
        let mut gone = |frame: &[u8]| {
            tally.held -= 1;
            tally.drop_packet(reason, data_of(frame));
        };
        client.backlog.drain(spares, &mut gone);
        for part in client.stage.parts.drain(..) {
            let mut rest = part.bytes();
            while !rest.is_empty() {
                let frame = first_frame(rest);
                gone(frame);
                rest = &rest[frame.len()..];
            }
            recycle(part, spares);
        }
        // Its bytes are the stream's by now; that there were packets is known.
        if let Some(flight) = client.flight.take() {
            flight.cargo.iter().for_each(|cargo| (0..cargo.frames).for_each(|_| gone(&[])));
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }
}

/// The kernel sealed so much: its key is changed in time.
fn after_kernel(kernel: &mut Kernel, socket: BorrowedFd<'_>, sent: usize) -> Result<(), End> {
    kernel.sent(sent);
    if kernel.key_exhausted() {
        return Err(End::Crypt);
    }
    match kernel.key_limit_reached().then(|| kernel.update(socket)) {
        // Full: tried again after the next send.
        None | Some(Ok(()) | Err(None)) => Ok(()),
        Some(Err(Some(_))) => Err(End::Crypt),
    }
}

/// One packet falls out of a queue.
fn shed(tally: &mut Tally, dropped: &mut u64, frame: &[u8]) {
    tally.held -= 1;
    *dropped += 1;
    tally.drop_packet(Reason::QueueHead, data_of(frame));
}

/// Moves parts until there are enough.
fn move_some(from: &mut Load, to: &mut Load, reach: usize) {
    let mut moved = 0;
    for (part, cargo) in from.parts.iter().zip(&from.cargo) {
        if to.bytes >= reach || to.parts.len() + moved >= MOST_PARTS {
            break;
        }
        let bytes = part.bytes().len();
        to.bytes += bytes;
        to.frames += cargo.frames;
        from.bytes -= bytes;
        from.frames -= cargo.frames;
        moved += 1;
    }
    to.parts.extend(from.parts.drain(..moved));
    to.cargo.extend(from.cargo.drain(..moved));
}

/// What was sealed and not taken goes first, before what was made to follow it.
fn keep_rest(client: &mut Client, parts: &[Part], sent: usize) {
    let mut left = sent;
    let mut rest = Vec::new();
    for part in parts {
        let bytes = part.bytes();
        let taken = left.min(bytes.len());
        left -= taken;
        rest.extend_from_slice(&bytes[taken..]);
    }
    rest.append(&mut client.residue);
    client.residue = rest;
}

pub(super) fn recycle(part: Part, spares: &mut Spares) {
    if let Part::Owned(bytes) = part {
        spares.give(bytes);
    }
}
