//! An XDP program on an interface, for as long as we live.
//!
//! Promises: attached by a BPF link, the program goes when the last descriptor of the link does, also after
//! `kill -9`; a program of ours that a dead process left behind (a kernel without XDP links) is
//! recognised by its name and replaced. Refuses: to replace anybody else's program.
//!
//! Some drivers reset their card, and lose the line, when a program comes or goes, not when one takes another's place.
//! Who keeps the link's descriptor ([`Attachment::link`]) over our end and hands it to the next process
//! ([`inherit`]) spares such a card that.
//!
//! Each way that was refused is remembered, so that the operator sees why a slower one was taken.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// How a program is attached to an interface. It stays there until this is dropped, and where the kernel has no links
/// until its [`Loaded`] is.
#[derive(Debug)]
#[must_use = "the program goes with it"]
pub struct Attachment {
    ifindex: u32,
    pub mode: XdpMode,
    pub refusals: Vec<(XdpMode, io::Error)>,
    /// A program of ours that a dead process left was removed first.
    pub replaced_leftover: bool,
    program: u32,
    /// None where the kernel has no XDP links: then the program is attached by netlink.
    link: Option<OwnedFd>,
    number: u32,
}

/// A number no other attachment of this process has had.
fn next_number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Links that a process before us had.
static INHERITED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Links of a process before us, for the devices that are opened from now on.
pub fn inherit(links: impl IntoIterator<Item = OwnedFd>) {
    INHERITED.lock().unwrap_or_else(PoisonError::into_inner).extend(links);
}

/// Takes programs off devices that nobody opened; how many.
pub fn disinherit() -> usize {
    let links = std::mem::take(&mut *INHERITED.lock().unwrap_or_else(PoisonError::into_inner));
    links.iter().filter(|link| detach(link.as_fd()).is_ok()).count()
}

/// The inherited link on this device. Its program has to be the one that is on the device: a link names the device by a
/// number, which in another network namespace is another device's. A link whose program runs where it is not wanted now
/// is taken off.
fn inherited(ifindex: u32, modes: &[XdpMode]) -> Option<OwnedFd> {
    let attached = attached_program(ifindex).ok()??;
    let mut links = INHERITED.lock().unwrap_or_else(PoisonError::into_inner);
    let here = Some(XdpLink { program: attached.id, device: ifindex });
    let at = links.iter().position(|link| xdp_link(link.as_fd()) == here)?;
    let link = links.swap_remove(at);
    if !modes.contains(&attached.mode()) {
        let _ = detach(link.as_fd());
        return None;
    }
    Some(link)
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
        if let Some(link) = inherited(ifindex, modes)
            && let Ok(attachment) = take_over(link, ifindex, program)
        {
            return Ok(attachment);
        }
        let replaced_leftover = remove_leftover(interface, ifindex, program.name())?;
        let id = program.id().map_err(failed)?;
        let mut refusals = Vec::new();
        for &mode in modes {
            match attach(program, ifindex, mode) {
                Ok(link) => {
                    let number = next_number();
                    return Ok(Attachment {
                        ifindex,
                        mode,
                        refusals,
                        replaced_leftover,
                        program: id,
                        link,
                        number,
                    });
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
    pub fn again(&mut self, program: &mut Loaded) -> io::Result<()> {
        self.take_off(program)?;
        self.link = attach(program, self.ifindex, self.mode)?;
        self.number = next_number();
        Ok(())
    }

    /// Takes the program off, whoever else has the link's descriptor.
    pub fn take_off(&mut self, program: &mut Loaded) -> io::Result<()> {
        match self.link.take() {
            Some(link) => detach(link.as_fd()),
            None => program.detach().map_err(LoadError::into_io),
        }
    }

    /// Another one when the program was attached again, by another link.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The link that holds the program on the interface.
    pub fn link(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(AsFd::as_fd)
    }

    /// Whether the program is still on the interface: anybody with privilege can take it off.
    pub fn is_there(&self) -> io::Result<bool> {
        Ok(attached_program(self.ifindex)?.is_some_and(|attached| attached.id == self.program))
    }
}

/// Puts `program` in the place of the one before it.
fn take_over(link: OwnedFd, ifindex: u32, program: &Loaded) -> io::Result<Attachment> {
    let id = program.id().map_err(LoadError::into_io)?;
    let updated = program
        .fd()
        .map_err(LoadError::into_io)
        // SAFETY: no buffer.
        .and_then(|new| unsafe { bpf(LINK_UPDATE, &mut [word(&link), word(&new), 0, 0]) })
        .and_then(|_| attached_program(ifindex));
    let mode = match updated {
        Ok(Some(attached)) => attached.mode(),
        // Whoever else has the link: it is to hold nothing on the device.
        other => {
            let _ = detach(link.as_fd());
            return Err(other.err().unwrap_or_else(|| io::Error::other("it holds nothing")));
        }
    };
    let (refusals, replaced_leftover, number) = (Vec::new(), false, next_number());
    Ok(Attachment { ifindex, mode, refusals, replaced_leftover, program: id, link: Some(link), number })
}

/// Attaches by a link where the kernel has them, else by netlink.
fn attach(program: &mut Loaded, ifindex: u32, mode: XdpMode) -> io::Result<Option<OwnedFd>> {
    let flag = match mode {
        XdpMode::Native => DRIVER_MODE,
        XdpMode::Generic => SKB_MODE,
    };
    let fd = word(&program.fd().map_err(LoadError::into_io)?);
    // SAFETY: no buffer.
    match unsafe { bpf(LINK_CREATE, &mut [fd, ifindex, BPF_XDP, flag]) } {
        // SAFETY: a fresh descriptor nobody else owns.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            program.attach(ifindex, mode).map_err(LoadError::into_io).map(|()| None)
        }
        Err(error) => Err(error),
    }
}

fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no buffer.
    unsafe { bpf(LINK_DETACH, &mut [word(&link), 0, 0, 0]) }.map(drop)
}

/// What an XDP link holds, and where; device 0 when it holds nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct XdpLink {
    program: u32,
    device: u32,
}

/// `None` for another link, or no link.
fn xdp_link(link: BorrowedFd<'_>) -> Option<XdpLink> {
    const LINK_TYPE_XDP: u32 = 6;
    /// `struct bpf_link_info`: type, id, program, padding; then for XDP the device.
    const PROGRAM: usize = 2;
    const DEVICE: usize = 4;
    let mut info = [0u32; 16];
    let size = size_of_val(&info) as u32;
    let at = info.as_mut_ptr() as u64;
    // SAFETY: the buffer at the address is of `size` bytes and outlives the call.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut [word(&link), size, at as u32, (at >> 32) as u32]) }.ok()?;
    (info[0] == LINK_TYPE_XDP).then_some(XdpLink { program: info[PROGRAM], device: info[DEVICE] })
}

fn word(fd: &impl AsRawFd) -> u32 {
    fd.as_raw_fd() as u32
}

/// Takes whatever XDP program a link holds off an interface, as `bpftool link detach` does: its owner is not
/// asked. True when there was one. For tests of what the owner does then.
pub fn force_detach(ifindex: u32) -> io::Result<bool> {
    let Some(attached) = attached_program(ifindex)? else { return Ok(false) };
    let Some(link) = loaded_link(attached.id) else { return Ok(false) };
    // SAFETY: no buffer.
    let fd = unsafe { bpf(LINK_GET_FD_BY_ID, &mut [link, 0, 0, 0]) }?;
    // SAFETY: a fresh descriptor nobody else owns.
    detach(unsafe { OwnedFd::from_raw_fd(fd) }.as_fd())?;
    Ok(true)
}

// Commands of `bpf(2)` (`linux/bpf.h`), and where a link attaches.
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;
const LINK_GET_FD_BY_ID: libc::c_int = 30;
const LINK_DETACH: libc::c_int = 34;
const BPF_XDP: u32 = 37;
/// `XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`.
const SKB_MODE: u32 = 1 << 1;
const DRIVER_MODE: u32 = 1 << 2;

/// Calls `bpf(2)` for one of the commands above, whose attributes begin with these words; the others are 0.
///
/// # Safety
/// OBJ_GET_INFO_BY_FD, the only one of them whose attributes have a pointer, names a buffer that may be written to.
unsafe fn bpf(command: libc::c_int, attributes: &mut [u32; 4]) -> io::Result<libc::c_int> {
    // SAFETY: the attributes are readable and writable for the bytes the call is told of; the caller vouches for a
    // buffer they name.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes)) };
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

impl Attached {
    fn mode(&self) -> XdpMode {
        match self.flag {
            SKB_MODE => XdpMode::Generic,
            _ => XdpMode::Native,
        }
    }
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
        set_program(lo, fd, SKB_MODE).expect("attached");
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
    fn a_link_that_somebody_kept_holds_the_next_program() {
        let thread = std::thread::spawn(|| {
            if let Err(error) = crate::netns::enter_new() {
                let test = "a_link_that_somebody_kept_holds_the_next_program";
                let _ = writeln!(io::stderr(), "SKIP {test}: no network namespace of its own ({error})");
                return;
            }
            let (lo, modes) = (1, [XdpMode::Native, XdpMode::Generic]);
            let mut first = STEER.load(Settings::default()).expect("loaded");
            let attachment = Attachment::new("lo", lo, &mut first, &modes).expect("attached");
            let kept = attachment.link().expect("a link").try_clone_to_owned().expect("a descriptor");
            drop((attachment, first));
            let before = attached_program(lo).expect("asked").expect("it stays while somebody keeps it").id;
            inherit([
                kept.try_clone().expect("a descriptor"),
                std::fs::File::open("/dev/null").expect("a file").into(),
            ]);
            let mut second = STEER_FLOW.load(Settings::default()).expect("loaded");
            let mut attachment = Attachment::new("lo", lo, &mut second, &modes).expect("attached");
            assert_eq!((attachment.mode, attachment.refusals.len()), (XdpMode::Generic, 0));
            assert!(attachment.is_there().expect("asked"));
            assert_ne!(attached_program(lo).expect("asked").expect("there").id, before);
            let program = second.id().expect("known");
            assert_eq!(xdp_link(kept.as_fd()), Some(XdpLink { program, device: lo }), "the same link");
            attachment.take_off(&mut second).expect("taken off, though another has the link");
            assert!(attached_program(lo).expect("asked").is_none());
            // One whose device nobody opens is ended.
            let attachment = Attachment::new("lo", lo, &mut second, &modes).expect("attached");
            inherit([attachment.link().expect("a link").try_clone_to_owned().expect("a descriptor")]);
            drop(attachment);
            let elsewhere = std::thread::spawn(move || {
                crate::netns::enter_new().expect("one more namespace");
                inherited(lo, &[XdpMode::Native, XdpMode::Generic]).is_none()
            });
            assert!(elsewhere.join().expect("asked"), "device 1 of another namespace is another device");
            assert!(attached_program(lo).expect("asked").is_some());
            assert_eq!(disinherit(), 1, "the file is none");
            assert!(attached_program(lo).expect("asked").is_none());
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
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
            let mut attachment = Attachment::new("lo", lo, &mut program, &modes).expect("attached");
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

    /// Makes `BPF_LINK_CREATE` fail in this thread as it does where the kernel has no links: `EINVAL`.
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
