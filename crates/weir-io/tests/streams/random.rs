//! Streams under anything a user and a peer may do, in any order, and what has to hold all the while.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::support::{Bench, LONG, both, open_descriptors, pair, reset};
use weir_io::stream::{Backend, Event, Part, StreamId};

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// The byte at this place of a stream.
fn byte(token: u64, at: usize) -> u8 {
    (at % 253) as u8 ^ token as u8
}

#[derive(Default)]
struct Expected {
    id: Option<StreamId>,
    /// Bytes the peer has written, and of them those we have received.
    written: usize,
    received: usize,
    /// Bytes the socket has taken from us, and of them those the peer has read.
    sent: usize,
    read: usize,
    sending: bool,
    over: bool,
    releasing: bool,
    peer: Option<TcpStream>,
}

struct World {
    bench: Bench,
    streams: HashMap<u64, Expected>,
    numbers: Numbers,
    next: u64,
    kept: Vec<Event>,
    released: u32,
}

impl World {
    fn register(&mut self) {
        let (ours, peer) = pair();
        peer.set_nonblocking(true).expect("set");
        let token = self.next;
        self.next += 1;
        let id = self.bench.register(ours, token);
        let expected = Expected { id: Some(id), peer: Some(peer), ..Expected::default() };
        self.streams.insert(token, expected);
    }

    fn step(&mut self) {
        if self.streams.len() < 20 {
            self.register();
        }
        let mut tokens: Vec<u64> = self.streams.keys().copied().collect();
        tokens.sort_unstable();
        let token = tokens[self.numbers.below(tokens.len())];
        let (choice, amount) = (self.numbers.below(20), 1 + self.numbers.below(50_000));
        let streams = &mut self.bench.streams;
        let Some(expected) = self.streams.get_mut(&token) else { return };
        let Some(id) = expected.id else { return };
        match choice {
            // Nothing is asked of a stream that is to be released, but that it be closed.
            0..=3 | 12..=15 | 18 if expected.releasing => self.turn(),
            18 if self.numbers.below(4) == 0 => {
                streams.release(id);
                expected.releasing = true;
            }
            0..=3 if !expected.sending && !expected.over => {
                expected.sending = true;
                let middle = expected.sent + amount / 3;
                let part = |from, to| (from..to).map(|at| byte(token, at)).collect::<Vec<u8>>();
                let mut parts = vec![Part::Owned(part(expected.sent, middle))];
                let rest = part(middle, expected.sent + amount);
                match streams.buffers().take() {
                    Some(mut buffer) => {
                        let taken = buffer.extend(&rest);
                        parts.push(Part::Shared(Rc::new(buffer), 0..taken));
                    }
                    None => parts.push(Part::Owned(rest)),
                }
                streams.send(id, parts);
            }
            4..=8 => {
                if let Some(peer) = &mut expected.peer {
                    let bytes: Vec<u8> =
                        (expected.written..expected.written + amount).map(|at| byte(token, at)).collect();
                    expected.written += peer.write(&bytes).unwrap_or(0);
                }
            }
            9..=11 => expected.peer_reads(token),
            12 => streams.notify_writable(id),
            13 => streams.pause(id),
            14 | 15 => streams.resume(id),
            16 => {
                streams.close(id);
                self.streams.remove(&token);
            }
            17 => match (self.numbers.below(4), expected.peer.take()) {
                (0, Some(peer)) => reset(peer),
                (1, peer) => drop(peer),
                (2, Some(peer)) => {
                    let _ = peer.shutdown(Shutdown::Write);
                    expected.peer = Some(peer);
                }
                (_, peer) => expected.peer = peer,
            },
            _ => self.turn(),
        }
    }

    fn turn(&mut self) {
        let mut events = Vec::new();
        self.bench.streams.turn(Some(Duration::from_millis(1)), &mut events).expect("a turn");
        for event in events {
            self.check(event);
        }
        // Buffers are kept for a while: none may change under us.
        let keep = self.numbers.below(12);
        let surplus = self.kept.len().saturating_sub(keep);
        self.kept.drain(..surplus);
    }

    fn check(&mut self, event: Event) {
        let token = match &event {
            Event::Received { token, .. }
            | Event::Control { token, .. }
            | Event::Ended { token }
            | Event::Failed { token, .. }
            | Event::Sent { token, .. }
            | Event::Released { token, .. }
            | Event::Writable { token } => *token,
            Event::Woken => panic!("nobody wakes us"),
        };
        let expected = self.streams.get_mut(&token).expect("no event of a closed stream");
        assert!(!expected.over, "{event:?} after the failure");
        match &event {
            Event::Received { buffer, .. } => {
                assert!(!buffer.is_empty());
                let right = |(at, &got): (usize, &u8)| got == byte(token, expected.received + at);
                assert!(buffer.iter().enumerate().all(right), "bytes differ at {}", expected.received);
                expected.received += buffer.len();
                assert!(expected.received <= expected.written);
            }
            Event::Sent { sent, parts, .. } => {
                assert!(std::mem::take(&mut expected.sending), "an answer to no send");
                assert!(*sent <= parts.iter().map(|part| part.bytes().len()).sum());
                expected.sent += sent;
            }
            Event::Failed { .. } => expected.over = true,
            Event::Control { .. } => panic!("no records here"),
            _ => {}
        }
        match event {
            Event::Received { .. } => self.kept.push(event),
            Event::Released { socket, .. } => {
                assert!(std::mem::take(&mut expected.releasing) && !expected.sending, "{token} is let go");
                expected.id = Some(self.bench.register(socket.into(), token));
                self.released += 1;
            }
            _ => {}
        }
    }
}

impl Expected {
    fn peer_reads(&mut self, token: u64) {
        let Some(peer) = &mut self.peer else { return };
        let mut buffer = vec![0; 200_000];
        match peer.read(&mut buffer) {
            Ok(bytes) => {
                let right = |(at, &got): (usize, &u8)| got == byte(token, self.read + at);
                assert!(buffer[..bytes].iter().enumerate().all(right), "bytes differ at {}", self.read);
                self.read += bytes;
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset), "{error}")
            }
        }
    }
}

both! {
    fn any_order_of_calls_keeps_bytes_in_order_and_answers_each_send_once(backend: Backend) {
        for seed in 0..3 {
            let bench = Bench::new(backend, 16);
            let mut world =
                World { bench, streams: HashMap::new(), numbers: Numbers(seed), next: 1, kept: Vec::new(), released: 0 };
            for _ in 0..1500 {
                world.step();
            }
            // What is left comes to rest: everything that was written, and not cut off, arrives.
            for expected in world.streams.values() {
                if let Some(id) = expected.id {
                    world.bench.streams.resume(id);
                }
            }
            world.kept.clear();
            let whole = |expected: &Expected| {
                expected.over
                    || expected.peer.is_none()
                    || !expected.sending && expected.received == expected.written
            };
            let start = Instant::now();
            while !world.streams.values().all(whole) && start.elapsed() < LONG {
                world.turn();
                world.kept.clear();
            }
            assert!(world.released > 3, "{} streams were let go", world.released);
            for (token, expected) in &mut world.streams {
                assert!(whole(expected), "seed {seed}, stream {token}: {} of {}, sending {}", expected.received, expected.written, expected.sending);
                while expected.peer.is_some() && !expected.over && expected.read < expected.sent {
                    expected.peer_reads(*token);
                }
            }
        }
    }

    fn streams_beyond_what_the_queues_hold_are_all_served(backend: Backend) {
        const STREAMS: u64 = 2500;
        let limit = weir_io::process::raise_descriptors(20_000).expect("a limit");
        if limit < 3 * 2 * STREAMS + open_descriptors() as u64 {
            let _ = writeln!(std::io::stderr(), "SKIP streams_beyond_what_the_queues_hold_are_all_served: descriptors");
            return;
        }
        let mut bench = Bench::new(backend, 64);
        let mut peers = Vec::new();
        let mut ids = Vec::new();
        for token in 0..STREAMS {
            let (ours, mut peer) = pair();
            peer.write_all(&[token as u8]).expect("written");
            ids.push(bench.register(ours, token));
            peers.push(peer);
        }
        let mut served = vec![false; STREAMS as usize];
        while !served.iter().all(|&served| served) {
            let Event::Received { token, buffer } = bench.until(|_| true) else { panic!("only bytes come") };
            assert_eq!(*buffer, [token as u8]);
            assert!(!std::mem::replace(&mut served[token as usize], true));
        }
        for id in ids {
            bench.streams.close(id);
        }
        for mut peer in peers {
            bench.until_ended(&mut peer);
        }
    }
}
