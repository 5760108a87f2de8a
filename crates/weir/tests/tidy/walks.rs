//! ARCHITECTURE.md walks through the code as tables of functions: each function exists where a row says, calls what the
//! row names in that order, and is called by a row above, unless the row says how else it is reached.

use std::collections::BTreeSet;
use std::fs;

use crate::tokens::{Token, tokens};
use crate::{assert_clean, root};

/// A row: one function and what it calls.
#[derive(Debug, PartialEq)]
struct Step {
    function: String,
    file: String,
    calls: Vec<String>,
    /// How it is reached, where no row above calls it.
    reached: String,
}

/// What stands between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// The tables of `text`, each with the folder its heading names.
fn walks(text: &str) -> Vec<(String, Vec<Step>)> {
    let mut walks = Vec::new();
    for piece in text.split("\nWalk of ").skip(1) {
        let (heading, rest) = piece.split_once('\n').unwrap_or_default();
        let folder = quoted(heading).into_iter().next().unwrap_or_default();
        let rows = rest.trim_start().lines().take_while(|line| line.starts_with('|')).skip(2);
        let steps = rows.filter_map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [function, file, calls, reached] = cells[..] else { return None };
            let function = quoted(function).into_iter().next()?;
            Some(Step { function, file: file.into(), calls: quoted(calls), reached: reached.into() })
        });
        walks.push((folder, steps.collect()));
    }
    walks
}

/// The place behind the brace that closes the first one at or after `at`.
fn block(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(at) {
        match &*token.text {
            "{" => depth += 1,
            "}" if depth == 1 => return at + 1,
            "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// The body of `name` (`function` or `Type::function`) as tokens.
fn body<'a>(tokens: &'a [Token], name: &str) -> Option<&'a [Token]> {
    let (owner, function) = name.split_once("::").map_or((None, name), |(owner, name)| (Some(owner), name));
    let mut at = 0;
    while at + 1 < tokens.len() {
        let head = |at: usize| tokens[at..].iter().take_while(|t| t.text != "{" && t.text != ";");
        match &*tokens[at].text {
            "impl" | "trait" if owner.is_some_and(|owner| head(at).any(|t| t.text == owner)) => {
                let open = at + head(at).count();
                if let Some(found) = body(&tokens[open..block(tokens, open)], function) {
                    return Some(found);
                }
                at = block(tokens, open);
            }
            "fn" if owner.is_none() && tokens[at + 1].text == function => {
                let open = at + head(at).count();
                return Some(&tokens[open..block(tokens, open)]);
            }
            _ => at += 1,
        }
    }
    None
}

/// Where `name` is called in `body` from `at` on.
fn call(body: &[Token], at: usize, name: &str) -> Option<usize> {
    (at..body.len()).find(|&at| {
        let next = |n: usize| body.get(at + n).map_or("", |token| &*token.text);
        body[at].text == name && (next(1) == "(" || (next(1) == "::" && next(2) == "<"))
    })
}

/// Says what of a walk is not so; `read` gives a file's text.
fn complaints(folder: &str, steps: &[Step], read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut called: BTreeSet<&str> = BTreeSet::new();
    for step in steps {
        let (function, path) = (&step.function, format!("{folder}{}", step.file));
        let short = function.rsplit("::").next().unwrap_or(function);
        if step.reached.is_empty() && !called.contains(short) {
            complaints
                .push(format!("`{function}`: no row above calls it, and it is not said how it is reached"));
        }
        called.extend(step.calls.iter().map(String::as_str));
        let Some(text) = read(&path) else {
            complaints.push(format!("`{function}`: there is no {path}"));
            continue;
        };
        let tokens = tokens(&text);
        let Some(body) = body(&tokens, function) else {
            complaints.push(format!("`{function}` is not in {path}"));
            continue;
        };
        let mut at = 0;
        for name in &step.calls {
            match call(body, at, name) {
                Some(found) => at = found + 1,
                None if call(body, 0, name).is_some() => {
                    complaints.push(format!("`{function}` calls `{name}` before what is named before it"));
                }
                None => complaints.push(format!("`{function}` does not call `{name}`")),
            }
        }
    }
    complaints
}

#[test]
fn walks_of_the_architecture_are_the_codes() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let walks = walks(&text);
    let lengths: Vec<usize> = walks.iter().map(|(_, steps)| steps.len()).collect();
    assert!(
        lengths.len() == 3 && lengths.iter().all(|&steps| steps > 10),
        "walks not understood: {lengths:?}"
    );
    let read = |path: &str| fs::read_to_string(root().join(path)).ok();
    assert_clean(walks.iter().flat_map(|(folder, steps)| complaints(folder, steps, read)).collect());
}

#[test]
fn a_walk_that_the_code_does_not_take_is_refused() {
    let code = "struct A;\nimpl A {\n    fn go(&self) { second(); self.first::<u8>(\"third()\"); }\n}\nfn first() {}\n";
    let table = |row: &str| {
        let text =
            format!("\nWalk of it, in `src/`:\n\n| a | b | c | d |\n|---|\n| `A::go` | a.rs | {row}\n\n|");
        let walks = walks(&text);
        complaints(&walks[0].0, &walks[0].1, |path| (path == "src/a.rs").then(|| code.to_string()))
    };
    assert_eq!(table("`second`, `first` | start |\n| `first` | a.rs | | |"), [""; 0]);
    assert_eq!(
        table("`second` | |"),
        ["`A::go`: no row above calls it, and it is not said how it is reached"]
    );
    assert_eq!(
        table("`first`, `second` | start |"),
        ["`A::go` calls `second` before what is named before it"]
    );
    assert_eq!(table("`third` | start |"), ["`A::go` does not call `third`"]);
    assert_eq!(table("`second` | start |\n| `second` | a.rs | | |"), ["`second` is not in src/a.rs"]);
    assert_eq!(table("`second` | start |\n| `second` | b.rs | | |"), ["`second`: there is no src/b.rs"]);
}
