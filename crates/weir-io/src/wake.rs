//! Sleeping until a device has frames or another thread has news.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::epoll_set::EpollSet;

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
    set: EpollSet,
    trigger: Trigger,
    /// The devices, and whether the set has them now.
    watched: Vec<(RawFd, bool)>,
    waker: Waker,
}

/// The waker's mark among the descriptors.
const WAKER: u64 = u64::MAX;
/// Descriptors told of by one sleep; the others end the next.
const READY: usize = 16;

impl Sleep {
    pub fn new(waker: &Waker, trigger: Trigger) -> io::Result<Sleep> {
        let set = EpollSet::new()?;
        let waker = Waker { event: waker.event.try_clone()? };
        set.control(libc::EPOLL_CTL_ADD, waker.as_raw_fd(), libc::EPOLLIN as u32, WAKER)?;
        Ok(Sleep { set, trigger, watched: Vec::new(), waker })
    }

    /// Waits for these descriptors from now on, in place of those before.
    pub fn watch(&mut self, fds: impl IntoIterator<Item = RawFd>) {
        for (fd, _) in self.watched.drain(..) {
            // One that was closed has left the set by itself.
            let _ = self.set.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        self.watched.extend(fds.into_iter().filter(|fd| *fd >= 0).map(|fd| (fd, false)));
        self.restore();
    }

    /// Puts into the set what is not in it.
    fn restore(&mut self) {
        let edge = if self.trigger == Trigger::Edge { libc::EPOLLET as u32 } else { 0 };
        for (index, (fd, there)) in self.watched.iter_mut().enumerate().filter(|(_, (_, there))| !there) {
            let wish = libc::EPOLLIN as u32 | edge;
            // What cannot be waited for is looked at after every sleep all the same.
            *there = self.set.control(libc::EPOLL_CTL_ADD, *fd, wish, index as u64).is_ok();
        }
    }

    /// Sleeps until a device has frames, somebody wakes us, or this time has passed.
    pub fn until_woken(&mut self, at_most: Duration) {
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; READY];
        let count = self.set.wait(&mut ready, Some(at_most)).unwrap_or(0);
        if count == 0 {
            // A quiet sleep: devices left out below may have come back.
            return self.restore();
        }
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
                let _ = self.set.control(libc::EPOLL_CTL_DEL, *fd, 0, 0);
                *there = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Instant;

    use super::*;

    /// Longer than any scheduler keeps a woken thread waiting.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(1);
    const BOTH: [Trigger; 2] = [Trigger::Level, Trigger::Edge];

    fn ends_early(sleep: &mut Sleep) {
        let start = Instant::now();
        sleep.until_woken(LONG);
        assert!(start.elapsed() < LONG);
    }

    /// Descriptors the next sleep would end by.
    fn ready(sleep: &Sleep) -> usize {
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; READY];
        sleep.set.wait(&mut ready, Some(Duration::ZERO)).expect("a set")
    }

    #[test]
    fn wake_before_sleep_is_not_lost() {
        for trigger in BOTH {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = Sleep::new(&waker, trigger).expect("a set");
            waker.wake();
            ends_early(&mut sleep);
            assert_eq!(ready(&sleep), 0, "one wake ends one sleep");
        }
    }

    #[test]
    fn wake_from_another_thread_ends_the_sleep() {
        let waker = Waker::new().expect("an eventfd");
        let mut sleep = Sleep::new(&waker, Trigger::Edge).expect("a set");
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            ends_early(&mut sleep);
        });
    }

    #[test]
    fn device_with_an_error_does_not_keep_us_awake_and_is_asked_again() {
        for trigger in BOTH {
            let waker = Waker::new().expect("an eventfd");
            let mut sleep = Sleep::new(&waker, trigger).expect("a set");
            // Something that polls as failed for ever: the reading end of a pipe nobody writes to any more.
            let (reader, writer) = io::pipe().expect("a pipe");
            drop(writer);
            sleep.watch([reader.as_raw_fd()]);
            ends_early(&mut sleep);
            assert_eq!((ready(&sleep), sleep.watched[0].1), (0, false), "left out");
            sleep.until_woken(SHORT);
            assert!(sleep.watched[0].1, "asked again after a quiet sleep");
        }
    }

    #[test]
    fn what_is_watched_is_what_was_named_last() {
        let (waker, other) = (Waker::new().expect("an eventfd"), Waker::new().expect("an eventfd"));
        let mut sleep = Sleep::new(&waker, Trigger::Level).expect("a set");
        sleep.watch([other.event.as_raw_fd(), -1]);
        other.wake();
        ends_early(&mut sleep);
        sleep.watch([]);
        assert_eq!(ready(&sleep), 0);
        sleep.watch([other.event.as_raw_fd()]);
        assert_eq!(ready(&sleep), 1);
    }

    #[test]
    fn an_edge_is_what_came_before_the_first_sleep_or_after_the_last() {
        let waker = Waker::new().expect("an eventfd");
        let mut sleep = Sleep::new(&waker, Trigger::Edge).expect("a set");
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        writer.write_all(b"1").expect("room");
        sleep.watch([reader.as_raw_fd()]);
        ends_early(&mut sleep);
        assert_eq!(ready(&sleep), 0, "nothing came since, though it is readable");
        writer.write_all(b"2").expect("room");
        reader.read_exact(&mut [0; 1]).expect("readable");
        ends_early(&mut sleep);
    }
}
