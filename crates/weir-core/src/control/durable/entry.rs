//! One SA: what is reserved for it, what it uses, and how much more it shall get.
//!
//! ```text
//!        used ──────── ask ──────── granted ── slack ── on disk
//!             size / 2      size / 2
//! ```
//!
//! A reservation is what was used in the last second, twice, and at least a number of its own kind; one used
//! up within a second grows eightfold, one that was not needed halves every second. Outbound numbers,
//! packets and bytes are never taken back: what is lost of them at a power cut is a gap. Inbound numbers
//! are, because what is reserved and was not used is refused to the peer after a power cut.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use super::record::Record;
use crate::ipsec::durable::{Amounts, Cell, Counters, Identity};
use crate::ipsec::sa::Resumed;
use crate::ipsec::{Direction, SaSpec, SaState, esp};
use crate::keying;
use crate::packet::BATCH;
use crate::time::{Nanos, SECOND};

/// Numbers reserved at least where a gap costs nothing: 2^20 of 2^32 or 2^64. At half of it more is asked for, so a disk has
/// 2^19 / 5 Mpps = 100 ms to write it.
const OUT_LEAST: u64 = 1 << 20;
/// Inbound ones of an SA whose keys are in a file: as many may be refused after a power cut.
const IN_LEAST: u64 = 256;
/// The same at first, when nothing is known of the SA: eight seconds later it is [`IN_LEAST`].
const IN_FIRST: u64 = 1 << 16;
/// Packets and bytes reserved at least where no limit is near: half of 2^30 is 100 ms of 43 Gb/s.
const PACKETS_LEAST: u64 = 1 << 20;
const BYTES_LEAST: u64 = 1 << 30;
/// A power cut takes no more than this part of a lifetime, but always so much.
const PART_OF_LIFE: u64 = 16;
const PACKETS_OF_LIFE: u64 = 1 << 16;
const BYTES_OF_LIFE: u64 = 1 << 26;
/// No reservation is larger: 2^40 numbers are two days at 5 Mpps.
const MOST: u64 = 1 << 40;
const GROWTH: u64 = 8;

/// What workers with a batch in their hands may use beyond the lease: 64 workers, each a batch of frames of at
/// most 4 KiB.
const WORKERS: u64 = 64;
const SLACK_PACKETS: u64 = WORKERS * BATCH as u64;
const SLACK_BYTES: u64 = SLACK_PACKETS * 4096;
/// What a counter may show beyond what is reserved: numbers that were skipped at a limit.
const SKIPPED: u64 = 1 << 20;

/// An age on disk is this much ahead, where the SA's lifetime is one of time.
const AGE_AHEAD: Nanos = 60 * SECOND;
/// Clocks that say less (2025) were not set.
const CLOCK_SET: u64 = 1_735_689_600;

#[derive(Debug)]
pub(super) struct Entry {
    /// The record as it is on disk.
    pub record: Record,
    /// The sequence number an earlier life had reserved up to.
    before: u64,
    /// Counters of this life, once the SA was used in it.
    live: Option<Live>,
}

#[derive(Debug)]
struct Live {
    state: Arc<SaState>,
    /// Sequence numbers outbound end here.
    last: u64,
    /// Inbound without a window: numbers are not looked at.
    windowless: bool,
    /// It has a lifetime of time.
    ages: bool,
    granted: Amounts,
    size: Amounts,
    /// No reservation is smaller.
    least: Amounts,
    /// What was used when it was measured last, and from then on.
    seen: Amounts,
    renewed: Nanos,
    /// What is being written.
    next: Option<(Record, Amounts)>,
    /// Whether nothing was granted yet.
    new: bool,
    /// The last image with it was not written.
    behind: bool,
    /// Nothing more is reserved for it.
    frozen: bool,
}

/// The record of an SA nobody used before.
pub(super) fn fresh(identity: Identity, sa: &SaSpec, first_iv: u64, wall: Nanos) -> Record {
    Record {
        identity,
        direction: sa.params.direction,
        spi: sa.params.spi,
        destination: sa.params.destination,
        first_iv,
        reserved: Amounts::default(),
        age: 0,
        installed: wall / SECOND,
        used: wall / SECOND,
    }
}

/// What was used, by counters a dead process left: never more than what was reserved for it, but for numbers
/// skipped. Counters that say otherwise are not believed, unless they say more.
pub(super) fn exact(record: &Record, used: Amounts) -> Amounts {
    let skipped = if record.direction == Direction::Out { SKIPPED } else { 0 };
    let most = record.reserved;
    let is_sound = used.sequence <= most.sequence.saturating_add(skipped)
        && used.packets <= most.packets
        && used.bytes <= most.bytes;
    if is_sound { used } else { used.max(most) }
}

/// What is reserved for an SA at least. Of an SA of the kernel's inbound numbers cost nothing either: a power cut ends it,
/// and counters that outlive the process are exact.
fn least(sa: &SaSpec, counters: &Cell) -> Amounts {
    let is_free = sa.params.direction == Direction::Out
        || sa.name.starts_with(keying::PREFIX) && matches!(counters, Cell::Mapped(_));
    let [soft, hard] = [&sa.params.soft, &sa.params.hard];
    let part = |limits: [Option<u64>; 2], least: u64, most: u64| {
        limits.into_iter().flatten().min().map_or(most, |limit| (limit / PART_OF_LIFE).clamp(least, most))
    };
    Amounts {
        sequence: if is_free { OUT_LEAST } else { IN_LEAST },
        packets: part([soft.packets, hard.packets], PACKETS_OF_LIFE, PACKETS_LEAST),
        bytes: part([soft.bytes, hard.bytes], BYTES_OF_LIFE, BYTES_LEAST),
    }
}

impl Entry {
    /// `before`: the sequence number that was reserved on disk; the record may say less where counters were exact.
    pub fn new(record: Record, before: u64) -> Entry {
        Entry { record, before, live: None }
    }

    /// The highest sequence number that is reserved for it: here, or where it was not used here, by an earlier life.
    pub fn reserved(&self) -> u64 {
        let before = if self.is_idle() { self.before } else { 0 };
        let (now, next) = (self.record.reserved.sequence, self.next_record().reserved.sequence);
        before.max(now).max(next)
    }

    /// Whether a number that somebody else has for it is one that was given out here as the end of what is reserved, and workers
    /// neither have more nor get more by the image under way.
    pub fn has_reserved(&self, number: u64) -> bool {
        let (now, next) = (self.record.reserved.sequence, self.next_record().reserved.sequence);
        let is_known = [self.before, now, next].contains(&number);
        let most = match &self.live {
            None => 0,
            Some(live) if live.windowless => next,
            Some(live) => live.granted.sequence.max(next),
        };
        is_known && number >= most
    }

    /// The state workers share, and the sequence number that is reserved up to once the image under way is written.
    pub fn planned(&self) -> Option<(&Arc<SaState>, u64)> {
        let live = self.live.as_ref().filter(|live| !live.windowless)?;
        Some((&live.state, self.next_record().reserved.sequence))
    }

    /// Its counters in mapped memory, where nobody else has them.
    pub fn into_counters(self) -> Option<&'static Counters> {
        Arc::into_inner(self.live?.state)?.into_mapped()
    }

    /// It goes on from what somebody else used of it; false where workers may have used, or taken, less.
    pub fn begin_behind(&mut self, used: Amounts) -> bool {
        if self.is_idle() {
            self.record.reserved = self.record.reserved.max(used);
            return true;
        }
        self.record.direction == Direction::Out && used.sequence <= self.reserved()
    }

    pub fn is_idle(&self) -> bool {
        self.live.is_none()
    }

    /// The SA's state, resumed where it is used in this life for the first time.
    pub fn start(
        &mut self,
        now: Nanos,
        wall: Nanos,
        sa: &SaSpec,
        counters: impl FnOnce() -> Cell,
    ) -> Arc<SaState> {
        let limits = [sa.params.soft, sa.params.hard];
        let ages = limits.iter().any(|l| l.seconds.is_some());
        let out = sa.params.direction == Direction::Out;
        let last = if out { esp::last_sequence(sa.params.esn) } else { u64::MAX };
        let windowless = !out && sa.params.replay_window == 0;
        if let Some(live) = &mut self.live {
            (live.ages, live.last, live.new) = (live.ages || ages, last, true);
            if std::mem::replace(&mut live.windowless, windowless) && !windowless {
                live.lower(0);
            }
            return live.state.clone();
        }
        let record = &self.record;
        let since = (wall / SECOND).checked_sub(record.installed).filter(|_| record.installed >= CLOCK_SET);
        let age = match since {
            Some(seconds) => seconds.saturating_mul(SECOND).max(record.age.saturating_sub(AGE_AHEAD)),
            None => record.age,
        };
        let before =
            Resumed { identity: record.identity, used: record.reserved, first_iv: record.first_iv, age };
        let counters = counters();
        let least = least(sa, &counters);
        let first = if least.sequence == IN_LEAST { IN_FIRST } else { least.sequence };
        let state = Arc::new(SaState::resumed(&sa.params, now, &before, counters));
        self.live = Some(Live {
            last,
            windowless,
            ages,
            granted: before.used,
            size: Amounts { sequence: first, ..least },
            least,
            seen: before.used,
            renewed: 0,
            next: None,
            new: true,
            behind: false,
            frozen: false,
            state: state.clone(),
        });
        state
    }

    /// Takes the measure of the last second.
    pub fn measure(&mut self) {
        let Some(live) = &mut self.live else { return };
        let used = live.state.amounts();
        let size = |used: u64, seen: u64, size: u64, least: u64| {
            (2 * used.saturating_sub(seen)).max(size / 2).clamp(least, MOST)
        };
        live.size = Amounts {
            sequence: size(used.sequence, live.seen.sequence, live.size.sequence, live.least.sequence),
            packets: size(used.packets, live.seen.packets, live.size.packets, live.least.packets),
            bytes: size(used.bytes, live.seen.bytes, live.size.bytes, live.least.bytes),
        };
        live.seen = used;
    }

    /// Whether it gets nothing more than is reserved for it.
    pub fn set_frozen(&mut self, frozen: bool) {
        if let Some(live) = &mut self.live {
            live.frozen = frozen;
        }
    }

    /// Whether it has to be written.
    pub fn asks(&self, now: Nanos, look: bool) -> bool {
        let Some(live) = self.live.as_ref().filter(|live| !live.frozen) else { return false };
        let (runs_short, too_much) = (live.runs_short(half), look && live.has_too_much());
        live.new || live.behind || runs_short.contains(&true) || too_much || live.has_aged(now, &self.record)
    }

    /// Plans what to write: more where less than three quarters are left, so that those who ask soon need not be
    /// written for alone; less where too much is reserved.
    pub fn plan(&mut self, now: Nanos, wall: Nanos, look: bool) {
        let record = &self.record;
        let Some(live) = self.live.as_mut().filter(|live| !live.frozen) else { return };
        let short = live.runs_short(half);
        let lowers = look && live.has_too_much();
        let asks = live.new
            || live.behind
            || lowers
            || live.runs_short(most).contains(&true)
            || live.has_aged(now, record);
        if !asks {
            return;
        }
        if !live.new && now.saturating_sub(live.renewed) < SECOND {
            live.grow(short);
        }
        if lowers {
            live.lower(live.size.sequence);
        }
        let used = live.used();
        let more = |granted: u64, used: u64, size: u64| granted.max(used.saturating_add(size));
        let mut granted = Amounts {
            sequence: more(live.granted.sequence, used.sequence, live.size.sequence).min(live.last),
            packets: more(live.granted.packets, used.packets, live.size.packets),
            bytes: more(live.granted.bytes, used.bytes, live.size.bytes),
        };
        let mut sequence = granted.sequence;
        if live.windowless {
            (granted.sequence, sequence) = (u64::MAX, used.sequence);
        }
        let ahead = if live.ages { AGE_AHEAD } else { 0 };
        let next = Record {
            reserved: Amounts {
                sequence,
                packets: granted.packets.saturating_add(SLACK_PACKETS),
                bytes: granted.bytes.saturating_add(SLACK_BYTES),
            },
            age: live.state.age(now).saturating_add(ahead),
            used: live.last_used(now, wall, record.used),
            ..record.clone()
        };
        live.next = Some((next, granted));
    }

    pub fn written(&mut self, now: Nanos, is_on_disk: bool) {
        let Some(live) = &mut self.live else { return };
        let Some((record, granted)) = live.next.take() else { return };
        live.behind = !is_on_disk;
        if is_on_disk {
            self.record = record;
            live.grant(now, granted);
        }
    }

    /// Reserves nothing beyond what was used.
    pub fn finish(&mut self, now: Nanos, wall: Nanos) {
        let Some(live) = &mut self.live else { return };
        live.next = None;
        let record = &mut self.record;
        record.used = live.last_used(now, wall, record.used);
        record.reserved = live.state.amounts();
        record.age = live.state.age(now);
    }

    /// What is on disk, or will be.
    pub fn next_record(&self) -> &Record {
        let next = self.live.as_ref().and_then(|live| live.next.as_ref());
        next.map_or(&self.record, |(record, _)| record)
    }
}

fn half(size: u64) -> u64 {
    size / 2
}

fn most(size: u64) -> u64 {
    size - size / 4
}

impl Live {
    /// What is used, and what would have been.
    fn used(&self) -> Amounts {
        let used = self.state.amounts();
        Amounts { sequence: used.sequence.max(self.state.lease.wanted()), ..used }
    }

    /// Whether `part` of a reservation or less is left: of sequence numbers, of packets, of bytes.
    fn runs_short(&self, part: fn(u64) -> u64) -> [bool; 3] {
        let (used, granted) = (self.used(), self.granted);
        let short = |used: u64, granted: u64, size: u64| granted.saturating_sub(used) <= part(size);
        [
            granted.sequence < self.last && short(used.sequence, granted.sequence, self.size.sequence),
            short(used.packets, granted.packets, self.size.packets),
            short(used.bytes, granted.bytes, self.size.bytes),
        ]
    }

    /// Inbound: more than twice of what is due is reserved.
    fn has_too_much(&self) -> bool {
        let (used, size) = (self.used().sequence, self.size.sequence);
        !self.windowless
            && self.last == u64::MAX
            && self.granted.sequence.saturating_sub(used) > size.saturating_mul(2)
    }

    fn has_aged(&self, now: Nanos, record: &Record) -> bool {
        self.ages && self.state.age(now).saturating_add(AGE_AHEAD / 2) > record.age
    }

    fn grow(&mut self, short: [bool; 3]) {
        let grown = |size: u64, short: bool| if short { (size * GROWTH).min(MOST) } else { size };
        self.size = Amounts {
            sequence: grown(self.size.sequence, short[0]),
            packets: grown(self.size.packets, short[1]),
            bytes: grown(self.size.bytes, short[2]),
        };
    }

    /// Leaves workers `rest` numbers, under the lock they take numbers under.
    fn lower(&mut self, rest: u64) {
        let replay = self.state.replay.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = replay.top().saturating_add(rest);
        self.state.lease.lower_sequence(limit);
        self.granted.sequence = limit;
    }

    fn grant(&mut self, now: Nanos, granted: Amounts) {
        let ask = Amounts {
            sequence: granted.sequence.saturating_sub(self.size.sequence / 2),
            packets: granted.packets.saturating_sub(self.size.packets / 2),
            bytes: granted.bytes.saturating_sub(self.size.bytes / 2),
        };
        // Where numbers have no end there is nothing to ask.
        let none = granted.sequence == u64::MAX || granted.sequence == self.last;
        let ask = if none { Amounts { sequence: u64::MAX, ..ask } } else { ask };
        self.state.lease.grant(granted, ask);
        (self.granted, self.renewed, self.new) = (granted, now, false);
    }

    /// Seconds since 1970.
    fn last_used(&self, now: Nanos, wall: Nanos, before: u64) -> u64 {
        let used = self.state.used.load(Relaxed);
        if used == 0 { before } else { (wall.saturating_sub(now.saturating_sub(used)) / SECOND).max(before) }
    }
}
