//! Runs that cannot be cut.

use std::fmt;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub enum SlicesError {
    /// An analysis of rounds without slices.
    RoundsOfWholeRuns,
    /// A method that chooses its own trials.
    Search,
    Window {
        slices: usize,
        window_ms: u64,
        got: Duration,
        least: Duration,
    },
    /// No configuration is in memory.
    Topology {
        configuration: String,
    },
    /// Only one of the two is in memory.
    Pair {
        reference: String,
        other: String,
    },
    /// Packets a slice.
    Packets {
        configuration: String,
        got: f64,
        least: f64,
    },
    /// Configurations compared with each other.
    Group {
        got: usize,
        most: usize,
    },
}

impl SlicesError {
    pub fn key(&self) -> &'static str {
        match self {
            SlicesError::RoundsOfWholeRuns => "analysis",
            _ => "slices",
        }
    }

    pub fn remedy(&self) -> &'static str {
        match self {
            SlicesError::RoundsOfWholeRuns => "give it `slices`",
            SlicesError::Search | SlicesError::Topology { .. } => "remove `slices`",
            SlicesError::Window { .. } | SlicesError::Packets { .. } => "fewer slices, or a longer `window`",
            SlicesError::Pair { .. } => "remove the pair, or `slices`",
            SlicesError::Group { .. } => "`compare` along a key, or remove `slices`",
        }
    }
}

impl fmt::Display for SlicesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlicesError::RoundsOfWholeRuns => {
                f.write_str("analysis = \"rounds\" compares slices, and runs are whole")
            }
            SlicesError::Search => f.write_str("a search chooses its own trials"),
            SlicesError::Window { slices, window_ms, got, least } => write!(
                f,
                "{slices} of {window_ms} ms are {} µs each, expected {} at least",
                got.as_micros(),
                least.as_micros()
            ),
            SlicesError::Topology { configuration } => write!(
                f,
                "configuration {configuration}: only the memory topology can stand still between slices"
            ),
            SlicesError::Pair { reference, other } => write!(
                f,
                "{reference} and {other} are compared, and only one of them is of the memory topology, which alone \
                 can stand still between slices"
            ),
            SlicesError::Packets { configuration, got, least } => write!(
                f,
                "configuration {configuration}: {got:.0} packets a slice at its `rate`, expected {least} at least"
            ),
            SlicesError::Group { got, most } => write!(
                f,
                "{got} configurations are compared with each other, expected {most} at most, which are up at once"
            ),
        }
    }
}
