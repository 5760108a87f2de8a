//! Tables that policy rules lead to, besides those that are mirrored.
//!
//! ```text
//! from all lookup 220, table 220 empty              nothing: the search goes on
//! from all lookup 220, table 220 has 10.9.0.0/16    packets to 10.9.0.0/16 only
//! ```
//!
//! Promises: of such a table every prefix is known, or it counts as one that may have any. What of it a packet meets is not
//! asked: its prefixes are the kernel's.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Bucket, Entry};
use crate::route::Prefix;

/// Tables that are followed. A rule that leads to another may concern any packet.
const TABLES_MAX: usize = 64;

/// Prefixes of one table. One that has more may have any.
const PREFIXES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct OtherTable {
    routes: BTreeMap<Prefix, Bucket>,
    /// A dump that began when the table was followed has ended.
    dumped: bool,
    /// More prefixes than are held: now, and since the last dump began.
    full: [bool; 2],
}

/// The tables by their number.
#[derive(Debug, Default)]
pub(super) struct OtherTables(HashMap<u32, OtherTable>);

impl OtherTables {
    /// Follows these tables and no others. True where one is new, whose routes a dump tells; `released` gets the routes of
    /// those that are followed no more.
    pub(super) fn follow(&mut self, wanted: &BTreeSet<u32>, mut released: impl FnMut(&Entry)) -> bool {
        self.0.retain(|number, table| {
            let stays = wanted.contains(number);
            if !stays {
                table.routes.values().flat_map(Bucket::entries).for_each(&mut released);
            }
            stays
        });
        let mut new = false;
        for number in wanted {
            if self.0.len() < TABLES_MAX && !self.0.contains_key(number) {
                self.0.insert(*number, OtherTable::default());
                new = true;
            }
        }
        new
    }

    pub(super) fn follows(&self, number: u32) -> bool {
        self.0.contains_key(&number)
    }

    /// Which prefixes a table has; nothing where it may have any.
    pub(super) fn prefixes(&self, number: u32) -> Option<impl Iterator<Item = Prefix>> {
        let table = self.0.get(&number).filter(|table| table.dumped && !table.full[0])?;
        Some(table.routes.keys().copied())
    }

    /// The routes of a prefix, where its table is followed and has room for it.
    pub(super) fn entries(&mut self, number: u32, prefix: Prefix) -> Option<Vec<Entry>> {
        let table = self.0.get_mut(&number)?;
        let known = table.routes.get(&prefix).map(|bucket| bucket.entries().to_vec());
        if known.is_none() && table.routes.len() >= PREFIXES_MAX {
            table.full = [true; 2];
            return None;
        }
        Some(known.unwrap_or_default())
    }

    /// What [`OtherTables::entries`] gave, changed.
    pub(super) fn set(&mut self, number: u32, prefix: Prefix, entries: Vec<Entry>) {
        let Some(table) = self.0.get_mut(&number) else { return };
        match Bucket::of(entries) {
            Some(bucket) => _ = table.routes.insert(prefix, bucket),
            None => _ = table.routes.remove(&prefix),
        }
    }

    pub(super) fn begin_resync(&mut self) {
        self.0.values_mut().for_each(|table| table.full[1] = false);
    }

    /// A dump has ended whole: routes of an older one are gone.
    pub(super) fn end_resync(&mut self, epoch: u8, mut released: impl FnMut(&Entry)) {
        for table in self.0.values_mut() {
            table.dumped = true;
            table.full[0] = table.full[1];
            table.routes.retain(|_, bucket| {
                let (kept, gone): (Vec<Entry>, Vec<Entry>) =
                    bucket.entries().iter().partition(|e| e.epoch == epoch);
                gone.iter().for_each(&mut released);
                Bucket::of(kept).map(|kept| *bucket = kept).is_some()
            });
        }
    }
}
