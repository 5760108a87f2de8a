//! Sending through AF_PACKET: every kernel has it, and it is slow (one copy and one buffer a packet).

use std::io;

use weir_io::clock;
use weir_io::packet_socket::{BATCH, PacketSocket};

use super::{TrafficSpec, Transmitted, Transmitter};
use crate::workload::{Stream, Traffic};

pub struct PacketTransmitter {
    socket: PacketSocket,
    traffic: Traffic,
    stream: Stream,
}

impl PacketTransmitter {
    pub fn new(socket: PacketSocket, traffic: Traffic) -> Self {
        let stream = traffic.stream(0);
        PacketTransmitter { socket, traffic, stream }
    }
}

impl Transmitter for PacketTransmitter {
    fn transmit(&mut self, want: u32, run: u8) -> io::Result<Transmitted> {
        let mut done = Transmitted::default();
        let mut left = want as usize;
        while left > 0 {
            let batch = left.min(BATCH);
            let now = clock::now();
            let (traffic, stream) = (&self.traffic, &mut self.stream);
            let sent = self.socket.send(batch, |frame| traffic.write(stream.advance(), run, now, frame))?;
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
        "af_packet"
    }
}
