//! What threads of the relay tell each other: nothing is lost, and nobody sleeps while there is something for him.

use std::sync::Arc;

use loom::thread;
use weir_loom::cross_worker::{Doorbell, Mailbox};
use weir_loom::inbox::Inbox;
use weir_loom::session::CrossWorkerBatch;
use weir_loom::wake::Waker;
use weir_loom::{Consumer, RingBuffer};

/// A worker's turns until it has taken so many batches: what it took.
fn works(doorbell: &Doorbell, waker: &Waker, rings: &mut [Consumer], all: usize) -> Vec<u64> {
    let mut taken = Vec::new();
    while taken.len() < all {
        if doorbell.prepare_sleep() {
            waker.sleep();
        }
        if doorbell.wake() {
            for ring in rings.iter_mut() {
                for _ in 0..ring.slots() {
                    let Some(batch) = ring.pop() else { break };
                    taken.push(batch.0);
                }
            }
        }
    }
    taken
}

#[test]
fn a_worker_that_falls_asleep_is_woken_for_every_batch() {
    weir_loom::model(|| {
        let waker = Arc::new(Waker::default());
        let doorbell = Arc::new(Doorbell::new(waker.clone()));
        let (ring, incoming) = RingBuffer::new(2);
        let mut mailbox = Mailbox { ring, doorbell: doorbell.clone() };
        let other = thread::spawn(move || {
            for n in 1..=2 {
                mailbox.push(CrossWorkerBatch(n)).expect("there is room");
                mailbox.doorbell.ring();
            }
        });
        assert_eq!(works(&doorbell, &waker, &mut [incoming], 2), [1, 2]);
        other.join().expect("it rings");
    });
}

#[test]
fn of_two_that_ring_at_once_neither_is_missed() {
    weir_loom::model(|| {
        let waker = Arc::new(Waker::default());
        let doorbell = Arc::new(Doorbell::new(waker.clone()));
        let mut rings = Vec::new();
        let others = [1, 2].map(|n| {
            let (ring, incoming) = RingBuffer::new(1);
            rings.push(incoming);
            let mut mailbox = Mailbox { ring, doorbell: doorbell.clone() };
            thread::spawn(move || {
                mailbox.push(CrossWorkerBatch(n)).expect("there is room");
                mailbox.doorbell.ring();
            })
        });
        let mut taken = works(&doorbell, &waker, &mut rings, 2);
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        others.into_iter().for_each(|other| other.join().expect("it rings"));
    });
}

#[test]
fn what_was_only_noted_wakes_nobody_and_is_found_once_notified() {
    weir_loom::model(|| {
        let waker = Arc::new(Waker::default());
        let doorbell = Arc::new(Doorbell::new(waker.clone()));
        let (ring, incoming) = RingBuffer::new(2);
        let mut mailbox = Mailbox { ring, doorbell: doorbell.clone() };
        // As the registrar does: several, and a word after the last.
        let other = thread::spawn(move || {
            for n in 1..=2 {
                mailbox.push(CrossWorkerBatch(n)).expect("there is room");
                mailbox.doorbell.note();
            }
            mailbox.doorbell.notify();
        });
        assert_eq!(works(&doorbell, &waker, &mut [incoming], 2), [1, 2]);
        other.join().expect("it rings");
    });
}

#[test]
fn a_full_mailbox_gives_the_batch_back_and_loses_none_of_before() {
    weir_loom::model(|| {
        let waker = Arc::new(Waker::default());
        let doorbell = Arc::new(Doorbell::new(waker.clone()));
        let (ring, incoming) = RingBuffer::new(1);
        let mut mailbox = Mailbox { ring, doorbell: doorbell.clone() };
        let other = thread::spawn(move || {
            mailbox.push(CrossWorkerBatch(1)).expect("there is room");
            mailbox.doorbell.ring();
            let second = mailbox.push(CrossWorkerBatch(2));
            mailbox.doorbell.ring();
            assert!(second.is_ok() || second == Err(CrossWorkerBatch(2)));
            second.is_ok()
        });
        let mut rings = [incoming];
        let mut taken = works(&doorbell, &waker, &mut rings, 1);
        let went = other.join().expect("it rings");
        while let Some(batch) = rings[0].pop() {
            taken.push(batch.0);
        }
        assert_eq!(taken, if went { vec![1, 2] } else { vec![1] });
    });
}

#[test]
fn the_registrar_sleeps_through_no_event() {
    weir_loom::model(|| {
        let inbox = Arc::new(Inbox::default());
        let others = [10, 20].map(|first| {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.send_all([first, first + 1].into_iter()))
        });
        let (mut all, mut events) = (Vec::new(), Vec::new());
        while all.len() < 4 {
            inbox.take(&mut events);
            all.append(&mut events);
        }
        assert!(all == [10, 11, 20, 21] || all == [20, 21, 10, 11], "{all:?}");
        others.into_iter().for_each(|other| other.join().expect("it sends"));
    });
}
