//! `weir man`: the manual pages, a file a verb, as the parser knows them.

use std::fs;
use std::path::Path;

use clap::Command;

use crate::failure::Failure;

/// Writes `weir.1` and a page for each verb into `folder`, and says how many there are.
pub fn write(command: Command, folder: &Path) -> Result<String, Failure> {
    let failed = |error| Failure(format!("{}: {error}; name a folder you may write to", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)?;
    let pages = fs::read_dir(folder).map_err(failed)?.count();
    Ok(format!("{}: {pages} manual pages\n", folder.display()))
}
