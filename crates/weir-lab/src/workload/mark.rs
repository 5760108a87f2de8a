//! What each test packet carries, right after its UDP header.
//!
//! ```text
//! 0        2     3        6           10                18
//! | "WR"   | run | flow   | sequence  | sent, ns        |     all big-endian
//! ```
//!
//! The time is `CLOCK_MONOTONIC`, so that two processes of one machine can subtract.

/// Bytes of a mark: what is left of a 64-byte IPv4 frame, 60 − 14 − 20 − 8.
pub const LEN: usize = 18;

/// Tells our packets from all others.
pub const MAGIC: [u8; 2] = *b"WR";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Packets of another run (stragglers, warm-up) are told apart by it; no straggler is 256 runs late.
    pub run: u8,
    /// Below 2²⁴.
    pub flow: u32,
    /// Number inside the flow, from 0.
    pub sequence: u32,
    pub sent_ns: u64,
}

impl Mark {
    /// The bytes on the wire.
    #[inline]
    pub fn bytes(self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..2].copy_from_slice(&MAGIC);
        out[2..6].copy_from_slice(&self.flow.to_be_bytes());
        out[2] = self.run;
        out[6..10].copy_from_slice(&self.sequence.to_be_bytes());
        out[10..18].copy_from_slice(&self.sent_ns.to_be_bytes());
        out
    }

    /// Reads the mark of an Ethernet frame; `None` for what is not a test packet.
    #[inline]
    pub fn read(frame: &[u8]) -> Option<Mark> {
        let (protocol, at) = match (frame.get(12)?, frame.get(13)?) {
            (0x08, 0x00) => (*frame.get(23)?, 14 + 20 + 8),
            (0x86, 0xdd) => (*frame.get(20)?, 14 + 40 + 8),
            _ => return None,
        };
        Mark::of_payload(frame.get(at..)?).filter(|_| protocol == 17)
    }

    /// Reads the mark of what a UDP header carries.
    #[inline]
    pub fn of_payload(payload: &[u8]) -> Option<Mark> {
        let bytes: &[u8; LEN] = payload.first_chunk()?;
        (bytes[..2] == MAGIC).then(|| Mark {
            run: bytes[2],
            flow: u32::from_be_bytes([0, bytes[3], bytes[4], bytes[5]]),
            sequence: u32::from_be_bytes([bytes[6], bytes[7], bytes[8], bytes[9]]),
            sent_ns: u64::from_be_bytes([
                bytes[10], bytes[11], bytes[12], bytes[13], bytes[14], bytes[15], bytes[16], bytes[17],
            ]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_has_no_mark() {
        assert_eq!(Mark::read(&[]), None);
        assert_eq!(Mark::read(&[0; 60]), None);
        let mut arp = [0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(Mark::read(&arp), None);
        let mut cut = vec![0; 59];
        cut[12] = 8;
        cut[23] = 17;
        cut[42..44].copy_from_slice(&MAGIC);
        assert_eq!(Mark::read(&cut), None);
        cut.push(0);
        assert!(Mark::read(&cut).is_some());
    }
}
