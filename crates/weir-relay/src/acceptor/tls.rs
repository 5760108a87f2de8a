//! From the acceptor's TLS to the workers': the keys of a finished handshake change hands.
//!
//! Promises: with `auto` the kernel has them where it can, the worker otherwise, and why is said once; with `kernel` a
//! connection the kernel does not take is closed.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Once;

use weir_io::tls::Handshake;

use super::counters::{Counters, End, count};
use crate::TlsMode;
use crate::settings::Tls;

/// What goes with the keys.
pub struct Over<'a> {
    pub socket: BorrowedFd<'a>,
    pub mode: Tls,
    /// Ciphertext was read that the kernel can no longer open.
    pub unread: bool,
}

/// Takes the keys out of a finished handshake; what it had opened already goes to the end of `early`.
pub fn tls_mode(
    tls: Handshake,
    over: &Over<'_>,
    early: &mut Vec<u8>,
    counters: &Counters,
) -> Result<TlsMode, End> {
    let lost = |error: &dyn std::fmt::Display| {
        tracing::warn!("TLS: the keys of a connection cannot be taken over ({error})");
        End::Tls
    };
    let (mut keys, mut plain) = tls.establish().map_err(|e| lost(&e))?;
    early.append(&mut plain);
    if over.mode.by_kernel() && !over.unread {
        match keys.offload(over.socket.as_fd()) {
            Ok(kernel) => {
                count(&counters.tls_kernel);
                return Ok(TlsMode::Kernel(kernel));
            }
            Err(refused) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| tracing::warn!("TLS by the kernel is not to be had: {}", refused.why));
                match (refused.keys, over.mode) {
                    (Some(back), Tls::Auto) => keys = *back,
                    _ => return Err(End::Tls),
                }
            }
        }
    }
    let session = keys.session().map_err(|e| lost(&e))?;
    count(&counters.tls_user);
    Ok(TlsMode::User(session))
}
