//! Receiving through AF_PACKET: every kernel has it, and it is slow.

use std::io;

use weir_io::clock;
use weir_io::packet_socket::PacketSocket;

use super::{Collector, Tally};

pub struct PacketCollector {
    socket: PacketSocket,
}

impl PacketCollector {
    pub fn new(socket: PacketSocket) -> Self {
        PacketCollector { socket }
    }
}

impl Collector for PacketCollector {
    fn start(&mut self, _: u8) -> io::Result<()> {
        Ok(())
    }

    fn collect(&mut self, tally: &mut Tally) -> io::Result<()> {
        // One reading for the batch, when the first of it is in our hands.
        let mut now = None;
        self.socket.receive(|frame| tally.frame(frame, *now.get_or_insert_with(clock::now))).map(drop)
    }

    fn lost(&mut self) -> io::Result<u64> {
        self.socket.lost()
    }

    fn name(&self) -> String {
        "af_packet".into()
    }
}
