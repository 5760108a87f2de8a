//! Workers that stay between the slices of a run: each keeps its buffers, SAs and place among the flows, and
//! sleeps until it is asked for the next slice.
//!
//! ```text
//! lab ── Piece ──► worker 0 ╷ all leave the barrier together, measure, answer, and sleep again
//!     ── Piece ──► worker 1 ╵
//!     ◄─ Counts ── each
//! ```
//!
//! Promises: a worker that was not asked takes no processor time. Refuses: nothing; what a worker cannot do,
//! it says at every slice.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::{Builder, JoinHandle};

use super::worker::{Counts, Job, MemoryWorker, Piece};
use crate::model::LabError;

type Response = Result<Counts, LabError>;

/// The workers of one configuration; none until its first slice.
#[derive(Default)]
pub struct Standing(Vec<Seat>);

/// One worker, seen from the lab.
struct Seat {
    /// Closed first: the thread ends with its requests.
    requests: Option<Sender<Piece>>,
    answers: Receiver<Response>,
    thread: Option<JoinHandle<()>>,
}

impl Standing {
    pub fn up(jobs: Vec<Job>) -> Result<Standing, LabError> {
        let start = Arc::new(Barrier::new(jobs.len()));
        let seats = jobs.into_iter().map(|job| Seat::taken(job, start.clone()));
        Ok(Standing(seats.collect::<Result<_, _>>()?))
    }

    pub fn is_up(&self) -> bool {
        !self.0.is_empty()
    }

    /// One slice of every worker.
    pub fn measure(&self, piece: Piece) -> Result<Vec<Counts>, LabError> {
        let gone = || LabError::new("memory: a worker panicked".into());
        // the others would wait for it at the barrier
        if self.0.iter().any(|s| s.thread.as_ref().is_none_or(JoinHandle::is_finished)) {
            return Err(gone());
        }
        for seat in &self.0 {
            seat.requests.as_ref().and_then(|r| r.send(piece).ok()).ok_or_else(gone)?;
        }
        // each is heard before the first error is told, so that the next slice finds all asleep
        let heard: Vec<Response> =
            self.0.iter().map(|s| s.answers.recv().unwrap_or_else(|_| Err(gone()))).collect();
        heard.into_iter().collect()
    }
}

impl Seat {
    fn taken(job: Job, start: Arc<Barrier>) -> Result<Seat, LabError> {
        let (requests, asked) = channel();
        let (answer, answers) = channel();
        let thread = Builder::new().name("weir-lab-slices".into()).spawn(move || {
            let mut worker = MemoryWorker::new(&job);
            for piece in asked {
                start.wait();
                let counted = match &mut worker {
                    Ok(worker) => worker.measure(piece),
                    Err(e) => Err(e.clone()),
                };
                if answer.send(counted).is_err() {
                    break;
                }
            }
        });
        let thread = thread.map_err(|e| {
            LabError::new(format!("memory: a worker cannot be started ({e}): compare fewer at a time"))
        })?;
        Ok(Seat { requests: Some(requests), answers, thread: Some(thread) })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // one that panicked has said so at its last slice
            let _ = thread.join();
        }
    }
}
