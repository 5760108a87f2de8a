//! What of the kernel's packet filters decides about transit: chains of nf_tables by netlink, those of the older
//! iptables by their socket options.
//!
//! Promises: reading only. Refuses: judging a rule: [`chains`] tells whether a chain has rules or drops by default, and
//! [`rules`] what the rules are.

mod rules;

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use weir_core::wire::netlink::{self, FLAG_DUMP, TYPE_DONE, TYPE_ERROR, attribute, attributes, messages};

use super::MESSAGE_MAX;
use super::routes::refused;
pub use rules::{ELEMENTS_MAX, older_rules, rules};

/// Where on a packet's way a chain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// The ingress hook of a device, in front of everything.
    Ingress,
    Prerouting,
    Forward,
    Postrouting,
    /// The egress hook of a device, behind everything.
    Egress,
}

/// A chain that sees transit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chain {
    /// `nftables` or `iptables`.
    pub by: &'static str,
    /// `ip`, `ip6`, `inet` or `netdev`.
    pub family: &'static str,
    pub table: String,
    pub name: String,
    pub hook: Hook,
    /// `filter`, `nat` or `route`.
    pub kind: String,
    pub drops: bool,
    pub rules: usize,
    /// Devices of an ingress or egress chain; none where the kernel names none, which is every device.
    pub devices: Vec<String>,
}

impl Chain {
    /// It has nothing to say.
    pub fn is_empty(&self) -> bool {
        !self.drops && self.rules == 0
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, family, table, name) = (self.by, self.family, &self.table, &self.name);
        write!(f, "{by} chain {family} {table} {name} (")?;
        let hook = match self.hook {
            Hook::Ingress => "ingress",
            Hook::Prerouting => "prerouting",
            Hook::Forward => "forward",
            Hook::Postrouting => "postrouting",
            Hook::Egress => "egress",
        };
        write!(f, "{} at {hook}, {} rules", self.kind, self.rules)?;
        f.write_str(if self.drops { ", policy drop)" } else { ")" })
    }
}

/// Every chain that sees transit, empty ones too. A kernel without nf_tables has none.
pub fn chains() -> io::Result<Vec<Chain>> {
    let mut found = match nf_tables() {
        Err(e) if rules::is_absent(&e) => Vec::new(),
        chains => chains?,
    };
    for v6 in [false, true] {
        found.extend(older(v6)?);
    }
    found.sort();
    Ok(found)
}

const SUBSYSTEM: u16 = 10 << 8;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const GET_RULE: u16 = SUBSYSTEM | 7;
/// `struct nfgenmsg`.
const HEADER: usize = 4;

fn family(number: u8) -> Option<&'static str> {
    Some(match number {
        1 => "inet",
        2 => "ip",
        5 => "netdev",
        10 => "ip6",
        _ => return None,
    })
}

fn nf_tables() -> io::Result<Vec<Chain>> {
    let mut chains = Vec::new();
    dump(GET_CHAIN, NEW_CHAIN, |payload| chains.extend(chain(payload)))?;
    dump(GET_RULE, NEW_RULE, |payload| {
        let Some((family, table, name)) = names(payload, 1, 2) else { return };
        let of = |c: &&mut Chain| c.family == family && c.table == table && c.name == name;
        if let Some(chain) = chains.iter_mut().find(of) {
            chain.rules += 1;
        }
    })?;
    Ok(chains)
}

fn names(payload: &[u8], table: u16, chain: u16) -> Option<(&'static str, String, String)> {
    let family = family(*payload.first()?)?;
    let rest = payload.get(HEADER..)?;
    Some((family, text(attribute(rest, table)?), text(attribute(rest, chain)?)))
}

/// A base chain at a hook of transit: NFTA_CHAIN_TABLE 1, NAME 3, HOOK 4, POLICY 5, TYPE 7.
fn chain(payload: &[u8]) -> Option<Chain> {
    let (family, table, name) = names(payload, 1, 3)?;
    let rest = payload.get(HEADER..)?;
    let hook = attribute(rest, 4)?;
    let number = |value: &[u8]| value.get(..4)?.try_into().ok().map(u32::from_be_bytes);
    let hooked = match (family, number(attribute(hook, 1)?)?) {
        ("netdev", 0) => Hook::Ingress,
        ("netdev", 1) => Hook::Egress,
        ("netdev", _) => return None,
        (_, 0) => Hook::Prerouting,
        (_, 2) => Hook::Forward,
        (_, 4) => Hook::Postrouting,
        // NF_INET_INGRESS of `inet`.
        ("inet", 5) => Hook::Ingress,
        _ => return None,
    };
    // NFTA_HOOK_DEV, or those of NFTA_HOOK_DEVS; what is in there beside NFTA_DEVICE_NAME is a name with a wildcard.
    let listed = attribute(hook, 4).into_iter().flat_map(attributes);
    let listed = listed.map(|device| device.ok().filter(|&(kind, _)| kind == 1).map(|(_, name)| text(name)));
    let one = attribute(hook, 3).map(|name| Some(text(name)));
    let devices: Option<Vec<_>> = one.into_iter().chain(listed).collect();
    Some(Chain {
        by: "nftables",
        family,
        table,
        name,
        hook: hooked,
        kind: attribute(rest, 7).map_or("filter".to_owned(), text),
        // NF_DROP is 0.
        drops: attribute(rest, 5).and_then(number) == Some(0),
        rules: 0,
        devices: devices.unwrap_or_default(),
    })
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

fn open(groups: &[u32]) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    for group in groups {
        socket.add_membership(*group)?;
    }
    Ok(socket)
}

fn dump(kind: u16, wanted: u16, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let socket = open(&[])?;
    socket.send(&netlink::request(kind, FLAG_DUMP, &[0; HEADER], &[]), 0)?;
    let mut buffer = Vec::with_capacity(MESSAGE_MAX);
    loop {
        buffer.clear();
        socket.recv(&mut buffer, 0)?;
        for message in messages(&buffer) {
            let message = message.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            match message.kind {
                TYPE_DONE => return Ok(()),
                TYPE_ERROR => return refused(message.payload),
                kind if kind == wanted => each(message.payload),
                _ => {}
            }
        }
    }
}

/// What of `struct ipt_getinfo` is needed.
struct Info {
    valid_hooks: u32,
    /// Where the rules of each hook begin, and where its policy stands.
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    size: u32,
}

/// Tables of the older iptables that exist in this thread's namespace; asking for another would make it.
fn older(v6: bool) -> io::Result<Vec<Chain>> {
    let names =
        if v6 { "/proc/thread-self/net/ip6_tables_names" } else { "/proc/thread-self/net/ip_tables_names" };
    let Ok(names) = std::fs::read_to_string(names) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for table in names.lines() {
        let info = info(v6, table)?;
        let hooks = [
            (0, "PREROUTING", Hook::Prerouting),
            (2, "FORWARD", Hook::Forward),
            (4, "POSTROUTING", Hook::Postrouting),
        ];
        for (number, name, hook) in hooks {
            if info.valid_hooks & 1 << number == 0 {
                continue;
            }
            // A hook without rules begins with its policy. Rules are counted as one: their number is not in here.
            let rules = usize::from(info.hook_entry[number] != info.underflow[number]);
            found.push(Chain {
                by: "iptables",
                family: if v6 { "ip6" } else { "ip" },
                table: table.to_owned(),
                name: name.to_owned(),
                hook,
                kind: if table == "nat" { "nat".to_owned() } else { "filter".to_owned() },
                drops: policy_drops(v6, table, &info, number)?,
                rules,
                devices: Vec::new(),
            });
        }
    }
    Ok(found)
}

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, the same numbers in both families.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;

fn raw_socket(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: socket takes no pointers; its result is checked before it is owned.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Asks with what `value` holds, which the kernel overwrites; the bytes that are valid then.
fn ask(v6: bool, option: libc::c_int, value: &mut [u8]) -> io::Result<usize> {
    let socket = raw_socket(v6)?;
    let level = if v6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
    let mut length = value.len() as libc::socklen_t;
    let pointer = value.as_mut_ptr().cast();
    // SAFETY: `value` is writable for `length` bytes.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, pointer, &mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(length as usize) }
}

fn named(table: &str, length: usize) -> Vec<u8> {
    let mut value = vec![0; length];
    for (to, from) in value[..31].iter_mut().zip(table.bytes()) {
        *to = from;
    }
    value
}

fn info(v6: bool, table: &str) -> io::Result<Info> {
    /// Name, hooks, where each begins and ends, entries, size.
    const LENGTH: usize = 32 + 4 + 20 + 20 + 4 + 4;
    let mut value = named(table, LENGTH);
    ask(v6, GET_INFO, &mut value)?;
    let number = |at: usize| netlink::u32_at(&value, at).unwrap_or_default();
    let five = |at: usize| std::array::from_fn(|n| number(at + 4 * n));
    Ok(Info { valid_hooks: number(32), hook_entry: five(36), underflow: five(56), size: number(80) })
}

/// The policy of a hook is its last entry: a standard target whose verdict is `-NF_DROP - 1`.
fn policy_drops(v6: bool, table: &str, info: &Info, hook: usize) -> io::Result<bool> {
    // `struct ipt_get_entries`: name, size, padding to eight; entries behind.
    const BEFORE: usize = 40;
    let mut value = named(table, BEFORE + info.size as usize);
    value[32..36].copy_from_slice(&info.size.to_ne_bytes());
    ask(v6, GET_ENTRIES, &mut value)?;
    let entry = value.get(BEFORE + info.underflow[hook] as usize..).unwrap_or_default();
    // `next_offset` stands behind the address part, `nfcache` and `target_offset`.
    let next = if v6 { 136 + 4 + 2 } else { 84 + 4 + 2 };
    let length = netlink::u16_at(entry, next).map_or(0, usize::from);
    // The verdict and four bytes of padding end the entry.
    let verdict = length.checked_sub(8).and_then(|at| netlink::u32_at(entry, at)).map(|v| v as i32);
    Ok(verdict == Some(-1))
}

/// Tells that something of nf_tables changed. Non-blocking; poll its descriptor.
pub struct FirewallMonitor {
    socket: Socket,
}

impl FirewallMonitor {
    pub fn open() -> io::Result<FirewallMonitor> {
        /// `NFNLGRP_NFTABLES`.
        const GROUP: u32 = 7;
        let socket = open(&[GROUP])?;
        socket.set_non_blocking(true)?;
        Ok(FirewallMonitor { socket })
    }

    /// Whether there was news since the last call.
    pub fn heard(&mut self) -> bool {
        super::drained(&self.socket)
    }
}

impl AsRawFd for FirewallMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
