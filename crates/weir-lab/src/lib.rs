//! `weir-lab`: compares configurations of packet paths and proves what it says.

pub mod across;
pub mod agent;
pub mod answers;
pub mod build;
pub mod cachesim;
pub mod campaign;
pub mod cli;
pub mod diagnostic;
pub mod experiment;
pub mod format;
pub mod gate;
pub mod generator;
pub mod machine;
pub mod manifest;
pub mod method;
pub mod model;
pub mod netns;
pub mod profile;
pub mod progress;
pub mod receiver;
pub mod report;
pub mod result;
pub mod store;
pub mod sut;
pub mod testbed;
pub mod workload;
