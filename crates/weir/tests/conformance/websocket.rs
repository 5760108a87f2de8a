//! DERP in WebSocket messages, as clients in browsers speak it.

use std::net::TcpStream;

use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Message, WebSocket};
use weir_core::relay::frame::{self, Frame, HEADER, Key};
use weir_core::relay::handshake::ServerInfo;

use crate::client::{Client, NONCE, Seen, bytes, info, key, secret, seen};
use crate::server::{Server, Sut};

behaviours! {
    a_browser_from_any_page_is_served_with_the_subprotocol_derp;
    packets_cross_between_websocket_and_plain_clients;
    frames_need_not_keep_to_messages;
    a_text_message_ends_the_connection;
}

struct Browser {
    socket: WebSocket<TcpStream>,
    /// Bytes of frames, not yet taken.
    received: Vec<u8>,
}

impl Browser {
    fn upgraded(server: &Server) -> Browser {
        let stream = Client::dial(server).stream;
        let mut request = format!("ws://{}/derp", server.address).into_client_request().expect("a URL");
        request.headers_mut().insert("Sec-WebSocket-Protocol", "derp".parse().expect("a value"));
        request.headers_mut().insert("Origin", "https://elsewhere.example".parse().expect("a value"));
        let (socket, response) = tungstenite::client(request, stream).expect("an upgrade");
        assert_eq!(
            response.headers().get("Sec-WebSocket-Protocol").map(|v| v.as_bytes()),
            Some(&b"derp"[..])
        );
        Browser { socket, received: Vec::new() }
    }

    fn join(server: &Server, n: u8) -> Browser {
        let mut browser = Browser::upgraded(server);
        let key = browser.server_key();
        let mut said = Vec::new();
        info().seal(&secret(n), &key, NONCE, &mut said);
        browser.send(said);
        let Seen(frame) = browser.next().expect("the server's info");
        let frame = Frame::parse(frame[0], &frame[HEADER..]).expect("well formed");
        ServerInfo::open(&secret(n), &key, &frame).expect("a box for this client");
        browser
    }

    fn server_key(&mut self) -> Key {
        let Seen(frame) = self.next().expect("the server's key");
        match Frame::parse(frame[0], &frame[HEADER..]) {
            Ok(Frame::ServerKey(key)) => key,
            other => panic!("the first frame is the server's key, not {other:?}"),
        }
    }

    fn send(&mut self, bytes: Vec<u8>) {
        self.socket.send(Message::binary(bytes)).expect("the server reads");
    }

    /// The next frame, from however many messages; none when the server has closed.
    fn next(&mut self) -> Option<Seen> {
        loop {
            if let Some((_, length)) = frame::head(&self.received)
                && self.received.len() >= HEADER + length
            {
                return Some(Seen(self.received.drain(..HEADER + length).collect()));
            }
            match self.socket.read() {
                Ok(Message::Binary(data)) => self.received.extend_from_slice(&data),
                Ok(Message::Close(_)) => return None,
                Ok(other) => panic!("only binary messages are spoken, not {other:?}"),
                Err(tungstenite::Error::Io(e))
                    if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
                {
                    panic!("waited in vain for a message")
                }
                Err(_) => return None,
            }
        }
    }
}

fn a_browser_from_any_page_is_served_with_the_subprotocol_derp(subject: Sut) {
    let server = server!(subject);
    let mut browser = Browser::join(&server, 1);
    browser.send(bytes(Frame::Ping(b"12345678")));
    assert_eq!(browser.next(), Some(seen(Frame::Pong(b"12345678"))));
}

fn packets_cross_between_websocket_and_plain_clients(subject: Sut) {
    let server = server!(subject);
    let (mut browser, mut plain) = (Browser::join(&server, 1), Client::join(&server, 2));
    for length in [0, 1, 125, 126, 1400, 16_384, 65_535, 65_536] {
        let data = vec![length as u8; length];
        // Servers need not take messages above 32 KiB; frames may be in several.
        bytes(Frame::SendPacket(key(2), &data)).chunks(30_000).for_each(|part| browser.send(part.to_vec()));
        assert_eq!(plain.next(), Some(seen(Frame::RecvPacket(key(1), &data))), "{length} bytes out");
        plain.send(Frame::SendPacket(key(1), &data));
        assert_eq!(browser.next(), Some(seen(Frame::RecvPacket(key(2), &data))), "{length} bytes in");
    }
}

fn frames_need_not_keep_to_messages(subject: Sut) {
    let server = server!(subject);
    let mut browser = Browser::join(&server, 1);
    let two = [bytes(Frame::Ping(b"11111111")), bytes(Frame::Ping(b"22222222"))].concat();
    for part in two.chunks(3) {
        browser.send(part.to_vec());
    }
    browser.send(Vec::new());
    // A server may leave out pongs of pings that come too fast, not the first.
    assert_eq!(browser.next(), Some(seen(Frame::Pong(b"11111111"))));
}

fn a_text_message_ends_the_connection(subject: Sut) {
    let server = server!(subject);
    let mut browser = Browser::join(&server, 1);
    browser.socket.send(Message::text("hello")).expect("the server reads");
    assert_eq!(browser.next(), None);
}
