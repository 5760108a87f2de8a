//! A list whose elements have numbers, and that changes in its middle.
//!
//! Promises: one element comes or goes by moving those of one chunk, at most [`CHUNK`] of them, and by counting the
//! chunks before it, whatever the length of the list. Elements are in their order; chunks are nobody else's affair.
//! Refuses numbers beyond its end, by panicking as a `Vec` does.

use std::iter::Flatten;
use std::slice;

/// Elements of a chunk at most: 2 KB of pointers.
const CHUNK: usize = 256;
/// How full a chunk is that was made of a list as a whole, so that the next ones find room.
const FILL: usize = CHUNK * 3 / 4;

#[derive(Clone, Debug)]
pub struct Chunked<T> {
    /// The chunks; none is empty.
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Chunked<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, at: usize) -> Option<&T> {
        let (chunk, at) = self.place(at);
        self.chunks.get(chunk)?.get(at)
    }

    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        let (chunk, at) = self.place(at);
        self.chunks.get_mut(chunk)?.get_mut(at)
    }

    pub fn iter(&self) -> Flatten<slice::Iter<'_, Vec<T>>> {
        self.chunks.iter().flatten()
    }

    pub fn push(&mut self, element: T) {
        self.insert(self.len, element);
    }

    /// Puts an element before number `at`.
    pub fn insert(&mut self, at: usize, element: T) {
        assert!(at <= self.len, "number {at} of a list of {}", self.len);
        self.len += 1;
        let (mut number, mut at) = self.place(at);
        // Behind the last of a chunk, if there is room or no other.
        if let Some(before) = number.checked_sub(1).filter(|_| at == 0)
            && (number == self.chunks.len() || self.chunks[before].len() < CHUNK)
        {
            (number, at) = (before, self.chunks[before].len());
        }
        let Some(chunk) = self.chunks.get_mut(number) else {
            return self.chunks.push(vec![element]);
        };
        if chunk.len() < CHUNK {
            return chunk.insert(at, element);
        }
        // A list that only grows at its end fills its chunks.
        let cut = if at == CHUNK { CHUNK } else { CHUNK / 2 };
        let mut tail = Vec::with_capacity(CHUNK);
        tail.extend(chunk.drain(cut..));
        match at.checked_sub(cut) {
            Some(behind) => tail.insert(behind, element),
            None => chunk.insert(at, element),
        }
        self.chunks.insert(number + 1, tail);
    }

    /// Takes out number `at`.
    pub fn remove(&mut self, at: usize) -> T {
        assert!(at < self.len, "number {at} of a list of {}", self.len);
        self.len -= 1;
        let (number, at) = self.place(at);
        let element = self.chunks[number].remove(at);
        // Neighbours that fit one chunk with room to spare become one, so that none stays nearly empty.
        let left = self.chunks[number].len();
        let front = if number + 1 < self.chunks.len() { number } else { number.saturating_sub(1) };
        if left == 0 {
            self.chunks.remove(number);
        } else if left < CHUNK / 4
            && front + 1 < self.chunks.len()
            && self.chunks[front].len() + self.chunks[front + 1].len() <= FILL
        {
            let mut tail = self.chunks.remove(front + 1);
            self.chunks[front].append(&mut tail);
        }
        element
    }

    pub fn clear(&mut self) {
        self.chunks.clear();
        self.len = 0;
    }

    /// The number of the first element that is not `before`, which is true of all up to some place.
    pub fn partition_point(&self, mut before: impl FnMut(&T) -> bool) -> usize {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(&mut before));
        let skipped: usize = self.chunks[..chunk].iter().map(Vec::len).sum();
        skipped + self.chunks.get(chunk).map_or(0, |chunk| chunk.partition_point(before))
    }

    /// Which chunk has number `at`, and where; behind the last one, that and 0.
    fn place(&self, mut at: usize) -> (usize, usize) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            if at < chunk.len() {
                return (number, at);
            }
            at -= chunk.len();
        }
        (self.chunks.len(), at)
    }
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Chunked { chunks: Vec::new(), len: 0 }
    }
}

impl<T: PartialEq> PartialEq for Chunked<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for Chunked<T> {}

impl<T> FromIterator<T> for Chunked<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let (mut list, mut all) = (Chunked::default(), all.into_iter());
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            chunk.extend(all.by_ref().take(FILL));
            if chunk.is_empty() {
                return list;
            }
            list.len += chunk.len();
            list.chunks.push(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn list_that_changes_anywhere_is_the_vec_that_does() {
        for start in [0, 1, FILL, 3 * CHUNK] {
            let mut scatter = SplitMix64::new(start as u64);
            let mut plain: Vec<usize> = (0..start).map(|n| 10 * n).collect();
            let mut list: Chunked<usize> = plain.iter().copied().collect();
            for turn in 0..6 * CHUNK {
                let grows = turn < 3 * CHUNK || plain.is_empty();
                if grows {
                    // At random, at one place, and at the end.
                    let at = [scatter.below(plain.len() as u64 + 1) as usize, plain.len() / 2, plain.len()];
                    let at = at[turn / 7 % 3];
                    plain.insert(at, turn);
                    list.insert(at, turn);
                } else {
                    let at = scatter.below(plain.len() as u64) as usize;
                    assert_eq!(list.remove(at), plain.remove(at));
                }
                let at = scatter.below(plain.len() as u64 + 2) as usize;
                assert_eq!((list.get(at), list.len()), (plain.get(at), plain.len()));
            }
            assert!(list.iter().eq(plain.iter()) && list == plain.iter().copied().collect());
            while !plain.is_empty() {
                assert_eq!(list.remove(plain.len() - 1), plain.remove(plain.len() - 1));
            }
            assert!(list.is_empty() && list.chunks.is_empty());
        }
    }

    #[test]
    fn partition_point_is_the_first_number_that_is_not_before() {
        let list: Chunked<usize> = (0..3 * CHUNK).collect();
        for point in [0, 1, FILL - 1, FILL, FILL + 1, CHUNK, 3 * CHUNK - 1, 3 * CHUNK, 9 * CHUNK] {
            assert_eq!(list.partition_point(|&n| n < point), point.min(3 * CHUNK));
        }
    }

    #[test]
    fn chunks_are_neither_too_large_nor_left_nearly_empty() {
        let mut list: Chunked<usize> = (0..20 * CHUNK).collect();
        for n in 0..CHUNK * 4 {
            list.insert(n, n);
            assert!(list.chunks.iter().all(|chunk| chunk.len() <= CHUNK));
        }
        let before = list.chunks.len();
        for n in 0..CHUNK * 4 {
            list.insert(list.chunks[0].len(), n);
        }
        assert!(list.chunks.len() <= before + 9, "{} more for as many as fill 4", list.chunks.len() - before);
        let mut scatter = SplitMix64::new(1);
        while list.len() > 2 * CHUNK {
            list.remove(scatter.below(list.len() as u64) as usize);
        }
        assert!(list.chunks.len() <= 12, "{} for {} elements", list.chunks.len(), list.len());
    }
}
