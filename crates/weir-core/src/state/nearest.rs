//! The name an operator probably meant.
//!
//! Promises: a candidate within two edits (one for names of three letters or fewer), the closest
//! first, the earlier one on a tie. Refuses to guess beyond that.

/// The candidate closest to `name`, if one is close enough to be a typing error.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = if name.chars().count() <= 3 { 1 } else { 2 };
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|&(edits, _)| edits <= allowed)
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions and substitutions from `a` to `b`, one row of the table at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapped_and_missing_letters_find_the_name() {
        assert_eq!(nearest("uplnik", ["lan", "uplink"]), Some("uplink"));
        assert_eq!(nearest("ln", ["wan", "lan"]), Some("lan"));
    }

    #[test]
    fn unrelated_name_is_not_guessed_at() {
        assert_eq!(nearest("dmz", ["lan", "wan"]), None);
        assert_eq!(nearest("dmz", []), None);
    }
}
