//! The structure [`weir_core::route::Fib6`] was chosen over: one static B+-tree (an S-tree) over the
//! borders of all intervals of the upper 64 bits, nine children a line, every lookup as deep as any other.
//!
//! It has no second stride: routes longer than /64 are left out here, which flatters it.

use weir_core::route::{NO_ROUTE, Prefix6};

const KEYS: usize = 8;
const STAGE: usize = weir_core::packet::BATCH;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([i64; KEYS]);

pub struct STree {
    /// Top level first; child `c` of line `n` is line `9 n + c` of the next level.
    levels: Vec<Vec<Line>>,
    /// Values of the intervals, nine for a line of the last level.
    values: Vec<u32>,
}

/// Keys with the top bit flipped compare as signed numbers, the only kind AVX2 has.
fn signed(key: u64) -> i64 {
    (key ^ 1 << 63) as i64
}

impl STree {
    /// Builds the tree from sorted routes.
    pub fn build(routes: &[(Prefix6, u32)]) -> Self {
        let intervals = intervals(routes);
        let values: Vec<u32> = intervals.iter().map(|&(_, value)| value).collect();
        let mut levels = Vec::new();
        // First keys of what hangs below, and how many hang from one line.
        let mut firsts: Vec<u64> = intervals.iter().map(|&(first, _)| first).collect();
        loop {
            let lines = firsts.chunks(KEYS + 1).map(|group| {
                let mut line = Line([i64::MAX; KEYS]);
                for (border, &first) in line.0.iter_mut().zip(&group[1..]) {
                    *border = signed(first - 1);
                }
                line
            });
            levels.push(lines.collect::<Vec<_>>());
            firsts = firsts.chunks(KEYS + 1).map(|group| group[0]).collect();
            if firsts.len() == 1 {
                break;
            }
        }
        levels.reverse();
        STree { levels, values }
    }

    pub fn lookup_batch(&self, addrs: &[u128], out: &mut [u32]) {
        for (addrs, out) in addrs.chunks(STAGE).zip(out.chunks_mut(STAGE)) {
            let mut keys = [0; STAGE];
            for (key, &addr) in keys.iter_mut().zip(addrs) {
                *key = signed((addr >> 64) as u64);
            }
            out.fill(0);
            for level in &self.levels {
                for (at, &key) in out.iter_mut().zip(&keys) {
                    let Line(borders) = &level[*at as usize];
                    let below: u32 = borders.iter().map(|&border| u32::from(border < key)).sum();
                    *at = *at * (KEYS as u32 + 1) + below;
                }
            }
            for at in out {
                *at = self.values[*at as usize];
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let lines: usize = self.levels.iter().map(Vec::len).sum();
        lines * size_of::<Line>() + self.values.len() * size_of::<u32>()
    }
}

/// The disjoint intervals the routes make: first key and value, equal neighbours merged.
fn intervals(routes: &[(Prefix6, u32)]) -> Vec<(u64, u32)> {
    let mut done: Vec<(u64, u32)> = vec![(0, NO_ROUTE)];
    let mut cut = |first: u64, value: u32| {
        done.pop_if(|last| last.0 == first);
        if done.last().is_none_or(|last| last.1 != value) {
            done.push((first, value));
        }
    };
    let mut open: Vec<(u64, u32)> = vec![(u64::MAX, NO_ROUTE)];
    let close = (u64::MAX, u64::MAX, NO_ROUTE);
    let ranges = routes
        .iter()
        .filter(|(prefix, _)| prefix.len() <= 64)
        .map(|&(prefix, value)| ((prefix.bits() >> 64) as u64, (prefix.last() >> 64) as u64, value));
    for (first, last, value) in ranges.chain([close]) {
        while let Some(&(ended, _)) = open.last().filter(|&&(ended, _)| ended < first) {
            open.pop();
            cut(ended + 1, open.last().map_or(NO_ROUTE, |&(_, around)| around));
        }
        if (first, last, value) != close {
            cut(first, value);
            open.push((last, value));
        }
    }
    done
}
