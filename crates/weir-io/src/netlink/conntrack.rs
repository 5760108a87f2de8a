//! The kernel's conntrack entries: dumped, followed, asked for, and given time.
//!
//! Promises: a [`ConntrackMonitor`] tells every change or says that it lost some; what is asked and told is of entries the
//! kernel has. Refuses: making or deleting an entry.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use weir_core::wire::ctnetlink::{self, Event, Tuple};
use weir_core::wire::netlink::TYPE_ERROR;

use super::MESSAGE_MAX;
use super::routes::{Dumped, Observed, ask, observe, read_dump, refused};
use crate::socket_option;

/// What waits to be read: an event takes the kernel about 770 bytes, so 64 MiB hold 80,000 of them.
const RECEIVE_BUFFER: libc::c_int = 64 << 20;

/// `NFNLGRP_CONNTRACK_NEW`, `_UPDATE`, `_DESTROY`.
const GROUPS: [u32; 3] = [1, 2, 3];

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Tells changes of conntrack entries. Non-blocking; poll its descriptor.
pub struct ConntrackMonitor {
    socket: Socket,
    buffer: Vec<u8>,
}

impl ConntrackMonitor {
    pub fn open() -> io::Result<ConntrackMonitor> {
        let socket = open()?;
        // More than the system's limit needs CAP_NET_ADMIN, as what is done with flows does.
        let _ = socket_option::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER);
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(ConntrackMonitor { socket, buffer: Vec::with_capacity(MESSAGE_MAX) })
    }

    /// What was said since the last call.
    pub fn observe(&mut self, mut each: impl FnMut(&Event)) -> io::Result<Observed> {
        observe(&self.socket, &mut self.buffer, Vec::clear, |message| {
            each(&ctnetlink::parse(message));
            true
        })
    }
}

impl AsRawFd for ConntrackMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Every entry the kernel has.
pub fn dump(mut each: impl FnMut(&Event)) -> io::Result<Dumped> {
    let socket = open()?;
    socket.send(&ctnetlink::dump(), 0)?;
    let mut dumped = Dumped::default();
    read_dump(&socket, &mut Vec::with_capacity(MESSAGE_MAX), Vec::clear, &mut dumped, |message| {
        each(&ctnetlink::parse(message));
        true
    })?;
    Ok(dumped)
}

/// Asks about entries, and gives them time.
pub struct ConntrackRequests {
    socket: Socket,
}

impl ConntrackRequests {
    pub fn open() -> io::Result<ConntrackRequests> {
        let socket = open()?;
        socket.set_non_blocking(true)?;
        Ok(ConntrackRequests { socket })
    }

    /// Sends a request ([`ctnetlink::refresh`] and its like) and reads what the kernel says to it, which it does before this
    /// returns. `ErrorKind::NotFound`: the entry is gone.
    pub fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.exchange(request, |_| {})
    }

    /// An entry as it is now; `ErrorKind::NotFound` when it is gone.
    pub fn query(&mut self, original: &Tuple) -> io::Result<Event> {
        let mut found = Event::Other;
        self.exchange(&ctnetlink::query(original), |event| found = event)?;
        Ok(found)
    }

    fn exchange(&mut self, request: &[u8], mut each: impl FnMut(Event)) -> io::Result<()> {
        let mut said = Ok(());
        ask(&self.socket, request, |message| match message.kind {
            TYPE_ERROR => said = refused(message.payload),
            _ => each(ctnetlink::parse(message)),
        })?;
        said
    }
}
