//! Testbeds in the process of the tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time has testbeds in this process: what they leave behind is counted by its number.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}
