//! A profile on disk: folded stacks under one line that says how they were taken.
//!
//! ```text
//! # {"event":"cpu-clock","frequency_hz":1999,"samples":1187,"lost":0,…}
//! weir-worker;weir::worker::run;weir_core::router::breathe_[i] 241
//! ```
//!
//! Flame graph tools read the file as it is: the first line ends in no number, so none takes it for a
//! stack. Promises: what is written is read back equal. Refuses: a line without a count, with its number.

use serde::{Deserialize, Serialize};

use super::Profile;
use crate::model::LabError;

/// How a profile was taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// What was counted: `cycles` or `cpu-clock`.
    pub event: String,
    /// Why it is not cycles, or what could not be seen; empty when all is as it should be.
    pub notes: Vec<String>,
    /// Samples asked for, a second and CPU.
    pub frequency_hz: u64,
    /// Samples in the window, idle ones included.
    pub samples: u64,
    /// Samples among these whose innermost code has no name.
    pub unnamed: u64,
    /// Samples the kernel had no room for.
    pub lost: u64,
    /// Length of the window.
    pub seconds: f64,
    /// Packets delivered in the window; 0 when nobody counted.
    pub packets: u64,
    /// Delivered packets a second while sampled, to be held against the runs without a profiler.
    pub pps: f64,
}

impl Header {
    /// Nanoseconds one sample stands for.
    pub fn ns_per_sample(&self) -> f64 {
        if self.frequency_hz == 0 { 0.0 } else { 1e9 / self.frequency_hz as f64 }
    }

    /// What `samples` of a frame cost a packet; `None` when samples are no time or packets not counted.
    pub fn ns_per_packet(&self, samples: u64) -> Option<f64> {
        (self.event == CLOCK && self.packets > 0)
            .then(|| samples as f64 * self.ns_per_sample() / self.packets as f64)
    }
}

/// The event whose samples are time.
pub const CLOCK: &str = "cpu-clock";

/// The file's text.
pub fn write(header: &Header, profile: &Profile) -> Result<String, LabError> {
    let line = serde_json::to_string(header).map_err(|e| LabError::new(format!("profile header: {e}")))?;
    Ok(format!("# {line}\n{}", profile.folded()))
}

/// Reads folded stacks, with or without a header of ours. `shown` is how errors name the file.
pub fn read(shown: &str, text: &str) -> Result<(Header, Profile), LabError> {
    let mut header = Header::default();
    let mut profile = Profile::default();
    for (i, line) in text.lines().enumerate() {
        if let Some(comment) = line.strip_prefix('#') {
            if let Ok(found) = serde_json::from_str(comment.trim()) {
                header = found;
            }
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        let counted =
            line.rsplit_once(' ').and_then(|(stack, n)| Some((stack, n.trim().parse::<u64>().ok()?)));
        let Some((stack, n)) = counted else {
            return Err(LabError::new(format!(
                "{shown}:{}: got \"{}\", expected `frame;frame count`: is it folded?",
                i + 1,
                line.chars().take(60).collect::<String>()
            )));
        };
        profile.add(stack.split(';').map(str::to_string).collect(), n);
    }
    profile.event.clone_from(&header.event);
    Ok((header, profile))
}

/// A frame as it may stand in a folded line: what separates frames and lines becomes `:` and a space, as
/// stackcollapse-perf does with the `;` of `[u8; 4]`.
pub fn frame(name: &str) -> String {
    let plain = |c: char| match c {
        ';' => ':',
        c if c.is_control() => ' ',
        c => c,
    };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            event: CLOCK.into(),
            frequency_hz: 2000,
            samples: 1000,
            seconds: 0.5,
            packets: 1_000_000,
            ..Header::default()
        }
    }

    #[test]
    fn a_sample_of_the_clock_is_time_and_time_over_packets_is_a_cost() {
        assert_eq!(header().ns_per_packet(1000), Some(500.0));
        assert_eq!(Header { event: "cycles".into(), ..header() }.ns_per_packet(1000), None);
        assert_eq!(Header { packets: 0, ..header() }.ns_per_packet(1000), None);
    }

    #[test]
    fn a_line_without_a_count_is_refused_with_its_number() {
        let error = read("a.folded", "main;rx 3\nmain;tx\n").expect_err("no count");
        assert!(error.said.starts_with("a.folded:2: got \"main;tx\""), "{error}");
    }

    #[test]
    fn stacks_of_other_tools_need_no_header() {
        let (header, profile) = read("x", "# taken on Monday\n\na;operator() const 7\n").expect("folded");
        assert_eq!((header, profile.samples()), (Header::default(), 7));
        assert!(profile.stacks.contains_key(&vec!["a".to_string(), "operator() const".into()]));
    }

    #[test]
    fn the_header_line_is_no_stack_to_anyone() {
        let text = write(&header(), &Profile::default()).expect("serialisable");
        let first = text.lines().next().expect("a header");
        assert!(first.starts_with("# {") && first.ends_with('}'));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            stacks in proptest::collection::btree_map(
                proptest::collection::vec("[^;#\\pC\\s][^;\\pC]{0,12}", 1..6), 1u64..1 << 40, 0..20),
            pps in 0.0..1e9f64, lost: u64,
        ) {
            let profile = Profile { event: CLOCK.into(), stacks, ..Profile::default() };
            let header = Header { pps, lost, ..header() };
            let text = write(&header, &profile).expect("serialisable");
            prop_assert_eq!(read("x", &text).expect("ours"), (header, profile));
        }

        #[test]
        fn any_frame_name_makes_a_line_that_reads(name in "\\PC*|[\\n;\\r#]*", n in 1u64..9) {
            let mut profile = Profile::default();
            profile.add(vec!["root".into(), name], n);
            let (_, back) = read("x", &profile.folded()).expect("folded");
            prop_assert_eq!(back.samples(), n);
            prop_assert!(back.stacks.keys().all(|stack| stack.len() == 2));
        }
    }
}
