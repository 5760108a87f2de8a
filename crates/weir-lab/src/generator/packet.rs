//! Sending through AF_PACKET: every kernel has it, and it is slow (one copy and one buffer a packet).

use std::io;

use weir_io::clock;
use weir_io::packet_socket::{BATCH, PacketSocket};

use super::{Transmitted, Transmitter};
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
    fn transmit(&mut self, want: u32, run: u16) -> io::Result<Transmitted> {
        let mut done = Transmitted::default();
        while done.offered < u64::from(want) {
            let batch = (want as usize - done.offered as usize).min(BATCH);
            let now = clock::now();
            let (traffic, stream) = (&self.traffic, &mut self.stream);
            done.sent +=
                self.socket.send(batch, |frame| traffic.write(stream.advance(), run, now, frame))? as u64;
            done.offered += batch as u64;
        }
        Ok(done)
    }

    fn restart(&mut self, seed: u64) {
        self.stream = self.traffic.stream(seed);
    }

    fn sees_refusals(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "af_packet"
    }
}
