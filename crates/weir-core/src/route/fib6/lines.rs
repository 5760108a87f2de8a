//! Cache lines of search trees, and which of them are free.
//!
//! ```text
//! word    0 ……………………………… 6   7       8 …………………………………… 15
//! leaf    7 borders            MAX     8 entries: before the first border, between two, after the last
//! inner   15 borders ………………………………………………………… 14   15: link to the line before 16 children side by side
//! ```
//!
//! A border is the last key of the interval before it, so a key's place is how many borders are below it.
//! Unused borders are the largest key: nothing is above that. Keys have 31 bits, so all comparisons are
//! signed, the only kind AVX2 has; a link is negative, so it is below every key.

use crate::route::direct::{Entry, INDEX, INNER, LINK, is_link};

pub const LINE_WORDS: usize = 16;

/// Entries in a leaf.
pub const LEAF_ENTRIES: usize = 8;

/// Children of an inner line.
pub const CHILDREN: usize = 16;

/// Where an inner line keeps the link to the line before its first child.
pub const BEFORE_CHILDREN: usize = LINE_WORDS - 1;

/// Free lines worth keeping whatever the table: 16,384 × 64 B = 1 MiB.
const SPARE_LINES: usize = 1 << 14;

#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Line(pub [u32; LINE_WORDS]);

/// How many of the words, as borders, are below a key.
#[inline]
fn below(words: &[u32], key: i32) -> u32 {
    words.iter().map(|&word| u32::from((word as i32) < key)).sum()
}

#[derive(Clone)]
pub struct Lines {
    /// A power of two of them, so that an index can be masked instead of checked.
    lines: Vec<Line>,
    /// How many of them were ever reserved. Line 0 is nobody's: no link is zero.
    used: usize,
    /// Lines of the tree that starts here; read only when it is released.
    lens: Vec<u32>,
    /// Starts of free runs, by size class.
    free: Vec<Vec<u32>>,
    free_lines: usize,
}

/// Runs come in sizes 1, 2, 3, 4, 6, 8, 12, 16, …: at most a third is waste.
fn class_of(len: usize) -> (usize, usize) {
    let mut class = 0;
    loop {
        let size = if class % 2 == 0 { 1 << (class / 2) } else { 3 << (class / 2) >> 1 };
        if class != 1 && size >= len {
            return (class, size);
        }
        class += 1;
    }
}

impl Default for Lines {
    fn default() -> Self {
        Lines { lines: vec![Line([0; LINE_WORDS])], used: 1, lens: vec![0], free: Vec::new(), free_lines: 0 }
    }
}

impl Lines {
    /// The line behind a link; any line, if the entry is none: a lookup that has arrived may ask, and not use
    /// the answer. The mask instead of a check is what makes that cheap.
    #[inline]
    fn line(&self, link: Entry) -> &Line {
        &self.lines[link as usize & (self.lines.len() - 1)]
    }

    /// The child of an inner line that holds `key`.
    #[inline]
    pub fn child(&self, link: Entry, key: i32) -> Entry {
        let Line(words) = self.line(link);
        // The link is below every key and counts itself, which is why it stands one before the first child.
        words[BEFORE_CHILDREN].wrapping_add(below(words, key))
    }

    /// The entry of a leaf that holds `key`.
    #[inline]
    pub fn value(&self, link: Entry, key: i32) -> Entry {
        let Line(words) = self.line(link);
        let place = below(&words[..LEAF_ENTRIES], key);
        words[LEAF_ENTRIES + place as usize % LEAF_ENTRIES]
    }

    /// Room for a tree of `len` lines; its first line.
    pub fn reserve(&mut self, len: usize) -> u32 {
        let (class, size) = class_of(len);
        let start = match self.free.get_mut(class).and_then(Vec::pop) {
            Some(start) => {
                self.free_lines -= size;
                start
            }
            None => {
                let start = self.used;
                self.used += size;
                let room = self.used.next_power_of_two();
                self.lines.resize(room, Line([0; LINE_WORDS]));
                self.lens.resize(room, 0);
                start as u32
            }
        };
        self.lens[start as usize] = len as u32;
        start
    }

    pub fn line_mut(&mut self, index: u32) -> &mut [u32; LINE_WORDS] {
        &mut self.lines[index as usize].0
    }

    /// Frees the tree behind a link, and the trees behind its leaves.
    pub fn release(&mut self, link: Entry) {
        let start = link & INDEX;
        let end = start + self.lens[start as usize];
        let mut leaf = link;
        while leaf & INNER != 0 {
            leaf = self.lines[(leaf & INDEX) as usize].0[BEFORE_CHILDREN] + 1;
        }
        for line in leaf & INDEX..end {
            let Line(words) = self.lines[line as usize];
            for &entry in words[LEAF_ENTRIES..].iter().filter(|&&entry| is_link(entry)) {
                self.release(entry);
            }
        }
        let (class, size) = class_of((end - start) as usize);
        if self.free.len() <= class {
            self.free.resize(class + 1, Vec::new());
        }
        self.free[class].push(start);
        self.free_lines += size;
    }

    /// More than half of it is free, and that is worth a rebuild.
    pub fn wasteful(&self) -> bool {
        self.free_lines > SPARE_LINES.max(self.used / 2)
    }

    pub fn memory_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
            + self.lens.capacity() * size_of::<u32>()
            + self.free.iter().map(|runs| runs.capacity() * size_of::<u32>()).sum::<usize>()
    }
}

const _: () = assert!(size_of::<Line>() == 64 && LINK | INNER | INDEX == Entry::MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_hold_what_they_are_asked_and_waste_at_most_a_third() {
        let mut last = 0;
        for len in 1..5000 {
            let (class, size) = class_of(len);
            assert!(size >= len && (size - len) * 3 <= size, "{len} lines got {size}");
            assert!(class >= last);
            last = class;
        }
    }

    #[test]
    fn released_lines_are_used_again() {
        let mut lines = Lines::default();
        let first = lines.reserve(5);
        for line in first..first + 5 {
            *lines.line_mut(line) = [0; LINE_WORDS];
        }
        lines.release(LINK | first);
        assert_eq!(lines.reserve(6), first);
        assert_ne!(lines.reserve(6), first);
    }
}
