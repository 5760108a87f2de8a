//! `weir capture`: packets that a router drops, into a file that other tools read.
//!
//! Promises: what is in the file is whole whenever it is looked at, also after `kill -9` of this program or of the
//! router; nobody but this user may read it; how many packets are not in it is said. Refuses: to overwrite a file.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use weir_core::verdict::Reason;
use weir_io::pcapng::{LinkType, Packet, Pcapng};

use crate::control::client::{self, ClientError};
use crate::failure::Failure;
use crate::text::count;
use crate::view::capture::{Capture, CaptureRequest, DroppedPacket};
use crate::view::from_hex;

/// How often the router is asked: copies wait there, and their bound is a thousand.
const FETCH_EVERY: Duration = Duration::from_millis(50);
const ALL: &str = "all";

#[derive(Clone, Debug, Args)]
pub struct CaptureArgs {
    /// Packets dropped for this reason; several separated by commas, or `all`
    #[arg(long, required = true, value_name = "REASON", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(names()), hide_possible_values = true)]
    drop: Vec<String>,
    /// The file to write, of mode 600; - is standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// End after so many packets
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// End after so many seconds
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Packets a second of each worker, at most; others are counted
    #[arg(long, default_value_t = 100, value_name = "N")]
    rate: u32,
    /// Bytes kept of a packet
    #[arg(long, default_value_t = 65_535, value_name = "BYTES")]
    snap: usize,
}

fn names() -> Vec<&'static str> {
    let known = Reason::ALL.iter().map(|reason| reason.name());
    known.filter(|name| *name != Reason::NoSocket.name()).chain([ALL]).collect()
}

/// What stands under the options: examples, what is readable in the file, the reasons.
pub fn help() -> String {
    let mut text = "Examples:\n  \
        sudo weir capture --drop no_route -w drops.pcap            1000 packets, or until Ctrl-C\n  \
        sudo weir capture --drop all --seconds 10 -w drops.pcap    pcapng: each packet's comment says why\n  \
        sudo weir capture --drop policy_mismatch -w - | tcpdump -nr -\n\n\
        The file is pcapng, whole at every moment. A port is an interface in it. Nothing is copied while nobody captures.\n\n\
        With IPsec the file holds secrets: what an SA has decrypted is in it as cleartext (policy_mismatch, decrypted_for_kernel,\n\
        esp_bad_trailer and all that is dropped behind a tunnel), and so is what was to be encrypted (no_outbound_sa and others).\n\
        Keys are not. Of integrity_failed there are the headers only: the payload has been overwritten by then.\n\
        no_socket is dropped in front of the kernel, where weir has no packet to copy: `tcpdump -i DEVICE` sees it.\n\n\
        Reasons, with `weir show drops` to count them:"
        .to_owned();
    let mut width = usize::MAX;
    for name in names() {
        if width > 100 {
            text += "\n ";
            width = 1;
        }
        text.push(' ');
        text += name;
        width += name.len() + 1;
    }
    text
}

/// Where a capture goes.
enum Output {
    File(File),
    Stdout(io::Stdout),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::File(file) => file.write(bytes),
            Output::Stdout(stdout) => stdout.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::File(file) => file.flush(),
            Output::Stdout(stdout) => stdout.flush(),
        }
    }
}

impl Output {
    fn of(path: &Path) -> Result<Output, Failure> {
        if path == Path::new("-") {
            let stdout = io::stdout();
            if stdout.is_terminal() {
                return Err(Failure(
                    "-w -: standard output is a terminal; write into a file or a pipe".into(),
                ));
            }
            return Ok(Output::Stdout(stdout));
        }
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        created.map(Output::File).map_err(|error| {
            let remedy = match error.kind() {
                io::ErrorKind::AlreadyExists => "name another, or remove it first",
                _ => "name another place",
            };
            Failure(format!("-w {}: {error}; {remedy}", path.display()))
        })
    }
}

/// Why a capture ended before it was told to.
enum Ended {
    Daemon(ClientError),
    Output(io::Error),
}

pub fn run(socket: &Path, args: &CaptureArgs) -> Result<(), Failure> {
    let all = args.drop.iter().any(|reason| reason == ALL);
    let reasons = if all { Vec::new() } else { args.drop.clone() };
    let stop = weir_io::signal::stop_flag().map_err(Failure::of)?;
    let begin =
        CaptureRequest { reasons, rate: Some(args.rate), snap: Some(args.snap), ..Default::default() };
    let begun = ask(socket, &begin).map_err(Failure::of)?;
    let end = CaptureRequest { id: Some(begun.id), end: true, ..Default::default() };
    let output = Output::of(&args.write).inspect_err(|_| {
        // It would end by itself, some seconds later.
        let _ = ask(socket, &end);
    })?;
    let program = concat!("weir ", env!("CARGO_PKG_VERSION"));
    let mut pcapng = Pcapng::new(output, program).map_err(Failure::of)?;
    eprintln!("packets dropped as {} go to {}; Ctrl-C ends it", args.drop.join(", "), named(&args.write));
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1e9)));
    let (mut written, mut dropped) = (0, 0);
    let mut last = false;
    let ended = loop {
        last |= stop.load(Ordering::Acquire) || until.is_some_and(|until| Instant::now() >= until);
        let request = CaptureRequest { id: Some(begun.id), end: last, ..Default::default() };
        let fetched = match ask(socket, &request) {
            Ok(fetched) => fetched,
            Err(error) => break Some(Ended::Daemon(error)),
        };
        dropped = fetched.dropped;
        let room = args.count - written;
        match add(&mut pcapng, &fetched.packets, room) {
            Ok(added) => written += added,
            Err(error) => break Some(Ended::Output(error)),
        }
        match (last && !fetched.more, written == args.count) {
            (true, _) => break None,
            (false, true) => last = true,
            (false, false) if fetched.more => {}
            (false, false) => thread::sleep(FETCH_EVERY),
        }
    };
    if matches!(ended, Some(Ended::Output(_))) {
        let _ = ask(socket, &end);
        if let Output::File(file) = pcapng.get_ref() {
            // What a full disk cut off is taken off; if that fails, readers stop there.
            let _ = file.set_len(pcapng.whole());
        }
    }
    finish(args, ended, written, dropped)
}

fn named(path: &Path) -> String {
    if path == Path::new("-") { "standard output".into() } else { path.display().to_string() }
}

fn finish(args: &CaptureArgs, ended: Option<Ended>, written: u64, dropped: u64) -> Result<(), Failure> {
    let held = format!("{} of {dropped} dropped", count(written as usize, "packet"));
    let name = named(&args.write);
    match ended {
        None => eprintln!("{held} in {name}"),
        Some(Ended::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Some(Ended::Output(error)) => {
            return Err(Failure(format!("{name}: {error}; {held} are in it, whole; free the disk")));
        }
        Some(Ended::Daemon(error)) => {
            return Err(Failure(format!(
                "capture: over before it was told to ({held} in {name}, whole): {error}"
            )));
        }
    }
    Ok(())
}

fn ask(socket: &Path, request: &CaptureRequest) -> Result<Capture, ClientError> {
    let body = serde_json::json!(request).to_string();
    client::post(socket, "/v1/capture", "application/json", body.as_bytes())
}

/// Writes at most `room` packets; says how many.
fn add(pcapng: &mut Pcapng<Output>, packets: &[DroppedPacket], room: u64) -> io::Result<u64> {
    let mut added = 0;
    for packet in packets.iter().take(room as usize) {
        let sentence = Reason::of_name(&packet.reason).map_or("", Reason::sentence);
        let comment = match packet.port.as_str() {
            "" => format!("{}: {sentence}", packet.reason),
            port => format!("{} at {port}: {sentence}", packet.reason),
        };
        // Nothing is readable of some: hex of no byte is none.
        let bytes = from_hex(&packet.bytes).unwrap_or_default();
        pcapng.write(&Packet {
            port: &packet.port,
            link: if packet.link == "ip" { LinkType::Raw } else { LinkType::Ethernet },
            time_ns: packet.time_ns,
            length: packet.length,
            bytes: &bytes,
            comment: &comment,
        })?;
        added += 1;
    }
    Ok(added)
}
