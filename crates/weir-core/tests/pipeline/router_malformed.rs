//! Every class of malformed packet has its reason, and nobody is told unless an RFC says so.

use crate::common::world::*;
use weir_core::verdict::Reason;
use weir_core::wire::Ipv4;

/// A valid IPv4 frame changed at `at` (from the IP header), its header checksum mended.
fn ipv4_with(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = udp(LAN, "10.0.0.2", "10.100.0.9");
    changes.iter().for_each(|&(at, value)| bytes[14 + at] = value);
    let mended = changes.iter().all(|&(at, _)| at != 0 && at != 10);
    if mended {
        Ipv4::new_unchecked(&mut bytes[14..]).fill_checksum();
    }
    bytes
}

fn ipv6_with(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = udp(LAN, "fd00::2", "2001:db8:100::9");
    changes.iter().for_each(|&(at, value)| bytes[14 + at] = value);
    bytes
}

#[test]
fn frames_that_are_no_ethernet() {
    let whole = udp(LAN, "10.0.0.2", "10.100.0.9");
    for len in 0..14 {
        World::new().send(LAN, &whole[..len]).dropped_silently(Reason::FrameTooShort);
    }
    let tagged = udp(LAN_10, "10.10.0.2", "10.100.0.9");
    for len in 14..18 {
        World::new().send(LAN, &tagged[..len]).dropped_silently(Reason::FrameTooShort);
    }
}

#[test]
fn frames_for_others_or_in_unknown_forms() {
    let to = |mac| frame(LAN, "10.0.0.2", "10.100.0.9").macs(mac, neighbor_mac(LAN, 2)).udp(1, 2, b"x");
    World::new().send(LAN, &to([2, 9, 9, 9, 9, 9])).dropped_silently(Reason::OtherHost);
    let tagged = frame(LAN, "10.0.0.2", "10.100.0.9").vlan(11).udp(1, 2, b"x");
    World::new().send(LAN, &tagged).dropped_silently(Reason::UnknownVlan);
    let mut stacked = udp(LAN_10, "10.10.0.2", "10.100.0.9");
    stacked[16..18].copy_from_slice(&[0x81, 0x00]);
    World::new().send(LAN, &stacked).dropped_silently(Reason::StackedVlan);
    stacked[12..14].copy_from_slice(&[0x88, 0xa8]);
    World::new().send(LAN, &stacked).dropped_silently(Reason::StackedVlan);
    let mut lldp = udp(LAN, "10.0.0.2", "10.100.0.9");
    lldp[12..14].copy_from_slice(&[0x88, 0xcc]);
    World::new().send(LAN, &lldp).dropped_silently(Reason::UnknownProtocol);
}

#[test]
fn a_cut_frame_is_counted_with_the_device_it_came_in_by() {
    let mut w = World::new();
    let whole = udp(LAN, "10.0.0.2", "10.100.0.9");
    w.send(LAN, &whole[..whole.len() - 1]).dropped_silently(Reason::IpTruncated);
    w.send(LAN, &whole);
    let device = w.tables.ports[LAN.index()].device;
    let expected: Vec<u64> = (0..w.tables.devices.len()).map(|at| u64::from(at == device.index())).collect();
    assert_eq!(w.router.truncated(), expected);
}

#[test]
fn frame_on_a_device_without_a_port() {
    let mut w = World::new();
    let seen = w.send_all(&[(weir_core::packet::DeviceId(7), udp(LAN, "10.0.0.2", "10.100.0.9"))]);
    seen.dropped_silently(Reason::UnknownVlan);
}

#[test]
fn broken_ipv4_headers() {
    let whole = udp(LAN, "10.0.0.2", "10.100.0.9");
    for len in 14..34 {
        World::new().send(LAN, &whole[..len]).dropped_silently(Reason::IpTooShort);
    }
    World::new().send(LAN, &whole[..whole.len() - 1]).dropped_silently(Reason::IpTruncated);
    World::new().send(LAN, &ipv4_with(&[(0, 0x65)])).dropped_silently(Reason::IpBadVersion);
    World::new().send(LAN, &ipv4_with(&[(0, 0x44)])).dropped_silently(Reason::IpBadHeaderLength);
    let short = frame(LAN, "10.0.0.2", "10.100.0.9").raw(89, b"")[..34].to_vec();
    let mut beyond = short.clone();
    beyond[14] = 0x4f;
    World::new().send(LAN, &beyond).dropped_silently(Reason::IpBadHeaderLength);
    World::new().send(LAN, &ipv4_with(&[(2, 0), (3, 19)])).dropped_silently(Reason::IpTruncated);
    World::new().send(LAN, &ipv4_with(&[(2, 0xff)])).dropped_silently(Reason::IpTruncated);
    World::new().send(LAN, &ipv4_with(&[(10, 0)])).dropped_silently(Reason::IpBadChecksum);
}

#[test]
fn broken_ipv4_options() {
    let with = |options: &[u8]| frame(LAN, "10.0.0.2", "10.100.0.9").options(options).udp(1, 2, b"x");
    // A length that runs past the header, behind two no-operations: the sender is told where.
    let seen = World::new().send(LAN, &with(&[1, 1, 7, 40]));
    seen.dropped(Reason::IpBadOption);
    let reply = ipv4(seen.one());
    assert_eq!(reply.payload()[..5], [12, 0, reply.payload()[2], reply.payload()[3], 22]);
    World::new().send(LAN, &with(&[7, 1, 0, 0])).dropped(Reason::IpBadOption);
    for source_route in [131, 137] {
        let seen = World::new().send(LAN, &with(&[source_route, 7, 4, 10, 0, 0, 9]));
        seen.dropped_silently(Reason::IpSourceRoute);
    }
}

#[test]
fn broken_ipv6_headers() {
    let whole = udp(LAN, "fd00::2", "2001:db8:100::9");
    for len in 14..54 {
        World::new().send(LAN, &whole[..len]).dropped_silently(Reason::IpTooShort);
    }
    World::new().send(LAN, &whole[..whole.len() - 1]).dropped_silently(Reason::IpTruncated);
    World::new().send(LAN, &ipv6_with(&[(0, 0x45)])).dropped_silently(Reason::IpBadVersion);
    World::new().send(LAN, &ipv6_with(&[(4, 0xff)])).dropped_silently(Reason::IpTruncated);
}

/// Packets to `dst` whose extension headers lead nowhere, and one with a type 0 routing header.
fn broken_chains(dst: &str) -> [(Vec<u8>, Reason); 6] {
    let start = || frame(LAN, "fd00::2", dst);
    let bad = Reason::Ip6BadExtension;
    // Hop-by-hop anywhere but first, and first but longer than the packet; another longer than the packet; too many; an
    // authentication header longer than the packet.
    let late = start().extension(60, &[0; 7]).extension(0, &[0; 7]).udp(1, 2, b"x");
    let options = start().extension(0, &[200, 0, 0, 0, 0, 0, 0]).udp(1, 2, b"x");
    let long = start().extension(60, &[200, 0, 0, 0, 0, 0, 0]).udp(1, 2, b"x");
    let many = (0..12).fold(start(), |f, _| f.extension(60, &[0, 1, 4, 0, 0, 0, 0])).udp(1, 2, b"x");
    let ah = start().raw(51, &[17, 90, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
    let routing = start().extension(43, &[2, 0, 1, 0, 0, 0, 0].repeat(4)[..23]).udp(1, 2, b"x");
    [(late, bad), (options, bad), (long, bad), (many, bad), (ah, bad), (routing, Reason::Ip6RoutingHeader)]
}

#[test]
fn transit_is_forwarded_whatever_its_extension_headers_are() {
    for (bytes, _) in broken_chains("2001:db8:100::9") {
        let seen = World::new().send(LAN, &bytes);
        let mut expected = bytes[14..].to_vec();
        expected[7] -= 1;
        assert_eq!(seen.one()[14..], expected, "only the hop limit is another");
    }
}

#[test]
fn transit_with_broken_extension_headers_is_dropped_where_the_limits_say_so() {
    for (bytes, reason) in broken_chains("2001:db8:100::9") {
        let mut w = World::new();
        w.tables.settings.check_extensions = true;
        w.send(LAN, &bytes).dropped_silently(reason);
    }
}

#[test]
fn broken_extension_headers_to_an_address_of_weir_are_dropped_and_to_one_of_the_kernel_are_its_affair() {
    for (bytes, reason) in broken_chains("fd00::1") {
        World::new().send(LAN, &bytes).dropped_silently(reason);
    }
    for (bytes, _) in broken_chains("2001:db8:1::1") {
        assert_eq!(World::new().send(LAN, &bytes).local, 1);
    }
}

#[test]
fn broken_arp() {
    let mut arp = weir_core::wire::build::arp_request(
        (neighbor_mac(LAN, 2), [10, 0, 0, 2].into()),
        [10, 0, 0, 1].into(),
        None,
    );
    World::new().send(LAN, &arp[..41]).dropped_silently(Reason::BadArp);
    arp[14 + 1] = 6;
    World::new().send(LAN, &arp).dropped_silently(Reason::BadArp);
}

#[test]
fn broken_icmp_to_us() {
    let mut echo = frame(LAN, "10.0.0.2", "10.0.0.1").echo_request(1, 1, b"ping");
    let last = echo.len() - 1;
    echo[last] ^= 1;
    World::new().send(LAN, &echo).dropped_silently(Reason::BadIcmp);
    let cut = frame(LAN, "10.0.0.2", "10.0.0.1").raw(1, &[8, 0, 0]);
    World::new().send(LAN, &cut).dropped_silently(Reason::BadIcmp);
    let mut echo = frame(LAN, "fd00::2", "fd00::1").echo_request(1, 1, b"ping");
    let last = echo.len() - 1;
    echo[last] ^= 1;
    World::new().send(LAN, &echo).dropped_silently(Reason::BadIcmp);
    // A neighbour solicitation that crossed a router.
    let far = frame(LAN, "fd00::2", "ff02::1:ff00:1").ttl(254).raw(58, &[135, 0, 0, 0]);
    World::new().send(LAN, &far).dropped_silently(Reason::BadIcmp);
}
