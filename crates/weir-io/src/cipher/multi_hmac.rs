//! HMAC (RFC 2104) of several packets at once, by hashes that compress a block of each side by side.
//!
//! A round of a hash waits for the one before it, whatever computes it; packets do not wait for each other. Each packet
//! has a lane, and a lane that is done takes the next packet, whatever their lengths. What HMAC hashes of its key is
//! hashed with the key.
//!
//! ```text
//! inner | key's block, before | whole blocks where they lie | one or two with the rest, the padding and the length |
//! outer | key's block, before | the inner digest and its padding |
//! ```

use zeroize::Zeroize;

/// Bytes a message may have beside its slice: the high half of a sequence number.
const MORE: usize = 4;

/// A hash that compresses a block into each of `LANES` states at once.
pub trait Hash<const BLOCK: usize, const LANES: usize>: Send + Sync {
    /// Exists only where the CPU has the instructions.
    type Proof: Copy + Send + Sync;
    /// What a message's blocks have made so far.
    type State: Copy + Zeroize + Send + Sync;
    /// Bytes of the digest.
    const DIGEST: usize;
    /// What [`Cipher::backend`](weir_core::ipsec::Cipher::backend) says of it.
    const NAME: &str;

    fn initial(proof: Self::Proof) -> Self::State;

    fn compress(proof: Self::Proof, states: &mut [Self::State; LANES], blocks: [&[u8; BLOCK]; LANES]);

    /// [`compress`](Self::compress) of one message alone.
    fn compress_alone(proof: Self::Proof, state: &mut Self::State, block: &[u8; BLOCK]);

    /// Writes the digest to the front of `block`.
    fn digest(proof: Self::Proof, state: &Self::State, block: &mut [u8; BLOCK]);
}

/// A key: the states behind its inner and its outer block.
pub struct MultiHmac<H: Hash<BLOCK, LANES>, const BLOCK: usize, const LANES: usize> {
    proof: H::Proof,
    inner: H::State,
    outer: H::State,
}

/// Bytes, and perhaps a few more behind them.
pub struct Message<'a> {
    pub bytes: &'a [u8],
    pub more: Option<[u8; MORE]>,
}

impl<H: Hash<BLOCK, LANES>, const BLOCK: usize, const LANES: usize> MultiHmac<H, BLOCK, LANES> {
    /// `key` is no longer than a block.
    pub fn new(proof: H::Proof, key: &[u8]) -> Self {
        assert!(key.len() <= BLOCK, "a longer key would have to be hashed first");
        let [inner, outer] = [0x36, 0x5c].map(|pad| {
            let mut block = [pad; BLOCK];
            block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
            let mut state = H::initial(proof);
            H::compress_alone(proof, &mut state, &block);
            block.zeroize();
            state
        });
        MultiHmac { proof, inner, outer }
    }

    /// Hands each message's owner its tag to `then`, in the order in which they are done.
    pub fn tags<'a, T>(
        &self,
        mut messages: impl Iterator<Item = (Message<'a>, T)>,
        mut then: impl FnMut(T, &[u8]),
    ) {
        let mut states = [self.inner; LANES];
        let mut lanes: [Lane<'a, T, BLOCK>; LANES] = std::array::from_fn(|_| Lane::idle(H::DIGEST));
        let mut busy = 0;
        for lane in &mut lanes {
            busy += usize::from(lane.take(messages.next()));
        }
        while busy > 1 {
            H::compress(self.proof, &mut states, std::array::from_fn(|i| lanes[i].block()));
            for (lane, state) in lanes.iter_mut().zip(&mut states) {
                if self.advance(lane, state, &mut then) && !lane.take(messages.next()) {
                    busy -= 1;
                }
            }
        }
        for (lane, state) in lanes.iter_mut().zip(&mut states).filter(|(lane, _)| lane.owner.is_some()) {
            loop {
                H::compress_alone(self.proof, state, lane.block());
                if self.advance(lane, state, &mut then) {
                    break;
                }
            }
        }
    }

    /// Counts a block as done; whether it was the message's last, whose tag is out then and whose state is a new one.
    #[inline]
    fn advance<T>(
        &self,
        lane: &mut Lane<'_, T, BLOCK>,
        state: &mut H::State,
        then: &mut impl FnMut(T, &[u8]),
    ) -> bool {
        lane.done += 1;
        if lane.done < lane.blocks {
            return false;
        }
        let Some(owner) = lane.owner.take() else { return false };
        H::digest(self.proof, state, &mut lane.outer);
        if lane.done == lane.blocks {
            *state = self.outer;
            lane.owner = Some(owner);
            return false;
        }
        then(owner, &lane.outer[..H::DIGEST]);
        *state = self.inner;
        true
    }
}

impl<H: Hash<BLOCK, LANES>, const BLOCK: usize, const LANES: usize> Drop for MultiHmac<H, BLOCK, LANES> {
    fn drop(&mut self) {
        self.inner.zeroize();
        self.outer.zeroize();
    }
}

/// A message on its way through a hash.
struct Lane<'a, T, const BLOCK: usize> {
    whole: &'a [[u8; BLOCK]],
    /// What is not a whole block, padded.
    tail: [[u8; BLOCK]; 2],
    /// The block of the outer hash: the inner digest's room, padded.
    outer: [u8; BLOCK],
    /// Blocks of the inner hash.
    blocks: usize,
    /// Blocks that are compressed, the outer hash's counted.
    done: usize,
    /// Nobody's when the lane is idle.
    owner: Option<T>,
}

impl<'a, T, const BLOCK: usize> Lane<'a, T, BLOCK> {
    fn idle(digest: usize) -> Self {
        let mut outer = [0; BLOCK];
        outer[digest] = 0x80;
        outer[BLOCK - 8..].copy_from_slice(&bits(BLOCK + digest));
        Lane { whole: &[], tail: [[0; BLOCK]; 2], outer, blocks: 0, done: 0, owner: None }
    }

    /// Whether there was a message to take.
    #[inline]
    fn take(&mut self, next: Option<(Message<'a>, T)>) -> bool {
        let Some((message, owner)) = next else { return false };
        let (whole, rest) = message.bytes.as_chunks();
        self.tail = [[0; BLOCK]; 2];
        let tail = self.tail.as_flattened_mut();
        tail[..rest.len()].copy_from_slice(rest);
        let mut used = rest.len();
        if let Some(more) = message.more {
            tail[used..used + MORE].copy_from_slice(&more);
            used += MORE;
        }
        tail[used] = 0x80;
        // The length takes an eighth of a block, of which no message of ours needs more than eight bytes.
        let end = if used + 1 + BLOCK / 8 <= BLOCK { BLOCK } else { 2 * BLOCK };
        // The key's block comes first.
        tail[end - 8..end].copy_from_slice(&bits(BLOCK + whole.len() * BLOCK + used));
        self.blocks = whole.len() + end / BLOCK;
        self.whole = whole;
        self.done = 0;
        self.owner = Some(owner);
        true
    }

    /// The block that is next; an idle lane has one too, of which nothing becomes.
    #[inline]
    fn block(&self) -> &[u8; BLOCK] {
        match self.whole.get(self.done) {
            Some(block) => block,
            None if self.done < self.blocks => &self.tail[self.done - self.whole.len()],
            None => &self.outer,
        }
    }
}

/// The length of so many bytes as the padding has it.
fn bits(bytes: usize) -> [u8; 8] {
    (8 * bytes as u64).to_be_bytes()
}
