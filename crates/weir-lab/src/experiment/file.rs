//! The TOML form of an experiment, checked value by value.
//!
//! Every check that needs one value only sits in that value's type, so that the parser knows the line.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use toml::Spanned;
use weir_core::ipsec::flow_cache::BUCKETS_MAX;

use super::answer::AnswerSpec;
use super::error::{ExperimentError, Location, Refused};
use super::hosts::{Commands, Hosts};
use super::ipsec::IpsecShape;
use super::method::Written;
use super::relay::RelayShape;
use super::{metric, placement};
use crate::model::ipsec::{CipherName, POLICIES_MAX};
use crate::model::relay::{UNDER_WAY, WORKERS_MAX};
use crate::model::spd::{CHURN_MAX, RuleSet};
use crate::model::{Configuration, Family, FirewallRules, FrameSize, Sut, Topology};
use crate::workload::{MEMORY_FLOWS_MAX, address::ROUTES_MAX};
use weir_stats::Analysis;
use weir_stats::search::Rate;
use weir_stats::search::sweep::Step;

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

#[derive(DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub title: String,
    pub question: String,
    /// The metric compared; the method's own without it.
    pub metric: Option<MetricName>,
    pub runs: Runs,
    pub warm_up: Millis,
    pub window: Millis,
    /// How many slices a run is cut into.
    pub slices: Option<Spanned<Slices>>,
    /// What one run is: a trial, or a search.
    pub method: Option<Spanned<Written>>,
    #[serde(default)]
    pub margin_percent: Margin,
    /// The test that decides.
    #[serde(default)]
    pub analysis: Analysis,
    /// Profiled runs a configuration, after the measured ones.
    pub profile: Option<Profiles>,
    /// The configuration all others are compared with.
    pub reference: Option<Spanned<String>>,
    /// The pairs to compare, in each list the reference first.
    #[serde(default)]
    pub pairs: Vec<Spanned<Vec<String>>>,
    /// The parameter to compare along, everything else being equal.
    pub compare: Option<Spanned<Axis>>,
    /// What plots have along their bottom.
    pub axis: Option<Axis>,
    /// Measure generator and sink without a SUT, for every traffic.
    #[serde(default)]
    pub baseline: bool,
    /// Measure the reference of each pair twice a block.
    #[serde(default)]
    pub control: bool,
    #[serde(default)]
    pub defaults: Shape,
    pub configuration: Vec<Spanned<Shape>>,
    #[serde(default)]
    pub quick: Quick,
    /// The machines of the `ssh` topology.
    pub hosts: Option<Spanned<Hosts>>,
    /// What is said of the values.
    #[serde(default)]
    pub answer: Vec<Spanned<AnswerSpec>>,
}

/// A configuration, or several when values are lists.
#[derive(Clone, Default, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// `{family}`, `{frame}` … stand for the values of lists.
    pub name: Option<String>,
    /// `subject` in experiments of before.
    #[serde(alias = "subject")]
    pub sut: Option<Many<Sut>>,
    pub topology: Option<Many<Topology>>,
    pub family: Option<Many<Family>>,
    pub frame: Option<Many<Frame>>,
    pub flows: Option<Many<Flows>>,
    pub routes: Option<Many<Routes>>,
    pub rate: Option<Many<Pace>>,
    pub cpus: Option<Many<Cpus>>,
    pub generator_cpus: Option<Many<Cpus>>,
    pub port: Option<Many<Port>>,
    pub queues: Option<Many<Queues>>,
    pub wake_up: Option<Many<WakeUp>>,
    pub zero_copy: Option<Many<ZeroCopy>>,
    pub flow_offload: Option<Many<OffOrAuto>>,
    pub live_transmit: Option<Many<OffOrAuto>>,
    pub irq: Option<Many<Irq>>,
    pub offload: Option<Many<Offload>>,
    pub firewall: Option<Many<FirewallRules>>,
    pub connection_packets: Option<Many<ConnectionPackets>>,
    /// What stands between the ports of the memory topology.
    pub ipsec: Option<IpsecShape>,
    /// The table of the relay topology.
    pub relay: Option<RelayShape>,
    /// Which build of the lab runs the memory topology.
    pub build: Option<Many<BuildName>>,
    /// What the SUT `command` is.
    pub command: Option<Commands>,
}

/// The smoke values: what `--quick` puts in place.
#[derive(Default, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    pub runs: Option<Runs>,
    pub warm_up: Option<Millis>,
    pub window: Option<Millis>,
    pub slices: Option<Slices>,
    pub frame: Option<Many<Frame>>,
    pub flows: Option<Many<Flows>>,
    pub routes: Option<Many<Routes>>,
    pub rate: Option<Many<Pace>>,
    /// Smoke values of the table `ipsec`: `policies`, `match`, `rules`, `buckets` and `churn`.
    pub ipsec: Option<IpsecShape>,
    /// Values in place of the method's own.
    pub method: Option<Written>,
}

/// A parameter configurations can differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, DeriveDeserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    #[serde(alias = "subject")]
    Sut,
    Topology,
    Family,
    Frame,
    Flows,
    Routes,
    Rate,
    Cpus,
    GeneratorCpus,
    Port,
    Queues,
    WakeUp,
    ZeroCopy,
    FlowOffload,
    LiveTransmit,
    Irq,
    Offload,
    Firewall,
    ConnectionPackets,
    Build,
    Mode,
    Direction,
    Cipher,
    Backend,
    Policies,
    Outer,
    Lookup,
    Buckets,
    Match,
    Rules,
    Action,
    Churn,
    Tls,
    Load,
    Workers,
    UnderWay,
    Stalled,
}

impl Axis {
    pub const ALL: [Axis; 37] = [
        Axis::Sut,
        Axis::Topology,
        Axis::Family,
        Axis::Frame,
        Axis::Flows,
        Axis::Routes,
        Axis::Rate,
        Axis::Cpus,
        Axis::GeneratorCpus,
        Axis::Port,
        Axis::Queues,
        Axis::WakeUp,
        Axis::ZeroCopy,
        Axis::FlowOffload,
        Axis::LiveTransmit,
        Axis::Irq,
        Axis::Offload,
        Axis::Firewall,
        Axis::ConnectionPackets,
        Axis::Build,
        Axis::Mode,
        Axis::Direction,
        Axis::Cipher,
        Axis::Backend,
        Axis::Policies,
        Axis::Outer,
        Axis::Lookup,
        Axis::Buckets,
        Axis::Match,
        Axis::Rules,
        Axis::Action,
        Axis::Churn,
        Axis::Tls,
        Axis::Load,
        Axis::Workers,
        Axis::UnderWay,
        Axis::Stalled,
    ];

    /// Its key in the file.
    pub fn key(self) -> &'static str {
        match self {
            Axis::Sut => "sut",
            Axis::Topology => "topology",
            Axis::Family => "family",
            Axis::Frame => "frame",
            Axis::Flows => "flows",
            Axis::Routes => "routes",
            Axis::Rate => "rate",
            Axis::Cpus => "cpus",
            Axis::GeneratorCpus => "generator_cpus",
            Axis::Port => "port",
            Axis::Queues => "queues",
            Axis::WakeUp => "wake_up",
            Axis::ZeroCopy => "zero_copy",
            Axis::FlowOffload => "flow_offload",
            Axis::LiveTransmit => "live_transmit",
            Axis::Irq => "irq",
            Axis::Offload => "offload",
            Axis::Firewall => "firewall",
            Axis::ConnectionPackets => "connection_packets",
            Axis::Build => "build",
            Axis::Mode => "mode",
            Axis::Direction => "direction",
            Axis::Cipher => "cipher",
            Axis::Backend => "backend",
            Axis::Policies => "policies",
            Axis::Outer => "outer",
            Axis::Lookup => "lookup",
            Axis::Buckets => "buckets",
            Axis::Match => "match",
            Axis::Rules => "rules",
            Axis::Action => "action",
            Axis::Churn => "churn",
            Axis::Tls => "tls",
            Axis::Load => "load",
            Axis::Workers => "workers",
            Axis::UnderWay => "under_way",
            Axis::Stalled => "stalled",
        }
    }

    /// Where a configuration stands on it; the mix has no size.
    pub fn number(self, c: &Configuration) -> Option<f64> {
        match self {
            Axis::Frame => match c.workload.frame {
                FrameSize::Fixed(bytes) => Some(f64::from(bytes)),
                FrameSize::Imix => None,
            },
            Axis::Flows => Some(f64::from(c.workload.flows)),
            Axis::ConnectionPackets => c.connection_packets().map(f64::from),
            Axis::Routes => Some(f64::from(c.routes)),
            Axis::Rate => match c.workload.rate {
                Rate::Pps(pps) => Some(pps as f64),
                Rate::FlatOut | Rate::Burst(_) => None,
            },
            Axis::Policies => c.ipsec().map(|i| f64::from(i.policies)),
            Axis::Buckets => c.ipsec().map(|i| f64::from(i.spd.buckets)),
            Axis::Match => c.ipsec().and_then(|i| i.spd.matching).map(f64::from),
            Axis::Churn => c.ipsec().map(|i| f64::from(i.spd.churn)),
            Axis::Workers => c.relay().map(|r| f64::from(r.workers)),
            Axis::Queues => Some(c.queues()).filter(|q| *q > 0).map(f64::from),
            Axis::UnderWay => c.relay().map(|r| f64::from(r.under_way)),
            Axis::Stalled => c.relay().map(|r| f64::from(r.stalled)),
            _ => None,
        }
    }
}

impl Axis {
    /// The word a configuration has on it; `None` where it has a number, or nothing.
    pub fn word(self, c: &Configuration) -> Option<String> {
        match self {
            Axis::Build => c.build().map(str::to_string),
            Axis::WakeUp | Axis::ZeroCopy | Axis::FlowOffload | Axis::LiveTransmit | Axis::Irq => {
                let mut named = c.nic_modes()?.of_weir();
                named.find(|(key, _)| *key == self.key()).map(|(_, word)| word.to_string())
            }
            Axis::Offload => c.offload().then(|| "inner".into()),
            Axis::Mode => c.ipsec().map(|i| super::kebab(&i.mode)),
            Axis::Direction => c.ipsec().map(|i| super::kebab(&i.direction)),
            Axis::Cipher => c.ipsec().map(|i| i.cipher.to_string()),
            Axis::Backend => c.ipsec().map(|i| super::kebab(&i.backend)),
            Axis::Outer => c.ipsec().map(|i| super::kebab(&i.outer)),
            Axis::Lookup => c.ipsec().map(|i| super::kebab(&i.spd.lookup)),
            Axis::Rules => c.ipsec().and_then(|i| i.spd.rules).map(|r| r.to_string()),
            Axis::Action => c.ipsec().map(|i| super::kebab(&i.spd.action)),
            Axis::Tls => c.relay().map(|r| super::kebab(&r.tls)),
            Axis::Load => c.relay().map(|r| super::kebab(&r.load)),
            _ => None,
        }
    }
}

pub fn parse(shown: &str, source: &str) -> Result<File, Refused> {
    toml::from_str(source).map_err(|e| Refused {
        location: Some(Location::of(shown, source, e.span())),
        // the word of before is read, not proposed
        error: ExperimentError::Toml(e.message().replace('\n', ", ").replace("`subject`, ", "")).into(),
    })
}

/// A value or a list of values.
#[derive(Clone, Debug, PartialEq)]
pub enum Many<T> {
    One(T),
    List(Vec<T>),
}

impl<T: Clone> Many<T> {
    pub fn values(&self) -> Vec<T> {
        match self {
            Many::One(value) => vec![value.clone()],
            Many::List(values) => values.clone(),
        }
    }

    pub fn is_list(&self) -> bool {
        matches!(self, Many::List(_))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ManyVisitor(PhantomData))
    }
}

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Many<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Many<T>, E> {
        T::deserialize(value.into_deserializer()).map(Many::One)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Many<T>, E> {
        T::deserialize(value.into_deserializer()).map(Many::One)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Many<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        if values.is_empty() {
            return Err(de::Error::custom("the list is empty, expected at least one value: name one"));
        }
        Ok(Many::List(values))
    }
}

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
    /// Whether the daemon does what it may do.
    OffOrAuto(String), "\"auto\" or \"off\"", |s| one_of(s, &["auto", "off"]);
    /// Which CPUs take the interrupts of the daemon's queues: its workers', or those that have them.
    Irq(String), "\"auto\" or \"leave\"", |s| one_of(s, &["auto", "leave"]);
    /// Offloads of the wires between gateways and their hosts.
    Offload(bool), "\"inner\" or \"off\"", |s| match word(s)? {
        "inner" => Some(true),
        "off" => Some(false),
        _ => None,
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
