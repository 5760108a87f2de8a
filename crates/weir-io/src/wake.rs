//! Sleeping until a device has frames or another thread has news.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

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

/// What a worker sleeps on.
#[derive(Debug)]
pub struct Sleep {
    /// The waker first, then the devices; `-1` is skipped by the kernel.
    polled: Vec<libc::pollfd>,
    /// What `polled` holds while every device is well.
    descriptors: Vec<RawFd>,
    waker: Waker,
}

impl Sleep {
    pub fn new(waker: &Waker) -> io::Result<Sleep> {
        let waker = Waker { event: waker.event.try_clone()? };
        let event = waker.event.as_raw_fd();
        Ok(Sleep { polled: vec![entry(event)], descriptors: vec![event], waker })
    }

    /// Waits for these descriptors from now on, in place of those before.
    pub fn watch(&mut self, fds: impl IntoIterator<Item = RawFd>) {
        self.descriptors.truncate(1);
        self.descriptors.extend(fds);
        self.polled.clear();
        self.polled.extend(self.descriptors.iter().map(|&fd| entry(fd)));
    }

    /// Sleeps until a device has frames, somebody wakes us, or `milliseconds` have passed.
    pub fn until_woken(&mut self, milliseconds: i32) {
        // SAFETY: `polled` is a valid array of its length; descriptors that have been closed meanwhile are
        // reported in `revents`, not touched.
        let ready = unsafe { libc::poll(self.polled.as_mut_ptr(), self.polled.len() as _, milliseconds) };
        if ready <= 0 {
            // A quiet sleep: devices left out below may have come back.
            for (polled, &descriptor) in self.polled.iter_mut().zip(&self.descriptors) {
                polled.fd = descriptor;
            }
            return;
        }
        if self.polled[0].revents != 0 {
            self.waker.clear();
        }
        // A device that went away stays "ready" for ever: it is left out until a sleep has been quiet.
        for device in &mut self.polled[1..] {
            if device.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
                && device.revents & libc::POLLIN == 0
            {
                device.fd = -1;
            }
        }
    }
}

fn entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Longer than any scheduler keeps a woken thread waiting.
    const LONG_MS: i32 = 60_000;

    #[test]
    fn wake_before_sleep_is_not_lost() {
        let waker = Waker::new().expect("an eventfd");
        let mut sleep = Sleep::new(&waker).expect("a second handle");
        let start = Instant::now();
        waker.wake();
        sleep.until_woken(LONG_MS);
        assert!(start.elapsed() < Duration::from_millis(LONG_MS as u64));
        sleep.until_woken(0);
        assert_eq!(sleep.polled[0].revents, 0, "one wake ends one sleep");
    }

    #[test]
    fn wake_from_another_thread_ends_the_sleep() {
        let waker = Waker::new().expect("an eventfd");
        let mut sleep = Sleep::new(&waker).expect("a second handle");
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            sleep.until_woken(LONG_MS);
        });
        assert!(start.elapsed() < Duration::from_millis(LONG_MS as u64));
    }

    #[test]
    fn device_with_an_error_does_not_keep_us_awake_and_is_asked_again() {
        let waker = Waker::new().expect("an eventfd");
        let mut sleep = Sleep::new(&waker).expect("a second handle");
        // Something that polls as failed for ever: the reading end of a pipe nobody writes to any more.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(writer);
        sleep.watch([reader.as_raw_fd()]);
        sleep.until_woken(LONG_MS);
        assert_eq!(sleep.polled[1].fd, -1, "left out");
        sleep.until_woken(1);
        assert_eq!(sleep.polled[1].fd, reader.as_raw_fd(), "asked again after a quiet sleep");
    }

    #[test]
    fn what_is_watched_is_what_was_named_last() {
        let (waker, other) = (Waker::new().expect("an eventfd"), Waker::new().expect("an eventfd"));
        let mut sleep = Sleep::new(&waker).expect("a second handle");
        sleep.watch([other.event.as_raw_fd(), -1]);
        other.wake();
        sleep.until_woken(LONG_MS);
        assert_ne!(sleep.polled[1].revents, 0);
        sleep.watch([]);
        sleep.until_woken(1);
        assert_eq!(sleep.polled.len(), 1);
    }
}
