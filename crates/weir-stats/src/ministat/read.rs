//! Values from text, as ministat(1) reads them: one column of each line.
//!
//! Promises the original's notion of columns (strtok(3): any run of delimiters separates), comments (a column
//! that begins with `#` ends its line) and numbers (strtod(3), which knows hexadecimal and infinity). Refuses
//! a column that is not a number, with its line. A line longer than 8191 bytes, which the original reads as
//! two, is one.

/// Which part of a line is the value.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// Counted from 1.
    pub column: usize,
    /// Each byte separates.
    pub delimiters: &'a [u8],
}

impl Default for Columns<'_> {
    fn default() -> Self {
        Columns { column: 1, delimiters: b" \t" }
    }
}

/// A line whose column is not a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotANumber {
    /// Counted from 1.
    pub line: usize,
    pub got: String,
}

/// The values of `text`, in its order.
pub fn values(text: &[u8], columns: &Columns<'_>) -> Result<Vec<f64>, NotANumber> {
    let mut values = Vec::new();
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    for (i, line) in text.split(|&b| b == b'\n').enumerate() {
        let Some(word) = column(trimmed(line), columns) else { continue };
        match number(word) {
            Some(value) => values.push(value),
            None => {
                return Err(NotANumber { line: i + 1, got: String::from_utf8_lossy(word).into_owned() });
            }
        }
    }
    Ok(values)
}

/// `None` when the line ends, or a comment begins, before the column.
fn column<'t>(line: &'t [u8], columns: &Columns<'_>) -> Option<&'t [u8]> {
    line.split(|b| columns.delimiters.contains(b))
        .filter(|word| !word.is_empty())
        .take_while(|word| word[0] != b'#')
        .nth(columns.column - 1)
}

fn trimmed(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|b| !is_space(*b)).map_or(0, |last| last + 1);
    &line[..end]
}

/// isspace(3) of the C locale: also the vertical tab.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// What strtod(3) makes of a whole word; `None` where it would stop before the end.
fn number(word: &[u8]) -> Option<f64> {
    let start = word.iter().position(|b| !is_space(*b))?;
    let word = std::str::from_utf8(&word[start..]).ok()?;
    let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
    let negative = word.starts_with('-');
    let lower = unsigned.to_ascii_lowercase();
    let size = if let Some(digits) = lower.strip_prefix("0x") {
        hexadecimal(digits)?
    } else if lower.strip_prefix("nan(").is_some_and(is_payload) {
        f64::NAN
    } else if unsigned.starts_with(['+', '-']) {
        return None;
    } else {
        unsigned.parse().ok()?
    };
    Some(if negative { -size } else { size })
}

/// What may follow `nan(`: letters, digits, underscores and the closing bracket.
fn is_payload(rest: &str) -> bool {
    rest.strip_suffix(')').is_some_and(|p| p.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

/// `1.8p3` is 1.5 · 2³; exact up to 53 bits, which is all a double holds.
fn hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once('p') {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = whole.chars().chain(fraction.chars());
    let value = digits.map(|c| c.to_digit(16)).try_fold(0.0, |v, d| Some(v * 16.0 + f64::from(d?)))?;
    Some(value * 2f64.powi(exponent.saturating_sub(4 * fraction.len() as i32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_numbers_where_strtod_says_so() {
        // each as `printf '%g' word` of a C shell reads it
        let numbers = [
            ("1", 1.0),
            ("+.5", 0.5),
            ("-5.", -5.0),
            ("1e3", 1000.0),
            ("1E-3", 0.001),
            (" 7", 7.0),
            ("0x1F", 31.0),
            ("-0x1.8p3", -12.0),
            ("inf", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("1e999", f64::INFINITY),
        ];
        for (word, expected) in numbers {
            assert_eq!(number(word.as_bytes()), Some(expected), "{word:?}");
        }
        assert!(number(b"nan").is_some_and(f64::is_nan) && number(b"NaN(1_a)").is_some_and(f64::is_nan));
        for word in ["", " ", "x", "1e", "1e+", "0x", "0xp1", "5 ", "5\r", "1,5", "--1", "1#2", "infin", "."]
        {
            assert_eq!(number(word.as_bytes()), None, "{word:?}");
        }
    }

    #[test]
    fn any_run_of_delimiters_separates_and_a_remark_ends_the_line() {
        let read = |text: &str, column, delimiters: &str| {
            values(text.as_bytes(), &Columns { column, delimiters: delimiters.as_bytes() })
        };
        assert_eq!(read("1 2\n\n # 5\n\t3  4\n", 2, " \t"), Ok(vec![2.0, 4.0]));
        assert_eq!(read("a,1;;2\nb,3 ,#4\n", 2, ",;"), Err(NotANumber { line: 2, got: "3 ".into() }));
        assert_eq!(read("1 #2\n3 4", 2, " "), Ok(vec![4.0]));
    }

    #[test]
    fn lines_may_end_as_other_systems_end_them() {
        assert_eq!(values(b"1\r\n2 \r\n\r\n3", &Columns::default()), Ok(vec![1.0, 2.0, 3.0]));
    }
}
