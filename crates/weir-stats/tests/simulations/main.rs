//! How often the statistics are wrong: thousands of simulated campaigns with a known truth, from fixed seeds.
//!
//! Promises: every rate stands in docs/statistics.md as simulated here, row by row, and a test that claims an
//! error rate keeps it within what chance allows [`draws::allowed`]. A row that changed is printed as it
//! should be written.

mod alarms;
mod coverage;
mod draws;
mod errors;
mod gate;
mod power;
mod slices;
