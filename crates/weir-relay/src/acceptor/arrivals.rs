//! Authenticated connections of one thread on their way to the workers: who gets through in one round goes together.
//!
//! ```text
//! connections that had something to say, one after the other ─► authenticated ─► handed over after the last of them
//! ```
//!
//! Handing over wakes two threads in turn; on a busy core each would take it from the handshakes for one connection.
//!
//! Promises: a connection waits for others that are ready at the same moment, at most [`MOST`] of them;
//! the order is kept. Refuses: nobody, and to forget those that wait when the thread ends: it calls [`Arrivals::go`].

use std::sync::{Arc, Mutex, PoisonError};

use crate::{AuthenticatedConn, Relay};

/// Handed over at once.
const MOST: usize = 16;

pub struct Arrivals {
    relay: Arc<Relay>,
    waiting: Mutex<Vec<AuthenticatedConn>>,
}

impl Arrivals {
    pub fn new(relay: Arc<Relay>) -> Arrivals {
        Arrivals { relay, waiting: Mutex::default() }
    }

    /// Within the thread's runtime.
    pub fn add(self: &Arc<Arrivals>, connection: AuthenticatedConn) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(connection);
        let count = waiting.len();
        drop(waiting);
        if count >= MOST {
            self.go();
        } else if count == 1 {
            let own = self.clone();
            // Its turn comes after everybody's who is ready now.
            tokio::spawn(async move { own.go() });
        }
    }

    /// Hands over who waits.
    pub fn go(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        if !waiting.is_empty() {
            self.relay.admit_all(waiting);
        }
    }
}
