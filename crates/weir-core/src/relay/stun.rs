//! STUN, as far as Tailscale's clients ask: which address do packets of mine come from? (RFC 5389)
//!
//! ```text
//! 0 type (2) · length (2) · magic cookie 21 12 a4 42 · transaction (12)
//! 20 attributes: type (2) · length (2) · value, padded to 4
//! ```
//!
//! Promises: [`request`] never panics; an answer is shorter than twice the request and goes to who asked, so that
//! nobody is flooded by way of this server. Refuses: everything but binding requests of software `tailnode` that end
//! in a right FINGERPRINT.

use std::net::{IpAddr, SocketAddr};

pub type Transaction = [u8; 12];

const HEADER: usize = 20;
const BINDING_REQUEST: [u8; 2] = [0x00, 0x01];
const BINDING_SUCCESS: [u8; 2] = [0x01, 0x01];
const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const SOFTWARE: u16 = 0x8022;
const FINGERPRINT: u16 = 0x8028;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
/// What Tailscale's clients call themselves.
const TAILNODE: &[u8] = b"tailnode";
/// Attribute with its value, a CRC-32.
const FINGERPRINT_LENGTH: usize = 8;
/// The length of the longest answer: one attribute with an IPv6 address.
pub const RESPONSE_MAX: usize = HEADER + 4 + 4 + 16;

/// Why a datagram is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// No STUN message.
    NotStun,
    /// A STUN message, but no binding request.
    NotRequest,
    /// An attribute that runs past the end.
    Attributes,
    /// The request comes from other software.
    Software,
    /// No FINGERPRINT at the end, or a wrong one.
    Fingerprint,
}

impl Ignored {
    pub const ALL: [Ignored; 5] =
        [Ignored::NotStun, Ignored::NotRequest, Ignored::Attributes, Ignored::Software, Ignored::Fingerprint];

    /// The counter's name.
    pub fn name(self) -> &'static str {
        match self {
            Ignored::NotStun => "not_stun",
            Ignored::NotRequest => "not_request",
            Ignored::Attributes => "attributes",
            Ignored::Software => "software",
            Ignored::Fingerprint => "fingerprint",
        }
    }
}

/// The transaction of a request that is to be answered.
pub fn request(datagram: &[u8]) -> Result<Transaction, Ignored> {
    let (header, attributes) = datagram.split_first_chunk::<HEADER>().ok_or(Ignored::NotStun)?;
    if header[0] & 0xc0 != 0 || header[4..8] != COOKIE {
        return Err(Ignored::NotStun);
    }
    if header[..2] != BINDING_REQUEST {
        return Err(Ignored::NotRequest);
    }
    let (mut tailnode, mut last, mut rest) = (false, None, attributes);
    while !rest.is_empty() {
        let (kind, value, after) = attribute(rest).ok_or(Ignored::Attributes)?;
        tailnode |= kind == SOFTWARE && value == TAILNODE;
        last = Some((kind, value));
        rest = after;
    }
    if !tailnode {
        return Err(Ignored::Software);
    }
    let signed = &datagram[..datagram.len() - FINGERPRINT_LENGTH];
    match last {
        Some((FINGERPRINT, value)) if value == fingerprint(signed).to_be_bytes() => {}
        _ => return Err(Ignored::Fingerprint),
    }
    let mut transaction = [0; 12];
    transaction.copy_from_slice(&header[8..]);
    Ok(transaction)
}

/// Type, value and what follows.
fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (&[a, b, c, d], rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::from(u16::from_be_bytes([c, d]));
    let (padded, after) = rest.split_at_checked(length.next_multiple_of(4))?;
    Some((u16::from_be_bytes([a, b]), &padded[..length], after))
}

/// The answer to who asked from `source`, appended to `out`.
pub fn respond(transaction: &Transaction, source: SocketAddr, out: &mut Vec<u8>) {
    let mut mask = [0; 16];
    mask[..4].copy_from_slice(&COOKIE);
    mask[4..].copy_from_slice(transaction);
    let ip = source.ip().to_canonical();
    let length: u16 = if ip.is_ipv4() { 8 } else { 20 };
    out.extend_from_slice(&BINDING_SUCCESS);
    out.extend_from_slice(&(length + 4).to_be_bytes());
    out.extend_from_slice(&mask);
    out.extend_from_slice(&XOR_MAPPED_ADDRESS.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&[0, if ip.is_ipv4() { 1 } else { 2 }]);
    out.extend_from_slice(&(source.port() ^ 0x2112).to_be_bytes());
    match ip {
        IpAddr::V4(v4) => out.extend(v4.octets().iter().zip(mask).map(|(a, b)| a ^ b)),
        IpAddr::V6(v6) => out.extend(v6.octets().iter().zip(mask).map(|(a, b)| a ^ b)),
    }
}

/// What a client sends, appended to `out`.
pub fn ask(transaction: &Transaction, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&BINDING_REQUEST);
    out.extend_from_slice(&((4 + TAILNODE.len() + FINGERPRINT_LENGTH) as u16).to_be_bytes());
    out.extend_from_slice(&COOKIE);
    out.extend_from_slice(transaction);
    out.extend_from_slice(&SOFTWARE.to_be_bytes());
    out.extend_from_slice(&(TAILNODE.len() as u16).to_be_bytes());
    out.extend_from_slice(TAILNODE);
    let crc = fingerprint(&out[start..]);
    out.extend_from_slice(&FINGERPRINT.to_be_bytes());
    out.extend_from_slice(&4u16.to_be_bytes());
    out.extend_from_slice(&crc.to_be_bytes());
}

/// What an answer to `transaction` says.
pub fn answer(transaction: &Transaction, datagram: &[u8]) -> Option<SocketAddr> {
    let (header, attributes) = datagram.split_first_chunk::<HEADER>()?;
    let rest = attributes.get(..usize::from(u16::from_be_bytes([header[2], header[3]])))?;
    if header[..2] != BINDING_SUCCESS || header[4..8] != COOKIE || header[8..] != transaction[..] {
        return None;
    }
    let (kind, value, _) = attribute(rest)?;
    let (&[_, family, a, b], address) = value.split_first_chunk::<4>()?;
    let unmasked = address.iter().zip(&header[4..]).map(|(a, b)| a ^ b).collect::<Vec<u8>>();
    let ip: IpAddr = match (kind, family) {
        (XOR_MAPPED_ADDRESS, 1) => <[u8; 4]>::try_from(unmasked).ok()?.into(),
        (XOR_MAPPED_ADDRESS, 2) => <[u8; 16]>::try_from(unmasked).ok()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes([a, b]) ^ 0x2112))
}

/// CRC-32 of what stands before, as STUN masks it (RFC 5389 15.5).
fn fingerprint(bytes: &[u8]) -> u32 {
    crc32(bytes) ^ 0x5354_554e
}

/// The CRC of ISO 3309, bit by bit: a request has 40 bytes.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSACTION: Transaction = *b"transaction!";

    fn asked() -> Vec<u8> {
        let mut out = Vec::new();
        ask(&TRANSACTION, &mut out);
        out
    }

    #[test]
    fn checksums_are_those_of_everybody() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_request_has_the_bytes_that_the_field_sends() {
        // The CRC-32 is zlib's.
        let mut expected = vec![0, 1, 0, 20, 0x21, 0x12, 0xa4, 0x42];
        expected.extend(TRANSACTION);
        expected.extend([0x80, 0x22, 0, 8]);
        expected.extend(b"tailnode");
        expected.extend([0x80, 0x28, 0, 4]);
        expected.extend([0xf7, 0xe5, 0xee, 0x09]);
        assert_eq!(asked(), expected);
    }

    #[test]
    fn who_asks_learns_its_address() {
        let transaction = request(&asked()).expect("it is a request");
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:4242".parse().expect("an address");
        for (source, seen) in [
            ("192.0.2.1:4242".parse().expect("an address"), "192.0.2.1:4242"),
            ("[2001:db8::7]:1".parse().expect("an address"), "[2001:db8::7]:1"),
            (mapped, "192.0.2.1:4242"),
        ] {
            let mut out = Vec::new();
            respond(&transaction, source, &mut out);
            assert!(out.len() <= RESPONSE_MAX);
            assert_eq!(answer(&TRANSACTION, &out).map(|seen| seen.to_string()), Some(seen.to_string()));
            assert_eq!(answer(b"another one.", &out), None);
        }
    }

    #[test]
    fn only_requests_of_tailnodes_with_a_fingerprint_last_are_answered() {
        let whole = asked();
        assert_eq!(request(&whole), Ok(TRANSACTION));
        for length in 0..whole.len() {
            assert!(request(&whole[..length]).is_err(), "{length} bytes of {}", whole.len());
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(request(&changed).is_err(), "byte {at} changed");
        }
        let mut longer = whole.clone();
        longer.extend([0x80, 0x22, 0, 0]);
        assert_eq!(request(&longer), Err(Ignored::Fingerprint));
        assert_eq!(request(b"GET / HTTP/1.1\r\nHost: x"), Err(Ignored::NotStun));
    }
}
