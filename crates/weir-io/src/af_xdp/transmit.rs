//! The sending half of a port: the transmit ring, the socket it belongs to, and what gets it moving.
//!
//! ```text
//! copied       sendto: the kernel takes frames from the ring and sends them itself
//! interrupts   sendto: the kernel wakes the driver, which takes them
//! polled       one poll, which is the driver's whole work where it sends and receives in one poller;
//!              where that takes nothing, sendto on a socket of its own wakes the driver
//! ```
//!
//! **Why a socket of its own.** On a zero-copy socket that prefers busy polling `sendto` polls the receive queue's
//! poller and wakes nobody. A driver that sends by another poller (virtio-net always, igb with a vector for each
//! direction) then leaves frames in the ring. A second socket on the same queue and memory without that preference
//! wakes it. Promises: a ring that does not move for all that is seen within [`STALL_AFTER`] and counted.
//!
//! [`STALL_AFTER`]: super::stall::STALL_AFTER

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use weir_core::time::Nanos;

use super::socket;
use super::stall::{Look, StallWatch};
use crate::ring::{Desc, Producer, Which};

/// Polls in a row that took no frame after which the driver is known to send by another poller.
const POLLS_IN_VAIN: u8 = 8;
/// Breaths after which a driver that was woken and has taken nothing is woken again: it was told after the frames were
/// published, so that it must come; a wake-up can be an interrupt, and a breath is shorter than the driver's way to the ring.
const WAKE_AGAIN: u8 = 128;
/// System calls in a row for one batch: a kernel without a larger budget copies 32 frames a call.
const CALLS: usize = 8;

/// What makes the kernel look at the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mover {
    /// `sendto` has the kernel copy frames out of the ring, as many a call as its budget says.
    Copying,
    /// `sendto` wakes the driver, which comes when it comes.
    Waking,
    /// The port's own polls may do; else as [`Mover::Waking`].
    Polling,
}

#[derive(Debug)]
pub(super) struct Transmit {
    pub ring: Producer<Desc>,
    /// Where sending has a socket of its own; else it is the port's.
    own: Option<OwnedFd>,
    /// Frames were published that the kernel may not have taken yet.
    pub unsent: bool,
    polls_in_vain: u8,
    /// Nothing waited when the last frames were published: a poll that takes none of them has not met a full card.
    was_empty: bool,
    /// Breaths since the driver was woken for what waits.
    woken: Option<u8>,
    watch: StallWatch,
    /// Times the ring did not move though frames waited.
    pub stalled: u64,
}

impl Transmit {
    /// Sends by the port's own socket, which is not bound yet.
    pub fn of_port(port: BorrowedFd<'_>, size: u32) -> io::Result<Transmit> {
        Ok(Transmit::new(Producer::of_socket(port, Which::Tx, size)?, None))
    }

    /// Sends by another socket on the queue that `port` is bound to.
    pub fn beside(port: BorrowedFd<'_>, size: u32, ifindex: u32, queue: u32) -> io::Result<Transmit> {
        let own = socket::open()?;
        let ring = Producer::of_socket(own.as_fd(), Which::Tx, size)?;
        socket::bind_beside(own.as_fd(), ifindex, queue, port)?;
        Ok(Transmit::new(ring, Some(own)))
    }

    fn new(ring: Producer<Desc>, own: Option<OwnedFd>) -> Transmit {
        Transmit {
            ring,
            own,
            unsent: false,
            polls_in_vain: 0,
            was_empty: true,
            woken: None,
            watch: StallWatch::default(),
            stalled: 0,
        }
    }

    /// The socket the ring belongs to.
    pub fn socket<'a>(&'a self, port: BorrowedFd<'a>) -> BorrowedFd<'a> {
        self.own.as_ref().map_or(port, AsFd::as_fd)
    }

    /// Publishes frames, before which the ring `was_empty` or not, and tells the kernel of them when it has to be told.
    pub fn submit(&mut self, port: BorrowedFd<'_>, mover: Mover, was_empty: bool) {
        self.was_empty = was_empty;
        self.ring.submit();
        self.unsent = true;
        self.woken = None;
        self.kick(port, mover);
    }

    /// Looks after frames the kernel has not taken yet.
    pub fn kick(&mut self, port: BorrowedFd<'_>, mover: Mover) {
        for _ in 0..CALLS {
            let waiting = self.ring.pending();
            if waiting == 0 {
                self.unsent = false;
                return;
            }
            if !self.ring.needs_wakeup() {
                return;
            }
            if let Some(breaths) = &mut self.woken
                && *breaths < WAKE_AGAIN
            {
                *breaths += 1;
                return;
            }
            if mover == Mover::Polling && self.polls_in_vain < POLLS_IN_VAIN {
                // A refusal is the interface's state, which `status` tells.
                let _ = socket::wake_rx(port);
                if self.ring.pending() < waiting {
                    self.polls_in_vain = 0;
                    continue;
                }
                self.polls_in_vain += u8::from(self.was_empty);
            }
            match socket::wake_tx(self.socket(port)) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                // ENOBUFS, EBUSY: the interface is congested; ENETDOWN, ENXIO: `status` says so.
                Err(_) => return,
            }
            if mover != Mover::Copying {
                // Woken is woken: the driver takes everything, or says anew that it sleeps.
                self.woken = Some(0);
                self.unsent = self.ring.pending() > 0;
                return;
            }
        }
    }

    /// Polls of the port's own poller were seen to take nothing: sending has a poller of its own.
    pub fn has_own_poller(&self) -> bool {
        self.polls_in_vain >= POLLS_IN_VAIN
    }

    /// Looks whether the ring moves; `true` when an episode of not moving begins.
    pub fn stalls(&mut self, now: Nanos, port: BorrowedFd<'_>, usable: impl FnOnce() -> bool) -> bool {
        let waiting = self.ring.pending();
        match self.watch.look(now, self.ring.taken(), waiting) {
            Look::Moves | Look::MovesAgain(_) => false,
            Look::Stalls if !usable() => {
                self.watch.forget();
                false
            }
            Look::Stalls => {
                self.stalled += 1;
                socket::wake_both(port);
                true
            }
            Look::Stalled => {
                socket::wake_both(port);
                false
            }
        }
    }
}
