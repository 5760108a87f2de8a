//! What a worker does beside the pipeline when its packets are protected.
//!
//! ```text
//! before a breath   inbound: the far end seals a batch into the buffers it will arrive in
//!                   one batch in 256 is inspected: every frame delivered is kept
//! 32 times a window the raw rate of the cipher; what was kept is opened by another cipher and compared
//! ```
//!
//! Of a run in slices each has one turn, before it warms up.
//!
//! Promises: raw rate and pipeline alternate inside one window, on the same core, with packets of the same
//! lengths; a delivered packet that is not what went in fails the run.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_core::ipsec::Cipher;
use weir_core::packet::{BATCH, Frame, Pool};
use weir_core::time::Nanos;
use weir_io::cipher::rate;

use super::devices::{Gauges, Memory};
use super::ipsec::{SaPlan, ciphers};
use super::peer_sa::{PeerSa, Wrong, known};
use super::traffic::Templates;
use super::worker::Job;
use crate::model::ipsec::Direction;
use crate::model::{LabError, Protection};

/// Batches between two that are inspected: the copies of one cost less than a thousandth of them all.
const INSPECTED_EVERY: u64 = 256;
/// Turns of a window: raw rate, inspection.
const TURNS: u64 = 32;
/// Time for the raw rate, of a window.
const RAW_SHARE: u64 = 4;
/// Link header of a delivered frame.
const ETHERNET: usize = 14;

/// What was measured and checked beside the pipeline.
pub struct Checked {
    /// Packets a second of the cipher alone.
    pub aead_pps: f64,
    /// Delivered packets opened and compared.
    pub packets: u64,
    /// Who sealed and opened in the pipeline, and who held it against what went in.
    pub backend: String,
    pub peer_sa: String,
}

pub struct Protected {
    direction: Direction,
    cipher: Arc<dyn Cipher>,
    peer_sa: PeerSa,
    templates: Arc<Templates>,
    ready: Rc<RefCell<Vec<Frame<Memory>>>>,
    raw: Raw,
    batches: u64,
    /// Inside a window.
    measured: bool,
    /// When the next turn is due, and the time between two.
    due: Nanos,
    every: Nanos,
    checked: u64,
    /// The first delivered packet that was not what went in.
    wrong: Option<Wrong>,
}

impl Protected {
    pub fn new(p: Protection, job: &Job) -> Result<Protected, LabError> {
        let plan = SaPlan::new(&p, job.worker);
        let measured = ciphers(p.backend)?;
        let cipher = plan.cipher(measured.as_ref())?;
        let other = plan.other_cipher(cipher.as_ref())?;
        let peer_sa = PeerSa::new(plan, other, job.templates.clone(), job.seed);
        let direction =
            if p.direction == Direction::In { rate::Direction::Open } else { rate::Direction::Seal };
        let raw = Raw::new(p, direction, &job.templates);
        Ok(Protected {
            direction: p.direction,
            cipher,
            peer_sa,
            templates: job.templates.clone(),
            ready: Rc::default(),
            raw,
            batches: 0,
            measured: false,
            due: Nanos::MAX,
            every: 0,
            checked: 0,
            wrong: None,
        })
    }

    /// Where frames made beforehand wait, if this worker receives such.
    pub fn supply(&self) -> Option<Rc<RefCell<Vec<Frame<Memory>>>>> {
        (self.direction == Direction::In).then(|| self.ready.clone())
    }

    /// The window begins with the next breath. Of a whole run it has turns.
    pub fn begin(&mut self, whole: Option<Duration>) {
        (self.measured, self.batches) = (true, 0);
        self.due = whole.map_or(Nanos::MAX, |_| 0);
        self.every = whole.map_or(0, |window| window.as_nanos() as Nanos / TURNS);
    }

    /// The only turn of a slice.
    pub fn turn(&mut self, window: Duration) {
        self.raw.turn(self.cipher.as_ref(), window.as_nanos() as Nanos / RAW_SHARE);
    }

    /// Does what is due between two breaths.
    pub fn prepare(&mut self, now: Nanos, pool: &mut Pool<Memory>, gauges: &Gauges) {
        if now >= self.due {
            self.due = now + self.every;
            self.raw.turn(self.cipher.as_ref(), self.every / RAW_SHARE);
            self.inspect(gauges);
        }
        gauges.inspected.set(self.measured && self.batches.is_multiple_of(INSPECTED_EVERY));
        self.batches += 1;
        if self.direction == Direction::In {
            let count = (gauges.allowed.get().min(BATCH as u64)) as usize;
            let buffers: Vec<Memory> = std::iter::from_fn(|| pool.take()).take(count).collect();
            self.peer_sa.seal(buffers, &mut self.ready.borrow_mut());
        }
    }

    /// Holds what was kept of delivered frames against what went in.
    fn inspect(&mut self, gauges: &Gauges) {
        for mut frame in gauges.kept.borrow_mut().drain(..) {
            let said = match self.direction {
                Direction::Out => self.peer_sa.open(&mut frame),
                _ => known(&self.templates, frame.get(ETHERNET..).unwrap_or_default()),
            };
            self.checked += 1;
            self.wrong = self.wrong.take().or(said.err());
        }
    }

    /// What the window showed; another may begin.
    pub fn end(&mut self, gauges: &Gauges) -> Result<Checked, LabError> {
        (self.measured, self.due) = (false, Nanos::MAX);
        self.inspect(gauges);
        if let Some(wrong) = &self.wrong {
            return Err(LabError::new(format!(
                "memory: a delivered packet {wrong}: the pipeline is at fault, its rate means nothing"
            )));
        }
        let Some(aead_pps) = self.raw.take_pps() else {
            return Err(LabError::new(format!(
                "memory: {} does not open what it sealed: name another backend",
                self.cipher.backend()
            )));
        };
        Ok(Checked {
            aead_pps,
            packets: std::mem::take(&mut self.checked),
            backend: self.cipher.backend(),
            peer_sa: self.peer_sa.sealed_by(),
        })
    }
}

/// The raw rate of a cipher for packets as long as the pipeline's.
struct Raw {
    direction: rate::Direction,
    /// A testbed for each length, with its share of the packets.
    testbeds: Vec<(rate::Testbed, f64)>,
    /// Nanoseconds a packet, round by round, of each length.
    rounds: Vec<Vec<f64>>,
    broken: bool,
}

impl Raw {
    fn new(p: Protection, direction: rate::Direction, templates: &Templates) -> Raw {
        let mut lens = templates.lens.clone();
        lens.sort_unstable();
        lens.dedup();
        let share = |len: &u16| {
            templates.lens.iter().filter(|l| *l == len).count() as f64 / templates.lens.len() as f64
        };
        let testbeds: Vec<(rate::Testbed, f64)> = lens
            .iter()
            .map(|len| {
                (rate::Testbed::new(p.cipher.0, usize::from(*len) - ETHERNET, rate::BUFFERS), share(len))
            })
            .collect();
        let rounds = testbeds.iter().map(|_| Vec::new()).collect();
        Raw { direction, testbeds, rounds, broken: false }
    }

    /// Measures for `time`, at least a round of each length after one that warms up.
    fn turn(&mut self, cipher: &dyn Cipher, time: Nanos) {
        let share = time / self.testbeds.len().max(1) as u64;
        for ((testbed, _), rounds) in self.testbeds.iter_mut().zip(&mut self.rounds) {
            let _ = testbed.round(cipher, self.direction);
            let mut spent = 0;
            loop {
                let Some(round) = testbed.round(cipher, self.direction) else {
                    self.broken = true;
                    return;
                };
                rounds.push(round.ns as f64 / rate::BUFFERS as f64);
                spent += round.ns.max(1);
                if spent >= share {
                    break;
                }
            }
        }
    }

    /// Takes the rate from the mean time of a packet: the pipeline's rate is a mean too, and both are held up
    /// alike. What is measured from now on is of the next window.
    fn take_pps(&mut self) -> Option<f64> {
        let mean = |rounds: &Vec<f64>| rounds.iter().sum::<f64>() / rounds.len().max(1) as f64;
        let ns: f64 = self.testbeds.iter().zip(&self.rounds).map(|((_, share), r)| share * mean(r)).sum();
        self.rounds.iter_mut().for_each(Vec::clear);
        (!self.broken && ns > 0.0).then(|| 1e9 / ns)
    }
}

#[cfg(all(test, feature = "ipsec"))]
mod tests;
