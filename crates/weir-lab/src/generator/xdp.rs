//! Sending by an XDP program on live frames: no socket buffer, no copy between kernel and user.
//!
//! The kernel side keeps one *slot* for each packet of a round (every flow in turn, repeated until the
//! pattern of sizes fits) and stamps number, time and checksum into it. Pacing is the kernel side's too: it
//! looks at the clock for each frame.

use std::{fmt, io};

use weir_core::time::Nanos;
use weir_io::xdp_gen::{self, FrameTemplate, Layout};

use super::{TrafficSpec, Transmitted, Transmitter};
use crate::workload::{Traffic, frame, mark};
use weir_stats::search::Rate;

pub struct XdpTransmitter {
    interface: u32,
    traffic: Traffic,
    rate: Rate,
    running: Option<Running>,
}

/// Why an interface cannot be sent out of this way.
#[derive(Debug)]
pub enum NoLiveFrames {
    NoInterface,
    /// Packets of a round.
    Round {
        got: usize,
        most: usize,
    },
    Kernel(io::Error),
}

impl From<io::Error> for NoLiveFrames {
    fn from(error: io::Error) -> NoLiveFrames {
        NoLiveFrames::Kernel(error)
    }
}

impl fmt::Display for NoLiveFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoLiveFrames::NoInterface => f.write_str("no such interface"),
            NoLiveFrames::Round { got, most } => write!(
                f,
                "{got} packets until flows and sizes repeat, expected at most {most}; use a multiple of 12 flows"
            ),
            NoLiveFrames::Kernel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NoLiveFrames {}

struct Running {
    program: xdp_gen::Generator,
    /// What had left when it was asked last.
    sent: u64,
}

impl Running {
    /// What left since the last question.
    fn moved(&mut self) -> io::Result<Transmitted> {
        let sent = self.program.sent().map_err(other)?;
        let now = sent - std::mem::replace(&mut self.sent, sent);
        Ok(Transmitted { offered: now, sent: now })
    }
}

impl XdpTransmitter {
    /// Sends out of `interface`. Every call of `transmit` comes from a thread in its namespace.
    pub fn new(interface: u32, traffic: Traffic) -> Result<Self, NoLiveFrames> {
        let slots = round(&traffic);
        if slots > xdp_gen::SLOTS_MAX {
            return Err(NoLiveFrames::Round { got: slots, most: xdp_gen::SLOTS_MAX });
        }
        let mut transmitter = XdpTransmitter { interface, traffic, rate: Rate::FlatOut, running: None };
        // The verifier's refusal belongs here, where another way of sending can still be chosen.
        transmitter.load(0, 0)?;
        Ok(transmitter)
    }

    fn load(&mut self, run: u8, seed: u64) -> io::Result<()> {
        let head_len = frame::headers_len(self.traffic.family()) + mark::LEN;
        let mark_at = (head_len - mark::LEN) as u16;
        let layout =
            Layout { sequence: Some(mark_at + 6), time: Some(mark_at + 10), checksum: Some(mark_at - 2) };
        let mut stream = self.traffic.stream(seed);
        let packets = round(&self.traffic);
        let slots: Vec<FrameTemplate> = (0..packets)
            .map(|_| {
                let packet = stream.advance();
                let mut head = self.traffic.frame(packet.numbered(0), run, 0);
                head.truncate(head_len);
                FrameTemplate { head, len: self.traffic.len(packet) as u16, sequence: packet.sequence }
            })
            .collect();
        let stride = packets as u32 / self.traffic.flows();
        // The last one goes first: loopback holds one program, and a second that finds it taken is slow at every
        // call (10 ms and more, which a short window misses).
        self.running = None;
        let mut program = xdp_gen::Generator::new(self.interface, layout, &slots, stride).map_err(other)?;
        let pace = match self.rate {
            Rate::FlatOut | Rate::Burst(_) => None,
            Rate::Pps(rate) => Some(rate as f64),
        };
        program.pace(pace).map_err(other)?;
        self.running = Some(Running { program, sent: 0 });
        Ok(())
    }
}

/// Packets after which both flows and sizes begin again: their least common multiple.
fn round(traffic: &Traffic) -> usize {
    let (flows, sizes) = (traffic.flows() as usize, traffic.pattern().len());
    let (mut a, mut b) = (flows, sizes);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    flows / a * sizes
}

impl Transmitter for XdpTransmitter {
    fn restart(&mut self, plan: &TrafficSpec, seed: u64) -> io::Result<()> {
        self.rate = plan.rate;
        self.load(plan.run, seed)
    }

    fn transmit(&mut self, want: u32, _: u8) -> io::Result<Transmitted> {
        let Some(running) = &mut self.running else { return Ok(Transmitted::default()) };
        running.program.run(want).map_err(other)?;
        running.moved()
    }

    fn send_until(&mut self, deadline: Nanos) -> io::Result<Option<Transmitted>> {
        let Some(running) = &mut self.running else { return Ok(None) };
        running.program.run_until(deadline).map_err(other)?;
        running.moved().map(Some)
    }

    fn sees_refusals(&self) -> bool {
        false
    }

    fn name(&self) -> &'static str {
        "XDP program on live frames"
    }
}

fn other(error: xdp_gen::GeneratorError) -> io::Error {
    io::Error::other(error.to_string())
}
