//! Packets from client to client, and what is no packet.

use weir_core::relay::frame::{Frame, KEY, Kind, PACKET_MAX};

use crate::client::{Client, bytes, disco, key, seen};
use crate::server::Sut;

behaviours! {
    a_packet_arrives_whole_with_its_senders_key;
    packets_arrive_in_order_however_they_are_cut;
    a_packet_to_nobody_goes_nowhere_and_is_not_answered;
    path_discovery_to_nobody_is_answered_and_only_a_few_times;
    path_discovery_arrives_too;
    a_ping_is_answered_with_its_first_eight_bytes;
    a_preference_is_taken_without_an_answer;
    frames_that_nobody_knows_are_passed_over;
    frames_of_servers_from_a_client_are_passed_over;
    a_clients_death_is_not_anothers;
}

fn a_packet_arrives_whole_with_its_senders_key(subject: Sut) {
    let server = server!(subject);
    let (mut alice, mut bob) = (Client::join(&server, 1), Client::join(&server, 2));
    for length in [0, 1, 63, 1400, 16 << 10, PACKET_MAX - 1, PACKET_MAX] {
        let data: Vec<u8> = (0..length).map(|i| (i * 7 / 3) as u8).collect();
        alice.send(Frame::SendPacket(key(2), &data));
        assert_eq!(bob.next(), Some(seen(Frame::RecvPacket(key(1), &data))), "{length} bytes");
    }
    assert_eq!(alice.before_pong(), []);
}

fn packets_arrive_in_order_however_they_are_cut(subject: Sut) {
    let server = server!(subject);
    let (mut alice, mut bob) = (Client::join(&server, 1), Client::join(&server, 2));
    // Fewer than the smallest queue in the field holds.
    let packets: Vec<Vec<u8>> = (0..24u8).map(|n| vec![n; 1 + 97 * usize::from(n)]).collect();
    let stream: Vec<u8> = packets.iter().flat_map(|data| bytes(Frame::SendPacket(key(2), data))).collect();
    for cut in [stream.len(), 1000, 333, 6] {
        stream.chunks(cut).for_each(|part| alice.write(part));
        for data in &packets {
            assert_eq!(bob.next(), Some(seen(Frame::RecvPacket(key(1), data))), "cut by {cut}");
        }
    }
}

fn a_packet_to_nobody_goes_nowhere_and_is_not_answered(subject: Sut) {
    let server = server!(subject);
    let (mut alice, mut bob) = (Client::join(&server, 1), Client::join(&server, 2));
    alice.send(Frame::SendPacket(key(9), b"is anybody there?"));
    assert_eq!(alice.before_pong(), []);
    alice.hears_nothing();
    bob.hears_nothing();
}

fn path_discovery_to_nobody_is_answered_and_only_a_few_times(subject: Sut) {
    let server = server!(subject);
    let mut alice = Client::join(&server, 1);
    let not_here = |n| seen(Frame::PeerGone(key(n), weir_core::relay::frame::Gone::NotHere));
    alice.send(Frame::SendPacket(key(9), &disco(0)));
    assert_eq!(alice.next(), Some(not_here(9)));
    let flood: Vec<u8> = (0..100).flat_map(|n| bytes(Frame::SendPacket(key(9), &disco(n)))).collect();
    alice.write(&flood);
    let mut answers = alice.before_pong();
    assert!(answers.iter().all(|answer| *answer == not_here(9)), "{answers:?}");
    // An answer may come after the pong.
    while answers.len() < 2 {
        answers.extend(alice.next());
    }
    assert!(answers.len() < 20, "{} answers to 100", answers.len());
}

fn path_discovery_arrives_too(subject: Sut) {
    let server = server!(subject);
    let (mut alice, mut bob) = (Client::join(&server, 1), Client::join(&server, 2));
    alice.send(Frame::SendPacket(key(2), &disco(5)));
    assert_eq!(bob.next(), Some(seen(Frame::RecvPacket(key(1), &disco(5)))));
}

fn a_ping_is_answered_with_its_first_eight_bytes(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::join(&server, 1);
    for length in [8, 9, 100, 1000] {
        let data: Vec<u8> = (0..length).map(|i| i as u8).collect();
        client.send(Frame::Ping(&data));
        assert_eq!(client.next(), Some(seen(Frame::Pong(&data[..8]))), "{length} bytes");
    }
}

fn a_preference_is_taken_without_an_answer(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::join(&server, 1);
    client.send(Frame::NotePreferred(true));
    client.send(Frame::NotePreferred(true));
    client.send(Frame::NotePreferred(false));
    assert_eq!(client.before_pong(), []);
}

fn frames_that_nobody_knows_are_passed_over(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::join(&server, 1);
    for (code, length) in [(0x7f, 0), (0x0b, 5), (0xff, 70_000), (0x00, 1 << 20)] {
        let [a, b, c, d] = (length as u32).to_be_bytes();
        let mut frame = vec![code, a, b, c, d];
        // Its payload looks like frames.
        frame.resize(5 + length, Kind::SendPacket as u8);
        client.write(&frame);
        assert_eq!(client.before_pong(), [], "type {code:#x}, {length} bytes");
    }
}

fn frames_of_servers_from_a_client_are_passed_over(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::join(&server, 1);
    client.send(Frame::KeepAlive);
    client.send(Frame::Health(b"ill"));
    client.send(Frame::RecvPacket(key(1), b"data"));
    client.send(Frame::Restarting(1, 2));
    client.send(Frame::Pong(b"12345678"));
    // Even of a length they never have.
    client.write(&[Kind::PeerGone as u8, 0, 0, 0, 2, 1, 2]);
    assert_eq!(client.before_pong(), []);
}

fn a_clients_death_is_not_anothers(subject: Sut) {
    let server = server!(subject);
    let wrong_lengths = [
        (Kind::SendPacket, KEY - 1),
        (Kind::SendPacket, KEY + PACKET_MAX + 1),
        (Kind::NotePreferred, 0),
        (Kind::NotePreferred, 2),
        (Kind::Ping, 7),
        (Kind::Ping, 1001),
    ];
    let (mut alice, mut bob) = (Client::join(&server, 1), Client::join(&server, 2));
    for (n, (kind, length)) in (10..).zip(wrong_lengths) {
        let mut client = Client::join(&server, n);
        let [a, b, c, d] = (length as u32).to_be_bytes();
        client.write(&[kind as u8, a, b, c, d]);
        client.try_write(&vec![1; length]);
        client.is_closed();
    }
    alice.send(Frame::SendPacket(key(2), b"still here"));
    assert_eq!(bob.next(), Some(seen(Frame::RecvPacket(key(1), b"still here"))));
}
