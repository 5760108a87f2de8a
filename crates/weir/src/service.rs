//! What a service manager is told: ready, reloading, stopping, still there (sd_notify(3)). Nothing where none asks.
//!
//! Promises: a message that does not arrive stops nobody; it is logged. With `WatchdogSec=` the control thread itself says
//! that it lives, so one that hangs is restarted.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager (NOTIFY_SOCKET) was not told: {error}");
    }
}

/// Everything listens; `status` is what `systemctl status` shows.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// This process serves in place of the one before, of which the manager knew.
pub fn takes_over(status: &str) {
    tell(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready, NotifyState::Status(status)]);
}

/// Another process of this service serves from now on in place of this one, which is about to end.
pub fn hands_over(to: u32, status: &str) {
    tell(&[NotifyState::MainPid(to), NotifyState::Status(status)]);
}

/// A file is read again; [`ready`] comes when it is in force, or refused.
pub fn reloading() {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now().ok());
    tell(&states);
}

pub fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Keeps a descriptor over the end of this process and hands it to the next, if the manager does that
/// (`FileDescriptorStoreMax=`); in place of one it had of this name.
pub fn keep(name: &str, descriptor: BorrowedFd<'_>) {
    forget(name);
    let states = [NotifyState::FdStore, NotifyState::FdName(name)];
    if let Err(error) = sd_notify::notify_with_fds(&states, &[descriptor]) {
        tracing::warn!("the service manager (NOTIFY_SOCKET) was not given {name}: {error}");
    }
}

/// The manager keeps nothing of this name any more.
pub fn forget(name: &str) {
    tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

/// Says now and then that this process is there, as often as the manager wants to hear it.
#[derive(Debug)]
pub struct Watchdog {
    every: Option<Duration>,
    told: Option<Instant>,
}

impl Watchdog {
    /// A watchdog that reports twice as often as the environment asks: one late report is no death.
    pub fn from_environment() -> Watchdog {
        Watchdog { every: sd_notify::watchdog_enabled().map(|within| within / 2), told: None }
    }

    /// Call it in every turn of the control thread's loop.
    pub fn alive(&mut self, now: Instant) {
        let Some(every) = self.every else { return };
        if self.told.is_none_or(|told| now.duration_since(told) >= every) {
            self.told = Some(now);
            tell(&[NotifyState::Watchdog]);
        }
    }

    /// The longest a turn may wait.
    pub fn at_most(&self, wait: Duration) -> Duration {
        self.every.map_or(wait, |every| every.min(wait))
    }
}
