//! Traffic whose integrity can be told: pings, numbered datagrams, streams with a known content.

use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_io::netns;

pub use crate::content::bytes;
use crate::content::converse;
use crate::testbed::{PATIENCE, run};

/// A host: its namespace and an address there.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    pub ns: &'a str,
    pub ip: IpAddr,
}

/// Everything, both ways: pings, then numbered datagrams, then a stream of `len` bytes and as many back.
pub fn all(a: Host<'_>, b: Host<'_>, datagrams: u64, len: usize) {
    ping(a, b);
    ping(b, a);
    for (from, to) in [(a, b), (b, a)] {
        let seen = numbered(from, to, datagrams);
        assert_eq!(seen, Seen { whole: datagrams, ..Seen::default() }, "{} to {}", from.ip, to.ip);
    }
    stream(a, b, len);
}

/// Pings of two sizes until three of each are answered: on a busy machine more are sent by then. What is lost
/// or comes twice is for [`numbered`] to tell.
pub fn ping(from: Host<'_>, to: Host<'_>) {
    for size in [0, 1200] {
        let ns = from.ns;
        let said = run(&format!(
            "ip netns exec {ns} ping -n -q -w 15 -i 0.02 -c 3 -s {size} -I {} {}",
            from.ip, to.ip
        ));
        // Answers that come together are all counted.
        let received = said.split(" received,").next().and_then(|s| s.rsplit(' ').next());
        let received: u32 = received.and_then(|n| n.parse().ok()).unwrap_or(0);
        assert!(received >= 3 && !said.contains("errors"), "{said}");
    }
}

/// What came of numbered datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Arrived once, with the content they were sent with.
    pub whole: u64,
    pub damaged: u64,
    pub duplicated: u64,
    /// Arrived after one that was sent later.
    pub reordered: u64,
}

/// Sends `count` datagrams of many sizes; never more under way than buffers on the way hold.
pub fn numbered(from: Host<'_>, to: Host<'_>, count: u64) -> Seen {
    paced(from, to, count, Duration::ZERO)
}

/// The same with a rest after every eighth, which leaves a machine of one CPU time for others.
pub fn paced(from: Host<'_>, to: Host<'_>, count: u64, rest: Duration) -> Seen {
    const UNDER_WAY: u64 = 32;
    let bind = |host: Host<'_>| netns::inside(host.ns, || UdpSocket::bind((host.ip, 0)));
    let socket = bind(to).expect("the namespace is there").expect("a socket");
    let sender = bind(from).expect("the namespace is there").expect("a socket");
    let at = socket.local_addr().expect("bound");
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let arrived = AtomicU64::new(0);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&socket, count, &arrived));
        for n in 0..count {
            if n % 8 == 0 && !rest.is_zero() {
                thread::sleep(rest);
            }
            let waited = Instant::now();
            while n >= arrived.load(Ordering::Acquire) + UNDER_WAY && waited.elapsed() < PATIENCE {
                thread::sleep(Duration::from_micros(100));
            }
            // As many are lost as may be under way: no other one is to wait for them.
            if waited.elapsed() >= PATIENCE {
                break;
            }
            let size = 16 + (n as usize * 37) % 1300;
            let mut datagram = n.to_be_bytes().to_vec();
            datagram.extend(bytes(n, size - 8));
            // An ICMP error for an earlier one may be told here; what is missing is counted.
            let _ = sender.send_to(&datagram, at);
        }
        receiver.join().expect("the receiver")
    })
}

/// Sends `count` datagrams at once; how many came, which buffers on the way and the receiver's own decide.
pub fn flood(from: Host<'_>, to: Host<'_>, count: u64) -> u64 {
    let bind = |host: Host<'_>| netns::inside(host.ns, || UdpSocket::bind((host.ip, 0)));
    let socket = bind(to).expect("the namespace is there").expect("a socket");
    let sender = bind(from).expect("the namespace is there").expect("a socket");
    let at = socket.local_addr().expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut buffer = [0; 64];
            (0..count).take_while(|_| socket.recv(&mut buffer).is_ok()).count() as u64
        });
        for n in 0..count {
            // What finds no room in the sender's own queue is not under way.
            let _ = sender.send_to(&n.to_be_bytes(), at);
        }
        receiver.join().expect("the receiver")
    })
}

/// Ends the loads also when what they run beside panics.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `body` while numbered packets go each of these ways, `count` at a time, all of which must arrive; `body` is told when
/// one was lost. Returns how many went each way.
pub fn beside<const N: usize>(
    ways: [(Host<'_>, Host<'_>); N],
    (count, rest): (u64, Duration),
    body: impl FnOnce(&dyn Fn() -> bool),
) -> [u64; N] {
    let over = AtomicBool::new(false);
    let load = |(from, to): (Host<'_>, Host<'_>)| {
        let mut rounds = 0;
        while !over.load(Ordering::Acquire) {
            let seen = paced(from, to, count, rest);
            let whole = Seen { whole: count, ..Seen::default() };
            assert_eq!(seen, whole, "{} to {}, round {rounds}", from.ip, to.ip);
            rounds += 1;
        }
        rounds * count
    };
    thread::scope(|scope| {
        let stops = Stops(&over);
        let loads = ways.map(|way| scope.spawn(move || load(way)));
        body(&|| loads.iter().any(|load| load.is_finished()));
        drop(stops);
        loads.map(|load| load.join().expect("no packet was lost"))
    })
}

/// Receives until all came and nothing more does, or nothing came for too long.
fn receive(socket: &UdpSocket, count: u64, arrived: &AtomicU64) -> Seen {
    let mut seen = Seen::default();
    let mut known = vec![false; count as usize];
    let mut next = 0;
    let mut buffer = [0; 4096];
    let mut last = Instant::now();
    loop {
        let Ok(len) = socket.recv(&mut buffer) else {
            if seen.whole == count || last.elapsed() > PATIENCE {
                return seen;
            }
            continue;
        };
        last = Instant::now();
        let Some((head, tail)) = buffer[..len].split_first_chunk::<8>() else { continue };
        let n = u64::from_be_bytes(*head);
        if n >= count || bytes(n, tail.len()) != tail || len != 16 + (n as usize * 37) % 1300 {
            seen.damaged += 1;
            continue;
        }
        if std::mem::replace(&mut known[n as usize], true) {
            seen.duplicated += 1;
            continue;
        }
        seen.whole += 1;
        seen.reordered += u64::from(n < next);
        next = next.max(n + 1);
        arrived.store(seen.whole, Ordering::Release);
    }
}

/// Sends `len` known bytes by TCP and as many others back.
pub fn stream(from: Host<'_>, to: Host<'_>, len: usize) {
    let listener = netns::inside(to.ns, || TcpListener::bind((to.ip, 0))).expect("the namespace is there");
    let listener = listener.expect("a listener");
    let connect = |at| {
        let client = netns::inside(from.ns, || TcpStream::connect_timeout(&at, PATIENCE));
        client.expect("the namespace is there").expect("connected")
    };
    converse(listener, connect, len);
}
