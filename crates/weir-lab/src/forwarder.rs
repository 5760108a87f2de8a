//! The least that carries bytes from one TCP connection to another: what of a relay's work is the kernel's TCP.
//!
//! ```text
//! connections in the order they came: 0 ⇄ 1, 2 ⇄ 3, …        readable ─► recv 64 KiB ─► send to the other
//!                                                             the other is full ─► keep the rest, read no more
//! ```
//!
//! Promises: every byte arrives, in order; one thread, one epoll, nothing looked at. Refuses: to keep more than one
//! receive of a connection: its sender waits.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::model::LabError;

/// Received at once: what weir's relay receives at once.
const RECEIVED_MAX: usize = 64 << 10;
/// Clients of every run fit in (25,000 at most).
const DESCRIPTORS: u64 = 1 << 16;
/// Events taken at once.
const EVENTS: usize = 256;
/// The listener's number among connections.
const LISTENER: u64 = u64::MAX;
/// What it says once it accepts.
pub const READY: &str = "ready";

/// The verb of the command line: forwards until it is ended.
pub fn run(address: SocketAddr) -> Result<ExitCode, LabError> {
    let failed = |e: io::Error| LabError::new(format!("tcp-forwarder: {address}: {e}"));
    weir_io::process::raise_descriptors(DESCRIPTORS).map_err(failed)?;
    let listener = TcpListener::bind(address).map_err(failed)?;
    writeln!(io::stdout(), "{READY}").map_err(failed)?;
    Forwarder::new(listener)
        .and_then(|mut forwarder| {
            loop {
                forwarder.turn()?;
            }
        })
        .map_err(failed)
}

/// One connection.
struct End {
    socket: TcpStream,
    /// What it has not taken yet, from `taken` on; its other end is not read meanwhile.
    rest: Vec<u8>,
    taken: usize,
}

struct Forwarder {
    listener: TcpListener,
    poll: OwnedFd,
    /// Two of a pair after each other; those of a pair that ended are gone.
    ends: Vec<Option<End>>,
    buffer: Vec<u8>,
}

impl Forwarder {
    fn new(listener: TcpListener) -> io::Result<Forwarder> {
        listener.set_nonblocking(true)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Forwarder { listener, poll, ends: Vec::new(), buffer: vec![0; RECEIVED_MAX] })
    }

    /// Waits, and does what can be done.
    fn turn(&mut self) -> io::Result<()> {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let ready = match epoll::wait(&self.poll, &mut events, None) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        for event in ready {
            match event.data.u64() {
                LISTENER => self.accept()?,
                n => self.serve(n as usize, event.flags),
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // it went away before it was taken
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(e) => return Err(e),
            };
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            let n = self.ends.len();
            self.ends.push(Some(End { socket, rest: Vec::new(), taken: 0 }));
            if n % 2 == 1 {
                // nothing is read before there is somebody to have it
                for n in [n - 1, n] {
                    if let Some(end) = &self.ends[n] {
                        epoll::add(&self.poll, &end.socket, EventData::new_u64(n as u64), EventFlags::IN)?;
                    }
                }
            }
        }
    }

    /// Does for a connection what it is ready for; a pair one of whose ends is gone ends.
    fn serve(&mut self, n: usize, flags: EventFlags) {
        let gone = flags.intersects(EventFlags::ERR | EventFlags::HUP) && !flags.contains(EventFlags::IN);
        let done = match gone {
            true => Ok(false),
            false => self.flush(n, flags).and_then(|()| self.forward(n, flags)),
        };
        if !done.unwrap_or(false) {
            // closing takes both out of the epoll, too
            self.ends[n] = None;
            self.ends[n ^ 1] = None;
        }
    }

    fn flush(&mut self, n: usize, flags: EventFlags) -> io::Result<()> {
        let Some(end) = self.ends[n].as_mut().filter(|_| flags.contains(EventFlags::OUT)) else {
            return Ok(());
        };
        end.taken += sent(&end.socket, &end.rest[end.taken..])?;
        if end.taken == end.rest.len() {
            end.rest.clear();
            end.taken = 0;
            self.watch(n)?;
            self.watch(n ^ 1)?;
        }
        Ok(())
    }

    /// Receives once and sends on; `false` at the end of the stream.
    fn forward(&mut self, n: usize, flags: EventFlags) -> io::Result<bool> {
        if !flags.contains(EventFlags::IN) {
            return Ok(true);
        }
        let (low, high) = self.ends.split_at_mut(n | 1);
        let (from, to) =
            if n.is_multiple_of(2) { (&mut low[n], &mut high[0]) } else { (&mut high[0], &mut low[n - 1]) };
        let (Some(from), Some(to)) = (from, to) else { return Ok(false) };
        if !to.rest.is_empty() {
            return Ok(true);
        }
        let came = match recv(&from.socket, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Ok(false),
            Ok((came, _)) => came,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
            Err(e) => return Err(e.into()),
        };
        let taken = sent(&to.socket, &self.buffer[..came])?;
        if taken < came {
            to.rest.extend_from_slice(&self.buffer[taken..came]);
            self.watch(n)?;
            self.watch(n ^ 1)?;
        }
        Ok(true)
    }

    /// Waits for what this end can go on with: room for its rest, and bytes if the other has taken all.
    fn watch(&self, n: usize) -> io::Result<()> {
        let (Some(own), Some(other)) = (&self.ends[n], &self.ends[n ^ 1]) else { return Ok(()) };
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, other.rest.is_empty());
        flags.set(EventFlags::OUT, !own.rest.is_empty());
        Ok(epoll::modify(&self.poll, &own.socket, EventData::new_u64(n as u64), flags)?)
    }
}

/// What a socket took.
fn sent(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(n) => Ok(n),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A forwarder on a thread of its own, until the test ends it with a connection more.
    fn forwarding(test: impl FnOnce(SocketAddr)) -> Forwarder {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let ends = Arc::new(AtomicBool::new(false));
        let until = ends.clone();
        let thread = std::thread::spawn(move || {
            let mut forwarder = Forwarder::new(listener).expect("epoll");
            while !until.load(Ordering::Acquire) {
                forwarder.turn().expect("it goes on");
            }
            forwarder
        });
        test(address);
        ends.store(true, Ordering::Release);
        let _last = TcpStream::connect(address).expect("it listens");
        thread.join().expect("it ended")
    }

    fn pair(address: SocketAddr) -> (TcpStream, TcpStream) {
        let connect = || TcpStream::connect(address).expect("it listens");
        (connect(), connect())
    }

    /// Bytes that say where they belong.
    fn bytes(seed: u8, len: usize) -> Vec<u8> {
        (0..len).map(|n| (n / 251) as u8 ^ (n % 251) as u8 ^ seed).collect()
    }

    #[test]
    fn every_byte_arrives_in_order_at_its_pair_whoever_is_slow() {
        const LEN: usize = 8 << 20;
        forwarding(|address| {
            let pairs = [pair(address), pair(address)];
            let threads: Vec<_> = pairs
                .into_iter()
                .enumerate()
                .flat_map(|(n, (a, b))| {
                    let (seed, other) = (2 * n as u8, 2 * n as u8 + 1);
                    let ends = [(a, seed, other), (b, other, seed)];
                    ends.map(|(end, says, hears)| {
                        let mut reader = end.try_clone().expect("a descriptor");
                        let writes = std::thread::spawn(move || {
                            (&end).write_all(&bytes(says, LEN)).expect("open");
                            end
                        });
                        std::thread::spawn(move || {
                            let mut heard = vec![0; LEN];
                            // nobody reads before much more is under way than any buffer holds
                            std::thread::sleep(std::time::Duration::from_millis(200 * u64::from(hears % 2)));
                            reader.read_exact(&mut heard).expect("open");
                            assert!(heard == bytes(hears, LEN), "{hears}: other bytes than were sent");
                            writes.join().expect("all is written")
                        })
                    })
                })
                .collect();
            // open until all of them have heard all
            drop(threads.into_iter().map(|t| t.join().expect("heard")).collect::<Vec<_>>());
        });
    }

    #[test]
    fn a_pair_ends_with_either_of_its_ends_and_others_go_on() {
        let left = forwarding(|address| {
            let ((a, mut b), (mut c, mut d)) = (pair(address), pair(address));
            drop(a);
            assert_eq!(b.read(&mut [0; 8]).unwrap_or(0), 0, "its other end is told");
            c.write_all(b"on").expect("open");
            let mut heard = [0; 2];
            d.read_exact(&mut heard).expect("open");
            assert_eq!(&heard, b"on");
        });
        assert!(left.ends[0].is_none() && left.ends[1].is_none(), "nothing is kept of a pair that ended");
    }
}
