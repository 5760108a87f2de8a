//! The sending half of a port: the transmit ring, the socket it belongs to, and what gets it moving.
//!
//! ```text
//! copied       sendto: the kernel takes frames from the ring and sends them itself
//! interrupts   sendto: the kernel wakes the driver, which takes them; by the sleep that follows, where one does
//! polled       one poll, which is the driver's whole work where it sends and receives in one poller;
//!              where that takes nothing, sendto on a socket of its own wakes the driver
//! ```
//!
//! **Why a socket of its own.** On a zero-copy socket that prefers busy polling `sendto` polls the receive queue's
//! poller and wakes nobody. A driver that sends by another poller (virtio-net always, igb with a vector for each
//! direction) then leaves frames in the ring. A second socket on the same queue and memory without that preference
//! wakes it. Promises: a ring that does not move for all that is seen within [`STALL_AFTER`] and counted.
//!
//! **Why by the sleep.** A worker that sends a batch mostly finds nothing afterwards and sleeps, which takes a system call as
//! well. One call that waits can send before, so the wake-up is owed for one breath ([`Transmit::take_owed`]): whoever
//! sleeps then pays it with that call. The breath after the next pays it at the latest.
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

/// Whether the driver is to be woken, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    No,
    /// It was published in this breath.
    Now,
    /// It was published in the breath before.
    Before,
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
    /// The driver is yet to be woken for what was published.
    owed: Owed,
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
            owed: Owed::No,
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
        self.owed = match self.owed {
            Owed::No if mover == Mover::Waking && self.ring.needs_wakeup() => Owed::Now,
            _ => Owed::No,
        };
        if self.owed == Owed::No {
            self.kick(port, mover);
        }
    }

    /// The next [`Transmit::kick`] wakes the driver.
    pub fn owe_nothing(&mut self) {
        self.owed = Owed::No;
    }

    /// The socket whose driver is to be woken for what was published: the caller does it.
    pub fn take_owed<'a>(&'a mut self, port: BorrowedFd<'a>) -> Option<BorrowedFd<'a>> {
        let owed = std::mem::replace(&mut self.owed, Owed::No);
        if owed == Owed::No || self.ring.pending() == 0 || !self.ring.needs_wakeup() {
            return None;
        }
        self.woken = Some(0);
        Some(self.socket(port))
    }

    /// Looks after frames the kernel has not taken yet.
    pub fn kick(&mut self, port: BorrowedFd<'_>, mover: Mover) {
        if self.owed == Owed::Now {
            self.owed = Owed::Before;
            return;
        }
        self.owed = Owed::No;
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::ring::Consumer;
    use crate::ring::tests::{pair, sleeps};

    /// A sender whose driver sleeps; its socket's other end gets a message for each time the driver is woken.
    struct Scene {
        transmit: Transmit,
        port: UnixDatagram,
        driver: UnixDatagram,
        taken: Consumer<Desc>,
    }

    impl Scene {
        fn new() -> Scene {
            let (ring, taken) = pair();
            sleeps(&taken);
            let (port, driver) = UnixDatagram::pair().expect("sockets");
            driver.set_nonblocking(true).expect("a socket");
            Scene { transmit: Transmit::new(ring, None), port, driver, taken }
        }

        fn send(&mut self, mover: Mover) {
            assert!(self.transmit.ring.push(Desc { addr: 0, len: 64, options: 0 }));
            self.transmit.submit(self.port.as_fd(), mover, false);
        }

        fn breathe(&mut self) {
            self.transmit.kick(self.port.as_fd(), Mover::Waking);
        }

        fn wake_ups(&self) -> usize {
            std::iter::from_fn(|| self.driver.recv(&mut [0; 1]).ok()).count()
        }
    }

    #[test]
    fn a_wake_up_is_owed_to_the_sleep_that_follows_and_taken_once() {
        let mut scene = Scene::new();
        scene.send(Mover::Waking);
        scene.breathe();
        let socket = scene.transmit.take_owed(scene.port.as_fd()).map(|fd| fd.as_raw_fd());
        assert_eq!(socket, Some(scene.port.as_raw_fd()));
        assert!(scene.transmit.take_owed(scene.port.as_fd()).is_none());
        scene.breathe();
        assert_eq!(scene.wake_ups(), 0, "whoever took it wakes the driver");
    }

    #[test]
    fn who_does_not_sleep_has_its_driver_woken_by_the_breath_after_the_next() {
        let mut scene = Scene::new();
        scene.send(Mover::Waking);
        scene.breathe();
        assert_eq!(scene.wake_ups(), 0);
        scene.breathe();
        assert_eq!(scene.wake_ups(), 1);
        assert!(scene.transmit.take_owed(scene.port.as_fd()).is_none());
    }

    #[test]
    fn two_batches_in_a_row_are_one_wake_up_at_the_second() {
        let mut scene = Scene::new();
        scene.send(Mover::Waking);
        scene.send(Mover::Waking);
        assert_eq!(scene.wake_ups(), 1);
    }

    #[test]
    fn a_sender_that_needs_room_has_its_driver_woken_at_once() {
        let mut scene = Scene::new();
        scene.send(Mover::Waking);
        scene.transmit.owe_nothing();
        scene.breathe();
        assert_eq!(scene.wake_ups(), 1);
    }

    #[test]
    fn nothing_is_owed_when_the_driver_has_come_or_the_kernel_copies() {
        let mut scene = Scene::new();
        scene.send(Mover::Waking);
        assert_eq!(scene.taken.ready(), 1);
        assert!(scene.taken.pop().is_some());
        scene.taken.release();
        assert!(scene.transmit.take_owed(scene.port.as_fd()).is_none(), "it came by itself");
        scene.send(Mover::Copying);
        assert!(scene.wake_ups() >= 1, "a copy is a system call's work: now");
        assert!(scene.transmit.take_owed(scene.port.as_fd()).is_none());
    }
}
