//! Building the search tree of one stride from sorted routes.
//!
//! ```text
//! routes      ├──────── /32 ────────┤          sweep: a stack of the routes that are open
//!                 ├ /40 ┤  ├ /48 ┤
//! intervals   ├─A─┤──B──┤─A┤──C──┤A─┤┤          one entry each, equal neighbours merged
//! ```

use super::lines::{BEFORE_CHILDREN, CHILDREN, LEAF_ENTRIES, LINE_WORDS, Lines};
use super::{STRIDE, key};
use crate::route::Prefix6;
use crate::route::direct::{Entry, INNER, LINK, route_entry};

/// Where an interval begins, and what holds from there on.
type Interval = (i32, Entry);

/// The largest key.
const LAST: i32 = i32::MAX;

/// The link (or, when everything is alike, the entry) that answers for `routes`: sorted, all longer than
/// `start` bits and equal in those bits. What they leave uncovered is `around`.
pub fn build(lines: &mut Lines, routes: &[(Prefix6, u32)], start: u8, around: Entry) -> Entry {
    let intervals = sweep(lines, routes, start, around);
    match intervals.as_slice() {
        [(_, alone)] => *alone,
        _ => pack(lines, &intervals),
    }
}

fn sweep(lines: &mut Lines, routes: &[(Prefix6, u32)], start: u8, around: Entry) -> Vec<Interval> {
    let mut cuts = Cuts { done: vec![(0, around)], open: vec![(LAST, around)] };
    let mut rest = routes;
    while let Some(&(prefix, value)) = rest.first() {
        let first = key(prefix.bits(), start);
        cuts.close_before(first);
        if prefix.len() <= start + STRIDE {
            cuts.open(first, key(prefix.last(), start), route_entry(value));
            rest = &rest[1..];
        } else {
            // All that differ only beyond this stride have a tree of their own.
            let deeper = rest.iter().take_while(|(next, _)| key(next.bits(), start) == first).count();
            let entry = build(lines, &rest[..deeper], start + STRIDE, cuts.innermost());
            cuts.open(first, first, entry);
            rest = &rest[deeper..];
        }
    }
    cuts.finish()
}

struct Cuts {
    done: Vec<Interval>,
    /// Last key and entry of each interval around the place the sweep is at, the innermost last. The
    /// first is what lies around everything and never closes.
    open: Vec<(i32, Entry)>,
}

impl Cuts {
    fn innermost(&self) -> Entry {
        self.open.last().map_or(0, |&(_, entry)| entry)
    }

    fn open(&mut self, first: i32, last: i32, entry: Entry) {
        self.cut(first, entry);
        self.open.push((last, entry));
    }

    /// Closes what ends before `key`.
    fn close_before(&mut self, key: i32) {
        while let Some(&(last, _)) = self.open.last().filter(|&&(last, _)| last < key) {
            self.open.pop();
            self.cut(last + 1, self.innermost());
        }
    }

    fn finish(mut self) -> Vec<Interval> {
        self.close_before(LAST);
        self.done
    }

    /// Starts a new interval: from `first` on, `entry` holds.
    fn cut(&mut self, first: i32, entry: Entry) {
        self.done.pop_if(|last| last.0 == first);
        if self.done.last().is_none_or(|last| last.1 != entry) {
            self.done.push((first, entry));
        }
    }
}

/// Writes the lines: inner levels from the top, then leaves, side by side.
fn pack(lines: &mut Lines, intervals: &[Interval]) -> Entry {
    // Lines of each level, leaves first.
    let mut levels = vec![intervals.len().div_ceil(LEAF_ENTRIES)];
    while let Some(&below) = levels.last().filter(|&&below| below > 1) {
        levels.push(below.div_ceil(CHILDREN));
    }
    let first = lines.reserve(levels.iter().sum());
    let mut at = first;
    // Intervals a child of the level being written holds.
    let mut span = LEAF_ENTRIES * CHILDREN.pow(levels.len().saturating_sub(2) as u32);
    for (height, &count) in levels.iter().enumerate().rev() {
        if height == 0 {
            for (n, part) in intervals.chunks(LEAF_ENTRIES).enumerate() {
                leaf(lines.line_mut(at + n as u32), part);
            }
            break;
        }
        let below = at + count as u32;
        let kind = if height == 1 { LINK } else { LINK | INNER };
        for (n, part) in intervals.chunks(span * CHILDREN).enumerate() {
            inner(lines.line_mut(at + n as u32), part, span, kind | (below + (n * CHILDREN) as u32));
        }
        at = below;
        span /= CHILDREN;
    }
    first | if levels.len() == 1 { LINK } else { LINK | INNER }
}

/// The border below an interval, as it is stored.
fn border(&(first, _): &Interval) -> u32 {
    (first - 1) as u32
}

const NO_BORDER: u32 = LAST as u32;

fn leaf(words: &mut [u32; LINE_WORDS], intervals: &[Interval]) {
    words[..LEAF_ENTRIES].fill(NO_BORDER);
    words[LEAF_ENTRIES..].fill(0);
    for (word, interval) in words.iter_mut().zip(&intervals[1..]) {
        *word = border(interval);
    }
    for (word, &(_, entry)) in words[LEAF_ENTRIES..].iter_mut().zip(intervals) {
        *word = entry;
    }
}

fn inner(words: &mut [u32; LINE_WORDS], intervals: &[Interval], span: usize, first_child: Entry) {
    words.fill(NO_BORDER);
    for (word, part) in words.iter_mut().zip(intervals.chunks(span).skip(1)) {
        *word = border(&part[0]);
    }
    words[BEFORE_CHILDREN] = first_child - 1;
}
