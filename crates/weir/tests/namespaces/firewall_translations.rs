//! Every kind of translation, between VLANs too, packet by packet, held against the kernel: the same frames while it forwards
//! alone, past it, and when weir has ended.
//!
//! ```text
//! frames of a flow, both ways ─┬─► the kernel alone ────────┐
//!                              ├─► weir: the XDP program ───┼─ the same bytes leave, by the same device
//!                              └─► the kernel again ────────┘
//! ```
//!
//! Promises: both ends are made of frames here, so that nothing answers or sends again by itself; what is plain has passed the kernel by,
//! to the last packet.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use weir_core::id::Mac;
use weir_core::wire::build::Frame;
use weir_core::wire::ctnetlink::{Event, STATUS_ASSURED, Tuple};
use weir_core::wire::{protocol, put16, tcp};
use weir_io::netns;

use super::firewall::{behind, in_router as conntrack, wait_for_flows};
use super::mirror::{accelerate_with, in_router, signal};
use super::testbed::{PATIENCE, Testbed, Wire, run, until};

const RULES: &str = "flush ruleset
table inet filter {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    ct status dnat accept
    iifname { \"r0\", \"r0.7\" } accept
  }
}
table inet nat {
  chain prerouting {
    type nat hook prerouting priority dstnat;
    ip daddr 10.2.0.1 meta l4proto { tcp, udp } th dport 8080 dnat ip to 10.1.0.77:80
    ip daddr 10.2.0.1 meta l4proto { tcp, udp } th dport 8081 dnat ip to 10.1.0.78:81
    ip6 daddr fd02::99 meta l4proto { tcp, udp } th dport 8080 dnat ip6 to [fd01::77]:80
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    oifname \"r1\" ip saddr 10.1.0.77 meta l4proto { tcp, udp } th sport 4000 snat ip to 10.2.0.50:20000-20010
    oifname \"r1\" ip6 saddr fd01::77 meta l4proto { tcp, udp } th sport 4000 snat ip6 to fd02::50
    oifname \"r0\" ip saddr 10.1.0.0/24 masquerade
    oifname { \"r1\", \"r1.9\" } meta nfproto ipv4 masquerade
  }
}
";

/// A host's place: behind the router's first device, or behind its second.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// A translation's name; where who asks and who answers are; what is asked; how that looks to who answers.
type Kind = (&'static str, [usize; 2], [&'static str; 2], [&'static str; 2]);

/// What is asked, where the asker and the host that answers are, and how the first packet looks there.
const KINDS: [Kind; 11] = [
    (
        "masquerade",
        [CLIENT, SERVER],
        ["10.1.0.77:1000", "10.2.0.77:2000"],
        ["10.2.0.1:1000", "10.2.0.77:2000"],
    ),
    (
        "ports of a range",
        [CLIENT, SERVER],
        ["10.1.0.77:4000", "10.2.0.77:2000"],
        ["10.2.0.50:2", "10.2.0.77:2000"],
    ),
    (
        "a forwarded port",
        [SERVER, CLIENT],
        ["10.2.0.77:3000", "10.2.0.1:8080"],
        ["10.2.0.77:3000", "10.1.0.77:80"],
    ),
    ("hairpin", [CLIENT, CLIENT], ["10.1.0.77:5000", "10.2.0.1:8081"], ["10.1.0.1:5000", "10.1.0.78:81"]),
    (
        "IPv6",
        [CLIENT, SERVER],
        ["[fd01::77]:1000", "[fd02::77]:2000"],
        ["[fd01::77]:1000", "[fd02::77]:2000"],
    ),
    (
        "IPv6 source",
        [CLIENT, SERVER],
        ["[fd01::77]:4000", "[fd02::77]:2000"],
        ["[fd02::50]:4000", "[fd02::77]:2000"],
    ),
    (
        "IPv6 port",
        [SERVER, CLIENT],
        ["[fd02::77]:3000", "[fd02::99]:8080"],
        ["[fd02::77]:3000", "[fd01::77]:80"],
    ),
    (
        "out of a VLAN",
        [CLIENT, SERVER],
        ["10.7.0.77:1500", "10.2.0.77:2000"],
        ["10.2.0.1:1500", "10.2.0.77:2000"],
    ),
    (
        "into a VLAN",
        [CLIENT, SERVER],
        ["10.1.0.77:1000", "10.8.0.77:2000"],
        ["10.8.0.1:1000", "10.8.0.77:2000"],
    ),
    (
        "between VLANs",
        [CLIENT, SERVER],
        ["10.7.0.77:3000", "10.8.0.77:2000"],
        ["10.8.0.1:3000", "10.8.0.77:2000"],
    ),
    (
        "IPv6 between VLANs",
        [CLIENT, SERVER],
        ["[fd07::77]:1000", "[fd08::77]:2000"],
        ["[fd07::77]:1000", "[fd08::77]:2000"],
    ),
];

/// The VLAN a host is in, by its address.
fn vlan(host: IpAddr) -> Option<u16> {
    let text = host.to_string();
    [("10.7.", 7), ("fd07:", 7), ("10.8.", 9), ("fd08:", 9)]
        .into_iter()
        .find_map(|(start, vlan)| text.starts_with(start).then_some(vlan))
}

/// Both wires, and what their frames are addressed to.
struct Hosts {
    wires: [Wire; 2],
    /// Link-layer addresses of the router and of the host, on each wire.
    macs: [[Mac; 2]; 2],
    vlans: bool,
    sent: u32,
}

/// One frame of a flow, and the wire it is for.
struct Sent {
    frame: Vec<u8>,
    from: usize,
    to: usize,
    /// The XDP program takes it for plain.
    plain: bool,
}

impl Hosts {
    fn new(testbed: &Testbed) -> Hosts {
        let mac = |ns: &str, device| testbed.mac(ns, device);
        let macs = [
            [mac(&testbed.router, "r0"), mac(&testbed.client, "c0")],
            [mac(&testbed.router, "r1"), mac(&testbed.server, "s0")],
        ];
        let vlans = Hosts::make_vlans(testbed);
        for (address, wire, device) in [
            ("10.1.0.77", 0, "r0"),
            ("10.1.0.78", 0, "r0"),
            ("10.2.0.77", 1, "r1"),
            ("fd01::77", 0, "r0"),
            ("fd02::77", 1, "r1"),
            ("10.7.0.77", 0, "r0.7"),
            ("fd07::77", 0, "r0.7"),
            ("10.8.0.77", 1, "r1.9"),
            ("fd08::77", 1, "r1.9"),
        ] {
            if device.contains('.') && !vlans {
                continue;
            }
            let mac = weir_core::wire::DisplayMac(macs[wire][1]);
            in_router(
                testbed,
                &format!("neighbor replace {address} lladdr {mac} dev {device} nud permanent"),
            );
        }
        let wires = [Wire::open(&testbed.client, "c0"), Wire::open(&testbed.server, "s0")];
        Hosts { wires, macs, vlans, sent: 0 }
    }

    /// VLANs of the router; false, and a line that says so, where its kernel has none.
    fn make_vlans(testbed: &Testbed) -> bool {
        for (device, addresses) in
            [("r0.7", ["10.7.0.1/24", "fd07::1/64"]), ("r1.9", ["10.8.0.1/24", "fd08::1/64"])]
        {
            let (lower, id) = device.split_once('.').expect("a VLAN");
            let mut ip = std::process::Command::new("ip");
            ip.args([
                "-n",
                &testbed.router,
                "link",
                "add",
                "link",
                lower,
                "name",
                device,
                "type",
                "vlan",
                "id",
                id,
            ]);
            if !ip.output().expect("ip starts").status.success() {
                writeln!(std::io::stderr(), "SKIP translations of VLANs: needs a kernel with VLANs")
                    .expect("stderr is open");
                return false;
            }
            for address in addresses {
                in_router(testbed, &format!("addr add {address} dev {device} nodad"));
            }
            in_router(testbed, &format!("link set {device} up"));
        }
        true
    }

    fn frame(&self, from: usize, (source, destination): (IpAddr, IpAddr)) -> Frame {
        let [router, host] = self.macs[from];
        let frame = Frame::ip(source, destination).expect("one family").macs(router, host);
        vlan(source).map_or(frame.clone(), |vlan| frame.vlan(vlan))
    }

    /// Sends it; what leaves with the same end, whole.
    fn passes(&mut self, what: &str, sent: &Sent) -> Vec<u8> {
        let end = &sent.frame[sent.frame.len() - 8..];
        self.wires[sent.from].send(&sent.frame);
        let [router, _] = self.macs[sent.to];
        let until = Instant::now() + PATIENCE;
        loop {
            let mut heard = self.wires[sent.to].heard().into_iter();
            if let Some(frame) = heard.find(|frame| frame[6..12] == router && frame.ends_with(end)) {
                return frame;
            }
            assert!(Instant::now() < until, "{what}: a frame does not arrive");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// A payload with an end that no other has.
    fn payload(&mut self, len: usize) -> Vec<u8> {
        self.sent += 1;
        let mut payload = super::content::bytes(self.sent.into(), len);
        payload.extend(b"end ");
        payload.extend(self.sent.to_be_bytes());
        payload
    }
}

/// A flow whose answers are known.
struct Flow {
    what: String,
    tcp: bool,
    sides: [usize; 2],
    /// How packets of both directions arrive: source and destination.
    arrives: [(SocketAddr, SocketAddr); 2],
    /// The next number of each side.
    sequence: [u32; 2],
}

/// Where the packet of a frame begins.
fn network(frame: &[u8]) -> usize {
    if frame[12..14] == [0x81, 0] { 18 } else { 14 }
}

/// Addresses and ports of a frame with IPv4 without options, or IPv6.
fn ends(frame: &[u8]) -> (SocketAddr, SocketAddr) {
    let frame = &frame[network(frame) - 14..];
    let address = |at: usize| match frame[14] >> 4 {
        4 => IpAddr::from(*frame[at..].first_chunk::<4>().expect("whole")),
        _ => IpAddr::from(*frame[at..].first_chunk::<16>().expect("whole")),
    };
    let (addresses, ports) = if frame[14] >> 4 == 4 { ([26, 30], 34) } else { ([22, 38], 54) };
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let end = |n: usize| SocketAddr::new(address(addresses[n]), port(ports + 2 * n));
    (end(0), end(1))
}

impl Flow {
    fn segment(&mut self, frame: &Frame, way: usize, flags: u8, payload: &[u8]) -> Vec<u8> {
        let (source, destination) = self.arrives[way];
        if !self.tcp {
            return frame.udp(source.port(), destination.port(), payload);
        }
        let header = tcp::Header {
            src_port: source.port(),
            dst_port: destination.port(),
            sequence: self.sequence[way],
            acknowledgment: if flags & tcp::flag::ACK == 0 { 0 } else { self.sequence[1 - way] },
            flags,
            window: u16::MAX,
        };
        let begins = u32::from(flags & tcp::flag::SYN != 0);
        self.sequence[way] = self.sequence[way].wrapping_add(payload.len() as u32 + begins);
        frame.tcp(&header, payload)
    }

    fn sent(&self, way: usize, frame: Vec<u8>, plain: bool) -> Sent {
        Sent { frame, from: self.sides[way], to: self.sides[1 - way], plain }
    }

    fn addresses(&self, way: usize) -> (IpAddr, IpAddr) {
        (self.arrives[way].0.ip(), self.arrives[way].1.ip())
    }

    /// One packet, and how it left.
    fn one(&mut self, hosts: &mut Hosts, way: usize, flags: u8, payload: &[u8]) -> Vec<u8> {
        let frame = hosts.frame(self.sides[way], self.addresses(way));
        let frame = self.segment(&frame, way, flags, payload);
        hosts.passes(&self.what, &self.sent(way, frame, true))
    }

    /// A flow that the kernel takes for lasting.
    fn establish(testbed: &Testbed, hosts: &mut Hosts, kind: usize, tcp: bool) -> Flow {
        let (what, sides, asked, leaves) = KINDS[kind];
        let [asked, leaves] =
            [asked, leaves].map(|ends| ends.map(|end| end.parse::<SocketAddr>().expect("an address")));
        let mut flow = Flow {
            what: format!("{what}, {}", if tcp { "TCP" } else { "UDP" }),
            tcp,
            sides,
            arrives: [(asked[0], asked[1]); 2],
            sequence: [1000, u32::MAX - 2000],
        };
        // A SYN has data too: by its end it is known again.
        let payload = hosts.payload(0);
        let first = ends(&flow.one(hosts, 0, tcp::flag::SYN, &payload));
        assert_eq!((first.0.ip(), first.1), (leaves[0].ip(), leaves[1]), "{}", flow.what);
        match leaves[0].port() {
            2 => assert!((20_000..=20_010).contains(&first.0.port()), "{}: {first:?}", flow.what),
            port => assert_eq!(first.0.port(), port, "{}", flow.what),
        }
        flow.arrives[1] = (first.1, first.0);
        let payload = hosts.payload(0);
        flow.one(hosts, 1, tcp::flag::SYN | tcp::flag::ACK, &payload);
        let original = Tuple {
            source: asked[0].ip(),
            destination: asked[1].ip(),
            protocol: if tcp { protocol::TCP } else { protocol::UDP },
            source_port: asked[0].port(),
            destination_port: asked[1].port(),
        };
        until(&format!("{}: the kernel takes it for lasting", flow.what), || {
            for way in [0, 1] {
                let payload = hosts.payload(4);
                flow.one(hosts, way, tcp::flag::ACK, &payload);
            }
            let entry = conntrack(testbed, |requests| requests.query(&original));
            matches!(entry, Ok(Event::Present(entry)) if entry.status.is_some_and(|s| s & STATUS_ASSURED != 0))
                .then_some(())
        });
        flow
    }

    /// Packets of every shape that a host sends, both ways; the last ones are not plain.
    fn packets(&mut self, hosts: &mut Hosts) -> Vec<Sent> {
        let mut all = Vec::new();
        for way in [0, 1] {
            let plain = hosts.frame(self.sides[way], self.addresses(way));
            let v4 = self.arrives[way].0.is_ipv4();
            let mut shapes = vec![
                (plain.clone(), 0),
                (plain.clone().ttl(2), 1),
                (plain.clone().tos(0x2e << 2 | 1).dont_fragment(), 333),
                (plain.clone().flow_label(0xabcde).ttl(255), 1400),
            ];
            // Sums that carry, whichever they are.
            shapes.extend((0..16).map(|n: u32| (plain.clone().ident(n * 4093), 3 + n as usize)));
            for (shape, len) in shapes {
                let payload = hosts.payload(len);
                let frame = self.segment(&shape, way, tcp::flag::ACK | tcp::flag::PSH, &payload);
                all.push(self.sent(way, frame, true));
            }
            if v4 && !self.tcp {
                let payload = hosts.payload(20);
                let mut without = self.segment(&plain, way, 0, &payload);
                let udp = network(&without) + 20;
                put16(&mut without, udp + 6, 0);
                all.push(self.sent(way, without, true));
            }
            // No operation, or padding.
            let odd =
                if v4 { plain.options(&[1, 1, 1]) } else { plain.extension(60, &[0, 1, 4, 0, 0, 0, 0]) };
            let payload = hosts.payload(30);
            let frame = self.segment(&odd, way, tcp::flag::ACK, &payload);
            all.push(self.sent(way, frame, false));
        }
        all
    }
}

#[test]
fn every_translation_is_the_kernels_byte_for_byte_before_during_and_after() {
    let test = "every_translation_is_the_kernels_byte_for_byte_before_during_and_after";
    let Some(testbed) = behind(test, RULES) else { return };
    run(&format!("ip netns exec {} sysctl -qw net.netfilter.nf_conntrack_events=1", testbed.router));
    let mut hosts = Hosts::new(&testbed);
    let vlans: &[&str] = if hosts.vlans { &["r0.7", "r1.9"] } else { &[] };
    let accelerate = || accelerate_with(&testbed, vlans);
    // What a first program on a veth switches over is not ours to lose.
    drop(accelerate());
    let mut flows: Vec<Flow> = Vec::new();
    let of_vlans = |kind: &Kind| {
        kind.2.iter().any(|end| vlan(end.parse::<SocketAddr>().expect("an address").ip()).is_some())
    };
    for kind in (0..KINDS.len()).filter(|&kind| !vlans.is_empty() || !of_vlans(&KINDS[kind])) {
        flows.extend([true, false].map(|tcp| Flow::establish(&testbed, &mut hosts, kind, tcp)));
    }
    let sent: Vec<(String, Vec<Sent>)> =
        flows.iter_mut().map(|flow| (flow.what.clone(), flow.packets(&mut hosts))).collect();
    let plain = sent.iter().flat_map(|(_, all)| all).filter(|sent| sent.plain).count();
    let mut left = |when: &str| -> Vec<(String, Vec<u8>)> {
        let all = sent.iter().flat_map(|(what, all)| all.iter().map(move |sent| (what, sent)));
        all.map(|(what, sent)| (what.clone(), hosts.passes(&format!("{what}, {when}"), sent))).collect()
    };
    let by_kernel = left("the kernel alone");
    let mut router = accelerate();
    wait_for_flows(&router, "way=\"xdp\"", flows.len() as i64);
    let passed = |metric: &str| router.values(metric, "").iter().sum::<i64>();
    let before = passed("weir_flow_packets_total");
    let by_weir = left("past the kernel");
    for ((what, kernel), (_, weir)) in by_kernel.iter().zip(&by_weir) {
        assert_eq!(kernel, weir, "{what}: the kernel sends other bytes");
    }
    assert_eq!(passed("weir_flow_packets_total") - before, plain as i64, "plain packets pass the kernel by");
    assert!(router.balances());
    signal(&mut router, "TERM");
    assert!(left("the kernel again") == by_kernel, "the kernel carries on with the same translations");
}

/// `redirect` leads to a port of the router itself: translated as a forwarded port is, and nothing that is forwarded.
#[test]
fn a_flow_that_is_redirected_to_this_host_stays_the_kernels() {
    let test = "a_flow_that_is_redirected_to_this_host_stays_the_kernels";
    let redirect = "iifname \"r0\" udp dport 5353 redirect to :9999\n    ip daddr 10.2.0.1";
    let Some(testbed) = behind(test, &RULES.replacen("ip daddr 10.2.0.1", redirect, 1)) else { return };
    let service =
        netns::inside(&testbed.router, || UdpSocket::bind("0.0.0.0:9999")).expect("the namespace is there");
    let service = service.expect("a socket");
    let client = testbed.in_client(|| UdpSocket::bind("10.1.0.2:0")).expect("a socket");
    for socket in [&service, &client] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    client.connect("10.2.0.2:5353").expect("connected");
    let mut router = accelerate_with(&testbed, &[]);
    for _ in 0..20 {
        client.send(b"to whom it may concern").expect("sent");
        let mut buffer = [0; 64];
        let (len, from) = service.recv_from(&mut buffer).expect("it is redirected");
        service.send_to(&buffer[..len], from).expect("sent");
        assert_eq!(client.recv(&mut buffer).expect("from the address that was asked"), len);
    }
    wait_for_flows(&router, "reason=\"local\"", 1);
    assert_eq!(router.values("weir_flow_packets_total", "").iter().sum::<i64>(), 0);
    signal(&mut router, "TERM");
}
