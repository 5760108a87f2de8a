//! Outer fragments on their way through the router: held, made whole, opened.
//!
//! Every fragment was received as a frame and ends as one: those whose bytes went into a whole packet are
//! this host's (local), the packet itself goes on in the frame of one of them.

use super::Env;
use super::awaiting::awaited;
use super::rules::{self, Kind};
use crate::ipsec::InboundId;
use crate::ipsec::reassembly::{Ended, Reassembly};
use crate::packet::{Buffer, Frame, Pool};
use crate::router::accounts::Accounts;
use crate::router::sampler::Link;
use crate::time::Nanos;
use crate::verdict::Reason;

/// The fragments of one worker.
#[derive(Debug)]
pub(super) struct Fragments<B> {
    waiting: Waiting<B>,
    /// Scratch: what forwarding handed over, while fragments are taken out of it.
    mixed: Vec<(Option<InboundId>, Frame<B>)>,
}

/// Fragments that wait for the rest of their packet.
#[derive(Debug)]
struct Waiting<B> {
    reassembly: Reassembly<B>,
    /// Scratch: fragments that wait no longer.
    ended: Vec<Ended<B>>,
}

impl<B: Buffer> Fragments<B> {
    pub fn new() -> Self {
        let waiting = Waiting { reassembly: Reassembly::new(), ended: Vec::new() };
        Fragments { waiting, mixed: Vec::new() }
    }

    pub fn held(&self) -> usize {
        self.waiting.reassembly.held()
    }

    /// Takes the fragments out of what forwarding handed over, and puts packets they make whole in their place.
    #[inline]
    pub fn collect(&mut self, env: &mut Env<'_, '_, B>) {
        if env.forwarder.handoff.has_fragments() {
            self.collect_mixed(env);
        }
    }

    #[cold]
    fn collect_mixed(&mut self, env: &mut Env<'_, '_, B>) {
        env.forwarder.handoff.drain_mixed(&mut self.mixed);
        for (id, frame) in self.mixed.drain(..) {
            match id {
                Some(id) => env.forwarder.handoff.push_packet(id, frame),
                None => self.waiting.push(env, frame),
            }
        }
    }

    /// Ends fragments that waited too long.
    pub fn expire(&mut self, accounts: &mut Accounts, now: Nanos, pool: &mut Pool<B>) {
        let waiting = &mut self.waiting;
        if waiting.reassembly.is_due(now) {
            waiting.reassembly.expire(now, &mut waiting.ended);
            waiting.end(accounts, pool);
        }
    }

    /// Ends everything that still waits.
    pub fn shutdown(&mut self, accounts: &mut Accounts, pool: &mut Pool<B>) {
        self.waiting.reassembly.shutdown(&mut self.waiting.ended);
        self.waiting.end(accounts, pool);
    }
}

impl<B: Buffer> Waiting<B> {
    fn push(&mut self, env: &mut Env<'_, '_, B>, frame: Frame<B>) {
        let whole = self.reassembly.push(env.breath.now, frame, &mut self.ended);
        // A frame that waits is in the gauge; one that ends here was in it, or is this one.
        env.forwarder.accounts.ledger.held += 1;
        self.end(&mut env.forwarder.accounts, env.breath.pool);
        let Some(frame) = whole else { return };
        env.forwarder.accounts.ledger.held -= 1;
        match known(env, &frame) {
            Ok(id) => env.forwarder.handoff.push_packet(id, frame),
            Err(reason) => end_unknown(env, frame, reason),
        }
    }

    /// Accounts for fragments that wait no longer.
    fn end(&mut self, accounts: &mut Accounts, pool: &mut Pool<B>) {
        for end in self.ended.drain(..) {
            accounts.ledger.held -= 1;
            match end.lost {
                Some(reason) => accounts.drop_frame(end.frame, Link::Ip, reason, pool),
                None => {
                    accounts.ledger.local += 1;
                    pool.put(end.frame.into_buffer());
                }
            }
        }
    }
}

/// The SA a packet that was made whole is of, or why it goes no further.
fn known<B: Buffer>(env: &Env<'_, '_, B>, frame: &Frame<B>) -> Result<InboundId, Reason> {
    match rules::kind(env.ipsec, frame.data()).0 {
        Kind::Esp((spi, destination)) => env.ipsec.sad.id(spi, destination).ok_or(Reason::NoSa),
        _ => Err(Reason::LocalNotServed),
    }
}

/// A packet no SA here opens: it waits for one, or is the kernel's, which has fragments of its own of what is for it, or goes
/// no further.
#[cold]
fn end_unknown<B: Buffer>(env: &mut Env<'_, '_, B>, frame: Frame<B>, reason: Reason) {
    if let Some(key) = awaited(env, &frame) {
        // It begins at its IP header and is as long as that says.
        if let Err(frame) = env.forwarder.handoff.push_unknown(key, frame, 0) {
            env.drop_packet(frame, Reason::IpTruncated);
        }
    } else if is_kernels(env, &frame) {
        env.forwarder.accounts.ledger.local += 1;
        env.breath.pool.put(frame.into_buffer());
    } else {
        env.drop_packet(frame, reason);
    }
}

fn is_kernels<B: Buffer>(env: &Env<'_, '_, B>, frame: &Frame<B>) -> bool {
    rules::destination(frame.data()).is_some_and(|to| rules::is_kernels(env.breath.tables, to))
}
