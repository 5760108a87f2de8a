//! ESP that came before its SA was heard of: where keys come from the kernel, the peer may send by a new SA some
//! milliseconds before weir has it.
//!
//! ```text
//! no SA has the SPI ─► held ─┬─ a snapshot brings the SA ─► opened, in the order of arrival
//!                            ├─ SA_WAIT_TIME is over ─────► `no_sa`: where packets are copies the kernel has had its own
//!                            └─ no room ──────────────────► `sa_wait_full`
//! ```
//!
//! Promises: at most [`SA_WAIT_FRAMES`] a worker, whoever sends, and [`SA_WAIT_FRAMES_OF_SPI`] of them with one SPI; packets of one
//! SA keep their order; a frame held is in the ledger's gauge and ends in one verdict. A full hold ends its eldest frame
//! for the newest: unknown SPIs without end shorten the wait, they do not keep others out. Refuses: to be asked about
//! packets whose SA is known.

use std::collections::{HashMap, VecDeque};

use super::rules::Key;
use super::{Env, rules};
use crate::ipsec::Ipsec;
use crate::packet::{Buffer, Frame, Pool};
use crate::router::accounts::Accounts;
use crate::router::forwarder::Forwarder;
use crate::router::sampler::Link;
use crate::time::{Nanos, SECOND};
use crate::verdict::Reason;

/// How long a frame waits, as fragments do. A message of the kernel's, a record on disk and a snapshot take some milliseconds;
/// where others had the CPU, 500 were too few (docs/control.md). Nothing else waits meanwhile.
pub const SA_WAIT_TIME: Nanos = 2 * SECOND;
/// Frames that wait: 512 × 2,048 B is 1 MiB of a worker's buffers; with neighbours (1,024) and fragments (256) it leaves
/// four batches of the 2,048 buffers beside its rings.
pub const SA_WAIT_FRAMES: usize = 512;
/// Frames with one SPI: a peer that goes on with an SA nobody has fills half of it.
pub const SA_WAIT_FRAMES_OF_SPI: usize = SA_WAIT_FRAMES / 2;

/// The frames of one worker that wait for their SAs.
#[derive(Debug)]
pub(super) struct Awaiting<B> {
    /// In order of arrival, which is that of their deadlines.
    frames: VecDeque<Waiting<B>>,
    /// How many of them have each SPI.
    of: HashMap<Key, usize>,
    /// Scratch: what waits on.
    kept: VecDeque<Waiting<B>>,
    /// Scratch: what forwarding handed over.
    unknown: Vec<(Key, Frame<B>)>,
}

/// A packet from its IP header on.
#[derive(Debug)]
struct Waiting<B> {
    frame: Frame<B>,
    key: Key,
    deadline: Nanos,
}

impl<B: Buffer> Awaiting<B> {
    pub fn new() -> Self {
        Awaiting { frames: VecDeque::new(), of: HashMap::new(), kept: VecDeque::new(), unknown: Vec::new() }
    }

    pub fn held(&self) -> usize {
        self.frames.len()
    }

    /// Takes over what forwarding found for no SA here.
    #[inline]
    pub fn collect(&mut self, env: &mut Env<'_, '_, B>) {
        if env.forwarder.handoff.has_unknown() {
            self.collect_unknown(env);
        }
    }

    #[cold]
    fn collect_unknown(&mut self, env: &mut Env<'_, '_, B>) {
        env.forwarder.handoff.take_unknown(&mut self.unknown);
        let mut unknown = std::mem::take(&mut self.unknown);
        unknown.drain(..).for_each(|(key, frame)| self.push(env, key, frame));
        self.unknown = unknown;
    }

    fn push(&mut self, env: &mut Env<'_, '_, B>, key: Key, frame: Frame<B>) {
        let accounts = &mut env.forwarder.accounts;
        let count = self.of.entry(key).or_default();
        if *count >= SA_WAIT_FRAMES_OF_SPI {
            return accounts.drop_frame(frame, Link::Ip, Reason::SaWaitFull, env.breath.pool);
        }
        *count += 1;
        accounts.ledger.held += 1;
        let deadline = env.breath.now.saturating_add(SA_WAIT_TIME);
        self.frames.push_back(Waiting { frame, key, deadline });
        if self.frames.len() > SA_WAIT_FRAMES
            && let Some(eldest) = self.frames.pop_front()
        {
            self.forget(eldest.key);
            accounts.ledger.held -= 1;
            accounts.drop_frame(eldest.frame, Link::Ip, Reason::SaWaitFull, env.breath.pool);
        }
    }

    /// Hands what an SA of `ipsec` opens to the gateway; the rest waits on.
    #[cold]
    pub fn release(&mut self, forwarder: &mut Forwarder<B>, ipsec: &Ipsec) {
        while let Some(waiting) = self.frames.pop_front() {
            let (spi, destination) = waiting.key;
            let Some(id) = ipsec.sad.id(spi, destination) else {
                self.kept.push_back(waiting);
                continue;
            };
            self.forget(waiting.key);
            forwarder.accounts.ledger.held -= 1;
            forwarder.handoff.push_packet(id, waiting.frame);
        }
        std::mem::swap(&mut self.frames, &mut self.kept);
    }

    /// Ends what waited too long.
    #[inline]
    pub fn expire(&mut self, accounts: &mut Accounts, now: Nanos, pool: &mut Pool<B>) {
        while self.frames.front().is_some_and(|waiting| waiting.deadline <= now) {
            self.end_eldest(accounts, pool);
        }
    }

    /// Ends everything that still waits.
    pub fn shutdown(&mut self, accounts: &mut Accounts, pool: &mut Pool<B>) {
        while !self.frames.is_empty() {
            self.end_eldest(accounts, pool);
        }
    }

    #[cold]
    fn end_eldest(&mut self, accounts: &mut Accounts, pool: &mut Pool<B>) {
        let Some(waiting) = self.frames.pop_front() else { return };
        self.forget(waiting.key);
        accounts.ledger.held -= 1;
        accounts.drop_frame(waiting.frame, Link::Ip, Reason::NoSa, pool);
    }

    /// One frame less has this SPI.
    fn forget(&mut self, key: Key) {
        if let Some(count) = self.of.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&key);
            }
        }
    }
}

/// What a packet that was made whole waits for, if it is ESP that may wait.
pub(super) fn awaited<B: Buffer>(env: &Env<'_, '_, B>, frame: &Frame<B>) -> Option<Key> {
    let rules::Kind::Esp(key) = rules::kind(env.ipsec, frame.data()).0 else { return None };
    let device = env.breath.tables.devices.get(frame.device.index())?;
    let mut ports = device.untagged.into_iter().chain(device.tagged.iter().map(|&(_, port)| port));
    ports.any(|port| rules::may_come(env.ipsec, port, &key)).then_some(key)
}
