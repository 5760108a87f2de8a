//! What a client says first, looked at before anything is agreed: which ciphers it likes best.
//!
//! ```text
//! record 5 │ message 4 │ version 2 │ random 32 │ session 1 + n │ suites 2 + 2 n │ …
//! ```
//!
//! Promises: any bytes are looked at safely. Refuses: nothing; what is no ClientHello, or not whole, says nothing.

use std::sync::Arc;

use rustls::{CipherSuite, ServerConfig};

/// Bytes up to the length of the session's name: a record of the handshake, a ClientHello.
const FIXED: usize = 5 + 4 + 2 + 32;

/// A record that holds a ClientHello (RFC 8446 5.1).
const HANDSHAKE: [u8; 2] = [super::kind::HANDSHAKE, 3];
const CLIENT_HELLO: u8 = 1;
const BODY_MOST: usize = 16 << 10;

/// Whether more of the first record should be read before [`for_client`] is asked. What is no handshake is not waited
/// for.
pub fn awaits(received: &[u8]) -> bool {
    match received.split_first_chunk() {
        Some((&[kind, version, _, high, low], body)) => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            [kind, version] == HANDSHAKE && length <= BODY_MOST && body.len() < length
        }
        None => HANDSHAKE.starts_with(&received[..received.len().min(HANDSHAKE.len())]),
    }
}

/// The configuration for a client that begins with `received`. Who names ChaCha20 first has no AES in hardware and
/// gets its own order of suites; for everybody else the server's holds.
pub fn for_client(config: Arc<ServerConfig>, received: &[u8]) -> Arc<ServerConfig> {
    match favourite(received) {
        Some(
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ) => {
            let mut theirs = config.as_ref().clone();
            theirs.ignore_client_order = false;
            Arc::new(theirs)
        }
        _ => config,
    }
}

/// The first suite of a ClientHello that is one (RFC 8701: others are there to be ignored).
fn favourite(received: &[u8]) -> Option<CipherSuite> {
    let [0x16, 3, _, _, _, CLIENT_HELLO, ..] = received else { return None };
    let rest = received.get(FIXED..)?;
    let (&session, rest) = rest.split_first()?;
    let (length, rest) = rest.get(usize::from(session)..)?.split_first_chunk::<2>()?;
    let suites = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
    let mut suites = suites.chunks_exact(2).map(|suite| u16::from_be_bytes([suite[0], suite[1]]));
    suites.find(|suite| suite & 0x0f0f != 0x0a0a).map(CipherSuite::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(session: usize, suites: &[u16]) -> Vec<u8> {
        let mut bytes = vec![0x16, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3];
        bytes.resize(FIXED, 7);
        bytes.push(session as u8);
        bytes.resize(bytes.len() + session, 7);
        bytes.extend_from_slice(&((suites.len() * 2) as u16).to_be_bytes());
        bytes.extend(suites.iter().flat_map(|suite| suite.to_be_bytes()));
        bytes
    }

    #[test]
    fn the_first_suite_is_found_behind_what_is_none() {
        for session in [0, 32] {
            let found = favourite(&hello(session, &[0x3a3a, 0x1303, 0x1301]));
            assert_eq!(found, Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256));
        }
        assert_eq!(favourite(&hello(0, &[0x2a2a])), None);
    }

    #[test]
    fn a_hello_is_awaited_and_noise_is_not() {
        let mut whole = hello(32, &[0x1303, 0x1301]);
        let body = (whole.len() - 5) as u16;
        whole[3..5].copy_from_slice(&body.to_be_bytes());
        assert!((0..whole.len()).all(|end| awaits(&whole[..end])));
        assert!(!awaits(&whole));
        for noise in [b"G".as_slice(), b"GET / HTTP/1.1", &[0x16, 3, 1, 0xff, 0xff], &[0x16, 2]] {
            assert!(!awaits(noise), "{noise:?}");
        }
    }

    #[test]
    fn half_a_hello_says_nothing() {
        let whole = hello(32, &[0x1303, 0x1301]);
        assert!((0..whole.len()).all(|end| favourite(&whole[..end]).is_none()));
        assert_eq!(favourite(&[0xff; 600]), None);
    }
}
