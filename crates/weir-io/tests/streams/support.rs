//! What the tests of streams share: pairs of sockets, waiting for events, both backends.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use weir_io::stream::{Backend, Chosen, Event, StreamId, Streams};

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Long enough that what is on its way arrives; nothing fails when it does not.
const SHORT: Duration = Duration::from_millis(20);

/// Runs each test by epoll and by io_uring.
macro_rules! both {
    ($(fn $name:ident($backend:ident: Backend) $body:block)*) => {
        $(fn $name($backend: Backend) $body)*

        mod epoll {
            $(#[test]
            fn $name() {
                super::$name(weir_io::stream::Backend::Epoll);
            })*
        }

        mod uring {
            $(#[test]
            fn $name() {
                if crate::support::have_uring(stringify!($name)) {
                    super::$name(weir_io::stream::Backend::Uring);
                }
            })*
        }
    };
}
pub(crate) use both;

pub fn have_uring(test: &str) -> bool {
    let missing = Streams::new(Backend::Uring, 1).err();
    if let Some(missing) = &missing {
        let _ = writeln!(io::stderr(), "SKIP {test}: io_uring with provided buffers ({missing})");
    }
    missing.is_none()
}

/// True in a process that runs this test of `descriptors` and no other; elsewhere runs one and waits for it.
pub fn is_alone(test: &str, backend: Backend) -> bool {
    const ALONE: &str = "WEIR_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let module = if matches!(backend, Backend::Epoll) { "epoll" } else { "uring" };
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let output = child.args(["--exact", &format!("descriptors::{module}::{test}")]).env(ALONE, "1").output();
    let output = output.expect("started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// A connected pair of TCP sockets.
pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (ours, _) = listener.accept().expect("accepted");
    (ours, peer)
}

/// Bytes in which a shift or a swap shows.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ (at / 251) as u8).collect()
}

/// Closes with RST.
pub fn reset(peer: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the kernel reads one `linger`.
    let done = unsafe {
        libc::setsockopt(
            peer.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    };
    assert_eq!(done, 0);
}

pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc is mounted").count()
}

/// Streams, and events that have come but were not looked for yet.
pub struct Bench {
    pub streams: Streams,
    events: Vec<Event>,
}

impl Bench {
    pub fn new(backend: Backend, buffers: u16) -> Bench {
        let streams = Streams::new(backend, buffers).expect("streams");
        let right = match backend {
            Backend::Epoll => matches!(streams.backend(), Chosen::Epoll { .. }),
            Backend::Uring => matches!(streams.backend(), Chosen::Uring { .. }),
            Backend::Auto => true,
        };
        assert!(right, "{}", streams.backend());
        Bench { streams, events: Vec::new() }
    }

    pub fn register(&mut self, socket: TcpStream, token: u64) -> StreamId {
        self.streams.register(socket.into(), token, false).expect("adopted")
    }

    pub fn turn(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.events);
        self.streams.turn(Some(SHORT), events).expect("a turn");
    }

    /// The first event that is looked for; what came before it is passed over.
    pub fn until(&mut self, looked_for: impl Fn(&Event) -> bool) -> Event {
        let start = Instant::now();
        loop {
            if let Some(at) = self.events.iter().position(&looked_for) {
                return self.events.drain(..=at).next_back().expect("just found");
            }
            assert!(start.elapsed() < LONG, "it never came");
            self.streams.turn(Some(SHORT), &mut self.events).expect("a turn");
        }
    }

    /// Bytes of one stream, this many.
    pub fn receive(&mut self, from: u64, bytes: usize) -> Vec<u8> {
        let mut got = Vec::new();
        while got.len() < bytes {
            match self.until(|event| !matches!(event, Event::Writable { .. })) {
                Event::Received { token, buffer } if token == from => got.extend_from_slice(&buffer),
                other => panic!("{other:?}"),
            }
        }
        got
    }

    /// Turns until the peer sees the end of its connection.
    pub fn until_ended(&mut self, peer: &mut TcpStream) {
        peer.set_nonblocking(true).expect("set");
        let start = Instant::now();
        while !matches!(peer.read(&mut [0]), Ok(0)) {
            assert!(start.elapsed() < LONG, "the connection never ended");
            self.streams.turn(Some(Duration::ZERO), &mut self.events).expect("a turn");
            assert!(self.events.is_empty(), "{:?}", self.events);
        }
    }

    /// Nothing happens, and nothing keeps us awake: after what is left to do, a turn lasts its time.
    pub fn idle(&mut self) {
        for _ in 0..1000 {
            let start = Instant::now();
            self.streams.turn(Some(SHORT), &mut self.events).expect("a turn");
            assert!(self.events.is_empty(), "{:?}", self.events);
            if start.elapsed() >= SHORT {
                return;
            }
        }
        panic!("turns end early without events");
    }
}
