//! The header a TUN device puts before each packet (`struct virtio_net_hdr`, as linux/virtio_net.h has it):
//! what of the packet is left to do.

/// Bytes of it.
pub const LEN: usize = 10;

/// The checksum is to be finished from `checksum_start` on; its field has the pseudo-header's sum.
pub const NEEDS_CHECKSUM: u8 = 1;

/// What a packet is to be cut into.
pub const WHOLE: u8 = 0;
pub const TCP4: u8 = 1;
pub const TCP6: u8 = 4;

/// The virtio header, in this machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub flags: u8,
    pub kind: u8,
    /// The length of all headers together.
    pub headers: u16,
    /// Payload of each piece.
    pub segment: u16,
    pub checksum_start: u16,
    /// Where the checksum is, from there.
    pub checksum_offset: u16,
}

impl Header {
    pub fn read(bytes: &[u8; LEN]) -> Header {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Header {
            flags: bytes[0],
            kind: bytes[1],
            headers: half(2),
            segment: half(4),
            checksum_start: half(6),
            checksum_offset: half(8),
        }
    }

    pub fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        (bytes[0], bytes[1]) = (self.flags, self.kind);
        let halves = [self.headers, self.segment, self.checksum_start, self.checksum_offset];
        for (to, half) in bytes[2..].as_chunks_mut::<2>().0.iter_mut().zip(halves) {
            *to = half.to_ne_bytes();
        }
        bytes
    }
}
