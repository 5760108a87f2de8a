//! Numbers that belong to names: of ports, devices and SAs.
//!
//! Promises: a name keeps its number for as long as it is present, whatever else changes; one that left
//! leaves a hole and gets the same number back when it returns. A hole is given to another name only when
//! every number was given out, the one longest empty first. So what a worker keeps by number never
//! changes owner behind its back. Refuses, by giving no number, more names at a time than there are
//! numbers: [`crate::state::check`] does not let that happen.

use std::collections::{HashMap, HashSet};

#[derive(Debug)]
pub(super) struct Names {
    /// How many numbers there are.
    most: usize,
    ids: HashMap<String, u32>,
    /// The name of each number, and when it left if it did.
    held: Vec<(String, Option<u64>)>,
    departures: u64,
}

impl Names {
    pub(super) fn new(most: usize) -> Names {
        Names { most, ids: HashMap::new(), held: Vec::new(), departures: 0 }
    }

    /// Makes `present` the names there are.
    pub(super) fn set<'a>(&mut self, present: impl Iterator<Item = &'a str> + Clone) {
        let wanted: HashSet<&str> = present.clone().collect();
        for (name, left) in &mut self.held {
            if left.is_none() && !wanted.contains(name.as_str()) {
                self.departures += 1;
                *left = Some(self.departures);
            }
        }
        for name in present {
            if let Some(&id) = self.ids.get(name) {
                self.held[id as usize].1 = None;
            } else if self.held.len() < self.most {
                self.ids.insert(name.to_string(), self.held.len() as u32);
                self.held.push((name.to_string(), None));
            } else if let Some((id, slot)) = self
                .held
                .iter_mut()
                .enumerate()
                .filter(|(_, (name, left))| left.is_some() && !wanted.contains(name.as_str()))
                .min_by_key(|(_, (_, left))| *left)
            {
                self.ids.remove(&slot.0);
                self.ids.insert(name.to_string(), id as u32);
                *slot = (name.to_string(), None);
            }
        }
    }

    /// How many numbers were given out, holes included.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn id(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied().filter(|&id| self.held[id as usize].1.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_keeps_its_id_and_gets_it_back() {
        let mut names = Names::new(8);
        names.set(["a", "b", "c"].into_iter());
        names.set(["c", "d"].into_iter());
        assert_eq!((names.id("a"), names.id("c"), names.id("d")), (None, Some(2), Some(3)));
        names.set(["d", "b", "c"].into_iter());
        assert_eq!((names.id("b"), names.id("c"), names.id("d")), (Some(1), Some(2), Some(3)));
    }

    #[test]
    fn hole_is_reused_only_when_ids_ran_out_and_the_oldest_first() {
        const MOST: usize = 4096;
        let mut names = Names::new(MOST);
        let all: Vec<String> = (0..MOST).map(|i| i.to_string()).collect();
        let mut present: Vec<&str> = all.iter().map(String::as_str).collect();
        names.set(present.iter().copied());
        present.retain(|&n| n != "7");
        names.set(present.iter().copied());
        present.retain(|&n| n != "3");
        names.set(present.iter().copied());
        present.push("new");
        names.set(present.iter().copied());
        assert_eq!((names.id("new"), names.id("3"), names.id("7")), (Some(7), None, None));
    }
}
