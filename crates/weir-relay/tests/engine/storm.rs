//! Everything at once: packets of all sizes, readers that dawdle, connections that end in the middle.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weir_core::relay::{Frame, Key, Kind};

use crate::member::{Member, bytes, engine, wait_for};

/// xorshift: the same numbers every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Data that tells whether a byte of it is wrong.
fn data(random: &mut Random) -> Vec<u8> {
    let length = match random.below(20) {
        0 => random.below(30_000),
        1..8 => random.below(100),
        _ => 1400,
    };
    let seed = random.below(256) as u8;
    std::iter::once(seed)
        .chain((0..length.saturating_sub(1)).map(|i| seed.wrapping_add((i * 7) as u8)))
        .collect()
}

fn is_sound(data: &[u8]) -> bool {
    let Some((&seed, rest)) = data.split_first() else { return false };
    rest.iter().enumerate().all(|(i, &byte)| byte == seed.wrapping_add((i * 7) as u8))
}

/// Reads until the end, now and then slowly. How many packets came.
fn read_all(mut member: Member, keys: &[Key], mut random: Random) -> usize {
    let mut packets = 0;
    member.socket.set_read_timeout(Some(crate::member::LONG)).expect("a socket option");
    while let Some((code, payload)) = member.frame_or_end() {
        match Kind::from_code(code) {
            Some(Kind::RecvPacket) => {
                assert!(keys.contains(&Key::from_slice(&payload[..32]).expect("a key")));
                assert!(is_sound(&payload[32..]), "bytes of a packet are wrong");
                packets += 1;
            }
            Some(Kind::PeerGone | Kind::Health | Kind::KeepAlive) => {}
            kind => panic!("a frame of kind {kind:?}, type {code}"),
        }
        if random.below(500) == 0 {
            std::thread::sleep(Duration::from_millis(random.below(30) as u64));
        }
    }
    packets
}

fn storm(workers: usize, epoll: bool) {
    const MEMBERS: u8 = 8;
    let relay = engine(workers, |engine| {
        engine.epoll = epoll;
        engine.buffers = 8;
        engine.queue_bytes = 200_000;
        engine.write_timeout = Duration::from_secs(60);
    });
    let keys: Vec<Key> =
        (1..=MEMBERS).map(|n| weir_core::relay::handshake::Secret::new([n; 32]).public()).collect();
    let received = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 1..=MEMBERS {
            let (relay, keys, received) = (&relay, &keys, &received);
            scope.spawn(move || {
                let mut random = Random(u64::from(number) * 0x9e37_79b9);
                // Each member comes twice.
                for _ in 0..2 {
                    let member = Member::join(relay, number);
                    let mut writer = member.socket.try_clone().expect("a second handle");
                    let reading = Random(random.0 ^ 0xabcd);
                    let reader = std::thread::spawn({
                        let keys = keys.clone();
                        move || read_all(member, &keys, reading)
                    });
                    for _ in 0..20 {
                        let mut burst = Vec::new();
                        for _ in 0..random.below(40) {
                            let to = keys[random.below(keys.len())];
                            burst.extend(bytes(&Frame::SendPacket(to, &data(&mut random))));
                        }
                        // Now and then it ends in the middle of a frame.
                        writer.write_all(&burst).expect("the engine reads");
                    }
                    writer.write_all(&[Kind::SendPacket as u8, 0, 0, 1]).expect("the engine reads");
                    writer.shutdown(std::net::Shutdown::Write).expect("connected");
                    received.fetch_add(reader.join().expect("every packet is sound"), Ordering::Relaxed);
                }
            });
        }
    });
    // Packets between two workers outlive the connection they came from: they are waited for too.
    let report = wait_for(&relay, "the ledger", |report| {
        let handed: u64 = report.workers.iter().map(|w| w.packets_handed).sum();
        let taken: u64 = report.workers.iter().map(|w| w.packets_taken).sum();
        handed == taken
            && report.balance() == 0
            && report.workers.iter().all(|w| w.packets_held == 0 && w.connections == 0)
    });
    let forwarded: u64 = report.workers.iter().map(|w| w.packets_forwarded).sum();
    // What a socket took may be lost with its connection; nothing comes twice.
    let received = received.load(Ordering::Relaxed) as u64;
    assert!(received > 0 && received <= forwarded, "{received} of {forwarded}");
}

#[test]
fn no_byte_is_wrong_and_no_packet_unaccounted_in_a_storm() {
    storm(1, false);
    storm(3, false);
    storm(2, true);
}
