//! Runs in slices: who is measured together, and how long a slice is.
//!
//! ```text
//! pairs      a–b   b–c   d–e      ─► groups {a b c} {d e} {f}     each is up at once, and by itself
//! slices = N       warm_up, window ─► N × (warm_up / N, 1 ms at least; window / N)
//! ```
//!
//! A group is what the pairs connect, not the whole block: slices that are compared lie as close in time as
//! they can, and no more than a group has to fit into memory.
//!
//! Only the memory topology can stand still between slices; runs of others in the same file are whole.
//!
//! Refuses: files of other topologies alone, pairs of both kinds, searches, slices too short for a clock or a
//! pace, and groups too large for a machine.

use std::time::Duration;

use super::Experiment;
use super::error::SlicesError;
use crate::model::{Configuration, Topology};
use weir_stats::Analysis;
use weir_stats::search::Rate;

/// What others leave in the caches is gone after 5,000 packets; the slowest cipher passes as many in some 10 ms,
/// the pipeline in one.
const LEAST_WARM_UP: Duration = Duration::from_millis(1);
/// Two reads of the clock and a batch on either side of a window, 100 µs for the slowest cipher, are a tenth of it.
const LEAST_WINDOW: Duration = Duration::from_millis(1);
/// A paced source hands out batches of 64: of so many packets, one more or less is 6 %.
const LEAST_PACKETS: f64 = 1000.0;
/// Configurations up at once: at 20 MB each (tables, buffers, templates) a gigabyte and a quarter.
const GROUP_MAX: usize = 64;

/// The slice of every configuration in every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slicing {
    pub slices: usize,
    pub warm_up: Duration,
    pub window: Duration,
}

impl Experiment {
    /// How its runs are cut; `None` where they are whole.
    pub fn slicing(&self) -> Option<Slicing> {
        let slices = self.slices.filter(|&n| n > 0)?;
        let [warm_up, window] =
            [self.warm_up_ms, self.window_ms].map(|ms| Duration::from_millis(ms) / slices as u32);
        Some(Slicing { slices, warm_up: warm_up.max(LEAST_WARM_UP), window })
    }

    /// Which of these are measured together: what pairs and controls connect.
    pub fn groups(&self, configurations: &[&Configuration]) -> Vec<Vec<usize>> {
        let mut group: Vec<usize> = (0..configurations.len()).collect();
        let place = |name: &str| configurations.iter().position(|c| c.name == name);
        for (a, b) in self.pairs.iter().chain(&self.controls) {
            let Some((a, b)) = place(a).zip(place(b)) else { continue };
            let (kept, gone) = (group[a].min(group[b]), group[a].max(group[b]));
            group.iter_mut().filter(|g| **g == gone).for_each(|g| *g = kept);
        }
        let members = |g: usize| (0..group.len()).filter(|&i| group[i] == g).collect::<Vec<_>>();
        (0..group.len()).map(members).filter(|m| !m.is_empty()).collect()
    }

    /// Why its runs cannot be cut as the file asks.
    pub(super) fn refuse_slices(&self) -> Result<(), SlicesError> {
        let Some(Slicing { slices, window, .. }) = self.slicing() else {
            return match self.analysis {
                Analysis::Rounds => Err(SlicesError::RoundsOfWholeRuns),
                _ => Ok(()),
            };
        };
        if self.method.is_search() {
            return Err(SlicesError::Search);
        }
        if window < LEAST_WINDOW {
            return Err(SlicesError::Window {
                slices,
                window_ms: self.window_ms,
                got: window,
                least: LEAST_WINDOW,
            });
        }
        let all: Vec<&Configuration> = self.configurations.iter().map(|p| &p.configuration).collect();
        let in_memory = |c: &&&Configuration| c.topology() == Topology::Memory;
        if let Some(c) = all.first().filter(|_| !all.iter().any(|c| in_memory(&c))) {
            return Err(SlicesError::Topology { configuration: c.name.clone() });
        }
        let topology =
            |name: &str| all.iter().find(|c| c.name == name).map(|c| c.topology() == Topology::Memory);
        if let Some((a, b)) = self.pairs.iter().find(|(a, b)| topology(a) != topology(b)) {
            return Err(SlicesError::Pair { reference: a.clone(), other: b.clone() });
        }
        for c in all.iter().filter(in_memory) {
            if let Rate::Pps(pps) = c.workload.rate {
                let packets = pps as f64 * window.as_secs_f64();
                if packets < LEAST_PACKETS {
                    let configuration = c.name.clone();
                    return Err(SlicesError::Packets { configuration, got: packets, least: LEAST_PACKETS });
                }
            }
        }
        match self.groups(&all).iter().map(Vec::len).max() {
            Some(got) if got > GROUP_MAX => Err(SlicesError::Group { got, most: GROUP_MAX }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Changes;
    use crate::model::LabError;

    fn parse(keys: &str, configurations: &str, quick: bool) -> Result<Experiment, LabError> {
        let head = "title = \"t\"\nquestion = \"q\"\nruns = 2\nwarm_up = \"10ms\"\nwindow = \"100ms\"\n";
        let changes = Changes { quick, ..Changes::default() };
        Experiment::parse("x", "x.toml", &format!("{head}{keys}{configurations}"), &changes)
    }

    const TWO: &str = "[[configuration]]\nfamily = [\"inet\", \"inet6\"]\n";

    #[test]
    fn a_slice_is_its_share_of_the_window_and_warms_up_for_a_millisecond_at_least() {
        let cut = parse("slices = 20\n", TWO, false).expect("valid").slicing().expect("cut");
        assert_eq!((cut.slices, cut.window, cut.warm_up), (20, Duration::from_millis(5), LEAST_WARM_UP));
        let cut = parse("slices = 4\n", TWO, false).expect("valid").slicing().expect("cut");
        assert_eq!(cut.warm_up, Duration::from_micros(2500));
        assert_eq!(parse("", TWO, false).expect("valid").slicing(), None);
        let smoke = parse("slices = 20\n", TWO, true).expect("valid");
        assert_eq!(smoke.slices, Some(3), "smoke values have few");
    }

    #[test]
    fn groups_are_what_pairs_and_controls_connect() {
        let file = "pairs = [[\"a\", \"b\"], [\"d\", \"c\"], [\"b\", \"e\"]]\nslices = 2\ncontrol = true\n";
        let of = |n: &str| format!("[[configuration]]\nname = \"{n}\"\n");
        let all: String = ["a", "b", "c", "d", "e", "f"].map(of).concat();
        let e = parse(file, &all, false).expect("valid");
        let configurations: Vec<&Configuration> = e.configurations.iter().map(|p| &p.configuration).collect();
        let named = e
            .groups(&configurations)
            .into_iter()
            .map(|g| g.into_iter().map(|c| configurations[c].name.as_str()).collect::<Vec<_>>().join(" "));
        assert_eq!(named.collect::<Vec<_>>(), ["a b e a~again b~again", "c d d~again", "f"]);
        // one that cannot run here parts what only it connected
        let some: Vec<&Configuration> =
            configurations.into_iter().filter(|c| !c.name.starts_with('b')).collect();
        assert_eq!(e.groups(&some).len(), 4);
    }

    #[test]
    fn what_cannot_be_cut_is_refused_with_the_remedy() {
        for (keys, configurations, said) in [
            ("slices = 2\n", "[[configuration]]\ntopology = \"netns\"\n", "only the memory topology"),
            (
                "slices = 2\npairs = [[\"a\", \"b\"]]\n",
                "[[configuration]]\nname = \"a\"\n[[configuration]]\nname = \"b\"\ntopology = \"netns\"\n",
                "a and b are compared, and only one of them is of the memory topology",
            ),
            ("slices = 2\nmethod = \"ndr-pdr\"\n", TWO, "a search chooses its own trials: remove `slices`"),
            ("slices = 200\n", TWO, "are 500 µs each, expected 1000 at least: fewer slices"),
            ("slices = 10\n", "[[configuration]]\nrate = 50_000\n", "500 packets a slice at its `rate`"),
            ("slices = 1\n", TWO, "got 1, expected a number of slices from 2 to 10000"),
            ("slices = 2\n", "[[configuration]]\nname = \"{flows}\"\nflows = [", "65 configurations"),
            ("analysis = \"rounds\"\n", TWO, "runs are whole: give it `slices`"),
        ] {
            let many: String = (1..=65).map(|n| format!("{n},")).collect();
            let open = configurations.ends_with('[');
            let configurations =
                if open { format!("{configurations}{many}]\n") } else { configurations.into() };
            let why = parse(keys, &configurations, false).expect_err(said).said;
            assert!(why.contains(said) && why.starts_with("x.toml:"), "{why}");
        }
        parse("slices = 10\n", "[[configuration]]\nrate = 200_000\n", false).expect("enough packets");
    }
}
