//! Links and addresses as the kernel has them, and news of their changes (rtnetlink).
//!
//! Promises: a consistent list at one moment, and a [`Monitor`] that tells every later change or says
//! that it lost some ([`Change::Lost`]: list again). Refuses: configuring anything but "up"; addresses
//! and routes of the kernel belong to the operator.

pub mod conntrack;
pub mod firewall;
pub mod routes;
pub mod traffic;
pub mod xfrm;

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use weir_core::wire::netlink::{Message, TYPE_ERROR, messages};
use weir_core::wire::rtnetlink::links::{self, LinkNews};

pub use weir_core::wire::rtnetlink::links::{AddressInfo, LinkInfo};

/// What a [`Monitor`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// New, or one of its properties changed.
    Link(LinkInfo),
    LinkGone(LinkInfo),
    Address(AddressInfo),
    AddressGone(AddressInfo),
    /// The kernel dropped messages because this socket was not read in time: list again.
    Lost,
}

/// Largest netlink message: the kernel's dumps are cut at 32 KiB.
const MESSAGE_MAX: usize = 32 << 10;

/// Every link.
pub fn links() -> io::Result<Vec<LinkInfo>> {
    let mut found = Vec::new();
    dump(&links::dump_links(), |news| {
        if let LinkNews::Link(link) = news {
            found.push(link);
        }
    })?;
    Ok(found)
}

/// The link of this name.
pub fn link(name: &str) -> io::Result<Option<LinkInfo>> {
    Ok(links()?.into_iter().find(|link| link.name == name))
}

/// Every address of every link.
pub fn addresses() -> io::Result<Vec<AddressInfo>> {
    let mut found = Vec::new();
    dump(&links::dump_addresses(), |news| {
        if let LinkNews::Address(address) = news {
            found.push(address);
        }
    })?;
    Ok(found)
}

/// Sets a link administratively up.
pub fn set_up(index: u32) -> io::Result<()> {
    let socket = open(0)?;
    socket.send(&links::set_up(index), 0)?;
    let mut answer = Vec::with_capacity(MESSAGE_MAX);
    loop {
        answer.clear();
        socket.recv(&mut answer, 0)?;
        if let Some(message) = messages(&answer).filter_map(Result::ok).find(|m| m.kind == TYPE_ERROR) {
            return routes::refused(message.payload);
        }
    }
}

/// Tells changes of links and addresses. Non-blocking; poll its descriptor.
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    pub fn open() -> io::Result<Monitor> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        let socket = open(groups as u32)?;
        socket.set_non_blocking(true)?;
        Ok(Monitor { socket })
    }

    /// Every change since the last call; empty when there is none.
    pub fn changes(&mut self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        let mut buffer = Vec::with_capacity(MESSAGE_MAX);
        loop {
            let observed = routes::observe(&self.socket, &mut buffer, Vec::clear, |message| {
                links::parse(message).map(|news| changes.extend(change(news))).is_ok()
            })?;
            // What was not well formed is seen where everything is listed.
            if observed.lost || observed.malformed > 0 {
                changes.push(Change::Lost);
            }
            if !observed.more {
                return Ok(changes);
            }
        }
    }
}

impl AsRawFd for Monitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Tells that something changed in the traffic control of some device. Non-blocking; poll its descriptor.
pub struct FilterMonitor {
    socket: Socket,
}

impl FilterMonitor {
    pub fn open() -> io::Result<FilterMonitor> {
        /// `RTNLGRP_TC` as a bit.
        const RTMGRP_TC: u32 = 1 << 3;
        let socket = open(RTMGRP_TC)?;
        socket.set_non_blocking(true)?;
        Ok(FilterMonitor { socket })
    }

    /// Whether there was news since the last call; what it says is for who looks. Lost news is news.
    pub fn heard(&mut self) -> bool {
        drained(&self.socket)
    }
}

/// Reads a socket empty; whether there was anything. Lost news is news.
fn drained(socket: &Socket) -> bool {
    let mut heard = false;
    let mut buffer = Vec::with_capacity(MESSAGE_MAX);
    loop {
        buffer.clear();
        match socket.recv(&mut buffer, 0) {
            Ok(_) => heard = true,
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => heard = true,
            Err(_) => return heard,
        }
    }
}

impl AsRawFd for FilterMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn change(news: LinkNews) -> Option<Change> {
    match news {
        LinkNews::Link(link) => Some(Change::Link(link)),
        LinkNews::LinkGone(link) => Some(Change::LinkGone(link)),
        LinkNews::Address(address) => Some(Change::Address(address)),
        LinkNews::AddressGone(address) => Some(Change::AddressGone(address)),
        LinkNews::Other => None,
    }
}

fn open(groups: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, groups))?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

fn dump(request: &[u8], mut each: impl FnMut(LinkNews)) -> io::Result<()> {
    dump_messages(request, |message| links::parse(message).map(&mut each).is_ok())
}

/// Reads what a dump request is answered with; a message that is not well formed (`each` says so) makes the whole list
/// doubtful.
fn dump_messages(request: &[u8], each: impl FnMut(&Message<'_>) -> bool) -> io::Result<()> {
    let socket = open(0)?;
    socket.send(request, 0)?;
    let mut dumped = routes::Dumped::default();
    let mut buffer = Vec::with_capacity(MESSAGE_MAX);
    routes::read_dump(&socket, &mut buffer, Vec::clear, &mut dumped, each)?;
    match dumped.malformed {
        0 => Ok(()),
        n => Err(io::Error::new(io::ErrorKind::InvalidData, format!("netlink: {n} malformed messages"))),
    }
}
