//! Inbound: ESP is taken out of a batch, opened an SA at a time, checked against the SPD, and comes in
//! again on the device of its tunnel or SPD (RFC 4301 5.2).
//!
//! Promises: only a frame the fast path would forward is taken out of a batch; everything else is judged by
//! the slow path, which hands ESP over when it finds some. A frame that came in clear on a guarded port
//! goes no further than its policy lets it.

use super::rules::{self, Key};
use super::{Gate, Sealed, unwrap};
use crate::ipsec::esp::{self, Outcome};
use crate::ipsec::{Direction, Inbound, Ipsec, Policy, Spd, pmtu};
use crate::packet::{BATCH, Batch, Buffer, DeviceId, Frame, Pool};
use crate::router::decide::{Decided, Decision};
use crate::router::fast::is_common;
use crate::router::ingress::Ingress;
use crate::router::{Breath, Router};
use crate::tables::{PortId, Tables};
use crate::verdict::Reason;
use crate::wire::ethernet::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, HEADER_LEN as ETHERNET};
use crate::wire::protocol;

/// What becomes of a frame before it is routed.
#[derive(Clone, Copy)]
enum Fate {
    Stays,
    Open(Key),
    Lost(Reason),
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
        // Packets of one SA come in a row: the last key found is asked first.
        let mut last = None;
        for (fate, frame) in fates.iter_mut().zip(batch.frames()) {
            if frame.device != ingress.device {
                ingress = Ingress::of(tables, frame.device);
            }
            let data = frame.data();
            if may_be_esp(data)
                && let Some(key) = esp::esp_of(&data[ETHERNET..], &ipsec.udp_ports)
                && is_common(&ingress, &self.own, data)
                && (last == Some(key) || ipsec.sad.find(key.0, key.1).is_some())
            {
                last = Some(key);
                *fate = Fate::Open(key);
                stay = false;
            } else if ipsec.guards.get(ingress.port.index()).is_some_and(Option::is_some)
                && is_common(&ingress, &self.own, data)
                && let Some(reason) = self.refused_in_clear(tables, ipsec, ingress.port, data)
            {
                *fate = Fate::Lost(reason);
                stay = false;
            }
        }
        if !stay {
            self.part(tables, batch, &fates, pool);
        }
    }

    /// Asks the SPD about a frame the fast path would forward; counts for the policy that lets it.
    fn refused_in_clear(&self, tables: &Tables, ipsec: &Ipsec, port: PortId, data: &[u8]) -> Option<Reason> {
        let spd = rules::guard(ipsec, port)?;
        let packet = data.get(ETHERNET..)?;
        // What is for ourselves the slow path judges.
        if rules::destination(packet).is_some_and(|dst| self.own.contains(dst)) {
            return None;
        }
        debug_assert!(tables.ipsec.is_some());
        match rules::clear(spd, packet) {
            Ok(policy) => {
                if let Some(policy) = policy {
                    policy.counters.count(Direction::In, super::packet_len(packet) as u64);
                }
                None
            }
            Err(reason) => Some(reason),
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

    /// What IPsec learns from a frame the slow path judged: ICMP errors about packets of its own, and that
    /// a policy let it pass, unless that was counted before.
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
            Decision::Forward(_) | Decision::Fragment(_) | Decision::Hold(..) if count => {
                let spd = decided.port.and_then(|port| rules::guard(ipsec, port));
                if let Some(Ok(Some(policy))) = spd.map(|spd| rules::clear(spd, packet)) {
                    policy.counters.count(Direction::In, super::packet_len(packet) as u64);
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
        esp::open(&inbound.sa, breath.now, run, outcomes);
        if let Some(spd) = inbound.spd.and_then(|id| ipsec.spds.get(usize::from(id.0))) {
            check_policies(spd, inbound, run, outcomes);
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

/// Policy mode: what an SA carried must be what a policy lets it carry. Counts once a policy and run.
fn check_policies<B: Buffer>(spd: &Spd, inbound: &Inbound, run: &[Frame<B>], outcomes: &mut [Outcome]) {
    if outcomes.iter().all(|&outcome| outcome == Outcome::Done)
        && let Some(policy) = rules::carried_all(spd, inbound.sa.id, run.iter().map(|frame| frame.data()))
    {
        return count(Some(policy), run.len() as u64, run.iter().map(|frame| frame.len() as u64).sum());
    }
    let mut last: Option<&Policy> = None;
    let (mut packets, mut bytes) = (0, 0);
    for (frame, outcome) in run.iter().zip(outcomes) {
        if *outcome != Outcome::Done {
            continue;
        }
        let Some(policy) = rules::carried(spd, inbound.sa.id, frame.data()) else {
            inbound.sa.state.fail(Reason::PolicyMismatch);
            *outcome = Outcome::Lost(Reason::PolicyMismatch);
            continue;
        };
        if !last.is_some_and(|last| std::ptr::eq(last, policy)) {
            count(last, packets, bytes);
            (last, packets, bytes) = (Some(policy), 0, 0);
        }
        packets += 1;
        bytes += frame.len() as u64;
    }
    count(last, packets, bytes);
}

fn count(policy: Option<&Policy>, packets: u64, bytes: u64) {
    if let Some(policy) = policy {
        policy.counters.count_many(Direction::In, packets, bytes);
    }
}

/// ESP, or UDP that may carry it: one look at a field each family has at its own place.
#[inline]
fn may_be_esp(data: &[u8]) -> bool {
    let Some(head) = data.first_chunk::<24>() else { return false };
    let proto = match u16::from_be_bytes([head[12], head[13]]) {
        ETHERTYPE_IPV4 => head[ETHERNET + 9],
        ETHERTYPE_IPV6 => head[ETHERNET + 6],
        _ => return false,
    };
    proto == protocol::ESP || proto == protocol::UDP
}

/// Puts the filler of a point-to-point port before an IP packet.
#[inline]
fn fill_link_header<B: Buffer>(frame: &mut Frame<B>) -> bool {
    let version = frame.data().first().map_or(0, |byte| byte >> 4);
    let ethertype = if version == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    frame.grow_front(ETHERNET) && ethernet::write(frame.data_mut(), [0; 6], [0; 6], None, ethertype).is_some()
}
