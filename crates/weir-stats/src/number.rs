//! C's `%g`, which ministat and the field's raw files are written in.
//!
//! Promises the digits of `printf("%.<precision>g")` for every finite double, `inf` and `nan`.

/// `value` with `precision` significant digits, trailing zeros cut, scientific when the exponent is
/// below −4 or not below the precision.
pub fn general(value: f64, precision: usize) -> String {
    let precision = precision.max(1);
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan" } else { "nan" }.into();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf" } else { "inf" }.into();
    }
    let scientific = format!("{:.*e}", precision - 1, value);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", cut_zeros(mantissa), exponent.abs());
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    cut_zeros(&format!("{value:.decimals$}")).into()
}

fn cut_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn digits_are_those_of_printf() {
        // each right side is what printf(1) of coreutils prints for the same format
        let cases = [
            (0.0, 6, "0"),
            (-0.0, 6, "-0"),
            (1.0, 6, "1"),
            (100_000.0, 6, "100000"),
            (1_000_000.0, 6, "1e+06"),
            (999_999.5, 6, "1e+06"),
            (-1_349_483.0, 6, "-1.34948e+06"),
            (0.0001, 6, "0.0001"),
            (0.00001234567, 6, "1.23457e-05"),
            (0.860257123, 6, "0.860257"),
            (11_887_346.0, 8, "11887346"),
            (55_433.170_97, 8, "55433.171"),
            (123_456_789.0, 8, "1.2345679e+08"),
            (1e100, 8, "1e+100"),
            (0.5, 1, "0.5"),
        ];
        for (value, precision, expected) in cases {
            assert_eq!(general(value, precision), expected, "{value} with {precision} digits");
        }
    }

    #[test]
    fn what_is_not_a_number_is_named() {
        assert_eq!(general(f64::NAN, 6), "nan");
        assert_eq!(general(f64::NEG_INFINITY, 6), "-inf");
    }
}
