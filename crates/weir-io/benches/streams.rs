//! What it costs to pass TCP streams on: io_uring against epoll.
//!
//! `cargo bench -p weir-io --bench streams` joins pairs of loopback connections by one thread with `Streams`, while
//! another writes to one end and reads from the other. Printed is the processor time of the passing thread, in
//! nanoseconds a KiB (bulk: as much as fits) or a frame (1,400 B on every pair, then wait for all): the median of
//! rounds in which the backends take turns. Under `cargo test --benches` it runs one short round.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_io::stream::{Backend, Counters, Event, Part, StreamId, Streams};

const FRAME: usize = 1400;
const BUFFERS: u16 = 256;

#[derive(Clone, Copy, PartialEq)]
enum Load {
    Bulk,
    Frames,
}

struct Cost {
    /// Nanoseconds a unit.
    each: f64,
    counters: Counters,
}

fn main() {
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let (rounds, length) =
        if measuring { (11, Duration::from_millis(300)) } else { (1, Duration::from_millis(20)) };
    println!(
        "{:6} {:>5} {:>10} {:>10} {:>7}   of io_uring: receives a wait, bytes a receive, receives put off",
        "load", "pairs", "epoll ns", "uring ns", "ratio"
    );
    let cases = [(Load::Bulk, 1), (Load::Bulk, 10), (Load::Bulk, 100)];
    let cases = cases.into_iter().chain([(Load::Frames, 1), (Load::Frames, 10), (Load::Frames, 100)]);
    for (load, pairs) in cases {
        let mut costs = [Vec::new(), Vec::new()];
        let mut counters = Counters::default();
        for _ in 0..rounds {
            costs[0].push(round(Backend::Epoll, load, pairs, length).each);
            match Streams::new(Backend::Uring, 1) {
                Ok(_) => {
                    let cost = round(Backend::Uring, load, pairs, length);
                    costs[1].push(cost.each);
                    counters = cost.counters;
                }
                Err(missing) => {
                    let _ = writeln!(io::stderr(), "SKIP streams: io_uring ({missing})");
                    return;
                }
            }
        }
        let [epoll, uring] = costs.map(median);
        println!(
            "{:6} {pairs:>5} {epoll:>10.0} {uring:>10.0} {:>7.2}   {:.1} {:.0} {}",
            if load == Load::Bulk { "bulk" } else { "frames" },
            epoll / uring,
            counters.receives as f64 / counters.enters as f64,
            counters.received_bytes as f64 / counters.receives.max(1) as f64,
            counters.no_buffers,
        );
    }
}

fn median(mut costs: Vec<f64>) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (ours, _) = listener.accept().expect("accepted");
    peer.set_nodelay(true).expect("set");
    peer.set_nonblocking(true).expect("set");
    (ours, peer)
}

fn round(backend: Backend, load: Load, pairs: usize, length: Duration) -> Cost {
    let (ours, peers): (Vec<_>, Vec<_>) = (0..2 * pairs).map(|_| pair()).unzip();
    let over = Arc::new(AtomicBool::new(false));
    let passing = std::thread::spawn({
        let over = over.clone();
        move || pass(backend, ours, &over)
    });
    let units = drive(peers, load, length);
    over.store(true, Ordering::Relaxed);
    let (nanoseconds, counters) = passing.join().expect("the passing thread ends");
    Cost { each: nanoseconds / units, counters }
}

/// Writes to the even connections and reads from the odd ones; KiB or frames that arrived.
fn drive(mut peers: Vec<TcpStream>, load: Load, length: Duration) -> f64 {
    let start = Instant::now();
    let source = vec![7_u8; 256 << 10];
    let mut sink = vec![0_u8; 256 << 10];
    let mut arrived = 0_usize;
    while start.elapsed() < length {
        let mut waiting = 0;
        for pair in peers.chunks_exact_mut(2) {
            match load {
                Load::Bulk => {
                    some(pair[0].write(&source));
                    arrived += some(pair[1].read(&mut sink));
                }
                Load::Frames => {
                    some(pair[0].write(&source[..FRAME]));
                    waiting += FRAME;
                }
            }
        }
        for pair in peers.chunks_exact_mut(2).filter(|_| load == Load::Frames) {
            let mut left = FRAME;
            while left > 0 {
                left -= some(pair[1].read(&mut sink[..left]));
            }
        }
        arrived += waiting;
        std::thread::yield_now();
    }
    arrived as f64 / if load == Load::Bulk { 1024.0 } else { FRAME as f64 }
}

fn some(done: io::Result<usize>) -> usize {
    match done {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            std::thread::yield_now();
            0
        }
        Err(error) => panic!("{error}"),
    }
}

/// Passes on what comes from each even connection to the next one, which slows its source when it is full.
fn pass(backend: Backend, sockets: Vec<TcpStream>, over: &AtomicBool) -> (f64, Counters) {
    let mut streams = Streams::new(backend, BUFFERS).expect("streams");
    let tokens = 0_u64..;
    let ids: Vec<StreamId> = sockets
        .into_iter()
        .zip(tokens)
        .map(|(socket, token)| streams.register(socket.into(), token, false).expect("adopted"))
        .collect();
    let mut queues: Vec<VecDeque<Part>> = ids.iter().map(|_| VecDeque::new()).collect();
    let mut sending = vec![false; ids.len()];
    let mut events = Vec::new();
    let mut touched = Vec::new();
    let start = thread_time();
    while !over.load(Ordering::Relaxed) {
        streams.turn(Some(Duration::from_millis(10)), &mut events).expect("a turn");
        for event in events.drain(..) {
            match event {
                Event::Received { token, buffer } => {
                    let to = token as usize + 1;
                    let length = buffer.len();
                    queues[to].push_back(Part::Shared(Rc::new(buffer), 0..length));
                    if queues[to].len() == 4 {
                        streams.pause(ids[to - 1]);
                    }
                    touched.push(to);
                }
                Event::Sent { token, mut sent, parts } => {
                    let to = token as usize;
                    sending[to] = false;
                    let full = sent == 0;
                    for part in parts.into_iter().rev() {
                        queues[to].push_front(part);
                    }
                    while let Some(part) = queues[to].pop_front() {
                        let length = part.bytes().len();
                        if sent < length {
                            if let Part::Shared(buffer, range) = part {
                                queues[to].push_front(Part::Shared(buffer, range.start + sent..range.end));
                            }
                            break;
                        }
                        sent -= length;
                    }
                    match queues[to].is_empty() {
                        true => streams.resume(ids[to - 1]),
                        false if full => {
                            sending[to] = true;
                            streams.notify_writable(ids[to]);
                        }
                        false => touched.push(to),
                    }
                }
                Event::Writable { token } => {
                    sending[token as usize] = false;
                    touched.push(token as usize);
                }
                Event::Ended { .. } | Event::Failed { .. } => {
                    return (thread_time() - start, streams.counters());
                }
                Event::Control { .. } | Event::Released { .. } | Event::Woken => {}
            }
        }
        for to in touched.drain(..) {
            if !sending[to] && !queues[to].is_empty() {
                sending[to] = true;
                streams.send(ids[to], queues[to].drain(..).collect());
            }
        }
    }
    (thread_time() - start, streams.counters())
}

/// Processor time of this thread, in nanoseconds.
fn thread_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
