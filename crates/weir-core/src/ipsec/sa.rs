//! A security association: what is fixed about it, and what packets change.
//!
//! Snapshots share an SA: its state lives as long as some snapshot has it, so a rekey or a new route
//! loses no sequence number. Several workers may use one SA at a time; what they share is atomic, or
//! under a lock taken once a batch.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::cipher::{Cipher, Keys};
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
    /// Without ESN, UDP and lifetimes; a window of 64 numbers (the default of RFC 4303 3.4.3), TTL 64.
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
pub const COUNTED: [Reason; 13] = [
    Reason::Replayed,
    Reason::ReplayTooOld,
    Reason::IntegrityFailed,
    Reason::EspBadTrailer,
    Reason::PolicyMismatch,
    Reason::SaExpired,
    Reason::SequenceExhausted,
    Reason::FragmentNeeded,
    Reason::EspTooShort,
    Reason::EspDummy,
    Reason::EcnNotCapable,
    Reason::TransportFragment,
    Reason::FrameTooLarge,
];

/// What packets change about an SA.
#[derive(Debug, Default)]
pub struct SaState {
    /// The last sequence number given out (outbound).
    pub sequence: AtomicU64,
    /// What is added to a sequence number to make its packet's IV. Random, so that a key that outlives its
    /// SA (a restart begins at sequence number 1 again) does not meet an IV of before.
    pub first_iv: u64,
    pub replay: Mutex<Replay>,
    pub packets: AtomicU64,
    /// Of inner packets.
    pub bytes: AtomicU64,
    failures: [AtomicU64; COUNTED.len()],
    /// When it was installed, and when a packet last used it.
    pub installed: AtomicU64,
    pub used: AtomicU64,
    /// Path MTU learned for the outer packet, 0 when none was.
    pub path_mtu: AtomicU64,
    /// Until when the learned MTU is believed.
    pub path_mtu_until: AtomicU64,
}

impl SaState {
    pub fn new(params: &Params, now: Nanos) -> SaState {
        let state = SaState { replay: Mutex::new(Replay::new(params.replay_window)), ..SaState::default() };
        state.installed.store(now, Ordering::Relaxed);
        state
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
        SaState {
            sequence: copy(&self.sequence),
            first_iv: self.first_iv,
            replay: Mutex::new(replay),
            packets: copy(&self.packets),
            bytes: copy(&self.bytes),
            installed: copy(&self.installed),
            used: copy(&self.used),
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
