//! SPD lookups for packets never seen before, by layer, shape of the rule set and its size; and what a change
//! of one rule costs.
//!
//! ```text
//! cargo bench -p weir-core --bench spd                 1 k, 10 k and 100 k rules
//! cargo bench -p weir-core --bench spd -- v4           parts whose name has the words
//! cargo bench -p weir-core --bench spd -- --quick      smoke values, as `cargo test --benches` runs it
//! ```
//!
//! Rules come from `ipsec::spd::synthetic`, flows too: distinct, far more than any cache of the CPU predicts,
//! most of them of rules far down the list. Cases take turns; a turn's value is the median of its slices, so that
//! a neighbour on the same core spoils some slices and not the value. Printed are the best and the median turn,
//! and the best as a share of the ordered scan's in the same run.
//!
//! `depth` is the field's question: policies of addresses nobody has, and the one that matches behind them. There the
//! last of each race is not the scan but the plain search that defines it, a selector after the other.
//!
//! A change is one rule taken out or put back in both copies that the control side keeps.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use weir_core::ipsec::Flow;
use weir_core::ipsec::spd::synthetic::{Family, Shape, flows, rules};
use weir_core::ipsec::spd::{AddressRange, Layer, PolicyIndex, RuleSet, Selector, first_match};
use weir_core::packet::BATCH;
use weir_core::random::SplitMix64;
use weir_testing::race::{Case, race};

const SEED: u64 = 1;
const SECRET: u64 = 0x5ec2e7;

/// Every parameter, with its smoke value.
struct Size {
    sets: &'static [usize],
    flows: usize,
    /// The scan is asked about fewer, of the same.
    scanned: usize,
    repeats: usize,
    updates: usize,
    /// Indexes of the rule that matches.
    depths: &'static [u32],
    /// Around the point where scan and classifier meet.
    few: &'static [usize],
}

const FULL: Size = Size {
    sets: &[1_000, 10_000, 100_000],
    flows: 1 << 18,
    scanned: 1 << 12,
    repeats: 5,
    updates: 10_000,
    depths: &[10, 100, 1_000, 10_000],
    few: &[8, 16, 32, 48, 64, 96, 128],
};

const SMOKE: Size = Size {
    sets: &[200],
    flows: 1 << 12,
    scanned: 1 << 9,
    repeats: 2,
    updates: 20,
    depths: &[10, 100],
    few: &[8, 64],
};

/// Parts of a turn that are timed on their own: a thousand lookups in each.
const SLICES: usize = 256;

/// Times the cases in turns; prints best and median nanoseconds a lookup, and the best as a share of the last's.
fn print_race(mut cases: Vec<Case<'_>>, repeats: usize) {
    let turns = race(&mut cases, SLICES, repeats, false);
    let scan = turns.last().map_or(0.0, |turns| turns.best);
    for (case, turns) in cases.iter().zip(&turns) {
        let (best, median) = (turns.best * 1e9, turns.median * 1e9);
        println!("{:44} {best:9.1} {median:9.1} {:8.4}", case.name, turns.best / scan);
    }
}

fn numbered(selectors: &[Selector]) -> Vec<(Selector, PolicyIndex)> {
    selectors.iter().copied().zip((0..).map(PolicyIndex)).collect()
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    }
}

/// Batch, single and scan of one set.
fn cases<'a>(
    name: &str,
    size: &Size,
    set: &'a RuleSet,
    scan: &'a RuleSet,
    flows: &'a [Flow],
) -> Vec<Case<'a>> {
    let part = flows.len() / SLICES;
    let few = (size.scanned / SLICES).min(part);
    let batch = move |n: usize| {
        let mut found = [None; BATCH];
        let mut sum = 0;
        for chunk in flows[n * part..][..part].chunks(BATCH) {
            set.find_batch(black_box(chunk), &mut found);
            sum += black_box(&found[..chunk.len()]).iter().flatten().map(|p| u64::from(p.0)).sum::<u64>();
        }
        sum
    };
    let single = move |set: &RuleSet, n: usize, count: usize| {
        let some = black_box(&flows[n * part..][..count]);
        some.iter().filter_map(|flow| set.find(flow)).map(|p| u64::from(p.0)).sum::<u64>()
    };
    vec![
        Case { name: format!("{name} classifier, batch"), lookups: part, slice: Box::new(batch) },
        Case {
            name: format!("{name} classifier, single"),
            lookups: part,
            slice: Box::new(move |n| single(set, n, part)),
        },
        Case { name: format!("{name} scan"), lookups: few, slice: Box::new(move |n| single(scan, n, few)) },
    ]
}

fn lookups(family: Family, size: &Size) {
    for &count in size.sets {
        for shape in Shape::ALL {
            let selectors = rules(shape, family, count, SEED);
            let flows = flows(&selectors, size.flows, SEED);
            let scan = RuleSet::default().with_layer(Layer::Scan);
            let scan = numbered(&selectors).iter().zip(0..).fold(scan, |mut set, (rule, order)| {
                set.insert(order, &rule.0, rule.1);
                set
            });
            let start = Instant::now();
            let set = scan.clone().with_secret(SECRET).with_layer(Layer::Classifier);
            let built = start.elapsed().as_secs_f64() * 1e3;
            let stats = set.stats()[usize::from(family == Family::V6)];
            let efforts: Vec<_> = flows.iter().map(|flow| set.effort(flow)).collect();
            let mean = |of: fn(&weir_core::ipsec::spd::Effort) -> usize| {
                efforts.iter().map(of).sum::<usize>() as f64 / efforts.len() as f64
            };
            let name = format!("{} {:9} {count:>6}", family_name(family), shape.name());
            println!(
                "{name}: {} tables, {} entries, chain {}, residue {}, bound {}; a flow asks {:.1} tables and compares \
                 {:.1} rules, at most {}; {} B a rule; built in {built:.1} ms",
                stats.tables,
                stats.entries,
                stats.chain,
                stats.residue,
                stats.bound,
                mean(|effort| effort.tables),
                mean(|effort| effort.compared),
                efforts.iter().map(|effort| effort.compared).max().unwrap_or(0),
                set.memory() / count.max(1),
            );
            print_race(cases(&name, size, &set, &scan, &flows), size.repeats);
        }
    }
}

/// Where [`Layer::Auto`] should change over.
fn threshold(family: Family, size: &Size) {
    for &count in size.few {
        for shape in [Shape::Acl, Shape::Firewall, Shape::Hosts] {
            let selectors = rules(shape, family, count, SEED);
            let flows = flows(&selectors, size.flows / 16, SEED);
            let size = Size { scanned: flows.len(), ..*size };
            let scan = RuleSet::new(numbered(&selectors)).with_layer(Layer::Scan);
            let set = RuleSet::new(numbered(&selectors)).with_secret(SECRET).with_layer(Layer::Classifier);
            let name = format!("{} {:9} {count:>6}", family_name(family), shape.name());
            print_race(cases(&name, &size, &set, &scan, &flows), size.repeats);
        }
    }
}

/// The rule at the index matches every flow; those before are of one address each that no flow has.
fn depth(family: Family, size: &Size) {
    let one = |address: IpAddr| AddressRange { first: address, last: address };
    let (any, nobody): (AddressRange, fn(u32) -> IpAddr) = match family {
        Family::V4 => (AddressRange::ANY_V4, |n| Ipv4Addr::from(n).into()),
        Family::V6 => (AddressRange::ANY_V6, |n| Ipv6Addr::from(u128::from(n) << 64).into()),
    };
    for &index in size.depths {
        let before = (1..index).map(|n| Selector { destination: one(nobody(n)), ..Selector::within(any) });
        let rules = numbered(&before.chain([Selector::within(any)]).collect::<Vec<_>>());
        let scan = RuleSet::new(rules.clone()).with_layer(Layer::Scan);
        let flows = flows(&[Selector::within(any)], size.scanned, SEED);
        let part = flows.len() / SLICES;
        let sum = |found: Option<PolicyIndex>| found.map_or(0, |policy| u64::from(policy.0));
        let of = |n: usize| black_box(&flows[n * part..][..part]);
        let cases = vec![
            Case {
                name: format!("{} depth {index:>6} scan", family_name(family)),
                lookups: part,
                slice: Box::new(|n| of(n).iter().map(|flow| sum(scan.find(flow))).sum()),
            },
            Case {
                name: format!("{} depth {index:>6} plain", family_name(family)),
                lookups: part,
                slice: Box::new(|n| of(n).iter().map(|flow| sum(first_match(&rules, flow))).sum()),
            },
        ];
        print_race(cases, size.repeats);
    }
}

fn updates(family: Family, size: &Size) {
    for &count in size.sets {
        for shape in Shape::ALL {
            let rules = numbered(&rules(shape, family, count, SEED));
            let mut one = RuleSet::new(rules.clone()).with_secret(SECRET).with_layer(Layer::Classifier);
            let mut other = one.clone();
            let mut scatter = SplitMix64::new(SEED);
            let mut times = Vec::with_capacity(2 * size.updates);
            for _ in 0..size.updates {
                let at = scatter.below(rules.len() as u64);
                let (selector, policy) = &rules[at as usize];
                for back in [false, true] {
                    let start = Instant::now();
                    for set in [&mut one, &mut other] {
                        if back {
                            set.insert(at, selector, *policy);
                        } else {
                            assert!(set.remove(at, selector, *policy));
                        }
                    }
                    times.push(start.elapsed().as_secs_f64() * 1e6);
                }
            }
            times.sort_by(f64::total_cmp);
            println!(
                "{:44} {:9.2} {:9.2} {:9.2} {:9.2}",
                format!("{} {:9} {count:>6} one rule, two copies", family_name(family), shape.name()),
                times[0],
                times[times.len() / 2],
                times[times.len() * 99 / 100],
                times[times.len() - 1],
            );
        }
    }
}

type Part = (&'static str, fn(Family, &Size), Family);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let full = args.iter().any(|arg| arg == "--bench") && !args.iter().any(|arg| arg == "--quick");
    let size = if full { &FULL } else { &SMOKE };
    let words: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let parts: [Part; 8] = [
        ("v4 depth", depth, Family::V4),
        ("v6 depth", depth, Family::V6),
        ("v4 threshold", threshold, Family::V4),
        ("v6 threshold", threshold, Family::V6),
        ("v4 lookup", lookups, Family::V4),
        ("v6 lookup", lookups, Family::V6),
        ("v4 update", updates, Family::V4),
        ("v6 update", updates, Family::V6),
    ];
    for (name, part, family) in parts {
        if words.iter().any(|word| !name.contains(word.as_str())) {
            continue;
        }
        if name.ends_with("update") {
            println!("\n{name:44} {:>9} {:>9} {:>9} {:>9}", "best µs", "median", "p99", "worst");
        } else {
            println!("\n{name:44} {:>9} {:>9} {:>8}", "best ns", "median", "of scan");
        }
        part(family, size);
    }
}
