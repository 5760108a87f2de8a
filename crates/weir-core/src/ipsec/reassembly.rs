//! Outer packets that came in fragments (RFC 791, RFC 8200 4.5), made whole for ESP to open.
//!
//! ```text
//! push ─► packet by source, destination, identification ─► all there? ─► one frame, in the first fragment's buffer
//!              │ overlaps, disagrees, too large: whole packet lost, and what still comes of it
//!              └ no room: the oldest packet lost          expire ─► older than the time: lost
//! ```
//!
//! Promises: every frame given ends once, as the packet returned or in the list of [`Ended`] frames; at most
//! [`MAX_FRAMES`] are held, whoever sends. A fragment that comes twice the same does no harm. Refuses: any
//! other overlap, for IPv4 as for IPv6 (RFC 5722), since what one end sees and another does not is how
//! filters are fooled; what fits in no buffer.

mod fragment;
#[cfg(feature = "testing")]
pub mod fuzz;

use crate::packet::{Buffer, Frame};
use crate::time::{Nanos, SECOND};
use crate::verdict::Reason;
use crate::wire::{Ipv4, ipv6, put16};
use fragment::{Fragment, Key};

/// Fragments of one packet. A buffer of 4,096 B in pieces for a path of 576 B is 8 of them; cut twice on the
/// way, 16.
pub const MAX_FRAGMENTS: usize = 16;
/// Packets that wait, those refused until their time is over included. A batch of 64 may be one fragment
/// each.
pub const MAX_PACKETS: usize = 64;
/// Frames that wait: 256 × 2,048 B is 512 KiB of a worker's buffers, and 4 a packet.
pub const MAX_FRAMES: usize = 4 * MAX_PACKETS;
/// How long a packet waits for the rest of it. Fragments travel together; at 1,500 B and 1 Gbit/s, IPv4's
/// identification comes around within a second.
pub const TIME: Nanos = 2 * SECOND;

/// Room kept in front of a packet that leaves no more: its link header.
const LEAST_START: usize = 32;

/// A frame that waits no longer.
#[derive(Debug)]
pub struct Ended<B> {
    pub frame: Frame<B>,
    /// `None`: its bytes are in the packet that was returned.
    pub lost: Option<Reason>,
}

/// The fragments one worker holds.
#[derive(Debug)]
pub struct Reassembly<B> {
    packets: Vec<Partial<B>>,
    held: usize,
    /// The time before which no fragment expires.
    next: Nanos,
}

/// A packet some of whose fragments came.
#[derive(Debug)]
struct Partial<B> {
    /// `None`: a free place.
    key: Option<Key>,
    since: Nanos,
    /// Bytes behind the headers, known from the last fragment.
    total: Option<usize>,
    got: usize,
    /// Bit n: the ECN field n was seen.
    ecn: u8,
    /// Why all of it is lost, until its time is over.
    refused: Option<Reason>,
    pieces: Vec<Piece<B>>,
}

#[derive(Debug)]
struct Piece<B> {
    frame: Frame<B>,
    fragment: Fragment,
}

impl<B: Buffer> Default for Reassembly<B> {
    fn default() -> Self {
        Reassembly::new()
    }
}

impl<B: Buffer> Reassembly<B> {
    pub fn new() -> Self {
        Reassembly { packets: Vec::new(), held: 0, next: Nanos::MAX }
    }

    /// Frames that wait.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes a frame that begins at its IP header; the whole packet, if this was the last of it. A packet
    /// that is no fragment is whole.
    pub fn push(&mut self, now: Nanos, mut frame: Frame<B>, ended: &mut Vec<Ended<B>>) -> Option<Frame<B>> {
        let (key, fragment) = match fragment::read(frame.data()) {
            Ok(Some(read)) => read,
            Ok(None) => return Some(frame),
            Err(reason) => {
                ended.push(Ended { frame, lost: Some(reason) });
                return None;
            }
        };
        // Link padding would be taken for payload.
        let cut = frame.set_len(fragment.end());
        debug_assert!(cut, "a packet is within its frame");
        if fragment.offset == 0 && !fragment.more {
            // Whole by itself: not to be mixed with others of its number (RFC 6946 4).
            become_whole(&mut frame, &fragment, false);
            return Some(frame);
        }
        while self.held >= MAX_FRAMES && self.evict(ended).is_some() {}
        let at = self.place(now, key, ended);
        self.held += 1;
        let packet = &mut self.packets[at];
        match packet.add(Piece { frame, fragment }) {
            Ok(()) if packet.is_whole() => {
                self.held -= packet.pieces.len();
                match packet.merge(ended) {
                    Ok(whole) => Some(whole),
                    Err(reason) => {
                        packet.refuse(reason, ended);
                        None
                    }
                }
            }
            Ok(()) => None,
            Err((piece, Refused::Duplicate)) => {
                self.held -= 1;
                ended.push(Ended { frame: piece.frame, lost: Some(Reason::FragmentOverlap) });
                None
            }
            Err((piece, Refused::Packet(reason))) => {
                self.held -= 1 + packet.pieces.len();
                ended.push(Ended { frame: piece.frame, lost: Some(reason) });
                packet.refuse(reason, ended);
                None
            }
        }
    }

    /// Where the packet of `key` is, from now on at least.
    fn place(&mut self, now: Nanos, key: Key, ended: &mut Vec<Ended<B>>) -> usize {
        if let Some(at) = self.packets.iter().position(|packet| packet.key == Some(key)) {
            return at;
        }
        let mut free = self.packets.iter().position(|packet| packet.key.is_none());
        if free.is_none() && self.packets.len() == MAX_PACKETS {
            free = self.evict(ended);
        }
        let at = free.unwrap_or_else(|| {
            self.packets.push(Partial::free());
            self.packets.len() - 1
        });
        self.packets[at].begin(key, now);
        self.next = self.next.min(now.saturating_add(TIME));
        at
    }

    /// Gives up the packet that waits longest: fragments of one packet come close together, so what is old
    /// in a flood is the flood.
    fn evict(&mut self, ended: &mut Vec<Ended<B>>) -> Option<usize> {
        let used = self.packets.iter().enumerate().filter(|(_, packet)| packet.key.is_some());
        let (at, _) = used.min_by_key(|(_, packet)| packet.since)?;
        self.drop_at(at, Reason::FragmentsFull, ended);
        Some(at)
    }

    /// Whether [`Reassembly::expire`] has something to do.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        now >= self.next
    }

    /// Gives up what has waited too long.
    pub fn expire(&mut self, now: Nanos, ended: &mut Vec<Ended<B>>) {
        self.next = Nanos::MAX;
        for at in 0..self.packets.len() {
            let packet = &self.packets[at];
            if packet.key.is_none() {
                continue;
            }
            let due = packet.since.saturating_add(TIME);
            if now >= due {
                self.drop_at(at, Reason::FragmentTimeout, ended);
            } else {
                self.next = self.next.min(due);
            }
        }
    }

    /// Gives up everything: the worker ends.
    pub fn shutdown(&mut self, ended: &mut Vec<Ended<B>>) {
        for at in 0..self.packets.len() {
            self.drop_at(at, Reason::FragmentTimeout, ended);
        }
    }

    fn drop_at(&mut self, at: usize, reason: Reason, ended: &mut Vec<Ended<B>>) {
        let packet = &mut self.packets[at];
        packet.key = None;
        self.held -= packet.pieces.len();
        ended.extend(packet.pieces.drain(..).map(|p| Ended { frame: p.frame, lost: Some(reason) }));
    }
}

/// What does not become part of a packet.
enum Refused {
    /// It is there already.
    Duplicate,
    /// The whole packet is lost, and so is this fragment.
    Packet(Reason),
}

impl<B: Buffer> Partial<B> {
    fn free() -> Self {
        Partial {
            key: None,
            since: 0,
            total: None,
            got: 0,
            ecn: 0,
            refused: None,
            pieces: Vec::with_capacity(MAX_FRAGMENTS),
        }
    }

    fn begin(&mut self, key: Key, now: Nanos) {
        self.key = Some(key);
        self.since = now;
        self.total = None;
        self.got = 0;
        self.ecn = 0;
        self.refused = None;
    }

    fn add(&mut self, piece: Piece<B>) -> Result<(), (Piece<B>, Refused)> {
        match self.check(&piece) {
            Ok(()) => {
                let fragment = &piece.fragment;
                if !fragment.more {
                    self.total = Some(fragment.until());
                }
                self.got += fragment.len;
                self.ecn |= 1 << (fragment.tos & 3);
                self.pieces.push(piece);
                Ok(())
            }
            Err(refused) => Err((piece, refused)),
        }
    }

    fn check(&self, piece: &Piece<B>) -> Result<(), Refused> {
        let new = &piece.fragment;
        if let Some(reason) = self.refused {
            return Err(Refused::Packet(reason));
        }
        if new.is_odd() {
            return Err(Refused::Packet(Reason::FragmentOverlap));
        }
        if new.head + new.until() > piece.frame.buffer().bytes().len().saturating_sub(LEAST_START) {
            return Err(Refused::Packet(Reason::FragmentTooLarge));
        }
        for old in &self.pieces {
            if old.fragment.until() <= new.offset || new.until() <= old.fragment.offset {
                continue;
            }
            let same = (old.fragment.offset, old.fragment.len, old.fragment.more)
                == (new.offset, new.len, new.more)
                && old.payload() == piece.payload();
            return Err(if same { Refused::Duplicate } else { Refused::Packet(Reason::FragmentOverlap) });
        }
        // Behind the end, or an end before what is there, or a second end.
        let furthest = self.pieces.iter().map(|p| p.fragment.until()).max().unwrap_or(0);
        let fits = match self.total {
            Some(total) => new.more && new.until() <= total,
            None => new.more || furthest <= new.until(),
        };
        if !fits {
            return Err(Refused::Packet(Reason::FragmentOverlap));
        }
        if self.pieces.len() == MAX_FRAGMENTS {
            return Err(Refused::Packet(Reason::FragmentsFull));
        }
        Ok(())
    }

    /// Pieces do not overlap and do not leave the packet: as many bytes as it has are all of them.
    fn is_whole(&self) -> bool {
        self.total == Some(self.got)
    }

    fn refuse(&mut self, reason: Reason, ended: &mut Vec<Ended<B>>) {
        self.refused = Some(reason);
        ended.extend(self.pieces.drain(..).map(|p| Ended { frame: p.frame, lost: Some(reason) }));
    }

    /// Makes one frame of all pieces; the place is free then.
    fn merge(&mut self, ended: &mut Vec<Ended<B>>) -> Result<Frame<B>, Reason> {
        // RFC 3168 5.3: marked in part and not capable in part is of no honest path.
        if self.ecn & 0b1001 == 0b1001 {
            return Err(Reason::FragmentOverlap);
        }
        let total = self.got;
        let first = self.pieces.iter().position(|piece| piece.fragment.offset == 0);
        let Some(first) = first else { return Err(Reason::FragmentOverlap) };
        let Piece { frame, fragment } = &mut self.pieces[first];
        let head = fragment.head;
        if !make_room(frame, head + total) {
            return Err(Reason::FragmentTooLarge);
        }
        let Piece { mut frame, fragment } = self.pieces.swap_remove(first);
        for piece in &self.pieces {
            let at = head + piece.fragment.offset;
            frame.data_mut()[at..at + piece.fragment.len].copy_from_slice(piece.payload());
        }
        ended.extend(self.pieces.drain(..).map(|p| Ended { frame: p.frame, lost: None }));
        let marked = self.ecn & 0b1000 != 0;
        self.key = None;
        become_whole(&mut frame, &fragment, marked);
        Ok(frame)
    }
}

impl<B: Buffer> Piece<B> {
    fn payload(&self) -> &[u8] {
        &self.frame.data()[self.fragment.head..self.fragment.end()]
    }
}

/// Makes `frame` `len` bytes long; moved towards the front of its buffer where that takes it.
fn make_room<B: Buffer>(frame: &mut Frame<B>, len: usize) -> bool {
    let had = frame.len();
    if frame.set_len(len) {
        return true;
    }
    let missing = (frame.start() + len).saturating_sub(frame.buffer().bytes().len());
    if frame.start() < missing + LEAST_START || !frame.grow_front(missing) {
        return false;
    }
    frame.data_mut().copy_within(missing..missing + had, 0);
    frame.set_len(len)
}

/// Takes from the headers what says "fragment".
fn become_whole<B: Buffer>(frame: &mut Frame<B>, first: &Fragment, marked: bool) {
    if let Some(header) = first.header_at {
        let data = frame.data_mut();
        data[first.next_at] = data[header];
        data.copy_within(..header, ipv6::FRAGMENT_HEADER_LEN);
        let cut = frame.shrink_front(ipv6::FRAGMENT_HEADER_LEN);
        debug_assert!(cut, "the fragment header was there");
    }
    let data = frame.data_mut();
    let len = data.len();
    if first.header_at.is_some() {
        data[1] |= if marked { 0x30 } else { 0 };
        put16(data, 4, (len - ipv6::HEADER_LEN) as u16);
    } else {
        data[1] |= if marked { 3 } else { 0 };
        let mut packet = Ipv4::new_unchecked(data);
        packet.set_total_len(len as u16);
        packet.set_fragment(false, false, 0);
        packet.fill_checksum();
    }
}
