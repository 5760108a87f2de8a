//! The entries that are followed, and what of them changes for whoever forwards.
//!
//! Promises: [`FlowTable::take_changes`] gives, in order, what was taken and what is released, so that flows taken and not
//! released are those [`judge`] admits now; each entry counts under one [`Way`]. A dump replaces everything: what it does not
//! tell of is gone, and what a resync began with is kept until it ends. Refuses: more entries than it was made for; those it has
//! no room for stay the kernel's, counted.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;

use super::judge::{Known, judge};
use super::{Admission, Direction, Reason, Way};
use crate::wire::ctnetlink::{Entry, Event, Labels, Tuple};

#[cfg(feature = "testing")]
pub(super) mod fuzz;
#[cfg(test)]
mod tests;

/// An entry's number while it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u32);

/// How it came that an entry was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A change: what it does not say is as before.
    Event,
    /// The answer to a question, or part of a dump: what it does not say the entry does not have.
    Answer,
}

/// What whoever forwards is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Take {
        id: FlowId,
    },
    /// With the entry, where that is gone.
    Release {
        id: FlowId,
        gone: bool,
    },
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    known: Known,
    /// The longest time left the kernel named since the flow is established: what it gives after a packet.
    lifetime_s: u32,
    /// The dump that told of it last.
    dump: u32,
    way: Way,
    /// An event told of it, so that others will.
    heard: bool,
    touch: Touch,
    /// A [`Change::Take`] was given for it and no [`Change::Release`] since.
    taken: bool,
}

/// Whether the kernel is asked for an event about an entry since the last dump told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    Not,
    Waiting,
    Asked,
}

/// The entries of one tuple: one, but where zones tell them apart or the kernel resolved a clash. Boxed, for there are millions of the other kind.
#[derive(Debug)]
#[expect(clippy::box_collection)]
enum Arriving {
    One(FlowId),
    Several(Box<Vec<FlowId>>),
}

/// Bytes of memory an entry takes: itself, and each of its tuples; the hash table is filled to seven eighths at most and to seven
/// sixteenths at least, and what grows by doubling has up to twice what it needs.
pub const FLOW_BYTES: usize =
    2 * size_of::<Option<Flow>>() + 2 * 16 * (size_of::<(Tuple, Arriving)>() + 1) / 7;

impl Flow {
    pub fn original(&self) -> &Tuple {
        &self.known.original
    }

    /// What happens to packets of both directions, the original one first.
    pub fn directions(&self) -> [Direction; 2] {
        Direction::both(&self.known.original, &self.known.reply)
    }

    pub fn reply(&self) -> &Tuple {
        &self.known.reply
    }

    pub fn way(&self) -> Way {
        self.way
    }

    pub fn mark(&self) -> Option<u32> {
        self.known.mark
    }

    pub fn tcp_state(&self) -> Option<u8> {
        self.known.tcp_state
    }

    /// Seconds the kernel gives the entry after a packet, as far as was heard.
    pub fn lifetime_s(&self) -> u32 {
        self.lifetime_s
    }
}

/// All entries that are followed.
#[derive(Debug)]
pub struct FlowTable {
    max: usize,
    admission: Admission,
    local: HashSet<IpAddr>,
    flows: Vec<Option<Flow>>,
    free: Vec<FlowId>,
    len: usize,
    /// The entries whose packets arrive like this.
    arriving: HashMap<Tuple, Arriving>,
    dump: u32,
    /// Where [`FlowTable::look_again`] goes on.
    looked: usize,
    changes: Vec<Change>,
    questions: Vec<Tuple>,
    /// Those with [`Touch::Waiting`], and some that are gone or others since.
    touches: VecDeque<FlowId>,
    kernel: [u64; Reason::COUNT],
    xdp: u64,
    overflowed: u64,
}

impl FlowTable {
    /// At most `max` entries.
    pub fn new(max: usize) -> FlowTable {
        FlowTable {
            max,
            admission: Admission::default(),
            local: HashSet::new(),
            flows: Vec::new(),
            free: Vec::new(),
            len: 0,
            arriving: HashMap::new(),
            dump: 0,
            looked: 0,
            changes: Vec::new(),
            questions: Vec::new(),
            touches: VecDeque::new(),
            kernel: [0; Reason::COUNT],
            xdp: 0,
            overflowed: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Entries the kernel told of that found no room.
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// How many flows are the kernel's, by reason.
    pub fn kernel(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().copied().zip(self.kernel)
    }

    /// How many flows the XDP program forwards.
    pub fn xdp(&self) -> u64 {
        self.xdp
    }

    pub fn flows(&self) -> impl Iterator<Item = (FlowId, &Flow)> {
        self.flows.iter().zip(0..).filter_map(|(flow, id)| Some((FlowId(id), flow.as_ref()?)))
    }

    pub fn flow(&self, id: FlowId) -> Option<&Flow> {
        self.flows.get(id.0 as usize)?.as_ref()
    }

    /// What is to be done, in order. Nothing of it is told again.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Entries whose mark or label an event may have taken away: kernels before 6.2 do not say that a mark is 0, and none says that no
    /// label is left. To be asked for, and heard as [`Source::Answer`].
    pub fn take_questions(&mut self) -> Vec<Tuple> {
        std::mem::take(&mut self.questions)
    }

    /// Entries that are the kernel's for this reason, of which it does not say when it no longer holds: to be asked for, and heard
    /// as [`Source::Answer`]. At most `places` are looked at, one after another from call to call, and at most `max` returned.
    pub fn look_again(&mut self, reason: Reason, places: usize, max: usize) -> Vec<Tuple> {
        let mut found = Vec::new();
        if self.kernel[reason as usize] == 0 {
            return found;
        }
        for _ in 0..places.min(self.flows.len()) {
            if found.len() >= max {
                break;
            }
            self.looked = (self.looked + 1) % self.flows.len();
            let flow = self.flows.get(self.looked).and_then(Option::as_ref);
            let flow = flow.filter(|flow| flow.way == Way::Kernel(reason));
            found.extend(flow.map(|flow| flow.known.original));
        }
        found
    }

    /// Entries that could be taken if the kernel told of their changes: to be asked for an event by
    /// [`touch`](crate::wire::ctnetlink::touch), at most so many at once: each answer waits in the same socket. Each is told
    /// once a dump.
    pub fn take_touches(&mut self, max: usize) -> Vec<Tuple> {
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(id) = self.touches.pop_front()
        {
            if let Some(flow) = self.flows.get_mut(id.0 as usize).and_then(Option::as_mut)
                && flow.touch == Touch::Waiting
            {
                if flow.way != Way::Kernel(Reason::Unheard) {
                    flow.touch = Touch::Not;
                    continue;
                }
                flow.touch = Touch::Asked;
                taken.push(flow.known.original);
            }
        }
        taken
    }

    /// Whether [`take_touches`](FlowTable::take_touches) has more.
    pub fn has_touches(&self) -> bool {
        !self.touches.is_empty()
    }

    /// Flows that are taken are forwarded here from now on. What is not taken any more stays the kernel's.
    pub fn set_way(&mut self, id: FlowId, way: Way) {
        if self.flow(id).is_some_and(|flow| flow.taken) {
            self.change_way(id, way);
        }
    }

    /// Which flows may be taken from now on.
    pub fn set_admission(&mut self, admission: Admission) {
        if self.admission != admission {
            self.admission = admission;
            self.judge_all();
        }
    }

    /// Which addresses are this host's.
    pub fn set_local(&mut self, local: HashSet<IpAddr>) {
        if self.local != local {
            self.local = local;
            self.judge_all();
        }
    }

    /// A dump begins: every entry it tells of is heard after this.
    pub fn begin_resync(&mut self) {
        self.dump = self.dump.wrapping_add(1);
    }

    /// The dump is over and was whole; returns how many entries had gone without a message.
    pub fn end_resync(&mut self) -> usize {
        let gone: Vec<FlowId> =
            self.flows().filter(|(_, flow)| flow.dump != self.dump).map(|(id, _)| id).collect();
        gone.iter().for_each(|&id| self.remove(id));
        gone.len()
    }

    /// Takes in what the kernel told.
    pub fn observe(&mut self, event: &Event, source: Source) {
        match event {
            Event::Present(entry) => self.present(entry, source),
            Event::Gone(entry) => {
                if let Some(id) = self.known(entry) {
                    self.remove(id);
                }
            }
            Event::Other => {}
        }
    }

    /// The entry of this original tuple in this zone.
    fn known(&self, entry: &Entry) -> Option<FlowId> {
        let is = |id: &FlowId| {
            let flow = self.flow(*id).map(|flow| (flow.known.original, flow.known.zone));
            flow == Some((entry.original, entry.zone))
        };
        match self.arriving.get(&entry.original)? {
            Arriving::One(id) => Some(*id).filter(is),
            Arriving::Several(all) => all.iter().copied().find(is),
        }
    }

    fn present(&mut self, entry: &Entry, source: Source) {
        let known = self.known(entry);
        // Other translation of the same tuple: the message that told of the end of the one before was lost.
        let same = known.filter(|&id| self.flow(id).is_some_and(|flow| *flow.reply() == entry.reply));
        if same.is_none() {
            known.into_iter().for_each(|id| self.remove(id));
        }
        match same {
            Some(id) => self.update(id, entry, source),
            None if self.len() >= self.max => self.overflowed += 1,
            None => self.insert(entry, source),
        }
    }

    fn insert(&mut self, entry: &Entry, source: Source) {
        let whole = entry.created || source == Source::Answer;
        let known = Known {
            original: entry.original,
            reply: entry.reply,
            zone: entry.zone,
            status: entry.status.unwrap_or(0),
            tcp_state: entry.tcp_state,
            mark: entry.mark.or(whole.then_some(0)),
            labels: entry.labels.or(whole.then(Labels::default)),
            kernel_only: entry.kernel_only,
        };
        let lifetime_s = entry.timeout_s.unwrap_or(0);
        let way = Way::Kernel(Reason::Waiting);
        let heard = source == Source::Event;
        let flow = Flow { known, lifetime_s, dump: self.dump, way, heard, touch: Touch::Not, taken: false };
        let id = self.free.pop().unwrap_or(FlowId(self.flows.len() as u32));
        match self.flows.get_mut(id.0 as usize) {
            Some(place) => *place = Some(flow),
            None => self.flows.push(Some(flow)),
        }
        self.len += 1;
        *self.count(way) += 1;
        let alike = tuples(&known).filter_map(|tuple| self.arrives(tuple, id)).collect::<Vec<_>>();
        alike.into_iter().chain([id]).for_each(|id| self.judge_one(id));
    }

    fn update(&mut self, id: FlowId, entry: &Entry, source: Source) {
        let (dump, admission) = (self.dump, self.admission);
        let Some(flow) = self.flows.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        let known = &mut flow.known;
        let whole = entry.created || source == Source::Answer;
        let before = (known.tcp_state, known.status);
        known.status = entry.status.unwrap_or(known.status);
        known.tcp_state = entry.tcp_state.or(known.tcp_state.filter(|_| !whole));
        known.kernel_only = entry.kernel_only.or(known.kernel_only.filter(|_| !whole));
        let unsaid = match admission {
            Admission::Marked(mark) => entry.mark.is_none() && known.mark.is_some_and(|m| mark.admits(m)),
            Admission::Labelled(label) => {
                entry.labels.is_none() && known.labels.is_some_and(|l| l.has(label))
            }
            Admission::Nothing | Admission::Established => false,
        };
        if unsaid && !whole {
            self.questions.push(entry.original);
        }
        known.mark = entry.mark.or(if whole { Some(0) } else { known.mark });
        known.labels = entry.labels.or(if whole { Some(Labels::default()) } else { known.labels });
        let left = entry.timeout_s.unwrap_or(0);
        // Another state has another time.
        let same = before == (known.tcp_state, known.status);
        flow.lifetime_s = if same { flow.lifetime_s.max(left) } else { left };
        flow.dump = dump;
        flow.heard |= source == Source::Event;
        // It may be another entry than the one that was asked about.
        if source == Source::Answer && flow.touch == Touch::Asked {
            flow.touch = Touch::Not;
        }
        self.judge_one(id);
    }

    fn remove(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id.0 as usize).and_then(Option::take) else { return };
        if flow.taken {
            self.changes.push(Change::Release { id, gone: true });
        }
        *self.count(flow.way) -= 1;
        self.len -= 1;
        self.free.push(id);
        let alone = tuples(&flow.known).filter_map(|tuple| self.leaves(tuple, id)).collect::<Vec<_>>();
        alone.into_iter().for_each(|id| self.judge_one(id));
    }

    /// Notes that an entry has this tuple; returns the one that had it alone.
    fn arrives(&mut self, tuple: Tuple, id: FlowId) -> Option<FlowId> {
        match self.arriving.entry(tuple) {
            Vacant(place) => {
                place.insert(Arriving::One(id));
                None
            }
            Occupied(mut there) => match there.get_mut() {
                Arriving::One(other) => {
                    let other = *other;
                    there.insert(Arriving::Several(Box::new(vec![other, id])));
                    Some(other)
                }
                Arriving::Several(all) => {
                    all.push(id);
                    None
                }
            },
        }
    }

    /// The entry has this tuple no longer; returns the one that has it alone now.
    fn leaves(&mut self, tuple: Tuple, id: FlowId) -> Option<FlowId> {
        let Occupied(mut there) = self.arriving.entry(tuple) else { return None };
        let Arriving::Several(all) = there.get_mut() else {
            there.remove();
            return None;
        };
        all.retain(|&other| other != id);
        let &[other] = all.as_slice() else { return None };
        there.insert(Arriving::One(other));
        Some(other)
    }

    fn judge_all(&mut self) {
        let ids: Vec<FlowId> = self.flows().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.judge_one(id));
    }

    fn judge_one(&mut self, id: FlowId) {
        let Some(&flow) = self.flow(id) else { return };
        let known = &flow.known;
        let shared = |tuple| matches!(self.arriving.get(&tuple), Some(Arriving::Several(_)));
        let judged = judge(known, self.admission, |address| self.local.contains(&address));
        let judged = judged.or(tuples(known).any(shared).then_some(Reason::Ambiguous));
        let reason = judged.or((!flow.heard).then_some(Reason::Unheard));
        let touched = reason == Some(Reason::Unheard) && flow.touch == Touch::Not;
        if touched {
            self.touches.push_back(id);
        }
        let taken = flow.taken;
        match reason {
            None if taken => {}
            None => {
                self.changes.push(Change::Take { id });
                self.change_way(id, Way::Kernel(Reason::Waiting));
            }
            Some(reason) => {
                if taken {
                    self.changes.push(Change::Release { id, gone: false });
                }
                self.change_way(id, Way::Kernel(reason));
            }
        }
        if let Some(flow) = self.flows.get_mut(id.0 as usize).and_then(Option::as_mut) {
            flow.taken = reason.is_none();
            if touched {
                flow.touch = Touch::Waiting;
            }
        }
    }

    fn change_way(&mut self, id: FlowId, way: Way) {
        let Some(flow) = self.flows.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        let before = std::mem::replace(&mut flow.way, way);
        *self.count(before) -= 1;
        *self.count(way) += 1;
    }

    /// How many flows go this way.
    fn count(&mut self, way: Way) -> &mut u64 {
        match way {
            Way::Kernel(reason) => &mut self.kernel[reason as usize],
            Way::Xdp => &mut self.xdp,
        }
    }
}

/// How packets of an entry arrive. Both directions of one to itself are the same.
fn tuples(known: &Known) -> impl Iterator<Item = Tuple> + use<> {
    let (original, reply) = (known.original, known.reply);
    [original].into_iter().chain((reply != original).then_some(reply))
}
