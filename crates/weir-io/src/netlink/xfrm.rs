//! SAs and policies of the kernel: dumped, followed, and told what weir did with them.
//!
//! Promises: a [`KeyMonitor`] tells every change or says that it lost some; a message that is not well formed is counted
//! and skipped; what was received is wiped from the buffer before the next, for keys are in it. Refuses: making or changing
//! an SA.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use netlink_sys::protocols::NETLINK_XFRM;
use netlink_sys::{Socket, SocketAddr};
use weir_core::wire::netlink::{TYPE_ERROR, messages};
use weir_core::wire::xfrm::{self, Defaults, GET_POLICY, GET_SA, News, Sa, SaKey};
use zeroize::{Zeroize, Zeroizing};

use super::MESSAGE_MAX;
use super::routes::{Dumped, Observed, ask, observe, read_dump, refused};
use crate::socket_option;

/// What waits to be read: an SA takes the kernel about 1.5 KB, so 16 MiB hold 10,000 of them.
const RECEIVE_BUFFER: libc::c_int = 16 << 20;

/// `XFRMNLGRP_POLICY`.
const POLICIES: u32 = 4;
/// `XFRMNLGRP_*`: expiries, SAs, policies.
const GROUPS: [u32; 3] = [2, 3, POLICIES];

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_XFRM)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// A buffer that does not outlive what is in it.
fn buffer() -> Zeroizing<Vec<u8>> {
    Zeroizing::new(Vec::with_capacity(MESSAGE_MAX))
}

/// Tells changes of SAs and policies. Non-blocking; poll its descriptor.
pub struct KeyMonitor {
    socket: Socket,
}

impl KeyMonitor {
    pub fn open() -> io::Result<KeyMonitor> {
        KeyMonitor::of(&GROUPS)
    }

    /// The same without SAs, and so without keys; none where the kernel has no IPsec.
    pub fn of_policies() -> io::Result<Option<KeyMonitor>> {
        match KeyMonitor::of(&[POLICIES]) {
            Err(e) if e.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
            monitor => monitor.map(Some),
        }
    }

    fn of(groups: &[u32]) -> io::Result<KeyMonitor> {
        let socket = open()?;
        // More than the system's limit needs CAP_NET_ADMIN, as joining the groups does.
        let _ = socket_option::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER);
        for &group in groups {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(KeyMonitor { socket })
    }

    /// What was said since the last call.
    pub fn observe(&mut self, mut each: impl FnMut(News)) -> io::Result<Observed> {
        observe(&self.socket, &mut buffer(), Vec::zeroize, |message| {
            xfrm::parse(message).map(&mut each).is_ok()
        })
    }
}

impl AsRawFd for KeyMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Every policy and SA the kernel has. Policies come first: a key daemon makes an SA before a policy names it, so the SA that a
/// policy told here names is told too, but for one that went meanwhile.
pub fn dump(each: impl FnMut(News)) -> io::Result<Dumped> {
    dump_of(&[GET_POLICY, GET_SA], each)
}

/// Every policy the kernel has.
pub fn dump_policies(each: impl FnMut(News)) -> io::Result<Dumped> {
    dump_of(&[GET_POLICY], each)
}

/// What becomes of packets that no policy is about. A kernel before 5.15 lets them be.
pub fn defaults() -> io::Result<Defaults> {
    let socket = open()?;
    socket.set_non_blocking(true)?;
    let mut said = Err(io::ErrorKind::InvalidData.into());
    ask(&socket, &xfrm::query_defaults(), |message| match message.kind {
        TYPE_ERROR => said = refused(message.payload).map(|()| Defaults::default()),
        _ => {
            if let Ok(News::Defaults(defaults)) = xfrm::parse(message) {
                said = Ok(defaults);
            }
        }
    })?;
    match said {
        // It does not know the question.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(Defaults::default()),
        said => said,
    }
}

fn dump_of(kinds: &[u16], mut each: impl FnMut(News)) -> io::Result<Dumped> {
    let mut dumped = Dumped::default();
    for &kind in kinds {
        let socket = open()?;
        socket.send(&xfrm::dump(kind), 0)?;
        read_dump(&socket, &mut buffer(), Vec::zeroize, &mut dumped, |message| {
            xfrm::parse(message).map(&mut each).is_ok()
        })?;
    }
    Ok(dumped)
}

/// Tells the kernel what became of its SAs, and asks it for one.
pub struct KeyRequests {
    socket: Socket,
}

impl KeyRequests {
    pub fn open() -> io::Result<KeyRequests> {
        let socket = open()?;
        socket.set_non_blocking(true)?;
        Ok(KeyRequests { socket })
    }

    /// The SA as the kernel has it now; none where it has none.
    pub fn query(&mut self, key: &SaKey) -> io::Result<Option<Sa>> {
        let (mut found, said) = self.ask(&xfrm::query_sa(key))?;
        Ok(unless_gone(said)?.and_then(|()| found.pop()))
    }

    /// Sends a request about an SA between two questions for it, all in one datagram, which the kernel answers in one go: the SA as
    /// it was microseconds before, and as it is since. None where the kernel has none.
    pub fn around(&mut self, key: &SaKey, request: &[u8]) -> io::Result<Option<(Sa, Sa)>> {
        let question = xfrm::query_sa(key);
        let (mut found, said) = self.ask(&[&question[..], request, &question[..]].concat())?;
        Ok(unless_gone(said)?.and_then(|()| {
            let after = found.pop()?;
            Some((found.pop()?, after))
        }))
    }

    /// Sends a request ([`xfrm::counted`] and its like) and reads what the kernel says to it, which it does before this
    /// returns. ESRCH: the SA is gone.
    pub fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.ask(request)?.1
    }

    /// Sends requests in one datagram and reads all that the kernel answers: the SAs, and the last refusal.
    fn ask(&mut self, requests: &[u8]) -> io::Result<(Vec<Sa>, io::Result<()>)> {
        self.socket.send(requests, 0)?;
        let (mut found, mut said) = (Vec::new(), Ok(()));
        loop {
            let mut answer = buffer();
            match self.socket.recv(&mut *answer, 0) {
                Ok(_) => {
                    for message in messages(&answer).filter_map(Result::ok) {
                        if message.kind == TYPE_ERROR {
                            said = refused(message.payload).and(said);
                        } else if let Ok(News::Sa(sa)) = xfrm::parse(&message) {
                            found.push(*sa);
                        }
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok((found, said)),
                Err(e) => return Err(e),
            }
        }
    }
}

/// Nothing where the kernel says that it has no such SA.
fn unless_gone(said: io::Result<()>) -> io::Result<Option<()>> {
    match said {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        said => said.map(Some),
    }
}
