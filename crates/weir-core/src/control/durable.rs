//! What is reserved on disk for SAs, so that no life of this program repeats a sequence number, takes a packet
//! twice, or forgets what of a lifetime is used (RFC 4303 3.3.3, 3.4.3; RFC 4301 4.4.2.1).
//!
//! ```text
//! power fails      state file: resume at what was reserved        above all that was used
//! process dies     counters file, same boot: resume at what was used, exactly
//! told to stop     state file has what was used, exactly
//! ```
//!
//! Promises: workers get a reservation only when [`Durable::written`] has said that it is on disk; what is
//! taken back is taken from workers before it is taken off the disk; an SA is recognised by its keys,
//! direction and SPI, under whatever name. Reads no clock and touches no file: images go out, counters come
//! in. Refuses: more than [`crate::state::RECORDS_MAX`] records, of which none is ever overwritten by another.

mod entry;
mod record;
mod store;

use std::collections::HashMap;
use std::sync::Arc;

use entry::Entry;
pub use record::{BootId, Damaged, HEADER_LEN, Record, State, StoreId, counters_header};

pub use store::{Disk, save};

use super::Control;
use super::gateway::Kept;
use crate::ipsec::durable::{Amounts, Cell, Counters, Identity};
use crate::ipsec::{Ciphers, Direction, SaSpec, SaState};
use crate::time::{Nanos, SECOND};

/// How often use is measured; a reservation is about two of these.
const LOOK: Nanos = SECOND;

/// The state of every SA that was ever used with a state directory.
#[derive(Debug)]
pub struct Durable {
    store: StoreId,
    life: u64,
    entries: Vec<Entry>,
    index: HashMap<Identity, usize>,
    /// Counters nobody uses yet.
    free: std::slice::Iter<'static, Counters>,
    /// Those of SAs that were forgotten.
    returned: Vec<&'static Counters>,
    /// Wall clock time when the process's clock was 0.
    epoch: Nanos,
    /// An image is being written.
    writing: bool,
    /// Something has to be looked at before the next [`LOOK`].
    due: bool,
    looked: Nanos,
}

impl Durable {
    /// Goes on where the last process stopped that used `state`: exactly where `counters` says, if they are of
    /// that process and of this boot; above all it may have used otherwise.
    pub fn resume(state: State, counters: Option<&[u8]>, boot: &BootId) -> Durable {
        let left = counters.and_then(|file| record::counters_of(file, &state, boot)).unwrap_or_default();
        let left: HashMap<_, _> = left.into_iter().collect();
        let resumed = |mut record: Record| {
            let before = record.reserved.sequence;
            if let Some(used) = left.get(&record.identity) {
                record.reserved = entry::exact(&record, *used);
            }
            Entry::new(record, before)
        };
        let entries: Vec<Entry> = state.records.into_iter().map(resumed).collect();
        Durable {
            store: state.store,
            life: state.life + 1,
            index: entries.iter().enumerate().map(|(at, e)| (e.record.identity, at)).collect(),
            entries,
            free: [].iter(),
            returned: Vec::new(),
            epoch: 0,
            writing: false,
            due: true,
            looked: 0,
        }
    }

    /// Memory that outlives the process for counters of SAs that are used from now on; SAs beyond its end count
    /// in their own, and resume above what was reserved.
    #[must_use]
    pub fn with_counters(self, counters: &'static [Counters]) -> Durable {
        Durable { free: counters.iter(), ..self }
    }

    /// What time it is when the process's clock says `now`.
    #[must_use]
    pub fn at(self, now: Nanos, wall: Nanos) -> Durable {
        Durable { epoch: wall.saturating_sub(now), looked: now, ..self }
    }

    /// What the counters file begins with.
    pub fn counters_header(&self, boot: &BootId) -> [u8; HEADER_LEN] {
        counters_header(&self.store, self.life, boot)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Every SA that was ever used.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.entries.iter().map(|e| &e.record)
    }

    pub(super) fn record(&self, identity: &Identity) -> Option<&Record> {
        self.index.get(identity).map(|&at| &self.entries[at].record)
    }

    /// The highest sequence number that is reserved for an SA.
    pub(super) fn reserved(&self, identity: &Identity) -> Option<u64> {
        self.index.get(identity).map(|&at| self.entries[at].reserved())
    }

    /// Whether a number is the end of what is reserved for an SA.
    pub(super) fn has_reserved(&self, identity: &Identity, number: u64) -> bool {
        self.index.get(identity).is_some_and(|&at| self.entries[at].has_reserved(number))
    }

    /// Has an SA that nobody uses yet go on from what somebody else used of it, and tells whether it does.
    pub(super) fn begin_behind(
        &mut self,
        (identity, sa): (Identity, &SaSpec),
        used: Amounts,
        first_iv: impl FnOnce() -> u64,
    ) -> bool {
        let wall = self.epoch.saturating_add(self.looked);
        let at = *self.index.entry(identity).or_insert_with(|| {
            self.entries.push(Entry::new(entry::fresh(identity, sa, first_iv(), wall), 0));
            self.entries.len() - 1
        });
        self.entries[at].begin_behind(used)
    }

    /// What an SA is recognised by. One outbound AEAD key is one sequence, whoever it is for; other keys are told
    /// apart by SPI. Addresses are left out: what is outside a packet's ICV anyone may change.
    pub(super) fn identity(&self, sa: &SaSpec, one_sequence: bool, ciphers: &dyn Ciphers) -> Identity {
        let spi = if one_sequence { 0 } else { sa.params.spi };
        let (key, integrity) = (sa.keys.encryption.bytes(), sa.keys.integrity.bytes());
        ciphers.digest(&[
            b"weir sa 1",
            &self.store,
            &[sa.params.direction as u8],
            &spi.to_le_bytes(),
            &[key.len() as u8, integrity.len() as u8],
            key,
            integrity,
            sa.params.suite.to_string().as_bytes(),
        ])
    }

    /// The state of an SA that is used from now on; it may carry nothing until an image is written.
    pub(super) fn state(
        &mut self,
        now: Nanos,
        identity: Identity,
        sa: &SaSpec,
        first_iv: impl FnOnce() -> u64,
    ) -> Arc<SaState> {
        let wall = self.epoch.saturating_add(now);
        let at = *self.index.entry(identity).or_insert_with(|| {
            self.entries.push(Entry::new(entry::fresh(identity, sa, first_iv(), wall), 0));
            self.entries.len() - 1
        });
        self.due = true;
        let (free, returned) = (&mut self.free, &mut self.returned);
        let counters = || returned.pop().or_else(|| free.next()).map_or_else(Cell::default, Cell::Mapped);
        self.entries[at].start(now, wall, sa, counters)
    }

    /// Something has used half of what was reserved for it.
    pub(super) fn ask(&mut self) {
        self.due = true;
    }

    /// What the state file shall be now, if that differs; what comes of it is for [`Durable::written`]. There is
    /// one such image at a time.
    pub fn image(&mut self, now: Nanos, wall: Nanos) -> Option<Vec<u8>> {
        let look = now.saturating_sub(self.looked) >= LOOK;
        if self.writing || !(self.due || look) {
            return None;
        }
        self.epoch = wall.saturating_sub(now);
        if look {
            self.looked = now;
            self.entries.iter_mut().for_each(Entry::measure);
        }
        let asks = self.entries.iter().any(|e| e.asks(now, look));
        if !asks {
            self.due = false;
            return None;
        }
        for entry in &mut self.entries {
            entry.plan(now, wall, look);
        }
        (self.writing, self.due) = (true, false);
        Some(self.encode())
    }

    /// The last image is on disk, or is not.
    pub fn written(&mut self, now: Nanos, is_on_disk: bool) {
        self.writing = false;
        self.due |= !is_on_disk;
        for entry in &mut self.entries {
            entry.written(now, is_on_disk);
        }
    }

    /// The image of an end in order: workers have ended, nothing is reserved beyond what was used.
    pub fn last_image(&mut self, now: Nanos, wall: Nanos) -> Vec<u8> {
        for entry in &mut self.entries {
            entry.finish(now, wall);
        }
        self.encode()
    }

    /// Forgets records not used since (seconds since 1970): their keys must never come back. How many.
    pub fn forget_unused_since(&mut self, since: u64) -> usize {
        let before = self.entries.len();
        self.entries.retain(|e| !e.is_idle() || e.record.used >= since);
        self.index = self.entries.iter().enumerate().map(|(at, e)| (e.record.identity, at)).collect();
        before - self.entries.len()
    }

    /// Whether an SA gets nothing more than is reserved for it.
    pub(super) fn set_frozen(&mut self, identity: &Identity, frozen: bool) {
        if let Some(&at) = self.index.get(identity) {
            self.entries[at].set_frozen(frozen);
        }
    }

    /// Forgets the record of an SA whose keys never come back; its counters are free for another, unless somebody
    /// still has them.
    pub(super) fn forget(&mut self, identity: &Identity) {
        let Some(at) = self.index.remove(identity) else { return };
        let entry = self.entries.swap_remove(at);
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(moved.record.identity, at);
        }
        self.returned.extend(entry.into_counters());
    }

    fn encode(&self) -> Vec<u8> {
        let mut image = Vec::with_capacity(HEADER_LEN + self.entries.len() * record::RECORD_LEN);
        image.extend(record::state_header(&self.store, self.life, self.entries.len()));
        self.entries.iter().for_each(|e| image.extend(e.next_record().encode()));
        image
    }
}

impl Control {
    /// Has SAs that are added from now on go on from what earlier processes left of them; for a gateway that had
    /// none so far.
    pub fn keep_state(&mut self, durable: Durable) {
        self.gateway.memory.durable = Some(durable);
    }

    /// Whether SAs outlive the process.
    pub fn keeps_state(&self) -> bool {
        self.gateway.memory.durable.is_some()
    }

    /// What the state file shall be now, if that differs; [`Control::state_written`] is to be told.
    pub fn state_image(&mut self, now: Nanos, wall: Nanos) -> Option<Vec<u8>> {
        self.gateway.memory.durable.as_mut()?.image(now, wall)
    }

    /// Whether an image was taken and nothing is known of it yet.
    pub fn is_writing_state(&self) -> bool {
        self.gateway.memory.durable.as_ref().is_some_and(|durable| durable.writing)
    }

    pub fn state_written(&mut self, now: Nanos, is_on_disk: bool) {
        if let Some(durable) = &mut self.gateway.memory.durable {
            durable.written(now, is_on_disk);
        }
    }

    /// What the state file shall be when workers have ended.
    pub fn last_state_image(&mut self, now: Nanos, wall: Nanos) -> Option<Vec<u8>> {
        self.gateway.memory.durable.as_mut().map(|durable| durable.last_image(now, wall))
    }

    /// How far each SA may number, or accept, once the image that was taken last is written; not those whose numbers nobody
    /// looks at.
    pub fn reserved_sequences(&self) -> Vec<(&str, Direction, u64)> {
        let Some(durable) = &self.gateway.memory.durable else { return Vec::new() };
        let planned: HashMap<*const SaState, u64> =
            durable.entries.iter().filter_map(Entry::planned).map(|(s, n)| (Arc::as_ptr(s), n)).collect();
        let kept = self.desired.ipsec.sas.iter().filter_map(|spec| self.gateway.kept.get(&spec.name));
        let of = |kept: &'_ Kept| planned.get(&Arc::as_ptr(&kept.sa.state)).copied();
        kept.filter_map(|k| Some((k.spec.name.as_str(), k.spec.params.direction, of(k)?))).collect()
    }

    /// Whether an SA's number, as somebody else has it, is exactly what is reserved for it here: nobody but workers used it, and they
    /// stay below it.
    pub fn has_reserved(&self, sa: &SaSpec, number: u64) -> bool {
        self.gateway.has_reserved(sa, number)
    }

    /// The highest sequence number that is reserved for an SA, used here or not.
    pub fn reserved_for(&self, sa: &SaSpec) -> Option<u64> {
        self.gateway.reserved(sa)
    }

    /// Somebody else has used that much of an SA, outbound or inbound, and does so no more: it goes on from there, or from what was
    /// used of it here, whichever is more. False where that cannot be kept: the SA is in use, or outlives no process.
    #[must_use]
    pub fn begin_behind(&mut self, sa: &SaSpec, used: Amounts) -> bool {
        self.gateway.begin_behind(sa, used)
    }

    /// Somebody else goes on with an SA that is gone here, above what is reserved for it: workers that still have it get no more
    /// than that, until it is there again.
    pub fn freeze_sa(&mut self, gone: &SaSpec) {
        self.gateway.freeze(gone);
    }

    /// A worker has used half of what was reserved for an SA.
    pub(super) fn state_asks(&mut self) {
        if let Some(durable) = &mut self.gateway.memory.durable {
            durable.ask();
        }
    }
}
