//! Receiving in an XDP program: packets are judged where they arrive and never leave the kernel.
//!
//! The fastest there is on a CPU shared with the generator: no copy, no wake-up, no queue that could
//! overflow between the wire and the count. Each flow remembers [`super::WINDOW`] numbers.
//!
//! The program reads ESP as if it were marked, for both have the number of the packet behind that of the flow:
//!
//! ```text
//! mark   | magic u16                       | run u8      | flow u24    | sequence u32 |
//! ESP    | end of the outer destination    | SPI u32, of which the first byte is 0  | sequence u32 |
//! ```

use std::io;

use weir_io::xdp_tally::{self, Layout};

use super::{Collector, Form, Tally};
use crate::model::Family;
use crate::workload::sa::{FIRST_SPI, SAS_MAX, Sealed};
use crate::workload::{frame, mark};

pub struct XdpCollector {
    program: xdp_tally::Tally,
    /// Packets carry the number of no run.
    sealed: bool,
}

impl XdpCollector {
    /// Takes over the port's reception; call from a thread in the port's namespace.
    pub fn attach(port: &str, form: Form) -> io::Result<Self> {
        let Some(link) = weir_io::netlink::link(port)? else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such interface"));
        };
        let (layout, flows) = match form {
            Form::Marked { family, flows } => (marked(family), flows),
            Form::Sealed(sealed) => (layout_of(sealed), FIRST_SPI + SAS_MAX),
        };
        let program = xdp_tally::Tally::attach(port, link.index, layout, flows).map_err(other)?;
        Ok(XdpCollector { program, sealed: matches!(form, Form::Sealed(_)) })
    }
}

impl Collector for XdpCollector {
    fn start(&mut self, run: u8) -> io::Result<()> {
        self.program.start(if self.sealed { 0 } else { run }).map_err(other)
    }

    fn collect(&mut self, _: &mut Tally) -> io::Result<()> {
        Ok(())
    }

    fn update(&mut self, tally: &mut Tally) -> io::Result<()> {
        let counts = self.program.counts().map_err(other)?;
        tally.delivered = counts.delivered;
        tally.duplicated = counts.duplicated;
        tally.reordered = counts.reordered;
        tally.beyond_memory = counts.beyond_memory;
        tally.foreign = counts.foreign;
        tally.last_arrival = counts.last_ns;
        Ok(())
    }

    fn finish(&mut self, tally: &mut Tally) -> io::Result<()> {
        self.update(tally)?;
        if self.sealed {
            // what stands where a mark has its time is none
            return Ok(());
        }
        for (nanoseconds, packets) in self.program.latencies().map_err(other)? {
            tally.latency.saturating_record_n(nanoseconds.max(1), packets);
        }
        Ok(())
    }

    fn lost(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    fn in_kernel(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        format!("{} program", self.program.mode())
    }
}

fn marked(family: Family) -> Layout {
    let (ethertype, protocol_at, _) = frame::ip_layout(family);
    let mark_at = frame::headers_len(family) as u16;
    Layout { ethertype, protocol_at: protocol_at as u16, protocol: 17, mark_at, magic: mark::MAGIC }
}

fn layout_of(sealed: Sealed) -> Layout {
    let (ethertype, protocol_at, spi_at) = sealed.layout();
    Layout {
        ethertype,
        protocol_at: protocol_at as u16,
        protocol: Sealed::PROTOCOL,
        mark_at: spi_at as u16 - 2,
        magic: sealed.destination,
    }
}

fn other(error: xdp_tally::TallyError) -> io::Error {
    io::Error::other(error.to_string())
}
