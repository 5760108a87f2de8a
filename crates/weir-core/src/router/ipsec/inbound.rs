//! Inbound: ESP is opened an SA at a time, checked against the SPD, and comes in again on the device of its tunnel or
//! SPD (RFC 4301 5.2).
//!
//! Promises: what was opened has a link header of its own and is a batch like any other; what was not is a drop.

use super::Env;
use super::handoff::Sealed;
use super::rules;
use super::runs::Runs;
use super::spd_query::{LookupMemo, SpdQuery, count};
use crate::ipsec::esp::{self, Opened, Outcome};
use crate::ipsec::sa::Sa;
use crate::ipsec::spd::Question;
use crate::ipsec::{Direction, Inbound, InboundId};
use crate::packet::{BATCH, Batch, Buffer, Frame};
use crate::router::Event;
use crate::verdict::Reason;
use crate::wire::ethernet::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, HEADER_LEN as ETHERNET};

/// What opening a batch of ESP takes.
#[derive(Debug)]
pub(super) struct Opener<B> {
    /// The batch to open; empty afterwards.
    pub sealed: Sealed<B>,
    /// What was inside, to be forwarded.
    pub inner: Batch<B>,
    by_sa: Runs<B, InboundId>,
    run: Vec<Frame<B>>,
    outcomes: [Outcome; BATCH],
}

impl<B: Buffer> Opener<B> {
    pub fn new() -> Self {
        Opener {
            sealed: Sealed::new(),
            inner: Batch::new(),
            by_sa: Runs::new(),
            run: Vec::new(),
            outcomes: [Outcome::Done; BATCH],
        }
    }

    /// Opens what is in `sealed`, at most a batch; what was inside is then in `inner`.
    pub fn open(&mut self, env: &mut Env<'_, '_, B>, query: &mut SpdQuery) {
        let Opener { sealed: Sealed { frames, ids }, inner, by_sa, run, outcomes } = self;
        match ids.first() {
            Some(&id) if ids.iter().all(|other| *other == id) => {
                ids.clear();
                open_run(env, query, id, (frames, outcomes), inner);
            }
            _ => {
                ids.drain(..).zip(frames.drain(..)).for_each(|(id, frame)| by_sa.push(id, frame));
                while let Some(id) = by_sa.next(run) {
                    open_run(env, query, id, (run, outcomes), inner);
                }
            }
        }
    }
}

/// Opens packets of one SA, part of a batch; leaves `run` empty.
fn open_run<B: Buffer>(
    env: &mut Env<'_, '_, B>,
    query: &mut SpdQuery,
    id: InboundId,
    (run, outcomes): (&mut Vec<Frame<B>>, &mut [Outcome; BATCH]),
    inner: &mut Batch<B>,
) {
    let Some(inbound) = env.ipsec.sad.get(id) else { return env.drop_packets(run, Reason::NoSa) };
    let outcomes = &mut outcomes[..run.len()];
    let opened = esp::open(&inbound.sa, env.breath.now, run, outcomes);
    if inbound.sa.state.lease.is_due(&inbound.sa.state) {
        env.breath.out.events.push(Event::Reserve);
    }
    if let Some(question) = inbound.spd.and_then(|id| rules::question(env.ipsec, id, Direction::In)) {
        check_policies(query, question, inbound, opened, (run, outcomes));
    }
    for (mut frame, &outcome) in run.drain(..).zip(&*outcomes) {
        if let Outcome::Lost(reason) = outcome {
            end_unopened(env, &inbound.sa, frame, reason);
        } else if !fill_link_header(&mut frame) {
            env.drop_packet(frame, Reason::FrameTooLarge);
        } else {
            frame.device = inbound.device;
            if let Err(frame) = inner.push(frame) {
                env.drop_frame(frame, Reason::NoBuffer);
            }
        }
    }
}

/// Drops what did not come out of `sa`. What is not authentic was decrypted where it lay: nobody is to see what that made.
fn end_unopened<B: Buffer>(env: &mut Env<'_, '_, B>, sa: &Sa, frame: Frame<B>, reason: Reason) {
    if reason == Reason::IntegrityFailed {
        let readable = esp::untouched(sa, frame.data());
        env.forwarder.accounts.drop_overwritten(frame, (reason, readable), env.breath.pool);
    } else {
        env.drop_packet(frame, reason);
    }
}

/// Policy mode: what an SA carried, `opened` as a whole, must be what a policy lets it carry.
fn check_policies<B: Buffer>(
    query: &mut SpdQuery,
    question: Question<'_>,
    inbound: &Inbound,
    opened: Opened,
    (run, outcomes): (&[Frame<B>], &mut [Outcome]),
) {
    let (spd, sa) = (question.spd, inbound.sa.id);
    if opened.packets == run.len() {
        let packets = run.iter().map(|frame| frame.data());
        let first = query.lookup.first(question, packets.clone(), opened.common);
        let first = first.map(|policy| Some(Some(policy)));
        if let Some(found) = first.or_else(|| query.each(question, packets))
            && let Some(policy) = rules::carried(spd, sa, found)
        {
            return count(spd, Direction::In, Some(policy), opened.packets as u64, opened.bytes);
        }
        if first.is_some() {
            // Not by this SA, all of them alike.
            query.found.clear();
            query.found.resize(run.len(), first.unwrap_or_default());
        }
    } else {
        let opened = run.iter().zip(&*outcomes).filter(|&(_, &outcome)| outcome == Outcome::Done);
        query.each(question, opened.map(|(frame, _)| frame.data()));
    }
    let opened = run.iter().zip(outcomes).filter(|(_, outcome)| **outcome == Outcome::Done);
    let mut memo = LookupMemo::new(|found| rules::carried(spd, sa, found));
    for ((frame, outcome), &found) in opened.zip(&query.found) {
        match memo.of(found) {
            Some(policy) => query.tally.add(spd, Direction::In, policy, frame.len() as u64),
            None => {
                inbound.sa.state.fail(Reason::PolicyMismatch);
                *outcome = Outcome::Lost(Reason::PolicyMismatch);
            }
        }
    }
    query.tally.flush(spd, Direction::In);
}

/// Puts the filler of a point-to-point port before an IP packet.
#[inline]
fn fill_link_header<B: Buffer>(frame: &mut Frame<B>) -> bool {
    let version = frame.data().first().map_or(0, |byte| byte >> 4);
    let ethertype = if version == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    frame.grow_front(ETHERNET) && ethernet::write(frame.data_mut(), [0; 6], [0; 6], None, ethertype).is_some()
}
