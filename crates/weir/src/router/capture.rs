//! `POST /v1/capture`: copies of packets that are dropped, from workers to whoever asked for them.
//!
//! ```text
//! client ── begin ──► control thread ── sampler ──► workers
//!        ── fetch ──►       ▲◄── bounded channel ──── copies, at most so many a second
//! ```
//!
//! Promises: one capture at a time; without one, workers do nothing for it; a capture whose client asks no more ends by
//! itself within [`LEASE`]; what does not fit is counted, and delays nobody. Refuses: what was dropped in front of the
//! kernel, where weir has no packet to copy.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use weir_core::router::sampler::Link;
use weir_core::time::{Nanos, SECOND};
use weir_core::verdict::Reason;

use super::Daemon;
use super::worker::{ALLOWED_EVERY, CaptureOrder, CapturedCopy, WorkerCommand};
use crate::config::source::nearest;
use crate::failure::Blame;
use crate::view::capture::{Capture, CaptureRequest, DroppedPacket};

/// A capture nobody fetches from for so long ends.
const LEASE: Nanos = 5 * SECOND;
/// Copies that wait to be fetched: of whole packets, 4 MiB at most in buffers of 4 KiB.
const WAITING_MAX: usize = 1024;
/// Copies in one response: 2 MiB of hexadecimal at most.
const FETCHED_MAX: usize = 256;
const RATE_DEFAULT: u32 = 100;
/// Copies a second of a worker: a thousand copies of 1,500 bytes are some hundred microseconds of its second.
pub const RATE_MAX: u32 = 10_000;
const SNAP_MAX: usize = 65_535;

/// The capture there is, and how many there were.
#[derive(Debug, Default)]
pub struct Captures {
    running: Option<Captured>,
    begun: u64,
}

#[derive(Debug)]
struct Captured {
    id: u64,
    fetched: Nanos,
    copies: Receiver<CapturedCopy>,
    dropped: Arc<AtomicU64>,
    packets: u64,
}

/// Why packets are not captured.
#[derive(Debug)]
pub enum CaptureError {
    NotARequest(serde_json::Error),
    NoSuchReason { name: String, nearest: Option<&'static str> },
    InFrontOfTheKernel,
    Rate(u32),
    Snap(usize),
    Another,
    Ended(u64),
}

impl CaptureError {
    /// Whoever asks has to ask otherwise.
    pub fn blame(&self) -> Blame {
        Blame::Operator
    }
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::NotARequest(error) => write!(
                f,
                "capture: the body is not a request ({error}); send {{\"reasons\": [\"no_route\"]}}, then {{\"id\": N}}"
            ),
            CaptureError::NoSuchReason { name, nearest } => {
                write!(f, "capture: no packet is dropped as `{name}`; ")?;
                match nearest {
                    Some(nearest) => write!(f, "write `{nearest}`?"),
                    None => f.write_str("`weir capture --list` has the reasons"),
                }
            }
            CaptureError::InFrontOfTheKernel => f.write_str(
                "capture: no_socket is dropped in front of the kernel, where weir has no packet to copy; `tcpdump -i DEVICE` sees it",
            ),
            CaptureError::Rate(got) => {
                write!(f, "capture: rate is {got}, expected 1 to {RATE_MAX} a second; write one of them")
            }
            CaptureError::Snap(got) => {
                write!(f, "capture: snap is {got}, expected 64 to {SNAP_MAX} bytes; write one of them")
            }
            CaptureError::Another => write!(
                f,
                "capture: another one runs; end it, or wait: it ends {} s after its client",
                LEASE / SECOND
            ),
            CaptureError::Ended(id) => write!(
                f,
                "capture: there is none of id {id}; it ended {} s after it was fetched from last; begin another",
                LEASE / SECOND
            ),
        }
    }
}

impl std::error::Error for CaptureError {}

/// The reasons of these names; all that packets can be copied of where none is named.
fn reasons(names: &[String]) -> Result<Vec<Reason>, CaptureError> {
    if names.is_empty() {
        return Ok(Reason::ALL.iter().copied().filter(|&reason| reason != Reason::NoSocket).collect());
    }
    let of = |name: &String| match Reason::of_name(name) {
        Some(Reason::NoSocket) => Err(CaptureError::InFrontOfTheKernel),
        Some(reason) => Ok(reason),
        None => {
            let known: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
            Err(CaptureError::NoSuchReason { name: name.clone(), nearest: nearest(name, &known) })
        }
    };
    names.iter().map(of).collect()
}

impl Daemon {
    pub(super) fn capture(&mut self, now: Nanos, body: &[u8]) -> Result<Capture, CaptureError> {
        let request: CaptureRequest = serde_json::from_slice(body).map_err(CaptureError::NotARequest)?;
        let captured = match request.id {
            Some(id) => {
                let running = self.captures.running.take_if(|captured| captured.id == id);
                running.ok_or(CaptureError::Ended(id))?
            }
            None => self.begin_capture(now, &request)?,
        };
        let captured = self.captures.running.insert(Captured { fetched: now, ..captured });
        let unix = unix_ns();
        let ports = &self.control.tables().ports;
        let mut packets = Vec::new();
        for copy in captured.copies.try_iter().take(FETCHED_MAX) {
            let name = copy.port.and_then(|port| ports.get(port.index())).map(|port| port.name.clone());
            packets.push(shown(copy, unix.saturating_sub(now), name.unwrap_or_default()));
        }
        captured.packets += packets.len() as u64;
        let (id, dropped) = (captured.id, captured.dropped.load(Ordering::Relaxed));
        let more = packets.len() == FETCHED_MAX;
        if request.end && !more {
            self.end_capture("its client ended it");
        }
        Ok(Capture { id, dropped, packets, more })
    }

    fn begin_capture(&mut self, now: Nanos, request: &CaptureRequest) -> Result<Captured, CaptureError> {
        let reasons = reasons(&request.reasons)?;
        let rate = request.rate.unwrap_or(RATE_DEFAULT);
        if !(1..=RATE_MAX).contains(&rate) {
            return Err(CaptureError::Rate(rate));
        }
        let keep = request.snap.unwrap_or(SNAP_MAX);
        if !(64..=SNAP_MAX).contains(&keep) {
            return Err(CaptureError::Snap(keep));
        }
        if self.captures.running.is_some() {
            return Err(CaptureError::Another);
        }
        let (copies, receiver) = sync_channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let allowed = u64::from(rate) * ALLOWED_EVERY / SECOND;
        let order = CaptureOrder {
            reasons: reasons.into(),
            keep,
            allowed: (allowed as u32).max(1),
            copies,
            dropped: Arc::clone(&dropped),
        };
        for worker in &self.workers {
            worker.post(WorkerCommand::Sample(Some(order.clone())));
        }
        self.captures.begun += 1;
        let names = request.reasons.join(", ");
        let of = if names.is_empty() { "for any reason" } else { &names };
        tracing::info!("capture {}: packets dropped ({of}) are copied to its client", self.captures.begun);
        Ok(Captured { id: self.captures.begun, fetched: now, copies: receiver, dropped, packets: 0 })
    }

    /// Ends a capture whose client has gone.
    pub(super) fn watch_capture(&mut self, now: Nanos) {
        if self.captures.running.as_ref().is_some_and(|c| now.saturating_sub(c.fetched) >= LEASE) {
            self.end_capture("its client asked no more");
        }
    }

    fn end_capture(&mut self, why: &str) {
        let Some(captured) = self.captures.running.take() else { return };
        for worker in &self.workers {
            worker.post(WorkerCommand::Sample(None));
        }
        tracing::info!("capture {}: over after {} packets, {why}", captured.id, captured.packets);
    }
}

fn unix_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// `epoch`: what lies between the router's clock and 1970.
fn shown(copy: CapturedCopy, epoch: u64, port: String) -> DroppedPacket {
    let CapturedCopy { at, sample, .. } = copy;
    DroppedPacket {
        time_ns: at + epoch,
        reason: sample.reason.name().to_owned(),
        port,
        link: match sample.link {
            Link::Ethernet => "ethernet".to_owned(),
            Link::Ip => "ip".to_owned(),
        },
        length: sample.len,
        bytes: sample.data.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
