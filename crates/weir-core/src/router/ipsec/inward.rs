//! Inbound: ESP is taken out of a batch, opened an SA at a time, checked against the SPD, and comes in
//! again on the device of its tunnel or SPD (RFC 4301 5.2).
//!
//! Promises: only a frame the fast path would forward is taken out of a batch; everything else is judged by
//! the slow path, which hands ESP over when it finds some. A frame that came in clear on a guarded port
//! goes no further than its policy lets it.

use super::ask::{Ask, Said, count};
use super::rules::{self, Key};
use super::{Gate, Sealed, packet_len, unwrap};
use crate::ipsec::esp::{self, Opened, Outcome};
use crate::ipsec::spd::Question;
use crate::ipsec::{Direction, Inbound, Ipsec, pmtu};
use crate::packet::{BATCH, Batch, Buffer, DeviceId, Frame, Pool};
use crate::router::decide::{Decided, Decision};
use crate::router::fast::is_common;
use crate::router::ingress::Ingress;
use crate::router::{Breath, Router};
use crate::tables::Tables;
use crate::verdict::Reason;
use crate::wire::ethernet::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, HEADER_LEN as ETHERNET};
use crate::wire::{get16, protocol};

/// What becomes of a frame before it is routed.
#[derive(Clone, Copy)]
enum Fate {
    Stays,
    Open(Key),
    Lost(Reason),
}

/// Places in a batch of frames that came in clear by a guarded port.
struct Asked {
    places: [u8; BATCH],
    len: usize,
}

impl Asked {
    #[inline]
    fn push(&mut self, at: usize) {
        self.places[self.len % BATCH] = at as u8;
        self.len += 1;
    }

    fn places(&self) -> &[u8] {
        &self.places[..self.len.min(BATCH)]
    }
}

impl<B: Buffer> Router<B> {
    /// Takes ESP and what a guard refuses out of a batch.
    pub(super) fn take_in(
        &mut self,
        tables: &Tables,
        ipsec: &Ipsec,
        batch: &mut Batch<B>,
        pool: &mut Pool<B>,
    ) {
        if !self.fast {
            return;
        }
        let mut fates = [Fate::Stays; BATCH];
        let mut stay = true;
        let mut ingress = Ingress::of(tables, batch.frames().first().map_or(DeviceId(0), |f| f.device));
        let mut guard = rules::guard(ipsec, ingress.port, Direction::In);
        let mut asked = Asked { places: [0; BATCH], len: 0 };
        // Packets of one SA come in a row: the last key found is asked first.
        let mut last = None;
        // Packets with the key of the one before.
        let mut alike = 0;
        for (at, frame) in batch.frames().iter().enumerate() {
            if frame.device != ingress.device {
                stay &= self.ask_in_clear(guard, &mut asked, batch.frames(), &mut fates);
                ingress = Ingress::of(tables, frame.device);
                guard = rules::guard(ipsec, ingress.port, Direction::In);
            }
            let data = frame.data();
            if may_be_esp(data, &ipsec.udp_ports)
                && let Some(key) = esp::esp_of(&data[ETHERNET..], &ipsec.udp_ports)
                && is_common(&ingress, &self.own, data)
                && (last == Some(key) || ipsec.sad.find(key.0, key.1).is_some())
            {
                alike += usize::from(last == Some(key));
                last = Some(key);
                fates[at] = Fate::Open(key);
                stay = false;
            } else if guard.is_some() && is_common(&ingress, &self.own, data) && !self.is_for_us(data) {
                asked.push(at);
            }
        }
        stay &= self.ask_in_clear(guard, &mut asked, batch.frames(), &mut fates);
        match last {
            _ if stay => {}
            // All but the first: then it is all of them.
            Some(key) if alike + 1 == batch.len() => self.take_all(tables, batch, key, pool),
            _ => self.part(tables, batch, &fates, pool),
        }
    }

    /// What is for ourselves the slow path judges.
    #[inline]
    fn is_for_us(&self, data: &[u8]) -> bool {
        let packet = data.get(ETHERNET..).unwrap_or(&[]);
        rules::destination(packet).is_some_and(|destination| self.own.contains(destination))
    }

    /// Asks the SPD about frames the fast path would forward; counts for the policies that decide. Whether all
    /// of them stay.
    #[inline]
    fn ask_in_clear(
        &mut self,
        guard: Option<Question<'_>>,
        asked: &mut Asked,
        frames: &[Frame<B>],
        fates: &mut [Fate; BATCH],
    ) -> bool {
        match guard {
            Some(question) if asked.len > 0 => {
                let stay = self.judge_in_clear(question, asked.places(), frames, fates);
                asked.len = 0;
                stay
            }
            _ => true,
        }
    }

    fn judge_in_clear(
        &mut self,
        question: Question<'_>,
        places: &[u8],
        frames: &[Frame<B>],
        fates: &mut [Fate; BATCH],
    ) -> bool {
        let spd = question.spd;
        let packet = |&at: &u8| frames[usize::from(at)].data().get(ETHERNET..).unwrap_or(&[]);
        let ask = &mut self.ipsec.ask;
        let first = ask.lookup.first(question, places.iter().map(packet), 0).map(|policy| Some(Some(policy)));
        if let Some(found) = first.or_else(|| ask.each(question, places.iter().map(packet))) {
            let (policy, refused) = rules::clear(spd, found);
            if policy.is_some() {
                let bytes = places.iter().map(|at| packet_len(packet(at)) as u64).sum();
                count(spd, Direction::In, policy, places.len() as u64, bytes);
            }
            if let Some(reason) = refused {
                places.iter().for_each(|&at| fates[usize::from(at)] = Fate::Lost(reason));
            }
            return refused.is_none();
        }
        let mut stay = true;
        let mut said = Said::new(|found| rules::clear(spd, found));
        for (at, &found) in places.iter().zip(&ask.found) {
            let (policy, refused) = said.of(found);
            if let Some(policy) = policy {
                ask.tally.add(spd, Direction::In, policy, packet_len(packet(at)) as u64);
            }
            if let Some(reason) = refused {
                fates[usize::from(*at)] = Fate::Lost(reason);
                stay = false;
            }
        }
        ask.tally.settle(spd, Direction::In);
        stay
    }

    /// Takes out a batch that is ESP of one SA; does what [`Router::part`] does.
    fn take_all(&mut self, tables: &Tables, batch: &mut Batch<B>, key: Key, pool: &mut Pool<B>) {
        let mut frames = batch.drain();
        while let Some(device) = frames.as_slice().first().map(|frame| frame.device) {
            let run = frames.as_slice().iter().take_while(|frame| frame.device == device).count();
            let mut bytes = 0;
            for mut frame in frames.by_ref().take(run) {
                bytes += frame.len() as u64;
                if unwrap(&mut frame, ETHERNET) {
                    self.ipsec.sealed.push(key, frame);
                } else {
                    self.lose(frame, Reason::IpTruncated, pool);
                }
            }
            let port = tables.devices.get(device.index()).and_then(|d| d.untagged);
            if let Some(counters) = port.and_then(|port| self.ports.get_mut(port.index())) {
                counters.rx_packets += run as u64;
                counters.rx_bytes += bytes;
            }
        }
    }

    /// Does what was decided about the frames of a batch; those that stay keep their order.
    fn part(&mut self, tables: &Tables, batch: &mut Batch<B>, fates: &[Fate; BATCH], pool: &mut Pool<B>) {
        let mut stay = std::mem::take(&mut self.ipsec.staying);
        for (mut frame, fate) in batch.drain().zip(fates) {
            let (device, len) = (frame.device, frame.len());
            match *fate {
                Fate::Stays => {
                    stay.push(frame);
                    continue;
                }
                Fate::Open(key) if unwrap(&mut frame, ETHERNET) => self.ipsec.sealed.push(key, frame),
                Fate::Open(_) => self.lose(frame, Reason::IpTruncated, pool),
                Fate::Lost(reason) => self.lose(frame, reason, pool),
            }
            let port = tables.devices.get(device.index()).and_then(|d| d.untagged);
            if let Some(counters) = port.and_then(|port| self.ports.get_mut(port.index())) {
                counters.rx_packets += 1;
                counters.rx_bytes += len as u64;
            }
        }
        for frame in stay.drain(..) {
            // No more than were in it before.
            if let Err(frame) = batch.push(frame) {
                self.lose(frame, Reason::NoBuffer, pool);
            }
        }
        self.ipsec.staying = stay;
    }

    /// Opens a batch of ESP; what was inside is then in `inner`, with a link header of its own.
    pub(super) fn open(
        &mut self,
        breath: &mut Breath<'_, B>,
        ipsec: &Ipsec,
        gate: &mut Gate<B>,
        inner: &mut Batch<B>,
    ) {
        let mut run = std::mem::take(&mut gate.next);
        let Sealed { frames, keys } = &mut gate.opening;
        let uniform = keys.first().copied().filter(|first| keys.iter().all(|key| key == first));
        if let Some(key) = uniform {
            std::mem::swap(&mut run, frames);
            keys.clear();
            self.open_run(breath, ipsec, gate, key, &mut run, inner);
        } else {
            for (key, frame) in keys.drain(..).zip(frames.drain(..)) {
                gate.by_sa.push(key, frame);
            }
            while let Some(key) = gate.by_sa.next(&mut run) {
                self.open_run(breath, ipsec, gate, key, &mut run, inner);
            }
        }
        gate.next = run;
    }

    /// The slow path found ESP by an SA of ours.
    pub(in crate::router) fn take_sealed(
        &mut self,
        breath: &mut Breath<'_, B>,
        key: Key,
        mut frame: Frame<B>,
        network: usize,
    ) {
        if unwrap(&mut frame, network) {
            self.ipsec.sealed.push(key, frame);
        } else {
            self.lose(frame, Reason::IpTruncated, breath.pool);
        }
    }

    /// What IPsec learns from a frame the slow path judged: ICMP errors about packets of its own, and that a
    /// policy let it pass or discarded it, unless that was counted before.
    pub(in crate::router) fn hear(
        &mut self,
        breath: &Breath<'_, B>,
        decided: &Decided,
        frame: &Frame<B>,
        count: bool,
    ) {
        let Some(ipsec) = breath.tables.ipsec.as_deref() else { return };
        let packet = frame.data().get(decided.network..).unwrap_or(&[]);
        match decided.decision {
            Decision::Local => {
                pmtu::learn(ipsec, breath.now, packet);
            }
            Decision::Forward(_)
            | Decision::Fragment(_)
            | Decision::Hold(..)
            | Decision::Drop(Reason::PolicyDiscard, _)
                if count =>
            {
                let guard = decided.port.and_then(|port| rules::guard(ipsec, port, Direction::In));
                let Some(spd) = guard.map(|question| question.spd) else { return };
                let (policy, refused) = rules::clear(spd, spd.inbound.find_packet(packet));
                let dropped = matches!(decided.decision, Decision::Drop(..));
                if let Some(policy) = policy.and_then(|policy| spd.policy(policy))
                    && refused.is_some() == dropped
                {
                    policy.counters.count(Direction::In, packet_len(packet) as u64);
                }
            }
            _ => {}
        }
    }

    /// Opens packets of one SA; leaves `run` empty.
    fn open_run(
        &mut self,
        breath: &mut Breath<'_, B>,
        ipsec: &Ipsec,
        gate: &mut Gate<B>,
        key: Key,
        run: &mut Vec<Frame<B>>,
        inner: &mut Batch<B>,
    ) {
        let Some(inbound) = ipsec.sad.find(key.0, key.1) else {
            run.drain(..).for_each(|frame| self.lose(frame, Reason::NoSa, breath.pool));
            return;
        };
        // A run is part of a batch.
        let outcomes = &mut gate.outcomes[..run.len()];
        let opened = esp::open(&inbound.sa, breath.now, run, outcomes);
        if let Some(question) = inbound.spd.and_then(|id| rules::question(ipsec, id, Direction::In)) {
            check_policies(&mut self.ipsec.ask, question, inbound, opened, (run, outcomes));
        }
        for (mut frame, &outcome) in run.drain(..).zip(&gate.outcomes) {
            if let Outcome::Lost(reason) = outcome {
                self.lose(frame, reason, breath.pool);
            } else if !fill_link_header(&mut frame) {
                self.lose(frame, Reason::FrameTooLarge, breath.pool);
            } else {
                frame.device = inbound.device;
                if let Err(frame) = inner.push(frame) {
                    self.lose(frame, Reason::NoBuffer, breath.pool);
                }
            }
        }
    }

    /// More tunnels inside each other than are opened.
    #[cold]
    pub(super) fn refuse_nested(&mut self, breath: &mut Breath<'_, B>) {
        let mut frames = std::mem::take(&mut self.ipsec.sealed.frames);
        frames.drain(..).for_each(|frame| self.lose(frame, Reason::TunnelNesting, breath.pool));
        self.ipsec.sealed.keys.clear();
        self.ipsec.sealed.frames = frames;
    }
}

/// Policy mode: what an SA carried, `opened` as a whole, must be what a policy lets it carry.
fn check_policies<B: Buffer>(
    ask: &mut Ask,
    question: Question<'_>,
    inbound: &Inbound,
    opened: Opened,
    (run, outcomes): (&[Frame<B>], &mut [Outcome]),
) {
    let (spd, sa) = (question.spd, inbound.sa.id);
    if opened.packets == run.len() {
        let packets = run.iter().map(|frame| frame.data());
        let first = ask.lookup.first(question, packets.clone(), opened.common);
        let first = first.map(|policy| Some(Some(policy)));
        if let Some(found) = first.or_else(|| ask.each(question, packets))
            && let Some(policy) = rules::carried(spd, sa, found)
        {
            return count(spd, Direction::In, Some(policy), opened.packets as u64, opened.bytes);
        }
        if first.is_some() {
            // Not by this SA, all of them alike.
            ask.found.clear();
            ask.found.resize(run.len(), first.unwrap_or_default());
        }
    } else {
        let opened = run.iter().zip(&*outcomes).filter(|&(_, &outcome)| outcome == Outcome::Done);
        ask.each(question, opened.map(|(frame, _)| frame.data()));
    }
    let opened = run.iter().zip(outcomes).filter(|(_, outcome)| **outcome == Outcome::Done);
    let mut said = Said::new(|found| rules::carried(spd, sa, found));
    for ((frame, outcome), &found) in opened.zip(&ask.found) {
        match said.of(found) {
            Some(policy) => ask.tally.add(spd, Direction::In, policy, frame.len() as u64),
            None => {
                inbound.sa.state.fail(Reason::PolicyMismatch);
                *outcome = Outcome::Lost(Reason::PolicyMismatch);
            }
        }
    }
    ask.tally.settle(spd, Direction::In);
}

/// ESP, or UDP to a port that carries it: one look at fields each family has at its own places, where it has neither
/// options nor extensions.
#[inline(always)]
fn may_be_esp(data: &[u8], udp_ports: &[u16]) -> bool {
    let Some(head) = data.first_chunk::<{ ETHERNET + 24 }>() else { return false };
    let (proto, port) = match get16(head, 12) {
        ETHERTYPE_IPV4 => (head[ETHERNET + 9], get16(head, ETHERNET + 22)),
        ETHERTYPE_IPV6 => {
            let port = data.get(ETHERNET + 42..ETHERNET + 44).map_or(0, |port| get16(port, 0));
            (head[ETHERNET + 6], port)
        }
        _ => return false,
    };
    proto == protocol::ESP || (proto == protocol::UDP && udp_ports.contains(&port))
}

/// Puts the filler of a point-to-point port before an IP packet.
#[inline]
fn fill_link_header<B: Buffer>(frame: &mut Frame<B>) -> bool {
    let version = frame.data().first().map_or(0, |byte| byte >> 4);
    let ethertype = if version == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    frame.grow_front(ETHERNET) && ethernet::write(frame.data_mut(), [0; 6], [0; 6], None, ethertype).is_some()
}
