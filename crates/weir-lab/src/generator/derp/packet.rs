//! Packets as the generator builds and recognises them.
//!
//! ```text
//! | type, length 5 | key 32 | magic 8 | run 4 | pair 4 | sequence 8 | due 8 | fill, of its place and length |
//! ```
//!
//! Promises: frames of a batch differ in what [`Batch::stamp`] writes alone, so that a batch is built once.
//! Refuses: packets too short for their mark.

use weir_core::relay::frame::{HEADER, KEY, Key, Kind};
use weir_core::time::Nanos;

use crate::model::LabError;

/// What a packet says of itself.
pub const MARK: usize = 32;
const MAGIC: [u8; 8] = *b"weir-lab";
/// The longest data of a packet: an IPv6 packet of Tailscale's with the longest that still fits.
pub const DATA_MAX: u16 = 1518;

/// A mark as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub run: u32,
    pub pair: u32,
    pub sequence: u64,
    pub due: Nanos,
}

impl Mark {
    /// Reads the mark in a packet's data; `None` when it is none of ours.
    #[inline]
    pub fn read(data: &[u8]) -> Option<Mark> {
        let mark = data.first_chunk::<MARK>()?;
        if mark[..8] != MAGIC {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes([mark[at], mark[at + 1], mark[at + 2], mark[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Some(Mark { run: word(8), pair: word(12), sequence: long(16), due: long(24) })
    }

    #[inline]
    fn write(&self, data: &mut [u8]) {
        data[..8].copy_from_slice(&MAGIC);
        data[8..12].copy_from_slice(&self.run.to_le_bytes());
        data[12..16].copy_from_slice(&self.pair.to_le_bytes());
        data[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        data[24..32].copy_from_slice(&self.due.to_le_bytes());
    }
}

/// Finished frames of one length, to be stamped and sent again and again.
pub struct Batch {
    bytes: Vec<u8>,
    frame: usize,
    /// Distance between the beginnings of two groups of frames: TLS records have a head and a tail.
    data: usize,
}

impl Batch {
    /// `frames` of `data` bytes each.
    pub fn new(data: u16, frames: usize) -> Result<Batch, LabError> {
        if usize::from(data) < MARK || data > DATA_MAX {
            return Err(LabError::new(format!(
                "relay: packets of {data} bytes, expected {MARK} to {DATA_MAX}: change `frame`"
            )));
        }
        let data = usize::from(data);
        let frame = HEADER + KEY + data;
        let mut one = vec![0; frame];
        one[0] = Kind::SendPacket as u8;
        one[1..HEADER].copy_from_slice(&((KEY + data) as u32).to_be_bytes());
        for (at, byte) in one[HEADER + KEY + MARK..].iter_mut().enumerate() {
            *byte = fill(at);
        }
        Ok(Batch { bytes: one.repeat(frames), frame, data })
    }

    /// Bytes of a frame.
    pub fn frame(&self) -> usize {
        self.frame
    }

    /// Bytes of a packet.
    pub fn data(&self) -> usize {
        self.data
    }

    /// Frames there are.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.frame
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Makes of frame `n` the packet `mark` to `key`.
    #[inline]
    pub fn stamp(&mut self, n: usize, key: &Key, mark: Mark) {
        let frame = &mut self.bytes[n * self.frame..][..self.frame];
        frame[HEADER..HEADER + KEY].copy_from_slice(&key.0);
        mark.write(&mut frame[HEADER + KEY..]);
    }

    /// The first `n` frames.
    #[inline]
    pub fn first(&self, n: usize) -> &[u8] {
        &self.bytes[..n * self.frame]
    }

    /// Whether what follows a mark is what was sent.
    pub fn is_whole(&self, data: &[u8]) -> bool {
        data.len() == self.data && data[MARK..] == self.bytes[HEADER + KEY + MARK..self.frame]
    }
}

/// No two places of a frame and no two neighbours alike for long.
fn fill(at: usize) -> u8 {
    (at.wrapping_mul(167) ^ (at >> 8).wrapping_mul(59)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_stamped() {
        let mut batch = Batch::new(1400, 3).expect("a length that fits");
        let mark = Mark { run: 7, pair: 300, sequence: 1 << 40, due: 123_456_789_012 };
        batch.stamp(1, &Key([5; KEY]), mark);
        let frame = &batch.first(2)[batch.frame()..];
        assert_eq!(frame[..HEADER], [4, 0, 0, 5, 152]);
        assert_eq!(frame[HEADER..HEADER + KEY], [5; KEY]);
        let data = &frame[HEADER + KEY..];
        assert_eq!(Mark::read(data), Some(mark));
        assert!(batch.is_whole(data));
        let mut damaged = data.to_vec();
        damaged[1399] ^= 1;
        assert!(!batch.is_whole(&damaged));
        assert_eq!(Mark::read(&[0; MARK]), None);
    }

    #[test]
    fn packets_without_room_for_their_mark_are_refused() {
        assert!(Batch::new(31, 1).is_err() && Batch::new(1519, 1).is_err());
        assert_eq!(Batch::new(32, 4).expect("just enough").len(), 4);
    }
}
