//! Streams over loopback TCP: every behaviour by epoll and by io_uring.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use crate::support::{Bench, LONG, both, pair, pattern, reset};
use weir_io::stream::{BUFFER, Backend, CAPACITY, Event, MOST_PARTS, Part, Streams};

both! {
    fn what_a_peer_writes_is_received_in_order(backend: Backend) {
        let mut bench = Bench::new(backend, 8);
        let (ours, mut peer) = pair();
        bench.register(ours, 7);
        let sent = pattern(3 * BUFFER + 17);
        let writer = std::thread::spawn({
            let sent = sent.clone();
            move || peer.write_all(&sent).map(|()| peer).expect("written")
        });
        let got = bench.receive(7, sent.len());
        assert!(got == sent, "bytes differ");
        drop(writer.join().expect("the writer ends"));
        bench.until(|event| matches!(event, Event::Ended { token: 7 }));
    }

    fn parts_are_sent_in_their_order(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, 1);
        let mut buffer = bench.streams.buffers().take().expect("a buffer");
        buffer.extend(b"0123456789");
        let shared = Rc::new(buffer);
        let parts = vec![
            Part::Owned(b"head ".to_vec()),
            Part::Shared(shared.clone(), 2..5),
            Part::Shared(shared, 0..1),
            Part::Owned(b" tail".to_vec()),
        ];
        bench.streams.send(id, parts);
        let Event::Sent { sent, parts, .. } = bench.until(|event| matches!(event, Event::Sent { .. })) else {
            unreachable!("asked for")
        };
        assert_eq!((sent, parts.len()), (14, 4));
        let mut got = [0; 14];
        peer.read_exact(&mut got).expect("read");
        assert_eq!(&got, b"head 2340 tail");
    }

    fn full_socket_takes_what_it_can_and_says_when_it_takes_more(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, 1);
        let bytes = pattern(64 << 20);
        let (mut done, mut full) = (0, 0);
        let mut reader = None;
        while done < bytes.len() {
            let end = bytes.len().min(done + (4 << 20));
            bench.streams.send(id, vec![Part::Owned(bytes[done..end].to_vec())]);
            let Event::Sent { sent, .. } = bench.until(|event| matches!(event, Event::Sent { .. })) else {
                unreachable!("asked for")
            };
            done += sent;
            if sent == 0 {
                full += 1;
                if reader.is_none() {
                    let mut peer = peer.try_clone().expect("a second handle");
                    reader = Some(std::thread::spawn(move || {
                        let mut got = vec![0; 64 << 20];
                        peer.read_exact(&mut got).map(|()| got).expect("read")
                    }));
                }
                bench.streams.notify_writable(id);
                bench.until(|event| matches!(event, Event::Writable { token: 1 }));
            }
        }
        assert!(full > 0, "64 MiB never filled the socket");
        let mut rest = Vec::new();
        let got = match reader {
            Some(reader) => reader.join().expect("the reader ends"),
            None => peer.read_to_end(&mut rest).map(|_| rest).expect("read"),
        };
        assert!(got == bytes, "bytes differ");
        assert!(bench.streams.counters().full >= full);
    }

    fn end_of_the_peer_leaves_sending_possible(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, 1);
        peer.write_all(b"last words").expect("written");
        peer.shutdown(Shutdown::Write).expect("half closed");
        assert_eq!(bench.receive(1, 10), b"last words");
        bench.until(|event| matches!(event, Event::Ended { token: 1 }));
        bench.streams.send(id, vec![Part::Owned(b"answer".to_vec())]);
        bench.until(|event| matches!(event, Event::Sent { sent: 6, .. }));
        bench.streams.close(id);
        bench.idle();
        let mut got = Vec::new();
        peer.read_to_end(&mut got).expect("read");
        assert_eq!(got, b"answer");
    }

    fn ended_stream_does_not_keep_us_awake(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, peer) = pair();
        let id = bench.register(ours, 1);
        drop(peer);
        bench.until(|event| matches!(event, Event::Ended { token: 1 }));
        bench.idle();
        // Hung up in both directions.
        bench.streams.send(id, vec![Part::Owned(b"x".to_vec())]);
        bench.until(|event| matches!(event, Event::Sent { .. }));
        bench.idle();
    }

    fn reset_is_a_failure_told_once(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, peer) = pair();
        let id = bench.register(ours, 1);
        reset(peer);
        let Event::Failed { error, .. } = bench.until(|event| matches!(event, Event::Failed { .. })) else {
            unreachable!("asked for")
        };
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        bench.idle();
        bench.streams.close(id);
        bench.idle();
        assert!(bench.streams.is_empty());
    }

    fn send_to_a_broken_stream_is_answered_before_the_failure(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, peer) = pair();
        let id = bench.register(ours, 1);
        bench.streams.pause(id);
        bench.idle();
        reset(peer);
        bench.streams.send(id, vec![Part::Owned(b"x".to_vec())]);
        let first = bench.until(|_| true);
        assert!(matches!(first, Event::Sent { sent: 0, ref parts, .. } if parts.len() == 1), "{first:?}");
        let second = bench.until(|_| true);
        assert!(matches!(second, Event::Failed { .. }), "{second:?}");
        bench.streams.resume(id);
        bench.idle();
    }

    fn paused_stream_receives_nothing_until_resumed(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, 1);
        bench.idle();
        bench.streams.pause(id);
        bench.idle();
        peer.write_all(b"later").expect("written");
        bench.idle();
        bench.streams.resume(id);
        assert_eq!(bench.receive(1, 5), b"later");
    }

    fn pause_and_resume_at_once_change_nothing(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, 1);
        for round in 0..20 {
            bench.streams.pause(id);
            bench.streams.resume(id);
            let sent = pattern(1000 + round);
            peer.write_all(&sent).expect("written");
            assert!(bench.receive(1, sent.len()) == sent, "bytes differ in round {round}");
        }
    }

    fn receiving_waits_for_buffers_and_loses_nothing(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let mut peers = Vec::new();
        for token in 0..16 {
            let (ours, mut peer) = pair();
            bench.register(ours, token);
            peer.write_all(&pattern(1000 + token as usize)).expect("written");
            peers.push(peer);
        }
        let mut held = Vec::new();
        while held.len() < 4 || bench.streams.counters().no_buffers == 0 {
            bench.turn(&mut held);
        }
        // With every buffer in our hands, nothing comes.
        bench.idle();
        let mut got = [0; 16];
        while got.iter().enumerate().any(|(token, &got)| got < 1000 + token) {
            for event in std::mem::take(&mut held) {
                let Event::Received { token, buffer } = event else { panic!("{event:?}") };
                got[token as usize] += buffer.len();
            }
            bench.turn(&mut held);
        }
    }

    fn streams_that_wait_for_buffers_take_turns(backend: Backend) {
        const STREAMS: usize = 10;
        let mut bench = Bench::new(backend, 16);
        let mut peers = Vec::new();
        for token in 0..STREAMS {
            let (ours, peer) = pair();
            bench.register(ours, token as u64);
            peer.set_nonblocking(true).expect("nonblocking");
            peers.push(peer);
        }
        // Each of them always has more than all buffers hold.
        let more = vec![0; 32 * BUFFER];
        let mut events = Vec::new();
        let mut last = [0; STREAMS];
        for turn in 1..=400 {
            for peer in &mut peers {
                while peer.write(&more).is_ok_and(|written| written > 0) {}
            }
            bench.turn(&mut events);
            for event in events.drain(..) {
                if let Event::Received { token, .. } = event {
                    last[token as usize] = turn;
                }
            }
            let waited = last.map(|last| turn - last);
            // In turn each would wait for the nine others, which have a few turns each.
            assert!(waited.iter().all(|&turns| turns < 12 * STREAMS), "turns without a byte: {waited:?}");
        }
    }

    fn buffers_kept_do_not_change(backend: Backend) {
        let mut bench = Bench::new(backend, 8);
        let (ours, mut peer) = pair();
        bench.register(ours, 1);
        let mut kept = Vec::new();
        for mark in 0..3_u8 {
            peer.write_all(&[mark; 100]).expect("written");
            let mut events = Vec::new();
            while events.is_empty() {
                bench.turn(&mut events);
            }
            kept.extend(events.into_iter().map(|event| match event {
                Event::Received { buffer, .. } => buffer,
                other => panic!("{other:?}"),
            }));
        }
        for mark in 100..200_u8 {
            peer.write_all(&[mark; 100]).expect("written");
            bench.receive(1, 100);
        }
        let held: Vec<u8> = kept.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        assert_eq!(held, [[0; 100], [1; 100], [2; 100]].concat());
    }

    fn close_in_flight_gives_no_event_and_ends_the_connection(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, 1);
        bench.idle();
        bench.streams.notify_writable(id);
        bench.streams.send(id, vec![Part::Owned(b"farewell".to_vec())]);
        bench.streams.close(id);
        bench.streams.close(id);
        bench.streams.send(id, vec![Part::Owned(b"too late".to_vec())]);
        bench.streams.notify_writable(id);
        bench.streams.resume(id);
        assert_eq!(bench.streams.len(), 0);
        bench.idle();
        let mut got = Vec::new();
        peer.read_to_end(&mut got).expect("the end of the connection");
        assert_eq!(got, b"farewell");
    }

    fn id_of_a_closed_stream_does_not_reach_its_successor(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, _peer) = pair();
        let old = bench.register(ours, 1);
        bench.streams.close(old);
        bench.idle();
        let (ours, mut peer) = pair();
        bench.register(ours, 2);
        bench.streams.close(old);
        bench.streams.pause(old);
        bench.idle();
        peer.write_all(b"hello").expect("written");
        assert_eq!(bench.receive(2, 5), b"hello");
    }

    fn a_nonblocking_socket_is_waited_for_like_any_other(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, mut peer) = pair();
        ours.set_nonblocking(true).expect("set");
        bench.register(ours, 1);
        bench.idle();
        peer.write_all(b"hello").expect("written");
        assert_eq!(bench.receive(1, 5), b"hello");
    }

    fn receiving_with_control_messages_brings_data_all_the_same(backend: Backend) {
        let mut bench = Bench::new(backend, 8);
        let (ours, mut peer) = pair();
        let id = bench.streams.register(ours.into(), 1, true).expect("adopted");
        let sent = pattern(2 * BUFFER);
        let writer = std::thread::spawn({
            let sent = sent.clone();
            move || peer.write_all(&sent).map(|()| peer).expect("written")
        });
        assert!(bench.receive(1, sent.len()) == sent, "bytes differ");
        bench.streams.pause(id);
        bench.idle();
        bench.streams.resume(id);
        let mut peer = writer.join().expect("the writer ends");
        peer.write_all(b"more").expect("written");
        assert_eq!(bench.receive(1, 4), b"more");
        drop(peer);
        bench.until(|event| matches!(event, Event::Ended { token: 1 }));
    }

    fn records_of_the_kernels_tls_come_with_their_kind(backend: Backend) {
        let mut bench = Bench::new(backend, 8);
        let (ours, mut peer) = pair();
        if !crate::kernel_tls::opens(&ours) || !crate::kernel_tls::seals(&peer) {
            let name = "records_of_the_kernels_tls_come_with_their_kind";
            let _ = writeln!(std::io::stderr(), "SKIP {name}: the kernel's TLS (module tls)");
            return;
        }
        bench.streams.register(ours.into(), 1, true).expect("adopted");
        let sent = pattern(100_000);
        peer.write_all(&sent).expect("written");
        assert!(bench.receive(1, sent.len()) == sent, "bytes differ");
        let close_notify = [1, 0];
        crate::kernel_tls::send_alert(&peer, &close_notify);
        let Event::Control { kind, buffer, .. } = bench.until(|event| matches!(event, Event::Control { .. })) else {
            unreachable!("asked for")
        };
        assert_eq!((kind, &*buffer), (21, &close_notify[..]));
        peer.write_all(b"after").expect("written");
        assert_eq!(bench.receive(1, 5), b"after");
        drop(peer);
        bench.until(|event| matches!(event, Event::Ended { token: 1 }));
    }

    fn waker_ends_a_turn_from_another_thread(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        for _ in 0..3 {
            let waker = bench.streams.waker();
            let thread = std::thread::spawn(move || waker.wake());
            bench.until(|event| matches!(event, Event::Woken));
            thread.join().expect("the waker ends");
            bench.idle();
        }
    }

    fn more_parts_than_a_call_takes_are_sent_by_several(backend: Backend) {
        let mut bench = Bench::new(backend, 4);
        let (ours, mut peer) = pair();
        let id = bench.register(ours, 1);
        let parts = (0..MOST_PARTS + 10).map(|at| Part::Owned(vec![at as u8])).collect();
        bench.streams.send(id, parts);
        let Event::Sent { sent, parts, .. } = bench.until(|event| matches!(event, Event::Sent { .. })) else {
            unreachable!("asked for")
        };
        assert_eq!((sent, parts.len()), (MOST_PARTS, MOST_PARTS + 10));
        let mut got = vec![0; MOST_PARTS];
        peer.read_exact(&mut got).expect("read");
        assert!(got.iter().enumerate().all(|(at, &byte)| byte == at as u8));
    }

    fn turn_without_streams_ends_with_its_timeout(backend: Backend) {
        let mut bench = Bench::new(backend, 1);
        let mut events = Vec::new();
        bench.streams.turn(Some(Duration::from_micros(100)), &mut events).expect("waited");
        bench.streams.turn(Some(Duration::ZERO), &mut events).expect("waited");
        assert!(events.is_empty());
        assert!(LONG > Duration::ZERO && bench.streams.memory() >= CAPACITY);
    }
}

#[test]
fn no_buffers_are_refused() {
    assert!(Streams::new(Backend::Auto, 0).is_err());
}
