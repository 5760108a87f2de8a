//! A page of docs/walk-throughs as a list of steps: what to type, and what is then to be seen.
//!
//! ```text
//! ```sh     commands, typed in this order into one root shell
//! ```text   right after them: what they print; `…` stands for anything in a line, alone on a line for any lines
//! ```       other blocks are for the reader alone
//! ```
//!
//! Promises: columns may be of any width and empty lines are nothing, all else must be as the page says. Refuses pages
//! it would misread: a block that does not end, an expectation without commands.

/// Commands of a page and what they print.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Where the commands begin, from 1.
    pub line: usize,
    pub commands: String,
    /// `None` where the page does not say.
    pub expected: Option<String>,
}

/// The steps of a page, in order.
pub fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = (1..).zip(text.lines());
    // Whether the block before this one was commands.
    let mut follows = false;
    while let Some((number, line)) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let mut block = String::new();
        let closed = lines.by_ref().map(|(_, line)| line).any(|line| {
            let end = line == "```";
            if !end {
                block += line;
                block.push('\n');
            }
            end
        });
        if !closed {
            return Err(format!("line {number}: the block does not end"));
        }
        match kind {
            "sh" => steps.push(Step { line: number + 1, commands: block, expected: None }),
            "text" if follows => steps.last_mut().expect("they are there").expected = Some(block),
            "text" => return Err(format!("line {number}: the block follows no commands whose output it is")),
            _ => {}
        }
        follows = kind == "sh";
    }
    if steps.is_empty() { Err("the page has no commands".into()) } else { Ok(steps) }
}

/// Whether this is what the page says is to be seen.
pub fn is_as_said(expected: &str, got: &str) -> bool {
    let tidy = |text: &str| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).filter(|line| !line.is_empty()).collect()
    };
    like(&tidy(expected), &tidy(got), |line| line == "…", |a, b| fits(a, b))
}

/// A line with its ellipses.
fn fits(expected: &str, got: &str) -> bool {
    let letters = |text: &str| text.chars().collect::<Vec<_>>();
    like(&letters(expected), &letters(got), |c| *c == '…', |a, b| a == b)
}

/// Compares two sequences, of which the first may have members that stand for any number of others.
fn like<T>(expected: &[T], got: &[T], any: impl Fn(&T) -> bool, same: impl Fn(&T, &T) -> bool) -> bool {
    // reached[n]: what is expected so far may have taken n members
    let mut reached = vec![false; got.len() + 1];
    reached[0] = true;
    for wanted in expected {
        if any(wanted) {
            let first = reached.iter().position(|&r| r).unwrap_or(reached.len());
            reached.iter_mut().skip(first).for_each(|r| *r = true);
        } else {
            for n in (0..got.len()).rev() {
                reached[n + 1] = reached[n] && same(wanted, &got[n]);
            }
            reached[0] = false;
        }
    }
    reached[got.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A page\n```\n a diagram\n```\n```sh\none\ntwo\n```\n```text\nthree\n```\nwords\n\
                        ```sh\nfour\n```\n```toml\nfive\n```\n";

    #[test]
    fn commands_are_taken_in_order_with_what_they_print() {
        let step = |line, commands: &str, expected: Option<&str>| Step {
            line,
            commands: commands.into(),
            expected: expected.map(String::from),
        };
        let steps = steps(PAGE).expect("a page");
        assert_eq!(steps, [step(6, "one\ntwo\n", Some("three\n")), step(14, "four\n", None)]);
    }

    #[test]
    fn what_would_be_misread_is_refused() {
        for (page, why) in [
            ("```sh\nls\n", "line 1: the block does not end"),
            ("```text\nseen\n```\n", "line 1: the block follows no commands"),
            ("```sh\nls\n```\n```toml\n```\n```text\n```\n", "line 6: the block follows no commands"),
            ("words\n", "no commands"),
        ] {
            let refusal = steps(page).expect_err(page);
            assert!(refusal.contains(why), "{page:?}: {refusal}");
        }
    }

    #[test]
    fn ellipses_stand_for_anything_and_nothing_else_does() {
        for (expected, got) in [
            ("a b\n", "a    b  \n\n"),
            ("… ms\n", "rtt 0.1 ms\n"),
            ("a …\n…\nc\n", "a 1\nb\nb\nc\n"),
            ("a\n…\nc\n", "a\n\nc\n"),
            ("…\nc\n…\n", "c\n"),
            ("…x…y…", "1x2y"),
            ("", "\n"),
        ] {
            assert!(is_as_said(expected, got), "{expected:?} {got:?}");
        }
        for (expected, got) in [
            ("a b\n", "a c\n"),
            ("a\n", "a\nb\n"),
            ("a\nb\n", "a\n"),
            ("… ms\n", "rtt 0.1 s\n"),
            ("…\nc\n", "a\nb\n"),
            ("…x…y…", "1y2x"),
            ("", "a\n"),
        ] {
            assert!(!is_as_said(expected, got), "{expected:?} {got:?}");
        }
    }
}
