//! Campaigns as `weir-lab verify` sees them: `result.json` against the raw runs it was derived from.
//!
//! Promises: every value of the file is derived again and compared, to nine digits (another processor's last
//! digit is no difference). A file of an older format is compared as far as its numbers mean the same: those of
//! each configuration, and since format 2 those of comparisons; its sentences were worded otherwise.

use std::path::{Path, PathBuf};

use serde_json::Value;

use weir_stats::verify::Formats;
use weir_stats::verify::classify::{Class, Classified, Difference};

use super::{FORMAT, Results};
use crate::experiment::Metric;
use crate::experiment::metric::KNOWN;
use crate::model::Sample;
use crate::store::Run;

/// Digits that agree on every processor.
const TOLERANCE: f64 = 1e-9;

/// What the lab itself writes.
pub struct Campaigns;

impl Formats for Campaigns {
    fn runs(&self, text: &str) -> Vec<(&'static str, Vec<f64>)> {
        let runs = text.lines().filter_map(|l| serde_json::from_str::<Run>(l).ok());
        let samples: Vec<Sample> = runs.filter_map(|r| r.sample).collect();
        let of = |name: &'static str| {
            let metric = Metric(name.into());
            (name, samples.iter().filter_map(|s| metric.of(s)).collect())
        };
        KNOWN.into_iter().map(of).collect()
    }

    fn results(&self, dir: &Path) -> Option<(PathBuf, Classified)> {
        is_campaign(dir).then(|| classify(dir))
    }
}

/// Whether `dir` holds a campaign and its results.
fn is_campaign(dir: &Path) -> bool {
    ["manifest.json", "result.json"].iter().all(|f| dir.join(f).is_file()) && dir.join("raw").is_dir()
}

/// Settles the results of the campaign in `dir`; also where they are.
fn classify(dir: &Path) -> (PathBuf, Classified) {
    let path = dir.join("result.json");
    let classified =
        |class, style: String, difference, reason: String| Classified { class, style, difference, reason };
    let printed: Value = match read(&path) {
        Ok(printed) => printed,
        Err(e) => return (path, classified(Class::Differs, String::new(), None, format!("no results: {e}"))),
    };
    let derived = match super::derive(dir) {
        Ok((_, results)) => serde_json::to_value(results).unwrap_or(Value::Null),
        Err(e) => return (path, classified(Class::NoData, String::new(), None, e.to_string())),
    };
    let format = printed["format"].as_u64().unwrap_or(0);
    let same = format == u64::from(FORMAT);
    let mut compared = Compared { values: 0, first: None, strict: same };
    if same {
        compared.value(&mut String::new(), &printed, &derived);
    }
    let parts = parts_of(format);
    let printed = if same { printed } else { renamed(printed) };
    for part in parts {
        compared.value(&mut part.to_string(), &printed[part], &derived[part]);
    }
    let what = if same { String::new() } else { format!(" of its {}", parts.join(", ")) };
    let style = format!("result.json format {format}, {} values{what}", compared.values);
    let classified = match compared.first {
        None if compared.values == 0 => classified(Class::NoData, style, None, "no values in it".into()),
        None => classified(Class::Reproduced, style, None, String::new()),
        Some(difference) => {
            let reason = "the raw runs give another value: one of the two was changed afterwards";
            classified(Class::Differs, style, Some(difference), reason.into())
        }
    };
    (path, classified)
}

/// The parts of an older format whose numbers mean what they mean today.
fn parts_of(format: u64) -> &'static [&'static str] {
    match format {
        1 => &["configurations"],
        2 | 3 => &["configurations", "comparisons", "controls", "cliffs"],
        _ => &[],
    }
}

/// A document of an older format under today's keys, as far as it can be read; as it is otherwise.
fn renamed(printed: Value) -> Value {
    let read = serde_json::from_value::<Results>(printed.clone());
    read.ok().and_then(|results| serde_json::to_value(results).ok()).unwrap_or(printed)
}

fn read(path: &Path) -> std::io::Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

struct Compared {
    values: usize,
    first: Option<Difference>,
    /// Keys that one side lacks are differences too.
    strict: bool,
}

impl Compared {
    fn value(&mut self, at: &mut String, printed: &Value, derived: &Value) {
        if self.first.is_some() {
            return;
        }
        match (printed, derived) {
            (Value::Object(p), Value::Object(d)) => {
                let keys = p.keys().chain(d.keys().filter(|k| !p.contains_key(*k)));
                for key in keys {
                    match (p.get(key), d.get(key)) {
                        (Some(p), Some(d)) => self.below(at, key, p, d),
                        (p, d) if self.strict => self.differ(&format!("{at}.{key}"), p, d),
                        _ => {}
                    }
                }
            }
            (Value::Array(p), Value::Array(d)) => {
                for i in 0..p.len().max(d.len()) {
                    match (p.get(i), d.get(i)) {
                        (Some(p), Some(d)) => self.below(at, &element(i, p), p, d),
                        (p, d) => self.differ(&format!("{at}.{i}"), p, d),
                    }
                }
            }
            (Value::Number(p), Value::Number(d)) => {
                self.values += 1;
                let (a, b) = (p.as_f64().unwrap_or(f64::NAN), d.as_f64().unwrap_or(f64::NAN));
                if (a - b).abs() > TOLERANCE * a.abs().max(b.abs()) {
                    self.differ(at, Some(printed), Some(derived));
                }
            }
            (p, d) if p == d => {}
            // sentences of another format may be worded otherwise
            (Value::String(_), Value::String(_)) if !self.strict => {}
            _ => self.differ(at, Some(printed), Some(derived)),
        }
    }

    fn below(&mut self, at: &mut String, key: &str, printed: &Value, derived: &Value) {
        let length = at.len();
        if !at.is_empty() {
            at.push('.');
        }
        *at += key;
        self.value(at, printed, derived);
        at.truncate(length);
    }

    fn differ(&mut self, at: &str, printed: Option<&Value>, derived: Option<&Value>) {
        let show = |v: Option<&Value>| v.map_or("nothing".to_string(), Value::to_string);
        let (printed, derived) = (show(printed), show(derived));
        self.first.get_or_insert(Difference { value: at.trim_start_matches('.').into(), printed, derived });
    }
}

/// A configuration by its name, anything else by its place.
fn element(i: usize, value: &Value) -> String {
    let name = value["configuration"]["name"].as_str().or_else(|| value["other"].as_str());
    name.map_or(i.to_string(), str::to_string)
}
