//! Pairs of clients, one sending to the other, and the loop that drives them all.
//!
//! ```text
//! turn:  what is due ─► send       readable sockets ─► receive ─► tally       (never waits)
//! run:   window: counted | drain: nothing is sent, stragglers count
//! ```
//!
//! Without a rate a closed loop keeps so many packets of each pair under way; an open one sends what sockets
//! take, and those keep [`SENDER_KEEPS`]. The loop waits busily: on a CPU of its own it disturbs nobody, and a wake-up
//! would be in every latency. On a CPU it shares with the relay, it gives way instead.
//! Time of turns in which nothing happened is counted, so that a generator at its limit is known.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use serde::{Deserialize, Serialize};
use weir_core::relay::frame::{Frame, KEY, Key, Kind};
use weir_core::time::Nanos;
use weir_io::clock;

use super::client::{self, Client};
use super::pace::Pacer;
use super::packet::{Batch, Mark};
use super::stalled::{self, Stalled};
use super::tally::{Course, Tally};
use super::tls::SessionPairs;
use super::wire::{self, Buffer, Wire};
use crate::model::relay::RelayScenario;
use crate::model::{LabError, Sut};

/// Frames of one send.
const BATCH: usize = 32;
/// Events taken at once.
const EVENTS: usize = 256;
/// A closed loop gives up packets that did not come for so long.
const GIVES_UP: Nanos = 200_000_000;
/// How long a generator that gives way waits at once, ns.
const MOMENT: i64 = 1_000_000;
/// Silence after which nothing more is expected, and the longest wait for it.
const QUIET: Nanos = 500_000_000;
const STRAGGLE: Nanos = 5_000_000_000;
/// What the socket of a sender may keep, as much as Linux lets anybody have unless it is told otherwise. A sender has its own
/// memory for it elsewhere; here it is the relay's too, and sockets that grow to 4 MiB each would fill the relay's caches.
const SENDER_KEEPS: usize = 208 << 10;
/// One packet in so many has its fill compared byte by byte; marks and lengths of all are.
const LOOKED_AT: u64 = 32;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PairTraffic {
    /// Packets a second of all pairs.
    pub rate: Option<u64>,
    /// Packets of each pair that are kept under way without a rate; as many as possible, if none are named.
    pub under_way: Option<u64>,
    pub window: Duration,
    pub run: u32,
    /// The relay works on the generator's CPU too: idle turns give it up.
    pub shares: bool,
    /// Afterwards stalled receivers take all that is under way to them.
    pub empties: bool,
}

/// Where a run stands; told on the generator's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Opens,
    Closes,
}

/// What a run came to.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    pub tally: Tally,
    pub intended: u64,
    pub offered: u64,
    pub sent: u64,
    pub began: Nanos,
    pub ended: Nanos,
    /// The time of the window's turns in which nothing was to be done.
    pub idle: Nanos,
    pub late_max: Nanos,
    /// Packets of a pair sent at a time, of a rate.
    pub group: u64,
    /// What is counted of pairs whose receivers stall; it is in nothing above.
    pub stalled: stalled::Count,
    /// Stalled receivers that the relay has closed so far.
    pub disconnected: usize,
}

pub struct Pairs {
    /// Sender and receiver of each pair after each other.
    wires: Vec<Wire>,
    keys: Vec<Key>,
    courses: Vec<Course>,
    blocked: Vec<bool>,
    poll: OwnedFd,
    buffer: Buffer,
    batch: Batch,
    /// The frame packets arrive in: `RecvPacket` with the sender's key, or what was sent when there is no
    /// relay.
    arrives_as: Kind,
    /// The stalled pairs beside these.
    pub stalled: Stalled,
}

impl Pairs {
    /// Makes pairs of the first client and the second, the third and the fourth …
    pub fn new(clients: Vec<Client>, data: u16) -> Result<Pairs, LabError> {
        let (wires, identities): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
        Pairs::of(wires, identities.into_iter().map(|i| i.key).collect(), data, Kind::RecvPacket)
    }

    /// `count` pairs, and the stalled ones beside them, connected to the relay at `address`.
    pub fn relayed(
        sut: Sut,
        address: SocketAddr,
        count: u32,
        data: u16,
        relay: &RelayScenario,
    ) -> Result<Pairs, LabError> {
        let tls = relay.tls.is_on();
        if sut == Sut::TcpForwarder {
            return Pairs::through(address, count, data, tls);
        }
        let server = client::Server::new(address, tls)?;
        let mut clients = client::connect(&server, 1, u64::from(count + relay.stalled) * 2)?;
        let beside = clients.split_off(count as usize * 2);
        let mut pairs = Pairs::new(clients, data)?;
        pairs.stalled = Stalled::new(beside, data)?;
        Ok(pairs)
    }

    /// `count` pairs connected with each other, without a relay: what the generator can do by itself.
    pub fn direct(count: u32, data: u16, tls: bool) -> Result<Pairs, LabError> {
        client::descriptors(u64::from(count) * 2)?;
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| failed(&e))?;
        Pairs::joined(count, data, tls, || {
            let near = TcpStream::connect(listener.local_addr()?)?;
            Ok([near, listener.accept()?.0])
        })
    }

    /// The same through what joins every two connections in the order they come.
    pub fn through(joins: SocketAddr, count: u32, data: u16, tls: bool) -> Result<Pairs, LabError> {
        client::descriptors(u64::from(count) * 2)?;
        Pairs::joined(count, data, tls, || Ok([TcpStream::connect(joins)?, TcpStream::connect(joins)?]))
    }

    fn joined(
        count: u32,
        data: u16,
        tls: bool,
        mut pair: impl FnMut() -> io::Result<[TcpStream; 2]>,
    ) -> Result<Pairs, LabError> {
        let mut connected = || {
            let sessions = tls.then(SessionPairs::new).transpose()?;
            let mut wires = Vec::new();
            for _ in 0..count {
                let mut sessions =
                    sessions.as_ref().map(SessionPairs::pair).transpose()?.into_iter().flatten();
                for socket in pair()? {
                    socket.set_nodelay(true)?;
                    let wire = Wire::new(socket, Vec::new());
                    wires.push(match sessions.next() {
                        Some(session) => wire.with_tls(session, Vec::new()),
                        None => wire,
                    });
                }
            }
            Ok(wires)
        };
        let wires = connected().map_err(|e: io::Error| failed(&e))?;
        let key = |n: u32| {
            let mut key = [7; KEY];
            key[..4].copy_from_slice(&n.to_le_bytes());
            Key(key)
        };
        Pairs::of(wires, (0..2 * count).map(key).collect(), data, Kind::SendPacket)
    }

    fn of(wires: Vec<Wire>, keys: Vec<Key>, data: u16, arrives_as: Kind) -> Result<Pairs, LabError> {
        let polled = || {
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for (n, wire) in wires.iter().enumerate() {
                epoll::add(&poll, wire, epoll::EventData::new_u64(n as u64), epoll::EventFlags::IN)?;
            }
            for sender in wires.iter().step_by(2) {
                set_socket_send_buffer_size(sender, SENDER_KEEPS)?;
            }
            Ok(poll)
        };
        let poll = polled().map_err(|e: io::Error| failed(&e))?;
        let pairs = wires.len() / 2;
        Ok(Pairs {
            courses: vec![Course::default(); pairs],
            blocked: vec![false; pairs],
            wires,
            keys,
            poll,
            buffer: Buffer::new(),
            batch: Batch::new(data, BATCH)?,
            arrives_as,
            stalled: Stalled::default(),
        })
    }

    /// One run. `at` is told when the window opens and closes.
    pub fn run(&mut self, plan: &PairTraffic, mut at: impl FnMut(Moment)) -> Result<Outcome, LabError> {
        for course in &mut self.courses {
            *course = Course::default();
        }
        at(Moment::Opens);
        let began = clock::now();
        let mut run = Run::new(plan, began);
        run.tally.open = true;
        self.stalled.begin(plan.rate, self.courses.len(), began);
        self.until(began + plan.window.as_nanos() as Nanos, &mut run)?;
        let ended = clock::now();
        at(Moment::Closes);
        run.tally.open = false;
        self.drain(&mut run, ended)?;
        if plan.empties {
            self.stalled.drain(QUIET, STRAGGLE).map_err(|e| failed(&e))?;
        }
        let left: usize = self.wires.iter().step_by(2).map(|w| w.waits().div_ceil(self.batch.frame())).sum();
        let missed = run.pacer.as_ref().map_or(0, |p| p.missed);
        Ok(Outcome {
            intended: run.offered + missed,
            offered: run.offered,
            sent: run.sent.saturating_sub(left as u64),
            began,
            ended,
            idle: run.idle,
            late_max: run.pacer.as_ref().map_or(0, |p| p.late_max),
            group: run.pacer.as_ref().map_or(0, |p| p.group),
            stalled: self.stalled.count(),
            disconnected: self.stalled.disconnected,
            tally: run.tally,
        })
    }

    /// Bytes of a packet.
    pub fn data(&self) -> usize {
        self.batch.data()
    }

    fn until(&mut self, end: Nanos, run: &mut Run<'_>) -> Result<(), LabError> {
        let mut now = clock::now();
        let mut was_idle = false;
        while now < end {
            let sent = self.offer(run, now).map_err(|e| failed(&e))?;
            self.stalled.turn(run.plan.run, now).map_err(|e| failed(&e))?;
            let gives_way = was_idle && !sent && run.plan.shares;
            if gives_way && run.pacer.is_some() {
                std::thread::yield_now();
            }
            let came = self.collect(run, gives_way && run.pacer.is_none())?;
            let after = clock::now();
            was_idle = !sent && !came;
            if was_idle {
                run.idle += after - now;
            }
            now = after;
        }
        Ok(())
    }

    fn drain(&mut self, run: &mut Run<'_>, ended: Nanos) -> Result<(), LabError> {
        loop {
            self.collect(run, run.plan.shares)?;
            let now = clock::now();
            let settled = self.courses.iter().all(|c| c.expected == c.next);
            let quiet = now - run.tally.last_arrival.max(ended) > QUIET;
            if settled || quiet || now - ended > STRAGGLE {
                return Ok(());
            }
        }
    }

    /// Sends what is due; whether anything was.
    fn offer(&mut self, run: &mut Run<'_>, now: Nanos) -> io::Result<bool> {
        let mut any = false;
        if let Some(pacer) = &mut run.pacer {
            let group = pacer.group;
            // a turn's worth at most: receiving has its turn too
            for _ in 0..EVENTS {
                let Some((number, due)) = pacer.next(now) else { break };
                let pair = (number % self.courses.len() as u64) as usize;
                run.offered += group;
                run.sent += self.send(pair, group as usize, run.plan.run, due)?;
                any = true;
            }
            return Ok(any);
        }
        for pair in 0..self.courses.len() {
            if self.blocked[pair] {
                continue;
            }
            let want = run.plan.under_way.map_or(BATCH as u64, |most| {
                most.saturating_sub(self.courses[pair].under_way()).min(BATCH as u64)
            });
            if want > 0 {
                let sent = self.send(pair, want as usize, run.plan.run, now)?;
                run.offered += sent;
                run.sent += sent;
                any |= sent > 0;
            }
        }
        if run.plan.under_way.is_some() && now > run.next_look {
            run.next_look = now + GIVES_UP / 8;
            let stuck = |c: &&mut Course| c.under_way() > 0 && now - c.arrived_at > GIVES_UP;
            self.courses.iter_mut().filter(stuck).for_each(|c| c.forgiven = c.next);
        }
        Ok(any)
    }

    /// Sends packets of a pair as far as its socket takes them.
    #[inline]
    fn send(&mut self, pair: usize, want: usize, run: u32, due: Nanos) -> io::Result<u64> {
        if self.blocked[pair] {
            return Ok(0);
        }
        let (course, key) = (&mut self.courses[pair], &self.keys[2 * pair + 1]);
        if course.under_way() == 0 {
            // what a closed loop waits for begins here
            course.arrived_at = due;
        }
        for n in 0..want {
            let mark = Mark { run, pair: pair as u32, sequence: course.next + n as u64, due };
            self.batch.stamp(n, key, mark);
        }
        let wire = &mut self.wires[2 * pair];
        let sent = wire.send(&self.batch, want)?;
        course.next += sent as u64;
        if sent < want || wire.waits() > 0 {
            self.block(pair, true)?;
        }
        Ok(sent as u64)
    }

    fn block(&mut self, pair: usize, blocked: bool) -> io::Result<()> {
        self.blocked[pair] = blocked;
        let out = if blocked { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let (wire, data) = (&self.wires[2 * pair], epoll::EventData::new_u64(2 * pair as u64));
        Ok(epoll::modify(&self.poll, wire, data, epoll::EventFlags::IN | out)?)
    }

    /// Receives what is there, or waits a moment for it; whether anything was.
    fn collect(&mut self, run: &mut Run<'_>, waits: bool) -> Result<bool, LabError> {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let at_most = Timespec { tv_sec: 0, tv_nsec: if waits { MOMENT } else { 0 } };
        let (ready, _) = match epoll::wait(&self.poll, &mut events, Some(&at_most)) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(e) => return Err(failed(&e.into())),
        };
        let any = !ready.is_empty();
        let now = clock::now();
        for event in ready {
            let (n, flags) = (event.data.u64() as usize, event.flags);
            if flags.contains(epoll::EventFlags::OUT) && self.wires[n].flush().map_err(|e| failed(&e))? {
                self.block(n / 2, false).map_err(|e| failed(&e))?;
            }
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP) {
                self.receive(n, run, now).map_err(|e| {
                    let side = if n % 2 == 0 { "sender" } else { "receiver" };
                    wire::blamed(&e, format!("generator: {side} of pair {}: {e}", n / 2))
                })?;
            }
        }
        Ok(any)
    }

    fn receive(&mut self, n: usize, run: &mut Run<'_>, now: Nanos) -> io::Result<()> {
        let Pairs { wires, keys, courses, buffer, batch, arrives_as, .. } = self;
        let source = if *arrives_as == Kind::RecvPacket { &keys[n & !1] } else { &keys[n] };
        let (course, tally) = (&mut courses[n / 2], &mut run.tally);
        let mut pong = Vec::new();
        wires[n].receive(buffer, |code, payload| {
            if code == *arrives_as as u8 {
                arrive(tally, course, batch, (payload, source), (run.plan.run, n), now);
            } else if code == Kind::Ping as u8 {
                Frame::Pong(payload).write(&mut pong);
            }
        })?;
        if !pong.is_empty() {
            wires[n].say(&pong)?;
        }
        Ok(())
    }
}

/// A run under way.
struct Run<'a> {
    plan: &'a PairTraffic,
    pacer: Option<Pacer>,
    tally: Tally,
    offered: u64,
    sent: u64,
    idle: Nanos,
    next_look: Nanos,
}

impl<'a> Run<'a> {
    fn new(plan: &'a PairTraffic, began: Nanos) -> Run<'a> {
        Run {
            plan,
            pacer: plan.rate.map(|rate| Pacer::new(rate, began)),
            tally: Tally::new(),
            offered: 0,
            sent: 0,
            idle: 0,
            next_look: began,
        }
    }
}

/// One frame of a packet, at the end `n` of the run `run`.
#[inline]
fn arrive(
    tally: &mut Tally,
    course: &mut Course,
    batch: &Batch,
    (payload, source): (&[u8], &Key),
    (run, n): (u32, usize),
    now: Nanos,
) {
    let Some((key, data)) = payload.split_first_chunk::<KEY>() else {
        tally.corrupted += 1;
        return;
    };
    let Some(mark) = Mark::read(data) else {
        tally.corrupted += 1;
        return;
    };
    if mark.run != run {
        tally.foreign += 1;
        return;
    }
    let looked_at = mark.sequence % LOOKED_AT == 0;
    let is_damaged = key != &source.0
        || mark.pair as usize != n / 2
        || n % 2 == 0
        || data.len() != batch.data()
        || (looked_at && !batch.is_whole(data));
    if is_damaged {
        tally.corrupted += 1;
        return;
    }
    tally.arrival(course, mark, data.len(), now);
}

fn failed(e: &io::Error) -> LabError {
    wire::blamed(e, format!("generator: {e}"))
}

#[cfg(test)]
mod tests;
