//! `weir-lab`: compares configurations of packet paths and proves what it says.

pub mod across;
pub mod agent;
pub mod answers;
pub mod bed;
pub mod cachesim;
pub mod campaign;
pub mod cli;
pub mod doctor;
pub mod experiment;
#[cfg(test)]
#[path = "../tests/common/folder.rs"]
mod folder;
pub mod generator;
pub mod manifest;
pub mod method;
pub mod model;
pub mod profile;
pub mod progress;
pub mod receiver;
pub mod report;
pub mod result;
pub mod store;
pub mod subject;
pub mod workload;
