//! Messages of rtnetlink about links and addresses (rtnetlink(7); `include/uapi/linux/{if_link,if_addr}.h`).
//!
//! ```text
//! link     family:1 padding:1 type:2 index:4 flags:4 mask:4     │ attributes (IFLA_*)
//! address  family:1 prefix length:1 flags:1 scope:1 index:4     │ attributes (IFA_*)
//! ```
//!
//! Promises: as [`super::parse`]. Refuses: attributes that no decision needs are skipped.

use std::net::IpAddr;

use super::{AF_INET, AF_INET6, address, number, text};
use crate::id::Mac;
use crate::wire::netlink::{
    self, FLAG_ACK, FLAG_DUMP, Malformed, Message, attribute, attributes, u16_at, u32_at,
};

pub const NEW_LINK: u16 = 16;
pub const DELETE_LINK: u16 = 17;
pub const GET_LINK: u16 = 18;
pub const SET_LINK: u16 = 19;
pub const NEW_ADDRESS: u16 = 20;
pub const DELETE_ADDRESS: u16 = 21;
pub const GET_ADDRESS: u16 = 22;

/// A network device of a namespace.
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
    /// It sends by other devices, of which it is made (`bond`, `team`).
    pub bond: bool,
    pub vlan: Option<Vlan>,
}

/// What a VLAN device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    pub id: u16,
    /// Index of the link it is on.
    pub lower: u32,
    /// Its tags are of 802.1Q, with a priority of 0 always.
    pub plain: bool,
}

/// An address the kernel answers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressInfo {
    /// Index of its link.
    pub link: u32,
    pub address: IpAddr,
    pub prefix_len: u8,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkNews {
    /// New, or one of its properties changed.
    Link(LinkInfo),
    LinkGone(LinkInfo),
    Address(AddressInfo),
    AddressGone(AddressInfo),
    /// A message of another type, or an address of a family that is neither IPv4 nor IPv6.
    Other,
}

/// Reads a message.
pub fn parse(message: &Message<'_>) -> Result<LinkNews, Malformed> {
    Ok(match message.kind {
        NEW_LINK => LinkNews::Link(link(message.payload)?),
        DELETE_LINK => LinkNews::LinkGone(link(message.payload)?),
        NEW_ADDRESS => interface_address(message.payload)?.map_or(LinkNews::Other, LinkNews::Address),
        DELETE_ADDRESS => interface_address(message.payload)?.map_or(LinkNews::Other, LinkNews::AddressGone),
        _ => LinkNews::Other,
    })
}

/// Bytes of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
/// `ARPHRD_ETHER`.
const ETHERNET: u16 = 1;

/// `IFF_*`.
mod iff {
    pub const UP: u32 = 0x1;
    pub const LOOPBACK: u32 = 0x8;
    pub const LOWER_UP: u32 = 0x1_0000;
}

/// `IFLA_*`.
mod ifla {
    pub const ADDRESS: u16 = 1;
    pub const NAME: u16 = 3;
    pub const MTU: u16 = 4;
    pub const LOWER: u16 = 5;
    pub const MASTER: u16 = 10;
    pub const KIND: u16 = 18;
    /// Inside of [`KIND`].
    pub const KIND_NAME: u16 = 1;
    pub const KIND_DATA: u16 = 2;
    /// Inside of the data of a kind.
    pub const VRF_TABLE: u16 = 1;
    pub const XFRM_IF_ID: u16 = 2;
    pub const VLAN_ID: u16 = 1;
    pub const VLAN_EGRESS_PRIORITIES: u16 = 3;
    pub const VLAN_PROTOCOL: u16 = 5;
}

fn link(payload: &[u8]) -> Result<LinkInfo, Malformed> {
    let header = payload.get(..LINK_HEADER).ok_or(Malformed)?;
    let flags = u32_at(header, 8).unwrap_or_default();
    let mut info = LinkInfo {
        index: u32_at(header, 4).unwrap_or_default(),
        name: String::new(),
        mac: Mac::default(),
        mtu: 0,
        up: flags & iff::UP != 0,
        running: flags & iff::UP != 0 && flags & iff::LOWER_UP != 0,
        ethernet: u16_at(header, 2) == Some(ETHERNET),
        loopback: flags & iff::LOOPBACK != 0,
        master: None,
        if_id: None,
        vrf: None,
        bond: false,
        vlan: None,
    };
    let mut lower = 0;
    for attribute in attributes(&payload[LINK_HEADER..]) {
        let (kind, value) = attribute?;
        match kind {
            ifla::ADDRESS => info.mac = Mac::try_from(value).unwrap_or_default(),
            ifla::NAME => info.name = text(value),
            ifla::MTU => info.mtu = number(value)?,
            ifla::MASTER => info.master = Some(number(value)?).filter(|&master| master != 0),
            ifla::LOWER => lower = number(value)?,
            ifla::KIND => of_kind(&mut info, value)?,
            _ => {}
        }
    }
    // The link below stands before the kind or behind it.
    info.vlan = info.vlan.map(|vlan| Vlan { lower, ..vlan });
    Ok(info)
}

/// The interface id of an xfrm device, the table of a VRF, whether it is a bond, what a VLAN is.
fn of_kind(info: &mut LinkInfo, value: &[u8]) -> Result<(), Malformed> {
    let data = attribute(value, ifla::KIND_DATA).unwrap_or_default();
    let of = |wanted| attribute(data, wanted).map(number).transpose();
    match attribute(value, ifla::KIND_NAME).map(text).as_deref() {
        Some("xfrm") => info.if_id = of(ifla::XFRM_IF_ID)?,
        Some("vrf") => info.vrf = of(ifla::VRF_TABLE)?,
        Some("bond" | "team") => info.bond = true,
        Some("vlan") => info.vlan = vlan(data)?,
        _ => {}
    }
    Ok(())
}

fn vlan(data: &[u8]) -> Result<Option<Vlan>, Malformed> {
    /// 802.1Q, in network order.
    const PROTOCOL: [u8; 2] = [0x81, 0x00];
    let Some(id) = attribute(data, ifla::VLAN_ID) else { return Ok(None) };
    let id = u16_at(id, 0).ok_or(Malformed)?;
    // Kernels before 3.10 know one protocol, and do not name it.
    let of_1q = attribute(data, ifla::VLAN_PROTOCOL).is_none_or(|protocol| protocol == PROTOCOL);
    let plain = of_1q && attribute(data, ifla::VLAN_EGRESS_PRIORITIES).is_none();
    Ok(Some(Vlan { id, lower: 0, plain }))
}

/// `struct ifaddrmsg` and its attributes. None: an entry of another family, or without an address.
fn interface_address(payload: &[u8]) -> Result<Option<AddressInfo>, Malformed> {
    const HEADER: usize = 8;
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    let header = payload.get(..HEADER).ok_or(Malformed)?;
    let (family, prefix_len) = (header[0], header[1]);
    if !matches!(family, AF_INET | AF_INET6) {
        return Ok(None);
    }
    // On a point-to-point link ADDRESS is the far end and LOCAL ours; elsewhere IPv6 has ADDRESS only.
    let (mut far, mut own) = (None, None);
    for attribute in attributes(&payload[HEADER..]) {
        match attribute? {
            (ADDRESS, value) => far = Some(address(family, value)?),
            (LOCAL, value) => own = Some(address(family, value)?),
            _ => {}
        }
    }
    let link = u32_at(header, 4).unwrap_or_default();
    Ok(own.or(far).map(|address| AddressInfo { link, address, prefix_len }))
}

/// Asks for every link.
pub fn dump_links() -> Vec<u8> {
    netlink::request(GET_LINK, FLAG_DUMP, &[0; LINK_HEADER], &[])
}

/// Asks for every address of every link.
pub fn dump_addresses() -> Vec<u8> {
    netlink::request(GET_ADDRESS, FLAG_DUMP, &[0; 8], &[])
}

/// Asks to set a link administratively up; the kernel says whether it did.
pub fn set_up(index: u32) -> Vec<u8> {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&iff::UP.to_ne_bytes());
    header[12..].copy_from_slice(&iff::UP.to_ne_bytes());
    netlink::request(SET_LINK, FLAG_ACK, &header, &[])
}

#[cfg(test)]
mod tests {
    use super::super::super::netlink::{messages, request};
    use super::*;

    /// An attribute: its type and value.
    type Said<'a> = (u16, &'a [u8]);

    fn read(bytes: &[u8]) -> Result<LinkNews, Malformed> {
        parse(&messages(bytes).next().expect("one").expect("whole"))
    }

    /// `struct ifinfomsg` of link 7, Ethernet.
    fn header(flags: u32) -> [u8; LINK_HEADER] {
        let mut header = [0; LINK_HEADER];
        header[2..4].copy_from_slice(&ETHERNET.to_ne_bytes());
        header[4..8].copy_from_slice(&7u32.to_ne_bytes());
        header[8..12].copy_from_slice(&flags.to_ne_bytes());
        header
    }

    /// Attributes as the value of one that holds them.
    fn nested(inner: &[Said<'_>]) -> Vec<u8> {
        request(0, 0, &[], inner)[netlink::HEADER..].to_vec()
    }

    fn link_of(flags: u32, attributes: &[Said<'_>]) -> LinkInfo {
        match read(&request(NEW_LINK, 0, &header(flags), attributes)) {
            Ok(LinkNews::Link(info)) => info,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_link_has_its_name_address_and_state() {
        let (mtu, master) = (1500u32.to_ne_bytes(), 3u32.to_ne_bytes());
        let said: [Said<'_>; 4] = [
            (ifla::NAME, b"wan0\0"),
            (ifla::MTU, &mtu),
            (ifla::ADDRESS, &[2, 0, 0, 0, 0, 1]),
            (ifla::MASTER, &master),
        ];
        let info = link_of(iff::UP | iff::LOWER_UP, &said);
        let expected = LinkInfo {
            index: 7,
            name: "wan0".into(),
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            up: true,
            running: true,
            ethernet: true,
            loopback: false,
            master: Some(3),
            if_id: None,
            vrf: None,
            bond: false,
            vlan: None,
        };
        assert_eq!(info, expected);
        let gone = read(&request(DELETE_LINK, 0, &header(iff::UP | iff::LOWER_UP), &said));
        assert_eq!(gone, Ok(LinkNews::LinkGone(expected)));
    }

    #[test]
    fn a_link_without_carrier_is_up_and_not_running() {
        let states = [(0, false, false), (iff::UP, true, false), (iff::LOWER_UP, false, false)];
        for (flags, up, running) in states {
            let info = link_of(flags, &[]);
            assert_eq!((info.up, info.running, info.loopback), (up, running, false), "flags {flags:#x}");
        }
        assert!(link_of(iff::LOOPBACK, &[]).loopback);
        let tun = link_of(0, &[(ifla::ADDRESS, &[]), (ifla::MASTER, &[0; 4])]);
        assert_eq!((tun.mac, tun.master), (Mac::default(), None), "no address and no master");
    }

    #[test]
    fn the_same_attribute_is_an_interface_id_of_xfrm_and_a_table_of_a_vrf() {
        let (one, two) = (10u32.to_ne_bytes(), 20u32.to_ne_bytes());
        let data = nested(&[(ifla::VRF_TABLE, &one), (ifla::XFRM_IF_ID, &two)]);
        let cases: [(&[u8], _, _, _); 4] = [
            (b"xfrm\0", Some(20), None, false),
            (b"vrf\0", None, Some(10), false),
            (b"vxlan\0", None, None, false),
            (b"bond\0", None, None, true),
        ];
        for (name, if_id, vrf, bond) in cases {
            let kind = nested(&[(ifla::KIND_NAME, name), (ifla::KIND_DATA, &data)]);
            let info = link_of(0, &[(ifla::KIND, &kind)]);
            assert_eq!((info.if_id, info.vrf, info.bond), (if_id, vrf, bond), "{}", text(name));
        }
    }

    #[test]
    fn a_vlan_has_its_number_the_link_below_and_says_whether_its_tags_are_plain() {
        let (lower, id) = (3u32.to_ne_bytes(), 7u16.to_ne_bytes());
        let (q, ad): (Said<'_>, Said<'_>) =
            ((ifla::VLAN_PROTOCOL, &[0x81, 0x00]), (ifla::VLAN_PROTOCOL, &[0x88, 0xa8]));
        let of = |data: &[Said<'_>]| {
            let data = nested(data);
            let kind = nested(&[(ifla::KIND_NAME, b"vlan\0"), (ifla::KIND_DATA, &data)]);
            let said: [Said<'_>; 2] = [(ifla::LOWER, &lower), (ifla::KIND, &kind)];
            let other = [said[1], said[0]];
            assert_eq!(link_of(0, &said), link_of(0, &other), "in whatever order");
            link_of(0, &said).vlan
        };
        let vlan = |plain| Some(Vlan { id: 7, lower: 3, plain });
        assert_eq!(of(&[(ifla::VLAN_ID, &id), q]), vlan(true));
        assert_eq!(of(&[(ifla::VLAN_ID, &id), ad]), vlan(false));
        assert_eq!(of(&[(ifla::VLAN_ID, &id), q, (ifla::VLAN_EGRESS_PRIORITIES, &[0; 12])]), vlan(false));
        assert_eq!(of(&[q]), None, "without a number");
    }

    #[test]
    fn an_address_is_ours_also_where_a_far_end_is_named() {
        let header = [AF_INET, 24, 0, 0, 9, 0, 0, 0];
        let (far, own): (Said<'_>, Said<'_>) = ((1, &[10, 0, 0, 2]), (2, &[10, 0, 0, 1]));
        let index = u32::from_ne_bytes([9, 0, 0, 0]);
        for said in [[far, own], [own, far]] {
            let expected = AddressInfo { link: index, address: [10, 0, 0, 1].into(), prefix_len: 24 };
            let message = request(NEW_ADDRESS, 0, &header, &said);
            assert_eq!(read(&message), Ok(LinkNews::Address(expected)), "point to point");
            let message = request(DELETE_ADDRESS, 0, &header, &said);
            assert_eq!(read(&message), Ok(LinkNews::AddressGone(expected)));
        }
        let six = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let message = request(NEW_ADDRESS, 0, &[AF_INET6, 64, 0, 0, 9, 0, 0, 0], &[(1, &six)]);
        let expected = AddressInfo { link: index, address: six.into(), prefix_len: 64 };
        assert_eq!(read(&message), Ok(LinkNews::Address(expected)));
        assert_eq!(read(&request(NEW_ADDRESS, 0, &header, &[])), Ok(LinkNews::Other), "no address");
        assert_eq!(read(&request(NEW_ADDRESS, 0, &[1; 8], &[far])), Ok(LinkNews::Other), "no IP");
    }

    #[test]
    fn messages_cut_short_are_malformed() {
        assert_eq!(read(&request(NEW_LINK, 0, &[0; 12], &[])), Err(Malformed));
        assert_eq!(read(&request(NEW_LINK, 0, &header(0), &[(ifla::MTU, &[1, 2])])), Err(Malformed));
        assert_eq!(read(&request(NEW_ADDRESS, 0, &[AF_INET; 4], &[])), Err(Malformed));
        let header = [AF_INET6, 64, 0, 0, 9, 0, 0, 0];
        assert_eq!(read(&request(NEW_ADDRESS, 0, &header, &[(1, &[1, 2, 3, 4])])), Err(Malformed));
    }
}
