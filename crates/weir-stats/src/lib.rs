//! Statistics of benchmarks: what repeated runs of two things say about each other, which rate a device
//! carries, and whether printed values follow from raw data.
//!
//! A *run* is the replicate; a second of a run never is. Every function of statistics is pure: values in,
//! values out, random ones from a seed, so that a report can be derived again from raw data. Refuses: to
//! print, to measure time, to read anything but the tree that [`verify`](mod@verify) is given.
//!
//! | module | what it answers |
//! |---|---|
//! | [`compare`](mod@compare) | are two sets of runs different, equivalent within a margin, or is neither shown |
//! | [`summary`], [`student`], [`mannwhitney`], [`permutation`], [`paired`](mod@paired), [`bootstrap`], [`holm`] | the values and tests it is made of |
//! | [`power`], [`pilot`] | how many runs a difference needs, from a pilot campaign |
//! | [`gate`] | did a change make it worse, asked while runs come in, ending early |
//! | [`schedule`](mod@schedule), [`random`] | runs in randomised blocks, from a seed |
//! | [`defects`] | what is wrong with the runs themselves: drift, outliers, two modes, serial correlation |
//! | [`cliff`], [`changepoint`] | where a metric drops against load, or steps in a history |
//! | [`search`] | throughput searches over any [`Measurer`](search::Measurer): NDR and PDR, equilibrium, bursts |
//! | [`ministat`] | the block that ministat(1) prints, byte for byte |
//! | [`verify`](mod@verify) | do printed ministat blocks follow from raw data found beside them |
//! | [`number`] | C's `%g` |
//!
//! Two sets of runs, compared:
//!
//! ```
//! use weir_stats::compare::{Analysis, Pair, Rules, Verdict, compare};
//! use weir_stats::paired::Series;
//!
//! // packets a second, one value a run
//! let before = [1_000_000.0, 1_004_000.0, 998_000.0, 1_002_000.0, 1_001_000.0];
//! let after = [1_051_000.0, 1_049_000.0, 1_054_000.0, 1_047_000.0, 1_052_000.0];
//! let pair = Pair { reference: Series::of("before", &before), other: Series::of("after", &after) };
//! let rules = Rules { analysis: Analysis::Welch, margin_percent: 2.0, seed: 1 };
//!
//! let compared = compare(&[pair], rules);
//! assert_eq!(compared[0].verdict, Verdict::Different);
//! let ratio = compared[0].ratio.as_ref().expect("five runs each");
//! assert!((ratio.ratio - 1.05).abs() < 0.001 && ratio.low > Some(1.04));
//! ```
//!
//! The same as the field prints it:
//!
//! ```
//! use weir_stats::ministat::{Parts, Set, Style, block};
//!
//! let sets = [Set::new("before", &[10.0, 11.0, 12.0]), Set::new("after", &[20.0, 21.0, 22.0])];
//! let text = block(&sets, Style { parts: Parts::NoPlot, ..Style::default() })?;
//! assert!(text.contains("Difference at 95.0% confidence"));
//! # Ok::<(), weir_stats::ministat::Refusal>(())
//! ```
//!
//! A search for the rate that a device carries without loss. Whoever can load the device and count what
//! came through implements [`Measurer`](search::Measurer); here it is a formula:
//!
//! ```
//! use weir_stats::search::goal::Goal;
//! use weir_stats::search::{Limits, LossLedger, Measurer, Rate, Refusal, TrialRecord, mlr};
//!
//! /// Carries 700,000 packets a second and loses the rest.
//! struct Device;
//!
//! impl Measurer for Device {
//!     type Error = Refusal;
//!
//!     fn trial(&mut self, rate: Rate, seconds: f64, purpose: &str) -> Result<TrialRecord, Refusal> {
//!         let Rate::Pps(pps) = rate else { unreachable!("this search names every rate") };
//!         let offered = (pps as f64 * seconds) as u64;
//!         let delivered = offered.min((700_000.0 * seconds) as u64);
//!         Ok(TrialRecord {
//!             purpose: purpose.into(),
//!             rate,
//!             seconds,
//!             pps: delivered as f64 / seconds,
//!             ledger: LossLedger { intended: offered, offered, sent: offered, delivered, ..Default::default() },
//!             latency_ns: Default::default(),
//!             cpu_percent: None,
//!             superseded: false,
//!         })
//!     }
//! }
//!
//! let goal = Goal::rfc2544(60.0, 0.005);
//! let found = mlr::search(&mut Device, &[goal], Limits::new(1_000, 2_000_000)?)?;
//! let lower = found[0].lower_pps.expect("the device carries something");
//! assert!((696_000..=700_000).contains(&lower));
//! # Ok::<(), Refusal>(())
//! ```

#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod changepoint;
pub mod cliff;
pub mod compare;
pub mod defects;
pub mod gate;
pub mod holm;
pub mod mannwhitney;
pub mod ministat;
pub mod number;
pub mod paired;
pub mod permutation;
pub mod pilot;
pub mod power;
pub mod random;
pub mod schedule;
pub mod search;
pub mod student;
pub mod summary;
pub mod verify;

pub use compare::{Analysis, Comparison, Rules, Verdict, compare};
pub use summary::Summary;
