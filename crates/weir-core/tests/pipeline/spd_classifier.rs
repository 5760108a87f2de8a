//! The classifier answers as the ordered scan does, whatever rules come and go, and within its bound.

use crate::testbed::spd::{Rules, agrees, flow, rules};
use proptest::prelude::*;
use weir_core::ipsec::Flow;
use weir_core::ipsec::spd::synthetic::{self, Family, Shape};
use weir_core::ipsec::spd::{
    Layer, Order, PolicyIndex, RuleSet, Selector, Stats, first_match, fuzz_classifier,
};
use weir_core::random::SplitMix64;

/// Rules as they should stand.
type Model = Vec<(Order, Selector, PolicyIndex)>;

fn of(model: &Model) -> Rules {
    model.iter().map(|&(_, selector, policy)| (selector, policy)).collect()
}

/// All ways to ask are of one opinion.
fn is_the_scan(set: &RuleSet, rules: &Rules, flows: &[Flow]) -> Result<(), TestCaseError> {
    agrees(rules, flows, |flow| set.find(flow))?;
    agrees(rules, flows, |flow| set.scan(flow))?;
    let mut found = vec![None; flows.len()];
    set.find_batch(flows, &mut found);
    for (flow, found) in flows.iter().zip(found) {
        prop_assert_eq!(found, first_match(rules, flow), "in a batch: {:?}", flow);
    }
    // Flows no packet has, such as ports of ICMP, are scanned.
    let bound = set.stats().iter().map(|stats| stats.bound.max(stats.rules)).max().unwrap_or(0);
    for flow in flows {
        prop_assert!(set.effort(flow).compared <= bound);
    }
    Ok(())
}

proptest! {
    #[test]
    fn classifier_is_the_ordered_scan(
        rules in rules(120),
        flows in prop::collection::vec(flow(), 1..150),
        secret: u64,
    ) {
        let set = RuleSet::new(rules.clone()).with_secret(secret).with_layer(Layer::Classifier);
        is_the_scan(&set, &rules, &flows)?;
    }

    #[test]
    fn rules_that_come_and_go_leave_what_a_fresh_set_has(
        first in rules(60),
        second in rules(60),
        flows in prop::collection::vec(flow(), 1..60),
        seed: u64,
    ) {
        let mut scatter = SplitMix64::new(seed);
        let mut set = RuleSet::default().with_layer(Layer::Classifier);
        let mut model = Model::new();
        for (selector, _) in first.into_iter().chain(second) {
            // Few orders, so that rules share some; and one policy for each.
            let order = scatter.below(50);
            let policy = PolicyIndex(order as u32);
            set.insert(order, &selector, policy);
            let at = model.partition_point(|rule| rule.0 <= order);
            model.insert(at, (order, selector, policy));
            if scatter.below(3) == 0 {
                let (order, selector, policy) = model.remove(scatter.below(model.len() as u64) as usize);
                prop_assert!(set.remove(order, &selector, policy));
                prop_assert!(!set.remove(order + 100, &selector, policy), "it is not there at another order");
            }
            if scatter.below(8) == 0 && !model.is_empty() {
                // Another order for a rule.
                let (order, selector, policy) = model.remove(scatter.below(model.len() as u64) as usize);
                prop_assert!(set.remove(order, &selector, policy));
                let at = model.partition_point(|rule| rule.0 <= order + 1);
                let next = PolicyIndex(order as u32 + 1);
                set.insert(order + 1, &selector, next);
                model.insert(at, (order + 1, selector, next));
            }
        }
        is_the_scan(&set, &of(&model), &flows)?;
        is_the_scan(&set.clone(), &of(&model), &flows)?;
        while let Some((order, selector, policy)) = model.pop() {
            prop_assert!(set.remove(order, &selector, policy));
        }
        prop_assert!(set.is_empty());
        prop_assert_eq!(set.stats(), RuleSet::default().with_layer(Layer::Classifier).stats());
    }
}

#[test]
fn bytes_read_as_changes_and_lookups_never_disagree() {
    let mut scatter = SplitMix64::new(1);
    for _ in 0..60 {
        let data: Vec<u8> = (0..1500).map(|_| scatter.next_u64() as u8).collect();
        fuzz_classifier(&data);
    }
}

/// Rules of a shape with a number each.
fn numbered(shape: Shape, family: Family, count: usize) -> Rules {
    synthetic::rules(shape, family, count, 1).into_iter().zip((0..).map(PolicyIndex)).collect()
}

fn classified(rules: &Rules) -> RuleSet {
    RuleSet::new(rules.clone()).with_secret(9).with_layer(Layer::Classifier)
}

fn stats_of(set: &RuleSet, family: Family) -> Stats {
    set.stats()[usize::from(family == Family::V6)]
}

fn each_shape(count: usize, check: impl Fn(Shape, Family, &Rules)) {
    for family in [Family::V4, Family::V6] {
        for shape in Shape::ALL {
            check(shape, family, &numbered(shape, family, count));
        }
    }
}

#[test]
fn shapes_of_real_filters_and_the_worst_are_answered_as_by_the_scan() {
    each_shape(600, |shape, _, rules| {
        let set = classified(rules);
        let selectors: Vec<_> = rules.iter().map(|(selector, _)| *selector).collect();
        let flows = synthetic::flows(&selectors, 400, 2);
        let mut found = vec![None; flows.len()];
        set.find_batch(&flows, &mut found);
        for (flow, found) in flows.iter().zip(found) {
            let expected = first_match(rules, flow);
            assert_eq!(set.find(flow), expected, "{shape:?}: {flow:?}");
            assert_eq!(found, expected, "{shape:?} in a batch: {flow:?}");
        }
    });
}

#[test]
fn no_lookup_takes_more_than_the_bound_or_much_more_than_the_scan() {
    each_shape(10_000, |shape, family, rules| {
        let set = classified(rules);
        let stats = stats_of(&set, family);
        assert!(stats.tables <= 24 && stats.chain <= 15, "{shape:?}: {stats:?}");
        assert!(stats.bound <= stats.tables * 15 + stats.residue * 8 / 7 + 2, "{shape:?}: {stats:?}");
        let selectors: Vec<_> = rules.iter().map(|(selector, _)| *selector).collect();
        for flow in synthetic::flows(&selectors, 300, 2) {
            let effort = set.effort(&flow);
            assert!(effort.compared <= stats.bound, "{shape:?}: {flow:?} takes {effort:?} of {stats:?}");
            assert!(effort.tables <= stats.tables, "{shape:?}: {flow:?} takes {effort:?} of {stats:?}");
        }
    });
}

#[test]
fn shapes_of_real_filters_are_compared_with_few_rules_of_many() {
    for (shape, family) in [Shape::Acl, Shape::Firewall, Shape::IpChain, Shape::Hosts, Shape::Wildcards]
        .into_iter()
        .flat_map(|shape| [(shape, Family::V4), (shape, Family::V6)])
    {
        let rules = numbered(shape, family, 10_000);
        let stats = stats_of(&classified(&rules), family);
        assert!(stats.residue < 100 && stats.bound < 400, "{shape:?} {family:?}: {stats:?}");
    }
}

#[test]
fn memory_of_a_rule_is_bounded() {
    each_shape(2_000, |shape, family, rules| {
        let most = if family == Family::V4 { 8 * 80 + 90 } else { 8 * 144 + 210 };
        let set = classified(rules);
        assert!(set.memory() <= rules.len() * most + (64 << 10), "{shape:?} {family:?}: {} B", set.memory());
        assert!(stats_of(&set, family).entries <= 8 * rules.len());
    });
}

#[test]
fn long_churn_leaves_stats_near_those_of_a_fresh_set() {
    for shape in [Shape::Acl, Shape::Firewall, Shape::Ranges, Shape::Staircase] {
        // Half of twice as many rules stand at any time; in the end each was replaced many times.
        let rules = numbered(shape, Family::V4, 2_400);
        let mut scatter = SplitMix64::new(3);
        let (mut inside, mut outside): (Vec<usize>, Vec<usize>) = (0..rules.len()).partition(|n| n % 2 == 0);
        let mut set = RuleSet::default().with_secret(9).with_layer(Layer::Classifier);
        for &n in &inside {
            set.insert(n as Order, &rules[n].0, rules[n].1);
        }
        for _ in 0..6_000 {
            let i = scatter.below(inside.len() as u64) as usize;
            let o = scatter.below(outside.len() as u64) as usize;
            let (gone, new) = (inside[i], outside[o]);
            assert!(set.remove(gone as Order, &rules[gone].0, rules[gone].1));
            set.insert(new as Order, &rules[new].0, rules[new].1);
            (inside[i], outside[o]) = (new, gone);
        }
        inside.sort_unstable();
        let now: Rules = inside.iter().map(|&n| rules[n]).collect();
        let (aged, fresh) = (stats_of(&set, Family::V4), stats_of(&classified(&now), Family::V4));
        assert!(aged.bound <= fresh.bound * 3 / 2 + 40, "{shape:?}: {aged:?}, fresh {fresh:?}");
        assert!(aged.tables <= fresh.tables * 3 / 2 + 3, "{shape:?}: {aged:?}, fresh {fresh:?}");
        assert!(aged.entries <= fresh.entries * 4, "{shape:?}: {aged:?}, fresh {fresh:?}");
        let selectors: Vec<_> = now.iter().map(|(selector, _)| *selector).collect();
        for flow in synthetic::flows(&selectors, 500, 4) {
            assert_eq!(set.find(&flow), first_match(&now, &flow), "{shape:?}: {flow:?}");
        }
    }
}

#[test]
fn rules_of_another_shape_find_their_tables_when_the_first_are_gone() {
    let (first, second) =
        (numbered(Shape::Acl, Family::V4, 2_000), numbered(Shape::Firewall, Family::V4, 2_000));
    let mut set = classified(&first);
    for (order, ((old, policy), (new, _))) in (0..).zip(first.iter().zip(&second)) {
        assert!(set.remove(order, old, *policy));
        set.insert(order, new, *policy);
    }
    for (order, (selector, policy)) in (0..).zip(&second) {
        // The changes that follow are none: what they do is to tend what stands.
        assert!(set.remove(order, selector, *policy));
        set.insert(order, selector, *policy);
    }
    let (aged, fresh) = (stats_of(&set, Family::V4), stats_of(&classified(&second), Family::V4));
    assert!(aged.bound <= fresh.bound * 2 + 60, "{aged:?}, fresh {fresh:?}");
    assert!(aged.tables <= fresh.tables * 2, "{aged:?}, fresh {fresh:?}");
}

#[test]
fn staircases_of_ports_on_one_pair_of_addresses_stay_below_the_scan() {
    let rules = numbered(Shape::Staircase, Family::V4, 10_000);
    let set = classified(&rules);
    let selectors: Vec<_> = rules.iter().map(|(selector, _)| *selector).collect();
    let efforts: Vec<_> =
        synthetic::flows(&selectors, 1_000, 2).iter().map(|flow| set.effort(flow).compared).collect();
    let mean = efforts.iter().sum::<usize>() / efforts.len();
    assert!(mean < rules.len() / 20, "{mean} of {}", rules.len());
}

#[test]
fn few_rules_are_scanned_and_many_are_not_unless_told() {
    let rules = numbered(Shape::Acl, Family::V4, 1_000);
    let few = RuleSet::new(rules[..8].to_vec());
    assert!(!few.classifies(true) && !few.classifies(false));
    assert!(few.clone().with_layer(Layer::Classifier).classifies(true));
    let many = RuleSet::new(rules.clone());
    assert!(many.classifies(true) && !many.classifies(false), "each family for itself");
    assert!(!many.clone().with_layer(Layer::Scan).classifies(true));
    let mut going = many;
    for (order, (selector, policy)) in (0..).zip(&rules).take(995) {
        assert!(going.remove(order, selector, *policy));
    }
    assert!(!going.classifies(true), "few again");
}

#[test]
fn another_secret_puts_rules_elsewhere_and_says_the_same() {
    let rules = numbered(Shape::Hosts, Family::V4, 500);
    let (one, other) = (classified(&rules), classified(&rules).with_secret(10));
    let selectors: Vec<_> = rules.iter().map(|(selector, _)| *selector).collect();
    let flows = synthetic::flows(&selectors, 500, 2);
    let efforts = |set: &RuleSet| flows.iter().map(|flow| set.effort(flow).compared).collect::<Vec<_>>();
    assert_ne!(efforts(&one), efforts(&other), "which rules share a chain depends on the secret");
    for flow in &flows {
        assert_eq!(one.find(flow), other.find(flow));
    }
}
