//! `weir config show`: what runs, as a file.

use std::path::Path;

use clap::Subcommand;

use crate::control::client;
use crate::failure::Failure;
use crate::text::{print, print_json};
use crate::view;

#[derive(Clone, Debug, Subcommand)]
pub enum ConfigVerb {
    /// The configuration that runs, with changes that were made by `weir policy`
    Show {
        /// As a file that `weir apply` takes; the default
        #[arg(long, conflicts_with = "json")]
        toml: bool,
        /// The daemon's own JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(socket: &Path, verb: &ConfigVerb) -> Result<(), Failure> {
    let ConfigVerb::Show { json, .. } = verb;
    let running: view::Running = client::read(socket, "/v1/config").map_err(Failure::of)?;
    match json {
        true => print_json(&serde_json::json!(running)),
        false => print(&file(&running)),
    }
}

/// Lines in front say what no file has; a comment ends with its line, whatever a name has in it.
fn file(running: &view::Running) -> String {
    let comment = |line: &str| format!("# {}\n", line.replace(char::is_control, " "));
    let mut out = String::new();
    if !running.unsaved.is_empty() {
        out += &comment(&format!(
            "not in {}; the next `weir apply` or reload of it takes these back:",
            running.file
        ));
        out.extend(running.unsaved.iter().map(|line| comment(&format!("  {line}"))));
    }
    out + &running.toml
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_line_end_stays_in_its_comment() {
        let running = view::Running {
            file: "a\nroutes = 1".into(),
            toml: "routes = \"kernel\"\n".into(),
            unsaved: vec!["+ policy b\nroutes = 2".into()],
        };
        let text = file(&running);
        assert!(text.lines().take(2).all(|line| line.starts_with("# ")), "{text}");
        assert!(text.ends_with("\nroutes = \"kernel\"\n") && text.lines().count() == 3, "{text}");
    }
}
