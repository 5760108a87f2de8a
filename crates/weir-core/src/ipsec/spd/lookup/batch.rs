//! The layers, a batch at a time.
//!
//! ```text
//! packets ─► keys by family ─► buckets' first words ─► compare ─┬─ hit ───────────────────────► found
//!                              (misses side by side)            ├─ stale, but no change since concerns it ─► found
//!                                                               └─ misses, each flow once ─► rules ─► found
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
#[derive(Debug)]
pub(super) struct Scratch {
    v4: Asked<2>,
    v6: Asked<5>,
    missed: Missed,
    answers: Box<[Found; BATCH]>,
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
        let ways = [true, false].map(|ipv4| Way::new(question.direction, ipv4));
        if ways.iter().all(|&way| only_scans(question, way)) {
            return scan(question, packets, found, ways, counters);
        }
        loop {
            let taken = self.take(question, packets.by_ref().take(BATCH));
            if taken == 0 {
                return;
            }
            if self.v4.len > 0 {
                let (way, answers) = (ways[0], &mut self.answers);
                let (table, counters) = (question.caches.table4(way), &mut counters.ways[way as usize]);
                ask(question, table, &mut self.v4, &mut self.missed, answers, counters);
            }
            if self.v6.len > 0 {
                let (way, answers) = (ways[1], &mut self.answers);
                let (table, counters) = (question.caches.table6(way), &mut counters.ways[way as usize]);
                ask(question, table, &mut self.v6, &mut self.missed, answers, counters);
            }
            found.extend_from_slice(&self.answers[..taken]);
        }
    }

    /// Finds the key of each of a batch's packets, and how many they are. Those that have none have their answer.
    #[inline(always)]
    fn take<'a>(&mut self, question: Question<'_>, packets: impl Iterator<Item = &'a [u8]>) -> usize {
        (self.v4.len, self.v6.len) = (0, 0);
        let mut taken = 0;
        for packet in packets {
            let place = (taken % BATCH) as u8;
            if let Some(key) = Key4::of_common(packet, question.id) {
                self.v4.push(place, key);
            } else if let Some(key) = Key6::of_common(packet, question.id) {
                self.v6.push(place, key);
            } else {
                self.take_uncommon(question, place, packet);
            }
            taken += 1;
        }
        taken
    }

    #[inline(never)]
    fn take_uncommon(&mut self, question: Question<'_>, place: u8, packet: &[u8]) {
        let flow = Flow::of_any(packet);
        if let Some(key) = flow.and_then(|flow| Key4::of(&flow, question.id)) {
            self.v4.push(place, key);
        } else if let Some(key) = flow.and_then(|flow| Key6::of(&flow, question.id)) {
            self.v6.push(place, key);
        } else {
            self.answers[usize::from(place) % BATCH] = None;
        }
    }
}

/// Whether there is nothing in front of the scan.
fn only_scans(question: Question<'_>, way: Way) -> bool {
    let cached = question.caches.get(way).is_some() && question.epoch() != NO_EPOCH;
    !cached && !question.oracle && layer(question.rules(), way.is_ipv4()) == Layer::Scan
}

/// Packet by packet: nothing is gained by looking at several.
fn scan<'a>(
    question: Question<'_>,
    packets: impl Iterator<Item = &'a [u8]>,
    found: &mut Vec<Found>,
    ways: [Way; 2],
    counters: &mut LookupCounters,
) {
    let mut counts = [0; 2];
    let rules = question.rules();
    found.extend(packets.map(|packet| {
        let answer = rules.find_packet(packet);
        let six = packet.first().is_some_and(|first| first >> 4 == 6);
        counts[usize::from(six)] += u64::from(answer.is_some());
        answer
    }));
    for (way, count) in ways.into_iter().zip(counts) {
        counters.ways[way as usize].scanned += count;
    }
}

/// Asks about packets of one family.
fn ask<const K: usize, B: Bucket<K>>(
    question: Question<'_>,
    table: Option<&Table<B, K>>,
    asked: &mut Asked<K>,
    missed: &mut Missed,
    found: &mut [Found; BATCH],
    counters: &mut WayCounters,
) where
    Key<K>: Words,
{
    let epoch = question.epoch();
    missed.clear();
    match table.filter(|_| epoch != NO_EPOCH) {
        None => (0..asked.len).for_each(|at| missed.add(asked, at)),
        Some(table) => asked.probe(question, table, missed, found, counters),
    }
    if !missed.asked.is_empty() {
        missed.ask(question.rules(), counters);
        for &(at, flow) in &missed.asked {
            found[usize::from(asked.places[usize::from(at)]) % BATCH] =
                Some(missed.answers[usize::from(flow)]);
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
        question: Question<'_>,
        table: &Table<B, K>,
        missed: &mut Missed,
        found: &mut [Found; BATCH],
        counters: &mut WayCounters,
    ) {
        let epoch = question.epoch();
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
                Some(answer) => found[usize::from(self.places[at]) % BATCH] = Some(answer),
                None => match look_again(question, table, bucket, key, counters) {
                    Some(answer) => found[usize::from(self.places[at]) % BATCH] = Some(answer),
                    None => missed.add(self, at),
                },
            }
        }
        let misses = missed.asked.len() as u64;
        counters.miss += misses;
        counters.hit += len as u64 - misses;
    }

    /// Puts the ordered scan's answer where another stands, and says how often it did.
    #[inline(never)]
    fn against_scan(&self, rules: &RuleSet, found: &mut [Found; BATCH]) -> u64 {
        let mut disagreed = 0;
        for (key, &place) in self.keys.iter().zip(self.places.iter()).take(self.len) {
            let scanned = Some(rules.scan(&key.flow()));
            let answer = &mut found[usize::from(place) % BATCH];
            disagreed += u64::from(*answer != scanned);
            *answer = scanned;
        }
        disagreed
    }
}

/// What a bucket has that did not answer at once. A stale answer is one of now if no rule that changed since
/// concerns its flow.
#[inline(never)]
fn look_again<const K: usize, B: Bucket<K>>(
    question: Question<'_>,
    table: &Table<B, K>,
    bucket: u32,
    key: &Key<K>,
    counters: &mut WayCounters,
) -> Option<Option<PolicyIndex>>
where
    Key<K>: Words,
{
    let now = question.epoch();
    match table.probe(bucket, key, now) {
        // A packet before this one or another worker has just taught it.
        Probe::Hit(answer) => return Some(answer),
        Probe::Stale(answer, then) => {
            if question.rules().holds((then, now), &key.flow(), answer) {
                table.insert(bucket, key, now, answer);
                return Some(answer);
            }
            counters.stale += 1;
        }
        Probe::Other => counters.collision += 1,
        Probe::Empty | Probe::Busy => {}
    }
    None
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
pub(super) fn layer(rules: &RuleSet, ipv4: bool) -> Layer {
    if rules.classifies(ipv4) { Layer::Classifier } else { Layer::Scan }
}

/// How many of `packets` the ordered scan has another answer for than the one they are to get as a batch.
#[inline(never)]
pub(super) fn against<'a>(
    question: Question<'_>,
    packets: impl Iterator<Item = &'a [u8]>,
    answer: Option<PolicyIndex>,
) -> u64 {
    let scanned = |packet: &[u8]| Flow::of(packet).map(|flow| question.rules().scan(&flow));
    packets.filter(|packet| scanned(packet) != Some(answer)).count() as u64
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
        Some(Probe::Stale(answer, then)) if question.rules().holds((then, epoch), flow, answer) => {
            Cached::Hit(answer)
        }
        Some(Probe::Stale(answer, _)) => Cached::Stale(answer),
        Some(Probe::Other) => Cached::Collision,
        Some(Probe::Empty) => Cached::Empty,
        Some(Probe::Busy) => Cached::Busy,
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        let (v4, v6, missed) = (Asked::default(), Asked::default(), Missed::default());
        Scratch { v4, v6, missed, answers: Box::new([None; BATCH]) }
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
