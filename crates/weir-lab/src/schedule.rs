//! The order of runs: randomised complete blocks (Fisher 1926).
//!
//! ```text
//! block 0   b a c      every configuration once a block, in random order,
//! block 1   a c b      so that a drift of the machine touches all alike
//! block 2   c b a      and is never mistaken for a difference
//! ```

use serde::{Deserialize, Serialize};

use crate::stats::random::Random;

/// One run to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
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
pub fn schedule(configurations: usize, blocks: usize, seed: u64) -> Vec<Slot> {
    let mut random = Random::for_part(seed, "order");
    let mut slots = Vec::with_capacity(configurations * blocks);
    for block in 0..blocks {
        let mut order: Vec<usize> = (0..configurations).collect();
        random.shuffle(&mut order);
        let seed = random.draw();
        for configuration in order {
            slots.push(Slot { block, order: slots.len(), configuration, seed });
        }
    }
    slots
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
        fn no_configuration_always_comes_first(seed: u64) {
            let firsts: Vec<usize> = schedule(2, 40, seed).iter().step_by(2).map(|s| s.configuration).collect();
            prop_assert!(firsts.contains(&0) && firsts.contains(&1));
        }
    }
}
