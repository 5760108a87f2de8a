//! Options of sockets: those of any level are set, those of `SOL_XDP` are set and read.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets an option of any level.
pub(crate) fn set<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is readable for its own size.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (value as *const T).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets an option of level `SOL_XDP`.
pub(crate) fn set_xdp<T>(socket: BorrowedFd<'_>, name: libc::c_int, value: &T) -> io::Result<()> {
    set(socket, libc::SOL_XDP, name, value)
}

/// Reads an option of level `SOL_XDP` made of integers into a value that starts as `zero()`.
pub(crate) fn xdp<T: Copy>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    zero: impl FnOnce() -> T,
) -> io::Result<T> {
    let mut value = zero();
    let mut len = size_of::<T>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: `value` is writable for `len` bytes; every option of SOL_XDP is made of integers, for
    // which any bytes are valid.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_XDP, name, (&raw mut value).cast(), &mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
