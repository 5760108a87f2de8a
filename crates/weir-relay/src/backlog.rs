//! What waits for one client: whole frames, copied, in chunks that are lent by the worker's pool.
//!
//! ```text
//!  disco  ▯▯         ─┐
//!  data   ▯▯▯▯│▯▯▯▯  ─┴─► pop: a chunk of whole frames, disco first
//!          └ shed: the oldest frames of data go when there is too much
//! ```
//!
//! Promises: frames come out whole and in order of their class; disco is never shed for data; an empty backlog
//! holds no memory. A chunk describes itself (each frame has its length), so that dropping the oldest costs a look at
//! its header. Refuses: more disco than [`DISCO_MOST`] frames or [`DISCO_BYTES_MOST`] bytes: the oldest of
//! it goes.

use std::collections::VecDeque;

use weir_core::relay::Class;
use weir_core::relay::frame::{self, HEADER, KEY};
use weir_core::time::Nanos;

/// Frames of path discovery that wait for one client: they are small, rare and soon stale.
pub const DISCO_MOST: usize = 64;
/// The same in bytes, of frames that are as long as path discovery's are: up to 2 KiB.
pub const DISCO_BYTES_MOST: usize = DISCO_MOST * (2 << 10);
/// What a chunk holds, but for frames that are larger: a dozen of usual packets, or one whole TLS record.
pub const CHUNK: usize = 17 << 10;
/// Chunks kept for reuse: 17 MiB of a worker's.
const POOLED: usize = 1024;

/// Empty memory of chunks, by worker.
#[derive(Debug, Default)]
pub struct BufferPool(Vec<Vec<u8>>);

impl BufferPool {
    pub fn take(&mut self, least: usize) -> Vec<u8> {
        match self.0.pop() {
            Some(bytes) if bytes.capacity() >= least => bytes,
            _ => Vec::with_capacity(least.max(CHUNK)),
        }
    }

    pub fn give(&mut self, mut bytes: Vec<u8>) {
        // Larger ones are rare, and would let the pool grow beyond its arithmetic.
        if self.0.len() < POOLED && (CHUNK..=2 * CHUNK).contains(&bytes.capacity()) {
            bytes.clear();
            self.0.push(bytes);
        }
    }

    pub fn memory(&self) -> usize {
        self.0.len() * CHUNK
    }
}

/// Whole frames in a row.
#[derive(Debug)]
pub struct Chunk {
    bytes: Vec<u8>,
    /// Before it, frames were shed.
    start: usize,
    pub frames: u32,
    /// When the oldest came.
    pub since: Nanos,
}

impl Chunk {
    /// Its bytes, for sending.
    pub fn into_bytes(mut self) -> Vec<u8> {
        if self.start > 0 {
            self.bytes.drain(..self.start);
        }
        self.bytes
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }
}

/// The first frame of `bytes`, which hold whole frames.
#[inline]
pub fn first_frame(bytes: &[u8]) -> &[u8] {
    let length = frame::head(bytes).map_or(bytes.len(), |(_, length)| HEADER + length);
    &bytes[..length.min(bytes.len())]
}

/// The data of a `RecvPacket` or `ForwardPacket` frame.
#[inline]
pub fn data_of(frame: &[u8]) -> &[u8] {
    let keys = if frame.first() == Some(&(frame::Kind::ForwardPacket as u8)) { 2 } else { 1 };
    frame.get(HEADER + keys * KEY..).unwrap_or_default()
}

/// Whether any of these whole frames is path discovery's.
pub fn holds_disco(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let frame = first_frame(rest);
        if Class::of(data_of(frame)) == Class::Disco {
            return true;
        }
        rest = &rest[frame.len()..];
    }
    false
}

#[derive(Debug, Default)]
pub struct Backlog {
    data: VecDeque<Chunk>,
    disco: VecDeque<Chunk>,
    /// The part of `bytes` that is path discovery.
    disco_bytes: usize,
    bytes: usize,
    frames: usize,
}

impl Backlog {
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    pub fn frames(&self) -> usize {
        self.frames
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn memory(&self) -> usize {
        self.data.iter().chain(&self.disco).map(|chunk| chunk.bytes.capacity()).sum::<usize>()
            + (self.data.capacity() + self.disco.capacity()) * size_of::<Chunk>()
    }

    /// Appends a whole frame.
    pub fn push(&mut self, frame: &[u8], since: Nanos, pool: &mut BufferPool) {
        let disco = Class::of(data_of(frame)) == Class::Disco;
        let lane = if disco { &mut self.disco } else { &mut self.data };
        match lane.back_mut() {
            // Frames of disco stand alone, so that the oldest can go alone.
            Some(last) if !disco && last.room() >= frame.len() => {
                last.bytes.extend_from_slice(frame);
                last.frames += 1;
            }
            _ => {
                let mut bytes = if disco { Vec::with_capacity(frame.len()) } else { pool.take(frame.len()) };
                bytes.extend_from_slice(frame);
                lane.push_back(Chunk { bytes, start: 0, frames: 1, since });
            }
        }
        if disco {
            self.disco_bytes += frame.len();
        }
        self.bytes += frame.len();
        self.frames += 1;
    }

    /// Appends frames of one class that have their own memory: a chunk that was popped, and not sent.
    pub fn push_owned(&mut self, bytes: Vec<u8>, frames: u32, since: Nanos) {
        let alone = frames == 1 && Class::of(data_of(&bytes)) == Class::Disco;
        self.bytes += bytes.len();
        self.frames += frames as usize;
        if alone {
            self.disco_bytes += bytes.len();
        }
        let lane = if alone { &mut self.disco } else { &mut self.data };
        lane.push_back(Chunk { bytes, start: 0, frames, since });
    }

    /// Drops the oldest frames until `bytes` and `frames` are freed, or there is no more data; says what is missing.
    pub fn shed(
        &mut self,
        mut bytes: usize,
        mut frames: usize,
        pool: &mut BufferPool,
        mut dropped: impl FnMut(&[u8]),
    ) -> (usize, usize) {
        while (bytes > 0 || frames > 0)
            && let Some(chunk) = self.data.front_mut()
        {
            let frame = first_frame(&chunk.bytes[chunk.start..]);
            let length = frame.len();
            dropped(frame);
            chunk.start += length;
            chunk.frames -= 1;
            self.bytes -= length;
            self.frames -= 1;
            bytes = bytes.saturating_sub(length);
            frames = frames.saturating_sub(1);
            if chunk.len() == 0
                && let Some(chunk) = self.data.pop_front()
            {
                pool.give(chunk.bytes);
            }
        }
        (bytes, frames)
    }

    /// Drops the oldest of too much disco.
    pub fn shed_disco(&mut self, mut dropped: impl FnMut(&[u8])) {
        while (self.disco.len() > DISCO_MOST || self.disco_bytes > DISCO_BYTES_MOST)
            && let Some(chunk) = self.disco.pop_front()
        {
            self.disco_bytes -= chunk.len();
            self.bytes -= chunk.len();
            self.frames -= 1;
            dropped(&chunk.bytes);
        }
    }

    /// What is to be sent next.
    pub fn pop(&mut self) -> Option<Chunk> {
        let chunk = match self.disco.pop_front() {
            Some(chunk) => {
                self.disco_bytes -= chunk.len();
                chunk
            }
            None => self.data.pop_front()?,
        };
        self.bytes -= chunk.len();
        self.frames -= chunk.frames as usize;
        if self.frames == 0 {
            *self = Backlog::default();
        }
        Some(chunk)
    }

    /// Appends what waited behind.
    pub fn append(&mut self, mut behind: Backlog) {
        self.data.append(&mut behind.data);
        self.disco.append(&mut behind.disco);
        self.disco_bytes += behind.disco_bytes;
        self.bytes += behind.bytes;
        self.frames += behind.frames;
    }

    /// Everything goes, frame by frame.
    pub fn drain(&mut self, pool: &mut BufferPool, mut dropped: impl FnMut(&[u8])) {
        while let Some(chunk) = self.pop() {
            let mut rest = &chunk.bytes[chunk.start..];
            while !rest.is_empty() {
                let frame = first_frame(rest);
                dropped(frame);
                rest = &rest[frame.len()..];
            }
            pool.give(chunk.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_core::relay::{Frame, Key};

    use super::*;

    fn packet(n: u8, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        Frame::RecvPacket(Key([1; 32]), &vec![n; length]).write(&mut bytes);
        bytes
    }

    fn disco(n: u8) -> Vec<u8> {
        let mut data = vec![0x54, 0x53, 0xf0, 0x9f, 0x92, 0xac];
        data.resize(62, n);
        let mut bytes = Vec::new();
        Frame::RecvPacket(Key([1; 32]), &data).write(&mut bytes);
        bytes
    }

    #[test]
    fn the_oldest_data_goes_and_disco_stays() {
        let (mut backlog, mut pool) = (Backlog::default(), BufferPool::default());
        backlog.push(&disco(9), 0, &mut pool);
        for n in 0..100 {
            backlog.push(&packet(n, 1000), 0, &mut pool);
        }
        let mut gone = Vec::new();
        let missing = backlog.shed(30_000, 0, &mut pool, |frame| gone.push(data_of(frame)[0]));
        assert_eq!((missing, gone.len()), ((0, 0), 29));
        assert!(gone.is_sorted() && gone[0] == 0);
        assert_eq!(backlog.frames(), 72);
        let first = backlog.pop().expect("it holds frames");
        assert_eq!(first.into_bytes(), disco(9));
        let next = backlog.pop().expect("it holds frames").into_bytes();
        assert_eq!(data_of(&next)[0], 29);
    }

    #[test]
    fn what_is_popped_is_what_was_pushed_and_then_it_holds_no_memory() {
        let (mut backlog, mut pool) = (Backlog::default(), BufferPool::default());
        let pushed: Vec<u8> = (0..50).flat_map(|n| packet(n, 60_000 / (1 + usize::from(n)))).collect();
        let mut rest = &pushed[..];
        while !rest.is_empty() {
            let frame = first_frame(rest);
            backlog.push(frame, 0, &mut pool);
            rest = &rest[frame.len()..];
        }
        let mut popped = Vec::new();
        while let Some(chunk) = backlog.pop() {
            popped.extend_from_slice(&chunk.into_bytes());
        }
        assert_eq!(popped, pushed);
        assert_eq!((backlog.bytes(), backlog.frames(), backlog.memory()), (0, 0, 0));
    }

    #[test]
    fn too_much_disco_loses_its_oldest() {
        let (mut backlog, mut pool) = (Backlog::default(), BufferPool::default());
        for n in 0..DISCO_MOST as u8 + 2 {
            backlog.push(&disco(n), 0, &mut pool);
        }
        let mut gone = Vec::new();
        backlog.shed_disco(|frame| gone.push(data_of(frame)[10]));
        assert_eq!(gone, [0, 1]);
        // Long ones count by their bytes.
        let mut long = disco(9);
        let data = [data_of(&long), &[9; 60_000]].concat();
        long.clear();
        Frame::RecvPacket(Key([1; 32]), &data).write(&mut long);
        for _ in 0..4 {
            backlog.push(&long, 0, &mut pool);
            backlog.shed_disco(|_| {});
        }
        assert!(backlog.bytes() <= DISCO_BYTES_MOST && backlog.frames() == 2, "{}", backlog.bytes());
        while backlog.pop().is_some() {}
        assert_eq!((backlog.bytes(), backlog.disco_bytes, backlog.memory()), (0, 0, 0));
    }
}
