//! A connection's stream and what the kernel does not do of its TLS.
//!
//! Promises: a key of the kernel's is changed in time; what it is told of a stream's end is tried once, since who cannot be
//! told finds out. Refuses: a kernel that seals beyond the limit of its key.

use std::os::fd::BorrowedFd;

use weir_io::stream::StreamId;
use weir_io::tls::{Kernel, News};

use crate::ConnGuard;
use crate::counters::End;

/// The socket of one connection and what the kernel does for it, by slot.
#[derive(Debug)]
pub struct Link {
    pub stream: StreamId,
    /// The socket carries plaintext, and this is the rest of TLS.
    pub kernel: Option<Box<Kernel>>,
    /// Goes with the connection.
    pub guard: ConnGuard,
}

impl Link {
    pub fn new(stream: StreamId, kernel: Option<Box<Kernel>>, guard: ConnGuard) -> Link {
        Link { stream, kernel, guard }
    }
}

/// A record of the kernel's that is not data.
pub fn control(kernel: &mut Kernel, socket: BorrowedFd<'_>, kind: u8, plain: &[u8]) -> Result<(), End> {
    match kernel.control(socket, kind, plain) {
        Ok(None) => Ok(()),
        Ok(Some(News::UpdateWanted)) => match kernel.update(socket) {
            // A full socket: the peer's wish is not an order (RFC 8446 4.6.3: before the next data).
            Ok(()) | Err(None) => Ok(()),
            Err(Some(_)) => Err(End::Transport),
        },
        Ok(Some(News::CloseNotify)) => Err(End::Peer),
        Ok(Some(News::Alert(_))) => Err(End::Transport),
        Err(error) => {
            // Tried once: who cannot be told finds out.
            let _ = kernel.alert(socket, &error);
            Err(End::Transport)
        }
    }
}

/// The kernel sealed so much: its key is changed in time.
pub fn after_send(kernel: &mut Kernel, socket: BorrowedFd<'_>, sent: usize) -> Result<(), End> {
    kernel.sent(sent);
    if kernel.key_exhausted() {
        return Err(End::Transport);
    }
    match kernel.key_limit_reached().then(|| kernel.update(socket)) {
        // Full: tried again after the next send.
        None | Some(Ok(()) | Err(None)) => Ok(()),
        Some(Err(Some(_))) => Err(End::Transport),
    }
}
