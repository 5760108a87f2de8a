//! What strangers and files may say, at smoke length: other inputs in each run.

use weir_relay::fuzz::FUZZ_TARGETS;
use weir_testing::fuzz::{Smoke, assert_targets, inputs};

/// Inputs a target gets: about a second, unoptimised.
const INPUTS: usize = 100_000;

/// A message of a client, whose mask is 1, 2, 3, 4.
fn message(first: u8, payload: &[u8]) -> Vec<u8> {
    let masked = payload.iter().zip([1, 2, 3, 4].iter().cycle()).map(|(byte, mask)| byte ^ mask);
    let length = match payload.len() {
        short @ ..126 => vec![0x80 | short as u8],
        long => [&[0x80 | 126][..], &(long as u16).to_be_bytes()].concat(),
    };
    [&[first], &length[..], &[1, 2, 3, 4], &masked.collect::<Vec<_>>()].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let key = "5b".repeat(32);
    let upgrade = "GET /derp HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Protocol: derp\r\n\r\n";
    let texts = [
        format!("{}GET /derp HTTP/1.1\r\nUpgrade: DERP\r\nDerp-Fast-Start: 1\r\n\r\n", '\x40'),
        format!("{}{upgrade}", '\x20'),
        "\x05POST /a?q=b%20c HTTP/1.0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        "\x7fHEAD https://relay.example/derp/probe?q=1 HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
        key.clone(),
        format!(" privkey:{key}\n"),
        format!("{{\"PrivateKey\": \"privkey:{key}\"}}"),
    ];
    let all = [message(0x02, &[7; 40]), message(0x89, b"ping"), message(0x80, &[8; 300]), message(0x88, &[])];
    let mut seeds: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
    seeds.push([&[6][..], &all.concat()].concat());
    seeds.push([&[0][..], &all[1]].concat());
    seeds
}

#[test]
fn nothing_that_is_said_stops_a_parser_or_is_taken_for_more_than_it_is() {
    Smoke { targets: FUZZ_TARGETS, seeds: seeds(), longest: 1024, inputs: inputs(INPUTS) }.run();
}

#[test]
fn every_fuzz_function_has_a_target_in_the_fuzz_workspace() {
    assert_targets(&[FUZZ_TARGETS], &[]);
}
