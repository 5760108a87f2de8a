//! Whatever is changed after whatever, one by one or by a whole wish: what is refused is what a look at all
//! refuses, and what is there is what would be there had it been wished for at once.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::testbed::control::{desired, port, up};
use crate::testbed::ipsec::{Clear, HERE, THERE, policy, sa, spd};
use proptest::prelude::*;
use weir_core::control::{Control, PolicyChange};
use weir_core::ipsec::Direction::{self, In, Out};
use weir_core::ipsec::spd::{Action, Flow, Layer, LookupSpec, PortRange, Transport, Way};
use weir_core::ipsec::{Ipsec, Spd};
use weir_core::state::{Desired, Error, Policies, PolicySpec, SaProblem, check};

const SPDS: [&str; 2] = ["border", "inner"];

/// A policy of the walk. One port apart and four wide, policies overlap and none is hidden.
#[derive(Clone, Copy, Debug)]
struct Draw {
    name: u8,
    /// Bypass, discard, or protect by one of two pairs of SAs.
    action: u8,
    direction: Option<Direction>,
    /// Names an SA too many.
    wrong: bool,
}

fn draw() -> impl Strategy<Value = Draw> {
    let direction = prop_oneof![4 => Just(None), 1 => Just(Some(In)), 1 => Just(Some(Out))];
    (0u8..8, 0u8..4, direction, prop::bool::weighted(0.05))
        .prop_map(|(name, action, direction, wrong)| Draw { name, action, direction, wrong })
}

fn spec(draw: Draw) -> PolicySpec {
    let action =
        [Action::Bypass, Action::Discard, Action::Protect, Action::Protect][usize::from(draw.action)];
    let mut spec = policy(&format!("p{}", draw.name), action, "", "");
    let first = u16::from(draw.name);
    (spec.protocol, spec.remote_ports) = (Some(17), PortRange { first, last: first + 3 });
    spec.direction = draw.direction;
    if action == Action::Protect {
        let of = |way: &str| vec![format!("{way}-{}", draw.action)];
        spec.out = if spec.applies(Out) { of("out") } else { Vec::new() };
        spec.inbound = if spec.applies(In) { of("in") } else { Vec::new() };
    }
    if draw.wrong {
        spec.out.push("in-2".into());
    }
    spec
}

#[derive(Clone, Copy, Debug)]
enum Edit {
    Insert(usize, Draw),
    Remove(u8),
    Replace(Draw),
}

#[derive(Clone, Debug)]
enum Step {
    Changes(usize, Vec<Edit>),
    Wish(usize, Vec<Draw>, LookupSpec),
    Turn(usize),
}

fn lookup() -> impl Strategy<Value = LookupSpec> {
    let cache = || prop_oneof![Just(None), Just(Some(16u32)), Just(Some(50)), Just(Some(64))];
    let layer = prop_oneof![Just(Layer::Auto), Just(Layer::Scan), Just(Layer::Classifier)];
    ([cache(), cache(), cache(), cache()], layer, any::<bool>())
        .prop_map(|(caches, layer, oracle)| LookupSpec { caches, layer, oracle })
}

fn step() -> impl Strategy<Value = Step> {
    let edit = prop_oneof![
        3 => (0usize..10, draw()).prop_map(|(at, draw)| Edit::Insert(at, draw)),
        1 => (0u8..8).prop_map(Edit::Remove),
        1 => draw().prop_map(Edit::Replace),
    ];
    prop_oneof![
        6 => (0usize..2, prop::collection::vec(edit, 1..3)).prop_map(|(spd, edits)| Step::Changes(spd, edits)),
        1 => (0usize..2, prop::collection::vec(draw(), 0..6), lookup())
            .prop_map(|(spd, draws, lookup)| Step::Wish(spd, draws, lookup)),
        1 => (0usize..2).prop_map(Step::Turn),
    ]
}

/// Two SPDs; what always stays names each SA, so that none is unused.
fn start() -> Desired {
    let mut d = desired(&[port("lan", "eth0", &["192.0.2.1/24"]), port("wan", "eth1", &["198.51.100.1/24"])]);
    for (i, n) in [2u32, 3].into_iter().enumerate() {
        d.ipsec.sas.push(sa(&format!("out-{n}"), Out, 0x1000 + n, (HERE, THERE)));
        d.ipsec.sas.push(sa(&format!("in-{n}"), In, 0x1000 + n, (THERE, HERE)));
        let mut stays = spec(Draw { name: 20, action: n as u8, direction: None, wrong: false });
        stays.name = "stays".into();
        d.ipsec.spds.push(spd(SPDS[i], &[["wan"], ["lan"]][i], &[stays]));
    }
    d
}

/// The list after the changes; `None` where one of them has no place to be.
fn edited(mut policies: Policies, edits: &[Edit]) -> Option<Policies> {
    for edit in edits {
        let place = |name: &str| policies.iter().position(|p| p.name == name);
        match *edit {
            Edit::Insert(at, draw) => {
                let fresh = spec(draw);
                if at > policies.len() || place(&fresh.name).is_some() {
                    return None;
                }
                policies.insert(at, fresh);
            }
            Edit::Remove(name) => _ = policies.remove(place(&format!("p{name}"))?),
            Edit::Replace(draw) => {
                let fresh = spec(draw);
                policies.replace(place(&fresh.name)?, fresh);
            }
        }
    }
    Some(policies)
}

fn change(edit: Edit) -> PolicyChange {
    match edit {
        Edit::Insert(at, draw) => PolicyChange::Insert { at, policy: spec(draw) },
        Edit::Remove(name) => PolicyChange::Remove { name: format!("p{name}") },
        Edit::Replace(draw) => PolicyChange::Replace { policy: spec(draw) },
    }
}

fn control(desired: Desired) -> Control {
    let links = [up("eth0"), up("eth1")];
    Control::with_ciphers(desired, links, 0, Arc::new(Clear)).unwrap_or_else(|e| panic!("{e:?}"))
}

fn ipsec(control: &mut Control) -> Arc<Ipsec> {
    control.take_snapshot();
    control.tables().ipsec.clone().expect("SPDs are there")
}

/// What an SPD decides about every port of the walk.
fn decisions(spd: &Spd) -> Vec<String> {
    let address = Ipv4Addr::new(10, 0, 0, 1).into();
    let mut all = Vec::new();
    for (direction, port) in [In, Out].into_iter().flat_map(|d| (0..26).map(move |port| (d, port))) {
        // The far side's port.
        let transport = match direction {
            In => Transport::Ports { source: port, destination: 9 },
            Out => Transport::Ports { source: 9, destination: port },
        };
        let flow = Flow { source: address, destination: address, protocol: 17, transport };
        let policy = spd.find(direction, &flow).map(|p| {
            let out: Vec<&str> = p.out.iter().map(|sa| sa.name.as_str()).collect();
            format!("{} {} out {out:?} inbound {}", p.name, p.action, p.inbound.len())
        });
        all.push(format!("{direction:?} {port} {policy:?}"));
    }
    all
}

fn is_as_if_new(control: &mut Control) -> Result<(), TestCaseError> {
    let (is, wish) = (ipsec(control), control.desired().clone());
    let mut fresh = self::control(wish.clone());
    let expected = ipsec(&mut fresh);
    for (is, expected) in is.spds.iter().zip(&expected.spds) {
        prop_assert_eq!(&is.name, &expected.name);
        prop_assert_eq!(decisions(is), decisions(expected));
    }
    prop_assert_eq!(is.spds.len(), expected.spds.len());
    prop_assert_eq!(
        (&is.queues, &is.enforcement, is.oracle),
        (&expected.queues, &expected.enforcement, expected.oracle)
    );
    for way in Way::ALL {
        let buckets = |ipsec: &Ipsec| ipsec.caches.get(way).map(|cache| cache.buckets());
        prop_assert_eq!(buckets(&is), wish.ipsec.lookup.buckets(way).map(u32::next_power_of_two));
        prop_assert_eq!(buckets(&is), buckets(&expected));
    }
    prop_assert_eq!(control.spds(), fresh.spds());
    let names = |c: &Control| c.policies().into_iter().map(|p| (p.spd, p.policy)).collect::<Vec<_>>();
    prop_assert_eq!(names(control), names(&fresh));
    Ok(())
}

proptest! {
    // Each case builds a control side anew at every step.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn changes_one_by_one_come_to_what_a_wish_comes_to(steps in prop::collection::vec(step(), 1..24)) {
        let mut control = control(start());
        for step in steps {
            let mut wish = control.desired().clone();
            match step {
                Step::Changes(at, edits) => {
                    let before = control.desired().clone();
                    // Only at the end does every SA have to be used.
                    let good = (1..=edits.len()).all(|n| {
                        let edited = edited(before.ipsec.spds[at].policies.clone(), &edits[..n]);
                        edited.is_some_and(|policies| {
                            wish.ipsec.spds[at].policies = policies;
                            let unused = |e: &Error| e.problem == SaProblem::Unused.into();
                            check(&wish).iter().all(|e| n < edits.len() && unused(e))
                        })
                    });
                    let changes = edits.into_iter().map(change).collect();
                    let told = control.change_policies(SPDS[at], changes);
                    prop_assert_eq!(told.is_ok(), good, "{:?} {:?}", told, check(&wish));
                    prop_assert_eq!(control.desired(), if good { &wish } else { &before });
                }
                Step::Wish(at, draws, lookup) => {
                    let stays = wish.ipsec.spds[at].policies.iter().find(|p| p.name == "stays").cloned();
                    wish.ipsec.spds[at].policies = draws.into_iter().map(spec).chain(stays).collect();
                    wish.ipsec.lookup = lookup;
                    // Some are refused.
                    let _ = control.apply(0, wish);
                }
                Step::Turn(at) => {
                    let policies = &mut wish.ipsec.spds[at].policies;
                    *policies = policies.iter().rev().cloned().collect();
                    control.apply(0, wish).expect("order alone is never wrong");
                }
            }
            is_as_if_new(&mut control)?;
        }
    }
}
