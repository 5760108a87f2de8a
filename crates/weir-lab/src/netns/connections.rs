//! TCP connections of a few packets, one after another: a client that begins them and a server that answers.
//!
//! ```text
//! client   SYN ──►      ◄── SYN, ACK   ACK ──►    3
//!          request ──►  ◄── reply                  2 each time, which acknowledge each other
//!                       ◄── FIN   FIN, ACK ──►  ◄── ACK    3
//! ```
//!
//! Promises: a connection counts when its client has had every reply whole and the server's end; as many as were asked for are
//! under way at once; the server ends them, so that the client's ports are free again at once and it is the server that waits for stragglers.
//! Refuses: rates, and repairing a connection: one that fails is counted, and another begins.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use rustix::time::Timespec;
use weir_io::cpu;

use super::namespace::Namespace;
use crate::model::LabError;

/// Packets that begin and end a connection.
const AROUND: u32 = 6;
/// Bytes of a request and of a reply.
const MESSAGE: usize = 32;
const PORT: u16 = 5001;
/// Events taken at once.
const EVENTS: usize = 64;
const LISTENER: u64 = u64::MAX;
/// A thread that waits looks this often whether it is to end.
const LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Requests of a connection of so many packets.
pub fn requests(packets: u32) -> u32 {
    packets.saturating_sub(AROUND) / 2
}

/// A thread that is ended with this value.
struct Thread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has told of itself.
            let _ = thread.join();
        }
    }
}

/// Starts `turn` again and again on a thread of its own in `namespace`, until it fails or is to end.
fn thread_in<T: 'static>(
    namespace: &Namespace,
    on: u32,
    make: impl FnOnce() -> io::Result<T> + Send + 'static,
    mut turn: impl FnMut(&mut T) -> io::Result<()> + Send + 'static,
) -> Result<Thread, LabError> {
    let stop = Arc::new(AtomicBool::new(false));
    let ended = stop.clone();
    let (made, ready) = std::sync::mpsc::channel();
    // A thread is in the namespace of the one that starts it.
    let thread = namespace.run(move || {
        thread::spawn(move || {
            // An unpinned thread is slower, not wrong.
            let _ = cpu::pin(on);
            let mut own = match make() {
                Ok(own) => own,
                Err(e) => return drop(made.send(Err(e))),
            };
            let _ = made.send(Ok(()));
            while !ended.load(Relaxed) && turn(&mut own).is_ok() {}
        })
    })?;
    let thread = Thread { stop, thread: Some(thread) };
    let failed = |e: String| LabError::new(format!("connections: {e}"));
    ready.recv().map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))?;
    Ok(thread)
}

/// Ready ones of a set, by their numbers.
fn ready(poll: &OwnedFd) -> io::Result<Vec<(u64, EventFlags)>> {
    let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
    match epoll::wait(poll, &mut events, Some(&LOOKS)) {
        Ok((ready, _)) => Ok(ready.iter().map(|event| (event.data.u64(), event.flags)).collect()),
        Err(Errno::INTR) => Ok(Vec::new()),
        Err(e) => Err(e.into()),
    }
}

/// What a connection has read of the message that is due.
#[derive(Default)]
struct Read {
    bytes: usize,
    messages: u32,
}

/// How far a read came.
enum Came {
    Message,
    Part,
    End,
}

impl Read {
    fn read(&mut self, mut stream: &TcpStream) -> io::Result<Came> {
        let mut buffer = [0; MESSAGE];
        match stream.read(&mut buffer[self.bytes..]) {
            Ok(0) => Ok(Came::End),
            Ok(len) => {
                self.bytes = (self.bytes + len) % MESSAGE;
                self.messages += u32::from(self.bytes == 0);
                Ok(if self.bytes == 0 { Came::Message } else { Came::Part })
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Came::Part),
            Err(e) => Err(e),
        }
    }
}

/// Acknowledgements go with what is sent, so that a connection has the packets it is meant to have.
fn with_data(stream: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_quickack(stream, false)?)
}

pub struct Server {
    _thread: Thread,
}

struct Answering {
    poll: OwnedFd,
    listener: TcpListener,
    connections: HashMap<u64, (TcpStream, Read)>,
    next: u64,
    requests: u32,
}

impl Server {
    /// Answers `requests` of each connection in `namespace`, and ends it.
    pub fn start(namespace: &Namespace, cpu: u32, requests: u32) -> Result<Server, LabError> {
        let make = move || {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
            listener.set_nonblocking(true)?;
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
            Ok(Answering { poll, listener, connections: HashMap::new(), next: 0, requests })
        };
        Ok(Server { _thread: thread_in(namespace, cpu, make, Answering::turn)? })
    }
}

impl Answering {
    fn turn(&mut self) -> io::Result<()> {
        for (number, _) in ready(&self.poll)? {
            if number == LISTENER {
                self.accept()?;
            } else if !self.answer(number).unwrap_or(false) {
                self.connections.remove(&number);
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // It went away before it was taken.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(e) => return Err(e),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            with_data(&stream)?;
            epoll::add(&self.poll, &stream, EventData::new_u64(self.next), EventFlags::IN)?;
            self.connections.insert(self.next, (stream, Read::default()));
            self.next += 1;
        }
    }

    /// Answers what came; false when the connection is at its end.
    fn answer(&mut self, number: u64) -> io::Result<bool> {
        let Some((stream, read)) = self.connections.get_mut(&number) else { return Ok(false) };
        match read.read(stream)? {
            Came::Part => Ok(true),
            Came::End => Ok(false),
            Came::Message => {
                stream.write_all(&[0; MESSAGE])?;
                Ok(read.messages < self.requests)
            }
        }
    }
}

/// What clients came to, cumulative.
#[derive(Debug, Default)]
pub struct Done {
    pub whole: AtomicU64,
    pub failed: AtomicU64,
}

pub struct Client {
    pub done: Arc<Done>,
    _thread: Thread,
}

struct Asking {
    poll: OwnedFd,
    server: SocketAddrV4,
    /// A place for each that is under way; its number is the event's.
    connections: Vec<Option<(TcpStream, Read)>>,
    requests: u32,
    done: Arc<Done>,
}

impl Client {
    /// Begins connections to a server at `to` from `namespace`, `under_way` at once.
    pub fn start(
        namespace: &Namespace,
        cpu: u32,
        to: Ipv4Addr,
        (requests, under_way): (u32, u32),
    ) -> Result<Client, LabError> {
        let done = Arc::new(Done::default());
        let counts = done.clone();
        let make = move || {
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let connections = (0..under_way).map(|_| None).collect();
            let server = SocketAddrV4::new(to, PORT);
            Ok(Asking { poll, server, connections, requests, done: counts })
        };
        let turn = Asking::turn;
        Ok(Client { done, _thread: thread_in(namespace, cpu, make, turn)? })
    }
}

impl Asking {
    fn turn(&mut self) -> io::Result<()> {
        for number in 0..self.connections.len() {
            if self.connections[number].is_none() {
                self.connections[number] = self.begin(number as u64);
            }
        }
        for (number, flags) in ready(&self.poll)? {
            let number = number as usize;
            let counted = match self.ask(number, flags) {
                Ok(true) => continue,
                Ok(false) => &self.done.whole,
                Err(_) => &self.done.failed,
            };
            counted.fetch_add(1, Relaxed);
            self.connections[number] = None;
        }
        Ok(())
    }

    /// A connection that is writable once it is there; none where one cannot be begun now.
    fn begin(&self, number: u64) -> Option<(TcpStream, Read)> {
        let begun = || -> io::Result<TcpStream> {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
            match connect(&socket, &self.server) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                Err(e) => return Err(e.into()),
            }
            epoll::add(&self.poll, &socket, EventData::new_u64(number), EventFlags::OUT)?;
            Ok(TcpStream::from(socket))
        };
        match begun() {
            Ok(stream) => Some((stream, Read::default())),
            Err(_) => {
                self.done.failed.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// Sends the next request when the one before is answered; false when the connection is over, as it should be.
    fn ask(&mut self, number: usize, flags: EventFlags) -> io::Result<bool> {
        let Some((stream, read)) = &mut self.connections[number] else { return Ok(true) };
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        if flags.contains(EventFlags::OUT) {
            stream.set_nodelay(true)?;
            with_data(&*stream)?;
            epoll::modify(&self.poll, &*stream, EventData::new_u64(number as u64), EventFlags::IN)?;
            stream.write_all(&[0; MESSAGE])?;
            return Ok(true);
        }
        match read.read(stream)? {
            Came::Part => Ok(true),
            Came::Message if read.messages < self.requests => {
                stream.write_all(&[0; MESSAGE])?;
                Ok(true)
            }
            Came::Message => Ok(true),
            Came::End if read.messages == self.requests => Ok(false),
            Came::End => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
