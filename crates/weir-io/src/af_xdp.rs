//! AF_XDP: frames of one interface queue, without a socket buffer where the driver allows it.
//!
//! ```text
//! pool ─► fill ring ─► kernel ─► rx ring ─► batch ─► … ─► tx ring ─► kernel ─► completion ─► pool
//! ```
//!
//! Promises: what was tried is tried in a fixed order ([`Bind::ORDER`]) and every refusal is kept
//! and printed; a chunk is held by exactly one side at any time; an interface that goes down or
//! away is a status, not a failure; a closed port leaves its chunks in the umem, once the kernel has released them (`lingering.rs`). Refuses: frames over several buffers, and
//! queues somebody else's socket is bound to.
//!
//! **One registration of memory per socket.** The worker's umem is registered anew for each of its sockets
//! instead of shared by `XDP_SHARED_UMEM`: a shared registration gives every port the copy mode of
//! the first and dies with it, so one veth would cost a zero-copy card its zero-copy, and a removed
//! interface the others their memory. Chunks travel between the ports of a worker all the same.
//!
//! **Unfinished checksums.** A veth peer may hand over frames whose TCP or UDP checksum it left to
//! hardware that does not exist; the kernel repairs them only while it holds the socket buffer. XDP
//! sees, and we would forward, a checksum that covers the pseudo-header alone. Switch transmit
//! checksumming off at the *peer* (`ethtool -K PEER tx off`); a test in this crate shows both cases.
//! Frames from real cards carry finished checksums.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use weir_core::packet::DeviceId;

use self::live::LiveTransmit;
use crate::bpf::attach::XdpMode;
use crate::steer::SteerError;

mod lingering;
pub mod live;
pub mod port;
mod socket;
pub mod stall;
mod transmit;

pub use port::AfXdp;

/// How a socket is bound to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    /// The card reads and writes our chunks.
    ZeroCopy,
    /// The kernel copies between its buffers and our chunks.
    Copy,
}

impl Bind {
    /// What is tried, best first.
    pub const ORDER: [Bind; 2] = [Bind::ZeroCopy, Bind::Copy];

    fn flag(self) -> u16 {
        match self {
            Bind::ZeroCopy => libc::XDP_ZEROCOPY,
            Bind::Copy => libc::XDP_COPY,
        }
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bind::ZeroCopy => "zero-copy",
            Bind::Copy => "copy mode",
        })
    }
}

/// What the operator can choose for one queue.
#[derive(Clone, Debug)]
pub struct Options {
    /// The id frames received here carry.
    pub device: DeviceId,
    pub queue: u32,
    /// Entries of each ring, a power of two.
    pub ring: u32,
    /// Chunks posted for reception, at most `ring`. Fewer stay warm in the cache, more survive a
    /// longer pause of the worker.
    pub posted: u32,
    /// The ways to bind that may be used, in order.
    pub order: Vec<Bind>,
    /// The worker itself runs the interface's receive processing, `budget` frames a call, instead
    /// of an interrupt doing so behind its back.
    pub busy_poll: Option<u16>,
    /// Busy polling stays also where it moves the receive ring only, because the driver sends by another poller.
    pub busy_poll_insists: bool,
    /// In copy mode large batches leave by this instead of the socket, where the far end takes it.
    pub live: Option<Arc<LiveTransmit>>,
}

/// Ring entries by default: 2,048 frames are 1.4 ms at 1.5 Mpps, as drivers configure their own.
pub const RING: u32 = 2048;

impl Options {
    pub fn new(device: DeviceId, queue: u32) -> Options {
        Options {
            device,
            queue,
            ring: RING,
            posted: RING,
            order: Bind::ORDER.to_vec(),
            busy_poll: None,
            busy_poll_insists: false,
            live: None,
        }
    }
}

/// How a port came to be what it is, for `weir show ports`.
#[derive(Debug)]
pub struct PortReport {
    pub interface: String,
    pub queue: u32,
    pub bind: Bind,
    pub xdp: XdpMode,
    pub refusals: Vec<(Bind, io::Error)>,
    pub xdp_refusals: Vec<(XdpMode, i32)>,
    /// Whether the kernel polls; given up where that does not move the transmit ring.
    pub busy_poll: bool,
    /// Why the worker does not poll the interface itself though it was asked to.
    pub busy_poll_refusal: Option<io::Error>,
    /// A program of a dead predecessor was removed first.
    pub replaced_leftover: bool,
    /// How copied frames are sent, where there is a choice.
    pub live: Option<String>,
}

impl PortReport {
    /// Whether the kernel refused a better way than the one taken.
    pub fn fell_back(&self) -> bool {
        !self.refusals.is_empty() || !self.xdp_refusals.is_empty() || self.busy_poll_refusal.is_some()
    }
}

impl fmt::Display for PortReport {
    /// `af_xdp eth0 queue 0: zero-copy refused (EOPNOTSUPP), copy mode, native XDP`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "af_xdp {} queue {}: ", self.interface, self.queue)?;
        for (bind, error) in &self.refusals {
            write!(f, "{bind} refused ({}), ", name_of(error))?;
        }
        write!(f, "{}, ", self.bind)?;
        for (mode, errno) in &self.xdp_refusals {
            write!(f, "{mode} refused ({}), ", errno_name(*errno))?;
        }
        write!(f, "{}", self.xdp)?;
        if self.busy_poll {
            write!(f, ", busy polling")?;
        }
        if let Some(error) = &self.busy_poll_refusal {
            write!(f, ", busy polling refused ({})", name_of(error))?;
        }
        if self.replaced_leftover {
            write!(f, ", replaced the program of a dead predecessor")?;
        }
        if let Some(live) = &self.live {
            write!(f, ", {live}")?;
        }
        Ok(())
    }
}

/// Why a port did not open.
#[derive(Debug)]
pub enum OpenError {
    Interface { interface: String, error: io::Error },
    Step { interface: String, queue: u32, what: &'static str, error: io::Error },
    Bind { interface: String, queue: u32, refusals: Vec<(Bind, io::Error)> },
    Steer(SteerError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Interface { interface, error } => {
                write!(f, "{interface}: {error}; `ip link` lists the interfaces there are")
            }
            OpenError::Step { interface, queue, what, error } => {
                write!(f, "af_xdp {interface} queue {queue}: {what}: {error}{}", step_remedy(error))
            }
            OpenError::Bind { interface, queue, refusals } => {
                write!(f, "af_xdp {interface} queue {queue}: no way to bind is accepted")?;
                for (bind, error) in refusals {
                    write!(f, "; {bind}: {error}")?;
                }
                write!(f, "{}", bind_remedy(refusals))
            }
            OpenError::Steer(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<SteerError> for OpenError {
    fn from(error: SteerError) -> Self {
        OpenError::Steer(error)
    }
}

fn step_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "; run as root or with CAP_NET_RAW",
        Some(libc::EAFNOSUPPORT) => "; this kernel is built without CONFIG_XDP_SOCKETS: use af_packet here",
        Some(libc::ENOBUFS) => "; raise the locked-memory limit (ulimit -l) or configure fewer buffers",
        _ => "",
    }
}

fn bind_remedy(refusals: &[(Bind, io::Error)]) -> &'static str {
    match refusals.last().and_then(|r| r.1.raw_os_error()) {
        Some(libc::EBUSY) => "; another socket is bound to this queue: stop its owner or use another queue",
        Some(libc::EINVAL) => "; the interface may have no such queue: see `ethtool -l`",
        Some(libc::ENETDOWN) => "; the interface is down: `ip link set dev … up`",
        _ => "; use af_packet here",
    }
}

/// Sleeps until one of these descriptors is readable or the time is over; `false` when it is over
/// (or a signal came).
pub fn wait_readable(fds: &[BorrowedFd<'_>], at_most: Duration) -> io::Result<bool> {
    let wish = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut wishes: Vec<libc::pollfd> = fds.iter().map(wish).collect();
    let at_most = libc::c_int::try_from(at_most.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: `wishes` is writable for its length; the descriptors stay open while borrowed.
    let ready = unsafe { libc::poll(wishes.as_mut_ptr(), wishes.len() as libc::nfds_t, at_most) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
}

/// What the kernel said by its symbol, what we said in our words.
fn name_of(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), errno_name)
}

/// The symbol operators search for.
fn errno_name(errno: i32) -> String {
    match errno {
        libc::EOPNOTSUPP => "EOPNOTSUPP".into(),
        libc::EINVAL => "EINVAL".into(),
        libc::EBUSY => "EBUSY".into(),
        libc::EPERM => "EPERM".into(),
        libc::ENOMEM => "ENOMEM".into(),
        libc::ENODEV => "ENODEV".into(),
        libc::ENETDOWN => "ENETDOWN".into(),
        libc::ERANGE => "ERANGE".into(),
        other => io::Error::from_raw_os_error(other).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_every_refusal_in_order() {
        let mut report = PortReport {
            interface: "eth0".into(),
            queue: 0,
            bind: Bind::Copy,
            xdp: XdpMode::Native,
            refusals: vec![(Bind::ZeroCopy, io::Error::from_raw_os_error(libc::EOPNOTSUPP))],
            xdp_refusals: Vec::new(),
            busy_poll: false,
            busy_poll_refusal: None,
            replaced_leftover: false,
            live: None,
        };
        assert_eq!(
            report.to_string(),
            "af_xdp eth0 queue 0: zero-copy refused (EOPNOTSUPP), copy mode, native XDP"
        );
        assert!(report.fell_back());
        report.refusals.clear();
        assert!(!report.fell_back());
    }

    #[test]
    fn a_taken_queue_is_refused_with_the_remedy() {
        let refusals = vec![(Bind::Copy, io::Error::from_raw_os_error(libc::EBUSY))];
        let error = OpenError::Bind { interface: "eth0".into(), queue: 3, refusals }.to_string();
        assert!(error.starts_with("af_xdp eth0 queue 3: no way to bind is accepted; copy mode: "));
        assert!(
            error.ends_with("another socket is bound to this queue: stop its owner or use another queue")
        );
    }
}
