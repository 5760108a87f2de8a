//! What the registrar is told, from many threads to one.
//!
//! ```text
//!  front, workers ──► told, in order ──► all there is at once ──► registrar, which parks when there is nothing
//! ```
//!
//! Promises: whoever tells wakes the registrar only if it has taken everything before, and holds no lock while doing so:
//! on a busy core a thread woken under a lock takes the core, finds the lock held and gives it back. Of one thread the
//! order is kept. Refuses: nothing; what is told after the registrar's end stays unread.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use super::messages::Told;

/// Room that is kept for what comes next; a storm's is given back.
const KEPT: usize = 4096;

#[derive(Debug, Default)]
pub struct Inbox {
    told: Mutex<Vec<Told>>,
    /// Once it reads.
    registrar: OnceLock<Thread>,
}

impl Inbox {
    pub fn tell(&self, told: Told) {
        self.put(|all| all.push(told));
    }

    /// Leaves `told` empty.
    pub fn tell_all(&self, told: &mut Vec<Told>) {
        if !told.is_empty() {
            self.put(|all| all.append(told));
        }
    }

    /// Waits until something was told, and takes all of it into `told`, which is empty. Always from the same thread.
    pub fn take(&self, told: &mut Vec<Told>) {
        let registrar = self.registrar.get_or_init(std::thread::current);
        debug_assert_eq!(registrar.id(), std::thread::current().id());
        if told.capacity() > KEPT {
            *told = Vec::new();
        }
        loop {
            std::mem::swap(&mut *self.open(), told);
            if !told.is_empty() {
                return;
            }
            // Whoever told something since then has made this return at once.
            std::thread::park();
        }
    }

    fn put(&self, add: impl FnOnce(&mut Vec<Told>)) {
        let mut all = self.open();
        let was_empty = all.is_empty();
        add(&mut all);
        // Woken under the lock it would find it held.
        drop(all);
        // A registrar that does not read yet finds what was told before it first parks.
        if was_empty && let Some(registrar) = self.registrar.get() {
            registrar.unpark();
        }
    }

    /// A thread that panicked has left whole messages behind.
    fn open(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const THREADS: u64 = 4;
    const EACH: u64 = 2000;

    #[test]
    fn everything_arrives_and_of_each_thread_in_its_order() {
        let inbox = Arc::new(Inbox::default());
        let tellers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let inbox = inbox.clone();
                std::thread::spawn(move || {
                    let mut some = Vec::new();
                    for n in 0..EACH {
                        match n % 3 {
                            0 => inbox.tell(Told::Active(thread * EACH + n)),
                            _ => some.push(Told::Active(thread * EACH + n)),
                        }
                        if n % 3 == 2 {
                            inbox.tell_all(&mut some);
                        }
                    }
                    inbox.tell_all(&mut some);
                })
            })
            .collect();
        let (mut next, mut told, mut count) = ([0; THREADS as usize], Vec::new(), 0);
        while count < THREADS * EACH {
            inbox.take(&mut told);
            for told in told.drain(..) {
                let Told::Active(n) = told else { panic!("{told:?} was not told") };
                let thread = (n / EACH) as usize;
                assert_eq!(n % EACH, next[thread], "thread {thread}");
                next[thread] += 1;
                count += 1;
            }
        }
        tellers.into_iter().for_each(|teller| teller.join().expect("it tells"));
    }

    #[test]
    fn what_is_told_before_the_registrar_reads_is_read_first() {
        let inbox = Inbox::default();
        inbox.tell(Told::Active(1));
        inbox.tell(Told::Stop);
        let mut told = Vec::new();
        inbox.take(&mut told);
        assert!(matches!(told[..], [Told::Active(1), Told::Stop]), "{told:?}");
    }
}
