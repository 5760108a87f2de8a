//! `[[port]]`: a device, or a VLAN on it, with addresses and an MTU.

use std::net::IpAddr;
use std::ops::Range;

use weir_core::packet::HEADROOM;
use weir_core::tables::ReversePath;

use super::Placed;
use super::read::{Fields, Value};
use super::source::Complaints;
use super::table::{Form, Key, Table, names};

/// How frames get in and out of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// AF_XDP where it works, else AF_PACKET; what was chosen is printed.
    Auto,
    AfXdp,
    AfPacket,
    /// A TUN device, made when it does not exist.
    Tun,
    /// Capture files.
    Pcap,
}

impl Kind {
    pub const WORDS: &'static [(&'static str, Kind)] = &[
        ("auto", Kind::Auto),
        ("af_xdp", Kind::AfXdp),
        ("af_packet", Kind::AfPacket),
        ("tun", Kind::Tun),
        ("pcap", Kind::Pcap),
    ];

    pub fn name(self) -> &'static str {
        Self::WORDS.iter().find(|w| w.1 == self).map_or("auto", |w| w.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Whatever the kernel's interface has, followed while it changes.
    Kernel,
    List(Vec<Placed<(IpAddr, u8)>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub span: Range<usize>,
    pub name: Placed<String>,
    pub device: Placed<String>,
    pub kind: Placed<Kind>,
    pub vlan: Option<Placed<u16>>,
    pub mtu: Option<Placed<u16>>,
    pub addresses: Addresses,
    pub reverse_path: ReversePath,
    /// Capture files of a pcap port: frames come from `read`, go to `write`.
    pub read: Option<String>,
    pub write: Option<String>,
}

const PORT: [Key; 9] = [
    Key::required(
        "name",
        Form::Text,
        "The port's name in this file, in counters and in every table: 1 to 32 letters, digits, `.`, `_` or `-`.",
    ),
    Key::required("device", Form::Text, "The network device, as `ip link` shows it."),
    Key::with_default(
        "kind",
        Form::Words(&["auto", "af_xdp", "af_packet", "tun", "pcap"]),
        "\"auto\"",
        "How frames are received and sent. `auto` takes AF_XDP where the device and the kernel have it, else AF_PACKET.",
    ),
    Key::new(
        "vlan",
        Form::Integer(1, 4094),
        "The VLAN ID (802.1Q) of a port on a device that carries several.",
    ),
    Key::new(
        "mtu",
        Form::Integer(MTU_MIN as u64, MTU_MAX as u64),
        "The largest IP packet in bytes. Without it, the device's; of a VLAN that of the kernel's device `DEVICE.VLAN`, where there is one.",
    ),
    Key::new(
        "addresses",
        Form::OneOrMany(&Form::Text),
        "Addresses with prefix lengths (`192.0.2.1/24`), or `\"kernel\"`: what the device has, followed while it changes. Addresses that the kernel has too stay the kernel's.",
    ),
    Key::with_default(
        "rpf",
        Form::Words(&["off", "strict", "loose"]),
        "\"off\"",
        "Reverse path filtering (RFC 3704): drop packets whose source no route leads back to, by this port (`strict`) or at all (`loose`).",
    ),
    Key::new("read", Form::Text, "A capture file that frames come from. Ports of kind `pcap` only."),
    Key::new("write", Form::Text, "A capture file that frames go to. Ports of kind `pcap` only."),
];
const KEYS: &[&str] = &names(&PORT);

pub const TABLE: Table = Table {
    heading: "[[port]]",
    about: "A device that packets are received from and sent to. A VLAN of a device is a port of its own.",
    keys: &PORT,
};

/// RFC 791: every link carries 68 bytes.
pub(super) const MTU_MIN: u16 = 68;
/// One page less headroom, an Ethernet header and a VLAN tag: 4096 − 256 − 14 − 4 = 3822.
pub(super) const MTU_MAX: u16 = (4096 - HEADROOM - 14 - 4) as u16;
/// RFC 8200: every IPv6 link carries 1280 bytes.
pub const MTU_MIN_IPV6: u16 = 1280;
/// `IFNAMSIZ` less its closing zero.
const DEVICE_NAME_MAX: usize = 15;
/// A port's name is a label in metrics and a column in tables.
const PORT_NAME_MAX: usize = 32;

/// Reads one `[[port]]`; `None` when it has no usable name or device.
pub fn read(value: &Value<'_>, complaints: &mut Complaints) -> Option<Port> {
    let mut fields = value.table(KEYS, "[[port]]", complaints)?;
    let name = fields.required("name", "name = \"lan\"", complaints).and_then(|v| name(&v, complaints));
    if let Some(name) = &name {
        fields.subject = format!("port {}", name.value);
    }
    let device =
        fields.required("device", "device = \"eth0\"", complaints).and_then(|v| device(&v, complaints));
    let kind = match fields.get("kind") {
        Some(v) => v.word(Kind::WORDS, complaints).map(|k| Placed::new(k, v.span.clone()))?,
        None => Placed::new(Kind::Auto, fields.span.clone()),
    };
    let placed = |v: &Value<'_>, n: Option<u16>| n.map(|n| Placed::new(n, v.span.clone()));
    let vlan = fields.get("vlan").and_then(|v| placed(&v, v.integer(1..=4094, 10, complaints)));
    let mtu = fields.get("mtu").and_then(|v| placed(&v, v.integer(MTU_MIN..=MTU_MAX, 1500, complaints)));
    let rpf = [("off", ReversePath::Off), ("strict", ReversePath::Strict), ("loose", ReversePath::Loose)];
    let reverse_path = fields.get("rpf").and_then(|v| v.word(&rpf, complaints)).unwrap_or_default();
    let addresses = addresses(&fields, complaints);
    let (read, write) = files(&fields, kind.value, complaints);
    Some(Port {
        span: fields.span.clone(),
        name: name?,
        device: device?,
        kind,
        vlan,
        mtu,
        addresses: addresses?,
        reverse_path,
        read,
        write,
    })
}

fn name(value: &Value<'_>, complaints: &mut Complaints) -> Option<Placed<String>> {
    let text = value.text("a name", "name = \"lan\"", complaints)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if text.is_empty() || text.len() > PORT_NAME_MAX || !text.chars().all(fits) {
        value.refuse(
            format!("1 to {PORT_NAME_MAX} letters, digits, `_`, `-` or `.`"),
            "write a short name such as `\"lan\"`",
            complaints,
        );
        return None;
    }
    Some(Placed::new(text.to_owned(), value.span.clone()))
}

fn device(value: &Value<'_>, complaints: &mut Complaints) -> Option<Placed<String>> {
    let text = value.text("an interface name", "device = \"eth0\"", complaints)?;
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
    if text.is_empty() || text.len() > DEVICE_NAME_MAX || !text.chars().all(fits) {
        value.refuse(
            format!("an interface name of 1 to {DEVICE_NAME_MAX} bytes without spaces and `/`"),
            "see `ip link` for the names there are",
            complaints,
        );
        return None;
    }
    Some(Placed::new(text.to_owned(), value.span.clone()))
}

/// `None` when what stands there is no list of addresses at all.
pub(super) fn addresses(fields: &Fields<'_>, complaints: &mut Complaints) -> Option<Addresses> {
    const EXAMPLE: &str = "addresses = [\"192.0.2.1/24\"]";
    let Some(value) = fields.get("addresses") else { return Some(Addresses::List(Vec::new())) };
    if let toml::de::DeValue::String(s) = value.value
        && s == "kernel"
    {
        return Some(Addresses::Kernel);
    }
    let mut found = Vec::new();
    for item in value.one_or_many() {
        let expected = "addresses with prefix lengths, or `kernel`";
        let Some(text) = item.text(expected, EXAMPLE, complaints) else { continue };
        if let Some(address) = address(&item, text, complaints) {
            found.push(Placed::new(address, item.span.clone()));
        }
    }
    Some(Addresses::List(found))
}

fn address(item: &Value<'_>, text: &str, complaints: &mut Complaints) -> Option<(IpAddr, u8)> {
    let (host, len) = text.split_once('/').map_or((text, None), |(host, len)| (host, Some(len)));
    let Ok(address) = host.parse::<IpAddr>() else {
        item.refuse(
            "an IPv4 or IPv6 address with prefix length",
            "write for example `\"192.0.2.1/24\"`, or `addresses = \"kernel\"` to take the interface's own",
            complaints,
        );
        return None;
    };
    let (max, usual) = if address.is_ipv4() { (32, 24) } else { (128, 64) };
    let len = len.and_then(|l| l.parse::<u8>().ok()).filter(|&l| (1..=max).contains(&l));
    let Some(len) = len else {
        item.refuse(
            format!("a prefix length from 1 to {max} after the address"),
            format!("write `\"{address}/{usual}\"`"),
            complaints,
        );
        return None;
    };
    if let Some(why) = unusable(address, len) {
        item.refuse(
            "a unicast address a host may have",
            format!("{why}; write a host's address"),
            complaints,
        );
        return None;
    }
    Some((address, len))
}

/// Why no host may have this address (RFC 1122 3.2.1.3, RFC 4291 2.5).
fn unusable(address: IpAddr, len: u8) -> Option<&'static str> {
    if address.is_multicast() {
        return Some("this is a multicast address");
    }
    if address.is_loopback() {
        return Some("loopback addresses stay inside a host");
    }
    match address {
        IpAddr::V4(v4) => {
            let bits = u32::from(v4);
            let host = if len >= 31 { 1 } else { u32::MAX >> len };
            if v4.octets()[0] == 0 || v4.octets()[0] >= 240 {
                Some("this address is reserved")
            } else if len < 31 && bits & host == 0 {
                Some("this is the network's own address")
            } else if len < 31 && bits & host == host {
                Some("this is the network's broadcast address")
            } else {
                None
            }
        }
        IpAddr::V6(v6) if v6.is_unspecified() => Some("this is the unspecified address"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("this is an IPv4-mapped address"),
        IpAddr::V6(_) => None,
    }
}

fn files(fields: &Fields<'_>, kind: Kind, complaints: &mut Complaints) -> (Option<String>, Option<String>) {
    let mut file = |key: &str| {
        let value = fields.get(key)?;
        if kind != Kind::Pcap {
            value.refuse(
                "no file, because only ports of kind `pcap` have one",
                "write `kind = \"pcap\"` or remove it",
                complaints,
            );
            return None;
        }
        value.text("a file name", "read = \"in.pcap\"", complaints).map(str::to_owned)
    };
    let files = (file("read"), file("write"));
    if kind == Kind::Pcap && fields.get("read").is_none() && fields.get("write").is_none() {
        complaints.add(
            fields.span.clone(),
            format!(
                "{}: a port of kind `pcap` has no file; write `read = \"in.pcap\"`, `write = \"out.pcap\"` or both",
                fields.subject
            ),
        );
    }
    files
}
