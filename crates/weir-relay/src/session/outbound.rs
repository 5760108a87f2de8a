//! From queues to bytes: one send a client and turn, and what is done with what the socket does not take.
//!
//! ```text
//!  partial_write │ control │ disco │ backlog │ what came this turn ─► [seal] ─► one send
//!        ▲                               ▲                                        │
//!        └──── rest of a frame begun ────┴── whole frames ◄── the socket was full ┘
//! ```
//!
//! Promises: a frame begun is finished before anything else; no received buffer is kept beyond the turn after the one that
//! brought it; of a full queue the oldest data goes, at the price of a look at its header. Refuses: sending to a full
//! socket before it says that it has room.

use weir_core::relay::{Class, Reason};
use weir_io::stream::{MOST_PARTS, Part};

use super::client::{
    BatchMeta, Client, InFlightWrite, OPAQUE_MOST, SendState, WRITE_BUDGET_LEAST, WRITE_BUDGET_MOST,
    WriteBatch,
};
use super::timers::Due;
use super::transport::{self, Tls};
use super::{Action, Session, client_of};
use crate::backlog::{Backlog, BufferPool, data_of, first_frame, holds_disco};
use crate::counters::{End, Tally};
use crate::websocket;

/// Empty lists of parts kept for use: one for each client that is sent to in the same turn.
const BATCHES_MOST: usize = 1024;

impl Session {
    /// Sends what waits for a client, or puts it away.
    pub(super) fn flush(&mut self, slot: u32) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        client.dirty = false;
        if client.in_flight.is_some() || client.send_state != SendState::Ready {
            return self.put_away(slot);
        }
        if !client.has_more() {
            return;
        }
        let sent = if client.transport.is_opaque() { self.send_opaque(slot) } else { self.send_clear(slot) };
        match sent {
            Ok(()) => self.count_rate(slot),
            Err(end) => self.close(slot, end),
        }
    }

    /// What is to be sent now, packets only. The head is in front, when there is any.
    fn gather(&mut self, slot: u32, head: Vec<u8>, write_budget: usize) -> WriteBatch {
        let Some(client) = client_of(&mut self.clients, slot) else {
            return WriteBatch::default();
        };
        if head.is_empty() && client.backlog.is_empty() {
            // Nothing waited: what came this turn is what is sent.
            if client.stage.parts.len() <= MOST_PARTS && client.stage.bytes <= write_budget {
                return std::mem::take(&mut client.stage);
            }
        }
        let mut batch = self.batches.pop().unwrap_or_default();
        if !head.is_empty() {
            let length = head.len();
            batch.push(Part::Owned(head), length, 0, self.now);
        }
        while batch.bytes < write_budget
            && batch.parts.len() < MOST_PARTS
            && let Some(chunk) = client.backlog.pop()
        {
            let (frames, since) = (chunk.frames, chunk.since);
            let bytes = chunk.into_bytes();
            let length = bytes.len();
            batch.push(Part::Owned(bytes), length, frames, since);
        }
        if client.backlog.is_empty() {
            move_some(&mut client.stage, &mut batch, write_budget);
        }
        if !client.stage.is_empty() {
            self.put_away(slot);
        }
        batch
    }

    fn send_clear(&mut self, slot: u32) -> Result<(), End> {
        let Some(client) = client_of(&mut self.clients, slot) else {
            return Ok(());
        };
        let mut head = std::mem::take(&mut client.partial_write);
        // What was begun goes first, and is to get no longer while the socket takes little.
        if head.len() < WRITE_BUDGET_LEAST {
            head.append(&mut client.take_control());
        }
        let (has_head, write_budget) = (!head.is_empty(), client.write_budget);
        let batch = self.gather(slot, head, write_budget);
        let WriteBatch { parts, meta, bytes, .. } = batch;
        self.launch(slot, parts, InFlightWrite { meta, bytes, head: has_head, opaque: false });
        Ok(())
    }

    /// Sealed or framed: what is in a record has left the queue.
    fn send_opaque(&mut self, slot: u32) -> Result<(), End> {
        let Some(client) = client_of(&mut self.clients, slot) else {
            return Ok(());
        };
        let partial_write = std::mem::take(&mut client.partial_write);
        // What was sealed and not taken stays in memory until it is: no more than a write's worth of it.
        let write_budget = client.write_budget.min(OPAQUE_MOST).saturating_sub(partial_write.len());
        let control = if write_budget > 0 { client.take_control() } else { Vec::new() };
        let mut batch = self.gather(slot, control, write_budget);
        let Some(client) = client_of(&mut self.clients, slot) else {
            return Ok(());
        };
        for meta in batch.meta.drain(..) {
            self.tally.forwarded(u64::from(meta.frames), meta.since, self.now);
        }
        if client.transport.websocket.is_some() && batch.bytes > 0 {
            let head = websocket::head(batch.bytes);
            batch.bytes += head.len();
            batch.parts.insert(0, Part::Owned(head));
        }
        let WriteBatch { mut parts, meta, .. } = self.batches.pop().unwrap_or_default();
        if !partial_write.is_empty() {
            parts.push(Part::Owned(partial_write));
        }
        match client.transport.tls.as_deref_mut() {
            Some(Tls { session, update_wanted, .. }) => {
                if write_budget > 0 && (session.key_limit_reached() || *update_wanted) {
                    *update_wanted = false;
                    let mut update = Vec::new();
                    session.update(&mut update).map_err(|_| End::Transport)?;
                    parts.push(Part::Owned(update));
                }
                if batch.bytes > 0 {
                    let (buffers, pool) = (&self.buffers, &mut self.pool);
                    transport::seal(session, buffers, pool, &batch.parts, batch.bytes, &mut parts)
                        .map_err(|_| End::Transport)?;
                }
                for part in batch.parts.drain(..) {
                    recycle(part, &mut self.pool);
                }
            }
            None => parts.append(&mut batch.parts),
        }
        self.keep_batch(batch.parts, batch.meta);
        let bytes = parts.iter().map(|part| part.bytes().len()).sum();
        self.launch(slot, parts, InFlightWrite { meta, bytes, head: false, opaque: true });
        Ok(())
    }

    /// Closes gracefully where TLS or WebSocket wants it, if the socket is free for it.
    pub(super) fn graceful_close(&mut self, slot: u32, client: &mut Client, end: End) {
        let mut words = std::mem::take(&mut client.partial_write);
        if end != End::Transport {
            if client.transport.websocket.is_some()
                && client.transport.write_raw(&websocket::GOODBYE, &mut words).is_err()
            {
                return;
            }
            if let Some(tls) = client.transport.tls.as_deref_mut()
                && tls.session.close_notify(&mut words).is_err()
            {
                return;
            }
        }
        if !words.is_empty() {
            self.actions.push(Action::Send { slot, parts: vec![Part::Owned(words)] });
        }
    }

    /// Keeps a client to what it may be sent.
    fn count_rate(&mut self, slot: u32) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        let (Some(bucket), Some(in_flight)) = (&mut client.send, &client.in_flight) else { return };
        let wait = bucket.spend(in_flight.bytes as u64, self.now);
        if wait > 0 {
            client.send_state = SendState::RateLimited;
            self.timers.add(self.now.saturating_add(wait), slot, client.conn, Due::Release);
        }
    }

    fn launch(&mut self, slot: u32, parts: Vec<Part>, in_flight: InFlightWrite) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        if parts.is_empty() {
            return self.keep_batch(parts, in_flight.meta);
        }
        self.tally.flush_bytes.add(in_flight.bytes as u64, 1);
        client.in_flight = Some(in_flight);
        self.actions.push(Action::Send { slot, parts });
        self.writes_in_flight += 1;
    }

    /// The socket took `sent` bytes.
    pub fn sent(&mut self, slot: u32, sent: usize, mut parts: Vec<Part>) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        let Some(mut in_flight) = client.in_flight.take() else { return };
        self.writes_in_flight = self.writes_in_flight.saturating_sub(1);
        client.bytes_sent += sent as u64;
        self.tally.bytes_sent += sent as u64;
        let whole = sent >= in_flight.bytes;
        if in_flight.opaque {
            keep_rest(client, &parts, sent);
            parts.drain(..).for_each(|part| recycle(part, &mut self.pool));
        } else if whole {
            for meta in &in_flight.meta {
                self.tally.forwarded(u64::from(meta.frames), meta.since, self.now);
            }
            parts.drain(..).for_each(|part| recycle(part, &mut self.pool));
        } else {
            self.put_back(slot, sent, &mut parts, &in_flight);
        }
        self.keep_batch(parts, std::mem::take(&mut in_flight.meta));
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        if whole {
            client.stalled_since = None;
            client.write_budget = (client.write_budget * 2).min(WRITE_BUDGET_MOST);
            if client.has_more() {
                self.mark(slot);
            }
            return;
        }
        client.write_budget = (sent * 2).clamp(WRITE_BUDGET_LEAST, WRITE_BUDGET_MOST);
        // How long nothing was taken counts over several tries.
        let since = if sent == 0 { client.stalled_since.unwrap_or(self.now) } else { self.now };
        client.stalled_since = Some(since);
        if client.send_state == SendState::Leaving {
            return;
        }
        // The release of a client that had its rate finds another state, and leaves it.
        client.send_state = SendState::SocketFull(since);
        self.actions.push(Action::NotifyWritable { slot });
        self.watch_full(slot);
    }

    /// A socket has room again.
    pub fn writable(&mut self, slot: u32) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        if let SendState::SocketFull(_) = client.send_state {
            client.send_state = SendState::Ready;
            self.mark(slot);
        }
    }

    /// Puts back in front of the queue what the socket did not take of what was sent as cleartext.
    fn put_back(&mut self, slot: u32, sent: usize, parts: &mut Vec<Part>, in_flight: &InFlightWrite) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        let mut front = Backlog::default();
        let mut left = sent;
        let mut partial_write = Vec::new();
        // More than the queue holds: the oldest of it is not even copied.
        let waiting = in_flight.bytes.saturating_sub(sent) + client.backlog.bytes();
        let mut over = waiting.saturating_sub(self.engine.queue_bytes);
        for (i, (part, meta)) in parts.drain(..).zip(&in_flight.meta).enumerate() {
            let length = part.bytes().len();
            if left >= length {
                left -= length;
                self.tally.forwarded(u64::from(meta.frames), meta.since, self.now);
                recycle(part, &mut self.pool);
                continue;
            }
            if in_flight.head && i == 0 {
                partial_write.extend_from_slice(&part.bytes()[left..]);
                left = 0;
                continue;
            }
            match part {
                // Of two classes each frame has its own place.
                Part::Owned(bytes)
                    if left == 0 && over == 0 && (meta.frames == 1 || !holds_disco(&bytes)) =>
                {
                    front.push_owned(bytes, meta.frames, meta.since)
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
                            partial_write.extend_from_slice(&frame[begun..]);
                            begun = 0;
                            gone += 1;
                        } else if over > 0 && Class::of(data_of(frame)) == Class::Data {
                            over = over.saturating_sub(frame.len());
                            shed(&mut self.tally, &mut client.dropped, frame);
                        } else {
                            front.push(frame, meta.since, &mut self.pool);
                        }
                        rest = &rest[frame.len()..];
                    }
                    self.tally.forwarded(gone, meta.since, self.now);
                    recycle(part, &mut self.pool);
                }
            }
        }
        partial_write.append(&mut client.partial_write);
        client.partial_write = partial_write;
        front.append(std::mem::take(&mut client.backlog));
        client.backlog = front;
        // What was in flight may be more than the queue holds.
        let over_bytes = client.backlog.bytes().saturating_sub(self.engine.queue_bytes);
        let over_frames = client.backlog.frames().saturating_sub(self.engine.queue_frames);
        let (tally, pool) = (&mut self.tally, &mut self.pool);
        let dropped = &mut client.dropped;
        client.backlog.shed(over_bytes, over_frames, pool, |frame| shed(tally, dropped, frame));
        client.backlog.shed_disco(|frame| shed(tally, dropped, frame));
    }

    /// What came this turn waits behind what waits already; the oldest data goes for it.
    pub(super) fn put_away(&mut self, slot: u32) {
        let Some(client) = client_of(&mut self.clients, slot) else { return };
        if client.stage.is_empty() {
            return;
        }
        let mut stage = std::mem::take(&mut client.stage);
        let (tally, pool) = (&mut self.tally, &mut self.pool);
        let dropped = &mut client.dropped;
        let mut bytes = (client.backlog.bytes() + stage.bytes).saturating_sub(self.engine.queue_bytes);
        let mut frames =
            (client.backlog.frames() + stage.frames as usize).saturating_sub(self.engine.queue_frames);
        (bytes, frames) = client.backlog.shed(bytes, frames, pool, |frame| shed(tally, dropped, frame));
        for (part, meta) in stage.parts.drain(..).zip(stage.meta.drain(..)) {
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
                    client.backlog.push(frame, meta.since, pool);
                }
            }
            recycle(part, pool);
        }
        client.backlog.shed_disco(|frame| shed(tally, dropped, frame));
        self.keep_batch(stage.parts, stage.meta);
    }

    /// Lists are used again.
    fn keep_batch(&mut self, mut parts: Vec<Part>, mut meta: Vec<BatchMeta>) {
        if self.batches.len() < BATCHES_MOST && parts.capacity() <= MOST_PARTS {
            parts.clear();
            meta.clear();
            self.batches.push(WriteBatch { parts, meta, bytes: 0, frames: 0 });
        }
    }

    /// Everything that waits for a client is dropped.
    pub(super) fn drop_all(&mut self, client: &mut Client, reason: Reason) {
        let (tally, pool) = (&mut self.tally, &mut self.pool);
        let mut gone = |frame: &[u8]| {
            tally.held -= 1;
            tally.drop_packet(reason, data_of(frame));
        };
        client.backlog.drain(pool, &mut gone);
        for part in client.stage.parts.drain(..) {
            let mut rest = part.bytes();
            while !rest.is_empty() {
                let frame = first_frame(rest);
                gone(frame);
                rest = &rest[frame.len()..];
            }
            recycle(part, pool);
        }
        // Its bytes are the stream's by now; that there were packets is known.
        if let Some(in_flight) = client.in_flight.take() {
            in_flight.meta.iter().for_each(|meta| (0..meta.frames).for_each(|_| gone(&[])));
            self.writes_in_flight = self.writes_in_flight.saturating_sub(1);
        }
    }
}

/// One packet falls out of a queue.
fn shed(tally: &mut Tally, dropped: &mut u64, frame: &[u8]) {
    tally.held -= 1;
    *dropped += 1;
    tally.drop_packet(Reason::QueueHead, data_of(frame));
}

/// Moves parts until there are enough.
fn move_some(from: &mut WriteBatch, to: &mut WriteBatch, write_budget: usize) {
    let mut moved = 0;
    for (part, meta) in from.parts.iter().zip(&from.meta) {
        if to.bytes >= write_budget || to.parts.len() + moved >= MOST_PARTS {
            break;
        }
        let bytes = part.bytes().len();
        to.bytes += bytes;
        to.frames += meta.frames;
        from.bytes -= bytes;
        from.frames -= meta.frames;
        moved += 1;
    }
    to.parts.extend(from.parts.drain(..moved));
    to.meta.extend(from.meta.drain(..moved));
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
    rest.append(&mut client.partial_write);
    client.partial_write = rest;
}

pub(super) fn recycle(part: Part, pool: &mut BufferPool) {
    if let Part::Owned(bytes) = part {
        pool.give(bytes);
    }
}
