//! Sending what an SA sealed: each test packet by itself, under the next sequence number, through AF_PACKET.
//!
//! Promises: no number is used twice, whatever restarts, so that a replay window takes every packet; packets the kernel refuses
//! leave a gap. The time in a packet is that before its batch was sealed.

use std::io;
use std::sync::Arc;

use weir_core::ipsec::{Cipher, Job};
use weir_io::clock;
use weir_io::packet_socket::{BATCH, FRAME, PacketSocket};

use super::{TrafficSpec, Transmitted, Transmitter};
use crate::workload::esp::Encapsulation;
use crate::workload::{Stream, Traffic};

const ETHERNET: usize = 14;

pub struct SealedTransmitter {
    socket: PacketSocket,
    traffic: Traffic,
    stream: Stream,
    sealer: Sealer,
}

struct Sealer {
    encapsulation: Encapsulation,
    cipher: Arc<dyn Cipher>,
    /// The last one used.
    sequence: u64,
    /// A plain frame: what follows its mark is zero.
    plain: Box<[u8; FRAME]>,
}

impl SealedTransmitter {
    pub fn new(
        socket: PacketSocket,
        traffic: Traffic,
        encapsulation: Encapsulation,
        cipher: Arc<dyn Cipher>,
    ) -> Self {
        let stream = traffic.stream(0);
        let sealer = Sealer { encapsulation, cipher, sequence: 0, plain: Box::new([0; FRAME]) };
        SealedTransmitter { socket, traffic, stream, sealer }
    }
}

impl Sealer {
    /// Seals the plain frame of `len` bytes into `frame`; returns that one's length.
    fn seal(&mut self, len: usize, frame: &mut [u8]) -> usize {
        self.sequence += 1;
        let packet = &self.plain[ETHERNET..len];
        let fill = |inner: &mut [u8]| inner.copy_from_slice(packet);
        let sealed = self.encapsulation.write(self.sequence, packet.len(), frame, fill);
        let packet = &mut frame[self.encapsulation.esp_at()..sealed];
        self.cipher.seal(&mut [Job { packet, sequence: self.sequence, authentic: false }]);
        sealed
    }
}

impl Transmitter for SealedTransmitter {
    fn transmit(&mut self, want: u32, run: u8) -> io::Result<Transmitted> {
        let mut done = Transmitted::default();
        let mut left = want as usize;
        while left > 0 {
            let batch = left.min(BATCH);
            let now = clock::now();
            let (traffic, stream, sealer) = (&self.traffic, &mut self.stream, &mut self.sealer);
            let sent = self.socket.send(batch, |frame| {
                let len = traffic.write(stream.advance(), run, now, sealer.plain.as_mut_slice());
                sealer.seal(len, frame)
            })?;
            done.sent += sent as u64;
            // After the first refusal the kernel does not try the rest; those numbers are skipped.
            done.offered += (sent + usize::from(sent < batch)) as u64;
            left -= batch;
        }
        Ok(done)
    }

    fn restart(&mut self, _: &TrafficSpec, seed: u64) -> io::Result<()> {
        self.stream = self.traffic.stream(seed);
        Ok(())
    }

    fn sees_refusals(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "af_packet, sealed"
    }
}
