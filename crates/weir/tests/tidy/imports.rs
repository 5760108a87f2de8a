//! Which top-level module of a crate names which: `use` with nested groups, paths in code, `super::`, names the crate's root
//! exports again. Test modules are left out; a macro's body counts where it is written.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::{Token, tokens};

/// (importing module, imported module) with each place (file, line) that says so.
pub type Arrows = BTreeMap<(String, String), Vec<(String, usize)>>;

/// What stands in the root itself, as a module's name.
const ROOT: &str = "lib.rs";

/// A path as it stands in a file, made absolute from the crate's root.
struct Import {
    from: Vec<String>,
    to: Vec<String>,
    file: String,
    line: usize,
    /// The name by which the root exports it again.
    exported: Option<String>,
}

/// The arrows of a crate. `sources` holds its files by their path below `src`; `files` are named with `prefix` before it.
pub fn arrows(sources: &BTreeMap<String, String>, prefix: &str) -> Result<Arrows, String> {
    let (mut imports, mut tops) = (Vec::new(), BTreeSet::new());
    let root = ["lib.rs", "main.rs"].into_iter().find(|root| sources.contains_key(*root));
    let root = root.ok_or_else(|| format!("{prefix}: neither lib.rs nor main.rs"))?;
    let mut open = vec![(root.to_string(), Vec::new())];
    while let Some((file, module)) = open.pop() {
        let mut reader = Reader {
            tokens: tokens(&sources[&file]),
            file: format!("{prefix}{file}"),
            module: module.clone(),
            imports: Vec::new(),
            children: Vec::new(),
        };
        reader.read();
        imports.append(&mut reader.imports);
        for child in reader.children {
            if child.len() == 1 {
                tops.insert(child[0].clone());
            }
            let path = child.join("/");
            let found = [format!("{path}.rs"), format!("{path}/mod.rs")];
            let found = found.into_iter().find(|file| sources.contains_key(file));
            let found = found.ok_or_else(|| format!("{prefix}{file}: no file for the module {path}"))?;
            open.push((found, child));
        }
    }
    Ok(join(imports, &tops))
}

fn join(imports: Vec<Import>, tops: &BTreeSet<String>) -> Arrows {
    let exported: BTreeMap<String, String> = imports
        .iter()
        .filter_map(|import| Some((import.exported.clone()?, import.to.first()?.clone())))
        .filter(|(name, _)| !tops.contains(name))
        .collect();
    let mut arrows = Arrows::new();
    for import in imports.into_iter().filter(|import| import.exported.is_none()) {
        let from = import.from.first().map_or(ROOT, String::as_str).to_string();
        let to = match import.to.first() {
            Some(top) if tops.contains(top) => top.clone(),
            Some(name) => exported.get(name).cloned().unwrap_or(ROOT.into()),
            None => ROOT.into(),
        };
        if from != to {
            arrows.entry((from, to)).or_default().push((import.file, import.line));
        }
    }
    for places in arrows.values_mut() {
        places.sort();
        places.dedup();
    }
    arrows
}

/// One file on its way through.
struct Reader {
    tokens: Vec<Token>,
    file: String,
    /// Where the file stands, from the crate's root.
    module: Vec<String>,
    imports: Vec<Import>,
    /// Modules with files of their own that are declared here, from the crate's root.
    children: Vec<Vec<String>>,
}

impl Reader {
    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &token.text)
    }

    fn read(&mut self) {
        // what each open brace belongs to: a module of this name, or none
        let mut braces: Vec<bool> = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            match self.text(at) {
                "#" if self.is_test_attribute(at) => at = self.after_item(self.after_group(at + 1)),
                "mod" if self.text(at + 2) == ";" => {
                    let child = self.module.iter().cloned().chain([self.text(at + 1).into()]).collect();
                    self.children.push(child);
                    at += 3;
                }
                "mod" if self.text(at + 2) == "{" => {
                    self.module.push(self.text(at + 1).into());
                    braces.push(true);
                    at += 3;
                }
                "{" => {
                    braces.push(false);
                    at += 1;
                }
                "}" => {
                    if braces.pop() == Some(true) {
                        self.module.pop();
                    }
                    at += 1;
                }
                "pub" if self.text(at + 1) == "(" => at = self.after_group(at + 1),
                "use" if self.text(at + 1) != "<" => {
                    let public = at > 0 && matches!(self.text(at - 1), "pub" | ")");
                    at = self.tree(at + 1, Vec::new(), public);
                }
                "crate" | "super" | "self" if self.text(at + 1) == "::" => at = self.path(at),
                _ => at += 1,
            }
        }
    }

    /// Whether `#[cfg(test)]` or `#[cfg(all(test, …))]` begins here.
    fn is_test_attribute(&self, at: usize) -> bool {
        let attribute: Vec<&str> = (at + 1..at + 7).map(|at| self.text(at)).collect();
        attribute[..5] == ["[", "cfg", "(", "test", ")"] || attribute == ["[", "cfg", "(", "all", "(", "test"]
    }

    /// The place behind the bracket that closes the one at `at`.
    fn after_group(&self, at: usize) -> usize {
        let mut depth = 0;
        for at in at..self.tokens.len() {
            match self.text(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at + 1;
            }
        }
        self.tokens.len()
    }

    /// The place behind the item, statement, field or arm that begins at `at`.
    fn after_item(&self, mut at: usize) -> usize {
        const ITEMS: [&str; 12] = [
            "fn", "mod", "use", "impl", "struct", "enum", "trait", "type", "const", "static", "unsafe", "let",
        ];
        while self.text(at) == "#" {
            at = self.after_group(at + 1);
        }
        if self.text(at) == "pub" {
            at = if self.text(at + 1) == "(" { self.after_group(at + 1) } else { at + 1 };
        }
        let item = ITEMS.contains(&self.text(at));
        let ends_in_semicolon = matches!(self.text(at), "use" | "let" | "const" | "static")
            && !matches!(self.text(at + 1), "fn" | "unsafe");
        while at < self.tokens.len() {
            match self.text(at) {
                ";" => return at + 1,
                "," if !item => return at + 1,
                "{" if !ends_in_semicolon => return self.after_group(at),
                "(" | "[" | "{" => at = self.after_group(at),
                ")" | "]" | "}" => return at,
                _ => at += 1,
            }
        }
        at
    }

    /// One tree of a `use`, behind `prefix`; returns where it ends.
    fn tree(&mut self, mut at: usize, mut prefix: Vec<String>, public: bool) -> usize {
        if self.text(at) == "::" {
            at += 1;
        }
        let line = self.tokens.get(at).map_or(0, |token| token.line);
        loop {
            match self.text(at) {
                "{" => {
                    let end = self.after_group(at);
                    at += 1;
                    while at + 1 < end {
                        at = self.tree(at, prefix.clone(), public);
                        at += usize::from(self.text(at) == ",");
                    }
                    return end;
                }
                "*" => {
                    prefix.push("*".into());
                    at += 1;
                }
                segment => {
                    prefix.push(segment.into());
                    at += 1;
                }
            }
            if self.text(at) != "::" {
                break;
            }
            at += 1;
        }
        let mut name = prefix.last().cloned().unwrap_or_default();
        if self.text(at) == "as" {
            name = self.text(at + 1).into();
            at += 2;
        }
        self.import(&prefix, line, (public && self.module.is_empty()).then_some(name));
        at
    }

    /// A path in code that begins with `crate`, `super` or `self`; returns where it ends.
    fn path(&mut self, mut at: usize) -> usize {
        let line = self.tokens[at].line;
        let mut path = vec![self.text(at).to_string()];
        while self.text(at + 1) == "::"
            && self.text(at + 2).starts_with(|c: char| c.is_alphabetic() || c == '_')
        {
            path.push(self.text(at + 2).into());
            at += 2;
        }
        self.import(&path, line, None);
        at + 1
    }

    /// Notes a path; one that begins with another crate's name, or with a name of this module, leads nowhere else.
    fn import(&mut self, path: &[String], line: usize, exported: Option<String>) {
        let mut to = match path[0].as_str() {
            "crate" => Vec::new(),
            "self" | "super" => self.module.clone(),
            _ if self.module.is_empty() && exported.is_some() => Vec::new(),
            _ => return,
        };
        for segment in path.iter().skip_while(|s| *s == "crate") {
            match segment.as_str() {
                "self" => {}
                "super" => drop(to.pop()),
                other => to.push(other.into()),
            }
        }
        self.imports.push(Import { from: self.module.clone(), to, file: self.file.clone(), line, exported });
    }
}
