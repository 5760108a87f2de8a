//! `weir reload` and `weir stop`: what SIGHUP and SIGTERM do, with an answer.

use std::path::Path;

use super::apply::report;
use crate::control::client;
use crate::failure::Failure;
use crate::text::print;
use crate::view;

/// The daemon reads its file again; what changed, or why nothing did.
pub fn reload(socket: &Path) -> Result<(), Failure> {
    let applied: view::Applied =
        client::post(socket, "/v1/reload", "application/json", b"").map_err(Failure::of)?;
    print(&report(&applied))
}

/// Returns when nobody answers on the socket any more.
pub fn stop(socket: &Path) -> Result<(), Failure> {
    client::stop(socket).map_err(Failure::of)
}
