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

/// Insertions, deletions, substitutions and swaps of neighbours from `a` to `b` (optimal string
/// alignment), three rows of the table at a time.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let substituted = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = substituted.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapped_and_missing_letters_find_the_name() {
        assert_eq!(nearest("uplnik", ["lan", "uplink"]), Some("uplink"));
        assert_eq!(nearest("ln", ["wan", "lan"]), Some("lan"));
        assert_eq!(nearest("lna", ["wan", "lan"]), Some("lan"));
    }

    #[test]
    fn unrelated_name_is_not_guessed_at() {
        assert_eq!(nearest("dmz", ["lan", "wan"]), None);
        assert_eq!(nearest("dmz", []), None);
    }
}
