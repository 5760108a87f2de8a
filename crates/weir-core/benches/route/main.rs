//! Route lookups and updates: nanoseconds a lookup by table size, and what a change costs.
//!
//! ```text
//! cargo bench -p weir-core --bench route                  every size, a few seconds each
//! cargo bench -p weir-core --bench route -- --quick       smoke values, as `cargo test --benches` runs it
//! cargo bench -p weir-core --bench route -- v6 lookup     only parts whose name holds every word
//! ```
//!
//! Large tables gain from huge pages, which the daemon's allocator asks for and this program's does not;
//! with glibc, `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` does.
//!
//! Tables come from `route::synthetic` with 64 next hops. *random* destinations are drawn evenly from the
//! routes (`by route`) or from the covered addresses (`by address`), 1 M of them, so that they do not fit the
//! caches either; *hot* is 64 of them again and again. Cases take turns; a turn's value is the median of its
//! 16 slices, which are shorter than a scheduler's, so that a neighbour on the same core spoils some slices and
//! not the value. Printed are the best and the median turn.

mod stree;

use std::hint::black_box;
use std::time::Instant;

use stree::STree;
use weir_core::random::SplitMix64;
use weir_core::route::synthetic::{Draw, covered4, covered6, routes4, routes6};
use weir_core::route::{Prefix6, RouteTable4, RouteTable6};
use weir_testing::race::{Case, race};

const SEED: u64 = 1;
const NEXT_HOPS: u32 = 64;
/// A batch is as many addresses as a worker looks up in one breath.
const BATCH: usize = weir_core::packet::BATCH;

/// Every parameter, with its smoke value.
struct Size {
    tables: &'static [usize],
    destinations: usize,
    hot: usize,
    repeats: usize,
    updates: usize,
}

const FULL: Size = Size {
    tables: &[2, 1_000, 100_000, 200_000, 1_000_000],
    destinations: 1 << 20,
    hot: 64,
    repeats: 15,
    updates: 2_000,
};

const SMOKE: Size = Size { tables: &[2, 1_000], destinations: 1 << 10, hot: 64, repeats: 2, updates: 20 };

/// Parts of a turn that are timed on their own.
const SLICES: usize = 16;

/// Times the cases in turns and prints best and median nanoseconds a lookup.
fn print_race(mut cases: Vec<Case<'_>>, repeats: usize) {
    let turns = race(&mut cases, SLICES, repeats, true);
    for (case, turns) in cases.iter().zip(turns) {
        println!("{:52} {:8.2} {:8.2}", case.name, turns.best * 1e9, turns.median * 1e9);
    }
}

macro_rules! family {
    ($module:ident, $table:ty, $addr:ty, $bits:ty, $routes:ident, $covered:ident, $others:ident) => {
        mod $module {
            use super::*;

            const NAME: &str = stringify!($module);

            pub fn lookups(size: &Size, count: usize) {
                let routes = $routes(count, NEXT_HOPS, SEED);
                let mut table = <$table>::default();
                let start = Instant::now();
                for &(prefix, value) in &routes {
                    table.insert(prefix, value);
                }
                let inserted = start.elapsed();
                let fib = table.publish();
                println!(
                    "{NAME} {:>9} routes: {:.2} MiB; insert {:.0} ns each, first publish {:.2} ms",
                    routes.len(),
                    fib.memory_bytes() as f64 / f64::from(1 << 20),
                    inserted.as_nanos() as f64 / routes.len() as f64,
                    (start.elapsed() - inserted).as_secs_f64() * 1e3,
                );
                let by_route = $covered(&routes, Draw::ByRoute, size.destinations, SEED);
                let by_address = $covered(&routes, Draw::ByAddress, size.destinations, SEED);
                let hot: Vec<_> =
                    by_route[..size.hot].iter().copied().cycle().take(size.destinations).collect();
                let sum = |out: &[u32]| out.iter().map(|&v| u64::from(v)).sum::<u64>();
                let part = size.destinations / SLICES;
                let mut cases = Vec::new();
                for (kind, addrs) in
                    [("random by route", &by_route), ("random by address", &by_address), ("hot", &hot)]
                {
                    let fib = &fib;
                    cases.push(Case {
                        name: format!("{NAME} {count:>9} {kind}, batch"),
                        lookups: part,
                        slice: Box::new(move |n| {
                            let mut out = [0; BATCH];
                            let mut total = 0;
                            for chunk in addrs[n * part..][..part].chunks_exact(BATCH) {
                                fib.lookup_batch(black_box(chunk), &mut out);
                                total += sum(black_box(&out));
                            }
                            total
                        }),
                    });
                    cases.push(Case {
                        name: format!("{NAME} {count:>9} {kind}, single"),
                        lookups: part,
                        slice: Box::new(move |n| {
                            let part = black_box(&addrs[n * part..][..part]);
                            part.iter().map(|&addr| u64::from(fib.lookup(<$addr>::from(addr)))).sum()
                        }),
                    });
                }
                $others(&routes, &by_route, count, &mut cases);
                print_race(cases, size.repeats);
            }

            /// What one published change costs at a table size: taken out, put back.
            pub fn updates(size: &Size, count: usize) {
                let routes = $routes(count, NEXT_HOPS, SEED);
                let mut table = <$table>::default();
                for &(prefix, value) in &routes {
                    table.insert(prefix, value);
                }
                table.publish();
                let mut scatter = SplitMix64::new(SEED);
                let mut times = Vec::new();
                for _ in 0..size.updates {
                    let (prefix, value) = routes[scatter.below(routes.len() as u64) as usize];
                    for back in [false, true] {
                        let start = Instant::now();
                        if back {
                            table.insert(prefix, value);
                        } else {
                            table.remove(prefix);
                        }
                        black_box(table.publish());
                        times.push(start.elapsed().as_secs_f64() * 1e6);
                    }
                }
                report(&format!("{NAME} {count:>9} change + publish, snapshots let go"), &mut times);
                let mut times = Vec::new();
                for _ in 0..size.updates.min(20) {
                    let (prefix, value) = routes[scatter.below(routes.len() as u64) as usize];
                    let held = table.publish();
                    for back in [false, true] {
                        let start = Instant::now();
                        if back {
                            table.insert(prefix, value);
                        } else {
                            table.remove(prefix);
                        }
                        black_box(table.publish());
                        times.push(start.elapsed().as_secs_f64() * 1e6);
                    }
                    drop(held);
                }
                report(&format!("{NAME} {count:>9} change + publish, a snapshot held"), &mut times);
            }
        }
    };
}

fn report(name: &str, times: &mut [f64]) {
    times.sort_by(f64::total_cmp);
    println!(
        "{name:52} {:8.2} {:8.2} {:8.2} {:8.2}",
        times[0],
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1],
    );
}

/// The alternatives that were not chosen for IPv4: none.
fn others4<R, A>(_: &[R], _: &[A], _: usize, _: &mut Vec<Case<'_>>) {}

/// The alternative that was not chosen for IPv6, on the same destinations in the same turns.
fn others6<'a>(routes: &[(Prefix6, u32)], addrs: &'a [u128], count: usize, cases: &mut Vec<Case<'a>>) {
    let tree = STree::build(routes);
    let part = addrs.len() / SLICES;
    cases.push(Case {
        name: format!("v6 {count:>9} random by route, S-tree, {} KiB", tree.memory_bytes() >> 10),
        lookups: part,
        slice: Box::new(move |n| {
            let mut out = [0; BATCH];
            let mut total = 0;
            for chunk in addrs[n * part..][..part].chunks_exact(BATCH) {
                tree.lookup_batch(black_box(chunk), &mut out);
                total += black_box(&out).iter().map(|&v| u64::from(v)).sum::<u64>();
            }
            total
        }),
    });
}

family!(v4, RouteTable4, std::net::Ipv4Addr, u32, routes4, covered4, others4);
family!(v6, RouteTable6, std::net::Ipv6Addr, u128, routes6, covered6, others6);

/// The worst place for a change: every route inside one /25, as an access provider's /56s are.
fn dense6(size: &Size, count: usize) {
    let mut scatter = SplitMix64::new(SEED);
    let mut table = RouteTable6::default();
    let prefix = |n: usize| Prefix6::from_bits(0x2a00 << 112 | (n as u128) << 72, 56);
    for n in 0..count {
        table.insert(prefix(n), 1 + scatter.below(u64::from(NEXT_HOPS)) as u32);
    }
    table.publish();
    let mut times = Vec::new();
    for n in 0..size.updates.min(100) {
        let start = Instant::now();
        table.insert(prefix(scatter.below(count as u64) as usize), NEXT_HOPS + 1 + n as u32);
        black_box(table.publish());
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    report(&format!("v6 {count:>9} /56s in one /25, change + publish"), &mut times);
}

type Part = (&'static str, fn(&Size, usize));

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let full = args.iter().any(|arg| arg == "--bench") && !args.iter().any(|arg| arg == "--quick");
    let size = if full { &FULL } else { &SMOKE };
    let words: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let parts: [Part; 5] = [
        ("v4 lookup", v4::lookups),
        ("v6 lookup", v6::lookups),
        ("v4 update", v4::updates),
        ("v6 update", v6::updates),
        ("v6 dense update", dense6),
    ];
    for (name, part) in parts {
        if words.iter().any(|word| !name.contains(word.as_str())) {
            continue;
        }
        if name.ends_with("lookup") {
            println!("\n{name:52} {:>8} {:>8}", "best ns", "median");
        } else {
            println!("\n{name:52} {:>8} {:>8} {:>8} {:>8}", "best µs", "median", "p99", "worst");
        }
        for &count in size.tables {
            part(size, count);
        }
    }
}
