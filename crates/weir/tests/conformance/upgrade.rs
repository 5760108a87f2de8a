//! From HTTP to DERP, and the pages beside it.

use crate::client::{Client, info, secret};
use crate::server::Sut;
use std::io::Read as _;

behaviours! {
    without_an_upgrade_derp_is_refused_by_426;
    an_upgrade_in_any_case_is_answered_with_version_and_key;
    a_fast_start_is_not_answered_and_the_key_comes_first;
    what_comes_right_behind_the_upgrade_is_not_lost;
    latency_checks_are_answered_and_may_be_asked_from_any_page;
    a_captive_portal_check_echoes_its_challenge_if_it_is_a_plain_one;
    robots_stay_out_and_there_is_a_home_page;
}

/// Head and body of a page.
fn ask(server: &crate::server::Server, request: &str) -> String {
    let mut client = Client::dial(server);
    client.write(format!("{request}\r\nHost: relay.example\r\nConnection: close\r\n\r\n").as_bytes());
    let mut answer = String::new();
    client.stream.read_to_string(&mut answer).expect("an answer in text");
    answer
}

/// A header's value.
fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn without_an_upgrade_derp_is_refused_by_426(subject: Sut) {
    let server = server!(subject);
    assert!(ask(&server, "GET /derp HTTP/1.1").starts_with("HTTP/1.1 426 "));
    assert!(ask(&server, "GET /derp HTTP/1.1\r\nUpgrade: h2c").starts_with("HTTP/1.1 426 "));
}

fn an_upgrade_in_any_case_is_answered_with_version_and_key(subject: Sut) {
    let server = server!(subject);
    // Early clients say WebSocket, without its subprotocol, and speak DERP.
    for name in ["DERP", "derp", "Derp", "WebSocket"] {
        let mut client = Client::dial(&server);
        let request =
            format!("GET /derp HTTP/1.1\r\nHost: x\r\nUpgrade: {name}\r\nConnection: Upgrade\r\n\r\n");
        client.write(request.as_bytes());
        let head = client.http_head();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert_eq!(header(&head, "Upgrade"), Some("DERP"));
        assert_eq!(header(&head, "Derp-Version"), Some("2"));
        client.take_server_key();
        let hex = client.server.to_string();
        assert_eq!(header(&head, "Derp-Public-Key"), hex.strip_prefix("nodekey:"));
    }
}

fn a_fast_start_is_not_answered_and_the_key_comes_first(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::dial(&server);
    client.write(b"GET /derp HTTP/1.1\r\nHost: x\r\nUpgrade: DERP\r\nConnection: Upgrade\r\nDerp-Fast-Start: 1\r\n\r\n");
    client.take_server_key();
}

fn what_comes_right_behind_the_upgrade_is_not_lost(subject: Sut) {
    let server = server!(subject);
    let known = Client::upgraded(&server).server;
    let mut client = Client::dial(&server);
    let mut said =
        b"GET /derp HTTP/1.1\r\nHost: x\r\nUpgrade: DERP\r\nConnection: Upgrade\r\nDerp-Fast-Start: 1\r\n\r\n"
            .to_vec();
    info().seal(&secret(1), &known, crate::client::NONCE, &mut said);
    said.extend(crate::client::bytes(weir_core::relay::Frame::Ping(b"at once!")));
    client.write(&said);
    client.take_server_key();
    client.take_server_info(&secret(1));
    assert_eq!(client.next(), Some(crate::client::seen(weir_core::relay::Frame::Pong(b"at once!"))));
}

fn latency_checks_are_answered_and_may_be_asked_from_any_page(subject: Sut) {
    let server = server!(subject);
    for page in ["/derp/probe", "/derp/latency-check"] {
        for method in ["GET", "HEAD"] {
            let answer = ask(&server, &format!("{method} {page} HTTP/1.1"));
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert_eq!(header(&answer, "Access-Control-Allow-Origin"), Some("*"));
        }
        assert!(
            ask(&server, &format!("POST {page} HTTP/1.1\r\nContent-Length: 0")).starts_with("HTTP/1.1 405 ")
        );
    }
}

fn a_captive_portal_check_echoes_its_challenge_if_it_is_a_plain_one(subject: Sut) {
    let server = server!(subject);
    let with = |challenge: &str| {
        let answer =
            ask(&server, &format!("GET /generate_204 HTTP/1.1\r\nX-Tailscale-Challenge: {challenge}"));
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
        header(&answer, "X-Tailscale-Response").map(str::to_owned)
    };
    assert_eq!(with("ts_a-Z.0:9"), Some("response ts_a-Z.0:9".into()));
    let longest = "a".repeat(64);
    assert_eq!(with(&longest), Some(format!("response {longest}")));
    assert_eq!(with(&"a".repeat(65)), None);
    assert_eq!(with("a b"), None);
    assert_eq!(with("<script>"), None);
    assert!(ask(&server, "GET /generate_204 HTTP/1.1").starts_with("HTTP/1.1 204 "));
}

fn robots_stay_out_and_there_is_a_home_page(subject: Sut) {
    let server = server!(subject);
    let robots = ask(&server, "GET /robots.txt HTTP/1.1");
    assert!(robots.contains("User-agent: *\nDisallow: /"), "{robots}");
    assert!(ask(&server, "GET / HTTP/1.1").starts_with("HTTP/1.1 200 "));
}
