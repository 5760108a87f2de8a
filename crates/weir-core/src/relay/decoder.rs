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
//! Refuses, at its header: a frame shorter or longer than its type allows, and on a client's side any that is longer than
//! Tailscale's own clients take. After that the stream is of no use.

use std::ops::Range;

use super::frame::{self, HEADER, Kind, Malformed};

/// The side whose frames are read.
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
            Kind::SendPacket
            | Kind::NotePreferred
            | Kind::ForwardPacket
            | Kind::WatchConns
            | Kind::ClosePeer => self == Side::Server,
            // What a client says of itself it has said in the handshake, where nothing is cut by this decoder.
            Kind::ClientInfo => false,
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
pub struct FrameDecoder {
    side: Side,
    /// Bytes of the frame being skipped that have not come yet.
    skip: u32,
    /// What came of a frame that is not whole yet; `skip` is 0 when there is any.
    kept: Vec<u8>,
}

/// The room reserved for a frame when its header has come, at most; beyond, memory grows with what really comes.
const RESERVED: usize = 4 << 10;

impl FrameDecoder {
    pub fn new(side: Side) -> FrameDecoder {
        FrameDecoder { side, skip: 0, kept: Vec::new() }
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
        if !self.takes(code, length)? {
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

    /// Whether a frame with this header is taken, or passed over.
    fn takes(&self, code: u8, length: usize) -> Result<bool, Malformed> {
        let takes = self.side.takes(code);
        match (takes, self.side) {
            (true, _) => frame::admit(code, length)?,
            (false, Side::Client) => frame::admit_unused(code, length)?,
            // As derper does: nothing of it is kept, so its length costs nothing.
            (false, Side::Server) => {}
        }
        Ok(takes)
    }

    /// Adds to the frame that was cut by the end of what was received before.
    fn complete(&mut self, bytes: &[u8], at: &mut usize) -> Result<Option<Piece>, Malformed> {
        if self.kept.len() < HEADER {
            self.keep(HEADER, bytes, at);
        }
        let Some((code, length)) = frame::head(&self.kept) else { return Ok(None) };
        if !self.takes(code, length)? {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::frame::{FRAME_MAX, Frame, KEY, Key, PACKET_MAX};

    const ALICE: Key = Key([1; KEY]);

    fn stream(frames: &[Frame<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes));
        bytes
    }

    fn unknown(length: u32) -> Vec<u8> {
        let mut bytes = vec![0x7f];
        bytes.extend(length.to_be_bytes());
        bytes.extend(vec![0x04; length as usize]);
        bytes
    }

    /// Every piece of what is received in parts; frames as their bytes.
    fn cut(parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, Malformed> {
        let mut decoder = FrameDecoder::new(Side::Server);
        let mut whole = Vec::new();
        for part in parts {
            let mut at = 0;
            while let Some(piece) = decoder.next(part, &mut at)? {
                match piece {
                    Piece::InPlace(range) => whole.push(part[range].to_vec()),
                    Piece::Owned(bytes) => whole.push(bytes),
                    Piece::Skipped(code, length) => whole.push(format!("{code} {length}").into_bytes()),
                }
            }
            assert_eq!(at, part.len(), "all is used up");
        }
        assert!(decoder.is_between_frames());
        Ok(whole)
    }

    #[test]
    fn the_same_frames_come_out_wherever_the_stream_is_cut() {
        let frames = [
            Frame::SendPacket(ALICE, b"one"),
            Frame::WatchConns,
            Frame::Ping(b"12345678"),
            Frame::SendPacket(ALICE, b""),
        ];
        let mut bytes = stream(&frames[..2]);
        bytes.extend(unknown(40));
        bytes.extend(unknown(0));
        bytes.extend(stream(&frames[2..]));
        let expected = cut(&[&bytes]).expect("it is well formed");
        assert_eq!(expected.len(), 6);
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(cut(&parts).as_ref(), Ok(&expected), "cut at {first} and {second}");
            }
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(cut(&single), Ok(expected));
    }

    #[test]
    fn whole_frames_are_named_where_they_are_and_nothing_is_kept() {
        let bytes = stream(&[Frame::SendPacket(ALICE, &[7; 1400]), Frame::SendPacket(ALICE, &[8; 100])]);
        let (mut decoder, mut at) = (FrameDecoder::new(Side::Server), 0);
        assert_eq!(decoder.next(&bytes, &mut at), Ok(Some(Piece::InPlace(0..1437))));
        assert_eq!(decoder.next(&bytes, &mut at), Ok(Some(Piece::InPlace(1437..1574))));
        assert_eq!(decoder.next(&bytes, &mut at), Ok(None));
        assert_eq!(decoder.memory(), 0);
    }

    #[test]
    fn memory_goes_with_the_frame_it_was_kept_for() {
        let bytes = stream(&[Frame::SendPacket(ALICE, &[7; 1400])]);
        let mut decoder = FrameDecoder::new(Side::Server);
        assert_eq!(decoder.next(&bytes[..700], &mut 0), Ok(None));
        assert!(decoder.memory() >= 700);
        assert_eq!(decoder.next(&bytes[700..], &mut 0), Ok(Some(Piece::Owned(bytes.clone()))));
        assert_eq!(decoder.memory(), 0);
    }

    #[test]
    fn a_header_that_promises_much_takes_memory_only_as_it_comes() {
        let bytes = stream(&[Frame::SendPacket(ALICE, &[7; PACKET_MAX])]);
        let mut decoder = FrameDecoder::new(Side::Server);
        assert_eq!(decoder.next(&bytes[..40], &mut 0), Ok(None));
        assert!(decoder.memory() <= RESERVED, "{} bytes for 40", decoder.memory());
    }

    #[test]
    fn a_skipped_frame_is_not_stored() {
        let bytes = unknown(FRAME_MAX as u32);
        let (mut decoder, mut at) = (FrameDecoder::new(Side::Server), 0);
        assert_eq!(decoder.next(&bytes[..64], &mut at), Ok(Some(Piece::Skipped(0x7f, FRAME_MAX))));
        assert_eq!(decoder.next(&bytes[..64], &mut at), Ok(None));
        assert_eq!(decoder.memory(), 0);
        assert!(!decoder.is_between_frames());
        assert_eq!(decoder.next(&bytes[64..], &mut 0), Ok(None));
        assert!(decoder.is_between_frames());
    }

    #[test]
    fn a_server_skips_an_unknown_frame_of_any_length_and_a_client_one_of_a_mebibyte_at_most() {
        let [a, b, c, d] = u32::MAX.to_be_bytes();
        let header = [0x7f, a, b, c, d];
        let skipped = Piece::Skipped(0x7f, u32::MAX as usize);
        assert_eq!(FrameDecoder::new(Side::Server).next(&header, &mut 0), Ok(Some(skipped)));
        let refused = Malformed::Huge(0x7f, u32::MAX as usize);
        assert_eq!(FrameDecoder::new(Side::Client).next(&header, &mut 0), Err(refused));
        let most = unknown(FRAME_MAX as u32);
        let skipped = Piece::Skipped(0x7f, FRAME_MAX);
        assert_eq!(FrameDecoder::new(Side::Client).next(&most, &mut 0), Ok(Some(skipped)));
    }

    #[test]
    fn what_a_server_has_no_use_for_is_skipped_and_a_client_takes_it() {
        let bytes = stream(&[Frame::Health(b"ill")]);
        assert_eq!(FrameDecoder::new(Side::Server).next(&bytes, &mut 0), Ok(Some(Piece::Skipped(0x14, 3))));
        assert_eq!(FrameDecoder::new(Side::Client).next(&bytes, &mut 0), Ok(Some(Piece::InPlace(0..8))));
    }

    #[test]
    fn frames_of_no_possible_length_are_refused_at_their_header() {
        let wrong = [
            (0x04, PACKET_MAX + 33),
            (0x04, 31),
            (0x0a, 63),
            (0x07, 0),
            (0x07, 2),
            (0x10, 1),
            (0x11, 33),
            (0x12, 7),
            (0x12, 1001),
        ];
        for (code, length) in wrong {
            let [a, b, c, d] = (length as u32).to_be_bytes();
            let header = [code, a, b, c, d];
            for at in 0..HEADER {
                let parts: [&[u8]; 2] = [&header[..at], &header[at..]];
                assert!(cut(&parts).is_err(), "{code:#x} of {length} bytes, cut at {at}");
            }
        }
    }
}
