//! What happens to weir, to its rules and to its network, in the middle of TCP transfers and UDP flows through a masquerading firewall.
//!
//! ```text
//! connections: known bytes there and back, one exchange after another ─┐
//! datagrams:   known bytes, numbered, there and back ──────────────────┼─► an event ─► what was lost, reset, let in
//! a prober outside: what the rules forbid ─────────────────────────────┘
//! ```
//!
//! Promises: no connection ends and no byte of one is another; a datagram comes back once or not at all, and is lost only by
//! events that lose it without weir too; nothing of the prober arrives. A few flows with the other tests; `make firewall-faults`
//! has a thousand of each.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use weir::testing::daemon::Running;
use weir::testing::machine::until_within;
use weir_io::af_xdp::RING;
use weir_io::netns;

use super::content::bytes;
use super::firewall::{behind, flows, flush};
use super::mirror::{accelerate, in_router, nft, signal};
use super::testbed::{Testbed, ip, run};

const RULES: &str = "flush ruleset
table inet filter {
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    meta l4proto { icmp, icmpv6 } accept
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname \"r0\" accept
  }
}
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname \"r1\" masquerade; }
}
";

/// Nothing between the test's datagrams and their answer takes longer.
const LATE: Duration = Duration::from_secs(2);
/// A thousand connections behind a link that was down begin again by their own timers.
const BEGUN_AGAIN: Duration = Duration::from_secs(90);
/// Bytes of an exchange.
const CHUNK: usize = 3000;
/// Connections of one thread.
const SHARD: usize = 125;

/// Flows of each kind.
fn count() -> usize {
    if std::env::var("WEIR_FIREWALL_FAULTS").is_ok_and(|value| value == "all") { 1000 } else { 8 }
}

#[derive(Default)]
struct Load {
    stop: AtomicBool,
    /// Exchanges of each connection.
    exchanged: Vec<AtomicU64>,
    /// Datagrams of each flow that came back.
    back: Vec<AtomicU64>,
    lost: AtomicU64,
    /// Packets that the rules forbid, which arrived.
    forbidden: AtomicU64,
    probed: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Load {
    fn fail(&self, what: String) {
        self.failures.lock().expect("no panic").push(what);
    }

    /// Nothing went wrong so far.
    fn check(&self, when: &str) {
        let failures = self.failures.lock().expect("no panic").clone();
        assert!(failures.is_empty(), "{when}: {} failures: {:?}", failures.len(), failures.first());
        assert_eq!(self.forbidden.load(Relaxed), 0, "{when}: packets that the rules forbid arrived");
    }

    /// Waits until every connection and every flow goes on.
    fn goes_on(&self, when: &str) {
        let all = || self.exchanged.iter().chain(&self.back);
        let before: Vec<u64> = all().map(|n| n.load(Relaxed)).collect();
        let behind = || all().zip(&before).filter(|(now, before)| now.load(Relaxed) < **before + 2).count();
        until_within(BEGUN_AGAIN, &format!("{when}: every flow goes on"), || {
            self.check(when);
            (behind() == 0).then_some(())
        });
    }
}

/// Sends what it got back, until the connection ends.
fn answer(mut stream: TcpStream) {
    let mut buffer = [0; CHUNK];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}

/// Exchanges over some connections, one after another.
fn exchange(load: &Load, first: usize, streams: &mut [TcpStream]) {
    let mut number = 0u64;
    while !load.stop.load(Relaxed) {
        number += 1;
        for (n, stream) in streams.iter_mut().enumerate() {
            let content = bytes(number << 16 | (first + n) as u64, CHUNK);
            let mut back = vec![0; CHUNK];
            if let Err(error) = stream.write_all(&content).and_then(|()| stream.read_exact(&mut back)) {
                return load.fail(format!("connection {} in exchange {number}: {error}", first + n));
            }
            if back != content {
                return load.fail(format!("connection {}: exchange {number} has other bytes", first + n));
            }
            load.exchanged[first + n].fetch_add(1, Relaxed);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn datagram(flow: usize, number: u64) -> Vec<u8> {
    let seed = number << 16 | flow as u64;
    let mut content = seed.to_be_bytes().to_vec();
    content.extend(bytes(seed, 8 + (number as usize * 37) % 1000));
    content
}

/// Numbered datagrams of all flows, and what becomes of them.
fn bounce(load: &Load, sockets: &[UdpSocket], to: SocketAddr) {
    let mut outstanding: Vec<HashMap<u64, Instant>> = vec![HashMap::new(); sockets.len()];
    let mut number = 0;
    while !load.stop.load(Relaxed) {
        number += 1;
        for (n, socket) in sockets.iter().enumerate() {
            // An ICMP error for an earlier one may be told instead.
            if socket.send_to(&datagram(n, number), to).is_ok() {
                outstanding[n].insert(number, Instant::now());
            }
            // Not more at once than the other end's socket has room for.
            if n % 16 == 15 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        thread::sleep(Duration::from_millis(2));
        let mut buffer = [0; 2048];
        for (n, socket) in sockets.iter().enumerate() {
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                if from != to {
                    load.forbidden.fetch_add(1, Relaxed);
                    continue;
                }
                let seed = buffer.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
                if seed & 0xffff != n as u64 || buffer[..len] != datagram(n, seed >> 16)[..] {
                    load.fail(format!("flow {n}: a datagram of {len} other bytes"));
                } else if outstanding[n].remove(&(seed >> 16)).is_none() {
                    load.fail(format!("flow {n}: datagram {} came twice or after {LATE:?}", seed >> 16));
                }
                load.back[n].fetch_add(1, Relaxed);
            }
            outstanding[n].retain(|_, sent| {
                let late = sent.elapsed() > LATE;
                load.lost.fetch_add(late.into(), Relaxed);
                !late
            });
        }
    }
}

/// Tries from outside what the rules forbid: a new flow to a host behind the router, and a flow's port from another address.
fn probe(load: &Load, testbed: &Testbed, flow: u16) {
    let bound = |address: &str| {
        testbed.in_server(|| UdpSocket::bind((ip(address), 0))).expect("a socket in the server")
    };
    let (new, other) = (bound("10.2.0.2"), bound("10.2.0.3"));
    let listener = testbed.in_client(|| UdpSocket::bind("10.1.0.2:0")).expect("a socket in the client");
    listener.set_nonblocking(true).expect("a socket");
    let inside = listener.local_addr().expect("bound");
    while !load.stop.load(Relaxed) {
        // Neither has a route at every moment.
        let _ = new.send_to(b"a new flow", inside);
        let _ = other.send_to(b"another's port", (ip("10.2.0.1"), flow));
        load.probed.fetch_add(1, Relaxed);
        thread::sleep(Duration::from_millis(5));
        if listener.recv_from(&mut [0; 64]).is_ok() {
            load.forbidden.fetch_add(1, Relaxed);
        }
    }
}

/// An address for datagrams, which come back.
fn echo(testbed: &Testbed) -> UdpSocket {
    let socket = testbed.in_server(|| UdpSocket::bind("10.2.0.2:0")).expect("a socket in the server");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    socket
}

fn connections(testbed: &Testbed, count: usize) -> Vec<TcpStream> {
    let listener = testbed.in_server(|| TcpListener::bind("10.2.0.2:0")).expect("a listener");
    let at = listener.local_addr().expect("bound");
    let accepting = thread::spawn(move || {
        for _ in 0..count {
            let (far, _) = listener.accept().expect("a connection");
            // It ends with its connection.
            thread::Builder::new().stack_size(64 << 10).spawn(move || answer(far)).expect("a thread");
        }
    });
    let streams =
        testbed.in_client(|| (0..count).map(|_| TcpStream::connect(at).expect("connected")).collect());
    accepting.join().expect("accepted");
    streams
}

fn under_load(testbed: &Testbed, work: impl FnOnce(&Load)) {
    let count = count();
    let load = &Load {
        exchanged: (0..count).map(|_| AtomicU64::new(0)).collect(),
        back: (0..count).map(|_| AtomicU64::new(0)).collect(),
        ..Load::default()
    };
    let mut streams = connections(testbed, count);
    for stream in &streams {
        stream.set_read_timeout(Some(BEGUN_AGAIN)).expect("a timeout");
    }
    let sockets: Vec<UdpSocket> = testbed.in_client(|| {
        let bound = || UdpSocket::bind("10.1.0.2:0").expect("a socket in the client");
        (0..count).map(|_| bound()).collect()
    });
    for socket in &sockets {
        socket.set_nonblocking(true).expect("a socket");
    }
    let first_port = sockets[0].local_addr().expect("bound").port();
    let echo = echo(testbed);
    let to = echo.local_addr().expect("bound");
    thread::scope(|scope| {
        for (n, shard) in streams.chunks_mut(SHARD).enumerate() {
            scope.spawn(move || exchange(load, n * SHARD, shard));
        }
        scope.spawn(|| bounce(load, &sockets, to));
        scope.spawn(|| probe(load, testbed, first_port));
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            while !load.stop.load(Relaxed) {
                if let Ok((len, from)) = echo.recv_from(&mut buffer) {
                    // What is lost is counted where it is missed.
                    let _ = echo.send_to(&buffer[..len], from);
                }
            }
        });
        // A work that panics ends the traffic too.
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(load)));
        load.stop.store(true, Relaxed);
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    load.check("at the end");
    assert!(load.probed.load(Relaxed) > 100, "the prober tried hardly anything");
}

/// What an event may cost.
#[derive(Clone, Copy)]
enum Loses {
    Nothing,
    /// Datagrams: what was in the rings.
    Rings,
    /// Datagrams, as it does without weir.
    AsWithoutWeir,
}

/// Lets something happen, and looks at what became of the flows.
fn event(load: &Load, what: &str, loses: Loses, happens: impl FnOnce()) {
    load.goes_on(&format!("before {what}"));
    thread::sleep(LATE);
    let before = load.lost.load(Relaxed);
    happens();
    load.goes_on(what);
    thread::sleep(LATE + Duration::from_millis(500));
    let lost = load.lost.load(Relaxed) - before;
    let at_most = match loses {
        Loses::Nothing => 0,
        Loses::Rings => 2 * u64::from(RING),
        Loses::AsWithoutWeir => u64::MAX,
    };
    assert!(lost <= at_most, "{what}: {lost} datagrams were lost, {at_most} at most are");
    writeln!(std::io::stderr(), "  {what}: {lost} datagrams lost").expect("stderr is open");
}

fn all_taken(router: &Running) {
    let all = 2 * count() as i64;
    until_within(
        BEGUN_AGAIN,
        &format!("{all} flows are taken:\n{}", router.told(&["show", "offload"])),
        || (flows(router, "way=\"xdp\"") >= all).then_some(()),
    );
}

fn prepared(test: &str) -> Option<Testbed> {
    let testbed = behind(test, RULES)?;
    // Connections that are there before weir listens are told of, too.
    run(&format!("ip netns exec {} sysctl -qw net.netfilter.nf_conntrack_events=1", testbed.router));
    // What a first program on a veth switches over is not ours to lose.
    drop(accelerate(&testbed));
    run(&format!("ip -n {} address add 10.2.0.3/24 dev s0", testbed.server));
    run(&format!("ip -n {} route add 10.1.0.0/24 via 10.2.0.1", testbed.server));
    Some(testbed)
}

#[test]
fn what_happens_to_weir_ends_no_connection_and_lets_nothing_in() {
    let Some(testbed) = prepared("what_happens_to_weir_ends_no_connection_and_lets_nothing_in") else {
        return;
    };
    under_load(&testbed, |load| {
        let mut router = None;
        event(load, "a start", Loses::Nothing, || {
            all_taken(router.insert(accelerate(&testbed)));
        });
        let mut router = router.expect("started");
        event(load, "an orderly stop", Loses::Nothing, || signal(&mut router, "TERM"));
        router = accelerate(&testbed);
        all_taken(&router);
        event(load, "a kill", Loses::Rings, || signal(&mut router, "KILL"));
        router = accelerate(&testbed);
        all_taken(&router);
        event(load, "a restart", Loses::Nothing, || {
            signal(&mut router, "TERM");
            router = accelerate(&testbed);
            all_taken(&router);
        });
        event(load, "--take-over", Loses::Nothing, || {
            let next = super::mirror::accelerate_with(&testbed, &["--take-over"]);
            router.child.wait().expect("a child of ours");
            router = next;
            all_taken(&router);
        });
        event(load, "a second weir", Loses::Nothing, || {
            let other =
                super::mirror::weir(&testbed, &["--socket", "/dev/null/none", "accelerate", "r0", "r1"]);
            assert!(!other.status.success(), "a second weir on the same devices is refused");
        });
        all_taken(&router);
        assert!(router.balances());
    });
}

#[test]
fn what_happens_around_weir_ends_no_connection_and_lets_nothing_in() {
    let test = "what_happens_around_weir_ends_no_connection_and_lets_nothing_in";
    let Some(testbed) = prepared(test) else { return };
    run(&format!("ip netns exec {} sysctl -qw net.ipv4.conf.s0.arp_notify=1", testbed.server));
    under_load(&testbed, |load| {
        // Between two states of a rule set that is flushed and written in one go the kernel drops what is on its way.
        let write_again = || (0..5).for_each(|_| nft(&testbed, RULES));
        event(load, "the rules written again, without weir", Loses::AsWithoutWeir, write_again);
        let router = accelerate(&testbed);
        all_taken(&router);
        event(load, "the rules written again", Loses::AsWithoutWeir, write_again);
        all_taken(&router);
        event(load, "a rule that looks at every packet", Loses::Nothing, || {
            nft(&testbed, "insert rule inet filter forward limit rate over 10000000/second drop\n");
        });
        assert_eq!(flows(&router, "way=\"xdp\""), 0, "the kernel judges every packet");
        nft(&testbed, RULES);
        all_taken(&router);
        event(load, "conntrack -F", Loses::AsWithoutWeir, || flush(&testbed));
        all_taken(&router);
        event(load, "a link that goes down and up", Loses::AsWithoutWeir, || {
            in_router(&testbed, "link set r1 down");
            thread::sleep(Duration::from_millis(300));
            in_router(&testbed, "link set r1 up");
        });
        all_taken(&router);
        event(load, "a neighbor with another address", Loses::AsWithoutWeir, || {
            run(&format!("ip -n {} link set s0 address 02:00:00:00:77:01", testbed.server));
        });
        all_taken(&router);
        assert!(router.balances());
    });
}

/// Whether a socket of NETLINK_NETFILTER in the router lost messages: protocol 12 and the drops of `/proc/net/netlink`.
fn messages_dropped(testbed: &Testbed) -> bool {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netlink").expect("the kernel's sockets");
    let sockets = netns::inside(&testbed.router, read).expect("the namespace is there");
    sockets.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1) == Some(&"12") && fields.get(8).is_some_and(|drops| *drops != "0")
    })
}

/// The kernel drops messages about flows because nobody reads them: a router that is stopped meanwhile.
#[test]
fn lost_messages_about_flows_end_in_the_kernels_entries() {
    let test = "lost_messages_about_flows_end_in_the_kernels_entries";
    /// More messages than the socket holds: 128 MiB (the kernel doubles the 64 MiB asked for) / 768 B = 174,762.
    const PORTS: u16 = 50_000;
    const SOCKETS: usize = 4;
    let most = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap_or_default();
    if most.trim().parse().is_ok_and(|most: usize| most < SOCKETS * PORTS as usize + 10_000) {
        writeln!(std::io::stderr(), "SKIP {test}: needs nf_conntrack_max of 210,000")
            .expect("stderr is open");
        return;
    }
    let Some(testbed) = prepared(test) else { return };
    // Nobody has this address, and nobody says so.
    in_router(&testbed, "route add 10.9.0.0/16 via 10.2.0.2");
    under_load(&testbed, |load| {
        let router = accelerate(&testbed);
        all_taken(&router);
        event(load, "an overrun", Loses::AsWithoutWeir, || {
            run(&format!("kill -STOP {}", router.child.id()));
            let sockets = testbed
                .in_client(|| [(); SOCKETS].map(|()| UdpSocket::bind("10.1.0.2:0").expect("a socket")));
            // What finds no room on the way makes no message: it is sent again.
            until_within(BEGUN_AGAIN, "the kernel drops messages", || {
                for port in 1..=PORTS {
                    sockets.iter().for_each(|socket| _ = socket.send_to(b"first", ("10.9.0.1", port)));
                    if port % 32 == 0 {
                        thread::sleep(Duration::from_micros(200));
                    }
                    if port % 1024 == 0 && messages_dropped(&testbed) {
                        return Some(());
                    }
                }
                messages_dropped(&testbed).then_some(())
            });
            run(&format!("kill -CONT {}", router.child.id()));
            let counted = |event: &str| {
                router.values("weir_flow_events_total", &format!("event=\"{event}\"")).iter().sum::<i64>()
            };
            until_within(BEGUN_AGAIN, "the overrun is counted, and everything dumped again", || {
                (counted("overrun") > 0 && counted("resync") > 0).then_some(())
            });
        });
        all_taken(&router);
        assert!(router.told(&["show", "status"]).contains("messages about flows overran"));
        assert!(router.balances());
    });
}
