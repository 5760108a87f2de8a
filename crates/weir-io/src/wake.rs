//! Sleeping until a device has frames or another thread has news.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::epoll_set::EpollSet;

mod poll_ring;

use poll_ring::PollRing;

/// Wakes one [`Sleep`] from any thread. A wake before the sleep makes it end at once.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
}

impl Waker {
    pub fn new() -> io::Result<Waker> {
        // SAFETY: eventfd takes no memory; its result is checked before it is owned.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a fresh descriptor that nothing else owns.
        Ok(Waker { event: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub fn wake(&self) {
        let one: u64 = 1;
        // SAFETY: the kernel reads eight bytes of `one`. The write fails only when the counter is at its
        // maximum, and then the sleeper is awake.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Forgets the wakes so far.
    pub(crate) fn clear(&self) {
        let mut count: u64 = 0;
        // SAFETY: the kernel writes eight bytes into `count`; an empty counter is an error we need not see.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

/// Sends an empty message by a socket: one of AF_XDP has its driver look at the transmit ring.
#[inline]
pub fn wake_driver(socket: RawFd) -> io::Result<()> {
    // SAFETY: an empty message: no pointer is followed.
    let result =
        unsafe { libc::sendto(socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// When a descriptor ends a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Reported as long as the descriptor is readable.
    Level,
    /// When something came since the last sleep: for who reads until nothing is left before it sleeps. An AF_XDP
    /// socket is then left alone by a sleep; asked whether it is readable, it wakes its driver each time, which on
    /// igb is an interrupt.
    Edge,
}

/// What a worker sleeps on.
#[derive(Debug)]
pub struct Sleep {
    way: Way,
    trigger: Trigger,
    /// A ring is to be had, as far as is known.
    rings: bool,
    /// The devices, and whether they are waited for now.
    watched: Vec<(RawFd, bool)>,
    waker: Waker,
}

/// What the kernel waits with.
#[derive(Debug)]
enum Way {
    Epoll(EpollSet),
    /// Edges alone, and made by the thread that sleeps.
    Ring(Box<PollRing>),
}

/// The waker's mark among the descriptors.
const WAKER: u64 = u64::MAX;
/// Descriptors told of by one sleep; the others end the next.
const READY: usize = 16;

impl Sleep {
    pub fn new(waker: &Waker, trigger: Trigger) -> io::Result<Sleep> {
        let waker = Waker { event: waker.event.try_clone()? };
        let rings = trigger == Trigger::Edge;
        Ok(Sleep { way: Way::epoll(&waker)?, trigger, rings, watched: Vec::new(), waker })
    }

    /// Waits for these descriptors from now on, in place of those before. Edges are the calling thread's to wait for.
    pub fn watch(&mut self, fds: impl IntoIterator<Item = RawFd>) {
        let before = self.watched.drain(..);
        match &mut self.way {
            Way::Epoll(set) => before.for_each(|(fd, _)| {
                // One that was closed has left the set by itself.
                let _ = set.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            }),
            Way::Ring(ring) => {
                drop(before);
                let cleared = ring.clear().and_then(|()| ring.add(self.waker.as_raw_fd(), WAKER));
                // A ring that does not even do that waits for nobody.
                if let (Err(_), Ok(epoll)) = (cleared, Way::epoll(&self.waker)) {
                    (self.way, self.rings) = (epoll, false);
                }
            }
        }
        self.watched.extend(fds.into_iter().filter(|fd| *fd >= 0).map(|fd| (fd, false)));
        if self.rings && matches!(self.way, Way::Epoll(_)) {
            // Kernels before 6.1, and machines that allow none.
            self.rings = Way::ring(&self.waker).map(|ring| self.way = ring).is_ok();
        }
        self.restore();
    }

    /// Waits again for what is not waited for.
    fn restore(&mut self) {
        let edge = if self.trigger == Trigger::Edge { libc::EPOLLET as u32 } else { 0 };
        for (index, (fd, there)) in self.watched.iter_mut().enumerate().filter(|(_, (_, there))| !there) {
            let mark = index as u64;
            // What cannot be waited for is looked at after every sleep all the same.
            *there = match &mut self.way {
                Way::Epoll(set) => set.control(libc::EPOLL_CTL_ADD, *fd, libc::EPOLLIN as u32 | edge, mark),
                Way::Ring(ring) => ring.add(*fd, mark),
            }
            .is_ok();
        }
    }

    /// Sleeps until a device has frames, somebody wakes us, or this time has passed.
    pub fn until_woken(&mut self, at_most: Duration) {
        self.after_waking(&[], at_most);
    }

    /// Wakes the drivers of these sockets, as [`wake_driver`] does, and sleeps: by a ring that is one system call.
    pub fn after_waking(&mut self, sockets: &[RawFd], at_most: Duration) {
        let quiet = match &mut self.way {
            Way::Epoll(set) => {
                for socket in sockets {
                    // A refusal is the interface's state, which devices tell.
                    let _ = wake_driver(*socket);
                }
                let mut ready = [libc::epoll_event { events: 0, u64: 0 }; READY];
                let count = set.wait(&mut ready, Some(at_most)).unwrap_or(0);
                for event in &ready[..count] {
                    let (events, mark) = (event.events as libc::c_int, event.u64);
                    if mark == WAKER {
                        self.waker.clear();
                        continue;
                    }
                    // A device that went away stays "ready" for ever: it is left out until a sleep has been quiet.
                    if events & (libc::EPOLLERR | libc::EPOLLHUP) != 0
                        && events & libc::EPOLLIN == 0
                        && let Some((fd, there)) = self.watched.get_mut(mark as usize)
                    {
                        let _ = set.control(libc::EPOLL_CTL_DEL, *fd, 0, 0);
                        *there = false;
                    }
                }
                count == 0
            }
            Way::Ring(ring) => {
                let mut quiet = true;
                let waker = &self.waker;
                let ended = ring.wait(sockets, at_most, |mark| {
                    quiet = false;
                    if mark == WAKER {
                        waker.clear();
                    }
                });
                for mark in ended.unwrap_or_default() {
                    match self.watched.get_mut(mark as usize) {
                        // Again after a quiet sleep: it may end at once each time.
                        Some((_, there)) => *there = false,
                        None => drop(ring.add(waker.as_raw_fd(), WAKER)),
                    }
                }
                quiet
            }
        };
        if quiet {
            self.restore();
        }
    }
}

impl Way {
    fn epoll(waker: &Waker) -> io::Result<Way> {
        let set = EpollSet::new()?;
        set.control(libc::EPOLL_CTL_ADD, waker.as_raw_fd(), libc::EPOLLIN as u32, WAKER)?;
        Ok(Way::Epoll(set))
    }

    fn ring(waker: &Waker) -> io::Result<Way> {
        let mut ring = PollRing::new()?;
        ring.add(waker.as_raw_fd(), WAKER)?;
        Ok(Way::Ring(Box::new(ring)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixDatagram;
    use std::time::Instant;

    use super::*;

    /// Longer than any scheduler keeps a woken thread waiting.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(1);
    /// What is waited for, and whether by a ring.
    const EVERY: [(Trigger, bool); 3] =
        [(Trigger::Level, false), (Trigger::Edge, false), (Trigger::Edge, true)];

    fn ends_early(sleep: &mut Sleep) {
        let start = Instant::now();
        sleep.until_woken(LONG);
        assert!(start.elapsed() < LONG);
    }

    /// Descriptors the next sleep would end by.
    fn ready(sleep: &mut Sleep) -> usize {
        match &mut sleep.way {
            Way::Epoll(set) => {
                let mut ready = [libc::epoll_event { events: 0, u64: 0 }; READY];
                set.wait(&mut ready, Some(Duration::ZERO)).expect("a set")
            }
            Way::Ring(ring) => {
                let mut count = 0;
                ring.wait(&[], Duration::ZERO, |_| count += 1).expect("a ring");
                count
            }
        }
    }

    fn sleep(waker: &Waker, (trigger, ring): (Trigger, bool)) -> Sleep {
        let mut sleep = Sleep::new(waker, trigger).expect("a set");
        sleep.rings = ring;
        sleep.watch([]);
        assert_eq!(matches!(sleep.way, Way::Ring(_)), ring, "io_uring of Linux 6.1");
        sleep
    }

    #[test]
    fn wake_before_sleep_is_not_lost() {
        for what in EVERY {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = sleep(&waker, what);
            waker.wake();
            ends_early(&mut sleep);
            assert_eq!(ready(&mut sleep), 0, "one wake ends one sleep");
        }
    }

    #[test]
    fn wake_from_another_thread_ends_the_sleep() {
        for what in EVERY {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = sleep(&waker, what);
            std::thread::scope(|scope| {
                scope.spawn(|| waker.wake());
                ends_early(&mut sleep);
            });
        }
    }

    #[test]
    fn device_with_an_error_does_not_keep_us_awake_and_is_asked_again() {
        for what in EVERY {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = sleep(&waker, what);
            // Something that polls as failed for ever: the reading end of a pipe nobody writes to any more.
            let (reader, writer) = io::pipe().expect("a pipe");
            drop(writer);
            sleep.watch([reader.as_raw_fd()]);
            ends_early(&mut sleep);
            assert_eq!(ready(&mut sleep), 0, "left out");
            sleep.until_woken(SHORT);
            assert!(sleep.watched[0].1, "asked again after a quiet sleep");
        }
    }

    #[test]
    fn what_is_watched_is_what_was_named_last() {
        for what in EVERY {
            let (waker, other) = (Waker::new().expect("an eventfd"), Waker::new().expect("an eventfd"));
            let mut sleep = sleep(&waker, what);
            sleep.watch([other.event.as_raw_fd(), -1]);
            other.wake();
            ends_early(&mut sleep);
            sleep.watch([]);
            assert_eq!(ready(&mut sleep), 0);
            sleep.watch([other.event.as_raw_fd()]);
            assert_eq!(ready(&mut sleep), 1);
            waker.wake();
            ends_early(&mut sleep);
        }
    }

    #[test]
    fn an_edge_is_what_came_before_the_first_sleep_or_after_the_last() {
        for ring in [false, true] {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = sleep(&waker, (Trigger::Edge, ring));
            let (mut reader, mut writer) = io::pipe().expect("a pipe");
            writer.write_all(b"1").expect("room");
            sleep.watch([reader.as_raw_fd()]);
            ends_early(&mut sleep);
            assert_eq!(ready(&mut sleep), 0, "nothing came since, though it is readable");
            writer.write_all(b"2").expect("room");
            reader.read_exact(&mut [0; 1]).expect("readable");
            ends_early(&mut sleep);
        }
    }

    #[test]
    fn drivers_are_woken_before_a_sleep_begins() {
        for what in EVERY {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = sleep(&waker, what);
            let [(one, first), (other, second)] = [(); 2].map(|()| UnixDatagram::pair().expect("sockets"));
            sleep.watch([second.as_raw_fd()]);
            let start = Instant::now();
            sleep.after_waking(&[one.as_raw_fd(), other.as_raw_fd()], LONG);
            assert!(start.elapsed() < LONG, "the second's message ends the sleep");
            for socket in [first, second] {
                socket.set_nonblocking(true).expect("a socket");
                assert_eq!(socket.recv(&mut [0; 1]).expect("woken"), 0);
                socket.recv(&mut [0; 1]).expect_err("once");
            }
        }
    }

    #[test]
    fn a_driver_that_cannot_be_woken_costs_no_later_sleep() {
        for what in EVERY {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = sleep(&waker, what);
            let (one, other) = UnixDatagram::pair().expect("sockets");
            drop(other);
            sleep.after_waking(&[one.as_raw_fd()], SHORT);
            assert_eq!(ready(&mut sleep), 0);
            let start = Instant::now();
            sleep.until_woken(10 * SHORT);
            assert!(start.elapsed() >= 9 * SHORT, "{:?} for {what:?}", start.elapsed());
        }
    }

    #[test]
    fn nothing_holds_a_descriptor_open_that_is_no_longer_watched() {
        for what in EVERY {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = sleep(&waker, what);
            let (reader, mut writer) = io::pipe().expect("a pipe");
            sleep.watch([reader.as_raw_fd()]);
            sleep.until_woken(SHORT);
            drop(reader);
            sleep.watch([]);
            let error = writer.write_all(b"1").expect_err("nobody can read it");
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            // And the same when the sleep itself goes.
            let (reader, mut writer) = io::pipe().expect("a pipe");
            sleep.watch([reader.as_raw_fd()]);
            drop(reader);
            drop(sleep);
            assert_eq!(writer.write_all(b"1").expect_err("nobody").kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[test]
    fn a_file_that_cannot_be_waited_for_keeps_nobody_awake() {
        for what in EVERY {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = sleep(&waker, what);
            let file = std::fs::File::open("/proc/self/exe").expect("a file");
            sleep.watch([file.as_raw_fd()]);
            let start = Instant::now();
            for _ in 0..20 {
                sleep.until_woken(10 * SHORT);
            }
            assert!(start.elapsed() >= 90 * SHORT, "{:?} for {what:?}", start.elapsed());
        }
    }
}
