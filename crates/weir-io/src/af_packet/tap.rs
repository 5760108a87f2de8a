//! A listener for what stays with the kernel beside a port and concerns the control side too.
//!
//! On an AF_XDP port the XDP program passes ARP, neighbour discovery and what is for addresses of the kernel
//! to the kernel; a packet socket with a filter gets a copy of ARP, NDP and of "too big" errors about ESP,
//! and sends what the control side has to say. What an error quotes is for whoever reads it to judge.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use weir_core::packet::BATCH;

use super::socket::{self, AUXDATA_SPACE};
use crate::netlink;
use crate::port_error::PortError;

/// Longest frame kept: the largest Ethernet frame without jumbo.
const LONGEST: usize = 1522;

/// See the module.
pub struct Tap {
    socket: OwnedFd,
}

/// One classic BPF instruction.
const fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
/// Loads a half word at an offset from the index register.
const LOAD_HALF_AT: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
const LOAD_BYTE_AT: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
/// The index register becomes the length of the IPv4 header there.
const HEADER_LEN: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_ABOVE: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// ARP; ICMPv6 types 133…137 (RFC 4861) directly behind the IPv6 header; and where they quote ESP, UDP or,
/// for IPv6, a fragment: fragmentation needed (RFC 1191) and packet too big (RFC 4443 3.2). The kernel has
/// taken VLAN tags off by the time this runs.
static CONCERNS_US: [libc::sock_filter; 26] = [
    /*  0 */ op(LOAD_HALF, 0, 0, 12),
    /*  1 */ op(IF_EQUAL, 22, 0, 0x0806),
    /*  2 */ op(IF_EQUAL, 10, 0, 0x86dd),
    /*  3 */ op(IF_EQUAL, 0, 21, 0x0800),
    /*  4 */ op(LOAD_BYTE, 0, 0, 23),
    /*  5 */ op(IF_EQUAL, 0, 19, 1),
    /*  6 */ op(LOAD_HALF, 0, 0, 20),
    /*  7 */ op(IF_ANY_BIT, 17, 0, 0x1fff),
    /*  8 */ op(HEADER_LEN, 0, 0, 14),
    /*  9 */ op(LOAD_HALF_AT, 0, 0, 14),
    /* 10 */ op(IF_EQUAL, 0, 14, 0x0304),
    /* 11 */ op(LOAD_BYTE_AT, 0, 0, 14 + 8 + 9),
    /* 12 */ op(IF_EQUAL, 11, 9, 50),
    /* 13 */ op(LOAD_BYTE, 0, 0, 20),
    /* 14 */ op(IF_EQUAL, 0, 10, 58),
    /* 15 */ op(LOAD_BYTE, 0, 0, 54),
    /* 16 */ op(IF_EQUAL, 2, 0, 2),
    /* 17 */ op(IF_AT_LEAST, 0, 7, 133),
    /* 18 */ op(IF_ABOVE, 6, 5, 137),
    /* 19 */ op(LOAD_BYTE, 0, 0, 54 + 8 + 6),
    /* 20 */ op(IF_EQUAL, 3, 0, 50),
    /* 21 */ op(IF_EQUAL, 2, 0, 44),
    /* 22 */ op(IF_EQUAL, 1, 0, 17),
    /* 23 */ op(RETURN, 0, 0, 0),
    /* 24 */ op(RETURN, 0, 0, LONGEST as u32),
    /* 25 */ op(RETURN, 0, 0, 0),
];

impl Tap {
    /// Listens on `name`.
    pub fn open(name: &str) -> Result<Tap, PortError> {
        let failed = |doing: &'static str| move |e| PortError::from_io("tap", name, doing, e);
        let link = netlink::link(name).map_err(failed("listing devices"))?;
        let link = link.ok_or_else(|| PortError::no_such_device("tap", name))?;
        let socket = socket::open().map_err(failed("opening a packet socket"))?;
        for option in [libc::PACKET_IGNORE_OUTGOING, libc::PACKET_AUXDATA] {
            socket::set(&socket, libc::SOL_PACKET, option, 1).map_err(failed("setting up reception"))?;
        }
        socket::filter(&socket, &CONCERNS_US).map_err(failed("attaching the filter"))?;
        socket::bind(&socket, link.index, libc::ETH_P_ALL as u16).map_err(failed("binding"))?;
        Ok(Tap { socket })
    }

    /// Frames that came since the last call, VLAN tags in place; at most 64.
    pub fn receive(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut buffers = vec![vec![0u8; LONGEST]; BATCH];
        let mut auxdata = [[0; AUXDATA_SPACE / 8]; BATCH];
        let windows = buffers.iter_mut().map(Vec::as_mut_slice);
        let received = match socket::receive(&self.socket, windows, &mut auxdata) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Vec::new()),
            other => other?,
        };
        let mut frames = Vec::with_capacity(received.count);
        for (slot, mut frame) in buffers.into_iter().take(received.count).enumerate() {
            let (length, truncated) = received.frames[slot];
            if truncated {
                continue;
            }
            frame.truncate(length);
            if let (Some(tag), true) = (socket::vlan_tag(&auxdata[slot]), length >= 12) {
                frame.splice(12..12, tag);
            }
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Sends one whole frame.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        socket::send(&self.socket, std::iter::once(frame)).map(drop)
    }
}

impl AsRawFd for Tap {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
