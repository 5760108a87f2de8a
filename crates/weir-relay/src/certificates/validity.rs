//! When a certificate is valid, read from its DER (RFC 5280 4.1.2.5): nothing else of it is understood here.
//!
//! ```text
//!  SEQUENCE { SEQUENCE { [0] version?, INTEGER serial, algorithm, issuer, SEQUENCE { not before, not after } …
//! ```
//!
//! Refuses whatever is shaped otherwise by returning `None`.

use std::time::{Duration, SystemTime};

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The first and the last moment of this certificate.
pub fn validity(certificate: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let (SEQUENCE, outer, _) = element(certificate)? else { return None };
    let (SEQUENCE, inner, _) = element(outer)? else { return None };
    let (first, _, after) = element(inner)?;
    let mut rest = if first == VERSION { element(after)?.2 } else { after };
    for _ in ["algorithm", "issuer"] {
        rest = element(rest)?.2;
    }
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (kind, begin, rest) = element(validity)?;
    let begin = moment(kind, begin)?;
    let (kind, end, _) = element(rest)?;
    Some((begin, moment(kind, end)?))
}

/// The first element: tag, content, and what follows.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&short, rest) = rest.split_first()?;
    let (length, rest) = match short {
        0..=0x7f => (usize::from(short), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
            (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn moment(kind: u8, time: &[u8]) -> Option<SystemTime> {
    let digits = time.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number =
        |digits: &[u8]| digits.iter().fold(0, |number, &digit| number * 10 + u64::from(digit - b'0'));
    let (year, rest) = match (kind, digits.len()) {
        // RFC 5280 4.1.2.5.1: 50 and later are of the last century.
        (UTC_TIME, 12) => {
            let year = number(&digits[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_before(year) + days_in_year(year, month) + day - 1;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days between the beginnings of 1970 and of `year`.
fn days_before(year: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// Days of `year` before `month`.
fn days_in_year(year: u64, month: u64) -> u64 {
    const LENGTHS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before: u64 = LENGTHS.iter().zip(1..month).map(|(length, _)| length).sum();
    before + u64::from(leap(year) && month > 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_what_date_says() {
        // date -u -d '2028-02-29 12:34:56' +%s, and so on
        for (kind, text, seconds) in [
            (UTC_TIME, "280229123456Z", 1_835_440_496),
            (UTC_TIME, "700101000000Z", 0),
            (GENERALIZED_TIME, "20991231235959Z", 4_102_444_799),
            (GENERALIZED_TIME, "20000301000000Z", 951_868_800),
        ] {
            let found = moment(kind, text.as_bytes()).expect("a moment");
            assert_eq!(found, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), "{text}");
        }
    }

    #[test]
    fn other_shapes_are_no_moment() {
        for text in ["", "Z", "2802291234Z", "280229123456", "28022912345xZ", "281329123456Z"] {
            assert_eq!(moment(UTC_TIME, text.as_bytes()), None, "{text}");
        }
    }
}
