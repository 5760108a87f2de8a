//! One router takes over from another: it checks everything it can, then has the one before end in order, and opens the devices.
//!
//! ```text
//! the one before: forwards ───── told to stop ─ drains ─ ends
//! successor:      checks ──────►│                            opens ─ ready
//!                               └───── nobody forwards ───────┘  said, with what became of transit meanwhile
//! ```
//!
//! Promises: a successor that fails before the one before was told to stop changes nothing, which is said; the links of the XDP
//! programs go from one to the other, so that no card is reset; the service manager hears of the other main process before the
//! one it knows ends. Refuses: two routers on one device at a time: a receive queue has one socket.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use weir_io::af_packet::kernel_forwards;

use super::{Daemon, ports};
use crate::control::Response;
use crate::control::client::{self, ClientError};
use crate::failure::Failure;
use crate::{service, view};

/// The router that was there before this one.
pub struct Predecessor {
    pid: u32,
    version: String,
    /// When it was told to stop.
    told: Instant,
}

/// Has the router that answers on this socket end in order, where there is one: its devices, its socket and the state of its
/// SAs are free then. What it passed on is ours.
pub fn end_predecessor(socket: Option<&PathBuf>) -> Result<Option<Predecessor>, Failure> {
    ports::inherit_links();
    let Some(socket) = socket else { return Ok(None) };
    let before: view::Status = match client::read(socket, "/v1/status") {
        Ok(status) => status,
        Err(ClientError::NotReached { .. }) if UnixStream::connect(socket).is_err() => return Ok(None),
        Err(error) => return Err(Failure::of(error)),
    };
    tracing::info!("taking over from process {}, weir {}: it ends in order", before.pid, before.version);
    let told = Instant::now();
    client::stop(socket).and_then(|()| client::wait_for_end(socket, before.pid)).map_err(Failure::of)?;
    Ok(Some(Predecessor { pid: before.pid, version: before.version, told }))
}

impl Predecessor {
    /// Says how long nobody forwarded, and what became of transit.
    pub fn say(&self, daemon: &Daemon) {
        let away = self.told.elapsed().as_millis();
        let devices = daemon.config.devices();
        let of_kernel = devices.iter().map(|port| kernel_forwards(&port.device.value));
        let meanwhile = match of_kernel.reduce(|all, one| (all.0 && one.0, all.1 && one.1)) {
            _ if daemon.config.enforces() => {
                "transit of ports with policies was dropped, never sent as cleartext"
            }
            Some((true, true)) => "the kernel forwarded, by its routes",
            Some((true, false)) => "the kernel forwarded IPv4, by its routes, and dropped IPv6",
            Some((false, true)) => "the kernel forwarded IPv6, by its routes, and dropped IPv4",
            _ => "the kernel, which is not told to forward, dropped transit",
        };
        let Predecessor { pid, version, .. } = self;
        tracing::info!(
            "took over from process {pid}, weir {version}: {away} ms without a router, in which {meanwhile}"
        );
    }
}

impl Daemon {
    /// SIGUSR2: the program that is installed now takes over.
    pub(super) fn start_successor(&mut self) -> Response {
        // Without somebody who follows them, flows of the kernel's firewall must not be forwarded.
        let passes_links = self.config.kernel.firewall.is_none();
        let ports = self.open.iter().filter(|_| passes_links);
        let links: Vec<(String, BorrowedFd<'_>)> =
            ports.filter_map(|(device, open)| open.port.named_link(device)).collect();
        self.successor.answer(&links)
    }

    /// A successor that fails changes nothing.
    pub(super) fn watch_successor(&mut self) {
        if let Some(pid) = self.successor.ended() {
            tracing::error!(
                "process {pid}, which was to take over, ended before it was ready, see its log; this router goes on"
            );
        }
    }

    /// The service manager hears that the service ends, or which process goes on with it.
    pub(super) fn say_stopping(&mut self) {
        let status = "frames that have arrived are still sent";
        match self.successor.underway() {
            Some(pid) => service::hands_over(pid, status),
            None => service::stopping(status),
        }
    }
}
