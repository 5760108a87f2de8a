//! Make before break: 1,000 rekeys of a tunnel under load, and not one packet lost.
//!
//! Both gateways are whole ones, control side included, joined by a wire on which packets stay a step:
//! what was sealed before a rekey arrives after it.

use crate::testbed::gateway::{Gateway, make, remove, switch};
use weir_core::time::{MILLISECOND, Nanos, SECOND};

const REKEYS: u32 = 1000;
/// Frames each way a step.
const LOAD: u16 = 8;

/// What is on the wire, a step later than it was sent.
#[derive(Default)]
struct Wire {
    to: [Vec<Vec<u8>>; 2],
}

#[test]
fn thousand_rekeys_under_load_lose_no_packet() {
    let mut gateways = [Gateway::new(1), Gateway::new(2)];
    let mut wire = Wire::default();
    let mut now = SECOND;
    let (mut sent, mut arrived) = (0u64, 0u64);
    for n in 1..=REKEYS {
        // Make: inbound first, at both ends; then traffic moves; then the old one goes.
        for step in 0..3 {
            for gateway in &mut gateways {
                let d = &mut gateway.desired;
                match step {
                    0 => make(d, gateway.site, n),
                    1 => switch(d, gateway.site, n),
                    _ => remove(d, n - 1),
                }
                gateway.apply(now);
                arrived += exchange(gateway, &mut wire, now, LOAD);
                sent += u64::from(LOAD);
            }
            now += 200 * MILLISECOND;
        }
    }
    // What is still on the wire.
    for gateway in &mut gateways {
        arrived += exchange(gateway, &mut wire, now, 0);
    }
    for gateway in &gateways {
        let drops: Vec<_> = gateway.router.ledger().drops.nonzero().collect();
        assert_eq!(drops, [], "site {}", gateway.site);
    }
    assert_eq!(sent, arrived);
}

/// A gateway receives what is on the wire to it and a load from its LAN; how many arrived at its LAN.
fn exchange(gateway: &mut Gateway, wire: &mut Wire, now: Nanos, load: u16) -> u64 {
    let site = usize::from(gateway.site);
    let inbox = std::mem::take(&mut wire.to[site - 1]);
    let lan = gateway.breathe(now, 1, &inbox);
    assert_eq!(lan[0].len(), inbox.len(), "what was sealed is opened");
    let load: Vec<_> = (0..load).map(|n| gateway.load(u64::from(n))).collect();
    let sealed = gateway.breathe(now, 0, &load);
    assert_eq!(sealed[1].len(), load.len());
    // The other gateway's MAC: the neighbour entry's.
    wire.to[2 - site].extend(sealed[1].iter().cloned());
    lan[0].len() as u64
}
