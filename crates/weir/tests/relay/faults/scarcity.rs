//! Descriptors that run out, and readers that do not read.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread;

use weir_io::netns;

use super::testbed::Testbed;
use crate::client::Client;
use crate::machine::{PATIENCE, until};

/// More than are free, fewer than wait in the kernel's queue.
const STRANGERS: usize = 300;

#[test]
fn descriptors_that_run_out_cost_clients_nothing() {
    let Some(testbed) = Testbed::new("descriptors_that_run_out_cost_clients_nothing") else { return };
    // A relay that may raise its limit does.
    let through = ["prlimit", "--nofile=256:256", "setpriv", "--bounding-set=-sys_resource"];
    let relay = testbed.start("", &through);
    let (mut one, mut two) = (testbed.client(1), testbed.client(2));
    one.reaches(&mut two, b"before");
    let at = Testbed::at("127.0.0.1");
    let strangers: Vec<TcpStream> = netns::inside(&testbed.relay, || {
        (0..STRANGERS)
            .map(|_| TcpStream::connect_timeout(&at, PATIENCE).expect("the kernel takes it"))
            .collect()
    })
    .expect("the namespace is there");
    until("descriptors have run out", || {
        (relay.metric("weir_relay_accept_failures_total", "") > 0).then_some(())
    });
    for n in 0..100u8 {
        one.reaches(&mut two, &[n; 1000]);
        two.reaches(&mut one, &[n; 1000]);
    }
    assert!(relay.log().contains("raise the limit of open files"), "{}", relay.log());
    drop(strangers);
    let mut three = testbed.client(3);
    three.reaches(&mut one, b"after");
    relay.assert_conserved();
}

/// Packets of a pair that are under way at most.
const WINDOW: u64 = 16;
const PACKETS: u64 = 600;

/// Numbered packets from one to the other; an answer to each 8th. None may be lost or come out of order.
fn busy(mut from: Client, mut to: Client) {
    thread::scope(|scope| {
        let (sender, receiver) = (from.key, to.key);
        let reader = scope.spawn(move || {
            for n in 0..PACKETS {
                let (key, data) = to.packet().expect("a packet");
                assert_eq!((key, &data[..8]), (sender, &n.to_le_bytes()[..]));
                assert!(data[8..].iter().all(|&b| b == n as u8), "packet {n} was changed");
                if n % (WINDOW / 2) == WINDOW / 2 - 1 {
                    to.send(sender, &n.to_le_bytes()).expect("the relay reads");
                }
            }
        });
        let mut answered = 0;
        for n in 0..PACKETS {
            while n >= answered + WINDOW {
                let (key, data) = from.packet().expect("an answer");
                assert_eq!(key, receiver);
                answered = 1 + u64::from_le_bytes(data[..8].try_into().expect("eight bytes"));
            }
            let mut data = n.to_le_bytes().to_vec();
            data.resize(1200, n as u8);
            from.send(receiver, &data).expect("the relay reads");
        }
        reader.join().expect("the reader");
    });
}

#[test]
fn readers_that_stall_cost_busy_pairs_not_one_packet() {
    let Some(testbed) = Testbed::new("readers_that_stall_cost_busy_pairs_not_one_packet") else { return };
    let relay = testbed.start("", &[]);
    let stalled: Vec<Client> = (100..104).map(|n| testbed.client(n)).collect();
    let victims: Vec<_> = stalled.iter().map(|c| c.key).collect();
    let mut flood = testbed.client(99);
    let pairs: Vec<_> = (0..4).map(|n| (testbed.client(2 * n), testbed.client(2 * n + 1))).collect();
    let (done, over) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        let flooding = scope.spawn(move || {
            // Until the pairs are through: sockets and queues of the stalled are full all the time.
            while over.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                for &victim in &victims {
                    flood.send(victim, &[0; 1400]).expect("the relay reads whatever becomes of it");
                }
            }
            flood
        });
        until("packets to the stalled are dropped", || {
            (relay.metric("weir_relay_packets_dropped_total", "") > 0).then_some(())
        });
        let running: Vec<_> = pairs.into_iter().map(|(a, b)| scope.spawn(move || busy(a, b))).collect();
        let ended: Vec<_> = running.into_iter().map(thread::ScopedJoinHandle::join).collect();
        drop(done);
        drop(flooding.join().expect("the flood"));
        assert!(ended.iter().all(Result::is_ok), "a busy pair paid");
    });
    drop(stalled);
    relay.assert_conserved();
}

#[test]
fn strangers_that_say_nothing_are_let_go() {
    let Some(testbed) = Testbed::new("strangers_that_say_nothing_are_let_go") else { return };
    let _relay = testbed.start("", &[]);
    let at = Testbed::at("127.0.0.1");
    let stranger = netns::inside(&testbed.relay, || TcpStream::connect_timeout(&at, PATIENCE));
    let stranger = stranger.expect("the namespace is there").expect("connected");
    stranger.set_read_timeout(Some(PATIENCE * 3)).expect("a timeout");
    // Whatever it is told before, the end comes: as one, or as a reset.
    match std::io::Read::read_to_end(&mut &stranger, &mut Vec::new()) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}"),
    }
}
