//! Why the engine's threads did not start.

use std::fmt;
use std::io;

/// Workers of one engine, at most. There is a ring from each to each other one: 64 workers are 4,032 rings.
pub const WORKERS_MAX: usize = 64;

/// Why an engine did not start.
#[derive(Debug)]
pub enum StartError {
    Workers(usize),
    Worker(usize, io::Error),
    Registrar(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Workers(n) => {
                write!(f, "relay: {n} workers; expected 1 to {WORKERS_MAX}: one a core is best")
            }
            StartError::Worker(n, e) => write!(f, "relay: worker {n} did not start: {e}"),
            StartError::Registrar(e) => write!(f, "relay: the registrar did not start: {e}"),
        }
    }
}

impl std::error::Error for StartError {}
