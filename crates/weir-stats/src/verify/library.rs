//! The raw data of a tree: which sets of values there are, and where.
//!
//! ```text
//! folder of the document ─► folders below ─► its parent's other folders ─► … ─► the tree's root
//! ```
//!
//! Promises: each folder is listed once and read when it is first asked for; order does not depend on the
//! file system; a link to a folder is not followed (no cycle, nothing outside the tree), a link to a file is.
//! Refuses, out loud in [`Library::notes`], more than [`MAX_FILES`] files; and silently what is no values:
//! files above [`MAX_BYTES`], and those of [`NO_NUMBERS`].

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::Formats;
use super::contents::{MAX_BYTES, contents, unpacked};
use super::logs::{self, Kind};
use crate::ministat::read::{Columns, values};
use crate::ministat::{Dialect, Parts, Set, Style, block};

/// A published collection of ten years has 31,000; sixteen times that is a home directory.
pub const MAX_FILES: usize = 500_000;
/// Columns of a table that may be sets.
const MAX_COLUMNS: usize = 8;
/// Folders nested deeper are left out: 40 is beyond every collection and far below the stack's end.
const MAX_DEPTH: usize = 40;

/// Endings of files that hold no set: pictures, profiles, configurations, machine descriptions.
const NO_NUMBERS: [&str; 18] = [
    "png", "jpg", "svg", "gif", "pdf", "html", "graph", "stack", "pmc", "pcap", "info", "conf", "plt", "sh",
    "md", "json", "tgz", "zip",
];

/// Where the values of a set come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file's column, from 1.
    File { column: usize },
    /// A number of logs.
    Logs { files: usize, kind: Kind, dialect: Dialect },
    /// A table in the document itself.
    Table,
}

/// A set of values that lies in the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    /// File, or the logs' common name, below the root.
    pub path: PathBuf,
    pub origin: Origin,
    pub values: Vec<f64>,
    /// N, Min, Max, Median, Avg, Stddev as each dialect prints them; equal ones once.
    pub vitals: Vec<[String; 6]>,
}

impl Raw {
    /// `None` for fewer values than a block is made of.
    pub fn new(path: PathBuf, origin: Origin, values: Vec<f64>) -> Option<Raw> {
        if values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let set = [Set::new("", &values)];
        let mut vitals: Vec<[String; 6]> = Vec::new();
        for dialect in Dialect::ALL {
            let style = Style { dialect, parts: Parts::Vitals, quiet: true, ..Style::default() };
            let line = block(&set, style).ok()?;
            let words: Vec<String> = line.split_whitespace().skip(1).map(str::to_string).collect();
            let words = words.try_into().ok()?;
            if !vitals.contains(&words) {
                vitals.push(words);
            }
        }
        Some(Raw { path, origin, values, vitals })
    }

    /// Its values but for N, as numbers.
    pub fn printed(&self) -> Vec<f64> {
        self.vitals[0][1..].iter().filter_map(|f| f.parse().ok()).collect()
    }

    /// Which of N, Min, Max, Median, Avg, Stddev a printed line has right, in any dialect.
    pub fn agrees(&self, printed: &[String]) -> [bool; 6] {
        std::array::from_fn(|i| printed.get(i).is_some_and(|p| self.vitals.iter().any(|f| f[i] == *p)))
    }
}

/// Files of one folder.
#[derive(Default)]
struct Folder {
    /// Name and bytes.
    files: Vec<(String, u64)>,
}

/// A tree's folders and what has been read of them.
pub struct Library<'a> {
    root: PathBuf,
    formats: &'a dyn Formats,
    folders: BTreeMap<PathBuf, Folder>,
    sets: HashMap<PathBuf, Rc<Vec<Raw>>>,
    logs: HashMap<PathBuf, Rc<Vec<Raw>>>,
    named: HashMap<PathBuf, Rc<Vec<Raw>>>,
    pub notes: Vec<String>,
}

impl<'a> Library<'a> {
    /// Lists everything below `root`.
    pub fn open(root: &Path, formats: &'a dyn Formats) -> Library<'a> {
        let mut library = Library {
            root: root.into(),
            formats,
            folders: BTreeMap::new(),
            sets: HashMap::new(),
            logs: HashMap::new(),
            named: HashMap::new(),
            notes: Vec::new(),
        };
        let mut open = vec![(root.to_path_buf(), 0)];
        let mut files = 0;
        while let Some((dir, depth)) = open.pop() {
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(e) => {
                    library.notes.push(format!("{}: {e}: not read", dir.display()));
                    continue;
                }
            };
            let mut folder = Folder::default();
            for entry in entries.flatten() {
                let (path, link) = (entry.path(), entry.file_type().is_ok_and(|t| t.is_symlink()));
                let Ok(found) = fs::metadata(&path) else { continue };
                if found.is_file() {
                    files += 1;
                    folder.files.push((entry.file_name().to_string_lossy().into_owned(), found.len()));
                } else if found.is_dir() && !link && depth < MAX_DEPTH && entry.file_name() != ".git" {
                    open.push((path, depth + 1));
                }
            }
            folder.files.sort();
            library.folders.insert(dir, folder);
            if files > MAX_FILES {
                library.notes.push(format!(
                    "{}: more than {MAX_FILES} files: the rest is not read; name a folder further down",
                    root.display()
                ));
                break;
            }
        }
        library
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Every file, in the order of its path.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.folders.iter().flat_map(|(dir, f)| f.files.iter().map(move |(name, _)| dir.join(name)))
    }

    /// Folders from the nearest to `from` outwards: itself, those below, then around each ancestor.
    pub fn rings(&self, from: &Path) -> Vec<Vec<PathBuf>> {
        let below = |dir: &Path| self.below(dir);
        let under = below(from).into_iter().filter(|p| p != from).collect();
        let mut rings = vec![vec![from.to_path_buf()], under];
        let mut inner = from;
        while let Some(outer) = inner.parent().filter(|p| p.starts_with(&self.root) && inner != self.root) {
            rings.push(below(outer).into_iter().filter(|p| !p.starts_with(inner)).collect());
            inner = outer;
        }
        rings
    }

    /// A folder and all those below it.
    pub fn below(&self, dir: &Path) -> Vec<PathBuf> {
        let range = self.folders.range(dir.to_path_buf()..).map(|(p, _)| p);
        range.take_while(|p| p.starts_with(dir)).cloned().collect()
    }

    /// Sets in the files of a folder.
    pub fn sets(&mut self, dir: &Path) -> Rc<Vec<Raw>> {
        if let Some(sets) = self.sets.get(dir) {
            return sets.clone();
        }
        let mut sets = Vec::new();
        for (name, bytes) in self.folders.get(dir).map_or(&[][..], |f| &f.files) {
            let plain = unpacked(name);
            let ending = plain.rsplit_once('.').map_or("", |(_, e)| e).to_ascii_lowercase();
            let numbers = logs::named(plain).is_none() && !NO_NUMBERS.contains(&ending.as_str());
            if numbers && *bytes <= MAX_BYTES {
                sets.extend(columns(&dir.join(name)));
            }
        }
        let sets = Rc::new(sets);
        self.sets.insert(dir.into(), sets.clone());
        sets
    }

    /// Sets the generator logs of a folder amount to.
    pub fn logs(&mut self, dir: &Path) -> Rc<Vec<Raw>> {
        if let Some(logs) = self.logs.get(dir) {
            return logs.clone();
        }
        let mut groups: BTreeMap<(&str, Kind), Vec<&str>> = BTreeMap::new();
        for (name, bytes) in self.folders.get(dir).map_or(&[][..], |f| &f.files) {
            if let Some(group) = logs::named(unpacked(name)).filter(|_| *bytes <= MAX_BYTES) {
                groups.entry(group).or_default().push(name);
            }
        }
        let logged = |((set, kind), names): ((_, _), Vec<_>)| logged(self.formats, dir, set, kind, &names);
        let logs: Vec<Raw> = groups.into_iter().flat_map(logged).collect();
        let logs = Rc::new(logs);
        self.logs.insert(dir.into(), logs.clone());
        logs
    }

    /// Sets of one file by its path, which may lie outside the tree when a document names it.
    pub fn file(&mut self, path: &Path) -> Rc<Vec<Raw>> {
        if let Some(sets) = self.named.get(path) {
            return sets.clone();
        }
        let sets = Rc::new(columns(path));
        self.named.insert(path.into(), sets.clone());
        sets
    }
}

/// Each column of a file that is all values.
fn columns(path: &Path) -> Vec<Raw> {
    let Some(bytes) = contents(path).filter(|bytes| !bytes.contains(&0)) else { return Vec::new() };
    let name = path.to_string_lossy();
    let delimiters: &[u8] = if unpacked(&name).ends_with(".csv") { b",;\t" } else { b" \t" };
    let mut sets = Vec::new();
    for column in 1..=MAX_COLUMNS {
        let read = values(&bytes, &Columns { column, delimiters });
        match read {
            Ok(values) if values.is_empty() => break,
            Ok(values) => sets.extend(Raw::new(path.into(), Origin::File { column }, values)),
            Err(_) => {}
        }
    }
    sets
}

/// What the logs of one set amount to: in both dialects where they differ.
fn logged(formats: &dyn Formats, dir: &Path, set: &str, kind: Kind, names: &[&str]) -> Vec<Raw> {
    let texts: Vec<String> = names
        .iter()
        .filter_map(|n| contents(&dir.join(n)))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .collect();
    let files = texts.len();
    let raw = |ending: &str, dialect, values| {
        let origin = Origin::Logs { files, kind, dialect };
        Raw::new(dir.join(format!("{set}.{ending}")), origin, values)
    };
    match kind {
        Kind::Receiver => {
            let of = |dialect| texts.iter().filter_map(|t| logs::receiver(t, dialect)).collect::<Vec<f64>>();
            let (modern, old) = (of(Dialect::Modern), of(Dialect::Old));
            let old = (old != modern).then_some(old);
            let modern = raw("pps", Dialect::Modern, modern);
            modern.into_iter().chain(old.and_then(|v| raw("pps", Dialect::Old, v))).collect()
        }
        Kind::Sender => {
            let estimates: Vec<_> = texts.iter().flat_map(|t| logs::sender(t)).collect();
            let seen = estimates.iter().filter_map(|e| e.1).collect();
            let estimates = estimates.iter().map(|e| e.0).collect();
            let sets = [("equilibrium", estimates), ("equilibrium.max", seen)];
            sets.into_iter().filter_map(|(e, v)| raw(e, Dialect::Modern, v)).collect()
        }
        Kind::Runs => {
            let sets = formats.runs(&texts.concat());
            sets.into_iter().filter_map(|(metric, v)| raw(metric, Dialect::Modern, v)).collect()
        }
    }
}
