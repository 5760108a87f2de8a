//! Streams by epoll: where io_uring is missing or forbidden, and as the measure of the other way.
//!
//! A turn: sends, closes, one wait, one receive of each stream that is ready. Interest is level-triggered, and a
//! socket nobody waits for is taken out of the set, because a hung-up one would end every wait.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::buffers::{Part, Pool};
use super::slots::{Slots, StreamId};
use super::{Counters, Event, socket};
use crate::epoll_set::EpollSet;
use crate::wake::Waker;

/// Sockets told of by one wait; the others' turn comes with the next one.
const READY: usize = 512;

/// The waker's mark among streams: no stream has this index.
const WAKER: u64 = u64::MAX;

#[derive(Debug)]
struct Stream {
    token: u64,
    socket: OwnedFd,
    /// The events the set has for this socket; 0 when it is not in it.
    watched: u32,
    kernel_tls: bool,
    paused: bool,
    /// No buffer was free: waits in `starved`.
    starved: bool,
    writable: bool,
    /// A send waits for the turn.
    sending: bool,
    ended: bool,
    failed: bool,
    closing: bool,
}

pub(super) struct Epoll {
    set: EpollSet,
    slots: Slots<Stream>,
    sends: Vec<(u32, Vec<Part>)>,
    closes: Vec<u32>,
    releases: Vec<StreamId>,
    /// Streams without a buffer, the longest waiting first.
    starved: VecDeque<StreamId>,
    /// Answers that need no kernel.
    answers: Vec<Event>,
    ready: Vec<libc::epoll_event>,
    gathered: Vec<libc::iovec>,
    waker: Arc<Waker>,
    counters: Counters,
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Epoll({} streams)", self.slots.len())
    }
}

impl Epoll {
    pub(super) fn new(waker: Arc<Waker>) -> io::Result<Epoll> {
        let set = EpollSet::new()?;
        set.control(libc::EPOLL_CTL_ADD, waker.as_raw_fd(), libc::EPOLLIN as u32, WAKER)?;
        Ok(Epoll {
            set,
            slots: Slots::new(),
            sends: Vec::new(),
            closes: Vec::new(),
            releases: Vec::new(),
            starved: VecDeque::new(),
            answers: Vec::new(),
            ready: vec![libc::epoll_event { events: 0, u64: 0 }; READY],
            gathered: Vec::new(),
            waker,
            counters: Counters::default(),
        })
    }

    pub(super) fn register(&mut self, socket: OwnedFd, token: u64, kernel_tls: bool) -> io::Result<StreamId> {
        let id = self.slots.insert(Stream {
            token,
            socket,
            watched: 0,
            kernel_tls,
            paused: false,
            starved: false,
            writable: false,
            sending: false,
            ended: false,
            failed: false,
            closing: false,
        });
        let done = self.watch(id);
        if done.is_err() {
            self.slots.remove(id.index);
        }
        done.map(|()| id)
    }

    pub(super) fn send(&mut self, id: StreamId, parts: Vec<Part>) {
        let Some(stream) = self.open(id) else { return };
        debug_assert!(!stream.sending, "one send of a stream at a time");
        if stream.sending {
            let token = stream.token;
            return self.answers.push(Event::Sent { token, sent: 0, parts });
        }
        stream.sending = true;
        self.sends.push((id.index, parts));
    }

    pub(super) fn notify_writable(&mut self, id: StreamId) {
        if let Some(stream) = self.open(id) {
            stream.writable = true;
            self.watch_or_fail(id);
        }
    }

    pub(super) fn pause(&mut self, id: StreamId) {
        if let Some(stream) = self.open(id) {
            stream.paused = true;
            self.watch_or_fail(id);
        }
    }

    pub(super) fn resume(&mut self, id: StreamId) {
        if let Some(stream) = self.open(id) {
            stream.paused = false;
            self.watch_or_fail(id);
        }
    }

    pub(super) fn close(&mut self, id: StreamId) {
        if let Some(stream) = self.open(id) {
            stream.closing = true;
            self.closes.push(id.index);
        }
    }

    pub(super) fn release(&mut self, id: StreamId) {
        if self.open(id).is_some() {
            self.releases.push(id);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.closes.len()
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn socket(&mut self, id: StreamId) -> Option<BorrowedFd<'_>> {
        Some(self.open(id)?.socket.as_fd())
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes() + READY * size_of::<libc::epoll_event>()
    }

    /// A stream that has not been closed.
    fn open(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.slots.get(id).filter(|stream| !stream.closing)
    }

    pub(super) fn turn(
        &mut self,
        timeout: Option<Duration>,
        pool: &Rc<Pool>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        let before = events.len();
        self.send_all(events);
        events.append(&mut self.answers);
        for index in self.closes.drain(..) {
            // Closing the only descriptor of a socket takes it out of the set.
            self.slots.remove(index);
        }
        self.release_all(events);
        self.feed(pool.free());
        events.append(&mut self.answers);
        let timeout = if events.len() > before { Some(Duration::ZERO) } else { timeout };
        self.counters.enters += 1;
        let ready = self.set.wait(&mut self.ready, timeout)?;
        for at in 0..ready {
            let told = self.ready[at];
            if told.u64 == WAKER {
                self.waker.clear();
                events.push(Event::Woken);
                continue;
            }
            let id = StreamId { index: told.u64 as u32, generation: (told.u64 >> 32) as u32 };
            self.ready(id, told.events, pool, events);
        }
        Ok(())
    }

    fn send_all(&mut self, events: &mut Vec<Event>) {
        for (index, parts) in self.sends.drain(..) {
            let Some(stream) = self.slots.at(index) else { continue };
            stream.sending = false;
            if stream.failed {
                continue;
            }
            let done = socket::send(&stream.socket, &parts, &mut self.gathered);
            let sent = done.as_ref().copied().unwrap_or(0);
            self.counters.sends += 1;
            self.counters.sent_bytes += sent as u64;
            self.counters.full += u64::from(sent == 0);
            if stream.closing {
                continue;
            }
            let token = stream.token;
            events.push(Event::Sent { token, sent, parts });
            if let Err(error) = done {
                stream.failed = true;
                events.push(Event::Failed { token, error });
                let _ = self.set.control(libc::EPOLL_CTL_DEL, stream.socket.as_raw_fd(), 0, 0);
                stream.watched = 0;
            }
        }
    }

    /// Gives sockets back. Nothing of a stream is under way between two turns.
    fn release_all(&mut self, events: &mut Vec<Event>) {
        for id in self.releases.drain(..) {
            if self.slots.get(id).is_none_or(|stream| stream.failed) {
                continue;
            }
            let Some(Stream { token, socket, watched, .. }) = self.slots.remove(id.index) else { continue };
            if watched != 0 {
                let _ = self.set.control(libc::EPOLL_CTL_DEL, socket.as_raw_fd(), 0, 0);
            }
            events.push(Event::Released { token, socket });
        }
    }

    /// Lets as many of the waiting streams receive again as there are buffers.
    fn feed(&mut self, buffers: usize) {
        for _ in 0..buffers.min(self.starved.len()) {
            let Some(id) = self.starved.pop_front() else { break };
            if let Some(stream) = self.open(id) {
                stream.starved = false;
                self.watch_or_fail(id);
            }
        }
    }

    fn ready(&mut self, id: StreamId, told: u32, pool: &Rc<Pool>, events: &mut Vec<Event>) {
        let Some(stream) = self.slots.get(id).filter(|stream| !stream.closing && !stream.failed) else {
            return;
        };
        let token = stream.token;
        let broken = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        if stream.writable && told & (libc::EPOLLOUT as u32 | broken) != 0 {
            stream.writable = false;
            events.push(Event::Writable { token });
        }
        let receiving = stream.watched & libc::EPOLLIN as u32 != 0;
        if receiving && told & (libc::EPOLLIN as u32 | broken) != 0 {
            match pool.take() {
                None => {
                    self.counters.no_buffers += 1;
                    stream.starved = true;
                    self.starved.push_back(id);
                }
                Some(mut buffer) => {
                    let got = socket::receive(&stream.socket, stream.kernel_tls, &mut buffer);
                    match got {
                        Ok(receipt) if receipt.bytes == 0 && receipt.kind == socket::APPLICATION_DATA => {
                            stream.ended = true;
                            events.push(Event::Ended { token });
                        }
                        Ok(receipt) => {
                            self.counters.receives += 1;
                            self.counters.received_bytes += receipt.bytes as u64;
                            events.push(super::received(token, receipt.kind, buffer));
                        }
                        Err(error) if super::passing(&error) => {}
                        Err(error) => {
                            stream.failed = true;
                            events.push(Event::Failed { token, error });
                        }
                    }
                }
            }
        }
        self.watch_or_fail(id);
        events.append(&mut self.answers);
    }

    fn watch_or_fail(&mut self, id: StreamId) {
        if let Err(error) = self.watch(id)
            && let Some(stream) = self.slots.get(id)
            && !stream.failed
        {
            stream.failed = true;
            let token = stream.token;
            self.answers.push(Event::Failed { token, error });
        }
    }

    /// Makes the set agree with what the stream waits for.
    fn watch(&mut self, id: StreamId) -> io::Result<()> {
        let Some(stream) = self.slots.get(id) else { return Ok(()) };
        let receiving = !(stream.paused || stream.starved || stream.ended || stream.failed);
        let mut wanted = if receiving { libc::EPOLLIN as u32 } else { 0 };
        if stream.writable && !stream.failed {
            wanted |= libc::EPOLLOUT as u32;
        }
        let operation = match (stream.watched, wanted) {
            (watched, wanted) if watched == wanted => return Ok(()),
            (0, _) => libc::EPOLL_CTL_ADD,
            (_, 0) => libc::EPOLL_CTL_DEL,
            _ => libc::EPOLL_CTL_MOD,
        };
        let mark = u64::from(id.index) | u64::from(id.generation) << 32;
        self.set.control(operation, stream.socket.as_raw_fd(), wanted, mark)?;
        stream.watched = wanted;
        Ok(())
    }
}
