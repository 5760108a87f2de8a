//! Flows of the kernel's firewall where several next hops lead to their destination: each keeps the hop that the kernel chose.
//!
//! ```text
//!                       ┌─ r1 10.2.0.1 ── s0 10.2.0.2 ─┐
//! client ── r0  router ─┤                              ├─ server 10.9.0.1, fd09::1
//!                       └─ r2 10.3.0.1 ── s1 10.3.0.2 ─┘
//! ```
//!
//! Promises: the server takes a masqueraded packet only from the device that its address belongs to (strict reverse path), so a flow
//! that left by another would have no answers.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir::testing::machine::set;
use weir_core::wire::ctnetlink::{Event, STATUS_ASSURED, Tuple};
use weir_core::wire::protocol;
use weir_io::netns;
use weir_io::offload::{self, Offload};

use super::firewall::{behind, flows, wait_for_flows};
use super::mirror::{beyond, in_router, nft};
use super::testbed::{Router, Testbed, ip, run, until};

const RULES: &str = "flush ruleset
table inet filter {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname \"r0\" accept
  }
}
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname { \"r1\", \"r2\" } masquerade; }
}
";

/// Flows of each family: that all of them take one of two hops is less likely than one in ten thousand, at a quarter for one.
const FLOWS: usize = 40;

/// Tells who asks which address it is seen by.
struct Mirror {
    at: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mirror {
    fn start(testbed: &Testbed, at: IpAddr) -> Mirror {
        let socket = testbed.in_server(|| UdpSocket::bind((at, 0))).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let at = socket.local_addr().expect("bound");
        let ends = Arc::new(AtomicBool::new(false));
        let until = ends.clone();
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
                    // Whoever waits for it says so.
                    let _ = socket.send_to(from.ip().to_string().as_bytes(), from);
                }
            }
        });
        Mirror { at, ends, thread: Some(thread) }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has told of itself.
            let _ = thread.join();
        }
    }
}

/// A flow, and the address it is seen by.
struct Asker {
    socket: UdpSocket,
    seen: IpAddr,
}

impl Asker {
    fn begin(testbed: &Testbed, from: IpAddr, to: SocketAddr) -> Asker {
        let socket = testbed.in_client(|| UdpSocket::bind((from, 0))).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        socket.connect(to).expect("connected");
        let mut asker = Asker { socket, seen: from };
        asker.seen = until("the first answer", || asker.answer());
        asker
    }

    fn answer(&self) -> Option<IpAddr> {
        let mut back = [0; 64];
        self.socket.send(b"who am I").expect("sent");
        let len = self.socket.recv(&mut back).ok()?;
        Some(ip(std::str::from_utf8(&back[..len]).expect("an address")))
    }

    /// Whether the kernel takes its flow for lasting.
    fn is_assured(&self, testbed: &Testbed) -> bool {
        let ends = [self.socket.local_addr(), self.socket.peer_addr()].map(|end| end.expect("connected"));
        let original = Tuple {
            source: ends[0].ip(),
            destination: ends[1].ip(),
            protocol: protocol::UDP,
            source_port: ends[0].port(),
            destination_port: ends[1].port(),
        };
        let entry = super::firewall::in_router(testbed, |requests| requests.query(&original));
        matches!(entry, Ok(Event::Present(entry)) if entry.status.is_some_and(|s| s & STATUS_ASSURED != 0))
    }

    /// One packet there and one back, of the same flow.
    fn bounce(&self) {
        assert_eq!(self.answer(), Some(self.seen), "an answer to the same address");
    }
}

/// Two uplinks, the first of which has three times the weight.
fn two_uplinks(test: &str) -> Option<Testbed> {
    let testbed = behind(test, RULES)?;
    let router = &testbed.router;
    testbed.connect(
        &testbed.server,
        "s1",
        "r2",
        ["10.3.0.2/24", "fd03::2/64"],
        ["10.3.0.1/24", "fd03::1/64"],
        1,
    );
    testbed.in_server(|| {
        offload::set("s1", Offload::Gro, true).expect("veth knows this offload");
        for device in ["all", "s0", "s1"] {
            set(&format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "1");
        }
    });
    netns::inside(router, || {
        // By ports too, so that flows of one pair of hosts differ.
        for family in ["ipv4", "ipv6"] {
            set(&format!("/proc/sys/net/{family}/fib_multipath_hash_policy"), "1");
        }
        set("/proc/sys/net/netfilter/nf_conntrack_events", "1");
        set("/proc/sys/net/ipv6/conf/r2/forwarding", "1");
    })
    .expect("the namespace is there");
    beyond(&testbed, "10.9.0.1/32");
    beyond(&testbed, "fd09::1/128");
    in_router(&testbed, "route add 10.9.0.0/24 nexthop via 10.2.0.2 weight 3 nexthop via 10.3.0.2 weight 1");
    in_router(&testbed, "route add fd09::/64 nexthop via fd02::2 weight 3 nexthop via fd03::2 weight 1");
    Some(testbed)
}

fn start(testbed: &Testbed) -> Router {
    let third = "[[port]]\nname = \"third\"\ndevice = \"r2\"\naddresses = \"kernel\"\n";
    let config = "routes = \"kernel\"\nfirewall = \"kernel\"\n".to_owned() + &testbed.config("auto", third);
    testbed.start(&config)
}

#[test]
fn flows_keep_the_next_hop_that_the_kernel_chose_until_it_goes() {
    let Some(testbed) = two_uplinks("flows_keep_the_next_hop_that_the_kernel_chose_until_it_goes") else {
        return;
    };
    let [four, six] = ["10.9.0.1", "fd09::1"].map(|at| Mirror::start(&testbed, ip(at)));
    // What a first program on a veth switches over is not ours to lose.
    drop(start(&testbed));
    let askers = |from: &str, to: &Mirror| -> Vec<Asker> {
        (0..FLOWS).map(|_| Asker::begin(&testbed, ip(from), to.at)).collect()
    };
    let (four, six) = (askers("10.1.0.2", &four), askers("fd01::2", &six));
    let by = |address: &str| four.iter().filter(|asker| asker.seen == ip(address)).count();
    let (first, second) = (by("10.2.0.1"), by("10.3.0.1"));
    assert!(first > 0 && second > 0 && first + second == FLOWS, "{first} and {second} of {FLOWS} flows");
    let router = start(&testbed);
    let all = || four.iter().chain(&six);
    until("every flow is forwarded by XDP", || {
        all().for_each(Asker::bounce);
        (flows(&router, "way=\"xdp\"") == 2 * FLOWS as i64).then_some(())
    });
    let both = |askers: &[&Asker]| 2 * askers.len();
    let every: Vec<&Asker> = four.iter().collect();
    pass_by(&router, &every, 20, 20 * both(&every));
    // The server answers what is not translated by its first device, whatever it came by.
    let every: Vec<&Asker> = six.iter().collect();
    // Whichever of the two answers come in by.
    pass_by(&router, &every, 20, 20 * both(&every));
    let shown = |port: &str| router.metric("weir_port_tx_packets_total", &format!("port=\"{port}\""));
    assert!(shown("right") > 0 && shown("third") > 0, "by both: {}", router.metrics());
    // Other tables with the same next hops change no flow.
    in_router(&testbed, "route add 10.77.0.0/24 via 10.2.0.2");
    router.wait_for_metric("weir_flow_events_total", "event=\"taken\"", 2 * FLOWS as i64);
    all().for_each(Asker::bounce);
    assert_eq!(router.metric("weir_flow_events_total", "event=\"released\""), 0);
    // One of the two goes: its flows are judged again, and those of the other stay.
    in_router(&testbed, "route replace fd09::/64 via fd03::2");
    in_router(&testbed, "route replace 10.9.0.0/24 via 10.2.0.2");
    let stay: Vec<&Asker> = four.iter().filter(|asker| asker.seen == ip("10.2.0.1")).chain(&six).collect();
    until("what leads by the hop that is left is forwarded by XDP", || {
        stay.iter().for_each(|asker| asker.bounce());
        (flows(&router, "way=\"xdp\"") == stay.len() as i64).then_some(())
    });
    let (first, others) = stay.split_at(stay.len() - FLOWS);
    pass_by(&router, first, 1, both(first));
    // They leave by one device, and are answered by the other.
    pass_by(&router, others, 1, others.len());
    assert!(router.metric("weir_flow_events_total", "event=\"released\"") > 0);
    // Those whose address belongs to the other device are the kernel's, which ends them.
    let moved = flows(&router, "reason=\"moved\"");
    assert!(moved > 0, "{}", router.told(&["show", "offload"]));
    four.iter().filter(|asker| asker.seen == ip("10.3.0.1")).for_each(|asker| {
        asker.socket.send(b"who am I").expect("sent");
    });
    wait_for_flows(&router, "reason=\"moved\"", 0);
    router.assert_conserved();
}

/// Masqueraded to an address of one device, with a route by the other since: the kernel ends such a flow with its next packet.
#[test]
fn a_flow_whose_uplink_changed_before_weir_came_stays_the_kernels() {
    let test = "a_flow_whose_uplink_changed_before_weir_came_stays_the_kernels";
    let Some(testbed) = two_uplinks(test) else { return };
    in_router(&testbed, "route replace 10.9.0.0/24 via 10.2.0.2");
    let four = Mirror::start(&testbed, ip("10.9.0.1"));
    // What a first program on a veth switches over is not ours to lose.
    drop(start(&testbed));
    let askers: Vec<Asker> = (0..3).map(|_| Asker::begin(&testbed, ip("10.1.0.2"), four.at)).collect();
    assert!(askers.iter().all(|asker| asker.seen == ip("10.2.0.1")), "masquerade");
    until("the kernel takes them for lasting", || {
        askers.iter().for_each(Asker::bounce);
        askers.iter().all(|asker| asker.is_assured(&testbed)).then_some(())
    });
    in_router(&testbed, "route replace 10.9.0.0/24 via 10.3.0.2");
    let router = start(&testbed);
    wait_for_flows(&router, "reason=\"moved\"", 3);
    assert_eq!(flows(&router, "way=\"xdp\""), 0);
    askers.iter().for_each(|asker| _ = asker.socket.send(b"who am I").expect("sent"));
    wait_for_flows(&router, "reason=\"moved\"", 0);
    assert_eq!(router.metric("weir_flow_packets_total", ""), 0);
    // The next packet is another flow's, by the other device.
    for asker in &askers {
        assert_eq!(until("an answer", || asker.answer()), ip("10.3.0.1"));
    }
    router.assert_conserved();
}

/// An address of one device must not leave by another, whatever the kernel's hash has in it.
#[test]
fn a_masqueraded_flow_over_ipv6_leaves_by_the_device_whose_address_it_has() {
    let test = "a_masqueraded_flow_over_ipv6_leaves_by_the_device_whose_address_it_has";
    let Some(testbed) = two_uplinks(test) else { return };
    nft(&testbed, &RULES.replace("table ip nat", "table ip6 nat"));
    in_server(&testbed, "iifname \"s0\" ip6 saddr fd03::1 drop; iifname \"s1\" ip6 saddr fd02::1 drop;");
    let six = Mirror::start(&testbed, ip("fd09::1"));
    let router = start(&testbed);
    let askers: Vec<Asker> = (0..FLOWS).map(|_| Asker::begin(&testbed, ip("fd01::2"), six.at)).collect();
    for address in ["fd02::1", "fd03::1"] {
        assert!(askers.iter().any(|asker| asker.seen == ip(address)), "no flow is seen by {address}");
    }
    until("every flow is forwarded by XDP", || {
        askers.iter().for_each(Asker::bounce);
        (flows(&router, "way=\"xdp\"") == FLOWS as i64).then_some(())
    });
    pass_by(&router, &askers.iter().collect::<Vec<_>>(), 1, 2 * FLOWS);
}

/// The kernel's choice is known where it goes by addresses alone: the server drops what comes by the other device than `ip route get` says.
#[test]
fn a_flow_without_translation_takes_the_hop_that_the_kernel_says() {
    let test = "a_flow_without_translation_takes_the_hop_that_the_kernel_says";
    let Some(testbed) = two_uplinks(test) else { return };
    netns::inside(&testbed.router, || set("/proc/sys/net/ipv4/fib_multipath_hash_policy", "0"))
        .expect("the namespace is there");
    nft(&testbed, RULES.split("table ip nat").next().expect("rules"));
    run(&format!("ip -n {} route add default via 10.2.0.1", testbed.server));
    testbed.in_server(|| {
        for device in ["all", "s0", "s1"] {
            set(&format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "0");
        }
    });
    let clients: Vec<String> = (10..10 + FLOWS).map(|n| format!("10.1.0.{n}")).collect();
    let mut by: [Vec<&str>; 2] = Default::default();
    for client in &clients {
        run(&format!("ip -n {} addr add {client}/24 dev c0", testbed.client));
        let get = format!("ip -n {} route get 10.9.0.1 from {client} iif r0", testbed.router);
        by[usize::from(run(&get).contains("dev r2"))].push(client);
    }
    assert!(by.iter().all(|clients| !clients.is_empty()), "by one of the two only: {by:?}");
    let [first, second] = by.map(|clients| clients.join(", "));
    in_server(
        &testbed,
        &format!("iifname \"s1\" ip saddr {{ {first} }} drop; iifname \"s0\" ip saddr {{ {second} }} drop;"),
    );
    let four = Mirror::start(&testbed, ip("10.9.0.1"));
    let router = start(&testbed);
    let askers: Vec<Asker> =
        clients.iter().map(|client| Asker::begin(&testbed, ip(client), four.at)).collect();
    until("every flow is forwarded by XDP", || {
        askers.iter().for_each(Asker::bounce);
        (flows(&router, "way=\"xdp\"") == FLOWS as i64).then_some(())
    });
    // All the answers come in by the first device.
    pass_by(&router, &askers.iter().collect::<Vec<_>>(), 1, 2 * FLOWS);
}

/// So many packets there and back of each: how many of them pass the kernel by.
fn passed_by(router: &Router, askers: &[&Asker], times: usize) -> usize {
    let passed = || router.metric("weir_flow_packets_total", "");
    // Counters are some milliseconds old.
    let at_rest = || {
        let mut before = passed();
        until("no packet is counted any more", || {
            thread::sleep(Duration::from_millis(100));
            (std::mem::replace(&mut before, passed()) == before).then_some(before)
        })
    };
    let before = at_rest();
    (0..times).for_each(|_| askers.iter().for_each(|asker| asker.bounce()));
    usize::try_from(at_rest() - before).expect("they only rise")
}

/// The same, once it is `expected`: a weir that had no time for a second left its flows to the kernel.
fn pass_by(router: &Router, askers: &[&Asker], times: usize, expected: usize) {
    until("every packet passes the kernel by", || {
        (passed_by(router, askers, times) == expected).then_some(())
    });
}

/// Rules of the server for what comes in.
fn in_server(testbed: &Testbed, rules: &str) {
    let table = format!(
        "table inet strict {{ chain pre {{ type filter hook prerouting priority -300; {rules} }}; }}"
    );
    let file = testbed.file("strict.nft", &table);
    run(&format!("ip netns exec {} nft -f {}", testbed.server, file.display()));
}
