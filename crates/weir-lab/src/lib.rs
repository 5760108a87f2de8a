//! `weir-lab`: compares configurations of packet paths and proves what it says.

pub mod bed;
pub mod experiment;
pub mod generator;
pub mod model;
pub mod receiver;
pub mod stats;
pub mod subject;
pub mod workload;
