//! One relay takes over from another: its listening sockets go to the successor, and only then does it end.
//!
//! ```text
//! successor                                  the one before (control socket)
//! POST /v1/handover ───────────────────────► a line and the sockets (SCM_RIGHTS); serves on
//! files, workers, threads; listens with it
//! "ready" ─────────────────────────────────► takes nobody new, says Restarting, drains, ends
//! ```
//!
//! Promises: a listening socket never closes, so no connection is refused by the kernel meanwhile; a successor that fails
//! before it is ready changes nothing. Refuses: a second successor while the first is on its way.
//!
//! What a service manager opened for us (`LISTEN_FDS`) is taken the same way.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use weir_relay::acceptor::Sockets;
use weir_relay::inherited::Inherited;

use crate::control::Upgrade;

/// The kernel passes this many at once; a configuration names at most 97.
const PASSED_MAX: usize = 253;
/// The one before answers at once, or is stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest answer that is read, head and all.
const ANSWER_MAX: usize = 16 << 10;

/// How a successor asks, and what it says when it serves.
pub const UPGRADE: Upgrade = Upgrade { path: "/v1/handover", protocol: "weir-handover", word: b"ready\n" };

/// What goes with the sockets.
#[derive(Debug, Serialize, Deserialize)]
struct Handed {
    pid: u32,
    sockets: usize,
}

/// Why sockets did not change hands.
#[derive(Debug)]
pub enum HandoverError {
    NotReached {
        socket: PathBuf,
        error: io::Error,
    },
    NotHandedOver {
        socket: PathBuf,
        error: io::Error,
    },
    /// The other relay refused, in its own words.
    Refused {
        why: String,
    },
    Missing {
        arrived: usize,
        of: usize,
    },
    TooMany {
        sockets: usize,
    },
    NotPassed(io::Error),
}

impl fmt::Display for HandoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandoverError::NotReached { socket, error } => write!(
                f,
                "take over: control socket {}: {error}; run as the user the relay before runs as",
                socket.display()
            ),
            HandoverError::NotHandedOver { socket, error } => write!(
                f,
                "take over: the relay on {} did not hand over ({error}); see its log, or stop it first",
                socket.display()
            ),
            HandoverError::Refused { why } => write!(f, "take over: {why}"),
            HandoverError::Missing { arrived, of } => {
                write!(f, "take over: {arrived} of {of} sockets arrived; raise the limit of open files")
            }
            HandoverError::TooMany { sockets } => {
                write!(f, "handover: {sockets} sockets, expected at most {PASSED_MAX}; name fewer addresses")
            }
            HandoverError::NotPassed(error) => {
                write!(f, "handover: the sockets cannot be passed ({error})")
            }
        }
    }
}

/// The relay that serves until we are ready.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    pub pid: u32,
}

/// Asks the relay on this control socket for its sockets; nothing where none runs.
pub fn ask(socket: &Path) -> Result<Option<(Predecessor, Inherited)>, HandoverError> {
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(e) => {
            return Err(HandoverError::NotReached { socket: socket.to_owned(), error: e });
        }
    };
    let (line, descriptors) = exchange(&stream)
        .map_err(|error| HandoverError::NotHandedOver { socket: socket.to_owned(), error })?;
    let Ok(handed) = serde_json::from_str::<Handed>(&line) else {
        let why = serde_json::from_str(&line).map_or(line, |refusal: crate::view::Refusal| refusal.error);
        return Err(HandoverError::Refused { why: why.trim().to_owned() });
    };
    if descriptors.len() != handed.sockets {
        return Err(HandoverError::Missing { arrived: descriptors.len(), of: handed.sockets });
    }
    Ok(Some((Predecessor { stream, pid: handed.pid }, Inherited::of(descriptors))))
}

/// The question, and what comes after the head of the answer: a line, and descriptors beside it.
fn exchange(mut stream: &UnixStream) -> io::Result<(String, Vec<OwnedFd>)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let question = format!(
        "POST {} HTTP/1.1\r\nhost: weir\r\nconnection: upgrade\r\nupgrade: {}\r\ncontent-length: 0\r\n\r\n",
        UPGRADE.path, UPGRADE.protocol
    );
    stream.write_all(question.as_bytes())?;
    let (mut answer, mut descriptors) = (Vec::new(), Vec::new());
    loop {
        let text = String::from_utf8_lossy(&answer);
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Some((line, _)) = body.split_once('\n')
        {
            return Ok((line.to_owned(), descriptors));
        }
        if answer.len() > ANSWER_MAX || receive(stream, &mut answer, &mut descriptors)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its answer broke off"));
        }
    }
}

/// More of a stream, and the descriptors that come with it.
fn receive(stream: &UnixStream, into: &mut Vec<u8>, descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut piece = [0; 4 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut piece)];
    let got = recvmsg(stream, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    into.extend_from_slice(&piece[..got.bytes]);
    Ok(got.bytes)
}

impl Predecessor {
    /// Tells the other relay that this one is ready and takes over.
    pub fn ready(mut self) {
        match self.stream.write_all(UPGRADE.word) {
            Ok(()) => tracing::info!("taken over from process {}, which drains and ends", self.pid),
            Err(e) => {
                tracing::warn!("process {}, to be taken over from, has ended by itself ({e})", self.pid)
            }
        }
    }
}

/// The other side: everything that listens, to the successor. It is still ours.
pub fn give(to: &UnixStream, sockets: &Sockets, metrics: Option<&TcpListener>) -> Result<(), HandoverError> {
    let listeners = sockets.listeners.iter().map(|(_, listener)| listener.as_fd());
    let stun = sockets.stun.iter().map(|socket| socket.as_fd());
    let all: Vec<BorrowedFd<'_>> = listeners.chain(stun).chain(metrics.map(|m| m.as_fd())).collect();
    let handed = Handed { pid: std::process::id(), sockets: all.len() };
    let line = serde_json::to_string(&handed).map_err(|e| HandoverError::NotPassed(e.into()))? + "\n";
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(&all)) {
        return Err(HandoverError::TooMany { sockets: all.len() });
    }
    // A line fits into any socket's buffer.
    sendmsg(to, &[IoSlice::new(line.as_bytes())], &mut beside, SendFlags::NOSIGNAL)
        .map(drop)
        .map_err(|e| HandoverError::NotPassed(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_arrives_and_is_the_same_socket() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let mut sockets = Sockets::default();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        sockets.listeners.push((weir_relay::acceptor::listen::ListenerKind::Relay, listener));
        give(&here, &sockets, None).expect("given");
        let (mut line, mut descriptors) = (Vec::new(), Vec::new());
        receive(&there, &mut line, &mut descriptors).expect("received");
        assert!(line.ends_with(b"\"sockets\":1}\n"), "{}", String::from_utf8_lossy(&line));
        let taken = Inherited::of(descriptors).tcp(at).expect("it listens there");
        drop(sockets);
        let _one = std::net::TcpStream::connect(at).expect("it listens on");
        taken.set_nonblocking(false).expect("set");
        taken.accept().expect("the connection is its");
    }
}
