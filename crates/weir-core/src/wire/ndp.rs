//! Neighbour discovery for IPv6 (RFC 4861), as far as a router that sends no advertisements of its own
//! needs it.
//!
//! ```text
//! solicitation   | 135 0 check | reserved       | target (16)                    | options…
//! advertisement  | 136 0 check | R S O reserved | target (16)                    | options…
//! redirect       | 137 0 check | reserved       | target (16) | destination (16) | options…
//! option         | type | length in units of 8 | …
//! ```
//!
//! Promises: every message passes the validity checks of its section (6.1, 7.1, 8.1) before anyone sees
//! its contents: hop limit 255, right checksum, code 0, no option of length 0, no fragment (RFC 6980).
//! Refuses the rest as [`Reason::BadIcmp`].

use std::fmt;
use std::net::Ipv6Addr;

use super::icmpv6::{self, Icmpv6};
use super::ipv6::{self, Ipv6};
use super::{DisplayMac, get_array, get16, get32, protocol, put32};
use crate::id::Mac;
use crate::verdict::Reason;

/// RFC 4861: only a packet from the same link still has it.
pub const HOP_LIMIT: u8 = 255;
const OPTION_SOURCE_LINK_LAYER: u8 = 1;
const OPTION_TARGET_LINK_LAYER: u8 = 2;
const OPTION_MTU: u8 = 5;
const FLAG_ROUTER: u32 = 1 << 31;
const FLAG_SOLICITED: u32 = 1 << 30;
const FLAG_OVERRIDE: u32 = 1 << 29;
/// ICMPv6 header, target and one link-layer option: what we write.
const OUR_LEN: usize = 8 + 16 + 8;

/// A valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    RouterSolicitation {
        source_mac: Option<Mac>,
    },
    RouterAdvertisement(RouterAdvertisement),
    NeighborSolicitation {
        target: Ipv6Addr,
        /// The sender's MAC; never there when the source is unspecified (duplicate address detection).
        source_mac: Option<Mac>,
    },
    NeighborAdvertisement(NeighborAdvertisement),
    Redirect {
        target: Ipv6Addr,
        destination: Ipv6Addr,
        target_mac: Option<Mac>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborAdvertisement {
    pub target: Ipv6Addr,
    pub router: bool,
    /// Whether it answers a solicitation, and so confirms reachability.
    pub solicited: bool,
    /// Replaces a known address.
    pub overrides: bool,
    pub target_mac: Option<Mac>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterAdvertisement {
    pub hop_limit: u8,
    /// Seconds as a default router; 0 is none.
    pub lifetime: u16,
    pub source_mac: Option<Mac>,
    pub mtu: Option<u32>,
}

/// Reads the message in an IPv6 packet whose upper layer is ICMPv6.
pub fn parse<T: AsRef<[u8]>>(packet: &Ipv6<T>) -> Result<Message, Reason> {
    const BAD: Reason = Reason::BadIcmp;
    let (src, dst) = (packet.src(), packet.dst());
    let chain = packet.chain()?;
    if chain.protocol != protocol::ICMPV6 || chain.fragment.is_some() || packet.hop_limit() != HOP_LIMIT {
        return Err(BAD);
    }
    let bytes = packet.payload().get(chain.offset - ipv6::HEADER_LEN..).ok_or(BAD)?;
    let icmp = Icmpv6::parse(bytes, src, dst)?;
    if icmp.code() != 0 {
        return Err(BAD);
    }
    let options = |at: usize| Options::read(bytes.get(at..).ok_or(BAD)?);
    let target = || bytes.get(8..24).map(|_| Ipv6Addr::from(get_array::<16>(bytes, 8))).ok_or(BAD);
    match icmp.kind() {
        icmpv6::ROUTER_SOLICITATION => {
            let source_mac = options(8)?.source_mac;
            refuse_if(src.is_unspecified() && source_mac.is_some())?;
            Ok(Message::RouterSolicitation { source_mac })
        }
        icmpv6::ROUTER_ADVERTISEMENT => {
            let options = options(16)?;
            refuse_if(!src.is_unicast_link_local())?;
            Ok(Message::RouterAdvertisement(RouterAdvertisement {
                hop_limit: bytes[4],
                lifetime: get16(bytes, 6),
                source_mac: options.source_mac,
                mtu: options.mtu,
            }))
        }
        icmpv6::NEIGHBOR_SOLICITATION => {
            let (target, source_mac) = (target()?, options(24)?.source_mac);
            refuse_if(target.is_multicast())?;
            // 7.1.1: duplicate address detection asks the group and names no link-layer address.
            let probe_ok = dst == ipv6::solicited_node(target) && source_mac.is_none();
            refuse_if(src.is_unspecified() && !probe_ok)?;
            Ok(Message::NeighborSolicitation { target, source_mac })
        }
        icmpv6::NEIGHBOR_ADVERTISEMENT => {
            let (target, target_mac) = (target()?, options(24)?.target_mac);
            let flags = get32(bytes, 4);
            let solicited = flags & FLAG_SOLICITED != 0;
            refuse_if(target.is_multicast() || (dst.is_multicast() && solicited))?;
            Ok(Message::NeighborAdvertisement(NeighborAdvertisement {
                target,
                router: flags & FLAG_ROUTER != 0,
                solicited,
                overrides: flags & FLAG_OVERRIDE != 0,
                target_mac,
            }))
        }
        icmpv6::REDIRECT => {
            let (target, target_mac) = (target()?, options(40)?.target_mac);
            let destination = Ipv6Addr::from(get_array::<16>(bytes, 24));
            refuse_if(!src.is_unicast_link_local() || destination.is_multicast())?;
            refuse_if(target != destination && !target.is_unicast_link_local())?;
            Ok(Message::Redirect { target, destination, target_mac })
        }
        _ => Err(BAD),
    }
}

fn refuse_if(bad: bool) -> Result<(), Reason> {
    if bad { Err(Reason::BadIcmp) } else { Ok(()) }
}

/// The options a router reads; others are skipped, as every section demands.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    source_mac: Option<Mac>,
    target_mac: Option<Mac>,
    mtu: Option<u32>,
}

impl Options {
    fn read(mut rest: &[u8]) -> Result<Self, Reason> {
        let mut seen = Options::default();
        while !rest.is_empty() {
            let len = rest.get(1).map_or(0, |&units| usize::from(units) * 8);
            if len == 0 || len > rest.len() {
                return Err(Reason::BadIcmp);
            }
            let (option, behind) = rest.split_at(len);
            match option[0] {
                OPTION_SOURCE_LINK_LAYER => seen.source_mac = Some(get_array(option, 2)),
                OPTION_TARGET_LINK_LAYER => seen.target_mac = Some(get_array(option, 2)),
                OPTION_MTU => seen.mtu = Some(get32(option, 4)),
                _ => {}
            }
            rest = behind;
        }
        Ok(seen)
    }
}

/// Writes a solicitation for `target` as a whole IPv6 packet; returns its length, or `None` when `out`
/// is too short. `dst` is [`ipv6::solicited_node`] of the target, or the target itself when it is only
/// probed. An unspecified `src` (duplicate address detection) leaves the option out.
pub fn write_solicitation(
    out: &mut [u8],
    src: (Mac, Ipv6Addr),
    dst: Ipv6Addr,
    target: Ipv6Addr,
) -> Option<usize> {
    let mac = (!src.1.is_unspecified()).then_some((OPTION_SOURCE_LINK_LAYER, src.0));
    write(out, src.1, dst, icmpv6::NEIGHBOR_SOLICITATION, 0, target, mac)
}

/// Writes an advertisement as a whole IPv6 packet; returns its length, or `None` when `out` is too short.
pub fn write_advertisement(
    out: &mut [u8],
    src: Ipv6Addr,
    dst: Ipv6Addr,
    advertisement: &NeighborAdvertisement,
) -> Option<usize> {
    let a = advertisement;
    let flags = [(a.router, FLAG_ROUTER), (a.solicited, FLAG_SOLICITED), (a.overrides, FLAG_OVERRIDE)];
    let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
    let mac = a.target_mac.map(|mac| (OPTION_TARGET_LINK_LAYER, mac));
    write(out, src, dst, icmpv6::NEIGHBOR_ADVERTISEMENT, flags, a.target, mac)
}

fn write(
    out: &mut [u8],
    src: Ipv6Addr,
    dst: Ipv6Addr,
    kind: u8,
    flags: u32,
    target: Ipv6Addr,
    mac: Option<(u8, Mac)>,
) -> Option<usize> {
    let len = if mac.is_some() { OUR_LEN } else { OUR_LEN - 8 };
    let total = ipv6::HEADER_LEN + len;
    let next_header = protocol::ICMPV6;
    let header =
        ipv6::Header { src, dst, next_header, hop_limit: HOP_LIMIT, traffic_class: 0, flow_label: 0 };
    let out = out.get_mut(..total)?;
    ipv6::write(out, &header, len)?;
    let message = &mut out[ipv6::HEADER_LEN..];
    message[..4].copy_from_slice(&[kind, 0, 0, 0]);
    put32(message, 4, flags);
    message[8..24].copy_from_slice(&target.octets());
    if let Some((option, mac)) = mac {
        message[24..26].copy_from_slice(&[option, 1]);
        message[26..32].copy_from_slice(&mac);
    }
    icmpv6::fill_checksum(message, src, dst);
    Some(total)
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mac = match self {
            Message::RouterSolicitation { source_mac } => {
                f.write_str("NDP router solicitation")?;
                source_mac
            }
            Message::RouterAdvertisement(ra) => {
                write!(f, "NDP router advertisement, lifetime {} s", ra.lifetime)?;
                if let Some(mtu) = ra.mtu {
                    write!(f, ", mtu {mtu}")?;
                }
                &ra.source_mac
            }
            Message::NeighborSolicitation { target, source_mac } => {
                write!(f, "NDP who has {target}?")?;
                source_mac
            }
            Message::NeighborAdvertisement(na) => {
                write!(f, "NDP advertisement of {}, flags [", na.target)?;
                for (set, letter) in [(na.router, "R"), (na.solicited, "S"), (na.overrides, "O")] {
                    f.write_str(if set { letter } else { "" })?;
                }
                f.write_str("]")?;
                &na.target_mac
            }
            Message::Redirect { target, destination, target_mac } => {
                write!(f, "NDP redirect of {destination} to {target}")?;
                target_mac
            }
        };
        match mac {
            Some(mac) => write!(f, ", mac {}", DisplayMac(*mac)),
            None => Ok(()),
        }
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_ndp(data: &[u8]) {
    if let Ok(packet) = Ipv6::parse(data) {
        let _ = parse(&packet);
    }
    // The same bytes as a message whose hop limit and checksum are right.
    let (src, dst) = (Ipv6Addr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]), Ipv6Addr::from([7; 16]));
    let mut bytes = vec![0; ipv6::HEADER_LEN];
    let next_header = protocol::ICMPV6;
    let header =
        ipv6::Header { src, dst, next_header, hop_limit: HOP_LIMIT, traffic_class: 0, flow_label: 0 };
    if data.len() < icmpv6::HEADER_LEN || ipv6::write(&mut bytes, &header, data.len()).is_none() {
        return;
    }
    bytes.extend_from_slice(data);
    icmpv6::fill_checksum(&mut bytes[ipv6::HEADER_LEN..], src, dst);
    let packet = Ipv6::parse(&bytes[..]).expect("written above");
    if let Ok(message) = parse(&packet) {
        let _ = message.to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];

    fn addr(text: &str) -> Ipv6Addr {
        text.parse().expect("address")
    }

    /// A packet from `src` to `dst` whose ICMPv6 message is `message` with its checksum filled in.
    fn packet(src: &str, dst: &str, message: &[u8]) -> Vec<u8> {
        let header = ipv6::Header {
            src: addr(src),
            dst: addr(dst),
            next_header: protocol::ICMPV6,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
        };
        let mut bytes = vec![0; ipv6::HEADER_LEN];
        ipv6::write(&mut bytes, &header, message.len()).expect("fits");
        bytes.extend_from_slice(message);
        icmpv6::fill_checksum(&mut bytes[ipv6::HEADER_LEN..], header.src, header.dst);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Message, Reason> {
        parse(&Ipv6::parse(bytes).expect("an IPv6 packet"))
    }

    fn message(kind: u8, flags: u8, addresses: &[&str], options: &[u8]) -> Vec<u8> {
        let mut m = vec![kind, 0, 0, 0, flags, 0, 0, 0];
        addresses.iter().for_each(|a| m.extend_from_slice(&addr(a).octets()));
        m.extend_from_slice(options);
        m
    }

    const SOURCE: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 1];
    const TARGET: [u8; 8] = [2, 1, 2, 0, 0, 0, 0, 1];

    #[test]
    fn written_solicitation_is_valid() {
        let mut out = [0; 100];
        let target = addr("fe80::2");
        let group = ipv6::solicited_node(target);
        let len = write_solicitation(&mut out, (MAC, addr("fe80::1")), group, target).expect("fits");
        let message = read(&out[..len]).expect("valid");
        assert_eq!(message, Message::NeighborSolicitation { target, source_mac: Some(MAC) });
        assert_eq!(message.to_string(), "NDP who has fe80::2?, mac 02:00:00:00:00:01");
        let len = write_solicitation(&mut out, (MAC, addr("::")), group, target).expect("fits");
        assert_eq!(read(&out[..len]), Ok(Message::NeighborSolicitation { target, source_mac: None }));
        assert_eq!(write_solicitation(&mut out[..71], (MAC, addr("fe80::1")), group, target), None);
    }

    #[test]
    fn written_advertisement_is_valid() {
        let mut out = [0; 100];
        let sent = NeighborAdvertisement {
            target: addr("fe80::2"),
            router: true,
            solicited: true,
            overrides: false,
            target_mac: Some(MAC),
        };
        let len = write_advertisement(&mut out, addr("fe80::2"), addr("fe80::1"), &sent).expect("fits");
        let message = read(&out[..len]).expect("valid");
        assert_eq!(message, Message::NeighborAdvertisement(sent));
        assert_eq!(message.to_string(), "NDP advertisement of fe80::2, flags [RS], mac 02:00:00:00:00:01");
    }

    #[test]
    fn message_that_crossed_a_router_is_refused() {
        let mut bytes = packet("fe80::1", "fe80::2", &message(135, 0, &["fe80::2"], &SOURCE));
        assert!(read(&bytes).is_ok());
        bytes[7] = 254;
        assert_eq!(read(&bytes), Err(Reason::BadIcmp));
    }

    #[test]
    fn wrong_checksum_code_and_fragments_are_refused() {
        let good = message(135, 0, &["fe80::2"], &SOURCE);
        let mut corrupt = packet("fe80::1", "fe80::2", &good);
        corrupt[60] ^= 1;
        assert_eq!(read(&corrupt), Err(Reason::BadIcmp));
        let mut coded = good.clone();
        coded[1] = 1;
        assert_eq!(read(&packet("fe80::1", "fe80::2", &coded)), Err(Reason::BadIcmp));
        let whole = packet("fe80::1", "fe80::2", &good);
        let mut fragment = whole[..ipv6::HEADER_LEN].to_vec();
        fragment.extend_from_slice(&[58, 0, 0, 0, 0, 0, 0, 9]);
        fragment.extend_from_slice(&whole[ipv6::HEADER_LEN..]);
        fragment[5] += 8;
        fragment[6] = protocol::FRAGMENT;
        assert_eq!(read(&fragment), Err(Reason::BadIcmp));
    }

    #[test]
    fn options_of_impossible_length_are_refused_and_unknown_ones_skipped() {
        let with =
            |options: &[u8]| read(&packet("fe80::1", "fe80::2", &message(135, 0, &["fe80::2"], options)));
        assert_eq!(with(&[1, 0, 2, 0, 0, 0, 0, 1]), Err(Reason::BadIcmp));
        assert_eq!(with(&[1, 2, 2, 0, 0, 0, 0, 1]), Err(Reason::BadIcmp));
        assert_eq!(with(&[1]), Err(Reason::BadIcmp));
        let unknown_first = [&[99, 1, 0, 0, 0, 0, 0, 0], &SOURCE[..]].concat();
        assert!(matches!(
            with(&unknown_first),
            Ok(Message::NeighborSolicitation { source_mac: Some(MAC), .. })
        ));
    }

    #[test]
    fn solicitation_rules_of_section_7_1_1_hold() {
        let bad = |src: &str, dst: &str, target: &str, options: &[u8]| {
            assert_eq!(read(&packet(src, dst, &message(135, 0, &[target], options))), Err(Reason::BadIcmp));
        };
        bad("fe80::1", "ff02::1", "ff02::1", &[]);
        bad("::", "fe80::2", "fe80::2", &[]);
        bad("::", "ff02::1:ff00:2", "fe80::2", &SOURCE);
        assert_eq!(
            read(&packet("fe80::1", "fe80::2", &message(135, 0, &[], &[0; 8]))),
            Err(Reason::BadIcmp),
            "cut before the target's end"
        );
    }

    #[test]
    fn advertisement_rules_of_section_7_1_2_hold() {
        let na = |dst: &str, flags, target: &str| {
            read(&packet("fe80::2", dst, &message(136, flags, &[target], &TARGET)))
        };
        assert!(na("ff02::1", 0x20, "fe80::2").is_ok());
        assert_eq!(na("ff02::1", 0x60, "fe80::2"), Err(Reason::BadIcmp), "solicited to a group");
        assert_eq!(na("fe80::1", 0x60, "ff02::5"), Err(Reason::BadIcmp));
    }

    #[test]
    fn router_messages_and_redirects_follow_their_rules() {
        let ra = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 5, 1, 0, 0, 0, 0, 5, 0xdc];
        let read_ra = read(&packet("fe80::1", "ff02::1", &ra)).expect("valid");
        assert_eq!(read_ra.to_string(), "NDP router advertisement, lifetime 1800 s, mtu 1500");
        assert_eq!(read(&packet("2001:db8::1", "ff02::1", &ra)), Err(Reason::BadIcmp));
        let rs = message(133, 0, &[], &SOURCE);
        assert!(read(&packet("fe80::1", "ff02::2", &rs)).is_ok());
        assert_eq!(read(&packet("::", "ff02::2", &rs)), Err(Reason::BadIcmp));
        let redirect = |target, destination| {
            read(&packet("fe80::1", "fe80::9", &message(137, 0, &[target, destination], &TARGET)))
        };
        assert!(redirect("fe80::5", "2001:db8::5").is_ok());
        assert!(redirect("2001:db8::5", "2001:db8::5").is_ok());
        assert_eq!(redirect("2001:db8::6", "2001:db8::5"), Err(Reason::BadIcmp));
        assert_eq!(redirect("fe80::5", "ff0e::5"), Err(Reason::BadIcmp));
    }
}
