//! What a change of policies costs: from the call to the snapshot.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use weir_core::control::{Control, PolicyChange};
use weir_core::ipsec::spd::synthetic::{Family, Shape, rules};
use weir_core::ipsec::spd::{Action, PortRange, Selector};
use weir_core::random::SplitMix64;
use weir_core::state::{Desired, PolicySpec, SpdSpec};
use weir_core::tables::Tables;

use super::{SEED, best, link, wish};

const SPD: &str = "border";

/// A selector as an operator writes it: our side is the source of what leaves.
fn policy(number: usize, s: &Selector) -> PolicySpec {
    PolicySpec {
        name: format!("rule-{number}"),
        direction: None,
        local: vec![s.source],
        remote: vec![s.destination],
        protocol: s.protocol,
        local_ports: s.source_ports,
        remote_ports: s.destination_ports,
        icmp: PortRange::ANY,
        action: Action::Discard,
        out: Vec::new(),
        inbound: Vec::new(),
    }
}

fn guarded(policies: &[PolicySpec]) -> Desired {
    let mut desired = wish(1);
    let (name, ports, policies) = (SPD.into(), vec!["p1".into()], policies.to_vec().into());
    desired.ipsec.spds = vec![SpdSpec { name, ports, default: Action::Bypass, policies, route_mode: None }];
    desired
}

/// Median, 99th percentile and longest time of changes in microseconds.
fn summary(mut times: Vec<f64>) -> (f64, f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100], times[times.len() - 1])
}

/// Policies leave and come at random places; `hold` says how many of the last snapshots a worker has.
fn churn(control: &mut Control, updates: usize, hold: usize) -> Vec<f64> {
    let mut random = SplitMix64::new(SEED);
    let mut out: Vec<PolicySpec> = Vec::new();
    let mut held: Vec<Arc<Tables>> = Vec::new();
    let mut times = Vec::new();
    for turn in 0..updates {
        let policies = &control.desired().ipsec.spds[0].policies;
        let at = random.below(policies.len() as u64) as usize;
        let change = match out.pop().filter(|_| turn % 2 == 1) {
            Some(policy) => PolicyChange::Insert { at, policy },
            None => {
                out.push(policies[at].clone());
                PolicyChange::Remove { name: policies[at].name.clone() }
            }
        };
        let start = Instant::now();
        control.change_policies(SPD, vec![change]).expect("valid");
        let tables = control.take_snapshot().expect("changed");
        times.push(start.elapsed().as_secs_f64() * 1e6);
        held.push(tables);
        if held.len() > hold {
            held.remove(0);
        }
    }
    times
}

pub(super) fn measure(shape: Shape, count: usize, updates: usize, repeats: usize) {
    let rules = rules(shape, Family::V4, count, SEED);
    let policies: Vec<PolicySpec> = rules.iter().enumerate().map(|(i, s)| policy(i, s)).collect();
    let (all, mut fewer) = (guarded(&policies), policies.clone());
    fewer.remove(count / 2);
    let fewer = guarded(&fewer);
    let name = format!("{} {}", policies.len(), shape.name());
    let show = |what: &str, ms: f64| println!("{name:>16} policies  {what:44} {ms:10.3} ms");
    let links = || [link(0, true), link(1, true)];
    let new = || Control::new(all.clone(), links(), 0).unwrap_or_else(|e| panic!("{}", e[0]));
    show("new", best(repeats, || (), |()| _ = black_box(new().take_snapshot())));
    let mut control = new();
    control.take_snapshot();
    show("plan one more policy", best(repeats, || (), |()| _ = black_box(control.plan(&fewer))));
    if let Some(ipsec) = &control.tables().ipsec {
        let bytes = ipsec.spds[0].outbound.memory();
        println!("{name:>16} policies  rules of a direction take {bytes} B, {} B each", bytes / count.max(1));
    }
    let mut turn = false;
    let apply = best(
        2 * repeats,
        || {
            turn = !turn;
            if turn { fewer.clone() } else { all.clone() }
        },
        |wish| {
            control.apply(0, wish).expect("valid");
            black_box(control.take_snapshot().expect("changed"));
        },
    );
    show("apply one policy more or less", apply);
    for (what, hold) in [("one policy more or less", 0), ("the same, two snapshots held", 2)] {
        // The first call after an apply looks at all.
        churn(&mut control, 4, 0);
        let (median, most, max) = summary(churn(&mut control, updates, hold));
        println!("{name:>16} policies  {what:44} {median:10.3} us  99 % {most:.3} us  longest {max:.3} us");
    }
}
