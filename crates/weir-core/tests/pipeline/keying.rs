//! The kernel's SAs and policies, heard as a key daemon makes them, and what of them is to be had.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use weir_core::ipsec::durable::Amounts;
use weir_core::ipsec::spd::Action;
use weir_core::ipsec::{Direction, Encryption};
use weir_core::keying::{Keying, Wanted, Why, fence, merge};
use weir_core::state::{IpsecSpec, Policies, RouteMode, SpdSpec};
use weir_core::wire::netlink::messages;
use weir_core::wire::xfrm::{self, Mode, News, Policy, PolicyDirection, Sa, SaKey};

const CAPTURED: &str = include_str!("../../../../testdata/xfrm.txt");

pub fn captured_text(name: &str) -> &'static str {
    CAPTURED.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')).expect("a captured message")
}

/// A message written in hexadecimal.
pub fn parsed(line: &str) -> News {
    let digit = |b: u8| char::from(b).to_digit(16).expect("hex") as u8;
    let bytes: Vec<u8> = line.as_bytes().chunks(2).map(|b| digit(b[0]) << 4 | digit(b[1])).collect();
    xfrm::parse(&messages(&bytes).next().expect("one").expect("whole")).expect("understood")
}

fn captured(name: &str) -> News {
    parsed(captured_text(name))
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Makes an SA from 192.0.2.1, which is ours, to 192.0.2.2: AES-GCM-128, interface id 7, request 1.
fn out_sa(spi: u32) -> Sa {
    let News::Sa(sa) = captured("newsa-gcm") else { panic!("an SA") };
    Sa { key: SaKey { spi, ..sa.key }, ..*sa }
}

/// The other way: AES-CBC with HMAC-SHA-256, ESN, in UDP.
pub fn in_sa(spi: u32) -> Sa {
    let News::Sa(sa) = captured("newsa-cbc-esn-udp") else { panic!("an SA") };
    Sa { key: SaKey { spi, ..sa.key }, ..*sa }
}

pub fn out_policy() -> Policy {
    let News::Policy(policy) = captured("newpolicy") else { panic!("a policy") };
    *policy
}

pub fn turned(direction: PolicyDirection) -> Policy {
    let mut policy = out_policy();
    std::mem::swap(&mut policy.selector.source, &mut policy.selector.destination);
    for template in &mut policy.templates {
        std::mem::swap(&mut template.source, &mut template.destination);
    }
    Policy { direction, index: direction as u32 + 16, ..policy }
}

fn keying() -> Keying {
    let mut keying = Keying::default();
    assert!(keying.set_addresses(HashSet::from([ip("192.0.2.1"), ip("10.1.0.1")])));
    keying
}

/// Everything a child SA is in the kernel.
fn child(keying: &mut Keying) {
    for sa in [out_sa(0x1001), in_sa(0x2001)] {
        assert!(keying.observe(News::Sa(Box::new(sa))));
    }
    for policy in [out_policy(), turned(PolicyDirection::In), turned(PolicyDirection::Forward)] {
        assert!(keying.observe(News::Policy(Box::new(policy))));
    }
}

fn names(wanted: &Wanted) -> Vec<&str> {
    wanted.sas.iter().map(|sa| sa.name.as_str()).collect()
}

#[test]
fn a_child_sa_becomes_two_sas_and_a_policy_each_way() {
    let mut keying = keying();
    child(&mut keying);
    let wanted = keying.wanted();
    assert_eq!(names(&wanted), ["kernel:in:00002001", "kernel:out:00001001"]);
    assert_eq!(wanted.left, []);
    let [inward, out] = wanted.sas.as_slice() else { panic!("two SAs") };
    assert_eq!(out.params.suite.encryption(), Encryption::AesGcm128);
    assert_eq!((out.params.source, out.params.destination), (ip("192.0.2.1"), ip("192.0.2.2")));
    assert_eq!((out.params.direction, out.params.esn), (Direction::Out, false));
    assert_eq!(out.keys.check(out.params.suite), Ok(()));
    assert_eq!(
        (inward.params.direction, inward.params.esn, inward.params.replay_window),
        (Direction::In, true, 64)
    );
    assert_eq!(inward.keys.check(inward.params.suite), Ok(()));
    assert_eq!(inward.params.soft.bytes, Some(1000));
    assert_eq!(inward.params.udp.map(|u| (u.source, u.destination)), Some((4500, 4500)));
    let [first, second] = wanted.policies.as_slice() else { panic!("two policies: {:?}", wanted.policies) };
    assert_eq!(
        (first.out.as_slice(), first.direction),
        (&["kernel:out:00001001".to_string()][..], Some(Direction::Out))
    );
    assert_eq!(
        (second.inbound.as_slice(), second.direction),
        (&["kernel:in:00002001".to_string()][..], Some(Direction::In))
    );
    assert_eq!((first.local[0].first, first.local[0].last), (ip("10.1.0.0"), ip("10.1.0.255")));
    assert_eq!(second.local, first.local);
}

#[test]
fn packets_leave_by_the_newest_sa_and_may_come_in_by_any() {
    let mut keying = keying();
    child(&mut keying);
    keying.observe(News::Sa(Box::new(in_sa(0x2002))));
    keying.observe(News::Sa(Box::new(out_sa(0x0999))));
    let wanted = keying.wanted();
    assert_eq!(wanted.policies[0].out, ["kernel:out:00000999"]);
    assert_eq!(wanted.policies[1].inbound, ["kernel:in:00002001", "kernel:in:00002002"]);
    // An update of the old one does not make it the newest.
    keying.observe(News::Sa(Box::new(Sa { flags: 0, ..out_sa(0x1001) })));
    assert_eq!(keying.wanted().policies[0].out, ["kernel:out:00000999"]);
    assert!(keying.observe(News::SaGone(out_sa(0x0999).key)));
    assert_eq!(keying.wanted().policies[0].out, ["kernel:out:00001001"]);
    let hard = News::SaExpired { key: out_sa(0x1001).key, hard: true };
    assert!(keying.observe(hard), "a hard expiry brings no deletion");
    assert_eq!(keying.wanted().policies[0].action, Action::Discard);
}

#[test]
fn a_policy_without_an_sa_discards_and_its_packets_ask_for_one() {
    let mut keying = keying();
    keying.observe(News::Policy(Box::new(out_policy())));
    let wanted = keying.wanted();
    assert_eq!((wanted.policies[0].action, &wanted.policies[0].out), (Action::Discard, &Vec::new()));
    let traps = keying.traps();
    assert_eq!(traps.len(), 1);
    assert_eq!(traps[0].policy, wanted.policies[0].name);
    keying.observe(News::Sa(Box::new(out_sa(0x1001))));
    assert_eq!(keying.traps(), []);
}

#[test]
fn what_the_kernel_acts_on_is_left_to_it() {
    let mut without = keying();
    for policy in [out_policy(), turned(PolicyDirection::Forward)] {
        without.observe(News::Policy(Box::new(Policy { if_id: 0, ..policy })));
    }
    without.observe(News::Sa(Box::new(Sa { if_id: 0, ..out_sa(0x1001) })));
    let wanted = without.wanted();
    assert_eq!((wanted.sas.len(), wanted.policies.len()), (0, 0), "neither direction");
    assert!(wanted.left.len() == 2 && wanted.left.iter().all(|l| l.why == Why::NoInterfaceId));
    assert_eq!(without.traps(), []);

    let mut device = keying();
    child(&mut device);
    assert!(device.set_devices(BTreeSet::from([7])));
    let wanted = device.wanted();
    assert_eq!((wanted.sas.len(), wanted.policies.len()), (0, 0));
    assert!(wanted.left.iter().all(|l| l.why == Why::Device(7)));
}

#[test]
fn sas_that_only_the_kernel_opens_are_told_from_those_to_be_had() {
    let mut keying = keying();
    let key = |spi: u32| (spi, in_sa(spi).key.destination);
    keying.observe(News::Sa(Box::new(Sa { if_id: 0, ..in_sa(0x2001) })));
    assert_eq!(keying.others(), HashSet::from([key(0x2001)]));
    // Its policies come behind it: it is to be had already.
    keying.observe(News::Sa(Box::new(in_sa(0x2002))));
    assert_eq!(keying.others(), HashSet::from([key(0x2001)]));
    keying.set_devices(BTreeSet::from([7]));
    assert_eq!(keying.others(), HashSet::from([key(0x2001), key(0x2002)]));
    keying.observe(News::SaGone(in_sa(0x2001).key));
    assert_eq!(keying.others(), HashSet::from([key(0x2002)]));
}

#[test]
fn an_sa_that_cannot_be_had_leaves_its_policy_discarding_and_is_said() {
    let News::Sa(gcm) = captured("newsa-gcm") else { panic!("an SA") };
    let aead = gcm.aead.clone().expect("an AEAD");
    let short = xfrm::Algorithm { icv_bits: 64, ..aead.clone() };
    let cases: [(Sa, &str); 6] = [
        (Sa { aead: Some(short), ..*gcm.clone() }, "check value of 64"),
        (Sa { mode: Mode::Transport, ..*gcm.clone() }, "transport"),
        (Sa { mode: Mode::Other(4), ..*gcm.clone() }, "BEET"),
        (Sa { compressed: true, ..*gcm.clone() }, "IPComp"),
        (Sa { encapsulation: Some((7, 4500, 4500)), ..*gcm.clone() }, "encapsulation 7"),
        (Sa { key: SaKey { protocol: 51, ..gcm.key }, ..*gcm.clone() }, "AH"),
    ];
    for (sa, expected) in cases {
        let mut keying = keying();
        keying.observe(News::Policy(Box::new(out_policy())));
        keying.observe(News::Sa(Box::new(sa)));
        let wanted = keying.wanted();
        assert_eq!((wanted.sas.len(), wanted.policies[0].action), (0, Action::Discard));
        assert!(
            wanted.left.iter().any(|l| l.to_string().contains(expected)),
            "{expected}: {:?}",
            wanted.left
        );
    }
}

#[test]
fn keys_the_kernel_hides_are_refused_with_a_sentence() {
    let line = captured_text("newsa-gcm");
    let hidden = line.replace("000102030405060708090a0b0c0d0e0f10111213", &"00".repeat(20));
    let mut keying = keying();
    keying.observe(parsed(&hidden));
    let left = keying.wanted().left;
    assert!(
        matches!(left.as_slice(), [only] if only.why == Why::HiddenKey && only.to_string().contains("zeros"))
    );
}

#[test]
fn an_address_change_keeps_the_name_of_an_sa() {
    let mut keying = keying();
    child(&mut keying);
    let before = out_sa(0x1001);
    keying.observe(News::SaGone(before.key));
    let key = SaKey { destination: ip("192.0.2.9"), ..before.key };
    keying.observe(News::Sa(Box::new(Sa { key, ..before })));
    let wanted = keying.wanted();
    assert_eq!(wanted.policies[0].out, ["kernel:out:00001001"]);
    assert_eq!(wanted.sas[1].params.destination, ip("192.0.2.9"));
}

#[test]
fn a_dump_takes_away_what_it_does_not_tell_of() {
    let mut keying = keying();
    child(&mut keying);
    keying.begin_resync();
    keying.observe(News::Sa(Box::new(out_sa(0x1001))));
    keying.observe(News::Policy(Box::new(out_policy())));
    assert_eq!(keying.end_resync(), 3);
    assert_eq!(names(&keying.wanted()), ["kernel:out:00001001"]);
    assert!(keying.observe(News::SasFlushed(0)) && keying.observe(News::PoliciesFlushed));
    assert_eq!(keying.wanted(), Wanted::default());
}

#[test]
fn the_files_policies_come_first_and_what_they_hide_is_left_out() {
    let mut keying = keying();
    child(&mut keying);
    let wanted = keying.wanted();
    let mut own = wanted.policies[0].clone();
    (own.name, own.action, own.out) = ("own".into(), Action::Bypass, Vec::new());
    let mut policies = Policies::default();
    policies.push(own);
    let spd =
        SpdSpec { default: Action::Discard, policies, ..crate::testbed::ipsec::spd("kernel", &["wan"], &[]) };
    let spec = IpsecSpec { spds: vec![spd], ..IpsecSpec::default() };
    let (merged, left) = merge(&spec, "kernel", &wanted);
    let names: Vec<&str> = merged.spds[0].policies.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["own", "kernel:fwd:18"]);
    assert_eq!(merged.sas.len(), 1, "an SA nobody uses is none");
    assert!(matches!(left.as_slice(), [only] if only.why == Why::Hidden));
    let (again, _) = merge(&merged, "kernel", &wanted);
    assert_eq!(again, merged, "what was the kernel's before is replaced");
    let (nothing, _) = merge(&merged, "kernel", &Wanted::default());
    assert_eq!(nothing, spec);
}

#[test]
fn the_hosts_own_packets_of_a_taken_policy_are_blocked_and_no_others() {
    let mut keying = keying();
    child(&mut keying);
    let (lacking, over) = keying.blocks();
    assert_eq!((lacking.as_slice(), over.as_slice()), (&[out_policy().selector][..], &[][..]));
    let block = |keying: &mut Keying| {
        let bytes = xfrm::block(&out_policy().selector, weir_core::keying::BLOCK_PRIORITY);
        let news = xfrm::parse(&messages(&bytes).next().expect("one").expect("whole")).expect("understood");
        let News::Policy(made) = news else { panic!("a policy") };
        assert!(keying.observe(News::Policy(Box::new(Policy { index: 99, ..*made }))));
    };
    let before = keying.wanted();
    block(&mut keying);
    assert_eq!(keying.wanted(), before, "weir's own policy is nothing to be had");
    assert_eq!(keying.blocks(), (vec![], vec![]));
    keying.observe(News::PolicyGone(Box::new(out_policy())));
    assert_eq!(keying.blocks(), (vec![], vec![out_policy().selector]));

    // What the kernel decides itself, and where the far network holds the near one, nothing is blocked.
    let mut own = self::keying();
    own.observe(News::Policy(Box::new(out_policy())));
    own.observe(News::Policy(Box::new(Policy { if_id: 0, index: 77, ..out_policy() })));
    assert_eq!(own.blocks().0, []);
    let mut everything = self::keying();
    let mut policy = out_policy();
    policy.selector.destination = "0.0.0.0/0".parse().expect("a prefix");
    everything.observe(News::Policy(Box::new(policy)));
    assert_eq!(everything.blocks().0, []);
}

#[test]
fn an_sa_the_kernel_has_numbered_is_not_taken_and_another_is_asked_for() {
    let used = xfrm::Replay { sent: 1, ..xfrm::Replay::default() };
    let mut keying = keying();
    keying.observe(News::Policy(Box::new(out_policy())));
    keying.observe(News::Sa(Box::new(Sa { replay: Some(used), ..out_sa(0x1001) })));
    let wanted = keying.wanted();
    assert_eq!((wanted.sas.len(), wanted.policies[0].action), (0, Action::Discard));
    assert!(matches!(wanted.left.as_slice(), [only] if only.why == Why::Numbered), "{:?}", wanted.left);
    assert_eq!(keying.to_be_replaced(), [out_sa(0x1001).key]);
    keying.observe(News::Sa(Box::new(out_sa(0x1002))));
    assert_eq!(keying.wanted().policies[0].out, ["kernel:out:00001002"]);

    // An xfrm device may have used what was there while it was.
    let mut device = self::keying();
    device.set_devices(BTreeSet::from([7]));
    child(&mut device);
    assert_eq!(device.to_be_replaced(), []);
    device.set_devices(BTreeSet::new());
    assert_eq!((device.wanted().sas.len(), device.to_be_replaced().len()), (0, 2));
}

#[test]
fn an_sa_whose_numbers_are_weirs_own_is_taken_again() {
    let ahead = xfrm::Replay { sent: 1 << 20, window: 32, ..xfrm::Replay::default() };
    let mut keying = keying();
    child(&mut keying);
    let used = Sa { replay: Some(ahead), ..out_sa(0x1003) };
    keying.observe(News::Sa(Box::new(used.clone())));
    let before = keying.used_before();
    let [only] = before.as_slice() else { panic!("one: {before:?}") };
    assert_eq!((only.key, only.number, only.spec.name.as_str()), (used.key, 1 << 20, "kernel:out:00001003"));
    keying.take_back(&only.key, only.number);
    assert_eq!(keying.ahead(&used.key), Some(1 << 20));
    assert_eq!((keying.used_before().len(), keying.to_be_replaced().len()), (0, 0));
    assert_eq!(keying.wanted().policies[0].out, ["kernel:out:00001003"]);
    // Once a device had it nobody knows.
    keying.set_devices(BTreeSet::from([7]));
    keying.set_devices(BTreeSet::new());
    keying.take_back(&used.key, 1 << 20);
    assert!(keying.used_before().is_empty() && keying.to_be_replaced().contains(&used.key));
}

#[test]
fn the_number_an_sa_was_given_is_forgotten_with_it_and_not_by_what_tells_of_it_again() {
    let mut keying = keying();
    child(&mut keying);
    let key = out_sa(0x1001).key;
    let with = |sent| {
        let replay = Some(xfrm::Replay { sent, window: 32, ..xfrm::Replay::default() });
        News::Sa(Box::new(Sa { replay, ..out_sa(0x1001) }))
    };
    keying.set_ahead(&key, 1 << 20);
    keying.observe(with(1 << 20));
    assert_eq!(keying.ahead(&key), Some(1 << 20));
    keying.observe(News::SaGone(key));
    keying.observe(with(0));
    assert_eq!(keying.ahead(&key), None, "made again within one reading");
    keying.set_ahead(&key, 1 << 20);
    keying.observe(with(5));
    assert_eq!(keying.ahead(&key), None, "made again, which was not heard");
}

#[test]
fn a_new_outbound_sa_waits_for_the_policy_that_names_it() {
    let named = |spi: u32| {
        let mut policy = out_policy();
        policy.templates[0].spi = spi;
        News::Policy(Box::new(policy))
    };
    let mut keying = keying();
    child(&mut keying);
    assert!(keying.observe(named(0x1001)));
    keying.observe(News::Sa(Box::new(out_sa(0x1002))));
    assert_eq!(
        keying.wanted().policies[0].out,
        ["kernel:out:00001001"],
        "the peer may not have the new one yet"
    );
    assert!(keying.observe(named(0x1002)));
    assert_eq!(keying.wanted().policies[0].out, ["kernel:out:00001002"]);
}

/// The child's SAs are heard of where weir acts for their device.
fn routed() -> Keying {
    let mut keying = keying();
    assert!(keying.set_routed(BTreeSet::from([7])));
    child(&mut keying);
    keying
}

#[test]
fn sas_of_a_device_weir_acts_for_are_taken_behind_a_fence_and_go_to_its_spd() {
    let mut keying = routed();
    let wanted = keying.wanted();
    assert_eq!((wanted.sas.len(), wanted.policies.len(), wanted.routed[&7].len()), (0, 0, 2));
    assert!(wanted.routed[&7].iter().all(|policy| policy.action == Action::Discard));
    let unfenced: Vec<SaKey> = keying.unfenced().into_iter().map(|sa| sa.key).collect();
    assert_eq!(unfenced.len(), 2);
    assert!(keying.used_before().is_empty() && keying.not_ahead().is_empty(), "their numbers say nothing");
    unfenced.iter().for_each(|key| keying.set_fenced(key, u64::from(u32::MAX)));
    assert!(unfenced.iter().all(|key| keying.is_fenced(key)) && keying.unfenced().is_empty());
    let wanted = keying.wanted();
    assert_eq!(names(&wanted), ["kernel:in:00002001", "kernel:out:00001001"]);
    assert_eq!(wanted.routed[&7][0].out, ["kernel:out:00001001"]);
    assert!(keying.to_be_replaced().is_empty() && keying.traps().is_empty());
    // The host's own packets into the device are weir's to carry.
    assert_eq!(keying.blocks(), (Vec::new(), Vec::new()));
    let device = RouteMode { if_id: 7, mtu: 1400, up: true, addresses: Vec::new() };
    let spd = |name: &str, route_mode| SpdSpec { route_mode, ..crate::testbed::ipsec::spd(name, &[], &[]) };
    let spec =
        IpsecSpec { spds: vec![spd("kernel", None), spd("ipsec0", Some(device))], ..IpsecSpec::default() };
    let (merged, left) = merge(&spec, "kernel", &wanted);
    assert_eq!((merged.sas.len(), left.len()), (2, 0));
    assert_eq!(merged.spds.iter().map(|spd| spd.policies.len()).collect::<Vec<usize>>(), [0, 2]);
    // Heard of again it is behind the fence; made again, as MOBIKE has it, it is to be looked at.
    let last = Some(xfrm::Replay { sent: u32::MAX.into(), ..xfrm::Replay::default() });
    keying.observe(News::Sa(Box::new(Sa { replay: last, ..out_sa(0x1001) })));
    assert!(keying.is_fenced(&out_sa(0x1001).key));
    keying.observe(News::SaGone(out_sa(0x1001).key));
    keying.observe(News::Sa(Box::new(Sa { replay: last, ..out_sa(0x1001) })));
    assert!(!keying.is_fenced(&out_sa(0x1001).key) && keying.unfenced().len() == 1);
}

#[test]
fn sas_that_were_there_when_a_device_came_or_went_are_replaced() {
    let mut late = keying();
    child(&mut late);
    assert!(late.set_routed(BTreeSet::from([7])));
    assert_eq!((late.unfenced().len(), late.wanted().sas.len(), late.to_be_replaced().len()), (0, 0, 2));

    let mut gone = routed();
    let keys: Vec<SaKey> = gone.unfenced().into_iter().map(|sa| sa.key).collect();
    keys.iter().for_each(|key| gone.set_fenced(key, u64::from(u32::MAX)));
    gone.set_routed(BTreeSet::new());
    assert_eq!((gone.wanted().sas.len(), gone.to_be_replaced().len()), (0, 2));
    assert!(gone.asks_for_dump(), "what is heard may be older");

    let mut used = routed();
    used.set_numbered(&keys[0]);
    assert_eq!((used.unfenced().len(), used.to_be_replaced()), (1, vec![keys[0]]));
}

/// An SA with these numbers and counters.
fn told(sent: u64, received: u64, (bytes, packets): (u64, u64)) -> Sa {
    let sa = out_sa(0x1001);
    let lifetime = xfrm::Lifetime { bytes, packets, ..sa.lifetime };
    let replay = Some(xfrm::Replay { sent, received, window: 32, words: 1 });
    Sa { replay, lifetime, ..sa }
}

#[test]
fn what_the_kernel_used_before_a_fence_is_bounded_or_not_taken() {
    let last = u64::from(u32::MAX);
    let (out, inward) = (Direction::Out, Direction::In);
    let used = |sequence, bytes, packets| Ok(Amounts { sequence, packets, bytes });
    let before = told(7, 0, (700, 7));
    assert_eq!(fence::used(&before, &told(last, 0, (700, 7)), out), used(7, 700, 7));
    // One large packet of at most as many pieces as it has bytes.
    assert_eq!(fence::used(&before, &told(last, 0, (66_000, 8)), out), used(65_307, 66_000, 8));
    assert!(fence::used(&before, &told(last, 0, (0, 0)), out).is_err(), "made again meanwhile");
    assert!(fence::used(&before, &told(8, 0, (700, 7)), out).is_err(), "the number was not taken");
    assert!(fence::used(&told(1 << 31, 0, (1, 1)), &told(last, 0, (1, 1)), out).is_err(), "too near the end");
    let before = told(0, 9, (700, 7));
    assert_eq!(fence::used(&before, &told(0, last, (700, 7)), inward), used(9, 700, 7));
    assert!(fence::used(&before, &told(0, last, (800, 8)), inward).is_err(), "a packet came between");
    let ahead = told(0, 1 << 20, (700, 7));
    assert!(fence::used(&ahead, &told(0, last, (700, 7)), inward).is_err(), "a number weir gave it");
    assert_eq!((fence::last(&before, inward), fence::last(&in_sa(1), inward)), (last, u64::MAX >> 1));
    assert_eq!(fence::last(&in_sa(1), out), u64::MAX);
}
