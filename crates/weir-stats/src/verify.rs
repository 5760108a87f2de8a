//! Whether printed blocks follow from the raw data beside them, and what they claim beyond it.
//!
//! ```text
//! tree ─► documents ─► blocks ──┐                       ┌─► reproduced · white space · differs · no data
//!   └───► files and logs ─► sets ┴─► printed again, compared ─► claims the sets do not support
//! ```
//!
//! Promises: nothing is written; the same tree gives the same answer; every block that is not reproduced
//! comes with its reason. Refuses to call a block reproduced for less than all of its bytes.
//! docs/verify.md describes how data is found.

pub mod blame;
pub mod claims;
pub mod classify;
mod contents;
pub mod document;
pub mod find;
pub mod library;
pub mod logs;
pub mod printed;
pub mod show;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use claims::{Warning, WarningKind};
pub use classify::{Class, Classified, Difference};
use find::{Found, find};
use library::{Library, Raw};
use printed::{Document, Printed};

/// Documents longer than this are no reports: 8 MiB is a thousand times the longest of a collection of ten
/// years.
pub const MAX_DOCUMENT_BYTES: u64 = 8 << 20;

/// Blocks of one document that are looked at: fifty times the most of that collection.
pub const MAX_BLOCKS: usize = 2000;

/// One block and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    pub file: PathBuf,
    pub printed: Printed,
    pub classified: Classified,
    /// The data behind each set, where there is any.
    pub found: Vec<Option<Found>>,
}

/// A tree, verified.
#[derive(Default)]
pub struct Verified {
    pub documents: usize,
    pub blocks: Vec<Block>,
    /// Claims the data does not bear.
    pub warnings: Vec<Warning>,
    /// What could not be read.
    pub notes: Vec<String>,
}

impl Verified {
    pub fn add(&mut self, other: Verified) {
        self.documents += other.documents;
        self.blocks.extend(other.blocks);
        self.warnings.extend(other.warnings);
        self.notes.extend(other.notes);
    }
}

/// Formats of the caller's own, beside those of the field.
pub trait Formats {
    /// Values of a log named `<set>.jsonl`, by metric; none when it is no log of this format.
    fn runs(&self, text: &str) -> Vec<(&'static str, Vec<f64>)>;

    /// Results in `dir` that were derived from raw data beside them: where they are, and whether they still
    /// follow. `None` when there are none.
    fn results(&self, dir: &Path) -> Option<(PathBuf, Classified)>;
}

/// The formats of the field alone: ministat blocks, columns of values, generator logs.
pub struct FieldFormats;

impl Formats for FieldFormats {
    fn runs(&self, _text: &str) -> Vec<(&'static str, Vec<f64>)> {
        Vec::new()
    }

    fn results(&self, _dir: &Path) -> Option<(PathBuf, Classified)> {
        None
    }
}

/// A path that could not be looked at.
#[derive(Debug)]
pub struct Unreadable {
    pub path: PathBuf,
    pub error: io::Error,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; name a README or a folder", self.path.display(), self.error)
    }
}

impl std::error::Error for Unreadable {}

/// Verifies a document, or every document below a folder. `effect` is the difference of interest in percent:
/// a verdict of no difference that could have missed it is warned about.
pub fn verify(path: &Path, effect: f64, formats: &dyn Formats) -> Result<Verified, Unreadable> {
    let found = std::fs::metadata(path).map_err(|error| Unreadable { path: path.into(), error })?;
    let root = if found.is_dir() { path.to_path_buf() } else { folder_of(path) };
    let mut library = Library::open(&root, formats);
    let documents: Vec<PathBuf> =
        if found.is_dir() { library.files().filter(|f| is_document(f)).collect() } else { vec![path.into()] };
    let mut verified = Verified { documents: documents.len(), ..Verified::default() };
    for file in documents {
        one(&file, &mut library, effect, &mut verified);
    }
    if found.is_dir() {
        verified.blocks.extend(results(&library, formats));
    }
    verified.notes.append(&mut library.notes);
    Ok(verified)
}

/// Results in the caller's own format, a block each.
fn results(library: &Library<'_>, formats: &dyn Formats) -> Vec<Block> {
    let dirs = library.below(library.root()).into_iter();
    dirs.filter_map(|dir| formats.results(&dir))
        .map(|(file, classified)| Block { file, printed: Printed::default(), classified, found: Vec::new() })
        .collect()
}

fn folder_of(file: &Path) -> PathBuf {
    file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf()
}

/// Markdown, and anything that calls itself README.
fn is_document(path: &Path) -> bool {
    let name = path.file_name().map_or(String::new(), |n| n.to_string_lossy().to_lowercase());
    let markdown = [".md", ".markdown", ".mdown"].iter().any(|e| name.ends_with(e));
    let readme = name.trim_start_matches(['_', '.']).starts_with("readme");
    markdown || (readme && (!name.contains('.') || name.ends_with(".txt") || name.ends_with(".rst")))
}

fn one(file: &Path, library: &mut Library<'_>, effect: f64, verified: &mut Verified) {
    let bytes = match read(file) {
        Ok(bytes) => bytes,
        Err(e) => return verified.notes.push(format!("{}: {e}: not read", file.display())),
    };
    let mut document = Document::read(&bytes);
    if document.blocks.len() > MAX_BLOCKS {
        verified.notes.push(format!("{}: blocks after the first {MAX_BLOCKS} are not read", file.display()));
        document.blocks.truncate(MAX_BLOCKS);
    }
    let dir = folder_of(file);
    let mut blocks: Vec<Block> = Vec::new();
    if document.blocks.is_empty() {
        return;
    }
    let tables = document::sets(&document, file);
    for (printed, found) in document.blocks.iter().zip(find(library, &dir, &document.blocks, &tables)) {
        let classified = classify::classify(printed, &found);
        blocks.push(Block { file: file.into(), printed: printed.clone(), classified, found });
    }
    verified.warnings.extend(claims::verdicts(&blocks, effect));
    let mut files: Vec<&Path> = Vec::new();
    for block in &blocks {
        for found in block.found.iter().flatten().filter(|f| f.is_exact()) {
            if files.contains(&&*found.raw.path) {
                continue;
            }
            files.push(&found.raw.path);
            let warning =
                |text| Warning { file: file.into(), line: block.printed.line, kind: WarningKind::Runs, text };
            verified.warnings.extend(claims::runs(library, found).map(warning));
        }
    }
    let known: Vec<f64> = library.sets(&dir).iter().flat_map(Raw::printed).collect();
    verified.warnings.extend(document::warnings(&document, &blocks, &known));
    verified.blocks.extend(blocks);
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    if std::fs::metadata(file)?.len() > MAX_DOCUMENT_BYTES {
        return Err(std::io::Error::other(format!("longer than {MAX_DOCUMENT_BYTES} bytes")));
    }
    std::fs::read(file)
}
