//! Frames, the buffers they live in, and the batches they travel in.
//!
//! A buffer is a fixed-size piece of memory owned by exactly one holder at a time: a pool, a frame
//! in a batch, a frame held for a neighbour, or a device ring. A frame is a window into its buffer:
//!
//! ```text
//! 0            start                    start+len          capacity
//! | headroom   | Ethernet | IP | …      | tailroom         |
//! ```
//!
//! Promises: a frame's window never leaves its buffer; growing and shrinking return `false` rather
//! than panic. Refuses: multi-buffer frames (a frame is one buffer, or it is dropped and counted).

/// Memory for one frame. Implemented by `weir_io::umem::Chunk` in the daemon and by boxed slices in
/// tests; the pipeline is compiled once for each.
pub trait Buffer {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Buffer for Box<[u8]> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }
    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Room before a received frame: XDP's own headroom (`XDP_PACKET_HEADROOM`), enough for an outer
/// IPv6 + UDP + ESP header and a VLAN tag (40 + 8 + 24 + 4).
pub const HEADROOM: usize = 256;

/// Default buffer size: two buffers a page. With [`HEADROOM`] it holds frames up to 1,792 bytes.
pub const BUFFER_SIZE: usize = 2048;

/// Frames handled in one breath. 64 × 64 B of headers is 4 KiB: a twelfth of a 48 KiB L1.
pub const BATCH: usize = 64;

/// A device as a worker sees it (a NIC queue, a TUN, a capture file): an index into
/// [`crate::tables::Tables::devices`]. One device carries one or more ports (VLANs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceId(pub u16);

impl DeviceId {
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One frame: a window of `len` bytes at `start` in a buffer it owns.
///
/// Invariant: `start + len ≤ buffer.bytes().len()`.
#[derive(Debug)]
pub struct Frame<B> {
    buffer: B,
    start: u16,
    len: u16,
    /// The device it came in on, or leaves by.
    pub device: DeviceId,
    /// Made by this host (an ICMP error, ARP, a further fragment) rather than received.
    pub own: bool,
    /// Sealed here: routed as our own, accounted for as the received frame inside.
    pub sealed: bool,
}

impl<B: Buffer> Frame<B> {
    /// A frame of `len` bytes at `start`; both are clipped to the buffer.
    #[inline]
    pub fn new(buffer: B, start: usize, len: usize, device: DeviceId) -> Self {
        let capacity = buffer.bytes().len().min(u16::MAX as usize);
        let start = start.min(capacity);
        let len = len.min(capacity - start);
        Frame { buffer, start: start as u16, len: len as u16, device, own: false, sealed: false }
    }

    /// A frame holding a copy of `bytes` behind the usual headroom, or the buffer back if they do
    /// not fit.
    pub fn from_bytes(mut buffer: B, bytes: &[u8], device: DeviceId) -> Result<Self, B> {
        match buffer.bytes_mut().get_mut(HEADROOM..HEADROOM + bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => return Err(buffer),
        }
        Ok(Frame::new(buffer, HEADROOM, bytes.len(), device))
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Offset of the first byte in the buffer.
    #[inline]
    pub fn start(&self) -> usize {
        self.start as usize
    }

    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.buffer.bytes()[self.start as usize..self.start as usize + self.len as usize]
    }

    /// What is behind the first `n` bytes; nothing where the frame is shorter.
    #[inline]
    pub fn behind(&self, n: usize) -> &[u8] {
        let start = self.start as usize;
        self.buffer.bytes().get(start + n..start + self.len as usize).unwrap_or(&[])
    }

    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[self.start as usize..self.start as usize + self.len as usize]
    }

    /// Moves the start back by `n` bytes into the headroom; `false` (and no change) without room.
    #[inline]
    #[must_use]
    pub fn grow_front(&mut self, n: usize) -> bool {
        if n > self.start as usize {
            return false;
        }
        self.start -= n as u16;
        self.len += n as u16;
        true
    }

    /// Drops `n` bytes from the front; `false` (and no change) when the frame is shorter.
    #[inline]
    #[must_use]
    pub fn shrink_front(&mut self, n: usize) -> bool {
        if n > self.len as usize {
            return false;
        }
        self.start += n as u16;
        self.len -= n as u16;
        true
    }

    /// Sets the length, growing into the tailroom or cutting; `false` (and no change) without room.
    #[inline]
    #[must_use]
    pub fn set_len(&mut self, len: usize) -> bool {
        if self.start as usize + len > self.buffer.bytes().len() || len > u16::MAX as usize {
            return false;
        }
        self.len = len as u16;
        true
    }

    /// Lets the frame end after `len` bytes, if it is longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len.min(u16::MAX.into()) as u16);
    }

    #[inline]
    pub fn into_buffer(self) -> B {
        self.buffer
    }

    #[inline]
    pub fn buffer(&self) -> &B {
        &self.buffer
    }
}

/// The frames of one breath, at most [`BATCH`] of them. Never reallocates.
#[derive(Debug)]
pub struct Batch<B> {
    frames: Vec<Frame<B>>,
}

impl<B: Buffer> Batch<B> {
    #[expect(clippy::new_without_default, reason = "a batch allocates; the call should be seen")]
    pub fn new() -> Self {
        Batch { frames: Vec::with_capacity(BATCH) }
    }

    /// How many more frames fit.
    #[inline]
    pub fn room(&self) -> usize {
        BATCH - self.frames.len()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a frame, or gives it back when the batch is full.
    #[inline]
    pub fn push(&mut self, frame: Frame<B>) -> Result<(), Frame<B>> {
        if self.frames.len() == BATCH {
            return Err(frame);
        }
        self.frames.push(frame);
        Ok(())
    }

    #[inline]
    pub fn frames(&self) -> &[Frame<B>] {
        &self.frames
    }

    #[inline]
    pub fn frames_mut(&mut self) -> &mut [Frame<B>] {
        &mut self.frames
    }

    /// Moves every frame behind those of `queue`, in order of arrival.
    #[inline]
    pub fn append_to(&mut self, queue: &mut Vec<Frame<B>>) {
        queue.append(&mut self.frames);
    }

    /// Takes every frame out, in order of arrival.
    #[inline]
    pub fn drain(&mut self) -> std::vec::Drain<'_, Frame<B>> {
        self.frames.drain(..)
    }
}

/// Free buffers of one worker. Its size is fixed when it is filled: a pool that runs dry is a
/// counted drop, never an allocation.
#[derive(Debug, Default)]
pub struct Pool<B> {
    free: Vec<B>,
}

impl<B: Buffer> Pool<B> {
    pub fn new(buffers: impl IntoIterator<Item = B>) -> Self {
        Pool { free: buffers.into_iter().collect() }
    }

    #[inline]
    pub fn take(&mut self) -> Option<B> {
        self.free.pop()
    }

    #[inline]
    pub fn put(&mut self, buffer: B) {
        self.free.push(buffer);
    }

    #[inline]
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

impl Pool<Box<[u8]>> {
    /// A pool of ordinary heap buffers, for tests and in-process ports.
    pub fn boxed(count: usize) -> Self {
        Pool::new((0..count).map(|_| vec![0; BUFFER_SIZE].into_boxed_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: &[u8]) -> Frame<Box<[u8]>> {
        Frame::from_bytes(vec![0; BUFFER_SIZE].into(), bytes, DeviceId(0)).expect("fits")
    }

    #[test]
    fn window_grows_into_headroom_and_back() {
        let mut f = frame(b"payload");
        assert!(f.grow_front(4));
        f.data_mut()[..4].copy_from_slice(b"tag-");
        assert_eq!(f.data(), b"tag-payload");
        assert!(f.shrink_front(4));
        assert_eq!(f.data(), b"payload");
    }

    #[test]
    fn window_never_leaves_the_buffer() {
        let mut f = frame(b"x");
        assert!(!f.grow_front(HEADROOM + 1));
        assert!(!f.shrink_front(2));
        assert!(!f.set_len(BUFFER_SIZE - HEADROOM + 1));
        assert_eq!(f.data(), b"x");
    }

    #[test]
    fn bytes_that_do_not_fit_give_the_buffer_back() {
        let big = vec![0u8; BUFFER_SIZE - HEADROOM + 1];
        let buffer: Box<[u8]> = vec![0; BUFFER_SIZE].into();
        assert!(Frame::from_bytes(buffer, &big, DeviceId(0)).is_err());
    }

    #[test]
    fn full_batch_gives_the_frame_back() {
        let mut batch = Batch::new();
        for _ in 0..BATCH {
            batch.push(frame(b"x")).expect("room");
        }
        assert!(batch.push(frame(b"y")).is_err());
        assert_eq!(batch.drain().count(), BATCH);
        assert_eq!(batch.room(), BATCH);
    }
}
