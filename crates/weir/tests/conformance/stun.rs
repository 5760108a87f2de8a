//! STUN beside DERP: which address do packets of mine come from?

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use weir_core::relay::stun;

use crate::machine::until;
use crate::server::{STUN_PORT, Sut};

behaviours! {
    a_tailnode_learns_its_address;
    others_are_not_answered;
}

/// Asks until there is an answer: UDP may lose, and the server may just be starting.
fn learnt(socket: &UdpSocket, server: SocketAddr) -> SocketAddr {
    let transaction = *b"transaction1";
    let mut question = Vec::new();
    stun::ask(&transaction, &mut question);
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a UDP socket");
    until("an answer", || {
        let _ = socket.send_to(&question, server);
        let mut answer = [0; 200];
        let (length, from) = socket.recv_from(&mut answer).ok()?;
        assert_eq!(from, server);
        stun::answer(&transaction, &answer[..length])
    })
}

fn a_tailnode_learns_its_address(subject: Sut) {
    let server = server!(subject, stun: true);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a UDP socket");
    let at = SocketAddr::from((server.ip(), STUN_PORT));
    assert_eq!(learnt(&socket, at), socket.local_addr().expect("bound"));
}

fn others_are_not_answered(subject: Sut) {
    let server = server!(subject, stun: true);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a UDP socket");
    let at = SocketAddr::from((server.ip(), STUN_PORT));
    learnt(&socket, at);
    let mut question = Vec::new();
    stun::ask(b"transaction2", &mut question);
    let wrong_sum = [&question[..question.len() - 1], &[question[question.len() - 1] ^ 1]].concat();
    let mut other_software = question.clone();
    other_software[24..32].copy_from_slice(b"softnode");
    let mut other_type = question.clone();
    other_type[1] = 2;
    for wrong in [wrong_sum, other_software, other_type, question[..20].to_vec(), vec![0; 40], Vec::new()] {
        socket.send_to(&wrong, at).expect("sent");
    }
    // Whoever asks properly afterwards is answered first.
    socket.send_to(&question, at).expect("sent");
    let mut answer = [0; 200];
    let length = loop {
        let (length, _) = socket.recv_from(&mut answer).expect("an answer");
        // A late one to the first question.
        if answer[8..20] != *b"transaction1" {
            break length;
        }
    };
    assert_eq!(stun::answer(b"transaction2", &answer[..length]), socket.local_addr().ok());
    assert!(socket.recv_from(&mut answer).is_err(), "one question, one answer");
}
