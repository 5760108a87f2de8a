//! Clients that mean ill, or are merely broken: nobody else is to notice.

use std::io::{ErrorKind, Read as _, Write as _};
use std::ops::Range;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use weir_core::relay::frame::{self, Frame, HEADER, Kind};

use crate::client::{Client, bytes, key, seen};
use crate::machine::PATIENCE;
use crate::server::Sut;

behaviours! {
    a_receiver_that_does_not_read_holds_up_nobody;
    a_receiver_that_falls_behind_gets_whole_frames_in_order;
    handshakes_that_stall_do_not_keep_others_out;
    a_connection_cut_in_the_middle_of_a_frame_is_only_its_own_end;
    noise_ends_the_connection_it_comes_on;
    a_frame_nobody_knows_is_skipped_however_long_it_is;
}

/// Writes as much as the server takes within a moment.
fn flood(client: &mut Client, frame: &[u8], moment: Duration) -> usize {
    client.stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a TCP socket");
    let (start, mut whole) = (Instant::now(), 0);
    let mut rest: &[u8] = frame;
    while start.elapsed() < moment {
        match client.stream.write(rest) {
            Ok(n) if n == rest.len() => (rest, whole) = (frame, whole + 1),
            Ok(n) => rest = &rest[n..],
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => panic!("the sender is not to blame: {e}"),
        }
    }
    // What was begun is ended, so that the stream stays one of frames.
    client.stream.set_write_timeout(Some(PATIENCE)).expect("a TCP socket");
    if rest.len() < frame.len() {
        client.write(rest);
        whole += 1;
    }
    whole
}

fn a_receiver_that_does_not_read_holds_up_nobody(subject: Sut) {
    let server = server!(subject);
    let _deaf = Client::join(&server, 1);
    let mut shouter = Client::join(&server, 2);
    let (mut alice, mut bob) = (Client::join(&server, 3), Client::join(&server, 4));
    let frame = bytes(Frame::SendPacket(key(1), &[5; 8000]));
    assert!(flood(&mut shouter, &frame, Duration::from_secs(1)) > 100);
    for n in 0..20 {
        alice.send(Frame::SendPacket(key(4), &[n; 1000]));
        assert_eq!(bob.next(), Some(seen(Frame::RecvPacket(key(3), &[n; 1000]))));
    }
    // The shouter itself is served as well.
    shouter.send(Frame::SendPacket(key(4), b"and I"));
    assert_eq!(bob.next(), Some(seen(Frame::RecvPacket(key(2), b"and I"))));
}

fn a_receiver_that_falls_behind_gets_whole_frames_in_order(subject: Sut) {
    let server = server!(subject);
    let (mut slow, mut sender) = (Client::join(&server, 1), Client::join(&server, 2));
    let total = 10_000u32;
    let (arrived, is_done) = mpsc::channel();
    let writer = thread::spawn(move || {
        for n in 0..total {
            let mut data = vec![n as u8; 1400];
            data[..4].copy_from_slice(&n.to_be_bytes());
            sender.send(Frame::SendPacket(key(1), &data));
        }
        // The queue may be full for the first of these.
        while is_done.try_recv() == Err(TryRecvError::Empty) {
            sender.send(Frame::SendPacket(key(1), b"last"));
            thread::sleep(Duration::from_millis(20));
        }
    });
    // Servers cut off who takes nothing for two seconds, so it is looked at when all is here.
    let (mut received, mut at, mut part) = (Vec::new(), 0, vec![0; 64 << 10]);
    let mut packets = Vec::new();
    while packets.last().is_none_or(|range: &Range<usize>| received[range.clone()] != *b"last") {
        let n = slow.stream.read(&mut part).expect("it reads, if slowly");
        assert_ne!(n, 0, "closed after {} bytes", received.len());
        received.extend_from_slice(&part[..n]);
        while let Some((code, length)) = frame::head(&received[at..])
            && received.len() - at >= HEADER + length
        {
            assert_eq!(code, Kind::RecvPacket as u8);
            assert_eq!(received[at + HEADER..][..32], key(2).0);
            packets.push(at + HEADER + 32..at + HEADER + length);
            at += HEADER + length;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let mut next = 0;
    for data in packets.into_iter().map(|range| &received[range]).take_while(|data| *data != b"last") {
        let n = u32::from_be_bytes([data[0], data[1], data[2], data[3]]);
        assert!(
            n >= next && n < total && data.len() == 1400,
            "packet {n} of {} bytes after {next}",
            data.len()
        );
        assert!(data[4..].iter().all(|&byte| byte == n as u8), "packet {n} is corrupt");
        next = n + 1;
    }
    arrived.send(()).expect("the sender waits for it");
    writer.join().expect("the sender was not cut off");
}

fn handshakes_that_stall_do_not_keep_others_out(subject: Sut) {
    let server = server!(subject);
    let stalled: Vec<Client> = (0..100)
        .map(|n| match n % 3 {
            0 => Client::dial(&server),
            1 => {
                let mut client = Client::dial(&server);
                client.write(b"GET /derp HTTP/1.1\r\nHost: ");
                client
            }
            _ => Client::upgraded(&server),
        })
        .collect();
    let mut client = Client::join(&server, 1);
    assert_eq!(client.before_pong(), []);
    drop(stalled);
}

fn a_connection_cut_in_the_middle_of_a_frame_is_only_its_own_end(subject: Sut) {
    let server = server!(subject);
    let mut bob = Client::join(&server, 2);
    let whole = bytes(Frame::SendPacket(key(2), &[1; 1000]));
    for cut in [1, 4, 5, 36, 37, 500, whole.len() - 1] {
        let mut client = Client::join(&server, 1);
        client.write(&whole[..cut]);
        client.stream.shutdown(std::net::Shutdown::Write).expect("a TCP socket");
        client.is_closed();
    }
    bob.hears_nothing();
}

fn noise_ends_the_connection_it_comes_on(subject: Sut) {
    let server = server!(subject);
    let mut bystander = Client::join(&server, 200);
    for n in 1..20u8 {
        let mut client = Client::join(&server, n);
        // A frame of a wrong length first: noise alone may be a very long frame that nobody knows.
        client.write(&[Kind::Ping as u8, 0, 0, 0, 1]);
        let noise: Vec<u8> =
            (0..10_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> (n % 24)) as u8).collect();
        client.try_write(&noise);
        let _ = client.stream.read(&mut [0; 64]);
        client.is_closed();
    }
    assert_eq!(bystander.before_pong(), []);
}

fn a_frame_nobody_knows_is_skipped_however_long_it_is(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::join(&server, 1);
    let length = 5 << 20;
    client.write(&[0x7f]);
    client.write(&u32::to_be_bytes(length));
    for _ in 0..length >> 16 {
        client.write(&[Kind::Ping as u8; 1 << 16]);
    }
    assert_eq!(client.before_pong(), []);
}
