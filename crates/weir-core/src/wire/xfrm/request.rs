//! What is said to the kernel about its SAs and policies.

use std::net::IpAddr;

use super::super::netlink::{self, FLAG_ACK, FLAG_CREATE, FLAG_REPLACE};
use super::super::rtnetlink::{AF_INET, AF_INET6};
use super::{
    ACQUIRE, DELETE_POLICY, EXPIRE, EXPIRE_LEN, FLAG_ESN, GET_DEFAULT, GET_SA, Lifetime, NEW_AE, NEW_POLICY,
    Policy, SELECTOR, Sa, SaKey, Selector, TEMPLATE, USERPOLICY_ID, USERPOLICY_INFO, USERSA_ID, USERSA_INFO,
    attribute,
};

/// A dump of every SA ([`GET_SA`]) or policy ([`GET_POLICY`]).
pub fn dump(kind: u16) -> Vec<u8> {
    netlink::request(kind, netlink::FLAG_DUMP, &[], &[])
}

/// Asks what becomes of packets that no policy is about.
pub fn query_defaults() -> Vec<u8> {
    netlink::request(GET_DEFAULT, 0, &[0; 4], &[])
}

fn put_address(into: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(a) => into[..4].copy_from_slice(&a.octets()),
        IpAddr::V6(a) => into[..16].copy_from_slice(&a.octets()),
    }
}

fn family_of(address: IpAddr) -> u16 {
    u16::from(if address.is_ipv4() { AF_INET } else { AF_INET6 })
}

/// `struct xfrm_aevent_id`: the SA's id, its source (not looked at), flags, request.
fn event_id(key: &SaKey) -> [u8; 48] {
    let mut header = [0; 48];
    put_address(&mut header[..16], key.destination);
    header[16..20].copy_from_slice(&key.spi.to_be_bytes());
    header[20..22].copy_from_slice(&family_of(key.destination).to_ne_bytes());
    header[22] = key.protocol;
    header
}

fn event(key: &SaKey, attribute: (u16, &[u8])) -> Vec<u8> {
    let mark = [key.mark.0.to_ne_bytes(), key.mark.1.to_ne_bytes()].concat();
    let all = [attribute, (attribute::MARK, &mark)];
    let all = if key.mark == (0, 0) { &all[..1] } else { &all[..] };
    netlink::request(NEW_AE, FLAG_REPLACE | FLAG_ACK, &event_id(key), all)
}

/// Tells the kernel what an SA has carried: what a key daemon reads of it, and what its totals go on from.
pub fn counted(key: &SaKey, lifetime: &Lifetime) -> Vec<u8> {
    let words = [lifetime.bytes, lifetime.packets, lifetime.added, lifetime.used];
    event(key, (attribute::LIFETIME, &words.map(u64::to_ne_bytes).concat()))
}

/// Tells the kernel which sequence numbers of an SA are used: those it gives out begin behind `sent`, and of those
/// it may take none up to `received` comes again. None where the kernel has not told how it keeps them. Numbers of 32 bits
/// end at the last of them: who ran out of them may have counted beyond it. Where nothing was received the window is empty:
/// a key daemon puts an outbound SA back as it read it, and since Linux 6.10 the kernel refuses one whose window is not.
pub fn numbered(sa: &Sa, sent: u64, received: u64) -> Option<Vec<u8>> {
    let (key, replay) = (&sa.key, sa.replay.as_ref()?);
    let last = last_number(sa);
    let window = if received == 0 { 0 } else { u32::MAX };
    let halves = |number: u64| (number.min(last) as u32, (number.min(last) >> 32) as u32);
    let ((sent, sent_high), (received, received_high)) = (halves(sent), halves(received));
    let (kind, words) = match replay.words {
        0 => (attribute::REPLAY, vec![sent, received, window]),
        words => {
            let mut all = vec![words, sent, received, sent_high, received_high, replay.window];
            all.extend((0..words).map(|_| window));
            (attribute::REPLAY_ESN, all)
        }
    };
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    Some(event(key, (kind, &bytes)))
}

/// The last number an SA has: the kernel, where it has given it out, sends nothing more by the SA (`xfrm_replay_overflow`).
pub fn last_number(sa: &Sa) -> u64 {
    if sa.flags & FLAG_ESN == 0 { u64::from(u32::MAX) } else { u64::MAX }
}

/// Asks for one SA, which is answered as a change of it is told.
pub fn query_sa(key: &SaKey) -> Vec<u8> {
    // `struct xfrm_usersa_id`: destination, SPI, family, protocol.
    let mark = [key.mark.0.to_ne_bytes(), key.mark.1.to_ne_bytes()].concat();
    let all: &[(u16, &[u8])] = if key.mark == (0, 0) { &[] } else { &[(attribute::MARK, &mark)] };
    netlink::request(GET_SA, 0, &event_id(key)[..USERSA_ID], all)
}

/// Has the kernel tell that an SA reached a limit, as if it had itself; where it is hard the SA is gone.
pub fn expire(key: &SaKey, hard: bool) -> Vec<u8> {
    let mut header = [0; EXPIRE_LEN];
    put_address(&mut header[SELECTOR..SELECTOR + 16], key.destination);
    header[72..76].copy_from_slice(&key.spi.to_be_bytes());
    header[76] = key.protocol;
    header[212..214].copy_from_slice(&family_of(key.destination).to_ne_bytes());
    header[USERSA_INFO] = hard.into();
    let mark = [key.mark.0.to_ne_bytes(), key.mark.1.to_ne_bytes()].concat();
    let all: &[(u16, &[u8])] = if key.mark == (0, 0) { &[] } else { &[(attribute::MARK, &mark)] };
    netlink::request(EXPIRE, FLAG_ACK, &header, all)
}

fn put_selector(into: &mut [u8], selector: &Selector) {
    put_address(&mut into[..16], selector.destination.addr());
    put_address(&mut into[16..32], selector.source.addr());
    let ports = [selector.destination_port, selector.source_port];
    for (at, (port, mask)) in [32, 36].into_iter().zip(ports) {
        into[at..at + 2].copy_from_slice(&port.to_be_bytes());
        into[at + 2..at + 4].copy_from_slice(&mask.to_be_bytes());
    }
    into[40..42].copy_from_slice(&family_of(selector.source.addr()).to_ne_bytes());
    (into[42], into[43], into[44]) = (selector.destination.len(), selector.source.len(), selector.protocol);
    into[48..52].copy_from_slice(&selector.link.to_ne_bytes());
    into[52..56].copy_from_slice(&selector.user.to_ne_bytes());
}

/// Has the kernel drop what it would send itself, or forward, of these packets. EEXIST: it has a policy for just these.
pub fn block(selector: &Selector, priority: u32) -> Vec<u8> {
    let mut header = [0; USERPOLICY_INFO];
    put_selector(&mut header[..SELECTOR], selector);
    // Limits of bytes and packets: none. Of time 0 is none.
    header[SELECTOR..SELECTOR + 32].fill(0xff);
    header[152..156].copy_from_slice(&priority.to_ne_bytes());
    // XFRM_POLICY_OUT, XFRM_POLICY_BLOCK, no flags, XFRM_SHARE_ANY.
    header[160..164].copy_from_slice(&[1, 1, 0, 0]);
    netlink::request(NEW_POLICY, FLAG_ACK | FLAG_CREATE, &header, &[])
}

/// Takes such a policy back.
pub fn unblock(selector: &Selector) -> Vec<u8> {
    let mut header = [0; USERPOLICY_ID];
    put_selector(&mut header[..SELECTOR], selector);
    header[60] = 1;
    netlink::request(DELETE_POLICY, FLAG_ACK, &header, &[])
}

/// Asks key daemons for an SA of a policy that packets wait for. None: the policy was not read from a message of its
/// own, or asks for no SA.
pub fn acquire(policy: &Policy) -> Option<Vec<u8>> {
    let info = policy.raw.get(..USERPOLICY_INFO)?;
    let rest = policy.raw.get(USERPOLICY_INFO..)?;
    let templates = netlink::attribute(rest, attribute::TEMPLATES)?;
    let first = templates.get(..TEMPLATE)?;
    // `struct xfrm_user_acquire`: id, source, selector, policy, allowed algorithms, sequence.
    let mut header = Vec::with_capacity(280);
    header.extend_from_slice(&first[..24]);
    header.extend_from_slice(&first[28..44]);
    header.extend_from_slice(&info[..SELECTOR]);
    header.extend_from_slice(info);
    header.extend_from_slice(&[0xff; 12]);
    header.extend_from_slice(&[0; 4]);
    let if_id = policy.if_id.to_ne_bytes();
    let mut all: Vec<(u16, &[u8])> = vec![(attribute::TEMPLATES, templates)];
    if policy.if_id != 0 {
        all.push((attribute::IF_ID, &if_id));
    }
    Some(netlink::request(ACQUIRE, FLAG_ACK, &header, &all))
}
