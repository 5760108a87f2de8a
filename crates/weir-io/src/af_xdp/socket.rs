//! An AF_XDP socket: options, registration of memory, binding, and the two wake-up calls.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::Bind;
use crate::socket_option::{self, set_xdp};
use crate::umem::Region;
use crate::wake::wake_driver;

/// `XDP_MAX_TX_SKB_BUDGET` (Linux 6.17): frames one send call copies; 32 before.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

pub(crate) fn open() -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointers; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lends the region's memory to the kernel for this socket.
pub(crate) fn register(socket: BorrowedFd<'_>, region: &Region) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: region.base().as_ptr() as u64,
        len: u64::from(region.count()) * u64::from(region.chunk_size()),
        chunk_size: region.chunk_size(),
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_xdp(socket, libc::XDP_UMEM_REG, &registration)
}

pub(crate) fn bind(socket: BorrowedFd<'_>, ifindex: u32, queue: u32, how: Bind) -> io::Result<()> {
    bind_to(
        socket,
        libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: how.flag() | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        },
    )
}

/// Binds a second socket to the queue of a first, with the first's memory, mode, fill and completion rings.
pub(crate) fn bind_beside(
    socket: BorrowedFd<'_>,
    ifindex: u32,
    queue: u32,
    first: BorrowedFd<'_>,
) -> io::Result<()> {
    bind_to(
        socket,
        libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_SHARED_UMEM,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: first.as_raw_fd() as u32,
        },
    )
}

fn bind_to(socket: BorrowedFd<'_>, address: libc::sockaddr_xdp) -> io::Result<()> {
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: `address` is a complete sockaddr_xdp of `len` bytes.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets one send call copy a whole ring. Older kernels refuse, and send 32 a call: tx asks again.
pub(crate) fn raise_send_budget(socket: BorrowedFd<'_>, frames: u32) {
    let _ = set_xdp(socket, XDP_MAX_TX_SKB_BUDGET, &frames);
}

/// The worker's own calls run the interface's receive processing. Refused (`EOPNOTSUPP`) where the
/// kernel does not know which of its pollers serves the queue: then the calls would poll nothing.
/// Linux 6.14 and later look that up when the socket is bound, and veth does not say; before, the
/// first frame told.
pub(crate) fn prefer_busy_poll(socket: BorrowedFd<'_>, budget: u16) -> io::Result<()> {
    const MICROSECONDS: libc::c_int = 20;
    let mut napi: u32 = 0;
    let mut len = size_of::<u32>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID);
    // SAFETY: `napi` is writable for `len` bytes, and any bytes are a valid u32.
    let asked =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut napi).cast(), &mut len) };
    if asked < 0 || (napi == 0 && kernel_version() >= (6, 14)) {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    socket_option::set(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1)?;
    socket_option::set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &MICROSECONDS)?;
    socket_option::set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &libc::c_int::from(budget))
}

/// Ends what [`prefer_busy_poll`] began: the socket is driven by interrupts, and sending wakes the driver.
pub(crate) fn forgo_busy_poll(socket: BorrowedFd<'_>) -> io::Result<()> {
    socket_option::set(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &0)?;
    socket_option::set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &0)
}

/// Has the kernel look at whichever rings it sleeps on, whatever was agreed about polling.
pub(crate) fn wake_both(socket: BorrowedFd<'_>) {
    let mut wish = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd, writable; no time is waited. Its answer is of no interest here.
    unsafe { libc::poll(&raw mut wish, 1, 0) };
}

/// Major and minor of the running kernel; (0, 0) when it does not say.
fn kernel_version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Asks the kernel to look at the transmit ring.
#[inline]
pub(crate) fn wake_tx(socket: BorrowedFd<'_>) -> io::Result<()> {
    wake_driver(socket.as_raw_fd())
}

/// Asks the kernel to look at the fill ring, or, when busy polling, to receive.
#[inline]
pub(crate) fn wake_rx(socket: BorrowedFd<'_>) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    // SAFETY: an empty message and no address: no pointer is followed.
    let result = unsafe {
        let (nothing, no_address) = (std::ptr::null_mut(), std::ptr::null_mut());
        libc::recvfrom(fd, nothing, 0, libc::MSG_DONTWAIT, no_address, std::ptr::null_mut())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
