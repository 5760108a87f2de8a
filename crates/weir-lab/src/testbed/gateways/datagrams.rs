//! Numbered UDP datagrams at a rate: a client that sends them in time, and a server that counts what comes.
//!
//! Promises: what the server counts was sent in the window, however late it comes; what its own socket had no room for is
//! known. Refuses: frames that do not fit into the MTU, and mixes of sizes.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_io::cpu;

use super::tcp::SERVER;
use crate::model::{Configuration, FrameSize, LabError, Trial};
use crate::netns::namespace::Namespace;
use crate::sut::gateway::MTU;
use crate::sut::kernel::in_table;
use crate::workload::mark::{self, Mark};
use weir_stats::search::Rate;

const PORT: u16 = 5002;
/// What an Ethernet frame has beside its payload: its header, its FCS, and the headers of IPv4 and UDP.
const HEADERS: u16 = 14 + 4 + 20 + 8;
/// The largest frame an MTU of 1,400 lets pass.
pub const FRAME_MAX: u16 = MTU + 14 + 4;
/// The runs of marks: datagrams that only see whether any pass, those before the window, those in it.
const PROBE: u8 = 0;
const WARM_UP: u8 = 1;
const WINDOW: u8 = 2;
/// The server has all that is still to come when nothing came for so long.
const QUIET: Duration = Duration::from_millis(300);
/// A thread blocked in the kernel looks this often whether it is to end.
const LOOKS: Duration = Duration::from_millis(20);
const PASSES_WITHIN: Duration = Duration::from_secs(1);

/// What one datagram after another is.
#[derive(Clone, Copy)]
pub struct Load {
    /// Bytes behind the UDP header.
    pub payload: usize,
    pub flows: u32,
    /// Datagrams a second.
    pub rate: u64,
}

/// What came of those of a window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    pub intended: u64,
    pub offered: u64,
    pub sent: u64,
    pub delivered: u64,
    /// Came after one of their flow that was sent later.
    pub reordered: u64,
    /// Reached the server's socket and found no room.
    pub no_room: u64,
    /// The window's ends by CLOCK_MONOTONIC, in nanoseconds.
    pub began: u64,
    pub ended: u64,
}

/// Why datagrams of this size cannot pass, with the remedy.
pub fn refused(configuration: &Configuration) -> Option<String> {
    let workload = &configuration.workload;
    if workload.rate == Rate::FlatOut { None } else { payload(workload.frame).err().map(|e| e.said) }
}

/// Bytes behind the UDP header of a frame, or why there are none.
pub fn payload(frame: FrameSize) -> Result<usize, LabError> {
    match frame {
        FrameSize::Fixed(frame) if frame <= FRAME_MAX => {
            Ok(usize::from(frame.saturating_sub(HEADERS)).max(mark::LEN))
        }
        FrameSize::Fixed(frame) => Err(LabError::new(format!(
            "gateways: a frame of {frame} bytes does not fit into an MTU of {MTU}: use frame = {FRAME_MAX} or less"
        ))),
        FrameSize::Imix => Err(LabError::new(format!(
            "gateways: datagrams are of one size: use frame = {FRAME_MAX} or less"
        ))),
    }
}

/// What the server's thread has counted, by run.
#[derive(Default)]
struct Counted {
    by_run: [AtomicU64; 3],
    reordered: AtomicU64,
    stop: AtomicBool,
}

impl Counted {
    fn of(&self, run: u8) -> u64 {
        self.by_run[usize::from(run)].load(Ordering::Relaxed)
    }
}

/// Ends the server's thread when the client is done, or has failed.
struct Server {
    counted: Arc<Counted>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.counted.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // One that panicked has counted what it has.
            let _ = thread.join();
        }
    }
}

impl Server {
    fn start(namespace: &Namespace, cpu: u32, flows: u32) -> Result<Server, LabError> {
        let counted = Arc::new(Counted::default());
        let counts = counted.clone();
        let started = namespace.run(move || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
            socket.set_read_timeout(Some(LOOKS))?;
            Ok::<_, std::io::Error>(thread::spawn(move || {
                // an unpinned thread is slower, not wrong
                let _ = cpu::pin(cpu);
                receive(&socket, flows, &counts);
            }))
        })?;
        let thread =
            started.map_err(|e| LabError::new(format!("server: cannot listen on UDP port {PORT}: {e}")))?;
        Ok(Server { counted, thread: Some(thread) })
    }
}

fn receive(socket: &UdpSocket, flows: u32, counted: &Counted) {
    let mut buffer = [0; 2048];
    let mut highest = vec![0; flows as usize];
    while !counted.stop.load(Ordering::Relaxed) {
        let Ok(len) = socket.recv(&mut buffer) else { continue };
        let Some(mark) = Mark::of_payload(&buffer[..len]) else { continue };
        let Some(count) = counted.by_run.get(usize::from(mark.run)) else { continue };
        count.fetch_add(1, Ordering::Relaxed);
        let Some(highest) = highest.get_mut(mark.flow as usize).filter(|_| mark.run == WINDOW) else {
            continue;
        };
        counted.reordered.fetch_add(u64::from(mark.sequence < *highest), Ordering::Relaxed);
        *highest = mark.sequence.max(*highest);
    }
}

/// Client and server, joined by a socket of the client's for each flow.
pub struct Ends<'a> {
    server: &'a Namespace,
    listener: Server,
    sockets: Vec<UdpSocket>,
    cpu: u32,
    load: Load,
}

impl Ends<'_> {
    /// The client sends from the first CPU, the server receives on the second.
    pub fn join<'a>(
        [client, server]: [&'a Namespace; 2],
        [near, far]: [u32; 2],
        load: Load,
    ) -> Result<Ends<'a>, LabError> {
        let listener = Server::start(server, far, load.flows)?;
        let sockets = client.run(move || {
            let connected = |_| {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect(SocketAddr::from((SERVER, PORT)))?;
                Ok::<_, std::io::Error>(socket)
            };
            (0..load.flows).map(connected).collect::<std::io::Result<Vec<UdpSocket>>>()
        })?;
        let sockets = sockets.map_err(|e| LabError::new(format!("client: no sockets for datagrams: {e}")))?;
        Ok(Ends { server, listener, sockets, cpu: near, load })
    }

    /// Sends until a datagram has passed.
    pub fn probe(&self) -> Result<(), &'static str> {
        let until = Instant::now() + PASSES_WITHIN;
        while self.listener.counted.of(PROBE) == 0 {
            if Instant::now() > until {
                return Err("nothing comes to the server");
            }
            // An ICMP error for an earlier one may be told here.
            let _ = self.sockets[0].send(&datagram(self.load, PROBE, 0, 0));
            thread::sleep(LOOKS);
        }
        Ok(())
    }

    /// Sends through warm-up and window, and waits until what is under way has come.
    pub fn run(&self, trial: &Trial) -> Result<Carried, LabError> {
        let before = no_room(self.server)?;
        let mut carried = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let _ = cpu::pin(self.cpu);
                pour(&self.sockets, self.load, WARM_UP, trial.warm_up);
                pour(&self.sockets, self.load, WINDOW, trial.window)
            });
            sender.join().map_err(|_| LabError::new("client: its sender has panicked".to_string()))
        })?;
        let counted = &self.listener.counted;
        let mut last = (counted.of(WINDOW), Instant::now());
        while last.0 < carried.sent && last.1.elapsed() < QUIET {
            thread::sleep(LOOKS);
            let now = counted.of(WINDOW);
            if now > last.0 {
                last = (now, Instant::now());
            }
        }
        carried.delivered = counted.of(WINDOW);
        carried.reordered = counted.reordered.load(Ordering::Relaxed);
        // Some of them may be of the warm-up; more than what is missing were not lost here.
        carried.no_room =
            (no_room(self.server)? - before).min(carried.sent.saturating_sub(carried.delivered));
        Ok(carried)
    }
}

fn datagram(load: Load, run: u8, flow: u32, sequence: u32) -> Vec<u8> {
    let mut bytes = vec![0; load.payload];
    let mark = Mark { run, flow, sequence, sent_ns: weir_io::clock::now() };
    bytes[..mark::LEN].copy_from_slice(&mark.bytes());
    bytes
}

/// Sends at the rate for so long; what is late when the time is over is not sent.
fn pour(sockets: &[UdpSocket], load: Load, run: u8, length: Duration) -> Carried {
    let mut carried = Carried {
        intended: (load.rate as f64 * length.as_secs_f64()) as u64,
        began: weir_io::clock::now(),
        ..Carried::default()
    };
    let start = Instant::now();
    for n in 0..carried.intended {
        let due = Duration::from_secs_f64(n as f64 / load.rate as f64);
        while let Some(early) = due.checked_sub(start.elapsed()) {
            thread::sleep(early.max(Duration::from_micros(50)));
        }
        if start.elapsed() > length {
            break;
        }
        let (flow, sequence) = (n % u64::from(load.flows), n / u64::from(load.flows));
        carried.offered += 1;
        let sent = sockets[flow as usize].send(&datagram(load, run, flow as u32, sequence as u32));
        carried.sent += u64::from(sent.is_ok());
    }
    thread::sleep(length.saturating_sub(start.elapsed()));
    carried.ended = weir_io::clock::now();
    carried
}

/// Datagrams that found no room in a socket of this namespace.
fn no_room(namespace: &Namespace) -> Result<u64, LabError> {
    // A thread has the counters of its own namespace.
    let snmp = namespace.read("/proc/thread-self/net/snmp")?;
    Ok(in_table(&snmp, "Udp", "RcvbufErrors").unwrap_or(0))
}
