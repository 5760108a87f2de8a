//! Clients that connect, get through to the relay's greeting and leave at once.
//!
//! Promises: of new clients no key is seen twice in a run. Keys, and the boxes that prove them, are made before the first comes,
//! for as many as [`AHEAD_TLS`] or [`AHEAD_PLAIN`] say; if more come, theirs are made on the way, and the generator's busy
//! time says so. Refuses: nothing; a client that does not get through fails the run.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use weir_core::time::Nanos;
use weir_io::clock;

use super::client::{Server, connect, dial};
use super::dial::Identity;
use crate::model::LabError;

/// New clients per second for whom all is ready.
const AHEAD_TLS: f64 = 4_000.0;
const AHEAD_PLAIN: f64 = 10_000.0;
/// How many times as many clients there are as connect at a time, where clients come back.
const TAKING_TURNS: u64 = 4;

/// A run of clients that connect and leave, for so long.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stay {
    /// Visits under way at a time: as many as keep the relay busy.
    pub at_once: usize,
    pub warm_up: Duration,
    pub window: Duration,
    /// The same clients take turns; otherwise each comes once.
    pub come_back: bool,
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Connected {
    pub connects: u64,
    pub began: Nanos,
    pub ended: Nanos,
    /// CPU time of the generator's thread between the two.
    pub busy: Nanos,
}

/// Who comes next.
struct Guests {
    ready: VecDeque<Identity>,
    seed: u64,
    /// Numbers below this have been given.
    numbered: u64,
    come_back: bool,
}

impl Guests {
    fn of(server: &Server, stay: &Stay) -> Result<Guests, LabError> {
        let seconds = (stay.warm_up + stay.window).as_secs_f64();
        let rate = if server.trusting.is_some() { AHEAD_TLS } else { AHEAD_PLAIN };
        let at_once = stay.at_once as u64;
        let count = if stay.come_back { TAKING_TURNS * at_once } else { at_once + (rate * seconds) as u64 };
        let (_, first) = connect(server, stay.seed, 1)?.pop().unzip();
        let relay = first.and_then(|identity: Identity| identity.met());
        // The first new client has been there now.
        let numbers = u64::from(!stay.come_back)..count;
        let identities = numbers.map(|n| {
            let mut identity = Identity::numbered(stay.seed, n);
            relay.inspect(|key| identity.introduce(key));
            identity
        });
        Ok(Guests {
            ready: identities.collect(),
            seed: stay.seed,
            numbered: count,
            come_back: stay.come_back,
        })
    }

    fn next(&mut self) -> Option<Identity> {
        self.ready.pop_front().or_else(|| {
            let identity = (!self.come_back).then(|| Identity::numbered(self.seed, self.numbered))?;
            self.numbered += 1;
            Some(identity)
        })
    }

    fn left(&mut self, identity: Identity) {
        if self.come_back {
            self.ready.push_back(identity);
        }
    }
}

/// Connects clients and lets them leave at once; those through in the window count. `begin` is called when it opens.
pub fn come_and_go(server: &Server, stay: Stay, begin: impl FnMut()) -> Result<Connected, LabError> {
    Visits::prepare(server, stay)?.go(begin)
}

/// Clients whose keys are made.
pub struct Visits {
    server: Server,
    stay: Stay,
    guests: Guests,
}

impl Visits {
    pub fn prepare(server: &Server, stay: Stay) -> Result<Visits, LabError> {
        Ok(Visits { server: server.clone(), stay, guests: Guests::of(server, &stay)? })
    }

    /// Warm-up and window, from now on.
    pub fn go(self, begin: impl FnMut()) -> Result<Connected, LabError> {
        go(&self.server, self.stay, RefCell::new(self.guests), begin)
    }
}

fn go(
    server: &Server,
    stay: Stay,
    guests: RefCell<Guests>,
    mut begin: impl FnMut(),
) -> Result<Connected, LabError> {
    let opens = clock::now() + stay.warm_up.as_nanos() as Nanos;
    let window = stay.window.as_nanos() as Nanos;
    let (mut came, mut busy_before) = (Connected::default(), 0);
    dial(
        server,
        stay.at_once,
        || guests.borrow_mut().next(),
        |(wire, identity)| {
            drop(wire);
            guests.borrow_mut().left(identity);
            let now = clock::now();
            if came.began == 0 && now >= opens {
                begin();
                busy_before = own_time();
                came.began = clock::now();
            } else if came.began > 0 {
                came.ended = now;
                came.connects += 1;
            }
            Ok(came.began == 0 || now < came.began + window)
        },
    )
    .map_err(|e| server.failed(&e))?;
    came.busy = own_time().saturating_sub(busy_before);
    Ok(came)
}

/// CPU time of this thread so far.
fn own_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guests(come_back: bool) -> Guests {
        let ready = (0..3).map(|n| Identity::numbered(5, n)).collect();
        Guests { ready, seed: 5, numbered: 3, come_back }
    }

    #[test]
    fn new_clients_are_never_seen_twice_however_many_come() {
        let mut guests = guests(false);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let identity = guests.next().expect("there are always more");
            assert!(seen.insert(identity.key));
            guests.left(identity);
        }
    }

    #[test]
    fn who_comes_back_takes_turns() {
        let mut guests = guests(true);
        let mut order = Vec::new();
        for _ in 0..6 {
            let identity = guests.next().expect("one is here");
            order.push(identity.key);
            guests.left(identity);
        }
        assert_eq!(order[..3], order[3..]);
        let away: Vec<Identity> = std::iter::from_fn(|| guests.next()).collect();
        assert_eq!(away.len(), 3, "nobody else comes");
    }
}
