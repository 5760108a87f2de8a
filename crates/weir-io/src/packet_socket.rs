//! A raw Ethernet socket on one device (AF_PACKET, packet(7)), many frames a system call.
//!
//! Promises: what is sent leaves past the queueing discipline, and the count of frames the kernel took is
//! exact; what is received was on the wire (frames sent by this host are left out), and what the socket
//! lost for want of room is counted.
//!
//! Refuses: to block. Copying and slower than AF_XDP: the fallback that works on every kernel.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::af_packet::socket;

/// Frames a call moves: 64 × 2 KiB is 128 KiB, an L2's corner.
pub const BATCH: usize = 64;
/// Bytes of one frame: the largest Ethernet frame with a VLAN tag, rounded up.
pub const FRAME: usize = 2048;
/// Receive buffer asked for: 32 MiB holds about 40,000 small frames (the kernel charges about 768 B each).
const RECEIVE_BUFFER: i32 = 32 << 20;

pub struct PacketSocket {
    socket: OwnedFd,
    frames: Box<[[u8; FRAME]; BATCH]>,
}

impl PacketSocket {
    /// Opens a socket that sends, and receives nothing.
    pub fn sender(device: &str) -> io::Result<PacketSocket> {
        let socket = PacketSocket::open(device, 0)?;
        socket.option(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        Ok(socket)
    }

    /// The same, and the kernel spreads frames over the device's queues by their flows; slower.
    pub fn spreading_sender(device: &str) -> io::Result<PacketSocket> {
        PacketSocket::open(device, 0)
    }

    /// Opens a socket that receives every frame of the device that others sent.
    pub fn receiver(device: &str) -> io::Result<PacketSocket> {
        let socket = PacketSocket::open(device, libc::ETH_P_ALL as u16)?;
        socket.option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        socket.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
        Ok(socket)
    }

    fn open(device: &str, protocol: u16) -> io::Result<PacketSocket> {
        let name = CString::new(device)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "device name holds a zero byte"))?;
        // SAFETY: `name` is a C string for the whole call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = socket::open()?;
        socket::bind(&socket, index, protocol)?;
        let frames = vec![[0u8; FRAME]; BATCH].into_boxed_slice();
        let frames = frames.try_into().map_err(|_| io::Error::other("a batch has a fixed size"))?;
        Ok(PacketSocket { socket, frames })
    }

    fn option(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        socket::set(&self.socket, level, name, value)
    }

    /// Sends up to [`BATCH`] frames: `fill` writes each into its buffer (whose bytes it finds as it left
    /// them) and returns the length. Gives back how many the kernel took, from the front.
    pub fn send(&mut self, count: usize, mut fill: impl FnMut(&mut [u8]) -> usize) -> io::Result<usize> {
        let count = count.min(BATCH);
        let mut lens = [0; BATCH];
        for (frame, len) in self.frames.iter_mut().zip(&mut lens).take(count) {
            *len = fill(frame).min(FRAME);
        }
        let mut taken = 0;
        let (mut parts, mut messages) = self.messages(&lens);
        parts_of(&mut parts, &mut messages);
        while taken < count {
            // SAFETY: messages[taken..count] are initialised, each points to one iovec in `parts`, which
            // points into `self.frames`; all outlive the call.
            let done = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    messages.as_mut_ptr().add(taken),
                    (count - taken) as u32,
                    libc::MSG_DONTWAIT,
                )
            };
            if done > 0 {
                taken += done as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // The other end's ring is full: what is left was not taken.
                Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR) => Ok(taken),
                _ => Err(error),
            };
        }
        Ok(taken)
    }

    /// Hands every waiting frame, at most [`BATCH`], to `each`; returns how many there were.
    pub fn receive(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<usize> {
        let lens = [FRAME; BATCH];
        let (mut parts, mut messages) = self.messages(&lens);
        parts_of(&mut parts, &mut messages);
        // SAFETY: all messages are initialised, each points to one iovec in `parts`, which points into
        // `self.frames` with its full size; all outlive the call and are written by the kernel only.
        let done = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if done < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                _ => Err(error),
            };
        }
        let done = done as usize;
        for (frame, message) in self.frames.iter().zip(&messages).take(done) {
            each(&frame[..(message.msg_len as usize).min(FRAME)]);
        }
        Ok(done)
    }

    /// Frames the socket lost for want of room since the last call.
    pub fn lost(&mut self) -> io::Result<u64> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: `statistics` and `len` are valid and writable for the whole call; `len` is its size.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &mut len,
            )
        };
        if done == 0 { Ok(u64::from(statistics.tp_drops)) } else { Err(io::Error::last_os_error()) }
    }

    fn messages(&mut self, lens: &[usize; BATCH]) -> ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) {
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        for ((part, frame), &len) in parts.iter_mut().zip(self.frames.iter_mut()).zip(lens) {
            *part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: len };
        }
        // SAFETY: mmsghdr is plain data for which all zeros is valid.
        (parts, unsafe { std::mem::zeroed() })
    }
}

/// Lets message `i` consist of part `i`. Separate from building them, because the pointers are good only
/// where the arrays finally live.
fn parts_of(parts: &mut [libc::iovec; BATCH], messages: &mut [libc::mmsghdr; BATCH]) {
    for (part, message) in parts.iter_mut().zip(messages) {
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
    }
}
