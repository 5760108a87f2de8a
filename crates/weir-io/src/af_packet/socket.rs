//! The packet socket itself: every system call of `af_packet`, and the headers the kernel puts around frames.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use weir_core::packet::BATCH;
use weir_core::wire::checksum;

/// Room for one control message with a `tpacket_auxdata` (16 + 20 bytes, padded).
pub const AUXDATA_SPACE: usize = 64;

/// `struct virtio_net_hdr`: what the kernel left undone on a frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VirtioHeader {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

const NEEDS_CHECKSUM: u8 = 1;

impl VirtioHeader {
    /// Several segments in one frame.
    pub fn is_merged(&self) -> bool {
        self.gso_type != 0
    }
}

/// Completes a checksum the sender left to hardware (the field holds the pseudo-header's sum already);
/// `false` when the header points outside the frame.
pub fn finish_checksum(frame: &mut [u8], header: VirtioHeader) -> bool {
    if header.flags & NEEDS_CHECKSUM == 0 {
        return true;
    }
    let start = header.checksum_start as usize;
    let field = start + header.checksum_offset as usize;
    if start > frame.len() || field + 2 > frame.len() {
        return false;
    }
    let checksum = checksum::finish_transport(checksum::add(0, &frame[start..]));
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// The VLAN tag the kernel took off, as it stood in the frame.
pub fn vlan_tag(auxdata: &[u64; AUXDATA_SPACE / 8]) -> Option<[u8; 4]> {
    let mut bytes = [0; AUXDATA_SPACE];
    for (to, word) in bytes.chunks_exact_mut(8).zip(auxdata) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    // cmsghdr { len: usize, level: i32, type: i32 }, then tpacket_auxdata { status: u32, len: u32,
    // snaplen: u32, mac: u16, net: u16, vlan_tci: u16, vlan_tpid: u16 }.
    let word = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let header = size_of::<usize>();
    if word(header) != libc::SOL_PACKET || word(header + 4) != libc::PACKET_AUXDATA {
        return None;
    }
    let data = header + 8;
    let status = word(data) as u32;
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let protocol = if status & libc::TP_STATUS_VLAN_TPID_VALID == 0 { 0x8100 } else { half(data + 18) };
    let [p0, p1] = protocol.to_be_bytes();
    let [t0, t1] = half(data + 16).to_be_bytes();
    Some([p0, p1, t0, t1])
}

/// An unbound packet socket, non-blocking.
pub fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket() takes no memory; protocol 0 receives nothing until bind.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The error the kernel keeps for the socket (the device went down), which is thereby cleared: until then
/// the descriptor polls as failed.
pub fn take_error(socket: &OwnedFd) -> Option<io::Error> {
    let mut error: i32 = 0;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `error`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &mut length,
        )
    };
    (done == 0 && error != 0).then(|| io::Error::from_raw_os_error(error))
}

/// Sets an integer option.
pub fn set(socket: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<i32>()` bytes of `value`, which outlives the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Binds to a device; protocol 0 is for sending only.
pub fn bind(socket: &OwnedFd, index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain data for which all zeros is valid.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index as i32;
    // SAFETY: the kernel reads a sockaddr_ll of the size passed; it outlives the call.
    let done = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The filter that lets nothing through: "return 0".
pub static NOTHING: [libc::sock_filter; 1] =
    [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];

/// Attaches a classic BPF filter.
pub fn filter(socket: &OwnedFd, program: &'static [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `program.len` instructions from `program.filter`, a static slice of that
    // length, which it does not write.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Frames the kernel dropped on this socket since the last call.
pub fn dropped(socket: &OwnedFd) -> io::Result<u32> {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `stats`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut stats).cast(),
            &mut length,
        )
    };
    if done == 0 { Ok(stats.tp_drops) } else { Err(io::Error::last_os_error()) }
}

/// What one `recvmmsg` brought: for each frame its length and whether it was cut.
pub struct Received {
    pub count: usize,
    pub frames: [(usize, bool); BATCH],
}

/// Receives at most one frame a window (and at most [`BATCH`]), without blocking.
pub fn receive<'a>(
    socket: &OwnedFd,
    windows: impl Iterator<Item = &'a mut [u8]>,
    auxdata: &mut [[u64; AUXDATA_SPACE / 8]; BATCH],
) -> io::Result<Received> {
    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut pieces: [libc::iovec; BATCH] = [none; BATCH];
    // SAFETY: mmsghdr is plain data for which all zeros is valid.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut count = 0;
    for ((window, slot), aux) in windows.zip(0..BATCH).zip(auxdata.iter_mut()) {
        *aux = [0; AUXDATA_SPACE / 8];
        pieces[slot] = libc::iovec { iov_base: window.as_mut_ptr().cast(), iov_len: window.len() };
        let message = &mut messages[slot].msg_hdr;
        message.msg_iov = &raw mut pieces[slot];
        message.msg_iovlen = 1;
        message.msg_control = aux.as_mut_ptr().cast();
        message.msg_controllen = AUXDATA_SPACE as _;
        count = slot + 1;
    }
    // SAFETY: the first `count` messages point to live iovecs, control buffers and windows (each
    // borrowed mutably for this call and distinct), with their true lengths.
    let done = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            count as u32,
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut received = Received { count: done as usize, frames: [(0, false); BATCH] };
    for (frame, message) in received.frames.iter_mut().zip(&messages[..done as usize]) {
        let cut = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        *frame = (message.msg_len as usize, cut);
    }
    Ok(received)
}

/// Sends frames in order, at most [`BATCH`]; returns how many the kernel took before it refused one. An
/// error speaks of the first frame.
pub fn send<'a>(socket: &OwnedFd, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
    let mut pieces: [libc::iovec; BATCH] =
        [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
    // SAFETY: mmsghdr is plain data for which all zeros is valid.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut count = 0;
    for (frame, slot) in frames.zip(0..BATCH) {
        pieces[slot] = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        messages[slot].msg_hdr.msg_iov = &raw mut pieces[slot];
        messages[slot].msg_hdr.msg_iovlen = 1;
        count = slot + 1;
    }
    // SAFETY: the first `count` messages point to live iovecs and frames with their true lengths; the
    // kernel only reads frames when sending.
    let done = unsafe {
        libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT as _)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_udp_checksum_is_completed() {
        // 14 bytes of Ethernet stand before; UDP from 5 to 6, length 10, "hi", over 192.0.2.1 → 192.0.2.2.
        let mut frame = vec![0u8; 14];
        let pseudo: u32 = 0xc000 + 0x0201 + 0xc000 + 0x0202 + 17 + 10;
        let folded = ((pseudo & 0xffff) + (pseudo >> 16)) as u16;
        frame.extend([0, 5, 0, 6, 0, 10]);
        frame.extend(folded.to_be_bytes());
        frame.extend(b"hi");
        let header = VirtioHeader {
            flags: NEEDS_CHECKSUM,
            checksum_start: 14,
            checksum_offset: 6,
            ..Default::default()
        };
        assert!(finish_checksum(&mut frame, header));
        let whole = pseudo + 5 + 6 + 10 + u32::from(u16::from_be_bytes([b'h', b'i']));
        let expected = !(((whole & 0xffff) + (whole >> 16)) as u16);
        assert_eq!(u16::from_be_bytes([frame[20], frame[21]]), expected);
    }

    #[test]
    fn checksum_outside_the_frame_is_refused() {
        let header = VirtioHeader {
            flags: NEEDS_CHECKSUM,
            checksum_start: 60,
            checksum_offset: 6,
            ..Default::default()
        };
        assert!(!finish_checksum(&mut [0; 60], header));
    }

    #[test]
    fn empty_control_buffer_has_no_tag() {
        assert_eq!(vlan_tag(&[0; AUXDATA_SPACE / 8]), None);
    }
}
