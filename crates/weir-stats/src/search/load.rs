//! What a source is asked to send, and where the packets went.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The load a source is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    FlatOut,
    /// Packets a second, paced without bursts.
    Pps(u64),
    /// This many packets, back to back, as fast as the source can; the window does not matter.
    Burst(u32),
}

/// Packet accounting: intended → offered → sent → each drop counter → delivered.
///
/// `sent = delivered + Σ drops + unaccounted`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossLedger {
    /// What the rate asked for (equal to offered when flat out).
    pub intended: u64,
    /// What the generator built and tried to send.
    pub offered: u64,
    /// What its kernel took.
    pub sent: u64,
    /// Drops by counter, named `where.reason` (`weir.no_route`, `dut-in.rx_dropped`).
    pub drops: BTreeMap<String, u64>,
    pub delivered: u64,
}

impl LossLedger {
    /// Packets no counter explains: sent − delivered − Σ drops.
    pub fn unaccounted(&self) -> i64 {
        self.sent as i64 - self.delivered as i64 - self.drops.values().sum::<u64>() as i64
    }

    pub fn add(&mut self, more: &LossLedger) {
        self.intended += more.intended;
        self.offered += more.offered;
        self.sent += more.sent;
        self.delivered += more.delivered;
        for (counter, n) in &more.drops {
            *self.drops.entry(counter.clone()).or_default() += n;
        }
    }
}
