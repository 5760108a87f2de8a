//! The order of runs: randomised complete blocks (Fisher 1926).
//!
//! ```text
//! block 0   b a c      every configuration once a block, in random order,
//! block 1   a c b      so that a drift of the machine touches all alike
//! block 2   c b a      and is never mistaken for a difference
//! ```
//!
//! Runs in slices are measured group by group, and inside a group round by round ([`rounds`]).

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// One run to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRun {
    pub block: usize,
    /// Its place in the whole campaign, from 0.
    pub order: usize,
    /// Index of the configuration.
    pub configuration: usize,
    /// Decides what is random inside the run; the same for every configuration of a block, so that they
    /// see the same traffic.
    pub seed: u64,
}

/// `blocks` × `configurations` runs, decided by `seed`.
pub fn schedule(configurations: usize, blocks: usize, seed: u64) -> Vec<PlannedRun> {
    grouped(&(0..configurations).map(|c| vec![c]).collect::<Vec<_>>(), blocks, seed)
}

/// The same, with the configurations of a group one after the other in each block.
pub fn grouped(groups: &[Vec<usize>], blocks: usize, seed: u64) -> Vec<PlannedRun> {
    let mut random = Random::for_part(seed, "order");
    let mut slots = Vec::new();
    for block in 0..blocks {
        let mut order: Vec<Vec<usize>> = groups.to_vec();
        random.shuffle(&mut order);
        let seed = random.draw();
        for group in &mut order {
            // what is alone draws nothing
            random.shuffle(group);
        }
        for configuration in order.into_iter().flatten() {
            slots.push(PlannedRun { block, order: slots.len(), configuration, seed });
        }
    }
    slots
}

/// The order of so many configurations in each round of slices, decided by the seed of their block.
pub fn rounds(configurations: usize, rounds: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = Random::for_part(seed, "rounds");
    let mut order: Vec<usize> = (0..configurations).collect();
    let mut next = || {
        random.shuffle(&mut order);
        order.clone()
    };
    (0..rounds).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_same_seed_gives_the_same_order_and_another_seed_another() {
        assert_eq!(schedule(6, 10, 42), schedule(6, 10, 42));
        assert_ne!(schedule(6, 10, 42), schedule(6, 10, 43));
    }

    #[test]
    fn configurations_of_a_block_see_the_same_traffic() {
        let slots = schedule(3, 2, 1);
        assert!(slots[..3].iter().all(|s| s.seed == slots[0].seed));
        assert_ne!(slots[0].seed, slots[3].seed);
    }

    proptest! {
        #[test]
        fn every_block_holds_every_configuration_once(n in 1usize..12, blocks in 1usize..12, seed: u64) {
            let slots = schedule(n, blocks, seed);
            prop_assert_eq!(slots.len(), n * blocks);
            for (block, slots) in slots.chunks(n).enumerate() {
                let mut seen: Vec<usize> = slots.iter().map(|s| s.configuration).collect();
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..n).collect::<Vec<_>>());
                prop_assert!(slots.iter().all(|s| s.block == block));
            }
        }

        #[test]
        fn groups_stay_together_in_every_block_and_their_order_changes(seed: u64) {
            let groups = vec![vec![0, 3], vec![1], vec![2, 4, 5]];
            let slots = grouped(&groups, 40, seed);
            prop_assert!(slots.iter().enumerate().all(|(i, s)| s.order == i));
            let mut seen = std::collections::BTreeSet::new();
            for block in slots.chunks(6) {
                let order: Vec<usize> = block.iter().map(|s| s.configuration).collect();
                for group in &groups {
                    let at = order.iter().position(|c| group.contains(c)).expect("there");
                    prop_assert!(order[at..at + group.len()].iter().all(|c| group.contains(c)), "{:?}", order);
                }
                seen.insert(order);
            }
            prop_assert!(seen.len() > 10);
        }

        #[test]
        fn every_round_holds_every_configuration_once(n in 1usize..12, count in 1usize..40, seed: u64) {
            let order = rounds(n, count, seed);
            prop_assert_eq!(order.len(), count);
            prop_assert_eq!(&order, &rounds(n, count, seed));
            for round in order {
                let mut seen = round;
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..n).collect::<Vec<_>>());
            }
        }

        #[test]
        fn rounds_differ_in_their_order_and_blocks_in_their_rounds(seed: u64) {
            let order = rounds(2, 60, seed);
            let first = order.iter().filter(|r| r[0] == 0).count();
            prop_assert!((10..=50).contains(&first), "{} of 60", first);
            prop_assert_ne!(order, rounds(2, 60, seed.wrapping_add(1)));
        }

        #[test]
        fn no_configuration_always_comes_first(seed: u64) {
            let firsts: Vec<usize> = schedule(2, 40, seed).iter().step_by(2).map(|s| s.configuration).collect();
            prop_assert!(firsts.contains(&0) && firsts.contains(&1));
        }
    }
}
