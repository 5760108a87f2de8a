//! Which table would serve most of a sample of rules.

use std::cmp::Reverse;

use super::shape::{Address, CELLS, Extent, Keys, Mask, Shape};
use super::table::CHAIN;

/// Rules whose shapes are candidates, and rules that choose the few of them that all are asked about.
pub(super) const PROPOSERS: usize = 12;
const FIRST: usize = 256;
const FINALISTS: usize = 16;
/// Where cells of the sample are counted.
const COUNTERS: usize = 4096;
/// A table is not made for fewer rules, nor for a smaller share of those that have none.
pub(super) const FEWEST: usize = 24;
/// Votes that a table needs at least: fewer might be all there are.
const VOTES: usize = 4;
const SHARE: usize = 128;

/// A shape for many of `total` rules, of which `sample` are asked; `None` where there is none.
pub(super) fn vote<A: Address>(
    sample: &[Extent<A>],
    proposers: usize,
    total: usize,
    keys: &Keys,
) -> Option<Shape> {
    let mut shapes = Vec::new();
    for extent in every(sample, proposers) {
        extent.shapes(|shape| shapes.push(shape));
    }
    shapes.sort_unstable();
    shapes.dedup();
    if sample.len() > FIRST {
        let first: Vec<_> = every(sample, FIRST).copied().collect();
        shapes.sort_by_cached_key(|&shape| Reverse(score(&first, total, keys, shape)));
        shapes.truncate(FINALISTS);
    }
    let best = shapes.into_iter().map(|shape| (score(sample, total, keys, shape), shape)).max()?;
    let ((_, takers), shape) = best;
    let fewest = FEWEST.max(total / SHARE);
    (takers >= VOTES && takers * total >= fewest * sample.len()).then_some(shape)
}

/// Yields about `count` of them, evenly.
fn every<A: Address>(sample: &[Extent<A>], count: usize) -> impl Iterator<Item = &Extent<A>> {
    sample.iter().step_by(sample.len().div_ceil(count).max(1))
}

/// How good a shape is, and how many of the sample fit.
fn score<A: Address>(sample: &[Extent<A>], total: usize, keys: &Keys, shape: Shape) -> (i64, usize) {
    let mask = Mask::new(shape);
    let mut counters = [0_u8; COUNTERS];
    // As long as chains may be among so few.
    let most = (CHAIN as usize * sample.len() / total.max(1)).clamp(1, CHAIN as usize) as u8;
    let (mut takers, mut company, mut cells) = (0, 0, 0);
    for extent in sample {
        let mut hashes = [0; CELLS as usize];
        let mut count = 0;
        let fits = mask.each(keys, extent, |hash| {
            hashes[count] = hash as usize % COUNTERS;
            count += 1;
            true
        });
        let hashes = &hashes[..count];
        if fits.is_none() || hashes.iter().any(|&h| counters[h] >= most) {
            continue;
        }
        takers += 1;
        cells += count as i64 - 1;
        for &h in hashes {
            company += i64::from(counters[h]);
            counters[h] += 1;
        }
    }
    (takers as i64 * 64 - company * 8 - cells * 4, takers)
}
