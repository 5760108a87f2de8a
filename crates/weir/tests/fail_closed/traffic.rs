//! Datagrams of many flows, each way and in each family, all the time; and who of them arrives as cleartext.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir_io::netns;

use super::testbed::{Testbed, until};

/// Flows of one way: with four receive queues each has some.
const FLOWS: usize = 20;
const PORT: u16 = 4791;

/// One way and family: who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub name: &'static str,
    pub outward: bool,
    from: &'static str,
    to: &'static str,
}

pub const WAYS: [Way; 4] = [
    Way { name: "out ipv4", outward: true, from: "10.1.0.2", to: "10.3.0.2" },
    Way { name: "out ipv6", outward: true, from: "fd01::2", to: "fd03::2" },
    Way { name: "in ipv4", outward: false, from: "10.3.0.2", to: "10.1.0.2" },
    Way { name: "in ipv6", outward: false, from: "fd03::2", to: "fd01::2" },
];

struct Counts {
    stop: AtomicBool,
    /// Nothing may arrive once this is set.
    forbidden: AtomicBool,
    sent: AtomicU64,
    clear: AtomicU64,
    forbidden_clear: AtomicU64,
}

/// Datagrams of one way until dropped.
pub struct Stream {
    pub way: Way,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    pub fn start(testbed: &Testbed, way: Way) -> Stream {
        let (from, to) =
            if way.outward { (&testbed.client, &testbed.server) } else { (&testbed.server, &testbed.client) };
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let socket = |ns: &str, at: SocketAddr| {
            netns::inside(ns, || UdpSocket::bind(at)).expect("the namespace is there").expect("a socket")
        };
        let receiver = socket(to, (address(way.to), PORT).into());
        receiver.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let senders: Vec<UdpSocket> =
            (0..FLOWS).map(|_| socket(from, (address(way.from), 0).into())).collect();
        let counts = Arc::new(Counts {
            stop: AtomicBool::new(false),
            forbidden: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            clear: AtomicU64::new(0),
            forbidden_clear: AtomicU64::new(0),
        });
        let (sending, receiving) = (Arc::clone(&counts), Arc::clone(&counts));
        let to = SocketAddr::from((address(way.to), PORT));
        let threads = vec![
            thread::spawn(move || send(&sending, &senders, to)),
            thread::spawn(move || receive(&receiving, &receiver)),
        ];
        Stream { way, counts, threads }
    }

    /// What is sent from now on must not arrive.
    pub fn forbid(&self) {
        self.counts.forbidden.store(true, Ordering::SeqCst);
    }

    pub fn sent(&self) -> u64 {
        self.counts.sent.load(Ordering::SeqCst)
    }

    pub fn clear(&self) -> u64 {
        self.counts.clear.load(Ordering::SeqCst)
    }

    pub fn forbidden_clear(&self) -> u64 {
        self.counts.forbidden_clear.load(Ordering::SeqCst)
    }

    /// Waits until this many more were sent.
    pub fn await_sent(&self, more: u64) {
        let least = self.sent() + more;
        until(self.way.name, || (self.sent() >= least).then_some(()));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.counts.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn send(counts: &Counts, senders: &[UdpSocket], to: SocketAddr) {
    while !counts.stop.load(Ordering::SeqCst) {
        for socket in senders {
            let mark = [u8::from(counts.forbidden.load(Ordering::SeqCst))];
            // Unreachable for a moment is part of what is tried here.
            if socket.send_to(&mark, to).is_ok() {
                counts.sent.fetch_add(1, Ordering::SeqCst);
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn receive(counts: &Counts, receiver: &UdpSocket) {
    let mut buffer = [0; 64];
    while !counts.stop.load(Ordering::SeqCst) {
        if let Ok(len) = receiver.recv(&mut buffer) {
            counts.clear.fetch_add(1, Ordering::SeqCst);
            let forbidden = buffer[..len] == [1];
            counts.forbidden_clear.fetch_add(u64::from(forbidden), Ordering::SeqCst);
        }
    }
}
