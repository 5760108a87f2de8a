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

use weir_xdp::{LoadError, Loaded, loaded_link, program_name};

use super::netlink::{NLA_NESTED, NLMSG_HEADER, attribute, push_attribute, transact};

/// Where the program runs.
pub use weir_xdp::Mode as XdpMode;

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

/// How a program is attached to an interface. It stays there until its [`Loaded`] detaches or is dropped.
#[derive(Debug)]
pub struct Attachment {
    ifindex: u32,
    pub mode: XdpMode,
    pub refusals: Vec<(XdpMode, io::Error)>,
    /// A program of ours that a dead process left was removed first.
    pub replaced_leftover: bool,
    program: u32,
}

impl Attachment {
    /// Attaches `program` to `interface` in the first of `modes` that the kernel accepts.
    pub fn new(
        interface: &str,
        ifindex: u32,
        program: &mut Loaded,
        modes: &[XdpMode],
    ) -> Result<Attachment, AttachError> {
        let failed =
            |error: LoadError| AttachError::Netlink { interface: interface.into(), error: error.into_io() };
        let replaced_leftover = remove_leftover(interface, ifindex, program.name())?;
        let id = program.id().map_err(failed)?;
        let mut refusals = Vec::new();
        for &mode in modes {
            match program.attach(ifindex, mode).map_err(LoadError::into_io) {
                Ok(()) => return Ok(Attachment { ifindex, mode, refusals, replaced_leftover, program: id }),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                    return Err(AttachError::Gone { interface: interface.into() });
                }
                Err(error) => refusals.push((mode, error)),
            }
        }
        Err(AttachError::Refused { interface: interface.into(), refusals })
    }

    /// Takes the program off and attaches it again, in the mode it had.
    pub fn again(&self, program: &mut Loaded) -> io::Result<()> {
        program.detach().and_then(|()| program.attach(self.ifindex, self.mode)).map_err(LoadError::into_io)
    }

    /// Whether the program is still on the interface: anybody with privilege can take it off.
    pub fn is_there(&self) -> io::Result<bool> {
        Ok(attached_program(self.ifindex)?.is_some_and(|attached| attached.id == self.program))
    }
}

/// Takes whatever XDP program a link holds off an interface, as `bpftool link detach` does: its owner is not
/// asked. True when there was one. For tests of what the owner does then.
pub fn force_detach(ifindex: u32) -> io::Result<bool> {
    const LINK_GET_FD_BY_ID: libc::c_int = 30;
    const LINK_DETACH: libc::c_int = 34;
    let Some(attached) = attached_program(ifindex)? else { return Ok(false) };
    let Some(link) = loaded_link(attached.id) else { return Ok(false) };
    // SAFETY: BPF_LINK_GET_FD_BY_ID takes a number, no pointers, and returns a descriptor.
    let fd = unsafe { bpf(LINK_GET_FD_BY_ID, link) }?;
    // SAFETY: a fresh descriptor nobody else owns.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: BPF_LINK_DETACH takes one descriptor and no pointers.
    unsafe { bpf(LINK_DETACH, link.as_raw_fd() as u32) }?;
    Ok(true)
}

/// Calls `bpf(2)` for a command whose attributes are one number.
///
/// # Safety
/// `command` reads no more than that, and no pointer.
unsafe fn bpf(command: libc::c_int, mut attribute: u32) -> io::Result<libc::c_int> {
    // SAFETY: `attribute` is readable for the four bytes the call is told of; the caller vouches for the rest.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &mut attribute, size_of::<u32>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
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
    let program = program_name(attached.id).unwrap_or_else(|| "without a name".into());
    let occupied = AttachError::Occupied { interface: name(), program: program.clone(), id: attached.id };
    // Of the steering program there are two: with and without the flow offload.
    if !program.starts_with(ours) && !ours.starts_with(&program) {
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use weir_xdp::{STEER, STEER_FLOW, Settings, Source};

    use super::*;

    /// `XDP_FLAGS_SKB_MODE`.
    const GENERIC: u32 = 1 << 1;

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
            // The two steering programs take each other's place.
            Ok(()) => [STEER, STEER_FLOW].into_iter().for_each(replace_a_leftover),
            Err(error) => {
                let test = "a_program_a_dead_process_left_is_replaced";
                let _ = writeln!(io::stderr(), "SKIP {test}: no network namespace of its own ({error})");
            }
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    fn replace_a_leftover(successor: Source) {
        let lo = 1;
        let leftover = STEER.load(Settings::default()).expect("loaded");
        // What netlink attached stays when its maker's descriptors are gone.
        let fd = leftover.fd().expect("loaded").as_raw_fd();
        set_program(lo, fd, GENERIC).expect("attached");
        drop(leftover);
        assert!(attached_program(lo).expect("asked").is_some());
        let mut successor = successor.load(Settings::default()).expect("loaded");
        let attachment = Attachment::new("lo", lo, &mut successor, &[XdpMode::Native, XdpMode::Generic]);
        let attachment = attachment.expect("a leftover is no obstacle");
        assert!(attachment.replaced_leftover && attachment.is_there().expect("asked"));
        assert_eq!(attachment.mode, XdpMode::Generic);
        assert_eq!(attachment.refusals.len(), 1, "loopback has no native XDP");
        assert!(force_detach(lo).expect("asked"), "a link holds it, which goes with the process");
    }

    #[test]
    fn a_kernel_without_xdp_links_is_served_by_netlink() {
        let thread = std::thread::spawn(|| {
            if let Err(error) = crate::netns::enter_new().and_then(|()| refuse_links()) {
                let test = "a_kernel_without_xdp_links_is_served_by_netlink";
                let _ = writeln!(io::stderr(), "SKIP {test}: needs a namespace and seccomp ({error})");
                return;
            }
            let lo = 1;
            let mut program = STEER.load(Settings::default()).expect("loaded");
            let id = program.id().expect("known");
            let modes = [XdpMode::Native, XdpMode::Generic];
            let attachment = Attachment::new("lo", lo, &mut program, &modes).expect("attached");
            assert_eq!((attachment.mode, attachment.refusals.len()), (XdpMode::Generic, 1));
            assert!(attachment.is_there().expect("asked"));
            assert_eq!(loaded_link(id), None, "no link holds it");
            attachment.again(&mut program).expect("taken off and put back");
            assert!(attachment.is_there().expect("asked"));
            drop(program);
            assert!(attached_program(lo).expect("asked").is_none(), "it went with its owner");
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    /// From now on `BPF_LINK_CREATE` fails in this thread as it does where the kernel has no links: `EINVAL`.
    fn refuse_links() -> io::Result<()> {
        const LINK_CREATE: u32 = 28;
        const COMMAND: u32 = 16; // the first argument in `seccomp_data`, its low half
        let load = |at| libc::sock_filter {
            code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
            jt: 0,
            jf: 0,
            k: at,
        };
        let unless = |value, jf| libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf,
            k: value,
        };
        let answer =
            |value| libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: value };
        let mut filter = [
            load(0),
            unless(libc::SYS_bpf as u32, 3),
            load(COMMAND),
            unless(LINK_CREATE, 1),
            answer(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
            answer(libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: PR_SET_NO_NEW_PRIVS takes numbers alone.
        let quiet = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: `program` and the filter it points to live until the call returns; the kernel copies both.
        let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        if quiet < 0 || set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
