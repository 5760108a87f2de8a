//! An XDP program on an interface, for as long as we live.
//!
//! Promises: attached by a BPF link, the program goes when our descriptor does, also after
//! `kill -9`; a program of ours that a dead process left behind (a kernel without XDP links) is
//! recognised by its name and replaced. Refuses: to replace anybody else's program.
//!
//! Each way that was refused is remembered, so that the operator sees why a slower one was taken.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use weir_xdp::{LoadError, Loaded, Mode};

use super::object::{
    ATTACH_XDP, Command, LoadedProgram, bpf, bpf_fd, fd_of, next_link, object_info, program_name,
};

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before a socket buffer exists.
    Native,
    /// After the kernel made a socket buffer: any interface, slower.
    Generic,
}

impl XdpMode {
    fn flag(self) -> u32 {
        match self {
            XdpMode::Native => 1 << 2,
            XdpMode::Generic => 1 << 1,
        }
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            XdpMode::Native => "native XDP",
            XdpMode::Generic => "generic XDP",
        })
    }
}

/// Why no program is attached.
#[derive(Debug)]
pub enum AttachError {
    /// Somebody else's program.
    Occupied {
        interface: String,
        program: String,
        id: u32,
    },
    Gone {
        interface: String,
    },
    /// Every mode was refused, in this order.
    Refused {
        interface: String,
        refusals: Vec<(XdpMode, io::Error)>,
    },
    Netlink {
        interface: String,
        error: io::Error,
    },
    /// No program where frames enter the kernel's stack.
    Filter {
        interface: String,
        error: io::Error,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Occupied { interface, program, id } => write!(
                f,
                "{interface}: XDP program {program} (id {id}) is already attached; stop what attached it, \
                 or remove it with `ip link set dev {interface} xdp off`, or use af_packet here"
            ),
            AttachError::Gone { interface } => write!(f, "{interface}: no such interface"),
            AttachError::Refused { interface, refusals } => {
                write!(f, "{interface}: no XDP mode is accepted")?;
                for (mode, error) in refusals {
                    write!(f, "; {mode}: {error}")?;
                }
                write!(f, "; run as root, or use af_packet here")
            }
            AttachError::Netlink { interface, error } => write!(f, "{interface}: {error}"),
            AttachError::Filter { interface, error } => write!(
                f,
                "{interface}: the kernel takes no program at ingress that keeps transit from it: {error}; run as \
                 root, with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS, and remove another filter of preference 1 \
                 (`tc filter show dev {interface} ingress`)"
            ),
        }
    }
}

impl std::error::Error for AttachError {}

/// A program attached to an interface; detaches when dropped.
#[derive(Debug)]
pub struct Attachment {
    ifindex: u32,
    pub mode: XdpMode,
    /// `None`: attached by netlink, to be taken off by netlink.
    link: Option<OwnedFd>,
    pub refusals: Vec<(XdpMode, io::Error)>,
    /// A program of ours that a dead process left was removed first.
    pub replaced_leftover: bool,
    program: u32,
}

#[derive(Default)]
#[repr(C)]
struct LinkCreateAttr {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

impl Attachment {
    /// Attaches `program` to `interface` in the first of `modes` that the kernel accepts.
    pub fn new(
        interface: &str,
        ifindex: u32,
        program: &LoadedProgram,
        modes: &[XdpMode],
    ) -> Result<Attachment, AttachError> {
        let replaced_leftover = remove_leftover(interface, ifindex, program.name())?;
        let mut refusals = Vec::new();
        for &mode in modes {
            match attach(ifindex, program, mode) {
                Ok(link) => {
                    let program = program
                        .id()
                        .map_err(|error| AttachError::Netlink { interface: interface.into(), error })?;
                    return Ok(Attachment { ifindex, mode, link, refusals, replaced_leftover, program });
                }
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                    return Err(AttachError::Gone { interface: interface.into() });
                }
                Err(error) => refusals.push((mode, error)),
            }
        }
        Err(AttachError::Refused { interface: interface.into(), refusals })
    }

    /// Takes the program off and attaches it again, in the mode it had.
    pub fn again(&mut self, program: &LoadedProgram) -> io::Result<()> {
        if self.link.take().is_none() {
            set_program(self.ifindex, -1, self.mode.flag())?;
        }
        self.link = attach(self.ifindex, program, self.mode)?;
        Ok(())
    }

    /// Whether the program is still on the interface: anybody with privilege can take it off.
    pub fn is_there(&self) -> io::Result<bool> {
        Ok(attached_program(self.ifindex)?.is_some_and(|attached| attached.id == self.program))
    }

    /// Whether the kernel takes the program off by itself when this process dies.
    pub fn dies_with_us(&self) -> bool {
        self.link.is_some()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.link.is_none() {
            // An interface that is gone took its program along: nothing is left to report.
            let _ = set_program(self.ifindex, -1, self.mode.flag());
        }
    }
}

/// As [`Attachment::new`], for a program that stays on the interface as long as it is loaded.
pub(crate) fn attach_loaded(
    interface: &str,
    ifindex: u32,
    program: &mut Loaded,
    modes: &[XdpMode],
) -> Result<XdpMode, AttachError> {
    remove_leftover(interface, ifindex, program.name())?;
    let mut refusals = Vec::new();
    for &mode in modes {
        let way = match mode {
            XdpMode::Native => Mode::Native,
            XdpMode::Generic => Mode::Generic,
        };
        match program.attach(ifindex, way).map_err(LoadError::into_io) {
            Ok(()) => return Ok(mode),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                return Err(AttachError::Gone { interface: interface.into() });
            }
            Err(error) => refusals.push((mode, error)),
        }
    }
    Err(AttachError::Refused { interface: interface.into(), refusals })
}

/// Takes whatever XDP program a link holds off an interface, as `bpftool link detach` does: its owner is not
/// asked. True when there was one. For tests of what the owner does then.
pub fn force_detach(ifindex: u32) -> io::Result<bool> {
    /// The start of `struct bpf_link_info`, as XDP links fill it.
    #[derive(Default)]
    #[repr(C)]
    struct LinkInfo {
        kind: u32,
        id: u32,
        program: u32,
        _pad: u32,
        ifindex: u32,
    }
    const XDP_LINK: u32 = 6;
    let mut last = 0;
    loop {
        last = match next_link(last) {
            Ok(id) => id,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
            Err(error) => return Err(error),
        };
        // A link may go between the two calls.
        let Ok(link) = fd_of(Command::LinkFdById, last) else { continue };
        let mut info = LinkInfo::default();
        object_info(&link, &mut info)?;
        let here = attached_program(ifindex)?.is_some_and(|attached| attached.id == info.program);
        if (info.kind, info.ifindex) == (XDP_LINK, ifindex) && here {
            let mut attr = link.as_raw_fd() as u32;
            // SAFETY: BPF_LINK_DETACH takes one descriptor and no pointers.
            return unsafe { bpf(Command::LinkDetach, &mut attr) }.map(|_| true);
        }
    }
}

/// By link where the kernel has XDP links (5.9), else by netlink (the outer `Ok(None)`).
fn attach(ifindex: u32, program: &LoadedProgram, mode: XdpMode) -> io::Result<Option<OwnedFd>> {
    let mut attr = LinkCreateAttr {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: ifindex,
        attach_type: ATTACH_XDP,
        flags: mode.flag(),
    };
    // SAFETY: BPF_LINK_CREATE takes this prefix, no pointers, and returns a descriptor.
    match unsafe { bpf_fd(Command::LinkCreate, &mut attr) } {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            const UPDATE_IF_NOEXIST: u32 = 1 << 0;
            set_program(ifindex, program.as_raw_fd(), mode.flag() | UPDATE_IF_NOEXIST)?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Takes off a program named like ours; refuses when it is another's or still has a living owner.
fn remove_leftover(interface: &str, ifindex: u32, ours: &str) -> Result<bool, AttachError> {
    let name = || interface.to_string();
    let attached = match attached_program(ifindex) {
        Ok(Some(attached)) => attached,
        Ok(None) => return Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
            return Err(AttachError::Gone { interface: name() });
        }
        Err(error) => return Err(AttachError::Netlink { interface: name(), error }),
    };
    let program = program_name(attached.id).unwrap_or_else(|_| "without a name".into());
    let occupied = AttachError::Occupied { interface: name(), program: program.clone(), id: attached.id };
    if program != ours {
        return Err(occupied);
    }
    // A link with a living owner refuses this (EBUSY): then another of us runs on this interface.
    match set_program(ifindex, -1, attached.flag) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(occupied),
        Err(error) => Err(AttachError::Netlink { interface: name(), error }),
    }
}

/// What netlink says about an interface's XDP program.
#[derive(Clone, Copy, Debug)]
struct Attached {
    id: u32,
    flag: u32,
}

// rtnetlink numbers (`linux/rtnetlink.h`, `linux/if_link.h`).
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
const NLA_NESTED: u16 = 1 << 15;
pub(super) const NLMSG_HEADER: usize = 16;
const IFINFO: usize = 16;
/// `IFLA_XDP_ATTACHED` of a program in the driver, in the stack, in the card.
const ATTACHED_MODES: [(u8, u32); 3] = [(1, 1 << 2), (2, 1 << 1), (3, 1 << 3)];

/// The program attached to `ifindex`, if any.
fn attached_program(ifindex: u32) -> io::Result<Option<Attached>> {
    let reply = transact(
        libc::NETLINK_ROUTE,
        &link_message(libc::RTM_GETLINK, libc::NLM_F_REQUEST as u16, ifindex, &[]),
    )?;
    let body = reply.get(NLMSG_HEADER + IFINFO..).unwrap_or(&[]);
    let Some(xdp) = attribute(body, IFLA_XDP) else { return Ok(None) };
    let mode = attribute(xdp, IFLA_XDP_ATTACHED).and_then(|v| v.first().copied()).unwrap_or(0);
    let Some(&(_, flag)) = ATTACHED_MODES.iter().find(|m| m.0 == mode) else { return Ok(None) };
    let id = attribute(xdp, IFLA_XDP_PROG_ID).and_then(|v| v.try_into().ok()).map_or(0, u32::from_ne_bytes);
    Ok(Some(Attached { id, flag }))
}

/// Attaches (`fd ≥ 0`) or detaches (−1) by netlink.
fn set_program(ifindex: u32, fd: i32, flags: u32) -> io::Result<()> {
    let mut nested = Vec::new();
    push_attribute(&mut nested, IFLA_XDP_FD, &fd.to_ne_bytes());
    push_attribute(&mut nested, IFLA_XDP_FLAGS, &flags.to_ne_bytes());
    let mut xdp = Vec::new();
    push_attribute(&mut xdp, IFLA_XDP | NLA_NESTED, &nested);
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    transact(libc::NETLINK_ROUTE, &link_message(libc::RTM_SETLINK, flags, ifindex, &xdp)).map(drop)
}

pub(super) fn push_attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend(((4 + value.len()) as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// The value of the first attribute of this kind.
pub(super) fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    while let Some((header, _)) = attributes.split_first_chunk::<4>() {
        let len = u16::from_ne_bytes([header[0], header[1]]) as usize;
        let found = u16::from_ne_bytes([header[2], header[3]]) & !NLA_NESTED;
        let value = attributes.get(4..len)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// `nlmsghdr`, `ifinfomsg`, attributes.
fn link_message(kind: u16, flags: u16, ifindex: u32, attributes: &[u8]) -> Vec<u8> {
    let len = (NLMSG_HEADER + IFINFO + attributes.len()) as u32;
    let mut message = Vec::with_capacity(len as usize);
    message.extend(len.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]); // sequence and port: one question, one answer, one socket
    message.extend([0; 4]); // family, type
    message.extend(ifindex.to_ne_bytes());
    message.extend([0; 8]); // flags, change
    message.extend(attributes);
    message
}

/// One request and its first answer; a refusal becomes the error it carries.
pub(super) fn transact(protocol: libc::c_int, request: &[u8]) -> io::Result<Vec<u8>> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `request` is readable for its length; an unbound netlink socket sends to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut reply = vec![0u8; 64 << 10];
    // SAFETY: `reply` is writable for its length.
    let got = unsafe { libc::recv(socket.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    reply.truncate(got as usize);
    let word =
        |at: usize| reply.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
    let kind = (word(4) & 0xffff) as u16;
    match (kind as i32 == libc::NLMSG_ERROR, word(NLMSG_HEADER)) {
        (true, error) if error != 0 => Err(io::Error::from_raw_os_error(-error)),
        _ => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn attributes_are_found_behind_others_and_padding() {
        let mut nested = Vec::new();
        push_attribute(&mut nested, IFLA_XDP_ATTACHED, &[2]);
        push_attribute(&mut nested, IFLA_XDP_PROG_ID, &77u32.to_ne_bytes());
        let mut all = Vec::new();
        push_attribute(&mut all, 3, b"eth0\0");
        push_attribute(&mut all, IFLA_XDP | NLA_NESTED, &nested);
        let xdp = attribute(&all, IFLA_XDP).expect("present");
        assert_eq!(attribute(xdp, IFLA_XDP_ATTACHED), Some(&[2][..]));
        assert_eq!(attribute(xdp, IFLA_XDP_PROG_ID), Some(&77u32.to_ne_bytes()[..]));
        assert_eq!(attribute(xdp, IFLA_XDP_FLAGS), None);
    }

    #[test]
    fn a_cut_attribute_is_not_read_past_its_end() {
        let mut all = Vec::new();
        push_attribute(&mut all, 3, b"eth0");
        assert_eq!(attribute(&all[..6], 3), None);
        assert_eq!(attribute(&[3, 0, 3, 0], 3), None);
    }

    #[test]
    fn an_occupied_interface_is_refused_with_the_remedy() {
        let error = AttachError::Occupied { interface: "eth0".into(), program: "firewall".into(), id: 12 };
        assert_eq!(
            error.to_string(),
            "eth0: XDP program firewall (id 12) is already attached; stop what attached it, or remove it with \
             `ip link set dev eth0 xdp off`, or use af_packet here"
        );
    }

    #[test]
    fn a_program_a_dead_process_left_is_replaced() {
        // A thread of its own: it stays in the namespace it makes.
        let thread = std::thread::spawn(|| match crate::netns::enter_new() {
            Ok(()) => replace_a_leftover(),
            Err(error) => {
                let test = "a_program_a_dead_process_left_is_replaced";
                let _ = writeln!(io::stderr(), "SKIP {test}: no network namespace of its own ({error})");
            }
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    fn replace_a_leftover() {
        let program = || {
            let mut pass = crate::bpf::asm::Asm::new();
            pass.mov(crate::bpf::asm::Reg::R0, 2);
            pass.exit();
            LoadedProgram::load("weir_steer", &pass.finish().expect("whole")).expect("loaded")
        };
        let lo = 1;
        // What netlink attached stays when its maker's descriptors are gone.
        set_program(lo, program().as_raw_fd(), XdpMode::Generic.flag()).expect("attached");
        assert!(attached_program(lo).expect("asked").is_some());
        let successor = Attachment::new("lo", lo, &program(), &[XdpMode::Native, XdpMode::Generic]);
        let successor = successor.expect("a leftover is no obstacle");
        assert!(successor.replaced_leftover && successor.dies_with_us());
        assert_eq!(successor.mode, XdpMode::Generic);
        assert_eq!(successor.refusals.len(), 1, "loopback has no native XDP");
    }
}
