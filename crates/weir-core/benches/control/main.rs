//! What the control side costs with a full table and with many policies: time from a change to the snapshot.
//!
//! ```text
//! cargo bench -p weir-core --bench control                 1 k, 100 k and 1 M routes; 1 k to 100 k policies
//! cargo bench -p weir-core --bench control -- --quick      smoke values, as `cargo test --benches` runs it
//! cargo bench -p weir-core --bench control -- policies 10000   only parts whose name holds every word
//! ```
//!
//! Routes come from `route::synthetic`, over 64 gateways on two ports. Each value is the best of the
//! repeats, the snapshot included; the one before is let go, as workers do. Policies are of
//! `ipsec::spd::synthetic`; of the many changes of one policy the median is shown, and the slowest.

mod policies;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use weir_core::control::Control;
use weir_core::id::PortId;
use weir_core::ipsec::spd::synthetic::Shape;
use weir_core::route::Prefix;
use weir_core::route::synthetic::routes4;
use weir_core::router::Event;
use weir_core::state::{AddressSpec, Desired, Link, NextHopSpec, PortSpec, RouteSpec, Via};
use weir_core::tables::{Owner, ReversePath};

const SEED: u64 = 1;
const GATEWAYS: u32 = 64;

struct Size {
    tables: &'static [usize],
    policies: &'static [usize],
    updates: usize,
    repeats: usize,
}

const FULL: Size = Size {
    tables: &[1_000, 100_000, 1_000_000],
    policies: &[1_000, 10_000, 100_000],
    updates: 10_000,
    repeats: 3,
};
const SMOKE: Size = Size { tables: &[1_000], policies: &[200], updates: 100, repeats: 1 };

fn wish(routes: usize) -> Desired {
    let port = |n: u8| PortSpec {
        name: format!("p{n}"),
        device: format!("eth{n}"),
        vlan: None,
        mtu: None,
        addresses: vec![AddressSpec {
            address: Ipv4Addr::new(172, 16, n, 1).into(),
            prefix_len: 24,
            owner: Owner::Weir,
        }],
        reverse_path: ReversePath::Off,
    };
    let via = |value: u32| {
        let gateway = Ipv4Addr::new(172, 16, (value % 2) as u8, 10 + (value / 2 % 200) as u8);
        Via::NextHops(vec![NextHopSpec { gateway: Some(gateway.into()), port: None, weight: 1 }])
    };
    let usual = |p: &Prefix| {
        let Prefix::V4(p) = p else { return false };
        (1..224).contains(&p.addr().octets()[0]) && p.addr().octets()[0] != 127
    };
    let all = routes4(routes, GATEWAYS, SEED);
    let all = all.into_iter().map(|(prefix, value)| (Prefix::V4(prefix), value)).filter(|(p, _)| usual(p));
    Desired {
        ports: vec![port(0), port(1)],
        routes: all.map(|(prefix, value)| RouteSpec { prefix, via: via(value) }).collect(),
        ..Desired::default()
    }
}

fn link(n: u8, up: bool) -> Link {
    Link { device: format!("eth{n}"), mac: [2, 0, 0, 0, 0, n], mtu: 1500, up, point_to_point: false }
}

/// Best time of `work` in milliseconds; `prepare` is not timed.
fn best<T>(repeats: usize, mut prepare: impl FnMut() -> T, mut work: impl FnMut(T)) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..repeats {
        let input = prepare();
        let start = Instant::now();
        work(input);
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
    }
    best
}

fn measure(routes: usize, repeats: usize) {
    let wish = wish(routes);
    let count = wish.routes.len();
    let show = |what: &str, ms: f64| println!("{count:>9} routes  {what:44} {ms:10.3} ms");
    let links = || [link(0, true), link(1, true)];
    let new = best(
        repeats,
        || wish.clone(),
        |wish| {
            let mut control = Control::new(wish, links(), 0).expect("valid");
            black_box(control.take_snapshot());
        },
    );
    show("new", new);
    let mut control = Control::new(wish.clone(), links(), 0).expect("valid");
    control.take_snapshot();
    show("plan without a difference", best(repeats, || (), |()| _ = black_box(control.plan(&wish))));
    let mut more = wish.clone();
    more.routes[0].via = Via::Blackhole;
    let mut turn = 0;
    let apply = |c: &mut Control, wish: Desired| {
        c.apply(0, wish).expect("valid");
        black_box(c.take_snapshot().expect("changed"));
    };
    let change = best(
        2 * repeats,
        || {
            turn += 1;
            if turn % 2 == 1 { more.clone() } else { wish.clone() }
        },
        |wish| apply(&mut control, wish),
    );
    show("apply one changed route", change);
    let mut up = true;
    let flap = best(
        2 * repeats,
        || {
            up = !up;
            up
        },
        |up| {
            control.link_changed(0, link(1, up));
            black_box(control.take_snapshot().expect("changed"));
        },
    );
    show("half of the routes leave with a port, or return", flap);
    let mut host = 0;
    let resolve = best(
        50 * repeats,
        || {
            host += 1;
            IpAddr::V4(Ipv4Addr::new(172, 16, 0, 100 + host % 150))
        },
        |next_hop| {
            control.handle_event(0, Event::Resolve { port: PortId(0), next_hop });
            black_box(control.take_snapshot());
        },
    );
    show("a neighbour", resolve);
}

fn main() {
    // `cargo test --benches` passes no `--bench`.
    let args: Vec<String> = std::env::args().collect();
    let quick = args.iter().any(|a| a == "--quick") || !args.iter().any(|a| a == "--bench");
    let size = if quick { SMOKE } else { FULL };
    let words: Vec<&String> = args.iter().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: String| words.iter().all(|&word| name.split(' ').any(|part| part == word));
    for &routes in size.tables.iter().filter(|n| wanted(format!("routes {n}"))) {
        measure(routes, size.repeats);
    }
    for &count in size.policies {
        for shape in [Shape::Acl, Shape::Firewall, Shape::IpChain] {
            if wanted(format!("policies {count} {}", shape.name())) {
                policies::measure(shape, count, size.updates, size.repeats);
            }
        }
    }
}
