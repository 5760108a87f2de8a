//! Cuts a stream of bytes, as it comes in pieces, into frames.
//!
//! ```text
//!  received   ┌──frame──┬──frame──┬─unknown─┬──fra┐┌me──┬──frame──┬─ …
//!  pieces      InPlace   InPlace   Skipped   kept─►Owned  InPlace
//! ```
//!
//! Promises: whole frames are named as ranges of what was received, without a copy or an allocation; of a frame that
//! is cut by the end, only what has come is kept, and given back once it is whole, so that an idle stream holds no memory;
//! the same frames come out however the stream is cut. Frames of types the side has no use for are skipped, never kept.
//! Refuses, at its header: a frame longer than its type allows. After that the stream is of no use.

use std::ops::Range;

use super::frame::{self, HEADER, Kind, Malformed};

/// Whose frames are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What clients and other relays send to a server.
    Server,
    /// What servers send to a client.
    Client,
}

impl Side {
    /// Whether this side acts on frames of a type; all others are skipped.
    pub fn takes(self, code: u8) -> bool {
        let Some(kind) = Kind::from_code(code) else { return false };
        match kind {
            Kind::Ping | Kind::Pong => true,
            Kind::ClientInfo
            | Kind::SendPacket
            | Kind::NotePreferred
            | Kind::ForwardPacket
            | Kind::WatchConns
            | Kind::ClosePeer => self == Side::Server,
            Kind::ServerKey
            | Kind::ServerInfo
            | Kind::RecvPacket
            | Kind::KeepAlive
            | Kind::PeerGone
            | Kind::PeerPresent
            | Kind::Health
            | Kind::Restarting => self == Side::Client,
        }
    }
}

/// A part of the stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// A whole frame, header and all, where it was received.
    InPlace(Range<usize>),
    /// A whole frame, header and all, that came in parts.
    Owned(Vec<u8>),
    /// A frame of this type and payload length is passed over.
    Skipped(u8, usize),
}

#[derive(Debug)]
pub struct Cutter {
    side: Side,
    /// Bytes of the frame being skipped that have not come yet.
    skip: u32,
    /// Of a frame that is not whole yet; `skip` is 0 when there are any.
    kept: Vec<u8>,
}

/// Up to here a frame's place is reserved when its header has come; beyond, memory grows with what really comes.
const RESERVED: usize = 4 << 10;

impl Cutter {
    pub fn new(side: Side) -> Cutter {
        Cutter { side, skip: 0, kept: Vec::new() }
    }

    /// Whether nothing of a frame is kept or skipped: the stream may end here.
    pub fn is_between_frames(&self) -> bool {
        self.kept.is_empty() && self.skip == 0
    }

    /// Bytes held for the frame that is not whole yet.
    pub fn memory(&self) -> usize {
        self.kept.capacity()
    }

    /// The next piece of `bytes` from `at` on, and moves `at` behind it.
    ///
    /// `None`: all of `bytes` is used up, and the next call is for what is received next, from 0 on. What stands
    /// before `at` is not looked at again, so that frames can be changed where they are.
    pub fn next(&mut self, bytes: &[u8], at: &mut usize) -> Result<Option<Piece>, Malformed> {
        if self.skip > 0 {
            let skipped = (bytes.len() - *at).min(self.skip as usize);
            self.skip -= skipped as u32;
            *at += skipped;
        }
        if !self.kept.is_empty() {
            return self.complete(bytes, at);
        }
        let rest = &bytes[*at..];
        let Some((code, length)) = frame::head(rest) else {
            self.kept.extend_from_slice(rest);
            *at = bytes.len();
            return Ok(None);
        };
        frame::admit(code, length)?;
        if !self.side.takes(code) {
            *at += HEADER;
            self.skip = length as u32;
            return Ok(Some(Piece::Skipped(code, length)));
        }
        let whole = HEADER + length;
        if rest.len() < whole {
            self.kept.reserve_exact(whole.min(RESERVED).max(rest.len()));
            self.kept.extend_from_slice(rest);
            *at = bytes.len();
            return Ok(None);
        }
        let range = *at..*at + whole;
        *at = range.end;
        Ok(Some(Piece::InPlace(range)))
    }

    /// Adds to the frame that was cut by the end of what was received before.
    fn complete(&mut self, bytes: &[u8], at: &mut usize) -> Result<Option<Piece>, Malformed> {
        if self.kept.len() < HEADER {
            self.keep(HEADER, bytes, at);
        }
        let Some((code, length)) = frame::head(&self.kept) else { return Ok(None) };
        frame::admit(code, length)?;
        if !self.side.takes(code) {
            self.kept = Vec::new();
            self.skip = length as u32;
            return Ok(Some(Piece::Skipped(code, length)));
        }
        let whole = HEADER + length;
        self.kept.reserve_exact(whole.min(RESERVED).saturating_sub(self.kept.len()));
        self.keep(whole, bytes, at);
        let done = self.kept.len() == whole;
        Ok(done.then(|| Piece::Owned(std::mem::take(&mut self.kept))))
    }

    /// Keeps more, until `whole` bytes are there.
    fn keep(&mut self, whole: usize, bytes: &[u8], at: &mut usize) {
        let end = bytes.len().min(*at + whole - self.kept.len());
        self.kept.extend_from_slice(&bytes[*at..end]);
        *at = end;
    }
}
