//! One breath over devices: all that comes in goes out, and what a device refuses is a drop.

use std::collections::VecDeque;

use crate::common::world::*;
use weir_core::device::{Device, DeviceStats, DeviceStatus};
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_core::router::breathe;
use weir_core::verdict::Reason;

type Heap = Box<[u8]>;

/// Frames to receive, and how many it takes to send.
#[derive(Default)]
struct Line {
    id: u16,
    waiting: VecDeque<Vec<u8>>,
    takes: usize,
    taken: std::rc::Rc<std::cell::RefCell<Vec<Vec<u8>>>>,
    down: bool,
}

impl Device<Heap> for Line {
    fn rx(&mut self, pool: &mut Pool<Heap>, batch: &mut Batch<Heap>) -> usize {
        let mut count = 0;
        while batch.room() > 0
            && let Some(bytes) = self.waiting.pop_front()
        {
            let buffer = pool.take().expect("a buffer");
            batch.push(Frame::from_bytes(buffer, &bytes, DeviceId(self.id)).expect("fits")).expect("room");
            count += 1;
        }
        count
    }

    fn tx(&mut self, pool: &mut Pool<Heap>, frames: &mut Vec<Frame<Heap>>) -> usize {
        let count = frames.len().min(self.takes);
        self.takes -= count;
        for frame in frames.drain(..count) {
            self.taken.borrow_mut().push(frame.data().to_vec());
            pool.put(frame.into_buffer());
        }
        count
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        DeviceStats::default()
    }

    fn status(&mut self) -> DeviceStatus {
        if self.down { DeviceStatus::Down } else { DeviceStatus::Up }
    }
}

/// Breathes until nothing comes in; returns how many frames wan took.
fn breathe_out(w: &mut World, lan: Vec<Vec<u8>>, wan_takes: usize, wan_down: bool) -> Vec<Vec<u8>> {
    let taken = std::rc::Rc::default();
    let mut devices: Vec<Box<dyn Device<Heap>>> = vec![
        Box::new(Line { waiting: lan.into(), takes: usize::MAX, ..Line::default() }),
        Box::new(Line {
            id: 1,
            takes: wan_takes,
            taken: std::rc::Rc::clone(&taken),
            down: wan_down,
            ..Line::default()
        }),
        Box::new(Line { id: 2, takes: usize::MAX, ..Line::default() }),
    ];
    let mut batch = Batch::new();
    let free = w.pool.free();
    while breathe(&mut w.router, 0, &w.tables, &mut devices, &mut batch, &mut w.pool, &mut w.out) > 0 {
        assert_eq!(w.router.ledger().balance(), 0);
        assert!(batch.is_empty() && w.out.tx.iter().all(Vec::is_empty));
    }
    assert_eq!(w.pool.free(), free, "buffers are lost");
    drop(devices);
    std::rc::Rc::try_unwrap(taken).expect("the devices are gone").into_inner()
}

fn flow(count: u16) -> Vec<Vec<u8>> {
    (0..count)
        .map(|n| frame(LAN, "10.0.0.2", "10.100.0.9").ident(n.into()).udp(1, 2, b"in order, please"))
        .collect()
}

#[test]
fn more_than_a_batch_passes_in_order() {
    let mut w = World::new();
    let taken = breathe_out(&mut w, flow(200), usize::MAX, false);
    let order: Vec<_> = taken.iter().map(|bytes| ipv4(bytes).ident()).collect();
    assert_eq!(order, (0..200).collect::<Vec<_>>());
    assert_eq!(w.router.ledger().forwarded, 200);
}

#[test]
fn refused_frames_are_drops_and_not_forwarded() {
    let mut w = World::new();
    let frames = flow(100);
    let len = frames[0].len() as u64;
    assert_eq!(breathe_out(&mut w, frames, 30, false).len(), 30);
    let ledger = w.router.ledger();
    assert_eq!((ledger.received, ledger.forwarded, ledger.drops.of(Reason::TxRingFull)), (100, 30, 70));
    let wan = w.router.port_counters()[WAN.index()];
    assert_eq!((wan.tx_packets, wan.tx_bytes), (30, 30 * len));
}

#[test]
fn device_that_is_down_is_named_in_the_reason() {
    let mut w = World::new();
    breathe_out(&mut w, flow(10), 0, true);
    assert_eq!(w.router.ledger().drops.of(Reason::PortDown), 10);
}

#[test]
fn refused_frames_of_our_own_are_lost_and_no_drops() {
    let mut w = World::new();
    // Echo requests on lan for which the reply leaves by wan, which takes nothing.
    let requests: Vec<_> =
        (0..5).map(|n| frame(LAN, "10.100.0.5", "10.0.0.1").echo_request(1, n, b"x")).collect();
    breathe_out(&mut w, requests, 0, false);
    let ledger = w.router.ledger();
    assert_eq!((ledger.local, ledger.originated, ledger.originated_lost), (5, 0, 5));
    assert_eq!(ledger.drops.total(), 0);
}

#[test]
fn frame_is_in_no_counter_before_a_device_has_taken_it() {
    let mut w = World::new();
    let mut batch = Batch::new();
    let buffer = w.pool.take().expect("a buffer");
    let bytes = flow(1).remove(0);
    batch.push(Frame::from_bytes(buffer, &bytes, DeviceId(0)).expect("fits")).expect("room");
    w.router.forward(0, &w.tables, &mut batch, &mut w.pool, &mut w.out);
    assert_eq!(w.out.tx[1].len(), 1);
    let sent = |w: &World| (w.router.ledger().forwarded, w.router.port_counters()[WAN.index()].tx_packets);
    assert_eq!((sent(&w), w.router.ledger().balance()), ((0, 0), 1));
    w.router.taken(&w.tables, &w.out);
    assert_eq!((sent(&w), w.router.ledger().balance()), ((1, 1), 0));
}
