//! A security association: what is fixed about it, and what packets change.
//!
//! Snapshots share an SA: its state lives as long as some snapshot has it, so a rekey or a new route
//! loses no sequence number. Several workers may use one SA at a time; what they share is atomic, or
//! under a lock taken once a batch.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::cipher::{Cipher, Keys};
use super::durable::{Amounts, Cell, Counters, Identity, Lease};
use super::esp::Template;
use super::replay::Replay;
use super::suite::Suite;
use crate::time::Nanos;
use crate::verdict::Reason;

/// Which way an SA carries packets; every SA carries them one way (RFC 4301 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    In,
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A whole packet inside a new header.
    Tunnel,
    /// ESP between the packet's own header and its payload.
    Transport,
}

/// UDP encapsulation (RFC 3948).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpPorts {
    pub source: u16,
    pub destination: u16,
}

/// The DSCP of the outer header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dscp {
    #[default]
    Copy,
    Set(u8),
}

/// DF of an outer IPv4 header (RFC 4301 8.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Df {
    #[default]
    Copy,
    Set,
    Clear,
}

/// Where a packet that may be cut is cut when it does not fit: before sealing (the receiver reassembles
/// nothing), or after it (the peer gateway reassembles the outer packet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FragmentWhen {
    #[default]
    Before,
    After,
}

/// How long an SA may be used; what is `None` does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lifetime {
    pub bytes: Option<u64>,
    pub packets: Option<u64>,
    pub seconds: Option<u64>,
}

/// What is fixed about an SA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    pub direction: Direction,
    pub spi: u32,
    pub mode: Mode,
    /// Outer addresses in tunnel mode, the packets' own in transport mode.
    pub source: IpAddr,
    pub destination: IpAddr,
    pub suite: Suite,
    /// 64-bit sequence numbers, of which 32 are sent.
    pub esn: bool,
    /// Sequence numbers remembered: 0 (no protection), or 32…4096.
    pub replay_window: u16,
    pub udp: Option<UdpPorts>,
    pub dscp: Dscp,
    pub df: Df,
    pub fragment: FragmentWhen,
    /// TTL or hop limit of the outer header.
    pub hop_limit: u8,
    /// Reached: the operator (or a key exchange) is told to rekey.
    pub soft: Lifetime,
    /// Reached: the SA carries nothing more.
    pub hard: Lifetime,
}

impl Params {
    /// Makes an SA without ESN, UDP and lifetimes, with a window of 64 numbers (the default of RFC 4303 3.4.3) and
    /// TTL 64.
    pub fn new(
        direction: Direction,
        spi: u32,
        mode: Mode,
        (source, destination): (IpAddr, IpAddr),
        suite: Suite,
    ) -> Params {
        Params {
            direction,
            spi,
            mode,
            source,
            destination,
            suite,
            esn: false,
            replay_window: 64,
            udp: None,
            dscp: Dscp::Copy,
            df: Df::Copy,
            fragment: FragmentWhen::Before,
            hop_limit: 64,
            soft: Lifetime::default(),
            hard: Lifetime::default(),
        }
    }
}

/// An SA as wished for. Its keys print as their lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaSpec {
    pub name: String,
    pub params: Params,
    pub keys: Keys,
}

/// An SA of a snapshot: its number belongs to its name, as a port's does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaId(pub u32);

/// An SA in use.
#[derive(Debug)]
pub struct Sa {
    pub id: SaId,
    pub name: String,
    pub params: Params,
    pub cipher: Arc<dyn Cipher>,
    pub state: Arc<SaState>,
    /// Headers as its packets have them.
    pub template: Template,
}

impl Sa {
    pub fn new(id: SaId, name: String, params: Params, cipher: Arc<dyn Cipher>, state: Arc<SaState>) -> Sa {
        let template = Template::new(&params, state.first_iv);
        Sa { id, name, params, cipher, state, template }
    }
}

/// Reasons an SA counts by itself.
pub const COUNTED: [Reason; 14] = [
    Reason::Replayed,
    Reason::ReplayTooOld,
    Reason::IntegrityFailed,
    Reason::EspBadTrailer,
    Reason::PolicyMismatch,
    Reason::SaExpired,
    Reason::SequenceExhausted,
    Reason::SaUnreserved,
    Reason::FragmentNeeded,
    Reason::EspTooShort,
    Reason::EspDummy,
    Reason::EcnNotCapable,
    Reason::TransportFragment,
    Reason::FrameTooLarge,
];

/// What packets change about an SA; what must outlive the process is behind it as [`Counters`].
#[derive(Debug, Default)]
pub struct SaState {
    counters: Cell,
    /// How far [`Counters`] may go.
    pub lease: Lease,
    /// What is added to a sequence number to make its packet's IV. Random, and kept with the numbers: where
    /// they were kept no IV comes again, and where they were not it is unlikely.
    pub first_iv: u64,
    pub replay: Mutex<Replay>,
    failures: [AtomicU64; COUNTED.len()],
    /// When it was installed, and when a packet last used it.
    pub installed: AtomicU64,
    pub used: AtomicU64,
    /// How old it was when it was installed: processes before this one used it.
    pub age_before: Nanos,
    /// Path MTU learned for the outer packet, 0 when none was.
    pub path_mtu: AtomicU64,
    /// Time until which the learned MTU is believed.
    pub path_mtu_until: AtomicU64,
}

/// What an earlier process left of an SA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    pub identity: Identity,
    pub used: Amounts,
    pub first_iv: u64,
    pub age: Nanos,
}

impl Deref for SaState {
    type Target = Counters;

    #[inline(always)]
    fn deref(&self) -> &Counters {
        &self.counters
    }
}

impl SaState {
    pub fn new(params: &Params, now: Nanos) -> SaState {
        let state = SaState { replay: Mutex::new(Replay::new(params.replay_window)), ..SaState::default() };
        state.installed.store(now, Ordering::Relaxed);
        state
    }

    /// One that goes on where `before` stopped, counting in `counters`; it may carry nothing until its lease
    /// says so.
    pub fn resumed(params: &Params, now: Nanos, before: &Resumed, counters: Cell) -> SaState {
        counters.begin(&before.identity, before.used);
        let replay = match params.direction {
            Direction::In => Replay::resumed(params.replay_window, before.used.sequence),
            Direction::Out => Replay::new(params.replay_window),
        };
        let state = SaState {
            counters,
            lease: Lease::new(before.used),
            first_iv: before.first_iv,
            replay: Mutex::new(replay),
            age_before: before.age,
            ..SaState::default()
        };
        state.installed.store(now, Ordering::Relaxed);
        state
    }

    /// Its counters, where they are a file's: for another SA.
    pub fn into_mapped(self) -> Option<&'static Counters> {
        match self.counters {
            Cell::Mapped(counters) => Some(counters),
            Cell::Own(_) => None,
        }
    }

    /// Time since the SA was first used, in whatever process.
    pub fn age(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.installed.load(Ordering::Relaxed)).saturating_add(self.age_before)
    }

    #[must_use]
    pub fn with_first_iv(self, first_iv: u64) -> SaState {
        SaState { first_iv, ..self }
    }

    /// Gives the replay window another size; what was seen stays seen.
    pub fn resize_window(&self, size: u16) {
        // A poisoned lock was held by a test that failed; what it guards is whole after every step.
        let mut replay = self.replay.lock().unwrap_or_else(PoisonError::into_inner);
        if replay.size() != size {
            *replay = replay.resized(size);
        }
    }

    /// A copy that packets change by itself: to ask what would become of one.
    pub fn shadow(&self) -> SaState {
        let copy = |from: &AtomicU64| AtomicU64::new(from.load(Ordering::Relaxed));
        let replay = self.replay.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let counters = Counters::of(self.amounts());
        SaState {
            counters: Cell::Own(Box::new(counters)),
            first_iv: self.first_iv,
            replay: Mutex::new(replay),
            installed: copy(&self.installed),
            used: copy(&self.used),
            age_before: self.age_before,
            path_mtu: copy(&self.path_mtu),
            path_mtu_until: copy(&self.path_mtu_until),
            ..SaState::default()
        }
    }

    pub fn fail(&self, reason: Reason) {
        if let Some(at) = COUNTED.iter().position(|&r| r == reason) {
            self.failures[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn failures(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        COUNTED.iter().zip(&self.failures).map(|(&r, n)| (r, n.load(Ordering::Relaxed)))
    }
}
