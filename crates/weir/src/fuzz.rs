//! Fuzz functions of what operators say: configurations, keys files, requests of the control socket.

use std::path::Path;

use hyper::Method;

use crate::config::keys::Keyring;
use crate::config::{self, Refused};
use crate::control::HttpRequest;
use crate::control::page::Page;
use crate::{relay, router, view};

/// What is done with one input; it panics where a promise is broken.
pub type FuzzTarget = fn(&[u8]);

/// Each with its name.
pub const FUZZ_TARGETS: &[(&str, FuzzTarget)] = &[
    ("config", fuzz_config),
    ("ipsec_keys", fuzz_ipsec_keys),
    ("control_request", fuzz_control_request),
    ("policy_changes", router::fuzz_policy_changes),
];

/// Judges what may be a configuration: it is taken or refused, the same each time, and every complaint has its place.
pub fn fuzz_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let judge = || config::parse("fuzz.toml", "fuzz", text.to_owned());
    match judge() {
        Ok(config) => {
            let addresses = |_: &config::port::Port| Vec::new();
            assert_eq!(config.desired(&addresses), config.desired(&addresses));
        }
        Err(Refused { text: said, complaints }) => {
            assert!(!said.is_empty());
            let lines = text.lines().count() + 1;
            for complaint in complaints {
                assert!((1..=lines).contains(&complaint.line) && complaint.column > 0, "{complaint:?}");
            }
            assert_eq!(
                judge().err().map(|again| again.text),
                Some(said),
                "refused otherwise the second time"
            );
        }
    }
}

/// Reads what may be a keys file: what is wrong with it is said without a key.
pub fn fuzz_ipsec_keys(data: &[u8]) {
    const SHOWN: usize = 8;
    match Keyring::parse(Path::new("fuzz.keys"), data) {
        Ok(ring) => {
            for name in ring.names() {
                assert!(ring.find(name).is_some());
            }
            assert!(!format!("{ring:?}").contains("Secret"));
        }
        Err(error) => {
            let said = format!("{error} {error:?}");
            // Any text between quotation marks that is long enough for a key.
            let text = String::from_utf8_lossy(data);
            let values = text.split('"').skip(1).step_by(2).filter(|value| value.len() > 2 * SHOWN);
            for value in values.filter(|value| value.bytes().all(|byte| byte.is_ascii_hexdigit())) {
                let is_name = value.len() <= 32;
                assert!(is_name || !said.contains(value), "the error shows what may be a key: {said}");
            }
        }
    }
}

/// Asks both daemons what may be a request: method, path, query and body, each a line.
pub fn fuzz_control_request(data: &[u8]) {
    let mut parts = data.splitn(4, |&byte| byte == b'\n');
    let mut text = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let method = match text().as_str() {
        "GET" => Method::GET,
        "HEAD" => Method::HEAD,
        _ => Method::POST,
    };
    let (path, query) = (text(), text());
    let body = parts.next().unwrap_or_default().to_vec();
    let request = HttpRequest { method, path, query, body };
    for refused in [
        router::resources::Resource::of(request.clone()).err(),
        relay::resources::Resource::of(&request).err(),
        Page::of(&request).err(),
    ]
    .into_iter()
    .flatten()
    {
        assert!((200..500).contains(&refused.status), "{refused:?}");
        let is_json = refused.content_type == "application/json";
        assert!(!is_json || serde_json::from_str::<view::Refusal>(&refused.body).is_ok(), "{refused:?}");
    }
    if let Ok(asked) = serde_json::from_slice::<view::TraceRequest>(&request.body)
        && let Ok(frame) = view::from_hex(&asked.frame)
    {
        assert!(frame.len() * 2 <= asked.frame.len());
    }
    let _ = serde_json::from_slice::<view::capture::CaptureRequest>(&request.body);
}
