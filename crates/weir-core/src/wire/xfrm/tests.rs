//! Messages as a kernel sends them, and damaged ones.

use super::super::netlink::messages;
use super::*;

/// What Linux 6.1 multicast while `ip xfrm` made, changed and deleted things: a name and a message a line.
const CAPTURED: &str = include_str!("../../../../../testdata/xfrm.txt");

fn captured(name: &str) -> Vec<u8> {
    let line = CAPTURED.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    let hex = line.expect("a captured message").trim().as_bytes();
    let digit = |b: u8| char::from(b).to_digit(16).expect("hex") as u8;
    hex.chunks(2).map(|b| digit(b[0]) << 4 | digit(b[1])).collect()
}

fn read(bytes: &[u8]) -> Result<News, Malformed> {
    parse(&messages(bytes).next().expect("one").expect("whole"))
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

const NO_MARK: (u32, u32) = (0, 0);

fn out_key() -> SaKey {
    SaKey { destination: ip("192.0.2.2"), spi: 0xc100_0001, protocol: ESP, mark: NO_MARK }
}

#[test]
fn an_sa_of_an_aead_is_read_with_its_key() {
    for name in ["newsa-gcm", "updsa-gcm"] {
        let Ok(News::Sa(sa)) = read(&captured(name)) else { panic!("an SA") };
        assert_eq!((sa.key, sa.source), (out_key(), ip("192.0.2.1")));
        assert_eq!((sa.request, sa.mode, sa.flags, sa.if_id), (1, Mode::Tunnel, 32, 7));
        assert_eq!((sa.limits.soft_bytes, sa.limits.hard_packets), (UNLIMITED, UNLIMITED));
        let aead = sa.aead.expect("an AEAD");
        assert_eq!((aead.name.as_str(), aead.icv_bits), ("rfc4106(gcm(aes))", 128));
        assert_eq!(aead.key.bytes(), (0..20).collect::<Vec<u8>>());
        assert!(!aead.key.is_hidden());
        assert_eq!(format!("{:?}", aead.key), "Key(20 bytes)");
        assert!(sa.encryption.is_none() && sa.encapsulation.is_none());
        assert_eq!(sa.replay, Some(Replay::default()));
    }
}

#[test]
fn an_sa_with_esn_in_udp_has_window_ports_limits_and_both_keys() {
    let Ok(News::Sa(sa)) = read(&captured("newsa-cbc-esn-udp")) else { panic!("an SA") };
    assert_eq!((sa.key.destination, sa.key.spi), (ip("192.0.2.1"), 0xc100_0002));
    assert_eq!(sa.flags & FLAG_ESN, FLAG_ESN);
    assert_eq!(sa.replay, Some(Replay { words: 2, window: 64, ..Replay::default() }));
    assert_eq!(sa.encapsulation, Some((2, 4500, 4500)));
    assert_eq!((sa.limits.soft_bytes, sa.limits.hard_bytes), (1000, 2000));
    let integrity = sa.integrity.expect("both attributes of it were told");
    assert_eq!((integrity.name.as_str(), integrity.icv_bits), ("hmac(sha256)", 128));
    assert_eq!((integrity.key.bytes().len(), integrity.key.bytes()[31]), (32, 15));
    let encryption = sa.encryption.expect("a cipher");
    assert_eq!((encryption.name.as_str(), encryption.key.bytes().len()), ("cbc(aes)", 16));
}

#[test]
fn an_sa_and_a_policy_that_go_are_known_by_what_they_were() {
    assert_eq!(read(&captured("delsa")), Ok(News::SaGone(out_key())));
    assert_eq!(read(&captured("flushsa")), Ok(News::SasFlushed(0)));
    let Ok(News::PolicyGone(gone)) = read(&captured("delpolicy")) else { panic!("a policy") };
    let Ok(News::Policy(new)) = read(&captured("newpolicy")) else { panic!("a policy") };
    assert_eq!((&gone.selector, gone.index, gone.if_id), (&new.selector, new.index, 7));
}

#[test]
fn a_policy_is_read_with_its_template() {
    for name in ["newpolicy", "updpolicy"] {
        let Ok(News::Policy(policy)) = read(&captured(name)) else { panic!("a policy") };
        let prefixes = (policy.selector.source.to_string(), policy.selector.destination.to_string());
        assert_eq!(prefixes, ("10.1.0.0/24".to_string(), "10.2.0.0/24".to_string()));
        assert_eq!((policy.direction, policy.priority, policy.if_id), (PolicyDirection::Out, 375_423, 7));
        assert!(policy.allowed && !policy.more);
        let [template] = policy.templates.as_slice() else { panic!("one template") };
        assert_eq!((template.source, template.destination), (ip("192.0.2.1"), ip("192.0.2.2")));
        assert_eq!((template.protocol, template.request, template.mode), (ESP, 1, Mode::Tunnel));
        let request = acquire(&policy).expect("it asks for an SA");
        let message = messages(&request).next().expect("one").expect("whole");
        assert_eq!((message.kind, message.payload.len()), (ACQUIRE, 280 + 68 + 8));
        assert_eq!(&message.payload[96..264], &captured(name)[16..184], "the policy as it came");
    }
}

#[test]
fn messages_cut_anywhere_are_malformed_or_less() {
    for name in ["newsa-cbc-esn-udp", "newpolicy", "delpolicy"] {
        let whole = captured(name);
        for len in 16..whole.len() {
            let mut cut = whole[..len].to_vec();
            cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
            assert_ne!(read(&cut), read(&whole), "{name} cut to {len}");
        }
    }
}

#[test]
fn what_is_sent_is_as_long_as_the_kernel_asks_and_names_the_sa() {
    let lifetime = Lifetime { bytes: 5, packets: 2, added: 9, used: 10 };
    let bytes = counted(&out_key(), &lifetime);
    let message = messages(&bytes).next().expect("one").expect("whole");
    assert_eq!((message.kind, message.payload.len()), (NEW_AE, 48 + 36));
    assert_eq!(message.payload[..24], captured("delsa")[16..40], "the id of the SA");
    let bytes = expire(&out_key(), true);
    let message = messages(&bytes).next().expect("one").expect("whole");
    assert_eq!(parse(&message), Ok(News::SaExpired { key: out_key(), hard: true }));
}

#[test]
fn numbers_of_32_bits_end_where_the_kernel_gives_out_no_more() {
    let Ok(News::Sa(sa)) = read(&captured("newsa-gcm")) else { panic!("an SA") };
    let old = Replay { words: 0, window: 32, ..Replay::default() };
    let new = Replay { words: 2, window: 64, ..Replay::default() };
    // Words of the attribute behind its header: the lower halves, then where there are some the upper ones.
    let told = |flags: u8, replay: Replay, sent: u64, received: u64| {
        let sa = Sa { flags, replay: Some(replay), ..(*sa).clone() };
        let bytes = numbered(&sa, sent, received).expect("it has numbers");
        let message = messages(&bytes).next().expect("one").expect("whole");
        let word = |n: usize| u32_at(message.payload, 48 + 4 + n * 4).expect("there");
        match replay.words {
            0 => [word(0), word(1), 0, 0],
            _ => [word(1), word(2), word(3), word(4)],
        }
    };
    let (last, beyond) = (u64::from(u32::MAX), (1 << 32) + 60);
    for replay in [old, new] {
        assert_eq!(told(0, replay, 7, 9), [7, 9, 0, 0]);
        assert_eq!(told(0, replay, last, last), [u32::MAX, u32::MAX, 0, 0]);
        assert_eq!(told(0, replay, beyond, 0), [u32::MAX, 0, 0, 0], "60 would be the next number again");
        assert_eq!(told(0, replay, 0, beyond), [0, u32::MAX, 0, 0]);
    }
    assert_eq!(told(FLAG_ESN, new, beyond, beyond + 1), [60, 61, 1, 1]);
    assert_eq!(numbered(&Sa { replay: None, ..*sa }, 1, 1), None);
}

#[test]
fn the_window_of_an_outbound_sa_is_empty_and_that_of_an_inbound_one_full() {
    let Ok(News::Sa(sa)) = read(&captured("newsa-gcm")) else { panic!("an SA") };
    let windows = |words: u32, sent: u64, received: u64| -> Vec<u32> {
        let sa = Sa { replay: Some(Replay { words, window: 32, ..Replay::default() }), ..(*sa).clone() };
        let bytes = numbered(&sa, sent, received).expect("it has numbers");
        let message = messages(&bytes).next().expect("one").expect("whole");
        let from = 48 + 4 + if words == 0 { 8 } else { 24 };
        let len = 4 * words.max(1) as usize;
        message.payload[from..from + len].chunks(4).map(|word| u32_at(word, 0).expect("a word")).collect()
    };
    for words in [0, 1, 4] {
        let of = |bits: u32| -> Vec<u32> { vec![bits; words.max(1) as usize] };
        assert_eq!(
            windows(words, 7, 0),
            of(0),
            "a key daemon puts it back, which Linux 6.10 refuses otherwise"
        );
        assert_eq!(windows(words, 0, 9), of(u32::MAX), "nothing up to 9 is taken again");
    }
}

#[test]
fn what_the_kernel_shall_drop_is_read_back_as_a_policy_that_blocks() {
    let Ok(News::Policy(policy)) = read(&captured("newpolicy")) else { panic!("a policy") };
    let Ok(News::Policy(block)) = read(&block(&policy.selector, 9)) else { panic!("a policy") };
    assert_eq!((&block.selector, block.direction), (&policy.selector, PolicyDirection::Out));
    assert_eq!((block.allowed, block.priority, block.if_id), (false, 9, 0));
    assert!(block.templates.is_empty());
    let back = unblock(&policy.selector);
    let message = messages(&back).next().expect("one").expect("whole");
    assert_eq!((message.kind, message.payload.len()), (DELETE_POLICY, USERPOLICY_ID));
    assert_eq!(message.payload[..56], captured("delpolicy")[16..72]);
}

#[test]
fn a_key_of_zeros_is_hidden_and_no_key_is_not() {
    let key = |bytes: &[u8]| Key(Zeroizing::new(bytes.to_vec())).is_hidden();
    assert!(key(&[0; 20]) && !key(&[]) && !key(&[0, 0, 1]));
}

#[test]
fn what_no_policy_is_about_is_let_be_or_blocked_by_direction() {
    let said = |payload: &[u8]| read(&super::super::netlink::request(GET_DEFAULT, 0, payload, &[]));
    let defaults = |blocks_in, blocks_forward, blocks_out| {
        Ok(News::Defaults(Defaults { blocks_in, blocks_forward, blocks_out }))
    };
    assert_eq!(said(&[2, 2, 2]), defaults(false, false, false));
    assert_eq!(said(&[2, 1, 2]), defaults(false, true, false));
    assert_eq!(said(&[1, 0, 1]), defaults(true, false, true));
    assert_eq!(said(&[]), Err(Malformed));
    assert_eq!(query_defaults()[..8], [20, 0, 0, 0, 0x28, 0, 1, 0]);
}
