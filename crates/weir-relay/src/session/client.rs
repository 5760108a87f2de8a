//! One connection, as its session has it: who it is, what came in halves, what waits to go out.
//!
//! Promises: an idle connection holds its names, its keys and no buffer; what is `partial_write` has begun to be sent and
//! goes first, whatever becomes of the rest. Refuses: more control frames than [`CONTROL_MOST`] for a client that
//! takes none.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use weir_core::relay::bucket::Bucket;
use weir_core::relay::decoder::{FrameDecoder, Side};
use weir_core::relay::{ConnId, Frame, Key};
use weir_core::time::{Nanos, SECOND};
use weir_io::stream::{Buffer, Part};

use super::moving::Crossings;
use super::routes::{KeyHash, KeySet, Last, Route, Routes};
use super::transport::Transport;
use crate::backlog::{Backlog, DISCO_BYTES_MOST};
use crate::{Rate, Rates, Role};

/// Control frames that wait for one client: the list of 1,000,000 peers a watcher asks for is 64 MB.
pub const CONTROL_MOST: usize = 80 << 20;
/// Bytes waiting with which pings are not answered any more.
pub const CONTROL_BUSY: usize = 4 << 10;
/// Frames of the registrar's from this size on are kept as they came, so that the rest of one is not copied with every send.
const BULK: usize = 4 << 10;
/// What is given to a socket at once at most: half of what a usual `tcp_wmem` lets it grow to.
pub const WRITE_BUDGET_MOST: usize = 2 << 20;
/// The same of what cannot be taken back: it is kept whole when the socket is full.
pub const OPAQUE_MOST: usize = 512 << 10;
/// What is given to a socket at once at least, while it is not full.
pub const WRITE_BUDGET_LEAST: usize = 64 << 10;

/// What one client's connection takes of this process's memory at most ([`Connection::memory`](crate::Connection)), beside
/// twice the control frames that wait for it: chunks and vectors may be half empty.
///
/// The queue by its limit and 64 frames of path discovery, what was sealed and not taken, a frame and a record that are not
/// whole, a turn's list of parts. Each connected peer that it has sent to takes up to 132 bytes more.
pub const fn memory_most(queue_bytes: usize) -> usize {
    2 * (queue_bytes + DISCO_BYTES_MOST + OPAQUE_MOST) + (512 << 10)
}

/// Frames on their way to a client: parts, and how many packets are in each.
#[derive(Debug, Default)]
pub struct WriteBatch {
    pub parts: Vec<Part>,
    pub meta: Vec<BatchMeta>,
    pub bytes: usize,
    pub frames: u32,
}

/// What is known of one part of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchMeta {
    pub frames: u32,
    /// When they came.
    pub since: Nanos,
}

impl WriteBatch {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    #[inline]
    pub fn push(&mut self, part: Part, bytes: usize, frames: u32, since: Nanos) {
        self.parts.push(part);
        self.meta.push(BatchMeta { frames, since });
        self.bytes += bytes;
        self.frames += frames;
    }

    /// Whole frames in a received buffer.
    #[inline]
    pub fn share(&mut self, buffer: &Rc<Buffer>, from: usize, to: usize, frames: u32, since: Nanos) {
        self.push(Part::Shared(buffer.clone(), from..to), to - from, frames, since);
    }
}

/// Something was sent that is not answered yet.
#[derive(Debug, Default)]
pub struct InFlightWrite {
    pub meta: Vec<BatchMeta>,
    pub bytes: usize,
    /// The first part is not packets: it is sent whole before anything else.
    pub head: bool,
    /// Sealed or framed: nothing of it can be taken back.
    pub opaque: bool,
}

/// Why nothing is sent although something waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    Ready,
    /// The socket is full; when it last took something.
    SocketFull(Nanos),
    /// The client has had its rate.
    RateLimited,
    /// The client goes to another worker.
    Leaving,
}

/// Pairs that another relay forwarded for, which the registrar has been told of.
#[derive(Debug, Default)]
pub struct Relayed {
    pairs: HashSet<(Key, Key)>,
    gone: u64,
}

/// Told of again when there are more: 4 MiB.
const RELAYED_MOST: usize = 64 << 10;

impl Relayed {
    /// Whether the registrar may not know; `gone` counts keys that went, with which it forgets.
    pub fn is_new(&mut self, source: Key, to: Key, gone: u64) -> bool {
        if self.gone != gone || self.pairs.len() > RELAYED_MOST {
            self.pairs.clear();
            self.gone = gone;
        }
        self.pairs.insert((source, to))
    }
}

/// The client or relay whose connection it is.
#[derive(Debug)]
pub struct Who {
    pub conn: ConnId,
    pub key: Key,
    pub role: Role,
    pub address: SocketAddr,
}

#[derive(Debug)]
pub struct Client {
    pub conn: ConnId,
    pub key: Key,
    pub role: Role,
    pub address: SocketAddr,
    pub transport: Transport,
    pub since: Nanos,
    pub home: bool,
    /// Another connection of the same key receives: the next packet of this one is to be told.
    pub flagged: bool,

    pub decoder: FrameDecoder,
    pub last: Last,
    pub crossings: Crossings,
    /// Keys that received from this one.
    pub sent_to: KeySet,
    pub relayed: Relayed,
    pub not_here: Bucket,
    pub receive: Option<Box<Bucket>>,
    pub paused: bool,

    /// Begun, and to be finished before all else.
    pub partial_write: Vec<u8>,
    /// Frames that are not packets.
    pub control: Vec<u8>,
    /// Many of them, which follow: what a watcher is told.
    pub bulk: VecDeque<Vec<u8>>,
    /// What was laid before the client in this turn.
    pub stage: WriteBatch,
    pub backlog: Backlog,
    pub in_flight: Option<InFlightWrite>,
    pub send_state: SendState,
    /// Time since which its socket has taken nothing, over several tries.
    pub stalled_since: Option<Nanos>,
    /// The client is in the list of those whose socket is full.
    pub watched: bool,
    pub write_budget: usize,
    pub send: Option<Box<Bucket>>,
    pub dirty: bool,

    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub dropped: u64,
}

impl Client {
    pub fn new(who: Who, transport: Transport, hash: KeyHash, rates: &Rates, now: Nanos) -> Client {
        let Who { conn, key, role, address } = who;
        let bucket = |rate: &Rate| Box::new(Bucket::new(rate.bytes_per_second, rate.burst, now));
        let side = if role == Role::Dialled { Side::Client } else { Side::Server };
        Client {
            conn,
            key,
            role,
            address,
            transport,
            since: now,
            home: false,
            flagged: false,
            decoder: FrameDecoder::new(side),
            last: Last::default(),
            crossings: Crossings::default(),
            sent_to: KeySet::with_hasher(hash),
            relayed: Relayed::default(),
            not_here: Bucket::new(1, 3, now),
            receive: rates.receive.as_ref().map(bucket),
            paused: false,
            partial_write: Vec::new(),
            control: Vec::new(),
            bulk: VecDeque::new(),
            stage: WriteBatch::default(),
            backlog: Backlog::default(),
            in_flight: None,
            send_state: SendState::Ready,
            stalled_since: None,
            watched: false,
            write_budget: WRITE_BUDGET_MOST,
            send: rates.send.as_ref().map(bucket),
            dirty: false,
            bytes_received: 0,
            bytes_sent: 0,
            dropped: 0,
        }
    }

    pub fn say(&mut self, frame: &Frame<'_>) {
        frame.write(&mut self.control);
    }

    /// Frames of the registrar's, in the order they come. False when there are too many.
    pub fn say_bytes(&mut self, bytes: Vec<u8>) -> bool {
        if self.bulk.is_empty() && bytes.len() < BULK {
            self.control.extend_from_slice(&bytes);
        } else {
            self.bulk.push_back(bytes);
        }
        self.control_bytes() <= CONTROL_MOST
    }

    /// Control frames that wait.
    pub fn control_bytes(&self) -> usize {
        self.control.len() + self.bulk_bytes()
    }

    fn bulk_bytes(&self) -> usize {
        self.bulk.iter().map(Vec::len).sum()
    }

    /// Control frames to be sent now.
    pub fn take_control(&mut self) -> Vec<u8> {
        let mut control = std::mem::take(&mut self.control);
        while control.len() < WRITE_BUDGET_LEAST
            && let Some(mut more) = self.bulk.pop_front()
        {
            control.append(&mut more);
        }
        control
    }

    /// Whether something waits that is not in flight.
    pub fn has_more(&self) -> bool {
        self.transport.owes()
            || !(self.partial_write.is_empty()
                && self.control.is_empty()
                && self.bulk.is_empty()
                && self.stage.is_empty()
                && self.backlog.is_empty())
    }

    /// Nothing waits and nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        self.in_flight.is_none() && !self.has_more()
    }

    pub fn queued_bytes(&self) -> usize {
        self.partial_write.len() + self.control_bytes() + self.backlog.bytes()
    }

    /// Bytes of this process that are this connection's alone.
    pub fn memory(&self) -> usize {
        size_of::<Client>()
            + self.transport.memory()
            + self.decoder.memory()
            + self.relayed.pairs.capacity() * (2 * size_of::<Key>() + 1)
            + self.sent_to.capacity() * (size_of::<Key>() + 1)
            + self.partial_write.capacity()
            + self.control.capacity()
            + self.bulk_bytes()
            + self.bulk.capacity() * size_of::<Vec<u8>>()
            + self.stage.parts.capacity() * size_of::<Part>()
            + self.stage.meta.capacity() * size_of::<BatchMeta>()
            + self.backlog.memory()
            + self
                .in_flight
                .as_ref()
                .map_or(0, |in_flight| in_flight.meta.capacity() * size_of::<BatchMeta>())
    }

    /// `key` received from this one. Keys that went are forgotten before the set grows: nobody is to be told any more.
    pub fn note_sent_to(&mut self, key: Key, routes: &Routes) {
        if self.sent_to.len() == self.sent_to.capacity() {
            self.sent_to.retain(|key| routes.find(key) != Route::Nowhere);
        }
        self.sent_to.insert(key);
    }

    pub fn seconds(&self, now: Nanos) -> u64 {
        now.saturating_sub(self.since) / SECOND
    }
}
