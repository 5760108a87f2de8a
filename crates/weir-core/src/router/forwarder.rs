//! Plain forwarding of one worker: its state, and the walk of a batch through it.
//!
//! Promises: frames keep their order; each ends in `out`, in the pool, or held. Knows nothing of IPsec but that the
//! slow path may find frames for the gateway ([`super::ipsec::Handoff`]).

use super::accounts::Accounts;
use super::fast::{Nothing, SLOW, SLOW_COUNTED, Stage};
use super::hold::HoldQueues;
use super::ingress::{NeighborCache, OwnAddresses};
use super::limiter::Limiter;
use super::sampler::Link;
use super::{Breath, PortCounters};
use crate::id::PortId;
#[cfg(feature = "ipsec")]
use crate::ipsec::InboundId;
use crate::packet::{Batch, Buffer, Frame, Pool};
use crate::tables::Tables;
use crate::verdict::Reason;
use crate::wire::flow::FlowKey;

/// State and scratch of plain forwarding.
#[derive(Debug)]
pub(super) struct Forwarder<B> {
    pub accounts: Accounts,
    pub ports: Vec<PortCounters>,
    /// Frames dropped as [`Reason::IpTruncated`], by device. A device that cuts frames shows here, not in its
    /// sender.
    pub truncated: Vec<u64>,
    pub stage: Box<Stage>,
    pub own: OwnAddresses,
    pub neighbor_cache: NeighborCache,
    pub hold: HoldQueues<B>,
    pub limiter: Limiter,
    pub key: FlowKey,
    /// Identification of our own IPv4 packets.
    pub ident: u16,
    /// Scratch: the later pieces of the packet being fragmented.
    pub fragments: Vec<Frame<B>>,
    /// Scratch: the port and the length of each frame on its way to a device with VLANs.
    pub departing: Vec<(Option<PortId>, u64)>,
    pub fast: bool,
    /// What the slow path found for the gateway.
    #[cfg(feature = "ipsec")]
    pub handoff: super::ipsec::Handoff<B>,
}

impl<B: Buffer> Forwarder<B> {
    pub fn new() -> Self {
        Forwarder {
            accounts: Accounts::default(),
            ports: Vec::new(),
            truncated: Vec::new(),
            stage: Box::new(Stage::new()),
            own: OwnAddresses::default(),
            neighbor_cache: NeighborCache::new(),
            hold: HoldQueues::new(),
            limiter: Limiter::new(),
            key: FlowKey::new(0),
            ident: 0,
            fragments: Vec::new(),
            departing: Vec::new(),
            fast: true,
            #[cfg(feature = "ipsec")]
            handoff: super::ipsec::Handoff::new(),
        }
    }

    /// Makes the caches fit a new snapshot.
    pub fn on_snapshot(&mut self, tables: &Tables) {
        self.own = OwnAddresses::new(tables);
        self.neighbor_cache.clear();
        self.ports.resize(tables.ports.len().max(self.ports.len()), PortCounters::default());
        self.truncated.resize(tables.devices.len().max(self.truncated.len()), 0);
    }

    /// Classifies, looks up and rewrites a batch: all of the fast path where nothing is known of IPsec.
    pub fn pass(&mut self, breath: &mut Breath<'_, B>, batch: &mut Batch<B>) {
        if self.fast {
            self.stage.classify(breath.tables, &self.own, batch.frames(), &mut self.ports, &mut Nothing);
            self.resolve(breath, batch);
        }
        let count = batch.len();
        if let Some(device) = self.stage.common_device(count) {
            return batch.append_to(&mut breath.out.tx[usize::from(device)]);
        }
        let mut frames = batch.drain();
        let mut at = 0;
        while at < count {
            let (place, run) = self.stage.run(at, count);
            at += run;
            if place >= SLOW_COUNTED {
                for frame in frames.by_ref().take(run) {
                    self.slow(breath, frame, place == SLOW);
                }
            } else {
                breath.out.tx[usize::from(place)].extend(frames.by_ref().take(run));
            }
        }
    }

    /// Looks up and rewrites what [`Stage::classify`] found to be common.
    #[inline]
    pub fn resolve(&mut self, breath: &Breath<'_, B>, batch: &mut Batch<B>) {
        self.stage.look_up(breath.tables, batch.frames());
        let devices = breath.out.tx.len();
        let frames = batch.frames_mut();
        self.stage.rewrite(breath.tables, &self.key, &mut self.neighbor_cache, frames, devices);
    }

    /// Ends what waits.
    pub fn shutdown(&mut self, pool: &mut Pool<B>) {
        for held in self.hold.take_all() {
            self.accounts.ledger.held -= u64::from(!held.frame.own);
            self.drop_frame(held.frame, Reason::NeighborUnresolved, pool);
        }
        self.hold.forget_empty();
    }

    /// Ends a frame that goes nowhere.
    pub fn drop_frame(&mut self, frame: Frame<B>, reason: Reason, pool: &mut Pool<B>) {
        self.drop_from(frame, Link::Ethernet, reason, pool);
    }

    /// Ends a frame that goes nowhere and begins with `link`.
    pub fn drop_from(&mut self, frame: Frame<B>, link: Link, reason: Reason, pool: &mut Pool<B>) {
        if reason == Reason::IpTruncated
            && !frame.own
            && let Some(count) = self.truncated.get_mut(frame.device.index())
        {
            *count += 1;
        }
        self.accounts.drop_frame(frame, link, reason, pool);
    }

    /// Hands ESP by an SA of ours, whose IP header is at `network`, to the gateway.
    #[cfg(feature = "ipsec")]
    #[inline(always)]
    pub fn hand_off(&mut self, id: Option<InboundId>, frame: Frame<B>, network: usize, pool: &mut Pool<B>) {
        if let Err(frame) = self.handoff.push(id, frame, network) {
            // Its link header is off already.
            self.drop_from(frame, Link::Ip, Reason::IpTruncated, pool);
        }
    }

    /// Hands ESP that may wait for its SA, whose IP header is at `network`, to the gateway.
    #[cfg(feature = "ipsec")]
    #[cold]
    pub fn await_sa(&mut self, key: super::ipsec::Key, frame: Frame<B>, network: usize, pool: &mut Pool<B>) {
        if let Err(frame) = self.handoff.push_unknown(key, frame, network) {
            self.drop_from(frame, Link::Ip, Reason::IpTruncated, pool);
        }
    }
}
