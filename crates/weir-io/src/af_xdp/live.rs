//! Sending without a socket buffer in copy mode: the kernel runs a program on live frames, which copies ours into them.
//!
//! ```text
//! batch ─► slots (mapped) ─► one bpf(PROG_TEST_RUN) ─► transmit.c: copy, redirect ─► bulks of 16 ─► far end's queue
//!                                                                                      └─► tracepoint: taken, refused
//! ```
//!
//! Promises: what the device took is counted by the kernel's own tracepoint, frame by frame, so that none is lost silently;
//! all frames of a call have left when it returns, in order. Refuses: devices other than veth (others have a queue of their
//! own for redirected frames, which could overtake), those with several queues, and those whose far end has no XDP program:
//! without NAPI there the kernel drops every frame, and with GRO alone frames of a socket take another way than these.
//!
//! A call costs some 10 µs whatever it carries, so fewer than [`FRAMES_MIN`] frames are better sent by the socket. The kernel
//! enters a program that it is about to run many times into its XDP dispatcher and waits some 20 ms each time; one that is
//! attached somewhere is in there already. That somewhere is a TAP device nobody sets up, [`SPARE_DEVICE`], which goes with the
//! process.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use weir_core::time::{MILLISECOND, Nanos};
use weir_xdp::layout::{TRANSMIT_FRAME_MAX, TRANSMIT_SLOTS, TransmitSlot, TransmitState};
use weir_xdp::{LoadError, Loaded, Settings, TRANSMIT};

use crate::bpf::attach::{AttachError, Attachment, XdpMode};
use crate::bpf::features;
use crate::bpf::words::SharedWords;
use crate::interface::Interface;
use crate::offload::{self, Offload};
use crate::{netlink, tun};

/// Fewer frames than this are cheaper by the socket (16 cost the same, 32 half).
pub const FRAMES_MIN: usize = 32;
/// Frames of one call.
pub const FRAMES_MAX: usize = TRANSMIT_SLOTS as usize;
/// Bytes of the longest frame.
pub const LENGTH_MAX: usize = TRANSMIT_FRAME_MAX as usize;
/// What the kernel takes for a frame at all.
const LENGTH_MIN: usize = 14;
/// What the spare device is called; the kernel puts a number there.
pub const SPARE_DEVICE: &str = "weir-live%d";
/// How often far ends are asked whether they take such frames.
const ASK_EVERY: Nanos = 250 * MILLISECOND;
/// Words of a slot, and of what stands before the frame in it.
const SLOT_WORDS: usize = TransmitSlot::SIZE / 8;
const HEAD_WORDS: usize = (TransmitSlot::SIZE - LENGTH_MAX) / 8;

/// Why nothing is sent this way.
#[derive(Debug)]
pub enum LiveError {
    Load(LoadError),
    Memory(io::Error),
    /// No device to keep the program on.
    Spare(io::Error),
    Attach(AttachError),
}

impl fmt::Display for LiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LiveError::Load(error) => error.fmt(f),
            LiveError::Memory(error) => write!(f, "mapping the program's memory: {error}"),
            LiveError::Spare(error) => {
                write!(
                    f,
                    "no TAP device to keep the program on: {error}; allow /dev/net/tun and CAP_NET_ADMIN"
                )
            }
            LiveError::Attach(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LiveError {}

impl From<LoadError> for LiveError {
    fn from(error: LoadError) -> Self {
        LiveError::Load(error)
    }
}

/// What became of one call.
#[derive(Debug)]
pub(super) struct Sent {
    /// Frames the kernel had from us: they are gone, one way or the other.
    pub handed: usize,
    /// Frames of these that the device took.
    pub taken: usize,
    /// The device takes none, or the call failed.
    pub error: Option<io::Error>,
}

/// The program, which all ports of a process share.
pub struct LiveTransmit {
    sender: Mutex<Sender>,
    ports: Mutex<Vec<Arc<LivePort>>>,
    asked: AtomicU64,
}

struct Sender {
    // The attachment before the program, the device last.
    _attachment: Attachment,
    program: Loaded,
    state: SharedWords,
    slots: SharedWords,
    /// What live frames begin with; the program writes over it.
    blank: Vec<u8>,
    _spare: OwnedFd,
}

impl fmt::Debug for LiveTransmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveTransmit")
    }
}

impl LiveTransmit {
    /// Loads the program and makes the spare device, in the calling thread's network namespace.
    pub fn new() -> Result<LiveTransmit, LiveError> {
        let mut program = TRANSMIT.load(Settings::default())?;
        program.trace("weir_taken", "xdp_devmap_xmit")?;
        let map = |name, bytes| -> Result<SharedWords, LiveError> {
            SharedWords::of(program.maps.array_fd(name)?, bytes).map_err(LiveError::Memory)
        };
        let state = map("weir_tx_state", TransmitState::SIZE)?;
        let slots = map("weir_tx_slots", FRAMES_MAX * TransmitSlot::SIZE)?;
        let (spare, name) = tun::spare_tap(SPARE_DEVICE).map_err(LiveError::Spare)?;
        let link = netlink::link(&name).map_err(LiveError::Spare)?;
        let link = link.ok_or_else(|| LiveError::Spare(io::Error::from_raw_os_error(libc::ENODEV)))?;
        let modes = [XdpMode::Native, XdpMode::Generic];
        let attachment =
            Attachment::new(&name, link.index, &mut program, &modes).map_err(LiveError::Attach)?;
        let blank = vec![0; LENGTH_MAX];
        let sender = Sender { _attachment: attachment, program, state, slots, blank, _spare: spare };
        Ok(LiveTransmit { sender: Mutex::new(sender), ports: Mutex::default(), asked: AtomicU64::new(0) })
    }

    /// Sends for this device from now on, where its far end takes it.
    pub(super) fn join(&self, interface: &str, ifindex: u32) -> Arc<LivePort> {
        let port = LivePort { interface: interface.into(), ifindex, able: AtomicBool::new(false) };
        port.ask();
        let port = Arc::new(port);
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.retain(|port| Arc::strong_count(port) > 1);
        ports.push(port.clone());
        port
    }

    /// Asks whether far ends still take such frames, or do again, if the last time is long enough ago. Not a worker's work: the
    /// kernel's lock of all links is taken for it.
    pub fn ask(&self, now: Nanos) {
        if now.saturating_sub(self.asked.load(Ordering::Relaxed)) < ASK_EVERY {
            return;
        }
        self.asked.store(now, Ordering::Relaxed);
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|port| port.ask());
    }

    /// Sends frames out of a device; `None` while another worker sends, or after one died at it.
    pub(super) fn send<'a>(&self, ifindex: u32, frames: impl Iterator<Item = &'a [u8]>) -> Option<Sent> {
        match self.sender.try_lock() {
            Ok(mut sender) => Some(sender.send(ifindex, frames)),
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => None,
        }
    }
}

impl Sender {
    fn send<'a>(&mut self, ifindex: u32, frames: impl Iterator<Item = &'a [u8]>) -> Sent {
        let (mut count, mut longest) = (0, LENGTH_MIN);
        for (slot, frame) in frames.take(FRAMES_MAX).enumerate() {
            self.fill(slot, frame);
            longest = longest.max(frame.len());
            count += 1;
        }
        let state = TransmitState { ifindex, count, longest: longest as u32, ..TransmitState::default() };
        self.write(state);
        let run = self.program.run_live(&self.blank[..longest], count, count).map_err(LoadError::into_io);
        let state = self.read();
        // Whatever else is redirected on this CPU is not of this call.
        self.write(TransmitState::default());
        let failed = match run {
            // A signal ends a call after its frames.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            other => other.err(),
        };
        let handed = state.next.min(count);
        let refused = match state {
            // The kernel asked the device: it has no NAPI to give them to, say.
            TransmitState { error: ..0, .. } => Some(io::Error::from_raw_os_error(-state.error)),
            // It did not even ask: the device is down, or said beforehand that it takes none.
            _ if state.taken + state.refused < handed => {
                Some(io::Error::other("no frames can be redirected to it"))
            }
            _ => None,
        };
        Sent { handed: handed as usize, taken: handed.min(state.taken) as usize, error: failed.or(refused) }
    }

    fn fill(&self, slot: usize, frame: &[u8]) {
        let first = slot * SLOT_WORDS;
        self.slots.word(first).store(frame.len() as u64, Ordering::Relaxed);
        let (words, rest) = frame.as_chunks();
        let mut at = first + HEAD_WORDS;
        for word in words {
            self.slots.word(at).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            at += 1;
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.slots.word(at).store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }

    fn write(&self, state: TransmitState) {
        let bytes = state.to_bytes();
        for (at, word) in bytes.as_chunks().0.iter().enumerate() {
            self.state.word(at).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    fn read(&self) -> TransmitState {
        let mut bytes = [0; TransmitState::SIZE];
        for (at, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = self.state.word(at).load(Ordering::Relaxed).to_ne_bytes();
        }
        TransmitState::from_bytes(&bytes)
    }
}

/// A device whose far end may take such frames.
#[derive(Debug)]
pub(super) struct LivePort {
    interface: String,
    pub ifindex: u32,
    able: AtomicBool,
}

impl LivePort {
    pub fn is_able(&self) -> bool {
        self.able.load(Ordering::Relaxed)
    }

    /// A call took nothing: not before the far end was asked again.
    pub fn refused(&self) {
        self.able.store(false, Ordering::Relaxed);
    }

    fn ask(&self) {
        self.able.store(refusal(&self.interface, self.ifindex).is_none(), Ordering::Relaxed);
    }

    /// Why not now.
    pub fn refusal(&self) -> Option<String> {
        refusal(&self.interface, self.ifindex)
    }
}

/// Why a device cannot send live frames in the order of its socket's.
fn refusal(interface: &str, ifindex: u32) -> Option<String> {
    let Ok(device) = Interface::open(interface) else { return Some("it is gone".into()) };
    if device.driver().as_deref().unwrap_or("") != "veth" {
        return Some("only veth sends redirected frames by the queue of the others".into());
    }
    if device.queues().ok() != Some((1, 1)) {
        return Some("it has several queues".into());
    }
    // With a program on the far end the kernel takes segmentation offload from this one: then both ways are one queue.
    let one_way = !offload::is_on(interface, Offload::Tso).unwrap_or(true);
    if !features::can_transmit(ifindex).unwrap_or(false) || !one_way {
        return Some("the far end has no XDP program".into());
    }
    None
}

/// A port's own part.
#[derive(Debug)]
pub(super) struct Live {
    shared: Arc<LiveTransmit>,
    port: Arc<LivePort>,
    /// Frames the device took.
    pub sent: u64,
    /// Frames it did not: the far end's queue was full.
    pub dropped: u64,
    /// What is said next.
    notice: Option<String>,
    /// It was said that it works, or not.
    said: bool,
}

impl Live {
    pub fn new(shared: Arc<LiveTransmit>, interface: &str, ifindex: u32) -> Live {
        let port = shared.join(interface, ifindex);
        let said = port.is_able();
        Live { shared, port, sent: 0, dropped: 0, notice: None, said }
    }

    /// One sentence on how it begins.
    pub fn report(&self) -> String {
        match self.port.refusal() {
            None => format!("batches of {FRAMES_MIN} frames and more leave without socket buffers"),
            Some(why) => format!("socket buffers for all frames ({why})"),
        }
    }

    /// How many frames from the front one call takes; 0 where they are better sent by the socket.
    pub fn takes<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> usize {
        if !self.port.is_able() {
            return 0;
        }
        let fits = |frame: &&[u8]| (LENGTH_MIN..=LENGTH_MAX).contains(&frame.len());
        let count = frames.take(FRAMES_MAX).take_while(fits).count();
        if count < FRAMES_MIN { 0 } else { count }
    }

    /// Sends these; how many of them are gone.
    pub fn send<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) -> usize {
        let Some(sent) = self.shared.send(self.port.ifindex, frames) else { return 0 };
        self.sent += sent.taken as u64;
        self.dropped += (sent.handed - sent.taken) as u64;
        if let Some(error) = sent.error {
            self.port.refused();
            self.notice = Some(error.to_string());
        }
        sent.handed
    }

    /// What changed since the last time, for the log.
    pub fn watch(&mut self) -> Option<String> {
        let able = self.port.is_able();
        if able == self.said {
            return None;
        }
        self.said = able;
        let why = self.notice.take().or_else(|| self.port.refusal()).unwrap_or_default();
        Some(match able {
            true => "the far end has an XDP program: large batches leave without socket buffers".into(),
            false => format!("sending by the socket until the far end takes live frames again: {why}"),
        })
    }
}
