//! The difference of two wishes in IPsec, as actions and as the lines an operator reads.

use std::collections::BTreeMap;

use crate::testbed::control::{address, desired, port};
use crate::testbed::ipsec::{policy, protect, sa, spd, tunnel};
use proptest::prelude::*;
use weir_core::ipsec::Direction::{In, Out};
use weir_core::ipsec::spd;
use weir_core::ipsec::{SaSpec, Secret};
use weir_core::state::{
    Action, Desired, IpsecAction, IpsecSpec, LookupChange, PolicySpec, SpdSpec, TunnelSpec, diff,
};

const ENDS: (&str, &str) = ("198.51.100.1", "198.51.100.2");

/// Whether every SA that is named is there: true between any two steps of a rekey.
fn names_exist(d: &IpsecSpec) -> bool {
    let known = |name: &String| d.sas.iter().any(|s| s.name == *name);
    let policies = d.spds.iter().flat_map(|s| &s.policies);
    d.tunnels.iter().flat_map(|t| t.out.iter().chain(&t.inbound)).all(known)
        && policies.flat_map(|p| p.out.iter().chain(&p.inbound)).all(known)
}

/// What each action means, step by step.
fn perform(d: &mut IpsecSpec, action: IpsecAction) {
    fn at<T>(all: &[T], is: impl Fn(&T) -> bool) -> usize {
        all.iter().position(is).expect("it is there")
    }
    fn spd_of<'a>(d: &'a mut IpsecSpec, name: &str) -> &'a mut SpdSpec {
        let i = at(&d.spds, |s| s.name == name);
        &mut d.spds[i]
    }
    match action {
        IpsecAction::AddSa(sa) => d.sas.push(*sa),
        IpsecAction::RemoveSa(sa) => _ = d.sas.remove(at(&d.sas, |s| *s == *sa)),
        IpsecAction::ChangeSa(change) => {
            let i = at(&d.sas, |s| *s == change.old);
            d.sas[i] = change.new;
        }
        IpsecAction::AddTunnel(tunnel) => d.tunnels.push(*tunnel),
        IpsecAction::RemoveTunnel(tunnel) => _ = d.tunnels.remove(at(&d.tunnels, |t| *t == *tunnel)),
        IpsecAction::ChangeTunnel(change) => {
            let i = at(&d.tunnels, |t| *t == change.old);
            d.tunnels[i] = change.new;
        }
        IpsecAction::AddSpd(spd) => d.spds.push(*spd),
        IpsecAction::RemoveSpd(spd) => _ = d.spds.remove(at(&d.spds, |s| *s == *spd)),
        IpsecAction::Enforce { spd, port } => spd_of(d, &spd).ports.push(port),
        IpsecAction::Release { spd, port } => {
            let ports = &mut spd_of(d, &spd).ports;
            ports.remove(at(ports, |p| *p == port));
        }
        IpsecAction::ChangeDefault { spd, old, new } => {
            assert_eq!(std::mem::replace(&mut spd_of(d, &spd).default, new), old);
        }
        IpsecAction::ChangeRouteMode { spd, new } => spd_of(d, &spd).route_mode = new,
        IpsecAction::RemovePolicy { spd, policy } => {
            let policies = &mut spd_of(d, &spd).policies;
            policies.remove(policies.iter().position(|p| *p == *policy).expect("it is there"));
        }
        IpsecAction::ChangePolicy { spd, change } => {
            let policies = &mut spd_of(d, &spd).policies;
            let i = policies.iter().position(|p| *p == change.old).expect("it is there");
            policies[i] = change.new;
        }
        IpsecAction::OrderPolicies { spd, order } => {
            spd_of(d, &spd).policies.sort_by_key(|p| order.iter().position(|name| *name == p.name));
        }
        IpsecAction::AddPolicy { spd, at, policy } => spd_of(d, &spd).policies.insert(at, *policy),
        IpsecAction::ChangeLookup(change) => match change {
            LookupChange::Cache { way, old, new } => {
                assert_eq!(std::mem::replace(&mut d.lookup.caches[way as usize], new), old);
            }
            LookupChange::Layer { old, new } => {
                assert_eq!(std::mem::replace(&mut d.lookup.layer, new), old);
            }
            LookupChange::Oracle(on) => d.lookup.oracle = on,
        },
    }
}

fn canonical(mut d: IpsecSpec) -> IpsecSpec {
    d.sas.sort_by(|a, b| a.name.cmp(&b.name));
    d.tunnels.sort_by(|a, b| a.name.cmp(&b.name));
    d.spds.sort_by(|a, b| a.name.cmp(&b.name));
    d.spds.iter_mut().for_each(|s| s.ports.sort());
    d
}

fn sas() -> impl Strategy<Value = Vec<SaSpec>> {
    let fields = (any::<bool>(), 256u32..259, 0u8..2, 63u8..65, prop::option::of(1u64..3));
    prop::collection::btree_map("[a-d]", fields, 0..5).prop_map(|all| {
        let spec =
            |(name, (out, spi, key, hop_limit, packets)): (String, (bool, u32, u8, u8, Option<u64>))| {
                let mut spec = sa(&name, if out { Out } else { In }, spi, ENDS);
                spec.keys.encryption = Secret::new(vec![key; 20]);
                spec.params.hop_limit = hop_limit;
                spec.params.soft.packets = packets;
                spec
            };
        all.into_iter().map(spec).collect()
    })
}

/// Some of the SAs there are.
fn some_of(names: &[String], picks: &[prop::sample::Index]) -> Vec<String> {
    if names.is_empty() {
        return Vec::new();
    }
    picks.iter().map(|pick| pick.get(names).clone()).collect()
}

fn wish() -> impl Strategy<Value = IpsecSpec> {
    let picks = || prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    let tunnels =
        prop::collection::btree_map("[t-w]", (picks(), picks(), prop::option::of(1400u16..1402)), 0..4);
    let policies = prop::collection::vec(("[p-s]", picks(), 0u8..3, 0u8..2), 0..5);
    let ports = prop::collection::btree_set("[x-z]", 0..3);
    let spds = prop::collection::btree_map("[k-m]", (ports, any::<bool>(), policies), 0..3);
    (sas(), tunnels, spds).prop_map(|(sas, tunnels, spds)| {
        let names: Vec<String> = sas.iter().map(|s| s.name.clone()).collect();
        let tunnel = |(name, (out, inbound, mtu)): (String, (Vec<_>, Vec<_>, Option<u16>))| TunnelSpec {
            out: some_of(&names, &out),
            inbound: some_of(&names, &inbound),
            mtu,
            ..tunnel(&name, &[], &[])
        };
        let one = |(name, out, action, net): (String, Vec<_>, u8, u8)| {
            let action = [spd::Action::Protect, spd::Action::Bypass, spd::Action::Discard][action as usize];
            let spec = policy(&name, action, &format!("10.{net}.0.0/16"), "");
            (name, PolicySpec { out: some_of(&names, &out), ..spec })
        };
        let spd = |(name, (ports, discard, policies)): (String, (_, bool, Vec<_>))| {
            let mut seen = BTreeMap::new();
            let policies: Vec<(String, PolicySpec)> = policies.into_iter().map(one).collect();
            let policies = policies.into_iter().filter(|(name, _)| seen.insert(name.clone(), ()).is_none());
            SpdSpec {
                ports: std::collections::BTreeSet::<String>::into_iter(ports).collect(),
                default: if discard { spd::Action::Discard } else { spd::Action::Bypass },
                policies: policies.map(|(_, p)| p).collect(),
                ..spd(&name, &[], &[])
            }
        };
        let tunnels = tunnels.into_iter().map(tunnel).collect();
        let spds = spds.into_iter().map(spd).collect();
        IpsecSpec { sas, tunnels, spds, ..IpsecSpec::default() }
    })
}

fn with(ipsec: IpsecSpec) -> Desired {
    Desired { ipsec, ..Desired::default() }
}

fn difference(a: &IpsecSpec, b: &IpsecSpec) -> Vec<IpsecAction> {
    let only = |action| match action {
        Action::Ipsec(action) => action,
        other => panic!("{other} is not IPsec"),
    };
    diff(&with(a.clone()), &with(b.clone())).into_iter().map(only).collect()
}

proptest! {
    #[test]
    fn performing_the_difference_leads_from_one_to_the_other(a in wish(), b in wish()) {
        let mut walked = a.clone();
        for action in difference(&a, &b) {
            perform(&mut walked, action);
            prop_assert!(names_exist(&walked), "an SA is named that is not there");
        }
        prop_assert_eq!(canonical(walked), canonical(b));
    }

    #[test]
    fn equal_wishes_differ_by_nothing(a in wish(), turn in 0usize..8) {
        prop_assert_eq!(difference(&a, &a), []);
        let mut turned = a.clone();
        let (sas, tunnels, spds) = (a.sas.len().max(1), a.tunnels.len().max(1), a.spds.len().max(1));
        turned.sas.rotate_left(turn % sas);
        turned.tunnels.rotate_left(turn % tunnels);
        turned.spds.rotate_left(turn % spds);
        turned.spds.iter_mut().for_each(|s| s.ports.reverse());
        prop_assert_eq!(difference(&a, &turned), [], "orders that mean nothing");
    }

    #[test]
    fn every_action_is_one_line_without_a_key(a in wish(), b in wish()) {
        for action in difference(&a, &b) {
            let line = action.to_string();
            prop_assert!(line.starts_with(['+', '-', '~']) && !line.contains('\n'), "{}", line);
            prop_assert!(!line.ends_with(": "), "{} says nothing", line);
        }
    }
}

#[test]
fn lines_read_as_an_operator_writes() {
    let mut old = desired(&[port("wan", "eth1", &["198.51.100.1/24"])]);
    old.ipsec = IpsecSpec {
        sas: vec![
            sa("out", Out, 0x1001, ENDS),
            sa("in", In, 0x1002, (ENDS.1, ENDS.0)),
            sa("old", Out, 0x2001, ENDS),
        ],
        tunnels: vec![tunnel("east", &["out"], &["in"]), tunnel("west", &["old"], &[])],
        spds: vec![spd(
            "border",
            &["wan"],
            &[
                policy("ping", spd::Action::Bypass, "", ""),
                policy("rest", spd::Action::Discard, "", "10.0.0.0/8"),
            ],
        )],
        ..IpsecSpec::default()
    };
    let mut new = old.clone();
    new.ipsec.sas.truncate(2);
    new.ipsec.sas[0].params.spi = 0x1003;
    new.ipsec.sas[0].keys.encryption = Secret::new(vec![77; 20]);
    new.ipsec.sas.push(sa("site", Out, 0x3001, ENDS));
    new.ipsec.tunnels.truncate(1);
    new.ipsec.tunnels[0].mtu = Some(1400);
    new.ipsec.tunnels[0].addresses = vec![address("10.9.0.1/30")];
    new.ports.push(port("dmz", "eth2", &[]));
    let border = &mut new.ipsec.spds[0];
    border.ports.push("dmz".into());
    border.default = spd::Action::Bypass;
    border.policies.remove(0);
    border.policies[0].protocol = Some(17);
    let mut site = protect("site", "192.0.2.0/24", "10.2.0.0/16", &["site"], &[]);
    site.direction = Some(Out);
    border.policies.insert(0, site);
    let lines: Vec<String> = diff(&old, &new).iter().map(|a| a.to_string()).collect();
    assert_eq!(
        lines,
        [
            "- tunnel west",
            "+ port dmz on device eth2",
            "~ sa out: spi 0x1001 → 0x1003, other keys",
            "+ sa site: outbound, spi 0x3001, from 198.51.100.1, to 198.51.100.2, aes-gcm-128, replay window 64",
            "~ tunnel east: mtu that fits → 1400, addresses none → 10.9.0.1/30 (weir)",
            "~ spd border: enforced on port dmz",
            "~ spd border: default discard → bypass",
            "- policy ping of spd border",
            "~ policy rest of spd border: protocol none → 17",
            "+ policy site of spd border, number 1: protect, only outbound, local 192.0.2.0-192.0.2.255, \
             remote 10.2.0.0-10.2.255.255, out site",
            "- sa old, spi 0x2001",
        ]
    );
}

#[test]
fn order_of_policies_matters() {
    let policies = [policy("a", spd::Action::Bypass, "", ""), policy("b", spd::Action::Discard, "", "")];
    let mut turned = policies.clone();
    turned.reverse();
    let of =
        |policies: &[PolicySpec]| IpsecSpec { spds: vec![spd("s", &[], policies)], ..IpsecSpec::default() };
    let lines: Vec<String> = difference(&of(&policies), &of(&turned)).iter().map(|a| a.to_string()).collect();
    assert_eq!(lines, ["~ spd s: policy order b, a"]);
}
