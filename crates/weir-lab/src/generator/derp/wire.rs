//! One client's connection once it is known to the relay: frames out, frames in, through TLS or not.
//!
//! ```text
//! | … the beginning of a frame | the rest of a record, what is received now: opened in place |
//!   before HEADROOM              from HEADROOM on
//! ```
//!
//! Promises: whole frames are handed to `each` from where they were received, however they were cut; what the
//! socket does not take of a frame waits here and goes first. Refuses: frames longer than [`HEADROOM`], which no
//! relay sends to these clients: a stream that lost its frames is found at once.

use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::{fmt, io};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use weir_core::relay::frame::{HEADER, head};
use weir_io::tls::record::PLAIN_LIMIT;
use weir_io::tls::{News, Session, TlsError};

use super::packet::Batch;
use crate::model::{LabError, Misbehaviour};

/// Room of a buffer before what is received: the beginning of a frame that came before.
pub const HEADROOM: usize = 8 << 10;
/// How an error says that what came is no frame.
/// What came is no stream of frames: whoever sent it broke it.
#[derive(Debug)]
struct LostFrames {
    code: u8,
    length: usize,
}

impl fmt::Display for LostFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a frame of type {:#04x} and {} bytes: the stream lost its frames", self.code, self.length)
    }
}

impl std::error::Error for LostFrames {}

/// `said`, and who is to blame for `error`.
pub fn blamed(error: &io::Error, said: String) -> LabError {
    let lost = error.get_ref().is_some_and(|inner| inner.is::<LostFrames>());
    LabError { said, misbehaviour: lost.then_some(Misbehaviour::BrokeStream) }
}
/// Received at once, at most.
const RECEIVED_MAX: usize = 256 << 10;

/// What all wires of a thread receive into.
pub struct Buffer(Vec<u8>);

impl Buffer {
    pub fn new() -> Buffer {
        Buffer(vec![0; HEADROOM + RECEIVED_MAX])
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer::new()
    }
}

pub struct Wire {
    socket: TcpStream,
    /// What the socket has not taken, from `waiting_at`.
    waiting: Vec<u8>,
    waiting_at: usize,
    /// The beginning of a frame.
    partial: Vec<u8>,
    tls: Option<Tls>,
}

struct Tls {
    session: Box<Session>,
    /// The beginning of a record.
    rest: Vec<u8>,
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Wire {
    /// `partial` came after the handshake's last frame.
    pub fn new(socket: TcpStream, partial: Vec<u8>) -> Wire {
        Wire { socket, waiting: Vec::new(), waiting_at: 0, partial, tls: None }
    }

    /// Speaks TLS from here on; `rest` came after the last record that was opened.
    pub fn with_tls(mut self, session: Session, rest: Vec<u8>) -> Wire {
        self.tls = Some(Tls { session: Box::new(session), rest });
        self
    }

    /// Bytes the socket has yet to take.
    pub fn waits(&self) -> usize {
        self.waiting.len() - self.waiting_at
    }

    /// Sends what waits; whether all of it is gone.
    pub fn flush(&mut self) -> io::Result<bool> {
        if self.waits() > 0 {
            self.waiting_at += taken(send(&self.socket, &self.waiting[self.waiting_at..], flags()))?;
            if self.waits() == 0 {
                self.waiting.clear();
                self.waiting_at = 0;
            }
        }
        Ok(self.waits() == 0)
    }

    /// Sends the first `n` frames of `batch`; how many are on their way, the last ones perhaps waiting here. None
    /// while something waits.
    pub fn send(&mut self, batch: &Batch, n: usize) -> io::Result<usize> {
        if !self.flush()? {
            return Ok(0);
        }
        let bytes = batch.first(n);
        if let Some(tls) = &mut self.tls {
            let whole = PLAIN_LIMIT / batch.frame() * batch.frame();
            for plain in bytes.chunks(whole) {
                tls.seal(plain, &mut self.waiting).map_err(odd)?;
            }
            return self.flush().map(|_| n);
        }
        let sent = taken(send(&self.socket, bytes, flags()))?;
        let frames = sent.div_ceil(batch.frame());
        self.waiting.extend_from_slice(&bytes[sent..frames * batch.frame()]);
        Ok(frames)
    }

    /// Sends a small frame after whatever waits.
    pub fn say(&mut self, frame: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.waiting.extend_from_slice(frame),
            Some(tls) => tls.seal(frame, &mut self.waiting).map_err(odd)?,
        }
        self.flush().map(drop)
    }

    /// Receives once and hands over each whole frame, type and payload; how many bytes came, `None` when there
    /// was nothing.
    pub fn receive(
        &mut self,
        buffer: &mut Buffer,
        mut each: impl FnMut(u8, &[u8]),
    ) -> io::Result<Option<usize>> {
        let rest = self.tls.as_ref().map_or(0, |tls| tls.rest.len());
        let place = &mut buffer.0[HEADROOM + rest..];
        let received = match recv(&self.socket, place, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the relay closed it")),
            Ok((n, _)) => n,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let all = HEADROOM..HEADROOM + rest + received;
        let plain = match &mut self.tls {
            None => all,
            Some(tls) => {
                let plain = tls.open(&mut buffer.0[all], &mut self.waiting).map_err(odd)?;
                HEADROOM + plain.start..HEADROOM + plain.end
            }
        };
        let start = plain.start.checked_sub(self.partial.len()).ok_or_else(|| odd("a frame without end"))?;
        buffer.0[start..plain.start].copy_from_slice(&self.partial);
        let bytes = &buffer.0[start..plain.end];
        let used = hop(bytes, &mut each)?;
        self.partial.clear();
        self.partial.extend_from_slice(&bytes[used..]);
        Ok(Some(received))
    }
}

impl Tls {
    /// Appends a record of `plain` to `out`.
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        if self.session.key_limit_reached() {
            self.session.update(out)?;
        }
        let at = out.len();
        out.resize(at + plain.len() + self.session.overhead(), 0);
        self.session.seal_from(plain, &mut out[at..])
    }

    /// Opens `bytes`, which begin with the rest there was; where their plaintext is. Answers go to `out`.
    fn open(&mut self, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<Range<usize>, TlsError> {
        bytes[..self.rest.len()].copy_from_slice(&self.rest);
        let opened = self.session.open(bytes)?;
        self.rest.clear();
        self.rest.extend_from_slice(&bytes[opened.consumed..]);
        match opened.news {
            // the end of the stream follows, and is told then
            None | Some(News::CloseNotify | News::Alert(_)) => {}
            Some(News::UpdateWanted) => self.session.update(out)?,
        }
        Ok(opened.plain)
    }
}

fn odd(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// Hands over the whole frames of `bytes`; how many bytes they are.
#[inline]
fn hop(bytes: &[u8], each: &mut impl FnMut(u8, &[u8])) -> io::Result<usize> {
    let mut at = 0;
    while let Some((code, length)) = head(&bytes[at..]) {
        if HEADER + length > HEADROOM {
            return Err(io::Error::new(io::ErrorKind::InvalidData, LostFrames { code, length }));
        }
        let Some(payload) = bytes.get(at + HEADER..at + HEADER + length) else { break };
        each(code, payload);
        at += HEADER + length;
    }
    Ok(at)
}

fn flags() -> SendFlags {
    SendFlags::DONTWAIT | SendFlags::NOSIGNAL
}

/// A full socket took nothing.
fn taken(sent: Result<usize, Errno>) -> io::Result<usize> {
    match sent {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        other => other.map_err(io::Error::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn connected() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        (Wire::new(near, Vec::new()), listener.accept().expect("connected").0)
    }

    #[test]
    fn frames_are_whole_however_they_were_cut() {
        let (mut wire, mut far) = connected();
        let frames: Vec<u8> = (0..5u8).flat_map(|n| [6, 0, 0, 0, 2, n, n]).collect();
        let (mut buffer, mut got) = (Buffer::new(), Vec::new());
        for part in frames.chunks(3) {
            far.write_all(part).expect("open");
            let before = wire.partial.len();
            while wire.receive(&mut buffer, |code, payload| got.push((code, payload.to_vec()))).expect("open")
                != Some(part.len())
            {
                assert_eq!(wire.partial.len(), before);
            }
        }
        assert_eq!(got, (0..5u8).map(|n| (6, vec![n, n])).collect::<Vec<_>>());
    }

    #[test]
    fn a_stream_without_frames_is_found() {
        let (mut wire, mut far) = connected();
        far.write_all(&[0xff; 64]).expect("open");
        let mut buffer = Buffer::new();
        let error = loop {
            match wire.receive(&mut buffer, |_, _| {}) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("lost its frames"), "{error}");
    }

    #[test]
    fn a_full_socket_takes_the_rest_of_a_frame_before_the_next() {
        let (mut wire, mut far) = connected();
        let batch = Batch::new(1400, 32).expect("a length that fits");
        let mut frames = 0;
        loop {
            match wire.send(&batch, 32).expect("open") {
                0 => break,
                n => frames += n,
            }
        }
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).expect("open").min(all.len())
        });
        while !wire.flush().expect("open") {
            std::thread::yield_now();
        }
        drop(wire);
        assert_eq!(reader.join().expect("it reads"), frames * batch.frame());
    }
}
