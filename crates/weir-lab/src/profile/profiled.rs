//! The profiled runs of a configuration, read back for reports.
//!
//! Promises: files are found by their names alone (`raw/<configuration>.<n>.folded`), so that profiles can
//! be added to a campaign; one that cannot be read says so instead of hiding the others.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::folded::{self, Header};
use super::{IDLE, OTHERS, Profile};

/// One profiled run. Its rate is never among the values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profiled {
    /// Inside the campaign's folder.
    pub file: String,
    #[serde(flatten)]
    pub header: Header,
    /// The stacks; `result.json` names the file instead.
    #[serde(skip)]
    pub profile: Profile,
}

/// Where the `n`th profiled run of a configuration is, from 1.
pub fn path(dir: &Path, configuration: &str, n: usize) -> PathBuf {
    dir.join("raw").join(format!("{configuration}.{n}.folded"))
}

/// Every profiled run of a configuration, in order.
pub fn read(dir: &Path, configuration: &str) -> Vec<Profiled> {
    let mut all = Vec::new();
    loop {
        let n = all.len() + 1;
        let file = path(Path::new(""), configuration, n).to_string_lossy().into_owned();
        let here = dir.join(&file);
        if !here.exists() {
            return all;
        }
        let text = std::fs::read_to_string(&here).map_err(|e| format!("{file}: {e}"));
        let found = text.and_then(|text| folded::read(&file, &text).map_err(|e| e.said));
        let (header, profile) = found.unwrap_or_else(|why| {
            (Header { notes: vec![format!("not read: {why}")], ..Header::default() }, Profile::default())
        });
        all.push(Profiled { file, header, profile });
    }
}

/// Several profiled runs of one configuration as one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sum {
    pub header: Header,
    pub profile: Profile,
    /// Runs with samples.
    pub runs: usize,
}

/// Adds up what was sampled by the same event; rates are averaged.
pub fn sum(runs: &[Profiled]) -> Sum {
    let mut sum = Sum::default();
    for run in runs {
        let (all, one) = (&mut sum.header, &run.header);
        all.notes.extend(one.notes.iter().cloned());
        if one.samples == 0 || (sum.runs > 0 && all.event != one.event) {
            continue;
        }
        all.event.clone_from(&one.event);
        all.frequency_hz = one.frequency_hz;
        all.samples += one.samples;
        all.unnamed += one.unnamed;
        all.lost += one.lost;
        all.seconds += one.seconds;
        all.packets += one.packets;
        all.pps += (one.pps - all.pps) / (sum.runs + 1) as f64;
        sum.runs += 1;
        for (stack, n) in &run.profile.stacks {
            sum.profile.add(stack.clone(), *n);
        }
    }
    sum.profile.event.clone_from(&sum.header.event);
    sum.header.notes.sort();
    sum.header.notes.dedup();
    sum
}

impl Sum {
    /// Samples of processors with nothing to do.
    pub fn idle(&self) -> u64 {
        self.under(IDLE)
    }

    /// Samples of work that is not the SUT's.
    pub fn others(&self) -> u64 {
        self.under(OTHERS)
    }

    fn under(&self, root: &str) -> u64 {
        self.profile.stacks.iter().filter(|(s, _)| s.first().is_some_and(|f| f == root)).map(|(_, n)| n).sum()
    }

    /// What the SUT's work costs a packet.
    pub fn busy_ns_per_packet(&self) -> Option<f64> {
        self.header.ns_per_packet(self.header.samples - self.idle() - self.others())
    }

    /// What sampling took from the rate, in percent of the rate without it.
    pub fn cost_percent(&self, pps_without: f64) -> Option<f64> {
        (self.runs > 0 && pps_without > 0.0).then(|| (1.0 - self.header.pps / pps_without) * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_testing::folder::Folder;

    fn run(stacks: &[(&str, u64)], pps: f64) -> Profiled {
        let mut profile = Profile { event: "cpu-clock".into(), ..Profile::default() };
        for (stack, n) in stacks {
            profile.add(stack.split(';').map(str::to_string).collect(), *n);
        }
        let header = Header {
            event: "cpu-clock".into(),
            frequency_hz: 1000,
            samples: profile.samples(),
            packets: 1_000_000,
            seconds: 1.0,
            pps,
            ..Header::default()
        };
        Profiled { file: String::new(), header, profile }
    }

    #[test]
    fn runs_add_up_and_idle_time_and_others_are_no_cost() {
        let sum = sum(&[
            run(&[("w;rx", 600), ("[idle]", 300), ("[others]", 100)], 1e6),
            run(&[("w;rx", 200), ("w;tx", 800)], 2e6),
        ]);
        assert_eq!((sum.runs, sum.header.samples, sum.idle(), sum.others()), (2, 2000, 300, 100));
        assert_eq!(sum.header.pps, 1.5e6);
        // 1600 samples of 1 ms over two million packets
        assert_eq!(sum.busy_ns_per_packet(), Some(800.0));
        assert_eq!(sum.cost_percent(3e6), Some(50.0));
    }

    #[test]
    fn a_run_that_was_not_profiled_only_says_why() {
        let notes = vec!["not profiled: refused".to_string()];
        let none =
            Profiled { header: Header { notes: notes.clone(), ..Header::default() }, ..Profiled::default() };
        let sum = sum(&[none, run(&[("w", 5)], 1e6)]);
        assert_eq!((sum.runs, sum.header.samples, &sum.header.notes), (1, 5, &notes));
        assert_eq!(super::sum(&[]).cost_percent(1e6), None);
    }

    #[test]
    fn files_are_found_by_name_and_a_damaged_one_hides_no_other() {
        let folder = Folder::new("profiled");
        let one = run(&[("w;rx", 3)], 1e6);
        let text = folded::write(&one.header, &one.profile).expect("serialisable");
        for (number, content) in [(1, "no count\n"), (2, &text), (4, "")] {
            folder.write(&path(Path::new(""), "a", number).to_string_lossy(), content);
        }
        let found = read(&folder.0, "a");
        assert_eq!(found.len(), 2);
        assert!(found[0].header.notes[0].starts_with("not read: raw/a.1.folded:1: "), "{:?}", found[0]);
        assert_eq!((&found[1].header, &found[1].profile), (&one.header, &one.profile));
        assert_eq!(found[1].file, "raw/a.2.folded");
    }
}
