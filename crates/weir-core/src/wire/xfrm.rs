//! Messages of the kernel's IPsec about SAs and policies (`include/uapi/linux/xfrm.h`), as a key daemon makes them.
//!
//! ```text
//! NEWSA, UPDSA          usersa_info:224 │ algorithms with keys, encap, replay_esn, if_id, …
//! DELSA                 usersa_id:24    │ SA (usersa_info), …
//! EXPIRE                usersa_info:224 │ hard:1, padded to 232
//! NEWPOLICY, UPDPOLICY  userpolicy_info:168 │ templates:64 each, if_id, …
//! DELPOLICY             userpolicy_id:64 │ POLICY (userpolicy_info), …
//! GETDEFAULT            userpolicy_default: in:1 fwd:1 out:1
//! ```
//!
//! Promises: [`parse`] reads no byte past a message and tells what is not understood from what is malformed; keys are
//! wiped when what holds them is dropped, and print as their lengths. Refuses: attributes no decision needs are skipped;
//! those that change what an SA or a policy does and that are not understood are noted in `more`.

mod policy;
mod request;

use std::fmt;
use std::net::IpAddr;

use zeroize::Zeroizing;

pub use request::{
    acquire, block, counted, dump, expire, last_number, numbered, query_defaults, query_sa, unblock,
};

use super::netlink::{Malformed, Message, attributes, u16_at, u32_at};
use super::rtnetlink::{AF_INET, AF_INET6};
use crate::route::Prefix;

pub const NEW_SA: u16 = 0x10;
pub const DELETE_SA: u16 = 0x11;
pub const GET_SA: u16 = 0x12;
pub const NEW_POLICY: u16 = 0x13;
pub const DELETE_POLICY: u16 = 0x14;
pub const GET_POLICY: u16 = 0x15;
pub const ACQUIRE: u16 = 0x17;
pub const EXPIRE: u16 = 0x18;
pub const UPDATE_POLICY: u16 = 0x19;
pub const UPDATE_SA: u16 = 0x1a;
pub const POLICY_EXPIRE: u16 = 0x1b;
pub const FLUSH_SA: u16 = 0x1c;
pub const FLUSH_POLICY: u16 = 0x1d;
pub const NEW_AE: u16 = 0x1e;
pub const GET_DEFAULT: u16 = 0x28;

/// `IPPROTO_ESP`.
pub const ESP: u8 = 50;
/// `IPSEC_PROTO_ANY`, and what a flush of everything names.
const ANY_PROTOCOL: u8 = 0;

/// Lifetimes without a limit (`XFRM_INF`).
pub const UNLIMITED: u64 = u64::MAX;

/// Flags of an SA (`XFRM_STATE_*`).
pub const FLAG_NO_ECN: u8 = 1;
pub const FLAG_NO_PMTU_DISCOVERY: u8 = 4;
pub const FLAG_ESN: u8 = 128;
/// `XFRM_SA_XFLAG_DONT_ENCAP_DSCP`.
pub const EXTRA_DONT_ENCAP_DSCP: u32 = 1;
/// `XFRM_SA_XFLAG_OSEQ_MAY_WRAP`: numbers begin anew behind the last one.
pub const EXTRA_NUMBERS_MAY_WRAP: u32 = 2;

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// An SA was added or changed.
    Sa(Box<Sa>),
    SaGone(SaKey),
    /// A limit of time, bytes or packets was reached; where it is hard the SA carries nothing more.
    SaExpired {
        key: SaKey,
        hard: bool,
    },
    /// Every SA of a protocol is gone; 0 stands for all of them.
    SasFlushed(u8),
    Policy(Box<Policy>),
    PolicyGone(Box<Policy>),
    /// Every policy is gone.
    PoliciesFlushed,
    Defaults(Defaults),
    /// A message of another type or family.
    Other,
}

/// What the kernel finds an SA by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaKey {
    pub destination: IpAddr,
    pub spi: u32,
    pub protocol: u8,
    /// `XFRMA_MARK`: value and mask.
    pub mark: (u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Transport,
    Tunnel,
    /// Route optimization, BEET, IP-TFS, or a number nobody knows.
    Other(u8),
}

impl Mode {
    fn of(number: u8) -> Mode {
        match number {
            0 => Mode::Transport,
            1 => Mode::Tunnel,
            other => Mode::Other(other),
        }
    }
}

/// Key material: printed as its length, wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether the key is all zero, as the kernel shows it to those it does not trust (lockdown, SELinux).
    pub fn is_hidden(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|&b| b == 0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// An algorithm by the kernel's name, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Algorithm {
    pub name: String,
    pub key: Key,
    /// Bits of the integrity check value; 0 where the algorithm has none.
    pub icv_bits: u32,
}

/// Limits of an SA: `soft` and `hard` of each; [`UNLIMITED`] is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub soft_bytes: u64,
    pub hard_bytes: u64,
    pub soft_packets: u64,
    pub hard_packets: u64,
}

/// What an SA has carried, as the kernel counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    pub bytes: u64,
    pub packets: u64,
    /// Seconds since 1970.
    pub added: u64,
    pub used: u64,
}

/// Sequence numbers (`struct xfrm_replay_state_esn`); the bitmap is told by its length alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Words of the bitmap.
    pub words: u32,
    pub sent: u64,
    pub received: u64,
    pub window: u32,
}

/// Which way an SA is said to go (`XFRMA_SA_DIR`, since Linux 6.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaDirection {
    In,
    Out,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sa {
    pub key: SaKey,
    pub source: IpAddr,
    pub request: u32,
    pub mode: Mode,
    pub flags: u8,
    pub extra_flags: u32,
    /// The window of the old attribute; [`Replay::window`] goes before it.
    pub window: u8,
    pub limits: Limits,
    pub lifetime: Lifetime,
    pub aead: Option<Algorithm>,
    pub encryption: Option<Algorithm>,
    pub integrity: Option<Algorithm>,
    pub compressed: bool,
    /// `struct xfrm_encap_tmpl`: type, source port, destination port.
    pub encapsulation: Option<(u16, u16, u16)>,
    pub replay: Option<Replay>,
    pub if_id: u32,
    pub direction: Option<SaDirection>,
    /// A device does the work (`XFRMA_OFFLOAD_DEV`).
    pub offloaded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyDirection {
    In,
    Out,
    Forward,
}

/// What packets a policy is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    pub source: Prefix,
    pub destination: Prefix,
    /// 0 is any.
    pub protocol: u8,
    /// Port and mask.
    pub source_port: (u16, u16),
    pub destination_port: (u16, u16),
    /// Only of this interface; 0 is any.
    pub link: u32,
    pub user: u32,
}

/// What SA a policy asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub spi: u32,
    pub protocol: u8,
    pub request: u32,
    pub mode: Mode,
    pub optional: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub selector: Selector,
    pub direction: PolicyDirection,
    /// The least number decides.
    pub priority: u32,
    pub index: u32,
    pub allowed: bool,
    pub templates: Vec<Template>,
    pub if_id: u32,
    pub mark: (u32, u32),
    /// The message as it came, behind the netlink header: an acquire of it is made of parts of it.
    pub raw: Vec<u8>,
    /// Whether the policy is a subpolicy or has a security context.
    pub more: bool,
}

/// What becomes of packets that no policy is about (since Linux 5.15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    pub blocks_in: bool,
    pub blocks_forward: bool,
    pub blocks_out: bool,
}

impl Defaults {
    /// `XFRM_USERPOLICY_BLOCK`.
    const BLOCK: u8 = 1;

    fn read(payload: &[u8]) -> Result<Defaults, Malformed> {
        let bytes: &[u8; 3] = payload.first_chunk().ok_or(Malformed)?;
        let [blocks_in, blocks_forward, blocks_out] = bytes.map(|byte| byte == Defaults::BLOCK);
        Ok(Defaults { blocks_in, blocks_forward, blocks_out })
    }
}

/// Reads a message.
pub fn parse(message: &Message<'_>) -> Result<News, Malformed> {
    let payload = message.payload;
    Ok(match message.kind {
        NEW_SA | UPDATE_SA => sa(payload)?.map_or(News::Other, |sa| News::Sa(Box::new(sa))),
        DELETE_SA => key_of(id(payload)?, payload.get(USERSA_ID..).unwrap_or_default())?
            .map_or(News::Other, News::SaGone),
        EXPIRE => {
            let hard = *payload.get(USERSA_INFO).ok_or(Malformed)? != 0;
            match key_of(usersa_id(payload)?, behind_expire(payload))? {
                Some(key) => News::SaExpired { key, hard },
                None => News::Other,
            }
        }
        FLUSH_SA => News::SasFlushed(*payload.first().ok_or(Malformed)?),
        FLUSH_POLICY => News::PoliciesFlushed,
        NEW_POLICY | UPDATE_POLICY => {
            let rest = payload.get(USERPOLICY_INFO..).ok_or(Malformed)?;
            policy::policy(payload, rest, payload)?.map_or(News::Other, |p| News::Policy(Box::new(p)))
        }
        DELETE_POLICY => policy::deleted(payload)?,
        POLICY_EXPIRE => {
            let hard = *payload.get(USERPOLICY_INFO).ok_or(Malformed)? != 0;
            let rest = payload.get(POLICY_EXPIRE_LEN..).unwrap_or_default();
            let policy = if hard { policy::policy(payload, rest, payload)? } else { None };
            policy.map_or(News::Other, |p| News::PolicyGone(Box::new(p)))
        }
        GET_DEFAULT => News::Defaults(Defaults::read(payload)?),
        _ => News::Other,
    })
}

const SELECTOR: usize = 56;
const USERSA_ID: usize = 24;
const USERSA_INFO: usize = 224;
const EXPIRE_LEN: usize = 232;
const USERPOLICY_INFO: usize = 168;
const USERPOLICY_ID: usize = 64;
const POLICY_EXPIRE_LEN: usize = 176;
const TEMPLATE: usize = 64;

/// `XFRMA_*`.
mod attribute {
    pub const AUTH: u16 = 1;
    pub const CRYPT: u16 = 2;
    pub const COMPRESSION: u16 = 3;
    pub const ENCAP: u16 = 4;
    pub const TEMPLATES: u16 = 5;
    pub const POLICY: u16 = 7;
    pub const SECURITY: u16 = 8;
    pub const LIFETIME: u16 = 9;
    pub const POLICY_TYPE: u16 = 16;
    pub const AEAD: u16 = 18;
    pub const AUTH_TRUNC: u16 = 20;
    pub const MARK: u16 = 21;
    pub const REPLAY: u16 = 10;
    pub const REPLAY_ESN: u16 = 23;
    pub const EXTRA_FLAGS: u16 = 24;
    pub const OFFLOAD: u16 = 28;
    pub const IF_ID: u16 = 31;
    pub const DIRECTION: u16 = 33;
}

/// Attributes behind an EXPIRE, of which the kernel tells none but a mark: they begin behind its padding.
fn behind_expire(payload: &[u8]) -> &[u8] {
    payload.get(EXPIRE_LEN..).unwrap_or_default()
}

/// Family, address and protocol of `xfrm_usersa_id`: destination, SPI, family, protocol.
fn id(payload: &[u8]) -> Result<(u16, &[u8], u32, u8), Malformed> {
    let id = payload.get(..USERSA_ID).ok_or(Malformed)?;
    let family = u16_at(id, 20).ok_or(Malformed)?;
    Ok((family, &id[..16], be32(id, 16)?, id[22]))
}

/// The same of `xfrm_usersa_info`, where the family stands elsewhere.
fn usersa_id(payload: &[u8]) -> Result<(u16, &[u8], u32, u8), Malformed> {
    let info = payload.get(..USERSA_INFO).ok_or(Malformed)?;
    let family = u16_at(info, 212).ok_or(Malformed)?;
    Ok((family, &info[SELECTOR..SELECTOR + 16], be32(info, 72)?, info[76]))
}

type Id<'a> = (u16, &'a [u8], u32, u8);

/// None: of a family that is no IP.
fn key_of((family, destination, spi, protocol): Id<'_>, rest: &[u8]) -> Result<Option<SaKey>, Malformed> {
    let Some(destination) = address(family, destination)? else { return Ok(None) };
    let mut mark = (0, 0);
    for attribute in attributes(rest) {
        if let (attribute::MARK, value) = attribute? {
            mark = pair(value)?;
        }
    }
    Ok(Some(SaKey { destination, spi, protocol, mark }))
}

fn sa(payload: &[u8]) -> Result<Option<Sa>, Malformed> {
    let rest = payload.get(USERSA_INFO..).ok_or(Malformed)?;
    let Some(key) = key_of(usersa_id(payload)?, rest)? else { return Ok(None) };
    let family = u16_at(payload, 212).ok_or(Malformed)?;
    let Some(source) = address(family, &payload[80..96])? else { return Ok(None) };
    let mut sa = Sa {
        key,
        source,
        request: u32_at(payload, 208).ok_or(Malformed)?,
        mode: Mode::of(payload[214]),
        window: payload[215],
        flags: payload[216],
        extra_flags: 0,
        limits: Limits {
            soft_bytes: u64_at(payload, 96)?,
            hard_bytes: u64_at(payload, 104)?,
            soft_packets: u64_at(payload, 112)?,
            hard_packets: u64_at(payload, 120)?,
        },
        lifetime: Lifetime {
            bytes: u64_at(payload, 160)?,
            packets: u64_at(payload, 168)?,
            added: u64_at(payload, 176)?,
            used: u64_at(payload, 184)?,
        },
        aead: None,
        encryption: None,
        integrity: None,
        compressed: false,
        encapsulation: None,
        replay: None,
        if_id: 0,
        direction: None,
        offloaded: false,
    };
    for attribute in attributes(rest) {
        let (kind, value) = attribute?;
        sa_attribute(&mut sa, kind, value)?;
    }
    Ok(Some(sa))
}

fn sa_attribute(sa: &mut Sa, kind: u16, value: &[u8]) -> Result<(), Malformed> {
    match kind {
        attribute::AEAD => sa.aead = Some(algorithm(value, true)?),
        attribute::CRYPT => sa.encryption = Some(algorithm(value, false)?),
        attribute::AUTH_TRUNC => sa.integrity = Some(algorithm(value, true)?),
        // The kernel tells both; this one lacks the length of the check value.
        attribute::AUTH if sa.integrity.is_none() => sa.integrity = Some(algorithm(value, false)?),
        attribute::COMPRESSION => sa.compressed = true,
        attribute::ENCAP => {
            let port = |at| value.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or(Malformed);
            sa.encapsulation = Some((u16_at(value, 0).ok_or(Malformed)?, port(2)?, port(4)?));
        }
        attribute::REPLAY_ESN => sa.replay = Some(replay(value)?),
        // `struct xfrm_replay_state`: sent, received, bitmap.
        attribute::REPLAY if sa.replay.is_none() => {
            let (sent, received) = pair(value)?;
            let window = u32::from(sa.window);
            sa.replay = Some(Replay { words: 0, sent: sent.into(), received: received.into(), window });
        }
        attribute::EXTRA_FLAGS => sa.extra_flags = number(value)?,
        attribute::IF_ID => sa.if_id = number(value)?,
        attribute::OFFLOAD => sa.offloaded = true,
        attribute::DIRECTION => {
            sa.direction = match value.first() {
                Some(1) => Some(SaDirection::In),
                Some(2) => Some(SaDirection::Out),
                _ => return Err(Malformed),
            }
        }
        _ => {}
    }
    Ok(())
}

/// `xfrm_algo` (name, bits, key) or, `with_icv`, `xfrm_algo_aead` and `xfrm_algo_auth` (name, bits, bits of the ICV, key).
fn algorithm(value: &[u8], with_icv: bool) -> Result<Algorithm, Malformed> {
    const NAME: usize = 64;
    let name = value.get(..NAME).ok_or(Malformed)?;
    let end = name.iter().position(|&b| b == 0).unwrap_or(NAME);
    let bits = u32_at(value, NAME).ok_or(Malformed)?;
    let (icv_bits, at) = match with_icv {
        true => (u32_at(value, NAME + 4).ok_or(Malformed)?, NAME + 8),
        false => (0, NAME + 4),
    };
    let len = usize::try_from(bits.div_ceil(8)).map_err(|_| Malformed)?;
    let key = value.get(at..).and_then(|rest| rest.get(..len)).ok_or(Malformed)?;
    let name = String::from_utf8_lossy(&name[..end]).into_owned();
    Ok(Algorithm { name, key: Key(Zeroizing::new(key.to_vec())), icv_bits })
}

/// Words of a bitmap: the kernel's most (`XFRMA_REPLAY_ESN_MAX`, 4,096 bits).
const WORDS_MAX: u32 = 128;

fn replay(value: &[u8]) -> Result<Replay, Malformed> {
    let word = |n: usize| u32_at(value, n * 4).ok_or(Malformed).map(u64::from);
    let words = u32_at(value, 0).ok_or(Malformed)?;
    if words > WORDS_MAX {
        return Err(Malformed);
    }
    Ok(Replay {
        words,
        sent: word(3)? << 32 | word(1)?,
        received: word(4)? << 32 | word(2)?,
        window: u32_at(value, 20).ok_or(Malformed)?,
    })
}

/// None: of a family that is no IP.
fn address(family: u16, bytes: &[u8]) -> Result<Option<IpAddr>, Malformed> {
    let whole = <[u8; 16]>::try_from(bytes).map_err(|_| Malformed)?;
    Ok(match family {
        f if f == u16::from(AF_INET) => Some(IpAddr::from([whole[0], whole[1], whole[2], whole[3]])),
        f if f == u16::from(AF_INET6) => Some(IpAddr::from(whole)),
        _ => None,
    })
}

fn number(value: &[u8]) -> Result<u32, Malformed> {
    u32_at(value, 0).ok_or(Malformed)
}

fn pair(value: &[u8]) -> Result<(u32, u32), Malformed> {
    Ok((number(value)?, u32_at(value, 4).ok_or(Malformed)?))
}

fn be32(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    let word: Option<[u8; 4]> = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    word.map(u32::from_be_bytes).ok_or(Malformed)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Malformed> {
    let word: Option<[u8; 8]> = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    word.map(u64::from_ne_bytes).ok_or(Malformed)
}

/// Any bytes are read to their end without a panic, and what is read twice is the same; an acquire is as long as it says.
#[cfg(feature = "testing")]
pub fn fuzz_xfrm(data: &[u8]) {
    for message in super::netlink::messages(data) {
        let Ok(message) = message else { return };
        let read = parse(&message);
        assert_eq!(read, parse(&message));
        if let Ok(News::Policy(policy)) = &read
            && let Some(request) = acquire(policy)
        {
            assert_eq!(super::netlink::messages(&request).filter(Result::is_ok).count(), 1);
        }
    }
}

impl News {
    /// Whether everything of a kind is gone with it.
    pub fn flushes_esp(&self) -> bool {
        matches!(self, News::SasFlushed(ESP | ANY_PROTOCOL | 255))
    }
}

#[cfg(test)]
mod tests;
