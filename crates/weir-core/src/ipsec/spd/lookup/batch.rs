//! The layers, a batch at a time.
//!
//! ```text
//! packets ─► keys by family ─► buckets' first words ─► compare ─┬─ hit ───────────────────────► found
//!                              (misses side by side)            └─ misses, each flow once ─► rules ─► found
//!                                                                                               └─► buckets
//! ```

use std::sync::atomic::{Ordering, fence};

use super::{Cached, Found, Layer, LookupCounters, Question, Way, WayCounters};
use crate::ipsec::flow_cache::{Bucket, Key, Key4, Key6, NO_EPOCH, Probe, Table, Words};
use crate::ipsec::spd::{Flow, PolicyIndex, RuleSet};
use crate::packet::BATCH;

/// Where the key of a packet is looked for among those that missed, by the lower bits of its bucket.
const FOLDS: usize = 2 * BATCH;

/// Room for one batch.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    v4: Asked<2>,
    v6: Asked<5>,
    missed: Missed,
}

/// Packets of one family.
#[derive(Debug)]
struct Asked<const K: usize> {
    keys: Box<[Key<K>; BATCH]>,
    /// Where each is in the batch.
    places: Box<[u8; BATCH]>,
    buckets: Box<[u32; BATCH]>,
    heads: Box<[u64; BATCH]>,
    len: usize,
}

/// Packets no cache answered.
#[derive(Debug)]
struct Missed {
    /// Indexes into [`Asked::keys`], and which flow of `flows` each is.
    asked: Vec<(u8, u8)>,
    /// Each once, and the first packet of it.
    flows: Vec<Flow>,
    firsts: Vec<u8>,
    answers: Vec<Option<PolicyIndex>>,
    /// Which flow was seen by a bucket's lower bits. What stands here may be of an earlier batch: it counts only
    /// if the flow it names has the very key.
    folds: Box<[u8; FOLDS]>,
}

const _: () = assert!(BATCH <= 256);

impl Scratch {
    pub fn find<'a>(
        &mut self,
        question: Question<'_>,
        mut packets: impl Iterator<Item = &'a [u8]>,
        found: &mut Vec<Found>,
        counters: &mut LookupCounters,
    ) {
        loop {
            let from = found.len();
            self.take(question, packets.by_ref().take(BATCH), found);
            let found = &mut found[from..];
            if found.is_empty() {
                return;
            }
            let way = |ipv4| Way::new(question.direction, ipv4);
            if self.v4.len > 0 {
                let table = question.caches.table4(way(true));
                let counters = &mut counters.ways[way(true) as usize];
                ask(question, table, &mut self.v4, &mut self.missed, found, counters);
            }
            if self.v6.len > 0 {
                let table = question.caches.table6(way(false));
                let counters = &mut counters.ways[way(false) as usize];
                ask(question, table, &mut self.v6, &mut self.missed, found, counters);
            }
        }
    }

    /// Finds each packet's key, and adds a place for its answer.
    #[inline]
    fn take<'a>(
        &mut self,
        question: Question<'_>,
        packets: impl Iterator<Item = &'a [u8]>,
        found: &mut Vec<Found>,
    ) {
        (self.v4.len, self.v6.len) = (0, 0);
        for (place, packet) in packets.enumerate() {
            let place = place as u8;
            let mut asked = true;
            if let Some(key) = Key4::of_common(packet, question.id) {
                self.v4.push(place, key);
            } else if let Some(key) = Key6::of_common(packet, question.id) {
                self.v6.push(place, key);
            } else {
                asked = self.take_uncommon(question, place, packet);
            }
            found.push(asked.then_some(None));
        }
    }

    #[inline(never)]
    fn take_uncommon(&mut self, question: Question<'_>, place: u8, packet: &[u8]) -> bool {
        let Some(flow) = Flow::of_any(packet) else { return false };
        if let Some(key) = Key4::of(&flow, question.id) {
            self.v4.push(place, key);
        } else if let Some(key) = Key6::of(&flow, question.id) {
            self.v6.push(place, key);
        }
        true
    }
}

/// Asks about packets of one family.
fn ask<const K: usize, B: Bucket<K>>(
    question: Question<'_>,
    table: Option<&Table<B, K>>,
    asked: &mut Asked<K>,
    missed: &mut Missed,
    found: &mut [Found],
    counters: &mut WayCounters,
) where
    Key<K>: Words,
{
    let epoch = question.epoch();
    missed.clear();
    match table.filter(|_| epoch != NO_EPOCH) {
        None => (0..asked.len).for_each(|at| missed.add(asked, at)),
        Some(table) => asked.probe(table, epoch, missed, found, counters),
    }
    if !missed.asked.is_empty() {
        missed.ask(question.rules(), counters);
        for &(at, flow) in &missed.asked {
            found[usize::from(asked.places[usize::from(at)])] = Some(missed.answers[usize::from(flow)]);
        }
        if let Some(table) = table.filter(|_| epoch != NO_EPOCH) {
            missed.teach(table, asked, epoch);
        }
    }
    if question.oracle {
        counters.disagreed += asked.against_scan(question.rules(), found);
    }
}

impl<const K: usize> Asked<K>
where
    Key<K>: Words,
{
    #[inline(always)]
    fn push(&mut self, place: u8, key: Key<K>) {
        let at = self.len & (BATCH - 1);
        self.keys[at] = key;
        self.places[at] = place;
        self.len = at + 1;
    }

    /// Answers what the cache can, and leaves the rest to `missed`.
    fn probe<B: Bucket<K>>(
        &mut self,
        table: &Table<B, K>,
        epoch: u64,
        missed: &mut Missed,
        found: &mut [Found],
        counters: &mut WayCounters,
    ) {
        let len = self.len.min(BATCH);
        for (bucket, key) in self.buckets[..len].iter_mut().zip(&self.keys[..len]) {
            *bucket = table.index(key);
        }
        for (head, &bucket) in self.heads[..len].iter_mut().zip(&self.buckets[..len]) {
            *head = table.head(bucket);
        }
        fence(Ordering::Acquire);
        for at in 0..len {
            let (key, bucket) = (&self.keys[at], self.buckets[at]);
            match table.answer(bucket, self.heads[at], key, epoch) {
                Some(answer) => found[usize::from(self.places[at])] = Some(answer),
                None => {
                    match table.probe(bucket, key, epoch) {
                        Probe::Other => counters.collision += 1,
                        Probe::Stale(_) => counters.stale += 1,
                        // A hit: another worker has just learnt it.
                        Probe::Empty | Probe::Busy | Probe::Hit(_) => {}
                    }
                    missed.add(self, at);
                }
            }
        }
        let misses = missed.asked.len() as u64;
        counters.miss += misses;
        counters.hit += len as u64 - misses;
    }

    /// Puts the ordered scan's answer where another stands, and says how often it did.
    #[inline(never)]
    fn against_scan(&self, rules: &RuleSet, found: &mut [Found]) -> u64 {
        let mut disagreed = 0;
        for (key, &place) in self.keys.iter().zip(self.places.iter()).take(self.len) {
            let scanned = Some(rules.scan(&key.flow()));
            let answer = &mut found[usize::from(place)];
            disagreed += u64::from(*answer != scanned);
            *answer = scanned;
        }
        disagreed
    }
}

impl Missed {
    fn clear(&mut self) {
        self.asked.clear();
        self.flows.clear();
        self.firsts.clear();
    }

    /// A packet to ask the rules about, unless one of the same flow is there already.
    fn add<const K: usize>(&mut self, asked: &Asked<K>, at: usize)
    where
        Key<K>: Words,
    {
        let key = &asked.keys[at];
        let fold = &mut self.folds[asked.buckets[at] as usize % FOLDS];
        let seen =
            self.firsts.get(usize::from(*fold)).is_some_and(|&first| asked.keys[usize::from(first)] == *key);
        if !seen {
            *fold = self.flows.len() as u8;
            self.flows.push(key.flow());
            self.firsts.push(at as u8);
        }
        self.asked.push((at as u8, *fold));
    }

    fn ask(&mut self, rules: &RuleSet, counters: &mut WayCounters) {
        self.answers.resize(self.flows.len(), None);
        rules.find_batch(&self.flows, &mut self.answers);
        let packets = self.asked.len() as u64;
        match layer(rules, self.flows.first().is_some_and(|flow| flow.source.is_ipv4())) {
            Layer::Classifier => counters.classified += packets,
            Layer::Auto | Layer::Scan => counters.scanned += packets,
        }
    }

    fn teach<const K: usize, B: Bucket<K>>(&self, table: &Table<B, K>, asked: &Asked<K>, epoch: u64) {
        let mut filled = 0;
        for (&first, &answer) in self.firsts.iter().zip(&self.answers) {
            let at = usize::from(first);
            filled += u64::from(table.insert(asked.buckets[at], &asked.keys[at], epoch, answer));
        }
        table.count_filled(filled);
    }
}

/// What answers in a family where no cache does: never [`Layer::Auto`].
pub(super) fn layer(_rules: &RuleSet, _ipv4: bool) -> Layer {
    Layer::Scan
}

/// How many of `packets` the ordered scan has another answer for than the first rule's.
#[inline(never)]
pub(super) fn against_first<'a>(
    question: Question<'_>,
    packets: impl Iterator<Item = &'a [u8]>,
    policy: PolicyIndex,
) -> u64 {
    let scanned = |packet: &[u8]| Flow::of(packet).map(|flow| question.rules().scan(&flow));
    packets.filter(|packet| scanned(packet) != Some(Some(policy))).count() as u64
}

pub(super) fn cached(question: Question<'_>, way: Way, flow: &Flow) -> Cached {
    fn probe<const K: usize, B: Bucket<K>>(
        table: Option<&Table<B, K>>,
        key: Option<Key<K>>,
        epoch: u64,
    ) -> Option<Probe> {
        let (table, key) = (table?, key?);
        (epoch != NO_EPOCH).then(|| table.probe(table.index(&key), &key, epoch))
    }
    let (caches, epoch) = (question.caches, question.epoch());
    let probed = match way.is_ipv4() {
        true => probe(caches.table4(way), Key4::of(flow, question.id), epoch),
        false => probe(caches.table6(way), Key6::of(flow, question.id), epoch),
    };
    match probed {
        None => Cached::Off,
        Some(Probe::Hit(answer)) => Cached::Hit(answer),
        Some(Probe::Stale(answer)) => Cached::Stale(answer),
        Some(Probe::Other) => Cached::Collision,
        Some(Probe::Empty) => Cached::Empty,
        Some(Probe::Busy) => Cached::Busy,
    }
}

impl<const K: usize> Default for Asked<K> {
    fn default() -> Asked<K> {
        Asked {
            keys: Box::new([[0; K]; BATCH]),
            places: Box::new([0; BATCH]),
            buckets: Box::new([0; BATCH]),
            heads: Box::new([0; BATCH]),
            len: 0,
        }
    }
}

impl Default for Missed {
    fn default() -> Missed {
        Missed {
            asked: Vec::with_capacity(BATCH),
            flows: Vec::with_capacity(BATCH),
            firsts: Vec::with_capacity(BATCH),
            answers: Vec::with_capacity(BATCH),
            folds: Box::new([0; FOLDS]),
        }
    }
}
