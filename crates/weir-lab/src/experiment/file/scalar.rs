//! Single values of an experiment's file, each a type with its check, so that what a wrong one is told names its line.

use std::fmt;

use serde::Deserialize as DeriveDeserialize;
use serde::de::{self, Deserialize, Deserializer};
use weir_core::ipsec::flow_cache::BUCKETS_MAX;
use weir_stats::search::Rate;
use weir_stats::search::sweep::Step;

use super::super::{metric, placement};
use crate::model::FrameSize;
use crate::model::ipsec::{CipherName, POLICIES_MAX};
use crate::model::nic_modes::HELD;
use crate::model::relay::{UNDER_WAY, WORKERS_MAX};
use crate::model::spd::{CHURN_MAX, RuleSet};
use crate::workload::{MEMORY_FLOWS_MAX, address::ROUTES_MAX};

/// Blocks; beyond it a campaign at 5 s a run takes longer than a day.
const RUNS_MAX: i64 = 10_000;
/// Slices of a run: at the shortest, a window of ten seconds.
const SLICES_MAX: i64 = 10_000;
/// 10 Tb/s: beyond any port.
const MBPS_MAX: i64 = 10_000_000;
/// Profiled runs of a configuration: shares to a tenth of a percent need no more.
const PROFILES_MAX: i64 = 100;
/// Queues of a device: as many as the lab's largest machines have cores.
const QUEUES_MAX: i64 = 64;
/// An hour: longer windows hide drift inside a run.
const DURATION_MAX_MS: f64 = 3_600_000.0;

/// A TOML scalar before it is checked.
#[derive(DeriveDeserialize)]
#[serde(untagged)]
enum Scalar {
    Integer(i64),
    Float(f64),
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Integer(value) => value.fmt(f),
            Scalar::Float(value) => value.fmt(f),
            Scalar::Text(value) => write!(f, "\"{value}\""),
        }
    }
}

/// A checked scalar: its type, what it holds, what is expected, and the check.
macro_rules! checked {
    ($($(#[$doc:meta])* $name:ident($inner:ty), $expected:expr, $check:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name(pub $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let expected = || -> String { $expected.into() };
                // A key that is missing is told as that.
                let value = toml::Value::deserialize(deserializer)?;
                let scalar = Scalar::deserialize(value)
                    .map_err(|_| de::Error::custom(format!("not a single value, expected {}", expected())))?;
                let check: fn(&Scalar) -> Option<$inner> = $check;
                check(&scalar)
                    .map($name)
                    .ok_or_else(|| de::Error::custom(format!("got {scalar}, expected {}", expected())))
            }
        }
    )*};
}

fn within(scalar: &Scalar, low: i64, high: i64) -> Option<i64> {
    match scalar {
        Scalar::Integer(n) if (low..=high).contains(n) => Some(*n),
        _ => None,
    }
}

fn word(scalar: &Scalar) -> Option<&str> {
    if let Scalar::Text(text) = scalar { Some(text) } else { None }
}

fn one_of(scalar: &Scalar, words: &[&str]) -> Option<String> {
    word(scalar).filter(|w| words.contains(w)).map(str::to_string)
}

checked! {
    /// A known metric.
    MetricName(String), format!("one of {}, latency_<share>_ns_<percentile>", metric::KNOWN.join(", ")), |s| {
        word(s).filter(|w| metric::is_known(w)).map(str::to_string)
    };
    /// Blocks.
    Runs(usize), format!("a number of runs from 1 to {RUNS_MAX}"), |s| within(s, 1, RUNS_MAX).map(|n| n as usize);
    /// Slices of a run.
    Slices(usize), format!("a number of slices from 2 to {SLICES_MAX}"), |s| {
        within(s, 2, SLICES_MAX).map(|n| n as usize)
    };
    /// Profiled runs.
    Profiles(usize), format!("a number of profiled runs from 0 to {PROFILES_MAX}"), |s| {
        within(s, 0, PROFILES_MAX).map(|n| n as usize)
    };
    /// Milliseconds, written with their unit.
    Millis(u64), "a duration with its unit, such as \"500ms\" or \"2s\", up to an hour", |s| word(s).and_then(millis);
    /// Percent of the reference.
    Margin(f64), "a percentage above 0 and below 100", |s| match s {
        Scalar::Integer(n) if (1..100).contains(n) => Some(*n as f64),
        Scalar::Float(f) if *f > 0.0 && *f < 100.0 => Some(*f),
        _ => None,
    };
    /// Percent, zero included.
    Percent(f64), "a percentage from 0 to below 100", |s| match s {
        Scalar::Integer(n) if (0..100).contains(n) => Some(*n as f64),
        Scalar::Float(f) if *f >= 0.0 && *f < 100.0 => Some(*f),
        _ => None,
    };
    /// Packets a second.
    Speed(u64), "packets a second above 0", |s| within(s, 1, i64::MAX).map(|n| n as u64);
    /// Megabits a second.
    Megabits(u64), format!("megabits a second from 4 to {MBPS_MAX}"), |s| within(s, 4, MBPS_MAX).map(|n| n as u64);
    /// Repeats inside a run.
    Repeats(usize), "a number of repeats from 1 to 1000", |s| within(s, 1, 1000).map(|n| n as usize);
    /// A rate of a sweep.
    StepRate(Step), "packets a second, or a share of what comes through flat out such as \"50%\"", |s| match s {
        Scalar::Text(text) => {
            let percent = text.strip_suffix('%')?.trim().parse::<f64>().ok()?;
            (percent > 0.0 && percent <= 1000.0).then_some(Step::Percent(percent))
        }
        s => within(s, 1, i64::MAX).map(|n| Step::Pps(n as u64)),
    };
    /// Bytes with FCS, or the mix.
    Frame(FrameSize), "a frame size with FCS from 64 to 1518, or \"imix\"", |s| match s {
        Scalar::Text(text) if text == "imix" => Some(FrameSize::Imix),
        s => within(s, 64, 1518).map(|n| FrameSize::Fixed(n as u16)),
    };
    /// Distinct flows; elsewhere than in memory no more than a mark can name.
    Flows(u32), format!("a number of flows from 1 to {MEMORY_FLOWS_MAX}"), |s| {
        within(s, 1, i64::from(MEMORY_FLOWS_MAX)).map(|n| n as u32)
    };
    /// Packets of a TCP connection, its first three and last three among them.
    ConnectionPackets(u32), "an even number of packets from 8 to 10000", |s| {
        within(s, 8, 10_000).filter(|n| n % 2 == 0).map(|n| n as u32)
    };
    /// Installed routes.
    Routes(u32), format!("a number of routes from 1 to {ROUTES_MAX}"), |s| {
        within(s, 1, i64::from(ROUTES_MAX)).map(|n| n as u32)
    };
    /// Packets a second.
    Pace(Rate), "\"flat-out\" or packets a second, such as 100_000", |s| match s {
        Scalar::Text(text) if text == "flat-out" => Some(Rate::FlatOut),
        s => within(s, 1, i64::MAX).map(|n| Rate::Pps(n as u64)),
    };
    /// A placement by name or list.
    Cpus(String), placement::WORDS, |s| word(s).filter(|w| placement::is_word(w)).map(str::to_string);
    /// A suite by its name.
    Cipher(CipherName), CipherName::expected(), |s| word(s).and_then(CipherName::named);
    /// Entries of a flow cache.
    Buckets(u32), format!("a number of buckets from 1 to {BUCKETS_MAX}"), |s| {
        within(s, 1, i64::from(BUCKETS_MAX)).map(|n| n as u32)
    };
    /// A synthetic set of rules by its name.
    Rules(RuleSet), RuleSet::expected(), |s| word(s).and_then(RuleSet::named);
    /// Changes of policies a second.
    Churn(u32), format!("policies changed a second from 0 to {CHURN_MAX}"), |s| {
        within(s, 0, i64::from(CHURN_MAX)).map(|n| n as u32)
    };
    /// Rules of an SPD.
    Policies(u32), format!("a number of policies from 1 to {POLICIES_MAX}"), |s| {
        within(s, 1, i64::from(POLICIES_MAX)).map(|n| n as u32)
    };
    /// Packets of a pair under way.
    UnderWay(u32), format!("a number of packets from 1 to {UNDER_WAY}"), |s| {
        within(s, 1, i64::from(UNDER_WAY)).map(|n| n as u32)
    };
    /// Workers of a relay.
    Workers(u32), format!("a number of workers from 1 to {WORKERS_MAX}"), |s| {
        within(s, 1, i64::from(WORKERS_MAX)).map(|n| n as u32)
    };
    /// Sequence numbers remembered (RFC 4303 3.4.3).
    Window(u16), "0 for no replay protection, or a window from 32 to 4096", |s| {
        within(s, 0, 4096).filter(|n| *n == 0 || *n >= 32).map(|n| n as u16)
    };
    /// The folder of a build beside this program's.
    BuildName(String), "\"default\" or the name of a build's folder below `target`, without slashes", |s| {
        word(s).filter(|w| is_folder(w)).map(str::to_string)
    };
    /// Queues of a device.
    Queues(u32), format!("a number of queues from 1 to {QUEUES_MAX}"), |s| {
        within(s, 1, QUEUES_MAX).map(|n| n as u32)
    };
    /// How the daemon's workers wake up.
    WakeUp(String), "\"auto\", \"busy-poll\" or \"interrupt\"", |s| one_of(s, &["auto", "busy-poll", "interrupt"]);
    /// Whether cards read and write the daemon's buffers themselves.
    ZeroCopy(String), "\"auto\", \"off\" or \"require\"", |s| one_of(s, &["auto", "off", "require"]);
    /// Where the daemon's XDP program runs: in the driver, or behind it.
    Xdp(String), "\"auto\", \"native\" or \"generic\"", |s| one_of(s, &["auto", "native", "generic"]);
    /// Whether the daemon does what it may do.
    OffOrAuto(String), "\"auto\" or \"off\"", |s| one_of(s, &["auto", "off"]);
    /// Which CPUs take the interrupts of the daemon's queues: its workers', or those that have them.
    AutoOrLeave(String), "\"auto\" or \"leave\"", |s| one_of(s, &["auto", "leave"]);
    /// Whether receive interrupts are held back while frames are many: by the daemon, or all the time, of a SUT that does not.
    Moderation(String), "\"auto\", \"off\" or \"held\"", |s| one_of(s, &["auto", "off", HELD]);
    /// Offloads of the wires between gateways and their hosts.
    Offload(bool), "\"inner\" or \"off\"", |s| match word(s)? {
        "inner" => Some(true),
        "off" => Some(false),
        _ => None,
    };
    /// What the kernel's netem does to packets, each way.
    Netem(String), "\"off\", or netem's words for `delay` and `loss`, such as \"delay 20ms loss 0.1%\"", |s| {
        word(s).and_then(netem)
    };
    /// The port kind of the daemon.
    Port(String), "\"af_xdp\", \"af_packet\" or, between gateways, \"tun\"", |s| {
        one_of(s, &["af_xdp", "af_packet", "tun"])
    };
}

fn is_folder(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

/// `delay-20ms-loss-0.1` as part of a name; `none` where there is nothing.
pub fn netem_label(words: &str, none: &str) -> String {
    if words.is_empty() { none.into() } else { words.replace(' ', "-").replace('%', "") }
}

/// Nothing for `off`; otherwise the words, of which `delay` and `loss` are known.
fn netem(words: &str) -> Option<String> {
    if words == "off" {
        return Some(String::new());
    }
    let parts: Vec<&str> = words.split(' ').collect();
    let number = |text: &str| text.parse::<f64>().is_ok_and(|n| n >= 0.0);
    let known = parts.chunks(2).all(|pair| match pair {
        ["delay", time] => time.strip_suffix("ms").is_some_and(number),
        ["loss", share] => share.strip_suffix('%').is_some_and(number),
        _ => false,
    });
    known.then(|| words.to_string())
}

impl Default for Cipher {
    /// What every machine and every peer has.
    fn default() -> Self {
        Cipher(CipherName(weir_core::ipsec::Suite::AES_GCM_128))
    }
}

impl Default for Margin {
    /// What the field rounds away: two campaigns of one configuration differ by about as much.
    fn default() -> Self {
        Margin(1.0)
    }
}

pub fn millis(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "ms" => 1.0,
        "s" => 1e3,
        "min" => 60e3,
        _ => return None,
    };
    let value = digits.trim().parse::<f64>().ok()? * factor;
    (0.0..=DURATION_MAX_MS).contains(&value).then_some(value as u64)
}
