//! Streams give back every descriptor: a process of its own, because descriptors are counted.

use std::io::{Read, Write};
use std::rc::Rc;

use crate::support::{Bench, both, is_alone, open_descriptors, pair, pattern};
use weir_io::stream::{BUFFER, Backend, Event, Part};

both! {
    fn a_thousand_streams_echo_and_every_descriptor_comes_back(backend: Backend) {
        if !is_alone("a_thousand_streams_echo_and_every_descriptor_comes_back", backend) {
            return;
        }
        let before = open_descriptors();
        let mut bench = Bench::new(backend, 64);
        let (mut ids, mut peers) = (Vec::new(), Vec::new());
        for token in 0..1000 {
            let (ours, peer) = pair();
            ids.push(bench.register(ours, token));
            peers.push(peer);
        }
        for (token, peer) in peers.iter_mut().enumerate() {
            peer.write_all(&pattern(500 + token)).expect("written");
        }
        let mut left: usize = (0..1000).map(|token| 500 + token).sum();
        let mut waiting: Vec<std::collections::VecDeque<Part>> = (0..1000).map(|_| Default::default()).collect();
        while left > 0 {
            let mut events = Vec::new();
            bench.turn(&mut events);
            for event in events {
                let token = match event {
                    Event::Received { token, buffer } => {
                        let length = buffer.len();
                        waiting[token as usize].push_back(Part::Shared(Rc::new(buffer), 0..length));
                        token as usize
                    }
                    Event::Sent { token, sent, mut parts } => {
                        assert_eq!(sent, parts.iter().map(|part| part.bytes().len()).sum::<usize>());
                        left -= sent;
                        parts.clear();
                        waiting[token as usize].pop_front();
                        token as usize
                    }
                    other => panic!("{other:?}"),
                };
                if let Some(Part::Shared(buffer, range)) = waiting[token].front()
                    && Rc::strong_count(buffer) == 1
                {
                    bench.streams.send(ids[token], vec![Part::Shared(buffer.clone(), range.clone())]);
                }
            }
        }
        for (token, peer) in peers.iter_mut().enumerate() {
            let mut got = vec![0; 500 + token];
            peer.read_exact(&mut got).expect("read");
            assert!(got == pattern(500 + token), "bytes of {token} differ");
        }
        for id in ids {
            bench.streams.close(id);
        }
        drop(waiting);
        assert!(bench.streams.is_empty());
        for peer in &mut peers {
            bench.until_ended(peer);
        }
        drop((bench, peers));
        assert_eq!(open_descriptors(), before);
    }

    fn dropping_streams_with_operations_in_flight_is_sound(backend: Backend) {
        if !is_alone("dropping_streams_with_operations_in_flight_is_sound", backend) {
            return;
        }
        let before = open_descriptors();
        for turns in 0..3 {
            let mut bench = Bench::new(backend, 8);
            let (ours, mut peer) = pair();
            let id = bench.register(ours, 1);
            peer.write_all(&pattern(BUFFER)).expect("written");
            let mut events = Vec::new();
            for _ in 0..turns {
                bench.turn(&mut events);
            }
            bench.streams.send(id, vec![Part::Owned(pattern(100))]);
            bench.streams.notify_writable(id);
            drop(bench);
            // What was received outlives the streams it came by.
            for event in &events {
                if let Event::Received { buffer, .. } = event {
                    assert!(**buffer == pattern(BUFFER)[..buffer.len()] || turns > 1);
                }
            }
        }
        assert_eq!(open_descriptors(), before);
    }
}
