//! Frames a second of the generator over a veth into the tally: both programs and the device, nothing else.
//!
//! `cargo bench -p weir-io --bench veth_generate` prints million frames a second, generated and judged, of one
//! second after a short one. To compare two builds, run them by turns.

use std::error::Error;
use std::process::Command;

use weir_io::clock;
use weir_io::netlink;
use weir_io::netns;
use weir_io::xdp_gen::{FrameTemplate, Generator, Layout};
use weir_io::xdp_tally::{self, Tally};

const FLOWS: u32 = 100;
const RUN: u8 = 7;
const SHORT: u64 = 100_000_000;
const LONG: u64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    netns::enter_new()?;
    for command in ["link add g0 type veth peer name t0", "link set g0 up", "link set t0 up"] {
        let status = Command::new("ip").args(command.split(' ')).status()?;
        assert!(status.success(), "ip {command}: {status}");
    }
    let index = |name: &str| -> Result<u32, Box<dyn Error>> {
        Ok(netlink::link(name)?.ok_or("no such device")?.index)
    };
    let expected =
        xdp_tally::Layout { ethertype: 0x0800, protocol_at: 23, protocol: 17, mark_at: 42, magic: *b"we" };
    let mut tally = Tally::attach("t0", index("t0")?, expected, FLOWS)?;
    let written = Layout { sequence: Some(48), time: Some(52), checksum: Some(40) };
    let slots: Vec<FrameTemplate> = (0..FLOWS).map(slot).collect();
    let mut generator = Generator::new(index("g0")?, written, &slots, 1)?;
    tally.start(RUN)?;
    generator.run_until(clock::now() + SHORT)?;
    let (offered, judged) = (generator.sent()?, tally.counts()?.delivered);
    let start = clock::now();
    generator.run_until(start + LONG)?;
    let seconds = (clock::now() - start) as f64 / 1e9;
    let offered = (generator.sent()? - offered) as f64 / 1e6 / seconds;
    let judged = (tally.counts()?.delivered - judged) as f64 / 1e6 / seconds;
    println!("{offered:.4} {judged:.4}");
    Ok(())
}

fn slot(flow: u32) -> FrameTemplate {
    let mut head = vec![0; 60];
    head[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    head[12..14].copy_from_slice(&[8, 0]);
    head[14] = 0x45;
    head[17] = 46;
    head[22] = 64;
    head[23] = 17;
    head[42..44].copy_from_slice(b"we");
    head[44..48].copy_from_slice(&flow.to_be_bytes());
    head[44] = RUN;
    FrameTemplate { head, len: 60, sequence: 0 }
}
