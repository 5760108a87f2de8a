//! Text for operators: tables, counts, durations, and how it gets to stdout.
//!
//! Promises: columns that other tools can cut and sort; a reader that has gone (`| head`) is no failure.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::Failure;

/// Prints to stdout; a reader that has gone (`| head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure(format!("stdout: {e}; free the disk or close the pipe")))
        }
        _ => Ok(()),
    }
}

pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure(e.to_string()))?;
    print(&(text + "\n"))
}

/// A table without lines: columns can be cut and sorted by other tools. The columns in `numbers` are
/// right-aligned.
pub fn table<const N: usize>(
    head: [&str; N],
    numbers: std::ops::Range<usize>,
    rows: Vec<[String; N]>,
) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).enumerate();
        let line: Vec<String> = cells
            .map(|(at, (cell, width))| match numbers.contains(&at) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:width$}"),
            })
            .collect();
        out += line.join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// `1 port`, `2 ports`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// `4 s`, `3 m 20 s`, `2 d 3 h`.
pub fn duration(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} m {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} m", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_columns_and_no_trailing_blanks() {
        let text =
            table(["a", "count"], 1..2, vec![["x".into(), "7".into()], ["longer".into(), "1234".into()]]);
        assert_eq!(text, "a       count\nx           7\nlonger   1234\n");
    }
}
