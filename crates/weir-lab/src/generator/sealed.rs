//! Sealing test packets one by one, each under the next sequence number of an SA.
//!
//! Promises: no number is used twice, whatever restarts, so that a replay window takes every packet; packets the kernel refuses
//! leave a gap.

use std::sync::Arc;

use weir_core::ipsec::{Cipher, Job};
use weir_io::packet_socket::FRAME;

use crate::workload::esp::Encapsulation;

const ETHERNET: usize = 14;

pub struct Sealer {
    encapsulation: Encapsulation,
    cipher: Arc<dyn Cipher>,
    /// The last one used.
    sequence: u64,
    /// A plain frame: what follows its mark is zero.
    plain: Box<[u8; FRAME]>,
}

impl Sealer {
    pub fn new(encapsulation: Encapsulation, cipher: Arc<dyn Cipher>) -> Sealer {
        Sealer { encapsulation, cipher, sequence: 0, plain: Box::new([0; FRAME]) }
    }

    /// Seals the plain frame that `write` makes into `frame`; returns that one's length.
    pub fn seal(&mut self, write: impl FnOnce(&mut [u8]) -> usize, frame: &mut [u8]) -> usize {
        let len = write(self.plain.as_mut_slice());
        self.sequence += 1;
        let packet = &self.plain[ETHERNET..len];
        let fill = |inner: &mut [u8]| inner.copy_from_slice(packet);
        let sealed = self.encapsulation.write(self.sequence, packet.len(), frame, fill);
        let packet = &mut frame[self.encapsulation.esp_at()..sealed];
        self.cipher.seal(&mut [Job { packet, sequence: self.sequence, authentic: false }]);
        sealed
    }
}
