//! System calls on one socket: receive into a buffer, send parts, options.
//!
//! Promises: never blocks, never raises SIGPIPE.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use super::buffers::{BUFFER, Buffer, Part};

/// Room for the control message that names a record's type: its header and one byte, aligned.
pub(super) const CONTROL: usize = 64;

/// TLS content type of application data (RFC 8446, 5.1).
pub(super) const APPLICATION_DATA: u8 = 23;

/// The message type of `linux/tls.h` that tells a record's type.
const TLS_GET_RECORD_TYPE: libc::c_int = 2;

/// Small sends leave without waiting for an acknowledgement. Sockets that know no such delay refuse, which is
/// as good.
pub(super) fn leave_at_once(socket: &OwnedFd) {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads the four bytes of `on`.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
}

/// What one receive brought; 0 bytes of application data is the end of the stream.
pub(super) struct Receipt {
    pub(super) bytes: usize,
    pub(super) kind: u8,
}

/// Receives into an empty buffer, which is as long as what came.
pub(super) fn receive(socket: &OwnedFd, kernel_tls: bool, buffer: &mut Buffer) -> io::Result<Receipt> {
    buffer.clear();
    let (address, room) = buffer.writable();
    let room = room.min(BUFFER);
    if !kernel_tls {
        // SAFETY: the kernel writes at most `room` bytes into a buffer of at least that many, whose only
        // handle we have borrowed mutably.
        let got = unsafe { libc::recv(socket.as_raw_fd(), address.cast(), room, libc::MSG_DONTWAIT) };
        let bytes = result(got)?;
        buffer.resize(bytes);
        return Ok(Receipt { bytes, kind: APPLICATION_DATA });
    }
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec { iov_base: address.cast(), iov_len: room };
    let mut message = empty_message();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL;
    // SAFETY: `message` points to one part (at most `room` bytes of a buffer we have borrowed mutably) and to
    // `CONTROL` bytes of `control`; all live through the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let bytes = result(got)?;
    buffer.resize(bytes);
    let kind = record_type(&control.0[..message.msg_controllen.min(CONTROL)]);
    Ok(Receipt { bytes, kind })
}

/// Control messages are aligned as their header is.
#[repr(align(8))]
struct Control([u8; CONTROL]);

/// The content type that control messages tell: without one it is application data.
pub(super) fn record_type(mut control: &[u8]) -> u8 {
    const HEAD: usize = size_of::<libc::cmsghdr>();
    while let Some((head, _)) = control.split_first_chunk::<HEAD>() {
        // SAFETY: a cmsghdr is plain numbers, for which any bytes are valid; unaligned reads are allowed.
        let head = unsafe { head.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let told = head.cmsg_level == libc::SOL_TLS && head.cmsg_type == TLS_GET_RECORD_TYPE;
        if let Some(&kind) = control.get(HEAD).filter(|_| told) {
            return kind;
        }
        let length = head.cmsg_len.clamp(HEAD, HEAD + control.len()).next_multiple_of(align_of::<usize>());
        control = control.get(length..).unwrap_or(&[]);
    }
    APPLICATION_DATA
}

/// Gathers parts for the kernel. The pointers are good as long as the parts are neither moved out nor dropped:
/// their bytes are on the heap or in a pool, and moving a `Part` moves none of them.
pub(super) fn gather(parts: &[Part], into: &mut Vec<libc::iovec>) {
    into.clear();
    into.extend(parts.iter().take(super::MOST_PARTS).map(|part| {
        let bytes = part.bytes();
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
    }));
}

pub(super) fn empty_message() -> libc::msghdr {
    // SAFETY: a msghdr of zeros is one without address, parts and control messages.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Sends what the socket takes of these parts now; `gathered` is only scratch.
pub(super) fn send(socket: &OwnedFd, parts: &[Part], gathered: &mut Vec<libc::iovec>) -> io::Result<usize> {
    gather(parts, gathered);
    let mut message = empty_message();
    message.msg_iov = gathered.as_mut_ptr();
    message.msg_iovlen = gathered.len();
    // SAFETY: `message` points to `gathered`, whose entries describe the bytes of `parts`, borrowed for the
    // whole call; the kernel only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, SEND_FLAGS) };
    gathered.clear();
    match result(sent) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        sent => sent,
    }
}

pub(super) const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

fn result(done: isize) -> io::Result<usize> {
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control_message(level: libc::c_int, kind: libc::c_int, data: &[u8]) -> Vec<u8> {
        let mut bytes = (size_of::<libc::cmsghdr>() + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn record_type_is_found_among_other_control_messages() {
        let mut control = control_message(libc::SOL_SOCKET, 29, &[1; 16]);
        control.extend(control_message(libc::SOL_TLS, TLS_GET_RECORD_TYPE, &[21]));
        assert_eq!(record_type(&control), 21);
    }

    #[test]
    fn damaged_control_messages_mean_application_data() {
        let whole = control_message(libc::SOL_TLS, TLS_GET_RECORD_TYPE, &[22]);
        assert_eq!(record_type(&whole), 22);
        for length in 0..=size_of::<libc::cmsghdr>() {
            assert_eq!(record_type(&whole[..length]), APPLICATION_DATA);
        }
        assert_eq!(record_type(&[0; 64]), APPLICATION_DATA);
        assert_eq!(record_type(&[0xff; 64]), APPLICATION_DATA);
    }
}
