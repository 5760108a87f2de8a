//! `weir apply`: a running daemon becomes what a file says, or says what it would change.

use std::path::{Path, PathBuf};

use crate::control::client;
use crate::control::encoded;
use crate::failure::Failure;
use crate::text::{count, print};
use crate::{config, view};

pub fn run(socket: Option<PathBuf>, file: &Path, dry_run: bool) -> Result<(), Failure> {
    let config = config::check(file).map_err(Failure::of)?;
    let named = client::socket_path(&config);
    let socket = match socket {
        // The file names its router; a copy under another name goes to the only router there is.
        None if named.exists() => named,
        given => client::find(given).map_err(Failure::of)?,
    };
    let folder = config::folder_of(file).display().to_string();
    let mut path =
        format!("/v1/apply?file={}&folder={}", encoded(&file.display().to_string()), encoded(&folder));
    if dry_run {
        path += "&dry-run";
    }
    let body = config.source.text.as_bytes();
    let applied: view::Applied =
        client::post(&socket, &path, "application/toml", body).map_err(Failure::of)?;
    print(&report(&applied))
}

/// What came of changes, a line each.
pub fn report(applied: &view::Applied) -> String {
    let mut out: String = applied.actions.iter().map(|line| line.clone() + "\n").collect();
    out += &applied.notes.iter().map(|note| format!("# {note}\n")).collect::<String>();
    out += &match (applied.actions.len(), applied.applied) {
        (0, _) => "nothing to change\n".to_owned(),
        // Of a relay: it has no tables.
        (n, true) if applied.generation == 0 => format!("{} applied\n", count(n, "change")),
        (n, true) => format!("{} applied, tables of generation {}\n", count(n, "change"), applied.generation),
        (n, false) => format!("{} to make; nothing was done\n", count(n, "change")),
    };
    out
}
