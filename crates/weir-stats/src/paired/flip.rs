//! Sign-flip permutation (Fisher 1935, Darwin's maize): inside a block the two names could have been swapped.
//!
//! Exact up to [`EXACT_BLOCKS`]; from [`DRAWS`] random swaps, by seed, beyond. Five blocks cannot go below
//! p = 2/2⁵ = 0.0625: no test that assumes nothing can.

use crate::permutation::{DRAWS, Permutation};
use crate::random::Random;

/// 2¹⁶ = 65,536 swaps are counted, the other half being their mirror image.
const EXACT_BLOCKS: usize = 17;

/// Two-sided p of a mean difference at least as far from zero.
pub fn sign_flip(differences: &[f64], seed: u64) -> Permutation {
    let observed = differences.iter().sum::<f64>().abs();
    // sums equal but for rounding must count as equal
    let least = observed - differences.iter().map(|d| d.abs()).sum::<f64>() * 1e-12;
    let n = differences.len();
    if n <= EXACT_BLOCKS {
        let masks = 1u32 << n.saturating_sub(1);
        let flipped = |mask: u32| -> f64 {
            differences.iter().enumerate().map(|(i, d)| if mask >> i & 1 == 1 { -d } else { *d }).sum()
        };
        let hits = (0..masks).filter(|&mask| flipped(mask).abs() >= least).count();
        return Permutation { p: hits as f64 / f64::from(masks), exact: true };
    }
    let mut random = Random::for_part(seed, "sign-flip");
    let mut hits = 0;
    for _ in 0..DRAWS {
        let sum: f64 = differences.iter().map(|d| if random.draw() >> 63 == 1 { -d } else { *d }).sum();
        hits += u32::from(sum.abs() >= least);
    }
    // the observed swaps are one of them: p is never 0 (Phipson, Smyth 2010)
    Permutation { p: f64::from(hits + 1) / f64::from(DRAWS + 1), exact: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn darwins_maize_has_the_value_fisher_counted() {
        // heights of crossed less self-fertilised plants, in eighths of an inch; Fisher counted 863 of 2¹⁵
        // sums at least as great, on either side: p = 2 · 863 / 32768
        let eighths = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48].map(f64::from);
        let test = sign_flip(&eighths, 1);
        assert!(test.exact && (test.p - 2.0 * 863.0 / 32768.0).abs() < 1e-12, "{}", test.p);
    }

    #[test]
    fn five_blocks_of_one_sign_leave_two_of_thirty_two() {
        assert_eq!(sign_flip(&[1.0, 2.0, 3.0, 4.0, 5.0], 1).p, 2.0 / 32.0);
    }

    #[test]
    fn random_swaps_agree_with_the_full_count_and_repeat_by_seed() {
        let differences: Vec<f64> = (0..17).map(|i| f64::from(i * 7 % 17) - 5.0).collect();
        let more = [differences.as_slice(), &[0.0]].concat();
        let (counted, drawn) = (sign_flip(&differences, 3), sign_flip(&more, 3));
        assert!(counted.exact && !drawn.exact);
        // 20,000 draws: three standard errors of 0.0023 at p = 0.1
        assert!((counted.p - drawn.p).abs() < 0.01, "{} against {}", counted.p, drawn.p);
        assert_eq!(drawn, sign_flip(&more, 3));
    }
}
