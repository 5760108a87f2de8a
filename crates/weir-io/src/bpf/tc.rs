//! A classifier program where frames enter the kernel's stack (traffic control, ingress of `clsact`).
//!
//! ```text
//! driver ─► XDP ─► packet sockets ─► this program ─► VLANs, bridges, IP
//! ```
//!
//! Promises: what is attached stays when the process ends, however it ends, until it is taken off or the
//! interface goes; a successor's program takes its place in one step, with no frame between them that saw
//! neither. It is found by a preference and a handle of its own, so that it meets nobody else's filter.
//! Refuses: to remove the `clsact` it made, because others may have put filters there since.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::netlink::{NLMSG_HEADER, attribute, push_attribute, transact};

// rtnetlink numbers (`linux/rtnetlink.h`, `linux/pkt_sched.h`, `linux/pkt_cls.h`).
const TCM: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAGS_GEN: u16 = 9;
const TCA_BPF_ID: u16 = 11;
/// The program's own return value is the verdict.
const DIRECT_ACTION: u32 = 1;
const SKIP_HARDWARE: u32 = 1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const CLSACT: u32 = 0xffff_fff1;
const INGRESS: u32 = 0xffff_fff2;
const ETH_P_ALL: u16 = 3;

/// The first filter of all: what another one says of a frame must not come before.
pub const PREFERENCE: u32 = 1;
/// `weir`, so that no filter of somebody else has it.
pub const HANDLE: u32 = 0x7765_6972;

/// Attaches `program` under this name, in place of the one of ours that may be there.
///
/// aya would refuse a filter that is there, or take it off first: here one step replaces it.
pub fn attach(ifindex: u32, name: &str, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut kind = Vec::new();
    push_attribute(&mut kind, TCA_KIND, b"clsact\0");
    let new = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    match ask(libc::RTM_NEWQDISC, new, [ifindex, CLSACT_HANDLE, CLSACT, 0], &kind) {
        // There is one already, ours or another's: its filters and ours live beside each other.
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
        other => drop(other?),
    }
    let mut options = Vec::new();
    push_attribute(&mut options, TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
    push_attribute(&mut options, TCA_BPF_NAME, &[name.as_bytes(), b"\0"].concat());
    push_attribute(&mut options, TCA_BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes());
    push_attribute(&mut options, TCA_BPF_FLAGS_GEN, &SKIP_HARDWARE.to_ne_bytes());
    let mut attributes = filter_kind();
    push_attribute(&mut attributes, TCA_OPTIONS | (1 << 15), &options);
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE) as u16;
    ask(libc::RTM_NEWTFILTER, flags, place(ifindex), &attributes).map(drop)
}

/// The number of our program there, if there is one.
pub fn attached(ifindex: u32) -> io::Result<Option<u32>> {
    match ask(libc::RTM_GETTFILTER, libc::NLM_F_REQUEST as u16, place(ifindex), &filter_kind()) {
        Ok(reply) => {
            let body = reply.get(NLMSG_HEADER + TCM..).unwrap_or(&[]);
            let id = attribute(body, TCA_OPTIONS).and_then(|options| attribute(options, TCA_BPF_ID));
            Ok(id.and_then(|v| v.try_into().ok()).map(u32::from_ne_bytes))
        }
        Err(error) if absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Takes our program off; false when there was none.
pub fn detach(ifindex: u32) -> io::Result<bool> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    match ask(libc::RTM_DELTFILTER, flags, place(ifindex), &filter_kind()) {
        Ok(_) => Ok(true),
        Err(error) if absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// No such filter, or nothing filters could be on.
fn absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL))
}

fn place(ifindex: u32) -> [u32; 4] {
    [ifindex, HANDLE, INGRESS, PREFERENCE << 16 | u32::from(ETH_P_ALL.to_be())]
}

fn filter_kind() -> Vec<u8> {
    let mut kind = Vec::new();
    push_attribute(&mut kind, TCA_KIND, b"bpf\0");
    kind
}

/// `nlmsghdr`, `tcmsg` (family, then interface, handle, parent, info), attributes.
fn ask(kind: u16, flags: u16, words: [u32; 4], attributes: &[u8]) -> io::Result<Vec<u8>> {
    let len = (NLMSG_HEADER + TCM + attributes.len()) as u32;
    let mut message = Vec::with_capacity(len as usize);
    message.extend(len.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([0; 4]);
    words.iter().for_each(|word| message.extend(word.to_ne_bytes()));
    message.extend(attributes);
    transact(libc::NETLINK_ROUTE, &message)
}
