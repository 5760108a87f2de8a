//! Rust source cut into tokens with their lines; comments, strings and characters are left out.

#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

/// Identifiers and numbers whole, `::` as one token, everything else character by character.
pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let end = match chars[at] {
            c if c.is_whitespace() => at + 1,
            '/' if chars.get(at + 1) == Some(&'/') => line_end(&chars, at),
            '/' if chars.get(at + 1) == Some(&'*') => comment_end(&chars, at),
            '"' => string_end(&chars, at),
            '\'' => quote_end(&chars, at),
            c if is_word(c) => match raw_string_end(&chars, at) {
                Some(end) => end,
                None => {
                    let end = word_end(&chars, at);
                    found.push(Token { text: chars[at..end].iter().collect(), line });
                    end
                }
            },
            ':' if chars.get(at + 1) == Some(&':') => {
                found.push(Token { text: "::".into(), line });
                at + 2
            }
            c => {
                found.push(Token { text: c.into(), line });
                at + 1
            }
        };
        let end = end.min(chars.len());
        line += chars[at..end].iter().filter(|&&c| c == '\n').count();
        at = end;
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn word_end(chars: &[char], at: usize) -> usize {
    at + chars[at..].iter().take_while(|&&c| is_word(c)).count()
}

fn line_end(chars: &[char], at: usize) -> usize {
    at + chars[at..].iter().take_while(|&&c| c != '\n').count()
}

fn comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut at) = (1, at + 2);
    while depth > 0 && at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut at = at + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The end of a character, or of the quote alone where it begins a lifetime.
fn quote_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), Some(_)) => at + 4 + chars[at + 3..].iter().take_while(|&&c| c != '\'').count(),
        (Some(_), Some('\'')) => at + 3,
        _ => at + 1,
    }
}

/// The end of `r"…"`, `r#"…"#`, `b"…"`, `br"…"`, `c"…"`, where one begins here.
fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let prefix: String = chars[at..word_end(chars, at)].iter().collect();
    let after = at + prefix.chars().count();
    match prefix.as_str() {
        "b" | "c" if chars.get(after) == Some(&'"') => Some(string_end(chars, after)),
        "b" if chars.get(after) == Some(&'\'') => Some(quote_end(chars, after)),
        "r" | "br" | "cr" => {
            let hashes = chars[after..].iter().take_while(|&&c| c == '#').count();
            (chars.get(after + hashes) == Some(&'"')).then_some(())?;
            let body = after + hashes + 1;
            let closes = |at: usize| {
                chars[at] == '"'
                    && chars[at + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
            };
            let end = (body..chars.len()).find(|&at| closes(at)).unwrap_or(chars.len());
            Some(end + 1 + hashes)
        }
        _ => None,
    }
}

#[test]
fn strings_and_comments_hide_what_they_hold() {
    let text = "a /* crate::x /* */ */ \"crate::y \\\" // \" // crate::z\n'\\'' 'a: r#\"\"crate\"# b'c' d::e";
    let found: Vec<(String, usize)> = tokens(text).into_iter().map(|t| (t.text, t.line)).collect();
    let expected = [("a", 1), ("a", 2), (":", 2), ("d", 2), ("::", 2), ("e", 2)];
    assert_eq!(found, expected.map(|(text, line)| (text.to_string(), line)));
}
