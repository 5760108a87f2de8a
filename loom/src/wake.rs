//! What a worker sleeps on, in place of an eventfd: a wake before the sleep ends it at once, several end one.

use loom::sync::{Condvar, Mutex};

#[derive(Debug, Default)]
pub struct Waker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Waker {
    pub fn wake(&self) {
        *self.woken.lock().expect("nobody panics with it") = true;
        self.changed.notify_one();
    }

    /// Sleeps without an end: who is never woken is found as a deadlock.
    pub fn sleep(&self) {
        let mut woken = self.woken.lock().expect("nobody panics with it");
        while !*woken {
            woken = self.changed.wait(woken).expect("nobody panics with it");
        }
        *woken = false;
    }
}
