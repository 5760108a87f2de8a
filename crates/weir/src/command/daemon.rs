//! `weir reload` and `weir stop`: what SIGHUP and SIGTERM do, with an answer.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::apply::report;
use crate::control::client;
use crate::failure::Failure;
use crate::text::print;
use crate::view;

/// Workers send what has arrived, a relay's clients get what waits for them.
const STOP_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// The daemon reads its file again; what changed, or why nothing did.
pub fn reload(socket: &Path) -> Result<(), Failure> {
    let applied: view::Applied =
        client::post(socket, "/v1/reload", "application/json", b"").map_err(Failure::of)?;
    print(&report(&applied))
}

/// Returns when nobody answers on the socket any more.
pub fn stop(socket: &Path) -> Result<(), Failure> {
    let _: serde_json::Value =
        client::post(socket, "/v1/stop", "application/json", b"").map_err(Failure::of)?;
    let end = Instant::now() + STOP_MAX;
    while UnixStream::connect(socket).is_ok() {
        if Instant::now() > end {
            let socket = socket.display();
            return Err(Failure(format!(
                "{socket}: the daemon has not ended after {STOP_MAX:?}; see its log"
            )));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}
