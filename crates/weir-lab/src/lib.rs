//! `weir-lab`: compares configurations of packet paths and proves what it says.

pub mod bed;
pub mod model;
pub mod stats;
pub mod workload;
