//! Netlink messages, as far as programs on interfaces need them: one question, one answer, one socket.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(super) const NLMSG_HEADER: usize = 16;
pub(super) const NLA_NESTED: u16 = 1 << 15;

pub(super) fn push_attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend(((4 + value.len()) as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// The value of the first attribute of this kind.
pub(super) fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    while let Some((header, _)) = attributes.split_first_chunk::<4>() {
        let len = u16::from_ne_bytes([header[0], header[1]]) as usize;
        let found = u16::from_ne_bytes([header[2], header[3]]) & !NLA_NESTED;
        let value = attributes.get(4..len)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// One request and its first answer; a refusal becomes the error it carries.
pub(super) fn transact(protocol: libc::c_int, request: &[u8]) -> io::Result<Vec<u8>> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `request` is readable for its length; an unbound netlink socket sends to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut reply = vec![0u8; 64 << 10];
    // SAFETY: `reply` is writable for its length.
    let got = unsafe { libc::recv(socket.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    reply.truncate(got as usize);
    let word =
        |at: usize| reply.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
    let kind = (word(4) & 0xffff) as u16;
    match (kind as i32 == libc::NLMSG_ERROR, word(NLMSG_HEADER)) {
        (true, error) if error != 0 => Err(io::Error::from_raw_os_error(-error)),
        _ => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_padding() {
        let mut nested = Vec::new();
        push_attribute(&mut nested, 2, &[2]);
        push_attribute(&mut nested, 4, &77u32.to_ne_bytes());
        let mut all = Vec::new();
        push_attribute(&mut all, 3, b"eth0\0");
        push_attribute(&mut all, 43 | NLA_NESTED, &nested);
        let inner = attribute(&all, 43).expect("present");
        assert_eq!(attribute(inner, 2), Some(&[2][..]));
        assert_eq!(attribute(inner, 4), Some(&77u32.to_ne_bytes()[..]));
        assert_eq!(attribute(inner, 1), None);
    }

    #[test]
    fn a_cut_attribute_is_not_read_past_its_end() {
        let mut all = Vec::new();
        push_attribute(&mut all, 3, b"eth0");
        assert_eq!(attribute(&all[..6], 3), None);
        assert_eq!(attribute(&[3, 0, 3, 0], 3), None);
    }
}
