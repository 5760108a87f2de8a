//! `[[sa]]`: one security association, one way.

use std::net::IpAddr;

use toml::de::DeValue;
use weir_core::ipsec::cipher::Keys;
use weir_core::ipsec::sa::{Df, Direction, Dscp, FragmentWhen, Lifetime, Mode, Params, SaSpec, UdpPorts};
use weir_core::ipsec::suite::{Encryption, Integrity, NoSuite, Suite};
use weir_core::wire::esp::UDP_PORT;

use crate::config::Placed;
use crate::config::keys::name_fits;
use crate::config::read::{Fields, Value};
use crate::config::source::Complaints;
use crate::config::table::{Form, Key, Table, names as key_names};

use super::spelling;

/// One `[[sa]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sa {
    pub name: Placed<String>,
    pub params: Params,
    /// Names of entries of the keys file.
    pub key: Option<Placed<String>>,
    pub integrity_key: Option<Placed<String>>,
}

const SA: [Key; 20] = [
    Key::required("name", Form::Text, "The SA's name, which policies and tunnels use."),
    Key::required(
        "direction",
        Form::Names(&["in", "out"]),
        "Whether it opens what comes or seals what leaves. An SA carries packets one way.",
    ),
    Key::required(
        "spi",
        Form::Integer(SPI_MIN as u64, u32::MAX as u64),
        "The security parameter index, which the receiver chose.",
    ),
    Key::with_default(
        "mode",
        Form::Words(&["tunnel", "transport"]),
        "\"tunnel\"",
        "Whole packets in a new IP header, or what is above IP of packets of the two ends.",
    ),
    Key::required("source", Form::Text, "The outer source address."),
    Key::required("destination", Form::Text, "The outer destination address."),
    Key::required(
        "cipher",
        Form::Text,
        "`aes-gcm-128`, `-192`, `-256`, `chacha20-poly1305`, `aes-cbc-128`, `-192`, `-256` or `null`; names of strongSwan and Linux are understood.",
    ),
    Key::new(
        "integrity",
        Form::Text,
        "The integrity algorithm of `aes-cbc-*` and `null`: `hmac-sha2-256-128`, `hmac-sha2-384-192`, `hmac-sha2-512-256` or `hmac-sha1-96`.",
    ),
    Key::new("key", Form::Text, "The entry of the keys file that encrypts."),
    Key::new("integrity_key", Form::Text, "The entry of the keys file for `integrity`."),
    Key::with_default(
        "allow_unauthenticated",
        Form::Boolean,
        "false",
        "Whether an SA without integrity is accepted: anyone can change its packets.",
    ),
    Key::with_default("esn", Form::Boolean, "true", "64-bit sequence numbers. Both ends must agree."),
    Key::with_default(
        "replay_window",
        Form::OneOf(&[
            Form::Integer(0, 0),
            Form::Integer(REPLAY_WINDOW_MIN as u64, REPLAY_WINDOW_MAX as u64),
        ]),
        "1024",
        "Sequence numbers that may come late. 0 switches protection against replay off.",
    ),
    Key::with_default(
        "nat_t",
        Form::OneOf(&[Form::Boolean, Form::Table(&NAT_T_TABLE)]),
        "false",
        "ESP in UDP, on port 4500 or the ports of a table.",
    ),
    Key::with_default(
        "dscp",
        Form::OneOf(&[Form::Words(&["copy"]), Form::Integer(0, 63)]),
        "\"copy\"",
        "The outer header's DSCP: the inner packet's, or a number.",
    ),
    Key::with_default(
        "df",
        Form::Words(&["copy", "set", "clear"]),
        "\"copy\"",
        "The outer header's don't-fragment bit (IPv4).",
    ),
    Key::with_default(
        "fragment",
        Form::Words(&["before", "after"]),
        "\"before\"",
        "Whether what is too large is cut before it is sealed, or the sealed packet after.",
    ),
    Key::with_default("hop_limit", Form::Integer(1, 255), "64", "The outer header's TTL or hop limit."),
    Key::new("soft", Form::Table(&LIFETIME_TABLE), "Reached, the log says to rekey."),
    Key::new(
        "hard",
        Form::Table(&LIFETIME_TABLE),
        "Reached, the SA carries nothing more. Ciphers in counter mode have one by default.",
    ),
];
pub const TABLE: Table =
    Table { heading: "[[sa]]", about: "A security association with keys of the keys file.", keys: &SA };
const LIFETIME: [Key; 3] = [
    Key::new(
        "bytes",
        Form::OneOf(&[Form::Integer(1, u64::MAX), Form::Text]),
        "Bytes sealed or opened: a number, or a text with its unit, `40 GB`.",
    ),
    Key::new("packets", Form::Integer(1, u64::MAX), "Packets sealed or opened."),
    Key::new("seconds", Form::Integer(1, u64::MAX), "Seconds since the SA came."),
];
const LIFETIME_TABLE: Table = Table {
    heading: "soft = { … }, hard = { … }",
    about: "How long an SA lives. At least one of them.",
    keys: &LIFETIME,
};
const NAT_T: [Key; 2] = [
    Key::with_default("source_port", Form::Integer(1, 65_535), "4500", "The UDP source port."),
    Key::with_default("destination_port", Form::Integer(1, 65_535), "4500", "The UDP destination port."),
];
const NAT_T_TABLE: Table =
    Table { heading: "nat_t = { … }", about: "UDP ports of ESP in UDP (RFC 3948).", keys: &NAT_T };

/// RFC 4303 2.1: 0 is for local use, 1…255 are reserved.
const SPI_MIN: u32 = 256;
/// Sequence numbers remembered unless the file says otherwise: what 1,024 × 64 B bring late at 10 Gbit/s
/// is 70 µs.
const REPLAY_WINDOW: u16 = 1024;
const REPLAY_WINDOW_MIN: u16 = 32;
const REPLAY_WINDOW_MAX: u16 = 4096;
const HOP_LIMIT: u8 = 64;

/// Reads one `[[sa]]`; `None` after a complaint about anything it cannot do without.
pub fn read(value: &Value<'_>, complaints: &mut Complaints) -> Option<Sa> {
    let mut fields = value.table(&key_names(&SA), "[[sa]]", complaints)?;
    let name = fields
        .required("name", "name = \"east-out\"", complaints)
        .and_then(|v| super::name(&v, "east-out", complaints));
    if let Some(name) = &name {
        fields.subject = format!("sa {}", name.value);
    }
    let ways = [("in", Direction::In), ("out", Direction::Out)];
    let direction = fields
        .required("direction", "direction = \"out\"", complaints)
        .and_then(|v| v.word_or(&ways, &spelling::DIRECTIONS, complaints));
    let spi = fields
        .required("spi", "spi = 0x1001", complaints)
        .and_then(|v| v.integer(SPI_MIN..=u32::MAX, 4097, complaints));
    let modes = [("tunnel", Mode::Tunnel), ("transport", Mode::Transport)];
    let mode = optional(&fields, "mode", Mode::Tunnel, |v| v.word(&modes, complaints));
    let source = end(&fields, "source", "192.0.2.1", complaints);
    let destination = end(&fields, "destination", "192.0.2.2", complaints);
    let suite = suite(&fields, complaints);
    let key = key(&fields, "key", complaints);
    let integrity_key = key_of_integrity(&fields, suite, complaints);
    if let (Some(suite), None) = (suite, &key)
        && suite.encryption().key_len() > 0
        && fields.get("key").is_none()
    {
        missing(&fields, "key", suite.encryption().name(), complaints);
    }
    let ends = ends(&fields, complaints);
    let (suite, ends) = (suite?, ends?);
    let (soft, hard) = super::lifetime::with_defaults(suite, ends.soft, ends.hard);
    soft_before_hard(&fields, soft, hard, complaints);
    let params = Params {
        direction: direction?,
        spi: spi?,
        mode: mode?,
        source: source?,
        destination: destination?,
        suite,
        soft,
        hard,
        ..ends
    };
    Some(Sa { name: name?, params, key: key?, integrity_key: integrity_key? })
}

impl Sa {
    pub(super) fn spec(&self, keys: Keys) -> SaSpec {
        SaSpec { name: self.name.value.clone(), params: self.params.clone(), keys }
    }
}

/// What has a default. `None` when one of them was there and unreadable; the other fields are filler.
fn ends(fields: &Fields<'_>, complaints: &mut Complaints) -> Option<Params> {
    let esn = optional(fields, "esn", true, |v| boolean(v, complaints));
    let replay_window = optional(fields, "replay_window", REPLAY_WINDOW, |v| window(v, complaints));
    let udp = optional(fields, "nat_t", None, |v| nat_t(v, complaints));
    let dscp = optional(fields, "dscp", Dscp::Copy, |v| dscp(v, complaints));
    let dfs = [("copy", Df::Copy), ("set", Df::Set), ("clear", Df::Clear)];
    let df = optional(fields, "df", Df::Copy, |v| v.word(&dfs, complaints));
    let whens = [("before", FragmentWhen::Before), ("after", FragmentWhen::After)];
    let fragment = optional(fields, "fragment", FragmentWhen::Before, |v| v.word(&whens, complaints));
    let hop_limit =
        optional(fields, "hop_limit", HOP_LIMIT, |v| v.integer(1..=u8::MAX, HOP_LIMIT, complaints));
    let soft = optional(fields, "soft", Lifetime::default(), |v| lifetime(v, complaints));
    let hard = optional(fields, "hard", Lifetime::default(), |v| lifetime(v, complaints));
    let (soft, hard) = (soft?, hard?);
    Some(Params {
        direction: Direction::Out,
        spi: SPI_MIN,
        mode: Mode::Tunnel,
        source: IpAddr::from([0; 4]),
        destination: IpAddr::from([0; 4]),
        suite: Suite::AES_GCM_128,
        esn: esn?,
        replay_window: replay_window?,
        udp: udp?,
        dscp: dscp?,
        df: df?,
        fragment: fragment?,
        hop_limit: hop_limit?,
        soft,
        hard,
    })
}

/// The default where the key is absent; `None` where it is there and was complained about.
fn optional<T>(
    fields: &Fields<'_>,
    key: &str,
    usual: T,
    read: impl FnOnce(&Value<'_>) -> Option<T>,
) -> Option<T> {
    match fields.get(key) {
        Some(value) => read(&value),
        None => Some(usual),
    }
}

fn boolean(value: &Value<'_>, complaints: &mut Complaints) -> Option<bool> {
    match value.value {
        DeValue::Boolean(b) => Some(*b),
        _ => {
            value.refuse("`true` or `false`", "write `true` without quotes", complaints);
            None
        }
    }
}

fn end(fields: &Fields<'_>, key: &str, example: &str, complaints: &mut Complaints) -> Option<IpAddr> {
    let value = fields.required(key, &format!("{key} = \"{example}\""), complaints)?;
    let text = value.text("an IPv4 or IPv6 address", &format!("{key} = \"{example}\""), complaints)?;
    let address = text.parse::<IpAddr>().ok();
    if address.is_none() {
        let bare = text.split(['/', '%']).next().and_then(|t| t.parse::<IpAddr>().ok());
        let remedy =
            bare.map_or(format!("write for example `\"{example}\"`"), |a| format!("write `\"{a}\"`"));
        value.refuse("an IPv4 or IPv6 address", remedy, complaints);
    }
    address
}

/// The name of a key: `Some(None)` where none is given.
fn key(fields: &Fields<'_>, key: &str, complaints: &mut Complaints) -> Option<Option<Placed<String>>> {
    let Some(value) = fields.get(key) else { return Some(None) };
    match value.value {
        DeValue::String(text) if name_fits(text) && !like_a_key(text) => {
            Some(Some(Placed::new(text.to_string(), value.span)))
        }
        // Not with its text: complaints are printed and logged.
        DeValue::String(text) if like_a_key(text) => {
            complaints.add(
                value.span.clone(),
                format!(
                    "{}: looks like the key itself, expected the name of an entry of the keys file; move it there, and make a new one if others could read this file",
                    value.subject
                ),
            );
            None
        }
        _ => {
            complaints.add(
                value.span.clone(),
                format!(
                    "{}: is no name, expected that of an entry of the keys file; write for example `\"east-out\"`",
                    value.subject
                ),
            );
            None
        }
    }
}

/// 16 hex digits and more: no name anyone would choose.
fn like_a_key(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    digits >= 16 && text.bytes().all(|b| b.is_ascii_hexdigit() || b" :-".contains(&b))
}

fn key_of_integrity(
    fields: &Fields<'_>,
    suite: Option<Suite>,
    complaints: &mut Complaints,
) -> Option<Option<Placed<String>>> {
    let found = key(fields, "integrity_key", complaints)?;
    let Some(suite) = suite else { return Some(found) };
    match (suite.integrity(), &found) {
        (Some(integrity), None) => {
            missing(fields, "integrity_key", integrity.name(), complaints);
            None
        }
        (None, Some(name)) => {
            complaints.add(
                name.span.clone(),
                format!(
                    "{}: integrity_key is given and `integrity` is not; remove it or write `integrity = \"{}\"`",
                    fields.subject,
                    Integrity::HmacSha256_128.name()
                ),
            );
            None
        }
        _ => Some(found),
    }
}

fn missing(fields: &Fields<'_>, key: &str, of: &str, complaints: &mut Complaints) {
    complaints.add(
        fields.span.clone(),
        format!(
            "{}: `{key}` is missing, {of} needs one; write `{key} = \"…\"`, the name of an entry of the keys file",
            fields.subject
        ),
    );
}

fn suite(fields: &Fields<'_>, complaints: &mut Complaints) -> Option<Suite> {
    let cipher = fields.required("cipher", "cipher = \"aes-gcm-128\"", complaints);
    let cipher_at = cipher.as_ref().map_or(fields.span.clone(), |v| v.span.clone());
    let cipher = cipher.as_ref().and_then(|v| spelling::read_cipher(v, complaints));
    let integrity =
        optional(fields, "integrity", None, |v| spelling::read_integrity(v, complaints).map(Some));
    let open = optional(fields, "allow_unauthenticated", false, |v| boolean(v, complaints));
    let ((encryption, with), integrity, open) = (cipher?, integrity?, open?);
    if let (Some(with), Some(other)) = (with, integrity)
        && with != other
    {
        let span = fields.get("integrity").map_or(fields.span.clone(), |v| v.span);
        complaints.add(
            span,
            format!(
                "{}: integrity is {} here and {} in `cipher`; write it once",
                fields.subject,
                other.name(),
                with.name()
            ),
        );
        return None;
    }
    let integrity = integrity.or(with);
    if open && (encryption != Encryption::Null || integrity.is_some()) {
        let span = fields.get("allow_unauthenticated").map_or(fields.span.clone(), |v| v.span);
        complaints.add(
            span,
            format!(
                "{}: allow_unauthenticated is for cipher `null` without `integrity` alone; remove it",
                fields.subject
            ),
        );
        return None;
    }
    // An integrity that was written in `cipher` is shown there.
    let at = |key: &str| fields.get(key).map_or(cipher_at.clone(), |v| v.span);
    match Suite::new(encryption, integrity, open) {
        Ok(suite) => return Some(suite),
        Err(NoSuite::IntegrityTwice(e)) => complaints.add(
            at("integrity"),
            format!(
                "{}: {} authenticates by itself, expected no `integrity`; remove it",
                fields.subject,
                e.name()
            ),
        ),
        Err(NoSuite::NoIntegrity(Encryption::Null)) => complaints.add(
            at("cipher"),
            format!(
                "{}: null without `integrity` protects nothing; write `integrity = \"{}\"`, or `allow_unauthenticated = true` to measure",
                fields.subject,
                Integrity::HmacSha256_128.name()
            ),
        ),
        Err(NoSuite::NoIntegrity(e)) => complaints.add(
            at("cipher"),
            format!(
                "{}: {} without `integrity` lets anyone change what it carries (RFC 8221 4); write `integrity = \"{}\"`",
                fields.subject,
                e.name(),
                Integrity::HmacSha256_128.name()
            ),
        ),
    }
    None
}

fn window(value: &Value<'_>, complaints: &mut Complaints) -> Option<u16> {
    if let DeValue::Integer(n) = value.value
        && n.as_str() == "0"
    {
        return Some(0);
    }
    let range = REPLAY_WINDOW_MIN..=REPLAY_WINDOW_MAX;
    let mut inner = Complaints::default();
    let window = value.integer(range, REPLAY_WINDOW, &mut inner);
    if window.is_none() {
        value.refuse(
            format!("a number from {REPLAY_WINDOW_MIN} to {REPLAY_WINDOW_MAX}, or 0 for no protection against replay"),
            format!("write `{REPLAY_WINDOW}`"),
            complaints,
        );
    }
    window
}

fn nat_t(value: &Value<'_>, complaints: &mut Complaints) -> Option<Option<UdpPorts>> {
    match value.value {
        DeValue::Boolean(false) => Some(None),
        DeValue::Boolean(true) => Some(Some(UdpPorts { source: UDP_PORT, destination: UDP_PORT })),
        DeValue::Table(_) => {
            let fields = value.table(&key_names(&NAT_T), "", complaints)?;
            let mut port = |key: &str| {
                optional(&fields, key, UDP_PORT, |v| v.integer(1..=u16::MAX, UDP_PORT, complaints))
            };
            let (source, destination) = (port("source_port"), port("destination_port"));
            Some(Some(UdpPorts { source: source?, destination: destination? }))
        }
        _ => {
            value.refuse(
                "`true`, `false` or a table of ports",
                "write `true`, or `{ source_port = 4500, destination_port = 4500 }`",
                complaints,
            );
            None
        }
    }
}

fn dscp(value: &Value<'_>, complaints: &mut Complaints) -> Option<Dscp> {
    match value.value {
        DeValue::String(s) if s == "copy" => Some(Dscp::Copy),
        DeValue::Integer(n) => match u8::from_str_radix(n.as_str(), n.radix()) {
            Ok(n @ 0..=63) => Some(Dscp::Set(n)),
            _ => {
                value.refuse("`copy` or a number from 0 to 63", "write `\"copy\"`", complaints);
                None
            }
        },
        _ => {
            value.refuse("`copy` or a number from 0 to 63", "write `\"copy\"`", complaints);
            None
        }
    }
}

fn lifetime(value: &Value<'_>, complaints: &mut Complaints) -> Option<Lifetime> {
    let fields = value.table(&key_names(&LIFETIME), "", complaints)?;
    if ["bytes", "packets", "seconds"].iter().all(|k| fields.get(k).is_none()) {
        value.refuse(
            "`bytes`, `packets` or `seconds` in it",
            "write for example `{ seconds = 3600 }`",
            complaints,
        );
        return None;
    }
    let bytes = optional(&fields, "bytes", None, |v| bytes(v, complaints).map(Some));
    let mut count =
        |key: &str| optional(&fields, key, None, |v| v.integer(1..=u64::MAX, 3600, complaints).map(Some));
    let (packets, seconds) = (count("packets"), count("seconds"));
    Some(Lifetime { bytes: bytes?, packets: packets?, seconds: seconds? })
}

/// A number of bytes, or a text with its unit.
fn bytes(value: &Value<'_>, complaints: &mut Complaints) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("B", 1),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
    ];
    let found = match value.value {
        DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
        DeValue::String(text) => {
            let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let (number, unit) = text.split_at(digits);
            let unit = UNITS.iter().find(|u| u.0 == unit.trim()).map(|u| u.1);
            number.parse::<u64>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit))
        }
        _ => None,
    };
    let found = found.filter(|&n| n > 0);
    if found.is_none() {
        value.refuse(
            "a number of bytes above 0, or one with a unit",
            "write `\"10 GB\"` or `10_000_000_000`",
            complaints,
        );
    }
    found
}

/// A soft lifetime that comes after the hard one never tells anyone.
fn soft_before_hard(fields: &Fields<'_>, soft: Lifetime, hard: Lifetime, complaints: &mut Complaints) {
    let pairs = [
        ("bytes", soft.bytes, hard.bytes),
        ("packets", soft.packets, hard.packets),
        ("seconds", soft.seconds, hard.seconds),
    ];
    for (what, soft, hard) in pairs {
        let (Some(soft), Some(hard)) = (soft, hard) else { continue };
        if soft >= hard {
            let at = fields.get("soft").map_or(fields.span.clone(), |v| v.span);
            complaints.add(
                at,
                format!(
                    "{}: soft is {soft} {what}, expected less than the hard {hard}; lower it so that there is time to rekey",
                    fields.subject
                ),
            );
        }
    }
}
