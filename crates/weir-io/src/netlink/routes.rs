//! Routes, next-hop objects, neighbours and policy rules of the kernel: dumped, followed, and asked for.
//!
//! Promises: a [`RouteMonitor`] tells every change or says that it lost some; a dump says whether the kernel changed
//! under it. A message that is not well formed is counted and skipped. Refuses: changing a route; of neighbours only
//! asking the kernel to find them.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use netlink_sys::Socket;
use weir_core::wire::netlink::{FLAG_DUMP_INTERRUPTED, Message, TYPE_DONE, TYPE_ERROR, messages};
use weir_core::wire::rtnetlink::{self, Hop, NUD_NOARP, NUD_PERMANENT, News, RouteKind, Transit};

use super::{MESSAGE_MAX, open};
use crate::socket_option;

/// What waits to be read: a notification takes the kernel up to 1.3 KB, so 64 MiB hold 50,000 changes while this
/// process does something else.
const RECEIVE_BUFFER: libc::c_int = 64 << 20;

/// Datagrams read in one call, so that a storm of changes does not keep its reader from everything else.
const DATAGRAMS: usize = 4096;

/// `RTNLGRP_*`.
const GROUPS: [u32; 6] = [3, 7, 8, 11, 19, 32];

/// What a read found besides the news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The kernel dropped messages because they were not read in time: dump again.
    pub lost: bool,
    /// Messages that are not well formed.
    pub malformed: u64,
    /// Whether there may be more to read.
    pub more: bool,
}

/// Tells changes of routes, next-hop objects, neighbours and rules. Non-blocking; poll its descriptor.
pub struct RouteMonitor {
    socket: Socket,
    buffer: Vec<u8>,
}

impl RouteMonitor {
    pub fn open() -> io::Result<RouteMonitor> {
        let socket = open(0)?;
        // More than the system's limit needs CAP_NET_ADMIN; without it the usual size is what there is.
        let _ = socket_option::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER);
        for group in GROUPS {
            match socket.add_membership(group) {
                // A kernel before 5.3 has no next-hop objects.
                Err(error) if group == 32 && error.raw_os_error() == Some(libc::EINVAL) => {}
                joined => joined?,
            }
        }
        socket.set_non_blocking(true)?;
        Ok(RouteMonitor { socket, buffer: Vec::with_capacity(MESSAGE_MAX) })
    }

    /// What was said since the last call.
    pub fn observe(&mut self, mut each: impl FnMut(News)) -> io::Result<Observed> {
        observe(&self.socket, &mut self.buffer, Vec::clear, |message| {
            rtnetlink::parse(message, false).map(&mut each).is_ok()
        })
    }
}

impl AsRawFd for RouteMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// What a dump was like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    /// What was dumped changed meanwhile: some of it may be missing.
    pub interrupted: bool,
    pub malformed: u64,
}

/// Everything the kernel has of what `kind` asks for ([`rtnetlink::GET_ROUTE`] and its like). A kernel before 5.3 has no
/// next-hop objects.
pub fn dump(kind: u16, mut each: impl FnMut(News)) -> io::Result<Dumped> {
    let socket = open(0)?;
    socket.send(&rtnetlink::dump(kind), 0)?;
    let mut dumped = Dumped::default();
    let read = read_dump(&socket, &mut Vec::with_capacity(MESSAGE_MAX), Vec::clear, &mut dumped, |message| {
        rtnetlink::parse(message, true).map(&mut each).is_ok()
    });
    match read {
        Err(e) if kind == rtnetlink::GET_NEXT_HOP && e.kind() == io::ErrorKind::Unsupported => {}
        read => read?,
    }
    Ok(dumped)
}

/// What was said on a socket of a monitor since the last call, a message at a time; `each` says whether it was well
/// formed. The buffer is emptied by `wipe` before each read.
pub(super) fn observe(
    socket: &Socket,
    buffer: &mut Vec<u8>,
    wipe: fn(&mut Vec<u8>),
    mut each: impl FnMut(&Message<'_>) -> bool,
) -> io::Result<Observed> {
    let mut heard = Observed::default();
    for _ in 0..DATAGRAMS {
        wipe(buffer);
        match socket.recv(buffer, 0) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(heard),
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                heard.lost = true;
                continue;
            }
            Err(e) => return Err(e),
        }
        let malformed = messages(buffer).filter(|m| !m.as_ref().is_ok_and(&mut each)).count();
        heard.malformed += malformed as u64;
    }
    heard.more = true;
    Ok(heard)
}

/// Reads the answer to a dump to its end, as [`observe`] reads.
pub(super) fn read_dump(
    socket: &Socket,
    buffer: &mut Vec<u8>,
    wipe: fn(&mut Vec<u8>),
    dumped: &mut Dumped,
    mut each: impl FnMut(&Message<'_>) -> bool,
) -> io::Result<()> {
    loop {
        wipe(buffer);
        socket.recv(buffer, 0)?;
        for message in messages(buffer) {
            let Ok(message) = message else {
                dumped.malformed += 1;
                continue;
            };
            dumped.interrupted |= message.flags & FLAG_DUMP_INTERRUPTED != 0;
            match message.kind {
                TYPE_DONE => return Ok(()),
                TYPE_ERROR => return refused(message.payload),
                _ => dumped.malformed += u64::from(!each(&message)),
            }
        }
    }
}

/// Sends a request and reads the answer, by a socket that does not block: the kernel answers while it takes the request.
pub(super) fn ask(socket: &Socket, request: &[u8], mut each: impl FnMut(&Message<'_>)) -> io::Result<()> {
    socket.send(request, 0)?;
    let mut answer = Vec::with_capacity(MESSAGE_MAX);
    loop {
        answer.clear();
        match socket.recv(&mut answer, 0) {
            Ok(_) => messages(&answer).filter_map(Result::ok).for_each(|message| each(&message)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}

/// What an error message says; the kernel's numbers are negative.
pub(super) fn refused(payload: &[u8]) -> io::Result<()> {
    match payload.get(..4).and_then(|b| <[u8; 4]>::try_from(b).ok()).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(number.saturating_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Asks the kernel to find neighbours.
pub struct NeighborRequests {
    socket: Socket,
}

impl NeighborRequests {
    pub fn open() -> io::Result<NeighborRequests> {
        let socket = open(0)?;
        socket.set_non_blocking(true)?;
        Ok(NeighborRequests { socket })
    }

    /// Asks the kernel to resolve this neighbour as if it had a packet for it. A [`RouteMonitor`] tells what comes
    /// of it. One that an administrator set stays as it is: the kernel (since 5.16) would take its permanence away.
    pub fn resolve(&mut self, link: u32, address: IpAddr) -> io::Result<()> {
        if self.is_set(link, address)? {
            return Ok(());
        }
        // Only refusals are answered.
        let mut said = Ok(());
        ask(&self.socket, &rtnetlink::resolve(link, address), |message| {
            if message.kind == TYPE_ERROR {
                said = refused(message.payload);
            }
        })?;
        said
    }

    /// Whether the kernel has an entry for it that does not age.
    fn is_set(&mut self, link: u32, address: IpAddr) -> io::Result<bool> {
        let mut set = false;
        ask(&self.socket, &rtnetlink::query_neighbor(link, address), |message| {
            set |= matches!(rtnetlink::parse(message, true), Ok(News::Neighbor(_, neighbor))
                if neighbor.state & (NUD_PERMANENT | NUD_NOARP) != 0);
        })?;
        Ok(set)
    }
}

/// Asks the kernel for the next hop of packets.
pub struct RouteRequests {
    socket: Socket,
}

impl RouteRequests {
    pub fn open() -> io::Result<RouteRequests> {
        let socket = open(0)?;
        socket.set_non_blocking(true)?;
        Ok(RouteRequests { socket })
    }

    /// The next hop that the kernel would choose for this packet; `None` where it would not forward it. For IPv6 it answers as
    /// for a flow label of 0.
    pub fn choose(&mut self, packet: &Transit) -> io::Result<Option<Hop>> {
        let mut chosen = None;
        ask(&self.socket, &rtnetlink::query_route(packet), |message| {
            if let Ok(News::Route(_, route)) = rtnetlink::parse(message, true) {
                let unicast = route.kind == RouteKind::Unicast;
                chosen = route.hops.into_iter().next().filter(|_| unicast);
            }
        })?;
        Ok(chosen)
    }
}
