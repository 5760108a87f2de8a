//! What lies between a socket's bytes and frames: TLS of our own, WebSocket, or nothing.
//!
//! ```text
//!  out:  parts ─► [message] ─► [records of up to 16 KiB, sealed in a spare buffer] ─► parts
//!  in:   buffer ─► [opened in place] ─► [messages] ─► frames
//! ```
//!
//! Promises: a record is as full as what waits fills it, and nothing waits for a record to fill; a record that comes in
//! halves is kept, at most one a connection. Refuses: records longer than TLS allows.

use std::rc::Rc;

use weir_io::stream::{Buffer, Buffers, CAPACITY, Part};
use weir_io::tls::record::PLAIN_LIMIT;
use weir_io::tls::{self, TlsError};

use crate::backlog::BufferPool;
use crate::counters::End;
use crate::websocket::Unframer;

/// Type, version, length.
const HEAD: usize = 5;
/// RFC 8446 5.2 and, larger, RFC 5246 6.2.3.
const RECORD_MOST: usize = HEAD + (16 << 10) + 2048;

/// How the bytes of one connection travel.
#[derive(Default)]
pub struct Transport {
    pub tls: Option<Box<Tls>>,
    /// The kernel opens and seals: what comes and goes here is plaintext.
    pub by_kernel: bool,
    pub websocket: Option<Box<Unframer>>,
}

pub struct Tls {
    pub session: tls::Session,
    /// The beginning of a record.
    pub carry: Vec<u8>,
    /// The peer wants new keys of ours: one answer, however often it asks before there is room for it (RFC 8446 4.6.3).
    pub update_wanted: bool,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transport(tls: {}, websocket: {})", self.name(), self.websocket.is_some())
    }
}

impl Transport {
    /// Whether what is sent cannot be taken back frame by frame.
    pub fn is_opaque(&self) -> bool {
        self.tls.is_some() || self.websocket.is_some()
    }

    /// Whether something of TLS's own waits to be sent.
    pub fn owes(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.update_wanted)
    }

    /// Who opens and seals.
    pub fn name(&self) -> &'static str {
        match (&self.tls, self.by_kernel) {
            (Some(_), _) => "user",
            (None, true) => "kernel",
            (None, false) => "off",
        }
    }

    /// Appends bytes beside frames, as they go over the wire.
    pub fn write_raw(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), End> {
        match self.tls.as_deref_mut() {
            Some(tls) => tls.session.seal_into(bytes, out).map_err(|_| End::Transport),
            None => {
                out.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    pub fn memory(&self) -> usize {
        // What rustls keeps of a connection, besides.
        const SCHEDULE: usize = 1 << 10;
        self.tls.as_ref().map_or(0, |tls| size_of::<Tls>() + SCHEDULE + tls.carry.capacity())
            + if self.by_kernel { size_of::<tls::Kernel>() + SCHEDULE } else { 0 }
            + self.websocket.as_ref().map_or(0, |_| size_of::<Unframer>())
    }
}

impl Tls {
    pub fn new(session: tls::Session) -> Tls {
        Tls { session, carry: Vec::new(), update_wanted: false }
    }

    /// Adds to the record begun; how many bytes it took, and whether it is whole now.
    pub fn complete(&mut self, bytes: &[u8]) -> Result<(usize, bool), End> {
        let mut taken = HEAD.saturating_sub(self.carry.len()).min(bytes.len());
        self.carry.extend_from_slice(&bytes[..taken]);
        let &[_, _, _, high, low, ..] = &self.carry[..] else { return Ok((taken, false)) };
        let whole = HEAD + usize::from(u16::from_be_bytes([high, low]));
        if whole > RECORD_MOST {
            return Err(End::Transport);
        }
        let missing = whole.saturating_sub(self.carry.len()).min(bytes.len() - taken);
        self.carry.extend_from_slice(&bytes[taken..taken + missing]);
        taken += missing;
        Ok((taken, self.carry.len() >= whole))
    }
}

/// Seals what `plain` holds, `bytes` in all, into parts.
pub fn seal(
    session: &mut tls::Session,
    buffers: &Buffers,
    pool: &mut BufferPool,
    plain: &[Part],
    bytes: usize,
    sealed: &mut Vec<Part>,
) -> Result<(), TlsError> {
    if bytes <= PLAIN_LIMIT {
        return seal_one(session, pool, plain, bytes, sealed);
    }
    let mut records = Records { session, buffers, sealed, space: Space::None, at: 0, body: 0 };
    plain.iter().try_for_each(|part| records.write(part.bytes()))?;
    records.finish()
}

/// All in one record.
fn seal_one(
    session: &mut tls::Session,
    pool: &mut BufferPool,
    plain: &[Part],
    bytes: usize,
    sealed: &mut Vec<Part>,
) -> Result<(), TlsError> {
    let mut record = pool.take(bytes + session.overhead());
    match plain {
        [part] => session.seal_into(part.bytes(), &mut record)?,
        _ => {
            record.resize(session.head(), 0);
            plain.iter().for_each(|part| record.extend_from_slice(part.bytes()));
            record.resize(record.len() + session.tail(), 0);
            session.seal(&mut record)?;
        }
    }
    sealed.push(Part::Owned(record));
    Ok(())
}

/// Where records are written.
enum Space {
    None,
    Lent(Buffer),
    /// No buffer was free.
    Own(Vec<u8>),
}

struct Records<'a> {
    session: &'a mut tls::Session,
    buffers: &'a Buffers,
    sealed: &'a mut Vec<Part>,
    space: Space,
    /// Where the record begins that is being written.
    at: usize,
    /// Plaintext it has.
    body: usize,
}

impl Records<'_> {
    fn write(&mut self, mut plain: &[u8]) -> Result<(), TlsError> {
        while !plain.is_empty() {
            if self.body == 0 {
                self.make_room();
            }
            if self.body == 0 && plain.len() >= PLAIN_LIMIT {
                let (now, later) = plain.split_at(PLAIN_LIMIT);
                let end = self.at + PLAIN_LIMIT + self.session.overhead();
                let Some(record) = bytes_of(&mut self.space).get_mut(self.at..end) else { return Ok(()) };
                self.session.seal_from(now, record)?;
                self.at = end;
                plain = later;
                continue;
            }
            let (now, later) = plain.split_at(plain.len().min(PLAIN_LIMIT - self.body));
            let from = self.at + self.session.head() + self.body;
            let Some(place) = bytes_of(&mut self.space).get_mut(from..from + now.len()) else {
                return Ok(());
            };
            place.copy_from_slice(now);
            self.body += now.len();
            plain = later;
            if self.body == PLAIN_LIMIT {
                self.seal()?;
            }
        }
        Ok(())
    }

    fn seal(&mut self) -> Result<(), TlsError> {
        let end = self.at + self.body + self.session.overhead();
        if let Some(record) = bytes_of(&mut self.space).get_mut(self.at..end) {
            self.session.seal(record)?;
        }
        (self.at, self.body) = (end, 0);
        Ok(())
    }

    /// Sees to it that a whole record fits.
    fn make_room(&mut self) {
        let fits = self.at + PLAIN_LIMIT + self.session.overhead() <= bytes_of(&mut self.space).len();
        if fits {
            return;
        }
        self.hand_over();
        self.space = match self.buffers.take() {
            Some(mut buffer) => {
                buffer.resize(CAPACITY);
                Space::Lent(buffer)
            }
            None => Space::Own(vec![0; CAPACITY]),
        };
    }

    fn hand_over(&mut self) {
        let written = std::mem::take(&mut self.at);
        match std::mem::replace(&mut self.space, Space::None) {
            Space::None => {}
            Space::Lent(buffer) => self.sealed.push(Part::Shared(Rc::new(buffer), 0..written)),
            Space::Own(mut bytes) => {
                bytes.truncate(written);
                self.sealed.push(Part::Owned(bytes));
            }
        }
    }

    fn finish(&mut self) -> Result<(), TlsError> {
        if self.body > 0 {
            self.seal()?;
        }
        self.hand_over();
        Ok(())
    }
}

fn bytes_of(space: &mut Space) -> &mut [u8] {
    match space {
        Space::None => &mut [],
        Space::Lent(buffer) => buffer,
        Space::Own(bytes) => bytes,
    }
}
