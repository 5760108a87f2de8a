//! Links and addresses as the kernel has them, and news of their changes (rtnetlink).
//!
//! Promises: a consistent list at one moment, and a [`Monitor`] that tells every later change or says
//! that it lost some ([`Change::Lost`]: list again). Refuses: configuring anything but "up"; addresses
//! and routes of the kernel belong to the operator.

pub mod conntrack;
pub mod firewall;
pub mod routes;
pub mod xfrm;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoVrf, InfoXfrm, LinkAttribute, LinkFlags, LinkInfo as LinkInfoAttribute, LinkLayerType,
    LinkMessage,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use weir_core::id::Mac;

/// A network device of the namespace the socket was opened in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    pub index: u32,
    pub name: String,
    /// Zero on devices without one (TUN).
    pub mac: Mac,
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Up, with carrier.
    pub running: bool,
    /// Frames carry an Ethernet header.
    pub ethernet: bool,
    pub loopback: bool,
    /// Index of the bridge, bond or VRF it belongs to.
    pub master: Option<u32>,
    /// The interface id of an xfrm device.
    pub if_id: Option<u32>,
    /// The table of a VRF device.
    pub vrf: Option<u32>,
}

/// An address the kernel answers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressInfo {
    /// Index of its link.
    pub link: u32,
    pub address: IpAddr,
    pub prefix_len: u8,
}

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
    let messages = dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    Ok(messages
        .into_iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) => Some(link_info(link)),
            _ => None,
        })
        .collect())
}

/// The link of this name.
pub fn link(name: &str) -> io::Result<Option<LinkInfo>> {
    Ok(links()?.into_iter().find(|link| link.name == name))
}

/// Every address of every link.
pub fn addresses() -> io::Result<Vec<AddressInfo>> {
    let messages = dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
    Ok(messages
        .into_iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewAddress(address) => address_info(address),
            _ => None,
        })
        .collect())
}

/// Sets a link administratively up.
pub fn set_up(index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    let socket = open(0)?;
    send(&socket, RouteNetlinkMessage::SetLink(message), NLM_F_REQUEST | NLM_F_ACK)?;
    let mut acknowledged = false;
    while !acknowledged {
        receive(&socket, |payload| {
            if let NetlinkPayload::Error(error) = payload {
                acknowledged = true;
                if error.code.is_some() {
                    return Err(error.to_io());
                }
            }
            Ok(())
        })?;
    }
    Ok(())
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
        loop {
            let received = receive(&self.socket, |payload| {
                if let NetlinkPayload::InnerMessage(message) = payload {
                    changes.extend(change(message));
                }
                Ok(())
            });
            match received {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(changes),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => changes.push(Change::Lost),
                Err(e) => return Err(e),
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

fn change(message: RouteNetlinkMessage) -> Option<Change> {
    match message {
        RouteNetlinkMessage::NewLink(link) => Some(Change::Link(link_info(link))),
        RouteNetlinkMessage::DelLink(link) => Some(Change::LinkGone(link_info(link))),
        RouteNetlinkMessage::NewAddress(address) => address_info(address).map(Change::Address),
        RouteNetlinkMessage::DelAddress(address) => address_info(address).map(Change::AddressGone),
        _ => None,
    }
}

fn link_info(message: LinkMessage) -> LinkInfo {
    let flags = message.header.flags;
    let mut info = LinkInfo {
        index: message.header.index,
        name: String::new(),
        mac: Mac::default(),
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        loopback: flags.contains(LinkFlags::Loopback),
        master: None,
        if_id: None,
        vrf: None,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => info.name = name,
            LinkAttribute::Mtu(mtu) => info.mtu = mtu,
            LinkAttribute::LinkInfo(kind) => (info.if_id, info.vrf) = (if_id(&kind), vrf_table(&kind)),
            LinkAttribute::Controller(master) => info.master = Some(master).filter(|&m| m != 0),
            LinkAttribute::Address(bytes) => info.mac = Mac::try_from(bytes).unwrap_or_default(),
            _ => {}
        }
    }
    info
}

/// None: no xfrm device.
fn if_id(kind: &[LinkInfoAttribute]) -> Option<u32> {
    kind.iter().find_map(|part| match part {
        LinkInfoAttribute::Data(InfoData::Xfrm(data)) => data.iter().find_map(|info| match info {
            InfoXfrm::IfId(id) => Some(*id),
            _ => None,
        }),
        _ => None,
    })
}

/// None: no VRF device.
fn vrf_table(kind: &[LinkInfoAttribute]) -> Option<u32> {
    kind.iter().find_map(|part| match part {
        LinkInfoAttribute::Data(InfoData::Vrf(data)) => data.iter().find_map(|info| match info {
            InfoVrf::TableId(table) => Some(*table),
            _ => None,
        }),
        _ => None,
    })
}

fn address_info(message: AddressMessage) -> Option<AddressInfo> {
    // On a point-to-point link ADDRESS is the far end and LOCAL ours; elsewhere IPv6 has ADDRESS only.
    let mut found = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => found = Some(*local),
            AddressAttribute::Address(address) if found.is_none() => found = Some(*address),
            _ => {}
        }
    }
    let address = found?;
    Some(AddressInfo { link: message.header.index, address, prefix_len: message.header.prefix_len })
}

fn open(groups: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, groups))?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

fn send(socket: &Socket, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
    packet.header.flags = flags;
    packet.header.sequence_number = 1;
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// Reads one datagram and hands over the payload of each message in it.
fn receive(
    socket: &Socket,
    mut each: impl FnMut(NetlinkPayload<RouteNetlinkMessage>) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(MESSAGE_MAX);
    socket.recv(&mut buffer, 0)?;
    let mut rest = &buffer[..];
    while !rest.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("netlink: {e}")))?;
        let length = message.header.length as usize;
        each(message.payload)?;
        // Messages are padded to four bytes.
        rest = rest.get(length.next_multiple_of(4).max(4)..).unwrap_or_default();
    }
    Ok(())
}

fn dump(request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let socket = open(0)?;
    send(&socket, request, NLM_F_REQUEST | NLM_F_DUMP)?;
    let mut found = Vec::new();
    let mut done = false;
    while !done {
        receive(&socket, |payload| {
            match payload {
                NetlinkPayload::InnerMessage(message) => found.push(message),
                NetlinkPayload::Done(_) => done = true,
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(found)
}
