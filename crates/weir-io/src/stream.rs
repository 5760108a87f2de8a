//! TCP streams of one worker thread: thousands of sockets, one wait.
//!
//! ```text
//! register ─► receiving ─► Received{buffer}… ─► Ended (the peer sends no more) │ Failed (nothing more comes)
//! send(parts) ─► tried once, with the next turn ─► Sent{how many bytes}      close ─► no event any more
//! release ─► what was under way is told ─► Released{socket}: another thread's streams may register it
//! ```
//!
//! Promises: the same behaviour by io_uring and by epoll; nothing blocks but [`Streams::turn`]; a received buffer
//! belongs to whoever has its handle and goes back to the pool when dropped; each send is answered by one `Sent`
//! with its parts, unless its stream is closed before; after `Failed`, and after [`Streams::close`], no event of a
//! stream comes. A call about a stream that was closed does nothing. When buffers run out, receiving waits for
//! their return and nothing is lost. Refuses: use from another thread, except for [`Streams::waker`].

mod buffers;
mod epoll;
mod slots;
mod socket;
mod uring;

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use buffers::{BUFFER, Buffer, Buffers, CAPACITY, Part};
pub use slots::StreamId;

use crate::wake::Waker;
use buffers::Pool;
use epoll::Epoll;
use uring::Uring;

/// Parts of a send: what the kernel takes in one call (`IOV_MAX`).
pub const MOST_PARTS: usize = 1024;

/// How the kernel is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring where the kernel has what is needed, epoll otherwise.
    #[default]
    Auto,
    Uring,
    Epoll,
}

/// How the kernel is asked in fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// io_uring, with what was found of it, in words.
    Uring {
        with: String,
    },
    Epoll {
        why: String,
    },
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chosen::Uring { with } => write!(f, "io_uring ({with})"),
            Chosen::Epoll { why } => write!(f, "epoll ({why})"),
        }
    }
}

/// What happened to a stream, which is named by the token it was adopted with.
#[derive(Debug)]
pub enum Event {
    Received {
        token: u64,
        buffer: Buffer,
    },
    /// A TLS record of the kernel's that is not application data; `kind` is its content type (RFC 8446, 5.1).
    Control {
        token: u64,
        kind: u8,
        buffer: Buffer,
    },
    /// The peer sends no more. Sending may still work.
    Ended {
        token: u64,
    },
    /// The stream is broken. Close it.
    Failed {
        token: u64,
        error: io::Error,
    },
    /// The socket took `sent` bytes of what was to be sent, in order; 0 when it was full.
    Sent {
        token: u64,
        sent: usize,
        parts: Vec<Part>,
    },
    /// The socket takes bytes again, or has failed: send, and see.
    Writable {
        token: u64,
    },
    /// The stream is nobody's any more, and this is its socket: all that was received has been told, and nothing is being sent.
    Released {
        token: u64,
        socket: OwnedFd,
    },
    /// Somebody used the waker.
    Woken,
}

/// What has been done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Waits, each one system call.
    pub enters: u64,
    pub receives: u64,
    pub received_bytes: u64,
    pub sends: u64,
    pub sent_bytes: u64,
    /// Sends of which the socket took nothing.
    pub full: u64,
    /// Receives put off because no buffer was free.
    pub no_buffers: u64,
}

/// The streams of one thread.
#[derive(Debug)]
pub struct Streams {
    kernel: Kernel,
    pool: Rc<Pool>,
    chosen: Chosen,
    waker: Arc<Waker>,
}

#[derive(Debug)]
enum Kernel {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
}

impl Streams {
    /// Makes room for streams. `buffers` of [`CAPACITY`] bytes are mapped and take memory when first used.
    pub fn new(backend: Backend, buffers: u16) -> io::Result<Streams> {
        let pool = Pool::new(buffers)?;
        let waker = Arc::new(Waker::new()?);
        let (kernel, chosen) = match backend {
            Backend::Epoll => epoll(&waker, "configured".to_owned())?,
            Backend::Uring => uring(&pool, &waker)?,
            Backend::Auto => uring(&pool, &waker)
                .or_else(|error| epoll(&waker, format!("io_uring is not to be had: {error}")))?,
        };
        Ok(Streams { kernel, pool, chosen, waker })
    }

    pub fn backend(&self) -> &Chosen {
        &self.chosen
    }

    /// Ends [`Streams::turn`] from any thread.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// Takes over a connected socket and begins to receive. `kernel_tls`: the kernel opens its records.
    /// Small sends leave at once (`TCP_NODELAY`).
    pub fn register(&mut self, socket: OwnedFd, token: u64, kernel_tls: bool) -> io::Result<StreamId> {
        socket::leave_at_once(&socket);
        match &mut self.kernel {
            Kernel::Uring(uring) => Ok(uring.register(socket, token, kernel_tls)),
            Kernel::Epoll(epoll) => epoll.register(socket, token, kernel_tls),
        }
    }

    /// Sends these parts, as much as the socket takes, with the next turn: [`Event::Sent`] tells. One send of a
    /// stream at a time; another before the answer is answered at once, with nothing sent. Of more than
    /// [`MOST_PARTS`] parts the first are sent.
    pub fn send(&mut self, id: StreamId, parts: Vec<Part>) {
        match &mut self.kernel {
            Kernel::Uring(uring) => uring.send(id, parts),
            Kernel::Epoll(epoll) => epoll.send(id, parts),
        }
    }

    /// Asks for one [`Event::Writable`].
    pub fn notify_writable(&mut self, id: StreamId) {
        match &mut self.kernel {
            Kernel::Uring(uring) => uring.notify_writable(id),
            Kernel::Epoll(epoll) => epoll.notify_writable(id),
        }
    }

    /// Stops receiving. What the kernel had already received may still come with the next turn.
    pub fn pause(&mut self, id: StreamId) {
        match &mut self.kernel {
            Kernel::Uring(uring) => uring.pause(id),
            Kernel::Epoll(epoll) => epoll.pause(id),
        }
    }

    /// Receives again.
    pub fn resume(&mut self, id: StreamId) {
        match &mut self.kernel {
            Kernel::Uring(uring) => uring.resume(id),
            Kernel::Epoll(epoll) => epoll.resume(id),
        }
    }

    /// Closes a stream with the next turn, after trying what was to be sent. Its token gets no more events.
    pub fn close(&mut self, id: StreamId) {
        match &mut self.kernel {
            Kernel::Uring(uring) => uring.close(id),
            Kernel::Epoll(epoll) => epoll.close(id),
        }
    }

    /// Gives a stream's socket back, unclosed, once nothing of it is under way: [`Event::Released`], and no event after it. Until
    /// then events come as ever, and closing the stream closes it. One that has failed is not released.
    pub fn release(&mut self, id: StreamId) {
        match &mut self.kernel {
            Kernel::Uring(uring) => uring.release(id),
            Kernel::Epoll(epoll) => epoll.release(id),
        }
    }

    /// The socket of a stream, for what is not sending or receiving (kernel TLS).
    pub fn socket(&mut self, id: StreamId) -> Option<BorrowedFd<'_>> {
        match &mut self.kernel {
            Kernel::Uring(uring) => uring.socket(id),
            Kernel::Epoll(epoll) => epoll.socket(id),
        }
    }

    /// Does what was asked for, waits until something happened or `timeout` is over (`None`: for ever), and adds
    /// what happened to `events`. Returns early, with nothing, when a signal came.
    pub fn turn(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        match &mut self.kernel {
            Kernel::Uring(uring) => uring.turn(timeout, events),
            Kernel::Epoll(epoll) => epoll.turn(timeout, &self.pool, events),
        }
    }

    /// The pool that received bytes come in: its empty buffers can be written into and sent.
    pub fn buffers(&self) -> Buffers {
        Buffers(self.pool.clone())
    }

    /// Streams adopted and not yet closed.
    pub fn len(&self) -> usize {
        match &self.kernel {
            Kernel::Uring(uring) => uring.len(),
            Kernel::Epoll(epoll) => epoll.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of this process mapped or allocated for streams; the kernel's sockets have theirs besides.
    pub fn memory(&self) -> usize {
        let tables = match &self.kernel {
            Kernel::Uring(uring) => uring.bytes(),
            Kernel::Epoll(epoll) => epoll.bytes(),
        };
        self.pool.bytes() + tables
    }

    pub fn counters(&self) -> Counters {
        match &self.kernel {
            Kernel::Uring(uring) => uring.counters(),
            Kernel::Epoll(epoll) => epoll.counters(),
        }
    }
}

fn uring(pool: &Rc<Pool>, waker: &Arc<Waker>) -> io::Result<(Kernel, Chosen)> {
    let (uring, with) = Uring::new(pool, waker.clone())?;
    Ok((Kernel::Uring(Box::new(uring)), Chosen::Uring { with }))
}

fn epoll(waker: &Arc<Waker>, why: String) -> io::Result<(Kernel, Chosen)> {
    Ok((Kernel::Epoll(Box::new(Epoll::new(waker.clone())?)), Chosen::Epoll { why }))
}

/// What a receive of this kind of record is to the user.
fn received(token: u64, kind: u8, buffer: Buffer) -> Event {
    match kind {
        socket::APPLICATION_DATA => Event::Received { token, buffer },
        kind => Event::Control { token, kind, buffer },
    }
}

/// Errors that say "later" and nothing about the stream.
fn passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
