//! The fast tables answer as the naive one does, whatever happened to them.
//!
//! Prefixes are drawn to collide: a few addresses, lengths around every border of the structures, and
//! neighbours one apart.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::prelude::*;
use weir_core::route::{Fib4, Fib6, NO_ROUTE, Naive, Prefix4, Prefix6, RouteTable4, RouteTable6};

#[derive(Clone, Debug)]
enum Step<P> {
    Insert(P, u32),
    Remove(P),
    /// Remove the nth route of those present: random prefixes are seldom there.
    RemoveNth(prop::sample::Index),
    Publish,
    /// Publish and keep the snapshot.
    Hold,
    Clear,
}

fn step<P: Clone + std::fmt::Debug>(
    prefix: impl Strategy<Value = P> + Clone,
) -> impl Strategy<Value = Step<P>> {
    prop_oneof![
        20 => (prefix.clone(), 0u32..40).prop_map(|(p, v)| Step::Insert(p, v)),
        4 => prefix.prop_map(Step::Remove),
        8 => any::<prop::sample::Index>().prop_map(Step::RemoveNth),
        6 => Just(Step::Publish),
        2 => Just(Step::Hold),
        1 => prop::bool::weighted(0.1).prop_map(|clear| if clear { Step::Clear } else { Step::Publish }),
    ]
}

fn prefix4() -> impl Strategy<Value = Prefix4> + Clone {
    let base = prop::sample::select(vec![0u32, 0x0a00_0000, 0x0a01_0000, 0x0a01_0200, 0xffff_ff00]);
    let low = prop_oneof![Just(0u32), 0u32..4, 252u32..260, any::<u32>().prop_map(|x| x & 0x1ffff)];
    let len = prop_oneof![
        6 => prop::sample::select(vec![0u8, 8, 16, 22, 23, 24, 25, 26, 31, 32]),
        2 => 8u8..=32,
    ];
    (base, low, len).prop_map(|(base, low, len)| Prefix4::from_bits(base ^ low, len))
}

fn prefix6() -> impl Strategy<Value = Prefix6> + Clone {
    let base = prop::sample::select(vec![
        0u128,
        0x2001_0db8 << 96,
        0x2001_0db8_0001 << 80,
        0x2001_0db8_0001_0002 << 64,
        u128::MAX,
    ]);
    let flip = prop_oneof![
        3 => Just(0u128),
        8 => (0u32..128).prop_map(|bit| 1 << bit),
        2 => (0u32..126, 1u128..8).prop_map(|(bit, x)| x << bit),
        1 => any::<u128>().prop_map(|x| x >> 24),
    ];
    let len = prop_oneof![
        8 => prop::sample::select(vec![
            0u8, 8, 16, 23, 24, 25, 32, 47, 48, 55, 56, 57, 63, 64, 65, 87, 88, 89, 119, 120, 121, 127, 128,
        ]),
        2 => 8u8..=128,
    ];
    (base, flip, len).prop_map(|(base, flip, len)| Prefix6::from_bits(base ^ flip, len))
}

macro_rules! family {
    ($module:ident, $table:ty, $fib:ty, $prefix:ty, $strategy:ident, $addr:ty, $bits:ty,
     $insert:ident, $remove:ident, $lookup:ident, $cases:literal) => {
        mod $module {
            use super::*;

            /// Addresses where answers can change: the ends of every prefix, and one beyond.
            fn edges(prefixes: &[$prefix]) -> Vec<$bits> {
                let mut edges = vec![0, <$bits>::MAX];
                for p in prefixes {
                    let (first, last) = (p.bits(), p.last());
                    edges.extend([first, last, first.wrapping_sub(1), last.wrapping_add(1)]);
                    edges.push(first ^ ((first ^ last) >> 1));
                }
                edges
            }

            fn check(fib: &$fib, naive: &Naive, addrs: &[$bits]) {
                let mut batch = vec![u32::MAX; addrs.len()];
                fib.lookup_batch(addrs, &mut batch);
                for (&bits, &found) in addrs.iter().zip(&batch) {
                    let addr = <$addr>::from(bits);
                    assert_eq!(fib.lookup(addr), naive.$lookup(addr), "{addr}, one at a time");
                    assert_eq!(found, naive.$lookup(addr), "{addr}, in a batch");
                }
            }

            proptest! {
                #![proptest_config(ProptestConfig::with_cases($cases))]

                #[test]
                fn answers_as_the_naive_table_after_any_changes(
                    steps in prop::collection::vec(step($strategy()), 1..80),
                    extra in prop::collection::vec(any::<$bits>(), 0..70),
                ) {
                    let mut table = <$table>::default();
                    let mut naive = Naive::default();
                    let mut present = std::collections::BTreeMap::new();
                    let mut held: Vec<(Arc<$fib>, Naive)> = Vec::new();
                    let mut seen = Vec::new();
                    for step in steps {
                        match step {
                            Step::Insert(prefix, value) => {
                                seen.push(prefix);
                                let old = present.insert(prefix, value);
                                naive.$insert(prefix, value);
                                prop_assert_eq!(table.insert(prefix, value), old);
                            }
                            Step::Remove(prefix) => {
                                let old = present.remove(&prefix);
                                naive.$remove(prefix);
                                prop_assert_eq!(table.remove(prefix), old);
                            }
                            Step::RemoveNth(n) => {
                                if let Some(&prefix) = present.keys().nth(n.index(present.len().max(1))) {
                                    let old = present.remove(&prefix);
                                    naive.$remove(prefix);
                                    prop_assert_eq!(table.remove(prefix), old);
                                }
                            }
                            Step::Publish => {
                                let fib = table.publish();
                                prop_assert!(table.is_published());
                                check(&fib, &naive, &edges(&seen));
                            }
                            Step::Hold => held.push((table.publish(), naive.clone())),
                            Step::Clear => {
                                table.clear();
                                present.clear();
                                naive = Naive::default();
                            }
                        }
                        prop_assert_eq!(table.len(), present.len());
                    }
                    let mut addrs = edges(&seen);
                    addrs.extend(extra);
                    check(&table.publish(), &naive, &addrs);
                    for (fib, as_it_was) in &held {
                        check(fib, as_it_was, &addrs);
                    }
                    prop_assert!(table.iter().eq(present.iter().map(|(&p, &v)| (p, v))));
                    for (&prefix, &value) in &present {
                        prop_assert_eq!(table.get(prefix), Some(value));
                    }
                    for &bits in &addrs {
                        let addr = <$addr>::from(bits);
                        let explained = table.explain(addr);
                        prop_assert_eq!(explained.map_or(NO_ROUTE, |(_, v)| v), naive.$lookup(addr));
                        prop_assert!(explained.is_none_or(|(p, _)| p.contains(addr)));
                    }
                }
            }
        }
    };
}

family!(v4, RouteTable4, Fib4, Prefix4, prefix4, Ipv4Addr, u32, insert4, remove4, lookup4, 256);
family!(v6, RouteTable6, Fib6, Prefix6, prefix6, Ipv6Addr, u128, insert6, remove6, lookup6, 256);

#[test]
fn removed_route_uncovers_what_it_lay_in() {
    let mut table = RouteTable4::default();
    let address = Ipv4Addr::new(10, 1, 2, 3);
    for (len, value) in [(0, 1), (8, 2), (24, 3), (25, 4), (32, 5)] {
        table.insert(Prefix4::new(address, len), value);
    }
    for (len, value) in [(32, 5), (25, 4), (24, 3), (8, 2), (0, 1)] {
        assert_eq!(table.publish().lookup(address), value);
        table.remove(Prefix4::new(address, len));
    }
    assert_eq!(table.publish().lookup(address), NO_ROUTE);
}

#[test]
fn route_with_value_zero_hides_the_default() {
    let mut table = RouteTable4::default();
    table.insert(Prefix4::ALL, 7);
    table.insert(Prefix4::new(Ipv4Addr::new(192, 0, 2, 0), 24), NO_ROUTE);
    let fib = table.publish();
    assert_eq!(fib.lookup(Ipv4Addr::new(192, 0, 2, 1)), NO_ROUTE);
    assert_eq!(fib.lookup(Ipv4Addr::new(192, 0, 3, 1)), 7);
    assert_eq!(fib.lookup_specific(Ipv4Addr::new(192, 0, 3, 1)), NO_ROUTE);
}

#[test]
fn publishing_nothing_gives_the_same_snapshot() {
    let mut table = RouteTable4::default();
    table.insert(Prefix4::new(Ipv4Addr::new(10, 0, 0, 0), 8), 1);
    let first = table.publish();
    table.insert(Prefix4::new(Ipv4Addr::new(10, 0, 0, 0), 8), 1);
    assert!(Arc::ptr_eq(&first, &table.publish()));
}

#[test]
fn small_table_costs_the_pages_it_lies_in() {
    let mut table = RouteTable4::default();
    table.insert(Prefix4::ALL, 1);
    table.insert(Prefix4::new(Ipv4Addr::new(10, 0, 0, 0), 24), 2);
    let bytes = table.publish().memory_bytes();
    assert!(bytes <= 64 << 10, "{bytes} bytes for a default and a /24, expected one 64 KiB chunk");
}

#[test]
fn halves_of_the_address_space_are_prefixes_like_any_other() {
    let mut table = RouteTable4::default();
    let low = Prefix4::new(Ipv4Addr::UNSPECIFIED, 1);
    table.insert(low, 1);
    table.insert(Prefix4::new(Ipv4Addr::new(127, 255, 255, 255), 32), 2);
    table.insert(Prefix4::new(Ipv4Addr::new(128, 0, 0, 0), 32), 3);
    let fib = table.publish();
    assert_eq!(fib.lookup(Ipv4Addr::new(127, 255, 255, 254)), 1);
    assert_eq!(fib.lookup(Ipv4Addr::new(127, 255, 255, 255)), 2);
    assert_eq!(fib.lookup(Ipv4Addr::new(128, 0, 0, 0)), 3);
    assert_eq!(fib.lookup(Ipv4Addr::new(128, 0, 0, 1)), NO_ROUTE);
    table.remove(low);
    let fib = table.publish();
    assert_eq!(fib.lookup(Ipv4Addr::new(127, 255, 255, 254)), NO_ROUTE);
    assert_eq!(fib.lookup(Ipv4Addr::new(127, 255, 255, 255)), 2);
}
