//! Outbound: what is in the queue of a tunnel or of a guarded port is sealed, an SA at a time, and goes on
//! as the outer packet (RFC 4301 5.1).
//!
//! ```text
//! tunnel   tx[tunnel] ──────────────────────────────► seal ─► outer
//! guard    tx[guard] ─► SPD ─┬─ PROTECT ─► by policy ─► seal ─► outer
//!                            ├─ BYPASS ──► tx[hardware]
//!                            └─ DISCARD ─► counted
//! ```
//!
//! Frames arrive here counted as sent by the tunnel's port, or by the guarded one. Promises: what is lost is
//! taken off again; a sealed packet leaves the guarded port's counters and counts where it really leaves.

use std::cell::Cell;

use super::rules::{self, Outward};
use super::{Gate, packet_len};
use crate::ipsec::esp::{self, Outcome};
use crate::ipsec::spd::PolicyIndex;
use crate::ipsec::{Direction, Mode, Sa, Spd, Tunnel, pmtu};
use crate::packet::{BATCH, Buffer, DeviceId, Frame};
use crate::router::{Breath, Router};
use crate::tables::PortId;
use crate::verdict::Reason;
use crate::wire::ethernet::{ETHERTYPE_VLAN, HEADER_LEN as ETHERNET, TAG_LEN};

/// Bytes of a link header written by this router.
#[inline]
fn link_len(data: &[u8]) -> usize {
    let tagged = data.get(12..14) == Some(&ETHERTYPE_VLAN.to_be_bytes()[..]);
    if tagged { ETHERNET + TAG_LEN } else { ETHERNET }
}

impl<B: Buffer> Router<B> {
    /// Seals what is in `gate.run`, the queue of a tunnel.
    pub(super) fn empty_tunnel(&mut self, breath: &mut Breath<'_, B>, gate: &mut Gate<B>, tunnel: &Tunnel) {
        let sa = match rules::sender(&tunnel.out, self.worker) {
            Ok(sa) => sa,
            Err(reason) => return self.lose_queue(breath, gate, reason),
        };
        for frame in &mut gate.run {
            // Every frame in a queue was given a link header.
            let _ = frame.shrink_front(ETHERNET);
        }
        self.seal_run(breath, gate, sa, Some(tunnel.port));
    }

    /// Does with what is in `gate.run`, the queue before a guarded port, what the SPD says.
    pub(super) fn empty_guard(
        &mut self,
        breath: &mut Breath<'_, B>,
        gate: &mut Gate<B>,
        spd: &Spd,
        port: PortId,
        device: DeviceId,
    ) {
        let network = gate.run.first().map_or(ETHERNET, |frame| link_len(frame.data()));
        let packets = gate.run.iter().map(|frame| frame.data().get(network..).unwrap_or(&[]));
        if let Some(policy) = rules::outward_all(spd, packets) {
            return self.protect(breath, gate, spd, policy, (port, network));
        }
        gate.choices.clear();
        for frame in &gate.run {
            gate.choices.push(choice(spd, frame, network));
        }
        let first = gate.choices[0];
        if let Outward::Protect(policy) = first
            && gate.choices.iter().all(|&choice| choice == first)
        {
            return self.protect(breath, gate, spd, policy, (port, network));
        }
        let mut queue = std::mem::take(&mut gate.run);
        for (at, mut frame) in queue.drain(..).enumerate() {
            let bytes = (frame.len() - network) as u64;
            match gate.choices[at] {
                Outward::Protect(policy) => gate.by_policy.push(policy, frame),
                Outward::Bypass(policy) => {
                    count(spd, policy, 1, bytes);
                    match breath.out.tx.get_mut(device.index()) {
                        Some(ring) => {
                            frame.device = device;
                            ring.push(frame);
                        }
                        None => self.lose_sent(breath, frame, Reason::PortDown),
                    }
                }
                Outward::Discard(policy, reason) => {
                    count(spd, policy, 1, bytes);
                    self.lose_sent(breath, frame, reason);
                }
            }
        }
        gate.run = queue;
        loop {
            let mut run = std::mem::take(&mut gate.run);
            let policy = gate.by_policy.next(&mut run);
            gate.run = run;
            let Some(policy) = policy else { break };
            self.protect(breath, gate, spd, policy, (port, network));
        }
    }

    /// Seals `gate.run`, frames with link headers of `network` bytes, for a policy.
    fn protect(
        &mut self,
        breath: &mut Breath<'_, B>,
        gate: &mut Gate<B>,
        spd: &Spd,
        policy: PolicyIndex,
        (port, network): (PortId, usize),
    ) {
        let sas = spd.policy(policy).map_or(&[][..], |policy| &policy.out);
        let sa = match rules::sender(sas, self.worker) {
            Ok(sa) => sa,
            Err(reason) => return self.lose_queue(breath, gate, reason),
        };
        let mut bytes = 0;
        for frame in &mut gate.run {
            bytes += frame.len() as u64;
            let _ = frame.shrink_front(network);
        }
        let packets = gate.run.len() as u64;
        // They do not leave by this port as they are; where the sealed packet leaves it counts.
        if let Some(counters) = self.ports.get_mut(port.index()) {
            counters.tx_packets -= packets;
            counters.tx_bytes -= bytes;
        }
        count(spd, Some(policy), packets, bytes - packets * network as u64);
        self.seal_run(breath, gate, sa, None);
    }

    /// Seals `gate.run`, IP packets counted as sent, and sends the outer packets. `tunnel` is the port whose
    /// counters have them too.
    fn seal_run(&mut self, breath: &mut Breath<'_, B>, gate: &mut Gate<B>, sa: &Sa, tunnel: Option<PortId>) {
        let way = self.way_out(breath.tables, sa.params.destination);
        let outer_mtu = pmtu::of(sa, breath.now, way.mtu(breath.tables));
        let room = usize::from(esp::inner_mtu(sa, outer_mtu));
        if gate.run.iter().any(|frame| packet_len(frame.data()) > room) {
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
            for (len, frame) in gate.lens.iter_mut().zip(&run) {
                *len = frame.len() as u16;
            }
            let outcomes = &mut gate.outcomes[..run.len()];
            esp::seal(sa, breath.now, &mut run, outcomes);
            if outcomes.iter().any(|&outcome| outcome != Outcome::Done) {
                self.lose_unsealed(breath, gate, &mut run, tunnel);
            }
            self.send_outer(breath, gate, &way, outer_mtu, &mut run);
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
                self.lose_packet(breath, frame, gate.lens[index].into(), tunnel, reason);
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

/// What the SPD says of a frame; ARP and neighbour discovery of our own are no affair of it.
#[inline(always)]
fn choice<B: Buffer>(spd: &Spd, frame: &Frame<B>, network: usize) -> Outward {
    let data = frame.data();
    let is_ip = matches!(data.get(network - 2..network), Some([0x08, 0x00] | [0x86, 0xdd]));
    if !is_ip || (frame.own && rules::is_discovery(&data[network..])) {
        return Outward::Bypass(None);
    }
    rules::outward(spd, &data[network..])
}

fn count(spd: &Spd, policy: Option<PolicyIndex>, packets: u64, bytes: u64) {
    if let Some(policy) = policy.and_then(|index| spd.policy(index)) {
        policy.counters.count_many(Direction::Out, packets, bytes);
    }
}
