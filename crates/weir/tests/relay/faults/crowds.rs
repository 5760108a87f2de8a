//! Ten thousand clients at once, and what is left of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use weir_io::{netns, process};

use super::testbed::Testbed;
use crate::client::{Client, secret};
use crate::machine::until;

const CROWD: u64 = 10_000;
/// Connecting at the same time.
const THREADS: usize = 32;
/// Packets under way.
const AT_ONCE: usize = 100;
/// Beyond a descriptor for each client.
const BESIDES: u64 = 500;
/// Descriptors that threads of the relay may have opened since the first few clients left, which say nothing: each acceptor's
/// runtime opens four when it first runs, and on a busy machine some do so long after the relay listens.
const LATE: usize = 64;

/// All of them, connected as fast as they are taken.
fn storm(testbed: &Testbed, crowd: u64) -> Vec<Client> {
    let at = Testbed::at("127.0.0.1");
    let next = AtomicU64::new(0);
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                netns::enter(&testbed.relay).expect("the namespace is there");
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= crowd {
                        return;
                    }
                    let client = until("a client is let in", || Client::connect(at, number).ok());
                    all.lock().expect("nobody panics with it").push((number, client));
                }
            });
        }
    });
    let mut all = all.into_inner().expect("nobody panicked");
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, client)| client).collect()
}

#[test]
fn thousands_of_clients_at_once_are_let_in_and_reach_each_other() {
    let Some(testbed) = Testbed::new("thousands_of_clients_at_once_are_let_in_and_reach_each_other") else {
        return;
    };
    let allowed = process::raise_descriptors(CROWD + BESIDES).unwrap_or(0);
    if allowed < CROWD + BESIDES {
        use std::io::Write as _;
        let name = "thousands_of_clients_at_once_are_let_in_and_reach_each_other";
        writeln!(
            std::io::stderr(),
            "SKIP {name}: needs {} open files, {allowed} are allowed",
            CROWD + BESIDES
        )
        .expect("stderr is open");
        return;
    }
    let relay = testbed.start("", &[]);
    assert_eq!(storm(&testbed, 100).len(), 100);
    relay.until_metric("weir_relay_connections", "", 0);
    let descriptors = relay.descriptors();
    let mut all = storm(&testbed, CROWD);
    relay.until_metric("weir_relay_connections", "", CROWD as i64);
    // Everybody to the next, and the last to the first; as many at once as the rings between workers hold.
    for first in (0..CROWD).step_by(AT_ONCE) {
        let some = first..CROWD.min(first + AT_ONCE as u64);
        for n in some.clone() {
            let to = secret((n + 1) % CROWD).public();
            all[n as usize].send(to, &u64::to_le_bytes(n)).expect("the relay reads");
        }
        for n in some {
            let (from, data) = all[((n + 1) % CROWD) as usize].packet().expect("a packet");
            assert_eq!((from, data), (secret(n).public(), n.to_le_bytes().to_vec()));
        }
    }
    relay.assert_conserved();
    assert_eq!(relay.metric("weir_relay_packets_dropped_total", ""), 0);
    drop(all);
    relay.until_metric("weir_relay_connections", "", 0);
    until("no connection is left", || (testbed.connections() == 0).then_some(()));
    let left = relay.descriptors();
    assert!(left <= descriptors + LATE, "{left} descriptors are open, {descriptors} were before");
    // The same again: nothing of them is in the way.
    assert_eq!(storm(&testbed, 100).len(), 100);
}
