//! What a reader sees: the count, the blocks that are not reproduced with their reasons, the doubtful claims.
//!
//! Promises one screen for a tree in order; every block that differs or has no data is named, white space is
//! counted by its kind. `--all` names every block.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use super::claims::{Warning, WarningKind};
use super::library::Origin;
use super::{Block, Class, Verified};

/// Warnings of one kind that a screen has room for.
const SHOWN: usize = 8;

/// The counts of a tree: exactly what programs are promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub blocks: usize,
    pub reproduced: usize,
    pub whitespace: usize,
    pub differs: usize,
    pub no_data: usize,
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    counts: Counts,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    details: Option<Details<'a>>,
}

#[derive(Serialize)]
struct Details<'a> {
    details: Vec<Value>,
    warnings: Vec<Value>,
    notes: &'a [String],
}

impl Class {
    pub fn name(self) -> &'static str {
        match self {
            Class::Reproduced => "reproduced",
            Class::Whitespace => "reproduced except white space",
            Class::Differs => "differs",
            Class::NoData => "no data",
        }
    }
}

impl Verified {
    pub fn counts(&self) -> Counts {
        let count = |class| self.blocks.iter().filter(|b| b.classified.class == class).count();
        Counts {
            blocks: self.blocks.len(),
            reproduced: count(Class::Reproduced),
            whitespace: count(Class::Whitespace),
            differs: count(Class::Differs),
            no_data: count(Class::NoData),
        }
    }

    /// The result as JSON; `details` adds every block and note.
    pub fn json(&self, details: bool) -> String {
        let details = details.then(|| Details {
            details: self.blocks.iter().map(detail).collect(),
            warnings: self.warnings.iter().map(warned).collect(),
            notes: &self.notes,
        });
        let document = serde_json::to_string(&Document { counts: self.counts(), details });
        document.expect("counts, texts and values have a JSON form")
    }

    /// The result as text; `all` names reproduced blocks too.
    pub fn text(&self, all: bool) -> String {
        let c = self.counts();
        let mut out = format!("{} in {}\n", many(c.blocks, "block"), many(self.documents, "document"));
        let rows = [
            (Class::Reproduced, c.reproduced),
            (Class::Whitespace, c.whitespace),
            (Class::Differs, c.differs),
            (Class::NoData, c.no_data),
        ];
        for (class, count) in rows {
            out += &format!("{count:>7}  {:<30}{}\n", class.name(), self.kinds(class));
        }
        let with_data = c.blocks - c.no_data;
        if with_data > 0 {
            let share = 100.0 * (c.reproduced + c.whitespace) as f64 / with_data as f64;
            out += &format!("{share:>6.1} % of the {} with data come out of it\n", many(with_data, "block"));
        }
        for block in &self.blocks {
            let explained = matches!(block.classified.class, Class::Differs | Class::NoData);
            if all || explained {
                out += &format!("\n{}", entry(block));
            }
        }
        out += &self.warnings(all);
        for note in &self.notes {
            out += &format!("\nnote: {note}\n");
        }
        out
    }

    /// Warnings by kind: the first of each, or all.
    fn warnings(&self, all: bool) -> String {
        let mut out = String::new();
        for kind in WarningKind::ALL {
            let warnings: Vec<&Warning> = self.warnings.iter().filter(|f| f.kind == kind).collect();
            if warnings.is_empty() {
                continue;
            }
            out += &format!("\n{} ({}): {}\n", many(warnings.len(), "warning"), kind.name(), kind.meaning());
            let shown = if all { warnings.len() } else { warnings.len().min(SHOWN) };
            for warning in &warnings[..shown] {
                out += &format!("    {}  {}\n", place(&warning.file, warning.line), warning.text);
            }
            if shown < warnings.len() {
                out += &format!("    … and {} more (--all)\n", warnings.len() - shown);
            }
            out += &format!("    do: {}\n", kind.remedy());
        }
        out
    }

    /// Styles of the reproduced, kinds of the white space.
    fn kinds(&self, class: Class) -> String {
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for block in self.blocks.iter().filter(|b| b.classified.class == class) {
            let kind = match class {
                Class::Reproduced => block.classified.style.split(',').next().unwrap_or(""),
                Class::Whitespace => &block.classified.reason,
                _ => continue,
            };
            *kinds.entry(kind).or_default() += 1;
        }
        kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect::<Vec<_>>().join("; ")
    }
}

/// A number with its noun, as in "1 block", "2 blocks".
fn many(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn entry(block: &Block) -> String {
    let classified = &block.classified;
    let mut out = format!("{}  {}", place(&block.file, block.printed.line), classified.class.name());
    if !classified.style.is_empty() {
        out += &format!("  ({})", classified.style);
    }
    out.push('\n');
    if let Some(d) = &classified.difference {
        out += &format!("    {}: printed {}, derived {}\n", d.value, d.printed, d.derived);
    }
    if !classified.reason.is_empty() {
        out += &format!("    why: {}\n", classified.reason);
    }
    let dir = block.file.parent().unwrap_or(Path::new(""));
    let data: Vec<String> = block.found.iter().flatten().map(|f| source(&f.raw, dir)).collect();
    if !data.is_empty() {
        out += &format!("    data: {}\n", data.join(", "));
    }
    out + &remedy(block)
}

/// `file:line`; a file without lines by its name.
fn place(file: &Path, line: usize) -> String {
    let line = if line > 0 { format!(":{line}") } else { String::new() };
    format!("{}{line}", file.display())
}

/// `path` as seen from `dir`, where the two share a folder.
fn seen_from(dir: &Path, path: &Path) -> String {
    let shared = dir.components().zip(path.components()).take_while(|(a, b)| a == b).count();
    let up = "../".repeat(dir.components().count() - shared);
    let down: PathBuf = path.components().skip(shared).collect();
    if shared == 0 { path.display().to_string() } else { format!("{up}{}", down.display()) }
}

fn source(raw: &super::library::Raw, dir: &Path) -> String {
    let path = seen_from(dir, &raw.path);
    match &raw.origin {
        Origin::File { column: 1 } => path,
        Origin::File { column } => format!("{path} column {column}"),
        Origin::Logs { files, .. } => format!("{path} of {}", many(*files, "log")),
        Origin::Table => "a table of the document".into(),
    }
}

/// What a reader can do about it.
fn remedy(block: &Block) -> String {
    match block.classified.class {
        Class::Differs => {
            "    do: take the derived values, or restore the data the block was printed from\n".into()
        }
        Class::NoData => "    do: ask for the raw data, or name a folder further up that holds it\n".into(),
        _ => String::new(),
    }
}

fn detail(block: &Block) -> Value {
    let classified = &block.classified;
    let dir = block.file.parent().unwrap_or(Path::new(""));
    json!({
        "file": block.file.to_string_lossy(),
        "line": block.printed.line,
        "class": classified.class.name(),
        "style": classified.style,
        "data": block.found.iter().map(|f| f.as_ref().map(|f| source(&f.raw, dir))).collect::<Vec<_>>(),
        "difference": classified.difference.as_ref().map(|d| json!({
            "value": d.value, "printed": d.printed, "derived": d.derived,
        })),
        "reason": classified.reason,
    })
}

fn warned(warning: &Warning) -> Value {
    json!({
        "file": warning.file.to_string_lossy(),
        "line": warning.line,
        "kind": warning.kind.name(),
        "text": warning.text,
    })
}
