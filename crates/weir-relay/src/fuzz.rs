//! Fuzz functions of what strangers and files say to a relay: heads of HTTP, WebSocket messages, key files.

use crate::acceptor::http::{HEAD_MAX, Head};
use crate::acceptor::upgrade::Upgrade;
use crate::keyfile;
use crate::settings::MeshKey;
use crate::websocket::{Ended, Unframer};

/// What is done with one input; it panics where a promise is broken.
pub type FuzzTarget = fn(&[u8]);

/// Each with its name.
pub const FUZZ_TARGETS: &[(&str, FuzzTarget)] =
    &[("http_head", fuzz_http_head), ("websocket", fuzz_websocket), ("relay_keys", fuzz_relay_keys)];

/// Reads a head as it arrives: a part says nothing else than the whole, and what is made of it is a path of this server.
pub fn fuzz_http_head(data: &[u8]) {
    let (at, bytes) = data.split_first().map_or((0, data), |(&at, rest)| (usize::from(at), rest));
    let whole = Head::parse(bytes);
    let part = Head::parse(&bytes[..bytes.len().min(at)]);
    match &whole {
        Ok(Some((head, length))) => {
            assert!(*length <= HEAD_MAX.min(bytes.len()));
            assert_eq!(Head::parse(&bytes[..*length]), whole, "what follows a head changes nothing of it");
            let fits = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
            assert!(head.path.starts_with('/') && fits(&head.target()), "{:?}", head.target());
            let _ = head.asked("q");
            if let Ok(Upgrade::WebSocket(accept)) = Upgrade::of(head) {
                assert_eq!(accept.len(), 28, "a SHA-1 in base64");
            }
        }
        Ok(None) => assert!(bytes.len() < HEAD_MAX, "no head is longer"),
        Err(wrong) => assert!(wrong.answer().write(false, false).starts_with(b"HTTP/1.1 4")),
    }
    match part {
        Ok(Some(_)) => assert_eq!(part, whole, "more bytes change a head"),
        Err(_) => assert!(whole.is_err(), "more bytes mend a head"),
        Ok(None) => {}
    }
}

/// What comes out of messages, in pieces of this length.
fn unframed(data: &[u8], piece: usize) -> (Vec<u8>, Vec<u8>, Result<(), Ended>) {
    let (mut unframer, mut inside, mut out) = (Unframer::default(), Vec::new(), Vec::new());
    let all = data.chunks(piece).try_for_each(|part| unframer.take(part, &mut inside, &mut out));
    (inside, out, all)
}

/// Takes messages apart, whole and in pieces: the same comes out, and never more than came in.
pub fn fuzz_websocket(data: &[u8]) {
    let (piece, bytes) =
        data.split_first().map_or((1, data), |(&piece, rest)| (usize::from(piece) + 1, rest));
    let whole = unframed(bytes, usize::MAX);
    assert_eq!(unframed(bytes, piece), whole, "pieces of {piece}");
    assert!(whole.0.len() + whole.1.len() <= bytes.len());
}

/// Reads what may be a key file, or a mesh key's: what is read is a key of the right length, and written again it is the same.
pub fn fuzz_relay_keys(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(secret) = keyfile::parse(text) {
        let again = keyfile::parse(text.trim()).expect("blanks do not count");
        assert_eq!(secret.public(), again.public());
    }
    if let Ok(key) = MeshKey::new(text) {
        assert!(key.text().len() == 64 && key.matches(text.trim()));
        assert_eq!(format!("{key:?}"), "MeshKey(…)");
    }
}
