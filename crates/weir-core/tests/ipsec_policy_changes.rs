//! Policies that come, go and change one by one; how SPDs are asked.

#[path = "bed/control.rs"]
mod bed;
#[path = "bed/ipsec.rs"]
mod ipsec_bed;

use std::sync::Arc;

use bed::{desired, port, up};
use ipsec_bed::{Clear, east_and_border, policy, protect};
use weir_core::control::{Control, PolicyChange};
use weir_core::ipsec::spd::{Action, Layer, LookupSpec};
use weir_core::state::{Desired, PolicySpec, check, diff};

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
    let errors = control.change_policies(0, "border", changes.to_vec()).expect_err("refused");
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
    control.change_policies(0, "border", vec![insert(0, first), insert(2, last)]).expect("valid");
    assert_eq!(names(&control), ["a", "site", "z"]);
    let other = policy("a", Action::Discard, "", "10.9.0.0/16");
    let remove = PolicyChange::Remove { name: "z".into() };
    let changes = vec![PolicyChange::Replace { policy: other }, remove];
    control.change_policies(0, "border", changes).expect("valid");
    assert_eq!(names(&control), ["a", "site"]);
    assert_eq!(control.desired().ipsec.spds[0].policies[0].action, Action::Discard);
    let spd = control.take_snapshot().and_then(|t| Some(t.ipsec.as_ref()?.spds[0].clone())).expect("one");
    assert_eq!(spd.policies.iter().filter(|p| p.name == "a" && p.action == Action::Discard).count(), 1);
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
            "sa site-out: is used by no tunnel and no policy; name it in one or remove it",
        ),
    ];
    for (bad, why) in cases {
        assert_eq!(said(&mut control, &[good.clone(), bad])[0], why);
        assert_eq!(control.desired(), &wish());
        assert!(control.take_snapshot().is_none());
    }
    let errors = control.change_policies(0, "bordr", vec![good]).expect_err("refused");
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
