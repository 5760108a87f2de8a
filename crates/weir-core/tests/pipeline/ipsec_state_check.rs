//! Every mistake in SAs, tunnels and policies, where it is and what to do about it.

use crate::testbed::spd as spd_testbed;
use std::sync::Arc;

use crate::testbed::control::{address, desired, neighbor, port, route, up};
use crate::testbed::ipsec::{Clear, HERE, THERE, east_and_border, policy, ranges, spd, tunnel};
use proptest::prelude::*;
use weir_core::control::Control;
use weir_core::ipsec::Direction::{In, Out};
use weir_core::ipsec::sa::{Dscp, UdpPorts};
use weir_core::ipsec::spd::{Action, AddressRange, PolicyIndex, PortRange, first_match};
use weir_core::ipsec::{Encryption, Integrity, Mode, Secret, Suite};
use weir_core::state::{Desired, Element, Error, IpsecElement, Policies, PolicySpec, check, warnings};

fn good() -> Desired {
    let mut d = desired(&[port("lan", "eth0", &["192.0.2.1/24"]), port("wan", "eth1", &["198.51.100.1/24"])]);
    d.ipsec = east_and_border();
    d.routes = vec![route("10.1.0.0/16", &["@east"])];
    d
}

/// The errors of the good wish after `spoil`.
fn said(spoil: impl Fn(&mut Desired)) -> Vec<String> {
    let mut d = good();
    spoil(&mut d);
    check(&d).iter().map(|e| e.to_string()).collect()
}

fn policies(spoil: impl Fn(&mut Policies)) -> Vec<String> {
    said(|d| spoil(&mut d.ipsec.spds[0].policies))
}

#[test]
fn good_wish_has_no_errors() {
    assert_eq!(check(&good()), []);
}

#[test]
fn keys_are_as_long_as_their_algorithm_wants() {
    assert_eq!(
        said(|d| d.ipsec.sas[0].keys.encryption = Secret::new(vec![1; 24])),
        [
            "sa east-out: key is 24 bytes, aes-gcm-128 takes 20 (16 key + 4 salt); correct the key or the algorithm"
        ]
    );
    let cbc = Suite::new(Encryption::AesCbc128, Some(Integrity::HmacSha256_128), false).expect("a suite");
    assert_eq!(
        said(|d| {
            d.ipsec.sas[0].params.suite = cbc;
            d.ipsec.sas[0].keys.encryption = Secret::new(vec![1; 16]);
        }),
        [
            "sa east-out: integrity key is 0 bytes, hmac-sha2-256-128 takes 32; correct the key or the algorithm"
        ]
    );
    assert_eq!(
        said(|d| d.ipsec.sas[0].keys.integrity = Secret::new(vec![1; 3])),
        [
            "sa east-out: integrity key is 3 bytes, aes-gcm-128 takes none; remove it or name an integrity algorithm"
        ]
    );
}

#[test]
fn aead_key_belongs_to_one_sa() {
    let share = |d: &mut Desired| d.ipsec.sas[2].keys = d.ipsec.sas[1].keys.clone();
    assert_eq!(
        said(share),
        ["sa site-out: has the key of sa east-in, and no two SAs may share an AEAD key, for both would use \
          the same nonces (RFC 4106 3.1); give it a key of its own"]
    );
    // Both ends of one SA in one machine are one SA.
    assert_eq!(
        said(|d| {
            share(d);
            d.ipsec.sas[2].params.spi = 0x1002;
            (d.ipsec.sas[2].params.source, d.ipsec.sas[2].params.destination) =
                (THERE.parse().expect("address"), HERE.parse().expect("address"));
        }),
        Vec::<String>::new()
    );
}

#[test]
fn spis_are_free_and_unique_at_their_destination() {
    assert_eq!(
        said(|d| d.ipsec.sas[0].params.spi = 255),
        [
            "sa east-out: spi is 0xff, expected 0x100 or more: those below are reserved (RFC 4303 2.1); choose another"
        ]
    );
    assert_eq!(
        said(|d| d.ipsec.sas[3].params.spi = 0x1002),
        ["sa site-in: spi 0x1002 to 198.51.100.1 is sa east-in's already; choose another, at both ends"]
    );
}

#[test]
fn ends_are_two_hosts_of_one_family() {
    let ends = |from: &'static str, to: &'static str| {
        said(|d| {
            let params = &mut d.ipsec.sas[0].params;
            (params.source, params.destination) = (from.parse().expect("a"), to.parse().expect("a"));
        })
    };
    assert_eq!(
        ends("0.0.0.0", "224.0.0.1"),
        [
            "sa east-out: source 0.0.0.0 is the unspecified address, expected a host's; correct it",
            "sa east-out: destination 224.0.0.1 is a multicast address, expected a host's; correct it"
        ]
    );
    assert_eq!(
        ends(HERE, "2001:db8::2"),
        [
            "sa east-out: source 198.51.100.1 and destination 2001:db8::2 are of two families, expected one; correct one"
        ]
    );
    assert_eq!(
        ends(HERE, HERE),
        ["sa east-out: source and destination are both 198.51.100.1, expected two hosts; correct one"]
    );
}

#[test]
fn numbers_of_an_sa_have_ranges() {
    let one = |spoil: fn(&mut weir_core::ipsec::Params)| said(|d| spoil(&mut d.ipsec.sas[1].params));
    assert_eq!(
        one(|p| p.replay_window = 31),
        ["sa east-in: replay window is 31, expected 0 (none) or 32 to 4096; correct it"]
    );
    assert_eq!(
        one(|p| (p.esn, p.replay_window) = (true, 0)),
        ["sa east-in: has esn and no replay window, without which nobody knows the upper half of a number \
          (RFC 4303 3.3.3); give it a window"]
    );
    assert_eq!(
        one(|p| (p.soft.bytes, p.hard.bytes) = (Some(9), Some(8))),
        [
            "sa east-in: soft lifetime of 9 bytes is above the hard one of 8, so nobody would be told in time; lower it"
        ]
    );
    assert_eq!(
        one(|p| p.hard.seconds = Some(0)),
        ["sa east-in: a lifetime is 0 seconds, which is over at once; raise it or leave it out"]
    );
    assert_eq!(one(|p| p.dscp = Dscp::Set(64)), ["sa east-in: dscp is 64, expected 0 to 63; correct it"]);
    assert_eq!(one(|p| p.hop_limit = 0), ["sa east-in: hop limit is 0, expected 1 to 255; 64 is usual"]);
    assert_eq!(
        one(|p| p.udp = Some(UdpPorts { source: 0, destination: 4500 })),
        ["sa east-in: a UDP port is 0, expected 1 to 65535; 4500 is usual (RFC 3948)"]
    );
}

#[test]
fn every_sa_has_one_user_that_fits() {
    assert_eq!(
        said(|d| d.ipsec.tunnels[0].inbound.clear()),
        ["sa east-in: is used by no tunnel and no policy; name it in one or remove it"]
    );
    assert_eq!(
        said(|d| d.ipsec.tunnels[0].out[0] = "east-ot".into()),
        [
            "tunnel east: sa `east-ot` does not exist; did you mean `east-out`?",
            "sa east-out: is used by no tunnel and no policy; name it in one or remove it"
        ]
    );
    assert_eq!(
        said(|d| d.ipsec.tunnels[0].out.push("east-in".into())),
        ["tunnel east: sa east-in is inbound, expected an outbound one; name another"]
    );
    assert_eq!(
        said(|d| d.ipsec.tunnels[0].out.push("east-out".into())),
        ["tunnel east: names sa east-out twice; remove one"]
    );
    assert_eq!(
        said(|d| d.ipsec.spds[0].policies[0].out.push("east-out".into())),
        [
            "spd border: policy site: sa east-out is used by tunnel east already, and an SA leads to one tunnel or \
          one SPD; give it SAs of its own"
        ]
    );
}

#[test]
fn tunnels_have_names_sas_and_addresses_of_their_own() {
    assert_eq!(
        said(|d| d.ipsec.tunnels.push(tunnel("lan", &[], &[]))),
        [
            "tunnel lan: is configured twice; keep one or rename one",
            "tunnel lan: has no SA, expected one to send or to receive by; name some"
        ]
    );
    assert_eq!(
        said(|d| d.ipsec.sas[0].params.mode = Mode::Transport),
        [
            "tunnel east: sa east-out is in transport mode, expected tunnel mode: what is routed here has other \
          addresses; use a policy for it, or tunnel mode"
        ]
    );
    assert_eq!(
        said(|d| {
            d.ipsec.tunnels[0].addresses = vec![address("192.0.2.77/24"), address("2001:db8::1/64")];
            d.ipsec.tunnels[0].mtu = Some(1000);
        }),
        [
            "tunnel east: mtu is 1000, expected at least 1280 with IPv6 addresses (RFC 8200 5); raise it or remove them",
            "tunnel east: network 192.0.2.0/24 overlaps 192.0.2.0/24 on port lan, expected each network on one \
             port; renumber one or lengthen its prefix"
        ]
    );
    assert_eq!(
        said(|d| d.neighbors = vec![neighbor("east", "10.0.0.1", 1)]),
        [
            "neighbor 10.0.0.1 on east: the port is a tunnel, where there is nobody to address; remove the neighbor"
        ]
    );
    assert_eq!(
        said(|d| d.ports[0].device = "enforce/wan".into()),
        ["port lan: device is enforce/wan, but names with `enforce/` are for devices of IPsec; rename it"]
    );
    assert_eq!(
        said(|d| d.routes[0] = route("10.1.0.0/16", &["@border"])),
        ["route 10.1.0.0/16: next hop 1: port `border` does not exist; configure it or correct the name"],
        "nothing is routed to an SPD"
    );
}

#[test]
fn spds_guard_ports_that_are_there_and_free() {
    let border = |spoil: fn(&mut weir_core::state::SpdSpec)| said(|d| spoil(&mut d.ipsec.spds[0]));
    assert_eq!(
        border(|s| s.ports = vec!["wam".into()]),
        ["spd border: port `wam` does not exist; did you mean `wan`?"]
    );
    assert_eq!(
        border(|s| s.ports.clear()),
        ["spd border: is enforced on no port, expected one or more; name the outer ports"]
    );
    assert_eq!(
        border(|s| s.ports.push("east".into())),
        [
            "spd border: port east is a tunnel, expected a port with a device; name the port the tunnel leaves by, \
          or use routes alone"
        ]
    );
    assert_eq!(
        border(|s| s.default = Action::Protect),
        ["spd border: default is protect, expected discard or bypass; write a last policy to protect all"]
    );
    assert_eq!(
        said(|d| d.ipsec.spds.push(spd("east", &["wan"], &[]))),
        [
            "spd east: is configured twice; keep one or rename one",
            "spd east: port wan has spd border already; remove it from one"
        ]
    );
}

#[test]
fn policies_can_match_and_have_the_sas_they_need() {
    assert_eq!(
        policies(|p| p[0].inbound.clear())[0],
        "spd border: policy site: protects and has no inbound SA, so nothing could pass; name one, or say which \
         direction it is for"
    );
    assert_eq!(
        policies(|p| p[0].direction = Some(Out)),
        [
            "spd border: policy site: has an inbound SA, but is not for that direction; remove the SA or the direction"
        ]
    );
    assert_eq!(
        policies(|p| p[0].action = Action::Bypass)[0],
        "spd border: policy site: has SAs, but its action is bypass; remove them or say protect"
    );
    let mixed = AddressRange { first: HERE.parse().expect("a"), last: "2001:db8::1".parse().expect("a") };
    assert_eq!(
        policies(|p| p[0].local = vec![mixed]),
        ["spd border: policy site: range 198.51.100.1-2001:db8::1 has ends of two families; correct one"]
    );
    assert_eq!(
        policies(|p| p[0].local = ranges("192.0.2.9-192.0.2.1")),
        ["spd border: policy site: range 192.0.2.9-192.0.2.1 ends before it begins; swap its ends"]
    );
    assert_eq!(
        policies(|p| p[0].local = ranges("2001:db8::/32")),
        [
            "spd border: policy site: local and remote have no family in common, so no packet can match; correct \
          one side"
        ]
    );
    let ports = PortRange { first: 53, last: 53 };
    assert_eq!(
        policies(|p| p[0].remote_ports = ports),
        [
            "spd border: policy site: names ports of any protocol, expected TCP (6), UDP (17) or SCTP (132); set \
          the protocol or remove the ports"
        ]
    );
    assert_eq!(
        policies(|p| (p[0].protocol, p[0].icmp) = (Some(17), ports)),
        [
            "spd border: policy site: names ICMP types of protocol 17, expected ICMP (1) or ICMPv6 (58); set the \
          protocol or remove the types"
        ]
    );
    assert_eq!(
        policies(|p| p[0].protocol = Some(58)),
        [
            "spd border: policy site: its addresses are not of the family of its ICMP, so no packet can match; use \
          1 with IPv4, 58 with IPv6"
        ]
    );
}

#[test]
fn transport_mode_is_between_two_hosts() {
    let transport = |local: &'static str| {
        said(|d| {
            d.ipsec.sas[2].params.mode = Mode::Transport;
            d.ipsec.spds[0].policies[0].local = ranges(local);
            d.ipsec.spds[0].policies[0].remote = ranges(THERE);
        })
    };
    assert_eq!(transport(HERE), Vec::<String>::new());
    assert_eq!(
        transport(""),
        [
            "spd border: policy site: sa site-out is in transport mode, so local must be 198.51.100.1 alone and \
          remote 198.51.100.2 alone; narrow them, or use tunnel mode"
        ]
    );
}

#[test]
fn policy_hidden_by_one_above_it_is_refused() {
    let add = |more: PolicySpec| policies(|p| p.push(more.clone()));
    assert_eq!(
        add(policy("inner", Action::Bypass, "192.0.2.9", "10.2.3.0/24")),
        [
            "spd border: policy inner: can never match: policy site above it matches all it would; move it up or \
          remove it"
        ]
    );
    assert_eq!(add(policy("wider", Action::Bypass, "192.0.2.0/24", "10.0.0.0/8")), Vec::<String>::new());
    assert_eq!(
        add(policy("beside", Action::Bypass, "192.0.2.9,192.0.3.9", "10.2.3.4")),
        Vec::<String>::new()
    );
    assert_eq!(
        policies(|p| {
            p.insert(0, policy("all", Action::Discard, "", ""));
            p[0].direction = Some(In);
        }),
        Vec::<String>::new(),
        "outbound it still matches"
    );
}

#[test]
fn every_mistake_is_told_at_once_with_its_place() {
    let mut d = good();
    d.ipsec.sas[0].params.spi = 1;
    d.ipsec.tunnels[0].mtu = Some(1);
    d.ipsec.spds[0].ports.push("x".into());
    d.ipsec.spds[0].policies[0].name = "a b".into();
    let places: Vec<Element> = check(&d).iter().map(|e| e.at).collect();
    assert_eq!(
        places,
        [
            Element::Ipsec(IpsecElement::Tunnel(0)),
            Element::Ipsec(IpsecElement::Spd(0)),
            Element::Ipsec(IpsecElement::Policy { spd: 0, policy: 0 }),
            Element::Ipsec(IpsecElement::Sa(0))
        ]
    );
}

/// A policy outbound with the one rule that `selector` is.
fn as_policy(index: usize, selector: &weir_core::ipsec::spd::Selector) -> PolicySpec {
    PolicySpec {
        direction: Some(Out),
        local: vec![selector.source],
        remote: vec![selector.destination],
        protocol: selector.protocol,
        local_ports: selector.source_ports,
        remote_ports: selector.destination_ports,
        icmp: selector.icmp,
        ..policy(&index.to_string(), Action::Bypass, "", "")
    }
}

proptest! {
    /// Hidden is only what never decides: a policy a flow finds is not called hidden.
    #[test]
    fn policy_that_decides_about_something_is_not_hidden(
        rules in spd_testbed::rules(12),
        flows in prop::collection::vec(spd_testbed::flow(), 1..80),
    ) {
        let mut d = good();
        let list: Vec<PolicySpec> = rules.iter().enumerate().map(|(i, (s, _))| as_policy(i, s)).collect();
        d.ipsec.spds.push(spd("random", &["lan"], &list));
        let never = |e: &Error| e.to_string().contains("can never match");
        let errors = check(&d).into_iter().filter(never).map(|e| e.at);
        let hidden: Vec<Element> = errors.collect();
        let is_hidden = |policy| hidden.contains(&Element::Ipsec(IpsecElement::Policy { spd: 1, policy }));
        for flow in &flows {
            if let Some(PolicyIndex(found)) = first_match(&rules, flow) {
                prop_assert!(!is_hidden(found as usize), "{:?} finds {}", flow, found);
            }
        }
        // And what has the selectors of one above it is always hidden.
        for (i, policy) in list.iter().enumerate().filter(|(_, p)| !p.selectors(Out).is_empty()) {
            let twice = list[..i].iter().any(|p| p.selectors(Out) == policy.selectors(Out));
            prop_assert!(is_hidden(i) || !twice, "{} is there twice", i);
        }
    }

    /// Whatever passes the check is built: every SA, tunnel, policy and egress is in the snapshot.
    #[test]
    fn what_is_not_refused_is_built_whole(
        spis in prop::collection::vec(254u32..260, 4),
        window in 30u16..34,
        ports in prop::collection::vec(prop::sample::select(vec!["lan", "wan", "east", "x"]), 0..3),
        inbound in prop::option::of(prop::sample::select(vec!["east-in", "site-in", "site-out"])),
    ) {
        let mut d = good();
        d.ipsec.sas.iter_mut().zip(spis).for_each(|(sa, spi)| sa.params.spi = spi);
        d.ipsec.sas[1].params.replay_window = window;
        d.ipsec.spds[0].ports = ports.iter().map(|p| p.to_string()).collect();
        if let Some(name) = inbound {
            d.ipsec.tunnels[0].inbound = vec![name.into()];
        }
        let refused = !check(&d).is_empty();
        let built = Control::with_ciphers(d.clone(), [up("eth0"), up("eth1")], 0, Arc::new(Clear));
        prop_assert_eq!(built.is_err(), refused);
        if let Ok(mut control) = built {
            let tables = control.take_snapshot().expect("the first");
            let ipsec = tables.ipsec.as_ref().expect("configured");
            prop_assert_eq!((ipsec.sad.iter().count(), ipsec.outbound.len()), (2, 2));
            prop_assert_eq!(ipsec.enforcement.iter().flatten().count(), d.ipsec.spds[0].ports.len());
            prop_assert!(ipsec.tunnels[0].out.len() == 1 && ipsec.spds[0].policies[0].inbound.len() == 1);
        }
    }
}

#[test]
fn what_protects_less_than_it_seems_is_doubted_and_built() {
    let mut d = good();
    let null = |integrity, alone| Suite::new(Encryption::Null, integrity, alone).expect("a suite");
    let old = Suite::new(Encryption::AesCbc128, Some(Integrity::HmacSha1_96), false).expect("a suite");
    d.ipsec.sas[0].params.suite = null(None, true);
    d.ipsec.sas[1].params.replay_window = 0;
    d.ipsec.sas[2].params.suite = old;
    d.ipsec.sas[3].params.suite = null(Some(Integrity::HmacSha256_128), false);
    let lines: Vec<String> = warnings(&d.ipsec).iter().map(|d| d.to_string()).collect();
    assert_eq!(
        lines,
        [
            "sa east-out: neither encrypts nor authenticates, so anyone can send by it; for benchmarks only",
            "sa east-in: has no replay window, so old packets can be sent again; give it 64 or more",
            "sa site-out: authenticates by HMAC-SHA-1, for old peers only (RFC 8221 6); choose hmac-sha2-256-128",
            "sa site-in: authenticates and does not encrypt; choose aes-gcm-256 to do both",
        ]
    );
    assert_eq!(warnings(&good().ipsec), []);
}
