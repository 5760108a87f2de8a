//! Sending through AF_PACKET: every kernel has it, and it is slow (one copy and one buffer a packet). What an SA seals leaves
//! this way too: the time in such a packet is that before its batch was sealed.

use std::io;

use weir_io::clock;
use weir_io::packet_socket::{BATCH, PacketSocket};

use super::sealed::Sealer;
use super::{TrafficSpec, Transmitted, Transmitter};
use crate::workload::{Stream, Traffic};

pub struct PacketTransmitter {
    socket: PacketSocket,
    traffic: Traffic,
    stream: Stream,
    sealer: Option<Sealer>,
}

impl PacketTransmitter {
    pub fn new(socket: PacketSocket, traffic: Traffic) -> Self {
        let stream = traffic.stream(0);
        PacketTransmitter { socket, traffic, stream, sealer: None }
    }

    pub fn sealing(socket: PacketSocket, traffic: Traffic, sealer: Sealer) -> Self {
        PacketTransmitter { sealer: Some(sealer), ..PacketTransmitter::new(socket, traffic) }
    }
}

impl Transmitter for PacketTransmitter {
    fn transmit(&mut self, want: u32, run: u8) -> io::Result<Transmitted> {
        let mut done = Transmitted::default();
        let mut left = want as usize;
        while left > 0 {
            let batch = left.min(BATCH);
            let now = clock::now();
            let (traffic, stream, sealer) = (&self.traffic, &mut self.stream, &mut self.sealer);
            let sent = self.socket.send(batch, |frame| {
                let mut plain = |frame: &mut [u8]| traffic.write(stream.advance(), run, now, frame);
                match sealer {
                    Some(sealer) => sealer.seal(plain, frame),
                    None => plain(frame),
                }
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
        if self.sealer.is_some() { "af_packet, sealed" } else { "af_packet" }
    }
}
