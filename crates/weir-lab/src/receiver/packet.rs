//! Receiving through AF_PACKET: every kernel has it, and it is slow.

use std::io;

use weir_io::clock;
use weir_io::packet_socket::PacketSocket;

use super::{Collector, Form, Tally};

pub struct PacketCollector {
    socket: PacketSocket,
    form: Form,
}

impl PacketCollector {
    pub fn new(socket: PacketSocket, form: Form) -> Self {
        PacketCollector { socket, form }
    }
}

impl Collector for PacketCollector {
    fn start(&mut self, _: u8) -> io::Result<()> {
        Ok(())
    }

    fn collect(&mut self, tally: &mut Tally) -> io::Result<()> {
        // One reading for the batch, when the first of it is in our hands.
        let mut now = None;
        let mut now = || *now.get_or_insert_with(clock::now);
        let received = match self.form {
            Form::Marked { .. } => self.socket.receive(|frame| tally.frame(frame, now())),
            Form::Sealed(sealed) => self.socket.receive(|frame| tally.sealed(sealed, frame, now())),
        };
        received.map(drop)
    }

    fn lost(&mut self) -> io::Result<u64> {
        self.socket.lost()
    }

    fn name(&self) -> String {
        "af_packet".into()
    }
}
