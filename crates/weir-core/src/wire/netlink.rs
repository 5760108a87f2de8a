//! Netlink messages and their attributes (netlink(7), RFC 3549 2.3; `include/uapi/linux/netlink.h`).
//!
//! ```text
//! message    length:4 type:2 flags:2 sequence:4 port:4 │ payload, padded to 4
//! attribute  length:2 type:2 │ value, padded to 4
//! ```
//!
//! Numbers are in the machine's byte order, addresses in the network's. Promises: an iterator ends at the first
//! length that does not fit, and says so; nothing is read past the slice. Refuses: the flags in an attribute's type
//! (nested, network order) are cleared: what a value is follows from its message.

/// Bytes of a message's header.
pub const HEADER: usize = 16;

/// Message types every family has.
pub const TYPE_ERROR: u16 = 2;
pub const TYPE_DONE: u16 = 3;

/// Flags of requests.
pub const FLAG_REQUEST: u16 = 0x1;
pub const FLAG_ACK: u16 = 0x4;
pub const FLAG_DUMP: u16 = 0x300;
pub const FLAG_CREATE: u16 = 0x400;
/// Flags of notifications about something new.
pub const FLAG_REPLACE: u16 = 0x100;
pub const FLAG_APPEND: u16 = 0x800;
/// A dump during which what is dumped changed.
pub const FLAG_DUMP_INTERRUPTED: u16 = 0x10;

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub payload: &'a [u8],
}

/// What ends an iteration early: a length shorter than its own header, or longer than what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The messages of a datagram.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<Message<'_>, Malformed>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let length = u32_at(rest, 0).map_or(0, |l| l as usize);
        let (Some(kind), Some(flags), Some(sequence), Some(payload)) =
            (u16_at(rest, 4), u16_at(rest, 6), u32_at(rest, 8), rest.get(HEADER..length))
        else {
            rest = &[];
            return Some(Err(Malformed));
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(Message { kind, flags, sequence, payload }))
    })
}

/// The attributes of a message behind its family's header, each as its type and value.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Malformed>> {
    const TYPE: u16 = 0x3fff;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let length = u16_at(rest, 0).map_or(0, usize::from);
        let (Some(kind), Some(value)) = (u16_at(rest, 2), rest.get(4..length)) else {
            rest = &[];
            return Some(Err(Malformed));
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok((kind & TYPE, value)))
    })
}

/// The attributes of a type, in whatever is well formed.
pub fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).map_while(Result::ok).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A request: header, the family's own header, attributes.
pub fn request(kind: u16, flags: u16, family: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.extend_from_slice(family);
    for (kind, value) in attributes {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(flags | FLAG_REQUEST).to_ne_bytes());
    bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_back() {
        let bytes = request(26, FLAG_DUMP, &[2, 0, 0, 0], &[(1, b"abc"), (5, &[1, 2, 3, 4])]);
        assert_eq!(bytes.len() % 4, 0);
        let message = messages(&bytes).next().expect("one").expect("whole");
        assert_eq!((message.kind, message.flags), (26, FLAG_DUMP | FLAG_REQUEST));
        let found: Vec<_> = attributes(&message.payload[4..]).map(|a| a.expect("whole")).collect();
        assert_eq!(found, [(1, &b"abc"[..]), (5, &[1, 2, 3, 4][..])]);
        assert_eq!(attribute(&message.payload[4..], 5), Some(&[1, 2, 3, 4][..]));
        assert_eq!(messages(&bytes).count(), 1);
    }

    #[test]
    fn lengths_that_do_not_fit_end_the_iteration_once() {
        assert_eq!(attributes(&[3, 0, 1, 0]).collect::<Vec<_>>(), [Err(Malformed)]);
        assert_eq!(attributes(&[9, 0, 1, 0, 7, 7]).collect::<Vec<_>>(), [Err(Malformed)]);
        assert_eq!(attributes(&[1]).collect::<Vec<_>>(), [Err(Malformed)]);
        let mut short = request(26, 0, &[], &[]);
        short[0] = 15;
        assert_eq!(messages(&short).collect::<Vec<_>>(), [Err(Malformed)]);
        assert_eq!(messages(&short[..7]).collect::<Vec<_>>(), [Err(Malformed)]);
    }
}
