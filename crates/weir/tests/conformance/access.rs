//! Who is let in, when somebody else is asked.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::client::{Client, NONCE, info, key, secret};
use crate::server::{MESH_KEY, Server, Sut};
use weir_core::relay::handshake::ClientInfo;

behaviours! {
    a_client_is_let_in_if_the_controller_says_so;
    a_client_is_refused_if_the_controller_says_so;
    clients_are_let_in_while_the_controller_does_not_answer;
    clients_are_refused_while_the_controller_does_not_answer_if_so_configured;
    an_answer_that_is_no_answer_lets_nobody_in;
    the_mesh_is_not_asked_about;
}

/// A controller that always says the same; its URL, and what it was asked.
fn controller(status: &'static str, body: &'static str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a TCP socket");
    let url = format!("http://{}/verify", listener.local_addr().expect("bound"));
    let (asked, questions) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut question = Vec::new();
            let mut part = [0; 4096];
            // A question ends with its JSON.
            while !question.ends_with(b"}") && !question.ends_with(b"}\n") {
                match stream.read(&mut part) {
                    Ok(n) if n > 0 => question.extend_from_slice(&part[..n]),
                    _ => break,
                }
            }
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes());
            if asked.send(String::from_utf8_lossy(&question).into_owned()).is_err() {
                return;
            }
        }
    });
    (url, questions)
}

/// A URL where nobody answers.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a TCP socket");
    format!("http://{}/verify", listener.local_addr().expect("bound"))
}

fn is_refused(server: &Server) {
    let mut client = Client::upgraded(server);
    let mut said = Vec::new();
    info().seal(&secret(1), &client.server, NONCE, &mut said);
    client.write(&said);
    assert_eq!(client.next(), None);
}

fn a_client_is_let_in_if_the_controller_says_so(subject: Sut) {
    let (url, questions) = controller("200 OK", r#"{"Allow": true}"#);
    let server = server!(subject, verify: Some(&url));
    Client::join(&server, 1);
    let question = questions.recv().expect("it was asked");
    assert!(question.starts_with("POST /verify "), "{question}");
    let body = question.split("\r\n\r\n").nth(1).expect("a body");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["NodePublic"], key(1).to_string());
    assert_eq!(body["Source"], "127.0.0.1");
}

fn a_client_is_refused_if_the_controller_says_so(subject: Sut) {
    let (url, _questions) = controller("200 OK", r#"{"Allow": false}"#);
    let server = server!(subject, verify: Some(&url));
    is_refused(&server);
}

fn clients_are_let_in_while_the_controller_does_not_answer(subject: Sut) {
    let server = server!(subject, verify: Some(&nobody()));
    Client::join(&server, 1);
}

fn clients_are_refused_while_the_controller_does_not_answer_if_so_configured(subject: Sut) {
    let server = server!(subject, verify: Some(&nobody()), fail_closed: true);
    is_refused(&server);
}

fn an_answer_that_is_no_answer_lets_nobody_in(subject: Sut) {
    for (status, body) in [("500 Oh", r#"{"Allow": true}"#), ("200 OK", "yes"), ("200 OK", "{}")] {
        let (url, _questions) = controller(status, body);
        let server = server!(subject, verify: Some(&url));
        is_refused(&server);
    }
}

fn the_mesh_is_not_asked_about(subject: Sut) {
    let (url, _questions) = controller("200 OK", r#"{"Allow": false}"#);
    let server = server!(subject, verify: Some(&url));
    let info = ClientInfo { mesh_key: MESH_KEY.into(), ..info() };
    Client::join_as(&server, &secret(8), &info);
}
