//! Which raw data a line of values was printed from.
//!
//! ```text
//! 1  the file its legend names, when it has exactly these six values
//! 2  any set that has exactly these six values, nearest folder first; then generator logs
//! 3  the file its legend names, or a near set that shares enough digits: the block differs from it
//! 4  the one file beside the document that no block was printed of, if it is alike: the block differs from it
//! 5  none: no data
//! ```
//!
//! Legends are edited by hand more often than values: a set is known by its values, its name only decides
//! between equals and says whom to compare with when no values fit. Six values of eight digits are a
//! fingerprint: no two sets of a collection of 3,800 share them unless one is the other's copy.

use std::path::{Path, PathBuf};

use super::library::{Library, Raw};
use super::printed::Printed;

/// Significant digits two descriptions must share before one is called an edited copy of the other: a rate
/// in packets a second has seven; three throughputs of three digits have nine.
const ENOUGH_DIGITS: usize = 6;
/// Characters of a legend that may name a file: the longest path a file system takes is no legend.
const MAX_LEGEND: usize = 255;
/// Rings searched for an edited copy: the document's folder, those below it, its siblings.
const NEAR_RINGS: usize = 3;
/// Rings that are beside the document: its folder, those below it.
const BESIDE: usize = 2;

/// How a set was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The legend names the file, and the values are its own.
    Named,
    /// The file has the block's values.
    Values,
    /// The file has the block's values, while the one the legend names has others.
    Renamed,
    /// The legend names the file, some values are not its own.
    NamedOther,
    /// Some of the values are its own.
    Near,
}

/// A set that a line of values was, or may have been, printed from.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub raw: Raw,
    pub how: How,
}

impl Found {
    pub fn is_exact(&self) -> bool {
        matches!(self.how, How::Named | How::Values | How::Renamed)
    }
}

/// The data behind each set of each block of a document in `dir`; `tables` are sets the document holds itself.
pub fn find(
    library: &mut Library<'_>,
    dir: &Path,
    blocks: &[Printed],
    tables: &[Raw],
) -> Vec<Vec<Option<Found>>> {
    let rings = library.rings(dir);
    let mut found: Vec<Vec<Option<Found>>> = Vec::new();
    for printed in blocks {
        let sets = (0..printed.vitals.len()).map(|i| {
            let line = (printed.legend(i), &printed.vitals[i].values[..]);
            let named = named(library, dir, line.0);
            exact(library, &rings, line, &named, tables)
        });
        found.push(sets.collect());
    }
    let paths = |found: &[Option<Found>]| -> Vec<PathBuf> {
        found.iter().flatten().map(|f| f.raw.path.clone()).collect()
    };
    let used: Vec<PathBuf> = found.iter().flat_map(|f| paths(f)).collect();
    let beside = &rings[..rings.len().min(BESIDE)];
    for (printed, found) in blocks.iter().zip(&mut found) {
        let taken = paths(found);
        for (i, found) in found.iter_mut().enumerate() {
            // a copy further away does not excuse what was changed here
            let far = found.as_ref().is_some_and(|f| f.how == How::Values && !f.raw.path.starts_with(dir));
            let line = (printed.legend(i), &printed.vitals[i].values[..]);
            if let Some(raw) = far.then(|| near(library, beside, line, &used)).flatten() {
                *found = Some(Found { raw, how: How::Near });
            }
        }
        for (i, found) in found.iter_mut().enumerate().filter(|(_, f)| f.is_none()) {
            let line = (printed.legend(i), &printed.vitals[i].values[..]);
            let named = named(library, dir, line.0);
            let free = named.iter().filter(|r| !taken.contains(&r.path));
            let named = free.max_by_key(|r| shared_digits(r, line.1)).cloned();
            *found = match named {
                Some(raw) => Some(Found { raw, how: How::NamedOther }),
                None => near(library, &rings, line, &taken)
                    .or_else(|| left(&library.sets(dir), line.1, &used))
                    .map(|raw| Found { raw, how: How::Near }),
            };
        }
    }
    found
}

/// Sets of the file a legend names.
fn named(library: &mut Library<'_>, dir: &Path, legend: &str) -> Vec<Raw> {
    let paths: Vec<PathBuf> = spelled(legend).iter().flat_map(|name| candidates(dir, name)).collect();
    let sets = paths.iter().map(|path| library.file(path)).find(|sets| !sets.is_empty());
    sets.map_or(Vec::new(), |sets| sets.to_vec())
}

/// A set with exactly the values of a line.
fn exact(
    library: &mut Library<'_>,
    rings: &[Vec<PathBuf>],
    (legend, values): (&str, &[String]),
    named: &[Raw],
    tables: &[Raw],
) -> Option<Found> {
    let fits = |raw: &&Raw| raw.agrees(values) == [true; 6];
    if let Some(raw) = named.iter().find(fits) {
        return Some(Found { raw: raw.clone(), how: How::Named });
    }
    let raw = by_values(library, rings, legend, values).or_else(|| tables.iter().find(fits).cloned())?;
    let renamed = named.first().is_some_and(|n| n.path.ends_with(legend.trim()));
    Some(Found { raw, how: if renamed { How::Renamed } else { How::Values } })
}

/// What of a legend may be a file's name: all of it, its words, and each with an ending of the field's.
fn spelled(legend: &str) -> Vec<String> {
    let legend: String = legend.trim().chars().take(MAX_LEGEND).collect();
    let mut names = vec![legend.clone()];
    let words = legend.split([' ', '\t', ',', ';', '(', ')', '"', '`', '\'']);
    names.extend(words.map(|w| w.trim_end_matches(':').to_string()).filter(|w| w.len() > 2));
    let endings = ["pps", "equilibrium", "data", "txt"];
    let more: Vec<String> = names.iter().flat_map(|n| endings.map(|e| format!("{n}.{e}"))).collect();
    names.extend(more);
    names
}

/// Where a name may lie: beside the document, with its own folders stripped, one folder up.
fn candidates(dir: &Path, name: &str) -> Vec<PathBuf> {
    let path = Path::new(name);
    if path.is_absolute() || name.contains('\0') {
        return Vec::new();
    }
    let mut places = vec![dir.join(path), dir.join("raw").join(path), dir.join("RAW").join(path)];
    if path.components().count() > 1 {
        places.extend(dir.parent().map(|up| up.join(path)));
        // `results/x.pps` printed one folder up
        if let (Some(file), Some(last)) = (path.file_name(), path.parent().and_then(Path::file_name))
            && dir.ends_with(last)
        {
            places.push(dir.join(file));
        }
    }
    places
}

/// A set with exactly these values: the nearest; among the equally near, the one named most alike.
///
/// Logs beside the document are nearer than another campaign's copy of the same values.
fn by_values(
    library: &mut Library<'_>,
    rings: &[Vec<PathBuf>],
    legend: &str,
    printed: &[String],
) -> Option<Raw> {
    let (beside, around) = rings.split_at(rings.len().min(BESIDE));
    for ring in beside {
        if let Some(raw) = best(ring.iter().map(|dir| library.sets(dir)), legend, printed) {
            return Some(raw);
        }
    }
    if let Some(raw) = best(beside.iter().flatten().map(|dir| library.logs(dir)), legend, printed) {
        return Some(raw);
    }
    for ring in around {
        if let Some(raw) = best(ring.iter().map(|dir| library.sets(dir)), legend, printed) {
            return Some(raw);
        }
    }
    let siblings = around.first().into_iter().flatten();
    best(siblings.map(|dir| library.logs(dir)), legend, printed)
}

fn best(
    folders: impl Iterator<Item = std::rc::Rc<Vec<Raw>>>,
    legend: &str,
    printed: &[String],
) -> Option<Raw> {
    let mut best: Option<(usize, Raw)> = None;
    for sets in folders {
        for raw in sets.iter().filter(|r| r.agrees(printed) == [true; 6]) {
            let alike = alike(legend, &raw.path);
            if best.as_ref().is_none_or(|(least, _)| alike > *least) {
                best = Some((alike, raw.clone()));
            }
        }
    }
    best.map(|(_, raw)| raw)
}

/// A near set that shares enough digits with the printed values to be what they were printed from.
fn near(
    library: &mut Library<'_>,
    rings: &[Vec<PathBuf>],
    (legend, printed): (&str, &[String]),
    taken: &[PathBuf],
) -> Option<Raw> {
    let mut best: Option<((usize, usize), Raw)> = None;
    for dir in rings.iter().take(NEAR_RINGS).flatten() {
        let sets = library.sets(dir);
        let logs = library.logs(dir);
        for raw in sets.iter().chain(logs.iter()).filter(|r| !taken.contains(&r.path)) {
            let rank = (shared_digits(raw, printed), alike(legend, &raw.path));
            if rank.0 >= ENOUGH_DIGITS && best.as_ref().is_none_or(|(least, _)| rank > *least) {
                best = Some((rank, raw.clone()));
            }
        }
    }
    best.map(|(_, raw)| raw)
}

/// The one set beside the document that no block was printed of, when its runs are as many and as large: what
/// was overwritten keeps its place.
fn left(sets: &[Raw], printed: &[String], used: &[PathBuf]) -> Option<Raw> {
    let mean: f64 = printed.get(4)?.parse().ok()?;
    let alike = |raw: &&Raw| {
        let other = raw.values.iter().sum::<f64>() / raw.values.len() as f64;
        printed[0] == raw.vitals[0][0] && (0.5..2.0).contains(&(other / mean)) && !used.contains(&raw.path)
    };
    let mut left = sets.iter().filter(alike);
    left.next().filter(|_| left.next().is_none()).cloned()
}

/// Significant digits of the values both have, each value counted once.
pub fn shared_digits(raw: &Raw, printed: &[String]) -> usize {
    let agrees = raw.agrees(printed);
    let mut counted: Vec<&str> = Vec::new();
    for (value, _) in printed.iter().zip(agrees).skip(1).filter(|(_, agrees)| *agrees) {
        if !counted.contains(&value.as_str()) {
            counted.push(value);
        }
    }
    counted.iter().map(|f| significant(f)).sum()
}

fn significant(value: &str) -> usize {
    let digits: String = value.split('e').next().unwrap_or("").chars().filter(char::is_ascii_digit).collect();
    let whole = !value.contains('.');
    let digits = digits.trim_start_matches('0');
    if whole { digits.trim_end_matches('0').len() } else { digits.len() }
}

/// Words of the legend that the path has too.
fn alike(legend: &str, path: &Path) -> usize {
    let path = path.to_string_lossy().to_lowercase();
    let words = |t: &str| -> Vec<String> {
        t.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_string).collect()
    };
    let there = words(&path);
    words(&legend.to_lowercase()).iter().filter(|w| there.contains(w)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::library::Origin;

    #[test]
    fn digits_that_two_descriptions_share_are_counted_once() {
        let values = vec![9049.0; 5];
        let raw = Raw::new("x".into(), Origin::Table, values).expect("five");
        let printed = ["5", "9049", "9049", "9049", "9049", "0"].map(str::to_string);
        assert_eq!(shared_digits(&raw, &printed), 4);
        assert_eq!((significant("586080"), significant("0.120"), significant("1.5e+07")), (5, 3, 2));
    }

    #[test]
    fn legends_spell_files_with_and_without_folders_and_endings() {
        let all = spelled("fbsd11.1, off.pps (default)");
        for name in ["off.pps", "fbsd11.1.pps", "default"] {
            assert!(all.iter().any(|n| n == name), "{name} in {all:?}");
        }
        let dir = Path::new("t/results/new");
        assert!(candidates(dir, "old/x.pps").contains(&PathBuf::from("t/results/old/x.pps")));
        assert!(candidates(dir, "results/new/x.pps").contains(&PathBuf::from("t/results/new/x.pps")));
        assert!(candidates(dir, "/etc/passwd").is_empty());
    }
}
