//! Outbound: what is in the queue of a tunnel or of a policy enforcement point is sealed, an SA at a time, and goes on
//! as the outer packet (RFC 4301 5.1).
//!
//! ```text
//! tunnel   tx[tunnel] ──────────────────────────────► seal ─► outer
//! point    tx[point] ─► SPD ─┬─ PROTECT ─► by SA ─► seal ─► outer
//!                            ├─ BYPASS ──► tx[hardware]
//!                            └─ DISCARD ─► counted
//! ```
//!
//! Promises: a tunnel's port counts packets when they are sealed, every other port when a device has taken them.

use std::cell::Cell;

use super::classify::Known;
use super::rules::{self, Outward};
use super::runs::Runs;
use super::spd_query::{LookupMemo, SpdQuery, count};
use super::too_big::Ident;
use super::{Env, packet_len};
use crate::id::PortId;
use crate::ipsec::esp::{self, Outcome};
use crate::ipsec::spd::{First, Found, PolicyIndex, Question};
use crate::ipsec::{Direction, Mode, Sa, SaId, Tunnel, pmtu};
use crate::packet::{Buffer, DeviceId, Frame};
use crate::router::Event;
use crate::verdict::Reason;
use crate::wire::ethernet::{ETHERTYPE_VLAN, HEADER_LEN as ETHERNET, TAG_LEN};

/// Bytes of a link header written by this router.
#[inline]
fn link_len(data: &[u8]) -> usize {
    let tagged = data.get(12..14) == Some(&ETHERTYPE_VLAN.to_be_bytes()[..]);
    if tagged { ETHERNET + TAG_LEN } else { ETHERNET }
}

/// What is behind an SPD.
#[derive(Clone, Copy)]
pub(super) enum Beyond {
    /// The device of the port before which it is enforced.
    Device(DeviceId),
    /// Nothing that takes cleartext: it is a port of route mode, which counts what is sealed.
    Nothing(PortId),
}

impl Beyond {
    /// The device cleartext leaves by, or why it does not.
    fn cleartext(self) -> Result<DeviceId, Reason> {
        match self {
            Beyond::Device(device) => Ok(device),
            Beyond::Nothing(_) => Err(Reason::NoOutboundSa),
        }
    }

    /// The port of route mode.
    fn tunnel(self) -> Option<PortId> {
        match self {
            Beyond::Device(_) => None,
            Beyond::Nothing(port) => Some(port),
        }
    }
}

/// An SPD that decides about what leaves.
#[derive(Clone, Copy)]
pub(super) struct EnforcementPoint<'a> {
    pub question: Question<'a>,
    pub way: Beyond,
    /// What is known of frames in the queue.
    pub known: Known,
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

/// What becomes of a packet before a port with a policy enforcement point.
#[derive(Clone, Copy)]
enum Disposition {
    /// It leaves by this device as it is.
    Pass(DeviceId),
    Seal(Sender),
    Lost(Reason),
}

/// What taking off link headers has shown of a run.
#[derive(Clone, Copy, Debug)]
struct Bare {
    /// Bytes of the link header each had.
    header: usize,
    packets: usize,
    /// Bytes without link headers.
    bytes: u64,
    longest: usize,
}

impl Bare {
    fn of(header: usize) -> Bare {
        Bare { header, packets: 0, bytes: 0, longest: 0 }
    }

    /// Counts packets that have no link header any more.
    fn count<B: Buffer>(run: &[Frame<B>], header: usize) -> Bare {
        let bytes = run.iter().map(|frame| frame.len() as u64).sum();
        let longest = run.iter().map(Frame::len).max().unwrap_or(0);
        Bare { header, packets: run.len(), bytes, longest }
    }

    /// Takes off the link header that every frame in a queue has. The sums are locals, so that they
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

    /// Puts link headers back.
    #[cold]
    fn put_back<B: Buffer>(self, run: &mut [Frame<B>]) {
        for frame in run.iter_mut().take(self.packets) {
            let _ = frame.grow_front(self.header);
        }
    }
}

/// What sealing a queue takes.
#[derive(Debug)]
pub(super) struct Sealer<B> {
    pub ident: Ident,
    /// The queue being emptied, then each part of it that has one SA; empty between queues.
    pub run: Vec<Frame<B>>,
    /// Packets that fit once sealed, while others of `run` are made to.
    fitting: Vec<Frame<B>>,
    by_sender: Runs<B, Sender>,
    outcomes: Vec<Outcome>,
}

impl<B: Buffer> Sealer<B> {
    pub fn new() -> Self {
        Sealer {
            ident: Ident::default(),
            run: Vec::new(),
            fitting: Vec::new(),
            by_sender: Runs::new(),
            outcomes: Vec::new(),
        }
    }

    /// Seals what is in `run`, the queue of a tunnel.
    pub fn empty_tunnel(&mut self, env: &mut Env<'_, '_, B>, tunnel: &Tunnel) {
        let sa = match rules::sender(&tunnel.out, self.ident.worker) {
            Ok(sa) => sa,
            Err(reason) => return env.drop_all(&mut self.run, reason),
        };
        let bare = Bare::all(&mut self.run, ETHERNET);
        self.seal_run(env, sa, Some(tunnel.port), bare);
    }

    /// Does with what is in `run`, the queue of a policy enforcement point, what the SPD says.
    pub fn enforce(&mut self, env: &mut Env<'_, '_, B>, query: &mut SpdQuery, point: EnforcementPoint<'_>) {
        let network = self.run.first().map_or(ETHERNET, |frame| link_len(frame.data()));
        let (question, worker) = (point.question, self.ident.worker);
        let known = point.known;
        if known.outside.iter().sum::<u64>() == self.run.len() as u64 {
            let packets = self.run.iter().map(|frame| frame.behind(network));
            if query.lookup.count_outside(question, packets, known.answer, known.outside) {
                return self.do_all(env, point, network, Some(known.answer));
            }
        }
        // What is no IP packet, and neighbour discovery, is never what the first rule decides about.
        let first = self.run.first().and_then(|frame| question.rules().first(frame.behind(network)));
        let of = |first: First<'_>| disposition(point, worker, Some(Some(first.policy()))).1;
        let found = match first.map(|first| (first, of(first))) {
            Some((first, Disposition::Seal(sender))) => {
                if self.protect_all(env, query, point, network, (first, sender)) {
                    return;
                }
                None
            }
            Some(_) => {
                let packets = self.run.iter().map(|frame| frame.behind(network));
                query.lookup.first(question, packets, point.known.common).map(Some)
            }
            None => None,
        };
        let packets = self.run.iter().map(|frame| packet(frame, network));
        let found = found.or_else(|| query.lookup.outside(question, packets.clone()));
        match found.or_else(|| query.each(question, packets).flatten()) {
            Some(found) => self.do_all(env, point, network, Some(found)),
            None => self.do_each(env, query, point, network),
        }
    }

    /// Seals all of `run` if the first rule, whose SA it is, is the answer for each packet: the link headers
    /// go while the rule is asked, one walk for both. If it is not, all is as it was.
    fn protect_all(
        &mut self,
        env: &mut Env<'_, '_, B>,
        query: &mut SpdQuery,
        point: EnforcementPoint<'_>,
        network: usize,
        (first, sender): (First<'_>, Sender),
    ) -> bool {
        let run = &mut self.run;
        let (bare, is_for_all) = if point.known.common == run.len() && first.is_for_every_ipv4() {
            (Bare::all(run, network), true)
        } else {
            let mut bare = Bare::of(network);
            let packets = run.iter_mut().map(|frame| if bare.take(frame) { frame.data() } else { &[] });
            let is_for_all = first.is_for_all(packets);
            (bare, is_for_all)
        };
        let packets = run.iter().map(|frame| frame.data());
        if is_for_all && query.lookup.count_first(point.question, packets, first.policy()) {
            self.protect(env, point, sender, Some(first.policy()), bare);
            return true;
        }
        bare.put_back(run);
        false
    }

    /// Does the same with all of `run`, frames with link headers of `network` bytes.
    fn do_all(
        &mut self,
        env: &mut Env<'_, '_, B>,
        point: EnforcementPoint<'_>,
        network: usize,
        found: Found,
    ) {
        let run = &mut self.run;
        let (policy, disposition) = disposition(point, self.ident.worker, found);
        if !matches!(disposition, Disposition::Seal(_)) && policy.is_some() {
            let bytes = run.iter().map(|frame| (frame.len() - network) as u64).sum();
            count(point.question.spd, Direction::Out, policy, run.len() as u64, bytes);
        }
        match disposition {
            Disposition::Seal(sender) => {
                let bare = Bare::all(run, network);
                self.protect(env, point, sender, policy, bare);
            }
            Disposition::Lost(reason) => env.drop_all(run, reason),
            Disposition::Pass(device) => match env.breath.out.tx.get_mut(device.index()) {
                None => env.drop_all(run, Reason::PortDown),
                Some(ring) if ring.is_empty() => std::mem::swap(ring, run),
                Some(ring) => ring.append(run),
            },
        }
    }

    /// Does with each frame of `run` what was found for it. Packets of all policies that share an SA are
    /// sealed in one run: the cipher works by the batch.
    fn do_each(
        &mut self,
        env: &mut Env<'_, '_, B>,
        query: &mut SpdQuery,
        point: EnforcementPoint<'_>,
        network: usize,
    ) {
        let (spd, worker) = (point.question.spd, self.ident.worker);
        let mut memo = LookupMemo::new(|found| disposition(point, worker, found));
        for (frame, &found) in self.run.drain(..).zip(&query.found) {
            let bytes = (frame.len() - network) as u64;
            let (policy, disposition) = match (found, point.way) {
                (None, Beyond::Device(device)) if is_exempt(&frame, network) => {
                    (None, Disposition::Pass(device))
                }
                _ => memo.of(found),
            };
            if let Some(policy) = policy {
                query.tally.add(spd, Direction::Out, policy, bytes);
            }
            match disposition {
                Disposition::Seal(sender) => self.by_sender.push(sender, frame),
                Disposition::Lost(reason) => env.drop_frame(frame, reason),
                Disposition::Pass(device) => match env.breath.out.tx.get_mut(device.index()) {
                    None => env.drop_frame(frame, Reason::PortDown),
                    Some(ring) => ring.push(frame),
                },
            }
        }
        query.tally.flush(spd, Direction::Out);
        while let Some(sender) = self.by_sender.next(&mut self.run) {
            let bare = Bare::all(&mut self.run, network);
            self.protect(env, point, sender, None, bare);
        }
    }

    /// Seals `run`, IP packets whose link headers are off, and counts it for `policy`, if that was not done
    /// before.
    fn protect(
        &mut self,
        env: &mut Env<'_, '_, B>,
        point: EnforcementPoint<'_>,
        sender: Sender,
        policy: Option<PolicyIndex>,
        bare: Bare,
    ) {
        let spd = point.question.spd;
        let sas = spd.policy(sender.policy).map_or(&[][..], |policy| &policy.out);
        let sa = match rules::sender(sas, self.ident.worker) {
            Ok(sa) => sa,
            Err(reason) => return env.drop_packets(&mut self.run, reason),
        };
        count(spd, Direction::Out, policy, bare.packets as u64, bare.bytes);
        self.seal_run(env, sa, point.way.tunnel(), bare);
    }

    /// Seals `run`, IP packets of which `bare` tells, and sends the outer packets. Packets that are sealed count on the
    /// port of `tunnel`, if there is one.
    fn seal_run(&mut self, env: &mut Env<'_, '_, B>, sa: &Sa, tunnel: Option<PortId>, mut bare: Bare) {
        let way = env.way_out(sa.params.destination);
        let outer_mtu = pmtu::of(sa, env.breath.now, way.mtu(env.breath.tables));
        let room = usize::from(esp::inner_mtu(sa, outer_mtu));
        // A window may end behind its packet: then each is looked at.
        let all_fit = bare.longest <= room;
        if !all_fit && self.run.iter().any(|frame| packet_len(frame.data()) > room) {
            env.make_fit(sa, outer_mtu, &mut self.run, &mut self.fitting);
            std::mem::swap(&mut self.run, &mut self.fitting);
            bare = Bare::count(&self.run, bare.header);
        }
        if sa.params.mode == Mode::Transport {
            self.keep_own_flows(env, sa);
            bare = Bare::count(&self.run, bare.header);
        }
        self.outcomes.resize(self.run.len(), Outcome::Done);
        let sealed = esp::seal(sa, env.breath.now, &mut self.run, &mut self.outcomes);
        if sa.state.lease.is_due(&sa.state) {
            env.breath.out.events.push(Event::Reserve);
        }
        if sealed < self.run.len() {
            let unsealed = self.drop_unsealed(env, bare.header);
            (bare.packets, bare.bytes) = (bare.packets - unsealed.packets, bare.bytes - unsealed.bytes);
        }
        if let Some(counters) = tunnel.and_then(|port| env.forwarder.ports.get_mut(port.index())) {
            let packets = bare.packets as u64;
            counters.add_sent(packets, bare.bytes + packets * bare.header as u64);
        }
        let mtu = if all_fit { None } else { Some(outer_mtu) };
        env.send_outer(&way, mtu, &mut self.run, &mut self.ident);
    }

    /// Drops what was not sealed, and tells what that was; the order of the others stays.
    #[cold]
    fn drop_unsealed(&mut self, env: &mut Env<'_, '_, B>, header: usize) -> Bare {
        let mut dropped = Bare::of(header);
        let at = Cell::new(0);
        let unsealed = |_: &mut Frame<B>| {
            at.set(at.get() + 1);
            self.outcomes[at.get() - 1] != Outcome::Done
        };
        for frame in self.run.extract_if(.., unsealed) {
            if let Outcome::Lost(reason) = self.outcomes[at.get() - 1] {
                dropped.packets += 1;
                dropped.bytes += frame.len() as u64;
                env.drop_packet(frame, reason);
            }
        }
        dropped
    }

    /// Drops what is not for the SA's far end: transport mode has no outer addresses, and it would not be found there.
    fn keep_own_flows(&mut self, env: &mut Env<'_, '_, B>, sa: &Sa) {
        let other = |frame: &mut Frame<B>| rules::destination(frame.data()) != Some(sa.params.destination);
        for frame in self.run.extract_if(.., other) {
            env.drop_packet(frame, Reason::NoOutboundSa);
        }
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
fn disposition(
    point: EnforcementPoint<'_>,
    worker: usize,
    found: Found,
) -> (Option<PolicyIndex>, Disposition) {
    let spd = point.question.spd;
    match rules::outward(spd, found) {
        Outward::Bypass(policy) => match point.way.cleartext() {
            Ok(device) => (policy, Disposition::Pass(device)),
            Err(reason) => (policy, Disposition::Lost(reason)),
        },
        Outward::Discard(policy, reason) => (policy, Disposition::Lost(reason)),
        Outward::Protect(policy) => {
            let sas = spd.policy(policy).map_or(&[][..], |policy| &policy.out);
            match rules::sender(sas, worker) {
                Ok(sa) => (Some(policy), Disposition::Seal(Sender { sa: sa.id, policy })),
                Err(reason) => (None, Disposition::Lost(reason)),
            }
        }
    }
}
