//! Copies of frames that are dropped, for an operator who asked for some.
//!
//! Promises: at most what [`Sampler::allow`] allows is copied between two calls of it; every drop for one of the reasons
//! is counted, copied or not. Without a sampler a drop costs one comparison and a frame that goes on nothing.

use crate::packet::{Buffer, DeviceId, Frame};
use crate::verdict::Reason;

/// What the bytes of a dropped frame begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Ethernet,
    /// The IP header: on its way through IPsec a packet has no link header.
    Ip,
}

/// A frame that was dropped, as it was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub reason: Reason,
    /// The device it came in on, or was to leave by; a tunnel's or an SPD's, once it was opened.
    pub device: DeviceId,
    pub link: Link,
    /// How long it was; `data` may be shorter.
    pub len: usize,
    pub data: Box<[u8]>,
}

/// What to copy, and what was copied.
#[derive(Debug)]
pub struct Sampler {
    reasons: [bool; Reason::COUNT],
    /// Bytes of a frame that are kept.
    keep: usize,
    left: u32,
    dropped: u64,
    samples: Vec<Sample>,
}

impl Sampler {
    /// Copies frames dropped for one of `reasons`, at most `keep` bytes of each; none before [`Sampler::allow`].
    pub fn new(reasons: &[Reason], keep: usize) -> Sampler {
        let mut wanted = [false; Reason::COUNT];
        reasons.iter().for_each(|&reason| wanted[reason as usize] = true);
        Sampler { reasons: wanted, keep, left: 0, dropped: 0, samples: Vec::new() }
    }

    /// Allows so many copies from now on.
    pub fn allow(&mut self, samples: u32) {
        self.left = samples;
    }

    /// Frames dropped for one of the reasons, and their copies, since this was asked last.
    pub fn drain(&mut self) -> (u64, std::vec::Drain<'_, Sample>) {
        (std::mem::take(&mut self.dropped), self.samples.drain(..))
    }

    /// Looks at a frame that is dropped; its first `readable` bytes may be copied.
    pub(super) fn take<B: Buffer>(&mut self, frame: &Frame<B>, link: Link, reason: Reason, readable: usize) {
        if !self.reasons[reason as usize] {
            return;
        }
        self.dropped += 1;
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let kept = frame.len().min(readable).min(self.keep);
        self.samples.push(Sample {
            reason,
            device: frame.device,
            link,
            len: frame.len(),
            data: frame.data()[..kept].into(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_copied_than_is_allowed_and_all_is_counted() {
        let frame = Frame::new(vec![7; 64].into_boxed_slice(), 0, 60, DeviceId(3));
        let mut sampler = Sampler::new(&[Reason::NoRoute, Reason::TtlExpired], 20);
        sampler.take(&frame, Link::Ethernet, Reason::NoRoute, 60);
        assert_eq!(sampler.drain().0, 1, "counted before anything is allowed");
        sampler.allow(2);
        for reason in [Reason::NoRoute, Reason::Multicast, Reason::TtlExpired, Reason::NoRoute] {
            sampler.take(&frame, Link::Ethernet, reason, 60);
        }
        let (dropped, samples) = sampler.drain();
        let samples: Vec<Sample> = samples.collect();
        let reasons: Vec<Reason> = samples.iter().map(|s| s.reason).collect();
        assert_eq!((dropped, reasons), (3, vec![Reason::NoRoute, Reason::TtlExpired]));
        assert_eq!((samples[0].len, samples[0].data.len(), samples[0].device), (60, 20, DeviceId(3)));
    }

    #[test]
    fn what_was_overwritten_is_not_copied() {
        let frame = Frame::new(vec![7; 64].into_boxed_slice(), 0, 60, DeviceId(0));
        let mut sampler = Sampler::new(&[Reason::IntegrityFailed], 65_535);
        sampler.allow(1);
        sampler.take(&frame, Link::Ip, Reason::IntegrityFailed, 36);
        assert_eq!(sampler.drain().1.next().map(|s| (s.len, s.data.len())), Some((60, 36)));
    }
}
