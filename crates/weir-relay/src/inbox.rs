//! Events for the registrar, from many threads to one.
//!
//! ```text
//!  acceptor, workers ──► events, in order ──► all there is at once ──► registrar, which parks when there is nothing
//! ```
//!
//! Promises: whoever sends wakes the registrar only if it has taken everything before, and holds no lock while doing so:
//! on a busy core a thread woken under a lock takes the core, finds the lock held and gives it back. Of one thread the
//! order is kept. Refuses: nothing; what is sent after the registrar's end stays unread.

use std::sync::{OnceLock, PoisonError};

use super::messages::Event;
use crate::sync::thread::{self, Thread};
use crate::sync::{Mutex, MutexGuard};

/// Room that is kept for what comes next; a storm's is given back.
const KEPT: usize = 4096;

#[derive(Debug, Default)]
pub struct Inbox {
    events: Mutex<Vec<Event>>,
    /// The thread that reads, once it does.
    registrar: OnceLock<Thread>,
}

impl Inbox {
    pub fn send(&self, event: Event) {
        self.put(|all| all.push(event));
    }

    pub fn send_all(&self, events: impl ExactSizeIterator<Item = Event>) {
        if events.len() > 0 {
            self.put(|all| all.extend(events));
        }
    }

    /// Waits for events, and takes all there are into `events`, which is empty. Always from the same thread.
    pub fn take(&self, events: &mut Vec<Event>) {
        let registrar = self.registrar.get_or_init(thread::current);
        debug_assert_eq!(registrar.id(), thread::current().id());
        if events.capacity() > KEPT {
            *events = Vec::new();
        }
        loop {
            std::mem::swap(&mut *self.open(), events);
            if !events.is_empty() {
                return;
            }
            // Whoever sent something since then has made this return at once.
            thread::park();
        }
    }

    fn put(&self, add: impl FnOnce(&mut Vec<Event>)) {
        let mut all = self.open();
        let was_empty = all.is_empty();
        add(&mut all);
        // Woken under the lock it would find it held.
        drop(all);
        // A registrar that does not read yet finds what was sent before it first parks.
        if was_empty && let Some(registrar) = self.registrar.get() {
            registrar.unpark();
        }
    }

    /// A thread that panicked has left whole messages behind.
    fn open(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::session;

    fn active(conn: u64) -> Event {
        Event::Session(session::Event::Active(conn))
    }

    const THREADS: u64 = 4;
    const EACH: u64 = 2000;

    #[test]
    fn everything_arrives_and_of_each_thread_in_its_order() {
        let inbox = Arc::new(Inbox::default());
        let senders: Vec<_> = (0..THREADS)
            .map(|thread| {
                let inbox = inbox.clone();
                std::thread::spawn(move || {
                    let mut some = Vec::new();
                    for n in 0..EACH {
                        match n % 3 {
                            0 => inbox.send(active(thread * EACH + n)),
                            _ => some.push(active(thread * EACH + n)),
                        }
                        if n % 3 == 2 {
                            inbox.send_all(some.drain(..));
                        }
                    }
                    inbox.send_all(some.drain(..));
                })
            })
            .collect();
        let (mut next, mut events, mut count) = ([0; THREADS as usize], Vec::new(), 0);
        while count < THREADS * EACH {
            inbox.take(&mut events);
            for event in events.drain(..) {
                let Event::Session(session::Event::Active(n)) = event else {
                    panic!("{event:?} was not sent")
                };
                let thread = (n / EACH) as usize;
                assert_eq!(n % EACH, next[thread], "thread {thread}");
                next[thread] += 1;
                count += 1;
            }
        }
        senders.into_iter().for_each(|sender| sender.join().expect("it sends"));
    }

    #[test]
    fn what_is_sent_before_the_registrar_reads_is_read_first() {
        let inbox = Inbox::default();
        inbox.send(active(1));
        inbox.send(Event::Stop);
        let mut events = Vec::new();
        inbox.take(&mut events);
        assert!(matches!(events[..], [Event::Session(session::Event::Active(1)), Event::Stop]), "{events:?}");
    }
}
