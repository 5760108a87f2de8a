//! The TOML form of an experiment, checked value by value.
//!
//! Every check that needs one value only sits in that value's type, so that the parser knows the line.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use toml::Spanned;

pub use scalar::*;

use super::answer::AnswerSpec;
use super::error::{ExperimentError, Location, Refused};
use super::hosts::{Commands, Hosts};
use super::ipsec::IpsecShape;
use super::method::Written;
use super::relay::RelayShape;
use crate::model::{Configuration, Family, FirewallRules, FrameSize, Sut, Topology};
use weir_stats::Analysis;
use weir_stats::search::Rate;

mod scalar;

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
    pub xdp: Option<Many<Xdp>>,
    pub flow_offload: Option<Many<OffOrAuto>>,
    pub live_transmit: Option<Many<OffOrAuto>>,
    pub irq: Option<Many<AutoOrLeave>>,
    pub nice: Option<Many<AutoOrLeave>>,
    pub moderation: Option<Many<Moderation>>,
    pub offload: Option<Many<Offload>>,
    pub netem: Option<Many<Netem>>,
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
    Xdp,
    FlowOffload,
    LiveTransmit,
    Irq,
    Nice,
    Moderation,
    Offload,
    Netem,
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
    pub const ALL: [Axis; 41] = [
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
        Axis::Xdp,
        Axis::FlowOffload,
        Axis::LiveTransmit,
        Axis::Irq,
        Axis::Nice,
        Axis::Moderation,
        Axis::Offload,
        Axis::Netem,
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
            Axis::Xdp => "xdp",
            Axis::FlowOffload => "flow_offload",
            Axis::LiveTransmit => "live_transmit",
            Axis::Irq => "irq",
            Axis::Nice => "nice",
            Axis::Moderation => "moderation",
            Axis::Offload => "offload",
            Axis::Netem => "netem",
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
            Axis::WakeUp
            | Axis::ZeroCopy
            | Axis::Xdp
            | Axis::FlowOffload
            | Axis::LiveTransmit
            | Axis::Irq
            | Axis::Nice => {
                let mut named = c.nic_modes()?.of_weir();
                named.find(|(key, _)| *key == self.key()).map(|(_, word)| word.to_string())
            }
            Axis::Moderation => {
                c.nic_modes().map(|modes| modes.moderation.clone()).filter(|word| !word.is_empty())
            }
            Axis::Offload => c.offload().then(|| "inner".into()),
            Axis::Netem => Some(c.netem().to_string()).filter(|words| !words.is_empty()),
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
