//! Holm's step-down correction (Holm 1979): several verdicts in one report share one 5 % of error.

/// Adjusted p values, in the order given; NaN (no test) stays NaN and takes no share.
pub fn adjust(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).filter(|&i| !p[i].is_nan()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let family = order.len();
    let mut adjusted = vec![f64::NAN; p.len()];
    let mut floor: f64 = 0.0;
    for (rank, &i) in order.iter().enumerate() {
        floor = floor.max((p[i] * (family - rank) as f64).min(1.0));
        adjusted[i] = floor;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::adjust;
    use proptest::prelude::*;

    #[test]
    fn corrected_values_agree_with_r() {
        // p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm") = 0.05 0.08 0.09 0.09 0.09
        let got = adjust(&[0.01, 0.02, 0.03, 0.04, 0.05]);
        for (got, expected) in got.iter().zip([0.05, 0.08, 0.09, 0.09, 0.09]) {
            assert!((got - expected).abs() < 1e-12, "got {got}, expected {expected}");
        }
    }

    #[test]
    fn a_missing_test_takes_no_share() {
        let got = adjust(&[0.04, f64::NAN]);
        assert_eq!(got[0], 0.04);
        assert!(got[1].is_nan());
    }

    proptest! {
        #[test]
        fn correction_never_lowers_a_value_nor_changes_the_order(p in proptest::collection::vec(0.0..1.0f64, 1..20)) {
            let adjusted = adjust(&p);
            for (i, &a) in adjusted.iter().enumerate() {
                prop_assert!(a >= p[i] && a <= 1.0);
                for (j, &b) in adjusted.iter().enumerate() {
                    prop_assert!(p[i] > p[j] || a <= b);
                }
            }
        }
    }
}
