//! The `method` key: a word, or a table whose keys belong to its kind.
//!
//! ```text
//! method = "ndr-pdr"                                    [method]
//!                                                       kind = "ndr-pdr"
//!                                                       sum = "4s"
//! ```
//!
//! Promises: defaults are those of the RFCs, scaled to the file's `window`; smoke values shorten every search.
//! Refuses: a key of another kind, a goal no trial could meet.

use std::fmt;

use serde::Deserialize as DeriveDeserialize;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

use super::error::MethodError;
use super::file::{Megabits, Millis, Percent, Repeats, Speed, StepRate};
use crate::method::{Bounds, Method};
use weir_stats::search::goal::Goal;
use weir_stats::search::sweep::Step;

/// RFC 9971's example of a goal compliant with ETSI TST 009: a load may be tried twice, once of two may exceed.
const SUM_WINDOWS: f64 = 2.0;
const EXCEED_PERCENT: f64 = 50.0;
/// The PDR of the field's continuous tests, and the width that must not lie below it.
const LOSS_PERCENT: f64 = 0.5;
const WIDTH_PERCENT: f64 = 0.5;
/// RFC 2544, 26.4.
const REPEATS: usize = 50;
const LONGEST_MS: u64 = 2_000;
/// Ten steps to what comes through flat out and two beyond.
const SWEEP_PERCENT: [f64; 12] = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0, 125.0];
const SHARES: [f64; 3] = [10.0, 50.0, 90.0];
/// Smoke values.
const QUICK_WIDTH_PERCENT: f64 = 10.0;
const QUICK_REPEATS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, DeriveDeserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Mrr,
    Fixed,
    Sweep,
    NdrPdr,
    Equilibrium,
    BackToBack,
    Latency,
}

/// A method's keys as the file has them.
#[derive(Clone, Default)]
pub struct Written(Table);

#[derive(Clone, Default, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    kind: Option<Kind>,
    initial: Option<Millis>,
    sum: Option<Millis>,
    exceed_percent: Option<Percent>,
    loss_percent: Option<Percent>,
    width_percent: Option<Percent>,
    min_pps: Option<Speed>,
    max_pps: Option<Speed>,
    rates: Option<Vec<StepRate>>,
    shares_percent: Option<Vec<Percent>>,
    line_mbps: Option<Megabits>,
    repeats: Option<Repeats>,
    longest: Option<Millis>,
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a method's name such as \"ndr-pdr\", or a table with its `kind`")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Written, E> {
                let kind = Kind::deserialize(de::value::StrDeserializer::new(word))?;
                Ok(Written(Table { kind: Some(kind), ..Table::default() }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Written, A::Error> {
                Table::deserialize(MapAccessDeserializer::new(map)).map(Written)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl Written {
    /// Takes the values of `over` in place of its own.
    fn overlaid(self, over: Written) -> Result<Written, MethodError> {
        let (own, over) = (self.0, over.0);
        if over.kind.is_some_and(|k| Some(k) != own.kind) {
            return Err(MethodError::QuickKind);
        }
        Ok(Written(Table {
            kind: own.kind,
            initial: over.initial.or(own.initial),
            sum: over.sum.or(own.sum),
            exceed_percent: over.exceed_percent.or(own.exceed_percent),
            loss_percent: over.loss_percent.or(own.loss_percent),
            width_percent: over.width_percent.or(own.width_percent),
            min_pps: over.min_pps.or(own.min_pps),
            max_pps: over.max_pps.or(own.max_pps),
            rates: over.rates.or(own.rates),
            shares_percent: over.shares_percent.or(own.shares_percent),
            line_mbps: over.line_mbps.or(own.line_mbps),
            repeats: over.repeats.or(own.repeats),
            longest: over.longest.or(own.longest),
        }))
    }

    /// Durations and counts that take long, taken out, so that smoke values stand in their place.
    fn shortened(mut self, window_ms: u64) -> Written {
        let own = &mut self.0;
        let searches_bounds = matches!(own.kind, Some(Kind::NdrPdr | Kind::Latency));
        own.initial = None;
        own.sum = searches_bounds.then_some(Millis(window_ms));
        if searches_bounds && own.width_percent.as_ref().is_none_or(|w| w.0 < QUICK_WIDTH_PERCENT) {
            own.width_percent = Some(Percent(QUICK_WIDTH_PERCENT));
        }
        if own.kind == Some(Kind::BackToBack) {
            (own.repeats, own.longest) = (Some(Repeats(QUICK_REPEATS)), Some(Millis(window_ms)));
        }
        if own.kind == Some(Kind::Sweep) {
            let all = own.rates.take().unwrap_or_else(default_rates);
            let ends = [0, all.len() / 2, all.len() - 1].map(|i| all[i].clone());
            own.rates = Some(ends.to_vec());
        }
        self
    }

    /// Keys that another kind has.
    fn stray(&self) -> Option<&'static str> {
        let t = &self.0;
        let bounds = &[Kind::NdrPdr, Kind::Latency][..];
        let keys = [
            ("initial", t.initial.is_some(), bounds),
            ("sum", t.sum.is_some(), bounds),
            ("exceed_percent", t.exceed_percent.is_some(), bounds),
            ("loss_percent", t.loss_percent.is_some(), bounds),
            ("width_percent", t.width_percent.is_some(), bounds),
            ("min_pps", t.min_pps.is_some(), bounds),
            ("max_pps", t.max_pps.is_some(), bounds),
            ("rates", t.rates.is_some(), &[Kind::Sweep]),
            ("shares_percent", t.shares_percent.is_some(), &[Kind::Latency]),
            ("line_mbps", t.line_mbps.is_some(), &[Kind::Equilibrium]),
            ("repeats", t.repeats.is_some(), &[Kind::BackToBack]),
            ("longest", t.longest.is_some(), &[Kind::BackToBack]),
        ];
        let stray =
            keys.into_iter().find(|(_, given, kinds)| *given && !t.kind.is_some_and(|k| kinds.contains(&k)));
        stray.map(|(key, ..)| key)
    }

    /// Checked against the window, which is the final trial duration of every search.
    pub fn resolve(
        self,
        quick: Option<Written>,
        is_quick: bool,
        window_ms: u64,
    ) -> Result<Method, MethodError> {
        let mut written = self;
        if is_quick {
            written = written.shortened(window_ms).overlaid(quick.unwrap_or_default())?;
        }
        if let Some(key) = written.stray() {
            return Err(MethodError::Stray { key });
        }
        let kind = written.0.kind.ok_or(MethodError::NoKind)?;
        Ok(match kind {
            Kind::Mrr => Method::Mrr,
            Kind::Fixed => Method::Fixed,
            Kind::Sweep => {
                let rates: Vec<Step> =
                    written.0.rates.unwrap_or_else(default_rates).into_iter().map(|r| r.0).collect();
                if rates.is_empty() {
                    return Err(MethodError::NoRates);
                }
                Method::Sweep { rates }
            }
            Kind::NdrPdr => Method::NdrPdr(bounds(&written.0, window_ms)?),
            Kind::Equilibrium => Method::Equilibrium { line_mbps: written.0.line_mbps.map(|m| m.0) },
            Kind::BackToBack => Method::BackToBack {
                repeats: written.0.repeats.map_or(REPEATS, |r| r.0),
                longest_seconds: written.0.longest.map_or(LONGEST_MS, |m| m.0) as f64 / 1e3,
            },
            Kind::Latency => Method::Latency {
                bounds: bounds(&written.0, window_ms)?,
                shares: written.0.shares_percent.map_or(SHARES.into(), |s| s.iter().map(|p| p.0).collect()),
            },
        })
    }
}

fn default_rates() -> Vec<StepRate> {
    SWEEP_PERCENT.map(|p| StepRate(Step::Percent(p))).into()
}

/// The two goals: no loss, and some.
fn bounds(t: &Table, window_ms: u64) -> Result<Bounds, MethodError> {
    let window = window_ms as f64 / 1e3;
    let seconds = |m: &Option<Millis>, or: f64| m.as_ref().map_or(or, |m| m.0 as f64 / 1e3);
    let percent = |p: &Option<Percent>, or: f64| p.as_ref().map_or(or, |p| p.0) / 100.0;
    let (initial, sum) = (seconds(&t.initial, window), seconds(&t.sum, window * SUM_WINDOWS));
    if initial <= 0.0 || initial > window {
        return Err(MethodError::Initial { got: initial, window });
    }
    if sum < window {
        return Err(MethodError::Sum { got: sum, window });
    }
    let (width, loss_ratio) =
        (percent(&t.width_percent, WIDTH_PERCENT), percent(&t.loss_percent, LOSS_PERCENT));
    if width <= 0.0 || loss_ratio <= 0.0 {
        return Err(MethodError::NoShare);
    }
    let (min_pps, max_pps) = (t.min_pps.as_ref().map(|p| p.0), t.max_pps.as_ref().map(|p| p.0));
    if min_pps.zip(max_pps).is_some_and(|(min, max)| min >= max) {
        return Err(MethodError::Bounds);
    }
    let goal = |name: &str, loss_ratio: f64| Goal {
        name: name.into(),
        loss_ratio,
        exceed_ratio: percent(&t.exceed_percent, EXCEED_PERCENT),
        initial_seconds: initial,
        final_seconds: window,
        sum_seconds: sum,
        width,
    };
    Ok(Bounds { goals: vec![goal("ndr", 0.0), goal("pdr", loss_ratio)], min_pps, max_pps })
}
