//! Inbound: ESP by an SA of ours is found, and cleartext that came in by a port with a policy enforcement point is put to
//! its SPD (RFC 4301 5.2), while forwarding examines a frame's headers. After a batch without ESP that is looked for later in
//! what comes by the same port, among the frames forwarding declines: so where there is none, it costs nothing.
//!
//! Promises: only a frame the fast path would forward is taken here; everything else the slow path decides about, which
//! hands ESP over when it finds some. Cleartext goes no further than its policy lets it.

use std::net::IpAddr;
use std::ops::Range;

use super::rules::{self, Kind, Outward};
use super::spd_query::{LookupMemo, SpdQuery, count};
use super::{Env, packet_len};
use crate::ipsec::spd::{PolicyIndex, Question};
use crate::ipsec::{Direction, InboundId, Ipsec, Queue, esp};
use crate::packet::{BATCH, Batch, Buffer, DeviceId, Frame};
use crate::router::fast::{HEAD4, HEAD6, Inspect, REFUSED, SEALED, SLOW, Stage};
use crate::router::forwarder::Forwarder;
use crate::router::ingress::{Ingress, OwnAddresses};
use crate::tables::Tables;
use crate::verdict::Reason;
use crate::wire::ethernet::HEADER_LEN as ETHERNET;
use crate::wire::{get16, protocol};

/// More fragments, or an offset.
const FRAGMENT: u16 = 0x3fff;

/// What enters: classification of a batch with what IPsec asks, and its way to queues, gateway or pool.
#[derive(Debug)]
pub(super) struct Entry {
    pub query: SpdQuery,
    disposition: Disposition,
    /// What is known of each device's queue.
    known: Vec<Known>,
    /// Nothing is forwarded to where SAs take packets: ESP can be looked for among what forwarding declines.
    may_look_later: bool,
    /// Whether ESP is looked for before forwarding, for each device: the last batch that came in by it had some. What was
    /// opened comes in by another device than what it was in.
    looks_first: Vec<bool>,
}

/// What is known of frames that the fast path put into a queue since it was emptied. Where it is known of all, none of
/// them need be looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Frames with an IPv4 header without options: a rule for every packet is theirs.
    pub common: usize,
    /// Frames, IPv4 and IPv6, outside of all rules of the SPD the queue belongs to, and what they get.
    pub outside: [u64; 2],
    pub answer: Option<PolicyIndex>,
}

/// What was decided about frames of a batch, bit *n* and entry *n* for the *n*-th.
#[derive(Debug)]
struct Disposition {
    sealed: u64,
    /// The SA of each frame in `sealed`.
    ids: [InboundId; BATCH],
    refused: u64,
    /// Why each frame in `refused` goes no further.
    reasons: [Reason; BATCH],
}

const _: () = assert!(BATCH <= 64);

impl Entry {
    pub fn new() -> Self {
        let disposition = Disposition {
            sealed: 0,
            ids: [InboundId::default(); BATCH],
            refused: 0,
            reasons: [Reason::PolicyNone; BATCH],
        };
        Entry {
            query: SpdQuery::new(),
            disposition,
            known: Vec::new(),
            may_look_later: false,
            looks_first: Vec::new(),
        }
    }

    pub fn on_snapshot(&mut self, tables: &Tables, ipsec: &Ipsec) {
        self.known.clear();
        self.known.resize(tables.devices.len(), Known::default());
        self.may_look_later = !ipsec.sad.destinations().any(|to| rules::port_towards(tables, to).is_some());
        self.looks_first.clear();
        self.looks_first.resize(tables.devices.len(), true);
    }

    /// What is known of frames in the queue of `device`; from now on nothing is.
    pub fn take_known(&mut self, device: DeviceId) -> Known {
        self.known.get_mut(device.index()).map_or(Known::default(), std::mem::take)
    }

    /// Classifies, looks up and rewrites a batch, as [`crate::router::forwarder::Forwarder::pass`] does where nothing
    /// is known of IPsec.
    pub fn pass<B: Buffer>(&mut self, env: &mut Env<'_, '_, B>, batch: &mut Batch<B>) {
        if env.forwarder.fast {
            let ingress = batch.frames().first().map_or(0, |frame| frame.device.index());
            let handed_over = if self.looks_first.get(ingress).is_none_or(|first| *first) {
                self.classify::<true, B>(env, batch, ingress)
            } else {
                self.classify::<false, B>(env, batch, ingress)
            };
            if handed_over {
                return;
            }
        }
        self.dispatch(env, batch);
    }

    /// Remembers whether what came in by the device was, in part, ESP.
    #[inline]
    fn note_sealed(&mut self, ingress: usize) {
        if let Some(first) = self.looks_first.get_mut(ingress) {
            *first = !self.may_look_later || self.disposition.sealed != 0;
        }
    }

    /// Finds each frame's place; returns whether all of the batch was ESP, and was handed over. `FIRST`: ESP is looked for
    /// before forwarding, else among what forwarding declines.
    fn classify<const FIRST: bool, B: Buffer>(
        &mut self,
        env: &mut Env<'_, '_, B>,
        batch: &mut Batch<B>,
        ingress: usize,
    ) -> bool {
        let Forwarder { own, stage, ports, .. } = &mut *env.forwarder;
        (self.disposition.sealed, self.disposition.refused) = (0, 0);
        let (tables, frames) = (env.breath.tables, batch.frames());
        let (query, disposition) = (&mut self.query, &mut self.disposition);
        let cleartext = Cleartext { own, query, disposition, question: None, places: [0; BATCH], len: 0 };
        if FIRST {
            let mut inspector = Inspector {
                ipsec: env.ipsec,
                cleartext,
                port: env.ipsec.udp_ports.first().copied().unwrap_or(0).to_be_bytes(),
                more_ports: env.ipsec.udp_ports.len() > 1,
                asks_all: false,
                last: None,
            };
            stage.classify(tables, own, frames, ports, &mut inspector);
            inspector.cleartext.query_pending(frames);
        } else {
            let mut ingresses = Ingresses { ipsec: env.ipsec, begin: 0, enforced: false };
            stage.classify(tables, own, frames, ports, &mut ingresses);
            if ingresses.enforced {
                ingresses.query(tables, stage, frames, cleartext);
            }
        }
        if self.disposition.sealed.count_ones() as usize == batch.len() {
            self.hand_off_all(env, batch);
            self.note_sealed(ingress);
            return true;
        }
        let forwarder = &mut *env.forwarder;
        forwarder.resolve(env.breath, batch);
        if !FIRST && forwarder.stage.common_device(batch.len()).is_none() {
            for place in forwarder.stage.declined(batch.len()) {
                let packet = batch.frames()[place].behind(ETHERNET);
                if let (Kind::Esp((spi, to)), _) = rules::kind(env.ipsec, packet)
                    && let Some(id) = env.ipsec.sad.id(spi, to)
                {
                    self.disposition.seal(place, id);
                }
            }
        }
        self.note_sealed(ingress);
        forwarder.stage.divert(self.disposition.sealed, SEALED);
        forwarder.stage.divert(self.disposition.refused, REFUSED);
        false
    }

    /// Hands over a batch that is ESP of SAs of ours throughout.
    fn hand_off_all<B: Buffer>(&self, env: &mut Env<'_, '_, B>, batch: &mut Batch<B>) {
        for (frame, &id) in batch.drain().zip(&self.disposition.ids) {
            env.forwarder.hand_off(Some(id), frame, ETHERNET, env.breath.pool);
        }
    }

    /// Moves every frame to where it was decided to go.
    fn dispatch<B: Buffer>(&mut self, env: &mut Env<'_, '_, B>, batch: &mut Batch<B>) {
        let count = batch.len();
        let mut outside = None;
        if let Some(device) = env.forwarder.stage.common_device(count) {
            if let Some(past) = self.past_enforcement(env, device, batch, &mut outside) {
                return batch.append_to(&mut env.breath.out.tx[past.index()]);
            }
            batch.append_to(&mut env.breath.out.tx[usize::from(device)]);
            return self.note(env.ipsec, &env.forwarder.stage, device, 0..count, &mut outside);
        }
        let mut frames = batch.drain();
        let mut at = 0;
        while at < count {
            let (place, run) = env.forwarder.stage.run(at, count);
            let places = at..at + run;
            at += run;
            if place < REFUSED {
                env.breath.out.tx[usize::from(place)].extend(frames.by_ref().take(run));
                self.note(env.ipsec, &env.forwarder.stage, place, places, &mut outside);
                continue;
            }
            for (place_in_batch, frame) in places.zip(frames.by_ref()) {
                match place {
                    SEALED => {
                        let id = self.disposition.ids[place_in_batch];
                        env.forwarder.hand_off(Some(id), frame, ETHERNET, env.breath.pool);
                    }
                    REFUSED => env.drop_frame(frame, self.disposition.reasons[place_in_batch]),
                    _ => env.forwarder.slow(env.breath, frame, place == SLOW),
                }
            }
        }
    }

    /// The device behind the policy enforcement point whose queue is `device`, where its SPD lets all of the batch pass, as
    /// follows from destinations alone, and nobody waits before it: then it is counted as asked.
    #[inline]
    fn past_enforcement<B: Buffer>(
        &mut self,
        env: &Env<'_, '_, B>,
        device: u16,
        batch: &Batch<B>,
        outside: &mut Option<OutsideAnswer>,
    ) -> Option<DeviceId> {
        let queue = usize::from(device);
        let &Queue::Enforcement { spd, device: past, .. } = env.ipsec.queues.get(queue)? else { return None };
        let out = &env.breath.out.tx;
        if !out.get(queue)?.is_empty() || past.index() >= out.len() {
            return None;
        }
        let stage = &env.forwarder.stage;
        let answer = outside_answer(env.ipsec, stage, device);
        *outside = Some((device, answer));
        let answer = answer?;
        let question = rules::question(env.ipsec, spd, Direction::Out)?;
        let Outward::Bypass(policy) = rules::outward(question.spd, Some(answer)) else { return None };
        let frames = batch.frames();
        let packets = frames.iter().map(|frame| frame.behind(ETHERNET));
        if !self.query.lookup.count_outside(question, packets, answer, stage.families(0..frames.len())) {
            return None;
        }
        if policy.is_some() {
            let bytes = frames.iter().map(|frame| (frame.len() - ETHERNET) as u64).sum();
            count(question.spd, Direction::Out, policy, frames.len() as u64, bytes);
        }
        Some(past)
    }

    /// Keeps what follows from the batch's headers about frames that leave by `device`, for whoever empties its queue.
    /// `outside` is what the last device asked about was told.
    #[inline]
    fn note(
        &mut self,
        ipsec: &Ipsec,
        stage: &Stage,
        device: u16,
        places: Range<usize>,
        outside: &mut Option<OutsideAnswer>,
    ) {
        let Some(known) = self.known.get_mut(usize::from(device)) else { return };
        known.common += if stage.is_all_ipv4() { places.len() } else { 0 };
        let answer = match *outside {
            Some((asked, answer)) if asked == device => answer,
            _ => outside_answer(ipsec, stage, device),
        };
        *outside = Some((device, answer));
        if let Some(answer) = answer {
            known.add_outside(answer, stage.families(places));
        }
    }
}

impl Known {
    /// Adds frames outside of all rules; those of another answer than the first ones' are left to be looked at.
    #[inline]
    fn add_outside(&mut self, answer: Option<PolicyIndex>, [v4, v6]: [u64; 2]) {
        if self.outside == [0; 2] {
            self.answer = answer;
        }
        if self.answer == answer {
            self.outside = [self.outside[0] + v4, self.outside[1] + v6];
        }
    }
}

/// A device, and what [`outside_answer`] says of it.
type OutsideAnswer = (u16, Option<Option<PolicyIndex>>);

/// What every common frame of the batch gets that leaves by the queue of a policy enforcement point, where that follows
/// from destinations alone.
#[inline]
fn outside_answer(ipsec: &Ipsec, stage: &Stage, place: u16) -> Option<Option<PolicyIndex>> {
    let &Queue::Enforcement { spd, .. } = ipsec.queues.get(usize::from(place))? else { return None };
    let (v4, v6) = stage.destinations();
    rules::question(ipsec, spd, Direction::Out)?.rules().outside(v4, v6)
}

/// Cleartext that came in by ports with a policy enforcement point, on its way to being asked about, an ingress at a time.
struct Cleartext<'a> {
    own: &'a OwnAddresses,
    query: &'a mut SpdQuery,
    disposition: &'a mut Disposition,
    /// Whom to ask about packets of this ingress.
    question: Option<Question<'a>>,
    /// Places in the batch, of which the first `len` are.
    places: [u8; BATCH],
    len: usize,
}

/// Where in a batch the frames of another ingress begin: what a batch is asked about that is not looked at for ESP first.
struct Ingresses<'a> {
    ipsec: &'a Ipsec,
    /// Bit *n*: frame *n* came in by another port than the one before.
    begin: u64,
    /// Some of them have a policy enforcement point.
    enforced: bool,
}

impl<B: Buffer> Inspect<B> for Ingresses<'_> {
    #[inline]
    fn enter(&mut self, ingress: &Ingress, place: usize, _: &[Frame<B>]) {
        self.begin |= 1 << (place % BATCH);
        self.enforced |= rules::enforcement(self.ipsec, ingress.port, Direction::In).is_some();
    }

    #[inline(always)]
    fn takes4(&mut self, _: usize, _: &[u8; HEAD4], _: &[u8], _: u32) -> bool {
        false
    }

    #[inline(always)]
    fn takes6(&mut self, _: usize, _: &[u8; HEAD6], _: &[u8], _: u128) -> bool {
        false
    }
}

impl Ingresses<'_> {
    /// Asks about the common frames of a batch that came in by ports with a policy enforcement point.
    fn query<'a, B: Buffer>(
        &self,
        tables: &Tables,
        stage: &Stage,
        frames: &[Frame<B>],
        mut cleartext: Cleartext<'a>,
    ) where
        Self: 'a,
    {
        let mut begin = self.begin;
        stage.each_common(frames.len(), |place, destination| {
            // Up to this place, in case what began an ingress is not common.
            if begin & (u64::MAX >> (63 - place % BATCH)) != 0 {
                begin &= !(u64::MAX >> (63 - place % BATCH));
                let port = Ingress::of(tables, frames[place].device).port;
                cleartext.enter(rules::enforcement(self.ipsec, port, Direction::In), frames);
            }
            cleartext.add(place, destination);
        });
        cleartext.query_pending(frames);
    }
}

/// What IPsec asks of each common frame: whether it is ESP, and what the SPD says of cleartext.
struct Inspector<'a> {
    ipsec: &'a Ipsec,
    cleartext: Cleartext<'a>,
    /// The first port ESP may come in on, and whether there are others, which are looked for in a list.
    port: [u8; 2],
    more_ports: bool,
    /// Each packet is looked at, whatever its port.
    asks_all: bool,
    /// Packets of one SA come in a row: the one found last is asked first.
    last: Option<(u32, IpAddr, InboundId)>,
}

impl<B: Buffer> Inspect<B> for Inspector<'_> {
    #[inline]
    fn enter(&mut self, ingress: &Ingress, _: usize, frames: &[Frame<B>]) {
        self.cleartext.enter(rules::enforcement(self.ipsec, ingress.port, Direction::In), frames);
        self.asks_all = self.more_ports | self.cleartext.question.is_some();
    }

    #[inline(always)]
    fn takes4(&mut self, place: usize, head: &[u8; HEAD4], data: &[u8], destination: u32) -> bool {
        let carried = head[ETHERNET + 9];
        let asks = self.asks_all | self.may_be_esp::<{ HEAD4 + 4 }>(carried, data);
        asks && {
            let is_fragment = get16(head, ETHERNET + 6) & FRAGMENT != 0;
            self.takes(place, (carried, is_fragment), &data[HEAD4..], IpAddr::V4(destination.into()))
        }
    }

    #[inline(always)]
    fn takes6(&mut self, place: usize, head: &[u8; HEAD6], data: &[u8], destination: u128) -> bool {
        let carried = head[ETHERNET + 6];
        let asks = self.asks_all | self.may_be_esp::<{ HEAD6 + 4 }>(carried, data);
        asks && self.takes(place, (carried, false), &data[HEAD6..], IpAddr::V6(destination.into()))
    }
}

impl Inspector<'_> {
    /// Whether a common packet of protocol `carried`, whose ports end at `PORTS` of its frame, may be ESP: most are told
    /// apart by one comparison of a port.
    #[inline(always)]
    fn may_be_esp<const PORTS: usize>(&self, carried: u8, data: &[u8]) -> bool {
        if carried != protocol::UDP {
            return carried == protocol::ESP;
        }
        let Some(head) = data.first_chunk::<PORTS>() else { return false };
        [head[PORTS - 2], head[PORTS - 1]] == self.port
    }

    /// Takes ESP that an SA of ours opens; of the rest, cleartext the SPD has to be asked about is noted.
    #[inline]
    fn takes(
        &mut self,
        place: usize,
        (carried, is_fragment): (u8, bool),
        payload: &[u8],
        destination: IpAddr,
    ) -> bool {
        if !is_fragment && self.opens(place, carried, payload, destination) {
            return true;
        }
        self.cleartext.add(place, destination);
        false
    }

    /// Whether an SA of ours opens ESP that begins with `payload`.
    #[inline]
    fn opens(&mut self, place: usize, carried: u8, payload: &[u8], destination: IpAddr) -> bool {
        let Some(spi) = esp::spi_of(carried, payload, &self.ipsec.udp_ports) else { return false };
        let id = match self.last {
            Some((s, d, id)) if s == spi && d == destination => id,
            _ => {
                let Some(id) = self.ipsec.sad.id(spi, destination) else { return false };
                self.last = Some((spi, destination, id));
                id
            }
        };
        self.cleartext.disposition.seal(place, id);
        true
    }
}

impl<'a> Cleartext<'a> {
    /// What is added from now on is asked about by `question`.
    #[inline]
    fn enter<B: Buffer>(&mut self, question: Option<Question<'a>>, frames: &[Frame<B>]) {
        self.query_pending(frames);
        self.question = question;
    }

    /// Adds the packet at `place`, if anybody has to be asked about what is not for an address of ours.
    #[inline]
    fn add(&mut self, place: usize, destination: IpAddr) {
        if self.question.is_some() && !self.own.contains(destination) {
            self.places[self.len % BATCH] = place as u8;
            self.len += 1;
        }
    }

    /// Asks the SPD about what was added since it was last asked; counts for the policies that decide.
    #[inline]
    fn query_pending<B: Buffer>(&mut self, frames: &[Frame<B>]) {
        if let Some(question) = self.question
            && self.len > 0
        {
            self.query(question, frames);
            self.len = 0;
        }
    }

    fn query<B: Buffer>(&mut self, question: Question<'_>, frames: &[Frame<B>]) {
        let (spd, places) = (question.spd, &self.places[..self.len.min(BATCH)]);
        let packet = |&at: &u8| frames[usize::from(at)].data().get(ETHERNET..).unwrap_or(&[]);
        let query = &mut *self.query;
        let first =
            query.lookup.first(question, places.iter().map(packet), 0).map(|policy| Some(Some(policy)));
        let found = first.or_else(|| query.lookup.outside(question, places.iter().map(packet)).map(Some));
        if let Some(found) = found.or_else(|| query.each(question, places.iter().map(packet))) {
            let (policy, refused) = rules::clear(spd, found);
            if policy.is_some() {
                let bytes = places.iter().map(|at| packet_len(packet(at)) as u64).sum();
                count(spd, Direction::In, policy, places.len() as u64, bytes);
            }
            if let Some(reason) = refused {
                places.iter().for_each(|&at| self.disposition.refuse(at, reason));
            }
            return;
        }
        let mut memo = LookupMemo::new(|found| rules::clear(spd, found));
        for (at, &found) in places.iter().zip(&query.found) {
            let (policy, refused) = memo.of(found);
            if let Some(policy) = policy {
                query.tally.add(spd, Direction::In, policy, packet_len(packet(at)) as u64);
            }
            if let Some(reason) = refused {
                self.disposition.refuse(*at, reason);
            }
        }
        query.tally.flush(spd, Direction::In);
    }
}

impl Disposition {
    /// Notes the frame at `place` as ESP that this SA opens.
    #[inline]
    fn seal(&mut self, place: usize, id: InboundId) {
        self.sealed |= 1 << place;
        self.ids[place % BATCH] = id;
    }

    fn refuse(&mut self, place: u8, reason: Reason) {
        self.refused |= 1 << place;
        self.reasons[usize::from(place)] = reason;
    }
}
