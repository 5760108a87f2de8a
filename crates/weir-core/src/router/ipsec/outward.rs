//! Outbound: what is in the queue of a tunnel or of a guarded port is sealed, an SA at a time, and goes on
//! as the outer packet (RFC 4301 5.1).
//!
//! ```text
//! tunnel   tx[tunnel] ──────────────────────────────► seal ─► outer
//! guard    tx[guard] ─► SPD ─┬─ PROTECT ─► by SA ─► seal ─► outer
//!                            ├─ BYPASS ──► tx[hardware]
//!                            └─ DISCARD ─► counted
//! ```
//!
//! Frames arrive here counted as sent by the tunnel's port, or by the guarded one. Promises: what is lost is
//! taken off again; a sealed packet leaves the guarded port's counters and counts where it really leaves.

use std::cell::Cell;

use super::ask::{Said, count};
use super::rules::{self, Outward};
use super::{Gate, packet_len};
use crate::id::PortId;
use crate::ipsec::esp::{self, Outcome};
use crate::ipsec::spd::{First, Found, PolicyIndex, Question};
use crate::ipsec::{Direction, Mode, Sa, SaId, Spd, Tunnel, pmtu};
use crate::packet::{BATCH, Buffer, DeviceId, Frame};
use crate::router::{Breath, Router};
use crate::verdict::Reason;
use crate::wire::ethernet::{ETHERTYPE_VLAN, HEADER_LEN as ETHERNET, TAG_LEN};

/// Bytes of a link header written by this router.
#[inline]
fn link_len(data: &[u8]) -> usize {
    let tagged = data.get(12..14) == Some(&ETHERTYPE_VLAN.to_be_bytes()[..]);
    if tagged { ETHERNET + TAG_LEN } else { ETHERNET }
}

/// The SPD before a port, and the device behind it.
#[derive(Clone, Copy)]
pub(super) struct Guard<'a> {
    pub question: Question<'a>,
    pub port: PortId,
    pub device: DeviceId,
    /// Frames in the queue that are known to have an IPv4 header without options.
    pub common: usize,
}

/// The SA a policy's packets leave by; the policy is one of those that share it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    sa: SaId,
    policy: PolicyIndex,
}

impl PartialEq for Sender {
    fn eq(&self, other: &Sender) -> bool {
        self.sa == other.sa
    }
}

/// What becomes of a packet before a guarded port.
#[derive(Clone, Copy)]
enum Fate {
    Pass,
    Seal(Sender),
    Lost(Reason),
}

/// What taking off link headers has shown of a run.
#[derive(Clone, Copy, Debug)]
struct Bare {
    /// Bytes of the link header each had.
    header: usize,
    packets: usize,
    /// Without link headers, like `longest`.
    bytes: u64,
    longest: usize,
}

impl Bare {
    fn of(header: usize) -> Bare {
        Bare { header, packets: 0, bytes: 0, longest: 0 }
    }

    /// Of frames that each have such a header, as every frame in a queue does. The sums are locals, so that they
    /// are kept in registers.
    #[inline(always)]
    fn all<B: Buffer>(run: &mut [Frame<B>], header: usize) -> Bare {
        let (mut bytes, mut longest) = (0, 0);
        for frame in run.iter_mut() {
            let has = frame.shrink_front(header);
            debug_assert!(has, "a frame in a queue has a link header");
            bytes += frame.len() as u64;
            longest = longest.max(frame.len());
        }
        Bare { header, packets: run.len(), bytes, longest }
    }

    /// Takes off a frame's link header; `false`, and all is as it was, where it is shorter than that.
    #[inline(always)]
    fn take<B: Buffer>(&mut self, frame: &mut Frame<B>) -> bool {
        let has = frame.shrink_front(self.header);
        if has {
            self.packets += 1;
            self.bytes += frame.len() as u64;
            self.longest = self.longest.max(frame.len());
        }
        has
    }

    /// Undoes it.
    #[cold]
    fn put_back<B: Buffer>(self, run: &mut [Frame<B>]) {
        for frame in run.iter_mut().take(self.packets) {
            let _ = frame.grow_front(self.header);
        }
    }
}

impl<B: Buffer> Router<B> {
    /// Seals what is in `gate.run`, the queue of a tunnel.
    pub(super) fn empty_tunnel(&mut self, breath: &mut Breath<'_, B>, gate: &mut Gate<B>, tunnel: &Tunnel) {
        let sa = match rules::sender(&tunnel.out, self.worker) {
            Ok(sa) => sa,
            Err(reason) => return self.lose_queue(breath, gate, reason),
        };
        let bare = Bare::all(&mut gate.run, ETHERNET);
        self.seal_run(breath, gate, sa, Some(tunnel.port), bare.longest);
    }

    /// Does with what is in `gate.run`, the queue before a guarded port, what the SPD says.
    pub(super) fn empty_guard(&mut self, breath: &mut Breath<'_, B>, gate: &mut Gate<B>, guard: Guard<'_>) {
        let network = gate.run.first().map_or(ETHERNET, |frame| link_len(frame.data()));
        let question = guard.question;
        // What is no IP packet, and neighbour discovery, is never what the first rule decides about.
        let first = gate.run.first().and_then(|frame| question.rules().first(frame.behind(network)));
        let fate_of = |first: First<'_>| fate(question.spd, self.worker, Some(Some(first.policy()))).1;
        let found = match first.map(|first| (first, fate_of(first))) {
            Some((first, Fate::Seal(sender))) => {
                if self.protect_all(breath, gate, guard, network, (first, sender)) {
                    return;
                }
                None
            }
            Some(_) => {
                let packets = gate.run.iter().map(|frame| frame.behind(network));
                self.ipsec.ask.lookup.first(question, packets, guard.common).map(Some)
            }
            None => None,
        };
        let packets = gate.run.iter().map(|frame| packet(frame, network));
        match found.or_else(|| self.ipsec.ask.each(question, packets).flatten()) {
            Some(found) => self.do_all(breath, gate, guard, network, Some(found)),
            None => self.do_each(breath, gate, guard, network),
        }
    }

    /// Seals all of `gate.run` if the first rule, whose SA it is, is the answer for each packet: the link headers
    /// go while the rule is asked, one walk for both. If it is not, all is as it was.
    fn protect_all(
        &mut self,
        breath: &mut Breath<'_, B>,
        gate: &mut Gate<B>,
        guard: Guard<'_>,
        network: usize,
        (first, sender): (First<'_>, Sender),
    ) -> bool {
        let (bare, is_for_all) = if guard.common == gate.run.len() && first.is_for_every_ipv4() {
            (Bare::all(&mut gate.run, network), true)
        } else {
            let mut bare = Bare::of(network);
            let packets = gate.run.iter_mut().map(|frame| if bare.take(frame) { frame.data() } else { &[] });
            let is_for_all = first.is_for_all(packets);
            (bare, is_for_all)
        };
        let packets = gate.run.iter().map(|frame| frame.data());
        if is_for_all && self.ipsec.ask.lookup.count_first(guard.question, packets, first.policy()) {
            self.protect(breath, gate, guard, sender, Some(first.policy()), bare);
            return true;
        }
        bare.put_back(&mut gate.run);
        false
    }

    /// Does the same with all of `gate.run`, frames with link headers of `network` bytes.
    fn do_all(
        &mut self,
        breath: &mut Breath<'_, B>,
        gate: &mut Gate<B>,
        guard: Guard<'_>,
        network: usize,
        found: Found,
    ) {
        let (policy, fate) = fate(guard.question.spd, self.worker, found);
        if !matches!(fate, Fate::Seal(_)) && policy.is_some() {
            let bytes = gate.run.iter().map(|frame| (frame.len() - network) as u64).sum();
            count(guard.question.spd, Direction::Out, policy, gate.run.len() as u64, bytes);
        }
        match (fate, breath.out.tx.get_mut(guard.device.index())) {
            (Fate::Seal(sender), _) => {
                let bare = Bare::all(&mut gate.run, network);
                self.protect(breath, gate, guard, sender, policy, bare);
            }
            (Fate::Lost(reason), _) => self.lose_queue(breath, gate, reason),
            (Fate::Pass, None) => self.lose_queue(breath, gate, Reason::PortDown),
            (Fate::Pass, Some(ring)) => {
                gate.run.iter_mut().for_each(|frame| frame.device = guard.device);
                if ring.is_empty() {
                    std::mem::swap(ring, &mut gate.run);
                } else {
                    ring.append(&mut gate.run);
                }
            }
        }
    }

    /// Does with each frame of `gate.run` what was found for it. Packets of all policies that share an SA are
    /// sealed in one run: the cipher works by the batch.
    fn do_each(&mut self, breath: &mut Breath<'_, B>, gate: &mut Gate<B>, guard: Guard<'_>, network: usize) {
        let (spd, worker) = (guard.question.spd, self.worker);
        let mut queue = std::mem::take(&mut gate.run);
        let found = std::mem::take(&mut self.ipsec.ask.found);
        let mut said = Said::new(|found| fate(spd, worker, found));
        for (mut frame, &found) in queue.drain(..).zip(&found) {
            let bytes = (frame.len() - network) as u64;
            let (policy, fate) = match found {
                None if is_exempt(&frame, network) => (None, Fate::Pass),
                _ => said.of(found),
            };
            if let Some(policy) = policy {
                self.ipsec.ask.tally.add(spd, Direction::Out, policy, bytes);
            }
            match (fate, breath.out.tx.get_mut(guard.device.index())) {
                (Fate::Seal(sender), _) => gate.by_sender.push(sender, frame),
                (Fate::Lost(reason), _) => self.lose_sent(breath, frame, reason),
                (Fate::Pass, None) => self.lose_sent(breath, frame, Reason::PortDown),
                (Fate::Pass, Some(ring)) => {
                    frame.device = guard.device;
                    ring.push(frame);
                }
            }
        }
        self.ipsec.ask.tally.settle(spd, Direction::Out);
        self.ipsec.ask.found = found;
        gate.run = queue;
        while let Some(sender) = gate.by_sender.next(&mut gate.run) {
            let bare = Bare::all(&mut gate.run, network);
            self.protect(breath, gate, guard, sender, None, bare);
        }
    }

    /// Seals `gate.run`, IP packets whose link headers are off, and counts it for `policy`, if that was not done
    /// before.
    fn protect(
        &mut self,
        breath: &mut Breath<'_, B>,
        gate: &mut Gate<B>,
        guard: Guard<'_>,
        sender: Sender,
        policy: Option<PolicyIndex>,
        bare: Bare,
    ) {
        let spd = guard.question.spd;
        let sas = spd.policy(sender.policy).map_or(&[][..], |policy| &policy.out);
        let sa = match rules::sender(sas, self.worker) {
            Ok(sa) => sa,
            Err(reason) => {
                bare.put_back(&mut gate.run);
                return self.lose_queue(breath, gate, reason);
            }
        };
        let packets = bare.packets as u64;
        // They do not leave by this port as they are; where the sealed packet leaves it counts.
        if let Some(counters) = self.ports.get_mut(guard.port.index()) {
            counters.tx_packets -= packets;
            counters.tx_bytes -= bare.bytes + packets * bare.header as u64;
        }
        count(spd, Direction::Out, policy, packets, bare.bytes);
        self.seal_run(breath, gate, sa, None, bare.longest);
    }

    /// Seals `gate.run`, IP packets counted as sent, none in a window longer than `longest`, and sends the outer
    /// packets. `tunnel` is the port whose counters have them too.
    fn seal_run(
        &mut self,
        breath: &mut Breath<'_, B>,
        gate: &mut Gate<B>,
        sa: &Sa,
        tunnel: Option<PortId>,
        longest: usize,
    ) {
        let way = self.way_out(breath.tables, sa.params.destination);
        let outer_mtu = pmtu::of(sa, breath.now, way.mtu(breath.tables));
        let room = usize::from(esp::inner_mtu(sa, outer_mtu));
        // A window may end behind its packet: then each is looked at.
        let all_fit = longest <= room;
        if !all_fit && gate.run.iter().any(|frame| packet_len(frame.data()) > room) {
            self.make_fit(breath, gate, sa, tunnel, outer_mtu);
        }
        let mut run = std::mem::take(&mut gate.run);
        if sa.params.mode == Mode::Transport {
            self.keep_own_flows(breath, sa, &mut run, tunnel);
        }
        let mut rest = std::mem::take(&mut gate.next);
        while !run.is_empty() {
            if run.len() > BATCH {
                rest.extend(run.drain(BATCH..));
            }
            let outcomes = &mut gate.outcomes[..run.len()];
            if esp::seal(sa, breath.now, &mut run, outcomes) < run.len() {
                self.lose_unsealed(breath, gate, &mut run, tunnel);
            }
            let mtu = if all_fit { None } else { Some(outer_mtu) };
            self.send_outer(breath, gate, &way, mtu, &mut run);
            std::mem::swap(&mut run, &mut rest);
        }
        gate.next = rest;
        gate.run = run;
    }

    /// Takes what was not sealed out of a run; the order of the others stays.
    #[cold]
    fn lose_unsealed(
        &mut self,
        breath: &mut Breath<'_, B>,
        gate: &Gate<B>,
        run: &mut Vec<Frame<B>>,
        tunnel: Option<PortId>,
    ) {
        let at = Cell::new(0);
        let unsealed = |_: &mut Frame<B>| {
            at.set(at.get() + 1);
            gate.outcomes[at.get() - 1] != Outcome::Done
        };
        for frame in run.extract_if(.., unsealed) {
            let index = at.get() - 1;
            if let Outcome::Lost(reason) = gate.outcomes[index] {
                let len = frame.len();
                self.lose_packet(breath, frame, len, tunnel, reason);
            }
        }
    }

    /// Transport mode has no outer addresses: what is not for the SA's far end would not be found there.
    fn keep_own_flows(
        &mut self,
        breath: &mut Breath<'_, B>,
        sa: &Sa,
        run: &mut Vec<Frame<B>>,
        tunnel: Option<PortId>,
    ) {
        let other = |frame: &mut Frame<B>| rules::destination(frame.data()) != Some(sa.params.destination);
        for frame in run.extract_if(.., other) {
            let len = frame.len();
            self.lose_packet(breath, frame, len, tunnel, Reason::NoOutboundSa);
        }
    }

    /// The end of an IP packet of `len` bytes that was counted as sent, by `tunnel` if there is one.
    pub(super) fn lose_packet(
        &mut self,
        breath: &mut Breath<'_, B>,
        frame: Frame<B>,
        len: usize,
        tunnel: Option<PortId>,
        reason: Reason,
    ) {
        if let Some(port) = tunnel {
            self.take_off(port, len + ETHERNET);
        }
        self.take_back(&frame);
        self.lose(frame, reason, breath.pool);
    }
}

/// Whether a frame is no affair of the SPD: ARP, and neighbour discovery of our own.
#[inline]
fn is_exempt<B: Buffer>(frame: &Frame<B>, network: usize) -> bool {
    let data = frame.data();
    let is_ip = matches!(data.get(network - 2..network), Some([0x08, 0x00] | [0x86, 0xdd]));
    !is_ip || (frame.own && rules::is_discovery(&data[network..]))
}

/// What the SPD is asked about: nothing, where a frame is exempt.
#[inline]
fn packet<B: Buffer>(frame: &Frame<B>, network: usize) -> &[u8] {
    if is_exempt(frame, network) { &[] } else { &frame.data()[network..] }
}

/// What becomes of a packet by what was found for it, and the policy it counts for.
#[inline]
fn fate(spd: &Spd, worker: usize, found: Found) -> (Option<PolicyIndex>, Fate) {
    match rules::outward(spd, found) {
        Outward::Bypass(policy) => (policy, Fate::Pass),
        Outward::Discard(policy, reason) => (policy, Fate::Lost(reason)),
        Outward::Protect(policy) => {
            let sas = spd.policy(policy).map_or(&[][..], |policy| &policy.out);
            match rules::sender(sas, worker) {
                Ok(sa) => (Some(policy), Fate::Seal(Sender { sa: sa.id, policy })),
                Err(reason) => (None, Fate::Lost(reason)),
            }
        }
    }
}
