//! Streams that go from one thread's table to another's, over loopback TCP, by epoll and by io_uring.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::{Bench, both, pair, pattern};
use weir_io::stream::{Backend, Event, Part, StreamId};

const TOKEN: u64 = 5;

/// Everything up to the release, which nothing follows: the socket, and what was received before.
fn let_go(bench: &mut Bench, id: StreamId) -> (TcpStream, Vec<u8>) {
    bench.streams.release(id);
    let mut got = Vec::new();
    loop {
        match bench.until(|event| !matches!(event, Event::Woken)) {
            Event::Received { token: TOKEN, buffer } => got.extend_from_slice(&buffer),
            Event::Released { token: TOKEN, socket } => {
                assert_eq!(bench.streams.len(), 0);
                bench.idle();
                return (socket.into(), got);
            }
            other => panic!("{other:?}"),
        }
    }
}

both! {
    fn stream_that_goes_back_and_forth_while_its_peer_writes_loses_no_byte(backend: Backend) {
        let mut benches = [Bench::new(backend, 8), Bench::new(backend, 2)];
        let (mut ours, mut peer) = pair();
        let sent = pattern(8 << 20);
        let writer = std::thread::spawn({
            let sent = sent.clone();
            move || peer.write_all(&sent).map(|()| peer).expect("written")
        });
        let (mut got, mut moves) = (Vec::new(), 0);
        while got.len() < sent.len() {
            let bench = &mut benches[moves % 2];
            let id = bench.register(ours, TOKEN);
            // As much as comes at once, at least.
            let most = sent.len() - got.len();
            got.extend(bench.receive(TOKEN, most.min(1 + moves * 1000)));
            let (socket, rest) = let_go(bench, id);
            got.extend(rest);
            ours = socket;
            moves += 1;
        }
        assert!(got == sent, "bytes differ");
        assert!(moves > 10, "{moves} moves");
        drop(writer.join().expect("the writer ends"));
    }

    fn what_is_being_sent_is_answered_before_the_socket_is_given_back(backend: Backend) {
        let mut bench = Bench::new(backend, 2);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, TOKEN);
        bench.streams.send(id, vec![Part::Owned(b"last words".to_vec())]);
        bench.streams.release(id);
        let first = bench.until(|event| matches!(event, Event::Sent { .. } | Event::Released { .. }));
        assert!(matches!(first, Event::Sent { sent: 10, .. }), "{first:?}");
        let released = bench.until(|event| matches!(event, Event::Released { .. }));
        let Event::Released { socket, .. } = released else { unreachable!("asked for") };
        let mut said = [0; 10];
        peer.read_exact(&mut said).expect("read");
        assert_eq!(&said, b"last words");
        TcpStream::from(socket).write_all(b"still here").expect("it is open");
        peer.read_exact(&mut said).expect("read");
        assert_eq!(&said, b"still here");
    }

    fn wait_for_room_ends_with_the_release(backend: Backend) {
        let mut bench = Bench::new(backend, 2);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, TOKEN);
        let mut written = 0;
        loop {
            bench.streams.send(id, vec![Part::Owned(vec![7; 4 << 20])]);
            let Event::Sent { sent, .. } = bench.until(|event| matches!(event, Event::Sent { .. })) else {
                unreachable!("asked for")
            };
            written += sent;
            if sent == 0 {
                break;
            }
        }
        bench.streams.notify_writable(id);
        let (socket, got) = let_go(&mut bench, id);
        assert!(got.is_empty());
        drop(socket);
        let mut all = Vec::new();
        assert_eq!(peer.read_to_end(&mut all).expect("read"), written);
    }

    fn paused_stream_is_given_back_and_what_came_meanwhile_is_received_elsewhere(backend: Backend) {
        let (mut bench, mut other) = (Bench::new(backend, 2), Bench::new(backend, 2));
        let (ours, mut peer) = pair();
        let id = bench.register(ours, TOKEN);
        bench.streams.pause(id);
        bench.idle();
        peer.write_all(b"for whoever reads").expect("written");
        let (socket, got) = let_go(&mut bench, id);
        assert!(got.is_empty());
        other.register(socket, TOKEN);
        assert_eq!(other.receive(TOKEN, 17), b"for whoever reads");
    }

    fn stream_that_is_closed_before_it_is_given_back_is_closed(backend: Backend) {
        let mut bench = Bench::new(backend, 2);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, TOKEN);
        bench.idle();
        bench.streams.release(id);
        bench.streams.close(id);
        bench.until_ended(&mut peer);
        assert_eq!(bench.streams.len(), 0);
    }
}
