//! Pairs beside those that are measured, whose receivers take next to nothing: what do they cost the others?
//!
//! Senders send as those of the measured pairs do: evenly spaced when there is a rate, otherwise as much as their
//! sockets take. Promises: a receiver takes what a receive buffer of [`SIP`] bytes holds every [`PAUSE`], so that a relay
//! that disconnects silent clients keeps this one; a receiver that was disconnected nevertheless is counted. What was sent and
//! received is counted, for the ledger. Refuses: to be in any value of the measured pairs.

use std::io;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde::{Deserialize, Serialize};
use weir_core::relay::frame::{Key, Kind};
use weir_core::time::Nanos;
use weir_io::clock;

use super::client::Client;
use super::pace::Pacer;
use super::packet::{Batch, Mark};
use super::wire::{Buffer, Wire};
use crate::model::LabError;

const PAUSE: Nanos = 100_000_000;
/// Its kernel takes twice as much with what it keeps beside: some 5 to 10 Mb/s.
const SIP: usize = 64 << 10;
/// Frames of one send.
const BATCH: usize = 32;
/// Groups a turn at most.
const GROUPS: usize = 64;

/// Packets of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub intended: u64,
    pub offered: u64,
    pub sent: u64,
    /// Packets received, those of a run before included, which were under way when this one began.
    pub received: u64,
}

#[derive(Default)]
pub struct Stalled {
    pairs: Vec<Pair>,
    work: Option<Work>,
    pacer: Option<Pacer>,
    next_sip: Nanos,
    count: Count,
    /// Receivers the relay has closed.
    pub disconnected: usize,
}

struct Pair {
    sender: Wire,
    receiver: Option<Wire>,
    to: Key,
    sent: u64,
}

/// What one thread has once.
struct Work {
    batch: Batch,
    buffer: Buffer,
}

impl Stalled {
    /// Makes pairs of the first client and the second, the third and the fourth …
    pub fn new(clients: Vec<Client>, data: u16) -> Result<Stalled, LabError> {
        let mut stalled = Stalled::default();
        let mut clients = clients.into_iter();
        while let (Some((sender, _)), Some((receiver, who))) = (clients.next(), clients.next()) {
            set_socket_recv_buffer_size(&receiver, SIP)
                .map_err(|e| LabError::new(format!("generator: a receive buffer of {SIP} bytes: {e}")))?;
            stalled.pairs.push(Pair { sender, receiver: Some(receiver), to: who.key, sent: 0 });
        }
        if !stalled.pairs.is_empty() {
            stalled.work = Some(Work { batch: Batch::new(data, BATCH)?, buffer: Buffer::new() });
        }
        Ok(stalled)
    }

    /// A run begins, in which `pairs` others send `rate` packets a second together.
    pub fn begin(&mut self, rate: Option<u64>, pairs: usize, now: Nanos) {
        let each = |rate: u64| rate * self.pairs.len() as u64 / pairs.max(1) as u64;
        self.pacer = rate.filter(|_| !self.pairs.is_empty()).map(|rate| Pacer::new(each(rate), now));
        self.next_sip = now;
        self.count = Count::default();
    }

    /// What is counted of the run so far.
    pub fn count(&self) -> Count {
        let missed = self.pacer.as_ref().map_or(0, |pacer| pacer.missed);
        Count { intended: self.count.offered + missed, ..self.count }
    }

    /// Receives all that is under way, until nothing has come for `quiet` or `longest` is over.
    pub fn drain(&mut self, quiet: Nanos, longest: Nanos) -> io::Result<()> {
        let began = clock::now();
        let (mut now, mut last) = (began, began);
        while !self.pairs.is_empty() && now - last <= quiet && now - began <= longest {
            let before = self.count.received;
            for pair in &mut self.pairs {
                pair.sender.flush()?;
            }
            self.sip()?;
            now = clock::now();
            if self.count.received > before {
                last = now;
            } else {
                std::thread::yield_now();
            }
        }
        let left =
            |pair: &Pair| pair.sender.waits().div_ceil(self.work.as_ref().map_or(1, |w| w.batch.frame()));
        let left: usize = self.pairs.iter().map(left).sum();
        self.count.sent = self.count.sent.saturating_sub(left as u64);
        Ok(())
    }

    /// Sends what is due, and takes next to nothing.
    pub fn turn(&mut self, run: u32, now: Nanos) -> io::Result<()> {
        if self.pairs.is_empty() {
            return Ok(());
        }
        self.send(run, now)?;
        if now >= self.next_sip {
            self.next_sip = now + PAUSE;
            self.sip()?;
        }
        Ok(())
    }

    fn send(&mut self, run: u32, now: Nanos) -> io::Result<()> {
        let Some(Work { batch, .. }) = &mut self.work else { return Ok(()) };
        let count = &mut self.count;
        let Some(pacer) = &mut self.pacer else {
            for pair in &mut self.pairs {
                let sent = pair.send(batch, BATCH, run, now)?;
                count.offered += sent;
                count.sent += sent;
            }
            return Ok(());
        };
        for _ in 0..GROUPS {
            let Some((number, due)) = pacer.next(now) else { break };
            let pair = (number % self.pairs.len() as u64) as usize;
            count.offered += pacer.group;
            count.sent += self.pairs[pair].send(batch, pacer.group as usize, run, due)?;
        }
        Ok(())
    }

    fn sip(&mut self) -> io::Result<()> {
        let Some(Work { buffer, .. }) = &mut self.work else { return Ok(()) };
        for pair in &mut self.pairs {
            // What the relay says of a peer that has gone.
            while pair.sender.receive(buffer, |_, _| {})?.is_some() {}
            let Some(receiver) = &mut pair.receiver else { continue };
            let received = &mut self.count.received;
            let packet = |code, _: &[u8]| *received += u64::from(code == Kind::RecvPacket as u8);
            if receiver.receive(buffer, packet).is_err() {
                pair.receiver = None;
                self.disconnected += 1;
            }
        }
        Ok(())
    }
}

impl Pair {
    fn send(&mut self, batch: &mut Batch, want: usize, run: u32, due: Nanos) -> io::Result<u64> {
        for n in 0..want {
            batch.stamp(n, &self.to, Mark { run, pair: u32::MAX, sequence: self.sent + n as u64, due });
        }
        let sent = self.sender.send(batch, want)? as u64;
        self.sent += sent;
        Ok(sent)
    }
}
