//! Statistics of experiments: what the runs of two configurations say about each other.
//!
//! A *run* is the replicate; a second of a run never is. Every function here is pure: figures in,
//! figures out, random ones from a seed, so that a report can be derived again from raw data.

pub mod bootstrap;
pub mod changepoint;
pub mod cliff;
pub mod compare;
pub mod defects;
pub mod holm;
pub mod mannwhitney;
pub mod ministat;
pub mod number;
pub mod paired;
pub mod permutation;
pub mod pilot;
pub mod power;
pub mod random;
pub mod student;
pub mod summary;
pub mod warnings;

pub use compare::{Analysis, Comparison, Rules, Verdict, compare};
pub use summary::Summary;
