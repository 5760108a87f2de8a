//! Streams by io_uring: one system call a turn, whatever happened.
//!
//! ```text
//! a turn: lend buffers ─► submit receives, sends, closes; wait ─► completions ─► events
//! ```
//!
//! Each stream has one receive in flight that takes a lent buffer for every arrival until it is cancelled or
//! buffers run out. Sends complete within the call that submits them (`MSG_DONTWAIT`). Needs Linux 6.0: ring of
//! provided buffers, multishot receive.
//!
//! Promises: memory that an operation in flight may touch is neither freed nor given to anybody, until its last
//! completion has come. A number of a stream is used again only then. When the kernel does not give operations
//! back at the end, their memory is leaked.

mod lending;
mod operation;

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, cqueue, squeue, types};

use super::buffers::{Buffer, Lent, Part, Pool};
use super::slots::{Slots, StreamId};
use super::{Counters, Event, received, socket};
use crate::wake::Waker;
use lending::Lending;
use operation::{Operation, Sending};

/// Boxes of past sends kept for coming ones: as many as one turn may need when it is busy.
const KEPT_SENDINGS: usize = 256;

/// Rounds of waiting for operations at the end, and how long each takes at most.
const LAST_ROUNDS: usize = 50;
const LAST_WAIT: Duration = Duration::from_millis(100);

/// The header in front of a message: name, control, payload lengths and flags.
const MESSAGE_HEAD: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Idle,
    Armed,
    /// Armed, and asked to stop.
    Stopping,
}

#[derive(Debug)]
struct Stream {
    token: u64,
    socket: OwnedFd,
    sending: Option<Box<Sending>>,
    /// Entries submitted, or about to be, whose last completion has not come.
    in_flight: u8,
    receiving: Receiving,
    kernel_tls: bool,
    paused: bool,
    /// No buffer was left: waits in `starved`.
    starved: bool,
    /// It received something since it last waited in `starved`.
    served: bool,
    /// A wait for writability is in flight.
    polling: bool,
    ended: bool,
    failed: bool,
    closing: bool,
    /// Its socket is given back once nothing is in flight.
    releasing: bool,
}

impl Stream {
    fn receives(&self) -> bool {
        !(self.paused || self.starved || self.ended || self.failed || self.closing || self.releasing)
    }
}

pub(super) struct Uring {
    ring: ManuallyDrop<IoUring>,
    lending: ManuallyDrop<Lending>,
    slots: ManuallyDrop<Slots<Stream>>,
    /// What a receive with control messages looks like; the kernel reads it.
    message: ManuallyDrop<Box<libc::msghdr>>,
    /// Entries for which the submission queue has no room yet.
    backlog: VecDeque<squeue::Entry>,
    /// Entries handed out, of all streams and the waker, whose last completion has not come.
    in_flight: usize,
    starved: VecDeque<StreamId>,
    /// Those of them that came out of `starved` in vain: the streams before them took all buffers.
    in_vain: Vec<StreamId>,
    answers: Vec<Event>,
    /// Boxes to be used again as they are.
    #[allow(clippy::vec_box)]
    sendings: Vec<Box<Sending>>,
    completions: Vec<cqueue::Entry>,
    /// Streams closed whose operations are still in flight.
    closing: usize,
    waker: Arc<Waker>,
    counters: Counters,
    stopping: bool,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uring({} streams, {} in flight)", self.slots.len(), self.in_flight)
    }
}

impl Uring {
    pub(super) fn new(pool: &Rc<Pool>, waker: Arc<Waker>) -> io::Result<(Uring, String)> {
        let (ring, with) = operation::ring()?;
        let lending = Lending::new(&ring, pool)?;
        let mut message = Box::new(socket::empty_message());
        message.msg_controllen = socket::CONTROL;
        let mut uring = Uring {
            ring: ManuallyDrop::new(ring),
            lending: ManuallyDrop::new(lending),
            slots: ManuallyDrop::new(Slots::new()),
            message: ManuallyDrop::new(message),
            backlog: VecDeque::new(),
            in_flight: 0,
            starved: VecDeque::new(),
            in_vain: Vec::new(),
            answers: Vec::new(),
            sendings: Vec::new(),
            completions: Vec::new(),
            closing: 0,
            waker,
            counters: Counters::default(),
            stopping: false,
        };
        uring.submit(operation::woken(uring.waker.as_raw_fd()));
        Ok((uring, with.to_owned()))
    }

    pub(super) fn register(&mut self, socket: OwnedFd, token: u64, kernel_tls: bool) -> StreamId {
        let id = self.slots.insert(Stream {
            token,
            socket,
            sending: None,
            in_flight: 0,
            receiving: Receiving::Idle,
            kernel_tls,
            paused: false,
            starved: false,
            served: false,
            polling: false,
            ended: false,
            failed: false,
            closing: false,
            releasing: false,
        });
        self.reconcile(id.index);
        id
    }

    pub(super) fn send(&mut self, id: StreamId, parts: Vec<Part>) {
        let Some(stream) = self.slots.get(id).filter(|stream| !stream.closing && !stream.failed) else {
            return;
        };
        debug_assert!(stream.sending.is_none(), "one send of a stream at a time");
        if stream.sending.is_some() {
            let token = stream.token;
            return self.answers.push(Event::Sent { token, sent: 0, parts });
        }
        let sending = stream.sending.insert(self.sendings.pop().unwrap_or_else(Sending::new));
        // The box stays in the slot until its completion has come, or is leaked with the slot.
        let entry = sending.entry(stream.socket.as_raw_fd(), id.index, parts);
        stream.in_flight += 1;
        self.submit(entry);
    }

    pub(super) fn notify_writable(&mut self, id: StreamId) {
        let Some(stream) = self.slots.get(id).filter(|stream| !stream.closing && !stream.failed) else {
            return;
        };
        if !stream.polling {
            stream.polling = true;
            stream.in_flight += 1;
            let entry = operation::writable(stream.socket.as_raw_fd(), id.index);
            self.submit(entry);
        }
    }

    pub(super) fn pause(&mut self, id: StreamId) {
        let Some(stream) = self.slots.get(id).filter(|stream| !stream.closing) else { return };
        stream.paused = true;
        self.reconcile(id.index);
    }

    pub(super) fn resume(&mut self, id: StreamId) {
        let Some(stream) = self.slots.get(id).filter(|stream| !stream.closing) else { return };
        stream.paused = false;
        self.reconcile(id.index);
    }

    pub(super) fn close(&mut self, id: StreamId) {
        let Some(stream) = self.slots.get(id).filter(|stream| !stream.closing) else { return };
        stream.closing = true;
        self.closing += 1;
        self.cancel_all_of(id.index);
    }

    pub(super) fn release(&mut self, id: StreamId) {
        let Some(stream) = self.slots.get(id).filter(|stream| !stream.closing) else { return };
        stream.releasing = true;
        if stream.in_flight == 0 {
            // Nothing is there to be cancelled, which is answered by the next turn.
            stream.in_flight += 1;
            self.submit(operation::cancel(Operation::Receive, id.index));
        }
        self.cancel_all_of(id.index);
    }

    /// The socket of a stream that is to be released, once nothing is in flight.
    fn released(&mut self, index: u32) -> Option<Event> {
        let stream = self.slots.at(index)?;
        if !stream.releasing || stream.closing || stream.failed || stream.in_flight > 0 {
            return None;
        }
        let Stream { token, socket, .. } = self.slots.remove(index)?;
        Some(Event::Released { token, socket })
    }

    /// Ends what waits for the peer; what is being sent has its answer soon.
    fn cancel_all_of(&mut self, index: u32) {
        if let Some(stream) = self.slots.at(index)
            && stream.polling
        {
            stream.in_flight += 1;
            self.submit(operation::cancel(Operation::Writable, index));
        }
        self.reconcile(index);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.closing
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn socket(&mut self, id: StreamId) -> Option<BorrowedFd<'_>> {
        Some(self.slots.get(id)?.socket.as_fd())
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes() + self.sendings.len() * size_of::<Sending>()
    }

    pub(super) fn turn(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let before = events.len();
        events.append(&mut self.answers);
        let buffers = self.lending.fill();
        self.feed(buffers);
        loop {
            let all = self.move_backlog();
            let idle = all && events.len() == before;
            self.counters.enters += 1;
            let submitted = self.enter(if idle { timeout } else { Some(Duration::ZERO) })?;
            self.reap(events);
            // What was refused for want of memory is tried again with the next turn.
            if all || !submitted {
                return Ok(());
            }
        }
    }

    /// Hands an entry to the kernel with the next call. What it points to must stay until its last completion.
    fn submit(&mut self, entry: squeue::Entry) {
        self.in_flight += 1;
        self.backlog.push_back(entry);
    }

    /// Moves entries to the submission queue; whether all found room.
    fn move_backlog(&mut self) -> bool {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: entries point to `message` or to the `Sending` in its stream's slot; both stay where they
            // are until the entry's last completion has come, or for ever (see `drop`). Sockets are closed only
            // then, too. Buffers come from `lending`, which gives them out only when a completion names them.
            if unsafe { queue.push(entry) }.is_err() {
                return false;
            }
            self.backlog.pop_front();
        }
        true
    }

    /// Submits, and waits for a completion: at most `timeout`. Whether the kernel took what was submitted.
    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let (submitter, queue, completions) = self.ring.split();
        let entries = queue.len() as u32;
        drop(queue);
        let waiting = if completions.is_empty() { 1 } else { 0 };
        drop(completions);
        let done = match timeout {
            None => submitter.submit_and_wait(waiting),
            Some(Duration::ZERO) => {
                // SAFETY: submits the entries just counted, waits for none, passes no argument. Completions are
                // asked for because only that lets deferred work run.
                unsafe { submitter.enter::<libc::sigset_t>(entries, 0, EnterFlags::GETEVENTS.bits(), None) }
            }
            Some(timeout) => {
                let timeout = types::Timespec::from(timeout);
                submitter.submit_with_args(waiting, &types::SubmitArgs::new().timespec(&timeout))
            }
        };
        match done.map_err(|error| (error.raw_os_error(), error)) {
            // The time is over, or a signal came.
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR), _)) => Ok(true),
            // Completions have to be reaped first; the kernel is short of memory.
            Err((Some(libc::EBUSY | libc::EAGAIN), _)) => Ok(false),
            Err((_, error)) => Err(error),
        }
    }

    fn reap(&mut self, events: &mut Vec<Event>) {
        let mut completions = std::mem::take(&mut self.completions);
        completions.extend(self.ring.completion());
        for completion in completions.drain(..) {
            self.completed(&completion, events);
        }
        self.completions = completions;
    }

    fn completed(&mut self, completion: &cqueue::Entry, events: &mut Vec<Event>) {
        let Some((operation, index)) = Operation::named(completion.user_data()) else { return };
        let result = completion.result();
        let last = !cqueue::more(completion.flags());
        self.in_flight -= usize::from(last);
        let buffer = cqueue::buffer_select(completion.flags()).and_then(|number| self.lending.take(number));
        match operation {
            Operation::CancelAll => return,
            Operation::Waker => {
                self.waker.clear();
                events.push(Event::Woken);
                if last && !self.stopping {
                    self.submit(operation::woken(self.waker.as_raw_fd()));
                }
                return;
            }
            _ => {}
        }
        let Some(stream) = self.slots.at(index) else { return };
        stream.in_flight -= u8::from(last);
        match operation {
            Operation::Receive => {
                if last {
                    stream.receiving = Receiving::Idle;
                }
                self.receive_completed(index, result, last, buffer, events);
            }
            Operation::Send => self.send_completed(index, result, events),
            Operation::Writable => {
                stream.polling = false;
                if !stream.closing && !stream.failed && !stream.releasing {
                    events.push(Event::Writable { token: stream.token });
                }
            }
            // The operation to cancel may have been between two waits: then it has to be asked again.
            Operation::CancelReceive if result < 0 && stream.receiving == Receiving::Stopping => {
                stream.receiving = Receiving::Armed;
            }
            Operation::CancelWritable if result < 0 && stream.polling => {
                stream.in_flight += 1;
                self.submit(operation::cancel(Operation::Writable, index));
            }
            _ => {}
        }
        match self.released(index) {
            Some(event) => events.push(event),
            None => self.reconcile(index),
        }
    }

    fn receive_completed(
        &mut self,
        index: u32,
        result: i32,
        last: bool,
        lent: Option<Lent>,
        events: &mut Vec<Event>,
    ) {
        let bytes = result.max(0) as usize;
        // SAFETY: the completion names this buffer, so the kernel is done with it; `take` has given it out once.
        let buffer = lent.map(|lent| unsafe { self.lending.pool().filled(lent, 0..bytes) });
        let Some(stream) = self.slots.at(index) else { return };
        if stream.closing || stream.failed {
            return;
        }
        let token = stream.token;
        let (kind, buffer) = match buffer {
            Some(buffer) if stream.kernel_tls => message(buffer),
            buffer => (socket::APPLICATION_DATA, buffer),
        };
        match (-result, buffer) {
            (..=0, Some(buffer)) if !buffer.is_empty() => {
                stream.served = true;
                self.lending.brought(buffer.len());
                self.counters.receives += 1;
                self.counters.received_bytes += buffer.len() as u64;
                events.push(received(token, kind, buffer));
            }
            (..=0, _) if last => {
                stream.ended = true;
                events.push(Event::Ended { token });
            }
            (libc::ENOBUFS, _) => {
                self.counters.no_buffers += 1;
                stream.starved = true;
                let served = std::mem::take(&mut stream.served);
                let id = self.slots.id(index);
                match served {
                    true => self.starved.push_back(id),
                    false => self.in_vain.push(id),
                }
            }
            (..=0 | libc::ECANCELED | libc::EINTR | libc::EAGAIN, _) => {}
            (error, _) => {
                stream.failed = true;
                events.push(Event::Failed { token, error: io::Error::from_raw_os_error(error) });
            }
        }
    }

    fn send_completed(&mut self, index: u32, result: i32, events: &mut Vec<Event>) {
        let Some(stream) = self.slots.at(index) else { return };
        let Some(mut sending) = stream.sending.take() else { return };
        let parts = sending.done();
        if self.sendings.len() < KEPT_SENDINGS && sending.is_small() {
            self.sendings.push(sending);
        }
        let sent = result.max(0) as usize;
        self.counters.sends += 1;
        self.counters.sent_bytes += sent as u64;
        self.counters.full += u64::from(sent == 0);
        if stream.closing || stream.failed {
            return;
        }
        let token = stream.token;
        events.push(Event::Sent { token, sent, parts });
        if result < 0 && !matches!(-result, libc::EAGAIN | libc::EINTR | libc::ECANCELED) {
            stream.failed = true;
            events.push(Event::Failed { token, error: io::Error::from_raw_os_error(-result) });
        }
    }

    /// Lets as many of the waiting streams receive again as there are buffers.
    /// One of them may take them all, so those that got nothing are the next.
    fn feed(&mut self, buffers: usize) {
        for id in self.in_vain.drain(..).rev() {
            self.starved.push_front(id);
        }
        for _ in 0..buffers.min(self.starved.len()) {
            let Some(id) = self.starved.pop_front() else { break };
            if let Some(stream) = self.slots.get(id) {
                stream.starved = false;
                self.reconcile(id.index);
            }
        }
    }

    /// Makes what is in flight agree with what the stream is to do.
    fn reconcile(&mut self, index: u32) {
        let Some(stream) = self.slots.at(index) else { return };
        if stream.closing && stream.in_flight == 0 {
            self.closing -= 1;
            self.slots.remove(index);
            return;
        }
        let entry = match (stream.receiving, stream.receives() && !self.stopping) {
            (Receiving::Idle, true) => {
                stream.receiving = Receiving::Armed;
                let socket = stream.socket.as_raw_fd();
                match stream.kernel_tls {
                    true => operation::receive_message(socket, index, &raw const **self.message),
                    false => operation::receive(socket, index),
                }
            }
            (Receiving::Armed, false) => {
                stream.receiving = Receiving::Stopping;
                operation::cancel(Operation::Receive, index)
            }
            _ => return,
        };
        stream.in_flight += 1;
        self.submit(entry);
    }
}

/// What a message in a buffer is: the record's kind and its bytes.
///
/// ```text
/// | u32 name length (0) | u32 control length | u32 payload length | u32 flags | control (64 B) | payload |
/// ```
fn message(mut buffer: Buffer) -> (u8, Option<Buffer>) {
    let word = |at: usize| {
        let bytes = buffer.get(at..at + 4)?;
        Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    let control = word(4).unwrap_or(0).min(socket::CONTROL);
    let payload = word(8).unwrap_or(0);
    let kind = buffer
        .get(MESSAGE_HEAD..MESSAGE_HEAD + control)
        .map_or(socket::APPLICATION_DATA, socket::record_type);
    buffer.advance(MESSAGE_HEAD + socket::CONTROL);
    buffer.truncate(payload);
    (kind, Some(buffer))
}

impl Drop for Uring {
    /// Cancels what is in flight and waits for it. What does not come back keeps its memory for ever.
    fn drop(&mut self) {
        self.stopping = true;
        self.in_flight -= self.backlog.len();
        self.backlog.clear();
        let mut events = Vec::new();
        for _ in 0..LAST_ROUNDS {
            if self.in_flight == 0 {
                break;
            }
            self.submit(operation::cancel_all());
            self.move_backlog();
            if self.enter(Some(LAST_WAIT)).is_err() {
                break;
            }
            self.reap(&mut events);
            events.clear();
        }
        if self.in_flight > 0 {
            // The ring is closed by the process' end; its memory, and what the kernel may write to, stays.
            return std::mem::forget(self.lending.pool().clone());
        }
        // SAFETY: dropped once, here, and not used afterwards. Nothing is in flight, so the kernel reads or
        // writes no memory of `slots`, `message`, `lending` or the pool any more; the ring goes first.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.lending);
            ManuallyDrop::drop(&mut self.message);
            ManuallyDrop::drop(&mut self.slots);
        }
    }
}
