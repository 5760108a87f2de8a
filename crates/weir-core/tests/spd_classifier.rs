//! The classifier answers as the ordered scan does, whatever rules come and go, and within its bound.

#[path = "bed/spd.rs"]
mod bed;

use bed::{Rules, agrees, flow, rules};
use proptest::prelude::*;
use weir_core::ipsec::Flow;
use weir_core::ipsec::spd::{Layer, Order, PolicyIndex, RuleSet, first_match, fuzz_classifier};
use weir_core::route::synthetic::Scatter;

/// Rules as they should stand.
type Model = Vec<(Order, weir_core::ipsec::spd::Selector, PolicyIndex)>;

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
        let mut scatter = Scatter::new(seed);
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
    let mut scatter = Scatter::new(1);
    for _ in 0..60 {
        let data: Vec<u8> = (0..1500).map(|_| scatter.next_u64() as u8).collect();
        fuzz_classifier(&data);
    }
}
