//! The flow hash: which path of several a packet takes (RFC 2992, RFC 6438 for the flow label).
//!
//! Promises: all packets of a flow hash alike, and all fragments of a packet do: ports count only in
//! whole packets, and only of TCP, UDP and SCTP. The key is the caller's, so that nobody can aim flows at
//! one path and two routers in a row do not split alike. Refuses nothing: a packet too short for ports
//! hashes without them. The two directions of a flow hash differently.

use super::ipv4::Ipv4;
use super::ipv6::Ipv6;
use super::{get32, protocol};

/// A secret of this router, drawn once at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    a: u64,
    b: u64,
    /// RFC 6438: count the IPv6 flow label, so that fragments and tunnels spread too.
    pub flow_label: bool,
}

impl FlowKey {
    /// Both halves from one seed (SplitMix64, Steele et al. 2014), neither of them 0.
    pub fn new(seed: u64) -> Self {
        let mix = |x: u64| {
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (x ^ (x >> 31)) | 1
        };
        let step = 0x9e37_79b9_7f4a_7c15u64;
        let a = seed.wrapping_add(step);
        FlowKey { a: mix(a), b: mix(a.wrapping_add(step)), flow_label: false }
    }

    #[must_use]
    pub fn with_flow_label(self, flow_label: bool) -> Self {
        FlowKey { flow_label, ..self }
    }

    /// `ports` is source and destination port as one word, or 0.
    #[inline]
    pub fn hash4(&self, src: u32, dst: u32, protocol: u8, ports: u32) -> u32 {
        let addresses = u64::from(src) << 32 | u64::from(dst);
        let rest = u64::from(ports) << 8 | u64::from(protocol);
        finish(fold(addresses ^ self.a, rest ^ self.b), self.b)
    }

    /// `label` is the flow label, or 0.
    #[inline]
    pub fn hash6(&self, src: u128, dst: u128, protocol: u8, ports: u32, label: u32) -> u32 {
        let rest = u64::from(label) << 40 | u64::from(ports) << 8 | u64::from(protocol);
        let high = fold((src >> 64) as u64 ^ self.a, (dst >> 64) as u64 ^ self.b);
        let low = fold(src as u64 ^ self.b, dst as u64 ^ self.a);
        finish(fold(high ^ low.rotate_left(32) ^ self.a, rest ^ self.b), self.a)
    }

    /// The hash of an IPv4 packet.
    #[inline]
    pub fn of_ipv4<T: AsRef<[u8]>>(&self, packet: &Ipv4<T>) -> u32 {
        let ports = if packet.is_fragment() { 0 } else { ports(packet.protocol(), packet.payload()) };
        self.hash4(packet.src().to_bits(), packet.dst().to_bits(), packet.protocol(), ports)
    }

    /// The hash of an IPv6 packet. A packet whose extension headers cannot be walked hashes by its addresses.
    #[inline]
    pub fn of_ipv6<T: AsRef<[u8]>>(&self, packet: &Ipv6<T>) -> u32 {
        let (protocol, ports) = match packet.next_header() {
            // Nearly every packet: no walk.
            p @ (protocol::TCP | protocol::UDP | protocol::SCTP) => (p, ports(p, packet.payload())),
            _ => match packet.chain() {
                Ok(chain) if chain.fragment.is_some() => (chain.protocol, 0),
                Ok(chain) => {
                    let at = chain.offset - super::ipv6::HEADER_LEN;
                    (chain.protocol, ports(chain.protocol, packet.payload().get(at..).unwrap_or(&[])))
                }
                Err(_) => (0, 0),
            },
        };
        let label = if self.flow_label { packet.flow_label() } else { 0 };
        self.hash6(packet.src().to_bits(), packet.dst().to_bits(), protocol, ports, label)
    }

    /// What of an IPv4 packet besides its addresses decides its hash: protocol, and ports or 0. `None` for a fragment, whose ports are
    /// not looked at though other packets of its flow have some.
    pub fn chosen_by4<T: AsRef<[u8]>>(&self, packet: &Ipv4<T>) -> Option<(u8, u32)> {
        let protocol = packet.protocol();
        (!packet.is_fragment()).then(|| (protocol, ports(protocol, packet.payload())))
    }

    /// The same of an IPv6 packet without extension headers; `None` with them, and where the flow label counts.
    pub fn chosen_by6<T: AsRef<[u8]>>(&self, packet: &Ipv6<T>) -> Option<(u8, u32)> {
        let protocol = packet.next_header();
        let bare = matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP | protocol::ESP);
        (bare && !self.flow_label).then(|| (protocol, ports(protocol, packet.payload())))
    }
}

/// Which of `n` buckets a hash falls in, without a division (Lemire 2019). `n` above zero.
#[inline]
pub fn pick(hash: u32, n: u32) -> u32 {
    ((u64::from(hash) * u64::from(n)) >> 32) as u32
}

#[inline]
fn ports(protocol: u8, transport: &[u8]) -> u32 {
    if matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP) && transport.len() >= 4 {
        return get32(transport, 0);
    }
    0
}

/// A 64 × 64 → 128 bit product folded in half: each input bit reaches about half the output's.
#[inline]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    product as u64 ^ (product >> 64) as u64
}

/// A second round: one product leaves the bits of neighbouring inputs too regular for [`pick`], which
/// looks at the high ones only.
#[inline]
fn finish(h: u64, key: u64) -> u32 {
    (fold(h ^ 0x9e37_79b9_7f4a_7c15, key) >> 32) as u32
}

#[cfg(feature = "testing")]
pub fn fuzz_flow(data: &[u8]) {
    let key = FlowKey::new(7).with_flow_label(true);
    if let Ok(packet) = Ipv4::parse_header(data) {
        assert!(pick(key.of_ipv4(&packet), 3) < 3);
    }
    if let Ok(packet) = Ipv6::parse_header(data) {
        assert!(pick(key.of_ipv6(&packet), 3) < 3);
    }
    if data.len() >= 16 {
        let x = u128::from_be_bytes(super::get_array(data, 0));
        assert_eq!(key.hash6(x, x, 6, 1, 2), key.hash6(x, x, 6, 1, 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build::Frame;

    /// Pearson's chi-squared of `hashes` over 64 buckets: 63 degrees of freedom, so below 120 with a
    /// probability of 0.99998 when uniform; the keys below are fixed, so the test cannot waver.
    fn chi_squared(hashes: impl Iterator<Item = u32>) -> f64 {
        let mut counts = [0u32; 64];
        hashes.for_each(|h| counts[pick(h, 64) as usize] += 1);
        let expected = f64::from(counts.iter().sum::<u32>()) / 64.0;
        counts.iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum()
    }

    #[test]
    fn flows_that_differ_little_spread_evenly() {
        for seed in 0..20 {
            let key = FlowKey::new(seed);
            let by_port = (0..8192u32).map(|p| key.hash4(0x0a000001, 0x0a000002, 17, 1024 << 16 | p));
            assert!(chi_squared(by_port) < 120.0, "ports, seed {seed}");
            let by_source_port = (0..8192u32).map(|p| key.hash4(0x0a000001, 0x0a000002, 17, p << 16 | 80));
            assert!(chi_squared(by_source_port) < 120.0, "source ports, seed {seed}");
            let by_dst = (0..8192u32).map(|i| key.hash4(0x0a000001, 0x0a640000 + i, 17, 0));
            assert!(chi_squared(by_dst) < 120.0, "destinations, seed {seed}");
            let by_both = (0..8192u32).map(|i| key.hash4(0x0a000000 + i, 0x0b000000 + i, 6, 0));
            assert!(chi_squared(by_both) < 120.0, "both, seed {seed}");
            let dst6 = 0x2001_0db8_0000_0000_0000_0000_0000_0000u128;
            let by_dst6 = (0..8192u128).map(|i| key.hash6(dst6 + 1, dst6 + (i << 64), 17, 5, 0));
            assert!(chi_squared(by_dst6) < 120.0, "networks, seed {seed}");
            let by_host6 = (0..8192u128).map(|i| key.hash6(dst6 + i, dst6 + i, 17, 5, 0));
            assert!(chi_squared(by_host6) < 120.0, "hosts, seed {seed}");
            let by_label = (0..8192u32).map(|l| key.hash6(dst6, dst6 + 1, 17, 0, l));
            assert!(chi_squared(by_label) < 120.0, "labels, seed {seed}");
        }
    }

    #[test]
    fn two_routers_with_two_keys_split_independently() {
        let (first, second) = (FlowKey::new(1), FlowKey::new(2));
        let mine = (0..20_000u32)
            .filter(|&p| pick(first.hash4(1, 2, 17, p), 2) == 0)
            .map(|p| second.hash4(1, 2, 17, p));
        assert!(chi_squared(mine) < 120.0);
    }

    #[test]
    fn fragments_of_a_packet_follow_its_first_one() {
        let key = FlowKey::new(3);
        let frame = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).packet();
        let hash = |bytes: Vec<u8>| key.of_ipv4(&Ipv4::parse(bytes).expect("valid"));
        let first = hash(frame.clone().fragment(0, true).udp(1, 2, b"12345678"));
        let later = hash(frame.clone().fragment(16, false).raw(protocol::UDP, &[9; 20]));
        assert_eq!(first, later);
        assert_ne!(hash(frame.udp(1, 2, b"")), hash(frame.udp(1, 3, b"")));
    }

    #[test]
    fn ports_behind_extension_headers_count_and_fragments_do_not() {
        let key = FlowKey::new(3);
        let frame =
            Frame::ipv6("2001:db8::1".parse().expect("a"), "2001:db8::2".parse().expect("a")).packet();
        let hash = |bytes: Vec<u8>| key.of_ipv6(&Ipv6::parse(bytes).expect("valid"));
        let padded = frame.clone().extension(protocol::DESTINATION_OPTIONS, &[0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(hash(padded.udp(1, 2, b"")), hash(frame.udp(1, 2, b"")));
        assert_ne!(hash(padded.udp(1, 3, b"")), hash(frame.udp(1, 2, b"")));
        let first = hash(frame.clone().fragment(0, true).udp(1, 2, b"12345678"));
        let later = hash(frame.clone().fragment(16, false).raw(protocol::UDP, &[9; 20]));
        assert_eq!(first, later);
    }

    #[test]
    fn flow_label_counts_only_when_asked_for() {
        let frame =
            Frame::ipv6("2001:db8::1".parse().expect("a"), "2001:db8::2".parse().expect("a")).packet();
        let (plain, labelled) = (frame.udp(1, 2, b""), frame.clone().flow_label(77).udp(1, 2, b""));
        let hash = |key: FlowKey, bytes: &[u8]| key.of_ipv6(&Ipv6::parse(bytes).expect("valid"));
        let key = FlowKey::new(3);
        assert_eq!(hash(key, &plain), hash(key, &labelled));
        let key = key.with_flow_label(true);
        assert_ne!(hash(key, &plain), hash(key, &labelled));
    }
}
