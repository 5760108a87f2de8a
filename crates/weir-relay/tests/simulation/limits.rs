//! What one client can make a session keep, however it reads and whatever it asks for.

use std::net::SocketAddr;

use weir_core::relay::registry::{Closing, Destination};
use weir_core::relay::{Frame, Key, Kind, Place};
use weir_core::time::SECOND;
use weir_io::stream::{BUFFER, Buffers};
use weir_io::tls;
use weir_relay::session::{Action, Command, NewConn, Session, Setup, TlsLayer, memory_most};
use weir_relay::{Engine, Rates, Role};

use crate::codec::sessions;

/// A session whose streams the test answers for.
struct Alone {
    session: Session,
    buffers: Buffers,
    now: u64,
}

fn key(n: u32) -> Key {
    let mut key = Key([5; 32]);
    key.0[..4].copy_from_slice(&n.to_be_bytes());
    key
}

fn place(slot: u32, conn: u64) -> Place {
    Place { worker: 0, slot, conn }
}

fn new_conn(number: u32, tls: TlsLayer) -> NewConn {
    NewConn {
        key: key(number),
        role: Role::Client,
        address: SocketAddr::from(([192, 0, 2, 1], 1)),
        tls,
        websocket: None,
        greeting: Vec::new(),
        early: Vec::new(),
        unread: Vec::new(),
        rates: Rates::default(),
    }
}

impl Alone {
    fn new(queue_bytes: usize) -> Alone {
        let buffers = Buffers::new(8).expect("memory");
        let engine = Engine { queue_bytes, ..Engine::default() };
        let setup = Setup {
            number: 0,
            workers: 1,
            engine,
            buffers: buffers.clone(),
            secret: 1,
            jitter: 2,
            now: SECOND,
        };
        Alone { session: Session::new(setup), buffers, now: SECOND }
    }

    /// The client with this number, in this slot.
    fn connect(&mut self, slot: u32, number: u32, tls: TlsLayer) {
        let at = place(slot, u64::from(number));
        let then = vec![Command::Route { key: key(number), to: Some(Destination::Local(at)) }];
        self.session.connect(at, new_conn(number, tls), then);
    }

    fn secured(&mut self, slot: u32, number: u32) -> tls::Session {
        let (client, server) = sessions(false);
        self.connect(slot, number, TlsLayer::Session(server));
        client
    }

    /// A turn in which this comes for `slot`, and of every send the socket takes at most `most`; what it took of `slot`'s.
    fn turn(&mut self, slot: u32, bytes: &[u8], most: usize) -> Vec<(u32, Vec<u8>)> {
        self.now += SECOND / 1000;
        self.session.begin_turn(self.now);
        for piece in bytes.chunks(BUFFER) {
            let mut buffer = self.buffers.take().expect("a buffer is free");
            buffer.extend(piece);
            self.session.received(slot, buffer);
        }
        self.session.end_turn();
        let actions: Vec<Action> = self.session.actions().collect();
        let mut took = Vec::new();
        for action in actions {
            match action {
                Action::Send { slot, parts } => {
                    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes()).copied().collect();
                    let sent = bytes.len().min(most);
                    took.push((slot, bytes[..sent].to_vec()));
                    self.session.sent(slot, sent, parts);
                }
                Action::Close { slot, .. } => panic!("slot {slot} is closed"),
                _ => {}
            }
        }
        // Asked for by sends that were taken in part.
        let asked: Vec<u32> = self
            .session
            .actions()
            .filter(|action| matches!(action, Action::NotifyWritable { .. }))
            .map(|action| action.slot())
            .collect();
        if most > 0 {
            asked.into_iter().for_each(|slot| self.session.writable(slot));
        }
        took
    }

    fn memory_of(&self, number: u32) -> (usize, usize) {
        let all = self.session.connections();
        let client = all.iter().find(|client| client.key == key(number)).expect("it is connected");
        (client.memory as usize, client.queued_bytes as usize)
    }
}

fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    bytes
}

#[test]
fn of_what_a_refused_client_sent_already_nothing_is_read() {
    let mut alone = Alone::new(1 << 20);
    alone.connect(0, 1, TlsLayer::Off);
    alone.connect(1, 2, TlsLayer::Off);
    // Runs of whole frames, in a buffer that is longer than what comes next.
    alone.turn(0, &bytes(&Frame::SendPacket(key(2), &[7; 1400])).repeat(4), usize::MAX);
    let at = place(2, 3);
    let mut connection = new_conn(3, TlsLayer::Off);
    connection.early = bytes(&Frame::SendPacket(key(2), b"from nobody"));
    alone.session.connect(at, connection, vec![Command::Close { at, why: Closing::Full }]);
    assert!(matches!(alone.session.actions().next_back(), Some(Action::Close { slot: 2, .. })));
    let took = alone.turn(0, &[], usize::MAX);
    assert_eq!(took, [], "nothing is sent to anybody");
    assert_eq!(alone.session.tally().packets_in, 4);
}

#[test]
fn a_reader_of_little_with_tls_holds_no_more_than_its_bound() {
    const QUEUE: usize = 50_000;
    let mut alone = Alone::new(QUEUE);
    alone.connect(0, 1, TlsLayer::Off);
    let mut reader = alone.secured(1, 2);
    let packets = bytes(&Frame::SendPacket(key(2), &[7; 1400])).repeat(40);
    let mut stream = Vec::new();
    for _ in 0..600 {
        for (slot, took) in alone.turn(0, &packets, 3000) {
            assert_eq!(slot, 1);
            stream.extend(took);
        }
        let (memory, _) = alone.memory_of(2);
        assert!(memory <= memory_most(QUEUE), "{memory} bytes");
    }
    // What it read is whole records, in order.
    let opened = reader.open(&mut stream).expect("every record opens");
    assert!(opened.plain.len() > 1_000_000, "{opened:?}");
    let tally = alone.session.tally();
    assert!(tally.drops.packets() > 0);
}

#[test]
fn one_answer_waits_however_often_a_peer_asks_for_new_keys() {
    let mut alone = Alone::new(1 << 20);
    let mut client = alone.secured(0, 1);
    let ask = |client: &mut tls::Session| {
        let mut out = Vec::new();
        client.update_with(true, &mut out).expect("TLS 1.3");
        client.seal_into(&bytes(&Frame::NotePreferred(true)), &mut out).expect("sealed");
        out
    };
    // Its socket takes nothing.
    for _ in 0..500 {
        let asked = ask(&mut client);
        assert!(alone.turn(0, &asked, 0).iter().all(|(_, took)| took.is_empty()));
    }
    let (_, queued) = alone.memory_of(1);
    assert!(queued < 100, "{queued} bytes of answers wait");
    // Then everything: the answer that was made, and one to all that it asked since.
    alone.session.writable(0);
    let mut stream = Vec::new();
    (0..4).for_each(|_| stream.extend(alone.turn(0, &[], usize::MAX).into_iter().flat_map(|(_, took)| took)));
    let update = 5 + 5 + 17;
    assert_eq!(stream.len(), 2 * update, "two key updates");
    assert_eq!(client.open(&mut stream).expect("they follow each other").consumed, 2 * update);
    let pinged = {
        let mut out = Vec::new();
        client.seal_into(&bytes(&Frame::Ping(b"any text")), &mut out).expect("sealed");
        alone.turn(0, &out, usize::MAX)
    };
    let mut pong: Vec<u8> = pinged.into_iter().flat_map(|(_, took)| took).collect();
    let opened = client.open(&mut pong).expect("under the newest key");
    assert_eq!(pong[opened.plain], bytes(&Frame::Pong(b"any text")));
}

#[test]
fn half_of_a_client_info_after_the_handshake_is_not_kept() {
    let mut alone = Alone::new(1 << 20);
    alone.connect(0, 1, TlsLayer::Off);
    let mut half = vec![Kind::ClientInfo as u8];
    half.extend_from_slice(&(250_000_u32).to_be_bytes());
    half.resize(200_000, 1);
    alone.turn(0, &half, usize::MAX);
    let (memory, _) = alone.memory_of(1);
    assert!(memory < 8 << 10, "{memory} bytes");
}

#[test]
fn who_sends_to_peers_that_come_and_go_keeps_only_those_that_are_here() {
    let mut alone = Alone::new(1 << 20);
    alone.connect(0, 1, TlsLayer::Off);
    alone.turn(0, &[], usize::MAX);
    for number in 2..3000 {
        alone.connect(1, number, TlsLayer::Off);
        alone.turn(0, &bytes(&Frame::SendPacket(key(number), b"hello")), usize::MAX);
        alone.session.ended(1);
        alone.session.command(Command::Route { key: key(number), to: None });
        assert_eq!(alone.session.actions().count(), 1, "its end");
    }
    let (memory, _) = alone.memory_of(1);
    assert!(memory < 8 << 10, "{memory} bytes");
}
