//! Whatever is applied after whatever: no sequence number is given out twice with one key, no window
//! begins again, and a snapshot agrees with itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::testbed::control::{desired, port, up};
use crate::testbed::ipsec::{Clear, policy, protect, sa, spd, tunnel};
use proptest::prelude::*;
use weir_core::control::{Control, DRAIN};
use weir_core::ipsec::Direction::{In, Out};
use weir_core::ipsec::spd::Action;
use weir_core::ipsec::{Ipsec, Queue, SaSpec, Secret};
use weir_core::state::Desired;
use weir_core::tables::Tables;
use weir_core::time::{Nanos, SECOND};

const HERE: &str = "198.51.100.1";
const THERE: &str = "198.51.100.2";

/// An SA of the walk: what may differ from one wish to the next.
#[derive(Clone, Copy, Debug)]
struct Draw {
    name: u8,
    spi: u8,
    key: u8,
    hop_limit: u8,
    window: bool,
    by_policy: bool,
}

fn draw() -> impl Strategy<Value = Draw> {
    (0u8..3, 0u8..3, 0u8..4, 63u8..65, any::<bool>(), any::<bool>()).prop_map(
        |(name, spi, key, hop_limit, window, by_policy)| Draw {
            name,
            spi,
            key,
            hop_limit,
            window,
            by_policy,
        },
    )
}

fn spec(draw: &Draw, out: bool) -> SaSpec {
    let (direction, ends) = if out { (Out, (HERE, THERE)) } else { (In, (THERE, HERE)) };
    let name = format!("{}-{}", if out { "out" } else { "in" }, draw.name);
    let mut spec = sa(&name, direction, 0x1000 + u32::from(draw.spi), ends);
    spec.keys.encryption = Secret::new(vec![draw.key + if out { 0 } else { 100 }; 20]);
    spec.params.hop_limit = draw.hop_limit;
    spec.params.replay_window = if draw.window { 64 } else { 256 };
    spec
}

/// A tunnel and a policy with the SAs drawn for each; some of these wishes are refused.
fn wish(draws: &[(Draw, Draw)]) -> Desired {
    let mut d = desired(&[port("lan", "eth0", &["192.0.2.1/24"]), port("wan", "eth1", &["198.51.100.1/24"])]);
    let (mut east, mut site) = (tunnel("east", &[], &[]), protect("site", "192.0.2.0/24", "", &[], &[]));
    for (out, inbound) in draws {
        for (draw, out) in [(out, true), (inbound, false)] {
            let spec = spec(draw, out);
            let list = match (draw.by_policy, out) {
                (true, true) => &mut site.out,
                (true, false) => &mut site.inbound,
                (false, true) => &mut east.out,
                (false, false) => &mut east.inbound,
            };
            list.push(spec.name.clone());
            d.ipsec.sas.push(spec);
        }
    }
    if !east.out.is_empty() || !east.inbound.is_empty() {
        d.ipsec.tunnels.push(east);
    }
    site.direction = match (site.out.is_empty(), site.inbound.is_empty()) {
        (true, _) => Some(In),
        (_, true) => Some(Out),
        _ => None,
    };
    let rest = policy("rest", Action::Bypass, "", "");
    let policies = if site.out.is_empty() && site.inbound.is_empty() { vec![rest] } else { vec![site, rest] };
    d.ipsec.spds.push(spd("border", &["wan"], &policies));
    d
}

/// What workers would do with a snapshot: send a little by every SA, and hear the latest number.
fn carry(
    ipsec: &Ipsec,
    wish: &Desired,
    sent: &mut HashMap<Vec<u8>, u64>,
    heard: &mut HashMap<(Vec<u8>, u32), u64>,
) -> Result<(), TestCaseError> {
    let spec = |name: &str| wish.ipsec.sas.iter().find(|s| s.name == name);
    for sa in ipsec.outbound.iter() {
        let Some(key) = spec(&sa.name).map(|s| s.keys.encryption.bytes().to_vec()) else { continue };
        let first = sa.state.sequence.fetch_add(10, Relaxed);
        let last = sent.entry(key).or_insert(0);
        prop_assert!(first >= *last, "{} sends {first} again after {last}", sa.name);
        *last = first + 10;
    }
    for inbound in ipsec.sad.iter() {
        let Some(spec) = spec(&inbound.sa.name).filter(|s| s.params.spi == inbound.sa.params.spi) else {
            continue;
        };
        let mut replay = inbound.sa.state.replay.lock().expect("no test failed");
        prop_assert_eq!(replay.size(), spec.params.replay_window);
        let key = (spec.keys.encryption.bytes().to_vec(), spec.params.spi);
        let last = heard.entry(key).or_insert(0);
        prop_assert!(*last == 0 || replay.check(*last).is_err(), "{} hears {last} twice", spec.name);
        *last = replay.top() + 7;
        prop_assert_eq!(replay.accept(*last), Ok(()));
    }
    Ok(())
}

fn agrees_with_itself(tables: &Tables) -> Result<(), TestCaseError> {
    let Some(ipsec) = &tables.ipsec else { return Ok(()) };
    prop_assert_eq!(ipsec.queues.len(), tables.devices.len());
    for inbound in ipsec.sad.iter() {
        match (ipsec.queues[inbound.device.index()], inbound.spd) {
            (Queue::Tunnel(_), None) => {}
            (Queue::Policy(id), Some(spd)) => {
                prop_assert_eq!(id, spd);
                let lets = |p: &weir_core::ipsec::Policy| p.inbound.contains(&inbound.sa.id);
                prop_assert!(ipsec.spds[usize::from(spd.0)].policies.iter().any(|p| lets(p)));
            }
            other => prop_assert!(false, "an SA leads to {:?}", other),
        }
    }
    for (id, queue) in ipsec.queues.iter().enumerate() {
        let port = match *queue {
            Queue::Hardware | Queue::Host { .. } => continue,
            Queue::Tunnel(id) => ipsec.tunnels[usize::from(id.0)].port,
            Queue::Enforcement { port, device, .. } => {
                prop_assert_eq!(tables.ports[port.index()].egress.index(), id);
                prop_assert_eq!(tables.ports[port.index()].device, device);
                continue;
            }
            Queue::Policy(_) => tables.devices[id].untagged.expect("its port"),
        };
        prop_assert_eq!(tables.ports[port.index()].device.index(), id);
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_number_is_used_twice_and_no_window_begins_again(
        walk in prop::collection::vec((prop::collection::vec((draw(), draw()), 0..3), 0u64..15), 1..12),
    ) {
        let links = [up("eth0"), up("eth1")];
        let mut control =
            Control::with_ciphers(Desired::default(), links, 0, Arc::new(Clear)).expect("nothing");
        let (mut sent, mut heard, mut now): (_, _, Nanos) = (HashMap::new(), HashMap::new(), 0);
        for (draws, wait) in walk {
            now += wait * SECOND;
            control.tick(now);
            // Some are refused, and change nothing.
            let _ = control.apply(now, wish(&draws));
            control.take_snapshot();
            let tables = control.tables().clone();
            agrees_with_itself(&tables)?;
            if let Some(ipsec) = &tables.ipsec {
                carry(ipsec, control.desired(), &mut sent, &mut heard)?;
            }
        }
        // Everything ends: with no SA wished for, none is left after the last has drained.
        control.apply(now, wish(&[])).expect("valid");
        control.tick(now + DRAIN);
        control.take_snapshot();
        prop_assert!(control.tables().ipsec.as_ref().is_some_and(|i| i.sad.is_empty() && i.outbound.is_empty()));
        prop_assert_eq!(control.sas(now), []);
    }
}
