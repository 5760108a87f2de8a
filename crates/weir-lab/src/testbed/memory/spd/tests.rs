//! Packets pass whoever answers, whatever the rules; and what policies do not let pass does not.

use std::time::Duration;

use weir_core::ipsec::spd::synthetic::Shape;

use super::super::MemoryTestbed;
use super::*;
use crate::model::configuration::PlacementKeys;
use crate::model::ipsec::{CipherName, Mode};
use crate::model::spd::{Action as Does, Spd};
use crate::model::{Configuration, FrameSize, Keys, Sample, Sut, Topology, Trial, Workload};
use weir_stats::search::Rate;

const LOOKUPS: [LookupBy; 4] = [LookupBy::Gateway, LookupBy::Linear, LookupBy::Classifier, LookupBy::Cache];
const FAMILIES: [Family; 2] = [Family::Inet, Family::Inet6];

fn protection(direction: Direction, outer: Family, policies: u32, spd: Spd) -> Protection {
    let cipher = CipherName::named("null").expect("a cipher");
    Protection { policies, outer, spd, ..Protection::new(Mode::Policy, direction, cipher) }
}

fn sample(family: Family, flows: u32, p: Protection) -> Sample {
    let configuration = Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        name: "c".into(),
        sut: Sut::Weir,
        topology: Topology::Memory,
        workload: Workload { family, frame: FrameSize::Fixed(94), flows, rate: Rate::FlatOut },
        routes: 20,
        placement: PlacementKeys::default(),
        ipsec: Some(p),
        build: None,
        relay: None,
    })
    .expect("valid");
    let what = format!("{family:?} {p:?}");
    let mut prepared =
        MemoryTestbed::default().prepare(&configuration).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (warm_up, window) = (Duration::from_millis(2), Duration::from_millis(12));
    let run = prepared.run(&Trial { rate: Rate::FlatOut, warm_up, window, seed: 1 });
    let sample = run.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(sample.ledger.drops.is_empty(), "{what}: {:?}", sample.ledger);
    assert!(sample.ledger.delivered > 0, "{what}");
    assert!(sample.metrics["verified_packets"] >= 1.0, "{what}: nothing was verified");
    sample
}

fn ways() -> [(Direction, Does); 3] {
    [(Direction::Out, Does::Protect), (Direction::In, Does::Protect), (Direction::In, Does::Bypass)]
}

#[test]
fn the_match_is_found_at_every_index_by_everybody() {
    for lookup in LOOKUPS {
        for (direction, action) in ways() {
            for (matching, policies) in [(1, 1), (20, 20), (7, 20)] {
                for family in FAMILIES {
                    let spd =
                        Spd { lookup, matching: Some(matching), buckets: 256, action, ..Spd::default() };
                    sample(family, 50, protection(direction, Family::Inet, policies, spd));
                }
            }
        }
    }
}

#[test]
fn flows_of_synthetic_rules_pass_by_everybody_in_both_families() {
    for lookup in LOOKUPS {
        for (direction, action) in ways() {
            for family in FAMILIES {
                let rules = Some(RuleSet { shape: Shape::Acl, count: 60 });
                let spd = Spd { lookup, rules, buckets: 256, action, ..Spd::default() };
                sample(family, 40, protection(direction, family, 60, spd));
            }
        }
    }
}

#[test]
fn every_shape_is_a_set_the_control_side_takes() {
    for shape in Shape::ALL {
        for family in FAMILIES {
            let rules = Some(RuleSet { shape, count: 200 });
            let spd = Spd { lookup: LookupBy::Classifier, rules, ..Spd::default() };
            sample(family, 40, protection(Direction::Out, family, 200, spd));
        }
    }
}

#[test]
fn more_flows_than_templates_pass_sealed_and_open() {
    for (direction, action) in ways() {
        for family in FAMILIES {
            for rules in [None, Some(RuleSet { shape: Shape::Acl, count: 60 })] {
                let spd = Spd { lookup: LookupBy::Cache, rules, buckets: 64, action, ..Spd::default() };
                sample(family, 70_000, protection(direction, family, 60, spd));
            }
        }
    }
}

#[test]
fn policies_change_while_packets_pass_and_none_is_lost() {
    for direction in [Direction::Out, Direction::In] {
        for rules in [None, Some(RuleSet { shape: Shape::Acl, count: 60 })] {
            let spd = Spd { lookup: LookupBy::Cache, rules, buckets: 256, churn: 2000, ..Spd::default() };
            // who else is on the machine decides when the control thread gets its turn
            let changed =
                (0..200).map(|_| sample(Family::Inet, 40, protection(direction, Family::Inet, 60, spd)));
            let sample = changed.into_iter().find(|s| s.metrics["updates"] >= 2.0).expect("policies changed");
            assert!(sample.metrics["update_ns_p50"] <= sample.metrics["update_ns_max"]);
        }
    }
}

#[test]
fn shares_of_who_answered_add_up() {
    for lookup in LOOKUPS {
        let rules = Some(RuleSet { shape: Shape::Acl, count: 60 });
        let spd = Spd { lookup, rules, buckets: 4096, ..Spd::default() };
        let metrics = sample(Family::Inet, 40, protection(Direction::Out, Family::Inet, 60, spd)).metrics;
        let share = |name: &str| metrics.get(&format!("spd_{name}_percent")).copied().unwrap_or(0.0);
        let sum = share("first") + share("outside") + share("hit") + share("classified") + share("scanned");
        assert!((sum - 100.0).abs() < 1e-6, "{lookup:?}: {metrics:?}");
        assert_eq!(metrics.contains_key("spd_hit_percent"), lookup == LookupBy::Cache);
        assert_eq!(metrics.contains_key("cache_occupied_buckets"), lookup == LookupBy::Cache);
    }
}

#[test]
fn rules_become_policies_of_the_direction_asked() {
    let set = RuleSet { shape: Shape::Acl, count: 30 };
    let spd = Spd { rules: Some(set), ..Spd::default() };
    let made = rules(set, Family::Inet);
    for direction in [Direction::Out, Direction::In] {
        let p = protection(direction, Family::Inet, 30, spd);
        let (out, inbound) = (["out".to_string()], ["in".to_string()]);
        let policies = policies(&p, Family::Inet, &out, &inbound);
        let back: Vec<Selector> = policies.iter().flat_map(|policy| policy.selectors(towards(&p))).collect();
        assert_eq!(back, made);
        assert_eq!(policies[0].out.is_empty(), direction == Direction::In);
        assert_eq!(policies[0].inbound.is_empty(), direction == Direction::Out);
        assert_eq!(needed(&p), 29);
    }
}

#[test]
fn most_rules_of_every_set_are_of_packets_the_lab_has() {
    for shape in Shape::ALL {
        let rules = rules(RuleSet { shape, count: 300 }, Family::Inet);
        let passing = rules.iter().filter(|r| r.protocol.is_none_or(|p| p == UDP)).count();
        assert!(passing * 2 > rules.len(), "{}: {passing} of 300", shape.name());
    }
}
