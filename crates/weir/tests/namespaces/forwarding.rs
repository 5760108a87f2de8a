//! Packets cross the router whole and in order, on every kind of port; what is local stays local.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_core::wire::{icmpv4, icmpv6};
use weir_io::cpu;
use weir_io::offload::{self, Offload};

use super::testbed::{Testbed, Wire, ip, until};
use super::traffic::{Echo, icmp, ping, stream, toward, ways};

fn everything_crosses(test: &str, kind: &str) {
    let Some(testbed) = Testbed::new(test) else { return };
    let router = testbed.start(&testbed.config(kind, ""));
    assert!(router.told(&["show", "ports"]).contains(kind));
    for way in ways() {
        ping(&testbed, way.client, way.server);
        Echo::start(&testbed, way.server).bounce(&testbed, 300);
        stream(&testbed, way.server, 3_000_000);
    }
    router.wait_for_metric("weir_frames_forwarded_total", "", 4000);
    assert_eq!(router.metric("weir_drops_total", "blame=\"weir\""), 0, "{}", router.told(&["show", "drops"]));
    router.assert_conserved();
}

#[test]
fn echo_udp_and_tcp_cross_af_xdp_ports_whole() {
    everything_crosses("echo_udp_and_tcp_cross_af_xdp_ports_whole", "af_xdp");
}

#[test]
fn echo_udp_and_tcp_cross_af_packet_ports_whole() {
    everything_crosses("echo_udp_and_tcp_cross_af_packet_ports_whole", "af_packet");
}

/// Frames come as their senders left them: over a virtual cable with half a checksum.
#[test]
fn checksums_that_senders_leave_to_their_card_are_finished_behind_the_driver() {
    let test = "checksums_that_senders_leave_to_their_card_are_finished_behind_the_driver";
    let Some(testbed) = Testbed::new(test) else { return };
    testbed.in_client(|| offload::set("c0", Offload::TxChecksum, true)).expect("veth knows this offload");
    testbed.in_server(|| offload::set("s0", Offload::TxChecksum, true)).expect("veth knows this offload");
    let workers = "[workers]\nxdp = \"generic\"\nflow_offload = \"off\"\n";
    let router = testbed.start(&testbed.config("af_xdp", workers));
    for way in ways() {
        ping(&testbed, way.client, way.server);
        Echo::start(&testbed, way.server).bounce(&testbed, 300);
        stream(&testbed, way.server, 300_000);
    }
    router.wait_for_metric("weir_frames_forwarded_total", "", 1200);
    router.assert_conserved();
}

#[test]
fn kernel_addresses_of_the_router_are_answered_by_its_kernel() {
    for kind in ["af_xdp", "af_packet"] {
        let Some(testbed) = Testbed::new("kernel_addresses_of_the_router_are_answered_by_its_kernel") else {
            return;
        };
        let router = testbed.start(&testbed.config(kind, ""));
        for way in ways() {
            ping(&testbed, way.client, way.near);
            ping(&testbed, way.client, way.far);
        }
        // The kernel answered: the echo is none of weir's own frames.
        let own = router.metric("weir_frames_originated_total", "");
        let asked = router.metric("weir_neighbor_events_total", "requests_sent");
        assert!(
            own <= asked + router.metric("weir_neighbor_events_total", "replies_sent"),
            "{own} > {asked}"
        );
        router.assert_conserved();
    }
}

#[test]
fn addresses_only_weir_has_answer_arp_ndp_and_echo() {
    for kind in ["af_xdp", "af_packet"] {
        let Some(testbed) = Testbed::new("addresses_only_weir_has_answer_arp_ndp_and_echo") else { return };
        let own = "addresses = [\"10.1.0.1/24\", \"10.1.0.77/24\", \"fd01::1/64\", \"fd01::77/64\"]";
        let config = testbed.config(kind, "").replacen("addresses = \"kernel\"", own, 1);
        let router = testbed.start(&config);
        let ports = router.json("ports");
        assert!(ports.to_string().contains(r#"{"address":"10.1.0.77/24","owner":"weir"}"#), "{ports}");
        assert!(ports.to_string().contains(r#"{"address":"10.1.0.1/24","owner":"kernel"}"#), "{ports}");
        // The client's kernel has to find the MAC address by itself: a UDP datagram makes it ask.
        for target in ["10.1.0.77", "fd01::77"] {
            let bind = if ip(target).is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = testbed.in_client(|| UdpSocket::bind(bind)).expect("a socket");
            let neighbors = format!("ip -n {} neigh show {target} dev c0", testbed.client);
            until(&format!("the client learns who {target} is"), || {
                // Refused at first while the address is unknown; asked again each time.
                let _ = socket.send_to(b"?", (ip(target), 9));
                super::testbed::run(&neighbors).contains("lladdr").then_some(())
            });
        }
        for (way, target) in ways().iter().zip(["10.1.0.77", "fd01::77"]) {
            ping(&testbed, way.client, ip(target));
        }
        router.wait_for_metric("weir_drops_total", "local_not_served", 1);
        router.assert_conserved();
    }
}

#[test]
fn an_expired_hop_limit_is_told_to_the_sender() {
    let Some(testbed) = Testbed::new("an_expired_hop_limit_is_told_to_the_sender") else { return };
    let router = testbed.start(&testbed.config("auto", ""));
    let mut wire = Wire::open(&testbed.client, "c0");
    for way in ways() {
        let frame = toward(&testbed, way.client, way.server).ttl(1).udp(33434, 33434, b"how far?");
        let exceeded = if way.client.is_ipv4() { icmpv4::TIME_EXCEEDED } else { icmpv6::TIME_EXCEEDED };
        wire.exchange(&format!("time exceeded from {}", way.near), &frame, |f| {
            icmp(f).is_some_and(|i| (i.from, i.kind) == (way.near, exceeded))
        });
    }
    router.wait_for_metric("weir_drops_total", "ttl_expired", 2);
    router.assert_conserved();
}

#[test]
fn a_packet_too_big_for_the_next_link_is_told_to_the_sender() {
    let Some(testbed) = Testbed::new("a_packet_too_big_for_the_next_link_is_told_to_the_sender") else {
        return;
    };
    let config = testbed.config("auto", "").replacen("name = \"right\"", "name = \"right\"\nmtu = 1280", 1);
    let router = testbed.start(&config);
    let mut wire = Wire::open(&testbed.client, "c0");
    for way in ways() {
        let frame = toward(&testbed, way.client, way.server).dont_fragment().udp(5000, 5000, &[0; 1400]);
        let kind =
            if way.client.is_ipv4() { icmpv4::DESTINATION_UNREACHABLE } else { icmpv6::PACKET_TOO_BIG };
        let reply = wire.exchange("too big", &frame, |f| icmp(f).is_some_and(|i| i.kind == kind));
        assert_eq!(icmp(&reply).map(|i| i.mtu), Some(1280));
    }
    router.assert_conserved();
}

/// Devices of two queues, where there are two CPUs to receive by.
fn two_queues(test: &str) -> Option<Testbed> {
    if std::thread::available_parallelism().is_ok_and(|n| n.get() < 2) {
        writeln!(std::io::stderr(), "SKIP {test}: needs two CPUs").expect("stderr is open");
        return None;
    }
    Testbed::with_queues(test, 2)
}

/// Sends numbered datagrams of several flows through two workers; each flow must arrive in its order.
#[test]
fn two_workers_keep_every_flow_in_order() {
    let test = "two_workers_keep_every_flow_in_order";
    let Some(testbed) = two_queues(test) else { return };
    const FLOWS: u16 = 32;
    const EACH: u32 = 400;
    let router = testbed.start(&testbed.config("af_xdp", "[workers]\ncpus = [0, 1]\n"));
    assert_eq!(router.json("workers").as_array().map(Vec::len), Some(2));
    for way in ways() {
        ping(&testbed, way.client, way.server);
        let receiver = testbed.in_server(|| UdpSocket::bind((way.server, 0))).expect("a socket");
        receiver.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let at = receiver.local_addr().expect("bound");
        let done = AtomicBool::new(false);
        let arrived = std::thread::scope(|scope| {
            let done = &done;
            let listening = scope.spawn(move || {
                let mut last: HashMap<u16, (u32, u32)> = HashMap::new();
                let mut buffer = [0; 64];
                loop {
                    match receiver.recv(&mut buffer) {
                        Ok(6) => {
                            let flow = u16::from_be_bytes([buffer[0], buffer[1]]);
                            let number = u32::from_be_bytes([buffer[2], buffer[3], buffer[4], buffer[5]]);
                            let (before, count) = last.get(&flow).copied().unwrap_or((0, 0));
                            assert!(number > before, "flow {flow}: {number} arrived after {before}");
                            last.insert(flow, (number, count + 1));
                        }
                        Ok(len) => panic!("a datagram of {len} bytes"),
                        Err(_) if done.load(Ordering::Acquire) => return last,
                        Err(_) => {}
                    }
                }
            });
            let bind = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let sockets: Vec<UdpSocket> = testbed
                .in_client(|| (0..FLOWS).map(|_| UdpSocket::bind(bind)).collect::<Result<_, _>>())
                .expect("sockets");
            for number in 1..=EACH {
                for (flow, socket) in sockets.iter().enumerate() {
                    let mut datagram = (flow as u16).to_be_bytes().to_vec();
                    datagram.extend(number.to_be_bytes());
                    socket.send_to(&datagram, at).expect("sent");
                }
                // The receiver's buffer holds a few hundred; order is the question here, not speed.
                std::thread::sleep(Duration::from_micros(500));
            }
            done.store(true, Ordering::Release);
            listening.join().expect("in order")
        });
        assert_eq!(arrived.len(), usize::from(FLOWS), "every flow arrived");
        let count: u32 = arrived.values().map(|a| a.1).sum();
        assert!(count > u32::from(FLOWS) * EACH / 2, "{count} datagrams arrived");
    }
    for worker in 0..2 {
        // Flows are spread by hash: of 64 some come to each.
        router.wait_for_metric("weir_frames_received_total", &format!("worker=\"{worker}\""), 100);
    }
    router.assert_conserved();
}

/// The first datagrams of a new pair of addresses are decided by a worker, later ones perhaps by the XDP
/// program: a burst that begins the flow must not overtake itself.
#[test]
fn a_flow_that_begins_with_a_burst_stays_in_order() {
    let Some(testbed) = Testbed::new("a_flow_that_begins_with_a_burst_stays_in_order") else { return };
    begin_with_bursts(&testbed, "via = \"10.2.0.2\"\n");
}

/// Several next hops lead to the server: each flow is offloaded by the one that the flow hash chose.
#[test]
fn a_flow_by_one_of_two_next_hops_that_begins_with_a_burst_stays_in_order() {
    let Some(testbed) =
        Testbed::new("a_flow_by_one_of_two_next_hops_that_begins_with_a_burst_stays_in_order")
    else {
        return;
    };
    super::testbed::run(&format!("ip -n {} addr add 10.2.0.3/24 dev s0", testbed.server));
    begin_with_bursts(&testbed, "via = [\"10.2.0.2\", \"10.2.0.3\"]\n");
}

/// The same where each queue has a worker, and each CPU another queue of the cable behind.
#[test]
fn a_flow_that_begins_with_a_burst_on_one_of_two_queues_stays_in_order() {
    let test = "a_flow_that_begins_with_a_burst_on_one_of_two_queues_stays_in_order";
    let Some(testbed) = two_queues(test) else { return };
    begin_with_bursts(&testbed, "via = \"10.2.0.2\"\n[workers]\ncpus = [0, 1]\n");
}

/// One worker on the second CPU sends by the second queue, as XDP redirects there.
#[test]
fn a_flow_that_begins_with_a_burst_on_the_queue_of_the_only_workers_cpu_stays_in_order() {
    let test = "a_flow_that_begins_with_a_burst_on_the_queue_of_the_only_workers_cpu_stays_in_order";
    let Some(testbed) = two_queues(test) else { return };
    // What this thread sends the kernel receives on its CPU.
    cpu::pin(1).expect("a CPU of this machine");
    begin_with_bursts(&testbed, "via = \"10.2.0.2\"\n[workers]\ncpus = [1]\n");
}

fn begin_with_bursts(testbed: &Testbed, way: &str) {
    const PAIRS: u8 = 60;
    const BURST: u32 = 200;
    let route = format!("[[route]]\nprefix = \"10.9.0.0/16\"\n{way}");
    // A veth that receives by NAPI takes frames the XDP program redirects.
    testbed.in_server(|| offload::set("s0", Offload::Gro, true)).expect("veth knows this offload");
    let router = testbed.start(&testbed.config("af_xdp", &route));
    let [way, _] = ways();
    ping(testbed, way.client, way.server);
    for pair in 1..=PAIRS {
        super::testbed::run(&format!("ip -n {} addr add 10.9.0.{pair}/32 dev s0", testbed.server));
    }
    let receiver = testbed.in_server(|| UdpSocket::bind("0.0.0.0:0")).expect("a socket");
    receiver.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let port = receiver.local_addr().expect("bound").port();
    let mut arrived = 0;
    // The lane opens when the device behind it has been asked, some hundred milliseconds after the start.
    until("XDP flow offload takes frames", || {
        super::traffic::send_udp(testbed, way.server);
        (router.metric("weir_steered_total", "cause=\"flow_offload\"") > 0).then_some(())
    });
    let before = router.metric("weir_steered_total", "cause=\"flow_offload\"");
    for pair in 1..=PAIRS {
        let socket = testbed.in_client(|| UdpSocket::bind("0.0.0.0:0")).expect("a socket");
        socket.connect((ip(&format!("10.9.0.{pair}")), port)).expect("connected");
        for number in 1..=BURST {
            socket.send(&number.to_be_bytes()).expect("sent");
            // A breath between parts of the burst, in which the worker comes to its end.
            if number % 40 == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        let (mut last, mut buffer) = (0, [0; 4]);
        while last < BURST && receiver.recv(&mut buffer).is_ok() {
            let number = u32::from_be_bytes(buffer);
            assert!(number > last, "pair {pair}: {number} arrived after {last}");
            last = number;
            arrived += 1;
        }
    }
    assert!(arrived > u32::from(PAIRS) * BURST * 9 / 10, "{arrived} arrived");
    router.wait_for_metric("weir_steered_total", "cause=\"flow_offload\"", before + 1);
    router.assert_conserved();
}

/// Frames of a VLAN are forwarded by XDP too, their tag taken off, and counted by their port.
#[test]
fn flows_of_a_vlan_pass_the_worker_by() {
    let Some(testbed) = Testbed::new("flows_of_a_vlan_pass_the_worker_by") else { return };
    testbed.in_server(|| offload::set("s0", Offload::Gro, true)).expect("veth knows this offload");
    let vlan = "[[port]]\nname = \"guests\"\ndevice = \"r0\"\nkind = \"af_xdp\"\nvlan = 7\naddresses = [\"10.17.0.1/24\"]\n";
    let router = testbed.start(&testbed.config("af_xdp", vlan));
    let [way, _] = ways();
    ping(&testbed, way.client, way.server);
    let receiver = testbed.in_server(|| UdpSocket::bind("0.0.0.0:0")).expect("a socket");
    receiver.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let port = receiver.local_addr().expect("bound").port();
    let mut wire = Wire::open(&testbed.client, "c0");
    let (mut buffer, mut number) = ([0; 4], 0u32);
    until("XDP flow offload forwards frames of the VLAN", || {
        number += 1;
        let frame = toward(&testbed, ip("10.17.0.2"), way.server).vlan(7);
        wire.send(&frame.udp(5000, port, &number.to_be_bytes()));
        receiver.recv(&mut buffer).expect("it arrives");
        assert_eq!(u32::from_be_bytes(buffer), number);
        (router.metric("weir_steered_total", "cause=\"flow_offload\"") > 3).then_some(())
    });
    let port = "port=\"guests\"";
    router.wait_for_metric("weir_port_rx_packets_total", port, i64::from(number));
    router.wait_for_metric("weir_port_rx_bytes_total", port, i64::from(number) * (14 + 4 + 20 + 8 + 4));
    router.assert_conserved();
}

#[test]
fn a_tun_port_hands_packets_to_the_kernel_and_takes_its_answers() {
    let test = "a_tun_port_hands_packets_to_the_kernel_and_takes_its_answers";
    let Some(testbed) = Testbed::new(test) else { return };
    if !std::path::Path::new("/dev/net/tun").exists() {
        writeln!(std::io::stderr(), "SKIP {test}: needs /dev/net/tun").expect("stderr is open");
        return;
    }
    // The router's own kernel is behind the TUN device, and answers through it.
    let ns = &testbed.router;
    for command in
        [format!("ip -n {ns} tuntap add dev weir0 mode tun"), format!("ip -n {ns} link set weir0 up")]
    {
        super::testbed::run(&command);
    }
    let config = testbed
        .config("af_packet", "")
        .split("[[port]]\nname = \"right\"")
        .next()
        .expect("a part")
        .to_owned()
        + "[[port]]\nname = \"host\"\ndevice = \"weir0\"\nkind = \"tun\"\naddresses = [\"10.8.0.1/24\"]\n";
    let router = testbed.start(&config);
    super::testbed::run(&format!("ip -n {ns} addr add 10.8.0.5/24 dev weir0"));
    super::testbed::run(&format!("ip -n {ns} route replace 10.1.0.2/32 dev weir0"));
    ping(&testbed, ways()[0].client, ip("10.8.0.5"));
    router.wait_for_metric("weir_port_tx_packets_total", "port=\"host\"", 1);
    router.wait_for_metric("weir_port_rx_packets_total", "port=\"host\"", 1);
    router.assert_conserved();
}

#[test]
fn a_tun_device_is_made_when_it_does_not_exist_and_goes_with_the_router() {
    let test = "a_tun_device_is_made_when_it_does_not_exist_and_goes_with_the_router";
    let Some(testbed) = Testbed::new(test) else { return };
    if !std::path::Path::new("/dev/net/tun").exists() {
        writeln!(std::io::stderr(), "SKIP {test}: needs /dev/net/tun").expect("stderr is open");
        return;
    }
    let config =
        "[[port]]\nname = \"host\"\ndevice = \"tun7\"\nkind = \"tun\"\naddresses = [\"10.8.0.1/24\"]\n";
    let mut router = testbed.start(config);
    let links = || super::testbed::run(&format!("ip -n {} link", testbed.router));
    assert!(links().contains("tun7"));
    assert!(router.told(&["show", "ports"]).contains("tun"), "{}", router.log());
    assert!(!router.log().contains("another interface"), "{}", router.log());
    router.signal("INT");
    assert!(router.wait());
    assert!(!links().contains("tun7"));
}
