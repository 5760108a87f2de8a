//! ESP on its way to being opened, each packet with what its headers told: which SA it is of.
//!
//! Promises: packets keep their order, fragments among whole packets too; nothing is allocated once the vectors have
//! grown.

use super::{Key, unwrap};
use crate::ipsec::InboundId;
use crate::packet::{BATCH, Buffer, Frame};

/// ESP packets that begin at their outer IP header, and the SA of each.
#[derive(Debug)]
pub(super) struct Sealed<B> {
    pub frames: Vec<Frame<B>>,
    pub ids: Vec<InboundId>,
}

impl<B> Sealed<B> {
    pub const fn new() -> Self {
        Sealed { frames: Vec::new(), ids: Vec::new() }
    }

    /// Moves at most a batch to `batch`, which is empty; whether there was any.
    pub fn next_batch(&mut self, batch: &mut Sealed<B>) -> bool {
        if self.frames.len() <= BATCH {
            std::mem::swap(self, batch);
        } else {
            batch.frames.extend(self.frames.drain(..BATCH));
            batch.ids.extend(self.ids.drain(..BATCH));
        }
        !batch.frames.is_empty()
    }

    /// Gives every frame to `end`.
    #[cold]
    pub fn clear_into(&mut self, end: impl FnMut(Frame<B>)) {
        self.ids.clear();
        self.frames.drain(..).for_each(end);
    }
}

/// What forwarding found for the gateway: ESP by an SA of ours, and fragments of such.
#[derive(Debug)]
pub(in crate::router) struct Handoff<B> {
    sealed: Sealed<B>,
    /// Places in `sealed` of fragments, whose SA is not known yet, in order.
    fragments: Vec<usize>,
    /// ESP that may wait for its SA.
    unknown: Vec<(Key, Frame<B>)>,
}

impl<B: Buffer> Handoff<B> {
    pub const fn new() -> Self {
        Handoff { sealed: Sealed::new(), fragments: Vec::new(), unknown: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sealed.frames.is_empty()
    }

    /// Whether nothing is here, neither for an SA nor for one that may come.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.is_empty() && !self.has_unknown()
    }

    pub(super) fn has_fragments(&self) -> bool {
        !self.fragments.is_empty()
    }

    /// Adds a frame whose IP header is at `network`, a fragment where it has no SA; or gives it back, where it is shorter
    /// than its packet. Always inlined: in the loop over a batch a call costs several percent of what opening a packet does.
    #[inline(always)]
    pub fn push(
        &mut self,
        id: Option<InboundId>,
        mut frame: Frame<B>,
        network: usize,
    ) -> Result<(), Frame<B>> {
        if !unwrap(&mut frame, network) {
            return Err(frame);
        }
        if id.is_none() {
            self.fragments.push(self.sealed.frames.len());
        }
        self.push_packet(id.unwrap_or_default(), frame);
        Ok(())
    }

    /// Adds a frame that may wait for its SA, whose IP header is at `network`; or gives it back, where it is shorter than
    /// its packet.
    pub fn push_unknown(&mut self, key: Key, mut frame: Frame<B>, network: usize) -> Result<(), Frame<B>> {
        if !unwrap(&mut frame, network) {
            return Err(frame);
        }
        self.unknown.push((key, frame));
        Ok(())
    }

    pub(super) fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Moves all that may wait for its SA to `unknown`, which is empty.
    pub(super) fn take_unknown(&mut self, unknown: &mut Vec<(Key, Frame<B>)>) {
        std::mem::swap(&mut self.unknown, unknown);
    }

    /// Adds a packet that begins at its IP header.
    #[inline]
    pub(super) fn push_packet(&mut self, id: InboundId, frame: Frame<B>) {
        self.sealed.ids.push(id);
        self.sealed.frames.push(frame);
    }

    /// Moves everything to `level`, which is empty. No fragment is left among it.
    pub(super) fn take(&mut self, level: &mut Sealed<B>) {
        debug_assert!(self.fragments.is_empty() && level.frames.is_empty());
        std::mem::swap(&mut self.sealed, level);
    }

    /// Moves everything to `mixed`, in order; a fragment has no SA.
    pub(super) fn drain_mixed(&mut self, mixed: &mut Vec<(Option<InboundId>, Frame<B>)>) {
        let mut fragments = self.fragments.drain(..).peekable();
        let packets = self.sealed.ids.drain(..).zip(self.sealed.frames.drain(..)).enumerate();
        mixed.extend(packets.map(|(at, (id, frame))| {
            let is_fragment = fragments.next_if_eq(&at).is_some();
            ((!is_fragment).then_some(id), frame)
        }));
    }
}
