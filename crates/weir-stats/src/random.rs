//! Randomness that can be repeated: SplitMix64 (Steele, Lea, Flood 2014).
//!
//! Good enough to shuffle schedules and resample values; not for secrets.

/// A stream of numbers decided by its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A stream of its own for each part of an experiment, so that one part's draws never move another's.
    pub fn for_part(seed: u64, part: &str) -> Self {
        // FNV-1a over the name: any fixed mixing will do, SplitMix64 spreads what it gives
        let hash = part
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Random(seed ^ hash)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number below `bound`, without modulo bias (Lemire 2019); 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        loop {
            let wide = u128::from(self.draw()) * u128::from(bound);
            // the threshold, a division, lies below the bound: it is hardly ever needed
            if wide as u64 >= bound || wide as u64 >= bound.wrapping_neg() % bound {
                return (wide >> 64) as u64;
            }
        }
    }

    /// Fisher–Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // first outputs of SplitMix64 for seed 1234567, as listed at rosettacode.org
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.draw()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn draws_stay_below_their_bound_and_reach_every_value() {
        let mut random = Random::new(1);
        let mut seen = [0; 6];
        for _ in 0..6000 {
            seen[random.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 800), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn parts_of_one_seed_draw_differently() {
        assert_ne!(Random::for_part(7, "order").draw(), Random::for_part(7, "bootstrap").draw());
    }
}
