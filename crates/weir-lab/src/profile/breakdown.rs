//! Where CPU time goes by kind of work: functions with their share and category, categories added up.
//!
//! Promises: shares of all functions add up to 100 % of the samples, idle and `other` ones included; several
//! recordings are runs, each weighing the same. Refuses: recordings of different events.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::import::Recording;
use super::rules::{ELSEWHERE, IDLE, Rules};
use super::{function, shortened};
use crate::model::LabError;
use weir_stats::compare::mean_interval;
use weir_stats::summary::mean;

/// A function's or a category's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Absent for a category as a whole.
    pub function: Option<String>,
    pub category: String,
    /// Own samples, added up over the recordings.
    pub samples: u64,
    /// Percent of all samples, mean of the recordings.
    pub percent: f64,
    /// Ends of its 95 % interval; absent with one recording.
    pub interval: Option<(f64, f64)>,
    /// Percent of the samples at work; absent for those that are idle or other processes'.
    pub percent_of_work: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    pub event: String,
    pub recordings: usize,
    pub samples: u64,
    /// Largest first.
    pub categories: Vec<Share>,
    /// Largest first; a function that also runs while idle stands once in each category.
    pub functions: Vec<Share>,
}

/// Own samples of each recording.
type Counts = BTreeMap<(Option<String>, String), Vec<u64>>;

pub fn breakdown(recordings: &[Recording], rules: &Rules) -> Result<Breakdown, LabError> {
    let events: BTreeSet<&str> = recordings.iter().flat_map(|r| &r.parts).map(|p| p.event.as_str()).collect();
    if events.len() != 1 {
        let events = events.into_iter().collect::<Vec<_>>().join(", ");
        return Err(LabError::new(format!("profiles: count [{events}]; give some, all of one event")));
    }
    let (mut categories, mut functions) = (Counts::new(), Counts::new());
    let mut totals = vec![0; recordings.len()];
    let mut work = totals.clone();
    for (run, recording) in recordings.iter().enumerate() {
        for (part, (stack, &n)) in recording.parts.iter().flat_map(|p| p.stacks.iter().map(move |s| (p, s))) {
            let leaf = stack.last().map_or("", |f| function(f));
            let category = match rules.is_work(stack) {
                true => rules.category(leaf, part),
                false if rules.is_idle(stack) => IDLE,
                false => ELSEWHERE,
            };
            for (counts, function) in [(&mut categories, None), (&mut functions, Some(leaf.to_string()))] {
                let runs = counts.entry((function, category.to_string()));
                runs.or_insert_with(|| vec![0; recordings.len()])[run] += n;
            }
            totals[run] += n;
            work[run] += if rules.is_work(stack) { n } else { 0 };
        }
    }
    let shares = |counts: Counts| {
        let mut shares: Vec<Share> = counts.into_iter().map(|c| share(c, &totals, &work)).collect();
        shares.sort_by(|a, b| b.percent.total_cmp(&a.percent));
        shares
    };
    Ok(Breakdown {
        event: events.into_iter().collect(),
        recordings: recordings.len(),
        samples: totals.iter().sum(),
        categories: shares(categories),
        functions: shares(functions),
    })
}

fn share(
    ((function, category), runs): ((Option<String>, String), Vec<u64>),
    totals: &[u64],
    work: &[u64],
) -> Share {
    let of = |base: &[u64]| -> Vec<f64> {
        runs.iter().zip(base).map(|(&n, &base)| 100.0 * n as f64 / base.max(1) as f64).collect()
    };
    let percent = of(totals);
    Share {
        percent_of_work: (![IDLE, ELSEWHERE].contains(&category.as_str())).then(|| mean(&of(work))),
        samples: runs.iter().sum(),
        percent: mean(&percent),
        interval: mean_interval(&percent),
        function,
        category,
    }
}

impl Breakdown {
    /// Categories as rows, headings first.
    pub fn category_rows(&self) -> Vec<[String; 4]> {
        rows("category", self.categories.iter().map(|s| (s.category.clone(), s)))
            .map(|[name, percent, busy, _, samples]| [name, percent, busy, samples])
            .collect()
    }

    /// The `limit` functions with most samples as rows, headings first; what is left is the last row.
    pub fn function_rows(&self, limit: usize) -> Vec<[String; 5]> {
        let named = self.functions.iter().take(limit);
        let mut table: Vec<[String; 5]> =
            rows("function", named.map(|s| (shortened(s.function.as_deref().unwrap_or_default()), s)))
                .collect();
        let rest = &self.functions[limit.min(self.functions.len())..];
        if !rest.is_empty() {
            let percent: f64 = rest.iter().map(|s| s.percent).sum();
            let busy: f64 = rest.iter().filter_map(|s| s.percent_of_work).sum();
            let samples: u64 = rest.iter().map(|s| s.samples).sum();
            table.push([
                format!("{} more", rest.len()),
                format!("{percent:.2}"),
                format!("{busy:.2}"),
                "–".into(),
                samples.to_string(),
            ]);
        }
        table
    }
}

fn rows<'a>(
    first: &str,
    shares: impl Iterator<Item = (String, &'a Share)>,
) -> impl Iterator<Item = [String; 5]> {
    let headings = [first, "% of samples", "% of work", "category", "samples"].map(String::from);
    let row = |(name, share): (String, &Share)| {
        let percent = match share.interval {
            Some((low, high)) => format!("{:.2} [{low:.2}, {high:.2}]", share.percent),
            None => format!("{:.2}", share.percent),
        };
        let busy = share.percent_of_work.map_or("–".into(), |p| format!("{p:.2}"));
        [name, percent, busy, share.category.clone(), share.samples.to_string()]
    };
    std::iter::once(headings).chain(shares.map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Result<Breakdown, LabError> {
        let recordings: Vec<Recording> =
            texts.iter().map(|t| Recording::parse("x", t).expect("folded")).collect();
        breakdown(&recordings, &Rules::load(None)?)
    }

    #[test]
    fn shares_add_up_with_idle_and_other_among_them() {
        let b = of(&[
            "w;do_idle;native_safe_halt_[k] 40\n[others] 10\nw;memcpy 20\nw;aes_encrypt;memcpy 5\nw;frobnicate 25\n",
        ])
        .expect("one event");
        let shown: Vec<(&str, f64)> = b.categories.iter().map(|c| (c.category.as_str(), c.percent)).collect();
        assert_eq!(shown, [("idle", 40.0), ("copy", 25.0), ("other", 25.0), ("other processes", 10.0)]);
        assert_eq!(b.categories[1].percent_of_work, Some(50.0));
        assert_eq!(b.functions.iter().map(|f| f.percent).sum::<f64>(), 100.0);
        let rows = b.function_rows(1);
        assert_eq!(rows[1][0], "native_safe_halt");
        assert_eq!(rows[2], ["3 more", "60.00", "100.00", "–", "60"]);
    }

    #[test]
    fn several_recordings_weigh_the_same_and_give_an_interval() {
        let b = of(&["w;memcpy 30\nw;rx 70\n", "w;memcpy 5\nw;rx 5\n", "w;memcpy 40\nw;rx 60\n"])
            .expect("one event");
        let copy = b.categories.iter().find(|c| c.category == "copy").expect("memcpy copies");
        assert!((copy.percent - 40.0).abs() < 1e-9);
        let (low, high) = copy.interval.expect("three runs");
        assert!(low < 30.0 && high > 50.0, "{low} … {high}");
    }

    #[test]
    fn recordings_of_two_events_and_of_none_are_refused() {
        let cycles = "# {\"event\":\"cycles\"}\nw;rx 1\n";
        assert!(of(&["# {\"event\":\"cpu-clock\"}\nw;rx 1\n", cycles]).is_err());
        assert!(of(&[]).is_err());
    }
}
