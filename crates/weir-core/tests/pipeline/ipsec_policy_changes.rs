//! Policies that come, go and change one by one; how SPDs are asked.

use std::sync::Arc;

use crate::testbed::control::{desired, port, up};
use crate::testbed::ipsec::{Clear, HERE, THERE, east_and_border, policy, protect, sa};
use weir_core::control::{Control, PolicyChange, Rekey};
use weir_core::ipsec::Direction::{In, Out};
use weir_core::ipsec::Ipsec;
use weir_core::ipsec::flow_cache::BUCKETS;
use weir_core::ipsec::spd::{Action, Flow, Layer, LookupSpec, Transport, Way};
use weir_core::state::{Desired, PolicySpec, check, diff};
use weir_core::tables::Tables;

fn wish() -> Desired {
    let mut d = desired(&[port("lan", "eth0", &["192.0.2.1/24"]), port("wan", "eth1", &["198.51.100.1/24"])]);
    d.ipsec = east_and_border();
    d
}

fn control(desired: Desired) -> Control {
    let links = [up("eth0"), up("eth1")];
    Control::with_ciphers(desired, links, 0, Arc::new(Clear)).unwrap_or_else(|e| panic!("{e:?}"))
}

fn names(control: &Control) -> Vec<String> {
    control.desired().ipsec.spds[0].policies.iter().map(|p| p.name.clone()).collect()
}

fn said(control: &mut Control, changes: &[PolicyChange]) -> Vec<String> {
    let errors = control.change_policies("border", changes.to_vec()).expect_err("refused");
    errors.iter().map(|e| e.to_string()).collect()
}

fn insert(at: usize, policy: PolicySpec) -> PolicyChange {
    PolicyChange::Insert { at, policy }
}

#[test]
fn policies_come_change_and_go() {
    let mut control = control(wish());
    let (first, last) =
        (policy("a", Action::Bypass, "", "10.9.0.0/16"), policy("z", Action::Discard, "", ""));
    control.change_policies("border", vec![insert(0, first), insert(2, last)]).expect("valid");
    assert_eq!(names(&control), ["a", "site", "z"]);
    let other = policy("a", Action::Discard, "", "10.9.0.0/16");
    let remove = PolicyChange::Remove { name: "z".into() };
    let changes = vec![PolicyChange::Replace { policy: other }, remove];
    control.change_policies("border", changes).expect("valid");
    assert_eq!(names(&control), ["a", "site"]);
    assert_eq!(control.desired().ipsec.spds[0].policies[0].action, Action::Discard);
    let spd = control.take_snapshot().and_then(|t| Some(t.ipsec.as_ref()?.spds[0].clone())).expect("one");
    assert_eq!(spd.policies.iter().filter(|p| p.name == "a" && p.action == Action::Discard).count(), 1);
}

#[test]
fn policies_that_were_hidden_in_a_hurry_stay_so_whatever_else_changes() {
    let mut control = control(wish());
    let stop = policy("stop", Action::Discard, "", "");
    control.change_policies("border", vec![insert(0, stop)]).expect("in a hurry");
    let stopped = control.desired().clone();
    // Something else is wished for: a policy that was hidden before is no error of it.
    let mut more = stopped.clone();
    more.ports.push(port("dmz", "eth2", &["203.0.113.1/24"]));
    control.apply(0, more).expect("the policies are those that are there");
    assert_eq!(names(&control), ["stop", "site"]);
    // Other policies are judged as ever.
    let mut wrong = control.desired().clone();
    wrong.ipsec.spds[0].policies.push(policy("rest", Action::Bypass, "", ""));
    assert!(control.apply(0, wrong).is_err());
    // And there is a way back to them from a file without.
    control.apply(0, wish()).expect("valid");
    assert_eq!(names(&control), ["site"]);
    control.go_back(0, stopped).expect("it was good");
    assert_eq!(names(&control), ["stop", "site"]);
}

#[test]
fn refused_changes_say_why_and_change_nothing() {
    let mut control = control(wish());
    control.take_snapshot();
    let good = insert(0, policy("a", Action::Bypass, "", "10.9.0.0/16"));
    let cases = [
        (
            PolicyChange::Remove { name: "sit".into() },
            "spd border: policy `sit` does not exist; did you mean `site`?",
        ),
        (
            insert(3, policy("b", Action::Bypass, "", "")),
            "spd border: place is 3, expected 0 to 2, the end of its list; correct it",
        ),
        (
            insert(0, policy("site", Action::Bypass, "", "10.7.0.0/16")),
            "spd border: policy site: is configured twice; keep one or rename one",
        ),
        (
            insert(0, protect("b", "", "10.7.0.0/16", &["site-out"], &["site-on"])),
            "spd border: policy b: sa `site-on` does not exist; did you mean `site-in`?",
        ),
        (
            insert(0, protect("b", "", "10.7.0.0/16", &["east-out"], &["site-in"])),
            "spd border: policy b: sa east-out is used by tunnel east already, and an SA leads to one tunnel or one \
             SPD; give it SAs of its own",
        ),
        (
            insert(0, policy("b", Action::Bypass, "", "10.9.0.9-10.9.0.1")),
            "spd border: policy b: range 10.9.0.9-10.9.0.1 ends before it begins; swap its ends",
        ),
        (
            PolicyChange::Remove { name: "site".into() },
            "sa site-in: is used by no tunnel and no policy; name it in one or remove it",
        ),
    ];
    for (bad, why) in cases {
        assert_eq!(said(&mut control, &[good.clone(), bad])[0], why);
        assert_eq!(control.desired(), &wish());
        assert!(control.take_snapshot().is_none());
    }
    let errors = control.change_policies("bordr", vec![good]).expect_err("refused");
    assert_eq!(errors[0].to_string(), "ipsec: spd `bordr` does not exist; did you mean `border`?");
}

#[test]
fn flow_caches_of_absurd_sizes_are_refused_with_the_memory_they_would_take() {
    let said = |caches| {
        let mut d = wish();
        d.ipsec.lookup = LookupSpec { caches, ..LookupSpec::default() };
        check(&d).iter().map(|e| e.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        said([None, Some(0), None, None]),
        [
            "spd flow cache ipv4-inbound: has 0 buckets, expected 1 to 2147483648; 4194304 is usual, or switch it off"
        ]
    );
    assert_eq!(
        said([None, None, None, Some(u32::MAX)]),
        [
            "spd flow cache ipv6-inbound: has 4294967295 buckets, which would take 256 GiB, expected 1 to 2147483648; \
          4194304 is usual"
        ]
    );
    assert_eq!(
        said([Some(1 << 20), None, Some(1 << 31), None]),
        [
            "spd flow cache ipv6-outbound: with the others takes 128 GiB, expected at most 64 GiB for all; write fewer \
          buckets"
        ]
    );
    assert_eq!(said([Some(1 << 22); 4]), [""; 0]);
}

#[test]
fn how_spds_are_asked_is_said_as_an_operator_reads_it() {
    let (old, mut new) = (wish(), wish());
    new.ipsec.lookup =
        LookupSpec { caches: [None, Some(4_194_304), None, None], layer: Layer::Scan, oracle: true };
    let lines =
        |old: &Desired, new: &Desired| diff(old, new).iter().map(|a| a.to_string()).collect::<Vec<_>>();
    assert_eq!(
        lines(&old, &new),
        [
            "~ spd flow cache ipv4-inbound: off → 4194304 buckets, 128 MiB",
            "~ spd classifier: auto → off",
            "~ spd oracle: off → on"
        ]
    );
    assert_eq!(lines(&new, &old)[0], "~ spd flow cache ipv4-inbound: 4194304 buckets, 128 MiB → off");
}

fn ipsec(tables: &Tables) -> &Ipsec {
    tables.ipsec.as_deref().expect("IPsec is there")
}

fn next(control: &mut Control) -> Arc<Tables> {
    control.take_snapshot().expect("something changed")
}

#[test]
fn changed_policy_leaves_everything_else_shared() {
    let mut control = control(wish());
    let before = next(&mut control);
    let outbound = PolicySpec { direction: Some(Out), ..policy("a", Action::Bypass, "", "10.9.0.0/16") };
    control.change_policies("border", vec![insert(0, outbound.clone())]).expect("valid");
    let one_by_one = next(&mut control);
    let mut d = control.desired().clone();
    d.ipsec.spds[0].policies.replace(0, PolicySpec { action: Action::Discard, ..outbound });
    control.apply(0, d).expect("valid");
    for after in [one_by_one, next(&mut control)] {
        assert!(Arc::ptr_eq(&before.fib4, &after.fib4) && Arc::ptr_eq(&before.ports, &after.ports));
        let (was, is) = (ipsec(&before), ipsec(&after));
        assert!(Arc::ptr_eq(&was.sad, &is.sad) && Arc::ptr_eq(&was.outbound, &is.outbound));
        assert!(Arc::ptr_eq(&was.tunnels, &is.tunnels) && Arc::ptr_eq(&was.queues, &is.queues));
        assert!(Arc::ptr_eq(&was.enforcement, &is.enforcement) && Arc::ptr_eq(&was.udp_ports, &is.udp_ports));
        assert!(Arc::ptr_eq(&was.caches, &is.caches));
        let (was, is) = (&was.spds[0], &is.spds[0]);
        assert!(Arc::ptr_eq(&was.inbound, &is.inbound) && !Arc::ptr_eq(&was.outbound, &is.outbound));
        assert_eq!(was.epoch(In), is.epoch(In));
        assert_ne!(was.epoch(Out), is.epoch(Out));
    }
}

#[test]
fn policy_that_changes_goes_on_counting() {
    let mut control = control(wish());
    ipsec(&next(&mut control)).spds[0].policies[0].counters.count(Out, 99);
    let mut site = control.desired().ipsec.spds[0].policies[0].clone();
    site.protocol = Some(17);
    control.change_policies("border", vec![PolicyChange::Replace { policy: site.clone() }]).expect("valid");
    assert_eq!(control.policies()[0].out_bytes, 99);
    site.protocol = Some(6);
    let mut d = control.desired().clone();
    d.ipsec.spds[0].policies.replace(0, site);
    control.apply(0, d).expect("valid");
    assert_eq!(control.policies()[0].out_bytes, 99);
}

#[test]
fn flow_caches_are_kept_until_they_are_configured_otherwise() {
    let mut d = wish();
    d.ipsec.lookup.caches = [Some(100), None, None, Some(64)];
    let mut control = control(d.clone());
    let first = next(&mut control);
    let buckets = |tables: &Tables| Way::ALL.map(|w| ipsec(tables).caches.get(w).map(|c| c.buckets()));
    assert_eq!(buckets(&first), [Some(128), None, None, Some(64)]);
    let more = insert(0, policy("a", Action::Bypass, "", "10.9.0.0/16"));
    control.change_policies("border", vec![more]).expect("valid");
    let second = next(&mut control);
    assert!(Arc::ptr_eq(&ipsec(&first).caches, &ipsec(&second).caches));
    // What the caches learned of rules would be another thing's epoch in new ones.
    d = control.desired().clone();
    d.ipsec.lookup.caches[0] = None;
    d.ipsec.lookup.oracle = true;
    control.apply(0, d).expect("valid");
    let third = next(&mut control);
    assert!(!Arc::ptr_eq(&ipsec(&second).caches, &ipsec(&third).caches) && ipsec(&third).oracle);
    assert_eq!(buckets(&third), [None, None, None, Some(64)]);
    assert!(Arc::ptr_eq(&ipsec(&second).spds[0].outbound, &ipsec(&third).spds[0].outbound));
}

#[test]
fn without_ipsec_no_memory_is_taken_whatever_its_options_are() {
    let mut d = wish();
    d.ipsec = Default::default();
    d.ipsec.lookup = LookupSpec { caches: [Some(BUCKETS); 4], layer: Layer::Classifier, oracle: true };
    let mut control = control(d);
    assert!(next(&mut control).ipsec.is_none());
}

#[test]
fn what_workers_hold_goes_on_answering_by_its_own_rules() {
    let mut control = control(wish());
    let flow = Flow {
        source: "192.0.2.7".parse().expect("address"),
        destination: "10.2.0.1".parse().expect("address"),
        protocol: 17,
        transport: Transport::Ports { source: 1, destination: 2 },
    };
    let found = |tables: &Tables| {
        let spd = &ipsec(tables).spds[0];
        spd.find(Out, &flow).map(|p| p.name.clone())
    };
    let mut held: Vec<(Arc<Tables>, String)> = vec![(next(&mut control), "site".into())];
    for n in 0..100 {
        // Each comes before all others and matches; every third leaves again.
        let name = format!("p{n}");
        control
            .change_policies("border", vec![insert(0, policy(&name, Action::Bypass, "", ""))])
            .expect("valid");
        held.push((next(&mut control), name.clone()));
        if n % 3 == 0 {
            control.change_policies("border", vec![PolicyChange::Remove { name }]).expect("valid");
            let left = held.iter().rev().nth(1).map_or("site".into(), |(_, name)| name.clone());
            held.push((next(&mut control), left));
        }
        // Some workers are slower than others.
        if n % 7 == 0 {
            held.remove(n % 5);
        }
        for (tables, name) in &held {
            assert_eq!(found(tables).as_ref(), Some(name));
        }
    }
}

#[test]
fn sa_that_drains_follows_the_policies_that_named_it() {
    let mut control = control(wish());
    next(&mut control);
    let twin = protect("twin", "192.0.2.0/24", "10.3.0.0/16", &["site-out"], &["site-in"]);
    control.change_policies("border", vec![insert(1, twin)]).expect("valid");
    let new = sa("site-in-2", In, 0x2012, (THERE, HERE));
    control.rekey(0, Rekey { inbound: Some(("site-in".into(), new)), outbound: None }).expect("valid");
    let accepted = |tables: &Tables| {
        let lets = |name: &str| {
            let policy = ipsec(tables).spds[0].policies.iter().find(|p| p.name == name);
            policy.map(|p| p.inbound.len())
        };
        (lets("site"), lets("twin"), ipsec(tables).sad.iter().count())
    };
    // The tunnel's, the new and the old one.
    assert_eq!(accepted(&next(&mut control)), (Some(2), Some(2), 3));
    let mut site = control.desired().ipsec.spds[0].policies[0].clone();
    site.protocol = Some(17);
    control.change_policies("border", vec![PolicyChange::Replace { policy: site.clone() }]).expect("valid");
    assert_eq!(accepted(&next(&mut control)), (Some(2), Some(2), 3));
    control.change_policies("border", vec![PolicyChange::Remove { name: "twin".into() }]).expect("valid");
    assert_eq!(accepted(&next(&mut control)), (Some(2), None, 3));
    // Nobody is left who named it.
    site.name = "other".into();
    let last = vec![insert(0, site), PolicyChange::Remove { name: "site".into() }];
    control.change_policies("border", last).expect("valid");
    let tables = next(&mut control);
    let other = ipsec(&tables).spds[0].policies.iter().find(|p| p.name == "other").map(|p| p.inbound.len());
    assert_eq!((other, accepted(&tables).2), (Some(1), 2));
}
