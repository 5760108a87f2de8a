//! From worker to worker: packets for a client of another core travel in parcels over one ring a direction.
//!
//! ```text
//!  worker 0 ── parcel (whole frames for one client) ──► ring ──► worker 1
//!                              └ the desk is rung once a turn, and the waker only used if worker 1 sleeps
//! ```
//!
//! Promises: no lock and no wait; packets of one sender to one receiver keep their order. Refuses: more than
//! [`RING`] parcels that nobody has taken: they are dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rtrb::{Producer, PushError};
use weir_core::relay::{Place, Reason};
use weir_core::time::Nanos;
use weir_io::wake::Waker;

use super::backlog::{Spares, data_of, first_frame};
use super::counters::Tally;

/// Parcels in one ring: at 64 KiB each 16 MiB, when a worker does not keep up at all.
pub const RING: usize = 256;
/// Frames are added to a parcel until it is so large.
const PARCEL: usize = 64 << 10;

/// Whole frames for one client.
#[derive(Debug)]
pub struct Parcel {
    pub to: Place,
    pub frames: u32,
    /// When they came.
    pub since: Nanos,
    pub bytes: Vec<u8>,
}

/// How a worker is told that there is something for it.
#[derive(Debug)]
pub struct Desk {
    waker: Arc<Waker>,
    asleep: AtomicBool,
    news: AtomicBool,
}

impl Desk {
    pub fn new(waker: Arc<Waker>) -> Desk {
        Desk { waker, asleep: AtomicBool::new(false), news: AtomicBool::new(true) }
    }

    /// After something was put in a ring or a mailbox of its worker.
    pub fn ring(&self) {
        self.note();
        self.wake();
    }

    /// As [`Desk::ring`], but a worker that sleeps sleeps on until [`Desk::wake`].
    pub fn note(&self) {
        self.news.store(true, Ordering::SeqCst);
    }

    /// Wakes a worker that sleeps although there is something for it.
    pub fn wake(&self) {
        if self.news.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Whether its worker may sleep now: nothing came since it last looked.
    pub fn lie_down(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let quiet = !self.news.load(Ordering::SeqCst);
        if !quiet {
            self.asleep.store(false, Ordering::SeqCst);
        }
        quiet
    }

    /// Awake again; whether there is something to be taken.
    pub fn get_up(&self) -> bool {
        self.asleep.store(false, Ordering::SeqCst);
        self.news.swap(false, Ordering::SeqCst)
    }
}

/// What a worker has for one other worker.
#[derive(Debug)]
pub struct Outgoing {
    ring: Producer<Parcel>,
    desk: Arc<Desk>,
    /// Of this turn, in order.
    parcels: Vec<Parcel>,
    /// By slot: the place of its last parcel in `parcels`, plus one.
    by_slot: Vec<u32>,
}

impl Outgoing {
    pub fn new(ring: Producer<Parcel>, desk: Arc<Desk>) -> Outgoing {
        Outgoing { ring, desk, parcels: Vec::new(), by_slot: Vec::new() }
    }

    /// Copies whole frames into a parcel.
    pub fn add(&mut self, to: Place, frames: &[u8], count: u32, now: Nanos, spares: &mut Spares) {
        let slot = to.slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, 0);
        }
        let last = (self.by_slot[slot] as usize).checked_sub(1).and_then(|at| self.parcels.get_mut(at));
        if let Some(parcel) = last
            && parcel.to == to
            && parcel.bytes.len() + frames.len() <= PARCEL
        {
            parcel.bytes.extend_from_slice(frames);
            parcel.frames += count;
            return;
        }
        let mut bytes = spares.take(frames.len());
        bytes.extend_from_slice(frames);
        self.parcels.push(Parcel { to, frames: count, since: now, bytes });
        self.by_slot[slot] = self.parcels.len() as u32;
    }

    /// Hands over what there is.
    pub fn send(&mut self, tally: &mut Tally, spares: &mut Spares) {
        if self.parcels.is_empty() {
            return;
        }
        for parcel in self.parcels.drain(..) {
            self.by_slot[parcel.to.slot as usize] = 0;
            let frames = u64::from(parcel.frames);
            match self.ring.push(parcel) {
                Ok(()) => tally.handed += frames,
                Err(PushError::Full(parcel)) => {
                    drop_frames(&parcel.bytes, Reason::RingFull, tally);
                    spares.give(parcel.bytes);
                }
            }
        }
        self.desk.ring();
    }
}

/// Counts every frame of `bytes` as dropped.
pub fn drop_frames(bytes: &[u8], reason: Reason, tally: &mut Tally) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let frame = first_frame(rest);
        tally.drop_packet(reason, data_of(frame));
        rest = &rest[frame.len()..];
    }
}

#[cfg(test)]
mod tests {
    use weir_core::relay::{Frame, Key};

    use super::*;

    fn place(slot: u32) -> Place {
        Place { worker: 1, slot, conn: u64::from(slot) }
    }

    #[test]
    fn frames_for_one_client_share_a_parcel_and_keep_their_order() {
        let (producer, mut consumer) = rtrb::RingBuffer::new(2);
        let desk = Arc::new(Desk::new(Arc::new(Waker::new().expect("an eventfd"))));
        let mut outgoing = Outgoing::new(producer, desk.clone());
        let (mut tally, mut spares) = (Tally::default(), Spares::default());
        desk.get_up();
        let frame = |n: u8| {
            let mut bytes = Vec::new();
            Frame::RecvPacket(Key([0; 32]), &[n]).write(&mut bytes);
            bytes
        };
        for n in 0..3 {
            outgoing.add(place(5), &frame(n), 1, 0, &mut spares);
            outgoing.add(place(6), &frame(n), 1, 0, &mut spares);
            outgoing.add(place(7), &frame(n), 1, 0, &mut spares);
        }
        outgoing.send(&mut tally, &mut spares);
        assert!(desk.get_up());
        let parcel = consumer.pop().expect("a parcel");
        assert_eq!((parcel.to.slot, parcel.frames), (5, 3));
        assert_eq!(parcel.bytes, [frame(0), frame(1), frame(2)].concat());
        // The ring has room for two.
        assert_eq!((tally.handed, tally.drops.packets()), (6, 3));
    }

    #[test]
    fn a_desk_that_was_rung_does_not_let_its_worker_sleep() {
        let desk = Desk::new(Arc::new(Waker::new().expect("an eventfd")));
        assert!(desk.get_up() && desk.lie_down());
        desk.ring();
        assert!(desk.get_up());
        assert!(!desk.get_up());
        desk.ring();
        assert!(!desk.lie_down());
    }

    #[test]
    fn a_note_is_found_by_whoever_is_awake_and_wakes_nobody_else() {
        let desk = Desk::new(Arc::new(Waker::new().expect("an eventfd")));
        desk.note();
        assert!(!desk.lie_down());
        assert!(desk.get_up());
        assert!(desk.lie_down());
        desk.wake();
        assert!(desk.asleep.load(Ordering::SeqCst), "there is nothing for it");
        desk.note();
        assert!(desk.asleep.load(Ordering::SeqCst));
        desk.wake();
        assert!(!desk.asleep.load(Ordering::SeqCst));
        assert!(desk.get_up());
    }
}
