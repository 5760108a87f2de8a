//! Inbound: while forwarding examines a frame's headers, ESP by an SA of ours is found, and cleartext that came in
//! by a port with a policy enforcement point is put to its SPD (RFC 4301 5.2).
//!
//! Promises: only a frame the fast path would forward is taken here; everything else the slow path decides about, which
//! hands ESP over when it finds some. Cleartext goes no further than its policy lets it.

use std::net::IpAddr;

use super::spd_query::{LookupMemo, SpdQuery, count};
use super::{Env, packet_len, rules};
use crate::ipsec::spd::Question;
use crate::ipsec::{Direction, InboundId, Ipsec, esp};
use crate::packet::{BATCH, Batch, Buffer, DeviceId, Frame};
use crate::router::fast::{HEAD4, HEAD6, Inspect, REFUSED, SEALED, SLOW};
use crate::router::ingress::{Ingress, OwnAddresses};
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
    /// For each device, frames with an IPv4 header without options that the fast path put into its queue since it was
    /// emptied. Where that is all of them, a rule for every packet need not look at one.
    common: Vec<usize>,
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
        Entry { query: SpdQuery::new(), disposition, common: Vec::new() }
    }

    pub fn on_snapshot(&mut self, devices: usize) {
        self.common.clear();
        self.common.resize(devices, 0);
    }

    /// How many common frames the queue of `device` has; from now on it has none.
    pub fn take_common(&mut self, device: DeviceId) -> usize {
        self.common.get_mut(device.index()).map_or(0, std::mem::take)
    }

    /// Classifies, looks up and rewrites a batch, as [`crate::router::forwarder::Forwarder::pass`] does where nothing
    /// is known of IPsec.
    pub fn pass<B: Buffer>(&mut self, env: &mut Env<'_, '_, B>, batch: &mut Batch<B>) {
        let forwarder = &mut *env.forwarder;
        if forwarder.fast {
            (self.disposition.sealed, self.disposition.refused) = (0, 0);
            let mut inspector = Inspector {
                ipsec: env.ipsec,
                own: &forwarder.own,
                query: &mut self.query,
                disposition: &mut self.disposition,
                question: None,
                pending: PendingCleartext { places: [0; BATCH], len: 0 },
                last: None,
            };
            let tables = env.breath.tables;
            let stage = &mut forwarder.stage;
            stage.classify(tables, &forwarder.own, batch.frames(), &mut forwarder.ports, &mut inspector);
            inspector.query_pending(batch.frames());
            if self.disposition.sealed.count_ones() as usize == batch.len() {
                return self.hand_off_all(env, batch);
            }
            forwarder.resolve(env.breath, batch);
            forwarder.stage.divert(self.disposition.sealed, SEALED);
            forwarder.stage.divert(self.disposition.refused, REFUSED);
        }
        self.dispatch(env, batch);
    }

    /// Hands over a batch that is ESP of SAs of ours throughout.
    fn hand_off_all<B: Buffer>(&self, env: &mut Env<'_, '_, B>, batch: &mut Batch<B>) {
        for (frame, &id) in batch.drain().zip(&self.disposition.ids) {
            env.forwarder.hand_off(Some(id), frame, ETHERNET, env.breath.pool);
        }
    }

    /// Moves every frame to where it was decided to go.
    fn dispatch<B: Buffer>(&mut self, env: &mut Env<'_, '_, B>, batch: &mut Batch<B>) {
        let all_ipv4 = env.forwarder.stage.is_all_ipv4();
        let count = batch.len();
        let mut frames = batch.drain();
        let mut at = 0;
        while at < count {
            let (place, run) = env.forwarder.stage.run(at, count);
            let places = at..at + run;
            at += run;
            if place < REFUSED {
                env.breath.out.tx[usize::from(place)].extend(frames.by_ref().take(run));
                if let Some(common) = self.common.get_mut(usize::from(place))
                    && all_ipv4
                {
                    *common += run;
                }
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
}

/// Places in a batch of cleartext that came in by a port with a policy enforcement point.
struct PendingCleartext {
    places: [u8; BATCH],
    len: usize,
}

impl PendingCleartext {
    #[inline]
    fn push(&mut self, place: usize) {
        self.places[self.len % BATCH] = place as u8;
        self.len += 1;
    }

    fn places(&self) -> &[u8] {
        &self.places[..self.len.min(BATCH)]
    }
}

/// What IPsec asks of each common frame.
struct Inspector<'a> {
    ipsec: &'a Ipsec,
    own: &'a OwnAddresses,
    query: &'a mut SpdQuery,
    disposition: &'a mut Disposition,
    /// Whom to ask about cleartext of this ingress.
    question: Option<Question<'a>>,
    pending: PendingCleartext,
    /// Packets of one SA come in a row: the one found last is asked first.
    last: Option<(u32, IpAddr, InboundId)>,
}

impl<B: Buffer> Inspect<B> for Inspector<'_> {
    #[inline]
    fn enter(&mut self, ingress: &Ingress, frames: &[Frame<B>]) {
        self.query_pending(frames);
        self.question = rules::enforcement(self.ipsec, ingress.port, Direction::In);
    }

    #[inline(always)]
    fn takes4(&mut self, place: usize, head: &[u8; HEAD4], data: &[u8], destination: u32) -> bool {
        let carried = head[ETHERNET + 9];
        let may_be_esp = carried == protocol::ESP || carried == protocol::UDP;
        if may_be_esp
            && let Some(spi) = esp::spi_of(carried, data.get(HEAD4..).unwrap_or(&[]), &self.ipsec.udp_ports)
            && get16(head, ETHERNET + 6) & FRAGMENT == 0
            && self.opens(place, spi, IpAddr::V4(destination.into()))
        {
            return true;
        }
        if self.question.is_some() && !self.own.contains(IpAddr::V4(destination.into())) {
            self.pending.push(place);
        }
        false
    }

    #[inline(always)]
    fn takes6(&mut self, place: usize, head: &[u8; HEAD6], data: &[u8], destination: u128) -> bool {
        let carried = head[ETHERNET + 6];
        let may_be_esp = carried == protocol::ESP || carried == protocol::UDP;
        if may_be_esp
            && let Some(spi) = esp::spi_of(carried, data.get(HEAD6..).unwrap_or(&[]), &self.ipsec.udp_ports)
            && self.opens(place, spi, IpAddr::V6(destination.into()))
        {
            return true;
        }
        if self.question.is_some() && !self.own.contains(IpAddr::V6(destination.into())) {
            self.pending.push(place);
        }
        false
    }
}

impl Inspector<'_> {
    /// Whether an SA of ours opens what has this SPI and destination.
    #[inline]
    fn opens(&mut self, place: usize, spi: u32, destination: IpAddr) -> bool {
        let id = match self.last {
            Some((s, d, id)) if s == spi && d == destination => id,
            _ => {
                let Some(id) = self.ipsec.sad.id(spi, destination) else { return false };
                self.last = Some((spi, destination, id));
                id
            }
        };
        self.disposition.sealed |= 1 << place;
        self.disposition.ids[place % BATCH] = id;
        true
    }

    /// Asks the SPD about the cleartext seen since it was last asked; counts for the policies that decide.
    #[inline]
    fn query_pending<B: Buffer>(&mut self, frames: &[Frame<B>]) {
        if let Some(question) = self.question
            && self.pending.len > 0
        {
            self.query_cleartext(question, frames);
            self.pending.len = 0;
        }
    }

    fn query_cleartext<B: Buffer>(&mut self, question: Question<'_>, frames: &[Frame<B>]) {
        let (spd, places) = (question.spd, self.pending.places());
        let packet = |&at: &u8| frames[usize::from(at)].data().get(ETHERNET..).unwrap_or(&[]);
        let query = &mut *self.query;
        let first =
            query.lookup.first(question, places.iter().map(packet), 0).map(|policy| Some(Some(policy)));
        if let Some(found) = first.or_else(|| query.each(question, places.iter().map(packet))) {
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
    fn refuse(&mut self, place: u8, reason: Reason) {
        self.refused |= 1 << place;
        self.reasons[usize::from(place)] = reason;
    }
}
