//! Conntrack entries over netlink (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`).
//!
//! ```text
//! nfgenmsg  family:1 version:1 resource:2 │ attributes, nested; their numbers in network byte order
//! entry     TUPLE_ORIG TUPLE_REPLY STATUS PROTOINFO HELP TIMEOUT MARK SEQ_ADJ ZONE SYNPROXY …
//! ```
//!
//! Promises: a message is read whole or not at all; nothing is read past its slice. Refuses: entries without both
//! tuples, with tuples of two families or protocols, and protocols without ports: those stay the kernel's.

use std::net::IpAddr;

use super::netlink::{self, Message};
use super::protocol;

/// Message types: subsystem 1 (conntrack), then what is done.
pub const NEW: u16 = 0x100;
pub const GET: u16 = 0x101;
pub const DELETE: u16 = 0x102;

/// A bit of [`Entry::status`]: packets of both directions were seen.
pub const STATUS_SEEN_REPLY: u32 = 1 << 1;
pub const STATUS_ASSURED: u32 = 1 << 2;
pub const STATUS_SEQUENCE_ADJUSTED: u32 = 1 << 6;
pub const STATUS_DYING: u32 = 1 << 9;
/// A flow table of the kernel forwards it, in software or in a card.
pub const STATUS_OFFLOADED: u32 = 3 << 14;

/// [`Entry::tcp_state`] of an established connection.
pub const TCP_ESTABLISHED: u8 = 3;

const FAMILY_V4: u8 = 2;
const FAMILY_V6: u8 = 10;
const FAMILY_HEADER: usize = 4;
const NESTED: u16 = 0x8000;

const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOINFO: u16 = 4;
const HELP: u16 = 5;
const TIMEOUT: u16 = 7;
const MARK: u16 = 8;
const SEQ_ADJ_ORIG: u16 = 15;
const SEQ_ADJ_REPLY: u16 = 16;
const ZONE: u16 = 18;
const LABELS: u16 = 22;
const SYNPROXY: u16 = 24;

const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const TUPLE_ZONE: u16 = 3;
const PROTO_NUMBER: u16 = 1;
const PROTO_SOURCE: u16 = 2;
const PROTO_DESTINATION: u16 = 3;
const PROTOINFO_TCP: u16 = 1;
const TCP_STATE: u16 = 1;
const TCP_FLAGS_ORIG: u16 = 4;
const TCP_FLAGS_REPLY: u16 = 5;
/// `IP_CT_TCP_FLAG_BE_LIBERAL`, as value and as mask: windows the kernel did not see do not make a packet invalid.
const BE_LIBERAL: [u8; 2] = [8, 8];

/// One direction of a flow, as its packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub source_port: u16,
    pub destination_port: u16,
}

impl Tuple {
    /// The same packet the other way.
    pub fn reversed(&self) -> Tuple {
        Tuple {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// What only the kernel does with a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelOnly {
    Helper,
    SequenceAdjustment,
    Synproxy,
}

/// The labels of an entry (`ct label`), a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Labels([u8; Labels::COUNT / 8]);

impl Labels {
    pub const COUNT: usize = 128;

    pub fn has(self, label: u8) -> bool {
        let byte = self.0.get(usize::from(label / 8));
        byte.is_some_and(|byte| byte >> (label % 8) & 1 != 0)
    }

    /// One label alone.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of(label: u8) -> Labels {
        let mut labels = Labels::default();
        labels.0[usize::from(label / 8)] = 1 << (label % 8);
        labels
    }

    /// Words of the machine's own order, as the kernel keeps them.
    fn read(bytes: &[u8]) -> Option<Labels> {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut labels = Labels::default();
        if !rest.is_empty() || bytes.len() > labels.0.len() {
            return None;
        }
        for (to, word) in labels.0.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&u64::from_ne_bytes(*word).to_le_bytes());
        }
        Some(labels)
    }
}

/// What an entry says of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub original: Tuple,
    /// What answers look like before translation: its differences from `original` are the translation.
    pub reply: Tuple,
    /// An event that does not say its status leaves it `None`.
    pub status: Option<u32>,
    pub tcp_state: Option<u8>,
    pub timeout_s: Option<u32>,
    pub mark: Option<u32>,
    /// Events say them when they change; that none is left no event says.
    pub labels: Option<Labels>,
    pub kernel_only: Option<KernelOnly>,
    /// Tells entries with the same tuples apart; 0: no zone. Above 16 bits it says which direction is in the zone.
    pub zone: u32,
    /// The kernel made the entry just now: what the message does not say, the entry does not have.
    pub created: bool,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new entry, a changed one, or one of a dump.
    Present(Entry),
    Gone(Entry),
    /// The message is not about a flow that weir could forward.
    Other,
}

/// Reads a message of the conntrack subsystem.
pub fn parse(message: &Message<'_>) -> Event {
    let entry = message.payload.get(FAMILY_HEADER..).and_then(entry);
    match (message.kind, entry) {
        (NEW, Some(entry)) => {
            Event::Present(Entry { created: message.flags & netlink::FLAG_CREATE != 0, ..entry })
        }
        (DELETE, Some(entry)) => Event::Gone(entry),
        _ => Event::Other,
    }
}

/// A dump of all entries of all families.
pub fn dump() -> Vec<u8> {
    netlink::request(GET, netlink::FLAG_DUMP, &[0; FAMILY_HEADER], &[])
}

/// Asks for one entry of no zone.
pub fn query(original: &Tuple) -> Vec<u8> {
    about(GET, original, &[])
}

/// Has the kernel tell of an entry as of a changed one, without a change; it tells nothing of entries that are older than
/// the first who listened (`nf_conntrack_events` of 2).
pub fn touch(original: &Tuple) -> Vec<u8> {
    update(original, &[])
}

/// Makes the windows of a TCP entry liberal in both directions; its time left stays. It never makes an entry.
pub fn set_liberal(original: &Tuple) -> Vec<u8> {
    let tcp = nest(&[(TCP_FLAGS_ORIG, &BE_LIBERAL), (TCP_FLAGS_REPLY, &BE_LIBERAL)]);
    let info = nest(&[(PROTOINFO_TCP | NESTED, &tcp)]);
    update(original, &[(PROTOINFO | NESTED, &info)])
}

/// Sets an entry's time left. It never makes an entry. Who follows the table hears of it as of any change (seen on Linux 6.18).
pub fn refresh(original: &Tuple, timeout_s: u32) -> Vec<u8> {
    update(original, &[(TIMEOUT, &timeout_s.to_be_bytes())])
}

/// Makes an entry of an established UDP flow, as if both directions had had packets for a while, whose source becomes `masquerade`
/// where one is given. For measurements: weir makes no entry.
#[cfg(feature = "synthetic")]
pub fn establish(original: &Tuple, masquerade: Option<IpAddr>, timeout_s: u32) -> Vec<u8> {
    const NAT_SRC: u16 = 6;
    const CREATE: u16 = 0x400;
    // IPS_CONFIRMED, which an entry has anyway.
    let status = (STATUS_SEEN_REPLY | STATUS_ASSURED | 8).to_be_bytes();
    let (time, reply) = (timeout_s.to_be_bytes(), tuple_bytes(&original.reversed()));
    let address = match masquerade {
        // CTA_NAT_V4_MINIP and _MAXIP, CTA_NAT_V6_MINIP and _MAXIP.
        Some(IpAddr::V4(v4)) => nest(&[(1, &v4.octets()), (2, &v4.octets())]),
        Some(IpAddr::V6(v6)) => nest(&[(4, &v6.octets()), (5, &v6.octets())]),
        None => Vec::new(),
    };
    let mut attributes: Vec<(u16, &[u8])> =
        vec![(TUPLE_REPLY | NESTED, &reply), (STATUS, &status), (TIMEOUT, &time)];
    if masquerade.is_some() {
        attributes.push((NAT_SRC | NESTED, &address));
    }
    let mut request = about(NEW, original, &attributes);
    let flags = u16::from_ne_bytes([request[6], request[7]]) | CREATE;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request
}

fn update(original: &Tuple, changes: &[(u16, &[u8])]) -> Vec<u8> {
    about(NEW, original, changes)
}

fn about(kind: u16, original: &Tuple, changes: &[(u16, &[u8])]) -> Vec<u8> {
    let family = if original.source.is_ipv4() { FAMILY_V4 } else { FAMILY_V6 };
    let tuple = tuple_bytes(original);
    let mut attributes: Vec<(u16, &[u8])> = vec![(TUPLE_ORIG | NESTED, &tuple)];
    attributes.extend_from_slice(changes);
    netlink::request(kind, netlink::FLAG_ACK, &[family, 0, 0, 0], &attributes)
}

/// Attributes as the value of another one.
fn nest(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    netlink::request(0, 0, &[], attributes).split_off(netlink::HEADER)
}

fn tuple_bytes(tuple: &Tuple) -> Vec<u8> {
    let ip = match (tuple.source, tuple.destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => nest(&[(1, &s.octets()), (2, &d.octets())]),
        (IpAddr::V6(s), IpAddr::V6(d)) => nest(&[(3, &s.octets()), (4, &d.octets())]),
        // The kernel refuses a tuple without addresses.
        _ => Vec::new(),
    };
    let proto = nest(&[
        (PROTO_NUMBER, &[tuple.protocol]),
        (PROTO_SOURCE, &tuple.source_port.to_be_bytes()),
        (PROTO_DESTINATION, &tuple.destination_port.to_be_bytes()),
    ]);
    nest(&[(TUPLE_IP | NESTED, &ip), (TUPLE_PROTO | NESTED, &proto)])
}

fn entry(bytes: &[u8]) -> Option<Entry> {
    let (mut original, mut reply, mut status, mut tcp_state) = (None, None, None, None);
    let (mut timeout_s, mut mark, mut labels, mut kernel_only, mut zone) = (None, None, None, None, 0);
    for attribute in netlink::attributes(bytes) {
        let (kind, value) = attribute.ok()?;
        match kind {
            TUPLE_ORIG | TUPLE_REPLY => {
                if let Some(of_direction) = find(value, TUPLE_ZONE).ok()? {
                    zone = u32::from(kind) << 16 | be16(of_direction)?;
                }
                let place = if kind == TUPLE_ORIG { &mut original } else { &mut reply };
                *place = Some(tuple(value)?);
            }
            STATUS => status = Some(be32(value)?),
            PROTOINFO => tcp_state = state_of_tcp(value),
            TIMEOUT => timeout_s = Some(be32(value)?),
            MARK => mark = Some(be32(value)?),
            LABELS => labels = Some(Labels::read(value)?),
            ZONE => zone = be16(value)?,
            HELP => kernel_only = Some(KernelOnly::Helper),
            SEQ_ADJ_ORIG | SEQ_ADJ_REPLY => kernel_only = Some(KernelOnly::SequenceAdjustment),
            // An entry that another program made has it with nothing in it.
            SYNPROXY if shifts(value)? => kernel_only = Some(KernelOnly::Synproxy),
            _ => {}
        }
    }
    let (original, reply): (Tuple, Tuple) = (original?, reply?);
    let alike = original.protocol == reply.protocol && original.source.is_ipv4() == reply.source.is_ipv4();
    if status.is_some_and(|s| s & STATUS_SEQUENCE_ADJUSTED != 0) {
        kernel_only = Some(KernelOnly::SequenceAdjustment);
    }
    let created = false;
    alike.then_some(Entry {
        original,
        reply,
        status,
        tcp_state,
        timeout_s,
        mark,
        labels,
        kernel_only,
        zone,
        created,
    })
}

/// Whether any of the numbers a synproxy keeps is one.
fn shifts(bytes: &[u8]) -> Option<bool> {
    let mut some = false;
    for attribute in netlink::attributes(bytes) {
        some |= attribute.ok()?.1.iter().any(|&byte| byte != 0);
    }
    Some(some)
}

/// An attribute's value, if it is there.
fn find(bytes: &[u8], wanted: u16) -> Result<Option<&[u8]>, netlink::Malformed> {
    let mut found = None;
    for attribute in netlink::attributes(bytes) {
        let (kind, value) = attribute?;
        if kind == wanted {
            found = Some(value);
        }
    }
    Ok(found)
}

fn tuple(bytes: &[u8]) -> Option<Tuple> {
    let ip = netlink::attribute(bytes, TUPLE_IP)?;
    let proto = netlink::attribute(bytes, TUPLE_PROTO)?;
    let v4 = |kind| Some(IpAddr::from(<[u8; 4]>::try_from(netlink::attribute(ip, kind)?).ok()?));
    let v6 = |kind| Some(IpAddr::from(<[u8; 16]>::try_from(netlink::attribute(ip, kind)?).ok()?));
    let port = |kind| Some(u16::from_be_bytes(netlink::attribute(proto, kind)?.try_into().ok()?));
    let (source, destination) = v4(1).zip(v4(2)).or_else(|| v6(3).zip(v6(4)))?;
    let protocol = *netlink::attribute(proto, PROTO_NUMBER)?.first()?;
    matches!(protocol, protocol::TCP | protocol::UDP).then_some(())?;
    let (source_port, destination_port) = (port(PROTO_SOURCE)?, port(PROTO_DESTINATION)?);
    Some(Tuple { source, destination, protocol, source_port, destination_port })
}

fn state_of_tcp(bytes: &[u8]) -> Option<u8> {
    netlink::attribute(netlink::attribute(bytes, PROTOINFO_TCP)?, TCP_STATE)?.first().copied()
}

fn be16(bytes: &[u8]) -> Option<u32> {
    Some(u16::from_be_bytes(bytes.try_into().ok()?).into())
}

fn be32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Any bytes as a datagram: what is read of it, written again, is found again.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_ctnetlink(data: &[u8]) {
    for message in netlink::messages(data).map_while(Result::ok) {
        if let Event::Present(entry) | Event::Gone(entry) = parse(&message) {
            assert_eq!(tuple(&tuple_bytes(&entry.original)), Some(entry.original));
            assert_eq!(tuple(&tuple_bytes(&entry.reply)), Some(entry.reply));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGINAL: Tuple = Tuple {
        source: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
        destination: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
        protocol: protocol::TCP,
        source_port: 40000,
        destination_port: 443,
    };
    const MASQUERADED: Tuple = Tuple {
        source: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
        destination: IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1)),
        protocol: protocol::TCP,
        source_port: 443,
        destination_port: 1024,
    };

    fn event(kind: u16, reply: &Tuple, more: &[(u16, &[u8])]) -> Event {
        let (original, reply) = (tuple_bytes(&ORIGINAL), tuple_bytes(reply));
        let mut attributes: Vec<(u16, &[u8])> = vec![(TUPLE_ORIG | NESTED, &original), (TUPLE_REPLY, &reply)];
        attributes.extend_from_slice(more);
        let bytes = netlink::request(kind, 0, &[FAMILY_V4, 0, 0, 0], &attributes);
        fuzz_ctnetlink(&bytes);
        parse(&netlink::messages(&bytes).next().expect("one").expect("whole"))
    }

    #[test]
    fn an_established_masqueraded_connection_is_read_with_both_tuples() {
        let info = nest(&[(PROTOINFO_TCP, &nest(&[(TCP_STATE, &[TCP_ESTABLISHED])]))]);
        let more: &[(u16, &[u8])] = &[(STATUS, &[0, 0, 1, 0x8e]), (PROTOINFO, &info), (MARK, &[0, 0, 1, 0])];
        let Event::Present(entry) = event(NEW, &MASQUERADED, more) else { panic!("an entry") };
        assert_eq!((entry.original, entry.reply), (ORIGINAL, MASQUERADED));
        assert_eq!((entry.status, entry.mark), (Some(0x18e), Some(0x100)));
        assert_eq!(
            (entry.tcp_state, entry.timeout_s, entry.kernel_only, entry.zone),
            (Some(TCP_ESTABLISHED), None, None, 0)
        );
        assert!(matches!(event(DELETE, &MASQUERADED, &[]), Event::Gone(_)));
    }

    #[test]
    fn labels_are_bits_of_words() {
        let of = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let Event::Present(entry) = event(NEW, &MASQUERADED, &[(LABELS, &bytes)]) else { return None };
            let labels = entry.labels.expect("labels");
            Some((0..=u8::MAX).filter(|&label| labels.has(label)).collect::<Vec<_>>())
        };
        assert_eq!(of(&[1 << 63 | 1, 1 << 62 | 2]), Some(vec![0, 63, 65, 126]));
        assert_eq!((of(&[]), of(&[4])), (Some(vec![]), Some(vec![2])));
        assert_eq!(of(&[1, 2, 3]), None, "more than there are");
        let Event::Present(none) = event(NEW, &MASQUERADED, &[]) else { panic!("an entry") };
        assert_eq!(none.labels, None);
    }

    #[test]
    fn helpers_zones_synproxy_and_sequence_adjustment_are_told_apart() {
        for (more, kernel_only, zone) in [
            ((HELP, &[][..]), Some(KernelOnly::Helper), 0),
            ((ZONE, &[0, 1]), None, 1),
            ((SEQ_ADJ_REPLY, &[]), Some(KernelOnly::SequenceAdjustment), 0),
            ((SYNPROXY, &[8, 0, 1, 0, 0, 0, 0, 1]), Some(KernelOnly::Synproxy), 0),
            ((SYNPROXY, &[8, 0, 1, 0, 0, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0]), None, 0),
            ((STATUS, &[0, 0, 0, 0x40]), Some(KernelOnly::SequenceAdjustment), 0),
        ] {
            let Event::Present(entry) = event(NEW, &MASQUERADED, &[more]) else { panic!("an entry") };
            assert_eq!((entry.kernel_only, entry.zone), (kernel_only, zone), "attribute {}", more.0);
        }
        assert_eq!(event(NEW, &MASQUERADED, &[(ZONE, &[1])]), Event::Other);
    }

    #[test]
    fn a_new_entry_is_told_from_a_changed_one() {
        let (original, reply) = (tuple_bytes(&ORIGINAL), tuple_bytes(&MASQUERADED));
        let attributes: [(u16, &[u8]); 2] = [(TUPLE_ORIG, &original), (TUPLE_REPLY, &reply)];
        for (flags, created) in [(netlink::FLAG_CREATE, true), (0, false)] {
            let bytes = netlink::request(NEW, flags, &[FAMILY_V4, 0, 0, 0], &attributes);
            let message = netlink::messages(&bytes).next().expect("one").expect("whole");
            let Event::Present(entry) = parse(&message) else { panic!("an entry") };
            assert_eq!(entry.created, created);
        }
    }

    #[test]
    fn tuples_of_two_protocols_and_of_protocols_without_ports_are_no_flow() {
        let (udp, icmp) =
            (Tuple { protocol: protocol::UDP, ..MASQUERADED }, Tuple { protocol: 1, ..MASQUERADED });
        assert_eq!(event(NEW, &udp, &[]), Event::Other);
        assert_eq!(event(NEW, &icmp, &[]), Event::Other);
        assert_eq!(event(NEW, &MASQUERADED, &[(STATUS, &[1])]), Event::Other);
    }

    #[test]
    fn liberal_windows_are_asked_for_in_both_directions_of_an_entry_that_exists() {
        let bytes = set_liberal(&ORIGINAL);
        let message = netlink::messages(&bytes).next().expect("one").expect("whole");
        assert_eq!((message.kind, message.flags & netlink::FLAG_CREATE), (NEW, 0));
        let body = &message.payload[FAMILY_HEADER..];
        assert_eq!(tuple(netlink::attribute(body, TUPLE_ORIG).expect("a tuple")), Some(ORIGINAL));
        assert_eq!(netlink::attribute(body, TIMEOUT), None);
        let tcp = netlink::attribute(netlink::attribute(body, PROTOINFO).expect("info"), PROTOINFO_TCP)
            .expect("tcp");
        assert_eq!(netlink::attribute(tcp, TCP_FLAGS_ORIG), Some(&[8, 8][..]));
        assert_eq!(netlink::attribute(tcp, TCP_FLAGS_REPLY), Some(&[8, 8][..]));
    }
}
