//! The sizes the tables are built for: a million IPv4 routes and two hundred thousand of IPv6.

use weir_core::random::SplitMix64;
use weir_core::route::synthetic::{Draw, covered4, covered6, routes4, routes6};
use weir_core::route::{Naive, Prefix6, RouteTable4, RouteTable6};

const VALUES: u32 = 64;
const MIB: usize = 1 << 20;

#[test]
fn full_ipv4_table_answers_as_the_naive_one_and_fits_its_bound() {
    let routes = routes4(1_000_000, VALUES, 1);
    assert_eq!(routes.len(), 1_000_000);
    let (mut table, mut naive) = (RouteTable4::default(), Naive::default());
    for &(prefix, value) in &routes {
        table.insert(prefix, value);
        naive.insert4(prefix, value);
    }
    let fib = table.publish();
    let mut addrs = covered4(&routes, Draw::ByRoute, 10_000, 2);
    addrs.extend(covered4(&routes, Draw::ByAddress, 5_000, 3));
    let mut scatter = SplitMix64::new(4);
    addrs.extend((0..5_000).map(|_| scatter.next_u64() as u32));
    let mut found = vec![0; addrs.len()];
    fib.lookup_batch(&addrs, &mut found);
    for (&addr, &found) in addrs.iter().zip(&found) {
        assert_eq!(found, naive.lookup4(addr.into()), "{addr:08x}");
    }
    // 64 MiB, and 1 KiB (twice that for growth) for each /24 with longer routes inside: 0.5 % of a million.
    let bound = 64 * MIB + 5_000 * 2048;
    assert!(fib.memory_bytes() <= bound, "{} bytes, expected at most {bound}", fib.memory_bytes());
}

#[test]
fn full_ipv6_table_answers_as_the_naive_one_through_a_thousand_changes() {
    let routes = routes6(200_000, VALUES, 1);
    assert_eq!(routes.len(), 200_000);
    let (mut table, mut naive) = (RouteTable6::default(), Naive::default());
    for &(prefix, value) in &routes {
        table.insert(prefix, value);
        naive.insert6(prefix, value);
    }
    table.publish();
    let mut scatter = SplitMix64::new(5);
    for n in 0..1_000 {
        let (prefix, value) = routes[scatter.below(routes.len() as u64) as usize];
        if n % 2 == 0 {
            table.remove(prefix);
            naive.remove6(prefix);
        } else {
            table.insert(prefix, value + 1);
            naive.insert6(prefix, value + 1);
        }
        table.publish();
    }
    let fib = table.publish();
    let mut addrs = covered6(&routes, Draw::ByRoute, 10_000, 2);
    addrs.extend(covered6(&routes, Draw::ByAddress, 5_000, 3));
    let mut found = vec![0; addrs.len()];
    fib.lookup_batch(&addrs, &mut found);
    for (&addr, &found) in addrs.iter().zip(&found) {
        assert_eq!(found, naive.lookup6(addr.into()), "{addr:032x}");
    }
    assert!(fib.memory_bytes() <= 16 * MIB, "{} bytes, expected at most 16 MiB", fib.memory_bytes());
}

#[test]
fn host_routes_spread_over_everything_cost_their_trees_and_no_more() {
    let mut scatter = SplitMix64::new(6);
    let mut table = RouteTable6::default();
    let count = 20_000;
    for _ in 0..count {
        let bits = u128::from(scatter.next_u64()) << 64 | u128::from(scatter.next_u64());
        table.insert(Prefix6::from_bits(bits | 1 << 127, 128), 1);
    }
    let fib = table.publish();
    // A tree of one line in each of four strides, twice that for growth, and the first level's upper half.
    let bound = count * 4 * (64 + 4) * 2 + 64 * MIB;
    assert!(fib.memory_bytes() <= bound, "{} bytes, expected at most {bound}", fib.memory_bytes());
}

#[test]
fn routes_that_come_and_go_leave_no_memory_behind() {
    let mut table = RouteTable6::default();
    let all = routes6(20_000, VALUES, 1);
    let mut peak = 0;
    for round in 0..20 {
        // Ever other routes of the same regions, so that trees come in ever other sizes.
        for (n, &(prefix, value)) in all.iter().enumerate() {
            if (n + round) % (2 + round % 5) == 0 {
                table.insert(prefix, value);
            } else {
                table.remove(prefix);
            }
            if n % 50 == 0 {
                table.publish();
            }
        }
        peak = peak.max(table.publish().memory_bytes());
    }
    assert!(peak <= 16 * MIB, "{peak} bytes, expected at most 16 MiB");
}

#[test]
fn batches_of_every_length_answer_as_single_lookups_do() {
    // Host routes beside shorter ones: some lookups of a batch go on where others have arrived.
    let mut table = RouteTable6::default();
    let routes = routes6(5_000, VALUES, 9);
    for (n, &(prefix, value)) in routes.iter().enumerate() {
        table.insert(prefix, value);
        if n % 3 == 0 {
            table.insert(Prefix6::from_bits(prefix.last(), 128), 99);
        }
    }
    let fib = table.publish();
    let mut addrs = covered6(&routes, Draw::ByRoute, 300, 2);
    addrs.extend(routes.iter().step_by(3).take(100).map(|(prefix, _)| prefix.last()));
    SplitMix64::new(3).shuffle(&mut addrs);
    for len in 0..=200 {
        let mut found = vec![u32::MAX; 200];
        fib.lookup_batch(&addrs[..len], &mut found);
        for (&addr, &found) in addrs[..len].iter().zip(&found) {
            assert_eq!(found, fib.lookup(addr.into()), "{addr:032x} in a batch of {len}");
        }
        assert!(found[len..].iter().all(|&untouched| untouched == u32::MAX));
    }
}
