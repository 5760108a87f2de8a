//! SAs are replaced one by one or in one go, and what is on its way is accepted.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::testbed::control::{desired, neighbor, port, route, up};
use crate::testbed::ipsec::{Clear, HERE, THERE, east_and_border, sa};
use weir_core::control::{Control, DRAIN, Rekey};
use weir_core::ipsec::Direction::{In, Out};
use weir_core::ipsec::{Ipsec, SaSpec};
use weir_core::state::Desired;
use weir_core::time::SECOND;

fn outbound(name: &str, spi: u32) -> SaSpec {
    sa(name, Out, spi, (HERE, THERE))
}

fn inbound(name: &str, spi: u32) -> SaSpec {
    sa(name, In, spi, (THERE, HERE))
}

fn wish() -> Desired {
    let mut d = desired(&[port("lan", "eth0", &["192.0.2.1/24"]), port("wan", "eth1", &["198.51.100.1/24"])]);
    d.ipsec = east_and_border();
    d.routes = vec![route("10.1.0.0/16", &["@east"])];
    d.neighbors = vec![neighbor("wan", THERE, 2)];
    d
}

fn control() -> Control {
    let links = [up("eth0"), up("eth1")];
    Control::with_ciphers(wish(), links, 0, Arc::new(Clear)).unwrap_or_else(|e| panic!("{e:?}"))
}

fn snapshot(control: &mut Control) -> Arc<Ipsec> {
    control.take_snapshot();
    control.tables().ipsec.clone().expect("configured")
}

fn accepts(ipsec: &Ipsec, spi: u32) -> bool {
    ipsec.sad.find(spi, HERE.parse().expect("address")).is_some()
}

#[test]
fn new_sa_comes_before_the_old_one_goes() {
    let mut control = control();
    control.install_inbound(0, "site-in", inbound("site-in-2", 0x2012)).expect("valid");
    let ipsec = snapshot(&mut control);
    assert!(accepts(&ipsec, 0x2002) && accepts(&ipsec, 0x2012));
    assert_eq!(ipsec.spds[0].policies[0].inbound.len(), 2, "the policy lets it pass too");
    assert_eq!(ipsec.spds[0].policies[0].out[0].params.spi, 0x2001);

    control.switch_outbound(SECOND, "site-out", outbound("site-out-2", 0x2011)).expect("valid");
    let ipsec = snapshot(&mut control);
    assert_eq!(ipsec.spds[0].policies[0].out[0].params.spi, 0x2011);

    let actions = control.retire_inbound(2 * SECOND, "site-in").expect("valid");
    let lines: Vec<String> = actions.iter().map(|a| a.to_string()).collect();
    assert_eq!(
        lines,
        ["~ policy site of spd border: inbound site-in site-in-2 → site-in-2", "- sa site-in, spi 0x2002"]
    );
    let ipsec = snapshot(&mut control);
    assert!(accepts(&ipsec, 0x2002), "what the peer sealed before is on its way");
    let draining: Vec<_> = control.sas(3 * SECOND).into_iter().filter_map(|s| s.draining).collect();
    assert_eq!(draining, [DRAIN - SECOND]);
    control.tick(2 * SECOND + DRAIN);
    assert!(!accepts(&snapshot(&mut control), 0x2002));
    assert_eq!(control.desired().ipsec.sas.len(), 4);
}

#[test]
fn a_thousand_rekeys_leave_nothing_behind_and_refuse_nothing_on_its_way() {
    let mut control = control();
    let first = snapshot(&mut control);
    first.spds[0].policies[0].counters.count(Out, 7);
    let (mut east, mut last) = (("east-in".to_string(), "east-out".to_string()), 0x1002);
    for n in 1..=1000u32 {
        let now = u64::from(n) * SECOND;
        control.tick(now);
        let spis = (0x10_0000 + 2 * n, 0x10_0001 + 2 * n);
        let new = (format!("east-in-{n}"), format!("east-out-{n}"));
        let rekey = Rekey {
            inbound: Some((east.0, inbound(&new.0, spis.0))),
            outbound: Some((east.1, outbound(&new.1, spis.1))),
        };
        control.rekey(now, rekey).expect("valid");
        let ipsec = snapshot(&mut control);
        assert!(accepts(&ipsec, spis.0) && accepts(&ipsec, last), "rekey {n}");
        assert_eq!(ipsec.tunnels[0].out[0].params.spi, spis.1);
        assert_eq!(ipsec.tunnels[0].out[0].state.sequence.load(Relaxed), 0, "its own sequence");
        // Two in use, and one a second for as long as each drains.
        assert!(ipsec.sad.iter().count() <= 2 + (DRAIN / SECOND) as usize);
        assert!(Arc::ptr_eq(&ipsec.spds[0], &first.spds[0]), "nothing else changed");
        (east, last) = (new, spis.0);
    }
    control.tick(2000 * SECOND);
    let ipsec = snapshot(&mut control);
    assert_eq!((ipsec.sad.iter().count(), ipsec.outbound.len()), (2, 2));
    assert_eq!(control.sas(2000 * SECOND).len(), 4);
}

#[test]
fn one_of_many_is_replaced_in_its_place() {
    let mut control = control();
    let mut d = control.desired().clone();
    d.ipsec.sas.push(outbound("east-out-b", 0x1003));
    d.ipsec.tunnels[0].out.push("east-out-b".into());
    control.apply(0, d).expect("valid");
    control.switch_outbound(0, "east-out", outbound("east-out-c", 0x1004)).expect("valid");
    let spis: Vec<u32> = snapshot(&mut control).tunnels[0].out.iter().map(|sa| sa.params.spi).collect();
    assert_eq!(spis, [0x1004, 0x1003], "workers keep the SA they had");
}

#[test]
fn refused_rekey_changes_nothing() {
    let mut control = control();
    let before = snapshot(&mut control);
    let wished = control.desired().clone();
    let errors = |result: Result<_, Vec<weir_core::state::Error>>| {
        let errors = result.map(|_: Vec<weir_core::state::Action>| ()).expect_err("refused");
        errors.iter().map(|e| e.to_string()).collect::<Vec<_>>()
    };
    let again = SaSpec { keys: wished.ipsec.sas[0].keys.clone(), ..outbound("east-out-2", 0x1009) };
    assert!(errors(control.switch_outbound(0, "east-out", again))[0].contains("must not start again"));
    assert_eq!(
        errors(control.install_inbound(0, "east-im", inbound("x", 0x1009))),
        ["rekey: sa `east-im` does not exist; did you mean `east-in`?"]
    );
    assert_eq!(
        errors(control.retire_inbound(0, "site-in")),
        ["spd border: policy site: protects and has no inbound SA, so nothing could pass; name one, or say \
          which direction it is for"]
    );
    assert_eq!(control.desired(), &wished);
    assert!(Arc::ptr_eq(&snapshot(&mut control), &before));
}
