//! Ctrl-C as a flag: what is under way ends whole, then the program stops by itself.
//!
//! The first SIGINT or SIGTERM sets the flag and restores the default action, so a second one ends a
//! program that does not listen.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Set once SIGINT or SIGTERM has arrived. Calls may be repeated.
pub fn stop_flag() -> io::Result<&'static AtomicBool> {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: an all-zero sigaction is a valid one (empty mask, no flags); the handler only stores to an
        // atomic, which is async-signal-safe; `action` outlives the call that copies it.
        let done = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = raise as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(&STOP)
}

extern "C" fn raise(_: libc::c_int) {
    STOP.store(true, Ordering::Release);
}
