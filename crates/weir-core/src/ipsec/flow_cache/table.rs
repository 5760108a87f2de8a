//! One table of buckets, each behind a sequence number of its own (a seqlock: Boehm, "Can seqlocks get along
//! with programming language memory models?", MSPC 2012).
//!
//! Promises: what is read is what one worker wrote as a whole, or nothing: a bucket that changes while it is
//! read is a miss. No worker waits for another: where two would write to a bucket, the second does not. A
//! bucket is never in more than one cache line.
//!
//! The sequence number is 31 bits and the bit that says a worker is writing: a reader is misled only if it sleeps
//! between two of its loads through a multiple of 2^31 writes to the one bucket, after which the same answer stands
//! with other words: at 20 ns a write, a reader that stops for 43 s and wakes within 20 ns.
//!
//! `loom/` runs this file in every order that two or three workers' accesses may take.

use super::hash::Secret;
use super::key::{EMPTY, Key};
use crate::ipsec::spd::PolicyIndex;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU64, fence};

/// Set in the first word while a worker is writing.
const WRITING: u64 = 1 << 32;
/// The answer where no rule matches. A policy of this number is not remembered.
const NO_RULE: u32 = u32::MAX;

/// What a bucket holds of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Hit(Option<PolicyIndex>),
    /// The flow's, of other rules: of this epoch.
    Stale(Option<PolicyIndex>, u64),
    /// The bucket holds another flow.
    Other,
    Empty,
    /// A worker is writing to it.
    Busy,
}

#[derive(Debug)]
pub struct Entry<const K: usize> {
    /// Sequence number and answer.
    head: AtomicU64,
    epoch: AtomicU64,
    key: [AtomicU64; K],
}

#[derive(Debug, Default)]
#[repr(align(32))]
pub struct Bucket4(Entry<2>);

#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Bucket6(Entry<5>);

/// Gives an entry its alignment.
pub trait Bucket<const K: usize>: Default {
    fn entry(&self) -> &Entry<K>;
}

impl Bucket<2> for Bucket4 {
    #[inline(always)]
    fn entry(&self) -> &Entry<2> {
        &self.0
    }
}

impl Bucket<5> for Bucket6 {
    #[inline(always)]
    fn entry(&self) -> &Entry<5> {
        &self.0
    }
}

pub struct Table<B, const K: usize> {
    buckets: Box<[B]>,
    occupied: AtomicU64,
    secret: Secret,
}

pub type Table4 = Table<Bucket4, 2>;
pub type Table6 = Table<Bucket6, 5>;

impl<B: Bucket<K>, const K: usize> Table<B, K> {
    /// `buckets` is a power of two.
    pub fn new(buckets: u32, secret: Secret) -> Table<B, K> {
        // Written, so that the memory is there before the first packet.
        let buckets = (0..buckets).map(|_| B::default()).collect();
        Table { buckets, occupied: AtomicU64::new(0), secret }
    }

    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    pub fn occupied(&self) -> u64 {
        self.occupied.load(Relaxed)
    }

    pub fn memory(&self) -> u64 {
        size_of_val(&*self.buckets) as u64
    }

    /// Counts `filled` buckets that were empty ([`Table::insert`]).
    pub fn count_filled(&self, filled: u64) {
        if filled > 0 {
            self.occupied.fetch_add(filled, Relaxed);
        }
    }

    #[inline(always)]
    pub fn index(&self, key: &Key<K>) -> u32 {
        // At most BUCKETS_MAX of them.
        self.secret.hash(key) as u32 & (self.buckets.len() - 1) as u32
    }

    #[inline(always)]
    fn entry(&self, index: u32) -> &Entry<K> {
        self.buckets[index as usize].entry()
    }

    /// The first word of a bucket, for [`Table::answer`]. What comes after it wants a `fence(Acquire)`, one for
    /// as many as were asked for, so that those that are not at hand come from memory side by side.
    #[inline(always)]
    pub fn head(&self, index: u32) -> u64 {
        self.entry(index).head.load(Relaxed)
    }

    /// The answer for a key, if the bucket has it and stood still since `head`.
    #[inline(always)]
    pub fn answer(&self, index: u32, head: u64, key: &Key<K>, epoch: u64) -> Option<Option<PolicyIndex>> {
        let entry = self.entry(index);
        let mut differs = entry.epoch.load(Relaxed) ^ epoch | head & WRITING;
        for (word, expected) in entry.key.iter().zip(key) {
            differs |= word.load(Relaxed) ^ expected;
        }
        fence(Acquire);
        differs |= entry.head.load(Relaxed) ^ head;
        (differs == 0).then_some(verdict(head))
    }

    /// What a bucket has of a key.
    pub fn probe(&self, index: u32, key: &Key<K>, epoch: u64) -> Probe {
        let entry = self.entry(index);
        let head = entry.head.load(Acquire);
        let its_epoch = entry.epoch.load(Relaxed);
        let its_key = entry.key.each_ref().map(|word| word.load(Relaxed));
        fence(Acquire);
        if head & WRITING != 0 || entry.head.load(Relaxed) != head {
            return Probe::Busy;
        }
        match () {
            _ if its_key[K - 1] == EMPTY => Probe::Empty,
            _ if its_key != *key => Probe::Other,
            _ if its_epoch != epoch => Probe::Stale(verdict(head), its_epoch),
            _ => Probe::Hit(verdict(head)),
        }
    }

    /// Takes the bucket for a flow; `true` where it was empty: tell [`Table::count_filled`]. Does nothing where
    /// another worker is writing.
    pub fn insert(&self, index: u32, key: &Key<K>, epoch: u64, answer: Option<PolicyIndex>) -> bool {
        let verdict = match answer {
            None => NO_RULE,
            Some(PolicyIndex(NO_RULE)) => return false,
            Some(PolicyIndex(index)) => index,
        };
        let entry = self.entry(index);
        let head = entry.head.load(Relaxed);
        let mine = head | WRITING;
        if head & WRITING != 0 || entry.head.compare_exchange(head, mine, Acquire, Relaxed).is_err() {
            return false;
        }
        // Whoever reads a word of what follows finds that the first one has changed.
        fence(Release);
        let empty = entry.key[K - 1].load(Relaxed) == EMPTY;
        entry.epoch.store(epoch, Relaxed);
        for (word, value) in entry.key.iter().zip(key) {
            word.store(*value, Relaxed);
        }
        let sequence = (mine & !u64::from(u32::MAX)).wrapping_add(WRITING);
        entry.head.store(sequence | u64::from(verdict), Release);
        empty
    }
}

#[inline(always)]
fn verdict(head: u64) -> Option<PolicyIndex> {
    let verdict = head as u32;
    (verdict != NO_RULE).then_some(PolicyIndex(verdict))
}

impl<const K: usize> Default for Entry<K> {
    fn default() -> Entry<K> {
        let word = || AtomicU64::new(0);
        Entry { head: word(), epoch: word(), key: std::array::from_fn(|_| word()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: Option<PolicyIndex> = Some(PolicyIndex(7));

    fn table() -> Table4 {
        Table::new(1, Secret::new(1))
    }

    fn head_of(table: &Table4) -> &AtomicU64 {
        &table.entry(0).head
    }

    #[test]
    fn bucket_is_taken_over_and_says_whose_it_is() {
        let table = table();
        assert_eq!(table.probe(0, &[1, 2], 5), Probe::Empty);
        assert!(table.insert(0, &[1, 2], 5, ANSWER));
        assert_eq!(table.probe(0, &[1, 2], 5), Probe::Hit(ANSWER));
        assert_eq!(table.probe(0, &[1, 2], 6), Probe::Stale(ANSWER, 5));
        assert_eq!(table.probe(0, &[1, 3], 5), Probe::Other);
        assert_eq!(table.probe(0, &[0, 2], 5), Probe::Other);
        assert!(!table.insert(0, &[1, 3], 5, None), "it was not empty");
        assert_eq!(table.probe(0, &[1, 3], 5), Probe::Hit(None));
        assert_eq!(table.answer(0, table.head(0), &[1, 3], 5), Some(None));
        assert_eq!(table.answer(0, table.head(0), &[1, 2], 5), None);
    }

    #[test]
    fn bucket_that_is_being_written_to_answers_nobody_and_learns_nothing() {
        let table = table();
        table.insert(0, &[1, 2], 5, ANSWER);
        head_of(&table).fetch_or(WRITING, Relaxed);
        assert_eq!(table.answer(0, table.head(0), &[1, 2], 5), None);
        assert_eq!(table.probe(0, &[1, 2], 5), Probe::Busy);
        assert!(!table.insert(0, &[3, 4], 5, None));
        head_of(&table).fetch_and(!WRITING, Relaxed);
        assert_eq!(table.probe(0, &[1, 2], 5), Probe::Hit(ANSWER));
    }

    #[test]
    fn bucket_that_was_written_to_since_its_first_word_was_read_does_not_answer() {
        let table = table();
        table.insert(0, &[1, 2], 5, ANSWER);
        let head = table.head(0);
        table.insert(0, &[1, 2], 5, ANSWER);
        assert_eq!(table.answer(0, head, &[1, 2], 5), None);
        assert_eq!(table.answer(0, table.head(0), &[1, 2], 5), Some(ANSWER));
    }

    #[test]
    fn sequence_number_begins_again_without_touching_the_answer() {
        let table = table();
        head_of(&table).store(!WRITING & !u64::from(u32::MAX), Relaxed);
        assert!(table.insert(0, &[1, 2], 5, ANSWER));
        assert_eq!(head_of(&table).load(Relaxed), 7);
        assert_eq!(table.probe(0, &[1, 2], 5), Probe::Hit(ANSWER));
    }

    #[test]
    fn policy_of_the_number_that_means_none_is_not_remembered() {
        let table = table();
        table.insert(0, &[1, 2], 5, Some(PolicyIndex(NO_RULE)));
        assert_eq!(table.probe(0, &[1, 2], 5), Probe::Empty);
    }

    #[test]
    fn what_is_read_was_written_as_a_whole() {
        let table = &table();
        let hits = std::thread::scope(|scope| {
            let worker = |mut random: u64| {
                let mut next = move || {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    1 + (random >> 32) % 8
                };
                // Epoch, words and answer of a flow all tell which it is.
                let key = |n: u64| [n, n * 3];
                (0..30_000).fold(0, |hits, _| {
                    let (written, asked) = (next(), next());
                    table.insert(0, &key(written), written, Some(PolicyIndex(written as u32)));
                    let head = table.head(0);
                    fence(Acquire);
                    let answer = table.answer(0, head, &key(asked), asked);
                    assert!(
                        answer.is_none_or(|a| a == Some(PolicyIndex(asked as u32))),
                        "{asked}: {answer:?}"
                    );
                    let probe = table.probe(0, &key(asked), asked);
                    let right = Probe::Hit(Some(PolicyIndex(asked as u32)));
                    assert!(
                        matches!(probe, Probe::Other | Probe::Busy) || probe == right,
                        "{asked}: {probe:?}"
                    );
                    hits + u32::from(answer.is_some())
                })
            };
            let workers: Vec<_> = (1..5).map(|n| scope.spawn(move || worker(n << 32 | 0x5eed))).collect();
            workers.into_iter().map(|w| w.join().expect("no answer is wrong")).sum::<u32>()
        });
        assert!(hits > 0, "nothing was put to the test");
    }
}
