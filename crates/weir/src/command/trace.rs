//! `weir trace`: a packet described on the command line, and the way it takes through the running router.
//!
//! Nothing is sent: the daemon follows the frame through the tables its workers use.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use clap::{Args, ValueEnum};
use weir_core::wire::build::Frame;
use weir_core::wire::tcp;

use crate::config::route::parse_mac;
use crate::control::client;
use crate::failure::Failure;
use crate::text::{print, print_json};
use crate::view::{self, from_hex};

/// Sender of a described packet; no decision depends on it.
const SENDER: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// Ethernet, IPv6 and UDP headers.
const HEADERS: usize = 14 + 40 + 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    Udp,
    Tcp,
    Icmp,
}

#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// The port the packet comes in on
    #[arg(long)]
    pub port: String,
    /// The whole Ethernet frame in hex
    #[arg(long, conflicts_with_all = ["src", "dst"], required_unless_present_all = ["src", "dst"])]
    pub hex: Option<String>,
    #[arg(long, requires = "dst")]
    pub src: Option<IpAddr>,
    #[arg(long, requires = "src")]
    pub dst: Option<IpAddr>,
    #[arg(long, value_enum, default_value_t = Protocol::Udp)]
    pub proto: Protocol,
    #[arg(long, default_value_t = 40000)]
    pub sport: u16,
    #[arg(long, default_value_t = 53)]
    pub dport: u16,
    /// TTL or hop limit
    #[arg(long, default_value_t = 64)]
    pub ttl: u8,
    /// Bytes of the IP packet
    #[arg(long)]
    pub len: Option<usize>,
    /// Set IPv4's don't-fragment bit
    #[arg(long)]
    pub df: bool,
    #[arg(long)]
    pub json: bool,
}

pub fn run(socket: &Path, args: &TraceArgs) -> Result<(), Failure> {
    let ports: Vec<view::Port> = client::read(socket, "/v1/ports").map_err(Failure::of)?;
    let port = ports.iter().find(|p| p.name == args.port).ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
        Failure(format!("--port: there is no port `{}`; ports are {}", args.port, names.join(", ")))
    })?;
    let frame = match &args.hex {
        Some(hex) => from_hex(hex).map_err(Failure::of)?,
        None => described(args, port)?,
    };
    let hex: String = frame.iter().map(|b| format!("{b:02x}")).collect();
    let request = view::TraceRequest { port: port.name.clone(), frame: hex };
    let body = serde_json::to_vec(&request).map_err(|e| Failure(e.to_string()))?;
    let trace: view::Trace =
        client::post(socket, "/v1/trace", "application/json", &body).map_err(Failure::of)?;
    if args.json {
        return print_json(&trace);
    }
    print(&text(&trace))
}

/// A frame as the port would receive it.
fn described(args: &TraceArgs, port: &view::Port) -> Result<Vec<u8>, Failure> {
    let missing =
        || Failure("trace: neither --hex nor --src and --dst are given; describe the packet one way".into());
    let (src, dst) = (args.src.ok_or_else(missing)?, args.dst.ok_or_else(missing)?);
    let frame = Frame::ip(src, dst).ok_or_else(|| {
        Failure(format!(
            "trace: --src {src} and --dst {dst} are of different families; write both IPv4 or both IPv6"
        ))
    })?;
    let to = parse_mac(&port.mac).unwrap_or_default();
    let mut frame = frame.macs(to, SENDER).ttl(args.ttl);
    if let Some(vlan) = port.vlan {
        frame = frame.vlan(vlan);
    }
    if args.df {
        frame = frame.dont_fragment();
    }
    let ip = if matches!(src, IpAddr::V4(_)) { 20 } else { 40 };
    let upper = match args.proto {
        Protocol::Udp | Protocol::Icmp => 8,
        Protocol::Tcp => 20,
    };
    let least = ip + upper;
    let length = args.len.unwrap_or(least);
    if length < least || length > 65_535 - HEADERS {
        return Err(Failure(format!(
            "--len: got {length}, expected {least} to {} bytes of IP packet; write one of them",
            65_535 - HEADERS
        )));
    }
    let payload = vec![0; length - least];
    Ok(match args.proto {
        Protocol::Udp => frame.udp(args.sport, args.dport, &payload),
        Protocol::Tcp => {
            let header = tcp::Header { src_port: args.sport, dst_port: args.dport, ..tcp::Header::default() };
            frame.tcp(&header, &payload)
        }
        Protocol::Icmp => frame.echo_request(1, 1, &payload),
    })
}

fn text(trace: &view::Trace) -> String {
    let widest =
        |of: fn(&view::Step) -> &str| trace.steps.iter().map(|s| of(s).chars().count()).max().unwrap_or(0);
    let (stage, looked_at) = (widest(|s| &s.stage), widest(|s| &s.looked_at).min(48));
    let mut out = String::new();
    for step in &trace.steps {
        let _ = writeln!(out, "{:stage$}  {:looked_at$}  {}", step.stage, step.looked_at, step.found);
    }
    let _ = writeln!(out, "(tables of generation {}; nothing was sent)", trace.generation);
    out
}
