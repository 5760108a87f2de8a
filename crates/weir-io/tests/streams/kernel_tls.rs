//! Sockets whose records the kernel seals and opens, with keys that are written here: no handshake.

use std::net::TcpStream;
use std::os::fd::AsRawFd;

const TLS_TX: libc::c_int = 1;
const TLS_RX: libc::c_int = 2;
const TLS_SET_RECORD_TYPE: libc::c_int = 1;
const ALERT: u8 = 21;

/// TLS 1.2 with AES-128-GCM, as `linux/tls.h` lays it out: version, cipher, IV, key, salt, sequence number.
fn keys() -> [u8; 40] {
    let mut keys = [0; 40];
    keys[..2].copy_from_slice(&0x0303_u16.to_ne_bytes());
    keys[2..4].copy_from_slice(&51_u16.to_ne_bytes());
    keys[4..32].copy_from_slice(&[9; 28]);
    keys
}

fn set(socket: &TcpStream, level: libc::c_int, name: libc::c_int, value: &[u8]) -> bool {
    // SAFETY: the kernel reads `value`, whose length is given.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    done == 0
}

/// Whether this socket's records are opened by the kernel from now on.
pub fn opens(socket: &TcpStream) -> bool {
    set(socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls") && set(socket, libc::SOL_TLS, TLS_RX, &keys())
}

/// Whether this socket's records are sealed by the kernel from now on.
pub fn seals(socket: &TcpStream) -> bool {
    set(socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls") && set(socket, libc::SOL_TLS, TLS_TX, &keys())
}

pub fn send_alert(socket: &TcpStream, alert: &[u8]) {
    // A control message's header, its one byte, and alignment.
    let mut control = [0_u64; 3];
    let mut part = libc::iovec { iov_base: alert.as_ptr().cast_mut().cast(), iov_len: alert.len() };
    // SAFETY: a msghdr of zeros is an empty one. It then points to one part and to `control`, 24 bytes, into which
    // the header and one byte of data fit; all live through the call, and the kernel only reads them.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_TLS;
        (*head).cmsg_type = TLS_SET_RECORD_TYPE;
        (*head).cmsg_len = libc::CMSG_LEN(1) as usize;
        *libc::CMSG_DATA(head) = ALERT;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, 0)
    };
    assert_eq!(sent, alert.len() as isize, "{}", std::io::Error::last_os_error());
}
