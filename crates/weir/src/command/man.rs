//! `weir man`: the manual pages, a file a verb as the parser knows them, and `weir.toml(5)` from the tables that
//! configurations are checked by.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::Command;

use crate::config::reference;
use crate::config::table::{Form, Key, Table};
use crate::failure::Failure;

/// Writes `weir.1`, a page for each verb and `weir.toml.5` into `folder`, and says how many there are.
pub fn write(command: Command, folder: &Path) -> Result<String, Failure> {
    let failed = |error| Failure(format!("{}: {error}; name a folder you may write to", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)?;
    fs::write(folder.join("weir.toml.5"), configuration()).map_err(failed)?;
    let pages = fs::read_dir(folder).map_err(failed)?.count();
    Ok(format!("{}: {pages} manual pages\n", folder.display()))
}

/// The page of the configuration file, in man(7).
fn configuration() -> String {
    let mut page = String::from(
        ".TH weir.toml 5\n.SH NAME\nweir.toml \\- what a router, gateway or relay of weir does\n",
    );
    page.push_str(".SH DESCRIPTION\n");
    for paragraph in [
        "The file is TOML. `weir run FILE` runs it; `weir check FILE` says everything that is wrong with it, and needs no privilege. A file with anything wrong is refused whole, and nothing changes.",
        "Where several values are allowed, one alone needs no list. `weir schema` prints the same as JSON Schema, for editors.",
    ] {
        let _ = writeln!(page, ".PP\n{}", escaped(paragraph));
    }
    for table in reference::tables() {
        section(table, &mut page);
    }
    page.push_str(".SH EXAMPLE\n.nf\n");
    let example = "[[port]]\nname = \"lan\"\ndevice = \"eth0\"\naddresses = \"kernel\"\n\n[[port]]\nname = \"wan\"\ndevice = \"eth1\"\naddresses = \"kernel\"\n\n[[route]]\nprefix = \"0.0.0.0/0\"\nvia = \"192.0.2.254\"";
    for line in example.lines() {
        let _ = writeln!(page, "{}", escaped(line));
    }
    page.push_str(".fi\n.SH SEE ALSO\n.BR weir (1),\n.BR weir\\-check (1),\n.BR weir\\-run (1)\n");
    page
}

fn section(table: &Table, page: &mut String) {
    let _ = writeln!(page, ".SH {}\n{}", escaped(table.heading), escaped(table.about));
    for key in table.keys {
        let _ = writeln!(
            page,
            ".TP\n.B {}\n{}\n.br\n{}",
            escaped(key.name),
            escaped(key.about),
            escaped(&facts(key))
        );
    }
}

/// A line of what may be written, and what holds where nothing is.
fn facts(key: &Key) -> String {
    let mut facts = form(&key.form);
    if key.required {
        facts.push_str("; required");
    }
    if !key.default.is_empty() {
        let _ = write!(facts, "; default: {}", key.default);
    }
    facts
}

fn form(of: &Form) -> String {
    match of {
        Form::Text => "text".to_owned(),
        Form::Boolean => "true or false".to_owned(),
        Form::Integer(low, high) if low == high => low.to_string(),
        Form::Integer(low, u64::MAX) => format!("a number from {low}"),
        Form::Integer(low, high) => format!("a number from {low} to {high}"),
        Form::Words(words) | Form::Names(words) => {
            words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" | ")
        }
        Form::List(Form::Table(table)) => format!("any number of tables {}", table.heading),
        Form::Table(table) if table.heading.starts_with('[') => format!("the table {}", table.heading),
        Form::Table(table) => format!("a table, see {}", table.heading),
        Form::OneOrMany(of) => format!("{}, one or several", form(of)),
        Form::List(of) => format!("{}, in a list", form(of)),
        Form::OneOf(forms) => forms.iter().map(form).collect::<Vec<_>>().join(" | "),
    }
}

/// Text for troff: no line starts with a request, quotes and hyphens are those of a terminal, what stands in backticks is bold.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut fonts = ["\\fB", "\\fR"].into_iter().cycle();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '"' => out.push_str("\\(dq"),
            '…' => out.push_str("..."),
            '`' => out.push_str(fonts.next().unwrap_or_default()),
            c => out.push(c),
        }
    }
    if out.starts_with(['.', '\'']) { format!("\\&{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_page_of_the_configuration_has_every_key() {
        let page = configuration();
        for table in reference::tables() {
            assert!(page.contains(&format!(".SH {}\n", escaped(table.heading))), "{}", table.heading);
            for key in table.keys {
                assert!(page.contains(&format!(".B {}\n", escaped(key.name))), "{}", key.name);
            }
        }
    }

    #[test]
    fn troff_has_no_warning_about_the_page() {
        let groff = Command::new("groff")
            .args(["-man", "-ww", "-Tutf8", "-z"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut groff) = groff else {
            eprintln!("skipped: troff_has_no_warning_about_the_page needs groff");
            return;
        };
        let mut stdin = groff.stdin.take().expect("standard input is a pipe");
        stdin.write_all(configuration().as_bytes()).expect("groff reads");
        drop(stdin);
        let done = groff.wait_with_output().expect("groff ends");
        assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}
