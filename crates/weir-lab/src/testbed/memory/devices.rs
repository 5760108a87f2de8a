//! What a worker receives from and sends to: a source that makes frames, one that hands over frames made
//! beforehand, and a sink.
//!
//! ```text
//! Source   a template's 64 bytes copied into a buffer      Supply   frames put there between two breaths
//! Sink     counts, gives buffers back; of a batch under inspection it keeps a copy of every frame
//! ```

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_core::device::{Device, DeviceStats};
use weir_core::packet::{Batch, DeviceId, Frame, HEADROOM, Pool};

use super::traffic::{TEMPLATE, Template, Templates};

/// Heap buffers: a kilobyte or two and a bookkeeping word apart, so that the headers of a batch spread over
/// the sets of a first-level cache. At a power of two apart, as in AF_XDP's aligned memory, they would share
/// one or two sets of 64; DPDK pads the objects of its memory pools for the same reason.
pub type Memory = Box<[u8]>;

/// What source, sink and worker tell each other.
#[derive(Clone, Default)]
pub struct Gauges {
    /// Packets the source may still hand out.
    pub allowed: Rc<Cell<u64>>,
    pub made: Rc<Cell<u64>>,
    pub taken: Rc<Cell<u64>>,
    /// This breath's batch is under inspection: its frames are written to their ends, and kept.
    pub inspected: Rc<Cell<bool>>,
    pub kept: Rc<RefCell<Vec<Vec<u8>>>>,
}

/// Copies template after template into buffers, as many as it may.
pub struct Source {
    pub frames: Vec<Template>,
    pub lens: Vec<u16>,
    pub at: usize,
    /// The round of each template's last packet, of which the next is made.
    pub turn: u32,
    pub templates: Arc<Templates>,
    pub gauges: Gauges,
}

impl Device<Memory> for Source {
    fn rx(&mut self, pool: &mut Pool<Memory>, batch: &mut Batch<Memory>) -> usize {
        let room = (batch.room() as u64).min(self.gauges.allowed.get());
        let mut made = 0;
        while made < room {
            let Some(buffer) = pool.take() else { break };
            let mut frame = Frame::new(buffer, HEADROOM, TEMPLATE, DeviceId(0));
            frame.data_mut().copy_from_slice(&self.frames[self.at].0);
            self.templates.turn(frame.data_mut(), self.turn);
            let fits = frame.set_len(usize::from(self.lens[self.at]));
            debug_assert!(fits, "frames of 1,518 bytes fit into a buffer of 2,048");
            self.at += 1;
            if self.at == self.frames.len() {
                (self.at, self.turn) = (0, (self.turn + 1) % self.templates.turns);
            }
            if let Err(frame) = batch.push(frame) {
                pool.put(frame.into_buffer());
                break;
            }
            made += 1;
        }
        if self.gauges.inspected.get() {
            // a template ends where headers do; what a buffer held before would not be known
            batch
                .frames_mut()
                .iter_mut()
                .for_each(|f| f.data_mut().get_mut(TEMPLATE..).into_iter().flatten().for_each(|b| *b = 0));
        }
        self.gauges.allowed.set(self.gauges.allowed.get() - made);
        self.gauges.made.set(self.gauges.made.get() + made);
        made as usize
    }

    /// What the router answers to the generator: nothing here asks for it.
    fn tx(&mut self, pool: &mut Pool<Memory>, frames: &mut Vec<Frame<Memory>>) -> usize {
        give_back(pool, frames)
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        DeviceStats::default()
    }
}

/// Hands over frames made between two breaths.
pub struct Supply {
    pub ready: Rc<RefCell<Vec<Frame<Memory>>>>,
    pub gauges: Gauges,
}

impl Device<Memory> for Supply {
    fn rx(&mut self, pool: &mut Pool<Memory>, batch: &mut Batch<Memory>) -> usize {
        let mut ready = self.ready.borrow_mut();
        let made = ready.len() as u64;
        for frame in ready.drain(..) {
            if let Err(frame) = batch.push(frame) {
                pool.put(frame.into_buffer());
            }
        }
        self.gauges.allowed.set(self.gauges.allowed.get().saturating_sub(made));
        self.gauges.made.set(self.gauges.made.get() + made);
        made as usize
    }

    fn tx(&mut self, pool: &mut Pool<Memory>, frames: &mut Vec<Frame<Memory>>) -> usize {
        give_back(pool, frames)
    }

    fn buffers_held(&self) -> usize {
        self.ready.borrow().len()
    }

    fn stats(&mut self) -> DeviceStats {
        DeviceStats::default()
    }
}

/// Counts frames and gives their buffers back.
pub struct Sink {
    pub gauges: Gauges,
}

impl Device<Memory> for Sink {
    fn rx(&mut self, _: &mut Pool<Memory>, _: &mut Batch<Memory>) -> usize {
        0
    }

    fn tx(&mut self, pool: &mut Pool<Memory>, frames: &mut Vec<Frame<Memory>>) -> usize {
        if self.gauges.inspected.get() {
            self.gauges.kept.borrow_mut().extend(frames.iter().map(|f| f.data().to_vec()));
        }
        let count = give_back(pool, frames);
        let taken = &self.gauges.taken;
        taken.set(taken.get() + count as u64);
        count
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        DeviceStats::default()
    }
}

fn give_back(pool: &mut Pool<Memory>, frames: &mut Vec<Frame<Memory>>) -> usize {
    let count = frames.len();
    for frame in frames.drain(..) {
        pool.put(frame.into_buffer());
    }
    count
}
