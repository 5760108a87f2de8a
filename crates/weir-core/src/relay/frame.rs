//! DERP frames: one byte of type, four of length, a payload.
//!
//! Promises: [`Frame::parse`] never panics and reads nothing outside its payload; a frame of a type nobody knows
//! is [`Frame::Unknown`], to be skipped; [`forward_in_place`] turns a packet as a client sends it into the packet
//! its receiver gets, without moving a byte of its data. Refuses: payloads shorter or longer than their type allows,
//! before they are read ([`admit`]).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Type and length.
pub const HEADER: usize = 5;
pub const KEY: usize = 32;
/// Data of one packet.
pub const PACKET_MAX: usize = 64 << 10;
/// What a client says of itself.
pub const INFO_MAX: usize = 256 << 10;
/// A frame that a client has no use for may be this long, as with Tailscale's own; a server skips it at any length.
pub const FRAME_MAX: usize = 1 << 20;
/// Begins the payload of the server's first frame.
pub const MAGIC: [u8; 8] = [0x44, 0x45, 0x52, 0x50, 0xf0, 0x9f, 0x94, 0x91];
/// The version of the protocol, in `ServerInfo`, `Derp-Version` and the meta certificate's serial number.
pub const VERSION: u32 = 2;
/// A ping has at least this much, which its pong repeats, and at most [`PING_MAX`].
pub const PING_MIN: usize = 8;
pub const PING_MAX: usize = 1000;

/// A peer's public key: its address in this network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; KEY]);

impl Key {
    pub fn from_slice(bytes: &[u8]) -> Option<Key> {
        bytes.try_into().ok().map(Key)
    }
}

/// Writes a key as the field writes node keys.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nodekey:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no node key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAKey {
    pub got: String,
}

impl fmt::Display for NotAKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no node key; expected `nodekey:` and 64 hex digits", self.got)
    }
}

impl std::error::Error for NotAKey {}

/// Reads 64 hex digits, with or without `nodekey:`.
impl FromStr for Key {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Key, NotAKey> {
        let hex = text.strip_prefix("nodekey:").unwrap_or(text);
        let mut key = [0; KEY];
        if hex.len() != 2 * KEY || !hex.is_ascii() {
            return Err(NotAKey { got: text.into() });
        }
        for (byte, pair) in key.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(NotAKey { got: text.into() });
            };
            *byte = (high << 4 | low) as u8;
        }
        Ok(Key(key))
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $code),* }

        impl Kind {
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];

            pub fn from_code(code: u8) -> Option<Kind> {
                match code {
                    $($code => Some(Kind::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Server, first: magic and key.
    ServerKey = 0x01,
    /// Client: its key and a box of JSON.
    ClientInfo = 0x02,
    /// Server: a box of JSON.
    ServerInfo = 0x03,
    /// Client: destination and data.
    SendPacket = 0x04,
    /// Server: source and data.
    RecvPacket = 0x05,
    KeepAlive = 0x06,
    /// Client: whether this is its home.
    NotePreferred = 0x07,
    /// Server: a peer is not, or no longer, here.
    PeerGone = 0x08,
    /// Server, to watchers: a peer is here.
    PeerPresent = 0x09,
    /// Mesh: source, destination, data.
    ForwardPacket = 0x0a,
    /// Mesh: tell me who is here.
    WatchConns = 0x10,
    /// Mesh: let that client go.
    ClosePeer = 0x11,
    Ping = 0x12,
    Pong = 0x13,
    /// Server: what is wrong with the connection; empty when nothing is any more.
    Health = 0x14,
    /// Server: come back later.
    Restarting = 0x15,
}

/// Why a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Gone {
    Disconnected = 0,
    /// Asked for, and not connected to this server or its mesh.
    NotHere = 1,
}

/// What kind of connection a peer has, in [`Frame::PeerPresent`].
pub mod present {
    pub const REGULAR: u8 = 1;
    pub const MESH: u8 = 2;
    pub const PROBER: u8 = 4;
    pub const NOT_IDEAL: u8 = 8;
}

/// A frame's payload, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    ServerKey(Key),
    /// Key, nonce, box.
    ClientInfo(Key, [u8; 24], &'a [u8]),
    /// Nonce, box.
    ServerInfo([u8; 24], &'a [u8]),
    SendPacket(Key, &'a [u8]),
    RecvPacket(Key, &'a [u8]),
    KeepAlive,
    NotePreferred(bool),
    PeerGone(Key, Gone),
    /// Key, and where it connects from and as what: newer servers say it.
    PeerPresent(Key, Option<Presence>),
    ForwardPacket(Key, Key, &'a [u8]),
    WatchConns,
    ClosePeer(Key),
    Ping(&'a [u8]),
    Pong(&'a [u8]),
    Health(&'a [u8]),
    /// Milliseconds: reconnect in, try for.
    Restarting(u32, u32),
    /// A frame of a type that nobody knows.
    Unknown(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    pub address: IpAddr,
    pub port: u16,
    /// [`present`].
    pub flags: u8,
}

/// What a payload cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// Shorter than its type needs.
    Short(Kind, usize),
    /// Longer than its type allows.
    Long(Kind, usize),
    /// Longer than any frame that is passed over.
    Huge(u8, usize),
    /// The first frame of a server without its magic.
    Magic,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short(kind, length) => {
                write!(f, "{kind:?} of {length} bytes; expected at least {}", least(*kind))
            }
            Malformed::Long(kind, length) => {
                write!(f, "{kind:?} of {length} bytes; expected at most {}", limit(*kind as u8))
            }
            Malformed::Huge(code, length) => {
                write!(f, "a frame of type {code:#04x} and {length} bytes; expected at most {FRAME_MAX}")
            }
            Malformed::Magic => {
                f.write_str("the server's first frame lacks the DERP magic; this is no DERP server")
            }
        }
    }
}

impl std::error::Error for Malformed {}

/// The shortest payload of a type.
pub const fn least(kind: Kind) -> usize {
    match kind {
        Kind::ServerKey => MAGIC.len() + KEY,
        Kind::ClientInfo => KEY + 24 + 16,
        Kind::ServerInfo => 24 + 16,
        Kind::SendPacket | Kind::RecvPacket | Kind::PeerPresent | Kind::ClosePeer => KEY,
        Kind::PeerGone => KEY,
        Kind::ForwardPacket => 2 * KEY,
        Kind::NotePreferred => 1,
        Kind::Restarting => 8,
        Kind::Ping | Kind::Pong => PING_MIN,
        Kind::KeepAlive | Kind::WatchConns | Kind::Health => 0,
    }
}

/// The longest payload of a type, known or not.
pub const fn limit(code: u8) -> usize {
    match code {
        0x02 | 0x03 => INFO_MAX,
        0x04 | 0x05 => KEY + PACKET_MAX,
        0x07 => 1,
        0x0a => 2 * KEY + PACKET_MAX,
        0x10 => 0,
        0x11 => KEY,
        0x12 | 0x13 => PING_MAX,
        _ => FRAME_MAX,
    }
}

/// Type and payload length, when `bytes` has them.
pub fn head(bytes: &[u8]) -> Option<(u8, usize)> {
    let [code, a, b, c, d, ..] = bytes else { return None };
    Some((*code, u32::from_be_bytes([*a, *b, *c, *d]) as usize))
}

/// Whether a frame may be that long: asked before its payload is waited for.
pub fn admit(code: u8, length: usize) -> Result<(), Malformed> {
    match Kind::from_code(code) {
        Some(kind) if length < least(kind) => Err(Malformed::Short(kind, length)),
        Some(kind) if length > limit(code) => Err(Malformed::Long(kind, length)),
        _ => admit_unused(code, length),
    }
}

/// Whether a frame that is only passed over may be that long, whatever its type.
pub fn admit_unused(code: u8, length: usize) -> Result<(), Malformed> {
    if length > FRAME_MAX { Err(Malformed::Huge(code, length)) } else { Ok(()) }
}

fn key(payload: &[u8]) -> Option<(Key, &[u8])> {
    let (key, rest) = payload.split_first_chunk::<KEY>()?;
    Some((Key(*key), rest))
}

impl<'a> Frame<'a> {
    /// Takes a payload apart.
    pub fn parse(code: u8, payload: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        admit(code, payload.len())?;
        let Some(kind) = Kind::from_code(code) else { return Ok(Frame::Unknown(code)) };
        Frame::of_kind(kind, payload).ok_or(match kind {
            Kind::ServerKey => Malformed::Magic,
            _ => Malformed::Short(kind, payload.len()),
        })
    }

    /// The frame of a payload that has the length of its kind.
    fn of_kind(kind: Kind, payload: &'a [u8]) -> Option<Frame<'a>> {
        Some(match kind {
            Kind::ServerKey => Frame::ServerKey(key(payload.strip_prefix(&MAGIC)?)?.0),
            Kind::ClientInfo => {
                let (key, rest) = key(payload)?;
                let (nonce, sealed) = rest.split_first_chunk::<24>()?;
                Frame::ClientInfo(key, *nonce, sealed)
            }
            Kind::ServerInfo => {
                let (nonce, sealed) = payload.split_first_chunk::<24>()?;
                Frame::ServerInfo(*nonce, sealed)
            }
            Kind::SendPacket => key(payload).map(|(to, data)| Frame::SendPacket(to, data))?,
            Kind::RecvPacket => key(payload).map(|(from, data)| Frame::RecvPacket(from, data))?,
            Kind::KeepAlive => Frame::KeepAlive,
            Kind::NotePreferred => Frame::NotePreferred(*payload.first()? != 0),
            Kind::PeerGone => {
                let (key, rest) = key(payload)?;
                let why = if rest.first() == Some(&1) { Gone::NotHere } else { Gone::Disconnected };
                Frame::PeerGone(key, why)
            }
            Kind::PeerPresent => key(payload).map(|(key, rest)| Frame::PeerPresent(key, presence(rest)))?,
            Kind::ForwardPacket => {
                let (from, rest) = key(payload)?;
                let (to, data) = key(rest)?;
                Frame::ForwardPacket(from, to, data)
            }
            Kind::WatchConns => Frame::WatchConns,
            Kind::ClosePeer => Frame::ClosePeer(key(payload)?.0),
            Kind::Ping => Frame::Ping(payload),
            Kind::Pong => Frame::Pong(payload),
            Kind::Health => Frame::Health(payload),
            Kind::Restarting => {
                let (a, rest) = payload.split_first_chunk::<4>()?;
                let (b, _) = rest.split_first_chunk::<4>()?;
                Frame::Restarting(u32::from_be_bytes(*a), u32::from_be_bytes(*b))
            }
        })
    }

    /// Appends the frame, header and all, to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[self.code(), 0, 0, 0, 0]);
        match self {
            Frame::ServerKey(key) => {
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&key.0);
            }
            Frame::ClientInfo(key, nonce, sealed) => {
                out.extend_from_slice(&key.0);
                out.extend_from_slice(nonce);
                out.extend_from_slice(sealed);
            }
            Frame::ServerInfo(nonce, sealed) => {
                out.extend_from_slice(nonce);
                out.extend_from_slice(sealed);
            }
            Frame::SendPacket(key, data) | Frame::RecvPacket(key, data) => {
                out.extend_from_slice(&key.0);
                out.extend_from_slice(data);
            }
            Frame::KeepAlive | Frame::WatchConns | Frame::Unknown(_) => {}
            Frame::NotePreferred(home) => out.push(u8::from(*home)),
            Frame::PeerGone(key, why) => {
                out.extend_from_slice(&key.0);
                out.push(*why as u8);
            }
            Frame::PeerPresent(key, at) => {
                out.extend_from_slice(&key.0);
                at.iter().for_each(|at| at.write(out));
            }
            Frame::ForwardPacket(from, to, data) => {
                out.extend_from_slice(&from.0);
                out.extend_from_slice(&to.0);
                out.extend_from_slice(data);
            }
            Frame::ClosePeer(key) => out.extend_from_slice(&key.0),
            Frame::Ping(data) | Frame::Pong(data) | Frame::Health(data) => out.extend_from_slice(data),
            Frame::Restarting(reconnect, attempt) => {
                out.extend_from_slice(&reconnect.to_be_bytes());
                out.extend_from_slice(&attempt.to_be_bytes());
            }
        }
        let length = (out.len() - start - HEADER) as u32;
        out[start + 1..start + HEADER].copy_from_slice(&length.to_be_bytes());
    }

    pub fn code(&self) -> u8 {
        let kind = match self {
            Frame::ServerKey(..) => Kind::ServerKey,
            Frame::ClientInfo(..) => Kind::ClientInfo,
            Frame::ServerInfo(..) => Kind::ServerInfo,
            Frame::SendPacket(..) => Kind::SendPacket,
            Frame::RecvPacket(..) => Kind::RecvPacket,
            Frame::KeepAlive => Kind::KeepAlive,
            Frame::NotePreferred(..) => Kind::NotePreferred,
            Frame::PeerGone(..) => Kind::PeerGone,
            Frame::PeerPresent(..) => Kind::PeerPresent,
            Frame::ForwardPacket(..) => Kind::ForwardPacket,
            Frame::WatchConns => Kind::WatchConns,
            Frame::ClosePeer(..) => Kind::ClosePeer,
            Frame::Ping(..) => Kind::Ping,
            Frame::Pong(..) => Kind::Pong,
            Frame::Health(..) => Kind::Health,
            Frame::Restarting(..) => Kind::Restarting,
            Frame::Unknown(code) => return *code,
        };
        kind as u8
    }
}

impl Presence {
    fn write(&self, out: &mut Vec<u8>) {
        let address = match self.address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        out.extend_from_slice(&address.octets());
        out.extend_from_slice(&self.port.to_be_bytes());
        out.push(self.flags);
    }
}

fn presence(rest: &[u8]) -> Option<Presence> {
    let (address, rest) = rest.split_first_chunk::<16>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let address = Ipv6Addr::from(*address).to_canonical();
    Some(Presence { address, port: u16::from_be_bytes(*port), flags: rest.first().copied().unwrap_or(0) })
}

/// Makes of a whole `SendPacket` frame, header and all, the `RecvPacket` frame its receiver gets from `source`.
///
/// Both have one key before their data, so only the type and the key change.
pub fn forward_in_place(frame: &mut [u8], source: &Key) {
    debug_assert!(frame.len() >= HEADER + KEY && frame[0] == Kind::SendPacket as u8);
    frame[0] = Kind::RecvPacket as u8;
    frame[HEADER..HEADER + KEY].copy_from_slice(&source.0);
}

/// Makes of a whole `ForwardPacket` frame the `RecvPacket` frame its receiver gets, which begins [`KEY`] bytes later.
///
/// ```text
/// │head│source│destination│data…      before
/// │······│head│source     │data…      after
/// ```
pub fn deliver_in_place(frame: &mut [u8]) {
    debug_assert!(frame.len() >= HEADER + 2 * KEY && frame[0] == Kind::ForwardPacket as u8);
    frame.copy_within(HEADER..HEADER + KEY, HEADER + KEY);
    let length = (frame.len() - HEADER - KEY) as u32;
    frame[KEY] = Kind::RecvPacket as u8;
    frame[KEY + 1..KEY + HEADER].copy_from_slice(&length.to_be_bytes());
}

/// Whether a packet's data is path discovery: small, rare, and what a connection is set up with.
pub fn is_disco(data: &[u8]) -> bool {
    const DISCO: [u8; 6] = [0x54, 0x53, 0xf0, 0x9f, 0x92, 0xac];
    data.len() >= 62 && data.starts_with(&DISCO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(frame: Frame<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        bytes
    }

    #[test]
    fn frames_have_the_bytes_that_the_field_sends() {
        // Written out by hand from the protocol; the conformance suite reads the same from derper.
        let key = Key(std::array::from_fn(|i| i as u8));
        let mut expected = vec![0x01, 0, 0, 0, 40, 0x44, 0x45, 0x52, 0x50, 0xf0, 0x9f, 0x94, 0x91];
        expected.extend(0..32);
        assert_eq!(written(Frame::ServerKey(key)), expected);

        let at = Presence { address: [127, 0, 0, 1].into(), port: 4242, flags: present::REGULAR };
        let mut expected = vec![0x09, 0, 0, 0, 51];
        expected.extend(0..32);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1, 0x10, 0x92, 1]);
        assert_eq!(written(Frame::PeerPresent(key, Some(at))), expected);

        let mut expected = vec![0x08, 0, 0, 0, 33];
        expected.extend(0..32);
        expected.push(1);
        assert_eq!(written(Frame::PeerGone(key, Gone::NotHere)), expected);
        assert_eq!(written(Frame::KeepAlive), [0x06, 0, 0, 0, 0]);
        assert_eq!(written(Frame::Restarting(2, 0x0102_0304)), [0x15, 0, 0, 0, 8, 0, 0, 0, 2, 1, 2, 3, 4]);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let (a, b) = (Key([1; KEY]), Key([2; KEY]));
        let v6 =
            Presence { address: [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(), port: 1, flags: present::MESH };
        let frames = [
            Frame::ServerKey(a),
            Frame::ClientInfo(a, [3; 24], &[4; 20]),
            Frame::ServerInfo([3; 24], &[4; 20]),
            Frame::SendPacket(a, b"data"),
            Frame::RecvPacket(a, b""),
            Frame::KeepAlive,
            Frame::NotePreferred(true),
            Frame::NotePreferred(false),
            Frame::PeerGone(a, Gone::Disconnected),
            Frame::PeerGone(a, Gone::NotHere),
            Frame::PeerPresent(a, None),
            Frame::PeerPresent(a, Some(v6)),
            Frame::ForwardPacket(a, b, b"data"),
            Frame::WatchConns,
            Frame::ClosePeer(a),
            Frame::Ping(b"12345678"),
            Frame::Pong(b"12345678"),
            Frame::Health(b""),
            Frame::Restarting(10, 2000),
        ];
        for frame in frames {
            let bytes = written(frame);
            let (code, length) = head(&bytes).expect("a header was written");
            assert_eq!(length, bytes.len() - HEADER);
            assert_eq!(Frame::parse(code, &bytes[HEADER..]), Ok(frame));
        }
        assert_eq!(Frame::parse(0x7f, b"anything"), Ok(Frame::Unknown(0x7f)));
    }

    #[test]
    fn a_frame_is_as_long_as_its_type_allows_and_no_longer() {
        for &kind in Kind::ALL {
            let code = kind as u8;
            assert_eq!(admit(code, least(kind)), Ok(()), "{kind:?}");
            assert_eq!(admit(code, limit(code)), Ok(()), "{kind:?}");
            assert!(admit(code, limit(code) + 1).is_err(), "{kind:?}");
            if least(kind) > 0 {
                assert_eq!(admit(code, least(kind) - 1), Err(Malformed::Short(kind, least(kind) - 1)));
            }
        }
        assert_eq!(limit(Kind::SendPacket as u8), 32 + 65536);
        assert_eq!(admit(0x7f, FRAME_MAX + 1), Err(Malformed::Huge(0x7f, FRAME_MAX + 1)));
    }

    #[test]
    fn a_server_without_the_magic_is_no_derp_server() {
        let mut bytes = written(Frame::ServerKey(Key([1; KEY])));
        bytes[HEADER] ^= 1;
        assert_eq!(Frame::parse(Kind::ServerKey as u8, &bytes[HEADER..]), Err(Malformed::Magic));
    }

    #[test]
    fn a_packet_is_forwarded_without_touching_its_data() {
        let (from, to) = (Key([1; KEY]), Key([2; KEY]));
        let mut bytes = written(Frame::SendPacket(to, b"data"));
        forward_in_place(&mut bytes, &from);
        assert_eq!(bytes, written(Frame::RecvPacket(from, b"data")));
    }

    #[test]
    fn path_discovery_is_told_by_its_magic_and_length() {
        let mut data = *b"TS\xf0\x9f\x92\xac________________________________________________________";
        assert!(is_disco(&data));
        assert!(!is_disco(&data[..61]));
        data[0] = b't';
        assert!(!is_disco(&data));
    }

    #[test]
    fn node_keys_are_read_as_they_are_written() {
        let key = Key(std::array::from_fn(|i| (i * 8) as u8));
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(key.to_string()["nodekey:".len()..].parse(), Ok(key));
        for wrong in ["", "nodekey:", "nodekey:00", &format!("{key}0"), &format!("x{key}"), &"ä".repeat(32)]
        {
            assert!(wrong.parse::<Key>().is_err(), "{wrong}");
        }
    }
}
