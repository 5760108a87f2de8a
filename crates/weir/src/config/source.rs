//! The text of a configuration file, and complaints that point into it.
//!
//! A complaint prints as `file:line:column: sentence` with the source line and a caret under what is
//! meant. Columns count characters, lines and columns start at 1.

use std::fmt::{Display, Write as _};
use std::ops::Range;

/// Longest part of a source line shown; a pasted key or a minified file is cut, not dumped.
const LINE_SHOWN: usize = 120;

/// A file's name (as the operator wrote it) and text.
#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    pub text: String,
}

/// One thing wrong with the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Bytes of the text it is about.
    pub span: Range<usize>,
    /// Lower case, subject first, got versus expected, then the remedy.
    pub message: String,
}

/// A place of a file as a complaint shows it: where, what the line says, and a caret under what is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    file: String,
    line: usize,
    column: usize,
    /// Part of the line, keys hidden.
    shown: String,
    /// Where the caret stands in `shown`, and how wide it is.
    caret: Range<usize>,
}

impl Excerpt {
    /// A complaint with its place, its line and its caret.
    pub fn render(&self, message: impl Display) -> String {
        let Excerpt { file, line, column, shown, caret } = self;
        let mut out = format!("{file}:{line}:{column}: {message}\n");
        let gutter = " ".repeat(line.to_string().len());
        let _ = writeln!(out, "  {line} | {}", shown.trim_end());
        let _ = writeln!(out, "  {gutter} | {}{}", " ".repeat(caret.start), "^".repeat(caret.len()));
        out
    }
}

/// Complaints as they are found; a file with any is refused whole.
#[derive(Debug, Default)]
pub struct Complaints(Vec<Complaint>);

impl Complaints {
    pub fn add(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.0.push(Complaint { span, message: message.into() });
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The complaints in the order of the file, each once.
    pub fn sorted(mut self) -> Vec<Complaint> {
        self.0.sort_by(|a, b| {
            (a.span.start, a.span.end, &a.message).cmp(&(b.span.start, b.span.end, &b.message))
        });
        self.0.dedup();
        self.0
    }
}

impl Source {
    /// Line and column, both from 1, of a byte.
    pub fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |n| n + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// The place of some bytes, as complaints show it.
    pub fn excerpt(&self, span: Range<usize>) -> Excerpt {
        let (line, column) = self.position(span.start);
        let text = self.text.lines().nth(line - 1).unwrap_or_default();
        // A window of the line that contains the caret, with tabs as single spaces so that it lines up.
        let skip = if column > LINE_SHOWN { column - LINE_SHOWN / 2 } else { 0 };
        let text = without_keys(text);
        let shown: String =
            text.chars().skip(skip).take(LINE_SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let covered = self.text.get(span).unwrap_or_default();
        let width = covered.lines().next().map_or(1, |l| l.chars().count());
        let indent = column - 1 - skip;
        let width = width.clamp(1, LINE_SHOWN.saturating_sub(indent).max(1));
        Excerpt { file: self.name.clone(), line, column, shown, caret: indent..indent + width }
    }

    /// A complaint with its place.
    pub fn render(&self, complaint: &Complaint) -> String {
        self.excerpt(complaint.span.clone()).render(&complaint.message)
    }

    /// Every complaint, and how many there are.
    pub fn render_all(&self, complaints: &[Complaint]) -> String {
        let mut out: String = complaints.iter().map(|c| self.render(c)).collect();
        let n = complaints.len();
        let what = if n == 1 { "1 error".to_owned() } else { format!("{n} errors") };
        let _ = write!(out, "{}: {what}; nothing was changed", self.name);
        out
    }
}

/// Hex digits from which on a line may have a key in it: 12 bytes, less than any cipher's; written without
/// separators, or byte by byte. An IPv6 address has at most four digits in a row.
const KEY_DIGITS: usize = 24;

/// The line with what looks like a key hidden: complaints are printed and logged. As long as it was.
fn without_keys(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while !rest.is_empty() {
        let in_run = |c: char| c.is_ascii_hexdigit() || " :-".contains(c);
        let end = rest.find(|c| !in_run(c)).unwrap_or(rest.len());
        let (run, more) = rest.split_at(end);
        let digits = run.bytes().filter(u8::is_ascii_hexdigit).count();
        let mut groups = run.split([' ', ':', '-']).filter(|g| !g.is_empty());
        let by_byte = groups.clone().all(|g| g.len() <= 2);
        if digits >= KEY_DIGITS && (by_byte || groups.any(|g| g.len() >= KEY_DIGITS)) {
            out.extend(run.chars().map(|c| if c.is_ascii_hexdigit() { '*' } else { c }));
        } else {
            out += run;
        }
        let outside = more.find(in_run).unwrap_or(more.len());
        out += &more[..outside];
        rest = &more[outside..];
    }
    out
}

/// What no remedy proposes: each protects less than its alternatives, and is written on purpose or not at all.
const NEVER_PROPOSED: &[&str] =
    &["null", "bypass", "off", "hmac-sha1-96", "allow_unauthenticated", "self-signed"];

/// The name of `known` nearest to `word`, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    let near = known.iter().map(|&k| (distance(word, k), k)).min()?;
    let prefix = || known.iter().copied().find(|k| k.len() > 2 && word.len() > 2 && k.starts_with(word));
    let found = if near.0 <= limit { Some(near.1) } else { prefix() };
    found.filter(|name| !NEVER_PROPOSED.contains(name))
}

/// What a complaint about a value that is none of `known` says to write: the one it was all but certainly meant to be,
/// or else any of them. A value is a decision, so a guess is made more rarely than at a name.
pub fn write_instead(word: &str, known: &[&str]) -> String {
    match guess(word, known) {
        Some(near) => format!("write `\"{near}\"`"),
        None if known.len() == 1 => "write that, or remove it".to_owned(),
        None => "write one of these".to_owned(),
    }
}

/// The one value of `known` that is two slips away at most, or that begins so.
pub fn guess<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let limit = (word.chars().count() / 3).min(2);
    let near = known.iter().map(|k| distance(&word, k)).min().filter(|near| *near <= limit);
    let fits = |k: &&&str| match near {
        Some(near) => distance(&word, k) == near,
        None => word.len() > 2 && k.starts_with(&word),
    };
    let mut found = known.iter().filter(fits);
    match (found.next(), found.next()) {
        (Some(one), None) if !NEVER_PROPOSED.contains(one) => Some(one),
        _ => None,
    }
}

/// Edit distance with transpositions (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let cost = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + cost);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caret_stands_under_what_is_meant() {
        let source = Source { name: "r.toml".into(), text: "a = 1\nvia = \"x\"\n".into() };
        let complaint = Complaint { span: 12..15, message: "no".into() };
        assert_eq!(source.render(&complaint), "r.toml:2:7: no\n  2 | via = \"x\"\n    |       ^^^\n");
    }

    #[test]
    fn a_very_long_line_is_cut_around_the_caret() {
        let text = format!("{}!{}", "x".repeat(500), "y".repeat(500));
        let source = Source { name: "r".into(), text };
        let shown = source.render(&Complaint { span: 500..501, message: "no".into() });
        assert!(shown.lines().all(|l| l.len() < 140), "{shown}");
        let caret = shown.lines().nth(2).expect("three lines").find('^').expect("a caret");
        assert_eq!(shown.lines().nth(1).expect("three lines").as_bytes()[caret], b'!');
    }

    #[test]
    fn a_key_in_the_wrong_file_is_not_printed() {
        let hidden = without_keys("key = \"00112233445566778899aabbccddeeff\" # 192.0.2.1");
        assert_eq!(hidden, format!("key = \"{}\" # 192.0.2.1", "*".repeat(32)));
        assert!(!without_keys("00:11:22:33:44:55:66:77:88:99:aa:bb:cc").contains("22"));
        let address = "via = \"2001:0db8:0000:0000:0000:0000:0000:0001\"";
        assert_eq!(without_keys(address), address);
    }

    #[test]
    fn a_place_past_the_end_is_the_end() {
        let source = Source { name: "r".into(), text: "a".into() };
        assert!(source.render(&Complaint { span: 9..12, message: "no".into() }).starts_with("r:1:2"));
    }

    #[test]
    fn the_nearest_word_is_near() {
        assert_eq!(nearest("adresses", &["device", "addresses"]), Some("addresses"));
        assert_eq!(nearest("wieght", &["gateway", "weight"]), Some("weight"));
        assert_eq!(nearest("colour", &["device", "addresses"]), None);
    }

    #[test]
    fn a_value_is_guessed_only_where_one_alone_is_near_and_protects_as_much() {
        assert_eq!(guess("Strict", &["off", "strict", "loose"]), Some("strict"));
        assert_eq!(guess("strickt", &["off", "strict", "loose"]), Some("strict"));
        assert_eq!(guess("kern", &["auto", "kernel", "user"]), Some("kernel"));
        assert_eq!(guess("echo", &["echo-request", "echo-reply"]), None, "two begin so");
        assert_eq!(guess("aes-gcm-129", &["aes-gcm-128", "aes-gcm-192"]), None, "two are as near");
        assert_eq!(guess("on", &["in", "out"]), None, "a short word is near everything");
        for word in ["nul", "bypas", "offf", "OFF"] {
            assert_eq!(guess(word, &["null", "bypass", "off", "protect"]), None, "{word}");
        }
        assert_eq!(nearest("allow_authenticated", &["allow_unauthenticated", "cipher"]), None);
    }
}
