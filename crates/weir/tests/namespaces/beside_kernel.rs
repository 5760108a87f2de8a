//! Random and damaged packets through weir and through the kernel's own forwarding, one after the other: what leaves, byte for
//! byte, and what the sender is told. Every difference has a rule that names it; one without is a failure.
//!
//! ```text
//! client ─ c0 ── r0  weir    r1 ── s0 ─ server
//! client ─ c0 ── r0  Linux   r1 ── s0 ─ server      the same addresses
//! ```
//!
//! `WEIR_BESIDE_KERNEL` says how many packets, which are others each time; `WEIR_FUZZ_SEED` chooses the same ones again.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use weir_core::id::Mac;
use weir_core::wire::build::Frame;
use weir_core::wire::{Ipv6, checksum, put16, tcp};
use weir_io::netns;
use weir_testing::fuzz::{Random, seed};

use super::testbed::{PATIENCE, Router, Testbed, Wire, ip, run};
use super::traffic::ping;

/// Packets where nobody says otherwise.
const PACKETS: usize = 400;
/// What the port behind the routers takes: longer packets are cut, or answered.
const MTU: u16 = 1300;

/// What numbered packets, and complaints about them, have in them.
const MARK: &str = "numbered packet ";

/// What became of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Packets that left towards the server.
    forwarded: Vec<Vec<u8>>,
    /// Type, code and MTU of errors the sender was told.
    errors: Vec<(u8, u8, u32)>,
}

/// A router of either kind, and both its sides.
struct Side {
    testbed: Testbed,
    client: Wire,
    server: Wire,
    /// Router's and client's, router's and server's.
    macs: [[Mac; 2]; 2],
    numbered: u64,
    _router: Option<Router>,
}

impl Side {
    fn new(testbed: Testbed, router: impl FnOnce(&Testbed) -> Option<Router>) -> Side {
        for (ns, device) in [(&testbed.router, "r1"), (&testbed.server, "s0")] {
            run(&format!("ip -n {ns} link set {device} mtu {MTU}"));
        }
        let mac = |ns: &str, device| testbed.mac(ns, device);
        let macs = [
            [mac(&testbed.router, "r0"), mac(&testbed.client, "c0")],
            [mac(&testbed.router, "r1"), mac(&testbed.server, "s0")],
        ];
        let router = router(&testbed);
        for far in ["10.2.0.2", "fd02::2"] {
            let near = if far.contains(':') { "fd01::2" } else { "10.1.0.2" };
            ping(&testbed, ip(near), ip(far));
        }
        let (client, server) = (Wire::open(&testbed.client, "c0"), Wire::open(&testbed.server, "s0"));
        Side { testbed, client, server, macs, numbered: 0, _router: router }
    }

    /// Packets that a router of ours sent by one of its ports, but for what neighbours say to each other.
    fn heard(&mut self, port: usize) -> Vec<Vec<u8>> {
        let [router, host] = self.macs[port];
        let wire = if port == 0 { &mut self.client } else { &mut self.server };
        let ours = |frame: &Vec<u8>| frame[..6] == host && frame[6..12] == router && frame[12] != 0x88;
        let packets = wire.heard().into_iter().filter(|f| f.len() >= 34 && ours(f)).map(|f| f[14..].to_vec());
        let neighbours = |p: &Vec<u8>| p[0] >> 4 == 6 && p[6] == 58 && p[7] == 255;
        packets.filter(|p| (p[0] >> 4 == 4 || p[0] >> 4 == 6) && !neighbours(p)).collect()
    }

    /// Sends a packet; what had become of it when a second numbered one behind it was through, and one the other way. The first
    /// may be handled together with it and overtake it; once that one is through, so is all that was handled with it.
    fn pass(&mut self, ethertype: [u8; 2], packet: &[u8]) -> Outcome {
        let [router, client] = self.macs[0];
        self.client.send(&[&router, &client, &ethertype[..], packet].concat());
        let mut left = Vec::new();
        self.numbered(0, &mut left);
        self.numbered(0, &mut left);
        // What the server says to strangers is answered; that is another packet's fate.
        left.retain(|packet| {
            !is_routers(packet) && !packet.windows(MARK.len()).any(|part| part == MARK.as_bytes())
        });
        let mut told = Vec::new();
        self.numbered(1, &mut told);
        told.retain(|packet| is_routers(packet));
        Outcome { forwarded: left, errors: told.iter().filter_map(|packet| error(packet)).collect() }
    }

    /// Sends a numbered packet from one side, and takes what leaves on the other up to it.
    fn numbered(&mut self, from: usize, left: &mut Vec<Vec<u8>>) {
        let [router, host] = self.macs[from];
        self.numbered += 1;
        let mark = format!("{MARK}{} is through", self.numbered);
        let ends: [Ipv4Addr; 2] = [[10, 1, 0, 2].into(), [10, 2, 0, 2].into()];
        let behind = Frame::ipv4(ends[from], ends[1 - from]).packet().udp(9, 9, mark.as_bytes());
        let wire = if from == 0 { &mut self.client } else { &mut self.server };
        wire.send(&[&router, &host, &[8, 0][..], &behind].concat());
        let end = Instant::now() + PATIENCE;
        let mut through = false;
        while !through {
            for packet in self.heard(1 - from) {
                match packet.ends_with(mark.as_bytes()) {
                    true => through = true,
                    false => left.push(packet),
                }
            }
            assert!(Instant::now() < end, "{} lets nothing through any more", self.testbed.router);
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Whether a router made the packet.
fn is_routers(packet: &[u8]) -> bool {
    match packet[0] >> 4 {
        4 => [[10, 1, 0, 1], [10, 2, 0, 1]].contains(&[packet[12], packet[13], packet[14], packet[15]]),
        _ => {
            packet[8] == 0xfd && packet[22..24] == [0, 1] && packet[12..22] == [0; 10]
                || packet[8..10] == [0xfe, 0x80]
        }
    }
}

/// What an ICMP error says; nothing of other packets, and of errors that are said seconds later: that a next hop did not answer,
/// and that the rest of a packet did not come.
fn error(packet: &[u8]) -> Option<(u8, u8, u32)> {
    let word = |at: usize| packet.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let (said, later, mtu) = match packet[0] >> 4 {
        4 if packet[9] == 1 => (packet.get(20..22)?, [[3, 1], [11, 1]], word(24)?),
        6 if packet[6] == 58 => (packet.get(40..42)?, [[1, 3], [3, 1]], word(44)?),
        _ => return None,
    };
    let is_error = if packet[0] >> 4 == 4 { [3, 4, 5, 11, 12].contains(&said[0]) } else { said[0] < 128 };
    (is_error && !later.iter().any(|one| said == one)).then_some((said[0], said[1], mtu))
}

/// Two routers with the same routes.
fn sides(test: &str) -> Option<[Side; 2]> {
    let weir = Side::new(Testbed::new(test)?, |testbed| {
        // Of one worker, so that what comes later is handled later; and by AF_XDP, because what packet sockets get copies of, the
        // kernel handles as well: it answers IPv6 it has no route for, whether it forwards or not.
        let more = "[workers]\ncpus = [0]\n[limits]\nicmp_errors_per_second = 1000000\nicmp_error_burst = 1000000\n\
            [[route]]\nprefix = \"10.5.0.0/16\"\nvia = \"10.2.0.2\"\n\
            [[route]]\nprefix = \"fd05::/32\"\nvia = \"fd02::2\"\n";
        Some(testbed.start(&testbed.config("af_xdp", more)))
    });
    let linux = Side::new(Testbed::new(test)?, |testbed| {
        let set = |path: &str, value: &str| std::fs::write(path, value).expect("a setting");
        netns::inside(&testbed.router, || {
            for family in ["ipv4", "ipv6"] {
                set(&format!("/proc/sys/net/{family}/conf/all/forwarding"), "1");
            }
            for device in ["all", "default", "r0", "r1"] {
                set(&format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "0");
                set(&format!("/proc/sys/net/ipv4/conf/{device}/send_redirects"), "0");
            }
            set("/proc/sys/net/ipv4/icmp_ratelimit", "0");
            set("/proc/sys/net/ipv4/icmp_ratemask", "0");
            set("/proc/sys/net/ipv6/icmp/ratelimit", "0");
        })
        .expect("the namespace is there");
        run(&format!("ip -n {} route add 10.5.0.0/16 via 10.2.0.2", testbed.router));
        run(&format!("ip -n {} route add fd05::/32 via fd02::2", testbed.router));
        None
    });
    Some([weir, linux])
}

fn pick<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len())]
}

/// A packet somebody might send, in either family.
fn made(random: &mut Random) -> Vec<u8> {
    let payload: Vec<u8> =
        (0..pick(random, &[0, 1, 8, 100, 600, 1240, 1300, 1400])).map(|n| n as u8).collect();
    let frame = if random.below(2) == 0 {
        let from = pick(random, &[[10, 1, 0, 2], [10, 1, 0, 2], [10, 1, 0, 77], [192, 0, 2, 1]]);
        let to = pick(random, &[[10, 2, 0, 2], [10, 2, 0, 2], [10, 5, 1, 1], [203, 0, 113, 9]]);
        let mut frame = Frame::ipv4(from.into(), to.into()).ident(random.bits() as u32 & 0xffff);
        if random.below(6) == 0 {
            let options: [&[u8]; 6] = [
                &[1, 1, 1, 0],
                &[7, 7, 4, 0, 0, 0, 0, 0],
                &[0x94, 4, 0, 0],
                &[0x83, 7, 4, 10, 5, 0, 1, 0],
                &[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &[0x9e, 4, 0, 0],
            ];
            frame = frame.options(pick(random, &options));
        }
        if random.below(4) == 0 { frame.dont_fragment() } else { frame }
    } else {
        let part = |text: &str| text.parse::<Ipv6Addr>().expect("an address");
        let from = pick(random, &["fd01::2", "fd01::2", "fd01::77", "2001:db8::1"]);
        let to = pick(random, &["fd02::2", "fd02::2", "fd05::1", "2001:db8:9::9"]);
        let mut frame = Frame::ipv6(part(from), part(to)).flow_label(random.bits() as u32 & 0xf_ffff);
        for _ in 0..random.below(6).saturating_sub(3) {
            let (kind, body): (u8, &[u8]) = pick(
                random,
                &[
                    (0, &[1, 4, 0, 0, 0, 0]),
                    (0, &[5, 2, 0, 0, 1, 0]),
                    (60, &[1, 4, 0, 0, 0, 0]),
                    (43, &[0, 0, 0, 0, 0, 0]),
                    (43, &[4, 1, 0, 0, 0, 0]),
                ],
            );
            // Length in units of eight bytes beyond the first.
            frame = frame.extension(kind, &[&[0][..], body].concat());
        }
        frame
    };
    let frame = frame.ttl(pick(random, &[64, 64, 64, 2, 1, 0])).tos(pick(random, &[0, 0, 3, 0xb8]));
    let frame = match random.below(10) {
        0 => frame.fragment(0, true),
        1 => frame.fragment(1480, false),
        _ => frame,
    };
    let header =
        tcp::Header { src_port: 1, dst_port: 2, sequence: 3, acknowledgment: 4, flags: 16, window: 5 };
    match random.below(4) {
        0 => frame.packet().tcp(&header, &payload),
        1 => frame.packet().echo_request(7, 8, &payload),
        2 => frame.packet().raw(pick(random, &[47, 50, 132, 59, 255]), &payload),
        _ => frame.packet().udp(1, 2, &payload),
    }
}

/// The checksum of the header, where there is one.
fn mend(packet: &mut [u8]) {
    let length = usize::from(packet[0] & 15) * 4;
    if packet[0] >> 4 == 4 && (20..=packet.len()).contains(&length) {
        put16(packet, 10, 0);
        let sum = checksum::checksum(&packet[..length]);
        put16(packet, 10, sum);
    }
}

/// What is done to a packet.
fn damage(random: &mut Random, packet: &mut Vec<u8>) {
    let v4 = packet[0] >> 4 == 4;
    match random.below(9) {
        0 => {
            let at = random.below(packet.len().min(60));
            packet[at] = random.bits() as u8;
        }
        1 => {
            let at = random.below(if v4 { 20 } else { 40 });
            packet[at] ^= 1 << random.below(8);
        }
        2 => packet.truncate(20 + random.below(packet.len() - 19)),
        3 => packet.extend(vec![0xee; 1 + random.below(30)]),
        4 if v4 => packet[12..16].copy_from_slice(&special4(random).octets()),
        5 if v4 => packet[16..20].copy_from_slice(&special4(random).octets()),
        4 => packet[8..24].copy_from_slice(&special6(random).octets()),
        5 => packet[24..40].copy_from_slice(&special6(random).octets()),
        6 => {
            let at = if v4 { 2 } else { 4 };
            let length = (random.bits() as u16).wrapping_rem(1500);
            put16(packet, at, length);
        }
        _ => return,
    }
    if random.below(8) > 0 {
        mend(packet);
    }
}

fn special4(random: &mut Random) -> Ipv4Addr {
    let all = [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [224, 0, 0, 5],
        [239, 1, 2, 3],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
        [169, 254, 1, 1],
        [10, 1, 0, 1],
        [10, 1, 0, 255],
        [10, 2, 0, 255],
        [10, 2, 0, 0],
        [10, 1, 0, 0],
    ];
    pick(random, &all).into()
}

fn special6(random: &mut Random) -> Ipv6Addr {
    let all = [
        "::",
        "::1",
        "::10.1.0.2",
        "::ffff:10.1.0.2",
        "ff02::1",
        "ff0e::9",
        "fe80::9",
        "fec0::1",
        "fd01::1",
        "fd01::",
        "fd02::",
        "64:ff9b::1",
    ];
    pick(random, &all).parse().expect("an address")
}

/// A packet whose outcomes differ.
struct Case<'a> {
    packet: &'a [u8],
    weir: &'a Outcome,
    linux: &'a Outcome,
}

impl Case<'_> {
    fn source4(&self) -> Option<Ipv4Addr> {
        self.packet.get(12..16).filter(|_| self.packet[0] >> 4 == 4).map(|b| [b[0], b[1], b[2], b[3]].into())
    }

    fn address6(&self, at: usize) -> Option<Ipv6Addr> {
        let bytes: [u8; 16] = self.packet.get(at..at + 16)?.try_into().ok()?;
        (self.packet[0] >> 4 == 6).then(|| bytes.into())
    }

    /// The IPv4 options.
    fn options(&self) -> &[u8] {
        let end = usize::from(self.packet[0] & 15) * 4;
        if self.packet[0] >> 4 == 4 { self.packet.get(20..end).unwrap_or_default() } else { &[] }
    }

    /// Neither lets it through.
    fn both_drop(&self) -> bool {
        self.weir.forwarded.is_empty() && self.linux.forwarded.is_empty()
    }

    /// Neither lets it through, and only Linux says so, once.
    fn silent(&self) -> bool {
        self.both_drop() && self.weir.errors.is_empty() && self.linux.errors.len() == 1
    }

    /// Only Linux lets it through, and the sender is told by neither.
    fn only_linux(&self) -> bool {
        self.weir.forwarded.is_empty() && !self.linux.forwarded.is_empty() && self.weir.errors.is_empty()
    }

    /// All errors are of these types; an error each at most.
    fn errors_are(&self, types: &[u8]) -> bool {
        let fits = |outcome: &Outcome| outcome.errors.iter().all(|(kind, ..)| types.contains(kind));
        fits(self.weir) && fits(self.linux) && self.weir.errors.len() <= 1 && self.linux.errors.len() <= 1
    }
}

/// Why weir and Linux may differ.
type Rule = (&'static str, fn(&Case<'_>) -> bool);

/// The first that holds explains a difference (docs/router.md).
const RULES: &[Rule] = &[
    ("martian sources of IPv4", |case| {
        let broadcast = |a: Ipv4Addr| [[10, 1, 0, 255], [10, 2, 0, 255]].contains(&a.octets());
        let martian =
            |a: Ipv4Addr| a.octets()[0] == 0 || a.octets()[0] >= 240 || a.is_link_local() || broadcast(a);
        case.only_linux() && case.source4().is_some_and(martian)
    }),
    ("martian sources of IPv6", |case| {
        let martian = |a: Ipv6Addr| a.to_ipv4().is_some();
        case.only_linux() && case.address6(8).is_some_and(martian)
    }),
    ("options of IPv4 are not filled in", |case| {
        let lengths = |outcome: &Outcome| outcome.forwarded.iter().map(Vec::len).sum::<usize>();
        let filled = case.options().iter().any(|option| [7, 68].contains(option));
        // Linux's later fragments keep room for options that are not copied.
        filled && lengths(case.weir).abs_diff(lengths(case.linux)) <= 40 && case.errors_are(&[3, 12])
    }),
    ("options of IPv4 go where they are not copied", |case| {
        let [ours, theirs] = [&case.weir.forwarded, &case.linux.forwarded];
        let cut = ours.len() > 1 && ours.len() == theirs.len() && ours[0] == theirs[0];
        !case.options().is_empty() && cut && case.weir.errors == case.linux.errors
    }),
    ("a network's own address is a broadcast address", |case| {
        let own = |a: &[u8]| a == [10, 1, 0, 0] || a == [10, 2, 0, 0];
        case.both_drop() && case.source4().is_some() && own(&case.packet[16..20]) && case.errors_are(&[3])
    }),
    ("destinations that IPv6 does not have are not answered", |case| {
        case.silent() && case.address6(24).is_some_and(|a| a.to_ipv4().is_some())
    }),
    ("extension headers that lead nowhere are not answered", |case| {
        let readable = Ipv6::parse_header(case.packet).is_ok_and(|header| header.chain().is_ok());
        case.silent() && case.packet[0] >> 4 == 6 && !readable
    }),
    ("later fragments of ICMPv6 may be of an error", |case| {
        let chain = Ipv6::parse_header(case.packet).ok().and_then(|header| header.chain().ok());
        case.silent() && chain.is_some_and(|chain| chain.protocol == 58 && !chain.has_transport())
    }),
    ("destinations that IPv4 does not have are not answered", |case| {
        let none = |first: u8| first == 0 || first >= 240;
        case.silent() && case.source4().is_some() && none(case.packet[16])
    }),
    ("link-local addresses are not forwarded", |case| {
        let local4 = case.source4().is_some() && case.packet[16..18] == [169, 254];
        let local6 = case.address6(24).is_some_and(|a| a.is_unicast_link_local());
        case.both_drop() && (local4 || local6) && case.errors_are(&[1, 3])
    }),
    ("hop-by-hop options are not looked at", |case| {
        case.packet[0] >> 4 == 6 && case.packet[6] == 0 && case.linux.forwarded.is_empty()
    }),
    ("a next hop is known before a size is looked at", |case| {
        let there4 = case.source4().is_some() && case.packet[16..19] == [10, 2, 0] && case.packet[19] != 2;
        let there6 = case.address6(24).is_some_and(|a| a.segments()[..4] == [0xfd02, 0, 0, 0]);
        case.silent()
            && (there4
                || there6 && case.packet[24..40] != [0xfd, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2])
    }),
    ("lifetime is looked at before the route", |case| {
        let low = if case.packet[0] >> 4 == 4 { case.packet[8] } else { case.packet[7] };
        case.both_drop() && low <= 1 && case.errors_are(&[1, 3, 11])
    }),
    ("Linux limits unreachables of IPv4 by itself", |case| {
        case.both_drop() && case.source4().is_some() && case.linux.errors.is_empty() && case.errors_are(&[3])
    }),
];

fn hex(packet: &[u8]) -> String {
    packet.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn packets_leave_as_the_kernel_would_forward_them_or_a_rule_says_why_not() {
    let test = "packets_leave_as_the_kernel_would_forward_them_or_a_rule_says_why_not";
    let Some([mut weir, mut linux]) = sides(test) else { return };
    let told = std::env::var("WEIR_BESIDE_KERNEL").ok().and_then(|n| n.parse::<usize>().ok());
    // The short form is the same each time: what a long one finds is another matter.
    let mut random = Random::new(if told.is_some() { seed() } else { 25 });
    let (mut alike, mut forwarded, mut rules, mut unexplained) = (0, 0, BTreeMap::new(), Vec::new());
    for _ in 0..told.unwrap_or(PACKETS) {
        let mut packet = made(&mut random);
        if random.below(2) == 0 {
            damage(&mut random, &mut packet);
        }
        let ethertype = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
        let (ours, theirs) = (weir.pass(ethertype, &packet), linux.pass(ethertype, &packet));
        forwarded += usize::from(!ours.forwarded.is_empty());
        if ours == theirs {
            alike += 1;
            continue;
        }
        let case = Case { packet: &packet, weir: &ours, linux: &theirs };
        match RULES.iter().find(|(_, holds)| holds(&case)) {
            Some((name, _)) => *rules.entry(*name).or_insert(0) += 1,
            None => unexplained.push(format!(
                "{}\n  weir:  {} {:?}\n  Linux: {} {:?}",
                hex(&packet[..packet.len().min(80)]),
                ours.forwarded.iter().map(|p| hex(&p[..p.len().min(64)])).collect::<Vec<_>>().join(" "),
                ours.errors,
                theirs.forwarded.iter().map(|p| hex(&p[..p.len().min(64)])).collect::<Vec<_>>().join(" "),
                theirs.errors
            )),
        }
    }
    println!("{alike} alike, {forwarded} forwarded by weir; differences by rule: {rules:?}");
    let count = unexplained.len();
    unexplained.truncate(60);
    assert!(count == 0, "{count} differences without a rule:\n{}", unexplained.join("\n"));
    assert!(forwarded > alike / 5, "only {forwarded} of {alike} were forwarded: nothing was put to the test");
}
