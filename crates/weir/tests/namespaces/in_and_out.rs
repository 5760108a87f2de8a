//! A router that comes and goes under traffic: numbered datagrams both ways in both families, all the time, and which of them
//! never arrived.
//!
//! Promises: what is said to be lost was lost between the hosts; what a receiving socket had no room for is told apart by the
//! kernel's count. Nothing here depends on how long anything takes: marks are numbers of datagrams, not times.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use weir_io::af_xdp::RING;
use weir_io::netns;

use super::gateways::{GCM, Gateways, Side, families, pair, ports, tunnel};
use super::mirror::{accelerate, beyond, forwarding, in_router, signal};
use super::testbed::{Testbed, run, until};
use super::traffic::{ping, ways};
use weir::testing::daemon::Running;

/// One way of one family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow<'a> {
    from: (&'a str, IpAddr),
    to: (&'a str, IpAddr),
}

/// Both ways of both families between these addresses of two namespaces.
pub(super) fn flows<'a>(near: &'a str, far: &'a str, pairs: [(IpAddr, IpAddr); 2]) -> [Flow<'a>; 4] {
    let [four, six] =
        pairs.map(|(a, b)| [Flow { from: (near, a), to: (far, b) }, Flow { from: (far, b), to: (near, a) }]);
    [four[0], four[1], six[0], six[1]]
}

/// How far each flow is, while it runs.
#[derive(Default)]
pub(super) struct Progress {
    sent: [AtomicU64; 4],
    /// One more than the highest number received.
    received: [AtomicU64; 4],
    stop: AtomicBool,
}

impl Progress {
    pub(super) fn sent(&self) -> [u64; 4] {
        std::array::from_fn(|n| self.sent[n].load(Ordering::Acquire))
    }

    /// Waits until of every flow something arrived that is sent from now on, and `more` after it; where each flow began to arrive.
    pub(super) fn arrives(&self, more: u64) -> [u64; 4] {
        let from = self.sent();
        let first: [u64; 4] = std::array::from_fn(|n| {
            until(&format!("flow {n} arrives beyond {}", from[n]), || {
                let received = self.received[n].load(Ordering::Acquire);
                (received > from[n]).then_some(received)
            })
        });
        for (n, first) in first.iter().enumerate() {
            until("it goes on", || (self.received[n].load(Ordering::Acquire) > first + more).then_some(()));
        }
        first
    }
}

/// What became of a flow.
#[derive(Debug)]
pub(super) struct FlowOutcome {
    pub(super) sent: u64,
    pub(super) lost: Vec<u64>,
    /// Datagrams among the lost ones that its receiver's socket had no room for.
    pub(super) no_room: u64,
}

/// The flows run while `work` does. None arrives twice.
pub(super) fn under_flows(flows: &[Flow<'_>; 4], work: impl FnOnce(&Progress)) -> Vec<FlowOutcome> {
    let progress = &Progress::default();
    thread::scope(|scope| {
        let running: Vec<_> = flows
            .iter()
            .enumerate()
            .map(|(n, flow)| {
                let bound = |(ns, ip): (&str, IpAddr)| {
                    let socket = netns::inside(ns, || UdpSocket::bind((ip, 0)));
                    socket.expect("the namespace is there").expect("a socket")
                };
                let (sender, receiver) = (bound(flow.from), bound(flow.to));
                receiver.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
                let at = receiver.local_addr().expect("bound");
                let sending = scope.spawn(move || send(progress, n, &sender, at));
                let ns = flow.to.0;
                let receiving = scope.spawn(move || {
                    let seen = receive(progress, n, &receiver);
                    (seen, no_room(ns, at))
                });
                (sending, receiving)
            })
            .collect();
        // A work that panics ends the traffic too.
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(progress)));
        progress.stop.store(true, Ordering::Release);
        let fates = running.into_iter().map(|(sending, receiving)| {
            let sent = sending.join().expect("sent");
            let (seen, no_room) = receiving.join().expect("received");
            FlowOutcome { sent, lost: (0..sent).filter(|n| !seen.contains(n)).collect(), no_room }
        });
        let fates = fates.collect();
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        fates
    })
}

fn send(progress: &Progress, n: usize, sender: &UdpSocket, to: SocketAddr) -> u64 {
    let mut number = 0u64;
    while !progress.stop.load(Ordering::Acquire) {
        // An ICMP error for an earlier one is told here once; this one is then sent at the next call.
        if sender.send_to(&number.to_be_bytes(), to).is_ok() {
            number += 1;
            progress.sent[n].store(number, Ordering::Release);
        }
        thread::sleep(Duration::from_micros(200));
    }
    number
}

fn receive(progress: &Progress, n: usize, receiver: &UdpSocket) -> BTreeSet<u64> {
    let (mut seen, mut buffer) = (BTreeSet::new(), [0; 64]);
    loop {
        match receiver.recv(&mut buffer) {
            Ok(8) => {
                let number = u64::from_be_bytes(*buffer.first_chunk().expect("eight"));
                assert!(seen.insert(number), "datagram {number} of flow {n} came twice");
                progress.received[n].fetch_max(number + 1, Ordering::Release);
            }
            Ok(len) => panic!("{len} bytes that nobody sent"),
            Err(_) if progress.stop.load(Ordering::Acquire) => return seen,
            Err(_) => {}
        }
    }
}

/// What the kernel counts of the socket with this address: datagrams it had no room for.
fn no_room(ns: &str, at: SocketAddr) -> u64 {
    let table = if at.is_ipv4() { "udp" } else { "udp6" };
    let text = run(&format!("ip netns exec {ns} cat /proc/net/{table}"));
    let port = format!(":{:04X}", at.port());
    let line = text.lines().find(|l| l.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&port)));
    let drops = line.and_then(|l| l.split_whitespace().last()?.parse().ok());
    drops.expect("the kernel counts the socket's drops")
}

/// A router between client and server whose kernel forwards, with both families' neighbours known; and its flows' addresses.
pub(super) fn kernels(test: &str) -> Option<(Testbed, [(IpAddr, IpAddr); 2])> {
    let testbed = Testbed::new(test)?;
    forwarding(&testbed, true);
    in_router(&testbed, "route add 10.9.0.0/16 via 10.2.0.2 proto bgp");
    in_router(&testbed, "route add fd09::/48 via fd02::2 proto bgp");
    let [four, six] = ways();
    let pairs =
        [(four.client, beyond(&testbed, "10.9.0.1/32")), (six.client, beyond(&testbed, "fd09::1/128"))];
    for (client, there) in pairs {
        ping(&testbed, client, there);
    }
    // What a first program on a veth switches over is not ours to lose.
    drop(accelerate(&testbed));
    Some((testbed, pairs))
}

/// weir has forwarded this much since it started.
fn forwards(running: &Running, least: i64) {
    until("weir forwards", || {
        (running.values("weir_frames_forwarded_total", "").iter().sum::<i64>() > least).then_some(())
    });
}

pub(super) fn is_all_there(fates: &[FlowOutcome], what: &str) {
    for fate in fates {
        assert!(fate.sent > 500, "{what}: hardly anything was sent: {fate:?}");
        assert_eq!(fate.lost.len() as u64, fate.no_room, "{what} loses nothing: {fate:?}");
    }
}

#[test]
fn start_and_orderly_stop_lose_nothing_of_either_family_either_way() {
    let Some((testbed, pairs)) = kernels("start_and_orderly_stop_lose_nothing_of_either_family_either_way")
    else {
        return;
    };
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        for _ in 0..3 {
            progress.arrives(100);
            let mut running = accelerate(&testbed);
            forwards(&running, 400);
            progress.arrives(100);
            signal(&mut running, "TERM");
        }
        progress.arrives(100);
    });
    is_all_there(&fates, "start and orderly stop");
}

/// As an upgrade does it: the old program ends in order, the new one starts.
#[test]
fn a_router_of_a_file_is_restarted_without_a_loss() {
    let Some((testbed, pairs)) = kernels("a_router_of_a_file_is_restarted_without_a_loss") else { return };
    let config = format!("routes = \"kernel\"\n{}", testbed.config("auto", ""));
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        let mut router = testbed.start(&config);
        for _ in 0..2 {
            forwards(&router, 400);
            router.signal("TERM");
            assert!(router.wait(), "{}", router.log());
            router = testbed.start(&config);
            progress.arrives(100);
        }
        forwards(&router, 400);
        router.signal("TERM");
        assert!(router.wait(), "{}", router.log());
        progress.arrives(100);
    });
    is_all_there(&fates, "a restart");
}

/// `--take-over`: one command, and a file that is no good changes nothing.
#[test]
fn a_router_that_another_takes_over_from_loses_nothing() {
    let Some((testbed, pairs)) = kernels("a_router_that_another_takes_over_from_loses_nothing") else {
        return;
    };
    let config = format!("routes = \"kernel\"\n{}", testbed.config("auto", ""));
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        // Nobody runs yet: there is nothing to take over.
        let mut router = testbed.take_over(&config);
        let bad = config.replace("\"r1\"", "\"r9\"");
        let mut refused = testbed.spawn_with(&bad, &[], &["--take-over"]);
        assert!(!refused.wait() && refused.log().contains("r9"), "{}", refused.log());
        for _ in 0..2 {
            forwards(&router, 400);
            let next = testbed.take_over(&config);
            assert!(router.wait(), "{}", router.log());
            assert!(router.log().contains("(0 unaccounted)"), "{}", router.log());
            let says = format!("taking over from process {}", router.pid());
            assert!(next.log().contains(&says), "{}", next.log());
            router = next;
            progress.arrives(100);
        }
        forwards(&router, 400);
        router.signal("TERM");
        assert!(router.wait(), "{}", router.log());
        progress.arrives(100);
    });
    is_all_there(&fates, "a router that another takes over from");
}

#[test]
fn a_kill_loses_at_most_what_was_in_the_rings() {
    let Some((testbed, pairs)) = kernels("a_kill_loses_at_most_what_was_in_the_rings") else { return };
    let mut marks = Vec::new();
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        for _ in 0..3 {
            let mut running = accelerate(&testbed);
            forwards(&running, 400);
            let before = progress.sent();
            signal(&mut running, "KILL");
            marks.push((before, progress.arrives(300)));
        }
    });
    // A ring for each direction: two flows come in by each device.
    for kill in &marks {
        for way in [[0, 2], [1, 3]] {
            let lost = way.map(|n| {
                let (from, to) = (kill.0[n].saturating_sub(RING.into()), kill.1[n]);
                fates[n].lost.iter().filter(|&&lost| (from..to).contains(&lost)).count()
            });
            assert!(lost.iter().sum::<usize>() <= RING as usize, "{lost:?} were lost at once: {marks:?}");
        }
    }
    for (n, disposition) in fates.iter().enumerate() {
        let by_kill = |lost: &u64| {
            marks.iter().any(|(from, to)| (from[n].saturating_sub(RING.into())..to[n]).contains(lost))
        };
        let others: Vec<&u64> = disposition.lost.iter().filter(|lost| !by_kill(lost)).collect();
        assert!(
            others.len() as u64 <= disposition.no_room,
            "flow {n} lost {others:?} with no kill near: {marks:?}"
        );
    }
}

/// With IPsec nobody else may carry the packets: what is sent while weir is away is lost, and nothing else.
#[test]
fn a_gateway_loses_only_what_is_sent_while_it_is_away() {
    let Some(testbed) = Gateways::new("a_gateway_loses_only_what_is_sent_while_it_is_away") else { return };
    testbed.keys(&["a-east", "a-west"], GCM);
    let text = |side| ports(side, "auto") + &pair(side, "a", 0x1000, families()[0], GCM) + &tunnel(side, "a");
    let [mut west, east] = testbed.start(text);
    let pairs = families().map(|ends| (ends.client, ends.far));
    for (client, far) in pairs {
        ping(&testbed.west, client, far);
    }
    let (mut away, mut orphans) = (Vec::new(), Vec::new());
    let fates = under_flows(&flows(&testbed.west.client, &testbed.west.server, pairs), |progress| {
        for how in ["TERM", "KILL", "take over", "TERM", "signal"] {
            progress.arrives(300);
            let before = progress.sent();
            if how == "signal" {
                orphans.push(west.succeed());
                assert!(west.log().contains("was dropped, never sent as cleartext"), "{}", west.log());
            } else if how == "take over" {
                let next = testbed.west.take_over(&text(Side::West));
                assert!(west.wait(), "{}", west.log());
                west = next;
            } else {
                west.signal(how);
                west.wait();
                west = testbed.west.start(&text(Side::West));
            }
            away.push((how, before, progress.arrives(300)));
        }
    });
    for (n, disposition) in fates.iter().enumerate() {
        let while_away = |lost: &u64| {
            away.iter().any(|(how, from, to)| {
                // A killed one takes what was in its rings with it.
                let rings = if *how == "KILL" { RING.into() } else { 0 };
                (from[n].saturating_sub(rings)..to[n]).contains(lost)
            })
        };
        let others: Vec<&u64> = disposition.lost.iter().filter(|lost| !while_away(lost)).collect();
        assert!(
            others.len() as u64 <= disposition.no_room,
            "flow {n} lost {others:?} with weir there: {away:?}"
        );
        assert!(!disposition.lost.is_empty(), "the kernel carried flow {n} while weir was away");
    }
    east.assert_conserved();
}
